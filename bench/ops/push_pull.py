"""push_pull: the benchmark `hpcomm bench push_pull` (hpcomm/bench/push_pull.py), with additions.

It adds hpcomm's C API beside its Python, bounds by memory traffic, topologies that know hosts and racks, and the keys
of models (-M) one by one.
"""

import argparse
import ctypes
from collections.abc import Iterator, Sequence

import numpy as np

import hpcomm
from bench.common import models
from bench.common.communicators import communicators
from bench.common.harness import Bench, Benchmark, Contender, has_torch, last_cache, main, nbytes
from bench.common.native import view
from bench.common.options import add_links
from bench.machine import over_verbs
from hpcomm.bench.arrays import Floats, address, aligned, zeros
from hpcomm.bench.composites import allreduce_alone, composites, gloo, gloo_alone
from hpcomm.bench.push_pull import exchange, several, wire
from hpcomm.bench.training import MOMENTUM, RATE, Task
from hpcomm.bench.wire import has_rates

LOOP_STREAMS = 5  # of a fused momentum loop: three arrays read, two written
MIB = 1 << 20
SIZES = [8, 64 << 10, 4 * MIB, 32 * MIB, 256 * MIB]


def hosts_first(bench: Bench) -> dict[str, dict[str, object]]:
    """Returns, by contender, arguments of parameter_hub: servers, or topologies that know hosts and racks."""
    racks = bench.options.racks
    ways: dict[str, dict[str, object]] = {f"hpcomm {mode}": {"progress": mode} for mode in bench.options.modes}
    ways |= {"hpcomm auto": {"topology": "auto"}} if bench.options.hosts_first else {}
    return ways | ({"hpcomm racks": {"topology": hpcomm.Hierarchy(racks=racks)}} if racks else {})


def levels_of(bench: Bench) -> dict[str, list[list[int]]]:
    """Returns the same topologies for C, by contender: for each level (hosts, racks) the group of each rank."""
    order = list(dict.fromkeys(bench.hosts))
    hosts, racks = [order.index(host) for host in bench.hosts], bench.options.racks
    ways = {"hpcomm C auto": [hosts]} if bench.options.hosts_first else {}
    rack_of = {rank: i for i, rack in enumerate(racks) for rank in rack}
    return ways | ({"hpcomm C racks": [hosts, [rack_of[rank] for rank in range(bench.size)]]} if racks else {})


def exchange_c(job: Task, chunk: int, name: str = "hpcomm C", levels: Sequence[Sequence[int]] = ()) -> Contender:
    """Makes a contender: hpcomm's C API in a C loop. levels: for each level, the group of each rank."""
    native, bench = job.bench.native, job.bench
    counts = np.array([key.count for key in job.keys], np.uint64)
    start = job.params()
    values, sources = (np.array([address(array) for array in arrays], np.uint64) for arrays in (start, job.gradients))
    groups = np.array(levels, np.intc)
    made, gradient, seconds = ctypes.c_void_p(), ctypes.c_void_p(), np.zeros(1)
    native.check(
        native.bench_exchange(
            native.context,
            address(counts),
            address(values),
            counts.size,
            address(groups),
            len(levels),
            chunk,
            RATE,
            MOMENTUM,
            ctypes.byref(made),
        )
    )
    params = [view(native.hpc_exchange_params(made, k), key.count, np.float32) for k, key in enumerate(job.keys)]

    def place(k: int) -> Floats:
        native.check(native.hpc_exchange_gradient(made, k, bench.options.timeout, ctypes.byref(gradient)))
        found: Floats = view(gradient.value or 0, job.keys[k].count, np.float32)
        return found

    def places() -> list[Floats]:
        return [place(k) for k in range(counts.size)]

    def timed() -> float:
        native.check(
            native.bench_push_pull(
                made, address(sources), address(counts), counts.size, job.m, bench.options.timeout, address(seconds)
            )
        )
        return float(seconds[0])

    measure = job.turn(lambda: None, params, places, timed)
    return Contender(name, "hpcomm", measure, lambda: native.hpc_exchange_free(made))


def traffic(job: Task) -> Contender:
    """Makes a bound: push_pull's memory traffic at the rate of a fused momentum loop that runs on all ranks at once."""
    count = max(job.count // job.bench.size, 4 * last_cache() // (12 * job.bench.size))
    params, gradient, velocity = (aligned(count) for _ in range(3))
    for k, array in enumerate((params, gradient, velocity)):
        np.random.default_rng(k).random(out=array, dtype=np.float32)
    streams = (
        2 * job.bench.size + 4
    )  # each worker's gradient is read and parameter written; the owner's momentum and parameter are read and written
    times = streams * job.count / (LOOP_STREAMS * count * job.bench.size)

    def measure(n: int) -> tuple[list[float], int]:
        seconds = []
        for _ in range(n):
            job.bench.comm.Barrier()
            loop = job.bench.native.bench_momentum(address(params), address(gradient), address(velocity), count, 1)
            seconds.append(times * loop)
        return seconds, 0

    return Contender("momentum traffic (bound)", "bound", measure)


def update(job: Task) -> Contender:
    """Makes a bound: every owner sums all gradients of its elements and applies the rule; nothing is sent."""
    ranks = job.bench.size
    count = -(-job.count // ranks)
    gradients, (params, state) = [aligned(count) for _ in range(ranks)], (zeros(count), zeros(count))
    for gradient in gradients:
        gradient.fill(1)
    places, weights = np.array([address(gradient) for gradient in gradients], np.uint64), np.ones(ranks)

    def measure(n: int) -> tuple[list[float], int]:
        seconds = []
        for _ in range(n):
            job.bench.comm.Barrier()
            took = job.bench.native.bench_update(
                address(places), ranks, address(weights), address(params), address(state), count, 1
            )
            if took < 0:
                raise RuntimeError(f"the update of {ranks} ranks' gradients was refused")
            seconds.append(took)
        return seconds, 0

    return Contender("update alone (bound)", "bound", measure)


def model(options: argparse.Namespace, size: int) -> models.Model:
    return models.flat(size) if options.model == "flat" else models.load(options.model)


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    return list(wanted(bench, size))


def wanted(bench: Bench, size: int) -> Iterator[Contender]:
    keys = model(bench.options, size).keys
    job = Task(bench, keys, bench.options.agg_iters or several(size))
    chunk = bench.options.chunk
    if job.count * 4 >= last_cache() and bench.wanted("momentum traffic (bound)"):
        yield traffic(job)
    if bench.wanted("hpcomm C"):
        yield exchange_c(job, chunk)
    for name, levels in levels_of(bench).items():
        if bench.wanted(name):
            yield exchange_c(job, chunk, name, levels)
    if bench.wanted("hpcomm Python"):
        yield exchange(job, "hpcomm Python", chunk)
    if len(keys) > 1 and bench.wanted("hpcomm step"):
        yield exchange(job, "hpcomm step", chunk, step=True)
    for name, hub in hosts_first(bench).items():
        if bench.wanted(name):
            yield exchange(job, name, chunk, hub=hub)
    if not {"verbs", "tcp"} & set(bench.transports) and bench.wanted("hpcomm shared_params"):
        yield exchange(job, "hpcomm shared_params", chunk, shared=True)
    if over_verbs.goes(bench):
        yield from over_verbs.exchange_limits(bench, 4 * job.count, chunk)
        if bench.wanted("update alone (bound)"):
            yield update(job)
        if not bench.apart:  # MPI would take shared memory
            return
    comms = communicators(bench)
    yield from composites(job, comms)
    if bench.apart:
        if has_rates(bench) and bench.wanted("wire (bound)"):
            yield wire(job)
        for name, comm in ((f"Allreduce alone{suffix}", comm) for suffix, comm in comms.items()):
            if bench.wanted(name):
                yield allreduce_alone(job, name, comm)
        if has_torch() and bench.wanted("Gloo all_reduce alone"):
            yield gloo_alone(job)
    elif len(keys) == 1 and has_torch() and bench.wanted("Gloo + torch SGD"):
        yield gloo(job)


def sizes(options: argparse.Namespace) -> Sequence[int]:
    return options.sizes if options.model == "flat" else [models.load(options.model).nbytes]


def racks_of(text: str) -> list[list[int]]:
    found = [[int(rank) for rank in rack.split(",")] for rack in text.split("/")]
    if len(found) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is one rack alone")
    return found


def add_buffers(parser: argparse.ArgumentParser, chunk: int) -> None:
    """Adds the options for the keys that are pushed. chunk: the default of --chunk."""
    parser.add_argument(
        "-s", "--sizes", type=lambda text: [nbytes(part) for part in text.split(",")], default=SIZES,
        help="sizes of the flat buffer, e.g. 8,64K,4M",
    )  # fmt: skip
    parser.add_argument(
        "-M", "--model", choices=("flat", *models.NAMES), default="flat", help="model whose keys are pushed"
    )
    parser.add_argument("--chunk", type=nbytes, default=chunk, help="bytes that one core owns, e.g. 32K")


def options(parser: argparse.ArgumentParser) -> None:
    add_buffers(parser, 32 << 10)
    parser.add_argument(
        "--modes", type=lambda text: text.split(","), default=[],
        help="who folds, a contender each: thread, inline; default: as the exchange chooses",
    )  # fmt: skip
    parser.add_argument("--hosts_first", action="store_true", help="parameter_hub with topology='auto' too")
    parser.add_argument("--racks", type=racks_of, default=[], help="ranks of each rack, for a third level: 0,1/2,3")
    add_links(parser)


BENCHMARK = Benchmark(
    name="push_pull",
    about="push_pull of a flat buffer or of a model's keys, beside collectives plus an update.",
    dtype="float32",
    contenders=contenders,
    defaults={"iters": 0, "agg_iters": 0},
    options=options,
    sizes=sizes,
    samples=lambda size: max(1, min(10, 64 * MIB // size)),
)

if __name__ == "__main__":
    main(BENCHMARK)

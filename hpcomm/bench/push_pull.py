"""push_pull: measures a step, gradients in and parameters after Nesterov momentum out, beside composites.

A composite is a replacement that a user would write with mpi4py or Gloo (composites.py). The only key is a flat buffer.
Each rank is a worker and also a server (colocated servers). The gradient is in the exchange's memory, or in an array of
the composite. training.py computes the expected parameters.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from operator import truediv
from typing import Any

import hpcomm

from .composites import allreduce_alone, composites, gloo, gloo_alone
from .harness import Bench, Benchmark, Contender, nbytes
from .peers import has_torch
from .training import MOMENTUM, RATE, FlatKey, Task, rounds
from .wire import afar, has_rates, rate

MIB = 1 << 20


def several(size: int) -> int:
    """Returns the number of operations in one sample: one operation of few bytes is too short for the clock."""
    return max(1, min(2000, 2 * MIB // size))


def settings(bench: Bench, chunk: int, shared: bool = False, cores: int = 0) -> dict[str, Any]:
    """Returns arguments of an exchange. chunk: bytes of a chunk; cores: cores of each server; 0: the default."""
    return {
        "rule": hpcomm.Nesterov(lr=RATE, momentum=MOMENTUM),
        "plan": hpcomm.PlanOptions(chunk_bytes=chunk or None, cores=cores or None),
        "engine": hpcomm.EngineOptions(shared_params=shared),
        "timeout": bench.options.timeout,
    }


def exchange(
    job: Task,
    name: str,
    chunk: int,
    shared: bool = False,
    step: bool = False,
    cores: int = 0,
    affinity: str = "key",
    hub: Mapping[str, Any] | None = None,
    context: hpcomm.Context | None = None,
) -> Contender:
    """Returns hpcomm's Python API as a contender. Its time includes the calls of gradient, which a trainer needs.

    step: exchange all keys by one call of Exchange.step. hub: make the exchange by parameter_hub with these arguments.
    context: the exchange's context; None: the one of job's Bench.
    """
    names = [key.name for key in job.keys]
    params_of = dict(zip(names, job.params(), strict=True))
    given, ctx = settings(job.bench, chunk, shared, cores), context or job.bench.context
    if hub is None:
        made = hpcomm.Exchange(ctx, params_of, hpcomm.ParameterServer(affinity=affinity), **given)
    else:
        made = hpcomm.parameter_hub(ctx, params_of, **hub, **given)
    params = [made.params[key] for key in names]
    places = [made.gradient(key) for key in names]  # with one slot for each key they never change

    def one_by_one() -> None:
        for key in names:
            made.gradient(key)
            made.push_pull(key)

    def flat() -> None:
        made.gradient("flat")
        made.push_pull("flat")

    def whole() -> None:
        for key in names:
            made.gradient(key)
        made.step()

    way = whole if step else flat if names == ["flat"] else one_by_one
    return Contender(name, "hpcomm", job.turn(way, params, lambda: places), made.close)


def wire(job: Task) -> Contender:
    """Returns a contender that states the least time that links allow, from their measured or given rates.

    In a sum over n hosts each host sends, and receives, 2(n-1)/n of all bytes. The same holds for n racks and their
    links, if the run has racks; the slower kind of link counts.
    """
    bench, racks = job.bench, getattr(job.bench.options, "racks", [])
    hosts = len(set(bench.hosts))
    cuts = [(0, hosts, afar(bench, 0))] + ([(1, len(racks), racks[1][0])] if racks else [])

    def measure(n: int) -> tuple[list[float], int]:
        rates = [[rate(bench, to, link) for link, _, to in cuts] for _ in range(n)]
        if bench.rank != 0:
            return [], 0
        nbytes = [2 * (parts - 1) / parts * 4 * job.count for _, parts, _ in cuts]
        return [max(map(truediv, nbytes, each)) for each in rates], 0

    return Contender("wire (bound)", "bound", measure)


def wanted(bench: Bench, size: int) -> Iterator[Contender]:
    job = Task(bench, [FlatKey("flat", size // 4)], bench.options.agg_iters or several(size))
    if bench.wanted("hpcomm Python"):
        yield exchange(job, "hpcomm Python", bench.options.chunk)
    if bench.transports == ["shm"] and bench.wanted("hpcomm shared_params"):
        yield exchange(job, "hpcomm shared_params", bench.options.chunk, shared=True)
    if bench.mpi:
        yield from composites(job, {"": bench.comm})
    if has_torch() and bench.size > 1 and bench.wanted("Gloo + torch SGD") and not bench.apart:
        yield gloo(job)
    if bench.apart:
        if has_rates(bench) and bench.wanted("wire (bound)"):
            yield wire(job)
        if bench.mpi and bench.wanted("mpi4py Allreduce alone"):
            yield allreduce_alone(job, "mpi4py Allreduce alone", bench.comm)
        if has_torch() and bench.wanted("Gloo all_reduce alone"):
            yield gloo_alone(job)


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    return list(wanted(bench, size))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--chunk", type=nbytes, default=32 << 10, help="bytes that one core owns, e.g. 32K")
    parser.add_argument(
        "--wire",
        type=lambda text: [1e6 * float(part) for part in text.split(",")],
        default=[],
        help="MB/s that a host's link carries: 119.6; default: iperf3 measures it",
    )


BENCHMARK = Benchmark(
    name="push_pull",
    about="push_pull of a flat buffer, beside collectives of MPI and Gloo plus an update.",
    dtype="float32",
    contenders=contenders,
    defaults={"minbytes": 64 << 10, "maxbytes": 64 * MIB, "stepfactor": 32, "iters": 0, "agg_iters": 0},
    options=options,
    samples=lambda size: max(1, min(10, 64 * MIB // size)),
    peers=("mpi4py", "Gloo", "iperf3"),
    refuses=rounds,
    quick=("-b", "64K", "-e", "4M", "-f", "64", "-n", "2", "-N", "3"),
)

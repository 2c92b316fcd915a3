"""placements: an exchange of all keys by workers that compute nothing, with servers of each of PHub's placements (PHub,
sections 2.1 and 4.4). zero_compute starts it.

The last --servers ranks only serve: the first of them under NCC (PBox), all under NCS. Under CC and CS they sleep. An
exchange lives for one turn: it takes a step that does not count, then those that are timed, and closes, which ends
serve() on the servers. Composites and Gloo run among the workers alone. Gloo sums all keys as one array.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

import hpcomm
from bench.common import models
from bench.common.composites import communicators, composites, gloo
from bench.common.harness import Bench, Benchmark, Contender, has_torch, main
from bench.common.training import Job
from bench.ops.push_pull import add_buffers, exchange, model, settings, sizes
from bench.phub.paper import PLACEMENTS

Samples = tuple[list[float], int]
Measure = Callable[[int], Samples]


def nothing(n: int) -> Samples:
    """The turn of a rank that has no part in it."""
    return [], 0


def warmed(measure: Measure) -> Measure:
    """One sample more, the first, which does not count; its answers do."""

    def turn(n: int) -> Samples:
        (_, early), (seconds, wrong) = measure(1), measure(n)
        return seconds, early + wrong

    return turn


def group_of(bench: Bench, ranks: int) -> MPI.Intracomm | None:
    """The first ranks, in a communicator of their own. Collective."""
    group = bench.comm.Split(0 if bench.rank < ranks else MPI.UNDEFINED)
    return None if group == MPI.COMM_NULL else MPI.Intracomm(group)


def placed(bench: Bench, job: Job | None, keys: Sequence[models.Key], placement: str, workers: int) -> Contender:
    """hpcomm under a placement. job: None on a rank that is no worker. Collective."""
    servers = {"NCC": 1, "NCS": bench.options.servers}.get(placement, 0)
    name, chunk = f"hpcomm {placement}", bench.options.chunk
    group = group_of(bench, workers + servers)
    if group is None:
        return Contender(name, "hpcomm", nothing)
    context = hpcomm.init(group, transport=bench.options.transport or None, devices=bench.options.devices or None)
    bench.ends.append(context.close)
    hub: dict[str, Any] = {"placement": placement, "servers": range(workers, workers + servers) if servers else None}

    def work(n: int) -> Samples:
        assert job is not None
        made = exchange(job, name, chunk, step=True, hub=hub, context=context)
        found = warmed(made.measure)(n)
        made.close()
        return found

    def serve(n: int) -> Samples:
        zeros = {key.name: np.zeros(key.count, np.float32) for key in keys}
        with hpcomm.parameter_hub(context, zeros, **hub, **settings(bench, chunk)) as made:
            made.serve()
        return [], 0

    return Contender(name, "hpcomm", serve if job is None else work)


def beside(job: Job) -> Iterator[Contender]:
    """What users have instead."""
    crew = job.bench
    for peer in composites(job, communicators(crew)):
        yield Contender(peer.name, peer.role, warmed(peer.measure), peer.close)
    if crew.size > 1 and has_torch() and crew.wanted("Gloo + torch SGD"):
        peer = gloo(Job(crew, models.flat(4 * job.count).keys, 1))
        yield Contender(peer.name, peer.role, warmed(peer.measure), peer.close)


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    options, workers = bench.options, bench.size - bench.options.servers
    alone = {"NCC", "NCS"} & set(options.placement)
    if workers < 1 or bool(alone) != (options.servers > 0):
        needs = f"{' and '.join(sorted(alone))} need" if alone else "CC and CS have no"
        raise SystemExit(
            f"{bench.size} ranks, --servers {options.servers}: {needs} ranks that only serve, and a worker"
        )
    keys = model(options, size).keys
    group = group_of(bench, workers)
    crew = None if group is None else Bench(options, group)
    if crew is not None:
        bench.ends.append(crew.close)
    job = None if crew is None else Job(crew, keys, 1)
    hubs = [placed(bench, job, keys, name, workers) for name in options.placement if bench.wanted(f"hpcomm {name}")]
    peers = [] if job is None else list(beside(job))
    named = bench.comm.bcast([(peer.name, peer.role) for peer in peers])
    return [*hubs, *(peers or [Contender(name, role, nothing) for name, role in named])]


def placements_of(text: str) -> list[str]:
    found = [word.strip().upper() for word in text.split(",") if word.strip()]
    if not found or set(found) - set(PLACEMENTS):
        raise argparse.ArgumentTypeError(f"{text!r}: must be some of {','.join(PLACEMENTS)}")
    return found


def options(parser: argparse.ArgumentParser) -> None:
    add_buffers(parser, 0)
    parser.add_argument("--placement", type=placements_of, default=["CS", "NCC"], help=f"of {','.join(PLACEMENTS)}")
    parser.add_argument("--servers", type=int, default=1, help="ranks that only serve, the last ones; NCC takes one")


BENCHMARK = Benchmark(
    name="placements",
    about="push_pull of all keys at once with servers of PHub's placements.",
    dtype="float32",
    contenders=contenders,
    defaults={"iters": 1, "warmup_iters": 0},
    options=options,
    sizes=sizes,
)

if __name__ == "__main__":
    main(BENCHMARK)

"""placements: an exchange of all keys by workers that compute nothing, with servers of each of PHub's placements.

See PHub, sections 2.1 and 4.4; zero_compute starts it. The last --servers ranks only serve: the first of them under NCC
(PBox), all under NCS. Under CC and CS they sleep. An exchange lives for one turn: it takes an untimed step, then timed
steps, and closes, which ends serve() on the servers. Composites and Gloo run among the workers only. Gloo sums all keys
as one array.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

import hpcomm
from bench.common import models
from bench.common.communicators import communicators
from bench.common.harness import Bench, Benchmark, Contender, has_torch, main
from bench.ops.push_pull import add_buffers, model, sizes
from bench.phub.paper import PLACEMENTS
from hpcomm.bench.composites import composites, gloo
from hpcomm.bench.push_pull import exchange, settings
from hpcomm.bench.training import Task

Samples = tuple[list[float], int]
Measure = Callable[[int], Samples]


def nothing(n: int) -> Samples:
    """Takes the turn of a rank that has no part in it."""
    return [], 0


def warmed(measure: Measure) -> Measure:
    """Wraps a contender so that its first sample is not timed; its answers are still checked."""

    def turn(n: int) -> Samples:
        (_, early), (seconds, wrong) = measure(1), measure(n)
        return seconds, early + wrong

    return turn


class Crew:
    """The workers, which are a benchmark's first ranks, and contexts of them and the servers after them.

    Attributes:
        bench: of the workers; None on a rank that only serves.
        job: of the workers; None on a rank that only serves.
    """

    def __init__(self, bench: Bench, servers: int, keys: Sequence[models.Key], m: int = 1) -> None:
        """servers: number of ranks that only serve. m: of Task. Collective."""
        self._all, self._workers, self._keys = bench, bench.size - servers, keys
        if servers < 0 or self._workers < 1:
            raise SystemExit(f"--servers {servers} of {bench.size} ranks: must be 0 or more, and leave a worker")
        self._contexts: dict[int, hpcomm.Context | None] = {}
        group = self._group(0)
        self.bench = None if group is None else Bench(bench.options, group)
        self.job = None if self.bench is None else Task(self.bench, keys, m)
        if self.bench is not None:
            bench.ends.append(self.bench.close)

    def _group(self, servers: int) -> MPI.Intracomm | None:
        """Makes a context of the workers and the first servers; None on other ranks."""
        group = self._all.comm.Split(0 if self._all.rank < self._workers + servers else MPI.UNDEFINED)
        return None if group == MPI.COMM_NULL else MPI.Intracomm(group)

    def _context(self, servers: int) -> hpcomm.Context | None:
        if servers not in self._contexts:
            group, options = self._group(servers), self._all.options
            reach = {"transport": options.transport or None, "devices": options.devices or None}
            made = self._contexts[servers] = None if group is None else hpcomm.init(group, **reach)
            if made is not None:
                self._all.ends.append(made.close)
        return self._contexts[servers]

    def contender(
        self, name: str, placement: str, chunk: int, servers: int = 0, cores: int = 0, **more: object
    ) -> Contender:
        """Makes hpcomm's contender under a placement. servers: ranks that only serve. chunk, cores: push_pull's
        settings. more: arguments of parameter_hub. Collective."""
        context, workers = self._context(servers), self._workers
        hub: dict[str, Any] = {"placement": placement, **more}
        hub |= {"servers": range(workers, workers + servers)} if servers else {}

        def work(job: Task, n: int) -> Samples:
            made = exchange(job, name, chunk, step=True, cores=cores, hub=hub, context=context)
            found = warmed(made.measure)(n)
            made.close()
            return found

        def serve(ctx: hpcomm.Context, n: int) -> Samples:
            zeros = {key.name: np.zeros(key.count, np.float32) for key in self._keys}
            with hpcomm.parameter_hub(ctx, zeros, **hub, **settings(self._all, chunk, cores=cores)) as made:
                made.serve()
            return [], 0

        turn = nothing if context is None else partial(work, self.job) if self.job else partial(serve, context)
        return Contender(name, "hpcomm", turn)


def beside(job: Task) -> Iterator[Contender]:
    """What users have instead."""
    crew = job.bench
    for peer in composites(job, communicators(crew)):
        yield Contender(peer.name, peer.role, warmed(peer.measure), peer.close)
    if crew.size > 1 and has_torch() and crew.wanted("Gloo + torch SGD"):
        peer = gloo(Task(crew, models.flat(4 * job.count).keys, 1))
        yield Contender(peer.name, peer.role, warmed(peer.measure), peer.close)


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    options = bench.options
    alone = {"NCC", "NCS"} & set(options.placement)
    if alone and options.servers == 0:
        raise SystemExit(f"--servers 0: {' and '.join(sorted(alone))} need a rank that only serves")
    crew = Crew(bench, options.servers, model(options, size).keys)
    servers = {"NCC": 1, "NCS": options.servers}
    hubs = [
        crew.contender(name, placement, options.chunk, servers.get(placement, 0))
        for placement in options.placement
        if bench.wanted(name := f"hpcomm {placement}")
    ]
    peers = [] if crew.job is None else list(beside(crew.job))
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

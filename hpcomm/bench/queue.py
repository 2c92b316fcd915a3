"""queue: measures a step of NOTIFY-ACK (send to out-neighbours, average with in-neighbours), beside mpi4py and NumPy.

The graph is circulant: rank r receives from r - k and sends to r + k for each k of --graph. At the start of every step
a rank changes a few of its values, as training would. Results are compared bit by bit with a model, which has one
period of each rank's values: values start as whole numbers that repeat every PERIOD elements, and every step changes
one element of each period, as in bench/ops/queue.c.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import _core
from . import arrays
from .arrays import Floats
from .composites import mpi
from .harness import Bench, Benchmark, Contender

PERIOD = 4093  # a prime, so data that arrives at a place a power of two off is found wrong
BLOCK = 1 << 15  # elements of a block: three arrays of this size stay in a core's cache


def _start(rank: int) -> Floats:
    values: Floats = (arrays.words(PERIOD, rank * PERIOD) % np.uint64(65536)).astype(np.float32)
    return values


class Circulant:
    """This rank's neighbours, and the model that gives all ranks' expected values."""

    def __init__(self, bench: Any, size: int) -> None:
        self.bench, self.count = bench, size // 4
        self.offsets = np.array(bench.options.graph, np.intc)
        if len({k % bench.size for k in bench.options.graph} - {0}) < self.offsets.size:
            raise SystemExit(
                f"queue: --graph {bench.options.graph} names a neighbour of {bench.size} ranks twice, or a rank itself"
            )
        self.in_peers = [int(bench.rank - k) % bench.size for k in self.offsets]
        self.out_peers = [int(bench.rank + k) % bench.size for k in self.offsets]
        self.weight = 1.0 / (self.offsets.size + 1)

    def fill(self, x: Floats) -> None:
        arrays.repeat(x, _start(self.bench.rank))

    def touch(self, x: Floats, step: int) -> None:
        self.touch_of(self.bench.rank, x, step)

    def touch_of(self, rank: int, x: Floats, step: int) -> None:
        """Changes one element of each period of a rank's values, as every step begins."""
        x[step * 61 % PERIOD :: PERIOD] += np.float32(1 + arrays.word(step * 64 + rank) % 255)

    def advance(self, model: Floats, step: int, sum_first: bool) -> Floats:
        """Returns the model, float32 (ranks, period), after one more step.

        sum_first: round as (own + theirs + ...) * weight does, which NumPy code computes; otherwise as own * weight +
        theirs * weight + ..., which a queue's reduce computes.
        """
        weight, ranks = np.float32(self.weight), self.bench.size
        for rank in range(ranks):
            self.touch_of(rank, model[rank], step)
        found: Floats = model.copy() if sum_first else model * weight
        for k in self.offsets:
            theirs = model[(np.arange(ranks) - k) % ranks]
            found += theirs if sum_first else theirs * weight
        if sum_first:
            found *= weight
        return found

    def steps(self, run: Callable[[int, int, int], list[float]], values: Callable[[], Floats], sum_first: bool) -> Any:
        """Returns a contender's measure. run(step, samples, m) takes samples of m steps each, from number step on.
        values returns this rank's values. sum_first: as in advance."""
        model = np.stack([_start(rank) for rank in range(self.bench.size)])
        done, spoil = 0, self.bench.options.plant

        def measure(n: int) -> tuple[list[float], int]:
            nonlocal model, done, spoil
            if spoil and self.bench.rank == 0:
                values()[self.count // 2] += 1
            spoil = False
            m = self.bench.options.agg_iters
            run(done, 1, 1)  # an untimed step, after which all ranks have begun
            seconds = run(done + 1, n, m)
            for step in range(done, done + 1 + n * m):
                model = self.advance(model, step, sum_first)
            done += 1 + n * m
            if not self.bench.options.check:
                return seconds, 0
            return seconds, arrays.wrong_classes(values(), model[self.bench.rank])

        return measure


def timed(step_once: Callable[[int], None]) -> Callable[[int, int, int], list[float]]:
    """Makes the argument run of Circulant.steps from a function that makes one step."""

    def run(step: int, n: int, m: int) -> list[float]:
        seconds, clock = [], time.perf_counter
        before = clock()
        for _ in range(n):
            for _ in range(m):
                step_once(step)
                step += 1
            now = clock()
            seconds.append((now - before) / m)
            before = now
        return seconds

    return run


def hpcomm_python(graph: Circulant) -> Contender:
    queue = graph.bench.context.receive_queue(
        graph.in_peers, graph.out_peers, (graph.count,), np.float32, depth=1, buffers=2
    )
    x = queue.acquire()
    graph.fill(x)

    def step_once(step: int) -> None:
        nonlocal x
        graph.touch(x, step)
        for peer in graph.out_peers:
            queue.send(peer, x)
        following = queue.acquire()
        queue.reduce(x, out=following)
        x = following

    return Contender("hpcomm Python", "hpcomm", graph.steps(timed(step_once), lambda: x, False))


def mpi_numpy(graph: Circulant, blocks: bool) -> Contender:
    """Returns a peer: Irecv, Isend, Waitall, then an average by NumPy over whole arrays, or in blocks that fit the
    cache."""
    x = np.empty(graph.count, np.float32)
    received = [np.zeros(graph.count, np.float32) for _ in graph.in_peers]
    graph.fill(x)
    comm, weight, real = graph.bench.comm, np.float32(graph.weight), mpi().FLOAT
    waitall = mpi().Request.Waitall
    step_size = BLOCK if blocks else max(1, graph.count)
    parts = [
        (x[at : at + step_size], [theirs[at : at + step_size] for theirs in received])
        for at in range(0, graph.count, step_size)
    ]

    def step_once(step: int) -> None:
        graph.touch(x, step)
        requests = [comm.Irecv([into, real], peer) for into, peer in zip(received, graph.in_peers, strict=True)]
        requests += [comm.Isend([x, real], peer) for peer in graph.out_peers]
        waitall(requests)
        for own, others in parts:
            for theirs in others:
                np.add(own, theirs, out=own)
            np.multiply(own, weight, out=own)

    name = "mpi4py + NumPy in blocks" if blocks else "mpi4py + NumPy"
    return Contender(name, "peer", graph.steps(timed(step_once), lambda: x, True))


def fold_alone(graph: Circulant) -> Contender:
    """Returns a bound: every rank makes the same fold, without sending or waiting."""
    own, other, out = (arrays.zeros(graph.count) for _ in range(3))
    graph.fill(own)
    graph.fill(other)
    inputs = [own] + [other] * graph.offsets.size
    checked = not graph.bench.options.check

    def fold(step: int) -> None:
        _core.fold(out, inputs, [graph.weight] * len(inputs))

    def measure(n: int) -> tuple[list[float], int]:
        nonlocal checked
        seconds, wrong = timed(fold)(0, n, graph.bench.options.agg_iters), 0
        if not checked:
            weight = np.float32(graph.weight)
            expected = own * weight
            for _ in graph.in_peers:
                expected += other * weight
            wrong, checked = arrays.wrong(out, expected), True
        return seconds, wrong

    return Contender("fold alone (bound)", "bound", measure)


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    graph = Circulant(bench, size)
    found = [fold_alone(graph), hpcomm_python(graph)]
    return [*found, mpi_numpy(graph, blocks=False), mpi_numpy(graph, blocks=True)] if bench.mpi else found


def offsets(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-g", "--graph", type=offsets, default=[1], help="in-neighbours, by how many ranks they are behind, e.g. 1,2"
    )


BENCHMARK = Benchmark(
    name="queue",
    about="NOTIFY-ACK exchange and average over a graph, beside mpi4py's neighbour exchange plus NumPy's average.",
    dtype="float32",
    contenders=contenders,
    defaults={"minbytes": 32 << 20, "maxbytes": 256 << 20, "stepfactor": 8, "iters": 3, "warmup_iters": 1},
    bus=lambda bench: float(len(bench.options.graph)),
    options=options,
    peers=("mpi4py",),
    refuses=lambda bench: "" if bench.size > 1 else "one rank has no neighbour: start two",
    quick=("-b", "4M", "-e", "4M", "-n", "2", "-N", "3"),
)

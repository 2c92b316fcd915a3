"""queue: a step of NOTIFY-ACK, send to the out-neighbours and average with the in-neighbours, beside mpi4py and NumPy.

The graph is circulant: rank r receives from r - k and sends to r + k for each k of --graph. Every step a rank touches a
few of its values first, as training would, so that no update equals the one before it; a model of all ranks says what
every element must be, bit for bit (see queue.c).
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from bench.common.harness import Bench, Benchmark, Contender, main
from bench.common.native import address, view
from bench.machine import over_verbs

WRITE = 1 << 20  # bytes of a bare write
BLOCK = 1 << 15  # elements: three arrays of them stay in a core's cache
Floats = NDArray[np.float32]


class Graph:
    """This rank's neighbours, and the model of what every rank must hold."""

    def __init__(self, bench: Bench, size: int) -> None:
        self.bench, self.native, self.count = bench, bench.native, size // 4
        self.offsets = np.array(bench.options.graph, np.intc)
        if len({k % bench.size for k in bench.options.graph} - {0}) < self.offsets.size:
            raise SystemExit(
                f"queue: --graph {bench.options.graph} names a neighbour of {bench.size} ranks twice, or oneself"
            )
        self.in_peers = [int(bench.rank - k) % bench.size for k in self.offsets]
        self.out_peers = [int(bench.rank + k) % bench.size for k in self.offsets]
        self.weight = 1.0 / (self.offsets.size + 1)

    def fill(self, x: Floats) -> None:
        self.native.bench_start(address(x), x.size, self.bench.rank)

    def touch(self, x: Floats, step: int) -> None:
        self.native.bench_touch(address(x), x.size, self.bench.rank, step)

    def advance(self, model: Floats, scratch: Floats, step: int, sum_first: bool) -> None:
        """The model of every rank, float32 (ranks, period), goes a step further."""
        places = address(model), address(scratch)
        self.native.bench_model(*places, self.bench.size, address(self.offsets), self.offsets.size, step, sum_first)

    def steps(self, run: Callable[[int, int, int], list[float]], values: Callable[[], Floats], sum_first: bool) -> Any:
        """measure of a contender. run(step, samples, m) makes samples of m steps, from the given one on."""
        period = self.native.bench_period()
        model, scratch = np.empty((2, self.bench.size, period), np.float32)
        for rank in range(self.bench.size):
            self.native.bench_start(address(model[rank]), period, rank)
        done, spoil = 0, self.bench.options.plant

        def measure(n: int) -> tuple[list[float], int]:
            nonlocal done, spoil
            if spoil and self.bench.rank == 0:
                values()[self.count // 2] += 1
            spoil = False
            m = self.bench.options.agg_iters
            run(done, 1, 1)  # not timed: all are here when it is over
            seconds = run(done + 1, n, m)
            for step in range(done, done + 1 + n * m):
                self.advance(model, scratch, step, sum_first)
            done += 1 + n * m
            if not self.bench.options.check:
                return seconds, 0
            return seconds, int(
                self.native.bench_wrong_model(address(values()), self.count, address(model[self.bench.rank]))
            )

        return measure


def hpcomm_c(graph: Graph) -> Contender:
    native, bench = graph.native, graph.bench
    queue = native.queue(graph.in_peers, graph.out_peers, 4 * graph.count, 2)
    buffers = [view(native.hpc_queue_buffer(queue, i), graph.count, np.float32) for i in range(2)]
    out_peers, state = np.array(graph.out_peers, np.intc), np.zeros(2, np.uint64)
    graph.fill(buffers[0])

    def run(step: int, n: int, m: int) -> list[float]:
        seconds = np.zeros(n)
        native.check(
            native.bench_queue(
                queue, bench.rank, address(out_peers), out_peers.size, graph.count, m, n, bench.options.timeout,
                address(state), address(seconds),
            )
        )  # fmt: skip
        return [float(second) for second in seconds]

    measure = graph.steps(run, lambda: buffers[int(state[1])], False)
    return Contender("hpcomm C", "hpcomm", measure, lambda: native.hpc_queue_free(queue))


def timed(step_once: Callable[[int], None]) -> Callable[[int, int, int], list[float]]:
    """run of a contender whose step is Python."""

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


def hpcomm_python(graph: Graph) -> Contender:
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


def mpi_numpy(graph: Graph, blocks: bool) -> Contender:
    """Irecv, Isend, Waitall, then NumPy: over whole arrays as one writes it, or in blocks, which the cache likes."""
    x = np.empty(graph.count, np.float32)
    received = [np.zeros(graph.count, np.float32) for _ in graph.in_peers]
    graph.fill(x)
    comm, weight = graph.bench.comm, np.float32(graph.weight)
    step_size = BLOCK if blocks else max(1, graph.count)
    parts = [
        (x[at : at + step_size], [theirs[at : at + step_size] for theirs in received])
        for at in range(0, graph.count, step_size)
    ]

    def step_once(step: int) -> None:
        graph.touch(x, step)
        requests = [comm.Irecv([into, MPI.FLOAT], peer) for into, peer in zip(received, graph.in_peers, strict=True)]
        requests += [comm.Isend([x, MPI.FLOAT], peer) for peer in graph.out_peers]
        MPI.Request.Waitall(requests)
        for own, others in parts:
            for theirs in others:
                np.add(own, theirs, out=own)
            np.multiply(own, weight, out=own)

    name = "mpi4py + NumPy in blocks" if blocks else "mpi4py + NumPy"
    return Contender(name, "peer", graph.steps(timed(step_once), lambda: x, True))


def fold_alone(graph: Graph) -> Contender:
    """The same fold on every rank with nobody to wait for and nothing sent."""
    own, other, out = (np.empty(graph.count, np.float32) for _ in range(3))
    graph.fill(own)
    graph.fill(other)
    out.fill(0)
    checked = not graph.bench.options.check

    def measure(n: int) -> tuple[list[float], int]:
        nonlocal checked
        seconds, wrong = np.zeros(n), 0
        graph.native.check(
            graph.native.bench_fold(
                address(out), address(own), address(other), graph.offsets.size, graph.count,
                graph.bench.options.agg_iters, n, address(seconds),
            )
        )  # fmt: skip
        if not checked:
            weight = np.float32(graph.weight)
            expected = own * weight
            for _ in graph.in_peers:
                expected += other * weight
            wrong, checked = int(np.count_nonzero(out != expected)), True
        return seconds.tolist(), wrong

    return Contender("fold alone (bound)", "bound", measure)


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    graph = Graph(bench, size)
    found = [fold_alone(graph), hpcomm_c(graph), hpcomm_python(graph)]
    if over_verbs.goes(bench):
        found += over_verbs.both_ways(bench, size * graph.offsets.size, min(size, WRITE))
        if not bench.apart:  # MPI would take shared memory
            return found
    return [*found, mpi_numpy(graph, blocks=False), mpi_numpy(graph, blocks=True)]


def offsets(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-g", "--graph", type=offsets, default=[1], help="in-neighbours, as ranks behind oneself, e.g. 1,2"
    )


BENCHMARK = Benchmark(
    name="queue_bench",
    about="NOTIFY-ACK exchange and average over a graph, beside mpi4py's neighbour exchange plus NumPy's average.",
    dtype="float32",
    contenders=contenders,
    defaults={"minbytes": 32 << 20, "maxbytes": 256 << 20, "stepfactor": 8, "iters": 3, "warmup_iters": 1},
    bus=lambda bench: float(len(bench.options.graph)),
    options=options,
)

if __name__ == "__main__":
    main(BENCHMARK)

"""graph_exchange: one averaging over a node communication graph, beside MPI's neighbourhood collective and NumPy.

The graph is queue_bench's, a circulant one: rank r receives from r - k and sends to r + k for each k of --graph; the
default is a ring and a stride. The updates, and the model that gives every element's right value bit for bit, are
queue_bench's too.
"""

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

import hpcomm
from bench.common.harness import Bench, Benchmark, Contender, main
from hpcomm.bench.arrays import Floats
from hpcomm.bench.queue import BLOCK, Circulant, options, timed


class Rising(Circulant):
    """Computes models folded in rising order of ranks, this rank among them, as an exchange does it."""

    def advance(self, model: Floats, step: int, sum_first: bool) -> Floats:
        if sum_first:
            return super().advance(model, step, sum_first)
        size, weight, found = self.bench.size, np.float32(self.weight), []
        for rank in range(size):
            self.touch_of(rank, model[rank], step)
        for rank in range(size):
            first, *others = sorted({rank, *(int(rank - k) % size for k in self.offsets)})
            mean = model[first] * weight
            for other in others:
                mean += model[other] * weight
            found.append(mean)
        return np.stack(found)


def hpcomm_python(graph: Circulant, in_place: bool) -> Contender:
    """Makes contenders: the model trained in place, or a mean that is copied to the memory from which the push
    reads."""
    size = graph.bench.size
    edges = [(rank, int(rank + k) % size) for rank in range(size) for k in graph.offsets]
    exchange = hpcomm.stochastic_reduce(
        graph.bench.context,
        {"w": np.zeros(graph.count, np.float32)},
        topology=hpcomm.graphs.from_edges(size, edges),
        in_place=in_place,
    )
    w = exchange.params["w"]
    graph.fill(w)  # each rank starts from its own values, not from rank 0's

    def step_in_place(step: int) -> None:
        nonlocal w
        graph.touch(w, step)
        w = exchange.push_pull("w")

    def step_apart(step: int) -> None:
        x = exchange.gradient("w")
        np.copyto(x, w)
        graph.touch(x, step)
        exchange.push_pull("w")

    run = timed(step_in_place if in_place else step_apart)
    name = f"hpcomm Python{'' if in_place else ', a copy first'}"
    return Contender(name, "hpcomm", graph.steps(run, lambda: w, False), exchange.close)


def neighbor_allgather(graph: Circulant, blocks: bool) -> Contender:
    """Makes contenders that average whole arrays, as most people write it, or blocks that fit into the cache."""
    comm = graph.bench.comm.Create_dist_graph_adjacent(graph.in_peers, graph.out_peers)
    x = np.empty(graph.count, np.float32)
    received = np.zeros((len(graph.in_peers), graph.count), np.float32)
    graph.fill(x)
    weight, step_size = np.float32(graph.weight), BLOCK if blocks else max(1, graph.count)
    parts = [(x[at : at + step_size], received[:, at : at + step_size]) for at in range(0, graph.count, step_size)]

    def step_once(step: int) -> None:
        graph.touch(x, step)
        comm.Neighbor_allgather([x, MPI.FLOAT], [received, MPI.FLOAT])
        for own, others in parts:
            for theirs in others:
                np.add(own, theirs, out=own)
            np.multiply(own, weight, out=own)

    name = f"Neighbor_allgather + NumPy{' in blocks' if blocks else ''}"
    return Contender(name, "peer", graph.steps(timed(step_once), lambda: x, True), comm.Free)


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    graph = Rising(bench, size)
    ours = [hpcomm_python(graph, in_place) for in_place in (True, False)]
    return [*ours, neighbor_allgather(graph, blocks=False), neighbor_allgather(graph, blocks=True)]


BENCHMARK = Benchmark(
    name="graph_exchange",
    about="Averaging over a node communication graph, beside MPI's neighbourhood collective plus NumPy's average.",
    dtype="float32",
    contenders=contenders,
    defaults={"minbytes": 4 << 20, "maxbytes": 4 << 20, "iters": 5, "graph": [1, 3]},
    bus=lambda bench: float(len(bench.options.graph)),
    options=options,
    ranks=8,
)

if __name__ == "__main__":
    main(BENCHMARK)

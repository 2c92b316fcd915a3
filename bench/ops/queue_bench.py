"""queue_bench: the benchmark `hpcomm bench queue` (hpcomm/bench/queue.py) with hpcomm's steps in C (queue.c).

Over RDMA plain writes stand beside it.
"""

from collections.abc import Sequence

import numpy as np

from bench.common.harness import Bench, Benchmark, Contender, main
from bench.common.native import view
from bench.machine import over_verbs
from hpcomm.bench.arrays import address
from hpcomm.bench.queue import Circulant, fold_alone, hpcomm_python, mpi_numpy, options

WRITE = 1 << 20  # bytes of a bare write


def hpcomm_c(graph: Circulant) -> Contender:
    native, bench = graph.bench.native, graph.bench
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


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    graph = Circulant(bench, size)
    found = [fold_alone(graph), hpcomm_c(graph), hpcomm_python(graph)]
    if over_verbs.goes(bench):
        found += over_verbs.both_ways(bench, size * graph.offsets.size, min(size, WRITE))
        if not bench.apart:  # MPI would take shared memory
            return found
    return [*found, mpi_numpy(graph, blocks=False), mpi_numpy(graph, blocks=True)]


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

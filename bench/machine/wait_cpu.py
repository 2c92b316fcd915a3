"""wait_cpu: processor time of a waiting rank, as a share of a core: for a signal, an update, or mpi4py's Recv.

Rank 0 sleeps, then releases rank 1. The processor time is that of rank 1's whole process (getrusage), including
hpcomm's threads. Each contender waits once a cycle, for -t seconds; mpi4py waits for a tenth of them.
"""

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np
from mpi4py import MPI

from bench.common.harness import Bench, Benchmark, Contender, main
from hpcomm.bench.arrays import address


def contender(
    bench: Bench, name: str, role: str, seconds: float, wait: Callable[[int], int], release: Callable[[int], object]
) -> Contender:
    """Makes a contender. wait(turn) waits on rank 1 and returns the wrong answers; release(turn) on rank 0 ends the
    wait. Samples are shares of a core."""
    turn = 0

    def measure(n: int) -> tuple[list[float], int]:
        nonlocal turn
        shares, wrong = [], 0
        for _ in range(n):
            turn += 1
            bench.meet()
            start, cpu = time.perf_counter(), bench.native.bench_cpu_seconds()
            if bench.rank == 0:
                time.sleep(seconds)
                release(turn + (1 if bench.options.plant else 0))
            elif bench.rank == 1:
                wrong += wait(turn)
                shares.append((bench.native.bench_cpu_seconds() - cpu) / (time.perf_counter() - start))
        return shares, wrong

    return Contender(name, role, measure)


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    native, seconds = bench.native, bench.options.seconds
    timeout = seconds + bench.options.timeout
    c_window, window = native.window(8, 1), bench.context.window(8, signals=1)
    queue = bench.context.receive_queue(
        [0] if bench.rank == 1 else [], [1] if bench.rank == 0 else [], (1,), np.float64
    )
    word = np.zeros(1)

    def wait_c(turn: int) -> int:
        waited, cpu = np.zeros(1), np.zeros(1)
        return native.check(native.bench_wait(c_window, 0, turn, timeout, address(waited), address(cpu)))

    def recv_queue(turn: int) -> int:
        wrong = int(queue.recv(0, timeout=timeout)[0] != turn)
        queue.ack(0)
        return wrong

    def recv_mpi(turn: int) -> int:
        bench.comm.Recv([word, MPI.DOUBLE], 0)
        return int(word[0] != turn)

    return [
        contender(
            bench,
            "hpcomm C",
            "hpcomm",
            seconds,
            wait_c,
            lambda turn: native.check(native.bench_raise(c_window, 1, turn)),
        ),
        contender(
            bench,
            "hpcomm Python",
            "hpcomm",
            seconds,
            lambda turn: int(window.wait_signal(0, turn, timeout) != turn),
            lambda turn: window.put_signal(1, None, signal=0, value=turn),
        ),
        contender(
            bench,
            "hpcomm queue",
            "hpcomm",
            seconds / 10,
            recv_queue,
            lambda turn: queue.send(1, np.full(1, float(turn))),
        ),
        contender(
            bench,
            "mpi4py Recv",
            "peer",
            seconds / 10,
            recv_mpi,
            lambda turn: bench.comm.Send([np.full(1, float(turn)), MPI.DOUBLE], 1),
        ),
    ]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-t", "--seconds", type=float, default=10.0, help="how long rank 1 waits")


BENCHMARK = Benchmark(
    name="wait_cpu",
    about="Processor time of a rank that waits.",
    dtype="uint64",
    contenders=contenders,
    defaults={"minbytes": 8, "maxbytes": 8, "iters": 1, "warmup_iters": 0, "run_cycles": 1},
    bus=lambda bench: 0.0,
    options=options,
    unit="% core",
    scale=100.0,
)

if __name__ == "__main__":
    main(BENCHMARK)

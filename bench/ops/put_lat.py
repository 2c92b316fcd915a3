"""put_lat: the benchmark `hpcomm bench put_lat` (hpcomm/bench/put_lat.py) with loops in C.

Beside it run a bare token on which two processes spin, and sockets that spin; over RDMA plain verbs and ib_write_lat.
"""

import os
from collections.abc import Sequence

import numpy as np

from bench.common.harness import Bench, Benchmark, Contender, main
from bench.common.native import Native
from bench.machine import over_verbs
from hpcomm.bench.arrays import address
from hpcomm.bench.put_lat import SAMPLE_BYTES, PingPong, hpcomm_python, prepared, put_flag, put_message, send_recv
from hpcomm.bench.wire import socket_to

LINE = 128  # bytes between the words of a token (bench_line in bench.h)


# ---- hpcomm --------------------------------------------------------------------------------------------------------


def hpcomm_c(pair: PingPong, name: str, native: Native, median: list[float] | None = None) -> Contender:
    """Makes hpcomm's contender. median: gets the median of a turn's single trips."""
    bench = pair.bench
    window = native.window(pair.m * pair.size, 1)
    state = np.zeros(2, np.uint64)

    def measure(n: int) -> tuple[list[float], int]:
        seconds, trips = np.zeros(n), np.zeros(n * pair.m)
        wrong = native.check(
            native.bench_put_lat(
                window, pair.rank, pair.peer, pair.first, address(pair.sent), pair.count, pair.m, n,
                bench.options.timeout, address(state), address(seconds), address(trips),
            )
        )  # fmt: skip
        if median is not None:
            median[:] = [float(np.median(trips))]
        return (seconds.tolist() if pair.first else []), wrong

    return Contender(name, "hpcomm", measure, lambda: native.hpc_window_free(window))


# ---- the bounds ----------------------------------------------------------------------------------------------------


def token(pair: PingPong) -> list[Contender]:
    """Makes the token's contender: two processes spin on a word each. None if they would use cores that others need."""
    bench = pair.bench
    room = (bench.size * LINE + 4095) // 4096 * 4096
    shared = None if bench.crowded else bench.share(room, 0, huge=False)
    if shared is None:
        return []
    mine, theirs = (address(shared) + rank * LINE for rank in (pair.rank, pair.peer))
    value = np.zeros(1, np.uint64)

    def measure(n: int) -> tuple[list[float], int]:
        seconds = np.zeros(n)
        wrong = bench.native.bench_token(mine, theirs, pair.first, pair.m, n, address(value), address(seconds))
        return (seconds.tolist() if pair.first else []), wrong

    return [Contender("token (bound)", "bound", measure, lambda: bench.native.bench_unmap(address(shared), room))]


def socket_pair(pair: PingPong, spin: bool) -> list[Contender]:
    """Makes a contender that sends the same bytes by a bare connection, whose sides spin or block in the kernel."""
    bench = pair.bench
    if spin and bench.crowded:
        return []
    connection = socket_to(bench, pair.peer, pair.first)
    assert connection is not None
    arrived, samples = np.zeros(pair.m * pair.count, np.uint64), np.zeros(1, np.uint64)

    def measure(n: int) -> tuple[list[float], int]:
        seconds = np.zeros(n)
        wrong = bench.native.bench_socket_pair(
            connection.fileno(), spin, address(arrived), pair.rank, pair.peer, pair.first, address(pair.words),
            pair.count, pair.m, n, address(samples), address(seconds),
        )  # fmt: skip
        if wrong < 0:
            raise OSError(-wrong, f"rank {pair.rank}: socket pair: {os.strerror(-wrong)}")
        return (seconds.tolist() if pair.first else []), wrong

    return [Contender(f"socket pair, {'spinning' if spin else 'blocking'} (bound)", "bound", measure, connection.close)]


# ---- all -----------------------------------------------------------------------------------------------------------


_asleep: list[Native] = []  # one context whose waits neither spin nor yield


def over_tcp(pair: PingPong) -> list[Contender]:
    """Makes contenders over TCP: for each of two ways to wait, hpcomm and sockets that wait in the same way."""
    bench = pair.bench
    if not _asleep:
        _asleep.append(bench.connected(spin=0.0, yield_=0.0))
    return [
        *socket_pair(pair, spin=True),
        hpcomm_c(pair, "hpcomm C", bench.native),
        hpcomm_python(pair, "hpcomm Python", same=True),
        *socket_pair(pair, spin=False),
        hpcomm_c(pair, "hpcomm C, sleeping", _asleep[0]),
        send_recv(pair, "mpi4py Send/Recv", prepared),
        put_message(pair),  # no flag: over sockets an MPI may make no progress while its user polls memory
    ]


def via_verbs(pair: PingPong) -> list[Contender]:
    """Makes contenders over RDMA: hpcomm beside plain verbs and ib_write_lat."""
    bench = pair.bench
    if not _asleep:
        _asleep.append(bench.connected(spin=0.0, yield_=0.0))
    median = [0.0]
    found = [
        *over_verbs.trips(pair, max(SAMPLE_BYTES, 8 * bench.options.maxbytes)),
        hpcomm_c(pair, "hpcomm C", bench.native, median),
        Contender("hpcomm C, median trip", "hpcomm", lambda n: (median[:] if pair.first else [], 0)),
        hpcomm_python(pair, "hpcomm Python", same=True),
        hpcomm_c(pair, "hpcomm C, sleeping", _asleep[0]),
    ]
    if bench.apart:  # on one host MPI would use shared memory
        found += [send_recv(pair, "mpi4py Send/Recv", prepared), put_message(pair)]
    return found


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    pair = PingPong(bench, size)
    if over_verbs.goes(bench):
        return via_verbs(pair)
    if bench.transports == ["tcp"]:
        return over_tcp(pair)
    return [
        *token(pair),
        hpcomm_c(pair, "hpcomm C", bench.native),
        hpcomm_python(pair, "hpcomm Python", same=True),
        hpcomm_python(pair, "hpcomm Python, many sources", same=False),
        send_recv(pair, "mpi4py Send/Recv", prepared),
        send_recv(pair, "mpi4py Send/Recv of arrays", lambda words: words),
        put_message(pair),
        put_flag(pair),
    ]


BENCHMARK = Benchmark(
    name="put_lat",
    about="One-way latency of put_signal -> wait_signal, beside mpi4py and a bare spinning token, or bare sockets.",
    dtype="uint64",
    contenders=contenders,
    defaults={"minbytes": 8, "maxbytes": 8, "stepfactor": 8, "iters": 30, "warmup_iters": 3, "agg_iters": 200},
)

if __name__ == "__main__":
    main(BENCHMARK)

"""put_lat: how long until a peer has seen 8 bytes and the signal behind them, one way.

Pairs of ranks (0 and 1, 2 and 3, ...) play ping-pong, all pairs at once. One sample is agg_iters round trips, and the
time is half of one. Each operation writes a place of its own, all of them are compared after the sample, when the clock
has stopped; the values of the signals are compared on the way.
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from bench.common.harness import Bench, Benchmark, Contender, main
from bench.common.native import Native, address
from bench.common.wire import socket_to
from bench.machine import over_verbs

SAMPLE_BYTES = 256 << 10  # the operations of one sample, so that they stay in the cache
SHIFTS, LINE_WORDS, LINE = 512, 8, 128  # as in bench.h
Play = Callable[[list[Any], int], tuple[float, int]]


class Pair:
    """A rank and its peer, and what they send each other in each sample."""

    def __init__(self, bench: Bench, size: int) -> None:
        if bench.size % 2:
            raise SystemExit(f"put_lat: {bench.size} ranks make no pairs: start an even number")
        self.bench, self.rank, self.peer = bench, bench.rank, bench.rank ^ 1
        self.first = self.rank % 2 == 0
        self.size, self.count = size, size // 8
        self.m = max(8, min(bench.options.agg_iters, SAMPLE_BYTES // size))
        self.words = bench.native.words(self.m * self.count + SHIFTS * LINE_WORDS)
        self.sent = self.words
        if bench.options.plant and not self.first:
            self.sent = self.words.copy()
            self.sent[LINE_WORDS] ^= 1

    def part(self, words: NDArray[np.uint64], sample: int, rank: int) -> NDArray[np.uint64]:
        """What rank sends in a sample: another part of the predictable words each time."""
        at = (2 * sample + rank % 2) % SHIFTS * LINE_WORDS
        return words[at : at + self.m * self.count]

    def cut(self, words: NDArray[np.uint64]) -> list[NDArray[np.uint64]]:
        return [words[i * self.count : (i + 1) * self.count] for i in range(self.m)]

    def contender(
        self,
        name: str,
        role: str,
        arrived: NDArray[np.uint64],
        play: Play,
        prepare: Callable[[NDArray[np.uint64]], Any] = lambda words: words,
        close: Callable[[], None] = lambda: None,
        same: bool = False,
    ) -> Contender:
        """play(sources, value) makes one untimed and m timed round trips, with the values from value + 1 on.

        same: all operations of a sample send the sample's first source.
        """
        samples = 0

        def measure(n: int) -> tuple[list[float], int]:
            nonlocal samples
            seconds, wrong = [], 0
            for _ in range(n):
                parts = self.cut(self.part(self.sent, samples, self.rank))
                sources = [prepare(parts[0])] * self.m if same else [prepare(part) for part in parts]
                elapsed, bad = play(sources, samples * (self.m + 1))
                expected = self.part(self.words, samples, self.peer)
                if same:
                    expected = np.tile(expected[: self.count], self.m)
                wrong += bad
                if self.bench.options.check:
                    wrong += self.bench.native.wrong(arrived[: expected.size], expected)
                seconds.append(elapsed / (2 * self.m))
                samples += 1
            return (seconds if self.first else []), wrong

        return Contender(name, role, measure, close)


# ---- hpcomm --------------------------------------------------------------------------------------------------------


def hpcomm_c(pair: Pair, name: str, native: Native, median: list[float] | None = None) -> Contender:
    """median: gets that of a turn's single trips."""
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


def hpcomm_python(pair: Pair, name: str, same: bool) -> Contender:
    window = pair.bench.context.window((pair.m * pair.count,), np.uint64, signals=1)
    offsets = [i * pair.size for i in range(pair.m)]
    peer, put_signal, wait_signal, clock = pair.peer, window.put_signal, window.wait_signal, time.perf_counter

    def play(sources: list[Any], value: int) -> tuple[float, int]:
        wrong, value = 0, value + 1
        values = range(value + 1, value + 1 + pair.m)
        if pair.first:
            put_signal(peer, None, signal=0, value=value)
            wait_signal(0, value)
            start = clock()
            for source, at, v in zip(sources, offsets, values, strict=True):
                put_signal(peer, source, at, signal=0, value=v)
                if wait_signal(0, v) != v:
                    wrong += 1
        else:
            wait_signal(0, value)
            put_signal(peer, None, signal=0, value=value)
            start = clock()
            for source, at, v in zip(sources, offsets, values, strict=True):
                if wait_signal(0, v) != v:
                    wrong += 1
                put_signal(peer, source, at, signal=0, value=v)
        return clock() - start, wrong

    return pair.contender(name, "hpcomm", window.array, play, same=same)


# ---- the bounds ----------------------------------------------------------------------------------------------------


def token(pair: Pair) -> list[Contender]:
    """Two processes that spin on a word each. None where they would spin on cores that others need."""
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


def socket_pair(pair: Pair, spin: bool) -> list[Contender]:
    """The same bytes by send and recv on a bare connection, which spin, or block in the kernel."""
    bench = pair.bench
    if spin and bench.crowded:
        return []
    connection = socket_to(bench, pair.peer, pair.first)
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


# ---- mpi4py --------------------------------------------------------------------------------------------------------


def window_of(bench: Bench, room: int) -> MPI.Win:
    if bench.transports == ["tcp"]:  # what MPI allocates it shares among the ranks of a host
        return MPI.Win.Create(np.zeros(-(-room // 8), np.uint64), 1, comm=bench.comm)
    return MPI.Win.Allocate(room, 1, comm=bench.comm)


def words_of(window: MPI.Win) -> NDArray[np.uint64]:
    memory: Any = window.tomemory()
    return np.frombuffer(memory, np.uint64)


def prepared(words: NDArray[np.uint64]) -> Any:
    """The form of a buffer that mpi4py takes fastest."""
    return (MPI.buffer.frombuffer(words), words.nbytes, MPI.BYTE)


def send_recv(pair: Pair, name: str, prepare: Callable[[NDArray[np.uint64]], Any]) -> Contender:
    arrived = np.zeros(pair.m * pair.count, np.uint64)
    targets = [prepare(part) for part in pair.cut(arrived)]
    empty = (bytearray(1), 0, MPI.BYTE)
    peer, send, recv, clock = pair.peer, pair.bench.comm.Send, pair.bench.comm.Recv, time.perf_counter

    def play(sources: list[Any], value: int) -> tuple[float, int]:
        if pair.first:
            send(empty, peer)
            recv(empty, peer)
            start = clock()
            for source, target in zip(sources, targets, strict=True):
                send(source, peer)
                recv(target, peer)
        else:
            recv(empty, peer)
            send(empty, peer)
            start = clock()
            for source, target in zip(sources, targets, strict=True):
                recv(target, peer)
                send(source, peer)
        return clock() - start, 0

    return pair.contender(name, "peer", arrived, play, prepare)


def put_message(pair: Pair) -> Contender:
    """Put, Flush, then an empty message as the notification."""
    window = window_of(pair.bench, pair.m * pair.size)
    arrived = words_of(window)
    window.Lock_all(MPI.MODE_NOCHECK)
    places = [(i * pair.size, pair.size, MPI.BYTE) for i in range(pair.m)]
    empty = (bytearray(1), 0, MPI.BYTE)
    peer, send, recv, clock = pair.peer, pair.bench.comm.Send, pair.bench.comm.Recv, time.perf_counter
    put, flush = window.Put, window.Flush

    def play(sources: list[Any], value: int) -> tuple[float, int]:
        if pair.first:
            send(empty, peer)
            recv(empty, peer)
            start = clock()
            for source, place in zip(sources, places, strict=True):
                put(source, peer, place)
                flush(peer)
                send(empty, peer)
                recv(empty, peer)
        else:
            recv(empty, peer)
            send(empty, peer)
            start = clock()
            for source, place in zip(sources, places, strict=True):
                recv(empty, peer)
                put(source, peer, place)
                flush(peer)
                send(empty, peer)
        elapsed = clock() - start
        window.Sync()
        return elapsed, 0

    def close() -> None:
        window.Unlock_all()
        window.Free()

    return pair.contender("mpi4py Put+Flush+Send", "peer", arrived, play, prepared, close)


def put_flag(pair: Pair) -> Contender:
    """Put, Flush, then Put and Flush of a flag that the peer polls in its memory (MPI-4, chapter 12: unified model)."""
    room = (pair.m * pair.size + 4095) // 4096 * 4096
    window = MPI.Win.Allocate(room + 4096, 1, comm=pair.bench.comm)
    if window.Get_attr(MPI.WIN_MODEL) != MPI.WIN_UNIFIED:
        raise SystemExit("put_lat: this MPI's windows are not of the unified model: polling a flag is undefined")
    arrived = words_of(window)
    arrived[room // 8] = 0
    window.Lock_all(MPI.MODE_NOCHECK)
    window.Sync()
    pair.bench.comm.Barrier()
    flag: Any = memoryview(arrived[room // 8 :])  # type: ignore[arg-type]  # read faster than an array
    places = [(i * pair.size, pair.size, MPI.BYTE) for i in range(pair.m)]
    numbers = np.zeros(pair.m + 1, np.uint64)
    notes = [prepared(numbers[i : i + 1]) for i in range(pair.m + 1)]
    there = (room, 8, MPI.BYTE)
    peer, clock, put, flush, sync = pair.peer, time.perf_counter, window.Put, window.Flush, window.Sync
    pause: Callable[[], object] = os.sched_yield if pair.bench.crowded else sync

    def notify(note: Any) -> None:
        put(note, peer, there)
        flush(peer)

    def await_flag(value: int) -> None:
        while flag[0] < value:
            pause()
            sync()

    def play(sources: list[Any], value: int) -> tuple[float, int]:
        value += 1
        numbers[:] = np.arange(value, value + pair.m + 1, dtype=np.uint64)
        trips = zip(sources, places, notes[1:], range(value + 1, value + 1 + pair.m), strict=True)
        if pair.first:
            notify(notes[0])
            await_flag(value)
            start = clock()
            for source, place, note, v in trips:
                put(source, peer, place)
                flush(peer)
                put(note, peer, there)
                flush(peer)
                while flag[0] < v:
                    pause()
        else:
            await_flag(value)
            notify(notes[0])
            start = clock()
            for source, place, note, v in trips:
                while flag[0] < v:
                    pause()
                put(source, peer, place)
                flush(peer)
                put(note, peer, there)
                flush(peer)
        elapsed = clock() - start
        sync()
        return elapsed, 0

    def close() -> None:
        window.Unlock_all()
        window.Free()

    return pair.contender("mpi4py Put+Flush+flag", "peer", arrived, play, prepared, close)


# ---- all -----------------------------------------------------------------------------------------------------------


_asleep: list[Native] = []  # a context whose waits neither spin nor yield, made once


def over_tcp(pair: Pair) -> list[Contender]:
    """Each of the two ways to wait beside the sockets that wait like it."""
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
        put_message(pair),  # no flag: nobody says that an MPI over sockets goes on while its user polls memory
    ]


def via_verbs(pair: Pair) -> list[Contender]:
    """The same beside bare verbs and ib_write_lat."""
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
    if bench.apart:  # on one host MPI would take shared memory
        found += [send_recv(pair, "mpi4py Send/Recv", prepared), put_message(pair)]
    return found


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    pair = Pair(bench, size)
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

"""put_lat: measures the one-way latency from put_signal of 8 bytes until the peer's wait_signal returns.

Pairs of ranks (0 and 1, 2 and 3, ...) play ping-pong, all pairs at once. One sample is agg_iters round trips; the
reported time is half a round trip. Each operation writes to a different place; the places are compared with the
expected words after the sample.
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import arrays, wire
from .arrays import LINE_WORDS, SHIFTS, Words
from .composites import mpi
from .harness import Bench, Benchmark, Contender

SAMPLE_BYTES = 256 << 10  # most bytes of all operations of a sample, so that they stay in the cache
Play = Callable[[list[Any], int], tuple[float, int]]


def odd(bench: Any) -> str:
    return f"{bench.size} ranks make no pairs: start an even number" if bench.size % 2 else ""


class PingPong:
    """This rank and its peer, and the words that they send each other in each sample."""

    def __init__(self, bench: Any, size: int) -> None:
        if refused := odd(bench):
            raise SystemExit(f"put_lat: {refused}")
        self.bench, self.rank, self.peer = bench, bench.rank, bench.rank ^ 1
        self.first = self.rank % 2 == 0
        self.size, self.count = size, size // 8
        self.m = max(8, min(bench.options.agg_iters, SAMPLE_BYTES // size))
        self.words = arrays.words(self.m * self.count + SHIFTS * LINE_WORDS)
        self.sent = self.words
        if bench.options.plant and not self.first:
            self.sent = self.words.copy()
            self.sent[LINE_WORDS] ^= 1

    def part(self, words: Words, sample: int, rank: int) -> Words:
        """Returns the words that a rank sends in a sample; they differ from sample to sample."""
        at = (2 * sample + rank % 2) % SHIFTS * LINE_WORDS
        return words[at : at + self.m * self.count]

    def cut(self, words: Words) -> list[Words]:
        return [words[i * self.count : (i + 1) * self.count] for i in range(self.m)]

    def contender(
        self,
        name: str,
        role: str,
        arrived: Words,
        play: Play,
        prepare: Callable[[Words], Any] = lambda words: words,
        close: Callable[[], None] = lambda: None,
        same: bool = False,
    ) -> Contender:
        """Returns a contender. play(sources, value) makes one untimed and m timed round trips, with signal values from
        value + 1 on; it returns the seconds of the m, and the number of wrong signals. prepare: converts a source for
        play. same: all operations of a sample send the first source."""
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
                    wrong += arrays.wrong(arrived[: expected.size], expected)
                seconds.append(elapsed / (2 * self.m))
                samples += 1
            return (seconds if self.first else []), wrong

        return Contender(name, role, measure, close)


# ---- hpcomm --------------------------------------------------------------------------------------------------------


def hpcomm_python(pair: PingPong, name: str, same: bool) -> Contender:
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


# ---- bare sockets --------------------------------------------------------------------------------------------------


def socket_pair(pair: PingPong) -> Contender:
    """Returns a bound: the same bytes by blocking send and recv over a bare connection."""
    connection = wire.socket_to(pair.bench, pair.peer, pair.first)
    assert connection is not None
    arrived, size, clock = np.zeros(pair.m * pair.count, np.uint64), pair.size, time.perf_counter
    into = wire.octets(arrived)
    places, send = [into[at : at + size] for at in range(0, into.nbytes, size)], connection.sendall

    def play(sources: list[Any], value: int) -> tuple[float, int]:
        if pair.first:
            send(b"\0")
            wire.receive(connection, memoryview(bytearray(1)))
            start = clock()
            for source, place in zip(sources, places, strict=True):
                send(source)
                wire.receive(connection, place)
        else:
            wire.receive(connection, memoryview(bytearray(1)))
            send(b"\0")
            start = clock()
            for source, place in zip(sources, places, strict=True):
                wire.receive(connection, place)
                send(source)
        return clock() - start, 0

    return pair.contender("socket pair (bound)", "bound", arrived, play, wire.octets, connection.close)


# ---- mpi4py --------------------------------------------------------------------------------------------------------


def window_of(bench: Bench, room: int) -> Any:
    if bench.transports == ["tcp"]:  # memory from Win.Allocate would be shared between ranks of a host
        return mpi().Win.Create(np.zeros(-(-room // 8), np.uint64), 1, comm=bench.comm)
    return mpi().Win.Allocate(room, 1, comm=bench.comm)


def words_of(window: Any) -> Words:
    memory: Any = window.tomemory()
    return np.frombuffer(memory, np.uint64)


def prepared(words: Words) -> Any:
    """Returns a buffer in the form that mpi4py handles fastest."""
    return (mpi().buffer.frombuffer(words), words.nbytes, mpi().BYTE)


def send_recv(pair: PingPong, name: str, prepare: Callable[[Words], Any]) -> Contender:
    arrived = np.zeros(pair.m * pair.count, np.uint64)
    targets = [prepare(part) for part in pair.cut(arrived)]
    empty = (bytearray(1), 0, mpi().BYTE)
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


def put_message(pair: PingPong) -> Contender:
    """Returns a peer that notifies by an empty message: Put, Flush, Send."""
    window = window_of(pair.bench, pair.m * pair.size)
    arrived = words_of(window)
    window.Lock_all(mpi().MODE_NOCHECK)
    places = [(i * pair.size, pair.size, mpi().BYTE) for i in range(pair.m)]
    empty = (bytearray(1), 0, mpi().BYTE)
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


def put_flag(pair: PingPong) -> Contender:
    """Returns a peer that notifies by a flag: Put, Flush, then Put and Flush of a word that the other rank polls.

    Polling memory needs windows of the unified memory model (MPI-4, chapter 12); otherwise it raises SystemExit.
    """
    room = (pair.m * pair.size + 4095) // 4096 * 4096
    window = mpi().Win.Allocate(room + 4096, 1, comm=pair.bench.comm)
    if window.Get_attr(mpi().WIN_MODEL) != mpi().WIN_UNIFIED:
        raise SystemExit("put_lat: this MPI's windows are not of the unified model: polling a flag is undefined")
    arrived = words_of(window)
    arrived[room // 8] = 0
    window.Lock_all(mpi().MODE_NOCHECK)
    window.Sync()
    pair.bench.comm.Barrier()
    flag: Any = memoryview(arrived[room // 8 :])  # type: ignore[arg-type]  # faster to read than an array
    places = [(i * pair.size, pair.size, mpi().BYTE) for i in range(pair.m)]
    numbers = np.zeros(pair.m + 1, np.uint64)
    notes = [prepared(numbers[i : i + 1]) for i in range(pair.m + 1)]
    there = (room, 8, mpi().BYTE)
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


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    pair = PingPong(bench, size)
    found = [
        socket_pair(pair),
        hpcomm_python(pair, "hpcomm Python", same=True),
        hpcomm_python(pair, "hpcomm Python, many sources", same=False),
    ]
    if bench.mpi:
        found += [send_recv(pair, "mpi4py Send/Recv", prepared), put_message(pair)]
        found += [put_flag(pair)] if bench.transports == ["shm"] else []
    return found


BENCHMARK = Benchmark(
    name="put_lat",
    about="One-way latency of put_signal -> wait_signal, beside a bare socket and mpi4py.",
    dtype="uint64",
    contenders=contenders,
    defaults={"minbytes": 8, "maxbytes": 8, "stepfactor": 8, "iters": 30, "warmup_iters": 3, "agg_iters": 200},
    peers=("mpi4py",),
    refuses=odd,
    quick=("-n", "5", "-m", "100", "-N", "5", "-w", "1"),
)

"""put_bw: measures the bandwidth of put, beside a copy by NumPy or, over TCP, beside bare sockets and iperf3.

Rank 0 writes to rank 1. Source and target are rings of buffers that are larger than the cache (-R). A sample is at
least one pass over the ring, and a flush. During a sample rank 1 sleeps; over TCP it waits for a signal that ends the
sample. Afterwards it compares its ring with the expected words.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

import hpcomm

from . import arrays
from .arrays import PAGE_WORDS, SHIFTS, Words
from .composites import mpi
from .harness import Bench, Benchmark, Contender, nbytes
from .peers import has_iperf3
from .put_lat import window_of, words_of
from .training import Measure, processor
from .wire import IPERF3_SECONDS, iperf3, octets, receive, socket_to

Copy = Callable[[Words], float]


def nothing() -> None:
    pass


def alone(bench: Any) -> str:
    return "one rank has no peer: start two" if bench.size < 2 else ""


class Stream:
    """The operations of one size from rank `sender` to rank `to`: how many there are, and the ring's slots."""

    def __init__(self, bench: Any, size: int, to: int = 1, sender: int = 0) -> None:
        if refused := alone(bench):
            raise SystemExit(f"put_bw: {refused}")
        self.bench, self.size, self.to, self.first = bench, size, to, sender
        self.sender, self.receiver = bench.rank == sender, bench.rank == to
        self.ring: int = max(size, bench.options.ring)
        self.slots = self.ring // size
        self.m: int = max(self.slots, bench.options.agg_iters, getattr(bench.options, "stream", 0) // size)
        self.words = self.slots * size // 8

    def contender(
        self,
        name: str,
        role: str,
        source: Words,
        arrived: Words,
        copy: Copy,
        end: Callable[[], object] = nothing,
        wait: Callable[[], object] = nothing,
    ) -> Contender:
        """Returns a contender. copy(words) runs on the sender: it moves the words to the receiver's array arrived, and
        returns the seconds of one operation. wait() runs on the receiver meanwhile. end() runs on the sender after
        copy, and makes wait() return."""
        bench, samples, spoil = self.bench, 0, self.bench.options.plant
        used: list[float] = []

        def measure(n: int) -> tuple[list[float], int]:
            nonlocal samples, spoil
            seconds, wrong = [], 0
            for _ in range(n):
                at = 2 * samples % SHIFTS * PAGE_WORDS
                words = source[at : at + self.words]
                samples += 1
                if spoil and self.sender:
                    words[0] ^= 1
                bench.meet()
                before = processor()
                if self.sender:
                    seconds.append(copy(words))
                    end()
                elif self.receiver:
                    wait()
                bench.meet()
                if self.sender or self.receiver:  # after both are done, as another thread may still receive
                    used.append((processor() - before) / self.m)
                if spoil and self.sender:
                    words[0] ^= 1
                    spoil = False
                if self.receiver and bench.options.check:
                    wrong += arrays.wrong(arrived, words)
            return seconds, wrong

        return Contender(name, role, Measure(measure, used))


_turns: WeakKeyDictionary[hpcomm.Window, Iterator[int]] = WeakKeyDictionary()  # next signal value; sizes share windows


def turns(stream: Stream, words: Words) -> list[tuple[Words, int]]:
    """Returns the source, and the offset in the ring, of each operation of one sample."""
    n = stream.size // 8
    slots = [(words[i * n : (i + 1) * n], i * stream.size) for i in range(stream.slots)]
    return [slots[i % stream.slots] for i in range(stream.m)]


def hpcomm_python(
    stream: Stream, source: Words, window: hpcomm.Window, waits: bool, name: str = "hpcomm Python"
) -> Contender:
    """Returns hpcomm's Python API as a contender. waits: the receiver calls wait_signal during a sample."""
    turn, to = _turns.setdefault(window, count(1)), stream.to

    def copy(words: Words) -> float:
        operations = turns(stream, words)
        put = window.put
        start = time.perf_counter()
        for part, at in operations:
            put(to, part, at)
        window.flush(to)
        return (time.perf_counter() - start) / stream.m

    def end() -> None:
        window.put_signal(to, None, signal=0, value=next(turn))

    def wait() -> None:
        window.wait_signal(0, next(turn), stream.bench.options.timeout)

    ways = (end, wait) if waits else ()
    return stream.contender(name, "hpcomm", source, window.array[: stream.words], copy, *ways)


def mpi_put(stream: Stream, source: Words, window: Any, waits: bool) -> Contender:
    comm, empty = stream.bench.comm, (bytearray(1), 0, mpi().BYTE)

    def copy(words: Words) -> float:
        operations = [
            ((mpi().buffer.frombuffer(part), part.nbytes, mpi().BYTE), (at, part.nbytes, mpi().BYTE))
            for part, at in turns(stream, words)
        ]
        put = window.Put
        start = time.perf_counter()
        for part, place in operations:
            put(part, 1, place)
        window.Flush(1)
        return (time.perf_counter() - start) / stream.m

    arrived = words_of(window)[: stream.words]
    ways = (lambda: comm.Send(empty, 1), lambda: comm.Recv(empty, 0)) if waits else ()
    return stream.contender("mpi4py Put+Flush", "peer", source, arrived, copy, *ways)


def numpy_copy(stream: Stream, source: Words, target: Words) -> Contender:
    """Returns a bound: the sender copies the same bytes within its own memory."""
    own, n = Stream(stream.bench, stream.size, stream.first, stream.first), stream.size // 8
    arrived = target[: stream.words]

    def copy(words: Words) -> float:
        start = time.perf_counter()
        for part, at in turns(stream, words):
            np.copyto(arrived[at // 8 : at // 8 + n], part)
        return (time.perf_counter() - start) / stream.m

    return own.contender("memory copy by NumPy (bound)", "bound", source, arrived, copy)


def sockets(stream: Stream, source: Words, target: Words, name: str = "socket stream (bound)") -> Contender:
    """Returns a bound: blocking send on one rank, and blocking recv into the ring on the other, over a bare connection.
    All ranks call it."""
    peer = stream.to if stream.sender else stream.first if stream.receiver else None
    made = socket_to(stream.bench, peer, stream.receiver)
    places = [octets(target[at // 8 : (at + stream.size) // 8]) for _, at in turns(stream, target)]

    def copy(words: Words) -> float:
        assert made is not None
        parts = [octets(part) for part, _ in turns(stream, words)]
        start = time.perf_counter()
        for part in parts:
            made.sendall(part)
        receive(made, memoryview(bytearray(1)))
        return (time.perf_counter() - start) / stream.m

    def wait() -> None:
        assert made is not None
        for place in places:
            receive(made, place)
        made.sendall(b"\0")

    contender = stream.contender(name, "bound", source, target[: stream.words], copy, wait=wait)
    contender.close = nothing if made is None else made.close
    return contender


def iperf3_stream(stream: Stream, name: str, seconds: int = IPERF3_SECONDS, most: int = 1 << 20) -> Contender:
    """Returns a bound that iperf3 measures; all ranks call it. seconds: length of a sample. most: most samples of a
    turn."""

    def measure(n: int) -> tuple[list[float], int]:
        rates = [iperf3(stream.bench, stream.to, seconds, stream.first) for _ in range(min(n, most))]
        return ([stream.size / rate for rate in rates] if stream.sender else []), 0

    return Contender(name, "bound", measure)


class Room:
    """This rank's memory, which all sizes share: a source, a private target, and a window."""

    def __init__(self, bench: Bench, context: hpcomm.Context) -> None:
        self.nbytes = max(bench.options.maxbytes, bench.options.ring) // 8 * 8
        self.source = arrays.words(self.nbytes // 8 + SHIFTS * PAGE_WORDS)
        self.target = np.zeros(self.nbytes // 8, np.uint64)
        self.window = context.window((self.nbytes // 8,), np.uint64, signals=1)


_rooms: WeakKeyDictionary[Bench, tuple[Room, Any]] = WeakKeyDictionary()  # the memory, and MPI's window or None


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    if bench not in _rooms:
        room = Room(bench, bench.context)
        window = window_of(bench, room.nbytes) if bench.mpi else None
        if window is not None:
            window.Lock_all(mpi().MODE_NOCHECK)
            bench.ends += [window.Unlock_all, window.Free]
        _rooms[bench] = room, window
    (room, window), stream = _rooms[bench], Stream(bench, size)
    tcp = bench.context.peers[0 if bench.rank else 1].transport == "tcp"
    found = []
    if tcp and bench.hosts[0] != bench.hosts[1] and has_iperf3() and bench.wanted("iperf3 (bound)"):
        found.append(iperf3_stream(stream, "iperf3 (bound)"))
    bound = sockets if tcp else numpy_copy
    found += [bound(stream, room.source, room.target), hpcomm_python(stream, room.source, room.window, waits=tcp)]
    return [*found, mpi_put(stream, room.source, window, waits=tcp)] if window is not None else found


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-R", "--ring", type=nbytes, default=64 << 20, help="bytes that the buffers rotate through")
    parser.add_argument("-S", "--stream", type=nbytes, default=0, help="bytes of one sample, if more than these")


BENCHMARK = Benchmark(
    name="put_bw",
    about="Bandwidth of put, beside a copy by NumPy, or a bare socket and iperf3, and mpi4py.",
    dtype="uint64",
    contenders=contenders,
    defaults={"minbytes": 64 << 10, "maxbytes": 256 << 20, "stepfactor": 4, "iters": 3, "warmup_iters": 1},
    options=options,
    peers=("mpi4py", "iperf3"),
    refuses=alone,
    quick=("-b", "64K", "-e", "8M", "-f", "128", "-R", "8M", "-n", "1", "-N", "3"),
)

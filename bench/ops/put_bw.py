"""put_bw: bandwidth of put, beside memcpy between shared mappings by one thread, or beside what the wire has by itself:
bare sockets over TCP, bare verbs and ib_write_bw over RDMA.

Rank 0 writes to rank 1 through a ring of buffers, both the sources' and the peer's, that is larger than the cache (-R).
One sample is at least one turn of the ring and a flush. Rank 1 compares the whole ring afterwards. Over shared memory
and RDMA it sleeps meanwhile; over TCP it waits for the end, as who needs the bytes would, in the contender's own way.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import hpcomm
from bench.common.harness import Bench, Benchmark, Contender, main, nbytes
from bench.common.launch import has_iperf3
from bench.common.native import Native, address, view
from bench.common.training import Measure, processor
from bench.common.wire import IPERF3_SECONDS, iperf3, socket_to
from bench.machine import over_verbs
from bench.machine.nic import DEPTH
from bench.ops.put_lat import window_of, words_of

SHIFTS, PAGE_WORDS = 512, 512  # as in bench.h
HUGE_PAGE = 2 << 20
Copy = Callable[[NDArray[np.uint64]], float]


def nothing() -> None:
    pass


class Stream:
    """What rank 0 writes to rank `to` and where, of one size."""

    def __init__(self, bench: Bench, size: int, to: int = 1) -> None:
        if bench.size < 2:
            raise SystemExit("put_bw: one rank has no peer: start two")
        self.bench, self.size, self.to = bench, size, to
        self.sender, self.receiver = bench.rank == 0, bench.rank == to
        self.ring: int = max(size, bench.options.ring)
        self.slots = self.ring // size
        self.m: int = max(self.slots, bench.options.agg_iters, getattr(bench.options, "stream", 0) // size)
        self.words = self.slots * size // 8

    def contender(
        self,
        name: str,
        role: str,
        source: NDArray[np.uint64],
        arrived: NDArray[np.uint64] | None,
        copy: Copy,
        end: Callable[[], object] = nothing,
        wait: Callable[[], object] = nothing,
    ) -> Contender:
        """copy(words) moves them on rank 0 and gives the seconds of one operation; rank 1 finds them in arrived. end on
        rank 0, when the clock has stopped, lets rank 1 return from its wait."""
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
                if self.sender or self.receiver:  # until both are done: a thread may receive beside the wait
                    used.append((processor() - before) / self.m)
                if spoil and self.sender:
                    words[0] ^= 1
                    spoil = False
                if self.receiver and bench.options.check and arrived is not None:
                    wrong += bench.native.wrong(arrived, words)
            return seconds, wrong

        return Contender(name, role, Measure(measure, used))


def hpcomm_c(
    stream: Stream, name: str, source: NDArray[np.uint64], window: Any, waits: bool, native: Native
) -> Contender:
    """waits: the receiver is in wait_signal meanwhile."""
    bench, to = stream.bench, stream.to
    seconds = np.zeros(1)
    turn = _turns.setdefault(window.value, count(1))

    def copy(words: NDArray[np.uint64]) -> float:
        native.check(
            native.bench_put_bw(
                window, to, address(words), stream.size, stream.slots, stream.m, bench.options.timeout, address(seconds)
            )
        )
        return float(seconds[0])

    def end() -> None:
        native.check(native.hpc_put_signal(None, window, to, None, 0, 0, 0, next(turn)))

    def wait() -> None:
        native.check(native.hpc_wait_signal(window, 0, next(turn), 0, bench.options.timeout, None))

    arrived = view(native.hpc_window_data(window), stream.words, np.uint64)
    ways = (end, wait) if waits else ()
    return stream.contender(name, "hpcomm", source, arrived, copy, *ways)


_turns: dict[Any, Iterator[int]] = {}  # the next value of each window's signal, which several sizes share


def own_words(native: Native, nbytes: int) -> NDArray[np.uint64]:
    """The predictable words in this rank's part of a window, which a NIC reads where they are: enough of them for
    nbytes from any page that a sample starts on. Collective."""
    room = nbytes + SHIFTS * PAGE_WORDS * 8
    words = view(int(native.hpc_window_data(native.window(room, 1))), room // 8, np.uint64)
    native.bench_fill(address(words), words.size)
    return words


def turns(stream: Stream, words: NDArray[np.uint64]) -> list[tuple[NDArray[np.uint64], int]]:
    """Source and offset of each operation of one sample."""
    n = stream.size // 8
    slots = [(words[i * n : (i + 1) * n], i * stream.size) for i in range(stream.slots)]
    return [slots[i % stream.slots] for i in range(stream.m)]


def hpcomm_python(stream: Stream, source: NDArray[np.uint64], window: hpcomm.Window, waits: bool) -> Contender:
    turn = _turns.setdefault(id(window), count(1))

    def copy(words: NDArray[np.uint64]) -> float:
        operations = turns(stream, words)
        put = window.put
        start = time.perf_counter()
        for part, at in operations:
            put(1, part, at)
        window.flush(1)
        return (time.perf_counter() - start) / stream.m

    def end() -> None:
        window.put_signal(1, None, signal=0, value=next(turn))

    def wait() -> None:
        window.wait_signal(0, next(turn), stream.bench.options.timeout)

    ways = (end, wait) if waits else ()
    return stream.contender("hpcomm Python", "hpcomm", source, window.array[: stream.words], copy, *ways)


def mpi_put(stream: Stream, source: NDArray[np.uint64], window: MPI.Win, waits: bool) -> Contender:
    comm, empty = stream.bench.comm, (bytearray(1), 0, MPI.BYTE)

    def copy(words: NDArray[np.uint64]) -> float:
        operations = [
            ((MPI.buffer.frombuffer(part), part.nbytes, MPI.BYTE), (at, part.nbytes, MPI.BYTE))
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


def memcpy(stream: Stream, name: str, source: NDArray[np.uint64], target: NDArray[np.uint64]) -> Contender:
    def copy(words: NDArray[np.uint64]) -> float:
        return float(
            stream.bench.native.bench_memcpy(address(target), address(words), stream.size, stream.slots, stream.m)
        )

    return stream.contender(name, "bound", source, target[: stream.words], copy)


def sockets(stream: Stream, name: str, source: NDArray[np.uint64], target: NDArray[np.uint64]) -> Contender:
    """A bare connection: send on rank 0, recv into the ring on rank 1, both blocking."""
    bench, native, seconds = stream.bench, stream.bench.native, np.zeros(1)
    peer = stream.to if stream.sender else 0
    made = socket_to(bench, peer, stream.receiver) if stream.sender or stream.receiver else None
    fd = made.fileno() if made is not None else -1

    def check(status: int) -> None:
        if status < 0:
            raise OSError(-status, f"rank {bench.rank}: socket stream: {os.strerror(-status)}")

    def copy(words: NDArray[np.uint64]) -> float:
        check(native.bench_stream_send(fd, address(words), stream.size, stream.slots, stream.m, address(seconds)))
        return float(seconds[0])

    def wait() -> None:
        check(native.bench_stream_recv(fd, address(target), stream.size, stream.slots, stream.m))

    contender = stream.contender(name, "bound", source, target[: stream.words], copy, wait=wait)
    contender.close = nothing if made is None else made.close
    return contender


def iperf3_stream(stream: Stream, name: str) -> Contender:
    def measure(n: int) -> tuple[list[float], int]:
        rates = [iperf3(stream.bench, stream.to, IPERF3_SECONDS) for _ in range(n)]
        return ([stream.size / rate for rate in rates] if stream.sender else []), 0

    return Contender(name, "bound", measure)


class Memory:
    """The blocks of all sizes, made once: windows, mappings, sources."""

    def __init__(self, bench: Bench) -> None:
        options = bench.options
        self.room = (max(options.maxbytes, options.ring) + HUGE_PAGE - 1) // HUGE_PAGE * HUGE_PAGE
        source_room = self.room + SHIFTS * PAGE_WORDS * 8
        self.sources: list[NDArray[np.uint64]] = []
        self.targets: list[NDArray[np.uint64]] = []
        for huge in (True, False):
            # Each rank has its own source: the receiver's, which it compares with, moves nothing of the sender's.
            if bench.apart:
                blocks = [bench.own(room, huge) for room in (self.room, source_room)]
            else:
                parts = [bench.share(source_room, rank, huge) for rank in (0, 1)]
                blocks = [bench.share(self.room, 1, huge), parts[1 if bench.rank == 1 else 0]]
            for block, kept in zip(blocks, (self.targets, self.sources), strict=True):
                if block is None:
                    raise MemoryError(f"put_bw: no {source_room} bytes of shared memory")
                kept.append(block)
            bench.native.bench_fill(address(self.sources[-1]), self.sources[-1].size)
        self.c_window = bench.native.window(self.room, 1)
        self.window = bench.context.window((self.room // 8,), np.uint64, signals=1)
        self.registered: list[NDArray[np.uint64]] = []  # in windows of the C API's context and of the other
        if over_verbs.goes(bench):
            self.own_window = bench.context.window((source_room // 8,), np.uint64)
            own = self.own_window.array
            bench.native.bench_fill(address(own), own.size)
            self.registered = [own_words(bench.native, self.room), own]
        if over_verbs.goes(bench) and not bench.apart:  # MPI would take shared memory
            return
        self.mpi_window = window_of(bench, self.room)
        self.mpi_window.Lock_all(MPI.MODE_NOCHECK)
        bench.ends += [self.mpi_window.Unlock_all, self.mpi_window.Free]


_memory: list[Memory] = []


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    if not _memory:
        _memory.append(Memory(bench))
    memory, stream = _memory[0], Stream(bench, size)
    huge, plain = memory.sources
    if over_verbs.goes(bench):
        return verbs_contenders(memory, stream)
    tcp = bench.transports == ["tcp"]
    ours = [
        hpcomm_c(stream, "hpcomm C", huge, memory.c_window, waits=tcp, native=bench.native),
        hpcomm_python(stream, huge, memory.window, waits=tcp),
        mpi_put(stream, huge, memory.mpi_window, waits=tcp),
    ]
    if not tcp:
        return [
            memcpy(stream, "memcpy, huge pages (bound)", huge, memory.targets[0]),
            memcpy(stream, "memcpy, plain pages (bound)", plain, memory.targets[1]),
            *ours,
        ]
    between_hosts = bench.apart and has_iperf3() and bench.wanted("iperf3 (bound)")
    return [
        *([iperf3_stream(stream, "iperf3 (bound)")] if between_hosts else []),
        sockets(stream, "socket stream, huge pages (bound)", huge, memory.targets[0]),
        sockets(stream, "socket stream, plain pages (bound)", plain, memory.targets[1]),
        *ours,
        hpcomm_c(stream, "hpcomm C, nobody waits", huge, memory.c_window, waits=False, native=bench.native),
    ]


def verbs_contenders(memory: Memory, stream: Stream) -> Sequence[Contender]:
    """Nobody waits at the other end: a NIC needs nobody."""
    bench, native = stream.bench, stream.bench.native
    own, own_python = memory.registered
    found = [
        *over_verbs.streams(stream, own, DEPTH),
        hpcomm_c(stream, "hpcomm C", own, memory.c_window, waits=False, native=native),
        hpcomm_c(stream, "hpcomm C, user memory", memory.sources[0], memory.c_window, waits=False, native=native),
        hpcomm_python(stream, own_python, memory.window, waits=False),
    ]
    if bench.apart:
        found.append(mpi_put(stream, own, memory.mpi_window, waits=False))
    return found


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-R", "--ring", type=nbytes, default=64 << 20, help="bytes that the buffers rotate through")
    parser.add_argument("-S", "--stream", type=nbytes, default=0, help="bytes of one sample, if more than these")


BENCHMARK = Benchmark(
    name="put_bw",
    about="Bandwidth of put, beside memcpy between shared mappings by one thread, or a bare socket, and mpi4py.",
    dtype="uint64",
    contenders=contenders,
    defaults={"minbytes": 64 << 10, "maxbytes": 256 << 20, "stepfactor": 4, "iters": 3, "warmup_iters": 1},
    options=options,
)

if __name__ == "__main__":
    main(BENCHMARK)

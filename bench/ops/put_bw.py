"""put_bw: the benchmark `hpcomm bench put_bw` (hpcomm/bench/put_bw.py) with loops in C.

Beside it runs memcpy between shared mappings by one thread, or the wire itself: bare sockets over TCP, or plain verbs
and ib_write_bw over RDMA.
"""

import os
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.common.harness import Bench, Benchmark, Contender, main
from bench.common.native import Native, view
from bench.machine import over_verbs
from bench.machine.nic import DEPTH
from hpcomm.bench.arrays import PAGE_WORDS, SHIFTS, address
from hpcomm.bench.composites import mpi
from hpcomm.bench.peers import has_iperf3
from hpcomm.bench.put_bw import Stream, hpcomm_python, iperf3_stream, mpi_put, nothing, options
from hpcomm.bench.put_lat import window_of
from hpcomm.bench.wire import socket_to

HUGE_PAGE = 2 << 20


def hpcomm_c(
    stream: Stream, name: str, source: NDArray[np.uint64], window: Any, waits: bool, native: Native
) -> Contender:
    """Makes hpcomm's contender. waits: the receiver is in wait_signal meanwhile."""
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


_turns: dict[Any, Iterator[int]] = {}  # next value of each window's signal; several sizes share a window


def own_words(native: Native, nbytes: int) -> NDArray[np.uint64]:
    """Writes the predictable words into this rank's part of a window, from which a NIC can read them: enough for
    nbytes from any page at which a sample starts. Collective."""
    room = nbytes + SHIFTS * PAGE_WORDS * 8
    words = view(int(native.hpc_window_data(native.window(room, 1))), room // 8, np.uint64)
    native.bench_fill(address(words), words.size)
    return words


def memcpy(stream: Stream, name: str, source: NDArray[np.uint64], target: NDArray[np.uint64]) -> Contender:
    def copy(words: NDArray[np.uint64]) -> float:
        return float(
            stream.bench.native.bench_memcpy(address(target), address(words), stream.size, stream.slots, stream.m)
        )

    return stream.contender(name, "bound", source, target[: stream.words], copy)


def sockets(stream: Stream, name: str, source: NDArray[np.uint64], target: NDArray[np.uint64]) -> Contender:
    """Makes a bound by a bare connection: rank 0 sends, rank 1 receives into the ring, both blocking."""
    bench, native, seconds = stream.bench, stream.bench.native, np.zeros(1)
    peer = stream.to if stream.sender else stream.first if stream.receiver else None
    made = socket_to(bench, peer, stream.receiver)
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


class Memory:
    """The memory for all sizes, made once: windows, mappings, sources."""

    def __init__(self, bench: Bench) -> None:
        options = bench.options
        self.room = (max(options.maxbytes, options.ring) + HUGE_PAGE - 1) // HUGE_PAGE * HUGE_PAGE
        source_room = self.room + SHIFTS * PAGE_WORDS * 8
        self.sources: list[NDArray[np.uint64]] = []
        self.targets: list[NDArray[np.uint64]] = []
        for huge in (True, False):
            # Each rank has its own source: the receiver reads its own to compare, so the sender's cache lines stay.
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
        self.registered: list[NDArray[np.uint64]] = []  # in windows of both contexts, the C API's and the other
        if over_verbs.goes(bench):
            self.own_window = bench.context.window((source_room // 8,), np.uint64)
            own = self.own_window.array
            bench.native.bench_fill(address(own), own.size)
            self.registered = [own_words(bench.native, self.room), own]
        if over_verbs.goes(bench) and not bench.apart:  # MPI would take shared memory
            return
        self.mpi_window = window_of(bench, self.room)
        self.mpi_window.Lock_all(mpi().MODE_NOCHECK)
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
    """Makes the contenders over verbs. No rank waits at the other end, because the NIC works alone."""
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

"""put_bw: bandwidth of put, beside memcpy between shared mappings by one thread.

Rank 0 writes to rank 1 through a ring of buffers, both the sources' and the peer's, that is larger than the cache (-R).
One sample is at least one turn of the ring and a flush. Rank 1 sleeps meanwhile and compares the whole ring afterwards.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import hpcomm
from bench.harness import Bench, Benchmark, Contender, main, nbytes
from bench.native import address, view
from bench.put_lat import words_of

SHIFTS, PAGE_WORDS = 512, 512  # as in bench.h
HUGE_PAGE = 2 << 20
Copy = Callable[[NDArray[np.uint64]], float]


class Stream:
    """What rank 0 writes and where, of one size. source: predictable words, a shared mapping as the bound's."""

    def __init__(self, bench: Bench, size: int) -> None:
        if bench.size < 2:
            raise SystemExit("put_bw: one rank has no peer: start two")
        self.bench, self.size = bench, size
        self.sender, self.receiver = bench.rank == 0, bench.rank == 1
        self.ring: int = max(size, bench.options.ring)
        self.slots = self.ring // size
        self.m: int = max(self.slots, bench.options.agg_iters)
        self.words = self.slots * size // 8

    def contender(
        self, name: str, role: str, source: NDArray[np.uint64], arrived: NDArray[np.uint64] | None, copy: Copy
    ) -> Contender:
        """copy(words) moves them on rank 0 and gives the seconds of one operation; rank 1 finds them in arrived."""
        bench, samples, spoil = self.bench, 0, self.bench.options.plant

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
                if self.sender:
                    seconds.append(copy(words))
                bench.meet()
                if spoil and self.sender:
                    words[0] ^= 1
                    spoil = False
                if self.receiver and bench.options.check and arrived is not None:
                    wrong += bench.native.wrong(arrived, words)
            return seconds, wrong

        return Contender(name, role, measure)


def hpcomm_c(stream: Stream, source: NDArray[np.uint64], window: Any) -> Contender:
    bench, native = stream.bench, stream.bench.native
    seconds = np.zeros(1)

    def copy(words: NDArray[np.uint64]) -> float:
        native.check(
            native.bench_put_bw(
                window, 1, address(words), stream.size, stream.slots, stream.m, bench.options.timeout, address(seconds)
            )
        )
        return float(seconds[0])

    arrived = view(native.hpc_window_data(window), stream.words, np.uint64)
    return stream.contender("hpcomm C", "hpcomm", source, arrived, copy)


def turns(stream: Stream, words: NDArray[np.uint64]) -> list[tuple[NDArray[np.uint64], int]]:
    """Source and offset of each operation of one sample."""
    count = stream.size // 8
    slots = [(words[i * count : (i + 1) * count], i * stream.size) for i in range(stream.slots)]
    return [slots[i % stream.slots] for i in range(stream.m)]


def hpcomm_python(stream: Stream, source: NDArray[np.uint64], window: hpcomm.Window) -> Contender:
    def copy(words: NDArray[np.uint64]) -> float:
        operations = turns(stream, words)
        put = window.put
        start = time.perf_counter()
        for part, at in operations:
            put(1, part, at)
        window.flush(1)
        return (time.perf_counter() - start) / stream.m

    return stream.contender("hpcomm Python", "hpcomm", source, window.array[: stream.words], copy)


def mpi_put(stream: Stream, source: NDArray[np.uint64], window: MPI.Win) -> Contender:
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
    return stream.contender("mpi4py Put+Flush", "peer", source, arrived, copy)


def memcpy(stream: Stream, name: str, source: NDArray[np.uint64], target: NDArray[np.uint64]) -> Contender:
    def copy(words: NDArray[np.uint64]) -> float:
        return float(
            stream.bench.native.bench_memcpy(address(target), address(words), stream.size, stream.slots, stream.m)
        )

    return stream.contender(name, "bound", source, target[: stream.words], copy)


class Memory:
    """The blocks of all sizes, made once: windows, mappings, sources."""

    def __init__(self, bench: Bench) -> None:
        options = bench.options
        self.room = (max(options.maxbytes, options.ring) + HUGE_PAGE - 1) // HUGE_PAGE * HUGE_PAGE
        source_room = self.room + SHIFTS * PAGE_WORDS * 8
        self.sources: list[NDArray[np.uint64]] = []
        self.targets: list[NDArray[np.uint64]] = []
        for huge in (True, False):
            self.targets.append(shared(bench, self.room, 1, huge))
            # Each rank has its own: the receiver's, which it compares with, moves nothing of the sender's.
            parts = [shared(bench, source_room, rank, huge) for rank in (0, 1)]
            self.sources.append(parts[1 if bench.rank == 1 else 0])
            bench.native.bench_fill(address(self.sources[-1]), self.sources[-1].size)
        self.c_window = bench.native.window(self.room, 0)
        self.window = bench.context.window((self.room // 8,), np.uint64)
        self.mpi_window = MPI.Win.Allocate(self.room, 1, comm=bench.comm)
        self.mpi_window.Lock_all(MPI.MODE_NOCHECK)


def shared(bench: Bench, size: int, owner: int, huge: bool) -> NDArray[np.uint64]:
    block = bench.share(size, owner, huge)
    if block is None:
        raise MemoryError(f"put_bw: no {size} bytes of shared memory")
    return block


_memory: list[Memory] = []


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    if not _memory:
        _memory.append(Memory(bench))
    memory, stream = _memory[0], Stream(bench, size)
    huge, plain = memory.sources
    return [
        memcpy(stream, "memcpy, huge pages (bound)", huge, memory.targets[0]),
        memcpy(stream, "memcpy, plain pages (bound)", plain, memory.targets[1]),
        hpcomm_c(stream, huge, memory.c_window),
        hpcomm_python(stream, huge, memory.window),
        mpi_put(stream, huge, memory.mpi_window),
    ]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-R", "--ring", type=nbytes, default=64 << 20, help="bytes that the buffers rotate through")


BENCHMARK = Benchmark(
    name="put_bw",
    about="Bandwidth of put, beside memcpy between shared mappings by one thread and mpi4py's Put+Flush.",
    dtype="uint64",
    contenders=contenders,
    defaults={"minbytes": 64 << 10, "maxbytes": 256 << 20, "stepfactor": 4, "iters": 3, "warmup_iters": 1},
    options=options,
)

if __name__ == "__main__":
    main(BENCHMARK)

"""limits: what bounds this machine, in one table: memory copy, add, loopback and the wire, each with hpcomm beside it.

Loopback is measured between rank 0 and the next rank of its host, the wire between rank 0 and the first rank of another
host; where there is no such rank its rows are not there. An mpirun over two hosts with two ranks each has them all.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.common import plots
from bench.common.harness import Bench, Benchmark, Contender, last_cache, main
from bench.common.launch import has_iperf3
from bench.common.native import address
from bench.ops.put_bw import HUGE_PAGE, PAGE_WORDS, SHIFTS, Stream, hpcomm_c, iperf3_stream, options, sockets

MIB = 1 << 20
SIZE = max(64 * MIB, 2 * last_cache() // MIB * MIB)  # no cache holds it
Words = NDArray[np.uint64]


class Blocks:
    """Memory of this rank: what is read, what is written, floats to add."""

    def __init__(self, bench: Bench, size: int) -> None:
        room = (max(size, bench.options.ring) + HUGE_PAGE - 1) // HUGE_PAGE * HUGE_PAGE
        self.bench, self.size, self.room = bench, size, room
        self.source, self.target = self._block(room + SHIFTS * PAGE_WORDS * 8), self._block(room)
        bench.native.bench_fill(address(self.source), self.source.size)
        self.floats = [self._block(room).view(np.float32)[: size // 4] for _ in range(2)]
        for k, array in enumerate(self.floats):
            array[:] = np.random.default_rng(k).integers(-2048, 2048, array.size, np.int16)

    def _block(self, nbytes: int) -> Words:
        block = self.bench.own(nbytes, huge=True)
        if block is None:
            raise MemoryError(f"limits: no {nbytes} bytes of memory")
        self.bench.ends.append(lambda: self.bench.native.bench_unmap(address(block), nbytes))
        return block

    # ---- memory ----------------------------------------------------------------------------------------------------

    def copy(self, name: str, everybody: bool) -> Contender:
        slots, words = self.room // self.size, self.room // self.size * self.size // 8

        def once() -> float:
            return float(
                self.bench.native.bench_memcpy(address(self.target), address(self.source), self.size, slots, slots)
            )

        def wrong() -> int:
            found = self.bench.native.wrong(self.target[:words], self.source[:words])
            self.target[:words] = 0
            return found

        return self._contender(name, "bound", once, wrong, everybody, 2)

    def add(self, name: str, role: str, once: Callable[[int, Sequence[NDArray[np.float32]]], float]) -> Contender:
        """once(out, arrays) gives the seconds of one sum of two arrays."""
        out = self.target.view(np.float32)[: self.size // 4]

        def wrong() -> int:
            total = self.floats[0] + self.floats[1]
            if role == "hpcomm":  # the mean, which is the sum of halves
                total *= np.float32(0.5)
            found = int(np.count_nonzero(out != total))
            out[:] = 0
            return found

        return self._contender(name, role, lambda: once(address(out), self.floats), wrong, True, 3)

    def _contender(
        self, name: str, role: str, once: Callable[[], float], wrong: Callable[[], int], everybody: bool, moves: int
    ) -> Contender:
        bench, spoil = self.bench, self.bench.options.plant
        works = bench.rank == 0 or (everybody and bench.hosts[bench.rank] == bench.hosts[0])
        ranks = bench.hosts.count(bench.hosts[0]) if everybody else 1

        def measure(n: int) -> tuple[list[float], int]:
            nonlocal spoil
            seconds = []
            for _ in range(n):
                if everybody:
                    bench.comm.Barrier()
                if works:
                    seconds.append(once())
            if not works or not bench.options.check:
                return seconds, 0
            if spoil and bench.rank == 0:
                self.target[0] ^= 1
            spoil = False
            return seconds, wrong()

        return Contender(name, role, measure, bus=float(moves * ranks))


def memory(blocks: Blocks) -> list[Contender]:
    native, count = blocks.bench.native, blocks.size // 4

    def two(stream: bool) -> Callable[[int, Sequence[NDArray[np.float32]]], float]:
        return lambda out, arrays: float(native.bench_two(out, *(address(a) for a in arrays), count, stream, 1))

    def fold(out: int, arrays: Sequence[NDArray[np.float32]]) -> float:
        pointers = np.array([address(array) for array in arrays], np.uint64)
        seconds = float(native.bench_fold_of(out, address(pointers), 2, count, 1))
        return seconds if seconds >= 0 else float(native.check(int(seconds)))

    return [
        blocks.copy("memory copy, one rank (bound)", everybody=False),
        blocks.copy("memory copy, all ranks (bound)", everybody=True),
        blocks.add("add, streaming, all ranks (bound)", "bound", two(True)),
        blocks.add("add, plain, all ranks (bound)", "bound", two(False)),
        blocks.add("hpcomm fold of 2, all ranks", "hpcomm", fold),
    ]


# ---- between ranks -------------------------------------------------------------------------------------------------


_windows: dict[str, tuple[Any, Any]] = {}  # a context and its window by transport, for all sizes


def put(blocks: Blocks, stream: Stream, name: str, transport: str, waits: bool) -> Contender:
    bench = blocks.bench
    if transport not in _windows:
        native = bench.connected(transport)
        _windows[transport] = native, native.window(blocks.room, 1)
    native, window = _windows[transport]
    return hpcomm_c(stream, name, blocks.source, window, waits, native)


def between(bench: Bench, blocks: Blocks) -> list[Contender]:
    found = []
    near = next((rank for rank in range(1, bench.size) if bench.hosts[rank] == bench.hosts[0]), None)
    far = next((rank for rank in range(1, bench.size) if bench.hosts[rank] != bench.hosts[0]), None)
    if near is not None:
        stream = Stream(bench, blocks.size, near)
        found += [
            put(blocks, stream, "hpcomm put, shm", "", waits=False),
            sockets(stream, "loopback, socket stream (bound)", blocks.source, blocks.target),
            put(blocks, stream, "hpcomm put, loopback", "tcp", waits=True),
        ]
    if far is not None:
        stream = Stream(bench, blocks.size, far)
        if has_iperf3() and bench.wanted("wire, iperf3 (bound)"):
            found.append(iperf3_stream(stream, "wire, iperf3 (bound)"))
        found += [
            sockets(stream, "wire, socket stream (bound)", blocks.source, blocks.target),
            put(blocks, stream, "hpcomm put, wire", "", waits=True),
        ]
    return found


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    blocks = Blocks(bench, size)
    return [*memory(blocks), *between(bench, blocks)]


BENCHMARK = Benchmark(
    name="limits",
    about="What bounds this machine: memory copy, add, loopback and wire, with hpcomm beside each.",
    dtype="float32",
    contenders=contenders,
    defaults={"minbytes": SIZE, "maxbytes": SIZE, "iters": 2, "run_cycles": 7},
    options=options,
    draw=plots.limits,
)

if __name__ == "__main__":
    main(BENCHMARK)

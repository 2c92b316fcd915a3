"""limits: the benchmark `hpcomm bench limits` (hpcomm/bench/limits.py) with loops in C over huge pages, and with
hpcomm's C API instead of its Python.

The wire is measured between rank 0 and the first rank of another host. An mpirun over two hosts with two ranks each has
all rows.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bench.common.harness import Bench, Benchmark, Contender, main
from bench.ops.put_bw import hpcomm_c, sockets
from hpcomm.bench import limits, plots
from hpcomm.bench.arrays import Floats, Words, address
from hpcomm.bench.limits import SIZE, mate
from hpcomm.bench.peers import has_iperf3
from hpcomm.bench.put_bw import Stream, iperf3_stream, options


class Blocks(limits.Blocks):
    """Blocks of huge pages."""

    def block(self, nbytes: int) -> Words:
        block = self.bench.own(nbytes, huge=True)
        if block is None:
            raise MemoryError(f"limits: no {nbytes} bytes of memory")
        self.bench.ends.append(lambda: self.bench.native.bench_unmap(address(block), nbytes))
        return block  # type: ignore[no-any-return]

    def copied(self, slots: int) -> float:
        places = address(self.target), address(self.source)
        return float(self.bench.native.bench_memcpy(*places, self.size, slots, slots))


def memory(blocks: Blocks) -> list[Contender]:
    native, count = blocks.bench.native, blocks.size // 4

    def two(stream: bool) -> Callable[[Floats, Sequence[Floats]], float]:
        return lambda out, arrays: float(
            native.bench_two(address(out), *(address(a) for a in arrays), count, stream, 1)
        )

    def fold(out: Floats, arrays: Sequence[Floats]) -> float:
        pointers = np.array([address(array) for array in arrays], np.uint64)
        seconds = float(native.bench_fold_of(address(out), address(pointers), 2, count, 1))
        return seconds if seconds >= 0 else float(native.check(int(seconds)))

    return [
        blocks.copy("memory copy, one rank (bound)", everybody=False),
        blocks.copy("memory copy, all ranks (bound)", everybody=True),
        blocks.add("add, streaming, all ranks (bound)", "bound", two(True)),
        blocks.add("add, plain, all ranks (bound)", "bound", two(False)),
        blocks.add("hpcomm fold of 2, all ranks", "hpcomm", fold),
    ]


# ---- between ranks -------------------------------------------------------------------------------------------------


_windows: dict[str, tuple[Any, Any]] = {}  # by transport: a context and its window, used for all sizes


def put(blocks: Blocks, stream: Stream, name: str, transport: str, waits: bool) -> Contender:
    bench = blocks.bench
    if transport not in _windows:
        native = bench.connected(transport)
        _windows[transport] = native, native.window(blocks.room, 1)
    native, window = _windows[transport]
    return hpcomm_c(stream, name, blocks.source, window, waits, native)


def between(bench: Bench, blocks: Blocks) -> list[Contender]:
    found = []
    near = mate(bench)
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

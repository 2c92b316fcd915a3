"""sparse_bench: filtering by a threshold with a residual into a piece, and adding such a piece, on one core.

One operation is one update of the given size. `encode` reads it, splits it, keeps the rest and writes the piece;
`decode_add` adds the piece to an array. At the default size, update, residual and piece stay in the second-level cache.
If there are several ranks, all work at once.
"""

import contextlib
import ctypes
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.common.harness import Bench, Benchmark, Contender, has_torch, main
from bench.common.native import BUILD, with_objects
from hpcomm import NotSupported, kernels
from hpcomm.bench.arrays import address, aligned, zeros
from hpcomm.bench.sparse import options

DELTA = 0.5
BEST, SCALAR = 0, 1  # hpc_isa
HEAD = 16  # bytes of a piece's head
Floats = NDArray[np.float32]
Sent = tuple[Floats, Floats]  # the values that a contender sent, as a whole array, and the values that it kept back


def loops(folder: Path = BUILD) -> ctypes.CDLL:
    """Loads bench/ops/sparse.c with the kernels of the tree's build."""
    library = with_objects(folder, "libbenchsparse.so", "ops/sparse.c", "piece.c")
    pointer, many, small = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    library.bench_filter.restype = pointer
    for timed in (library.bench_encode, library.bench_decode_add, library.bench_traffic):
        timed.restype = ctypes.c_double
    library.bench_encode.argtypes = [pointer, small, pointer, many, pointer, ctypes.c_float, pointer, many, pointer]
    library.bench_decode_add.argtypes = [pointer, many, pointer, many, small]
    library.bench_traffic.argtypes = [pointer, many, pointer]
    return library


class Update:
    """One update, of which about a given share is larger than DELTA, its residual, and its piece."""

    def __init__(self, bench: Bench, size: int, kept: float) -> None:
        self.bench, self.native, self.n, self.name = bench, loops(), size // 4, f"{100 * kept:g} % kept"
        random = np.random.default_rng([bench.rank, self.n])
        self.x, self.before, self.residual, self.acc = (zeros(self.n) for _ in range(4))
        self.x[:] = random.uniform(-0.3, 0.3, self.n)
        large = random.random(self.n) < kept
        self.x[large] = random.choice([-4, 4], np.count_nonzero(large))
        self.before[:] = random.uniform(-0.1, 0.1, self.n)
        self.u = self.x + self.before
        self.indices = np.flatnonzero(large)
        self.cap = HEAD + 4 * self.n
        self.out = aligned(self.cap // 4 + 1)
        self.nbytes = ctypes.c_int64()
        self.encoded(0, BEST)

    def encoded(self, filter_at: int, isa: int) -> float:
        self.residual[:] = self.before
        seconds: float = self.native.bench_encode(
            filter_at, isa, address(self.x), self.n, address(self.residual), DELTA, address(self.out), self.cap,
            ctypes.byref(self.nbytes),
        )  # fmt: skip
        return seconds

    def added(self, isa: int) -> float:
        seconds: float = self.native.bench_decode_add(
            address(self.acc), self.n, address(self.out), self.nbytes.value, isa
        )
        return seconds

    def sent(self) -> Sent:
        self.acc[:] = 0
        self.added(SCALAR)
        return self.acc, self.residual

    # ---- by NumPy and torch ----

    def by_numpy(self) -> tuple[float, Callable[[], Sent]]:
        self.residual[:] = self.before
        start = time.perf_counter()
        u = self.x + self.residual
        indices = np.flatnonzero(np.abs(u) > DELTA)
        values, positions = u[indices], indices.astype(np.int32)
        u[indices] = 0
        self.residual[:] = u
        seconds = time.perf_counter() - start
        return seconds, lambda: (spread(self.n, positions, values), self.residual)

    def by_topk(self) -> tuple[float, Callable[[], Sent]]:
        import torch  # noqa: PLC0415

        torch.set_num_threads(1)
        x, residual = torch.from_numpy(self.x), torch.from_numpy(self.before.copy())
        start = time.perf_counter()
        u = x + residual
        indices = torch.topk(u.abs(), self.indices.size, sorted=False).indices
        values, positions = u[indices], indices.to(torch.int32)
        u[indices] = 0
        residual.copy_(u)
        seconds = time.perf_counter() - start
        return seconds, lambda: (spread(self.n, positions.numpy(), values.numpy()), residual.numpy())

    # ---- contenders ----

    def traffic(self) -> Contender:
        def measure(n: int) -> tuple[list[float], int]:
            return [self.native.bench_traffic(address(self.x), self.n, address(self.residual)) for _ in range(n)], 0

        return Contender(f"encode, {self.name}: 12 bytes an element (bound)", "bound", measure)

    def encoder(self, who: str, role: str, once: Callable[[], tuple[float, Callable[[], Sent]]]) -> Contender:
        spoil = self.bench.options.plant

        def measure(n: int) -> tuple[list[float], int]:
            nonlocal spoil
            seconds = []
            self.x[self.n // 2] += 8 * spoil
            for _ in range(n):
                one, look = once()
                seconds.append(one)
            self.x[self.n // 2] -= 8 * spoil
            spoil, (sent, back) = False, look()
            wrong = np.count_nonzero(sent + back != self.u) + np.count_nonzero(np.abs(back) > DELTA)
            return seconds, int(wrong) if self.bench.options.check else 0

        return Contender(f"encode, {self.name}: {who}", role, measure)

    def in_c(self, filter_at: int, isa: int) -> Callable[[], tuple[float, Callable[[], Sent]]]:
        return lambda: (self.encoded(filter_at, isa), self.sent)

    def adder(self, who: str, role: str, once: Callable[[], float]) -> Contender:
        spoil = self.bench.options.plant

        def measure(n: int) -> tuple[list[float], int]:
            nonlocal spoil
            self.encoded(0, BEST)
            self.acc[:] = 0
            seconds = [once() for _ in range(n)]
            self.acc[self.n // 2] += spoil
            spoil, expected = False, zeros(self.n)
            expected[self.indices] = self.u[self.indices]
            wrong = np.count_nonzero(np.abs(self.acc - n * expected) > 1e-4 * n)
            return seconds, int(wrong) if self.bench.options.check else 0

        return Contender(f"decode_add, {self.name}: {who}", role, measure)

    def add_by_numpy(self) -> float:
        values = self.u[self.indices]
        start = time.perf_counter()
        self.acc[self.indices] += values
        return time.perf_counter() - start

    def contenders(self) -> list[Contender]:
        made = [self.encoder("hpcomm C", "hpcomm", self.in_c(0, BEST))]
        with contextlib.suppress(NotSupported):
            made.append(self.encoder("hpcomm Numba", "hpcomm", self.in_c(kernels.threshold().address, BEST)))
        made.append(self.encoder("scalar C", "peer", self.in_c(0, SCALAR)))
        made.append(self.encoder("NumPy", "peer", self.by_numpy))
        if has_torch():
            made.append(self.encoder("torch.topk", "peer", self.by_topk))
        made.append(self.traffic())
        made.append(self.adder("hpcomm C", "hpcomm", lambda: self.added(BEST)))
        made.append(self.adder("scalar C", "peer", lambda: self.added(SCALAR)))
        made.append(self.adder("NumPy", "peer", self.add_by_numpy))
        return made


def spread(n: int, positions: NDArray[np.int32], values: Floats) -> Floats:
    whole = np.zeros(n, np.float32)
    whole[positions] = values
    return whole


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    return [made for kept in bench.options.kept for made in Update(bench, size, kept / 100).contenders()]


BENCHMARK = Benchmark(
    name="sparse_bench",
    about="The filter of a threshold with its residual, and adding the piece.",
    dtype="float32",
    contenders=contenders,
    defaults={"minbytes": 128 << 10, "maxbytes": 128 << 10, "iters": 50},
    options=options,
    ranks=1,
)

if __name__ == "__main__":
    main(BENCHMARK)

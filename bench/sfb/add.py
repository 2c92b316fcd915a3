"""sfb.add: subtracting the updates of some ranks from a matrix, all in one pass, beside OpenBLAS's sgemm.

Dense factors stand beside W -= lr * U^T V by NumPy's OpenBLAS on one thread, and sparse ones beside a pass that does
nothing but read and write W. Repeats alternate, and medians are compared. Every result is checked.

    python -m bench.sfb.add [--repeats 15]
"""

import argparse
import contextlib
import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.common.native import BUILD, with_objects
from hpcomm.bench.arrays import address, aligned, zeros

HEAD = 64  # bytes before the vectors of an update
RATE = 0.5
Floats = NDArray[np.float32]
ROW_MAJOR, NO_TRANS, TRANS = 101, 111, 112  # of CBLAS


def loops(folder: Path = BUILD) -> ctypes.CDLL:
    """Loads bench/sfb/add.c with the codec of the tree's build."""
    library = with_objects(folder, "libbenchfactors.so", "sfb/add.c", "factors.c")
    pointer, many, small, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_double
    library.bench_factors_bytes.restype = ctypes.c_size_t
    library.bench_factors_bytes.argtypes = [many, many, small]
    library.bench_factors_encode.restype = many
    library.bench_factors_encode.argtypes = [many, many, small, small, pointer, pointer, many]
    library.bench_factors_add_all.restype = real
    library.bench_factors_add_all.argtypes = [pointer, many, many, small, small, pointer, pointer, small, real, small]
    return library


def sgemm_of(blas: ctypes.CDLL, name: str) -> Callable[[Floats, Floats, Floats], float]:
    """Times W -= RATE * U^T V by a CBLAS function of OpenBLAS, on one thread."""
    gemm, integer = getattr(blas, name), ctypes.c_int64 if name.endswith("64_") else ctypes.c_int
    getattr(blas, name.replace("cblas_sgemm", "openblas_set_num_threads"))(integer(1))

    def measure(w: Floats, u: Floats, v: Floats) -> float:
        (k, rows), columns = u.shape, v.shape[1]
        sizes = [integer(n) for n in (rows, columns, k)]
        scale, one = ctypes.c_float(-RATE), ctypes.c_float(1)
        arrays = [ctypes.c_void_p(address(a)) for a in (u, v, w)]
        start = time.perf_counter()
        gemm(
            ROW_MAJOR, TRANS, NO_TRANS, *sizes, scale, arrays[0], integer(rows),
            arrays[1], integer(columns), one, arrays[2], integer(columns),
        )  # fmt: skip
        return time.perf_counter() - start

    return measure


def sgemm() -> Callable[[Floats, Floats, Floats], float] | None:
    """Returns the sgemm of NumPy's own OpenBLAS; None if NumPy has none."""
    folder = Path(np.__file__).parent.parent / "numpy.libs"
    for path in sorted(folder.glob("libscipy_openblas*.so*")):
        for name in ("scipy_cblas_sgemm64_", "scipy_cblas_sgemm"):
            with contextlib.suppress(AttributeError):
                return sgemm_of(ctypes.CDLL(str(path)), name)
    return None


def sparse(random: np.random.Generator, n: int, length: int, kept: int) -> Floats:
    """Returns n vectors of whole numbers, with a given number of nonzero values each."""
    vectors = np.zeros((n, length), np.float32)
    for vector in vectors:
        vector[random.choice(length, kept, replace=False)] = random.integers(1, 4, kept)
    return vectors


class Updates:
    """The updates of some ranks, each with the same number of pairs, as pieces; u and v hold the pairs of all these
    ranks."""

    def __init__(self, native: ctypes.CDLL, u: Floats, v: Floats, ranks: int) -> None:
        (k, self.rows), self.columns = u.shape, v.shape[1]
        self.native, self.ranks, self.pairs, self.u, self.v = native, ranks, k // ranks, u, v
        nbytes = native.bench_factors_bytes(self.rows, self.columns, self.pairs)
        update, self.pieces, self.lengths = aligned(nbytes // 4), [], []
        for part in range(ranks):
            some = slice(part * self.pairs, (part + 1) * self.pairs)
            values = update[HEAD // 4 :]
            values[: u[some].size], values[u[some].size :] = u[some].ravel(), v[some].ravel()
            piece = aligned(nbytes // 4)
            length = native.bench_factors_encode(
                self.rows, self.columns, self.pairs, 0, address(update), address(piece), nbytes
            )
            assert length > 0, length
            self.pieces.append(piece)
            self.lengths.append(length)
        self.pointers = np.array([address(piece) for piece in self.pieces], np.uint64)
        self.nbytes = np.array(self.lengths, np.int64)

    def take(self, w: Floats) -> float:
        """Seconds of one add_all."""
        seconds: float = self.native.bench_factors_add_all(
            address(w), self.rows, self.columns, self.pairs, 0, address(self.pointers), address(self.nbytes),
            self.ranks, RATE, 0,
        )  # fmt: skip
        assert seconds > 0, seconds
        return seconds


def medians(repeats: int, *ways: Callable[[], float]) -> list[float]:
    """Lets some ways take turns; returns the median seconds of each."""
    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(repeats + 1):
        for its, way in zip(seconds, ways, strict=True):
            its.append(way())
    return [statistics.median(its[1:]) for its in seconds]


def touch(w: Floats) -> float:
    """Times reading and writing all of W once."""
    start = time.perf_counter()
    np.subtract(w, np.float32(RATE), out=w)
    return time.perf_counter() - start


def dense_table(native: ctypes.CDLL, repeats: int) -> None:
    gemm = sgemm()
    random = np.random.default_rng(1)
    print("dense factors          pairs   add_all            sgemm              rate of sgemm   wrong")
    for size in (2048, 4096):
        for k, ranks in ((32, 1), (128, 4), (256, 8), (1024, 8)):
            if k > 256 and size > 2048:
                continue
            u, v = (random.integers(-3, 4, (k, size)).astype(np.float32) for _ in range(2))
            updates, w, by_gemm = Updates(native, u, v, ranks), zeros(size * size), zeros(size * size)
            ways: list[Callable[[], float]] = [partial(updates.take, w)]
            if gemm is not None:
                ways.append(partial(gemm, by_gemm, u, v))
            seconds = medians(repeats, *ways)
            rates = [2 * k * size * size / one / 1e9 for one in seconds]
            wrong = np.count_nonzero(w != by_gemm) if gemm is not None else 0
            beside = f"{seconds[1] * 1e3:6.1f} ms {rates[1]:5.1f} GF/s" if gemm is not None else " " * 18
            ratio = f"{rates[0] / rates[1]:.2f}" if gemm is not None else "none"
            print(
                f"{size} x {size} x {k:4}   {k:5}   {seconds[0] * 1e3:6.1f} ms {rates[0]:5.1f} GF/s"
                f"{beside:>21}   {ratio:>13}   {wrong:5}",
                flush=True,
            )


def sparse_table(native: ctypes.CDLL, repeats: int) -> None:
    random = np.random.default_rng(2)
    print("\nsparse factors (100 values)      add_all            one pass over W    rate of the pass   wrong")
    n, classes, features, kept, ranks = 256, 4000, 5000, 100, 8
    dense = random.integers(-3, 4, (n, classes)).astype(np.float32)
    few = sparse(random, n, features, kept)
    for name, u, v in (("u sparse: picks rows", few, dense), ("v sparse: scatters", dense, few)):
        updates = Updates(native, u, v, ranks)
        w, other = zeros(u.shape[1] * v.shape[1]), zeros(u.shape[1] * v.shape[1])

        seconds = medians(repeats, partial(updates.take, w), partial(touch, other))
        expected = (u.T @ v) * np.float32(-RATE * (repeats + 1))
        wrong = np.count_nonzero(w != expected.ravel())
        columns = [f"{one * 1e3:6.1f} ms {8 * w.size / one / 1e9:5.1f} GB/s" for one in seconds]
        ratio = seconds[1] / seconds[0]
        print(
            f"{name:22} {u.shape[1]} x {v.shape[1]}  {columns[0]}  {columns[1]}   {ratio:16.2f}   {wrong:5}", flush=True
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sfb.add", description=__doc__)
    parser.add_argument("--repeats", type=int, default=15, help="of each measurement, after one that warms up")
    options = parser.parse_args(arguments)
    native = loops()
    dense_table(native, options.repeats)
    sparse_table(native, options.repeats)


if __name__ == "__main__":
    main()

"""Filters of sparse codecs in Numba: the bytes of the C kernel, what pieces make of them, and those of one's own."""

import ctypes
import functools
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from tree import BUILD, ROOT

import hpcomm
from hpcomm import InvalidArgument, kernels
from hpcomm.kernels import filters

F32 = np.float32
Floats = NDArray[np.float32]
HEAD = 16  # bytes of a piece's head
FILTER = ctypes.CFUNCTYPE(
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_float,
    ctypes.c_void_p,
    ctypes.c_void_p,
)

# The kernels are no part of the library's interface: this is linked with the build's objects.
SHIM = """
#include "codec/piece.h"
#define SEEN __attribute__((visibility("default")))
SEEN hpc_filter_fn *c_filter(int isa) { return hpc_sparse_kernels_of(isa)->filter_f32; }
SEEN int64_t c_encode(hpc_filter_fn *filter, const float *x, int64_t n, float *residual, float delta, int paper,
                      void *out, int64_t cap) {
    hpc_piece_filter how = {.filter = filter, .delta = delta, .values = HPC_F32, .paper = paper};
    return hpc_piece_encode(&how, x, n, residual, out, cap, NULL);
}
SEEN int c_decode_add(float *acc, int64_t n, const void *in, int64_t nbytes) {
    return hpc_piece_add(acc, n, in, nbytes, 1, HPC_ISA_BEST);
}
"""


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    objects = sorted((BUILD / "CMakeFiles/hpcomm_objects.dir/csrc").rglob("*.o"))
    if not any(path.name == "piece.c.o" for path in objects):
        pytest.skip("there is no build to link; make builds one")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM, encoding="utf-8")
    flags = ["-std=c11", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{ROOT}/csrc", f"-I{ROOT}/csrc/include"]
    words = ["cc", *flags, folder / "shim.c", *objects, "-lm", "-lpthread", "-ldl", "-o", folder / "shim.so"]
    subprocess.run([str(word) for word in words], check=True, timeout=60)
    library = ctypes.CDLL(str(folder / "shim.so"))
    library.c_filter.restype = ctypes.c_void_p
    pointer, many = ctypes.c_void_p, ctypes.c_int64
    library.c_encode.restype = many
    library.c_encode.argtypes = [pointer, pointer, many, pointer, ctypes.c_float, ctypes.c_int, pointer, many]
    library.c_decode_add.argtypes = [pointer, many, pointer, many]
    return library


class Filtered(NamedTuple):
    kept: int
    values: bytes
    bits: bytes
    residual: bytes


def filtered(address: int, x: Floats, residual: Floats, delta: float) -> Filtered:
    n = x.size
    rest = residual.copy()
    values, bits = np.full(n + 16, 77, F32), np.full((n + 7) // 8 + 8, 77, np.uint8)
    run = FILTER(address)
    kept = run(x.ctypes.data, rest.ctypes.data, n, delta, values.ctypes.data, bits.ctypes.data)
    assert np.all(values[n:] == 77)
    assert np.all(bits[(n + 7) // 8 :] == 77)
    return Filtered(kept, values[: max(kept, 0)].tobytes(), bits[: (n + 7) // 8].tobytes(), rest.tobytes())


@functools.cache
def plain() -> int:
    """The address of the filter for CPUs without AVX-512."""
    return kernels.filter(filters.without_lanes).address


KERNELS: list[Callable[[], int]] = [lambda: kernels.threshold().address, plain]

numbers = st.floats(width=32, allow_nan=True, allow_infinity=True)
whole = st.integers(-1000, 1000).map(float)


@pytest.mark.some(1)
@pytest.mark.parametrize("kernel", KERNELS, ids=["threshold", "plain"])
@given(st.data())
def test_bytes_are_those_of_the_c_kernel(shim: ctypes.CDLL, kernel: Callable[[], int], data: st.DataObject) -> None:
    n = data.draw(st.integers(0, 300))
    x, residual = data.draw(arrays(F32, n, elements=numbers)), data.draw(arrays(F32, n, elements=whole))
    delta = data.draw(st.sampled_from([0.0, 1.0, 500.0, 1e30]))
    assert filtered(kernel(), x, residual, delta) == filtered(shim.c_filter(0), x, residual, delta)


@pytest.mark.parametrize("kept", [0, 0.001, 0.1, 0.5, 0.99, 1])
@pytest.mark.parametrize("kernel", KERNELS, ids=["threshold", "plain"])
def test_large_updates(shim: ctypes.CDLL, kernel: Callable[[], int], kept: float) -> None:
    random = np.random.default_rng(1)
    x = np.where(random.random(100_003) < kept, 5, random.random(100_003)).astype(F32)
    residual = random.integers(-3, 3, x.size).astype(F32)
    assert filtered(kernel(), x, residual, 2.5) == filtered(shim.c_filter(0), x, residual, 2.5)


@given(st.data())
def test_what_is_sent_and_kept_is_all(shim: ctypes.CDLL, data: st.DataObject) -> None:
    """Of whole numbers exactly; what stays is at most delta; delta = 0 keeps back nothing but zeros."""
    n = data.draw(st.integers(0, 500))
    x, before = data.draw(arrays(F32, n, elements=whole)), data.draw(arrays(F32, n, elements=whole))
    delta, paper = data.draw(st.sampled_from([0.0, 1.0, 400.0, 999.0])), data.draw(st.booleans())
    out, residual, acc = bytearray(HEAD + 4 * n), before.copy(), np.zeros(n, F32)
    at = (ctypes.c_char * len(out)).from_buffer(out)
    own = kernels.threshold().address
    nbytes = shim.c_encode(own, x.ctypes.data, n, residual.ctypes.data, delta, paper, at, len(out))
    assert HEAD <= nbytes <= len(out)
    assert shim.c_decode_add(acc.ctypes.data, n, at, nbytes) == 0
    np.testing.assert_array_equal(acc + residual, x + before)
    assert np.all(np.abs(residual) <= delta)
    other, rest = bytearray(len(out)), before.copy()
    into = (ctypes.c_char * len(out)).from_buffer(other)
    assert shim.c_encode(None, x.ctypes.data, n, rest.ctypes.data, delta, paper, into, len(out)) == nbytes
    assert (other[:nbytes], rest.tobytes()) == (out[:nbytes], residual.tobytes())


def test_filter_is_compiled_once() -> None:
    assert kernels.threshold() is kernels.threshold()
    assert (kernels.threshold().function is filters.with_lanes) == filters.has_lanes()


def test_filter_of_ones_own(shim: ctypes.CDLL) -> None:
    """It sends what is positive."""

    def positive(x: Any, residual: Any, n: int, delta: float, values: Any, bits: Any) -> int:
        kept = 0
        for i in range(n):
            if i % 8 == 0:
                bits[i // 8] = 0
            u = x[i] + residual[i]
            residual[i] = u
            if u > 0:
                values[kept] = u
                residual[i] = 0
                bits[i // 8] |= 1 << (i % 8)
                kept += 1
        return kept

    own = kernels.filter(positive)
    assert own.function is positive
    x, residual, acc = (
        np.random.default_rng(2).standard_normal(1000).astype(F32),
        np.zeros(1000, F32),
        np.zeros(1000, F32),
    )
    out = ctypes.create_string_buffer(HEAD + 4000)
    nbytes = shim.c_encode(own.address, x.ctypes.data, 1000, residual.ctypes.data, 0, 0, out, HEAD + 4000)
    assert shim.c_decode_add(acc.ctypes.data, 1000, out, nbytes) == 0
    np.testing.assert_array_equal(acc, np.maximum(x, 0))
    np.testing.assert_array_equal(residual, np.minimum(x, 0))


def test_filter_that_raises_or_cannot_be(shim: ctypes.CDLL) -> None:
    def raises(x: Any, residual: Any, n: int, delta: float, values: Any, bits: Any) -> int:
        if delta > 1:
            raise ValueError("too large")
        return 0

    def returns_nothing(x: Any, residual: Any, n: int, delta: float, values: Any, bits: Any) -> None:
        residual[0] = x[0]

    def prints(x: Any, residual: Any, n: int, delta: float, values: Any, bits: Any) -> int:
        print(n)
        return 0

    assert filtered(kernels.filter(raises).address, np.ones(3, F32), np.ones(3, F32), 2).kept == kernels.RAISED
    with pytest.raises(InvalidArgument, match="'returns_nothing' returns nothing: must return how many elements"):
        kernels.filter(returns_nothing)
    with pytest.raises(InvalidArgument, match="'prints' would call the interpreter"):
        kernels.filter(prints)


def test_the_c_shape_is_the_one_declared() -> None:
    text = (Path(ROOT) / "csrc/include/hpcomm/codec.h").read_text(encoding="utf-8")
    assert "typedef int64_t hpc_filter_fn(const float *x, float *residual, int64_t n, float delta, void *values" in text
    assert hpcomm.kernels.threshold().wires == ("float32",)

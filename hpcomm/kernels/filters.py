"""The filter of Threshold for Numba; it gives the same bytes as the C kernel (csrc/kernel/sparse.h).

A filter takes n elements. It keeps u = x + residual if its magnitude is larger than delta, or if it is NaN. Kept
elements go to values, without gaps. Bit i % 8 of byte i // 8 of bits is set if element i is kept. The residual becomes
0 for kept elements and u for the others. The filter returns how many it keeps; it may write all n elements of values.

To keep other elements, copy this file and change it; `hpcomm.kernels.filter` compiles the result. The code below the
filters defines vectors of sixteen float32, for CPUs with AVX-512. LLVM compiles no loop to the instruction that packs
selected lanes, so a vector is a value here, and each function on it is one instruction or a few. A mask is an int with
bit i for lane i.
"""

from typing import Any

from llvmlite import binding, ir
from numba import extending, njit
from numba.core import cgutils, types
from numba.extending import models, register_model

LANES = 16  # float32 in a vector
WORD = 4 * LANES  # elements whose bits are stored at once

intrinsic: Any = extending.intrinsic  # its calls have more arguments than mypy can see

# ---- the filter ----------------------------------------------------------------------------------------------------


@njit(error_model="numpy", inline="always")
def filter_lanes(x: Any, residual: Any, i: Any, delta: Any, values: Any, kept: Any) -> Any:
    """Filters sixteen elements from i on; writes the kept values from index number on, and returns the mask of kept
    lanes."""
    u = add(load(x, i), load(residual, i))
    mask = beyond(u, delta)
    store(residual, i, without(u, mask))
    store(values, kept, pack(u, mask))
    return mask


@njit(error_model="numpy", inline="always")
def filter_each(x: Any, residual: Any, start: Any, n: Any, delta: Any, values: Any, kept: Any, bits: Any) -> Any:
    """Filters one by one from element start on, which must be a multiple of 8."""
    for j in range(start, n, 8):
        byte = 0
        for i in range(j, min(j + 8, n)):
            u = x[i] + residual[i]
            if not abs(u) <= delta:
                values[kept] = u
                residual[i] = 0
                kept += 1
                byte |= 1 << (i - j)
            else:
                residual[i] = u
        bits[j // 8] = byte
    return kept


def with_lanes(x: Any, residual: Any, n: Any, delta: Any, values: Any, bits: Any) -> Any:
    """Filters four vectors at a time. Kept elements never pass the vector that is read, so a whole vector may be
    stored."""
    kept = 0
    whole = n - n % WORD
    for i in range(0, whole, WORD):
        a = filter_lanes(x, residual, i, delta, values, kept)
        kept += count(a)
        b = filter_lanes(x, residual, i + 16, delta, values, kept)
        kept += count(b)
        c = filter_lanes(x, residual, i + 32, delta, values, kept)
        kept += count(c)
        d = filter_lanes(x, residual, i + 48, delta, values, kept)
        kept += count(d)
        store_word(bits, i // 8, a | b << 16 | c << 32 | d << 48)
    return filter_each(x, residual, whole, n, delta, values, kept, bits)


def without_lanes(x: Any, residual: Any, n: Any, delta: Any, values: Any, bits: Any) -> Any:
    return filter_each(x, residual, 0, n, delta, values, 0, bits)


# ---- vectors -------------------------------------------------------------------------------------------------------


class _Lanes(types.Type):
    """The Numba type of sixteen float32 in a register."""

    def __init__(self) -> None:
        super().__init__(name="float32x16")


LANES_TYPE = _Lanes()
_REAL, _WORD = ir.FloatType(), ir.IntType(32)
_VECTOR = ir.VectorType(_REAL, LANES)
_MASK = ir.VectorType(ir.IntType(1), LANES)
_BITS = ir.IntType(LANES)


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, of: Any) -> None:
        super().__init__(manager, of, _VECTOR)


def has_lanes() -> bool:
    """Returns whether this CPU has AVX-512F."""
    return bool(binding.get_host_cpu_features().get("avx512f"))


def _at(builder: Any, pointer: Any, index: Any) -> Any:
    """Returns a pointer to a vector, aligned like its first element."""
    return builder.bitcast(builder.gep(pointer, [index]), _VECTOR.as_pointer())


def _all(builder: Any, value: Any) -> Any:
    """Returns a vector with this value in each lane."""
    one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_WORD, LANES), [0] * LANES))


def _call(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _chosen(builder: Any, mask: Any) -> Any:
    return builder.bitcast(builder.trunc(mask, _BITS), _MASK)


@intrinsic
def load(context: Any, pointer: Any, index: Any) -> Any:
    """Loads elements index to index + 15 at a pointer to float32."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_at(builder, *arguments), align=4)

    return LANES_TYPE(pointer, types.int64), code


@intrinsic
def store(context: Any, pointer: Any, index: Any, vector: Any) -> Any:
    """Stores all lanes to elements index to index + 15 at a pointer to float32."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, index, vector = arguments
        builder.store(vector, _at(builder, pointer, index), align=4)
        return context.get_dummy_value()

    return types.void(pointer, types.int64, LANES_TYPE), code


@intrinsic
def add(context: Any, a: Any, b: Any) -> Any:

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fadd(*arguments)

    return LANES_TYPE(LANES_TYPE, LANES_TYPE), code


@intrinsic
def beyond(context: Any, vector: Any, delta: Any) -> Any:
    """Returns the mask of the lanes whose magnitude is larger than a float32, or that are NaN."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, delta = arguments
        size = _call(builder, "llvm.fabs.v16f32", _VECTOR, [vector])
        larger = builder.fcmp_unordered(">", size, _all(builder, delta))
        return builder.zext(builder.bitcast(larger, _BITS), ir.IntType(64))

    return types.int64(LANES_TYPE, types.float32), code


@intrinsic
def without(context: Any, vector: Any, mask: Any) -> Any:
    """Returns the vector with 0 in the lanes of the mask."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, mask = arguments
        return builder.select(_chosen(builder, mask), ir.Constant(_VECTOR, [0.0] * LANES), vector)

    return LANES_TYPE(LANES_TYPE, types.int64), code


@intrinsic
def pack(context: Any, vector: Any, mask: Any) -> Any:
    """Moves the lanes of the mask to the front, in order, and fills with zeros. It uses vcompressps in a register: its
    form that stores to memory is microcode on Zen 4, and many times slower."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, mask = arguments
        none = ir.Constant(_VECTOR, [0.0] * LANES)
        chosen = _chosen(builder, mask)
        return _call(builder, "llvm.x86.avx512.mask.compress.v16f32", _VECTOR, [vector, none, chosen])

    return LANES_TYPE(LANES_TYPE, types.int64), code


@intrinsic
def count(context: Any, mask: Any) -> Any:

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.int64), code


@intrinsic
def store_word(context: Any, pointer: Any, index: Any, word: Any) -> Any:
    """Stores the eight bytes of an int at a pointer to uint8."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, index, word = arguments
        at = builder.bitcast(builder.gep(pointer, [index]), ir.IntType(64).as_pointer())
        builder.store(word, at, align=1)
        return context.get_dummy_value()

    return types.void(pointer, types.int64, types.int64), code

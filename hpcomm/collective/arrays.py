"""Checks of arguments: arrays, outs, ops."""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core import ELEMENTS, OPS
from ..errors import InvalidArgument
from ..window import as_source

NUMBERS = bool | int | float | complex | np.generic
_BITS, _NO_COMPLEX, _MEANS = ("and", "or", "xor"), ("min", "max"), ("mean",)
_ALIASES = {  # words of mpi4py, torch and NumPy
    "add": "sum",
    "avg": "mean",
    "average": "mean",
    "minimum": "min",
    "maximum": "max",
    "multiply": "prod",
    "product": "prod",
    "all": "and",
    "band": "and",
    "bitwise_and": "and",
    "land": "and",
    "any": "or",
    "bor": "or",
    "bitwise_or": "or",
    "lor": "or",
    "bxor": "xor",
    "bitwise_xor": "xor",
    "lxor": "xor",
}


@cache
def element_of(dtype: np.dtype[Any]) -> int | None:
    """Returns the C library's number of a dtype, or None. NumPy makes a dtype's name on each look."""
    return ELEMENTS.get(dtype.name) if dtype.isnative else None


def as_array(name: str, given: Any, what: str = "array") -> NDArray[Any]:
    """Returns an array over the memory of what was given; of a number a new array without axes."""
    if isinstance(given, np.ndarray):
        array = given
    elif isinstance(given, NUMBERS):
        array = np.asarray(given)
    else:
        try:
            source = as_source(given)
            array = source if isinstance(source, np.ndarray) else np.asarray(memoryview(source))
        except (InvalidArgument, ValueError) as wrong:
            raise InvalidArgument(f"{name}: {what} is a {type(given).__name__}: {wrong}; see np.asarray") from None
    if element_of(array.dtype) is None:
        raise InvalidArgument(
            f"{name}: {what} has dtype {array.dtype}: must be bool, an integer, a float or a complex number, in the "
            f"machine's order of bytes: one of {', '.join(ELEMENTS)}"
        )
    if not array.flags.c_contiguous:
        raise InvalidArgument(
            f"{name}: {what} has shape {array.shape} and strides {array.strides}, which is not C-contiguous: see "
            "np.ascontiguousarray"
        )
    return array


def as_out(name: str, given: Any, dtype: np.dtype[Any] | None, *shapes: tuple[int, ...]) -> NDArray[Any]:
    """Returns the array over out. dtype None: any dtype and any shape."""
    if isinstance(given, NUMBERS):
        raise InvalidArgument(f"{name}: out is {given!r}: must be an array")
    out = as_array(name, given, "out")
    if dtype is not None and (out.dtype != dtype or out.shape not in shapes):
        wanted = " or ".join(map(str, dict.fromkeys(shapes)))
        raise InvalidArgument(f"{name}: out is {out.dtype} {out.shape}: must be {dtype} {wanted}")
    check_writable(name, out, "out")
    return out


def check_writable(name: str, array: NDArray[Any], what: str = "array") -> None:
    if not array.flags.writeable:
        raise InvalidArgument(f"{name}: {what} is read-only: the result is written there; give a copy")


def empty_like(array: Any) -> NDArray[Any] | None:
    """Returns a new array for a result of the shape of array; None if array is not plainly a NumPy array."""
    return np.empty_like(array) if type(array) is np.ndarray else None


def empty_part(array: Any, n: int) -> NDArray[Any] | None:
    """Returns a new array for one of n equal parts of array, like empty_like."""
    if type(array) is not np.ndarray or array.ndim == 0:
        return None
    return np.empty((array.shape[0] // n, *array.shape[1:]), array.dtype)


def empty_joined(array: Any, n: int) -> NDArray[Any] | None:
    """Returns a new array for n blocks of the shape of array, joined along the first axis, like empty_like."""
    if type(array) is not np.ndarray:
        return None
    return np.empty((n * array.shape[0], *array.shape[1:]) if array.ndim else n, array.dtype)


def as_op(name: str, op: Any, dtype: np.dtype[Any]) -> int:
    code = OPS.get(op) if isinstance(op, str) else None
    if code is None:
        meant = _ALIASES.get(op.lower().rpartition(".")[2]) if isinstance(op, str) else None
        raise InvalidArgument(
            f"{name}: op is {op!r}: must be one of {', '.join(map(repr, OPS))}"
            + (f"; the name here is {meant!r}" if meant else "")
        )
    is_whole, is_complex = dtype.kind in "iub", dtype.kind == "c"
    if op in _MEANS and is_whole:
        raise InvalidArgument(f"{name}: op 'mean' takes no {dtype}: convert to float32 first, or take 'sum' and divide")
    if op in _NO_COMPLEX and is_complex:
        raise InvalidArgument(f"{name}: op {op!r} takes no {dtype}: complex numbers have no order")
    if op in _BITS and not is_whole:
        raise InvalidArgument(f"{name}: op {op!r} takes no {dtype}: it takes integers and booleans; see ndarray.view")
    return code

"""Makes arrays over mapped memory, which keep it mapped, and addresses for C."""

import ctypes
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._ffi import ffi, lib
from ..errors import InvalidArgument
from .status import NULL, check

_CFunction: Any = ctypes.CFUNCTYPE(None).__base__  # of every function pointer of ctypes

_UINTPTR = ffi.typeof("uintptr_t")
from_buffer = ffi.from_buffer
new_word: Callable[[], Any] = lambda: ffi.new("uint64_t *")  # noqa: E731


def mapped(
    memories: list[Any], address: int, shape: tuple[int, ...], dtype: np.dtype[Any], writable: bool
) -> NDArray[Any]:
    """Makes an array over mapped memory, which stays mapped as long as the array or a view of it lives."""
    nbytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if nbytes == 0:
        return np.empty(shape, dtype)
    chars = ffi.gc(ffi.cast("char *", address), lambda _: memories.clear())
    view = memoryview(ffi.buffer(chars, nbytes))
    return np.frombuffer(view if writable else view.toreadonly(), dtype).reshape(shape)


def memory_of(memory: Any) -> Any:
    return None if memory == NULL else ffi.gc(memory, lib.hpc_memory_release)


class MemoryView:
    """A second mapping of an array in mapped memory. Its `array` is the same memory at another address."""

    __slots__ = ("_memory", "array")

    def __init__(self, array: NDArray[Any]) -> None:
        address, out = array.ctypes.data, ffi.new("hpc_memory **")
        check(lib.hpc_memory_view(ffi.cast("void *", address), array.nbytes, out))
        self._memory = memory_of(out[0])
        at = address_of(lib.hpc_memory_data(self._memory)) + address % mmap.PAGESIZE
        self.array = mapped([self._memory], at, array.shape, array.dtype, True)

    def part(self) -> None:
        """Ends the sharing: self.array gets a copy of the values, at the same address. Raises OutOfMemory without
        memory for it."""
        check(lib.hpc_memory_part(self._memory))


def members(struct: Any) -> dict[str, Any]:
    """Returns the members of the struct at a pointer, by name."""
    return {name: getattr(struct, name) for name, _ in ffi.typeof(struct).item.fields}


def address_of(pointer: Any) -> int:
    """Returns the address of a handle; its owner must live as long as the address is used."""
    return int(ffi.cast("uintptr_t", pointer))


def array_address(array: NDArray[Any]) -> int:
    """Returns the address of an array's first byte, and takes less time than NumPy's own ways."""
    try:
        return int(ffi.cast(_UINTPTR, from_buffer(array)))
    except (ValueError, BufferError):  # a dtype without a format, such as bfloat16
        return int(array.__array_interface__["data"][0])


def function_address(function: Any, name: str) -> int:
    """Returns the address of machine code, given as an int, a ctypes function pointer, or an object with an `address`.
    Raises InvalidArgument for anything else, and for null."""
    if isinstance(function, _CFunction):
        address = ctypes.cast(function, ctypes.c_void_p).value or 0
    else:
        address = getattr(function, "address", function)
    if isinstance(address, bool) or not isinstance(address, int) or not 0 < address < 2**64:
        raise InvalidArgument(
            f"{name} is {function!r}: must be the address of machine code, a ctypes function pointer or a Numba cfunc; "
            "hpcomm.kernels compiles a Python function"
        )
    return address

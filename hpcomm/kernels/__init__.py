"""Compiles a user's rules and folds, written in Python, with Numba (the extra `kernels`).

    @hpcomm.kernels.rule(slots=1, args={"lr": 0.1, "decay": 0.9})
    def rms(param, acc, count, state, args):              # arrays in, arrays out; args[0] is the step, from 1
        lr, decay = np.float32(args[1]), np.float32(args[2])
        for i in range(param.size):
            state[0, i] = decay * state[0, i] + (np.float32(1) - decay) * acc[i] * acc[i]
            param[i] -= lr * acc[i] / (np.sqrt(state[0, i]) + np.float32(1e-8))

    ex = hpcomm.Exchange(ctx, params, rule=rms)

The engine calls the machine code from its own threads, block by block, without the GIL or the interpreter. The engine
chooses where blocks begin, so a rule or fold must treat each element by itself. A division by zero gives Inf or NaN. An
exception in the function ends the exchange with status RAISED. Write np.float32(args[1]) to compute in float32.

A function returns None or 0; any other int ends the exchange with an error. args is float64 (8,): the step (for a
codec, the number of the encoding) from 1, then the numbers that the decorator got. Each decorator raises NotSupported
without Numba, and InvalidArgument if the function cannot be compiled, calls the interpreter (print, object mode) or
returns another type.

Threshold and TopK of hpcomm.codec take a filter as kernel=. `encode` and `decode_add` make a whole codec, Own.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, overload

import numpy as np

from .. import _core
from ..errors import InvalidArgument, NotSupported
from ..optim import MOST_ARGS, MOST_SLOTS, Rule
from ..prox import OwnProx, Prox

PIP_KERNELS = "pip install numba"
RAISED = -1  # status of a kernel that raised an exception
MISFIT = -2  # status of a fold that got an update of another dtype

MOST_SLOTS_OF_CODECS = _core.CODEC_SLOTS

_ARGS = MOST_ARGS + 1  # the step is the first


class Kernel:
    """The machine code of a Python function, and its address.

    wires: the wire formats that a fold reads. slots: float32 values of state per element that an encoder keeps.
    """

    def __init__(
        self, compiled: Any, function: Callable[..., Any], wires: tuple[str, ...] = (), slots: int = 0
    ) -> None:
        self._compiled = compiled
        self.address: int = compiled.address
        self.function = function
        self.wires = wires
        self.slots = slots
        self.__name__ = getattr(function, "__name__", "kernel")
        self.__doc__ = function.__doc__

    def __repr__(self) -> str:
        return f"<hpcomm.kernels.Kernel {self.__name__} at {self.address:#x}>"


def rule(
    *,
    slots: int = 0,
    args: Mapping[str, float] | Sequence[float] = (),
    fold: Kernel | None = None,
    name: str | None = None,
) -> Callable[[Callable[..., Any]], Rule]:
    """Makes a Rule from a function(param, acc, count, state, args).

    The function gets a block of n elements: param, float32 (n,), which it changes; acc, float32 (n,), the folded
    update; count, an int, the number of updates in acc; state, float32 (slots, n), which begins as zeros; and args.
    slots, args and name are as in hpcomm.Rule. fold is a Kernel made by `fold`; None means the weighted sum.
    """
    if not isinstance(slots, int) or not 0 <= slots <= MOST_SLOTS:
        raise InvalidArgument(f"rule: slots is {slots!r}: must be an int from 0 to {MOST_SLOTS}")

    def compiled(function: Callable[..., Any]) -> Rule:
        return Rule(_compiled_rule(function, slots), slots, args, fold, name)

    return compiled


@overload
def fold(function: Callable[..., Any], *, dtype: Any = np.float32) -> Kernel: ...
@overload
def fold(*, dtype: Any = np.float32) -> Callable[[Callable[..., Any]], Kernel]: ...
def fold(
    function: Callable[..., Any] | None = None, *, dtype: Any = np.float32
) -> Kernel | Callable[[Callable[..., Any]], Kernel]:
    """Makes a fold from a function(acc, update, weight, args): `@fold`, or `@fold(dtype=np.uint16)`.

    The function must add weight times the update to acc. It gets a block of n elements: acc, float32 (n,), zeros before
    the first update; update, dtype (n,), as it arrived; weight, a float; and args.

    dtype is float32, or uint16 for the bits of float16 and bfloat16. Exchange refuses a fold whose dtype differs from
    that of a row's inputs. If the fold was given by its bare address, the exchange ends with status MISFIT instead.
    """
    if function is not None:
        return _compiled_fold(function, np.dtype(dtype))
    return lambda later: _compiled_fold(later, np.dtype(dtype))


@overload
def prox(function: Callable[..., Any]) -> Prox: ...
@overload
def prox(
    *, args: Mapping[str, float] | Sequence[float] = (), per: str = "rows", name: str | None = None
) -> Callable[[Callable[..., Any]], Prox]: ...
def prox(
    function: Callable[..., Any] | None = None,
    *,
    args: Mapping[str, float] | Sequence[float] = (),
    per: str = "rows",
    name: str | None = None,
) -> Prox | Callable[[Callable[..., Any]], Prox]:
    """Makes a prox from a function(rows, args), for hpcomm.ProxSGD and hpcomm.Dual: `@prox`, or `@prox(per="matrix")`.

        @hpcomm.kernels.prox(args={"least": 0.0})
        def at_least(rows, args):
            np.maximum(rows, np.float32(args[3]), rows)

    The function gets rows, float32 (n, columns), which are whole rows of the key's matrix and which it changes; and
    args: the step, t (the learning rate; 1 under Dual), the weight decay, then the numbers given as args=. A NaN in
    rows ends the exchange. args, per and name are as in hpcomm.prox.OwnProx.
    """

    def compiled(one: Callable[..., Any]) -> Prox:
        return OwnProx(_compiled_prox(one), args, per, name)

    return compiled if function is None else compiled(function)


def threshold() -> Kernel:
    """Returns the filter of Threshold, compiled once and kept in Numba's cache on disk.

    Its source, hpcomm/kernels/filters.py, may be copied and changed. It gives the same bytes as the C kernel.
    """
    return _threshold()


@functools.cache
def _threshold() -> Kernel:
    nb = _numba()
    from . import filters  # noqa: PLC0415

    function = filters.with_lanes if filters.has_lanes() else filters.without_lanes
    options = {"error_model": "numpy"}
    try:
        compiled = nb.cfunc(_filter_signature(nb), cache=True, **options)(function)
    except RuntimeError:  # no folder can hold the cache
        compiled = nb.cfunc(_filter_signature(nb), **options)(function)
    return Kernel(compiled, function, ("float32",))


def filter(function: Callable[..., Any]) -> Kernel:
    """Makes a filter from a function(x, residual, n, delta, values, bits), such as a changed copy of threshold()'s.

    The function gets pointers: x, to n float32, which it reads; residual, to n float32, which it changes; delta, a
    float32; values, room for n float32; bits, room for (n + 7) // 8 bytes. It must write the elements of x + residual
    that it keeps to values, in order, set their bits, and leave the other elements in the residual. It returns how many
    it kept; a negative number ends the exchange with an error.

    It is called for parts of a piece; the length of each part but the last is a multiple of 64. Elements may be given
    twice, the second time with x = 0 and their whole value in the residual.
    """
    nb = _numba()
    signature = _filter_signature(nb)
    inner, returns = _inner(nb, function, signature.args)
    if not returns:
        raise InvalidArgument(f"kernel {function.__name__!r} returns nothing: must return how many elements it kept")

    def filter_some(x: Any, residual: Any, n: Any, delta: Any, values: Any, bits: Any) -> Any:
        try:
            return inner(x, residual, n, delta, values, bits)
        except Exception:
            return RAISED

    return Kernel(nb.cfunc(signature, error_model="numpy")(filter_some), function, ("float32",))


def chosen_filter(kernel: Any, values: str) -> Kernel | Any | None:
    """Returns the filter for a codec's kernel= argument: a Kernel or an address, or None for the library's own filter.
    values: the codec's dtype."""
    if kernel == "c" or kernel is None or (kernel == "auto" and values != "float32"):
        return None
    if kernel == "numba":
        return threshold()
    if kernel != "auto":
        return kernel
    try:
        return threshold()
    except NotSupported:
        return None


@overload
def encode(function: Callable[..., Any], *, slots: int = 0) -> Kernel: ...
@overload
def encode(*, slots: int = 0) -> Callable[[Callable[..., Any]], Kernel]: ...
def encode(
    function: Callable[..., Any] | None = None, *, slots: int = 0
) -> Kernel | Callable[[Callable[..., Any]], Kernel]:
    """Makes the encoder of hpcomm.codec.Own from a function(x, state, args, out): `@encode`, or `@encode(slots=1)`.

    The function gets x, float32 (n,), the update plus the residual of earlier pieces; state, float32 (slots, n), which
    begins as zeros, with 0 to 8 slots; args; and out, uint8 (4 n,), aligned to 4 bytes. It must write the piece to out
    and return the number of its bytes; a negative number ends the exchange with an error.
    """
    if isinstance(slots, bool) or not isinstance(slots, int) or not 0 <= slots <= MOST_SLOTS_OF_CODECS:
        raise InvalidArgument(f"encode: slots is {slots!r}: must be an int from 0 to {MOST_SLOTS_OF_CODECS}")
    if function is not None:
        return _compiled_encode(function, slots)
    return lambda later: _compiled_encode(later, slots)


def decode_add(function: Callable[..., Any]) -> Kernel:
    """Makes the decoder of hpcomm.codec.Own from a function(acc, data, weight, args).

    The function must add weight times the update in data to acc. It gets acc, float32 (n,); data, uint8 (nbytes,),
    aligned to 4 bytes; weight, a float, which may be negative; and args. data may come from another process and contain
    anything: the function must check it before it writes to acc, and return an int other than 0 for an invalid piece.
    """
    nb = _numba()
    types, carray = nb.types, nb.carray
    vector, numbers, data = types.float32[::1], types.float64[::1], types.uint8[::1]
    inner, _ = _inner(nb, function, (vector, data, types.float64, numbers))

    def add(acc: Any, n: Any, given: Any, nbytes: Any, weight: Any, args: Any) -> Any:
        try:
            return inner(carray(acc, (n,)), carray(given, (nbytes,)), weight, carray(args, (_ARGS,)))
        except Exception:
            return RAISED

    number = types.CPointer(types.float32)
    signature = types.int32(
        number, types.int64, types.CPointer(types.uint8), types.int64, types.float64, types.CPointer(types.float64)
    )
    return Kernel(nb.cfunc(signature, error_model="numpy")(add), function)


def _compiled_encode(function: Callable[..., Any], slots: int) -> Kernel:
    nb = _numba()
    types, carray = nb.types, nb.carray
    vector, numbers, data = types.float32[::1], types.float64[::1], types.uint8[::1]
    inner, returns = _inner(nb, function, (vector, types.float32[:, ::1], numbers, data))
    if not returns:
        raise InvalidArgument(f"kernel {function.__name__!r} returns nothing: must return the bytes that it wrote")

    def write(x: Any, n: Any, state: Any, args: Any, out: Any, cap: Any) -> Any:
        try:
            return inner(carray(x, (n,)), carray(state, (slots, n)), carray(args, (_ARGS,)), carray(out, (cap,)))
        except Exception:
            return RAISED

    number = types.CPointer(types.float32)
    signature = types.int64(
        number, types.int64, number, types.CPointer(types.float64), types.CPointer(types.uint8), types.int64
    )
    return Kernel(nb.cfunc(signature, error_model="numpy")(write), function, slots=slots)


def _filter_signature(nb: Any) -> Any:
    """hpc_filter_fn of csrc/kernel/sparse.h."""
    types = nb.types
    number = types.CPointer(types.float32)
    return types.int64(number, number, types.int64, types.float32, number, types.CPointer(types.uint8))


def _numba() -> ModuleType:
    try:
        import numba  # noqa: PLC0415
    except ModuleNotFoundError:
        raise NotSupported(f"kernels are compiled by Numba, which is missing: {PIP_KERNELS}") from None
    found: ModuleType = numba
    return found


def _compiled_rule(function: Callable[..., Any], slots: int) -> Kernel:
    nb = _numba()
    types, carray = nb.types, nb.carray
    vector, number = types.float32[::1], types.CPointer(types.float32)
    inner, _ = _inner(nb, function, (vector, vector, types.int64, types.float32[:, ::1], types.float64[::1]))

    def apply(param: Any, acc: Any, count: Any, state: Any, args: Any, n: Any) -> Any:
        params, update = carray(param, (n,)), carray(acc, (n,))
        try:
            return inner(params, update, count, carray(state, (slots, n)), carray(args, (_ARGS,)))
        except Exception:
            return RAISED

    signature = types.int32(number, number, types.int64, number, types.CPointer(types.float64), types.int64)
    return Kernel(nb.cfunc(signature, error_model="numpy")(apply), function)


def _compiled_prox(function: Callable[..., Any]) -> Kernel:
    nb = _numba()
    types, carray = nb.types, nb.carray
    inner, _ = _inner(nb, function, (types.float32[:, ::1], types.float64[::1]))

    def run(rows: Any, n: Any, columns: Any, args: Any) -> Any:
        try:
            return inner(carray(rows, (n, columns)), carray(args, (_ARGS,)))
        except Exception:
            return RAISED

    signature = types.int32(types.CPointer(types.float32), types.int64, types.int64, types.CPointer(types.float64))
    return Kernel(nb.cfunc(signature, error_model="numpy")(run), function)


def _compiled_fold(function: Callable[..., Any], dtype: np.dtype[Any]) -> Kernel:
    nb = _numba()
    types, carray = nb.types, nb.carray
    wires = _wires(dtype)
    element = nb.from_dtype(dtype)
    size = dtype.itemsize
    inner, _ = _inner(nb, function, (types.float32[::1], element[::1], types.float64, types.float64[::1]))

    def fold_into(acc: Any, n: Any, update: Any, nbytes: Any, weight: Any, args: Any) -> Any:
        if nbytes != n * size:
            return MISFIT
        try:
            return inner(carray(acc, (n,)), carray(update, (n,)), weight, carray(args, (_ARGS,)))
        except Exception:
            return RAISED

    signature = types.int32(
        types.CPointer(types.float32),
        types.int64,
        types.CPointer(element),
        types.int64,
        types.float64,
        types.CPointer(types.float64),
    )
    return Kernel(nb.cfunc(signature, error_model="numpy")(fold_into), function, wires)


def _wires(dtype: np.dtype[Any]) -> tuple[str, ...]:
    """Returns the wire formats whose elements, or whose bits, have this dtype."""
    if dtype.kind in "fui" and dtype.isnative:
        if dtype.itemsize == 4:
            return ("float32",)
        if dtype.itemsize == 2:
            return ("float16",) if dtype.kind == "f" else ("float16", "bfloat16")
    raise InvalidArgument(f"fold: dtype is {dtype}: must be a native number of 4 or 2 bytes, such as float32 or uint16")


def _inner(nb: Any, function: Callable[..., Any], signature: tuple[Any, ...]) -> tuple[Any, bool]:
    """Compiles the function for these types. Returns it, made to return 0 if it returned nothing, and whether it
    returned something."""
    title = f"kernel {getattr(function, '__name__', function)!r}"
    if not callable(function):
        raise InvalidArgument(f"{title}: must be a function")
    # Without wrappers for calls from Python, the code calls the interpreter only if the kernel itself does.
    options = {"error_model": "numpy", "nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    try:
        inner = nb.njit(function, **options)
        inner.compile(signature)
    except (nb.core.errors.NumbaError, TypeError) as wrong:
        raise InvalidArgument(f"{title} cannot be compiled: {wrong}") from None
    overload = inner.overloads[signature]
    if "gil_ensure" in overload.library.get_llvm_str():
        raise InvalidArgument(f"{title} would call the interpreter (print or object mode), which the engine never does")
    returned = overload.signature.return_type
    if isinstance(returned, nb.types.NoneType):

        def done(*arguments: Any) -> int:
            inner(*arguments)
            return 0

        return nb.njit(done, **options), False
    if not isinstance(nb.types.unliteral(returned), nb.types.Integer):
        raise InvalidArgument(f"{title} returns {returned}: must return nothing, or an int from every path")
    return inner, True

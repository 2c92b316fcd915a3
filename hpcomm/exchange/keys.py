"""Keys of an exchange: the state of each key, the parameters by name, and the checks of gradients."""

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from ..errors import InvalidArgument
from ..stage import nearest
from ..window import as_source

_SMALL = 4096  # bytes; up to this size a key keeps the last pushed array, to recognize it in the next push
# For each dtype, the least magnitude that a codec rounds to Inf: halfway from its largest number to the next power of
# 2.
_TOO_LARGE = {"float32": math.inf, "float16": 65520.0, "bfloat16": float.fromhex("0x1.FFp127")}
_TOO_LARGE["uint16"] = _TOO_LARGE["bfloat16"]


class KeyState:
    """The state of a key (hpcomm.plan.Key) between a trainer's steps: its arrays, its slots and its last push."""

    __slots__ = (
        "checked",
        "dtype",
        "flags",
        "from_pairs",
        "gathered",
        "gradient",
        "index",
        "name",
        "nbytes",
        "params",
        "ready",
        "rotates",
        "shape",
        "slots",
    )

    def __init__(self, name: str, index: int, shape: tuple[int, ...], dtype: np.dtype[Any], *, rotates: bool) -> None:
        self.name, self.index, self.shape, self.dtype = name, index, shape, dtype
        self.rotates = rotates  # whether its pushes use several slots in turn
        self.nbytes = 4 * math.prod(shape)  # how many bytes of a gradient a push copies
        self.params: Any = None
        self.gradient: Any = None  # the array of the slot that the next push sends; None if unknown
        self.from_pairs: Any = None  # pairs of vectors; a push without data then sends the sum of their products
        self.gathered: Any = None  # the array into which gathers write
        self.ready = -1  # the last step in which the slot of self.gradient was found free
        self.flags = 0  # the flags of the key's last start
        self.slots: dict[int, Any] = {}  # arrays of slots, by the slot's address
        self.checked: Any = None  # the last small array that was pushed and checked; it need not be checked again

    def slot(self, exchange: Any, address: int) -> Any:
        """Returns the array of the slot at an address."""
        return _core.exchange_gradient_array(exchange, self.index, address, self.shape, self.dtype)

    def source(self, grad: Any) -> Any:
        """Returns the array from which C copies grad. Returns None if grad already lies in the key's slot."""
        try:
            source = np.asarray(as_source(grad))
        except InvalidArgument as wrong:
            raise InvalidArgument(f"gradient of {self.name!r}: {wrong}") from None
        if source.shape != self.shape:
            raise InvalidArgument(f"gradient of {self.name!r} has shape {source.shape}: must be {self.shape}")
        mine = self.gradient
        if mine is not None and source.dtype == mine.dtype and source.ctypes.data == mine.ctypes.data:
            return None
        if source.dtype != np.float32 or not source.dtype.isnative:
            own = ""
            if self.dtype != np.float32 and mine is not self.params:
                own = f", or the {self.dtype} array that gradient({self.name!r}) gave"
            raise InvalidArgument(f"gradient of {self.name!r} is {source.dtype}: must be float32{own}")
        if not source.flags.aligned:
            raise InvalidArgument(f"gradient of {self.name!r} is not aligned to 4 bytes: push a copy of it")
        if self.nbytes <= _SMALL and source is grad:
            self.checked = grad
        return source

    def check_finite(self, gradient: NDArray[Any], rank: int) -> None:
        """Raises if the gradient has NaN, Inf, or a value that the codec would round to Inf. C checks each push
        again."""
        if gradient.dtype == np.uint16:  # bfloat16 bits as uint16
            gradient = (gradient.astype(np.uint32) << 16).view(np.float32)
        if gradient.dtype == np.float32 and self.dtype != np.float32:
            finite = np.abs(gradient) < _TOO_LARGE[self.dtype.name]
        else:
            finite = np.isfinite(gradient)
        if not finite.all():
            at = int(np.argmin(finite))
            value = float(gradient.flat[at])
            what = f"too large for {self.dtype}" if math.isfinite(value) else "not finite"
            raise InvalidArgument(
                f"rank {rank}: the gradient of {self.name!r} is {value:g} at element {at}, {what}: "
                "check_finite refuses it, and nothing of the step was pushed"
            )


class Params(Mapping[str, NDArray[np.float32]]):
    """The parameters of an exchange by name, in the order of its keys. Each name keeps the same array object while the
    values in it change, except for models that are trained in place."""

    __slots__ = ("_arrays", "_keys", "_rank")

    def __init__(self, arrays: dict[str, NDArray[np.float32]], keys: Collection[str], rank: int) -> None:
        self._arrays, self._keys, self._rank = arrays, keys, rank

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        try:
            return self._arrays[name]
        except (KeyError, TypeError):
            if not self._arrays and name in self._keys:
                raise InvalidArgument(f"rank {self._rank} only serves: it has no parameters") from None
            raise unknown(name, self._keys, self._rank) from None

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def get(self, name: str, default: Any = None) -> Any:
        return self._arrays.get(name, default)

    def __repr__(self) -> str:
        return f"<parameters of {', '.join(f'{name} {value.shape}' for name, value in self._arrays.items())}>"


def unknown(name: object, keys: Collection[str], rank: int) -> InvalidArgument:
    """Returns the error for a name that is not a key. Its text lists keys with similar names."""
    return InvalidArgument(f"rank {rank}: {name!r} is not a key of this exchange: {nearest(name, keys)}")

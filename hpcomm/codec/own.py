"""A user's codec, in machine code."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from .. import _core
from ..errors import InvalidArgument
from ..stage import whole
from .base import WireFormat

MOST_ARGS = _core.CODEC_ARGS - 1  # the first is the number of the encoding
MOST_SLOTS = _core.CODEC_SLOTS


@dataclass(frozen=True)
class Own(WireFormat):
    """A user's codec: two functions of machine code, which hpcomm.kernels.encode and hpcomm.kernels.decode_add make of
    Python functions. The error of a piece stays in a residual, which is added to the next update; the engine finds it
    by decoding the piece.

    Attributes:
        encode, decode_add: machine code of the shapes hpc_encode_fn and hpc_decode_add_fn: an address, a ctypes
            function pointer, or an object with an `address`.
        title: told in errors, and the same on all ranks; None: encode's title.
        args: at most 7 numbers for both functions, as args[1] and following; the same on all ranks. A mapping gives
            them names for the reader.
        state_slots: float32 values of state for each element, 0 to 8, that encode keeps beside the residual; None:
            encode.slots, or 0.

    Raises:
        InvalidArgument: a value is out of range.
    """

    encode: Any
    decode_add: Any
    title: str = None  # type: ignore[assignment]  # a str from __post_init__ on
    args: Any = ()
    state_slots: int = None  # type: ignore[assignment]  # an int from __post_init__ on

    @property
    def name(self) -> str:
        return "own"

    @property
    def slots(self) -> int:
        return self.state_slots

    def __post_init__(self) -> None:
        put = object.__setattr__
        for what in ("encode", "decode_add"):
            _core.function_address(getattr(self, what), f"Own: {what}")
        title = self.title or getattr(self.encode, "__name__", None) or "own"
        if not isinstance(title, str) or not 0 < len(title.encode("utf-8", "replace")) < 64 or "\0" in title:
            raise InvalidArgument(f"Own: title is {self.title!r}: must be a text of 1 to 63 bytes")
        put(self, "title", title)
        slots = getattr(self.encode, "slots", 0) if self.state_slots is None else self.state_slots
        put(self, "state_slots", whole("Own: state_slots", slots, 0, MOST_SLOTS))
        try:
            given = self.args.values() if isinstance(self.args, Mapping) else self.args
            args = tuple(float(value) for value in given)
        except (TypeError, ValueError):
            raise InvalidArgument(f"Own: args are {self.args!r}: must be numbers, or a mapping to numbers") from None
        if len(args) > MOST_ARGS or not all(map(isfinite, args)):
            raise InvalidArgument(f"Own: args are {self.args!r}: must be at most {MOST_ARGS} finite numbers")
        put(self, "args", args)

    def settings(self, shape: Sequence[int]) -> dict[str, Any] | None:
        return {
            "name": self.title,
            "encode": _core.function_address(self.encode, "Own: encode"),
            "decode_add": _core.function_address(self.decode_add, "Own: decode_add"),
            "state_slots": self.state_slots,
            "args": self.args,
        }

"""Own: a user's codec, in machine code."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import _core
from ..stage import checked_args, checked_title, whole
from .base import WireFormat

MOST_ARGS = _core.CODEC_ARGS - 1  # the first argument is the number of the encoding
MOST_SLOTS = _core.CODEC_SLOTS


@dataclass(frozen=True)
class Own(WireFormat):
    """A user's codec: two functions in machine code. hpcomm.kernels.encode and hpcomm.kernels.decode_add make them from
    Python functions.

    After each encoding the engine decodes the piece, and keeps the difference to the update in a residual, which is
    added to the next update. Raises InvalidArgument for a value out of range.

    Attributes:
        encode, decode_add: machine code with the signatures hpc_encode_fn and hpc_decode_add_fn: an address, a ctypes
            function pointer, or an object with an `address`.
        title: the name in errors, the same on all ranks; None: encode's title.
        args: at most 7 numbers, the same on all ranks. Both functions get them as args[1], args[2] and so on. It may be
            a mapping from names to numbers; its names have no effect.
        state_slots: the number of float32 values of state for each element, 0 to 8; the residual does not count. None:
            encode.slots if encode has this attribute, otherwise 0.
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
        put(self, "title", checked_title("Own: title", self.title, self.encode, "own", 63))
        slots = getattr(self.encode, "slots", 0) if self.state_slots is None else self.state_slots
        put(self, "state_slots", whole("Own: state_slots", slots, 0, MOST_SLOTS))
        args = checked_args("Own", self.args, MOST_ARGS)
        put(self, "args", tuple(args.values()) if isinstance(args, Mapping) else args)

    def settings(self, shape: Sequence[int]) -> dict[str, Any] | None:
        return {
            "name": self.title,
            "encode": _core.function_address(self.encode, "Own: encode"),
            "decode_add": _core.function_address(self.decode_add, "Own: decode_add"),
            "state_slots": self.state_slots,
            "args": self.args,
        }

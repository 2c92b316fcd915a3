"""The base class of codecs, with the members that plans and exchanges use."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from ..errors import InvalidArgument


class WireFormat(ABC):
    """The wire format of a key's updates: an array of a dtype, or pieces of variable length."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The codec's name in the rows of plans."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the array into which a trainer writes a gradient."""
        return np.dtype(np.float32)

    @property
    def slots(self) -> int:
        """The number of float32 values of state for each element, without the residual."""
        return 0

    @property
    def kernel(self) -> Any:
        """The code that selects the elements to send: "auto", "numba", "c", or a user's machine code. None: the codec
        selects none."""
        return None

    @property
    def keeps(self) -> bool:
        """Whether a codec of pieces keeps a residual (the values not sent yet); without meaning for a dtype."""
        return True

    @property
    def loses(self) -> bool:
        """Whether the codec loses the rounding error of its pieces; ErrorFeedback can then keep it."""
        return False

    @property
    def sums(self) -> bool:
        """Whether a rank can encode a sum of updates as pieces; hierarchies and apply_at="receivers" need this."""
        return True

    def unit_of(self, shape: Sequence[int]) -> int:
        """Returns the unit of a key of this shape, in elements: chunks may begin only at multiples of it."""
        return 1

    def refuses(self, shape: Sequence[int]) -> str | None:
        """Returns the reason why a key of this shape cannot have the codec, with the remedy, or None if it can."""
        return None

    def most_bytes(self, shape: Sequence[int], count: int) -> int | None:
        """Returns the most bytes that a piece of count elements can have, for which slots must have room; None: 4 *
        count."""
        return None

    def settings(self, shape: Sequence[int]) -> dict[str, Any] | None:
        """Returns the fields of hpc_codec_config, without the filter; None: the codec sends an array of a dtype."""
        return None

    def trial(self) -> "WireFormat":
        """Returns the codec that Auto measures in the place of this codec; by default this codec."""
        return self


def number(what: str, value: object, low: float, high: float, *, above: bool = False) -> float:
    """Returns value as a float; raises InvalidArgument unless it is from low to high and, with above, larger than
    low."""
    told = f"{'above ' if above else ''}{low:g}{' and at most' if above else ' to'} {high:g}"
    if high == float("inf"):
        told = f"a finite number, {low:g} or more"
    try:
        if isinstance(value, bool | str | bytes):
            raise TypeError
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(f"{what} is {value!r}: must be {told}") from None
    if not isfinite(found) or not low <= found <= high or (above and found == low):
        raise InvalidArgument(f"{what} is {value!r}: must be {told}")
    return found


def flag(what: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidArgument(f"{what} is {value!r}: must be True or False")


def word(what: str, value: object, words: Sequence[str | None] | Mapping[str | None, Any]) -> None:
    if not isinstance(value, str | None) or value not in words:
        raise InvalidArgument(f"{what} is {value!r}: must be one of {', '.join(map(repr, words))}")

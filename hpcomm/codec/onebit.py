"""OneBit: one bit an element (Poseidon, 5.3: the 1-bit quantization of CNTK)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from .. import _core
from ..stage import whole
from .base import WireFormat, word

_VECTOR = 4096  # elements of a unit, for a key without columns
_SHORTEST = 16  # elements: in a shorter column the two values cost too much


@dataclass(frozen=True)
class OneBit(WireFormat):
    """Sends one bit for each element and two values for each unit of elements: the mean of the elements that are 0 or
    more, and the mean of the negative elements (Poseidon, 5.3).

    The error stays in a residual, which is added to the next update.

    Attributes:
        unit: the number of consecutive elements that share the two values; chunks begin at multiples of it. None: the
            number of weights of one output, which CNTK calls a column; but 4096 for a key with one dimension, or with
            columns of fewer than 16 elements.
        compress: the library that compresses pieces, as in Threshold.
    """

    unit: int | None = None
    compress: str | None = None

    @property
    def name(self) -> str:
        return "onebit"

    def __post_init__(self) -> None:
        if self.unit is not None:
            object.__setattr__(self, "unit", whole("OneBit: unit", self.unit, 1, _core.PIECE_ELEMENTS))
        word("OneBit: compress", self.compress, _core.COMPRESSIONS)

    def unit_of(self, shape: Sequence[int]) -> int:
        if self.unit is not None:
            return self.unit
        column = prod(shape[1:])
        return column if len(shape) > 1 and column >= _SHORTEST else _VECTOR

    def settings(self, shape: Sequence[int]) -> dict[str, Any] | None:
        return {"unit": self.unit_of(shape), "compress": _core.COMPRESSIONS[self.compress]}

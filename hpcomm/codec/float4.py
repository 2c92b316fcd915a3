"""Float4: four bits an element, a float with a sign and three bits of exponent (Streaming DiLoCo, arXiv 2501.18512)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import _core
from ..stage import whole
from .base import WireFormat, word

_HEAD = 16  # bytes of a piece before its scales
_SHORTEST = 16  # elements: in a shorter unit the scale takes too much space


@dataclass(frozen=True)
class Float4(WireFormat):
    """Sends four bits for each element and a float32 scale for each unit of elements, as Streaming DiLoCo sends outer
    gradients (arXiv 2501.18512).

    The four bits are 1 of sign, 3 of exponent and none of mantissa (E3M0). With the default unit an element takes 4.125
    bits, 1/7.75 of float32. Sums are float32.

    The scale is the largest magnitude in the unit, but at least 2^-118. An element is sent as the nearest of 0 and plus
    or minus the scale times 1, 1/2, 1/4, ..., 1/64; if two values are equally near, the larger is sent. So the error is
    at most the larger of a third of the element and 1/128 of the scale. If a unit has a NaN or an Inf, only this
    element is sent, and the unit's other elements are left out. The same update gives the same bytes on every CPU and
    for every size of chunks.

    As in the paper, the rounding error is lost; ErrorFeedback(Float4()) adds it to the next update.

    Attributes:
        unit: the number of consecutive elements that share a scale, 16 or more. Chunks begin at multiples of it.
        compress: the library that compresses pieces, as in Threshold.
    """

    unit: int = 256
    compress: str | None = None

    @property
    def name(self) -> str:
        return "float4"

    def __post_init__(self) -> None:
        object.__setattr__(self, "unit", whole("Float4: unit", self.unit, _SHORTEST, _core.PIECE_ELEMENTS))
        word("Float4: compress", self.compress, _core.COMPRESSIONS)

    @property
    def keeps(self) -> bool:
        return False

    @property
    def loses(self) -> bool:
        return True

    def unit_of(self, shape: Sequence[int]) -> int:
        return self.unit

    def most_bytes(self, shape: Sequence[int], count: int) -> int:
        whole_units, last = divmod(count, self.unit)
        codes = whole_units * ((self.unit + 1) // 2) + (last + 1) // 2
        return _HEAD + min(4 * count, 4 * (whole_units + (last > 0)) + codes)

    def settings(self, shape: Sequence[int]) -> dict[str, Any] | None:
        return {"unit": self.unit, "compress": _core.COMPRESSIONS[self.compress], "no_feedback": True}

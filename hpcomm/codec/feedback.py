"""ErrorFeedback: a codec's error is added to the next update."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from .base import WireFormat, flag
from .dtype import FLOAT32, Codec
from .sparse import Threshold


@dataclass(frozen=True)
class ErrorFeedback(WireFormat):
    """Adds error feedback to a codec, given as a value or a name: the rounding error stays in a residual.

    Use it with "float16", "bfloat16" and Float4, which have no residual otherwise. Threshold, TopK, OneBit and Own have
    a residual without it; ErrorFeedback(codec, on=False) takes the residual away, for comparisons. Raises
    InvalidArgument for "auto", and for Factors, which leaves no element out.
    """

    codec: Any
    on: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.codec, str):
            object.__setattr__(self, "codec", Codec(self.codec))
        if not isinstance(self.codec, WireFormat) or isinstance(self.codec, ErrorFeedback):
            raise InvalidArgument(
                f"ErrorFeedback: codec is {self.codec!r}: must be a codec of hpcomm.codec that is no ErrorFeedback"
            )
        self.codec.name  # noqa: B018  # raises InvalidArgument for Auto
        if not self.codec.keeps and not self.codec.loses:
            raise InvalidArgument(f"ErrorFeedback: codec is {self.codec!r}, which leaves nothing out: give it alone")
        flag("ErrorFeedback: on", self.on)

    @cached_property
    def _acts(self) -> WireFormat:
        if self.on and isinstance(self.codec, Codec) and self.codec != FLOAT32:
            return Threshold(0.0, decays=False, values=self.codec.name)
        return self.codec  # type: ignore[no-any-return]

    @property
    def name(self) -> str:
        return self._acts.name

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._acts.dtype

    @property
    def slots(self) -> int:
        return self._acts.slots

    @property
    def kernel(self) -> Any:
        return self._acts.kernel

    @property
    def keeps(self) -> bool:
        return self.on and (self._acts.keeps or self._acts.loses)

    def unit_of(self, shape: Sequence[int]) -> int:
        return self._acts.unit_of(shape)

    def settings(self, shape: Sequence[int]) -> dict[str, Any] | None:
        found = self._acts.settings(shape)
        if found is None or (self.on and not self._acts.loses):
            return found
        return {**found, "no_feedback": not self.on}

    def most_bytes(self, shape: Sequence[int], count: int) -> int | None:
        return self._acts.most_bytes(shape, count)

    def trial(self) -> WireFormat:
        if isinstance(self.codec, Codec):  # sends all elements, so it is measured itself
            return self
        return ErrorFeedback(self.codec.trial(), self.on)

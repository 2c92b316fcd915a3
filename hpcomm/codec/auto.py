"""A codec that an exchange chooses when it is made."""

from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidArgument
from .base import WireFormat
from .sparse import TopK


@dataclass(frozen=True)
class Auto(WireFormat):
    """A codec of pieces where it makes the step faster, and float32 elsewhere; "auto" is Auto(). An exchange decides
    when it is made, for each key, and all ranks alike. Exchange.codecs tells the choice, and Exchange.stats its
    reasons.

    It measures the bytes a second between hosts, and the seconds to encode and to decode; Threshold is measured as
    TopK(0.01). float32 without measuring: keys of fewer than 4096 elements, keys whose rule is Average, and all keys
    where all ranks map each other's memory.
    """

    codec: Any = field(default_factory=lambda: TopK(0.01))

    def __post_init__(self) -> None:
        if not isinstance(self.codec, WireFormat) or self.codec.settings(()) is None:
            raise InvalidArgument(
                f"Auto: codec is {self.codec!r}: must be a value of hpcomm.codec that sends pieces, such as TopK(0.01)"
            )

    @property
    def name(self) -> str:
        raise InvalidArgument("codec is 'auto': an exchange chooses it when it is made; give another codec here")

"""Auto: the exchange chooses the codec when it is made."""

from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidArgument
from .base import WireFormat
from .sparse import TopK


@dataclass(frozen=True)
class Auto(WireFormat):
    """Uses a codec of pieces for keys where it makes the step faster, and float32 for the others; "auto" means Auto().

    An exchange decides for each key when it is made, the same on all ranks. Exchange.codecs tells the choice, and
    Exchange.stats the reasons. It measures the bandwidth between hosts, and the time to encode and decode; Threshold is
    measured as TopK(0.01). Without measuring it takes float32 for keys of fewer than 4096 elements, for keys whose rule
    is Average, and for all keys if all ranks map each other's memory.
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

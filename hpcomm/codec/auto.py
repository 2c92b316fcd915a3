"""Auto: the exchange chooses the codec when it is made."""

from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidArgument
from .base import WireFormat
from .sparse import TopK


@dataclass(frozen=True)
class Auto(WireFormat):
    """Gives a codec of pieces to keys for which it makes the step faster, and float32 to all other keys; "auto" means
    Auto().

    An exchange decides for each key when the exchange is made, alike on all ranks. Exchange.codecs has the choice, and
    Exchange.stats() the reasons. The exchange measures the bandwidth between hosts, and the time to encode and decode;
    in the place of Threshold it measures TopK(0.01). Without a measurement, float32 is taken for keys of fewer than
    4096 elements, for keys whose rule is Average, and for all keys if all ranks map each other's memory.
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

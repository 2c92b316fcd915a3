"""A codec that an exchange chooses when it is made."""

from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidArgument
from .base import WireFormat
from .sparse import TopK


@dataclass(frozen=True)
class Auto(WireFormat):
    """A codec where it makes the step faster, and float32 where it doesn't: "auto" is Auto(). An exchange decides it
    when it is made, for each key, and all ranks decide alike.

    It measures the bytes a second between hosts, and the seconds that the codec takes to encode and to decode. A key
    gets the codec if that takes less time than sending float32. A key of fewer than 4096 elements gets float32, as the
    time of a short message does not depend on its bytes, and so does a key whose rule is Average, as models are no
    updates. Where all ranks map each other's memory every key gets float32, and nothing is measured. Threshold is
    measured as TopK(0.01), as its density is not known before.
    Exchange.codecs tells the choice, and Exchange.stats its reasons.

    Attributes:
        codec: the one that is tried, which sends pieces; TopK(0.01) by default.

    Raises:
        InvalidArgument: it is no codec of pieces.
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

"""The rates of a machine. They raise InvalidArgument for a number out of range."""

from dataclasses import dataclass
from math import inf, isfinite

from ..errors import InvalidArgument


@dataclass(frozen=True)
class CodecRates:
    """The rates of a codec of pieces, on the slowest rank: bytes of pieces by bytes of float32, and seconds to encode
    and to decode an element."""

    ratio: float
    encode: float
    decode: float


DENSE = CodecRates(1.0, 0.0, 0.0)  # updates as arrays


@dataclass(frozen=True)
class Rates:
    """The rates of a machine. Rates that are left at their defaults cost nothing.

    Speeds are bytes a second, times are seconds; multiply is floating-point operations a second, and a product and its
    sum are two.
    """

    between: float  #: of a host's link to other hosts, in each direction
    inside: float = inf  #: that a rank writes into the memory of another rank of its host
    memory: float = inf  #: that a rank copies within its own memory
    fold: float = 0.0  #: that a rank takes to add an element of an input
    latency: float = 0.0  #: that a step takes beside all that
    multiply: float = inf  #: by which a rank adds up products u v^T
    racks: "Bandwidths | None" = None  #: of links within racks and between them; None: not asked, or no racks count

    def __post_init__(self) -> None:
        for name in ("between", "inside", "memory", "multiply"):
            value = getattr(self, name)
            if not _is_number(value) or not value > 0:
                what = "operations" if name == "multiply" else "bytes"
                raise InvalidArgument(f"rates: {name} is {value!r}: must be a number above 0, in {what} a second")
        for name in ("fold", "latency"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 <= value < inf:
                raise InvalidArgument(f"rates: {name} is {value!r}: must be a finite number, 0 or more, in seconds")


@dataclass(frozen=True)
class Bandwidths:
    """The bandwidths that decide whether a fold in each rack pays, in bytes a second (PHub, section 3.4).

    Attributes:
        host: of a host's link to the others of its rack (B_Wkr).
        core: of the links from a rack to the other racks (B_Core).
        leader: of all ranks that fold for a rack (B_PBox); None: of all its hosts, unless leaders are few.
    """

    host: float
    core: float
    leader: float | None = None

    def __post_init__(self) -> None:
        for name in ("host", "core", "leader"):
            value = getattr(self, name)
            if value is None and name == "leader":
                continue
            if not _is_number(value) or not isfinite(value) or value <= 0:
                raise InvalidArgument(f"bandwidths: {name} is {value!r}: must be a number above 0, in bytes a second")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

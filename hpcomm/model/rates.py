"""The rates of a machine, as values. They raise InvalidArgument for a number out of range."""

from dataclasses import dataclass
from math import inf, isfinite

from ..errors import InvalidArgument


@dataclass(frozen=True)
class CodecRates:
    """The rates of a codec of pieces on the slowest rank: the bytes of pieces divided by the bytes as float32, the
    seconds to encode an element, and the seconds to decode an element."""

    ratio: float
    encode: float
    decode: float


DENSE = CodecRates(1.0, 0.0, 0.0)  # updates are sent as arrays


@dataclass(frozen=True)
class Rates:
    """The rates of a machine. A rate that keeps its default value adds no time.

    Speeds are in bytes a second, times in seconds. The field multiply is in floating-point operations a second; a
    multiplication and an addition count as two.
    """

    between: float  #: speed of a host's link to other hosts, in each direction
    inside: float = inf  #: speed at which a rank writes into the memory of another rank of its host
    memory: float = inf  #: speed at which a rank copies within its own memory
    fold: float = 0.0  #: time that a rank takes to add one element of an input
    latency: float = 0.0  #: time that a step takes in addition to links and work
    multiply: float = inf  #: speed at which a rank adds up products u v^T
    racks: "Bandwidths | None" = None  #: speeds within and between racks; None: not measured

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
        host: bandwidth of a host's link to the other hosts of its rack (B_Wkr).
        core: bandwidth of all links from a rack to the other racks (B_Core).
        leader: the bandwidth that the ranks that fold for a rack have together (B_PBox). None: the bandwidth of all
            hosts of the rack together, which is too high if few ranks are leaders.
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

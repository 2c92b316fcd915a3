"""When a worker may go on (PHub, section 2; ASAP, section 3): a value, not code."""

from dataclasses import dataclass
from typing import Literal

from .errors import InvalidArgument


@dataclass(frozen=True)
class Consistency:
    """How far workers may drift apart, and what a fold waits for. BSP and ASYNC are two such values.

    Attributes:
        staleness: steps that a worker may be ahead of the slowest one, 0 or more; None: any number.
        quorum: updates that make a fold, 1 or more; None: those of all workers.
        period: a worker exchanges every so many of its steps, 1 or more.
        late: what becomes of an update that comes after its fold was made: "fold" puts it into the next one, "drop"
            leaves it out. With quorum None no update is late; with quorum 1 each is a fold by itself.

    Raises:
        InvalidArgument: a number is out of range or no int, or late is neither of the two.
    """

    staleness: int | None = 0
    quorum: int | None = None
    period: int = 1
    late: Literal["fold", "drop"] = "fold"

    def __post_init__(self) -> None:
        _whole("staleness", self.staleness, 0, "None for any number")
        _whole("quorum", self.quorum, 1, "None for all workers")
        _whole("period", self.period, 1, "")
        if self.late not in ("fold", "drop"):
            raise InvalidArgument(f'late is {self.late!r}: must be "fold" or "drop"')

    def __str__(self) -> str:
        return _NAMES.get(self, repr(self))


def _whole(name: str, value: object, low: int, none: str) -> None:
    if value is None and none:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise InvalidArgument(f"{name} is {value!r}: must be an int, {low} or more" + f", or {none}" * bool(none))


BSP = Consistency()
"""A fold waits for all workers, and every worker for the fold: the same parameters everywhere after each step."""

ASYNC = Consistency(staleness=None, quorum=1)
"""Each update is applied by itself as it comes; no worker waits for another."""

_NAMES = {BSP: "BSP", ASYNC: "ASYNC"}

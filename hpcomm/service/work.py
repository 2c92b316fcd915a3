"""The work of a hub for the exchanges of a job, as C counts it."""

import threading
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .described import Served


@dataclass(frozen=True)
class Work:
    """Counts of hpc_exchange_stats (hpcomm/stats.h). All of them only grow.

    Attributes:
        events: the events that the hub's cores took: updates, and requests about folds.
        applied: the rows that they folded and applied.
        bytes_folded: the bytes of updates that they read.
        bytes_written: the bytes that they wrote to workers.
        busy: the seconds that they folded, applied and wrote.
    """

    events: int = 0
    applied: int = 0
    bytes_folded: int = 0
    bytes_written: int = 0
    busy: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    @classmethod
    def counted(cls, stats: dict[str, Any]) -> "Work":
        """Returns the work in the counts of an exchange."""
        return cls(*(stats[name] for name in cls.__dataclass_fields__))


class Tally:
    """The work for a job's exchanges, those that have ended too. Each thread of the hub may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = Work()
        self._serving: list[Served] = []

    def begin(self, exchange: "Served") -> None:
        with self._lock:
            self._serving.append(exchange)

    def end(self, exchange: "Served") -> None:
        """Keeps the counts of an exchange, and forgets the exchange."""
        with self._lock:
            self._serving.remove(exchange)
            self._ended += exchange.work()

    @property
    def work(self) -> Work:
        with self._lock:
            return sum((one.work() for one in self._serving), self._ended)

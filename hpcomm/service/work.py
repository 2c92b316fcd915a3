"""The work of a hub for the exchanges of a job, as C counts it."""

import threading
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any


@dataclass(frozen=True)
class HubWork:
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

    def __add__(self, other: "HubWork") -> "HubWork":
        return HubWork(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    @classmethod
    def counted(cls, stats: dict[str, Any]) -> "HubWork":
        """Returns the work in the counts of an exchange."""
        return cls(*(stats[name] for name in cls.__dataclass_fields__))


class Tally:
    """The work for a job's exchanges, ended ones too. Each thread of the hub may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = HubWork()
        self._begun: list[Callable[[], HubWork]] = []

    def begin(self, count: Callable[[], HubWork]) -> None:
        """Adds an exchange. count: returns its work, and does not wait."""
        with self._lock:
            self._begun.append(count)

    def end(self, count: Callable[[], HubWork]) -> None:
        """Keeps the work for an exchange, and forgets the exchange."""
        with self._lock:
            self._begun.remove(count)
            self._ended += count()

    @property
    def work(self) -> HubWork:
        with self._lock:
            return sum((count() for count in self._begun), self._ended)

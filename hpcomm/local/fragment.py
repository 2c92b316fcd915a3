"""A fragment of local steps: how often it was exchanged, and the exchange that has begun and is not taken yet."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..errors import PeerFailed
from ..exchange import Exchange, Handle
from .values import Array

NOTHING = -1  # in a state: no exchange of the fragment has begun


class Fragment:
    """A fragment, and its exchange that has begun.

    Attributes:
        names: of its keys.
        begun: the step at which the exchange has begun; None: no exchange.
        full: that exchange is of a sync, and is taken in full.
        is_extra: it is of a sync, and was not due by its step.
        pushed: the keys whose updates are on their way, or encoded; all of them where a checkpoint was loaded.
        cut: pushed keys whose push was cut short.
        handles: of its keys that have not come, the first one last; none where a checkpoint was loaded.
        left: the keys that are still to be taken.
        since: by key, a copy of this rank's parameters, at the begin or at the step of a take that was cut short: the
            take keeps later changes. Keys that were taken at their step need no copy.
        is_late: the take was cut short at its step; since is of that step.
        scheduled: exchanges that were begun and due by their step.
        extra: exchanges that were begun by a sync and not due by their step.
        is_owed: a sync has still to begin such an exchange.
        has_learned: this rank has made steps that are in no exchange.
        trained_since: the time.monotonic at which training went on, until the exchange is known to have come; else
            None.
        sent: bytes of exchanges before a recovery.
    """

    __slots__ = (
        "begun",
        "cut",
        "extra",
        "full",
        "handles",
        "has_learned",
        "hidden",
        "is_extra",
        "is_late",
        "is_owed",
        "late",
        "left",
        "names",
        "pushed",
        "scheduled",
        "sent",
        "since",
        "trained_since",
        "waited",
    )

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.begun: int | None = None
        self.handles: list[Handle] = []
        self.trained_since: float | None = None
        self.full = self.is_extra = self.is_late = self.is_owed = self.has_learned = False
        self.pushed: set[str] = set()
        self.cut: list[str] = []
        self.left: list[str] = []
        self.since: dict[str, Array] = {}
        self.scheduled = self.extra = self.late = self.sent = 0
        self.hidden = self.waited = 0.0

    @property
    def rounds(self) -> int:
        """Exchanges that were begun."""
        return self.scheduled + self.extra

    def begin(self, step: int, *, full: bool) -> None:
        """A new exchange. One that the steps have made due comes before one that a sync owes."""
        self.begun, self.full = step, full
        self.is_late = self.has_learned = False
        self.pushed.clear()
        self.since.clear()
        self.left[:] = self.names

    def end(self) -> None:
        """It was taken, or is lost."""
        self.begun, self.full, self.is_late = None, False, False
        self.handles.clear()
        self.cut.clear()
        self.left.clear()
        self.since.clear()

    def come(self, ex: Exchange) -> None:
        """Waits until the exchange has come."""
        while self.handles:
            self.handles[-1].wait()
            self.handles.pop()
        while self.cut:
            ex.pull(self.cut[-1])
            self.cut.pop()

    def look(self) -> bool:
        """Whether the exchange has come; with inline progress it is worked for. A take tells of ranks that died."""
        with suppress(PeerFailed):
            while self.handles and self.handles[-1].test():
                self.handles.pop()
        return self.has_come()

    def has_come(self) -> bool:
        return not self.handles and not self.cut and len(self.pushed) == len(self.names)

    # ---- state ----

    def numbers(self) -> dict[str, int]:
        """For a state."""
        return {
            "rounds": self.rounds,
            "syncs": self.extra,
            "begun": NOTHING if self.begun is None else self.begun,
            "learned": int(self.has_learned),
        }

    def load(self, numbers: Mapping[str, int], since: Mapping[str, Any]) -> None:
        """Takes the result of numbers, for which an exchange that had begun has come."""
        self.end()
        self.extra, self.scheduled = int(numbers["syncs"]), int(numbers["rounds"]) - int(numbers["syncs"])
        self.is_owed, self.has_learned = False, bool(numbers["learned"])
        if numbers["begun"] != NOTHING:
            self.begun = int(numbers["begun"])
            self.pushed.update(self.names)
            self.left[:] = self.names
            self.since.update((name, since[name]) for name in self.names if name in since)

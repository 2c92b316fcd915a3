"""A fragment of local steps: how many exchanges it has had, and its exchange that has begun but is not taken yet."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..errors import PeerFailed
from ..exchange import Exchange, Handle
from .values import Array

NOTHING = -1  # the value of begun in a state if no exchange has begun


class Fragment:
    """A fragment, and its exchange that has begun.

    To take an exchange is to mix its new parameters into this rank's own. A sync is a call of LocalSteps.sync().

    Attributes:
        names: the names of the fragment's keys.
        begun: the step at which the exchange began; None if no exchange has begun.
        full: whether a sync began the exchange, so that it is taken with mix 1.
        is_extra: whether a sync began the exchange although it was not due by its step.
        pushed: the keys whose updates are encoded, and perhaps pushed. After a checkpoint was loaded, all keys.
        cut: those keys of pushed whose push was interrupted.
        handles: handles of the keys that have not come yet, in reverse order. Empty after a checkpoint was loaded.
        left: the keys that are not taken yet.
        since: for each key, a copy of this rank's parameters at the start (or at the step of an interrupted take), so
            that the take can keep later changes. A key that is taken at the step of its start needs no copy.
        is_late: whether the take was interrupted at its step. The copies in since are then from that step.
        scheduled: how many exchanges have begun because they were due by their step.
        extra: how many exchanges a sync has begun that were not due by their step.
        is_owed: whether a sync must still begin one more exchange that is not due.
        has_learned: whether this rank has made steps whose changes are in no exchange yet.
        trained_since: the time.monotonic() since which training overlaps the exchange; None once the exchange is known
            to have come.
        sent: bytes of the fragment's exchanges before a recovery.
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
        """The number of exchanges that have begun, scheduled and extra."""
        return self.scheduled + self.extra

    def begin(self, step: int, *, full: bool) -> None:
        """Begins a new exchange. full: whether a sync takes it with mix 1."""
        self.begun, self.full = step, full
        self.is_late = self.has_learned = False
        self.pushed.clear()
        self.since.clear()
        self.left[:] = self.names

    def end(self) -> None:
        """Forgets an exchange that was taken or lost."""
        self.begun, self.full, self.is_late = None, False, False
        self.handles.clear()
        self.cut.clear()
        self.left.clear()
        self.since.clear()

    def come(self, ex: Exchange) -> None:
        """Waits until all keys of the exchange have come."""
        while self.handles:
            self.handles[-1].wait()
            self.handles.pop()
        while self.cut:
            ex.pull(self.cut[-1])
            self.cut.pop()

    def look(self) -> bool:
        """Returns whether the exchange has come. With progress "inline" it also works for the exchange. It ignores
        ranks that died; LocalSteps raises PeerFailed when it takes the exchange."""
        with suppress(PeerFailed):
            while self.handles and self.handles[-1].test():
                self.handles.pop()
        return self.has_come()

    def has_come(self) -> bool:
        return not self.handles and not self.cut and len(self.pushed) == len(self.names)

    # ---- state ----

    def numbers(self) -> dict[str, int]:
        """Returns the fragment's counts and flags as ints, for a checkpoint."""
        return {
            "rounds": self.rounds,
            "syncs": self.extra,
            "begun": NOTHING if self.begun is None else self.begun,
            "learned": int(self.has_learned),
        }

    def load(self, numbers: Mapping[str, int], since: Mapping[str, Any]) -> None:
        """Loads a result of numbers(). An exchange that had begun when it was saved counts as come."""
        self.end()
        self.extra, self.scheduled = int(numbers["syncs"]), int(numbers["rounds"]) - int(numbers["syncs"])
        self.is_owed, self.has_learned = False, bool(numbers["learned"])
        if numbers["begun"] != NOTHING:
            self.begun = int(numbers["begun"])
            self.pushed.update(self.names)
            self.left[:] = self.names
            self.since.update((name, since[name]) for name in self.names if name in since)

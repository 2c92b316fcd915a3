"""Consistency, the value by which a user says when a worker may continue (PHub, section 2; ASAP, section 3).

A fold is the weighted sum of the updates that an owner has received; a reduce is a fold on a graph.
"""

from dataclasses import dataclass, replace
from typing import Literal

from .errors import InvalidArgument

_MOST = (1 << 31) - 1  # an int in C
_ASYNC_AHEAD = 4  # steps that a worker of peers or receivers may be ahead under ASYNC, unless depth allows more


@dataclass(frozen=True)
class Consistency:
    """Says how many steps workers may be apart, and for which inputs a fold waits. BSP, ASYNC, NOTIFY_ACK, BARRIER and
    SSP(s) are its usual values.

    Attributes:
        staleness: how many steps a worker may be ahead of the slowest worker, 0 or more; None: any number.
        quorum: the number of updates that suffice for a fold, 1 or more; None: all. In a Hierarchy each rack, or each
            host if there are no racks, counts as one update. On a graph a rank's own update does not count, only those
            from in-neighbours do. With PeerToPeer(graph) a rank's own update counts too. Exchange.late names the keys
            whose update missed its fold.
        late: what happens to an update that misses its fold. With a quorum it is "drop", even if None is given. Without
            a quorum it must be None.
        waits_for: whether a worker waits for "all" other workers or, on a graph, only for its "neighbours".
        whole: True: a fold waits until its inputs are whole. False: a fold takes the inputs that are whole after its
            wait, and leaves out inputs that are missing, stale (folded before) or torn (overwritten while they were
            read).
        grace: seconds, 0 or more, that a fold with its quorum still waits for the other updates. math.inf: it waits
            until all have come. None: hpcomm measures how long the updates usually take, and waits so long.

    Raises InvalidArgument for a number that is out of range or not an int, and for a value of late that does not fit
    quorum.
    """

    staleness: int | None = 0
    quorum: int | None = None
    late: Literal["drop"] | None = None
    waits_for: Literal["all", "neighbours"] = "all"
    whole: bool = True
    grace: float | None = None

    def __post_init__(self) -> None:
        _whole("staleness", self.staleness, 0, "None for any number")
        _whole("quorum", self.quorum, 1, "None for all workers")
        if self.grace is not None and (
            isinstance(self.grace, bool) or not isinstance(self.grace, int | float) or not self.grace >= 0
        ):
            raise InvalidArgument(f"grace is {self.grace!r}: must be seconds, 0 or more, or None")
        object.__setattr__(self, "late", self._checked_late())
        if self.waits_for not in ("all", "neighbours"):
            raise InvalidArgument(f'waits_for is {self.waits_for!r}: must be "all" or "neighbours"')

    def _checked_late(self) -> Literal["drop"] | None:
        late: object = self.late
        by_itself = self.staleness is None and self.quorum == 1  # ASYNC: each update is a fold by itself
        if self.quorum is None or by_itself:
            if late == "drop":
                raise InvalidArgument(
                    'late is "drop": without a quorum, and under ASYNC, no update is late: leave it out'
                )
            if late is not None:
                raise InvalidArgument(f'late is {late!r}: must be "drop", or None')
            return None
        if late not in ("drop", None):
            raise InvalidArgument(f'late is {late!r}: must be "drop" or None: with a quorum a late update is left out')
        return "drop"

    def __str__(self) -> str:
        if self.staleness and self == SSP(self.staleness):
            return f"SSP({self.staleness})"
        return _NAMES.get(self, repr(self))


def _whole(name: str, value: object, low: int, none: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise InvalidArgument(f"{name} is {value!r}: must be an int, {low} or more, or {none}")
    if value > _MOST:
        raise InvalidArgument(f"{name} is {value}: must be {_MOST} or less, or {none}")


BSP = Consistency()
"""A fold waits for all workers, and every worker waits for the fold, so all have the same parameters after each
step."""

ASYNC = Consistency(staleness=None, quorum=1)
"""Each update is applied separately, when it comes; no worker waits for another. On a graph a reduce takes the inputs
that have come and are whole."""

NOTIFY_ACK = Consistency(waits_for="neighbours")
"""Only on graphs: a reduce waits for the in-neighbours' updates. A send waits until the receiver has acknowledged the
last update in the same slot. Every input is whole and of this step, and no rank waits for ranks further away (ASAP,
section 4)."""

BARRIER = Consistency(whole=False)
"""On graphs, for comparisons: all ranks meet in a barrier, then fold. The barrier may overtake updates, and a fast rank
may overwrite an update that a slow rank still reads (ASAP, section 6.2). With servers or peers it means BSP."""


def SSP(staleness: int) -> Consistency:
    """Returns stale synchronous parallel: no worker begins a step more than staleness steps ahead of the slowest worker
    (Ho et al., NIPS 2013).

    With servers: the owner applies each update separately, when the update comes. A pull waits for slow workers only
    while this rank's copy of the parameters is too old for its next step. staleness is 0 to 64; SSP(0) runs as BSP
    (Parameter Flow, section 2.3.2).

    With apply_at="receivers": whenever all workers have made one more step, servers send the sum of the updates
    received since the last sum. staleness is 0 to 30 (UCC-SSP, section 3.2.1).

    On a graph: a reduce takes the newest update of each in-neighbour, if it is at most staleness steps old. staleness
    is 0 to 30; SSP(0) runs as NOTIFY_ACK (ASAP, section 7).

    Raises InvalidArgument for another staleness.
    """
    if staleness is None:
        raise InvalidArgument("staleness is None: must be an int, 0 or more; ASYNC has no bound")
    return Consistency(staleness=staleness, waits_for="neighbours")


_NAMES = {BSP: "BSP", ASYNC: "ASYNC", NOTIFY_ACK: "NOTIFY_ACK", BARRIER: "BARRIER"}


def with_servers(consistency: Consistency) -> Consistency:
    """Returns the consistency that servers and peers use: the result has BSP in one form, since waits_for and whole
    make no difference to servers."""
    return replace(consistency, waits_for="all", whole=True) if consistency.staleness == 0 else consistency


def on_graph(consistency: Consistency) -> Consistency:
    """Returns the consistency that graphs use: with a quorum, waits_for becomes "neighbours", since a quorum on a graph
    counts neighbours."""
    counts = consistency.quorum is not None and consistency.staleness == 0 and consistency.whole
    return replace(consistency, waits_for="neighbours") if counts else consistency


def applies_each(consistency: Consistency) -> bool:
    """Returns whether servers apply each update separately: True under ASYNC, and under SSP with a staleness above
    0."""
    return consistency == ASYNC or bool(consistency.staleness)


def steps_ahead(consistency: Consistency) -> int:
    """Returns how many steps a worker may be ahead of the slowest one if peers or receivers apply the rule. Under ASYNC
    a larger depth allows more."""
    return _ASYNC_AHEAD if consistency.staleness is None else consistency.staleness


def in_step(consistency: Consistency) -> bool:
    """Returns whether all workers that are between two steps have made the same number of steps: True under BSP and
    NOTIFY_ACK."""
    return consistency.staleness == 0 and consistency.quorum is None and consistency.whole


def goes_apart(consistency: Consistency) -> bool:
    """Returns whether the outermost groups of a hierarchy may be at different steps. If so, servers get one input from
    each group."""
    return applies_each(consistency) or consistency.quorum is not None

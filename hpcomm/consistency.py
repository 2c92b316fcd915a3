"""When a worker may go on (PHub, section 2; ASAP, section 3): a value, not code."""

from dataclasses import dataclass, replace
from typing import Literal

from .errors import InvalidArgument

_MOST = (1 << 31) - 1  # an int in C
_ASYNC_AHEAD = 4  # steps for which a peer or a receiver has room under ASYNC, unless depth asks for more


@dataclass(frozen=True)
class Consistency:
    """How far workers may drift apart, and the inputs that a fold waits for; see BSP, ASYNC, NOTIFY_ACK, BARRIER, SSP.

    Attributes:
        staleness: steps that a worker may be ahead of the slowest one, 0 or more; None: any number.
        quorum: updates that suffice for a fold, 1 or more; None: all. With a Hierarchy it counts updates of hosts, or
            of racks if it has racks; on a graph in-neighbours' updates beside the rank's own; among peers of a graph
            all that come to a rank, its own included. Exchange.late names keys whose update missed its fold.
        late: fate of an update that misses its fold: "drop", the default with a quorum. None without one.
        waits_for: "all" the other workers, or on a graph only "neighbours".
        whole: False: after its wait a fold takes the whole inputs, and leaves out missing, stale and torn ones.
        grace: seconds that a fold which has its quorum waits for the others, 0 or more (math.inf: until all have come);
            None: as long as they usually take, which is learned.

    Raises InvalidArgument for a number that is out of range or no int, and for late where it has no meaning.
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
        by_itself = self.staleness is None and self.quorum == 1  # ASYNC: every update is a fold
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
"""A fold waits for all workers, and every worker for the fold: the same parameters everywhere after each step."""

ASYNC = Consistency(staleness=None, quorum=1)
"""Each update is applied by itself as it comes; no worker waits for another. On a graph a reduce takes the inputs that
have come and are whole."""

NOTIFY_ACK = Consistency(waits_for="neighbours")
"""Graphs: a reduce waits for the in-neighbours' updates, and a send for the ACK of the update in its slot; every input
is whole and of this step, and no rank waits for ranks further away (ASAP, section 4)."""

BARRIER = Consistency(whole=False)
"""Graphs, for comparison: all ranks meet, but the barrier may overtake the updates, and a fast rank may overwrite an
update that a slow one still reads (ASAP, section 6.2). With servers, and among peers, it is BSP."""


def SSP(staleness: int) -> Consistency:
    """No worker begins a step more than staleness steps ahead of the slowest one (Ho et al., NIPS 2013).

    With servers each update is applied by itself as it comes, and a pull waits for the slow workers only while this
    rank's copy is too old for its next step; 0 to 64, and SSP(0) takes BSP's path (Parameter Flow, section 2.3.2). With
    apply_at="receivers" servers send the sum of received updates once all workers have made a step; 0 to 30 (UCC-SSP,
    section 3.2.1). On a graph a reduce takes the newest update of each in-neighbour, none more than staleness steps
    old; 0 to 30, and SSP(0) is NOTIFY_ACK (ASAP, section 7). Raises InvalidArgument for another staleness."""
    if staleness is None:
        raise InvalidArgument("staleness is None: must be an int, 0 or more; ASYNC has no bound")
    return Consistency(staleness=staleness, waits_for="neighbours")


_NAMES = {BSP: "BSP", ASYNC: "ASYNC", NOTIFY_ACK: "NOTIFY_ACK", BARRIER: "BARRIER"}


def with_servers(consistency: Consistency) -> Consistency:
    """A consistency as servers and peers have it: every worker is a server's neighbour, and every update whole."""
    return replace(consistency, waits_for="all", whole=True) if consistency.staleness == 0 else consistency


def on_graph(consistency: Consistency) -> Consistency:
    """A consistency as graphs have it: a quorum counts neighbours, also where waits_for is "all"."""
    counts = consistency.quorum is not None and consistency.staleness == 0 and consistency.whole
    return replace(consistency, waits_for="neighbours") if counts else consistency


def applies_each(consistency: Consistency) -> bool:
    """Whether servers apply each update as it comes: under ASYNC, and under SSP with a staleness."""
    return consistency == ASYNC or bool(consistency.staleness)


def steps_ahead(consistency: Consistency) -> int:
    """Where peers or receivers apply: steps (under ASYNC at least) that a worker may be ahead of the slowest one."""
    return _ASYNC_AHEAD if consistency.staleness is None else consistency.staleness


def in_step(consistency: Consistency) -> bool:
    """Whether all workers that stand between two steps have made as many: BSP and NOTIFY_ACK."""
    return consistency.staleness == 0 and consistency.quorum is None and consistency.whole


def goes_apart(consistency: Consistency) -> bool:
    """Whether the outermost groups of a hierarchy may be at different steps, so that each is one input of servers."""
    return applies_each(consistency) or consistency.quorum is not None

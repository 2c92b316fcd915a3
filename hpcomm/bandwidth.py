"""The available bandwidth of the path to a peer: the result of Context.bandwidth, and its arguments."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from . import _core
from .errors import InvalidArgument


@dataclass(frozen=True)
class Bandwidth:
    """The available bandwidth from this rank to a peer, in bytes a second, headers included; the result of
    `Context.bandwidth`.

    Attributes:
        peer: the peer's rank.
        low: the lower bound of the available bandwidth; 0 if every rate that was tried was too fast; None if the probe
            found no bounds.
        high: the upper bound; infinite if no rate that was tried was too fast; None if the probe found no bounds.
        sufficient: whether the path has the bandwidth `at_least` left. None: `at_least` was not given, or the probe
            could not tell.
        capacity: the capacity of the path's narrowest link, in bytes a second, measured as the rate at which a train of
            packets arrived. None: not known.
        seconds: how long the measurement took.
        nbytes: the bytes that the probe sent, headers included.
        answered: whether any packet of the probe arrived. If not, a firewall may drop UDP, and Context.notes has a note
            about it.
        by_own: True if this rank's own traffic left no pause for a probe. The result is then the throughput of this
            traffic.
    """

    peer: int
    low: float | None
    high: float | None
    sufficient: bool | None
    capacity: float | None
    seconds: float
    nbytes: int
    answered: bool = True
    by_own: bool = False

    @property
    def middle(self) -> float | None:
        """The mean of the fields low and high; the field low if high is infinite; None if the probe found no bounds."""
        if self.low is None or self.high is None:
            return None
        return self.low if math.isinf(self.high) else (self.low + self.high) / 2


def as_ranks(peers: Any) -> tuple[int, ...]:
    """Returns one rank or several as a tuple."""
    wanted = peers if isinstance(peers, Iterable) else (peers,)
    try:
        return tuple(int(peer.__index__()) for peer in wanted)
    except (AttributeError, TypeError):
        raise InvalidArgument(f"peer is {peers!r}: must be a rank, or a sequence of ranks") from None


def as_rate(at_least: Any) -> float:
    """Returns the argument at_least as C takes it, in bytes a second. None becomes 0, with which C measures the two
    bounds."""
    if at_least is None:
        return 0.0
    try:
        rate = float(at_least)
    except (TypeError, ValueError):
        rate = math.nan
    if not 0 < rate < math.inf:
        raise InvalidArgument(f"at_least is {at_least!r}: must be a rate in bytes a second, more than 0")
    return rate


def probe(context: Any, peers: tuple[int, ...], at_least: float, timeout: float) -> tuple[Bandwidth, ...]:
    """Probes all peers in one call of C and returns a Bandwidth for each, in order. context: the handle of C's
    context."""
    found = _core.context_bandwidth(context, peers, at_least, timeout)
    return tuple(
        Bandwidth(
            peer,
            low if answered else None,
            high if answered else None,
            sufficient,
            capacity or None,
            spent,
            nbytes,
            answered,
            by_own,
        )
        for peer, (answered, sufficient, low, high, capacity, spent, nbytes, by_own) in zip(peers, found, strict=True)
    )

"""Continuing after a failure: recover(), for a loop that catches PeerFailed itself, and run(), which is a ready
loop."""

from .copies import equal_copies
from .loop import run
from .recovery import Recovered, recover

__all__ = ["Recovered", "equal_copies", "recover", "run"]

"""Continuing after a failure: recover, for a loop that gets PeerFailed itself, and run, which is such a loop."""

from .copies import equal_copies
from .loop import run
from .recovery import Recovered, recover

__all__ = ["Recovered", "equal_copies", "recover", "run"]

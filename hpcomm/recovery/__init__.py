"""After a failure, two ways: recover, for a loop that gets PeerFailed itself, and run, a loop that goes on."""

from .copies import equal_copies
from .loop import run
from .recovery import Recovered, recover

__all__ = ["Recovered", "equal_copies", "recover", "run"]

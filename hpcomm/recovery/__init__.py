"""After a failure, two ways: recover, for a loop that gets PeerFailed itself, and run, a loop that goes on."""

from .loop import run
from .recovery import Recovered, recover

__all__ = ["Recovered", "recover", "run"]

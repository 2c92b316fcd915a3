"""After a failure: recovery goes on with one exchange over the ranks that are left, elastic with a whole training."""

from .recovery import Recovered, recover

__all__ = ["Recovered", "recover"]

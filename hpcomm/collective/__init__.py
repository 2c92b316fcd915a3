"""Collectives of arrays and objects, and messages between two ranks; they are methods of hpcomm.Context."""

from .call import Work
from .messages import Messages
from .methods import Collectives

__all__ = ["Collectives", "Messages", "Work"]

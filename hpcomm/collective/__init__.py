"""Collectives of arrays and objects; they are methods of hpcomm.Context."""

from .call import Work
from .methods import Collectives

__all__ = ["Collectives", "Work"]

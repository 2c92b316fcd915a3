"""Checkpoints on disk: checkpointer saves while the training goes on, resume finds the newest, files reads and writes.

The values in a checkpoint come from hpcomm.exchange.
"""

from .checkpointer import Checkpointer
from .resume import Restored, latest, restore

__all__ = ["Checkpointer", "Restored", "latest", "restore"]

"""Checkpoints on disk. checkpointer.py saves while the training continues, resume.py finds the newest checkpoint that
all ranks have, and files.py reads and writes one rank's file. The values in a checkpoint come from hpcomm.exchange.
"""

from .checkpointer import Checkpointer
from .resume import Restored, latest, restore

__all__ = ["Checkpointer", "Restored", "latest", "restore"]

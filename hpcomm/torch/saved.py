"""Checkpoints of a model that is trained: what its owners keep by hpcomm.Checkpointer, and with it what lies in torch
(param_groups, buffers, the state of an optimizer that steps on every rank)."""

import io
from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .. import checkpoint
from ..checkpoint import Restored

if TYPE_CHECKING:
    from .optimizer import DistributedOptimizer

_TORCH, _OWN = "torch", "trainer"  # parts of a checkpoint's extra


class Checkpointer(checkpoint.Checkpointer):
    """hpcomm.Checkpointer of a DistributedOptimizer: saves it and the model every so many steps. Collective to make.

        with hpcomm.torch.Checkpointer(optimizer, "checkpoints", every=100) as saver:
            for step in range(first, last):
                ...
                optimizer.step()
                saver.after(step + 1, {"epoch": epoch})

    Arguments, methods and errors are those of hpcomm.Checkpointer. A step that is saved waits for its parameters.
    """

    def __init__(
        self,
        optimizer: "DistributedOptimizer",
        directory: str | PathLike[str],
        every: int = 100,
        keep: int = 2,
        *,
        timeout: float | None = None,
    ) -> None:
        optimizer.wait()
        super().__init__(optimizer.exchange, directory, every, keep, timeout=timeout)
        self._optimizer, self._seen = optimizer, 0

    def after(self, step: int, extra: checkpoint.checkpointer.Extra | None = None) -> bool:
        due = step // self.every > self._seen // self.every
        self._seen = step
        if due:
            self._optimizer.wait()
        return super().after(step, lambda: packed(self._optimizer, (extra() if callable(extra) else extra) or {}))


def restore(
    optimizer: "DistributedOptimizer",
    directory: str | PathLike[str],
    step: int | None = None,
    *,
    timeout: float | None = None,
) -> Restored | None:
    """Restores a model and its optimizer bit for bit from what Checkpointer saved, as hpcomm.restore does. Collective;
    arguments, result and errors are those of hpcomm.restore."""
    optimizer.wait()
    found = checkpoint.restore(optimizer.exchange, directory, step, timeout=timeout)
    return None if found is None else Restored(found.step, unpacked(optimizer, found.extra))


def packed(optimizer: "DistributedOptimizer", extra: Mapping[str, Any]) -> dict[str, Any]:
    """What a file takes beside the exchange."""
    file = io.BytesIO()
    torch.save(optimizer._torch_side(), file)
    return {_TORCH: np.frombuffer(file.getbuffer(), np.uint8), _OWN: dict(extra)}


def unpacked(optimizer: "DistributedOptimizer", extra: Mapping[str, Any]) -> dict[str, Any]:
    """Loads it, and returns the trainer's own part."""
    held = io.BytesIO(np.asarray(extra[_TORCH]).tobytes())
    optimizer._load_torch_side(torch.load(held, weights_only=True))
    return dict(extra[_OWN])

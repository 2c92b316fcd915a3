"""Checkpoints of a model: hpcomm.Checkpointer saves what the owners keep, and this file adds what torch keeps (buffers,
param_groups, the state of an optimizer that steps on every rank)."""

from os import PathLike
from typing import Any

from .. import checkpoint
from .._core import named
from ..checkpoint import Restored
from ..errors import InvalidArgument
from . import saved
from .diloco import DiLoCo
from .optimizer import DistributedOptimizer


class ModelCheckpointer(checkpoint.Checkpointer):
    """hpcomm.Checkpointer of a DistributedOptimizer or a DiLoCo: saves it and the model every so many steps. Collective
    to make.

        with hpcomm.torch.ModelCheckpointer(optimizer, "checkpoints", every=100) as saver:
            for step in range(first, last):
                ...
                optimizer.step()
                saver.after(step + 1, {"epoch": epoch})

    Arguments, methods and errors are those of hpcomm.Checkpointer. A step that is saved waits for its parameters.
    """

    @named("ModelCheckpointer()", every=True)
    def __init__(
        self,
        optimizer: DistributedOptimizer | DiLoCo,
        directory: str | PathLike[str],
        every: int = 100,
        keep: int = 2,
        *,
        timeout: float | None = None,
    ) -> None:
        optimizer.wait()
        super().__init__(optimizer.exchange, directory, every, keep, timeout=timeout)
        self._optimizer, self._seen = optimizer, 0

    @named("ModelCheckpointer.after()", every=True)
    def after(self, step: int, extra: checkpoint.checkpointer.Extra | None = None) -> bool:
        """hpcomm.Checkpointer.after: what is saved besides is torch's part, and extra the trainer's."""
        due = step // self.every > self._seen // self.every
        self._seen = step
        if due:
            self._optimizer.wait()
        if self._optimizer.exchange.context is not self._ctx:
            raise InvalidArgument("after: the job has recovered: close this checkpointer, and make another one")
        if self._ex is not self._optimizer.exchange:  # scheme= has made another one
            self._follow(self._optimizer.exchange)

        def whole() -> dict[str, Any]:
            own = extra() if callable(extra) else extra
            return saved.packed(self._optimizer._torch_side(), own or {})

        return super().after(step, whole)


@named("hpcomm.torch.restore()", every=True)
def restore(
    optimizer: DistributedOptimizer | DiLoCo,
    directory: str | PathLike[str],
    step: int | None = None,
    *,
    timeout: float | None = None,
) -> Restored | None:
    """Restores a model and its optimizer bit for bit from what ModelCheckpointer saved. Collective. Arguments, result
    and errors are those of hpcomm.restore."""
    optimizer.wait()
    found = checkpoint.restore(optimizer.exchange, directory, step, timeout=timeout)
    if found is None:
        return None
    side, extra = saved.unpacked(found.extra)
    optimizer._load_torch_side(side)
    return Restored(found.step, extra)

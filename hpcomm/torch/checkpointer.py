"""Checkpoints of a model: hpcomm.Checkpointer saves the owners' rows, and this file adds torch's part (buffers,
param_groups, and the state of an optimizer that steps on every rank)."""

from os import PathLike
from typing import Any

import numpy as np

from .. import checkpoint
from .._core import named
from ..checkpoint import Restored, files
from ..checkpoint.resume import restore_checked
from ..errors import CheckpointError, InvalidArgument
from ..stage import whole
from . import saved
from .diloco import DiLoCo
from .optimizer import DistributedOptimizer
from .uneven import job_step
from .workers import CollectiveCall


class ModelCheckpointer(checkpoint.Checkpointer):
    """An hpcomm.Checkpointer that saves a DistributedOptimizer or a DiLoCo with its model every so many steps.

        with hpcomm.torch.ModelCheckpointer(optimizer, "checkpoints", every=100) as saver:
            for step in range(first, last):
                ...
                optimizer.step()
                saver.after(step + 1, {"epoch": epoch})

    Making one is collective. Arguments, methods and errors are as in hpcomm.Checkpointer. A save waits for the step's
    parameters.
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
        self._extra: checkpoint.checkpointer.Extra | None = None
        self._late: CheckpointError | InvalidArgument | None = None  # of save_with_others
        self._number = optimizer._uneven.add(self)

    @named("ModelCheckpointer.after()", every=True)
    def after(self, step: int, extra: checkpoint.checkpointer.Extra | None = None) -> bool:
        """Calls hpcomm.Checkpointer.after, and also saves torch's part and extra, the trainer's own values.

        After a join block the call is collective: ranks agree on the step of the job, which is saved and restored. Each
        rank may give how many steps it has made itself, or all may give the same number. In a join block a rank that
        has run out of batches saves when the others do, with the extra that it gave last.

        Raises:
            NotSupported: a DiLoCo in a join block, where ranks are at different steps: call it after the block.
        """
        if self._optimizer.exchange.context is not self._ctx:
            raise InvalidArgument("after: the job has recovered: close this checkpointer, and make another one")
        self._check_open("after")
        if self._optimizer._uneven.joined:
            step = self._job_step(step)
        self._extra = extra
        begun = self._save_model(step)
        self._tell_late()
        return begun

    def close(self) -> None:
        super().close()
        self._tell_late()

    def serve(self, timeout: float | None = None) -> None:
        """Calls optimizer.serve, which takes part in saves too."""
        self._optimizer.serve(timeout)

    def save_served(self) -> None:
        self._copy_served(self._timeout)

    def _let_servers_copy(self, step: int) -> None:
        self._optimizer._workers.tell(CollectiveCall.SAVE, self._number)
        super()._let_servers_copy(step)

    def _tell_late(self) -> None:
        late, self._late = self._late, None
        if late is not None:
            raise late

    def _job_step(self, step: int) -> int:
        """Returns the job's step at which this rank has made so many steps itself. Collective."""
        whole("step", step, 1, files.MOST_STEPS)
        told = (self._number, step, self._optimizer._uneven.followed, self._last)
        block = self._optimizer._join
        if block is not None:
            return block.saves(*told)
        every = self._optimizer._workers.allgather(np.array(told[1:], np.float64).tobytes(), self._timeout)
        return job_step([np.frombuffer(part).tolist() for part in every])

    def _save_model(self, step: int) -> bool:
        due = step // self.every > self._seen // self.every
        self._seen = step
        if due:
            self._optimizer._settle()
        if self._ex is not self._optimizer.exchange:  # way= has made another one
            self._follow(self._optimizer.exchange)

        def values() -> dict[str, Any]:
            own = self._extra() if callable(self._extra) else self._extra
            return saved.packed(self._optimizer._torch_side(), own or {})

        return super().after(step, values)

    def save_with_others(self, step: int) -> None:
        if self._closed:
            return
        try:
            self._save_model(step)
        except (CheckpointError, InvalidArgument) as wrong:  # raised in this rank's next call
            self._late = wrong

    def miss(self, step: int) -> None:
        self._last = self._seen = step
        if step % self.every == 0:
            self._miss(step)


@named("hpcomm.torch.restore()", every=True)
def restore(
    optimizer: DistributedOptimizer | DiLoCo,
    directory: str | PathLike[str],
    step: int | None = None,
    *,
    timeout: float | None = None,
) -> Restored | None:
    """Restores a model and its optimizer bit for bit from a checkpoint of ModelCheckpointer. Collective.

    Arguments, result and errors are as in hpcomm.restore. Names of parameters and buffers are compared without the
    prefixes of torch.compile (_orig_mod) and of DataParallel (module).

    Raises:
        InvalidArgument: the checkpoint is of another model or optimizer: a name that only one of the two has, another
            shape, or other parameter groups. Every rank raises it, before anything has changed.
    """
    optimizer.wait()
    parts: list[dict[str, Any]] = []

    serves = optimizer._workers.serves

    def check(extra: dict[str, Any]) -> None:
        if serves:  # a rank that only serves has no torch part
            return
        parts.extend(saved.unpacked(extra))
        optimizer._check_torch_side(parts[0])

    found = restore_checked(optimizer.exchange, directory, step, timeout, check)
    if found is None:
        return None
    if serves:
        return Restored(found.step, {})
    side, extra = parts
    optimizer._load_torch_side(side)
    optimizer._uneven.followed = 0  # all ranks count their steps from this one
    return Restored(found.step, extra)

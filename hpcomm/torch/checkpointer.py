"""Checkpoints of a model. hpcomm.Checkpointer saves the owners' rows; this file adds the state that torch has: buffers,
param_groups, and the state of an optimizer that steps on every rank."""

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

    Making one is collective. Arguments, methods and errors are as in hpcomm.Checkpointer. A save waits until the step's
    parameters have come.
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
        self._late: CheckpointError | InvalidArgument | None = None  # from save_with_others, for the next call
        self._number = optimizer._uneven.add(self)

    @named("ModelCheckpointer.after()", every=True)
    def after(self, step: int, extra: checkpoint.checkpointer.Extra | None = None) -> bool:
        """Calls hpcomm.Checkpointer.after. The checkpoint also has torch's state and extra, the trainer's own values.

        After a join block the call is collective: ranks agree on the step of the job, under which the checkpoint is
        saved and restored. All ranks may give the job's step, or each rank may give the number of steps that it has
        made itself. In a join block a rank that has run out of batches saves when the others do, with the extra that it
        gave last.

        Raises:
            NotSupported: the optimizer is a DiLoCo in a join block, where ranks are at different steps. Call it after
                the block.
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
        """Calls optimizer.serve; this rank also takes part in the workers' saves."""
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
        """Returns the step of the job, from the number of steps that this rank has made itself. Collective."""
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
        if self._ex is not self._optimizer.exchange:  # a change of way has made another exchange
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
        except (CheckpointError, InvalidArgument) as wrong:  # this rank's next call raises it
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

    Arguments, result and errors are as in hpcomm.restore. When names of parameters and buffers are compared, the
    prefixes of torch.compile (_orig_mod) and of DataParallel (module) are left out.

    Raises:
        InvalidArgument: the checkpoint is of another model or optimizer: a name is missing in one of the two, shapes
            differ, or parameter groups differ. Every rank raises it, before anything has changed.
    """
    optimizer.wait()
    parts: list[dict[str, Any]] = []

    serves = optimizer._workers.serves

    def check(extra: dict[str, Any]) -> None:
        if serves:  # a rank that only serves has no state in torch
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
    optimizer._uneven.followed = 0  # all ranks count their steps from here
    return Restored(found.step, extra)

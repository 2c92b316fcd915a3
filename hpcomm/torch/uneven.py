"""Ranks with unequal numbers of batches: the messages of ranks in a join block, and the error outside a block."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np

from ..context import Context
from ..errors import InvalidArgument, NotSupported, PeerFailed
from ..local.agree import ended_early
from .rules import numbers, set_numbers
from .workers import Workers

_HEAD = 5  # how many numbers of a message come before the numbers of param_groups
_OUT, _RUNS, _SCALES, _SAVES = 0.0, 1.0, 2.0, 3.0
"""A rank has run out of batches, makes a step, makes one by a GradScaler, or is about to save."""


class Saver(Protocol):
    """The part of a ModelCheckpointer that is called when other ranks save."""

    def save_with_others(self, step: int) -> None:
        """Saves this step together with the others. Called on a rank that has run out of batches."""

    def miss(self, step: int) -> None:
        """Notes that the others save this step and that this rank does not."""

    def save_served(self) -> None:
        """Saves together with the workers. Called on a rank that only serves."""


class Uneven:
    """How many steps a rank has made with the others without a batch.

    Attributes:
        joined: whether there has been a join block. It is the same on all ranks, since all ranks enter a block.
        followed: how many steps this rank has made without a batch since the start or the last restore.
        savers: the savers by number. The numbers are the same on all ranks.
    """

    def __init__(self) -> None:
        self.joined = False
        self.followed = self._made = 0
        self.savers: WeakValueDictionary[int, Saver] = WeakValueDictionary()

    def add(self, saver: Saver) -> int:
        """Adds a saver, and returns its number."""
        self._made += 1
        self.savers[self._made] = saver
        return self._made


def job_step(told: Sequence[Sequence[float]]) -> int:
    """Returns the step of the job under which ranks save. A trainer may count the steps of the job, or only the steps
    that its rank has made with batches.

    Args:
        told: from each rank that saves, three numbers: the step that its trainer gives, its number of steps without a
            batch, and the step that it saved last.

    Raises:
        InvalidArgument: the trainers of different ranks count in different ways.
    """
    given, counted = {int(own[0]) for own in told}, {int(own[0] + own[1]) for own in told}
    last = max(own[2] for own in told)
    for steps in (given, counted):
        if len(steps) == 1 and min(steps) > last:
            return min(steps)
    if len(given) == 1:
        return min(given)  # after() then refuses this step
    each = ", ".join(str(int(own[0])) for own in told)
    raise InvalidArgument(
        f"ModelCheckpointer.after: ranks give steps {each} at the same step of the job: count on every rank its own "
        "steps, from the same number on, or give the same number on all"
    )


def explained(ctx: Context, failed: PeerFailed, made: int) -> PeerFailed:
    """Returns the failure with a text about steps, if ranks have only ended or closed their exchange; otherwise the
    failure unchanged. Each step waits for the gradients of all ranks, so all ranks have made as many steps as this
    one."""
    return ended_early(ctx, failed, f" ({made})", made + 1, "hpcomm.torch.join")


class JoinBlock:
    """The allgathers of a join block. In each step ranks tell whether they still have batches, and their learning
    rates. They need one more allgather if they save."""

    def __init__(
        self, workers: Workers, groups: list[dict[str, Any]], follow: Callable[[], None], uneven: Uneven
    ) -> None:
        """follow: a function that makes a step of the others on this rank."""
        self._workers, self._groups, self._step, self._uneven = workers, groups, follow, uneven
        self._ran = 0  # the index of a worker that made the last step with a batch

    def runs(self, scaled: bool) -> None:
        """Tells the others that this rank makes a step with a batch. scaled: whether a GradScaler calls the step; then
        every rank raises NotSupported."""
        self._meet(_SCALES if scaled else _RUNS)

    def follow(self) -> bool:
        """Takes part in a step of another rank, after this rank has run out of batches. Returns False if all ranks have
        run out."""
        every = self._meet(_OUT)
        set_numbers(self._groups, every[self._ran][_HEAD:])
        if not any(own[0] for own in every):
            return False
        self._step()
        return True

    def saves(self, *told: int) -> int:
        """Tells the others that this rank saves, and returns the step of the job. told: the number of the saver, then
        the three numbers that job_step takes from this rank."""
        every = self._meet(_SAVES, told)
        return job_step(_of_saver(every, told[0]))

    def _meet(self, does: float, told: Sequence[float] = (0, 0, 0, 0)) -> list[list[float]]:
        while True:
            mine = np.array([does, *told, *numbers(self._groups)], np.float64)
            every = [np.frombuffer(part).tolist() for part in self._workers.allgather(mine.tobytes())]
            if any(own[0] == _SCALES for own in every):
                raise NotSupported(
                    "GradScaler in a join block: the scaler of a rank that has run out of batches does not follow the "
                    "others' scale: give every rank the same number of batches, or train in bfloat16 without a scaler"
                )
            saver = min((own[1] for own in every if own[0] == _SAVES), default=0.0)
            if not saver:
                self._ran = next((i for i, own in enumerate(every) if own[0]), self._ran)
                return every
            if does == _SAVES and told[0] == saver:
                return every
            self._save(int(saver), job_step(_of_saver(every, saver)), follows=does == _OUT)

    def _save(self, number: int, step: int, *, follows: bool) -> None:
        """Takes part in a save of other ranks. follows: whether this rank has run out of batches and is between two
        steps; then it saves as well."""
        saver = self._uneven.savers.get(number)
        if saver is not None and follows:
            saver.save_with_others(step)
        elif saver is not None:
            saver.miss(step)


class LocalBlock:
    """The join block of a DiLoCo. Ranks meet when they exchange; between two exchanges they are at different steps."""

    def saves(self, *told: int) -> int:
        raise NotSupported(
            "ModelCheckpointer.after in a join block of a DiLoCo, where ranks are at different steps: call it behind "
            "the block, where all count the same steps"
        )


def _of_saver(every: Sequence[Sequence[float]], saver: float) -> list[Sequence[float]]:
    """Returns the messages of the ranks that save with this saver, in the form that job_step takes."""
    return [own[2:_HEAD] for own in every if own[0] == _SAVES and own[1] == saver]

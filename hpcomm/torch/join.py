"""Uneven inputs: a rank that has run out of batches takes part in the others' steps, with nothing."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..errors import InvalidArgument
from .mode import Scaling
from .rules import numbers, set_numbers

if TYPE_CHECKING:
    from .optimizer import DistributedOptimizer


class Meeting:
    """In a join block ranks meet once a step, by an allgather: who still runs, and with which learning rates and
    scale."""

    def __init__(self, optimizer: "DistributedOptimizer") -> None:
        self._optimizer = optimizer
        self._ran = 0  # a rank that made the last step

    def runs(self, scaling: Scaling | None) -> None:
        """This rank makes a step."""
        scale = math.nan if scaling is None or scaling.scale is None else scaling.scale
        self._meet([1.0, scale, *numbers(self._optimizer.param_groups)])

    def follow(self) -> bool:
        """This rank has run out: takes part in a step if another rank makes one."""
        groups = self._optimizer.param_groups
        every = self._meet([0.0, math.nan, *numbers(groups)])
        theirs = every[self._ran]
        set_numbers(groups, theirs[2:])
        if not any(own[0] for own in every):
            return False
        scaling = None if math.isnan(theirs[1]) else Scaling(theirs[1], torch.zeros(()))
        self._optimizer._follow(scaling)
        return True

    def _meet(self, told: list[float]) -> list[list[float]]:
        parts = self._optimizer.context.allgather(np.array(told, np.float64).tobytes())
        every = [np.frombuffer(part).tolist() for part in parts]
        self._ran = next((rank for rank, own in enumerate(every) if own[0]), self._ran)
        return every


@contextmanager
def join(optimizer: "DistributedOptimizer") -> Iterator[None]:
    """A with block for batches that not all ranks have the same number of. Collective: all ranks enter and leave it.

        with hpcomm.torch.join(optimizer):
            for batch in batches:
                ...
                optimizer.step()

    A rank that has left the loop takes part in the others' steps until all have left theirs. Its part of the mean
    gradient is zero, and the mean is still that of all ranks. Parameters, state and the numbers of param_groups, such
    as learning rates, stay the same on all ranks; a scheduler that counts its own steps does not know of the steps that
    its rank did not make. In the block a step costs one small allgather more, and synchronize is refused.

    Raises:
        InvalidArgument: optimizer is none of hpcomm.torch's, or is in a join block already.
    """
    from .optimizer import DistributedOptimizer  # noqa: PLC0415 - it imports Meeting

    if not isinstance(optimizer, DistributedOptimizer):
        raise InvalidArgument(f"optimizer is a {type(optimizer).__name__}: must be a DistributedOptimizer")
    if optimizer._meeting is not None:
        raise InvalidArgument("join: the optimizer is in a join block already")
    meeting = optimizer._meeting = Meeting(optimizer)
    try:
        yield
        while meeting.follow():
            pass
    finally:
        optimizer._meeting = None

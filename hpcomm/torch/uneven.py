"""What ranks tell each other in a join block."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..context import Context
from .mode import Scaling
from .rules import numbers, set_numbers


class JoinBlock:
    """In a join block ranks meet once a step, by an allgather: who still runs, and with which learning rates and
    scale."""

    def __init__(self, ctx: Context, groups: list[dict[str, Any]], follow: Callable[[Scaling | None], None]) -> None:
        """follow: makes a step of the others."""
        self._context, self._groups, self._step = ctx, groups, follow
        self._ran = 0  # a rank that made the last step

    def runs(self, scaling: Scaling | None) -> None:
        """This rank makes a step."""
        scale = math.nan if scaling is None or scaling.scale is None else scaling.scale
        self._meet([1.0, scale, *numbers(self._groups)])

    def follow(self) -> bool:
        """This rank has run out: takes part in a step if another rank makes one."""
        every = self._meet([0.0, math.nan, *numbers(self._groups)])
        theirs = every[self._ran]
        set_numbers(self._groups, theirs[2:])
        if not any(own[0] for own in every):
            return False
        scaling = None if math.isnan(theirs[1]) else Scaling(theirs[1], torch.zeros(()))
        self._step(scaling)
        return True

    def _meet(self, told: list[float]) -> list[list[float]]:
        parts = self._context.allgather(np.array(told, np.float64).tobytes())
        every = [np.frombuffer(part).tolist() for part in parts]
        self._ran = next((rank for rank, own in enumerate(every) if own[0]), self._ran)
        return every

"""Ranks with unequal numbers of batches: their messages in a join block, and the error where there is none."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..context import Context
from ..errors import NotSupported, PeerFailed
from ..local.agree import ended_early
from .rules import numbers, set_numbers

_OUT, _RUNS, _SCALES = 0.0, 1.0, 2.0  # a rank has run out of batches, makes a step, or makes one by a GradScaler


def explained(ctx: Context, failed: PeerFailed, made: int) -> PeerFailed:
    """The same failure in the words of steps, if it says only that ranks have ended, or have closed their exchange. All
    ranks have made the steps that this one has made, as each step waits for the gradients of all."""
    return ended_early(ctx, failed, f" ({made})", made + 1, "hpcomm.torch.join")


class JoinBlock:
    """In a join block ranks meet once a step, by an allgather: who still runs, and with which learning rates."""

    def __init__(self, ctx: Context, groups: list[dict[str, Any]], follow: Callable[[], None]) -> None:
        """follow: makes a step of the others."""
        self._context, self._groups, self._step = ctx, groups, follow
        self._ran = 0  # a rank that made the last step

    def runs(self, scaled: bool) -> None:
        """This rank makes a step. scaled: a GradScaler calls it, which every rank refuses."""
        self._meet(_SCALES if scaled else _RUNS)

    def follow(self) -> bool:
        """This rank has run out: takes part in a step if another rank makes one."""
        every = self._meet(_OUT)
        set_numbers(self._groups, every[self._ran][1:])
        if not any(own[0] for own in every):
            return False
        self._step()
        return True

    def _meet(self, does: float) -> list[list[float]]:
        told = np.array([does, *numbers(self._groups)], np.float64)
        every = [np.frombuffer(part).tolist() for part in self._context.allgather(told.tobytes())]
        if any(own[0] == _SCALES for own in every):
            raise NotSupported(
                "GradScaler in a join block: the scaler of a rank that has run out of batches does not follow the "
                "others' scale: give every rank the same number of batches, or train in bfloat16 without a scaler"
            )
        self._ran = next((rank for rank, own in enumerate(every) if own[0]), self._ran)
        return every

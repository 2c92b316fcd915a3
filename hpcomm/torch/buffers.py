"""Buffers, such as BatchNorm's running means: each rank's own, rank 0's, or the mean of all ranks'."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..context import Context
from ..errors import InvalidArgument
from ..exchange import Exchange, Handle
from ..optim import Average
from .tensors import broadcast

KINDS = ("local", "broadcast", "average")


class Local:
    """Each rank's own, after those of rank 0 at the start."""

    handle: Handle | None = None

    def step(self) -> None:
        """Nothing is exchanged."""

    def receive(self) -> None:
        """There is nothing to wait for."""

    def close(self) -> None:
        """There is no exchange."""


class Exchanged(Local):
    """Floating-point buffers of all ranks by an exchange of their own, in each step. Others stay local: they count."""

    key = "buffers"

    def __init__(self, ctx: Context, buffers: Sequence[Tensor], reduce: str, options: dict[str, Any]) -> None:
        self._buffers, self._rank = buffers, ctx.rank
        self._sum = reduce == "sum"
        self._values = np.zeros(sum(buffer.numel() for buffer in buffers), np.float32)
        self._exchange = Exchange(ctx, {self.key: self._values}, rule=Average(), reduce=reduce, **options)

    def step(self) -> None:
        self.receive()
        if not self._sum or self._rank == 0:
            at = 0
            for buffer in self._buffers:
                n = buffer.numel()
                self._values[at : at + n] = buffer.detach().to(torch.float32).reshape(-1).numpy()
                at += n
        self.handle = self._exchange.push_pull_nb(self.key, self._values)

    def receive(self) -> None:
        if self.handle is None:
            return
        means = torch.from_numpy(self.handle.wait())
        self.handle = None
        at = 0
        for buffer in self._buffers:
            n = buffer.numel()
            buffer.detach().copy_(means[at : at + n].view(buffer.shape))
            at += n

    def close(self) -> None:
        self._exchange.close()


def make_buffers(ctx: Context, model: nn.Module, kind: str, options: dict[str, Any]) -> Local:
    """Broadcasts rank 0's, and says what becomes of them later. options: of the exchange, such as progress."""
    every = list(model.buffers())
    for buffer in every:
        if buffer.device.type != "cpu":
            raise InvalidArgument(f"a buffer lies on {buffer.device}: hpcomm.torch exchanges the host's memory only")
    broadcast(ctx, every)
    real = [buffer for buffer in every if buffer.is_floating_point() and buffer.numel()]
    if kind == "local" or not real or ctx.size == 1:
        return Local()
    return Exchanged(ctx, real, "mean" if kind == "average" else "sum", options)

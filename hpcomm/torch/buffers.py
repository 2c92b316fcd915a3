"""Buffers, such as BatchNorm's running means. Each worker keeps its own buffers, or all take the first worker's, or all
take the mean."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..context import Context
from ..errors import InvalidArgument
from ..exchange import Exchange, Handle
from ..exchange.options import Reduce
from ..optim import Average
from ..topology import ParameterServer
from .tensors import as_float32, broadcast
from .workers import Workers

KINDS = ("local", "broadcast", "average")


class Local:
    """Buffers that each rank changes by itself. All ranks start with rank 0's buffers."""

    handle: Handle | None = None
    exchange: Exchange | None = None

    def step(self) -> None:
        """Does nothing, since no buffer is exchanged."""

    def receive(self) -> None:
        """Does nothing, since no exchange is pending."""

    def close(self, timeout: float | None = None) -> None:
        """Does nothing, since there is no exchange."""


class Exchanged(Local):
    """Floating-point buffers, which a separate Exchange sends in each step. Integer buffers are counters, so each rank
    keeps its own.

    Each step looks the buffers up in the model again, since a module may replace a buffer's tensor.
    """

    key = "buffers"

    def __init__(
        self, ctx: Context, model: nn.Module, reduce: Reduce, workers: Workers, options: dict[str, Any]
    ) -> None:
        self._model, self._counts = model, reduce == "mean" or workers.is_first
        self._values = np.zeros(sum(buffer.numel() for buffer in _real(model)), np.float32)
        topology = ParameterServer("NCS", workers.serving) if workers.serving else ParameterServer()
        values = {self.key: self._values}
        self.exchange: Exchange = Exchange(ctx, values, topology, rule=Average(), reduce=reduce, **options)

    def step(self) -> None:
        self.receive()
        parts = self._parts(self._values)  # also checks the buffers' size, on every rank
        if self._counts:
            for buffer, part in parts:
                part[:] = as_float32(buffer, None).reshape(-1)
        self.handle = self.exchange.push_pull_nb(self.key, self._values)

    def receive(self) -> None:
        if self.handle is None:
            return
        means = self.handle.wait()
        self.handle = None
        for buffer, part in self._parts(means):
            buffer.copy_(torch.from_numpy(part).view(buffer.shape))

    def _parts(self, values: NDArray[np.float32]) -> list[tuple[Tensor, NDArray[np.float32]]]:
        """Returns pairs of a buffer and its part of the array values."""
        found, at = [], 0
        for buffer in _real(self._model):
            n = buffer.numel()
            found.append((buffer, values[at : at + n]))
            at += n
        if at != len(values):
            raise InvalidArgument(
                f"the model's buffers have {at} elements now and had {len(values)}: make another DistributedOptimizer"
            )
        return found

    def close(self, timeout: float | None = None) -> None:
        self.exchange.close(timeout)


def make_buffers(ctx: Context, model: nn.Module, kind: str, workers: Workers, options: dict[str, Any]) -> Local:
    """Gives every rank rank 0's buffers, and makes the object that exchanges them. options: options of its Exchange,
    such as progress."""
    broadcast(ctx, model.buffers())
    if kind == "local" or not _real(model) or ctx.size == 1:
        return Local()
    return Exchanged(ctx, model, "mean" if kind == "average" else "sum", workers, options)


def _real(model: nn.Module) -> list[Tensor]:
    """Returns the floating-point buffers that have elements, detached from autograd graphs."""
    return [buffer.detach() for buffer in model.buffers() if buffer.is_floating_point() and buffer.numel()]

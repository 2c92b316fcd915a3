"""Buffers, such as BatchNorm's running means: each worker keeps its own, or all take the first worker's or the mean."""

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
    """Buffers that each rank keeps for itself; all ranks start with rank 0's."""

    handle: Handle | None = None
    exchange: Exchange | None = None

    def step(self) -> None:
        """Does nothing: no buffer is exchanged."""

    def receive(self) -> None:
        """Does nothing: no exchange is pending."""

    def close(self, timeout: float | None = None) -> None:
        """Does nothing: there is no exchange."""


class Exchanged(Local):
    """Floating-point buffers, exchanged in each step by a separate Exchange. Integer buffers stay local, as they are
    counters.

    Each step reads the buffers from the model again, as a module may replace a buffer's tensor.
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
        parts = self._parts(self._values)  # also checks their size, on every rank
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
        """Returns each buffer with its part of values."""
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
    """Broadcasts rank 0's buffers, and makes their exchange. options: for the Exchange, such as progress."""
    broadcast(ctx, model.buffers())
    if kind == "local" or not _real(model) or ctx.size == 1:
        return Local()
    return Exchanged(ctx, model, "mean" if kind == "average" else "sum", workers, options)


def _real(model: nn.Module) -> list[Tensor]:
    """Returns the floating-point buffers with elements, detached from their graphs."""
    return [buffer.detach() for buffer in model.buffers() if buffer.is_floating_point() and buffer.numel()]

"""One bucket of gradients in one backward pass, on its way from DDP to the other ranks and back."""

import threading
from typing import Any, Protocol

import torch
from torch import Tensor

from ..._core import named
from ...errors import InvalidArgument
from ..backend.line import acquire


class HookWay(Protocol):
    """How the gradients of a bucket are averaged. One thread at a time calls it."""

    def send(self, part: "SentBucket") -> None:
        """Sends the gradients of a part. May wait for other ranks."""

    def take(self, part: "SentBucket") -> None:
        """Writes the mean gradients into the part's buffer. Waits for other ranks."""


def check(part: "SentBucket") -> None:
    """Raises InvalidArgument for a bucket whose memory hpcomm cannot read."""
    if part.buffer.layout is not torch.strided:
        shape = tuple(part.params[0].shape)
        raise InvalidArgument(
            f"allreduce_hook: the gradient of a parameter of shape {shape} is sparse: give its layer sparse=False"
        )
    if not part.buffer.is_cpu:
        raise InvalidArgument(
            f"allreduce_hook: a bucket is on {part.buffer.device}: the hook takes gradients on the CPU; for parameters "
            "on a CUDA device there is hpcomm.torch.DistributedOptimizer"
        )


class SentBucket:
    """One bucket in one backward pass.

    Attributes:
        buffer: the bucket's flat tensor, in which its gradients lie.
        params: the bucket's parameters.
        grads: their gradients, as views of the buffer.
        future: the future that DDP gets; its value is the buffer.
        failure: the exception that ended send(), or None.
    """

    __slots__ = ("__weakref__", "_latch", "_way", "buffer", "failure", "future", "grads", "params")

    def __init__(self, bucket: Any) -> None:
        self.buffer, self.params, self.grads = bucket.buffer(), bucket.parameters(), bucket.gradients()
        self.future: torch.futures.Future[Tensor] = torch.futures.Future()
        self.failure: BaseException | None = None
        self._way: HookWay | None = None
        self._latch = threading.Lock()

    def start_by(self, way: HookWay) -> "SentBucket":
        """Returns this part, ready for make(), which a helper thread calls."""
        self._way = way
        self._latch.acquire()
        return self

    @named("allreduce_hook", every=True)
    def make(self) -> None:
        """Sends the gradients, and keeps the failure if that fails."""
        way, self._way = self._way, None
        try:
            assert way is not None
            way.send(self)
        except BaseException as failed:
            self.failure = failed
        self._latch.release()

    def settle(self, limit: float | None = None) -> bool:
        """Waits for the end of make(). Returns False if limit seconds have passed before."""
        if not acquire(self._latch, threading.TIMEOUT_MAX if limit is None else limit):
            return False
        self._latch.release()
        return True

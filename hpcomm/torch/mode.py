"""Modes decide when gradients and parameters are sent. This file has the interface of modes and their common code; each
mode is one class in another file."""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..context import Context
from ..errors import InvalidArgument, NotSupported, PeerFailed
from ..exchange import Exchange, Handle
from ..log import logger
from ..recovery import Recovered, recover
from . import uneven
from .counts import Counts
from .key import ParamKey
from .pending import PendingStarts
from .tensors import lies_with_others, listed, overlapping
from .workers import Workers

ROLL = "(roll call)"  # the key by which ranks tell for which keys they have gradients
_TINY = 1e-6  # the constant in torch's clip_grad_norm_
DIGITS = 16  # bytes of a digest in a roll call; 16-bit codecs send an 8-bit number exactly
_ROUNDED = 0.5  # the mean of equal digits is off by less; different digits differ by dozens


@dataclass(frozen=True)
class Scaling:
    """The state of a GradScaler at the start of a step.

    Attributes:
        scale: the factor by which the gradients are too large; None if they have already been unscaled.
        found: the scaler's tensor that the step sets to 1 if it skips the update.
    """

    scale: float | None
    found: Tensor


class Mode(ABC):
    """A way to exchange a model. The hooks, step() and wait() of the optimizer call it.

    Attributes:
        exchange: the exchange of the keys.
        keys: the keys, in the order of the model.
        quiet: whether hooks send nothing (no_sync).
        passes: the number of backward passes in a step.
        pending: whether some parameter may not have come yet.
        unguarded: whether owners may still read slots after a step.
        begun: whether a gradient of this step has been sent.
        touched: whether a backward pass of this step has ended without sending.
        agreed: whether all ranks have agreed for which layers this step's gradient is not the sum of its pairs.
        roll: the roll call (see Roll); None if a push itself can tell that its rank has no gradient.
        in_step: whether all ranks make the same steps, each with the gradients of all ranks (BSP).
        has_params: whether the exchange has the parameters; if False, it has only gradients.
        workers: the ranks that train with this exchange.
    """

    exchange: Exchange
    workers: Workers
    in_step = agreed = False
    has_params = True
    roll: "Roll | None" = None

    def __init__(
        self, ctx: Context, keys: Sequence[ParamKey], counts: Counts, passes: int, clip_norm: float | None
    ) -> None:
        self.context, self.keys, self.counts = ctx, list(keys), counts
        self.device, self.starts, self._release = keys[0].device, PendingStarts(ctx, counts), _nothing
        self.extra: list[Any] = []  # buffers; like keys they have a handle and receive()
        self.order = self.keys  # the keys, in the order in which the next forward pass needs them
        self.passes, self.clip_norm = passes, clip_norm
        self.quiet = self.pending = self.unguarded = self.begun = self.touched = self.synchronized = False
        for key in self.keys:
            key.mode = self

    @abstractmethod
    def bind(self, exchange: Exchange) -> None:
        """Makes this exchange the mode's own. From now on parameters and gradients lie in it."""

    def takes(self, exchange: Exchange) -> None:
        """Makes this exchange the mode's own, and registers its memory with the device."""
        self.release()
        self.exchange, self.starts = exchange, PendingStarts(exchange.context, self.counts)
        if self.device.apart:
            self._release = self.device.register([own for key in self.keys for own in key.memory(exchange)])

    def release(self) -> None:
        """Unregisters the exchange's memory from the device. Call it before the memory is unmapped. A second call does
        nothing."""
        self._release()
        self._release = _nothing

    def exchanges(self) -> list[Exchange]:
        """Returns all exchanges that were made for this optimizer."""
        return [self.exchange, *(one.exchange for one in self.extra if one.exchange is not None)]

    def close(self, timeout: float | None = None) -> None:
        """Closes the exchange. Call it after the last step has ended."""
        self.release()
        self.exchange.close(timeout)

    def recovered(self, checkpoint: str | PathLike[str] | None, timeout: float | None, *, survivors: bool) -> Recovered:
        """Continues with the remaining ranks. Collective over them."""
        found = recover(self.exchange, checkpoint=checkpoint, survivors=survivors, timeout=timeout)
        self.reset()
        self.bind(found.exchange)
        return found

    def serve(self, savers: Mapping[int, uneven.Saver], timeout: float | None) -> None:
        """Serves the workers until they have closed. On a worker, the exchange raises InvalidArgument."""
        self.exchange.serve(timeout)

    def reset(self) -> None:
        """Drops all pending pushes and pulls, because the exchange has lost ranks."""
        self.pending = self.unguarded = self.begun = self.synchronized = False
        self._in_place = -1  # then guard() waits in the next step
        self.starts.drop()
        if self.roll is not None:
            self.roll.drop()
        for key in self.keys:
            key.done()
            key.handle = key.fold = key.held = key.sum = key.param.grad = None

    # ---- hooks -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def send(self, key: ParamKey) -> None:
        """Sends the complete gradient of a key, or notes that step() must send it."""

    def passed(self, key: ParamKey) -> None:
        """Notes that a backward pass has ended for this key, and that it sends nothing."""
        self.touched = True

    def made(self) -> int:
        """Returns how many steps this rank has made. The last one may be incomplete."""
        return self.counts.steps + self.counts.skipped

    def explained(self, failed: PeerFailed, made: int) -> PeerFailed:
        """Returns the failure of a step, after `made` steps. If other ranks have ended after fewer steps, the failure's
        text says this."""
        return uneven.explained(self.context, failed, made) if self.in_step else failed

    # ---- a step ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def step(self, scaling: Scaling | None) -> None:
        """Does all work of a step that is left after the backward pass."""

    @abstractmethod
    def check_scaler(self) -> None:
        """Changes p.grad before a GradScaler looks for Inf in it, so that the scaler finds the same on all ranks."""

    def synchronize(self) -> None:
        """Sets p.grad to the mean of all ranks. Modes that have no mean raise NotSupported."""
        raise NotSupported(f"synchronize: {self.why_no_mean}")

    why_no_mean = "there is no mean of all ranks"

    def wait(self) -> None:
        """Waits until all parameters and gradients may be read and written."""
        if self.pending:
            for key in self.order:
                if key.handle is not None:
                    key.receive()
            self.pending = self.unguarded = False
        for other in self.extra:
            other.receive()
        if self.roll is not None:
            self.roll.wait()

    def ahead(self) -> None:
        """Begins to copy the parameters that have come. Copies begin in the order in which layers need the
        parameters."""
        if self.device.apart:
            for key in self.order:
                if not key.fetch():
                    break

    def take_written(self) -> None:
        """Gives the exchange the parameters that the trainer has written or moved since the last step. Otherwise the
        next step does this."""
        for key in self.keys:
            key.find_home()

    def find_homes(self) -> None:
        """Finds where the parameters that lay in the exchange are now."""
        for key in self.keys:
            if key.address:
                key.find_home(take=False)

    def forget(self) -> None:
        """Withdraws the gradients of this step, since zero_grad() was called before step()."""
        self.begun = self.touched = self.synchronized = False
        for key in self.keys:
            key.done()

    # ---- for modes whose gradients go by hooks -----------------------------------------------------------------------

    def check_unchanged(self) -> None:
        """Raises if a gradient has changed since it was sent."""
        for key in self.keys:
            if key.sent and key.changed():
                raise key.late_change()

    def guard(self) -> None:
        """Call it at the end of a step. If p.grad lies in the slots (set_to_none=False), waits until owners have read
        them, because the trainer writes them next."""
        if self.counts.in_place != self._in_place or not self.counts.steps:
            self.wait()
        self.unguarded = self.pending
        self._in_place = self.counts.in_place

    _in_place = 0


def lie_in(keys: Sequence[ParamKey], exchange: Exchange) -> None:
    """Moves the parameters into the exchange's memory. If another tensor or another process uses the memory of a
    parameter, this parameter stays in its memory, and each step copies its new values there, so that the other users
    see the updates."""
    params = [key.param for key in keys]
    tied = overlapping(params)
    stay = [others and id(p) not in tied for p, others in zip(params, lies_with_others(params), strict=True)]
    for key, stays in zip(keys, stay, strict=True):
        key.lies_in(exchange, stays=stays)
    rank = exchange.context.rank
    seen = [key.name for key, stays in zip(keys, stay, strict=True) if stays and not key.copies]
    if seen:
        logger.warning(
            "rank %d: %s can be seen by others: by a process that shares the memory, by a state_dict, or by another "
            "tensor. So they stay where they are, and each step copies them. Drop the other users before the model is "
            "wrapped to save the copies",
            rank,
            listed(seen),
        )
    if tied:
        logger.warning(
            "rank %d: %s share memory, and are no one nn.Parameter: each has memory of its own from here on. Use one "
            "nn.Parameter twice to tie them",
            rank,
            listed([key.name for key in keys if id(key.param) in tied]),
        )


class Differs(Exception):
    """Raised if a value differs that must be the same on all ranks. Its argument is the position of this value in the
    list same of Roll."""


class Roll:
    """The roll call: tells the ranks which of them have each gradient. It is used if a push cannot tell that its rank
    has no gradient.

    It is an extra key of the exchange. Each rank pushes a one or a zero for each gradient, and the key's parameters are
    their means. After these numbers come digests of values that must be the same on all ranks: if they are, the mean of
    the digests equals each rank's own digest.
    """

    def __init__(self, keys: Sequence[ParamKey], same: Sequence[Callable[[], bytes]] = ()) -> None:
        self._keys, self._same = keys, list(same)
        self._handle: Handle | None = None
        self.values = np.zeros(len(keys) + DIGITS * len(self._same), np.float32)

    def call(self, exchange: Exchange, missing: Sequence[ParamKey]) -> Sequence[ParamKey]:
        """Tells the other ranks which gradients this rank lacks (missing). Returns those keys in missing for which
        another rank has a gradient.

        Raises:
            Differs: a value that must be the same on all ranks differs. Every rank raises it.
        """
        self.wait()
        for i, key in enumerate(self._keys):
            self.values[i] = key.sent
        n = len(self._keys)
        for i, same in enumerate(self._same):
            at = n + i * DIGITS
            self.values[at : at + DIGITS] = np.frombuffer(hashlib.sha256(same()).digest(), np.uint8)[:DIGITS]
        own = self.values.copy()
        if exchange._state.sums:  # the exchange gives sums, so each rank divides
            self.values /= len(exchange.plan.workers)
        self._handle = exchange.push_pull_nb(ROLL, self.values)
        if not missing and not self._same:
            return ()
        means = self._handle.wait()
        self._handle = None
        far = np.abs(means - own)[n:].reshape(-1, DIGITS).max(1, initial=0.0) > _ROUNDED
        if far.any():
            raise Differs(int(far.argmax()))
        return [key for key, mean in zip(self._keys, means[:n], strict=True) if mean > 0 and not key.sent]

    def drop(self) -> None:
        """Forgets the last call without waiting for it."""
        self._handle = None

    def wait(self) -> None:
        """Waits until the last call has ended."""
        if self._handle is not None:
            self._handle.wait()
            self._handle = None


def _nothing() -> None:
    """Does nothing, since no memory is registered with a device."""


def push_zeros(exchange: Exchange, key: ParamKey) -> Handle:
    """Pushes zeros as this rank's part of a gradient that only other ranks have."""
    key.leave_kept()
    exchange.gradient(key.name).fill(0)
    key.sent, key.held = True, key.param.grad
    return exchange.push_pull_nb(key.name)


# ---- scales ----------------------------------------------------------------------------------------------------------


def scale_of(squares: float, scaling: Scaling | None, clip_norm: float | None) -> float | None:
    """Returns the factor by which a mean gradient must be multiplied, as in torch's clip_grad_norm_ and GradScaler.
    Returns None if the step must be skipped. squares: the sum of the squares of the mean gradient's elements."""
    scale = 1.0
    if scaling is not None:
        if not math.isfinite(squares):
            scaling.found.fill_(1.0)
            return None
        if scaling.scale is not None:
            scale = 1.0 / scaling.scale
    if clip_norm is not None:
        clipped = clip_norm / (math.sqrt(squares) * scale + _TINY)
        scale = scale if clipped >= 1.0 else scale * clipped  # a norm of NaN makes all gradients NaN, as in torch
    return scale


def scale_gradients(keys: Sequence[ParamKey], scaling: Scaling | None, clip_norm: float | None) -> bool:
    """Unscales and clips p.grad in place, for optimizers that step on each rank. Returns False if the step must be
    skipped."""
    if scaling is None and clip_norm is None:
        return True
    grads = [key.param.grad for key in keys if key.param.grad is not None]
    if scaling is not None:
        if not all(bool(torch.isfinite(grad).all()) for grad in grads):
            scaling.found.fill_(1.0)
            return False
        if scaling.scale is not None:
            torch._foreach_mul_(grads, 1.0 / scaling.scale)
    if clip_norm is not None:
        torch.nn.utils.clip_grad_norm_([key.param for key in keys], clip_norm)
    return True


def check_clip(clip_norm: Any) -> float | None:
    if clip_norm is None:
        return None
    if isinstance(clip_norm, bool) or not isinstance(clip_norm, int | float) or not 0 < clip_norm < math.inf:
        raise InvalidArgument(f"clip_norm is {clip_norm!r}: must be a number above 0, or None")
    return float(clip_norm)

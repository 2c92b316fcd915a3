"""Fold and apply in two calls. Between the two a trainer can clip by the norm of all gradients, skip a step, or wait
for the end of the backward pass."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._core import PUSH
from .._core import exchange_start as _start
from .calls import Calls, Handle
from .keys import KeyState


class Gathering(Handle):
    """The handle of a started gather: wait returns the mean."""

    __slots__ = ()

    def wait(self, timeout: float | None = None) -> NDArray[np.float32]:
        super().wait(timeout)
        return gathered(self._exchange, self._key)


def gathered(exchange: Calls, key: KeyState) -> NDArray[np.float32]:
    """Returns the array into which gather writes the mean of a key."""
    if key.gathered is None:
        key.gathered = _core.exchange_gathered(exchange._handle, key.index, key.shape)
    return key.gathered  # type: ignore[no-any-return]


class Squares(Handle):
    """The handle of a started call of squares: wait returns the sum."""

    __slots__ = ()

    def wait(self, timeout: float | None = None) -> float:
        super().wait(timeout)
        return _core.exchange_get_squares(self._exchange._handle, self._key.index)


class TwoCalls:
    """The calls of an exchange that was made with split=True: Exchange.split.

    **BSP with servers.** fold is a push: the owners fold all workers' updates, and keep the mean (with reduce="sum" the
    sum). All workers must then make the same call for the key, apply or skip; before that they may all call squares or
    gather. Otherwise the exchange ends with ConfigError on every rank. Every call has a nonblocking form, which ends
    in _nb and returns a Handle. apply_nb and skip_nb may be called before the handle of fold_nb has ended.

    **Peers (PeerToPeer) and graphs.** Each rank folds the updates that come to it, and its calls change its own
    parameters only. They wait for no call of another rank, and hpcomm does not compare the ranks' calls, scales or
    hyper-parameters. With all-to-all peers, copies stay equal only while all ranks make the same calls.

    **A quorum.** The first apply or skip by a worker whose update is in the mean decides for all; if another of these
    workers gives another scale or the other call, the exchange ends with ConfigError. A late worker's squares and
    gather return values of the mean that the owners keep. Its apply or skip changes nothing, waits until others have
    applied or skipped this mean, and returns the newest parameters. If the mean of a share was applied or skipped
    earlier, gather leaves this part of its array unchanged, and squares returns the last known squares, or 0 if they
    are unknown. A worker that has missed a mean in this way decides only if all workers of the fold have; then the
    lowest rank does. The next fold waits until the mean is applied or skipped. With a Hierarchy a host counts as one
    worker, and its ranks must make the same calls with the same scale.

    **SSP(s) and ASYNC with servers or peers, and peers with a quorum.** fold keeps this worker's own update
    and sends nothing; apply scales and pushes it. So each worker clips, scales and skips its own updates, and waits for
    no call of others. squares and gather return values of the update as it was folded, before its weight in the mean.
    """

    __slots__ = ("_ex",)

    def __init__(self, ex: Calls) -> None:
        self._ex = ex

    def fold_nb(self, name: str, grad: object = None, timeout: float | None = None, *, nothing: bool = False) -> Handle:
        """Starts a fold; wait of the handle returns when all updates of the fold have come.

        Args:
            name: the key's name.
            grad: the gradient, as push takes it. gradient(name) belongs to the exchange until apply or skip has ended.
            timeout: seconds to wait while the owner has no room for one more event; None means the context's default.
            nothing: True if this worker has no gradient in this step: its update counts as zeros, and no values are
                sent. If no worker has a gradient, the following apply changes neither parameters nor state.

        Raises:
            InvalidArgument: as in push; or the exchange was made without split.
        """
        if not nothing:
            key, ticket = self._ex._sent(_start, name, PUSH, grad, timeout)
        else:
            key = self._ex._key(name)
            ticket = self._use(key, _core.exchange_fold_nothing, timeout)
            key.flags = PUSH
        return Handle(self._ex, key, ticket, pulls=False)

    def fold(self, name: str, grad: object = None, timeout: float | None = None, *, nothing: bool = False) -> None:
        """Calls fold_nb, and waits for its end."""
        self.fold_nb(name, grad, timeout, nothing=nothing).wait(timeout)

    def apply_nb(self, name: str, scale: float = 1.0, timeout: float | None = None) -> Handle:
        """Starts an apply: the rule runs on scale times the mean, with the hyper-parameters that set gave before this
        call; wait of the handle returns the parameters. A scale of NaN makes all parameters NaN.

        Raises:
            InvalidArgument: nothing is folded, or scale is infinite. Nothing has been sent.
            ConfigError: workers gave different scales or hyper-parameters, or one of them called skip or gather. The
                wait raises it, on every rank.
        """
        key = self._ex._key(name)
        value = float(scale)
        ticket = self._use(key, lambda h, k, left: _core.exchange_apply(h, k, value, left), timeout)
        return Handle(self._ex, key, ticket, pulls=True)

    def apply(self, name: str, scale: float = 1.0, timeout: float | None = None) -> NDArray[np.float32]:
        """Calls apply_nb, waits for its end, and returns the parameters."""
        return self.apply_nb(name, scale, timeout).wait(timeout)  # type: ignore[no-any-return]

    def skip_nb(self, name: str, timeout: float | None = None) -> Handle:
        """Starts a skip, which drops the mean. Parameters, the rule's state, the step and the codecs' residuals stay as
        if nothing had been folded. Under SSP(s) and ASYNC owners are told that this worker has no update in this step,
        so no other worker waits for it."""
        key = self._ex._key(name)
        return Handle(self._ex, key, self._use(key, _core.exchange_skip, timeout), pulls=True)

    def skip(self, name: str, timeout: float | None = None) -> None:
        """Calls skip_nb, and waits for its end."""
        self.skip_nb(name, timeout).wait(timeout)

    def set_unit(self, name: str, unit: float) -> None:
        """Sets the factor by which the trainer has scaled the updates of a key, from the present fold on; 1 by default.

        A trainer that scales its loss calls this before apply. The codec then rescales the residuals of older updates,
        which had another factor.

        Raises:
            InvalidArgument: unit is not positive and finite, or the exchange was made without split.
        """
        _core.exchange_set_unit(self._ex._handle, self._ex._key(name).index, float(unit))

    def gather_nb(self, name: str, timeout: float | None = None) -> Gathering:
        """Starts a gather: wait of the handle returns the mean as a float32 array of the key's shape, for every codec.

        If updates are float32 or pieces, the mean is written into the array of gradient(name), which the worker may
        write again. Among peers, for factors, and under SSP(s) and ASYNC it is written into another array. The owners
        still keep the mean: call apply or skip, or another fold, which replaces it."""
        key = self._ex._key(name)
        return Gathering(self._ex, key, self._use(key, _core.exchange_gather, timeout), pulls=False)

    def gather(self, name: str, timeout: float | None = None) -> NDArray[np.float32]:
        """Calls gather_nb, waits for its end, and returns the mean."""
        return self.gather_nb(name, timeout).wait(timeout)

    def squares_nb(self, name: str, timeout: float | None = None) -> Squares:
        """Asks for the sum of squares of a key's mean; wait of the handle returns the sum.

        It is summed in float64, and has the same bits on all ranks that fold the same updates. The owners still keep
        the mean. For factors it is computed without making the matrix: the sum of (u . u') (v . v') over every
        combination of two pairs (u, v) and (u', v')."""
        key = self._ex._key(name)
        return Squares(self._ex, key, self._use(key, _core.exchange_squares, timeout), pulls=False)

    def squares(self, name: str, timeout: float | None = None) -> float:
        """Calls squares_nb, waits for its end, and returns the sum."""
        return self.squares_nb(name, timeout).wait(timeout)

    def gathered(self, name: str) -> NDArray[np.float32]:
        """Returns the array into which gather writes the mean of a key."""
        return gathered(self._ex, self._ex._every[name])

    def _use(self, key: KeyState, call: Any, timeout: float | None) -> int:
        """Repeats call(handle, key, seconds) until it has sent everything, and returns its ticket."""
        key.ready = -1  # the exchange may read or write the slot now
        ex, ticket = self._ex, int(call(self._ex._handle, key.index, self._ex._first(timeout)))
        if ticket >= 0:
            return ticket
        return ex._until(lambda left: call(ex._handle, key.index, left), *ex._limits(timeout), ticket)

"""Fold and apply in two calls. Between them a trainer can clip gradients by the norm of all, skip a step, or wait for
the end of the backward pass."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._core import PUSH
from .._core import exchange_start as _start
from .calls import Calls, Handle
from .keys import KeyState


class Gathering(Handle):
    """A gather that has been started: wait returns the mean."""

    __slots__ = ()

    def wait(self, timeout: float | None = None) -> NDArray[np.float32]:
        super().wait(timeout)
        return gathered(self._exchange, self._key)


def gathered(exchange: Calls, key: KeyState) -> NDArray[np.float32]:
    """The array that gathers of a key write."""
    if key.gathered is None:
        key.gathered = _core.exchange_gathered(exchange._handle, key.index, key.shape)
    return key.gathered  # type: ignore[no-any-return]


class Squares(Handle):
    """A squares that has been started: wait returns the sum."""

    __slots__ = ()

    def wait(self, timeout: float | None = None) -> float:
        super().wait(timeout)
        return _core.exchange_get_squares(self._exchange._handle, self._key.index)


class TwoCalls:
    """The calls of an exchange that was made with split=True: Exchange.split.

    fold is a push: the owners keep the mean of all workers' updates (the sum with reduce="sum"). Then all workers call
    apply or skip for the key, and squares or gather before that if they want. Every call has a nonblocking form that
    ends in _nb and returns a Handle; apply_nb or skip_nb may be started behind fold_nb.

    Among peers (PeerToPeer) each rank keeps the updates that come to it, and its calls are for its own parameters. They
    wait for no call of another rank, and no rank is told when calls, scales or hyper-parameters differ. Copies stay
    equal while all ranks make the same calls.

    With a quorum the first apply or skip of a worker whose update is in the mean counts for all. A late worker gets
    squares and gather of the mean that is kept; its apply or skip waits until others have ended that mean, changes
    nothing, and brings the newest parameters. Where that mean is over, gather leaves the array as it is, squares gives
    the squares that are still known, else 0, and the worker's scale counts only if no worker has seen all means. Each
    fold is ended before the next one. With a Hierarchy a host counts as one worker: its ranks make the same calls, with
    the same scale.

    Under SSP(s) and ASYNC each update is applied by itself, so a fold keeps this worker's own update: nothing is sent
    before apply, which scales it and pushes it. Each worker clips, scales and skips its own updates, and waits
    for no call of others. squares and gather are of the update as it was folded, without its weight in the mean.
    """

    __slots__ = ("_ex",)

    def __init__(self, ex: Calls) -> None:
        self._ex = ex

    def fold_nb(self, name: str, grad: object = None, timeout: float | None = None, *, nothing: bool = False) -> Handle:
        """Starts a fold; the handle's end means that all workers' updates are there.

        Args:
            name: of the key.
            grad: as push takes it. Until apply or skip has ended gradient(name) belongs to the exchange.
            timeout: seconds to wait while the owner has no room for one more event.
            nothing: this worker has no gradient in this step: its part is zero, and no bytes are sent. Where no worker
                has one, the apply that follows changes neither parameters nor state.

        Raises:
            InvalidArgument: as push does; or the exchange was made without split.
        """
        if not nothing:
            key, ticket = self._ex._sent(_start, name, PUSH, grad, timeout)
        else:
            key = self._ex._key(name)
            ticket = self._use(key, _core.exchange_fold_nothing, timeout)
            key.flags = PUSH
        return Handle(self._ex, key, ticket, pulls=False)

    def fold(self, name: str, grad: object = None, timeout: float | None = None, *, nothing: bool = False) -> None:
        """fold_nb, and waits for its end."""
        self.fold_nb(name, grad, timeout, nothing=nothing).wait(timeout)

    def apply_nb(self, name: str, scale: float = 1.0, timeout: float | None = None) -> Handle:
        """Starts an apply: the rule runs on scale times the mean, with the hyper-parameters that set gave before this
        call; wait of the handle returns the parameters.

        Raises:
            InvalidArgument: nothing is folded, or scale is infinite (by NaN all parameters become NaN). Nothing has
                been sent then.
            ConfigError: workers give different scales or hyper-parameters, or one of them calls skip or gather; from
                the wait, on every rank.
        """
        key = self._ex._key(name)
        value = float(scale)
        ticket = self._use(key, lambda h, k, left: _core.exchange_apply(h, k, value, left), timeout)
        return Handle(self._ex, key, ticket, pulls=True)

    def apply(self, name: str, scale: float = 1.0, timeout: float | None = None) -> NDArray[np.float32]:
        """apply_nb, and waits for its end; returns the parameters."""
        return self.apply_nb(name, scale, timeout).wait(timeout)  # type: ignore[no-any-return]

    def skip_nb(self, name: str, timeout: float | None = None) -> Handle:
        """Starts a skip: the mean is dropped. Parameters, state, step and codecs' residuals stay as if nothing had been
        folded. Under SSP(s) and ASYNC owners hear that this worker has no update this time, so that no other worker
        waits for it."""
        key = self._ex._key(name)
        return Handle(self._ex, key, self._use(key, _core.exchange_skip, timeout), pulls=True)

    def skip(self, name: str, timeout: float | None = None) -> None:
        """skip_nb, and waits for its end."""
        self.skip_nb(name, timeout).wait(timeout)

    def set_unit(self, name: str, unit: float) -> None:
        """Tells the factor by which updates of a key are scaled, from its present fold on; 1 at first. A trainer that
        scales its loss calls it before it applies, so that residuals of older updates, which had another factor, count
        as much as they should.

        Raises:
            InvalidArgument: unit is not positive and finite.
        """
        _core.exchange_set_unit(self._ex._handle, self._ex._key(name).index, float(unit))

    def gather_nb(self, name: str, timeout: float | None = None) -> Gathering:
        """Starts a gather: every worker gets the mean, whatever the codec; wait of the handle returns it as a float32
        array of the key's shape. Where updates are float32 or pieces it lies in the array of gradient(name), and the
        worker may write that again; among peers, of factors, and under SSP(s) and ASYNC it lies apart. The mean is
        still kept: apply, skip, or another fold, which replaces it, follows."""
        key = self._ex._key(name)
        return Gathering(self._ex, key, self._use(key, _core.exchange_gather, timeout), pulls=False)

    def gather(self, name: str, timeout: float | None = None) -> NDArray[np.float32]:
        """gather_nb, and waits for its end; returns the mean."""
        return self.gather_nb(name, timeout).wait(timeout)

    def squares_nb(self, name: str, timeout: float | None = None) -> Squares:
        """Starts to ask for the sum of squares of the mean of a key; wait of the handle returns it: in float64, the
        same bits on all ranks that fold the same updates. The owners still keep the mean. For factors it is the sum
        over each two pairs of (u . u') (v . v'), and no matrix is made."""
        key = self._ex._key(name)
        return Squares(self._ex, key, self._use(key, _core.exchange_squares, timeout), pulls=False)

    def squares(self, name: str, timeout: float | None = None) -> float:
        """squares_nb, and waits for its end; returns the sum."""
        return self.squares_nb(name, timeout).wait(timeout)

    def gathered(self, name: str) -> NDArray[np.float32]:
        """The array that gathers of a key write."""
        return gathered(self._ex, self._ex._every[name])

    def _use(self, key: KeyState, call: Any, timeout: float | None) -> int:
        """The ticket of call(handle, key, seconds), which is made again until it has sent all."""
        key.ready = -1  # its slot may be read or written now
        ex, ticket = self._ex, int(call(self._ex._handle, key.index, self._ex._first(timeout)))
        if ticket >= 0:
            return ticket
        return ex._until(lambda left: call(ex._handle, key.index, left), *ex._limits(timeout), ticket)

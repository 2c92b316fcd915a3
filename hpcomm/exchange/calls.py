"""The calls of an exchange to C. A wait is a series of short waits (slices), until the deadline, so that Python can
handle signals (Ctrl-C) between them.

A call that a timeout or Ctrl-C has cut short can be resumed later: no part of a push is lost or sent twice.
"""

import math
from array import array
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, NamedTuple

from .. import _core
from .._core import PULL, PUSH, SLICE, address_of, error, is_slice_over, is_unfinished, seconds
from .._core import exchange_call as _call
from .._core import exchange_gradient as _gradient
from .._core import exchange_ready as _ready
from .._core import exchange_start as _start
from .._core import exchange_step as _step
from .._core import exchange_test as _test
from .._core import exchange_wait as _wait
from ..errors import HpcommError, InvalidArgument, Timeout
from .keys import KeyState, unknown

_TIMED_OUT, _INVALID = _core.TIMED_OUT, _core.INVALID
_WRONG = (TypeError, ValueError, OverflowError, BufferError)
_SHORT = 65536  # at most so many bytes in an exchange: its calls take microseconds, so they may keep the GIL


class Step(NamedTuple):
    """A step over all keys: the keys' numbers in the order of the step, the arrays to copy from (None: each key sends
    its gradient array), the bytes of each key, and the gradients as the trainer gave them."""

    order: Any
    sources: list[Any] | None
    sizes: Any
    grads: Any


class Calls:
    """The part of an exchange that calls need: its address in C, its keys, and the unfinished step, if any."""

    __slots__ = (
        "_address",
        "_closed",
        "_default",
        "_every",
        "_finite",
        "_handle",
        "_in_place",
        "_keep",
        "_keys",
        "_learns",
        "_left",
        "_models",
        "_products",
        "_rank",
        "_settles",
        "_slice",
        "_steps",
        "_turning",
        "_words",
    )

    _handle: Any
    _rank: int
    _default: float
    _learns: bool

    def _begin(self, keys: dict[str, KeyState], *, finite: bool, learns: bool, settles: bool, products: bool) -> None:
        """Sets up the calls; _handle, _rank and _default (the timeout of calls that give none) must be set before.
        settles: a pull may end before its push is applied. products: some keys may have from_pairs."""
        self._settles = settles
        self._address = address_of(self._handle)
        self._keys = self._every = keys  # _keys is empty while a step is unfinished
        self._turning = tuple(key for key in keys.values() if key.rotates)
        self._finite, self._learns, self._closed = finite, learns, False
        self._products = products
        self._slice = min(self._default, SLICE)
        sizes = array("Q", [key.nbytes for key in keys.values()])
        self._keep = sum(max(key.nbytes, 4 * math.prod(key.shape)) for key in keys.values()) <= _SHORT
        self._in_place = Step(array("i", [key.index for key in keys.values()]), None, sizes, None)
        self._left: Step | None = None
        self._models: dict[str, Any] | None = None
        self._steps = 0
        self._words = array("Q", bytes(8 * (len(keys) + 2)))

    def _train_in_place(self, models: dict[str, Any]) -> None:
        """Makes pushes send the parameters from now on. models: the arrays by key, which _came keeps up to date."""
        self._models = models
        for key in self._every.values():
            key.slots[key.params.ctypes.data] = key.gradient = key.params

    # ---- a key ----

    def _sent(self, call: Any, name: str, flags: int, grad: Any, timeout: float | None) -> tuple[KeyState, int]:
        """Makes call (_start or _call) for a key. Returns the key and the ticket of _start, or 0 for _call."""
        try:
            key = self._keys[name]
        except (KeyError, TypeError):
            raise self._no_key(name) from None
        if grad is not None and grad is not key.checked:
            grad = None if grad is key.gradient else key.source(grad)
        elif grad is None and key.from_pairs is not None and flags & PUSH:
            grad = key.source(key.from_pairs)
        last, gradient = key.flags, key.gradient
        key.flags = flags
        if flags & PUSH:
            key.ready = -1
            if key.rotates:
                key.gradient = None
        first = self._slice if timeout is None else self._first(timeout)
        try:
            status = call(self._address, key.index, flags, grad, key.nbytes, self._keep, first)
        except _WRONG as wrong:
            key.flags, key.gradient = last, gradient
            raise InvalidArgument(f"rank {self._rank}: gradient of {name!r} cannot be read: {wrong}") from None
        if status and (status < 0 or call is _call):
            limits = self._limits(timeout)
            ticket = status - 1 if status > 0 else self._started(key, flags, grad, status, limits, (last, gradient))
            if call is _start:
                return key, ticket
            index, waited = key.index, _TIMED_OUT if status > 0 else None
            self._until(lambda left: _wait(self._address, index, ticket, self._keep, left), *limits, waited)
        if self._models is not None and call is _call:
            self._came(key)
        return key, status

    def _gradient(self, key: KeyState, timeout: float | None) -> Any:
        """Waits until the slot of a key's next push is free, and returns the array in it."""
        if key.ready == self._steps:
            return key.gradient
        address: int = _gradient(self._address, key.index, self._keep, self._first(timeout))
        if address <= 0:
            limits, status = self._limits(timeout), address or None
            if address == _INVALID and key.flags & PUSH:
                self._resume(key, limits)
                status = None
            address = self._until(lambda left: _gradient(self._address, key.index, self._keep, left), *limits, status)
        key.gradient, key.ready = self._slot(key, address), self._steps
        self._came(key)
        return key.gradient

    def _slot(self, key: KeyState, address: int) -> Any:
        """Returns the array of the slot at an address, made once for each slot."""
        slot = key.slots.get(address)
        if slot is None:
            slot = key.slots[address] = key.slot(self._handle, address)
        return slot

    def _came(self, key: KeyState) -> None:
        """Is called when the last push of a key is folded: with in_place, takes the array of the next model from C. The
        old model becomes read-only, as neighbours may still read it."""
        if self._models is None:
            return
        model = self._slot(key, _core.exchange_params_address(self._handle, key.index))
        if model is not key.params:
            key.params.setflags(write=False)
            model.setflags(write=True)
            key.params = self._models[key.name] = model
        key.gradient = model

    def _started(
        self,
        key: KeyState,
        flags: int,
        source: Any,
        status: int | None,
        limits: tuple[float, float],
        before: tuple[int, Any],
    ) -> int:
        """Continues a start whose first slice returned status, and returns its ticket. before: the key's flags and
        gradient before the start."""
        try:
            if status == _INVALID and flags == PULL and before[0] & PUSH:
                key.flags = before[0]
                self._resume(key, limits)
                key.flags, status = flags, None
            return self._until(
                lambda left: _start(self._address, key.index, flags, source, key.nbytes, self._keep, left),
                *limits,
                status,
            )
        except Timeout as late:
            key.gradient = before[1]
            if flags & PUSH and _ready(self._address, array("i", [key.index])) == 0:  # it still waits for a slot
                key.flags = before[0]
                told = f"{late}; the slot of key {key.name!r} is not free, and nothing was sent: make the call again"
                raise Timeout(told, op=late.op, waiting_for=late.waiting_for, culprits=late.culprits) from None
            raise
        except HpcommError as wrong:
            key.flags, key.gradient = before
            if isinstance(wrong, InvalidArgument) and is_unfinished():
                raise InvalidArgument(
                    f"rank {self._rank}: the last call on key {key.name!r} was cut short: make it again, or "
                    f"pull({key.name!r}), before another one"
                ) from None
            raise

    def _resume(self, key: KeyState, limits: tuple[float, float]) -> None:
        """Sends the rest of a start that was cut short; if none was, C refuses this like any other call."""
        address, keep = self._address, self._keep
        self._until(lambda left: _start(address, key.index, key.flags, None, key.nbytes, keep, left), *limits)

    def _wait(self, key: KeyState, ticket: int, timeout: float | None) -> None:
        address, index, keep = self._address, key.index, self._keep
        status = _wait(address, index, ticket, keep, self._first(timeout))
        if status:
            self._until(lambda left: _wait(address, index, ticket, keep, left), *self._limits(timeout), status)
        self._came(key)

    def _first(self, timeout: float | None) -> float:
        """Returns the seconds of the first slice of a wait, after which Python handles signals."""
        return self._slice if timeout is None else min(seconds(timeout, timeout), SLICE)

    def _limits(self, timeout: float | None) -> tuple[float, float]:
        """Returns the timeout in seconds and the deadline of a call whose first slice is over."""
        limit = seconds(timeout, self._usual())
        return limit, monotonic() + limit - min(limit, SLICE)

    def _usual(self) -> float:
        """Returns the timeout of a call that gives none: the context's default, or by EngineOptions.patience."""
        return float(_core.exchange_stats(self._handle)["timeout"]) if self._learns else self._default

    def _until(self, call: Callable[[float], int], limit: float, deadline: float, status: int | None = None) -> int:
        """Repeats call(seconds) until it returns 0 or more, and returns this value. status: the result of an earlier
        slice; None: no slice was made, so call is made once even after the deadline."""
        before = _core.slices_limit(limit)
        try:
            while status is None or is_slice_over(status):
                left = deadline - monotonic()
                if left <= 0 and status is not None:
                    raise error(status, limit)
                status = call(min(max(left, 0.0), SLICE))
            if status < 0:
                raise error(status, limit)
            return status
        finally:
            _core.slices_limit(before)

    # ---- a step ----

    def _take_step(self, grads: Any, timeout: float | None) -> None:
        limit = seconds(timeout, self._usual())
        deadline = monotonic() + limit
        left = self._left
        if left is None:
            left = self._new_step(grads, deadline)
        elif grads is not None and grads is not left.grads:
            raise InvalidArgument(
                f"rank {self._rank}: the last step has not ended: call step() without gradients to finish it"
            )
        order, sources, sizes, _ = left
        address, words, keep = self._address, self._words, self._keep
        self._left, self._keys = left, {}
        try:
            status = _step(address, order, words, sources, sizes, keep, min(limit, SLICE))
            if status:
                self._until(
                    lambda left: _step(address, order, words, sources, sizes, keep, left), limit, deadline, status
                )
        except Timeout:
            raise
        except HpcommError:
            self._left, self._keys = None, self._every
            raise
        except _WRONG as wrong:
            raise InvalidArgument(f"rank {self._rank}: a gradient of the step cannot be read: {wrong}") from None
        self._left, self._keys = None, self._every
        for key in self._every.values() if self._models is not None else ():
            self._came(key)

    # ---- checks ----

    def _end(self) -> None:
        """Marks the exchange as closed: it refuses calls from here on."""
        self._closed, self._left, self._keys = True, None, self._every

    def _check_open(self, op: str) -> None:
        if self._closed:
            raise InvalidArgument(f"rank {self._rank}: {op}: the exchange is closed")

    def _check_idle(self, op: str) -> None:
        self._check_open(op)
        if self._left is not None:
            raise self._unfinished(op)
        if self._settles:
            _core.exchange_settle(self._handle, self._default)
        key = _core.exchange_under_way(self._handle)
        if key >= 0:
            raise InvalidArgument(self._under_way(op, key))

    def _under_way(self, op: str, key: int) -> str:
        name = next(one.name for one in self._every.values() if one.index == key)
        return f"rank {self._rank}: {op}: key {name!r} is under way: wait for its handle, or pull({name!r}), first"

    def _unfinished(self, op: str) -> InvalidArgument:
        return InvalidArgument(f"rank {self._rank}: {op}: the last step has not ended: call step() to finish it")

    def _key(self, name: str) -> KeyState:
        try:
            return self._keys[name]
        except (KeyError, TypeError):
            raise self._no_key(name) from None

    def _no_key(self, name: object) -> InvalidArgument:
        if self._left is not None:
            return self._unfinished(f"key {name!r}")
        return unknown(name, self._every, self._rank)

    def _new_step(self, grads: Any, deadline: float) -> Step:
        """Checks that all keys are idle and their gradients valid, and returns the step, ready to start."""
        plain = grads is None and not self._finite and not self._products
        step = self._in_place if plain else self._checked_step(grads, deadline)
        place = _ready(self._address, step.order)
        if place < 0:
            raise error(place)
        if place > 0:
            told = self._under_way("step", step.order[place - 1])
            raise InvalidArgument(f"{told}; nothing of the step was pushed")
        self._words[-2] = self._words[-1] = 0
        self._steps += 1
        for key in self._turning:
            key.gradient = None
        return step

    def _checked_step(self, grads: Any, deadline: float) -> Step:
        if grads is None:
            grads = dict.fromkeys(self._every)
        elif not isinstance(grads, Mapping):
            raise InvalidArgument(f"grads is a {type(grads).__name__}: must map every key to its gradient, or be None")
        keys = [self._key(name) for name in grads]
        if len(keys) != len(self._every):
            missing = [name for name in self._every if name not in grads]
            raise InvalidArgument(
                f"rank {self._rank}: grads has no {missing[0]!r}: step takes one for each of {len(self._every)} keys"
            )
        sources = [
            None if grad is None or grad is key.gradient else key.source(grad)
            for key, given in zip(keys, grads.values(), strict=True)
            for grad in [key.from_pairs if given is None else given]
        ]
        for key, source in zip(keys, sources, strict=True):
            if self._finite:
                found = source
                if found is None:
                    found = self._gradient(key, max(0.0, deadline - monotonic()))
                key.check_finite(found, self._rank)
        foreign = any(source is not None for source in sources)
        return Step(
            array("i", [key.index for key in keys]),
            sources if foreign else None,
            array("Q", [key.nbytes for key in keys]),
            grads,
        )


class Handle:
    """A started operation: a push, a pull or both, from push_nb, pull_nb or push_pull_nb, or a call of Exchange.split.

    Attributes:
        name: the key's name.
        done: whether test or wait has found that the operation has ended.
    """

    __slots__ = ("_exchange", "_key", "_pulls", "_ticket", "done", "name")

    def __init__(self, exchange: Calls, key: KeyState, ticket: int, *, pulls: bool) -> None:
        self._exchange, self._key, self._ticket, self._pulls = exchange, key, ticket, pulls
        self.name = key.name
        self.done = False

    def test(self) -> bool:
        """Returns whether the operation has ended, without waiting. With inline progress it works on updates that have
        come.

        Raises:
            PeerFailed: the operation can never end.
        """
        if not self.done:
            status = _test(self._exchange._address, self._key.index, self._ticket, self._exchange._keep)
            if status < 0:
                raise error(status)
            if status == 0:
                self._exchange._came(self._key)
                self.done = True
        return self.done

    def wait(self, timeout: float | None = None) -> Any:
        """Waits until the operation has ended. Returns the key's parameters if it pulls, otherwise None.

        Args:
            timeout: seconds; None means the context's default.

        Raises:
            Timeout, PeerFailed: the error names the ranks still waited for. After a Timeout wait may be called again.
        """
        if not self.done:
            self._exchange._wait(self._key, self._ticket, timeout)
            self.done = True
        return self._key.params if self._pulls else None

    def __repr__(self) -> str:
        return f"<hpcomm.exchange.Handle of {self.name!r}, {'done' if self.done else 'under way'}>"

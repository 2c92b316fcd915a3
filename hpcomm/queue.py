"""Receive queues: NOTIFY-ACK between a rank and its neighbours (ASAP, sections 4 and 5)."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _core
from ._core import from_buffer as _from_buffer
from ._core import seconds
from .errors import InvalidArgument, NotSupported
from .stats import QueueStats
from .window import as_source, size_of


class Queue:
    """Updates from in-peers to this rank and from this rank to out-peers; made by Context.receive_queue.

    A sender writes an update into its slot at the receiver and notifies; the receiver folds it and acknowledges; only
    then does the sender write that slot again (NOTIFY-ACK: ASAP, sections 4 and 5). Send to every out-peer before
    waiting for in-peers: a ring of ranks that all receive first would wait for ever.

    Attributes:
        in_peers, out_peers: ranks.
        shape, dtype, nbytes: of one update, the same on every rank.
        depth: the most pending updates of one sender.
        buffers: this rank's registered buffers, which peers read in place; write between acquire and send only.

    Every method raises InvalidArgument for an argument out of range or of another shape or dtype than an update,
    Timeout and PeerFailed with the ranks still waited for. A queue belongs to one thread at a time.
    """

    __slots__ = (
        "__weakref__",
        "_default",
        "_next",
        "_pointer",
        "_queue",
        "_rank",
        "_slots",
        "_unsent",
        "buffers",
        "context",
        "depth",
        "dtype",
        "in_peers",
        "nbytes",
        "out_peers",
        "shape",
    )

    def __init__(
        self,
        context: object,
        context_handle: Any,
        *,
        rank: int,
        in_peers: tuple[int, ...],
        out_peers: tuple[int, ...],
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        depth: int,
        buffers: int,
        default: float,
        timeout: float,
    ) -> None:
        self.context = context  # keeps it open
        self.in_peers, self.out_peers = in_peers, out_peers
        self.shape, self.dtype, self.depth = shape, dtype, depth
        self.nbytes = size_of(shape, dtype)
        self._rank, self._default = rank, default
        self._queue = _core.queue_create(
            context_handle, in_peers, out_peers, self.nbytes, depth, buffers, f"{dtype} {shape}", timeout
        )
        own = _core.queue_memory(self._queue, rank)
        self.buffers: list[NDArray[Any]] = [
            _core.mapped([own], _core.queue_buffer(self._queue, i), shape, dtype, True) for i in range(buffers)
        ]
        self._next = 0
        self._pointer = _core.new_pointer()
        self._slots: dict[tuple[int, int], NDArray[Any]] = {}  # by peer and address
        self._unsent: dict[int, tuple[object, Any]] = {}  # by peer: the update whose send did not end

    def __repr__(self) -> str:
        return (
            f"<hpcomm.Queue rank {self._rank}, {self.dtype} {self.shape}, in {list(self.in_peers)}, "
            f"out {list(self.out_peers)}, depth {self.depth}, {len(self.buffers)} buffers>"
        )

    # ---- sending ---------------------------------------------------------------------------------------------------

    def acquire(self, i: int | None = None, timeout: float | None = None) -> NDArray[Any]:
        """Registered buffer i (None: the next in rotation), once every peer that it was sent to has acknowledged it."""
        n = len(self.buffers)
        which = self._next if i is None else i
        if not 0 <= which < n:
            raise InvalidArgument(f"buffer is {which}: this queue has {n}; make it with buffers=2 or more")
        self._wait(lambda left: _core.queue_acquire(self._queue, which, left), timeout)
        if i is None:
            self._next = (which + 1) % n
        return self.buffers[which]

    def send(self, peer: int, update: object, timeout: float | None = None) -> None:
        """Waits for a free slot at peer, writes the update there and notifies. The update may be reused on return,
        unless it is a registered buffer; a queue with buffers sends nothing else. After a Timeout send the same object
        again, unchanged: it is not sent twice."""
        given, data = self._unsent.get(peer, (None, None))
        if given is not update:
            data = _from_buffer(self._update(update, "update"))
        n = len(data)
        try:
            self._wait(lambda left: _core.queue_send(self._queue, peer, data, n, left), timeout)
        except InvalidArgument:
            raise
        except BaseException:
            self._unsent[peer] = (update, data)  # the wire may still read it
            raise
        self._unsent.pop(peer, None)

    def send_all(self, update: object, timeout: float | None = None) -> None:
        """Sends to every out-peer, in their order; timeout is for each."""
        for peer in self.out_peers:
            self.send(peer, update, timeout)

    # ---- receiving -------------------------------------------------------------------------------------------------

    def recv(self, peer: int, timeout: float | None = None) -> NDArray[Any]:
        """The next update of peer, in place and read-only, valid until its ack. Up to depth may be held."""
        pointer = self._pointer
        self._wait(lambda left: _core.queue_recv(self._queue, peer, pointer, left), timeout)
        place = (peer, _core.address_of(pointer[0]))
        found = self._slots.get(place)
        if found is None:
            memories = [_core.queue_memory(self._queue, self._rank), _core.queue_memory(self._queue, peer)]
            found = self._slots[place] = _core.mapped(memories, place[1], self.shape, self.dtype, False)
        return found.view()  # type: ignore[no-any-return]

    def ack(self, peer: int) -> None:
        """Frees the slot of the oldest update of peer that recv gave."""
        self._check_peer(peer)
        _core.check(_core.queue_ack(self._queue, peer))

    def reduce(
        self,
        own: object,
        out: Any = None,
        weights: Sequence[float] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """The next update of every in-peer, acknowledged, and folded with own in the queue's dtype and in this order:
        weights[0]*own + weights[1]*in_peers[0]'s + ... Raises NotSupported unless that is float32 or float64.

        Args:
            own: this rank's update.
            out: the array for the sum, which is returned; may be own. None: a new array.
            weights: len(in_peers) + 1 numbers, own's first. None: the mean.
            timeout: seconds for all of it; None: the context's default.
        """
        kind = _core.DTYPES.get(self.dtype.name)
        if kind is None or not self.dtype.isnative:
            raise NotSupported(f"reduce: updates are {self.dtype}; only float32 and float64 can be folded")
        n = len(self.in_peers) + 1
        factors = (1.0 / n,) * n if weights is None else tuple(float(weight) for weight in weights)
        if len(factors) != n or not all(map(math.isfinite, factors)):
            raise InvalidArgument(f"weights are {factors}: must be {n} finite numbers, own's first")
        source = _from_buffer(self._update(own, "own"))
        result = np.empty(self.shape, self.dtype) if out is None else out
        target = self._update(result, "out")
        try:
            into = _from_buffer(target, require_writable=True)
        except (BufferError, ValueError):
            raise InvalidArgument("out is read-only") from None
        others = _core.weights(factors[1:])
        self._wait(lambda left: _core.queue_reduce(self._queue, into, source, factors[0], others, kind, left), timeout)
        return result

    # ---- counts ----------------------------------------------------------------------------------------------------

    def versions(self, peer: int) -> tuple[int, int]:
        """The versions before and behind the update that recv(peer) gave last: equal if it is whole."""
        self._check_peer(peer)
        return _core.queue_versions(self._queue, peer)

    def stats(self) -> QueueStats:
        return QueueStats(**_core.queue_stats(self._queue))

    # ---- checks ----------------------------------------------------------------------------------------------------

    def _update(self, update: Any, name: str) -> Any:
        update = np.asarray(as_source(update))
        if update.dtype != self.dtype or update.shape != self.shape:
            raise InvalidArgument(f"{name} is {update.dtype} {update.shape}: must be {self.dtype} {self.shape}")
        return update

    def _check_peer(self, peer: int) -> None:
        if peer not in self.in_peers:
            raise InvalidArgument(f"peer is {peer!r}: must be one of in_peers {list(self.in_peers)}")

    def _wait(self, call: Any, timeout: float | None) -> None:
        try:
            _core.wait(call, seconds(timeout, self._default))
        except OverflowError as wrong:
            raise InvalidArgument(f"peer is no rank: {wrong}") from None


def as_peers(peers: Iterable[int], name: str) -> tuple[int, ...]:
    """Ranks as a tuple of ints; C looks at their values, and tells every rank of a wrong one."""
    try:
        return tuple(int(peer.__index__()) for peer in peers)
    except (AttributeError, TypeError):
        raise InvalidArgument(f"{name} is {peers!r}: must be a sequence of ranks") from None

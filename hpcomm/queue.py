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
    """Carries updates from in-peers to this rank and from this rank to out-peers; Context.receive_queue makes a Queue.

    A sender writes an update into its slot at the receiver and notifies the receiver. The receiver folds the update and
    acknowledges it, and only then may the sender write that slot again (NOTIFY-ACK: ASAP, sections 4 and 5). Send to
    all out-peers before you wait for in-peers: a ring of ranks that all receive first would wait for ever.

    Attributes:
        in_peers: the ranks that send to this rank.
        out_peers: the ranks to which this rank sends.
        shape, dtype, nbytes: the shape, the dtype and the size in bytes of one update, the same on every rank.
        depth: the number of slots of each sender, which is how many of its updates may be pending.
        buffers: this rank's registered buffers, which peers on the host read directly. Write into a buffer only between
            Queue.acquire() and Queue.send().

    Every method raises InvalidArgument for an argument out of range, and for an array without the shape and dtype of an
    update. In Timeout and PeerFailed the attribute waiting_for has the ranks for which the call still waited. Only one
    thread may use a queue at a time.
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
        self._unsent: dict[int, tuple[object, Any]] = {}  # by peer: the update whose send was interrupted

    def __repr__(self) -> str:
        return (
            f"<hpcomm.Queue rank {self._rank}, {self.dtype} {self.shape}, in {list(self.in_peers)}, "
            f"out {list(self.out_peers)}, depth {self.depth}, {len(self.buffers)} buffers>"
        )

    # ---- sending ---------------------------------------------------------------------------------------------------

    def acquire(self, i: int | None = None, timeout: float | None = None) -> NDArray[Any]:
        """Waits until every peer to which buffer i was sent has acknowledged the buffer, and returns the buffer. i=None
        takes the next buffer in rotation."""
        n = len(self.buffers)
        which = self._next if i is None else i
        if not 0 <= which < n:
            raise InvalidArgument(f"buffer is {which}: this queue has {n}; make it with buffers=2 or more")
        self._wait(lambda left: _core.queue_acquire(self._queue, which, left), timeout)
        if i is None:
            self._next = (which + 1) % n
        return self.buffers[which]

    def send(self, peer: int, update: object, timeout: float | None = None) -> None:
        """Waits for a free slot at the peer, writes the update into the slot and notifies the peer.

        When send returns, the update's memory may be used again, unless it is a registered buffer. A queue that has
        buffers can send nothing but these buffers. After a Timeout, call send again with the same object, unchanged;
        the update still arrives only once.
        """
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
        """Sends the update to every out-peer, in order. The timeout, in seconds, applies to each peer separately."""
        for peer in self.out_peers:
            self.send(peer, update, timeout)

    # ---- receiving -------------------------------------------------------------------------------------------------

    def recv(self, peer: int, timeout: float | None = None) -> NDArray[Any]:
        """Waits for the peer's next update and returns it without a copy: a read-only array, valid until ack(peer). A
        caller may hold up to `depth` updates of a peer."""
        pointer = self._pointer
        self._wait(lambda left: _core.queue_recv(self._queue, peer, pointer, left), timeout)
        place = (peer, _core.address_of(pointer[0]))
        found = self._slots.get(place)
        if found is None:
            memories = [_core.queue_memory(self._queue, self._rank), _core.queue_memory(self._queue, peer)]
            found = self._slots[place] = _core.mapped(memories, place[1], self.shape, self.dtype, False)
        return found.view()  # type: ignore[no-any-return]

    def ack(self, peer: int) -> None:
        """Frees the slot of the oldest update that recv(peer) has returned and that is not acknowledged yet."""
        self._check_peer(peer)
        _core.check(_core.queue_ack(self._queue, peer))

    def reduce(
        self,
        own: object,
        out: Any = None,
        weights: Sequence[float] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Waits for the next update of every in-peer, acknowledges these updates, and returns the weighted sum of them
        and of this rank's own update.

        The sum is weights[0]*own + weights[1]*in_peers[0]'s + ..., in this order and in the queue's dtype. Raises
        NotSupported unless that dtype is float32 or float64.

        Args:
            own: this rank's update.
            out: the array for the sum, which is returned; it may be own. None: a new array.
            weights: len(in_peers) + 1 numbers, own's first. None: all are 1 / (len(in_peers) + 1), which gives the
                mean.
            timeout: seconds for the whole call; None: the context's default.
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
        """Returns the two version numbers that lie before and behind the update that recv(peer) returned last. The
        numbers are equal if the update is whole."""
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
    """Returns ranks as a tuple of ints. Their values are not checked here: C checks them, and raises the error on every
    rank."""
    try:
        return tuple(int(peer.__index__()) for peer in peers)
    except (AttributeError, TypeError):
        raise InvalidArgument(f"{name} is {peers!r}: must be a sequence of ranks") from None

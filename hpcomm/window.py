"""Windows, memory of each rank that all its peers may write, and signals, words that become visible after the data."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _core
from ._core import NULL, address_of, error, seconds
from ._core import from_buffer as _from_buffer
from ._core import put as _put
from ._core import put_notify as _put_notify
from ._core import put_signal as _put_signal
from ._core import test_signal as _test_signal
from ._core import wait_signal as _wait_signal
from .errors import InvalidArgument

_ndarray = np.ndarray
_UINT8 = np.dtype(np.uint8)
_WRONG = (TypeError, ValueError, OverflowError, BufferError)
_SMALL = 4096  # bytes: a source up to this size is remembered as checked, so a repeated put skips the check
_HELD_PUTS = 1024  # sources kept alive for a transport that reads them after put returns; at so many, put flushes


class Sources:
    """For each lane, the sources that puts may not have read yet, and the calls of collectives that are not over. They
    stay alive until a flush of the lane, or the end of the call, or until the last handle is freed."""

    __slots__ = ("calls", "deferred", "lanes")

    def __init__(self) -> None:
        self.deferred = False  # whether some transport of this context reads a source after put has returned
        self.lanes: list[list[Any]] = []
        self.calls: Any = None  # the context's own


class Lane:
    """One thread's ordered channel to every peer; Context.lane makes it.

    A signal is ordered only behind data that was put by the same lane. In methods lane=None means the context's first
    lane.
    """

    __slots__ = ("__weakref__", "address", "context", "handle", "sources", "unread")

    def __init__(self, context: object, handle: Any, sources: Sources) -> None:
        self.context = context  # keeps it open
        self.handle = handle
        self.address = address_of(handle)
        self.sources = sources
        self.unread: list[Any] = []
        sources.lanes.append(self.unread)


def as_shape(shape: object, what: str = "shape") -> tuple[int, ...]:
    """Returns a shape as a tuple of ints, 0 or more; raises InvalidArgument for another value."""
    try:
        sizes = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)  # type: ignore[arg-type]
        whole = tuple(int(size.__index__()) for size in sizes)
    except (AttributeError, TypeError):
        raise InvalidArgument(f"{what} is {shape!r}: must be an int or a sequence of ints") from None
    if any(size < 0 for size in whole):
        raise InvalidArgument(f"{what} is {shape!r}: no size may be negative")
    return whole


def as_dtype(dtype: object) -> np.dtype[Any]:
    """Returns a dtype; raises InvalidArgument for one that holds references to Python objects, or whose elements have
    no bytes."""
    try:
        found = np.dtype(dtype)  # type: ignore[call-overload]
    except TypeError as wrong:
        raise InvalidArgument(f"dtype is {dtype!r}: {wrong}") from None
    if found.hasobject or found.itemsize == 0:
        raise InvalidArgument(f"dtype is {found}: its elements must be plain bytes of a fixed size")
    return found  # type: ignore[no-any-return]


def window_shape(shape: object, dtype: object) -> tuple[tuple[int, ...], np.dtype[Any] | None]:
    """Returns shape and dtype for the arguments of window(nbytes) or window(shape, dtype); dtype None means bytes."""
    if dtype is not None:
        return as_shape(shape), as_dtype(dtype)
    if not isinstance(shape, int | np.integer):
        raise InvalidArgument(f"window({shape!r}): give a dtype with a shape, or a number of bytes")
    return as_shape(shape, "nbytes"), None


def size_of(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    nbytes = dtype.itemsize
    for size in shape:
        nbytes *= size
    if nbytes >= 2**63:
        raise InvalidArgument(f"{dtype} {shape} is {nbytes} bytes: more than any address space has")
    return nbytes


def as_source(src: object) -> Any:
    """Returns src if it has the buffer protocol, otherwise an array over its DLPack memory. It checks src and never
    copies."""
    if not isinstance(src, np.ndarray) and hasattr(src, "__dlpack__"):
        try:
            src = np.from_dlpack(src)
        except Exception as wrong:  # a library's own exception
            raise InvalidArgument(f"a {type(src).__name__} cannot be read through DLPack: {wrong}") from None
    if isinstance(src, np.ndarray):
        if src.dtype.hasobject:
            raise InvalidArgument(f"an array of dtype {src.dtype} holds references to Python objects, not their bytes")
        if not src.flags.c_contiguous:
            raise InvalidArgument(
                f"an array of shape {src.shape} and strides {src.strides} is not C-contiguous: see np.ascontiguousarray"
            )
        return src
    try:
        view = memoryview(src)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgument(f"a {type(src).__name__} has neither the buffer protocol nor DLPack") from None
    if not view.c_contiguous or "O" in view.format:
        raise InvalidArgument(f"a {type(src).__name__} of format {view.format!r} must be C-contiguous plain bytes")
    return src


class Window:
    """A block of memory of each rank that all its peers may write; Context.window makes it.

    Attributes:
        array: this rank's own block. Its memory stays mapped as long as this array lives.
        nbytes: the size of a block, the same on every rank.
        signals: the number of signal words in a block. Each word must have only one writer, and its value must never
            decrease.

    Offsets are in bytes. A source must be C-contiguous and have the buffer protocol or DLPack; its dtype must be bytes,
    or the window's dtype if the window has one. Every method raises InvalidArgument for an argument out of range, and
    PeerFailed if the peer has failed or left.
    """

    __slots__ = (
        "__weakref__",
        "_accepted",
        "_address",
        "_checked",
        "_default",
        "_deferred",
        "_dtype",
        "_lane",
        "_rank",
        "_size",
        "_slice",
        "_typed",
        "_window",
        "array",
        "context",
        "nbytes",
        "signals",
    )

    def __init__(
        self,
        context: object,
        handle: Any,
        *,
        rank: int,
        size: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any] | None,
        signals: int,
        timeout: float,
        lane: Lane,
    ) -> None:
        self.context = context  # keeps it open
        self._window = handle
        self._address = address_of(handle)
        self._rank, self._size = rank, size
        self._typed = dtype is not None
        self._dtype: np.dtype[Any] = _UINT8 if dtype is None else dtype
        self._accepted = self._dtype  # the dtype of the last checked array
        self._checked: object = None  # the last checked small array, as a loop often puts the same one
        self._default = timeout
        self._slice = min(timeout, _core.SLICE)
        self._lane = lane
        self._deferred = lane.sources.deferred
        self.nbytes = size_of(shape, self._dtype)
        self.signals = signals
        own = _core.window_array(handle, rank, shape, self._dtype)
        assert own is not None
        self.array: NDArray[Any] = own

    def __repr__(self) -> str:
        return f"<hpcomm.Window rank {self._rank}, {self._dtype} {self.array.shape}, {self.signals} signals>"

    # ---- put -------------------------------------------------------------------------------------------------------

    def put(self, peer: int, src: object, offset: int = 0, *, lane: Lane | None = None) -> None:
        """Writes src into the peer's block at this offset. The caller must not change src before flush(peer) has
        returned. The first put to a peer waits until the peer's process has answered, for init_timeout at most, and
        raises Timeout after that."""
        try:
            if src is None or (
                src is not self._checked and (type(src) is not _ndarray or src.dtype is not self._accepted)
            ):
                src = self._source(src)
            status = _put(0 if lane is None else lane.address, self._address, peer, src, offset)
        except _WRONG as wrong:
            raise self._explained(wrong, src, peer=peer, offset=offset) from None
        if status:
            raise error(status)
        if self._deferred:
            self._hold(lane, src)

    def put_signal(
        self, peer: int, src: object, offset: int = 0, *, signal: int, value: int, lane: Lane | None = None
    ) -> None:
        """Puts src (unless it is None), then stores value in the peer's signal word. A thread that sees this value also
        sees src and all earlier puts of the lane."""
        try:
            if (
                src is not self._checked
                and src is not None
                and (type(src) is not _ndarray or src.dtype is not self._accepted)
            ):
                src = self._source(src)
            status = _put_signal(0 if lane is None else lane.address, self._address, peer, src, offset, signal, value)
        except _WRONG as wrong:
            raise self._explained(wrong, src, peer=peer, offset=offset, signal=signal, value=value) from None
        if status:
            raise error(status)
        if self._deferred:
            self._hold(lane, src)

    def put_notify(
        self,
        peer: int,
        src: object,
        offset: int = 0,
        *,
        imm: int,
        timeout: float | None = None,
        lane: Lane | None = None,
    ) -> None:
        """Puts src, then sends an event with the 32-bit value imm to the peer, whose Context.poll of the same lane
        returns it. Raises Timeout if the peer has no room for an event until the deadline, or has not answered this
        rank's first put yet."""
        limit = self._default if timeout is None else seconds(timeout, self._default)
        channel = NULL if lane is None else lane.handle
        src = self._source(src)
        try:
            data = _from_buffer(src)
            n = len(data)
            _core.wait(lambda left: _put_notify(channel, self._window, peer, data, n, offset, imm, left), limit)
        except OverflowError as wrong:
            raise self._explained(wrong, src, peer=peer, offset=offset, imm=imm) from None
        if self._deferred:
            self._hold(lane, data)

    def flush(self, peer: int = -1, timeout: float | None = None, *, lane: Lane | None = None) -> None:
        """Waits until every earlier put of this lane to peer has arrived; -1 means all peers. Then the sources may
        change. Raises Timeout or PeerFailed; their attribute waiting_for has the ranks whose puts have not arrived."""
        channel = NULL if lane is None else lane.handle
        try:
            _core.wait(lambda left: _core.flush(channel, self._window, peer, left), seconds(timeout, self._default))
        except OverflowError as wrong:
            raise self._explained(wrong, None, peer=peer) from None
        if self._deferred and peer == -1:
            (lane or self._lane).unread.clear()

    # ---- signals ---------------------------------------------------------------------------------------------------

    def wait_signal(self, signal: int, at_least: int, timeout: float | None = None, peer: int = -1) -> int:
        """Waits until a signal word of this rank has reached the value `at_least`, and returns the word's value. Any
        thread may call it; the GIL is released meanwhile.

        Args:
            signal: the number of the word, from 0.
            at_least: the smallest value that ends the wait.
            timeout: seconds until Timeout is raised; None: the context's default.
            peer: the rank that writes the word; -1: not known. PeerFailed is raised if this rank has left, or if any
                rank has failed.
        """
        try:
            first = self._slice if timeout is None else min(seconds(timeout, timeout), _core.SLICE)
            value = _wait_signal(self._address, signal, at_least, peer, first)
            if value < 0:
                return self._keep_waiting(value, signal, at_least, timeout, peer)
        except _WRONG as wrong:
            raise self._explained(wrong, None, signal=signal, at_least=at_least, peer=peer, timeout=timeout) from None
        return value

    def _keep_waiting(self, status: int, signal: int, at_least: int, timeout: float | None, peer: int) -> int:
        value = status

        def again(left: float) -> int:
            nonlocal value
            value = _wait_signal(self._address, signal, at_least, peer, left)
            return min(value, 0)

        limit = seconds(timeout, self._default)
        waited = min(limit, _core.SLICE)
        if not _core.is_slice_over(status) or waited >= limit:
            raise error(status, limit)
        _core.wait(again, limit, waited)
        return value

    def test_signal(self, signal: int, at_least: int) -> bool:
        """Returns whether a signal word of this rank has reached the value `at_least`. Never waits."""
        try:
            status = _test_signal(self._address, signal, at_least)
        except _WRONG as wrong:
            raise self._explained(wrong, None, signal=signal, at_least=at_least) from None
        if status < 0:
            raise error(status)
        return status == 0

    # ---- views -----------------------------------------------------------------------------------------------------

    def peer_view(self, peer: int) -> NDArray[Any] | None:
        """Returns the peer's block as an array of the window's shape and dtype, or None if this process cannot map the
        peer's memory. The array shows the peer's writes while they happen; wait for a signal before you read."""
        if not 0 <= peer < self._size:
            raise InvalidArgument(f"peer is {peer!r}: must be from 0 to {self._size - 1}")
        return _core.window_array(self._window, peer, self.array.shape, self._dtype)

    # ---- checks ----------------------------------------------------------------------------------------------------

    def _source(self, src: Any) -> Any:
        """Returns src, or an array over its DLPack memory; raises InvalidArgument if src may not be put into this
        window."""
        if type(src) is bytes:
            return src
        if type(src) is not np.ndarray or src.dtype is not self._accepted:
            src = as_source(src)
            dtype = getattr(src, "dtype", None)
            if dtype is None:
                return src
            if self._typed and dtype not in (self._dtype, _UINT8):
                raise InvalidArgument(f"src is {dtype}, the window {self._dtype}: pass its view(np.uint8) to put bytes")
            self._accepted = dtype
        if src.nbytes <= _SMALL:
            self._checked = src
        return src

    def _explained(self, wrong: Exception, src: object, **arguments: object) -> Exception:
        """Returns the error to raise when a conversion to C failed: it names the argument that is out of range,
        otherwise the source."""
        if isinstance(wrong, InvalidArgument):
            return wrong
        limits = {
            "peer": (-1, self._size - 1),  # -1: all, or unknown
            "signal": (0, self.signals - 1),
            "offset": (0, self.nbytes),
            "value": (0, 2**64 - 1),
            "at_least": (0, 2**64 - 1),
            "imm": (0, 2**32 - 1),
        }
        for name, (low, high) in limits.items():
            given = arguments.get(name)
            if isinstance(given, int) and not low <= given <= high:
                return InvalidArgument(f"{name} is {given}: must be from {max(low, 0)} to {high}")
        if isinstance(wrong, TypeError) or src is None:
            return wrong
        try:
            as_source(src)
        except InvalidArgument as found:
            return found
        return InvalidArgument(f"src cannot be read: {wrong}")

    def _hold(self, lane: Lane | None, data: Any) -> None:
        """Keeps a source alive until the next flush, as the transport may still read it."""
        unread = (lane or self._lane).unread
        unread.append(data)
        if len(unread) >= _HELD_PUTS:
            self.flush(lane=lane)

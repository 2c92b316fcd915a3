"""One call: its arrays, its C call and, once started, its C work. And the started calls of a context."""

import pickle
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._core import OPS, array_address, error, seconds
from ..config import Config
from ..errors import HpcommError, InvalidArgument, Timeout
from ..window import Sources
from .arrays import element_of

_WHAT = _core.COLLECTIVES
_SUM = OPS["sum"]
_IN_PLACE = {  # hints
    "allreduce": ", or out=array",
    "reduce": ", or out=array",
    "reduce_scatter": ", or this rank's block of array",
    "allgather": ", or array as this rank's block of out",
    "gather": ", or array as this rank's block of out",
    "scatter": ", or this rank's block of array",
}


class Extent:
    """One array of a call: its first byte's address, its size in bytes, and the object that keeps it alive."""

    __slots__ = ("address", "array", "end")

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self.address = array_address(array)
        self.end = self.address + array.nbytes

    def overlaps(self, other: "Extent") -> bool:
        return (
            self.address < other.end
            and other.address < self.end
            and self.address < self.end
            and other.address < other.end
        )


class OneCall:
    """A checked call: its arrays, the result on this rank and, once started, the state of its C work."""

    __slots__ = ("_box", "failure", "is_over", "name", "recv", "result", "send")

    def __init__(self, name: str, send: Extent | None, recv: Extent | None, result: Any = None) -> None:
        """send: memory that the call reads; recv: memory that it writes."""
        self.name, self.send, self.recv, self.result = name, send, recv, result
        self.failure: HpcommError | None = None
        self.is_over = False
        self._box = _core.new_request()  # C writes the work into it

    def disturbs(self, other: "OneCall") -> bool:
        """Returns whether one of two started calls writes memory that the other one uses."""
        mine, its = self.recv, other.recv
        return (mine is not None and any(part is not None and mine.overlaps(part) for part in (its, other.send))) or (
            its is not None and self.send is not None and its.overlaps(self.send)
        )

    def test(self) -> bool:
        """Returns whether the call is over or has failed; its failure is kept."""
        if not self.is_over:
            status = _core.work_test(self._box[0])
            if status > 0:
                return False
            self._end(error(status) if status < 0 else None)
        return True

    def wait(self, timeout: float) -> None:
        if not self.is_over:
            try:
                _core.work_wait(self._box[0], timeout)
            except Timeout:
                raise
            except HpcommError as failure:
                self._end(failure)
            else:
                self._end(None)
        if self.failure is not None:
            raise self.failure

    def give_up(self) -> None:
        """Ends the call if it is not over."""
        if not self.is_over:
            self.is_over = True
            self._free()

    def _end(self, failure: HpcommError | None) -> None:
        self.is_over, self.failure = True, failure
        self._free()

    def _free(self) -> None:
        _core.work_free(self._box[0])
        self._box = None


class ArrayCall(OneCall):
    """A collective call. If it is given up before its end, the context makes no further ones."""

    __slots__ = ("_c",)

    def __init__(
        self,
        name: str,
        dtype: np.dtype[Any],
        *,
        op: int = _SUM,
        root: int = 0,
        send: NDArray[Any] | None = None,
        recv: NDArray[Any] | None = None,
        count: int = 0,
        send_counts: tuple[int, ...] | None = None,
        recv_counts: tuple[int, ...] | None = None,
        own: int | None = None,
        result: Any = None,
    ) -> None:
        """own: where this rank's block lies in the larger one of the two arrays, in bytes: only there may they overlap.
        None: nowhere."""
        a = None if send is None else Extent(send)
        b = None if recv is None else a if recv is send else Extent(recv)
        super().__init__(name, a, b, result)
        if a is not None and b is not None and a.overlaps(b):
            small, large = (a, b) if a.end - a.address <= b.end - b.address else (b, a)
            if own is None or small.address != large.address + own:
                raise InvalidArgument(f"{name}: array and out overlap: give another out{_IN_PLACE.get(name, '')}")
        self._c = _core.collective_call(
            _WHAT[name],
            element_of(dtype),
            op,
            root,
            0 if a is None else a.address,
            0 if b is None else b.address,
            count,
            send_counts,
            recv_counts,
        )

    def run(self, handle: Any, timeout: float) -> None:
        _core.collective_run(handle, self._c[0], timeout)
        self.is_over = True

    def start(self, handle: Any) -> None:
        _core.collective_start(handle, self._c[0], self._box)


class Work:
    """A started call; the methods of a Context whose names end in _nb return it.

    The arrays of the call belong to it until `test` has returned True or `wait` has returned: do not write them, and do
    not read its result. A Work may be dropped; the call then goes on in later calls of the context.

    Attributes:
        name: the name of the call, e.g. "allreduce".
    """

    __slots__ = ("__weakref__", "_call", "_default", "context", "name")

    def __init__(self, context: Any, call: OneCall, default: float) -> None:
        self.context = context  # keeps it open
        self.name = call.name
        self._call, self._default = call, default

    def test(self) -> bool:
        """Returns whether the call has ended, without waiting. It works on all started calls of the context.

        Raises:
            ConfigError: ranks made different calls; the error has both.
            PeerFailed: the call can never end.
        """
        if not self._call.test():
            return False
        if self._call.failure is not None:
            raise self._call.failure
        return True

    def wait(self, timeout: float | None = None) -> Any:
        """Waits until the call has ended, and returns what the call without _nb returns.

        Args:
            timeout: seconds; None means the context's default.

        Raises:
            ConfigError: ranks made different calls; the error has both.
            Timeout, PeerFailed: the error names the ranks that the call still waited for. After a Timeout wait may be
                called again.
        """
        self._call.wait(seconds(timeout, self._default))
        return self._call.result

    def __repr__(self) -> str:
        return f"<hpcomm.collective.Work of {self.name}, {'done' if self._call.is_over else 'going on'}>"


class Caller:
    """The started calls of a context. Collectives go on in their order, messages in any order."""

    __slots__ = ("_cuts", "_messages", "_most", "_quick", "_quick_recv", "_quick_send", "_started")

    rank: int
    size: int
    config: Config
    _handle: Any
    _cuts: list[tuple[int, type[BaseException]]]  # a collective that Ctrl-C has cut short, and the exception
    # These three make plain calls, and leave others. CPython 3.11 takes longer to call an attribute than a variable.
    _quick: Callable[..., bool]
    _quick_send: Callable[..., bool]
    _quick_recv: Callable[..., int | None]
    _started: deque[ArrayCall]  # calls that are over leave it at the next call
    _messages: set[OneCall]  # calls that are over leave it when they are asked
    _most: int  # with more messages than so many, the next start asks them all

    def _no_calls(self, sources: Sources) -> None:
        self._started, self._messages, self._most, self._cuts = deque(), set(), 16, []
        self._quick, self._quick_send, self._quick_recv = _core.quick_calls(
            self._handle, self.config.timeout, self._started, self._messages, self._cuts
        )
        sources.calls = self._started, self._messages

    def _ask_messages(self) -> None:
        for call in tuple(self._messages):
            call.test()
        self._most = 2 * len(self._messages) + 16

    def _until(self, timeout: float | None) -> float:
        return time.monotonic() + seconds(timeout, self.config.timeout)

    def _check_memory(self, call: OneCall) -> None:
        for other in (*self._started, *self._messages):
            if not other.is_over and call.disturbs(other) and not other.test():
                raise InvalidArgument(
                    f"{call.name}: its memory overlaps that of a started {other.name}: wait for that Work first, or "
                    "give other arrays"
                )


def left(until: float) -> float:
    return max(0.0, until - time.monotonic())


def pickled(value: Any) -> NDArray[np.uint8]:
    return np.frombuffer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), np.uint8)

"""One call: its arrays, its C call and, once started, its C work."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._core import OPS, array_address, error, seconds
from ..errors import HpcommError, InvalidArgument, Timeout
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


class ArrayCall:
    """A checked call: its arrays, the C call, the result on this rank and, once started, the state of its C work."""

    __slots__ = ("_c", "_work", "failure", "is_over", "name", "recv", "result", "send")

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
        self.name, self.result = name, result
        self.send = None if send is None else Extent(send)
        self.recv = None if recv is None else self.send if recv is send else Extent(recv)
        self.failure: HpcommError | None = None
        self.is_over = False
        self._work: Any = None
        a, b = self.send, self.recv
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

    def disturbs(self, other: "ArrayCall") -> bool:
        """Returns whether one of two started calls writes memory that the other one uses."""
        mine, its = self.recv, other.recv
        return (mine is not None and any(part is not None and mine.overlaps(part) for part in (its, other.send))) or (
            its is not None and self.send is not None and its.overlaps(self.send)
        )

    def run(self, handle: Any, timeout: float) -> None:
        _core.collective_run(handle, self._c[0], timeout)

    def start(self, handle: Any, *, first: bool = False) -> None:
        self._work = _core.collective_start(handle, self._c[0], first=first)

    def test(self) -> bool:
        """Returns whether the call is over or has failed; its failure is kept."""
        if not self.is_over:
            status = _core.work_test(self._work)
            if status > 0:
                return False
            self._end(error(status) if status < 0 else None)
        return True

    def wait(self, timeout: float) -> None:
        if not self.is_over:
            try:
                _core.work_wait(self._work, timeout)
            except Timeout:
                raise
            except HpcommError as failure:
                self._end(failure)
            else:
                self._end(None)
        if self.failure is not None:
            raise self.failure

    def give_up(self) -> None:
        """Ends the call if it is not over. The context then makes no further ones."""
        if not self.is_over:
            self._end(None)

    def _end(self, failure: HpcommError | None) -> None:
        self.is_over, self.failure = True, failure
        _core.work_free(self._work)
        self._work = None


class Work:
    """A started collective call; the methods of a Context whose names end in _nb return it.

    The arrays of the call belong to it until `test` has returned True or `wait` has returned: do not write them, and do
    not read its result. A Work may be dropped; the call then goes on in later calls of the context.

    Attributes:
        name: the name of the call, e.g. "allreduce".
    """

    __slots__ = ("__weakref__", "_call", "_default", "context", "name")

    def __init__(self, context: object, call: ArrayCall, default: float) -> None:
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

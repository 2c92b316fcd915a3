"""The methods of a Context in which all ranks exchange arrays and objects."""

import math
import pickle
import threading
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._core import seconds
from ..errors import ConfigError, HpcommError, InvalidArgument
from ..window import Sources
from .arrays import NUMBERS, as_array, as_op, as_out, check_writable, empty_joined, empty_like, empty_part
from .call import ArrayCall, Caller, Work, left, pickled

_WHAT = _core.COLLECTIVES
_NAMES = {number: name for name, number in _WHAT.items()}
_ALLREDUCE, _REDUCE, _REDUCE_SCATTER, _BROADCAST = (
    _WHAT[name] for name in ("allreduce", "reduce", "reduce_scatter", "broadcast")
)
_ALLGATHER, _GATHER, _SCATTER, _ALLTOALL = (_WHAT[name] for name in ("allgather", "gather", "scatter", "alltoall"))


class Collectives(Caller):
    """The collectives of arrays and objects; they are methods of Context.

    All ranks make the same calls in the same order, with equal dtypes, sizes, ops and roots. If they do not, every rank
    gets a ConfigError that names two of the calls and their ranks; a rank that needed nothing from others gets it in
    its next call. After a failure, or a call that a Timeout or Ctrl-C has cut short, the context makes no more of these
    calls; all of its other methods still work, and Context.shrink gives a context that makes them.

    An array is a NumPy array, a number, or an object with DLPack (a torch tensor) or the buffer protocol. It must be
    C-contiguous. dtypes are bool, all integers, float16, float32, float64, complex64, complex128 and ml_dtypes'
    bfloat16, in the machine's order of bytes. `out` is the array for the result, which the call returns; None makes a
    new one.

    `op` is "sum", "mean", "min", "max", "prod", "and", "or" or "xor". "mean" takes floats and complex numbers; "min"
    and "max" no complex numbers; "and", "or" and "xor" integers (bit by bit) and booleans. The elements of all ranks
    are combined in the order of ranks, and on several hosts first those of each host, so all ranks get the same bits,
    in every run and on every transport. Sums of integers wrap around; sums of booleans are "or".

    Calls that divide an array among ranks, or join the arrays of ranks, do so along the first axis, in the order of
    ranks. `counts` is a number of rows (elements of the first axis) for each rank; None: all ranks have equally many.

    Each call has two forms: `allreduce` waits for the end of the call, and `allreduce_nb` returns a Work with `test`
    and `wait(timeout)`, as Exchange.push_nb returns a Handle. They are two names, not one name with an option, so that
    each has one type of result. Started calls go on, in the order of their starts, in each later call, test and wait of
    the context.

    Every method raises InvalidArgument, before it sends anything, for an array or an out that it cannot take, an op
    that does not take the dtype, a wrong root, and memory that a started call still uses; ConfigError if ranks make
    different calls; Timeout and PeerFailed, which name the ranks that the call waited for. Only one thread at a time
    may make these calls.
    """

    __slots__ = ("_cut_call",)

    _cut_call: ArrayCall | None  # in which another thread may still be, and use its arrays

    def _no_calls(self, sources: Sources) -> None:
        super()._no_calls(sources)
        self._cut_call = None

    # ---- reductions ------------------------------------------------------------------------------------------------

    def allreduce(self, array: Any, op: str = "sum", out: Any = None, *, timeout: float | None = None) -> Any:
        """Returns the elements of all ranks' arrays, combined by op, on every rank.

        Args:
            array: of the same shape and dtype on every rank.
            op: how elements are combined.
            out: an array of array's shape and dtype; it may be array itself.
            timeout: seconds for the whole call; None means the context's default.
        """
        result = out
        if out is None:
            if type(array) is float:
                array = np.asarray(array)
            result = empty_like(array)
        quick = self._quick
        if quick(_ALLREDUCE, op, 0, array, result, timeout):
            return result
        return self._make(self._allreduce(array, op, out), timeout)

    def allreduce_nb(self, array: Any, op: str = "sum", out: Any = None) -> Work:
        """Starts an allreduce."""
        return self._begin_call(self._allreduce(array, op, out))

    def reduce(
        self, array: Any, op: str = "sum", root: int = 0, out: Any = None, *, timeout: float | None = None
    ) -> Any:
        """Returns the elements of all ranks' arrays, combined by op, on the root; None on other ranks.

        Args:
            array: of the same shape and dtype on every rank.
            op: how elements are combined.
            root: the rank that gets the result.
            out: on the root, an array of array's shape and dtype, which may be array itself. Other ranks' out is
                checked and stays as it is.
            timeout: seconds for the whole call; None means the context's default.
        """
        is_root = root.__class__ is int and root == self.rank
        result = empty_like(array) if out is None and is_root else out
        quick = self._quick
        if quick(_REDUCE, op, root, array, result, timeout):
            return result if is_root else None
        return self._make(self._reduce(array, op, root, out), timeout)

    def reduce_nb(self, array: Any, op: str = "sum", root: int = 0, out: Any = None) -> Work:
        """Starts a reduce."""
        return self._begin_call(self._reduce(array, op, root, out))

    def reduce_scatter(
        self,
        array: Any,
        op: str = "sum",
        out: Any = None,
        *,
        counts: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Combines all ranks' arrays by op, and returns this rank's block of rows of the result.

        Args:
            array: of the same shape and dtype on every rank.
            op: how elements are combined.
            out: an array of the block's shape, (counts[rank], *array.shape[1:]), and of array's dtype. It may be this
                rank's block of array.
            counts: the rows of each rank's block, the same on every rank.
            timeout: seconds for the whole call; None means the context's default.
        """
        if counts is None:
            result = empty_part(array, self.size) if out is None else out
            quick = self._quick
            if quick(_REDUCE_SCATTER, op, 0, array, result, timeout):
                return result
        return self._make(self._reduce_scatter(array, op, out, counts), timeout)

    def reduce_scatter_nb(
        self, array: Any, op: str = "sum", out: Any = None, *, counts: Sequence[int] | None = None
    ) -> Work:
        """Starts a reduce_scatter."""
        return self._begin_call(self._reduce_scatter(array, op, out, counts))

    # ---- copies ----------------------------------------------------------------------------------------------------

    def broadcast(self, array: Any, root: int = 0, *, timeout: float | None = None) -> Any:
        """Writes the root's elements into the arrays of all other ranks, and returns array.

        Args:
            array: of the same size and dtype on every rank; on the root it may be read-only.
            root: the rank whose elements are sent.
            timeout: seconds for the whole call; None means the context's default.
        """
        quick = self._quick
        if quick(_BROADCAST, "sum", root, None, array, timeout):
            return array
        return self._make(self._broadcast(array, root), timeout)

    def broadcast_nb(self, array: Any, root: int = 0) -> Work:
        """Starts a broadcast."""
        return self._begin_call(self._broadcast(array, root))

    @overload
    def allgather(self, data: bytes, timeout: float | None = None, /) -> list[bytes]: ...

    @overload
    def allgather(self, data: bytes, *, timeout: float | None = None) -> list[bytes]: ...

    @overload
    def allgather(
        self,
        data: Any,
        out: Any = None,
        *,
        counts: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> Any: ...

    def allgather(
        self, data: Any, out: Any = None, *, counts: Sequence[int] | None = None, timeout: float | None = None
    ) -> Any:
        """Returns the data of all ranks, on every rank: the arrays, joined along the first axis; of bytes a list whose
        element i is the data of rank i.

        Args:
            data: an array, of the same shape and dtype on every rank; with counts the first sizes may differ. Or
                bytes, equally many on every rank; bytes are meant for small data, and take no out and no counts.
            out: an array of the result's shape, (sum(counts), *data.shape[1:]), or of (size, *data.shape) without
                counts. data may be this rank's block of it. An array without axes gives a result of shape (size,).
            counts: the rows of each rank's array, the same on every rank.
            timeout: seconds for the whole call; None means the context's default.
        """
        if counts is None:
            result = empty_joined(data, self.size) if out is None else out
            quick = self._quick
            if quick(_ALLGATHER, "sum", 0, data, result, timeout):
                return result
        if isinstance(data, NUMBERS | np.ndarray) or hasattr(data, "__dlpack__"):
            return self._make(self._allgather(data, out, counts), timeout)
        if isinstance(out, int | float):  # allgather(data, timeout), as it was before arrays
            out, timeout = None, out
        if out is not None or counts is not None:
            raise InvalidArgument("allgather: bytes take no out and no counts: give an array, e.g. by np.frombuffer")
        return _core.allgather(self._handle, bytes(data), self.size, seconds(timeout, self.config.timeout))

    def allgather_nb(self, data: Any, out: Any = None, *, counts: Sequence[int] | None = None) -> Work:
        """Starts an allgather of arrays."""
        return self._begin_call(self._allgather(data, out, counts))

    def gather(
        self,
        array: Any,
        root: int = 0,
        out: Any = None,
        *,
        counts: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Returns the arrays of all ranks, joined along the first axis, on the root; None on other ranks.

        Args:
            array: of the same shape and dtype on every rank; with counts the first sizes may differ.
            root: the rank that gets the result.
            out: on the root, an array as for allgather. Other ranks' out is not used.
            counts: the rows of each rank's array, the same on every rank.
            timeout: seconds for the whole call; None means the context's default.
        """
        if counts is None:
            is_root = root.__class__ is int and root == self.rank
            result = empty_joined(array, self.size) if out is None and is_root else out
            quick = self._quick
            if quick(_GATHER, "sum", root, array, result, timeout):
                return result if is_root else None
        return self._make(self._gather(array, root, out, counts), timeout)

    def gather_nb(self, array: Any, root: int = 0, out: Any = None, *, counts: Sequence[int] | None = None) -> Work:
        """Starts a gather."""
        return self._begin_call(self._gather(array, root, out, counts))

    def scatter(
        self,
        array: Any = None,
        root: int = 0,
        out: Any = None,
        *,
        counts: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Divides the root's array among all ranks along the first axis, and returns this rank's block.

        Args:
            array: on the root, an array whose first size is size times the block's, or sum(counts). Other ranks' array
                is not used.
            root: the rank whose array is divided.
            out: an array for the block, of the root's dtype. Ranks other than the root must give it; on the root it may
                be the root's block of array.
            counts: the rows of each rank's block, the same on every rank.
            timeout: seconds for the whole call; None means the context's default.
        """
        quick = self._quick
        if counts is None and out is not None and quick(_SCATTER, "sum", root, array, out, timeout):
            return out
        return self._make(self._scatter(array, root, out, counts), timeout)

    def scatter_nb(
        self, array: Any = None, root: int = 0, out: Any = None, *, counts: Sequence[int] | None = None
    ) -> Work:
        """Starts a scatter."""
        return self._begin_call(self._scatter(array, root, out, counts))

    def alltoall(
        self,
        array: Any,
        out: Any = None,
        *,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Sends block i of this rank's array to rank i, and returns the blocks that all ranks sent to this rank, joined
        along the first axis.

        Args:
            array: of the same dtype on every rank, and without counts of the same shape.
            out: an array of the result's shape, (sum(recv_counts), *array.shape[1:]); it must not overlap array.
            send_counts: the rows that this rank sends to each rank.
            recv_counts: the rows that each rank sends to this rank. Give both counts or none.
            timeout: seconds for the whole call; None means the context's default.
        """
        if send_counts is None and recv_counts is None:
            result = empty_like(array) if out is None else out
            quick = self._quick
            if quick(_ALLTOALL, "sum", 0, array, result, timeout):
                return result
        return self._make(self._alltoall(array, out, send_counts, recv_counts), timeout)

    def alltoall_nb(
        self,
        array: Any,
        out: Any = None,
        *,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
    ) -> Work:
        """Starts an alltoall."""
        return self._begin_call(self._alltoall(array, out, send_counts, recv_counts))

    # ---- objects ---------------------------------------------------------------------------------------------------

    def broadcast_object(self, value: Any, root: int = 0, *, timeout: float | None = None) -> Any:
        """Returns the root's value on every rank: on the root value itself, on other ranks a copy by pickle.

        The other ranks run what the root's pickle says, so all ranks must trust each other, as in the whole job.

        Args:
            value: any object that pickle takes; other ranks' value is not used.
            root: the rank whose value is sent.
            timeout: seconds for the whole call; None means the context's default.
        """
        until = self._until(timeout)
        root = self._root("broadcast_object", root)
        is_root = root == self.rank
        data = pickled(value) if is_root else np.empty(0, np.uint8)
        length = self.broadcast(np.array(data.size, np.uint64), root, timeout=left(until))
        if not is_root:
            data = np.empty(int(length), np.uint8)
        self.broadcast(data, root, timeout=left(until))
        return value if is_root else pickle.loads(data.data)

    def allgather_objects(self, value: Any, *, timeout: float | None = None) -> list[Any]:
        """Returns a list, on every rank, whose element i is a copy by pickle of rank i's value.

        Args:
            value: any object that pickle takes.
            timeout: seconds for the whole call; None means the context's default.
        """
        until = self._until(timeout)
        data = pickled(value)
        lengths = self.allgather(np.array(data.size, np.uint64), timeout=left(until)).tolist()
        whole = self.allgather(data, counts=lengths, timeout=left(until))
        return _unpickled(whole, lengths)

    def gather_objects(self, value: Any, root: int = 0, *, timeout: float | None = None) -> list[Any] | None:
        """Returns a list, on the root, whose element i is a copy by pickle of rank i's value; None on other ranks.

        Args:
            value: any object that pickle takes.
            root: the rank that gets the list.
            timeout: seconds for the whole call; None means the context's default.
        """
        until = self._until(timeout)
        root = self._root("gather_objects", root)
        data = pickled(value)
        lengths = self.allgather(np.array(data.size, np.uint64), timeout=left(until)).tolist()
        whole = self.gather(data, root, counts=lengths, timeout=left(until))
        return None if whole is None else _unpickled(whole, lengths)

    # ---- the calls, checked ----------------------------------------------------------------------------------------

    def _allreduce(self, array: Any, op: str, out: Any) -> ArrayCall:
        send = as_array("allreduce", array)
        code = as_op("allreduce", op, send.dtype)
        result = np.empty(send.shape, send.dtype) if out is None else out
        recv = send if result is array else as_out("allreduce", result, send.dtype, send.shape)
        if recv is send:
            check_writable("allreduce", recv)
        return ArrayCall("allreduce", send.dtype, op=code, send=send, recv=recv, count=send.size, own=0, result=result)

    def _reduce(self, array: Any, op: str, root: int, out: Any) -> ArrayCall:
        root = self._root("reduce", root)
        send = as_array("reduce", array)
        code = as_op("reduce", op, send.dtype)
        recv = None if out is None else as_out("reduce", out, send.dtype, send.shape)
        if self.rank != root:
            return ArrayCall("reduce", send.dtype, op=code, root=root, send=send, count=send.size)
        if recv is None:
            recv = out = np.empty(send.shape, send.dtype)
        return ArrayCall(
            "reduce", send.dtype, op=code, root=root, send=send, recv=recv, count=send.size, own=0, result=out
        )

    def _reduce_scatter(self, array: Any, op: str, out: Any, counts: Sequence[int] | None) -> ArrayCall:
        send = as_array("reduce_scatter", array)
        code = as_op("reduce_scatter", op, send.dtype)
        rows, lengths = self._divided("reduce_scatter", send, counts, "counts")
        shape = (rows[self.rank], *send.shape[1:])
        result = np.empty(shape, send.dtype) if out is None else out
        return ArrayCall(
            "reduce_scatter",
            send.dtype,
            op=code,
            send=send,
            recv=as_out("reduce_scatter", result, send.dtype, shape),
            count=lengths[0],
            recv_counts=None if counts is None else lengths,
            own=sum(lengths[: self.rank]) * send.itemsize,
            result=result,
        )

    def _broadcast(self, array: Any, root: int) -> ArrayCall:
        root = self._root("broadcast", root)
        recv = as_array("broadcast", array)
        if self.rank != root:
            if not isinstance(array, np.ndarray) and recv.base is None:
                raise InvalidArgument(
                    f"broadcast: array is a {type(array).__name__}: must be an array that can be written"
                )
            check_writable("broadcast", recv)
        return ArrayCall("broadcast", recv.dtype, root=root, recv=recv, count=recv.size, result=array)

    def _allgather(self, data: Any, out: Any, counts: Sequence[int] | None) -> ArrayCall:
        send, lengths, shapes = self._joined("allgather", data, counts)
        result = np.empty(shapes[0], send.dtype) if out is None else out
        return ArrayCall(
            "allgather",
            send.dtype,
            send=send,
            recv=as_out("allgather", result, send.dtype, *shapes),
            count=send.size,
            recv_counts=None if counts is None else lengths,
            own=sum(lengths[: self.rank]) * send.itemsize,
            result=result,
        )

    def _gather(self, array: Any, root: int, out: Any, counts: Sequence[int] | None) -> ArrayCall:
        root = self._root("gather", root)
        send, lengths, shapes = self._joined("gather", array, counts)
        recv_counts = None if counts is None else lengths
        if self.rank != root:
            return ArrayCall("gather", send.dtype, root=root, send=send, count=send.size, recv_counts=recv_counts)
        result = np.empty(shapes[0], send.dtype) if out is None else out
        return ArrayCall(
            "gather",
            send.dtype,
            root=root,
            send=send,
            recv=as_out("gather", result, send.dtype, *shapes),
            count=send.size,
            recv_counts=recv_counts,
            own=sum(lengths[: self.rank]) * send.itemsize,
            result=result,
        )

    def _scatter(self, array: Any, root: int, out: Any, counts: Sequence[int] | None) -> ArrayCall:
        root = self._root("scatter", root)
        if self.rank == root:
            if array is None:
                raise InvalidArgument(f"scatter: rank {root}, the root, gives no array: give the array to divide")
            send = as_array("scatter", array)
            rows, lengths = self._divided("scatter", send, counts, "counts")
            shapes = [(rows[root], *send.shape[1:])]
            if rows[root] == 1:
                shapes.append(send.shape[1:])
            result = np.empty(shapes[0], send.dtype) if out is None else out
            return ArrayCall(
                "scatter",
                send.dtype,
                root=root,
                send=send,
                recv=as_out("scatter", result, send.dtype, *shapes),
                count=lengths[0],
                send_counts=None if counts is None else lengths,
                own=sum(lengths[:root]) * send.itemsize,
                result=result,
            )
        if out is None:
            raise InvalidArgument(
                f"scatter: rank {self.rank} gives no out: give an array for the block: only rank {root}, the root, "
                "knows the block's shape and dtype"
            )
        recv = as_out("scatter", out, None)
        told = None if counts is None else self._elements("scatter", recv, counts)
        return ArrayCall("scatter", recv.dtype, root=root, recv=recv, count=recv.size, send_counts=told, result=out)

    def _alltoall(
        self, array: Any, out: Any, send_counts: Sequence[int] | None, recv_counts: Sequence[int] | None
    ) -> ArrayCall:
        if (send_counts is None) != (recv_counts is None):
            missing = "send_counts" if send_counts is None else "recv_counts"
            raise InvalidArgument(f"alltoall: {missing} is missing: give both counts, or none for equal blocks")
        send = as_array("alltoall", array)
        rows, sends = self._divided("alltoall", send, send_counts, "send_counts")
        width = math.prod(send.shape[1:])
        if recv_counts is not None:
            rows = self._counts("alltoall", recv_counts, "recv_counts")
        shape = (sum(rows), *send.shape[1:])
        result = np.empty(shape, send.dtype) if out is None else out
        is_even = send_counts is None
        return ArrayCall(
            "alltoall",
            send.dtype,
            send=send,
            recv=as_out("alltoall", result, send.dtype, shape),
            count=sends[0],
            send_counts=None if is_even else sends,
            recv_counts=None if is_even else tuple(n * width for n in rows),
            result=result,
        )

    def _root(self, name: str, root: Any) -> int:
        try:
            found = int(root.__index__())
        except (AttributeError, TypeError):
            raise InvalidArgument(f"{name}: root is {root!r}: must be a rank") from None
        if not 0 <= found < self.size:
            raise InvalidArgument(f"{name}: root is {found}: must be from 0 to {self.size - 1}")
        return found

    def _counts(self, name: str, counts: Any, what: str) -> tuple[int, ...]:
        try:
            found = tuple(int(count.__index__()) for count in counts)
        except (AttributeError, TypeError):
            raise InvalidArgument(f"{name}: {what} is {counts!r}: must be a number of rows for each rank") from None
        if len(found) != self.size or any(count < 0 for count in found):
            raise InvalidArgument(f"{name}: {what} is {found}: must be {self.size} numbers of rows, 0 or more")
        return found

    def _divided(
        self, name: str, array: NDArray[Any], counts: Sequence[int] | None, what: str
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the rows and the elements of each rank's block of an array."""
        if array.ndim == 0:
            raise InvalidArgument(f"{name}: array has no axis to divide: give one of shape ({self.size}, ...)")
        width = math.prod(array.shape[1:])
        if counts is None:
            if array.shape[0] % self.size:
                raise InvalidArgument(
                    f"{name}: array has shape {array.shape}: {self.size} ranks cannot have equally many rows; pad the "
                    f"first axis to a multiple of {self.size}, or give {what}"
                )
            rows = (array.shape[0] // self.size,) * self.size
        else:
            rows = self._counts(name, counts, what)
            if sum(rows) != array.shape[0]:
                raise InvalidArgument(
                    f"{name}: {what} is {rows}, with the sum {sum(rows)}: array has {array.shape[0]} rows"
                )
        return rows, tuple(n * width for n in rows)

    def _joined(
        self, name: str, array: Any, counts: Sequence[int] | None
    ) -> tuple[NDArray[Any], tuple[int, ...], list[tuple[int, ...]]]:
        """Returns this rank's block, the elements of each rank's, and the shapes that a result may have."""
        send = as_array(name, array)
        if counts is not None:
            lengths = self._elements(name, send, counts)
            rows = self._counts(name, counts, "counts")
            return send, lengths, [(sum(rows), *send.shape[1:])]
        stacked = (self.size, *send.shape)
        flat = (self.size * send.shape[0], *send.shape[1:]) if send.ndim else stacked
        return send, (send.size,) * self.size, [flat, stacked]

    def _elements(self, name: str, block: NDArray[Any], counts: Sequence[int]) -> tuple[int, ...]:
        """Returns the elements of each rank's block, by this rank's block and the rows of all ranks."""
        rows = self._counts(name, counts, "counts")
        if block.ndim == 0 or block.shape[0] != rows[self.rank]:
            raise InvalidArgument(
                f"{name}: counts gives rank {self.rank} {rows[self.rank]} rows: its array has shape {block.shape}"
            )
        width = math.prod(block.shape[1:])
        return tuple(n * width for n in rows)

    # ---- making calls ----------------------------------------------------------------------------------------------

    def _make(self, call: ArrayCall, timeout: float | None) -> Any:
        limit = seconds(timeout, self.config.timeout)
        self._ask_messages()
        self._admit(call)
        try:
            if threading.current_thread() is not threading.main_thread():
                call.run(self._handle, limit)
            else:
                call.start(self._handle)
                try:
                    call.wait(limit)  # in slices, so that Ctrl-C can end it
                finally:
                    call.give_up()
        except HpcommError:
            raise
        except BaseException as cut:
            self._cut_short(call, cut)
            raise
        return call.result

    def _begin_call(self, call: ArrayCall) -> Work:
        self._admit(call)
        try:
            call.start(self._handle)
        except HpcommError:
            raise
        except BaseException as cut:
            self._cut_short(call, cut)
            raise
        self._started.append(call)
        return Work(self, call, self.config.timeout)

    def _cut_short(self, call: ArrayCall, cut: BaseException) -> None:
        self._cuts.append((_WHAT[call.name], type(cut)))
        self._cut_call = call

    def _admit(self, call: ArrayCall) -> None:
        """Raises an error for a call that may not begin now."""
        if self._cuts:
            what, cut = self._cuts[0]
            raise ConfigError(
                f"{call.name}: no further collectives are possible: {_NAMES[what]} was cut short by {cut.__name__}; go "
                "on in a new context, by Context.shrink or hpcomm.init"
            )
        started = self._started
        while started and started[0].test():
            if started.popleft().failure is not None:
                break
        self._check_memory(call)


def _unpickled(whole: NDArray[np.uint8], lengths: list[int]) -> list[Any]:
    found, start = [], 0
    for length in lengths:
        found.append(pickle.loads(whole[start : start + length].data))
        start += length
    return found

"""The calls of one rank in one group, on tensors: each is one collective of a context. The names under which torch
asks for them are in names.py."""

import threading
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ... import _core, launch
from ..._core import collective_at, message_at, named
from ...context import Context
from ...errors import ConfigError, HpcommError, InvalidArgument, PeerFailed, Timeout
from . import sparse
from .copies import After, Copies
from .line import Line
from .memory import (
    SUM,
    U8,
    check,
    copied_type,
    reduced_type,
    same,
)
from .store import StoreGroup
from .work import BackendWork, JoinedWork, MessageWork, QueuedWork, overdue

_WHAT = _core.COLLECTIVES
_ALLREDUCE, _REDUCE, _REDUCE_SCATTER = _WHAT["allreduce"], _WHAT["reduce"], _WHAT["reduce_scatter"]
_BROADCAST, _ALLGATHER, _ALLTOALL = _WHAT["broadcast"], _WHAT["allgather"], _WHAT["alltoall"]
_GATHER, _SCATTER = _WHAT["gather"], _WHAT["scatter"]
_BARRIER = _core.named_call("barrier", every=False)
_COUNTED_BYTES = 4 << 10  # a message of fewer bytes takes no time in which the GIL should be free
_JOINED_BYTES = 1 << 20  # tensors of one coalesced call that are no longer than this, together, go as one

# what, type, op, root, address to read, address to write, elements, lengths of blocks that are sent and received, bytes
Step = tuple[int, int, int, int, int, int, int, Any, Any, int]


class Block:
    """The calls of a member in a coalesced block of torch. A call that raises ends the block: torch then leaves it and
    does not call end_together."""

    def __init__(self, member: "Member") -> None:
        self._member = member

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._member, name)
        if not callable(call):
            return call

        def made(*given: Any) -> Any:
            try:
                return call(*given)
            except BaseException:
                self._member.together = None
                raise

        return made


class Member:
    """One rank of a group: its context and the line of its calls.

    Methods take the time for the call in seconds (None: the group's) and whether the call is asynchronous, and return
    its work. A synchronous call has ended when its method returns.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: float, ranks: Sequence[int]) -> None:
        """ranks: the ranks of the group by their numbers in the job; empty for the whole job."""
        config = launch.configuration({"timeout": timeout})
        if config.init_timeout == 0:
            config = replace(config, init_timeout=timeout)
        self.ctx = Context(StoreGroup(store, rank, size), config)
        self.rank, self.size, self.timeout = rank, size, timeout
        self.line = Line()
        self.messages: set[MessageWork] = set()  # those that go on: torch lets a program drop their works
        self.pending = 0  # bytes of calls that any look at a message goes on with, so it may take as long as they
        self._counts = threading.Lock()
        self._flags = deque[Any](maxlen=16)  # works that DDP's join leaves to C++, which needs their Python part
        self._most = 16  # with more messages than so many, the next one asks which have ended
        self._ranks = () if list(ranks) == list(range(size)) else tuple(ranks)
        self._address = _core.address_of(self.ctx._handle)
        self.together: list[Any] | None = None  # the works of a coalesced block
        self._done = BackendWork()
        self.failure: HpcommError | None = None  # the first one that ended a call
        self.sequence = 0  # how many collectives have begun
        self._byte = torch.zeros(1, dtype=torch.uint8)

    def close(self) -> None:
        """Leaves the group. Its waits in other threads end with an error, and so do calls that were not made yet."""
        self.ctx.close()
        self.line.end()

    def abort(self, why: str) -> None:
        """Leaves the group and tells the other ranks that this rank failed, and why."""
        self.ctx.abort(why)
        self.line.end()

    def entitle(self, name: str, description: str = "") -> None:
        """Sets what hpcomm status shows of the group."""
        told = "" if description in ("", "undefined") else f", {description}"
        with suppress(HpcommError):  # a group that has failed
            self.ctx.set_title(f"group {name}{told}")

    # ---- reductions ------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Sequence[Tensor], op: int, timeout: float | None, is_async: bool) -> Any:
        if tensors[0].is_sparse:
            return self._allreduce_sparse(tensors, op, timeout, is_async)
        steps, copies = [], Copies()
        for tensor in tensors:
            mine = copies.in_place("all_reduce", tensor)
            at, count = mine.data_ptr(), mine.numel()
            kind = reduced_type("all_reduce", mine, op)
            code = copies.mean(mine, op, self.size)
            steps.append((_ALLREDUCE, kind, code, 0, at, at, count, None, None, count * mine.element_size()))
        work = self._run(steps, tensors, timeout, is_async, copies, tensors)
        if is_async and tensors[0].numel() == 1:
            self._flags.append(work)
        return work

    def _allreduce_sparse(self, tensors: Sequence[Tensor], op: int, timeout: float | None, is_async: bool) -> Any:
        if len(tensors) != 1 or not tensors[0].is_cpu:
            check("all_reduce", *(tensor for tensor in tensors if not tensor.is_cpu))
            raise InvalidArgument(f"all_reduce: {len(tensors)} sparse tensors are given: must be one")
        steps, after = sparse.allreduce(tensors[0], op, self.rank, self.size)
        return self._run(steps, tensors, timeout, is_async, Copies(after), tensors)

    def allreduce_coalesced(self, tensors: Sequence[Tensor], op: int, timeout: float | None, is_async: bool) -> Any:
        name = "all_reduce_coalesced"
        check(name, *tensors)
        same(name, tensors[0], tensors, sizes=False)
        if len(tensors) == 1 or sum(t.numel() for t in tensors) * tensors[0].element_size() > _JOINED_BYTES:
            return self.allreduce(tensors, op, timeout, is_async)
        copies = Copies()
        whole = copies.joined(tensors, writes=True)
        at, count = whole.data_ptr(), whole.numel()
        kind = reduced_type(name, whole, op)
        code = copies.mean(whole, op, self.size)
        step = (_ALLREDUCE, kind, code, 0, at, at, count, None, None, count * whole.element_size())
        return self._run([step], tensors, timeout, is_async, copies, (whole, tensors))

    def reduce(self, tensor: Tensor, op: int, root: int, timeout: float | None, is_async: bool) -> Any:
        self._check_root("reduce", root)
        is_root, copies = root == self.rank, Copies()
        mine = copies.in_place("reduce", tensor, writes=is_root)
        at, count = mine.data_ptr(), mine.numel()
        kind = reduced_type("reduce", mine, op)
        code = copies.mean(mine, op, self.size, writes=is_root)
        step = (_REDUCE, kind, code, root, at, at if is_root else 0, count, None, None, count * mine.element_size())
        return self._run([step], [tensor], timeout, is_async, copies, mine)

    def reduce_scatter(
        self, out: Tensor, tensors: Sequence[Tensor], op: int, timeout: float | None, is_async: bool
    ) -> Any:
        name = "reduce_scatter"
        self._check_many(name, "input", tensors)
        check(name, out, *tensors)
        same(name, out, tensors, sizes=False)
        if out.numel() != tensors[self.rank].numel():
            raise InvalidArgument(
                f"{name}: output has {out.numel()} elements: its input tensor {self.rank} has "
                f"{tensors[self.rank].numel()}"
            )
        counts = [tensor.numel() for tensor in tensors]
        copies = Copies()
        return self._reduce_scatter(name, out, copies.joined(tensors), counts, op, copies, timeout, is_async)

    def reduce_scatter_single(self, out: Tensor, whole: Tensor, op: int, timeout: float | None, is_async: bool) -> Any:
        name = "reduce_scatter_tensor"
        check(name, out, whole)
        same(name, out, [whole], sizes=False)
        if whole.numel() != out.numel() * self.size:
            raise InvalidArgument(
                f"{name}: input has {whole.numel()} elements: must have {self.size} times the {out.numel()} of output"
            )
        return self._reduce_scatter(name, out, whole, None, op, Copies(), timeout, is_async)

    def _reduce_scatter(
        self,
        name: str,
        out: Tensor,
        whole: Tensor,
        counts: Any,
        op: int,
        copies: Copies,
        timeout: float | None,
        is_async: bool,
    ) -> Any:
        send = copies.readable(whole)
        recv = copies.in_place(name, out, reads=False)
        if counts is not None and len(set(counts)) == 1:
            counts = None
        count, size = recv.numel(), recv.element_size()
        before = count * self.rank if counts is None else sum(counts[: self.rank])
        send = copies.apart(send, recv, send.data_ptr() + before * size)
        kind = reduced_type(name, recv, op)
        code = copies.mean(recv, op, self.size)
        step = (
            _REDUCE_SCATTER,
            kind,
            code,
            0,
            send.data_ptr(),
            recv.data_ptr(),
            count,
            None,
            _lengths(counts),
            send.numel() * size,
        )
        return self._run([step], [out], timeout, is_async, copies, (send, recv))

    # ---- copies ----------------------------------------------------------------------------------------------------

    def broadcast(self, tensors: Sequence[Tensor], root: int, timeout: float | None, is_async: bool) -> Any:
        self._check_root("broadcast", root)
        steps, keep, copies, is_root = [], [], Copies(), root == self.rank
        for tensor in tensors:
            mine = copies.in_place("broadcast", tensor, reads=is_root, writes=not is_root)
            kind, count = copied_type(mine)
            nbytes = mine.numel() * mine.element_size()
            steps.append((_BROADCAST, kind, SUM, root, 0, mine.data_ptr(), count, None, None, nbytes))
            keep.append(mine)
        return self._run(steps, tensors, timeout, is_async, copies, keep)

    def allgather(self, outs: Sequence[Tensor], tensor: Tensor, timeout: float | None, is_async: bool) -> Any:
        name = "all_gather"
        self._check_many(name, "output", outs)
        check(name, tensor, *outs)
        same(name, tensor, outs, sizes=False)
        if outs[self.rank].numel() != tensor.numel():
            raise InvalidArgument(
                f"{name}: output {self.rank} has {outs[self.rank].numel()} elements: the input has {tensor.numel()}"
            )
        copies = Copies()
        whole = copies.gathered(outs)
        counts = [out.numel() for out in outs]
        return self._allgather(whole, tensor, counts, [list(outs)], copies, timeout, is_async)

    def allgather_single(self, out: Tensor, tensor: Tensor, timeout: float | None, is_async: bool) -> Any:
        name = "all_gather_into_tensor"
        check(name, out, tensor)
        same(name, tensor, [out], sizes=False)
        if out.numel() != tensor.numel() * self.size:
            raise InvalidArgument(
                f"{name}: output has {out.numel()} elements: must have {self.size} times the {tensor.numel()} of input"
            )
        copies = Copies()
        whole = copies.in_place(name, out, reads=False)
        return self._allgather(whole, tensor, None, [out], copies, timeout, is_async)

    def _allgather(
        self,
        whole: Tensor,
        tensor: Tensor,
        counts: Any,
        result: Any,
        copies: Copies,
        timeout: float | None,
        is_async: bool,
    ) -> Any:
        send = copies.readable(tensor)
        kind, count = copied_type(send)
        if counts is not None and len(set(counts)) == 1:
            counts = None
        if counts is not None and kind == U8:
            counts = [n * send.element_size() for n in counts]
        nbytes = send.numel() * send.element_size()
        before = nbytes * self.rank if counts is None else sum(counts[: self.rank]) * (nbytes // max(count, 1))
        send = copies.apart(send, whole, whole.data_ptr() + before)
        step = (
            _ALLGATHER,
            kind,
            SUM,
            0,
            send.data_ptr(),
            whole.data_ptr(),
            count,
            None,
            _lengths(counts),
            whole.numel() * whole.element_size(),
        )
        return self._run([step], result, timeout, is_async, copies, (send, whole))

    def gather(
        self, outs: Sequence[Tensor] | None, tensor: Tensor, root: int, timeout: float | None, is_async: bool
    ) -> Any:
        name = "gather"
        self._check_root(name, root)
        check(name, tensor)
        whole, at, copies = None, 0, Copies()
        if root == self.rank:
            if outs is None:
                raise InvalidArgument(f"{name}: rank {root}, the root, gives no output tensors")
            self._check_many(name, "output", outs)
            check(name, *outs)
            same(name, tensor, outs, sizes=True)
            whole = copies.gathered(outs)
            at = whole.data_ptr()
        elif outs:
            raise InvalidArgument(f"{name}: rank {self.rank} gives output tensors: only rank {root}, the root, may")
        send = copies.readable(tensor)
        kind, count = copied_type(send)
        nbytes = send.numel() * send.element_size()
        if whole is not None:
            send = copies.apart(send, whole, at + nbytes * root)
        step = (_GATHER, kind, SUM, root, send.data_ptr(), at, count, None, None, nbytes * self.size)
        return self._run([step], [list(outs or [])], timeout, is_async, copies, (send, whole))

    def gather_single(self, out: Tensor, tensor: Tensor, root: int, timeout: float | None, is_async: bool) -> Any:
        name = "gather_into_tensor"
        if root != self.rank:
            return self.gather(None, tensor, root, timeout, is_async)
        check(name, out, tensor)
        if not out.is_contiguous() or out.numel() != tensor.numel() * self.size:
            raise InvalidArgument(
                f"{name}: output has {out.numel()} elements: must be contiguous, with {self.size} times the "
                f"{tensor.numel()} of input"
            )
        return self.gather(out.view(-1).tensor_split(self.size), tensor, root, timeout, is_async)

    def scatter(
        self, out: Tensor, tensors: Sequence[Tensor] | None, root: int, timeout: float | None, is_async: bool
    ) -> Any:
        name = "scatter"
        self._check_root(name, root)
        check(name, out)
        whole, at, copies = None, 0, Copies()
        recv = copies.in_place(name, out, reads=False)
        kind, count = copied_type(recv)
        nbytes = recv.numel() * recv.element_size()
        if root == self.rank:
            if tensors is None:
                raise InvalidArgument(f"{name}: rank {root}, the root, gives no input tensors")
            self._check_many(name, "input", tensors)
            check(name, *tensors)
            same(name, out, tensors, sizes=True)
            whole = copies.joined(tensors)
            whole = copies.apart(whole, recv, whole.data_ptr() + nbytes * root)
            at = whole.data_ptr()
        elif tensors:
            raise InvalidArgument(f"{name}: rank {self.rank} gives input tensors: only rank {root}, the root, may")
        step = (_SCATTER, kind, SUM, root, at, recv.data_ptr(), count, None, None, nbytes * self.size)
        return self._run([step], [out], timeout, is_async, copies, (whole, recv))

    def alltoall(self, outs: Sequence[Tensor], tensors: Sequence[Tensor], timeout: float | None, is_async: bool) -> Any:
        name = "all_to_all"
        self._check_many(name, "output", outs)
        self._check_many(name, "input", tensors)
        check(name, *outs, *tensors)
        same(name, outs[0], [*outs, *tensors], sizes=False)
        copies = Copies()
        send, recv = copies.joined(tensors), copies.gathered(outs)
        sent, received = [t.numel() for t in tensors], [t.numel() for t in outs]
        return self._alltoall(recv, send, received, sent, list(outs), copies, timeout, is_async)

    def alltoall_single(
        self,
        out: Tensor,
        tensor: Tensor,
        received: Sequence[int],
        sent: Sequence[int],
        timeout: float | None,
        is_async: bool,
    ) -> Any:
        name = "all_to_all_single"
        check(name, out, tensor)
        same(name, out, [tensor], sizes=False)
        copies = Copies()
        send = copies.readable(tensor)
        recv = copies.in_place(name, out, reads=False)
        if not received and not sent:
            if send.numel() != recv.numel() or (send.dim() and send.shape[0] % self.size):
                raise InvalidArgument(
                    f"{name}: input has shape {tuple(send.shape)} and output {tuple(recv.shape)}: without split sizes "
                    f"they must have equally many elements, and rows for {self.size} ranks"
                )
            return self._alltoall(recv, send, None, None, [out], copies, timeout, is_async)
        sizes: list[Any] = []
        for whole, what, given in ((recv, "output", received), (send, "input", sent)):
            rows = whole.shape[0] if whole.dim() else 1
            split = list(given) if given else [rows // self.size] * self.size
            if len(split) != self.size or sum(split) != rows:
                raise InvalidArgument(
                    f"{name}: {what} has {rows} rows and split sizes {split}: must be {self.size} numbers with this sum"
                )
            width = whole.numel() // rows if rows else 0
            sizes.append([n * width for n in split])
        return self._alltoall(recv, send, sizes[0], sizes[1], [out], copies, timeout, is_async)

    def _alltoall(
        self,
        recv: Tensor,
        send: Tensor,
        received: Any,
        sent: Any,
        result: Any,
        copies: Copies,
        timeout: float | None,
        is_async: bool,
    ) -> Any:
        kind, count = copied_type(send)
        if kind == U8 and received is not None:
            size = send.element_size()
            received, sent = [n * size for n in received], [n * size for n in sent]
        send = copies.apart(send, recv, -1)
        nbytes = max(send.numel(), recv.numel()) * send.element_size()
        step = (
            _ALLTOALL,
            kind,
            SUM,
            0,
            send.data_ptr(),
            recv.data_ptr(),
            count // self.size,
            _lengths(sent),
            _lengths(received),
            nbytes,
        )
        return self._run([step], result, timeout, is_async, copies, (send, recv))

    # ---- messages, and barriers ------------------------------------------------------------------------------------

    def send(self, tensor: Tensor, to: int, tag: int) -> Any:
        check("send", tensor)
        return self._start_message(tensor.contiguous(), [], None, to, tag, receives=False)

    def recv(self, tensor: Tensor, source: int, tag: int) -> Any:
        """source: -1 for any rank."""
        copies = Copies()
        mine = copies.in_place("recv", tensor, reads=False)
        return self._start_message(mine, [tensor], copies.after, source, tag, receives=True)

    @named("barrier", every=False)  # errors and other ranks see this name
    def barrier(self, timeout: float | None, is_async: bool) -> Any:
        at = self._byte.data_ptr()
        step = (_ALLREDUCE, U8, SUM, 0, at, at, 1, None, None, 1)
        return self._run([step], [], timeout, is_async, Copies(), None, _BARRIER)

    def monitored_barrier(self, timeout: float | None) -> None:
        left = self._take(self.timeout if timeout is None else timeout)
        try:
            self.ctx.barrier(left)
        except HpcommError as failure:
            raise self.told(failure) from None
        finally:
            self.line.turn.release()

    # ---- coalesced blocks ------------------------------------------------------------------------------------------

    def begin_together(self) -> None:
        self.together = []

    def end_together(self) -> Any:
        works, self.together = self.together or [], None
        return JoinedWork(works)

    def several(self, made: Sequence[tuple[Any, tuple[Any, ...]]], timeout: float | None, is_async: bool) -> Any:
        """Makes several calls, given as methods and their tensors, and returns their work."""
        works = [call(*given, timeout, is_async) for call, given in made]
        return JoinedWork(works) if is_async else self._done

    # ---- how calls are made ----------------------------------------------------------------------------------------

    def _run(
        self,
        steps: Iterable[Step],
        result: Any,
        timeout: float | None,
        is_async: bool,
        copies: Copies,
        keep: Any,
        named: Any = None,
    ) -> Any:
        """named: the C object of the call's name; None: C's name of the collective."""
        steps, after = copies.steps(steps), copies.after
        limit = self.timeout if timeout is None else timeout
        line = self.line
        is_queued = is_async or self.together is not None
        if is_queued and not line.is_helper():
            self.sequence += 1
            work = QueuedWork(result, self, steps, after, keep, limit, named)
            line.add(work)
            if self.together is not None:
                self.together.append(work)
            return work
        left = self._take(limit)
        self.sequence += 1
        try:
            for step in steps:
                if self.pending:
                    step = (*step[:-1], step[-1] + self.pending)  # noqa: PLW2901
                status = collective_at(self._address, *step, left)
                if status:
                    raise self.told(_core.error(status))
        finally:
            line.turn.release()
        if after is not None:
            after()
        return BackendWork(result) if is_queued else self._done

    def _start_message(
        self, tensor: Tensor, result: Any, after: After | None, peer: int, tag: int, *, receives: bool
    ) -> Any:
        if len(self.messages) >= self._most:
            for other in tuple(self.messages):
                other.is_completed()
            self._most = 2 * len(self.messages) + 16
        kind, count = copied_type(tensor)
        nbytes = count if kind == U8 else count * tensor.element_size()
        work = MessageWork(result, self, tensor, after, nbytes, receives=receives)
        longest = nbytes + self.pending
        request = message_at(self._address, receives, peer, tag, tensor.data_ptr(), count, kind, longest)
        if request < 0:
            raise self.told(_core.error(request))
        work.request = request
        self.count(nbytes)
        self.messages.add(work)
        if self.together is not None:
            self.together.append(work)
        return work

    def count(self, nbytes: int) -> None:
        """Adds the bytes of a call that has started, or takes off those of one that has ended."""
        if abs(nbytes) >= _COUNTED_BYTES:
            with self._counts:
                self.pending += nbytes

    def _take(self, limit: float) -> float:
        """Takes the turn of the line, and returns the seconds that are left of limit.

        Raises:
            Timeout: earlier calls have not ended in this time.
        """
        left = self.line.take(limit)
        if left < 0:
            raise self.late(limit)
        return left

    def late(self, waited: float) -> BaseException:
        """Returns the Timeout of a wait for the line: that of the call that goes on now, if there is one."""
        going = self.line.going
        failure = None if going is None else going.late(waited)
        return self.told(overdue(self.rank, waited) if failure is None else failure, is_over=False)

    def told(self, failure: Any, *, is_over: bool = True) -> Any:
        """Returns a failure; that of a smaller group with the ranks' numbers in the job. is_over: whether it ended a
        call, and not only a wait."""
        known = set()
        if isinstance(failure, PeerFailed):
            known = {*failure.ranks, *failure.left, *failure.waiting_for}
        elif isinstance(failure, Timeout):
            known = {*failure.waiting_for, *(culprit.rank for culprit in failure.culprits)}
        known = {rank for rank in known if 0 <= rank < len(self._ranks)}
        if known and failure.args:
            told = ", ".join(
                f"rank {rank} of this group is rank {self._ranks[rank]} of the job" for rank in sorted(known)
            )
            failure.args = (f"{failure.args[0]}; {told}", *failure.args[1:])
        if isinstance(failure, Timeout) and failure.args and "timeout" not in failure.args[0]:
            failure.args = (f"{failure.args[0]}; the timeout is over", *failure.args[1:])  # the word of Gloo's errors
        if self.failure is None:
            self.failure = failure if is_over and isinstance(failure, PeerFailed | Timeout) else None
        elif isinstance(failure, ConfigError) and "no further" in str(failure):
            failure.args = (f"{failure}; the first failure was: {self.failure}",)
        return failure

    # ---- tensors ---------------------------------------------------------------------------------------------------

    def _check_root(self, name: str, root: int) -> None:
        if not 0 <= root < self.size:
            raise InvalidArgument(f"{name}: root is {root}: must be from 0 to {self.size - 1}")

    def _check_many(self, name: str, what: str, tensors: Sequence[Tensor]) -> None:
        if len(tensors) != self.size:
            raise InvalidArgument(f"{name}: {len(tensors)} {what} tensors are given: must be {self.size}, one a rank")


def _lengths(counts: Sequence[int] | None) -> Any:
    return None if counts is None else array("Q", counts)

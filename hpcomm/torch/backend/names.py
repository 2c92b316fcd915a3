"""The names under which torch asks for the calls of a Member: torch's two base classes share them."""

import sys
from typing import Any

from torch import Tensor
from torch.distributed import ReduceOp

from ...errors import InvalidArgument
from .arguments import as_list, by_tensor, inner, one, plain, reduction, rooted
from .member import Block, Member
from .memory import op_code

NAME = "hpcomm"


class Names:
    """One rank of a group under torch's names. A subclass sets _member; a closed group has no member.

    opts is torch's object with the options of a call, or the op or the root of one; a timeout is a timedelta.
    """

    _member: Member | None = None

    def _opened(self) -> Member:
        """Returns the member.

        Raises:
            InvalidArgument: the group is closed.
        """
        if self._member is None:
            raise InvalidArgument(f"the process group {self._told()} is closed: make another one")
        return self._member

    def _calls(self) -> Any:
        """Returns the calls of the member."""
        member = self._opened()
        return member if member.together is None else Block(member)

    def _told(self) -> str:
        """Returns the name of the group."""
        raise NotImplementedError

    # ---- collectives -----------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        op, limit, is_async = reduction("all_reduce", opts, timeout)
        return self._calls().allreduce(as_list(tensors), op, limit, is_async)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        op, limit, is_async = reduction("all_reduce_coalesced", opts, None)
        return self._calls().allreduce_coalesced(tensors, op, limit, is_async)

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None, **named: Any) -> Any:
        root, limit, is_async = rooted(named.get("root", opts), timeout)
        return self._calls().broadcast(as_list(tensors), root, limit, is_async)

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None, **named: Any) -> Any:
        root, limit, is_async = rooted(named.get("root", opts), timeout)
        code = op_code("reduce", getattr(opts, "reduceOp", ReduceOp.SUM if op is None else op))
        return self._calls().reduce(one("reduce", tensors), code, root, limit, is_async)

    def allgather(self, outs: Any, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        limit, is_async = plain(opts, timeout)
        return self._calls().allgather(inner(outs), one("all_gather", tensors), limit, is_async)

    def allgather_coalesced(self, outs: Any, tensors: Any, opts: Any = None) -> Any:
        limit, is_async = plain(opts, None)
        calls = self._calls()
        pairs = zip(by_tensor(outs, len(tensors), calls.size), tensors, strict=True)
        return calls.several([(calls.allgather, pair) for pair in pairs], limit, is_async)

    def all_gather_single(self, out: Tensor, tensor: Tensor, opts: Any = None, timeout: Any = None) -> Any:
        limit, is_async = plain(opts, timeout)
        return self._calls().allgather_single(out, tensor, limit, is_async)

    def all_gather_single_coalesced(self, outs: Any, tensors: Any, opts: Any = None) -> Any:
        limit, is_async = plain(opts, None)
        calls = self._calls()
        pairs = zip(outs, tensors, strict=True)
        return calls.several([(calls.allgather_single, pair) for pair in pairs], limit, is_async)

    def gather(self, outs: Any, tensors: Any, opts: Any = None, timeout: Any = None, **named: Any) -> Any:
        root, limit, is_async = rooted(named.get("root", opts), timeout)
        mine = inner(outs) if outs else None
        return self._calls().gather(mine, one("gather", tensors), root, limit, is_async)

    def gather_single(self, out: Tensor, tensor: Tensor, opts: Any = None, timeout: Any = None) -> Any:
        root, limit, is_async = rooted(opts, timeout)
        return self._calls().gather_single(out, tensor, root, limit, is_async)

    def scatter(self, outs: Any, tensors: Any, opts: Any = None, timeout: Any = None, **named: Any) -> Any:
        root, limit, is_async = rooted(named.get("root", opts), timeout)
        mine = inner(tensors) if tensors else None
        return self._calls().scatter(one("scatter", outs), mine, root, limit, is_async)

    def reduce_scatter(self, outs: Any, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        op, limit, is_async = reduction("reduce_scatter", opts, timeout)
        return self._calls().reduce_scatter(one("reduce_scatter", outs), inner(tensors), op, limit, is_async)

    def reduce_scatter_single(self, out: Tensor, tensor: Tensor, opts: Any = None, timeout: Any = None) -> Any:
        op, limit, is_async = reduction("reduce_scatter_tensor", opts, timeout)
        return self._calls().reduce_scatter_single(out, tensor, op, limit, is_async)

    def reduce_scatter_single_coalesced(self, outs: Any, tensors: Any, opts: Any = None) -> Any:
        op, limit, is_async = reduction("reduce_scatter_tensor", opts, None)
        calls = self._calls()
        pairs = zip(outs, tensors, strict=True)
        return calls.several([(calls.reduce_scatter_single, (*pair, op)) for pair in pairs], limit, is_async)

    def alltoall(self, outs: Any, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        limit, is_async = plain(opts, timeout)
        return self._calls().alltoall(outs, tensors, limit, is_async)

    def all_to_all_single(
        self, out: Tensor, tensor: Tensor, received: Any = (), sent: Any = (), opts: Any = None, timeout: Any = None
    ) -> Any:
        limit, is_async = plain(opts, timeout)
        return self._calls().alltoall_single(out, tensor, received or (), sent or (), limit, is_async)

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        return self._calls().barrier(*plain(opts, timeout))

    def monitored_barrier(self, opts: Any = None, wait_all_ranks: bool = False) -> None:
        """Waits for all ranks; opts may be a timeout. Its Timeout has all ranks that are missing, on every rank, also
        without wait_all_ranks."""
        limit, _ = plain(opts, None)
        self._calls().monitored_barrier(limit)

    # ---- messages --------------------------------------------------------------------------------------------------

    def send(self, tensors: Any, to: int, tag: int = 0) -> Any:
        return self._calls().send(one("send", tensors), to, tag)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Any:
        return self._calls().recv(one("recv", tensors), source, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        return self._calls().recv(one("recv", tensors), -1, tag)

    # ---- the group -------------------------------------------------------------------------------------------------

    def getBackendName(self) -> str:
        return NAME

    @property
    def supports_coalescing(self) -> bool:
        return True

    def _set_sequence_number_for_group(self) -> None:
        """Does nothing: every rank begins with 0."""

    def _get_sequence_number_for_group(self) -> int:
        """Returns how many collectives this rank has begun."""
        return 0 if self._member is None else self._member.sequence

    def shutdown(self) -> None:
        """Leaves the group. Waits of this rank end with an error."""
        member, self._member = self._member, None
        if member is not None:
            member.close()

    def abort(self) -> None:
        """Leaves the group and tells the other ranks that this rank failed; their waits end with PeerFailed."""
        member, self._member = self._member, None
        if member is not None:
            member.abort("abort was called")

    def __del__(self, ends: Any = sys.is_finalizing) -> None:
        if not ends() and self.__dict__.get("_member") is not None:  # when Python ends, its contexts are closed
            self.shutdown()

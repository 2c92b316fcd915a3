"""The backend "hpcomm" of torch.distributed, for torch 2.7 and newer: a ProcessGroup whose methods are names for the
calls of a Member."""

import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ReduceOp

from ...errors import InvalidArgument, NotSupported
from .member import Member
from .memory import is_plain, op_code
from .work import as_seconds

NAME = "hpcomm"
_ProcessGroup: Any = dist.ProcessGroup  # its stubs have overloads, and other names in each version of torch
_CPU = torch.device("cpu")


class HpcommProcessGroup(_ProcessGroup):  # type: ignore[misc]
    """A process group on the CPU's tensors. init_process_group("hpcomm") and new_group make it.

    Calls on tensors of other devices go to the backend that the job names for these devices, as in
    "cpu:hpcomm,cuda:nccl".
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, ranks: Sequence[int], name: str) -> None:
        super().__init__(rank, size)
        self._store, self._name, self._description = store, name, "undefined"
        self._sequence = 0
        self._others: dict[str, Any] = {}  # the backends of other devices
        self._timeout = timeout
        self._member: Member | None = None
        self._member = Member(store, rank, size, timeout.total_seconds(), ranks)
        self._entitle()
        register = getattr(self, "_register_backend", None)
        if register is not None:
            register(_CPU, _ProcessGroup.BackendType.CUSTOM, None)

    # ---- collectives -----------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        tensors = _list(tensors)
        other = self._other(tensors)
        if other is not None:
            return other.allreduce(tensors, *_given(opts, timeout))
        op, limit, is_async = _reduction("all_reduce", opts, timeout)
        return self._calls().allreduce(tensors, op, limit, is_async)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        other = self._other(tensors)
        if other is not None:
            return other.allreduce_coalesced(tensors, *_given(opts))
        op, limit, is_async = _reduction("all_reduce_coalesced", opts, None)
        return self._calls().allreduce_coalesced(tensors, op, limit, is_async)

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None, **named: Any) -> Any:
        tensors = _list(tensors)
        root, limit, is_async = _rooted(named.get("root", opts), timeout)
        other = self._other(tensors)
        if other is not None:
            return other.broadcast(tensors, *_given(opts))
        return self._calls().broadcast(tensors, root, limit, is_async)

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None, **named: Any) -> Any:
        tensors = _list(tensors)
        other = self._other(tensors)
        if other is not None:
            return other.reduce(tensors, *_given(opts))
        root, limit, is_async = _rooted(named.get("root", opts), timeout)
        code = op_code("reduce", getattr(opts, "reduceOp", ReduceOp.SUM if op is None else op))
        return self._calls().reduce(_one("reduce", tensors), code, root, limit, is_async)

    def allgather(self, outs: Any, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        other = self._other(tensors)
        if other is not None:
            return other.allgather(outs, tensors, *_given(opts))
        limit, is_async = _plain(opts, timeout)
        return self._calls().allgather(_inner(outs), _one("all_gather", _list(tensors)), limit, is_async)

    def allgather_coalesced(self, outs: Any, tensors: Any, opts: Any = None) -> Any:
        other = self._other(tensors)
        if other is not None:
            return other.allgather_coalesced(outs, tensors, *_given(opts))
        limit, is_async = _plain(opts, None)
        calls = self._calls()
        by_tensor = _by_tensor(outs, len(tensors), self.size())
        return calls.several(
            [(calls.allgather, (mine, tensor)) for mine, tensor in zip(by_tensor, tensors, strict=True)],
            limit,
            is_async,
        )

    def all_gather_single(self, out: Tensor, tensor: Tensor, opts: Any = None, timeout: Any = None) -> Any:
        other = self._other([tensor])
        if other is not None:
            return _called(other, "all_gather_single", "_allgather_base")(out, tensor, *_given(opts))
        limit, is_async = _plain(opts, timeout)
        return self._calls().allgather_single(out, tensor, limit, is_async)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outs: Any, tensors: Any, opts: Any = None) -> Any:
        other = self._other(tensors)
        if other is not None:
            name = _called(other, "all_gather_single_coalesced", "allgather_into_tensor_coalesced")
            return name(outs, tensors, *_given(opts))
        limit, is_async = _plain(opts, None)
        calls = self._calls()
        return calls.several(
            [(calls.allgather_single, pair) for pair in zip(outs, tensors, strict=True)], limit, is_async
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outs: Any, tensors: Any, opts: Any = None, timeout: Any = None, **named: Any) -> Any:
        other = self._other(tensors)
        if other is not None:
            return other.gather(outs, tensors, *_given(opts))
        root, limit, is_async = _rooted(named.get("root", opts), timeout)
        mine = _inner(outs) if outs else None
        return self._calls().gather(mine, _one("gather", _list(tensors)), root, limit, is_async)

    def scatter(self, outs: Any, tensors: Any, opts: Any = None, timeout: Any = None, **named: Any) -> Any:
        other = self._other(outs)
        if other is not None:
            return other.scatter(outs, tensors, *_given(opts))
        root, limit, is_async = _rooted(named.get("root", opts), timeout)
        mine = _inner(tensors) if tensors else None
        return self._calls().scatter(_one("scatter", _list(outs)), mine, root, limit, is_async)

    def reduce_scatter(self, outs: Any, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        other = self._other(outs)
        if other is not None:
            return other.reduce_scatter(outs, tensors, *_given(opts))
        op, limit, is_async = _reduction("reduce_scatter", opts, timeout)
        out = _one("reduce_scatter", _list(outs))
        return self._calls().reduce_scatter(out, _inner(tensors), op, limit, is_async)

    def reduce_scatter_single(self, out: Tensor, tensor: Tensor, opts: Any = None, timeout: Any = None) -> Any:
        other = self._other([tensor])
        if other is not None:
            return _called(other, "reduce_scatter_single", "_reduce_scatter_base")(out, tensor, *_given(opts))
        op, limit, is_async = _reduction("reduce_scatter_tensor", opts, timeout)
        return self._calls().reduce_scatter_single(out, tensor, op, limit, is_async)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outs: Any, tensors: Any, opts: Any = None) -> Any:
        other = self._other(tensors)
        if other is not None:
            name = _called(other, "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced")
            return name(outs, tensors, *_given(opts))
        op, limit, is_async = _reduction("reduce_scatter_tensor", opts, None)
        calls = self._calls()
        pairs = zip(outs, tensors, strict=True)
        return calls.several([(calls.reduce_scatter_single, (*pair, op)) for pair in pairs], limit, is_async)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outs: Any, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        other = self._other(tensors)
        if other is not None:
            return other.alltoall(outs, tensors, *_given(opts))
        limit, is_async = _plain(opts, timeout)
        return self._calls().alltoall(outs, tensors, limit, is_async)

    def all_to_all_single(
        self, out: Tensor, tensor: Tensor, received: Any = (), sent: Any = (), opts: Any = None, timeout: Any = None
    ) -> Any:
        other = self._other([tensor])
        if other is not None:
            name = _called(other, "all_to_all_single", "alltoall_base")
            return name(out, tensor, received, sent, *_given(opts))
        limit, is_async = _plain(opts, timeout)
        return self._calls().alltoall_single(out, tensor, received or (), sent or (), limit, is_async)

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        device = getattr(opts, "device", None)
        if device is not None and device.type != "cpu" and device.type in self._backends():
            return self._get_backend(device).barrier(opts)
        return self._calls().barrier(*_plain(opts, timeout))

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Waits for all ranks. Its Timeout has all ranks that are missing, on every rank, also without
        wait_all_ranks."""
        self._calls().monitored_barrier(as_seconds(timeout))

    # ---- messages --------------------------------------------------------------------------------------------------

    def send(self, tensors: Any, to: int, tag: int = 0) -> Any:
        other = self._other(tensors)
        if other is not None:
            return other.send(tensors, to, tag)
        return self._calls().send(_one("send", tensors), to, tag)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Any:
        other = self._other(tensors)
        if other is not None:
            return other.recv(tensors, source, tag)
        return self._calls().recv(_one("recv", tensors), source, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        other = self._other(tensors)
        if other is not None:
            return other.recv_anysource(tensors, tag)
        return self._calls().recv(_one("recv", tensors), -1, tag)

    # ---- the group -------------------------------------------------------------------------------------------------

    def getBackendName(self) -> str:
        return NAME

    # C++ and Python both ask for the name and the description.

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name
        self._entitle()

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description
        self._entitle()

    def _entitle(self) -> None:
        if self._member is not None:
            self._member.entitle(self._name, self._description)

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)
    _set_group_name, _set_group_desc = setGroupName, setGroupDesc

    def get_group_store(self) -> Any:
        return self._store

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the time for each later call that gives none."""
        self._timeout = timeout
        self._calls().timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    @property
    def supports_splitting(self) -> bool:
        return False

    @property
    def supports_coalescing(self) -> bool:
        return True

    def _start_coalescing(self, device: Any = None) -> None:
        self._calls().begin_together()

    def _end_coalescing(self, device: Any = None) -> Any:
        return self._calls().end_together()

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _get_backend(self, device: Any) -> Any:
        """Returns this group for the CPU; for another device the backend that the job names for it."""
        kind = torch.device(device).type
        if kind == "cpu":
            return self
        if kind not in self._others:
            self._others[kind] = self._make_other(kind)
        return self._others[kind]

    def shutdown(self) -> None:
        """Leaves the group. Waits of this rank end with an error."""
        member, self._member = self._member, None
        if member is not None:
            member.close()
        for other in self._others.values():
            end = getattr(other, "shutdown", getattr(other, "_shutdown", None))
            if end is not None:
                end()
        self._others.clear()

    def abort(self) -> None:
        """Leaves the group and tells the other ranks that this rank failed; their waits end with PeerFailed."""
        member, self._member = self._member, None
        if member is not None:
            member.abort("abort was called")
        for other in self._others.values():
            other.abort()
        self._others.clear()

    def __del__(self, ends: Any = sys.is_finalizing) -> None:
        if not ends() and self.__dict__.get("_member") is not None:  # when Python ends, its contexts are closed
            self.shutdown()

    def _calls(self) -> Member:
        member = self._member
        if member is None:
            raise InvalidArgument(f"the process group {self._name} is closed: make another one")
        self._sequence += 1
        return member

    # ---- other devices ---------------------------------------------------------------------------------------------

    def _other(self, tensors: Any) -> Any:
        """Returns the backend for tensors on another device; None for tensors of the CPU, and for those that no backend
        takes, which a Member refuses."""
        first = tensors[0] if isinstance(tensors, list | tuple) else tensors
        if is_plain(first) or first.is_cpu or first.device.type not in self._backends():
            return None
        return self._get_backend(first.device)

    def _backends(self) -> dict[str, str]:
        """Returns the names of the job's backends by their devices."""
        try:
            config = dist.get_backend_config(self)
        except (RuntimeError, ValueError, KeyError):
            return {}
        return dict(pair.split(":", 1) for pair in str(config).split(",") if ":" in pair)

    def _make_other(self, kind: str) -> Any:
        name = self._backends().get(kind)
        if name is None or name == NAME:
            raise RuntimeError(f"the process group {self._name} has no backend for {kind}: it has {self._backends()}")
        store = dist.distributed_c10d.PrefixStore(f"{kind}/", self._store)
        try:
            if name == "gloo":
                return dist.ProcessGroupGloo(store, self.rank(), self.size(), timeout=self._timeout)
            if name == "nccl":
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = self._timeout
                return dist.ProcessGroupNCCL(store, self.rank(), self.size(), options)
        except (AttributeError, ValueError) as wrong:  # torch asks for a backend that may be missing, and expects this
            raise RuntimeError(f"the backend {name} for {kind} cannot be made: {wrong}") from None
        raise RuntimeError(f"the backend {name} beside {NAME} needs torch 2.14: {NAME} can make gloo and nccl")


def make(options: Any, _backend_options: Any = None) -> HpcommProcessGroup:
    """Makes a group by torch's description of it.

    Raises:
        NotSupported: this torch is too old.
    """
    if tuple(map(int, torch.__version__.split(".")[:2])) < (
        2,
        7,
    ):  # it drops the Python half of works that C++ waits for
        raise NotSupported(f"the backend {NAME} needs torch 2.7 or newer: this is {torch.__version__}")
    ranks = list(options.global_ranks_in_group)
    return HpcommProcessGroup(
        options.store, options.group_rank, options.group_size, options.timeout, ranks, str(options.group_id)
    )


def register() -> None:
    """Makes "hpcomm" a backend of torch.distributed; a second call has no effect."""
    if dist.is_available() and not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, make, extended_api=True, devices=["cpu"])


# ---- arguments -----------------------------------------------------------------------------------------------------
#
# torch gives an object with all options of a call; a program may also give an op or a root, and a timeout.


def _plain(opts: Any, timeout: Any) -> tuple[float | None, bool]:
    """Returns the time for a call, and whether it is asynchronous."""
    if opts is None or isinstance(opts, timedelta):
        return as_seconds(opts if timeout is None else timeout), True
    return as_seconds(getattr(opts, "timeout", timeout)), getattr(opts, "asyncOp", True)


def _reduction(name: str, opts: Any, timeout: Any) -> tuple[int, float | None, bool]:
    op = getattr(opts, "reduceOp", None)
    if op is None:
        return op_code(name, ReduceOp.SUM if opts is None else opts), as_seconds(timeout), True
    return op_code(name, op), *_plain(opts, timeout)


def _rooted(opts: Any, timeout: Any) -> tuple[int, float | None, bool]:
    if opts is None or isinstance(opts, int):
        return opts or 0, as_seconds(timeout), True
    return opts.rootRank, *_plain(opts, timeout)


def _given(*values: Any) -> list[Any]:
    return [value for value in values if value is not None]


def _called(backend: Any, *names: str) -> Any:
    """Returns the method that has one of the names, newest first."""
    return next(getattr(backend, name) for name in names if hasattr(backend, name))


def _list(tensors: Any) -> Any:
    return [tensors] if isinstance(tensors, Tensor) else tensors


def _inner(lists: Any) -> Any:
    """Returns the tensors of a list, or of the one list in it."""
    if lists and not isinstance(lists[0], Tensor):
        if len(lists) != 1:
            raise InvalidArgument(f"{len(lists)} lists of tensors are given: must be one")
        return lists[0]
    return lists


def _one(name: str, tensors: Any) -> Tensor:
    if len(tensors) != 1:
        raise InvalidArgument(f"{name}: {len(tensors)} tensors are given: must be one")
    return tensors[0]  # type: ignore[no-any-return]


def _by_tensor(outs: Any, count: int, size: int) -> list[list[Tensor]]:
    """Returns the outputs of each tensor by rank. torch gives, for each rank, those of all tensors."""
    if len(outs) != size or any(len(mine) != count for mine in outs):
        raise InvalidArgument(f"all_gather_coalesced: output must have {size} lists of {count} tensors")
    return [[outs[rank][i] for rank in range(size)] for i in range(count)]

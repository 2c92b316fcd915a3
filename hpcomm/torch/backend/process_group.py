"""The backend "hpcomm" for torch 2.7 to 2.13: a ProcessGroup. torch gives it the tensors of all devices, so it passes
those of other devices on."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ...errors import NotSupported
from .member import Member
from .memory import is_plain
from .names import NAME, Names

_ProcessGroup: Any = dist.ProcessGroup  # its stubs have overloads, and other names in each version of torch
_CPU = torch.device("cpu")


def _by_device(name: str, older: str = "", *, at: int = 0) -> Callable[..., Any]:
    """Returns the call of Names, which goes to the backend of another device if the tensors are on it.

    Args:
        name, older: the call, and its name in older torch.
        at: the argument that has the tensors.
    """
    mine = getattr(Names, name)

    def call(self: "HpcommProcessGroup", *given: Any, **named: Any) -> Any:
        other = self._other(given[at])
        if other is None:
            return mine(self, *given, **named)
        method = getattr(other, name, None) or getattr(other, older)
        return method(*(value for value in given if value is not None), **named)

    return call


class HpcommProcessGroup(Names, _ProcessGroup):  # type: ignore[misc]
    """A process group on the CPU's tensors. init_process_group("hpcomm") and new_group make it.

    Calls on tensors of other devices go to the backend that the job names for these devices, as in
    "cpu:hpcomm,cuda:nccl".
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, ranks: Sequence[int], name: str) -> None:
        super().__init__(rank, size)
        self._store, self._name, self._description = store, name, "undefined"
        self._others: dict[str, Any] = {}  # the backends of other devices
        self._timeout = timeout
        self._member = Member(store, rank, size, timeout.total_seconds(), ranks)
        self._entitle()
        register = getattr(self, "_register_backend", None)
        if register is not None:
            register(_CPU, _ProcessGroup.BackendType.CUSTOM, None)

    # ---- calls, which have several names in some versions of torch ---------------------------------------------------

    allreduce = _by_device("allreduce")
    allreduce_coalesced = _by_device("allreduce_coalesced")
    broadcast = _by_device("broadcast")
    reduce = _by_device("reduce")
    allgather = _by_device("allgather", at=1)
    allgather_coalesced = _by_device("allgather_coalesced", at=1)
    all_gather_single = _allgather_base = _by_device("all_gather_single", "_allgather_base", at=1)
    all_gather_single_coalesced = allgather_into_tensor_coalesced = _by_device(
        "all_gather_single_coalesced", "allgather_into_tensor_coalesced", at=1
    )
    gather = _by_device("gather", at=1)
    scatter = _by_device("scatter")
    reduce_scatter = _by_device("reduce_scatter")
    reduce_scatter_single = _reduce_scatter_base = _by_device("reduce_scatter_single", "_reduce_scatter_base", at=1)
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced = _by_device(
        "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", at=1
    )
    alltoall = _by_device("alltoall", at=1)
    all_to_all_single = alltoall_base = _by_device("all_to_all_single", "alltoall_base", at=1)
    send = _by_device("send")
    recv = _by_device("recv")
    recv_anysource = _by_device("recv_anysource")

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        device = getattr(opts, "device", None)
        if device is not None and device.type != "cpu" and device.type in self._backends():
            return self._get_backend(device).barrier(opts)
        return super().barrier(opts, timeout)

    # ---- the group -------------------------------------------------------------------------------------------------
    #
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
    _told = getGroupName

    def get_group_store(self) -> Any:
        return self._store

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the time for each later call that gives none."""
        self._timeout = timeout
        self._opened().timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    @property
    def supports_splitting(self) -> bool:
        return False

    def _start_coalescing(self, device: Any = None) -> None:
        self._opened().begin_together()

    def _end_coalescing(self, device: Any = None) -> Any:
        return self._opened().end_together()

    def _get_backend(self, device: Any) -> Any:
        """Returns this group for the CPU; for another device the backend that the job names for it."""
        kind = torch.device(device).type
        if kind == "cpu":
            return self
        if kind not in self._others:
            self._others[kind] = self._make_other(kind)
        return self._others[kind]

    def shutdown(self) -> None:
        super().shutdown()
        for other in self._others.values():
            end = getattr(other, "shutdown", getattr(other, "_shutdown", None))
            if end is not None:
                end()
        self._others.clear()

    def abort(self) -> None:
        super().abort()
        for other in self._others.values():
            other.abort()
        self._others.clear()

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


def make(options: Any, _backend_options: Any = None) -> Any:
    """Makes a group by torch's description of it.

    Raises:
        NotSupported: this torch is too old.
    """
    # Older torch drops the Python half of works that C++ waits for.
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7):
        raise NotSupported(f"the backend {NAME} needs torch 2.7 or newer: this is {torch.__version__}")
    ranks = list(options.global_ranks_in_group)
    return HpcommProcessGroup(
        options.store, options.group_rank, options.group_size, options.timeout, ranks, str(options.group_id)
    )

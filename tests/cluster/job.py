"""A job of a test: ranks on the hosts of a cluster, and a desk where they and the test meet.

    with Job(cluster, body, 1024, hosts=["h1", "h2"], by="mpirun") as job:
        job.reached("half way")                 # every rank has called desk.meet("half way") and waits there
        job.go()                                # lets them go on
        job.heard("step 3")                     # every rank has called desk.tell("step 3") and goes on
        cluster.cut("h2")
        for ended in job.end():                 # what each rank's body returned, or the error it raised
            assert ended.error == "PeerFailed"

body(desk, 1024) is a function of a module of this package. It brings itself up by hpcomm.init(desk.world()). The desk
is a Unix socket with a path, which network namespaces do not part: what befalls the network does not befall the test.
"""

import importlib
import os
import shutil
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any

from .hosts import HEAD, LIMIT, Cluster

TESTS = Path(__file__).resolve().parents[1]
PORT = 29500  # of the rendezvous


@dataclass(frozen=True)
class Ended:
    """How a rank's body ended: what it returned, or the error that it raised. at: when, by time.monotonic()."""

    value: Any = None
    error: str = ""  # the name of its class
    message: str = ""
    ranks: tuple[int, ...] = ()
    waiting_for: tuple[int, ...] = ()
    op: str = ""
    at: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, error: BaseException) -> "Ended":
        known = {what: getattr(error, what) for what in ("ranks", "waiting_for", "op") if hasattr(error, what)}
        return cls(error=type(error).__name__, message=str(error), **known)


# ---- the ranks' side -----------------------------------------------------------------------------------------------


class Desk:
    """A rank's end. It is also a communicator for hpcomm.init."""

    def __init__(self, connection: "Connection[Any, Any]", by: str, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._connection, self._by = connection, by
        connection.send(("rank", rank))

    def world(self) -> "Desk | None":
        """What a body gives to hpcomm.init: None where a launcher has said who the ranks are."""
        return self if self._by == "desk" else None

    def meet(self, label: str, value: Any = None) -> Any:
        """Tells the test that this rank is here, and returns what go gives when it says go."""
        self._connection.send(("meet", (label, value)))
        return self._connection.recv()

    def tell(self, label: str) -> None:
        """Tells the test that this rank is here, and goes on."""
        self._connection.send(("tell", label))

    def allgather(self, data: bytes) -> list[bytes]:
        self._connection.send(("give", data))
        return list(self._connection.recv())

    def end(self, ended: Ended) -> None:
        self._connection.send(("end", ended))


def _number(*names: str) -> int:
    return int(next(os.environ[name] for name in names if name in os.environ))


def main(module: str, name: str, by: str, path: str) -> None:
    with socket.socket(socket.AF_UNIX) as desk_socket:
        desk_socket.connect(path)
        connection: Connection[Any, Any] = Connection(desk_socket.detach())
    rank = _number("OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK")
    size = _number("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE")
    if by == "desk":
        del os.environ["RANK"], os.environ["WORLD_SIZE"]
    desk = Desk(connection, by, rank, size)
    args = connection.recv()
    try:
        ended = Ended(getattr(importlib.import_module(module), name)(desk, *args))
    except Exception as error:
        traceback.print_exc()
        ended = Ended.of(error)
    desk.end(ended)
    if ended.error and by == "mpirun":
        sys.stderr.flush()
        os._exit(0)  # MPI_Finalize would wait for the dead


# ---- the test's side -----------------------------------------------------------------------------------------------


class Job:
    """Ranks on hosts, ranks_per_host on each, host by host. by: who says which ranks there are.

    mpirun        Open MPI's or MPICH's, whichever is beside the Python that runs the ranks, from the cluster's head
    environment   RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; missing: ranks that do not start
    desk          the test: their addresses travel over the desk
    """

    def __init__(
        self,
        cluster: Cluster,
        body: Callable[..., Any],
        *args: Any,
        hosts: Sequence[str] = (),
        ranks_per_host: int = 1,
        by: str = "mpirun",
        env: dict[str, str] | None = None,
        timeout: float = 60,
        missing: Collection[int] = (),
        python: str = sys.executable,
    ) -> None:
        self.cluster, self.hosts = cluster, tuple(hosts) or cluster.hosts
        self.size = len(self.hosts) * ranks_per_host
        self.host_of = {rank: self.hosts[rank // ranks_per_host] for rank in range(self.size)}
        self._body, self._args, self._by, self._timeout = body, args, by, timeout
        self._env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
        self._env |= {"PYTHONFAULTHANDLER": "1"}
        self._given = env or {}
        self._ranks_per_host, self._missing, self._python = ranks_per_host, missing, python
        self._connections: dict[int, Connection[Any, Any]] = {}
        self._met: dict[int, tuple[str, Any]] = {}
        self._told: dict[int, set[str]] = {rank: set() for rank in range(self.size)}
        self._gave: dict[int, bytes] = {}
        self._ended: dict[int, Ended] = {}
        self._hung_up: set[int] = set()
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> "Job":
        self._deadline = time.monotonic() + self._timeout
        self._folder = self.cluster.folder / f"job-{time.monotonic_ns()}"
        self._folder.mkdir()
        try:
            with socket.socket(socket.AF_UNIX) as desk:
                desk.bind(str(self._folder / "desk"))
                desk.listen(self.size)
                self._start()
                self._accept(desk)
        except BaseException:
            print(self.said(), file=sys.stderr)
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(self.said(), file=sys.stderr)
        self._stop()

    def reached(self, label: str, ranks: Collection[int] | None = None) -> list[Any]:
        """Waits until ranks (default: all) are at a meeting; the values that they brought."""
        wanted = self._all() if ranks is None else ranks
        self._hear(lambda: all(rank in self._met or rank in self._ended for rank in wanted), f"to reach {label!r}")
        for rank in wanted:
            assert rank not in self._ended, f"rank {rank} ended before {label!r}: {self._ended[rank]}"
            assert self._met[rank][0] == label, f"rank {rank} is at {self._met[rank][0]!r}, not at {label!r}"
        return [self._met[rank][1] for rank in sorted(wanted)]

    def go(self, value: Any = None, ranks: Collection[int] | None = None) -> float:
        """Lets ranks go on from their meeting; says when that was."""
        for rank in list(self._met) if ranks is None else ranks:
            del self._met[rank]
            self._connections[rank].send(value)
        return time.monotonic()

    def heard(self, label: str, ranks: Collection[int] | None = None) -> None:
        """Waits until ranks (default: all) have told that they are there."""
        wanted = self._all() if ranks is None else ranks
        self._hear(
            lambda: all(label in self._told[rank] or rank in self._ended for rank in wanted), f"to tell {label!r}"
        )
        for rank in wanted:
            assert label in self._told[rank], f"rank {rank} ended before {label!r}: {self._ended[rank]}"

    def wait_longer(self, seconds: float) -> None:
        """From now on the test waits at most this long in all for the ranks, in place of the job's timeout."""
        self._timeout, self._deadline = seconds, time.monotonic() + seconds

    def pid(self, rank: int) -> int:
        """Of a rank that no launcher started."""
        mark = f"RANK={rank}".encode()
        return next(
            pid
            for pid in self.cluster.processes(self.host_of[rank])
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        )

    def end(self, but: Collection[int] = ()) -> list[Ended]:
        """How all ranks ended, in their order; those that are not to be waited for are left out, and end with the job.
        The other processes have ended, too."""
        wanted = [rank for rank in self._all() if rank not in but]
        self._hear(lambda: all(rank in self._ended for rank in wanted), "to end")
        for number, process in enumerate(self._started):
            if not but or (self._by != "mpirun" and number not in but):
                try:
                    process.wait(max(0.1, self._deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    raise AssertionError("ranks have ended and yet their processes run") from None
        return [self._ended[rank] for rank in wanted]

    def values(self) -> list[Any]:
        """What each rank's body returned; an error of one fails the test."""
        ended = self.end()
        assert not any(rank.error for rank in ended), f"{ended}"
        codes = [process.returncode for process in self._started]
        assert not any(codes), f"exit codes {codes}"
        return [rank.value for rank in ended]

    def said(self) -> str:
        """What the ranks printed."""
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in sorted(self._folder.glob("said*"))]
        return "\n".join(text for text in texts if text)

    # ---- how it is done --------------------------------------------------------------------------------------------

    def _all(self) -> list[int]:
        return [rank for rank in range(self.size) if rank not in self._missing]

    def _start(self) -> None:
        program = [self._python, "-m", f"{__package__}.job", self._body.__module__, self._body.__name__]
        program += [self._by, str(self._folder / "desk")]
        if self._by == "mpirun":
            beside = shutil.which("mpirun", path=str(Path(self._python).parent))
            command = self.cluster.mpirun(self.hosts, ranks_per_host=self._ranks_per_host, path=beside)
            self._started.append(self._popen(HEAD, [*command, *program], self._env | self._given))
            return
        for rank in self._all():
            env = {"RANK": str(rank), "WORLD_SIZE": str(self.size), "LOCAL_RANK": str(rank % self._ranks_per_host)}
            if self._by == "environment":
                env |= {"MASTER_ADDR": self.hosts[0], "MASTER_PORT": str(PORT)}
            self._started.append(self._popen(self.host_of[rank], program, self._env | env | self._given))

    def _popen(self, host: str, command: list[str], env: dict[str, str]) -> "subprocess.Popen[str]":
        with open(self._folder / f"said{len(self._started)}", "w") as said:
            return self.cluster.popen(host, command, env=env, stdout=said, stderr=said, cwd="/")

    def _accept(self, desk: socket.socket) -> None:
        desk.settimeout(0.2)
        while len(self._connections) < len(self._all()):
            try:
                accepted, _ = desk.accept()
            except TimeoutError:
                assert any(process.poll() is None for process in self._started), "no rank lives"
                assert time.monotonic() < self._deadline, "not all ranks came"
                continue
            accepted.settimeout(None)
            connection: Connection[Any, Any] = Connection(accepted.detach())
            assert connection.poll(LIMIT)
            self._connections[connection.recv()[1]] = connection
        for connection in self._connections.values():
            connection.send(self._args)

    def _hear(self, enough: Callable[[], bool], what: str) -> None:
        while not enough():
            open_ones = {self._connections[rank]: rank for rank in self._connections if rank not in self._hung_up}
            left = self._deadline - time.monotonic()
            assert left > 0, f"the test waited {self._timeout} s for ranks {what}"
            assert open_ones, f"all ranks have hung up, and the test waits for them {what}"
            for connection in wait(list(open_ones), min(left, 1)):
                self._take(open_ones[connection], connection)  # type: ignore[index, arg-type]

    def _take(self, rank: int, connection: "Connection[Any, Any]") -> None:
        try:
            kind, value = connection.recv()
        except (EOFError, ConnectionError):
            self._hung_up.add(rank)
            return
        if kind == "tell":
            self._told[rank].add(value)
        elif kind == "meet":
            self._met[rank] = value
        elif kind == "give":
            self._gave[rank] = value
        else:
            self._ended[rank] = value
        if len(self._gave) == self.size:
            parts = [self._gave.pop(one) for one in range(self.size)]
            for one in range(self.size):
                self._connections[one].send(parts)

    def _stop(self) -> None:
        for process in self._started:
            process.kill()
        for host in self.hosts:
            self.cluster.kill(host)
        for process in self._started:
            process.wait(LIMIT)
        for connection in self._connections.values():
            with suppress(OSError):
                connection.close()


if __name__ == "__main__":
    importlib.import_module("cluster.job").main(*sys.argv[1:])  # whose classes the test knows

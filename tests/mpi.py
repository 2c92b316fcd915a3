"""Ranks for the tests: a function of a test module, run by N processes, in a bounded time, with nothing left behind.

    values = mpi.run(4, body, 1024)          # mpirun -n 4: Open MPI or MPICH, root and more ranks than cores
    ended = mpi.spawn(2, body, check=False)  # no launcher: their out-of-band exchange is a socket of this process
    ended = mpi.start([{"RANK": "0"}, ...], body)   # no launcher either: each process has variables of its own

A body is a module-level function; it gets args (JSON) and brings itself up by hpcomm.init(mpi.world()). What it returns
(JSON) is the rank's value.
"""

import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import pytest

INDEX = "RANK_OF_TEST"  # which process of the run this is, where no launcher says so
PATIENCE = float(os.environ.get("HPC_TEST_PATIENCE", "1"))  # a factor of every run's time, for an emulated machine
MARK = "RANKS_OF_TEST"  # in the environment of every process of a run: mpirun puts its ranks into groups of their own


@dataclass(frozen=True)
class Ended:
    """How a run ended: exit codes (mpirun's own, or each rank's), the ranks' values (None: none), what they printed."""

    codes: list[int]
    values: list[Any]
    out: str
    err: str


# ---- the ranks' side -----------------------------------------------------------------------------------------------


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
    """What a body gives to hpcomm.init: None under mpirun, and with variables."""
    return _world


_world: SocketWorld | None = None


def _rank() -> int:
    return int(next(os.environ[name] for name in (INDEX, "OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ))


def _main(file: str, name: str, args: str, out: str, *address: str) -> None:
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(Path(file).parent))
    sys.modules["mpi"] = sys.modules["__main__"]  # what the module imports is this one
    rank = _rank() if not address else int(address[1])
    if address:
        global _world  # noqa: PLW0603
        _world = SocketWorld(rank, int(address[2]), address[0])
    spec.loader.exec_module(module)
    value = getattr(module, name)(*json.loads(args))
    Path(out, str(rank)).write_text(json.dumps(value), encoding="utf-8")


# ---- the tests' side -----------------------------------------------------------------------------------------------


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


def run(
    n: int, body: Callable[..., Any], *args: Any, timeout: float = 60, env: dict[str, str] | None = None
) -> list[Any]:
    """The values of n ranks under mpirun. A rank that raises, or a run that takes too long, fails the test."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*mpirun(), "-n", str(n), *_rank_command(body, args, folder)]
        ended = _await([command], n, folder, timeout, env)
    assert ended.codes == [0], f"mpirun ended with {ended.codes[0]}\n{ended.out}\n{ended.err}"
    return ended.values


def free_port() -> int:
    """Below those of outgoing connections: a free one of these may be taken at any time."""
    while True:
        with socket.socket() as taken, suppress(OSError):
            taken.bind(("127.0.0.1", random.randrange(20000, 32000)))
            return int(taken.getsockname()[1])


def spawn(
    n: int,
    body: Callable[..., Any],
    *args: Any,
    timeout: float = 60,
    env: dict[str, str] | None = None,
    check: bool = True,
) -> Ended:
    """n ranks without a launcher: what one of them does, and how it ends, is no other's concern."""
    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder, "socket"))
        with Listener(address, "AF_UNIX", backlog=n) as listener:
            threading.Thread(target=_exchange, args=(listener, n), daemon=True).start()
            rank_command = _rank_command(body, args, folder)
            commands = [[*rank_command, address, str(rank), str(n)] for rank in range(n)]
            ended = _await(commands, n, folder, timeout, env)
    assert not check or not any(ended.codes), f"ranks ended with {ended.codes}\n{ended.out}\n{ended.err}"
    return ended


def start(
    variables: list[dict[str, str]], body: Callable[..., Any], *args: Any, timeout: float = 60, check: bool = True
) -> Ended:
    """A process for each of variables, which has them in its environment."""
    with tempfile.TemporaryDirectory() as folder:
        rank_command = _rank_command(body, args, folder)
        commands = [
            ["env", f"{INDEX}={index}", *(f"{name}={value}" for name, value in own.items()), *rank_command]
            for index, own in enumerate(variables)
        ]
        ended = _await(commands, len(variables), folder, timeout, None)
    assert not check or not any(ended.codes), f"ranks ended with {ended.codes}\n{ended.out}\n{ended.err}"
    return ended


def _exchange(listener: Listener, n: int) -> None:
    """Serves the allgathers of n ranks until one of them has gone."""
    with suppress(OSError, EOFError):
        ranks = {}
        for _ in range(n):
            connection = listener.accept()
            ranks[connection.recv()] = connection
        while True:
            parts = [ranks[rank].recv() for rank in range(n)]
            for rank in range(n):
                ranks[rank].send(parts)


def _rank_command(body: Callable[..., Any], args: tuple[Any, ...], folder: str) -> list[str]:
    file = sys.modules[body.__module__].__file__
    assert file is not None
    return [sys.executable, "-X", "faulthandler", __file__, file, body.__name__, json.dumps(args), folder]


def _await(commands: list[list[str]], n: int, folder: str, timeout: float, env: dict[str, str] | None) -> Ended:
    mark = uuid.uuid4().hex
    whole = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **(env or {}), MARK: mark}
    timeout *= PATIENCE
    deadline = time.monotonic() + timeout
    with open(Path(folder, "out"), "w+b") as out, open(Path(folder, "err"), "w+b") as err:
        started = []
        late = False
        try:
            for command in commands:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=whole, start_new_session=True
                )
                started.append(process)
            for process in started:
                process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            late = True
        finally:
            for process in started:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            _kill_marked(mark)
            codes = [process.wait() for process in started]
        printed = [Path(file.name).read_text(encoding="utf-8", errors="replace") for file in (out, err)]
    assert not late, f"the ranks took more than {timeout:g} s\n{printed[0]}\n{printed[1]}"
    values = [Path(folder, str(rank)) for rank in range(n)]
    return Ended(
        codes,
        [json.loads(value.read_text(encoding="utf-8")) if value.exists() else None for value in values],
        *printed,
    )


def _kill_marked(mark: str) -> None:
    """Ends what is left of a run, wherever a launcher has put it."""
    wanted = f"{MARK}={mark}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


if __name__ == "__main__":
    _main(*sys.argv[1:])

"""A hub in a process, and jobs of workers that meet there, for the tests.

A test module with `pytest_plugins = ["served"]` has the fixtures hub and own_hub. Its HUB, if there is one, has what
Served takes for hub."""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import IO, Any, Protocol

import mpi
import numpy as np
import pytest
from click.testing import CliRunner
from ranks import Task

import hpcomm
from hpcomm.cli import main
from hpcomm.service import ADMIN, HubConnection, address
from hpcomm.service import handle as handles

TOKENS = {name: f"{name} has a token of its own" for name in ("a", "b", "small", "tiny", "admin")}
SECONDS = 20.0


# ---- a hub, and what a test asks it --------------------------------------------------------------------------------


class Process(Protocol):
    """What a test does with the process of a hub."""

    pid: int

    def send_signal(self, number: int) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    def wait(self, timeout: float) -> int: ...


class Forked:
    """A hub that the server of ranks has forked: it starts in milliseconds."""

    def __init__(self, patch: str, line: list[str]) -> None:
        with ExitStack() as undo:
            folder = Path(undo.enter_context(tempfile.TemporaryDirectory()))
            os.mkfifo(folder / "out")
            self._job = mpi.Forked([Task(__file__, serve.__name__, [patch, line], str(folder))], folder, [{}])
            undo.callback(self._job.kill)
            (self.pid,) = self._job.pids
            self._itself = os.pidfd_open(self.pid)
            undo.callback(os.close, self._itself)
            self.stdout = open(folder / "out", encoding="utf-8")  # noqa: SIM115 - Served closes it
            self._undo = undo.pop_all()
        self._code: int | None = None

    def send_signal(self, number: int) -> None:
        if self._code is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._itself, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float) -> int:
        if self._code is None:
            (self._code,) = self._job.wait(time.monotonic() + timeout)
            if self._code is None:
                raise subprocess.TimeoutExpired("hpcomm hub serve", timeout)
            self._undo.close()
        return self._code


def serve(patch: str, line: list[str]) -> None:
    """The process of a forked hub."""
    os.dup2(1, 2)
    exec(patch, {})
    sys.argv = ["hpcomm", *line]
    main()


def started(patch: str, line: list[str]) -> tuple[Process, IO[str]]:
    """A hub in a fresh interpreter, and what it prints."""
    start = f"{patch}\nimport hpcomm.cli as cli\ncli.main()"
    process = subprocess.Popen(
        [sys.executable, "-c", start, *line],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout


class Served:
    """A hub in a process."""

    def __init__(self, folder: Path, patch: str = "", is_fresh: bool = False, **more: Any) -> None:
        """patch: a line of Python that the process runs before it serves. is_fresh: the process is an interpreter that
        has loaded nothing else. more: settings of hub.toml."""
        self.folder = folder
        for name, token in TOKENS.items():
            self.token(name, token)
        self.configure(more=more)
        line = ["hub", "serve", "--listen", "127.0.0.1:0", "--config", str(self.file)]
        self.process: Process
        if is_fresh:
            self.process, self._printed = started(patch, line)
        else:
            self.process = forked = Forked(patch, line)
            self._printed = forked.stdout
        self.lines: list[str] = []
        self._fresh: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self.where = self.until("listens at ").rpartition(" ")[2]

    @property
    def file(self) -> Path:
        return self.folder / "hub.toml"

    def token(self, name: str, token: str) -> None:
        path = self.folder / f"{name}.token"
        path.touch(0o600)
        path.write_text(token, encoding="utf-8")

    def configure(
        self,
        names: tuple[str, ...] = ("a", "b", "small", "tiny"),
        more: dict[str, Any] | None = None,
        own: dict[str, str] | None = None,
    ) -> None:
        """Writes the configuration. more: settings of the hub; own: lines of namespaces."""
        top = {"admin_token_file": "admin.token", "cores": 1, "memory": "1 GiB", "wait_seconds": 90, **(more or {})}
        lines = {
            "a": "checkpoints = 100",
            "small": 'jobs = 1\nmemory = "6 MiB"\nranks = 2\ncheckpoints = 1\ndisk = "512 KiB"',
            "b": "weight = 3.0",
            "tiny": "descriptors = 31",
            **(own or {}),
        }
        tables = [f'[namespaces.{name}]\ntoken_file = "{name}.token"\n{lines.get(name, "")}' for name in names]
        text = [f"{name} = {json.dumps(value)}" for name, value in top.items()]
        self.file.write_text("\n".join([*text, *tables]), encoding="utf-8")

    def _read(self) -> None:
        with self._printed:
            for line in self._printed:
                self.lines.append(line)
                self._fresh.put(line)
        self._fresh.put("")

    def until(self, words: str) -> str:
        """The hub's next line with these words."""
        until = time.monotonic() + SECONDS * mpi.PATIENCE
        while True:
            try:
                line = self._fresh.get(timeout=max(until - time.monotonic(), 0))
            except queue.Empty:
                line = ""
            assert line, f"the hub has not said {words!r}\n{''.join(self.lines)}"
            if words in line:
                return line.strip()

    def reload(self, words: str) -> None:
        """Lets the hub read its configuration again, and waits until it says these words."""
        self.process.send_signal(signal.SIGHUP)
        self.until(words)

    def ask(self, **request: Any) -> dict[str, Any]:
        with closing(HubConnection(address(self.where), ADMIN, TOKENS["admin"].encode(), 10)) as hub:
            return hub.ask(request)

    def counts(self, what: str) -> int:
        return int(self.ask(op="status")["counts"].get(what, 0))

    def jobs(self) -> dict[str, str]:
        """The states of the jobs, by NAMESPACE/JOB."""
        return {one["job"]: one["state"] for one in self.ask(op="jobs")["jobs"]}

    def wait(self, is_so: Callable[[], bool]) -> None:
        until = time.monotonic() + SECONDS * mpi.PATIENCE
        while not is_so():
            assert time.monotonic() < until, f"{self.ask(op='jobs')}\n{''.join(self.lines)}"

    def create(self, namespace: str = "a", job: str | None = None) -> str:
        return hpcomm.create_service(self.where, namespace, TOKENS[namespace], job)

    def has_only(self, before: dict[str, Any]) -> None:
        """Waits until the hub has as many descriptors, threads and bytes as before."""
        names = ("descriptors", "threads", "memory", "jobs")
        assert sum(one["descriptors"] for one in before["namespaces"].values()) == 0
        until, now = time.monotonic() + SECONDS * mpi.PATIENCE, before
        while time.monotonic() < until:
            now = self.ask(op="status")
            if all(now[name] <= before[name] for name in names):
                break
        assert [name for name in names if now[name] > before[name]] == [], (now, before)
        assert sum(one["descriptors"] for one in now["namespaces"].values()) == 0
        assert now["resident"] < before["resident"] + (8 << 20)

    def end(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(SECONDS)
        finally:
            self.process.kill()


@pytest.fixture(scope="module")
def hub(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = {"drain_seconds": 0, **getattr(request.module, "HUB", {})}
    served = Served(tmp_path_factory.mktemp("hub"), **settings)
    yield served
    assert served.end() == 0


@pytest.fixture
def own_hub(tmp_path: Path) -> Iterator[Served]:
    """A hub of one test, which may end it."""
    served = Served(tmp_path, drain_seconds=40)
    yield served
    served.process.kill()
    served.process.wait(SECONDS)


def numbered(n: int, **more: str) -> list[dict[str, str]]:
    return [{"RANK": str(rank), "WORLD_SIZE": str(n), **more} for rank in range(n)]


def run(n: int, body: Callable[..., Any], handle: str, *args: Any, token: str = TOKENS["a"]) -> list[Any]:
    """What the workers of a job return."""
    return mpi.start(numbered(n), body, handle, token, *args, timeout=SECONDS).values


def join(handle: str, token: str, **config: Any) -> hpcomm.ServiceContext:
    return hpcomm.connect_service(handle, token, **{"timeout": 15, **config})


def said(call: Callable[[], Any]) -> list[str]:
    """The kind and the sentence of the error that a call raises."""
    try:
        call()
    except hpcomm.HpcommError as error:
        return [type(error).__name__, str(error)]
    return ["", ""]


def caller(hub: Served) -> socket.socket:
    where = address(hub.where)
    return socket.create_connection((where.host, where.port), timeout=SECONDS)


def status(where: str) -> dict[str, Any]:
    """What a hub tells its administrator, who may be a worker of a test."""
    with closing(HubConnection(address(where), ADMIN, TOKENS["admin"].encode(), SECONDS)) as hub:
        return hub.ask({"op": "status"})


def asking(hub: Served, namespace: str = "a") -> HubConnection:
    """A connection for requests of a tenant that is no hpcomm."""
    return HubConnection(address(hub.where), namespace, TOKENS[namespace].encode(), SECONDS)


def joining(handle: str, rank: int, size: int, **more: Any) -> dict[str, Any]:
    """The request by which a worker joins a job."""
    job = handles.parsed(handle)
    numbers = {
        "rank": rank,
        "size": size,
        "seconds": 15,
        "timeout": 15,
        "silence": 10,
        "tcp_streams": 1,
        "user": os.geteuid(),
    }
    config = {"transport": os.environ.get("HPCOMM_TRANSPORT", ""), "version": hpcomm.__version__}
    return {"op": "join", "job": job.job, "nonce": job.nonce, **numbers, **config, **more}


def command(hub: Served, *line: str, token: str = "admin", code: int = 0) -> str:
    """What `hpcomm hub LINE` prints."""
    ended = CliRunner().invoke(main, ["hub", *line, "--token-file", str(hub.folder / f"{token}.token")])
    assert ended.exit_code == code, ended.output
    return str(ended.output)


def rest(connection: socket.socket) -> bytes:
    """What comes until the hub hangs up."""
    found = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            found += part
    return found


# ---- a job that trains ----------------------------------------------------------------------------------------------


def numbers(shape: tuple[int, ...], seed: int) -> Any:
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


SHAPES = {"w": (300, 70), "b": (70,), "big": (150_000,)}
VALUES = {name: numbers(shape, len(name)) for name, shape in SHAPES.items()}


CASES: list[dict[str, Any]] = [
    {},
    {"rule": hpcomm.Adam(lr=0.125), "plan": hpcomm.PlanOptions(chunk_bytes=4096)},
    {"rule": {"w": hpcomm.SGD(lr=0.5), "b": hpcomm.Momentum(lr=0.25), "big": hpcomm.AdamW()}, "reduce": "sum"},
    {"codec": "float16", "plan": hpcomm.PlanOptions(codec_out="bfloat16")},
    {"codec": {"w": hpcomm.codec.TopK(0.1), "big": hpcomm.codec.OneBit()}, "apply_at": "receivers"},
    {"codec": hpcomm.codec.ErrorFeedback(hpcomm.codec.Float4())},
    {"consistency": {"w": hpcomm.SSP(0)}, "engine": hpcomm.EngineOptions(groups=[["w", "b"], ["big"]])},
]


def trained(ex: hpcomm.Exchange, rank: int, steps: int = 4) -> dict[str, Any]:
    """The parameters after steps with gradients that differ by rank and step."""
    for step in range(steps):
        ex.step({name: numbers(shape, 100 * rank + step) for name, shape in SHAPES.items()})
    return {name: ex.params[name].copy() for name in SHAPES}


def train(handle: str, token: str, steps: int = 4) -> str:
    with join(handle, token) as ctx:
        ex = hpcomm.parameter_hub(ctx, VALUES, servers="hub", rule=hpcomm.Nesterov(lr=0.5))
        return "".join(array.tobytes().hex()[:4000] for array in trained(ex, ctx.rank, steps).values())

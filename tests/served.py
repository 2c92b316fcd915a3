"""A hub in a process, and jobs of workers that meet there, for the tests."""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import mpi
import numpy as np
from click.testing import CliRunner

import hpcomm
from hpcomm.cli import main
from hpcomm.service import ADMIN, HubConnection, address
from hpcomm.service import handle as handles

TOKENS = {name: f"{name} has a token of its own" for name in ("a", "b", "small", "tiny", "admin")}
SECONDS = 20.0


# ---- a hub, and what a test asks it --------------------------------------------------------------------------------


class Served:
    """A hub in a process."""

    def __init__(self, folder: Path, patch: str = "", **more: Any) -> None:
        """patch: a line of Python that the process runs before it serves. more: settings of hub.toml."""
        self.folder = folder
        for name, token in TOKENS.items():
            self.token(name, token)
        self.configure(more=more)
        start = f"{patch}\nimport hpcomm.cli as cli\ncli.main()"
        line = [sys.executable, "-c", start, "hub", "serve", "--listen", "127.0.0.1:0", "--config", str(self.file)]
        self.process = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines: list[str] = []
        self.silent: list[socket.socket] = []  # callers that say nothing
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
        assert self.process.stdout is not None
        for line in self.process.stdout:
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
    numbers = {"rank": rank, "size": size, "seconds": 15, "timeout": 15, "silence": 10, "tcp_streams": 1, "user": 0}
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

"""Strangers call every listener of a job, from before its ranks have met until they end, and change nothing.

A listener is any socket in which a process of the job accepts connections, as the kernel lists them: rank 0's at
MASTER_PORT, the TCP port of every rank, by which control and data come, and the abstract Unix socket of every rank."""

import itertools
import os
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import mpi
import numpy as np
import pytest
from mpi import Forked, Task
from ranks import INDEX
from sockets import listeners

import hpcomm

RANKS, STEPS = 3, 300
SILENT = 80  # callers of each listener that say nothing; a rank has 64 places for all of them
LOUD = 100  # calls of all that are not hung up yet
SECONDS = 30.0  # for anything that a test waits for
NOBODY = 65534

# The hello of csrc/control/hello.h, as rank 1 of the job would send it to rank 0: for control, a lane, a rendezvous.
HELLOS = [
    struct.pack("<IHHBBHiiiQ16s16s", 0x6870636D, 1, 0x0102, purpose, 0, 0, 1, 0, RANKS, 0, bytes(16), bytes(16))
    for purpose in (1, 2, 3)
]
# A frame of csrc/control/channel.h: a hello with a secret that is none, and a question about the job.
FRAMES = [struct.pack("<IIiIQQQ64x", 0x68706331, kind, 1, 16, 0, 16, 0) + bytes(16) for kind in (1, 8)]
NOISE = random.Random(1).randbytes(1 << 20)
PROOF = bytes(32)  # a wrong one
SAID = [b"GET / HTTP/1.1\r\nHost: node1\r\n\r\n", NOISE, *(hello + PROOF for hello in HELLOS), HELLOS[0] + NOISE]
PACKETS = [b"GET /", NOISE[:4096], *FRAMES]
ANSWER = 16 + 32  # bytes of a nonce and a proof


# ---- the job ---------------------------------------------------------------------------------------------------------


def train(folder: str, transport: str) -> list[Any]:
    """Exact steps, whose sum says how many gradients of each rank arrived."""
    if os.environ["RANK"] != "0":
        _pass(folder, "start")
    with hpcomm.init(timeout=SECONDS, transport=transport) as ctx:
        hub = hpcomm.parameter_hub(ctx, {"w": np.zeros(5000, np.float32)}, rule=hpcomm.SGD(lr=1.0))
        with open(Path(folder, "up"), "wb") as up:
            up.write(b"u")
        _pass(folder, "go")
        for step in range(STEPS):
            if step == STEPS // 2:
                _pass(folder, "on")
            hub.gradient("w")[:] = ctx.rank + 1
            hub.push_pull("w")
        ctx.lane()  # connections that are made now are taken, too
        states = [peer.state for peer in ctx.peers]
        ctx.barrier()
        return [hub.params["w"].min().item(), hub.params["w"].max().item(), *states]


def _pass(folder: str, gate: str) -> None:
    """Waits until the test opens the gate."""
    with open(Path(folder, gate), "rb", buffering=0) as opened:
        opened.read(1)


@contextmanager
def gates(folder: Path, *names: str) -> Iterator[list[int]]:
    """The test's ends of pipes that ranks read and write by name."""
    with ExitStack() as undo:
        ends = []
        for name in names:
            os.mkfifo(folder / name)
            ends.append(os.open(folder / name, os.O_RDWR | os.O_CLOEXEC))
            undo.callback(os.close, ends[-1])
        yield ends


# ---- strangers -------------------------------------------------------------------------------------------------------


class Strangers:
    """Calls the listeners of processes in all ways, round after round, until its block ends.

    Attributes:
        said: calls so far that said something.
        heard: the most bytes that came back to one of them, by TCP and by Unix sockets.
    """

    def __init__(self, pids: list[int]) -> None:
        self.said, self.heard = 0, {"tcp": 0, "unix": 0}
        self._pids = pids
        self._silent: dict[int | str, list[socket.socket]] = {}
        self._loud: dict[int, tuple[socket.socket, int]] = {}  # by number: those that are not hung up, and what came
        self._failed: list[BaseException] = []
        self._over, self._rounds = threading.Event(), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Strangers":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        for caller in [*itertools.chain(*self._silent.values()), *(caller for caller, _ in self._loud.values())]:
            caller.close()

    def await_silent(self, *listeners: int | str) -> None:
        """Returns when each listener has all its silent callers: a full backlog refuses some for a while."""
        await_true(lambda: {len(self._silent.get(where, ())) for where in listeners} == {SILENT}, str(self._failed))

    def await_round(self) -> None:
        """Returns when every listener has been called in all ways once more."""
        while self._rounds.acquire(blocking=False):
            pass
        for _ in range(2):  # one round has begun before
            assert self._rounds.acquire(timeout=SECONDS), self._failed

    def await_refused(self) -> None:
        """Returns when every call so far that said something has been hung up."""
        last = self.said
        await_true(lambda: min([*self._loud, last + 1]) > last, f"{self._failed}, {sorted(self._loud)}")

    def _run(self) -> None:
        try:
            while not self._over.wait(1e-2):
                ports, names = listeners(self._pids)
                everywhere: list[int | str] = [*ports, *names]
                for where in everywhere:
                    with suppress(ConnectionError, BlockingIOError):  # it has closed, or its backlog is full
                        self._call(where)
                self._look()
                self._rounds.release()
        except BaseException as error:
            self._failed.append(error)

    def _call(self, where: int | str) -> None:
        idle = self._silent.setdefault(where, [])
        while len(idle) < SILENT:
            idle.append(_connect(where))
            if isinstance(where, int) and len(idle) % 2:
                idle[-1].send(HELLOS[0][:5])  # the beginning of a hello
        for said in SAID if isinstance(where, int) else PACKETS:
            if len(self._loud) == LOUD:
                return
            caller = _connect(where)
            caller.setblocking(False)
            self._loud[self.said + 1] = caller, 0
            self.said += 1
            with suppress(BlockingIOError):
                caller.send(said)

    def _look(self) -> None:
        for number, (caller, heard) in list(self._loud.items()):
            try:
                data = caller.recv(1 << 16)
            except BlockingIOError:
                continue
            except ConnectionError:
                data = b""
            kind = "unix" if caller.family == socket.AF_UNIX else "tcp"
            self.heard[kind] = max(self.heard[kind], heard + len(data))
            if data:
                self._loud[number] = caller, heard + len(data)
            else:
                caller.close()
                del self._loud[number]


def await_true(condition: Callable[[], bool], told: str = "") -> None:
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until, told
        time.sleep(1e-3)


def _connect(where: int | str) -> socket.socket:
    if isinstance(where, int):
        return socket.create_connection(("127.0.0.1", where), SECONDS)
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    caller.settimeout(SECONDS)
    try:
        caller.connect("\0" + where[1:])
    except BaseException:
        caller.close()
        raise
    return caller


def heard_by_another_user(name: str) -> int:
    """What a process of another user is sent that asks a rank about its job: bytes, or -1 for a call that failed."""
    child = os.fork()
    if child == 0:
        code = 99
        with suppress(BaseException):
            os.setresuid(NOBODY, NOBODY, NOBODY)
            with _connect(name) as caller, suppress(ConnectionError):
                caller.sendall(FRAMES[1])
                code = min(len(caller.recv(1 << 16)), 98)
            code = 0 if code == 99 else code
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# ---- tests -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["tcp", "shm,tcp"])
def test_strangers_at_every_listener_change_nothing(transport: str, tmp_path: Path) -> None:
    shared = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(mpi.free_port())}
    task = Task(__file__, train.__name__, [str(tmp_path), transport], str(tmp_path))
    envs = [{"RANK": str(rank), INDEX: str(rank), **shared} for rank in range(RANKS)]
    with gates(tmp_path, "start", "up", "go", "on") as ends, Forked([task] * RANKS, tmp_path, envs) as job:
        start, up, go, on = ends
        meeting = int(shared["MASTER_PORT"])
        await_true(lambda: meeting in listeners(job.pids)[0])
        with Strangers(job.pids) as strangers:
            strangers.await_round()
            strangers.await_silent(meeting)
            os.write(start, bytes(RANKS - 1))
            for _ in range(RANKS):
                assert select.select([up], [], [], SECONDS)[0], job.printed("err")
                os.read(up, 1)
            strangers.await_round()
            strangers.await_refused()
            ports, names = listeners(job.pids)
            assert len(ports) == (RANKS if transport == "tcp" else 0)  # ranks that share memory listen no more
            assert len(names) == RANKS
            strangers.await_silent(*ports, *names)
            if os.geteuid() == 0:
                assert [heard_by_another_user(name) for name in names] == [0] * RANKS
            said = strangers.said
            os.write(go, bytes(RANKS))
            await_true(lambda: strangers.said > said, str(strangers._failed))
            os.write(on, bytes(RANKS))
            ended = job.end(SECONDS)
    mean = (RANKS + 1) / 2
    assert ended.codes == [0] * RANKS, ended.err
    assert ended.values == [[-STEPS * mean, -STEPS * mean, *["alive"] * RANKS]] * RANKS
    assert strangers.heard["tcp"] <= ANSWER
    assert strangers.heard["unix"] > ANSWER  # this user may ask what a rank does

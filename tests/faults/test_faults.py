"""A rank that is killed, stopped, raises or exits early, at each step of its life: every other rank is told in time who
it was, and nothing is left behind. The ranks of one host, on shm and on tcp."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpi
import pytest
from oob import Server
from rank import STEPS

SIZE = 4
AT_ONCE = 3  # cases that run side by side
MARK = "RANKS_OF_FAULT_TEST"
LIMIT = 90.0  # seconds for a whole case


@dataclass(frozen=True)
class How:
    """A way to fall. timeout: the ranks' deadline, in seconds; within: when the others must know, at the latest;
    silence: after which a rank that says nothing over tcp has failed."""

    error: str
    victim: int
    timeout: float
    within: float
    silence: float = 10


HOWS = {
    "kill": How("PeerFailed", 1, 30, 10),
    "stop": How("Timeout", 2, 2.5, 2.5 + 2),
    "raise": How("PeerFailed", 0, 30, 10),
    "exit": How("PeerFailed", 3, 30, 10),
    "silent": How("PeerFailed", 2, 30, 4 + 4, silence=4),  # stopped, and missed before the deadline
    "fork": How("PeerFailed", 1, 30, 4 + 4, silence=4),  # killed, and a child keeps its sockets open
}
SHM = [("shm", step, how) for step in STEPS for how in ("kill", "stop", "raise", "exit")]
SHM += [("shm", step, "fork") for step in ("init", "recv")]
TCP = [("tcp", step, how) for step in STEPS for how in ("kill", "stop")]
TCP += [("tcp", step, how) for step in ("init", "queue", "signal", "hold", "teardown") for how in ("raise", "exit")]
TCP += [("tcp", step, how) for step in ("init", "recv", "teardown") for how in ("silent", "fork")]


# ---- running one case ------------------------------------------------------------------------------------------------


def marked(mark: str) -> list[int]:
    """The processes of a case, wherever a launcher has put them. A zombie is none: its parent has not looked yet."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def files() -> set[str]:
    return {str(path) for folder in ("/dev/shm", "/tmp") for path in Path(folder).iterdir() if "hpc" in path.name}


def fall(transport: str, step: str, how: str, launcher: list[str] | None = None) -> dict[int, dict[str, Any]]:
    """Runs the ranks of a case and returns what the survivors saw. Fails when something is left."""
    given = HOWS[how]
    mark, before = uuid.uuid4().hex, files()
    address = f"faults-{mark}"
    program = [sys.executable, "-X", "faulthandler", str(Path(__file__).parent / "rank.py")]
    numbers = [str(SIZE), str(given.victim), step, how, str(given.timeout)]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as scratch:
        env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "TMPDIR": scratch, MARK: mark}
        env |= {"HPCOMM_TRANSPORT": transport, "HPCOMM_SILENCE": str(given.silence)}
        if launcher:
            commands = [[*launcher, "-n", str(SIZE), *program, folder, address, "-1", *numbers, "mpi"]]
        else:
            commands = [[*program, folder, address, str(rank), *numbers] for rank in range(SIZE)]
        with Server(address, SIZE, given.timeout, given.victim), open(Path(scratch, "err"), "w+b") as err:
            started = [
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=err, stderr=err, env=env)
                for command in commands
            ]
            end = time.monotonic() + LIMIT
            stopped = how in ("stop", "silent") and not launcher
            for rank, process in enumerate(started):
                if not stopped or rank != given.victim:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(max(0.0, end - time.monotonic()))
            hanging = [rank for rank, process in enumerate(started) if process.poll() is None]
            left = marked(mark)
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in started:
                process.wait()
            err.seek(0)
            said = err.read().decode(errors="replace")
        assert hanging == [given.victim] * stopped, f"ranks {hanging} still run\n{said}"
        assert len(left) == (stopped or how == "fork"), f"processes {left} are left\n{said}"
        if not launcher:
            assert os.listdir(scratch) == ["err"], said
        saw = {int(path.name): json.loads(path.read_text(encoding="utf-8")) for path in Path(folder).iterdir()}
    assert sorted(saw) == [rank for rank in range(SIZE) if rank != given.victim], said
    assert files() <= before | files_of_others(), said
    return saw


def files_of_others() -> set[str]:
    """Files whose maker still runs are another test's."""
    return {
        path for path in files() if any(part.isdigit() and Path("/proc", part).exists() for part in path.split("."))
    }


def leads_to(victim: int, rank: int, saw: dict[int, dict[str, Any]], before: tuple[int, ...] = ()) -> bool:
    """Whether a rank names the victim, or another one that names it, and so on."""
    named = saw[rank]["ranks"] + saw[rank]["waiting_for"]
    after = [other for other in named if other in saw and other not in before]
    return victim in named or any(leads_to(victim, other, saw, (*before, rank)) for other in after)


def check(saw: dict[int, dict[str, Any]], step: str, how: str) -> None:
    given = HOWS[how]
    for rank, what in saw.items():
        told = f"rank {rank}, when rank {given.victim} fell at {step}: {what}"
        # In init, and when the victim left, the others give up as they learn of it. Who hears of that before it hears
        # of the victim names another, and the victim as the one it waits for.
        cascade = what["op"] == "init" or how == "exit"
        assert what["error"] == given.error or (what["error"] == "PeerFailed" and cascade), told
        named = given.victim in what["ranks"] + what["waiting_for"]
        # A rank that is stopped has answered some of the others, and these wait for one that waits for it.
        assert named or (given.error == "Timeout" and leads_to(given.victim, rank, saw)), told
        assert given.victim in what["ranks"] or cascade or given.error == "Timeout", told
        assert what["op"], told
        assert str(given.victim) in what["message"] or not named, told
        assert what["seconds"] < given.within, told
        assert what["held"] == [], told


# ---- the cases -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def falling(request: pytest.FixtureRequest) -> Iterator[dict[tuple[str, ...], "Future[dict[int, dict[str, Any]]]"]]:
    """All selected cases, under way side by side: most of their time is start-up and waiting."""
    chosen = [item.callspec.params for item in request.session.items if item.name.startswith("test_others_are_told[")]  # type: ignore[attr-defined]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {tuple(case.values()): pool.submit(fall, **case) for case in chosen}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("transport", "step", "how"), SHM + TCP)
def test_others_are_told(
    falling: dict[tuple[str, ...], "Future[dict[int, dict[str, Any]]]"], transport: str, step: str, how: str
) -> None:
    check(falling[transport, step, how].result(), step, how)


@pytest.mark.parametrize(("transport", "step", "how"), [("shm", "recv", "kill"), ("tcp", "recv", "kill")])
def test_others_are_told_under_mpirun(transport: str, step: str, how: str) -> None:
    """mpirun's own exit code is 0 then: what counts is what each rank saw."""
    launcher = mpi.mpirun()
    if "--oversubscribe" not in launcher:
        pytest.skip("only Open MPI's mpirun lets the other ranks live")
    check(fall(transport, step, how, [*launcher, "--enable-recovery"]), step, how)

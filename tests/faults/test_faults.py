"""A rank that is killed, stopped, raises or exits early, at each step of its life: every other rank is told in time who
it was, and nothing is left behind. The ranks of one host, on shm and on tcp."""

import json
import os
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpi
import pytest
from oob import Server
from rank import STEPS

RANK = str(Path(__file__).with_name("rank.py"))
SIZE = 4
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


def files() -> set[Path]:
    return {path for folder in ("/dev/shm", "/tmp") for path in Path(folder).iterdir() if "hpcomm" in path.name}


def left_behind(before: set[Path]) -> list[Path]:
    """Files that have come since, and whose maker is gone. Those of a running process are another test's."""
    new = [path for path in files() - before if not any(Path("/proc", part).exists() for part in numbers(path.name))]
    return [path for path in new if path.exists()]


def numbers(name: str) -> list[str]:
    return [part for part in name.split(".") if part.isdigit()]


def fall(transport: str, step: str, how: str, launcher: list[str] | None = None) -> dict[int, dict[str, Any]]:
    """Runs the ranks of a case and returns what the survivors saw. Fails when something is left."""
    given = HOWS[how]
    address, before = f"faults-{uuid.uuid4().hex}", files()
    stopped = how in ("stop", "silent") and not launcher
    awaited = [rank for rank in range(SIZE) if not (stopped and rank == given.victim)]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as scratch:
        env = {"TMPDIR": scratch, "HPCOMM_TRANSPORT": transport, "HPCOMM_SILENCE": str(given.silence)}
        tasks = [
            mpi.Task(RANK, "main", [folder, address, i, SIZE, given.victim, step, how, given.timeout], scratch)
            for i in range(SIZE)
        ]
        with Server(address, SIZE, given.timeout, given.victim):
            if launcher:
                line = [*launcher, "-n", str(SIZE), *mpi.interpreter(tasks[0])]
                job: Any = mpi.Launched([line], Path(scratch), SIZE, env)
                awaited = [0]
            else:
                job = mpi.Forked(tasks, Path(scratch), [env] * SIZE)
            with job:
                codes = job.wait(time.monotonic() + LIMIT, awaited)
                hanging = [i for i in awaited if codes[i] is None]
                left = job.kill()
            said = job.printed("err")
        assert not hanging, f"hang: job killed after {LIMIT:g} s; ranks {hanging} had not ended\n{said}"
        assert len(left) == (stopped or how == "fork"), f"processes {left} are left\n{said}"
        if not launcher:
            assert sorted(os.listdir(scratch)) == ["err", "out"], said
        saw = {int(path.name): json.loads(path.read_text(encoding="utf-8")) for path in Path(folder).iterdir()}
    assert sorted(saw) == [i for i in range(SIZE) if i != given.victim], said
    assert left_behind(before) == [], said
    return saw


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


@pytest.mark.some(12)
@pytest.mark.parametrize(("transport", "step", "how"), SHM + TCP)
def test_others_are_told(transport: str, step: str, how: str) -> None:
    check(fall(transport, step, how), step, how)


@pytest.mark.some(1)
@pytest.mark.parametrize(("transport", "step", "how"), [("shm", "recv", "kill"), ("tcp", "recv", "kill")])
def test_others_are_told_under_mpirun(transport: str, step: str, how: str) -> None:
    """mpirun's own exit code is 0 then: what counts is what each rank saw."""
    launcher = mpi.mpirun()
    if "--oversubscribe" not in launcher:
        pytest.skip("only Open MPI's mpirun lets the other ranks live")
    check(fall(transport, step, how, [*launcher, "--enable-recovery"]), step, how)

"""A few random jobs of which one rank falls, other ones with each commit, and how random_jobs.py judges what the others
were told. On a failure the output says how to play the job again: random_jobs.py --seed S --only K."""

import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from random_plan import KINDS, Job, plan
from random_verdict import CHAIN, RIGHT, UNAFFECTED, WRONG, Outcome, follow, judge, table

import hpcomm

JOBS = 8
LIMIT = 300.0  # seconds for all of them
WIDE_KINDS = "hub-cs,hub-ncs,hosts,notify-ack,graph-bsp,collective,create,init"


def seed() -> str:
    """The commit, so that each has jobs of its own; without git the version."""
    words = ["git", "rev-parse", "--short=12", "HEAD"]
    with suppress(FileNotFoundError):
        return (
            subprocess.run(
                words, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=60, check=False
            ).stdout.strip()
            or hpcomm.__version__
        )
    return hpcomm.__version__


def play(*chosen: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, str(Path(__file__).with_name("random_jobs.py"))]
    return subprocess.run([*program, *chosen], capture_output=True, text=True, timeout=LIMIT, check=False)


def test_every_survivor_names_the_victim(tmp_path: Path) -> None:
    ended = play("--jobs", str(JOBS), "--seed", seed(), "--keep", str(tmp_path))
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"


@pytest.mark.some(1)
@pytest.mark.parametrize("half", range(2))
def test_every_survivor_names_the_victims_of_a_wide_job(half: int, tmp_path: Path) -> None:
    """Six of twelve jobs of 8 to 16 ranks, which are the same with each commit."""
    wide = ["--wide", "--kinds", WIDE_KINDS, "--transports", "shm,tcp", "--ranks", "8,12,16", "-j", "2"]
    ended = play(*wide, "--jobs", "6", "--seed", f"half {half}", "--keep", str(tmp_path))
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "times"),
    [
        # On a chain each rank finds the one before it closed, and asks it: most hear it from one that has asked itself.
        pytest.param(["--seed", "b72bd0e18c7c", "--only", "4"], 1, id="closes_because_of_another"),
        # A rank that gives up in init has closed its listener while others still call it.
        pytest.param(["--seed", "1", "--only", "40"], 5, id="gives_up_in_init"),
        # A receiver has the last version, and its worker leaves before its core has told the server so.
        pytest.param(["--seed", "1", "--only", "130"], 4, id="leaves_before_it_has_told"),
    ],
)
def test_a_job_that_named_a_wrong_rank_once(words: list[str], times: int, tmp_path: Path) -> None:
    for _ in range(times):
        ended = play(*words, "--keep", str(tmp_path))
        assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"


def test_ranks_that_do_not_end_are_a_hang(tmp_path: Path) -> None:
    """The others wait four seconds for a rank that is stopped; here they have a fifth of a second."""
    only = ["--kinds", "collective", "--transports", "shm", "--ranks", "4", "--signals", "stop"]
    ended = play("--jobs", "1", *only, "--bound", "0.2", "--keep", str(tmp_path))
    assert ended.returncode == 1, ended.stderr
    assert "HANG of ranks" in ended.stdout, ended.stdout
    assert "has not ended" in ended.stdout, ended.stdout
    printed = [path.read_text(encoding="utf-8") for path in tmp_path.glob("1-0/out.*")]
    assert sum("most recent call first" in text for text in printed) == 3, printed  # where each one is


def test_a_job_can_be_played_again() -> None:
    jobs = [plan("some seed", number) for number in range(256)]
    assert jobs == [plan("some seed", number) for number in range(256)]
    assert jobs != [plan("another seed", number) for number in range(256)]
    assert {job.kind for job in jobs} == set(KINDS)
    combinations = {(job.kind, job.transport, job.size, job.signal) for job in jobs[:128]}
    assert len(combinations) == 128
    assert all(job.victim in range(job.size) for job in jobs)


def job_of(kind: str) -> Job:
    """A job of four ranks whose rank 3 falls."""
    jobs = (plan("verdict", number, [kind], sizes=[4]) for number in range(1000))
    return next(job for job in jobs if job.victim == 3)


def saw(error: str | None, **attributes: Any) -> dict[str, Any]:
    none: dict[str, Any] = {"ranks": [], "left": [], "waiting_for": [], "culprits": [], "op": "wait"}
    return {"error": error, "message": "", "place": "step 1", "when": time.monotonic_ns()} | none | attributes


@pytest.mark.parametrize(
    ("told", "verdict"),
    [
        (saw("PeerFailed", ranks=[3]), RIGHT),
        (saw("PeerFailed", ranks=[3], left=[0, 1]), RIGHT),
        (saw("PeerFailed", ranks=[1, 3]), WRONG),
        (saw("PeerFailed", ranks=[1], waiting_for=[3]), WRONG),
        (saw("PeerFailed", ranks=[3], left=[1, 3]), WRONG),
        (saw("PeerFailed", left=[3]), WRONG),
        (saw("Timeout", waiting_for=[3]), RIGHT),
        (saw("Timeout", waiting_for=[1]), WRONG),
        (saw("Timeout", waiting_for=[1], culprits=[{"rank": 3, "state": "stopped"}]), RIGHT),
        (saw("Timeout", waiting_for=[3], culprits=[{"rank": 1, "state": "computing"}]), WRONG),
        (saw("Timeout", waiting_for=[1], culprits=[{"rank": rank, "state": "circle"} for rank in (1, 3)]), WRONG),
        (saw("TransportError", ranks=[3]), WRONG),
        (saw(None), WRONG),
    ],
)
def test_verdicts(told: dict[str, Any], verdict: str) -> None:
    assert judge(job_of("queue"), 0, 0, told, {3: time.monotonic_ns()}).verdict == verdict


def test_other_ends() -> None:
    now = {3: time.monotonic_ns()}
    assert judge(job_of("close"), 0, 0, saw(None), now).verdict == UNAFFECTED
    assert judge(job_of("close"), 0, 0, saw(None), {}).verdict == UNAFFECTED
    assert judge(job_of("close"), 0, 0, saw("PeerFailed", ranks=[3]), {}).verdict == WRONG  # nobody had fallen
    assert judge(job_of("queue"), 0, -11, None, now).verdict == WRONG
    assert judge(job_of("queue"), 0, 1, saw("PeerFailed", ranks=[3]), now).verdict == WRONG


def test_the_last_of_those_who_are_asked_to_end() -> None:
    """They may find no quorum; but not because of the victim, nor before they are asked."""
    now, job = {3: time.monotonic_ns()}, job_of("quorum-hub")
    assert judge(job, 0, 0, saw("PeerFailed", ranks=[1]), now, asked=True).verdict == UNAFFECTED
    assert judge(job, 0, 0, saw("PeerFailed", ranks=[1]), now).verdict == WRONG
    assert judge(job, 0, 0, saw("PeerFailed", ranks=[1, 3]), now, asked=True).verdict == WRONG
    assert judge(job, 0, 0, saw("Timeout", waiting_for=[1]), now, asked=True).verdict == WRONG
    assert judge(job_of("queue"), 0, 0, saw("PeerFailed", ranks=[1]), now, asked=True).verdict == WRONG


def test_two_that_fell() -> None:
    now = time.monotonic_ns()
    for told, verdict in (
        (saw("PeerFailed", ranks=[3]), RIGHT),
        (saw("PeerFailed", ranks=[1, 3]), RIGHT),
        (saw("PeerFailed", ranks=[1], left=[3]), RIGHT),  # it has fallen after the other, and left because of it
        (saw("PeerFailed", ranks=[1], left=[1, 3]), WRONG),
        (saw("PeerFailed", ranks=[2, 3]), WRONG),
        (saw("PeerFailed", left=[2]), WRONG),
    ):
        assert judge(job_of("queue"), 0, 0, told, {3: now, 1: now}).verdict == verdict, told


@pytest.mark.parametrize(("signal", "verdicts"), [("close", [RIGHT, CHAIN, CHAIN]), ("abort", [RIGHT, WRONG, WRONG])])
def test_a_rank_named_for_another_that_closed(signal: str, verdicts: list[str]) -> None:
    """Rank 2 names rank 3, which has fallen, rank 1 names rank 2, and rank 0 names rank 1."""
    job, fell = replace(job_of("queue"), signal=signal), {3: time.monotonic_ns()}
    found = [judge(job, rank, 0, saw("PeerFailed", ranks=[rank + 1]), fell) for rank in (2, 1, 0)]
    assert [one.verdict for one in follow(job, fell, found)] == verdicts
    circle = [judge(job, rank, 0, saw("PeerFailed", ranks=[1 - rank]), fell) for rank in (0, 1)]
    assert [one.verdict for one in follow(job, fell, circle)] == [WRONG, WRONG]


def test_table() -> None:
    job = job_of("queue")
    verdicts = [judge(job, rank, 0, saw("PeerFailed", ranks=[3]), {3: time.monotonic_ns()}) for rank in range(3)]
    fine, hung = Outcome(job, 1, verdicts, [], 1), Outcome(job, 1, verdicts[:2], [2], 1)
    assert fine.good
    assert not hung.good
    sums = [line.split() for line in table([fine, hung]).splitlines() if line.startswith("all   ")][-1]
    assert sums == ["all", "2", "1", "6", "5", "0", "0", "0", "1"]

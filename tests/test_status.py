"""hpcomm status: whom each rank waits for, one that is stopped or dead, what is told of others, nothing to be found."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import mpi
import numpy as np
import pytest
from click.testing import CliRunner
from conftest import run_threads

import hpcomm
from hpcomm import _core, cli
from hpcomm._core import ShownRank, Waiting, host

SIZE = 3
LATE = 2
STATUS = [sys.executable, "-m", "hpcomm.cli", "status"]


def status(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*STATUS, *options], capture_output=True, text=True, timeout=60, check=False)


def own_job() -> list[dict[str, Any]]:
    """The ranks of this process's job, as status --json shows them; runs of others are other jobs."""
    while True:  # on a busy machine this rank may answer too late to be shown
        ranks = json.loads(status("--json", "--wait", "5").stdout)["ranks"]
        jobs = {rank["job"] for rank in ranks if rank["pid"] == os.getpid() and rank["state"] == "runs"}
        if jobs:
            (mine,) = jobs
            return [rank for rank in ranks if rank["job"] == mine]


def await_waits(op: str, step: int, waits: dict[int, int]) -> list[dict[str, Any]]:
    """Until each of these ranks is shown by itself, at this step, and waits in op for the one given here.

    A rank that still waits for the answer to an earlier push is not there yet.
    """
    wanted = {rank: (-1, step, [(op, [of])]) for rank, of in waits.items()}
    while True:
        ranks = own_job()
        seen = {
            rank["rank"]: (rank["told_by"], rank["step"], [(wait["op"], wait["ranks"]) for wait in rank["waits"]])
            for rank in ranks
        }
        if seen.items() >= wanted.items():
            return ranks


def held_back(shared: bool) -> list[Any]:
    """What rank LATE sees while it keeps the others waiting: in a pull, a queue and a barrier."""
    seen: list[Any] = []
    with hpcomm.init(mpi.world()) as context:
        ex = hpcomm.parameter_hub(context, {"fc": np.zeros(100, np.float32)})
        others = [rank for rank in range(SIZE) if rank != LATE]
        to, by = ([], others) if context.rank == LATE else ([LATE], [])
        queue = context.receive_queue(to, by, (4,))
        context.barrier()
        grad = np.ones(100, np.float32)
        for _ in range(3):
            ex.push_pull("fc", grad)
        if context.rank == LATE:
            # Over sockets a rank does not see who has not pushed: it waits for the owner, and the owner for LATE.
            seen.append(await_waits("wait", 4, {0: LATE, 1: LATE if shared else 0}))
            text = ""
            # A rank that computes is worth that line after a second; jobs of other tests may have one sooner.
            while f"held up: rank {LATE} has computed for " not in text or text.count(" since ") < SIZE - 1:
                text = status().stdout
        ex.push_pull("fc", grad)
        if context.rank == LATE:
            seen.append(await_waits("recv", 4, {0: LATE, 1: LATE}))
            queue.send_all(np.zeros(4, np.float32))
        else:
            queue.recv(LATE)
            queue.ack(LATE)
        if context.rank == LATE:
            seen.append(await_waits("barrier", 4, {0: LATE, 1: LATE}))
        context.barrier()
    return seen


@pytest.mark.some(1)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_whom_ranks_wait_for(transport: str) -> None:
    seen = mpi.spawn(SIZE, held_back, transport == "shm", env={"HPCOMM_TRANSPORT": transport}).values[LATE]
    pull, _, barrier = seen
    assert [rank["rank"] for rank in pull] == list(range(SIZE))
    assert {rank["size"] for rank in pull} == {SIZE}
    assert {(rank["told_by"], rank["age"]) for rank in pull if rank["rank"] != LATE} == {(-1, 0)}
    assert len({rank["pid"] for rank in pull}) == SIZE
    assert [rank["step"] for rank in pull] == [4, 4, 3]
    assert [rank["step"] for rank in barrier] == [4, 4, 4]
    assert pull[LATE]["waits"] == []
    assert {tuple(rank["transports"]) for rank in pull} == {(transport,)}


def stopped() -> list[Any]:
    """Rank 0 stops rank LATE, looks, and lets it go on."""
    with hpcomm.init(mpi.world()) as context:
        context.barrier()
        seen = []
        if context.rank == 0:
            pid = context.peers[LATE].pid
            os.kill(pid, signal.SIGSTOP)
            while "T" not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]:
                pass
            seen = [pid, json.loads(status("--json", "--wait", "0.5").stdout)["ranks"], status("--wait", "0.5").stdout]
            os.kill(pid, signal.SIGCONT)
        context.barrier()
        return seen


def test_a_stopped_rank_is_shown_by_its_process_and_its_rank() -> None:
    pid, ranks, text = mpi.spawn(SIZE, stopped).values[0]
    (silent,) = [rank for rank in ranks if rank["pid"] == pid]
    assert (silent["state"], silent["rank"], silent["size"]) == ("silent", LATE, SIZE)
    assert silent["process"] == "stopped"
    assert silent["job"] in {rank["job"] for rank in ranks if rank["state"] == "runs"}
    assert "does not answer: its process is stopped" in text


def died() -> Any:
    """What rank 0 sees after the death of rank LATE, which the others do not leave for."""
    world = mpi.world()
    assert world is not None
    with hpcomm.init(world) as context:
        world.allgather(b"up")  # some may still be in init
        if context.rank == LATE:
            os.kill(os.getpid(), signal.SIGKILL)
        ranks: list[dict[str, Any]] = []
        while context.rank == 0 and not any(rank["state"] == "gone" for rank in ranks):
            ranks = own_job()
        with suppress(hpcomm.PeerFailed):
            context.barrier()
        return ranks


def test_a_rank_that_died_is_shown_with_the_reason() -> None:
    ended = mpi.spawn(SIZE, died, check=False)
    assert ended.codes == [0, 0, -signal.SIGKILL], ended.err
    seen = ended.values[0]
    assert [rank["rank"] for rank in seen] == list(range(SIZE))
    assert (seen[LATE]["told_by"], seen[LATE]["age"]) == (0, -1)
    assert "died" in seen[LATE]["gone"]


def shown(rank: int, state: str = "runs", **fields: Any) -> ShownRank:
    waits = (Waiting("wait", 2.5, (LATE,), 1),) if rank != LATE else ()
    plain = ShownRank("ab" * 16, state, rank, 5, os.getpid(), "h1", ("tcp",), 7, waits, -1, 0.0, 0.0, "")
    return replace(plain, **fields)


def test_what_is_told_of_other_hosts_is_shown_with_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = (
        shown(0),
        shown(1, host="h2", told_by=0, age=0.75),
        shown(2, "silent", host="h3", told_by=0, age=8.25, unheard=6.5),
        shown(3, "silent", host="h3", told_by=0, age=-1.0, unheard=6.5),
        shown(4, "gone", host="h3", told_by=0, age=9.0, gone="its process died"),
    )
    blamed = {
        ranks[0].job: _core.Blamed((hpcomm.errors.Culprit(2, "silent", 6.5),), "rank 2 has not answered for 6.5 s")
    }
    monkeypatch.setattr(_core, "jobs", lambda timeout: _core.Jobs(ranks, blamed))
    lines = [line.rstrip() for line in CliRunner().invoke(cli.main, ["status"]).output.splitlines()]
    assert lines[0].startswith("job abababab: 5 ranks, 1 of them here; ")
    assert [line.split()[1] for line in lines[2:7]] == ["h1", "h2", "h3", "h3", "h3"]
    assert [line.split()[4] for line in lines[2:7]] == ["7", "7", "7", "?", "7"]
    assert lines[2].endswith("waits for 2 since 2.5 s, in wait")
    assert lines[3].endswith("waits for 2 since 2.5 s, in wait (0.8 s ago)")
    assert lines[4].endswith("does not answer: nothing came from it for 6.5 s; before: runs (8.2 s ago)")
    assert lines[5].endswith("does not answer: nothing came from it for 6.5 s")
    assert lines[6].endswith("gone: its process died")
    assert lines[7] == "held up: rank 2 has not answered for 6.5 s"
    told = json.loads(CliRunner().invoke(cli.main, ["status", "--json"]).output)
    rows, (ends,) = told["ranks"], told["culprits"].values()
    assert [(end["rank"], end["state"], end["seconds"]) for end in ends] == [(2, "silent", 6.5)]
    assert [(row["told_by"], row["age"], row["unheard"], row["gone"]) for row in rows] == [
        (rank.told_by, rank.age, rank.unheard, rank.gone) for rank in ranks
    ]
    assert [bool(row["command"]) for row in rows] == [True, False, False, False, False]


CIRCLE = _core.Blamed(tuple(hpcomm.errors.Culprit(rank, "circle", 0.0) for rank in range(2)), "ranks 0 and 1 wait")


def looked(*seconds: float, moved: int = 5, op: str = "wait", ages: tuple[float, float] = (0.0, 0.0)) -> Any:
    """What a look has found: two ranks that have waited for each other for so many seconds."""
    ranks = tuple(
        shown(
            rank, waits=(Waiting(op, waited, (1 - rank,), 1),), moved=moved, age=ages[rank], told_by=-(not ages[rank])
        )
        for rank, waited in enumerate(seconds)
    )
    return _core.Jobs(ranks, {ranks[0].job: CIRCLE})


@pytest.mark.parametrize(
    ("first", "second", "circle"),
    [
        (looked(0.0, 0.1), looked(1.0, 1.1), True),
        (looked(0.0, 0.1), looked(0.0, 0.1), False),  # a loop of push_pull
        (looked(0.0, 0.1), looked(1.0, 0.9), False),  # one of them has gone on
        (looked(0.0, 0.1), looked(1.0, 1.1, moved=6), False),  # a large update
        (looked(0.0, 0.1), looked(1.0, 1.1, op="barrier"), False),
        (replace(looked(9.0, 9.0), blamed={}), looked(10.0, 10.0), False),
        (looked(9.0, 9.0), looked(10.0, 9.7, ages=(0.0, 0.3)), True),  # of another host
        (looked(9.0, 9.0, ages=(0.0, 0.5)), looked(10.0, 9.0, ages=(0.0, 1.5)), False),  # no news of it since
        (looked(0.0, 0.1), replace(looked(0.0, 0.1), blamed={}), False),
    ],
)
def test_a_circle_is_told_if_two_looks_find_the_same(
    first: Any, second: Any, circle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = [host.Look(second, 0.9, 1.0), host.Look(first, 0.0, 0.1)]
    paused: list[float] = []
    monkeypatch.setattr(host, "_look", lambda timeout: looks.pop())
    monkeypatch.setattr(host, "sleep", paused.append)
    found = _core.jobs(1.0)
    if not first.blamed:  # a job without a circle is looked at once
        assert found is first
        found, paused = host.without_passing_circles(looks[0]._replace(jobs=first), looks[0]), [0.25]
    assert found.ranks == second.ranks
    assert found.blamed == (second.blamed if circle else {})
    assert paused == [1.1 if any(rank.told_by >= 0 for rank in first.ranks) else 0.25]


def test_a_deadlock_is_told() -> None:
    seen: list[str] = []
    over = threading.Event()

    def body(context: hpcomm.Context) -> None:
        window = context.window(1, signals=1)
        if context.rank == 2:
            while not seen:
                found = _core.jobs(5.0)
                mine = {rank.job for rank in found.ranks if rank.pid == os.getpid()} & found.blamed.keys()
                seen.extend(found.blamed[job].told for job in mine if "deadlock" in found.blamed[job].told)
            for peer in range(2):
                window.put_signal(peer, None, signal=0, value=1)
            over.set()
        else:
            window.wait_signal(0, 1, peer=1 - context.rank)
        assert over.wait(20)

    run_threads(3, body)
    assert "ranks 0 and 1 wait for each other: ranks 0 and 1 in wait_signal (a deadlock of the program)" in seen[0]


def test_contexts_of_a_process_are_told_apart() -> None:
    with hpcomm.init() as first, hpcomm.init() as second:
        mine = [shown for shown in _core.jobs(5.0).ranks if shown.pid == os.getpid() and shown.state == "runs"]
        assert len({shown.job for shown in mine}) == 2
        assert {(shown.rank, shown.size, shown.transports) for shown in mine} == {(0, 1, ())}
        assert {shown.title for shown in mine} == {""}
        first.set_title("evaluation")
        second.set_title(f"\x1b[1m\u00e9 {'x' * 80}")  # no code for a terminal, nor more than the place that there is
        titles = {shown.title for shown in _core.jobs(5.0).ranks if shown.pid == os.getpid() and shown.state == "runs"}
        assert titles == {"evaluation", f"?[1m?? {'x' * 80}"[:63]}
        assert ' "evaluation": 1 rank' in status().stdout
    assert not [shown for shown in _core.jobs(5.0).ranks if shown.pid == os.getpid()]


def test_nothing_found_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else runs on this machine is not looked at."""
    monkeypatch.setattr(_core, "jobs", lambda timeout: _core.Jobs((), {}))
    result = CliRunner().invoke(cli.main, ["status"])
    assert result.exit_code == 1
    assert "no job of yours" in result.output
    result = CliRunner().invoke(cli.main, ["status", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.output) == {"ranks": [], "culprits": {}}


def test_nothing_found_in_a_network_of_its_own() -> None:
    done = subprocess.run(["unshare", "-rn", *STATUS], capture_output=True, text=True, timeout=60, check=False)
    if "unshare" in done.stderr:
        pytest.skip(f"this machine has no user namespaces: {done.stderr.strip()}")
    assert (done.returncode, done.stderr) == (1, "")
    assert "no job of yours" in done.stdout


def test_found_ends_with_0() -> None:
    with hpcomm.init():
        done = status()
    assert (done.returncode, done.stderr) == (0, "")
    assert f" {os.getpid()} " in done.stdout


def test_help_says_how_other_hosts_are_seen() -> None:
    text = " ".join(CliRunner().invoke(cli.main, ["status", "--help"]).output.split())
    assert "Ranks of other hosts are asked by one of this host" in text

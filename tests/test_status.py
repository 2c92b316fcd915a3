"""hpcomm status: whom each rank waits for, a rank that is stopped, and nothing to be found."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import mpi
import numpy as np
import pytest
from click.testing import CliRunner

import hpcomm
from hpcomm import _core, cli

SIZE = 3
LATE = 2
STATUS = [sys.executable, "-m", "hpcomm.cli", "status"]


def status(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*STATUS, *options], capture_output=True, text=True, timeout=60, check=False)


def own_job() -> list[dict[str, Any]]:
    """The ranks of this process's job, as status --json shows them; runs of others are other jobs."""
    ranks = json.loads(status("--json", "--wait", "5").stdout)["ranks"]
    (mine,) = {rank["job"] for rank in ranks if rank["pid"] == os.getpid() and rank["state"] == "runs"}
    return [rank for rank in ranks if rank["job"] == mine]


def await_waits(op: str, whom: tuple[int, ...] = (LATE,)) -> list[dict[str, Any]]:
    """Until all other ranks are shown to wait for this one, or one of whom, in op."""
    wanted = [[rank] for rank in whom]
    while True:
        ranks = own_job()
        waiting = [rank for rank in ranks for wait in rank["waits"] if wait["op"] == op and wait["ranks"] in wanted]
        if len(waiting) == SIZE - 1:
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
            seen.append(await_waits("wait", (LATE,) if shared else (0, LATE)))
            seen.append(status().stdout)
        ex.push_pull("fc", grad)
        if context.rank == LATE:
            seen.append(await_waits("recv"))
            queue.send_all(np.zeros(4, np.float32))
        else:
            queue.recv(LATE)
            queue.ack(LATE)
        if context.rank == LATE:
            seen.append(await_waits("barrier"))
        context.barrier()
    return seen


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_whom_ranks_wait_for(transport: str) -> None:
    seen = mpi.spawn(SIZE, held_back, transport == "shm", env={"HPCOMM_TRANSPORT": transport}).values[LATE]
    pull, text, _, barrier = seen
    assert [rank["rank"] for rank in pull] == list(range(SIZE))
    assert {rank["size"] for rank in pull} == {SIZE}
    assert len({rank["pid"] for rank in pull}) == SIZE
    assert [rank["step"] for rank in pull] == [4, 4, 3]
    assert [rank["step"] for rank in barrier] == [4, 4, 4]
    assert pull[LATE]["waits"] == []
    assert {tuple(rank["transports"]) for rank in pull} == {(transport,)}
    waits = {rank["rank"]: rank["waits"][0]["ranks"] for rank in pull if rank["waits"]}
    assert waits == {0: [LATE], 1: [LATE] if transport == "shm" else [0]}
    assert text.count(" since ") >= SIZE - 1


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


def test_contexts_of_a_process_are_told_apart() -> None:
    with hpcomm.init() as first, hpcomm.init() as second:
        mine = [shown for shown in _core.jobs(5.0) if shown.pid == os.getpid() and shown.state == "runs"]
        assert len({shown.job for shown in mine}) == 2
        assert {(shown.rank, shown.size, shown.transports) for shown in mine} == {(0, 1, ())}
        first.barrier()
        second.barrier()
    assert not [shown for shown in _core.jobs(5.0) if shown.pid == os.getpid()]


def test_nothing_found_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else runs on this machine is not looked at."""
    monkeypatch.setattr(_core, "jobs", lambda timeout: ())
    result = CliRunner().invoke(cli.main, ["status"])
    assert result.exit_code == 1
    assert "no job of yours" in result.output
    result = CliRunner().invoke(cli.main, ["status", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.output) == {"ranks": []}


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


def test_help_says_that_other_hosts_are_not_seen() -> None:
    text = " ".join(CliRunner().invoke(cli.main, ["status", "--help"]).output.split())
    assert "mpirun -n 1 --host NODE hpcomm status" in text

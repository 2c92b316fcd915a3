"""Links that are cut and hosts that fall silent, in the middle of a step: every rank is told in time who is missing,
and what was no failure is not taken for one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import hpcomm

from .bodies import steps_of
from .hosts import Cluster
from .job import Desk, Ended, Job

SILENCE = 2.0
SLACK = 5  # seconds of two busy cores
WARM = 3  # steps before anything happens
VICTIM = 2
SIZE = 4


def work(desk: Desk, kind: str, steps: int) -> int:
    """Makes steps; how many were made. Says what ended them before this rank leaves, so that nobody hears it first
    from another one that gave up."""
    with hpcomm.init(desk.world()) as ctx:
        step = steps_of(ctx, kind)
        number = 0
        try:
            for number in range(steps):
                step(number)
                if number + 1 == WARM:
                    desk.tell("warm")
        except hpcomm.HpcommError as error:
            desk.meet("failed", Ended.of(error))
            raise
        ctx.barrier()
    return number + 1


def befall(cluster: Cluster, how: str, host: str) -> None:
    if how in ("cut", "crash"):
        cluster.cut(host)
    if how == "unplug":
        cluster.cut(host, unplugged=True)
    if how in ("kill", "crash"):
        cluster.kill(host)
    if how == "freeze":
        cluster.pause(host)


CASES = [
    ("push_pull", "cut"),
    ("push_pull", "unplug"),
    ("push_pull", "kill"),
    ("push_pull", "crash"),
    ("push_pull", "freeze"),
    ("queue", "cut"),
    ("queue", "freeze"),
    ("flush", "cut"),
    ("barrier", "cut"),
]


@pytest.mark.some(4)
@pytest.mark.parametrize(("kind", "how"), CASES)
def test_every_rank_is_told_who_is_missing(cluster: Cluster, kind: str, how: str) -> None:
    env = {"HPCOMM_SILENCE": str(SILENCE), "HPCOMM_TIMEOUT": "30"}
    with Job(cluster, work, kind, 10**6, by="desk", env=env) as job:
        job.heard("warm")
        start = time.monotonic()
        befall(cluster, how, job.host_of[VICTIM])
        seeing = [rank for rank in range(SIZE) if rank != VICTIM or how in ("cut", "unplug")]
        for rank, ended in zip(seeing, job.reached("failed", seeing), strict=True):
            told = f"rank {rank}, when rank {VICTIM} was {how}: {ended}"
            assert ended.error == "PeerFailed", told
            if rank == VICTIM:  # it cannot know that the silence is its own
                assert ended.ranks, told
                assert set(ended.ranks) <= set(range(SIZE)) - {VICTIM}, told
            else:
                assert ended.ranks == (VICTIM,), told
                assert str(VICTIM) in ended.message, told
            assert ended.at - start < (0 if how == "kill" else SILENCE) + SLACK, told
            assert ended.at - start > (0 if how == "kill" else SILENCE / 2), told
            assert ended.op, told
        job.go()
        if how == "freeze":
            cluster.resume(job.host_of[VICTIM])
            late = job.reached("failed", [VICTIM])[0]
            assert late.error in ("PeerFailed", "TransportError"), late
            job.go()
        cluster.restore(job.host_of[VICTIM])
        job.end(but=[VICTIM] if how in ("kill", "crash") else [])


def test_a_link_cut_for_longer_than_a_call_may_take_is_a_timeout(cluster: Cluster) -> None:
    env = {"HPCOMM_SILENCE": "20", "HPCOMM_TIMEOUT": "2.5"}
    with Job(cluster, work, "push_pull", 10**6, by="desk", env=env) as job:
        job.heard("warm")
        start = time.monotonic()
        cluster.cut(job.host_of[VICTIM])
        for rank, ended in enumerate(job.reached("failed")):
            assert ended.error == "Timeout", ended
            assert (VICTIM in ended.waiting_for) if rank != VICTIM else ended.waiting_for, ended
            assert ended.at - start < 2.5 + SLACK, ended
        job.go()
        cluster.restore(job.host_of[VICTIM])
        job.end()


def test_two_hosts_that_lose_each_other_name_each_other(cluster: Cluster) -> None:
    env = {"HPCOMM_SILENCE": str(SILENCE)}
    with Job(cluster, work, "queue", 10**6, by="desk", env=env) as job:
        job.heard("warm")
        cluster.part("h2", "h3")
        seen = job.reached("failed", [1, 2])
        assert [ended.error for ended in seen] == ["PeerFailed"] * 2
        assert [ended.ranks for ended in seen] == [(2,), (1,)]
        job.go(ranks=[1, 2])
        job.reached("failed", [0, 3])  # they hear it of the two
        job.go()
        cluster.join()
        job.end()


def test_one_rank_of_a_host_that_dies_is_named_near_and_far(cluster: Cluster) -> None:
    with Job(cluster, work, "push_pull", 10**6, hosts=["h1", "h2"], ranks_per_host=2, by="desk") as job:
        job.heard("warm")
        start = time.monotonic()
        os.kill(job.pid(3), signal.SIGKILL)
        for ended in job.reached("failed", [0, 1, 2]):
            assert ended.error == "PeerFailed", ended
            assert ended.ranks == (3,), ended
            assert ended.at - start < SLACK, ended
        job.go()
        job.end(but=[3])


def test_ranks_that_die_or_leave_in_jobs_of_two_hosts(tmp_path: Path) -> None:
    """Within a host ranks are joined by shm. The jobs are the same with each commit, on two hosts of their own."""
    program = [sys.executable, str(Path(__file__).parents[1] / "faults" / "random_jobs.py")]
    words = ["--wide", "--transports", "mixed", "--ranks", "8,12", "--jobs", "6", "--keep", str(tmp_path)]
    ended = subprocess.run([*program, *words], capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"


def test_under_mpirun_too(cluster: Cluster) -> None:
    """mpirun itself does not notice a cut of seconds."""
    env = {"HPCOMM_SILENCE": str(SILENCE)}
    with Job(cluster, work, "push_pull", 10**6, hosts=["h1", "h2"], ranks_per_host=2, env=env) as job:
        job.heard("warm")
        cluster.cut("h2")
        for rank, ended in enumerate(job.reached("failed")):
            others = (2, 3) if rank < 2 else (0, 1)
            assert ended.error == "PeerFailed", ended
            assert ended.ranks, ended
            assert set(ended.ranks) <= set(others), ended
        job.go()
        cluster.restore("h2")
        job.end()


# ---- no failure ----------------------------------------------------------------------------------------------------


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", ["push_pull", "queue"])
def test_a_short_cut_loses_nothing(cluster: Cluster, kind: str) -> None:
    steps = 25
    env = {"HPCOMM_SILENCE": "6"}
    with Job(cluster, work, kind, steps, by="desk", env=env) as job:
        job.heard("warm")
        cluster.cut(job.host_of[VICTIM])
        time.sleep(1.0)  # that is how long the cut lasts
        cluster.restore(job.host_of[VICTIM])
        assert job.values() == [steps] * SIZE


def test_a_short_freeze_loses_nothing(cluster: Cluster) -> None:
    env = {"HPCOMM_SILENCE": "6"}
    with Job(cluster, work, "push_pull", 15, by="desk", env=env) as job:
        job.heard("warm")
        cluster.pause(job.host_of[VICTIM])
        time.sleep(1.0)  # that is how long it lasts
        cluster.resume(job.host_of[VICTIM])
        assert job.values() == [15] * SIZE


def compute(desk: Desk, seconds: float) -> list[int]:
    """Rank 1 computes for so long, with no call of hpcomm; meanwhile rank 0 writes into its window, rank 2 waits for a
    signal of it and rank 3 for a barrier."""
    with hpcomm.init(desk.world()) as ctx:
        window = ctx.window(ctx.size, "int64", signals=ctx.size)
        if ctx.rank == 1:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                pass
            window.put_signal(2, None, signal=1, value=1)
        if ctx.rank == 0:
            window.put(1, np.array([42]))
            window.flush(1)  # the rank's service thread answers
            desk.tell("flushed")
        if ctx.rank == 2:
            window.wait_signal(1, 1, peer=1)
        ctx.barrier()
        return [int(value) for value in window.array]


def test_a_rank_that_computes_is_alive(cluster: Cluster) -> None:
    """Also one that has fewer cores than threads, and an idle rank whose peers compute."""
    env = {"HPCOMM_SILENCE": "2", "HPCOMM_TIMEOUT": "30"}
    with Job(cluster, compute, 8.0, by="desk", env=env) as job:
        job.heard("flushed", [0])
        assert job.values() == [[0] * 4, [42, 0, 0, 0], [0] * 4, [0] * 4]

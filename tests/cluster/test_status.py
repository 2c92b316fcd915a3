"""hpcomm status on one host of several: all ranks of the job, and since when nothing has come from those that are
frozen or gone."""

import json
import sys
from typing import Any

import numpy as np

import hpcomm

from .hosts import Cluster
from .job import Desk, Job

LATE = 3
STATUS = [sys.executable, "-m", "hpcomm.cli", "status"]
ENV = {"HPCOMM_TIMEOUT": "60", "HPCOMM_SILENCE": "60"}
HOSTS = ["h1", "h2"]


def status(cluster: Cluster, host: str) -> list[dict[str, Any]]:
    ranks: list[dict[str, Any]] = json.loads(cluster.run(host, [*STATUS, "--json"]).stdout)["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1, 2, 3]
    assert [rank["host"] for rank in ranks] == ["h1", "h1", "h2", "h2"]
    return ranks


def await_status(cluster: Cluster, states: list[str]) -> list[dict[str, Any]]:
    while True:
        ranks = status(cluster, "h1")
        if [rank["state"] for rank in ranks] == states:
            return ranks


def held_back(desk: Desk) -> None:
    """Rank LATE meets the test before its last push, and whoever fails before it leaves."""
    with hpcomm.init(desk.world()) as ctx:
        ex = hpcomm.parameter_hub(ctx, {"fc": np.zeros(100, np.float32)})
        grad = np.ones(100, np.float32)
        for _ in range(3):
            ex.push_pull("fc", grad)
        if ctx.rank == LATE:
            desk.meet("late")
        try:
            ex.push_pull("fc", grad)
        except hpcomm.PeerFailed:
            desk.meet("failed")
            raise


def test_the_rank_of_another_host_that_does_not_push_is_named(cluster: Cluster) -> None:
    with Job(cluster, held_back, hosts=HOSTS, ranks_per_host=2, by="desk", env=ENV) as job:
        job.reached("late", [LATE])
        seen: list[dict[str, Any]] = []
        while sum(bool(rank["waits"]) for rank in seen) < 3:
            seen = status(cluster, "h1")
        assert [rank["told_by"] for rank in seen] == [-1, -1, 0, 0]
        assert [rank["step"] for rank in seen] == [4, 4, 4, 3]
        assert [rank["state"] for rank in seen] == ["runs"] * 4
        assert seen[LATE]["waits"] == []
        assert [LATE] in [wait["ranks"] for rank in seen for wait in rank["waits"]]
        assert all(0 <= rank["age"] < 1 for rank in seen)
        assert [rank["command"] for rank in seen[2:]] == ["", ""]  # a process of this host may have the same pid
        there = status(cluster, "h2")
        assert [rank["told_by"] for rank in there] == [2, 2, -1, -1]
        assert there[2]["waits"][0]["seconds"] > seen[2]["waits"][0]["seconds"]

        cluster.pause("h2")
        old = await_status(cluster, ["runs", "runs", "silent", "silent"])
        assert [rank["step"] for rank in old] == [4, 4, 4, 3]
        assert all(rank["age"] >= 1 and rank["unheard"] > 0.5 for rank in old[2:])
        text = cluster.run("h1", STATUS).stdout
        assert "4 ranks, 2 of them here" in text
        assert text.count("does not answer: nothing came from it for ") == 2
        assert text.count("before: ") == 2
        cluster.resume("h2")
        await_status(cluster, ["runs"] * 4)
        job.go()
        job.values()


def test_who_is_gone_is_named_with_the_reason(cluster: Cluster) -> None:
    env = ENV | {"HPCOMM_SILENCE": "2"}
    with Job(cluster, held_back, hosts=HOSTS, ranks_per_host=2, by="desk", env=env) as job:
        job.reached("late", [LATE])
        cluster.kill("h2")
        cluster.cut("h2")
        job.reached("failed", [0, 1])
        ranks = await_status(cluster, ["runs", "runs", "gone", "gone"])
        assert [rank["gone"] for rank in ranks[:2]] == ["", ""]
        told = [rank["gone"] for rank in ranks[2:]]
        reasons = ("died or closed", "nothing was heard", "refused")
        assert all(any(reason in gone for reason in reasons) for gone in told), told
        assert "gone: " in cluster.run("h1", STATUS).stdout
        job.go(ranks=[0, 1])

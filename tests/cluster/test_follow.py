"""Thresholds that follow the network, between hosts with links of 1 Gb/s."""

import time
from typing import Any

import numpy as np

import hpcomm
from hpcomm import Exchange, Tree

from .hosts import Cluster
from .job import Desk, Job

N = 1 << 20
LONG = 20.0  # seconds in which a verdict has to come


def deltas(ex: Exchange) -> tuple[float | None, float | None]:
    counts = ex.stats().codecs["w"]
    return counts.delta_of_pushes, counts.delta_of_folds


def until(desk: Desk, at_least: float, follow: str, wanted: float) -> list[tuple[float | None, float | None]]:
    """The owner, rank 0, sends down a chain. Steps go on until all deltas are as wanted; what they are then."""
    with hpcomm.init(desk.world()) as ctx:
        update = np.random.default_rng(ctx.rank).standard_normal(N).astype(np.float32)
        with hpcomm.parameter_flow(
            ctx, {"w": np.zeros(N, np.float32)}, delta=0.0, up=0.5, at_least=at_least, follow=follow, decays=False,
            servers=1, tree=Tree(arity=1),
        ) as ex:  # fmt: skip
            end = time.monotonic() + LONG
            while True:
                ex.push_pull("w", update)
                time.sleep(0.1)  # a pause: computing
                mine = np.array([*(x if x is not None else wanted for x in deltas(ex)), time.monotonic() > end])
                every = np.frombuffer(b"".join(ctx.allgather(mine.tobytes()))).reshape(-1, 3)
                if (every[:, :2] == wanted).all() or every[:, 2].any():
                    return [deltas(ex)]


def test_the_threshold_goes_up_where_a_path_has_too_little_left(cluster: Cluster) -> None:
    """Of pushes, and of the owner's folds, whose last path another rank probes."""
    with Job(cluster, until, 500e6, "probes", 0.5, hosts=cluster.hosts[:3]) as job:
        assert job.values() == [[(0.5, 0.5)], [(0.5, None)], [(0.5, None)]]


def test_smoothly_it_goes_up_where_the_connections_get_too_little(cluster: Cluster) -> None:
    with Job(cluster, until, 500e6, "smooth", 0.5, hosts=cluster.hosts[:2]) as job:
        ends: Any = job.values()
        assert ends[0] == [(0.5, 0.5)]

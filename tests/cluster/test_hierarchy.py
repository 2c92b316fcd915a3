"""Updates are folded inside each host first, by itself."""

import os
import signal

import pytest

from hpcomm import Hierarchy, Plan
from hpcomm.topology import Request

from .bodies import N, flat_shared_params, hosts_first, recovers_shared_params, shared_params
from .hosts import Cluster
from .job import Job

NBYTES = 4 * (N // 8 + 33)


def sent(cluster: Cluster) -> int:
    """Bytes that the first host has sent over its link."""
    return int(cluster.run("h1", ["cat", "/sys/class/net/eth0/statistics/tx_bytes"]).stdout)


@pytest.mark.some(1)
@pytest.mark.parametrize("ranks_per_host", [1, 2])
def test_auto_folds_inside_hosts_of_several_ranks(cluster: Cluster, ranks_per_host: int) -> None:
    found, carried = {}, {}
    for topology in ("auto", "flat"):
        before = sent(cluster)
        with Job(cluster, hosts_first, topology, hosts=["h1", "h2", "h3"], ranks_per_host=ranks_per_host) as job:
            found[topology] = job.values()
        carried[topology] = sent(cluster) - before
    size = 3 * ranks_per_host
    hosts = [list(range(first, first + ranks_per_host)) for first in range(0, size, ranks_per_host)]
    for auto, flat in zip(found["auto"], found["flat"], strict=True):
        assert auto["hosts"] == tuple(rank - rank % ranks_per_host for rank in range(size))
        assert auto["values"] == flat["values"] == found["auto"][0]["values"]
    plan, flat_plan = (Plan.from_json(found[name][0]["plan"]) for name in ("auto", "flat"))
    cores = max(core for _, core in plan.places) + 1
    keys = {key.name: key.shape for key in plan.keys}
    assert plan == Hierarchy(hosts, ()).compile(Request(keys, size, cores=cores, over_sockets=True, reduce="sum"))
    assert (plan == flat_plan) == (ranks_per_host == 1)
    less = (
        (ranks_per_host - 1) * 3 * NBYTES * 4 / 3
    )  # three steps: 2/3 of all chunks for each other rank, there and back
    assert carried["flat"] - carried["auto"] == pytest.approx(less, abs=NBYTES)


@pytest.mark.some(1)
@pytest.mark.parametrize("ranks_per_host", [1, 3])
def test_ranks_of_a_host_share_one_copy(cluster: Cluster, ranks_per_host: int) -> None:
    found = {}
    for shared in (True, False):
        with Job(cluster, shared_params, shared, hosts=["h1", "h2"], ranks_per_host=ranks_per_host) as job:
            found[shared] = job.values()
    one, own = found[True], found[False]
    for rank, its in enumerate(one):
        host = rank // ranks_per_host * ranks_per_host
        assert its["hosts"][rank] == host
        assert its["bits"] == own[0]["bits"]
        assert (its["loaded"], its["after"]) == (own[0]["loaded"], own[0]["after"])
        assert its["loaded"] == its["bits"][2]
        assert its["file"] == one[host]["file"]
        assert not its["writeable"]
        assert own[rank]["writeable"]
    assert len({its["file"] for its in one}) == 2
    assert len({its["file"] for its in own}) == 2 * ranks_per_host
    # The owner's host has the master itself; the other one gets each parameter once a step, not once a worker.
    assert sum(its["written"] for its in one) == 6 * NBYTES
    assert sum(its["written"] for its in own) == 6 * NBYTES * (2 * ranks_per_host - 1)


def test_a_flat_plan_cannot_write_the_copy_of_another_host(cluster: Cluster) -> None:
    with Job(cluster, flat_shared_params, hosts=["h1", "h2"], ranks_per_host=2) as job:
        told = job.values()
    for sentence in told:
        assert "which read one copy on another host" in sentence
        assert 'as in a Hierarchy or by topology "auto"' in sentence


def test_a_host_goes_on_without_the_rank_that_had_its_copy(cluster: Cluster) -> None:
    holder = 3  # the lowest of its host, which leads no chunk
    with Job(cluster, recovers_shared_params, hosts=["h1", "h2"], ranks_per_host=3, by="desk") as job:
        job.reached("three steps")
        os.kill(job.pid(holder), signal.SIGKILL)
        left = [rank for rank in range(6) if rank != holder]
        job.go(ranks=left)
        ended = job.end(but=[holder])
    found = [its.value for its in ended]
    assert [its[:3] for its in found] == [[3, {1.0 - 18}, {1.0 - 18 - 15}]] * 5, ended
    assert found[0][3] == found[1][3] == found[2][3] != found[3][3] == found[4][3]

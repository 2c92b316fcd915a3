"""Updates are folded inside each host first, by itself."""

import pytest

from hpcomm import Hierarchy, Plan

from .bodies import N, hosts_first
from .hosts import Cluster
from .job import Job

NBYTES = 4 * (N // 8 + 33)


def sent(cluster: Cluster) -> int:
    """Bytes that the first host has sent over its link."""
    return int(cluster.run("h1", ["cat", "/sys/class/net/eth0/statistics/tx_bytes"]).stdout)


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
    chunk = 65536 if ranks_per_host > 1 else 32768  # with nothing to fold in a host it is a hub's plan
    assert plan == Hierarchy(hosts, ()).compile(keys, size, cores=cores, chunk_bytes=chunk, reduce="sum")
    assert (plan == flat_plan) == (ranks_per_host == 1)
    less = (
        (ranks_per_host - 1) * 3 * NBYTES * 4 / 3
    )  # three steps: 2/3 of all chunks for each other rank, there and back
    assert carried["flat"] - carried["auto"] == pytest.approx(less, abs=NBYTES)

"""Which transport each pair of ranks chooses, and how it says so."""

import os
import re
from pathlib import Path

import pytest

from .bodies import chosen, who
from .hosts import Cluster
from .job import Job


@pytest.mark.parametrize("by", ["mpirun", "desk"])
def test_ranks_of_different_hosts_use_tcp(cluster: Cluster, by: str) -> None:
    with Job(cluster, who, by=by) as job:
        values = job.values()
    for rank, value in enumerate(values):
        for peer, (transport, host, path, state) in enumerate(value["peers"]):
            assert host == cluster.hosts[peer]
            assert state == "alive"
            if peer == rank:
                assert (transport, path) == ("self", "")
            else:
                assert transport == "tcp"
                assert re.fullmatch(rf"{re.escape(cluster.address(host))}:\d+ by eth0", path)
        assert value["seen"] == [rank if peer == rank else None for peer in range(4)]


def test_ranks_of_one_host_use_shared_memory_and_tcp_to_the_others(cluster: Cluster) -> None:
    with Job(cluster, who, hosts=["h1", "h2"], ranks_per_host=2, env={"HPCOMM_DEBUG": "INFO"}) as job:
        values = job.values()
        said = job.said()
    for rank, value in enumerate(values):
        used = ["self" if peer == rank else "shm" if peer // 2 == rank // 2 else "tcp" for peer in range(4)]
        assert [transport for transport, *_ in value["peers"]] == used
        assert value["seen"] == [peer if peer // 2 == rank // 2 else None for peer in range(4)]
    told = [
        (int(rank), int(peer), way)
        for rank, ways in re.findall(r"hpcomm rank (\d): of 4, [^:\n]*: (.*)", said)
        for way, peers in re.findall(r"(\w+) to ranks? ((?:\d(?:, )?)+)", ways)
        for peer in peers.split(", ")
    ]
    near, far = [(0, 1), (2, 3)], [(0, 2), (0, 3), (1, 2), (1, 3)]
    assert sorted(told) == sorted([(*pair, "shm") for pair in near] + [(*pair, "tcp") for pair in far]), said
    assert len(re.findall(r"tcp to rank [23] \(h2\) at 10\.77\.0\.2:\d+ by eth0", said)) == 4


def test_the_ranks_of_one_host_use_tcp_where_they_are_told_to(cluster: Cluster) -> None:
    with Job(cluster, who, hosts=["h1"], ranks_per_host=2, env={"HPCOMM_TRANSPORT": "tcp"}) as job:
        for rank, value in enumerate(job.values()):
            assert value["peers"][1 - rank][0] == "tcp"
            assert value["seen"][1 - rank] is None


def test_hosts_on_one_kernel_deal_its_cpus_among_them(cluster: Cluster) -> None:
    """A namespace hides the ranks of the others, but not that they run on the same two CPUs."""
    cpus = 2
    if len(os.sched_getaffinity(0)) < cpus:
        pytest.skip("one CPU")
    with Job(cluster, chosen, cpus, by="desk", env={"OMP_NUM_THREADS": "1"}) as job:
        for words, threads, shared in job.values():
            assert words == "inline: 4 ranks with 1 thread each and 4 cores need 8 CPUs; this kernel has 2 for them"
            assert threads == 0
            assert shared


def test_hosts_that_may_use_shared_memory_only_are_refused(cluster: Cluster) -> None:
    env = {"HPCOMM_TRANSPORT": "shm", "HPCOMM_TIMEOUT": "10"}
    with Job(cluster, who, hosts=["h1", "h2"], by="desk", env=env) as job:
        for rank, ended in enumerate(job.end()):
            assert ended.error in ("NotSupported", "TransportError", "PeerFailed"), ended
            assert str(1 - rank) in ended.message


def test_mpich_starts_ranks_too(cluster: Cluster) -> None:
    mpich = Path(__file__).resolve().parents[2] / ".venv-mpich/bin/python"
    if not mpich.exists():
        pytest.skip("no MPICH here: make .venv-mpich/.installed")
    with Job(cluster, who, hosts=["h1", "h3"], ranks_per_host=2, python=str(mpich)) as job:
        values = job.values()
    assert [transport for transport, *_ in values[0]["peers"]] == ["self", "shm", "tcp", "tcp"]

"""Ranks that no mpirun starts: torchrun's variables say who they are, and a file has the secret by which they know
each other."""

import re
from pathlib import Path
from typing import Any

import pytest

from .bodies import put_and_signal, who
from .hosts import Cluster
from .job import PORT, Desk, Job


@pytest.fixture
def secret(tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "secret"
    file.write_text("what only the ranks of this job can read")
    file.chmod(0o600)
    return {"HPCOMM_SECRET_FILE": str(file), "HPCOMM_TIMEOUT": "20"}


def meet_twice(desk: Desk) -> tuple[int, dict[str, Any]]:
    return put_and_signal(desk, 1000, 2), who(desk)


@pytest.mark.some(1)
@pytest.mark.parametrize("ranks_per_host", [1, 2])
def test_ranks_meet_at_rank_0(cluster: Cluster, secret: dict[str, str], ranks_per_host: int) -> None:
    hosts = cluster.hosts[: 4 // ranks_per_host]
    options: dict[str, Any] = {"hosts": hosts, "ranks_per_host": ranks_per_host, "by": "environment", "env": secret}
    with Job(cluster, meet_twice, **options) as job:
        for rank, (wrong, value) in enumerate(job.values()):
            assert wrong == 0
            used = ["self" if peer == rank else value["peers"][peer][0] for peer in range(4)]
            near = "shm" if ranks_per_host == 2 else "tcp"
            here = rank // ranks_per_host
            want = ["self" if p == rank else near if p // ranks_per_host == here else "tcp" for p in range(4)]
            assert used == want


def test_ranks_meet_and_exchange_by_ipv6(secret: dict[str, str]) -> None:
    """The hosts have no IPv4 address but loopback's; rank 0's name leads to an IPv6 one."""
    with Cluster(2, family=6) as two, Job(two, meet_twice, ranks_per_host=2, by="environment", env=secret) as job:
        for rank, (wrong, value) in enumerate(job.values()):
            assert wrong == 0
            for peer in range(4):
                transport, _, path, _ = value["peers"][peer]
                if peer // 2 != rank // 2:
                    assert transport == "tcp"
                    assert re.fullmatch(rf"\[fd77::{peer // 2 + 1}\]:\d+ by eth0", path)


def test_a_name_that_no_host_knows_is_told_with_the_variable(cluster: Cluster, secret: dict[str, str]) -> None:
    env = secret | {"MASTER_ADDR": "nowhere.invalid", "HPCOMM_TIMEOUT": "1"}
    with Job(cluster, who, hosts=["h1", "h2"], by="environment", env=env) as job:
        for ended in job.end():
            assert ended.error == "ConfigError", ended
            assert "cannot look up MASTER_ADDR=nowhere.invalid" in ended.message
            assert "set MASTER_ADDR to an address of rank 0's host" in ended.message


def test_without_a_secret_other_hosts_are_refused(cluster: Cluster) -> None:
    with Job(cluster, who, hosts=["h1", "h2"], by="environment", env={"HPCOMM_TIMEOUT": "5"}) as job:
        for ended in job.end():
            assert ended.error == "AuthError", ended
            assert "HPCOMM_SECRET_FILE" in ended.message


def test_without_a_secret_ranks_of_one_host_meet_at_loopback(cluster: Cluster) -> None:
    env = {"MASTER_ADDR": "127.0.0.1", "HPCOMM_TIMEOUT": "20"}
    with Job(cluster, who, hosts=["h1"], ranks_per_host=2, by="environment", env=env) as job:
        assert [value["peers"][1 - rank][0] for rank, value in enumerate(job.values())] == ["shm", "shm"]


@pytest.mark.some(1)
@pytest.mark.parametrize("missing", [2, 0])
def test_a_rank_that_never_comes_is_named_everywhere(cluster: Cluster, secret: dict[str, str], missing: int) -> None:
    env = secret | {"HPCOMM_TIMEOUT": "4"}
    with Job(cluster, who, by="environment", env=env, missing=[missing]) as job:
        for ended in job.end():
            assert ended.error == "Timeout", ended
            if missing:
                assert ended.waiting_for == (missing,), ended
            assert re.search(rf"\b{missing}\b", ended.message), ended
            if not missing:
                assert f"{cluster.address('h1')}:{PORT}" in ended.message or f"h1:{PORT}" in ended.message, ended


def test_a_firewall_before_rank_0_is_told_with_its_port(cluster: Cluster, secret: dict[str, str]) -> None:
    cluster.firewall("h1", PORT, PORT)
    try:
        with Job(cluster, who, hosts=["h1", "h2"], by="environment", env=secret | {"HPCOMM_TIMEOUT": "4"}) as job:
            for ended in job.end():
                assert ended.error in ("Timeout", "TransportError"), ended
            assert str(PORT) in job.end()[1].message
    finally:
        cluster.open("h1")

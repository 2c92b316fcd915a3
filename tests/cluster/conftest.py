"""Tests on several hosts. They are collected by tests/cluster/run.py alone, which looks whether the machine can."""

import os
import time
from collections.abc import Iterator

import pytest

from .hosts import Cluster

collect_ignore_glob = [] if "CLUSTER_RUN" in os.environ else ["test_*.py"]


@pytest.fixture(scope="session")
def _hosts() -> Iterator[Cluster]:
    with Cluster(4) as four:
        yield four


@pytest.fixture
def cluster(_hosts: Cluster) -> Iterator[Cluster]:
    """Four hosts with links of 1 Gb/s. A test leaves no process on them."""
    yield _hosts
    late = time.monotonic() + 5
    while (left := [_hosts.processes(host) for host in _hosts.hosts]) and any(left) and time.monotonic() < late:
        pass  # who entered a host has been killed a moment ago, perhaps
    for host in _hosts.hosts:
        _hosts.kill(host)
        _hosts.restore(host)
    _hosts.join()
    assert not any(left), f"processes are left: {left}"

"""bench.phub.racks: two racks of namespaces reach the sum of all gradients in each way."""

import json
import sys
from pathlib import Path

import mpi
import pytest

from bench.phub import racks

ROOT = Path(__file__).resolve().parent.parent


def test_racks_of_hosts_sum_all_gradients() -> None:
    """The option --plant spoils one value of each way: no other value is wrong."""
    command = [sys.executable, "-m", "bench.phub.racks", "--quick", "--racks", "2", "--plant", "--json"]
    ended = mpi.command(*command, timeout=120, cwd=ROOT)
    if ended.returncode == racks.UNABLE:
        pytest.skip(ended.stderr)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    rows = json.loads(ended.stdout)["rows"]
    assert [(row["racks"], row["way"], row["wrong"]) for row in rows] == [(2, way, 1) for way in racks.WAYS]
    assert all(len(row["cycles"]) == 1 for row in rows)


def test_the_bound_is_the_busiest_link() -> None:
    rate, uplink, nbytes = 100.0, 25.0, 1000
    assert racks.bound("ring", 1, nbytes, rate, uplink) == racks.bound("flat", 1, nbytes, rate, uplink) == 20
    assert racks.bound("ring", 2, nbytes, rate, uplink) == 40  # 1000 bytes over the link of a rack, once each way
    assert racks.bound("flat", 2, nbytes, rate, uplink) == 80
    assert racks.bound("sharded", 2, nbytes, rate, 1e9) == 30

"""Context.bandwidth and hpcomm doctor --bandwidth between hosts with links of 100 Mb/s whose bucket is 16 KiB."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import hpcomm

from .hosts import HEAD, Cluster
from .job import Desk, Job

RATE = 12.5e6  # bytes a second


@pytest.fixture(scope="module")
def slow() -> Iterator[Cluster]:
    with Cluster(2, rate="100mbit", burst="16k") as two:
        yield two


def probe(desk: Desk) -> tuple[Any, ...]:
    """What rank 0 finds; then UDP is dropped."""
    with hpcomm.init(desk.world(), timeout=30) as ctx:
        found: list[Any] = []
        if ctx.rank == 0:
            found.append(ctx.bandwidth(1, timeout=20))
            found.append(ctx.bandwidth([1], at_least=0.7 * RATE)[0])
            found.append(ctx.bandwidth(1, at_least=1.4 * RATE))
        desk.meet("found")
        if ctx.rank == 0:
            found.append(ctx.bandwidth(1, at_least=RATE))
        desk.meet("deaf")
        if ctx.rank == 0:
            found += [ctx.bandwidth(1, at_least=RATE), ctx.notes]
        ctx.barrier()
        return tuple(found)


def test_range_verdicts_and_a_firewall(slow: Cluster) -> None:
    with Job(slow, probe, by="desk") as job:
        job.reached("found")
        slow.swallow_udp("h2")
        job.go()
        job.reached("deaf")
        slow.firewall("h2", 1024, 65535)
        job.go()
        (wide, enough, little, deaf, shut, notes), _ = job.values()
    slow.open("h2")
    assert wide.low < RATE < 1.2 * wide.high
    assert abs(wide.middle / RATE - 1) < 0.2, wide
    assert abs(wide.capacity / RATE - 1) < 0.2, wide
    assert enough.sufficient is True, enough
    assert little.sufficient is False, little
    assert enough.nbytes < 0.02 * RATE * 60, "one probe a minute takes 2 % at most"
    assert (deaf.answered, deaf.low, deaf.high, deaf.sufficient) == (False, None, None, None)
    assert deaf.seconds < 5
    assert not shut.answered
    assert shut.seconds < 8
    assert [note for note in notes if "let UDP pass" in note and "rank 1 (h2)" in note]


def test_doctor_shows_the_matrix(slow: Cluster) -> None:
    command = [*slow.mpirun(ranks_per_host=1), sys.executable, "-m", "hpcomm.cli", "doctor", "--bandwidth"]
    told = json.loads(slow.run(HEAD, [*command, "--json"], timeout=100).stdout)["bandwidth"]
    assert [(way["sender"], way["receiver"]) for way in told] == [("h1", "h2"), ("h2", "h1")]
    assert all(way["low"] < 1.2 * RATE and way["high"] > 0.8 * RATE for way in told), told

"""Context.bandwidth: what it refuses, and what its answers say. Answers come from hosts (tests/cluster)."""

import dataclasses
import math
import os
import re
import threading

import mpi
import pytest

import hpcomm
from hpcomm.bandwidth import Bandwidth


@pytest.mark.parametrize(
    ("peer", "options", "said"),
    [
        (0, {}, "to itself"),
        (1, {}, "out of range"),
        ("a", {}, "must be a rank"),
        ([], {}, "one peer or more"),
        (0, {"at_least": 0}, "at_least is 0"),
        (0, {"at_least": -1.0}, "at_least is -1"),
        (0, {"at_least": math.nan}, "at_least is nan"),
        (0, {"at_least": math.inf}, "at_least is inf"),
        (0, {"at_least": "fast"}, "bytes a second"),
        (0, {"timeout": 0}, "timeout is 0 s"),
    ],
)
def test_one_sentence_refuses(alone: hpcomm.Context, peer: object, options: dict[str, object], said: str) -> None:
    with pytest.raises(hpcomm.InvalidArgument, match=re.escape(said)) as refused:
        alone.bandwidth(peer, **options)  # type: ignore[call-overload]
    assert "\n" not in str(refused.value)


def same_host() -> str:
    with hpcomm.init(mpi.world()) as ctx:
        try:
            ctx.bandwidth(1 - ctx.rank)
        except hpcomm.InvalidArgument as error:
            said = str(error)
        ctx.barrier()
        return said


def test_peers_of_one_host_are_refused() -> None:
    for rank, said in enumerate(mpi.spawn(2, same_host).values):
        assert said.startswith(f"bandwidth: rank {1 - rank} is on this rank's host"), said
        assert "name a rank of another host" in said


def test_a_closed_context_and_a_forked_child_are_refused() -> None:
    with hpcomm.init() as ctx:
        child = os.fork()
        if child == 0:
            try:
                ctx.bandwidth(0)
            except hpcomm.InvalidArgument as error:
                os._exit(0 if "fork" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(hpcomm.InvalidArgument, match="closed"):
        ctx.bandwidth(0)
    assert not [thread for thread in threading.enumerate() if "bandwidth" in thread.name]


def test_answers() -> None:
    wide = Bandwidth(1, 9e6, 11e6, None, 12e6, 4.0, 1000)
    assert wide.middle == 10e6
    assert Bandwidth(1, 9e6, math.inf, True, 12e6, 1.0, 1000).middle == 9e6
    assert Bandwidth(1, None, None, None, None, 1.0, 1000, answered=False).middle is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        wide.low = 0.0  # type: ignore[misc]

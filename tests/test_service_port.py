"""A hub has one port: workers and other hubs call it there, and it calls no worker."""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import SECONDS, TOKENS, VALUES, Served, caller, join, rest, run, status, trained

import hpcomm
from hpcomm.service import address, door, proof

RULE = hpcomm.Nesterov(lr=0.5)
LISTENS, ESTABLISHED = 0x0A, 0x01


@pytest.fixture(scope="module")
def hubs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Served]]:
    served = [Served(tmp_path_factory.mktemp(f"hub{i}"), drain_seconds=0) for i in range(2)]
    yield served
    assert [one.end() for one in served] == [0, 0]


@pytest.fixture
def hub(hubs: list[Served]) -> Served:
    return hubs[0]


# ---- the sockets of a job over tcp ---------------------------------------------------------------------------------


def sockets(pid: int) -> list[tuple[int, int, int]]:
    """The state, the own port and the other port of each TCP socket of a process."""
    found = []
    links = [os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir() if one.exists() or one.is_symlink()]
    own = {match[1] for link in links if (match := re.fullmatch(r"socket:\[(\d+)\]", link))}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            _, ours, theirs, state, *rest = line.split()
            if rest[5] in own:
                ports = (int(end.rpartition(":")[2], 16) for end in (ours, theirs))
                found.append((int(state, 16), *ports))
    return [(state, mine, its) for state, mine, its in found]


def train_and_look(handle: str, token: str, pids: list[int], n: int, **case: Any) -> list[Any]:
    """What trained finds, and the sockets of hubs while the job has an exchange, from worker 0."""
    with join(handle, token, transport="tcp") as ctx:
        ex = hpcomm.parameter_hub(ctx, VALUES, servers="hub", rule=RULE, **case)
        bits = trained(ex, ctx.rank)["w"].tobytes().hex()[:400]
        seen = [sockets(pid) for pid in pids] if ctx.rank == 0 else []
        ctx.barrier()
        assert all(peer.transport in ("tcp", "self") for peer in ex.context.peers)
        return [bits, seen]


def check_ports(hubs: list[Served], seen: list[list[tuple[int, int, int]]], least: int) -> None:
    """Each hub listens at one port, where all its connections are, except those that it has made to other hubs."""
    ports = [address(one.where).port for one in hubs]
    for own, found in zip(ports, seen, strict=True):
        assert [mine for state, mine, _ in found if state == LISTENS] == [own]
        ends = [(mine, its) for state, mine, its in found if state == ESTABLISHED]
        assert len(ends) >= least
        assert all(own in (mine, its) or its in ports for mine, its in ends), ends
        called = {its for mine, its in ends if mine != own}
        assert called <= set(ports[: ports.index(own)]), "the later hub calls the earlier one"


def test_workers_call_the_hub_at_its_port(hub: Served) -> None:
    (bits, seen), (same, _), (third, _) = run(3, train_and_look, hub.create(), [hub.process.pid], 3)
    assert bits == same == third
    check_ports([hub], seen, least=3 * 3)  # to meet, for control, and for data


def test_hubs_of_racks_call_each_other_at_their_ports(hubs: list[Served]) -> None:
    handle = hpcomm.create_service([one.where for one in hubs], "a", TOKENS["a"])
    pids = [one.process.pid for one in hubs]
    found = run(4, train_and_look_in_racks, handle, pids)
    assert len({bits for bits, _ in found}) == 1
    check_ports(hubs, found[0][1], least=5)


def train_and_look_in_racks(handle: str, token: str, pids: list[int]) -> list[Any]:
    return train_and_look(handle, token, pids, 4, racks=[[0, 2], [1, 3]])

"""A hub has one port: workers and other hubs call it there, and it calls no worker."""

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from served import TOKENS, VALUES, Served, caller, join, rest, run, trained
from sockets import Forwarder, connections, listeners

import hpcomm
from hpcomm import _core
from hpcomm.config import Config
from hpcomm.service import address, door, proof

HELLO = 64  # bytes of the handshake of contexts (csrc/control/hello.h)
ANSWER = 16 + 32
PROOF = 32


@pytest.fixture(scope="module")
def hubs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Served]]:
    served = [Served(tmp_path_factory.mktemp(f"hub{i}"), drain_seconds=0) for i in range(2)]
    yield served
    assert [one.end() for one in served] == [0, 0]


@pytest.fixture
def hub(hubs: list[Served]) -> Served:
    return hubs[0]


def test_a_context_with_too_many_callers_drops_one() -> None:
    """A verdict would say that the context has ended."""

    def take(descriptor: int) -> None:
        raise hpcomm.Timeout(f"{descriptor} is one too many")

    async def called() -> bytes:
        doors, name = door.Doors(), bytes(16)
        doors.add(name, take)

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            assert await doors.pass_on(await reader.readexactly(door.CALL), reader, writer)

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(door.MAGIC + name)
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()
            server.close()

    assert asyncio.run(called()) == b""


def test_a_hub_calls_no_worker_that_says_it_has_a_door() -> None:
    ranks = [
        _core.context_create(rank, 2, Config(), 1, None, _core.NULL, None, (), ("127.0.0.1", 9, 1)) for rank in range(2)
    ]
    addresses = [_core.context_address(one) for one in ranks]
    with pytest.raises(hpcomm.ConfigError, match="rank 0 has a door: only ranks from 1 on may have one"):
        _core.context_connect(ranks[1], addresses, 1.0)


# ---- the sockets of a job over tcp ---------------------------------------------------------------------------------


def train_and_look(handle: str, token: str, pids: list[int], racks: Any = None) -> list[Any]:
    """The parameters after steps over tcp; then, on worker 0, what processes have as sockets while the exchange is
    open."""
    with join(handle, token, transport="tcp") as ctx:
        ex = hpcomm.parameter_hub(ctx, VALUES, servers="hub", rule=hpcomm.Nesterov(lr=0.5), racks=racks)
        found: list[Any] = [ex_bits(trained(ex, ctx.rank))]
        assert {peer.transport for peer in ex.context.peers} == {"tcp", "self"}
        ctx.barrier()
        if ctx.rank == 0:
            found += [[list(listeners([pid])[0]) for pid in pids], [connections([pid]) for pid in pids]]
        ctx.barrier()
        return found


def ex_bits(values: dict[str, Any]) -> str:
    return "".join(array.tobytes().hex()[:2000] for array in values.values())


def check_ports(hubs: list[Served], least: int, listen: list[list[int]], ends: list[list[tuple[int, int]]]) -> None:
    """Each hub listens at one port, and has all its connections there, least or more, but those to hubs before it."""
    ports = [address(one.where).port for one in hubs]
    assert listen == [[port] for port in ports]
    for index, found in enumerate(ends):
        assert sum(mine == ports[index] for mine, _ in found) >= least
        assert {its for mine, its in found if mine != ports[index]} <= set(ports[:index])


def test_workers_call_the_hub_at_its_port(hub: Served) -> None:
    (bits, *seen), *others = run(3, train_and_look, hub.create(), [hub.process.pid])
    assert others == [[bits]] * 2
    check_ports([hub], 9, *seen)  # of each worker, to meet, for control, and for data


def test_hubs_of_racks_call_each_other_at_their_ports(hubs: list[Served]) -> None:
    handle = hpcomm.create_service([one.where for one in hubs], "a", TOKENS["a"])
    (bits, *seen), *others = run(4, train_and_look, handle, [one.process.pid for one in hubs], [[0, 2], [1, 3]])
    assert others == [[bits]] * 3
    check_ports(hubs, 5, *seen)


# ---- a hub behind another address ----------------------------------------------------------------------------------


def hold(handle: str, token: str, folder: str) -> list[str]:
    """Trains; then waits between two words of the test."""
    with join(handle, token, transport="tcp") as ctx:
        ex = hpcomm.parameter_hub(ctx, VALUES, servers="hub", rule=hpcomm.Nesterov(lr=0.5))
        ex_bits(trained(ex, ctx.rank, 1))
        Path(folder, "holds").touch()
        with open(Path(folder, "gate"), "rb", buffering=0) as opened:
            opened.read(1)
        ex.step({name: value * 0 for name, value in VALUES.items()})
        return [peer.path for peer in ex.context.peers]


def test_callers_that_are_no_ranks_of_the_job_are_refused(hub: Served, tmp_path: Path) -> None:
    """A job reaches the hub at another port. Meanwhile strangers call its context at the hub's."""
    os.mkfifo(tmp_path / "gate")
    where = address(hub.where)
    with closing(Forwarder((where.host, where.port))) as forwarder:
        handle = hub.create().replace(hub.where, f"127.0.0.1:{forwarder.port}")
        found: list[Any] = []
        job = threading.Thread(target=lambda: found.extend(run(1, hold, handle, str(tmp_path))))
        job.start()
        hub.wait((tmp_path / "holds").exists)
        try:
            recorded = [bytes(one) for one in forwarder.said if one.startswith(door.MAGIC)]
            assert len(recorded) >= 2, "all that the worker sends goes by the other port"
            call_as_strangers(hub, recorded[0])
        finally:
            (tmp_path / "gate").write_bytes(b"1")
            job.join()
    ((_, path),) = found
    assert path.startswith(f"127.0.0.1:{forwarder.port}")
    hub.wait(lambda: not hub.jobs())
    before = hub.counts("refused: calls of no job")
    assert called(hub, recorded[0][: door.CALL]) == b"\0", "the job has ended"
    assert hub.counts("refused: calls of no job") == before + 1


def called(hub: Served, said: bytes, *more: tuple[int, bytes]) -> bytes:
    """What a hub answers after its greeting. more: how many bytes the caller reads, before it says more."""
    with closing(caller(hub)) as one:
        one.sendall(said)
        found = one.recv(proof.HELLO, socket.MSG_WAITALL)
        assert len(found) == proof.HELLO
        for n, word in more:
            one.recv(n, socket.MSG_WAITALL)
            one.sendall(word)
        return rest(one)


def call_as_strangers(hub: Served, recorded: bytes) -> None:
    """recorded: what a worker has said, from its first byte."""
    none, strangers = "refused: calls of no job", "refused: calls of strangers"
    before = [hub.counts(what) for what in (none, strangers, "refused: strangers")]
    call, hello = recorded[: door.CALL], recorded[door.CALL :][:HELLO]
    assert called(hub, door.MAGIC + bytes(door.CALL - len(door.MAGIC))) == b"\0"
    assert called(hub, call + b"!") == b"\0", "a caller waits before it says more"
    assert called(hub, call, (1, os.urandom(HELLO))) == b""
    assert called(hub, call, (1, hello[:-1] + b"!"), (ANSWER, bytes(PROOF))) == b""
    assert called(hub, call, (1, hello), (ANSWER, recorded[door.CALL + HELLO :][:PROOF])) == b"", "a replay"
    after = [hub.counts(what) for what in (none, strangers, "refused: strangers")]
    assert [b - a for a, b in zip(before, after, strict=True)] == [2, 3, 0]

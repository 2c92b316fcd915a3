"""A hub keeps its bounds: strangers, and tenants that are broken or want too much."""

import asyncio
import ctypes
import gc
import os
import re
import socket
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import SECONDS, TOKENS, Served, asking, caller, join, joining, rest, run, said, status, train

import hpcomm
from hpcomm.cli.hub import print_now
from hpcomm.service import address, heap, proof, session
from hpcomm.service import handle as handles
from hpcomm.service import hub as hubs
from hpcomm.service.config import read_config
from hpcomm.service.hub import Hub

pytest_plugins = ["served"]
pytestmark = pytest.mark.xdist_group("group service bounds")  # one hub for all tests


# ---- strangers -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def silent(hub: Served) -> Iterator[list[socket.socket]]:
    """Callers that say nothing while other tests run."""
    callers: list[socket.socket] = []
    yield callers
    for one in callers:
        with closing(one):
            assert len(rest(one)) == proof.HELLO, "the hub drops it after 5 s"


def test_strangers_are_dropped_and_others_go_on(hub: Served, silent: list[socket.socket]) -> None:
    before = hub.ask(op="status")
    many = [caller(hub) for _ in range(80)]
    garbage = []
    for data in (b"GET / HTTP/1.1\r\n\r\n" * 20, os.urandom(1 << 20), bytes(proof.CLAIM)):
        one = caller(hub)
        with suppress(ConnectionError):
            one.sendall(data)
        garbage.append(one)
    bits = run(1, train, hub.create(), 1)
    assert bits == run(1, train, hub.create("b"), 1, token=TOKENS["b"])
    for one in garbage:
        assert len(rest(one)) <= proof.HELLO + proof.ANSWER
    for one in many:
        one.close()
    hub.has_only(before)
    counts = hub.ask(op="status")["counts"]
    assert counts["refused: strangers"] + counts.get("refused: too many strangers", 0) >= 80
    silent.append(caller(hub))  # which no other caller drives out


async def greet_many(file: Path) -> None:
    """A hub, as many silent callers as have a place, and as many as may wait."""
    hub = Hub(lambda: read_config(file, "127.0.0.1:0"), lambda told: None)
    listens: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serves = asyncio.create_task(hub.serve(listens.set_result))
    where = address(await listens)
    connect = partial(asyncio.open_connection, where.host, where.port)
    callers = [await connect() for _ in range(hubs.MOST_CALLERS)]
    for reader, _ in callers:
        await reader.readexactly(proof.HELLO)
    callers += [await connect() for _ in range(hubs.MOST_CALLERS)]
    await until(lambda: hub._waiting == hubs.MOST_CALLERS)
    writer = callers[-1][1]
    writer.write(bytes(1000))
    for _ in range(100):
        await asyncio.sleep(0)
    assert unread(where.port, writer.get_extra_info("sockname")[1]) == 1000
    callers.append(await connect())
    assert await callers[-1][0].read() == b"", "the hub hangs up on one caller too many"
    for index in range(2):
        callers[index][1].close()
        first = callers[hubs.MOST_CALLERS + index][0]  # of those that wait gets the place, and at once
        await asyncio.wait_for(first.readexactly(proof.HELLO), SECONDS / 2)
    hub.drain(0)
    await serves
    for _, writer in callers:
        writer.close()


def unread(port: int, caller: int) -> int:
    """The bytes of a caller that have come to a port of this host, and that nobody has read."""
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        _, ours, theirs, _, queues, *_ = line.split()
        if [int(end.split(":")[1], 16) for end in (ours, theirs)] == [port, caller]:
            return int(queues.split(":")[1], 16)
    raise AssertionError(f"{caller} has no connection to {port}")


def test_a_hub_reads_nothing_of_callers_that_wait(hub: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_PLACE_SECONDS", SECONDS), ("_PROOF_SECONDS", SECONDS), ("MOST_WAITING", hubs.MOST_CALLERS)):
        monkeypatch.setattr(hubs, name, value)
    asyncio.run(greet_many(hub.file))


def test_a_recorded_connection_is_of_no_use(hub: Served) -> None:
    token, before = TOKENS["a"].encode(), hub.counts("refused: wrong token")
    with closing(caller(hub)) as first, closing(caller(hub)) as second:
        greeting = first.recv(proof.HELLO, socket.MSG_WAITALL)
        claim = proof.claim(greeting, "a", token)
        first.sendall(claim)
        proof.check_answer(greeting, claim, first.recv(proof.ANSWER, socket.MSG_WAITALL), token)
        second.recv(proof.HELLO, socket.MSG_WAITALL)
        second.sendall(claim)
        assert rest(second) == proof.refusal()
    assert hub.counts("refused: wrong token") == before + 1


def test_a_frame_that_was_changed_ends_the_connection(hub: Served) -> None:
    token = TOKENS["a"].encode()
    for spoil in (
        lambda frame: frame[:-1] + bytes([frame[-1] ^ 1]),
        lambda _: b"\xff" * 4,
        lambda frame: frame[:9] + b"!",
    ):
        with closing(caller(hub)) as one:
            greeting = one.recv(proof.HELLO, socket.MSG_WAITALL)
            claim = proof.claim(greeting, "a", token)
            one.sendall(claim)
            one.recv(proof.ANSWER, socket.MSG_WAITALL)
            frame = proof.seal(greeting, claim, token, is_hub=False).closed(b"J", b'{"op": "create", "index": 0}')
            one.sendall(spoil(frame))
            one.shutdown(socket.SHUT_WR)
            assert rest(one) == b""


def test_both_ends_prove_themselves() -> None:
    greeting, token = proof.hello(), b"a token"
    claim = proof.claim(greeting, "a", token)
    proof.check_claim(greeting, claim, token)
    for changed in (claim[:-1] + b"\0", claim[:10] + b"b" + claim[11:]):
        with pytest.raises(proof.BadProof):
            proof.check_claim(greeting, changed, token)
    with pytest.raises(proof.BadProof):
        proof.check_claim(proof.hello(), claim, token)
    with pytest.raises(proof.BadProof):
        proof.check_answer(greeting, claim, proof.answer(greeting, claim, b"another token"), token)
    with pytest.raises(proof.BadProof):  # the other role's proof
        proof.check_answer(greeting, claim, b"\1" + claim[-proof.DIGEST :], token)
    ours, theirs = (proof.seal(greeting, claim, token, is_hub=is_hub) for is_hub in (False, True))
    frame = ours.closed(b"J", b"once")[proof.HEAD :]
    assert theirs.opened(frame) == (b"J", b"once")
    for wrong in (frame, ours.closed(b"J", b"x")[proof.HEAD :].replace(b"x", b"y")):  # a replay, and a change
        with pytest.raises(proof.BadProof):
            theirs.opened(wrong)


# ---- tenants that are broken or want too much ----------------------------------------------------------------------


def creating(handle: str = "", **more: Any) -> dict[str, Any]:
    """The request by which a job is created; the job of a handle, if given."""
    job = handles.parsed(handle) if handle else None
    own = {} if job is None else {"job": job.job, "nonce": job.nonce}
    return {"op": "create", "index": 0, "hubs": 1, "version": hpcomm.__version__, **own, **more}


def asked(hub: Served, request: dict[str, Any], namespace: str = "a") -> list[str]:
    """What a hub says to a request of a tenant that hangs up after it."""
    with closing(asking(hub, namespace)) as one:
        return said(lambda: one.ask(request))


def test_a_job_that_failed_is_no_matter_of_another_namespace(hub: Served) -> None:
    handle = hub.create("a", "copied")
    assert asked(hub, creating(handle), "b") == ["", ""]
    hub.wait(lambda: "b/copied" not in hub.jobs())
    assert asked(hub, joining(handle, 0, 1), "b") == ["ConfigError", "b/copied: not all hubs took it"]
    assert run(1, train, handle, 1) == run(1, train, hub.create(), 1)


def test_a_request_that_is_malformed_leaves_no_job(hub: Served) -> None:
    for more in ({"nonce": "\ud800" * 32}, {"nonce": "0" * 31}, {"index": 1}, {"hubs": True}, {"job": "a/b"}):
        assert asked(hub, creating(**more))[0] == "InvalidArgument"
    handle = hub.create("a", "other")
    for more in ({"rank": 2}, {"seconds": 0}, {"transport": "\ud800"}, {"silence": "x"}, {"tcp_streams": 1 << 40}):
        assert asked(hub, {**joining(handle, 0, 2), **more})[0] == "InvalidArgument"
    assert hub.jobs()["a/other"] == "waits"
    assert run(1, train, handle, 1) == run(1, train, hub.create(), 1)


def test_a_late_worker_of_another_version_ends_no_job(hub: Served) -> None:
    handle = hub.create("a", "whole")
    with closing(asking(hub)) as one:
        one.ask(joining(handle, 0, 1))
        sentence = "a/whole has all its workers: its handle is used up; call create_service again"
        assert asked(hub, joining(handle, 0, 1, version="9.9")) == ["ConfigError", sentence]
        assert hub.jobs()["a/whole"] == "runs"
    hub.until("a/whole has ended")


def test_other_hubs_take_worker_0_alone(hub: Served) -> None:
    with closing(asking(hub)) as one:
        made = one.ask(creating(job="second", index=1, hubs=2))
        handle = str(handles.ServiceHandle((address(hub.where),), "a", "second", made["nonce"]))
        sentence = "a/second: rank 1 came to hub 1, where rank 0 alone comes"
        assert asked(hub, joining(handle, 1, 2)) == ["ConfigError", sentence]


async def end_unread() -> None:
    """Sends to a tenant that reads nothing, and hangs up."""
    ours, theirs = socket.socketpair()
    with closing(theirs):
        reader, writer = await asyncio.open_connection(sock=ours)
        greeting = proof.hello()
        seal = proof.seal(greeting, proof.claim(greeting, "a", b"a token"), b"a token", is_hub=True)
        one = session.Session("a", b"a token", seal, reader, writer)
        one.send(b"N", bytes(4 << 20))
        await asyncio.wait_for(until(lambda: writer.transport.get_write_buffer_size() > 64 << 10), SECONDS)
        for _ in range(100):
            await asyncio.sleep(0)
        assert writer.transport.get_write_buffer_size() <= 128 << 10
        one.close()
        await asyncio.wait_for(one.closed(), SECONDS)
        assert ours.fileno() < 0


async def end_at_once() -> None:
    ours, theirs = socket.socketpair()
    with closing(theirs):
        reader, writer = await asyncio.open_connection(sock=ours)
        one = session.Session("a", b"", proof.Seal(b"key", b"hub", b"tenant"), reader, writer)
        one.send(b"N", b"goodbye")
        await asyncio.wait_for(one.closed(), SECONDS)
        held = weakref.ref(writer.transport)
        del one, reader, writer
        gc.collect()
        assert held() is None


def test_nothing_is_kept_of_a_connection_that_has_ended() -> None:
    asyncio.run(end_at_once())


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0)


def test_a_connection_ends_although_the_tenant_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_CLOSE_SECONDS", 0.01)
    asyncio.run(end_unread())


async def leave_frames_untaken() -> None:
    ours, theirs = socket.socketpair()
    with closing(theirs):
        reader, writer = await asyncio.open_connection(sock=ours)
        one = session.Session("a", b"", proof.Seal(b"key", b"hub", b"tenant"), reader, writer)
        for _ in range(session._MOST_DUE):
            one.send(b"N", bytes(1 << 20))
        assert not writer.is_closing()
        one.send(b"N", b"one too many")
        assert writer.is_closing()
        await asyncio.wait_for(one.closed(), SECONDS)


def test_a_tenant_that_leaves_many_frames_untaken_loses_its_connection() -> None:
    asyncio.run(leave_frames_untaken())


async def send_half_a_frame() -> None:
    ours, theirs = socket.socketpair()
    with closing(theirs):
        reader, writer = await asyncio.open_connection(sock=ours)
        one = session.Session("a", b"", proof.Seal(b"key", b"hub", b"tenant"), reader, writer)
        frame = proof.Seal(b"key", b"tenant", b"hub").closed(b"J", b"{}")
        theirs.sendall(frame)
        assert await one.receive(None) == (b"J", b"{}")
        theirs.sendall(frame[:-1])
        with pytest.raises(EOFError):
            await asyncio.wait_for(one.receive(None), SECONDS)
        assert writer.is_closing()


def test_a_tenant_that_begins_a_frame_sends_its_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_BODY_SECONDS", 0.05)
    asyncio.run(send_half_a_frame())


def test_a_first_frame_is_short(hub: Served) -> None:
    with closing(asking(hub)) as one:
        with suppress(hpcomm.TransportError):  # the hub may have hung up already
            one.tell({"op": "create", "more": "x" * session.MOST_BYTES})
        assert said(lambda: one.receive(time.monotonic() + SECONDS))[0] == "TransportError"


@pytest.mark.parametrize(
    ("frames", "wrong"),
    [
        ([(b"E", b"")] * 10, "4 requests for exchanges wait already"),
        ([(b"D", b"w" + bytes(2049))], "sent 2049 bytes for round b'w'"),
        ([(b"D", b"w" + bytes(9))] * 2, "round 2 of 1"),
        ([(b"D", bytes(17 << 20))], "a frame of 17825809 bytes"),
    ],
)
def test_a_running_job_sends_no_more_than_it_needs(hub: Served, frames: list[tuple[bytes, bytes]], wrong: str) -> None:
    handle = hub.create("a", "greedy")
    with closing(asking(hub)) as one:
        one.ask(joining(handle, 0, 1))
        for kind, body in frames:
            with suppress(hpcomm.TransportError):  # the hub may have hung up already
                one.send(kind, body, time.monotonic() + SECONDS)
        assert wrong in hub.until("a/greedy has ended")


def send_long(handle: str, token: str, kind: bytes, body: bytes) -> list[str]:
    """What worker 0 is told after a request of its own for an exchange."""
    with join(handle, token) as ctx:
        assert ctx._served is not None
        hub, values = ctx._served.meeting, {"x": np.zeros(9, np.float32)}
        hub.tell(kind, body)
        told = said(lambda: hpcomm.Exchange(ctx._served, values, timeout=5))  # type: ignore[arg-type]
        return [told[0], f"{told[1]}; {' '.join(ctx.notices)}"]


def test_a_long_request_is_for_an_exchange(hub: Served) -> None:
    told = run(1, send_long, hub.create("a", "bye"), b"J", b'{"op": "bye"}' + b" " * (220 << 10))[0]
    assert told[0] == "PeerFailed"
    assert "a long frame is no request for an exchange" in told[1]
    hub.until("a long frame is no request for an exchange")


def test_a_request_counts_as_memory_while_it_is_read(hub: Served) -> None:
    told = run(1, send_long, hub.create("small"), b"E", bytes(1 << 20), token=TOKENS["small"])[0]
    assert told[0] == "InvalidArgument"
    assert "bytes, and namespace 'small' has 6291456 of 6291456 left" in told[1]


def test_a_tenant_cannot_forge_lines_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    print_now("a/x has ended: rank 0 failed (of this\n2026-01-01 00:00:00 hpcomm hub: forged \x1b[2J\x85\u2028\u00e9)")
    told = r"a/x has ended: rank 0 failed (of this\n2026-01-01 00:00:00 hpcomm hub: forged \x1b[2J\x85\u2028é)"
    assert capsys.readouterr().out.partition(" hpcomm hub: ")[2] == f"{told}\n"


def make_many(handle: str, token: str) -> int:
    """Makes an exchange whose description is longer than 64 KiB."""
    with join(handle, token) as ctx:
        params = {f"key {i} {'x' * 40}": np.zeros(1, np.float32) for i in range(2000)}
        with hpcomm.parameter_hub(ctx, params, servers="hub", rule=hpcomm.SGD()) as ex:
            return len(ex.params)


def test_a_description_may_be_long(hub: Served) -> None:
    assert run(1, make_many, hub.create()) == [2000]


def test_a_worker_other_than_0_sends_short_frames(hub: Served) -> None:
    handle = hub.create("a", "long")
    with closing(asking(hub)) as first, closing(asking(hub)) as second:
        first.ask(joining(handle, 0, 2))
        second.ask(joining(handle, 1, 2))
        with suppress(hpcomm.TransportError):
            second.send(b"E", bytes(session.MOST_BYTES + 1), time.monotonic() + SECONDS)
        told = said(lambda: first.receive(time.monotonic() + SECONDS))
        assert told[0] == "AuthError"
        assert "a/long: rank 1 sent bytes that the hub does not take: a frame of" in told[1]


# ---- descriptors ---------------------------------------------------------------------------------------------------


def test_a_quota_of_descriptors_bounds_the_workers_of_a_job(hub: Served) -> None:
    handle, before = hub.create("tiny", "wide"), hub.counts("refused: descriptor quota")
    told = asked(hub, joining(handle, 0, 4), "tiny")
    assert told[0] == "ConfigError"
    assert re.fullmatch(r"tiny/wide: the job needs 32 descriptors, and namespace 'tiny' has \d+ of 31 left", told[1])
    assert hub.counts("refused: descriptor quota") == before + 1


def make_two(handle: str, token: str) -> list[list[str]]:
    """What a worker is told that makes two exchanges side by side."""
    with join(handle, token, transport="tcp") as ctx:
        made: list[hpcomm.Exchange] = []
        values = {"x": np.zeros(9, np.float32)}

        def make() -> None:
            made.append(hpcomm.parameter_hub(ctx, values, servers="hub", rule=hpcomm.SGD()))

        return [said(make), said(make)]


def test_a_quota_of_descriptors_bounds_the_exchanges_of_a_job(hub: Served) -> None:
    first, second = run(1, make_two, hub.create("tiny"), token=TOKENS["tiny"])[0]
    assert first == ["", ""]
    assert second[0] == "InvalidArgument"
    assert re.search(r"the exchange needs 3 descriptors, and namespace 'tiny' has \d of 31 left", second[1])


def count_descriptors(handle: str, token: str, where: str) -> tuple[int, int]:
    """How many descriptors the hub has while two workers have eight exchanges, and how many it counts for them."""
    with join(handle, token, transport="tcp") as ctx:
        values = {"x": np.zeros(9, np.float32)}
        made = [hpcomm.parameter_hub(ctx, values, servers="hub", rule=hpcomm.SGD()) for _ in range(8)]
        ctx.barrier()
        found = status(where)
        ctx.barrier()
        for one in made:
            one.close()
        return found["descriptors"], found["namespaces"]["a"]["descriptors"]


def test_a_hub_uses_no_more_descriptors_than_it_counts(hub: Served) -> None:
    hub.wait(lambda: not hub.jobs())
    before = hub.ask(op="status")["descriptors"]
    for have, counted in run(2, count_descriptors, hub.create(), hub.where):
        assert 2 * 2 * 8 < have - before <= counted


# ---- memory --------------------------------------------------------------------------------------------------------


def count_bytes(handle: str, token: str, where: str) -> tuple[int, int]:
    """How many bytes the hub's process grows by an exchange that has pushed to it, and how many it counts."""
    with join(handle, token, transport="tcp") as ctx:
        before, values = status(where), {"x": np.ones(1 << 21, np.float32)}
        with hpcomm.parameter_hub(ctx, values, servers="hub", rule=hpcomm.Adam(), consistency=hpcomm.ASYNC) as ex:
            ex.push_pull("x", values["x"])
            after = status(where)
        return after["resident"] - before["resident"], after["memory"] - before["memory"]


def test_a_hub_holds_no_more_bytes_than_it_counts(hub: Served) -> None:
    hub.wait(lambda: not hub.jobs())
    ((have, counted),) = run(1, count_bytes, hub.create(), hub.where)
    assert 3 * (8 << 20) < have < counted + (4 << 20), "parameters, two moments, and slots of 8 MiB each"


# ---- the heap of a hub ---------------------------------------------------------------------------------------------


def resident() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library's heap cannot be trimmed")
def test_a_hub_gives_the_free_pages_of_its_heap_back() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    blocks = [libc.malloc(16000) for _ in range(2000)]
    for block in blocks:
        ctypes.memset(block, 1, 16000)
    for block in blocks[:-1]:  # the last one keeps the others from being given back by free
        libc.free(ctypes.c_void_p(block))
    before = resident()
    heap.give_back()
    assert resident() < before - 1000 * 16000
    libc.free(ctypes.c_void_p(blocks[-1]))

"""A hub keeps its bounds: strangers, and tenants that are broken or want too much."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from served import SECONDS, TOKENS, Served, asking, caller, joining, rest, run, said, train

import hpcomm
from hpcomm.service import handle as handles
from hpcomm.service import meeting, proof


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("hub"), drain_seconds=0)
    served.silent.append(caller(served))
    yield served
    for one in served.silent:
        with closing(one):
            assert len(rest(one)) == proof.HELLO, "the hub drops it after 5 s"
    assert served.end() == 0


# ---- strangers -----------------------------------------------------------------------------------------------------


def test_strangers_are_dropped_and_others_go_on(hub: Served) -> None:
    before = hub.ask(op="status")
    silent = [caller(hub) for _ in range(80)]
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
    for one in silent:
        one.close()
    hub.has_only(before)
    counts = hub.ask(op="status")["counts"]
    assert counts["refused: strangers"] + counts.get("refused: too many strangers", 0) >= 80
    hub.silent.append(caller(hub))  # which no other caller drives out


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
        handle = str(handles.ServiceHandle((hub.where,), "a", "second", made["nonce"]))
        sentence = "a/second: rank 1 came to hub 1, where rank 0 alone comes"
        assert asked(hub, joining(handle, 1, 2)) == ["ConfigError", sentence]


async def end_unread() -> None:
    """Hangs up on a tenant that reads nothing."""
    ours, theirs = socket.socketpair()
    with closing(theirs):
        reader, writer = await asyncio.open_connection(sock=ours)
        greeting = proof.hello()
        seal = proof.seal(greeting, proof.claim(greeting, "a", b"a token"), b"a token", is_hub=True)
        session = meeting.Session("a", b"a token", seal, reader, writer)
        session.send(b"N", bytes(1 << 20))
        assert writer.transport.get_write_buffer_size() > 0
        session.close()
        await asyncio.wait_for(writer.wait_closed(), SECONDS)
        assert ours.fileno() < 0


def test_a_connection_ends_although_the_tenant_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_CLOSE_SECONDS", 0.01)
    asyncio.run(end_unread())

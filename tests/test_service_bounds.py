"""A hub keeps its bounds: strangers, and tenants that are broken or want too much."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from served import TOKENS, Served, caller, rest, run, train

from hpcomm.service import proof


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

"""A connection to a hub belongs to one process, whose threads share it."""

import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from served import SECONDS, TOKENS, Served, join, run, said

import hpcomm
from hpcomm.service import ADMIN, HubConnection, address, proof

TOKEN = b"a token that both know"
LONG = "x" * 300_000  # which no single call of the system sends or receives


def greeted(listener: socket.socket) -> tuple[socket.socket, proof.Seal]:
    """The hub's end of the next connection, after the proof."""
    end, _ = listener.accept()
    end.settimeout(SECONDS)
    greeting = proof.hello()
    end.sendall(greeting)
    claim = end.recv(proof.CLAIM, socket.MSG_WAITALL)
    proof.check_claim(greeting, claim, TOKEN)
    end.sendall(proof.answer(greeting, claim, TOKEN))
    return end, proof.seal(greeting, claim, TOKEN, is_hub=True)


@contextmanager
def connected() -> Iterator[tuple[HubConnection, socket.socket, proof.Seal]]:
    """A connection, and the hub's end of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ends: list[tuple[socket.socket, proof.Seal]] = []
        hub = threading.Thread(target=lambda: ends.append(greeted(listener)))
        hub.start()
        where = address(f"127.0.0.1:{listener.getsockname()[1]}")
        with closing(HubConnection(where, "a", TOKEN, SECONDS)) as connection:
            hub.join(SECONDS)
            with ends[0][0]:
                yield connection, *ends[0]


def test_threads_share_a_connection() -> None:
    with connected() as (connection, end, seal), end.makefile("rb") as file:
        found: list[bytes] = []

        def tell(number: int) -> None:
            for _ in range(5):
                connection.tell({"op": number, "more": LONG}, SECONDS)

        def take() -> None:
            for _ in range(40):
                n = proof.length_of(file.read(proof.HEAD), 2 * len(LONG))
                found.append(seal.opened(file.read(n))[1][:9])

        threads = [threading.Thread(target=tell, args=(i,)) for i in range(8)] + [threading.Thread(target=take)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        assert sorted(found) == sorted(5 * [b'{"op": %d,' % i for i in range(8)])


def test_threads_take_notices_together() -> None:
    with connected() as (connection, end, seal):

        def take() -> None:
            until = time.monotonic() + SECONDS
            while len(connection.notices) < 20 and not connection.ended and time.monotonic() < until:
                connection.take_notices()

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for i in range(20):
            end.sendall(seal.closed(b"N", f"{i} {LONG}".encode()))
        for thread in threads:
            thread.join(SECONDS)
        assert [one.split()[0] for one in connection.notices] == [f"{i}" for i in range(20)]


def test_an_answer_that_nobody_asked_for_ends_a_connection() -> None:
    with connected() as (connection, end, seal):
        end.sendall(seal.closed(b"N", b"a notice") + seal.closed(b"J", b"{}"))
        assert isinstance(connection.refusal(SECONDS), hpcomm.AuthError)
        assert connection.notices == ["a notice"]


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        *(
            (one, one)
            for one in ("AuthError", "ConfigError", "InvalidArgument", "NotSupported", "Timeout", "PeerFailed")
        ),
        *((one, "HpcommError") for one in ("Culprit", "ValueError", "NoSuchError", "", "\xff")),
    ],
)
def test_a_refusal_is_an_error_of_the_kind_that_the_hub_says(kind: str, found: str) -> None:
    with connected() as (connection, end, seal):
        end.sendall(seal.closed(b"X", kind.encode("latin-1") + b"\nthe reason"))
        assert said(lambda: connection.receive(time.monotonic() + SECONDS)) == [found, "the reason"]


@pytest.mark.parametrize("body", [b"", b"AuthError", b"\xff", pytest.param(b"[" * 100_000, id="long")])
def test_a_refusal_that_is_malformed_is_told(body: bytes) -> None:
    with connected() as (connection, end, seal):
        end.sendall(seal.closed(b"X", body))
        told = said(lambda: connection.receive(time.monotonic() + SECONDS))
        assert told == ["ConfigError", "the hub refused, without a reason"]


def test_a_connection_of_a_high_number_takes_notices() -> None:
    with connected() as (connection, end, seal):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        number = os.dup2(connection._socket.fileno(), 1500)  # beyond what select takes
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        connection._socket.close()
        connection._socket = socket.socket(fileno=number)
        end.sendall(seal.closed(b"N", b"a notice"))
        assert connection.refusal(SECONDS) is None
        assert connection.notices == ["a notice"]


def fork_with_notices(handle: str, token: str, where: str) -> list[object]:
    """What a forked child finds, and then its parent, after the hub has ended the job."""
    with join(handle, token) as ctx:
        with closing(HubConnection(address(where), ADMIN, TOKENS["admin"].encode(), SECONDS)) as hub:
            hub.ask({"op": "evict", "job": "a/forks"})
        assert ctx._served is not None
        connection = ctx._served.meeting._all[0]
        if (child := os.fork()) == 0:
            try:
                connection.take_notices()
            except hpcomm.NotSupported:
                os._exit(len(ctx.notices))
            os._exit(99)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        until = time.monotonic() + SECONDS
        while not ctx.notices and time.monotonic() < until:
            os.sched_yield()
        notices = ctx.notices
        ctx.abort("the hub has ended the job")
        return [code, *notices]


def test_a_forked_child_leaves_the_connection_to_its_parent(tmp_path_factory: pytest.TempPathFactory) -> None:
    hub = Served(tmp_path_factory.mktemp("hub"), drain_seconds=0)
    try:
        found = run(1, fork_with_notices, hub.create("a", "forks"), hub.where)
        assert found == [[0, "a/forks: the administrator of the hub has ended it"]]
    finally:
        assert hub.end() == 0

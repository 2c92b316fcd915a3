"""A proven connection to a hub, on the side of a worker or an administrator."""

import json
import os
import select
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .. import _core
from ..errors import AuthError, ConfigError, HpcommError, NotSupported, Timeout, TransportError
from . import proof, refusals
from .config import ADMIN
from .handle import HubAddress

ANSWER_SECONDS = 10.0  # for a hub's answer to a question
_MOST_BYTES = 64 << 20  # of a frame from a hub: the addresses of all ranks
_REST_SECONDS = 1.0  # for the rest of a frame that has begun


class HubConnection:
    """A proven connection to a hub."""

    def __init__(self, hub: HubAddress, name: str, token: bytes, timeout: float) -> None:
        """name: the namespace, or ADMIN.

        Raises:
            TransportError: no hub answers at this address.
            AuthError: the hub does not know the namespace, or one of the two has another token.
            ConfigError: the hub speaks another version.
        """
        self.hub, self.name, self.notices, self.ended = hub, name, list[str](), ""
        self._process, self._lock = os.getpid(), threading.RLock()
        until = time.monotonic() + timeout
        try:
            self._socket = socket.create_connection((hub.host, hub.port), timeout=timeout)
        except OSError as error:
            raise TransportError(
                f"there is no hub at {hub}: {error.strerror or error}", transport="tcp", detail=str(error)
            ) from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._seal = self._proven(token, until)
        except BaseException:
            self._socket.close()
            raise

    def _proven(self, token: bytes, until: float) -> proof.Seal:
        greeting = self._read(proof.HELLO, until)
        if not proof.is_hello(greeting):
            raise ConfigError(f"{self.hub} is no hub of this version of hpcomm, {_core.version()}")
        claim = proof.claim(greeting, self.name, token)
        self._write(claim, until)
        answer = self._read(proof.ANSWER, until)
        try:
            proof.check_answer(greeting, claim, answer, token)
        except proof.BadProof:
            what = "administrator" if self.name == ADMIN else f"namespace {self.name!r}"
            raise AuthError(f"the hub at {self.hub} has no {what} with this token") from None
        return proof.seal(greeting, claim, token, is_hub=False)

    def ask(self, request: Mapping[str, Any], timeout: float = ANSWER_SECONDS) -> dict[str, Any]:
        """Sends a request and returns the answer. Raises the refusal of the hub, Timeout and TransportError."""
        until = time.monotonic() + timeout
        with self._alone():
            self.tell(request, timeout)
            return self._table(self.receive(until)[1])

    def tell(self, request: Mapping[str, Any], timeout: float = ANSWER_SECONDS) -> None:
        self.send(b"J", json.dumps(request).encode(), time.monotonic() + timeout)

    def send(self, kind: bytes, body: bytes, until: float) -> None:
        with self._alone():
            self._write(self._seal.closed(kind, body), until)

    def receive(self, until: float) -> tuple[bytes, bytes]:
        """Returns the next frame that is no notice. Raises the refusal that the hub sends, if it sends one."""
        with self._alone():
            while (frame := self._answer(until)) is None:
                pass
        return frame

    def _answer(self, until: float) -> tuple[bytes, bytes] | None:
        """Returns the next frame, or None if it was a notice. Raises the refusal that the hub sends, if it sends
        one."""
        kind, body = self._frame(until)
        if kind == b"X":
            raise refusals.unpacked(body)
        if kind != b"N":
            return kind, body
        self.notices.append(body.decode("utf-8", "replace"))
        return None

    def take_notices(self) -> None:
        """Takes the notices that have come, without waiting. The error that ends the connection is a notice too."""
        with self._alone():
            ended = self.refusal(0)
            if ended is not None:
                self.ended = str(ended)
                self.notices.append(self.ended)

    def refusal(self, seconds: float, wake: int | None = None) -> HpcommError | None:
        """Returns the error that ends this connection, if it comes within so many seconds; otherwise takes the notices
        that have come. wake: a descriptor with whose first byte the wait ends."""
        with self._alone():
            try:
                while self._has_input(seconds, wake):
                    if self._answer(time.monotonic() + _REST_SECONDS) is not None:
                        raise AuthError(f"the hub at {self.hub} sent an answer to no request")
                    seconds = 0
            except HpcommError as ended:
                return ended
        return None

    @property
    def at(self) -> tuple[str, int]:
        """The IP address and the port at which this host reaches the hub."""
        ip, port = self._socket.getpeername()[:2]
        return str(ip), int(port)

    @property
    def is_here(self) -> bool:
        """Whether this process has made the connection. A forked child has not, and the numbers of frames are its
        parent's."""
        return self._process == os.getpid()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps the process's other threads from the connection: frames have numbers."""
        if not self.is_here:
            raise NotSupported(
                f"process {os.getpid()} has no connection to the hub at {self.hub}: its parent, process "
                f"{self._process}, has; call connect_service in the child"
            )
        with self._lock:
            yield

    def _has_input(self, seconds: float, wake: int | None) -> bool:
        """Whether a frame has come, or the end of the connection, within so many seconds."""
        own = self._socket.fileno()
        if self.ended or own < 0:
            return False
        poll = select.poll()
        for number in (own,) if wake is None else (own, wake):
            poll.register(number, select.POLLIN)
        return any(number == own for number, _ in poll.poll(1000 * seconds))

    def _frame(self, until: float) -> tuple[bytes, bytes]:
        try:
            n = proof.length_of(self._read(proof.HEAD, until), _MOST_BYTES)
            return self._seal.opened(self._read(n, until))
        except proof.BadProof as wrong:
            raise AuthError(f"the hub at {self.hub} sent bytes that fail their proof: {wrong}") from None

    def _table(self, body: bytes) -> dict[str, Any]:
        try:
            return proof.as_table(body)
        except proof.BadProof as wrong:
            raise AuthError(f"the hub at {self.hub} sent an answer that it may not send: {wrong}") from None

    def _read(self, n: int, until: float) -> bytes:
        found = bytearray()
        while len(found) < n:
            try:
                self._socket.settimeout(max(until - time.monotonic(), 1e-3))
                part = self._socket.recv(min(n - len(found), 1 << 20))
            except TimeoutError:
                raise Timeout(f"the hub at {self.hub} did not answer in time", op="connect_service") from None
            except OSError as error:
                raise self._broken(error.strerror) from None
            if not part:
                raise self._broken("it hung up")
            found += part
        return bytes(found)

    def _write(self, data: bytes, until: float) -> None:
        try:
            self._socket.settimeout(max(until - time.monotonic(), 1e-3))
            self._socket.sendall(data)
        except TimeoutError:
            raise Timeout(f"the hub at {self.hub} takes no bytes", op="connect_service") from None
        except OSError as error:
            raise self._broken(error.strerror) from None

    def _broken(self, why: str | None) -> TransportError:
        return TransportError(
            f"the connection to the hub at {self.hub} broke: {why}", transport="tcp", detail=why or ""
        )

    def close(self) -> None:
        """Closes the connection. In a forked child it closes the child's copy only."""
        self._socket.close()

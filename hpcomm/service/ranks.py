"""The ranks of a job at a hub, on the side of a worker: they meet over its connections to the hubs."""

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from .. import _core
from ..config import Config
from ..errors import AuthError, HpcommError
from . import proof
from .connection import ANSWER_SECONDS, HubConnection
from .handle import HubAddress, ServiceHandle

_LOOK_SECONDS = 1.0
_GRACE = 2.0  # seconds by which a rank waits longer than the hub, whose error names the missing ranks


class WorkerMeeting:
    """A rank's connections to the hubs, by which contexts meet. Rank 0 is connected to all hubs, and relays frames
    between the first hub and the others. Other ranks are connected to the first hub."""

    def __init__(self, handle: ServiceHandle, token: bytes, rank: int, size: int, config: Config) -> None:
        self.handle, self.rank, self.size, self.config = handle, rank, size, config
        self.secret = proof.secret_of(token, handle.nonce)
        self._until = time.monotonic() + config.init_seconds
        self.cores, self.resumes = 0, False
        self._users: dict[int, None] = {}  # of the hubs that are known
        self._all: list[HubConnection] = []
        try:
            for index in range(len(handle.hubs) if rank == 0 else 1):
                self._all.append(self._joined(index, token))
        except BaseException:
            self.close()
            raise

    def _joined(self, index: int, token: bytes) -> HubConnection:
        config, left = self.config, max(self._until - time.monotonic(), 1e-3)
        hub = self.handle.hubs[index]
        connection = HubConnection(hub, self.handle.namespace, token, left)
        try:
            answer = connection.ask(
                {
                    "op": "join",
                    "job": self.handle.job,
                    "nonce": self.handle.nonce,
                    "rank": self.rank,
                    "size": self.size,
                    "version": _core.version(),
                    "seconds": config.init_seconds,
                    "timeout": config.timeout,
                    "transport": config.transport,
                    "silence": config.silence,
                    "tcp_streams": config.tcp_streams,
                    "resumes": 1,
                    "user": os.geteuid(),
                },
                left,
            )
        except BaseException:
            connection.close()
            raise
        self.cores, self.resumes = int(answer["cores"]), bool(answer["resume"])
        self._users[int(answer["user"])] = None
        return connection

    @property
    def hubs(self) -> int:
        return len(self.handle.hubs)

    @property
    def users(self) -> list[int]:
        """The users of the hubs, as far as this rank knows them. Each hub has proven that it knows the token, to this
        rank or to rank 0."""
        return list(self._users)[: _core.MOST_USERS]

    def learn_users(self, allgather: Callable[[bytes], list[bytes]]) -> None:
        """Lets all workers know the users of the hubs, of which rank 0 has joined each. Collective; allgather: of the
        workers."""
        n = min(self.hubs, _core.MOST_USERS)
        if n > 1:
            numbers = struct.Struct(f"={n}I")
            all_known = allgather(numbers.pack(*(self.users * n)[:n]))
            self._users.update(dict.fromkeys(numbers.unpack(all_known[0])))

    def leads(self) -> list[tuple[int, str, int]]:
        """Returns the ranks of the hubs, each with the IP address and the port at which this host reaches it. A hub to
        which this rank is not connected may have several addresses, or none that its name has here."""
        found = []
        for index, hub in enumerate(self.handle.hubs):
            places = []
            with suppress(OSError):  # a connection that broke: the meeting that follows says so
                places = [self._all[index].at] if index < len(self._all) else _places(hub)
            found += [(self.size + index, *place) for place in places]
        return [one for one in found if "%" not in one[1]]  # C has no scopes

    def exchange(self, group: bytes, data: bytes, size: int, timeout: float) -> list[bytes]:
        """Returns the data of all ranks of a group: b"w", the workers, or b"s", the workers and the hubs."""
        until = time.monotonic() + timeout + _GRACE
        first, *others = self._all
        first.send(b"D", group + data, until)
        if group == b"s":
            for index, hub in enumerate(others, 1):
                first.send(b"D", b"h" + bytes([index]) + self._data(hub, b"s", until), until)
        found = self._data(first, group, until)
        if group == b"s":
            for hub in others:
                hub.send(b"D", b"s" + found, until)
        if len(found) % size:
            raise AuthError(f"the hub at {first.hub} sent {len(found)} bytes for {size} ranks")
        n = len(found) // size
        return [found[i * n : (i + 1) * n] for i in range(size)]

    def _data(self, hub: HubConnection, group: bytes, until: float) -> bytes:
        kind, body = hub.receive(until)
        if kind != b"D" or body[:1] != group:
            raise AuthError(f"the hub at {hub.hub} sent {kind + body[:1]!r} for {group!r}")
        return body[1:]

    def tell(self, kind: bytes, body: bytes) -> None:
        """Sends a frame to all hubs that this rank is connected to. If a hub is gone, the exchange's own waits say
        so."""
        for hub in self._all:
            with suppress(HpcommError):
                hub.send(kind, body, time.monotonic() + ANSWER_SECONDS)

    def bye(self) -> None:
        """Says that this rank is done."""
        self.tell(b"J", b'{"op": "bye"}')

    def refusal(self, wake: int) -> HpcommError | None:
        """Waits until the hub ends the job, and returns why, or until the descriptor `wake` has a byte, or a second has
        passed. For a rank that expects no data of the hub."""
        return self._all[0].refusal(_LOOK_SECONDS, wake)

    def ended(self) -> str:
        """Returns why a hub has ended the job, or ""."""
        self.notices()
        return next((hub.ended for hub in self._all if hub.ended), "")

    def notices(self) -> tuple[str, ...]:
        """Returns the sentences that the hubs have sent to the job. In a forked child it returns (): the connections
        belong to its parent."""
        here = [hub for hub in self._all if hub.is_here]
        for hub in here:
            hub.take_notices()
        return tuple(one for hub in here for one in hub.notices)

    def close(self) -> None:
        for hub in self._all:
            hub.close()
        self._all.clear()

    def __del__(self) -> None:
        """Says goodbye for a context that was dropped without close. A forked child does not speak for its parent."""
        with suppress(Exception):
            self.bye()
            self.close()


def _places(hub: HubAddress) -> list[tuple[str, int]]:
    with suppress(OSError):
        return [(str(at[0]), hub.port) for *_, at in socket.getaddrinfo(hub.host, hub.port, type=socket.SOCK_STREAM)]
    return []


class Ranks:
    """The ranks of one of the two contexts, as launch.Group wants them."""

    def __init__(self, meeting: WorkerMeeting, group: bytes) -> None:
        self.rank, self.size = meeting.rank, meeting.size + (meeting.hubs if group == b"s" else 0)
        self.refusal: HpcommError | None = None
        self._meeting, self._group = meeting, group
        self._met, self._over = threading.Event(), False

    def leads(self) -> list[tuple[int, str, int]]:
        """Returns the addresses of hubs among these ranks, as hpc_context_lead takes them."""
        return self._meeting.leads() if self._group == b"s" else []

    def exchange(self, data: bytes, timeout: float) -> list[bytes]:
        found = self._meeting.exchange(self._group, data, self.size, timeout)
        self._met.set()
        return found

    @contextmanager
    def watched(self, abort: Callable[[str], None]) -> Iterator[None]:
        """Lets a thread listen to the hub while the ranks connect to each other: the hub knows first if one of them has
        died, and then aborts this rank's wait."""
        wake = os.eventfd(0, os.EFD_CLOEXEC)
        thread = threading.Thread(target=self._watch, args=(abort, wake), name="hpcomm-service", daemon=True)
        thread.start()
        try:
            yield
        except HpcommError:
            if self.refusal is not None:
                raise self.refusal from None
            raise
        finally:
            self._over = True
            self._met.set()
            os.eventfd_write(wake, 1)
            thread.join()
            os.close(wake)

    def _watch(self, abort: Callable[[str], None], wake: int) -> None:
        self._met.wait()
        while not self._over and self.refusal is None:
            self.refusal = self._meeting.refusal(wake)
        if self.refusal is not None:
            abort(str(self.refusal))

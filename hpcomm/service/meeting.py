"""The hub's end of a tenant's connection, and the job whose workers meet over such connections.

After the proof a connection carries frames:

    J   a request or an answer, as JSON
    D   a part of a round, or the whole of it: b"w" (workers), b"s" (workers and hubs) or b"h" and the index of another
        hub, which worker 0 passes on; then the data
    X   a refusal, as JSON: the kind of the error and its sentence; the hub hangs up
    N   a notice to the job, a sentence
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..config import Config
from ..errors import AuthError, ConfigError, HpcommError
from . import proof
from .tenant import Tenant

MOST_BYTES = 16 << 20  # of a frame: a description and its quotes
_MOST_PART = 16 << 10  # bytes of a rank's part of a round
_MOST_UNSENT = 64 << 20  # bytes that a tenant does not take
_JOB_DESCRIPTORS, _LANES = 24, 8  # of a context and two exchanges; lanes of each worker
_LOST_SECONDS = 1.0  # for the contexts to notice a death
_CLOSE_SECONDS = 3.0  # for a caller to take what is left when the hub hangs up
_BODY_SECONDS = 30.0  # for the rest of a frame that has begun


class Session:
    """A proven connection. name: the namespace, or config.ADMIN; token: the one that was proven."""

    def __init__(
        self, name: str, token: bytes, seal: proof.Seal, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.name, self.token = name, token
        self._seal, self._reader, self._writer = seal, reader, writer

    async def receive(self, timeout: float | None) -> tuple[bytes, bytes]:
        """Returns the next frame. timeout: seconds until it begins; None: as long as the connection lives.

        Raises:
            BadProof, EOFError, OSError, TimeoutError: the connection is of no use any more.
        """
        head = await asyncio.wait_for(self._reader.readexactly(proof.HEAD), timeout)
        n = proof.length_of(head, MOST_BYTES)
        return self._seal.opened(await asyncio.wait_for(self._reader.readexactly(n), _BODY_SECONDS))

    async def request(self, timeout: float | None) -> dict[str, Any]:
        """Returns the next frame, which must be a request."""
        kind, body = await self.receive(timeout)
        return as_request(kind, body)

    def send(self, kind: bytes, body: bytes) -> None:
        if self._writer.is_closing():
            return
        self._writer.write(self._seal.closed(kind, body))
        if self._writer.transport.get_write_buffer_size() > _MOST_UNSENT:
            self._writer.transport.abort()

    def answer(self, found: object) -> None:
        self.send(b"J", json.dumps(found).encode())

    def refuse(self, wrong: HpcommError) -> None:
        self.send(b"X", json.dumps({"kind": type(wrong).__name__, "text": str(wrong)}).encode())
        self.close()

    def close(self) -> None:
        """Sends what is left, and hangs up."""
        hang_up(self._writer)

    async def closed(self) -> None:
        """Closes the connection, and waits until it and what it had to send are gone."""
        self.close()
        with suppress(OSError):
            await self._writer.wait_closed()


def hang_up(writer: asyncio.StreamWriter) -> None:
    """Closes a connection. What the other side has not taken after a few seconds is dropped."""
    if not writer.is_closing():
        writer.close()
        asyncio.get_running_loop().call_later(_CLOSE_SECONDS, writer.transport.abort)


def as_request(kind: bytes, body: bytes) -> dict[str, Any]:
    """Returns the request in a frame. Raises BadProof for another frame: a tenant with a token may be broken too."""
    try:
        found = json.loads(body) if kind == b"J" else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise proof.BadProof("a frame is no request")
    return found


def again(wrong: HpcommError) -> HpcommError:
    """Returns an equal error, to be raised: the traceback of one that is kept would keep what it met alive."""
    return type(wrong)(str(wrong))


@dataclass(frozen=True)
class Joining:
    """What a worker says when it joins a job. All workers must give the same size and settings. The first one's seconds
    and timeout count."""

    rank: int
    size: int
    seconds: float
    timeout: float
    transport: str
    silence: float
    tcp_streams: int

    @property
    def settings(self) -> dict[str, object]:
        return {"transport": self.transport, "silence": self.silence, "tcp_streams": self.tcp_streams}

    @property
    def descriptors(self) -> int:
        """A bound on the descriptors of the hub's context, beside the workers' connections to the hub."""
        return _JOB_DESCRIPTORS + self.size * (2 + _LANES * self.tcp_streams)

    def config(self, base: Config) -> dict[str, Any]:
        """Returns the settings of the hub's context in this job."""
        return {**self.settings, "init_timeout": self.seconds, "timeout": self.timeout, "debug": base.debug}


@dataclass
class HostedJob:
    """A job at this hub: it waits for its workers, runs, and ends. All methods are of the hub's own thread.

    Attributes:
        index, hubs: this hub's number among the job's hubs, and how many there are.
        drop: a function that takes the job out of the hub's books.
    """

    namespace: str
    name: str
    nonce: str
    index: int
    hubs: int
    drop: Callable[["HostedJob"], None]
    first: Joining | None = None
    tenant: Tenant | None = None
    ended: HpcommError | None = None  # why, once it ends before all workers are done
    members: dict[int, Session] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None
    since: float = 0.0
    _rounds: dict[bytes, dict[int, bytes]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def descriptors(self) -> int:
        return 0 if self.first is None else self.first.descriptors

    @property
    def state(self) -> str:
        return "ends" if self.ended else "runs" if self.tenant else "waits"

    def check_open(self) -> None:
        """Raises the error for a worker that comes too late: the job ends, or has all its workers."""
        if self.ended is not None:
            raise again(self.ended)
        if self.tenant is not None:
            raise ConfigError(f"{self.title} has all its workers: its handle is used up; call create_service again")

    def join(self, says: Joining, session: Session, most: int) -> None:
        """Adds a worker to a job that waits for workers. Ends the job and raises ConfigError if it does not fit."""
        wrong = self._misfit(says, most)
        if wrong:
            raise again(self.end(ConfigError(f"{self.title}: {wrong}")))
        self.first = self.first or says
        self.members[says.rank] = session

    def _misfit(self, says: Joining, most: int) -> str:
        if self.index and says.rank:
            return f"rank {says.rank} came to hub {self.index}, where rank 0 alone comes"
        if says.size > most:
            return f"it has {says.size} workers, and the namespace allows {most} for a job"
        if says.rank in self.members:
            return f"two workers say that they are rank {says.rank}"
        first = self.first
        if first is None:
            return ""
        if first.size != says.size:
            return (
                f"rank {says.rank} says that there are {says.size} workers, and rank {first.rank} says {first.size}: "
                "give all the same size"
            )
        for name, value in says.settings.items():
            if value != first.settings[name]:
                return f"rank {says.rank} has {name} {value!r}, and rank {first.rank} {first.settings[name]!r}"
        return ""

    @property
    def is_whole(self) -> bool:
        """Whether all workers that are to come have come: all at the first hub, worker 0 at the others."""
        return self.first is not None and len(self.members) == (1 if self.index else self.first.size)

    @property
    def missing(self) -> list[int]:
        size = 0 if self.first is None else 1 if self.index else self.first.size
        return [rank for rank in range(size) if rank not in self.members]

    def post(self, rank: int, body: bytes) -> None:
        """Takes a worker's part of a round, and gives everybody the whole when all have come."""
        assert self.first is not None
        group, data, workers = body[:1], body[1:], self.first.size
        if self.index and group == b"s":  # worker 0 brings the round that the first hub made
            self._deliver(data, workers + self.hubs)
            return
        place = rank
        if group == b"h" and rank == 0 and data and 0 < data[0] < self.hubs:
            group, place, data = b"s", workers + data[0], data[1:]
        if group not in (b"w", b"s") or self.index or not 0 < len(data) <= _MOST_PART:
            self.end(ConfigError(f"{self.title}: rank {rank} sent {len(data)} bytes for round {group!r}"))
            return
        self._put(group, place, data, workers + (self.hubs if group == b"s" else 0))

    def post_own(self, data: bytes) -> None:
        """Takes this hub's part of a round."""
        if self.first is None or self.ended is not None:
            return
        if self.index:
            self.members[0].send(b"D", b"s" + data)
        else:
            self._put(b"s", self.first.size, data, self.first.size + self.hubs)

    def _put(self, group: bytes, place: int, data: bytes, size: int) -> None:
        parts = self._rounds.setdefault(group, {})
        if place in parts or any(len(one) != len(data) for one in parts.values()):
            self.end(ConfigError(f"{self.title}: the ranks sent parts of unequal lengths, or one of them twice"))
            return
        parts[place] = data
        if len(parts) < size:
            return
        del self._rounds[group]
        whole = b"".join(parts[i] for i in range(size))
        for session in self.members.values():
            session.send(b"D", group + whole)
        if group == b"s":
            self._deliver(whole, size)

    def _deliver(self, whole: bytes, size: int) -> None:
        if self.tenant is None or len(whole) % size:
            self.end(AuthError(f"{self.title}: a round has {len(whole)} bytes for {size} ranks"))
            return
        n = len(whole) // size
        self.tenant.take([whole[i * n : (i + 1) * n] for i in range(size)])

    def leave(self, rank: int) -> None:
        """Notes that a worker is done."""
        if self.tenant is None:
            self.lost(rank)
        self.done.add(rank)
        if self.tenant is not None and self.done >= set(self.members):
            self.tenant.finish()

    def lost(self, rank: int) -> None:
        """Notes that a worker's connection has ended. A worker that was not done takes the job with it. Where the job
        runs, the contexts find out by themselves and blame the right rank, unless only this connection broke."""
        if rank in self.done or self.ended is not None:
            return
        why = ConfigError(f"{self.title}: rank {rank} is gone: it died, gave up, or its connection broke")
        if self.tenant is not None and self.tenant.is_up:
            self.timer = asyncio.get_running_loop().call_later(_LOST_SECONDS, self.end, why)
        else:
            self.end(why)

    def end(self, why: HpcommError) -> HpcommError:
        """Ends the job, unless it ends already; returns why it ends. The workers are told."""
        if self.ended is None:
            self.ended = why
            if self.timer is not None:
                self.timer.cancel()
            for session in self.members.values():
                session.refuse(why)
            if self.tenant is not None:
                self.tenant.stop(str(why))
            else:
                self.drop(self)
        return self.ended

    def tell(self, sentence: str) -> None:
        for session in self.members.values():
            session.send(b"N", sentence.encode())

"""A job at its hub: its workers meet over their connections to the hub."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..config import Config
from ..errors import AuthError, ConfigError, HpcommError
from . import proof
from .books import NOTHING, Needs
from .session import MOST_BYTES, Session
from .tenant import Tenant

_MOST_EXCHANGE = 16 << 20  # bytes of a request for an exchange: a description and its quotes
_MOST_PART = 2 << 10  # bytes of a rank's part of a round
_ROUNDS = 1  # of each of a job's contexts
_JOB_DESCRIPTORS, _WORKER_DESCRIPTORS = 24, 2  # of a context, and of its links to each worker
_LOST_SECONDS = 1.0  # for the contexts to notice a death


def again(wrong: HpcommError) -> HpcommError:
    """Returns an equal error to raise. A stored error that is raised itself would keep the objects of its traceback."""
    return type(wrong)(str(wrong))


@dataclass(frozen=True)
class Joining:
    """The words of a worker that joins a job. All workers must give the same size and settings. The first one's seconds
    and timeout count."""

    rank: int
    size: int
    seconds: float
    timeout: float
    transport: str
    silence: float
    tcp_streams: int
    user: int  # of the worker's process
    resumes: bool = True  # whether its library can resume a job

    @property
    def settings(self) -> dict[str, object]:
        return {"transport": self.transport, "silence": self.silence, "tcp_streams": self.tcp_streams}

    @property
    def needs(self) -> Needs:
        """The needs of the hub's context, beside its exchanges and the workers' connections to the hub."""
        return Needs(descriptors=_JOB_DESCRIPTORS + _WORKER_DESCRIPTORS * self.size)

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
    held: Needs = NOTHING
    resumes: bool = False  # from its saved state
    _rounds: dict[bytes, dict[int, bytes]] = field(default_factory=dict)
    _begun: Counter[bytes] = field(default_factory=Counter)  # rounds of each group

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}"

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
        if self.resumes and not says.resumes:
            return f"rank {says.rank} has a library that cannot resume a job: give it the hub's version of hpcomm"
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

    def most_bytes(self, rank: int) -> int:
        """Returns how many bytes the next frame of a worker may have. In a running job worker 0 sends descriptions of
        exchanges, and to other hubs than the first one the whole of a round."""
        if rank or self.tenant is None:
            return MOST_BYTES
        return max(MOST_BYTES, _MOST_EXCHANGE, 1 + self.tenant.size * _MOST_PART if self.index else 0)

    def post(self, rank: int, body: bytes) -> None:
        """Takes a worker's part of a round, and gives all workers the whole when all parts have come. Raises BadProof
        for more rounds than a context has."""
        assert self.first is not None
        group, data, workers = body[:1], body[1:], self.first.size
        if self.index and group == b"s":  # worker 0 brings the round that the first hub made
            self._begin(group)
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
        if group not in self._rounds:
            self._begin(group)
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

    def _begin(self, group: bytes) -> None:
        self._begun[group] += 1
        if self._begun[group] > _ROUNDS:
            raise proof.BadProof(f"round {self._begun[group]} of {_ROUNDS}")

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

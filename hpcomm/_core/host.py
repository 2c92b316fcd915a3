"""The build, this host, and the contexts that run on it."""

from dataclasses import dataclass, replace
from time import monotonic, sleep
from typing import Any, NamedTuple

from .._ffi import ffi, lib
from ..errors import Culprit
from .status import check, culprits, text, texts

_CULPRITS = 16  # of a job, that are told
_AGAIN = 0.25  # seconds from one look at a circle of waits to the next one
_AGAIN_ELSEWHERE = 1.1  # where ranks of other hosts are told of: their news may be a second old


def version() -> str:
    return text(lib.hpc_version())


def build_info() -> str:
    return text(lib.hpc_build_info())


def transports() -> tuple[str, ...]:
    return texts(lambda i: lib.hpc_name(lib.HPC_TRANSPORTS, i))


def instruction_sets() -> tuple[str, ...]:
    """The instruction sets of the fold kernels that this machine can run, plainest first."""
    known = dict(fact.split("=", 1) for fact in build_info().split("; "))
    return tuple(reversed(known["isa"].split(",")))


def core_count() -> int:
    return int(lib.hpc_core_count())


def memory_available() -> int:
    return int(lib.hpc_memory_available())


@dataclass(frozen=True)
class Device:
    """One port of an RDMA device of this host.

    Attributes:
        name, port: of the device, "mlx5_0", and the port's number, from 1.
        state: "active" where it can send; else "down", "init" or "armed".
        link_layer: "InfiniBand" or "Ethernet" (RoCE).
        netdev: the network interface of a RoCE port, else "".
        gid: the address that hpcomm takes, in IPv6's notation ("::ffff:10.0.0.1" is 10.0.0.1); "" without one.
        gid_index: its place in the port's table; -1 without one.
        lid: InfiniBand's local address, else 0.
        mtu: bytes of the largest packet; 0 if unknown.
        gbits: Gb/s of the link; 0.0 if unknown.
        numa_node: where it is attached; -1 if unknown.
        why: "" if hpcomm can use the port, else why it cannot, in a sentence.
    """

    name: str
    port: int
    state: str
    link_layer: str
    netdev: str
    gid: str
    gid_index: int
    lid: int
    mtu: int
    gbits: float
    numa_node: int
    why: str

    @property
    def usable(self) -> bool:
        """Whether hpcomm can use the port."""
        return not self.why


def devices() -> tuple[Device, ...]:
    """Every port of every RDMA device of this host, usable or not and whatever HPCOMM_DEVICES says; () if the host has
    no port.

    Raises:
        NotSupported: this build has no verbs (rdma-core's headers were missing), or this host no libibverbs.
    """
    cap = 16
    while True:
        found = ffi.new("hpc_device[]", cap)
        count = lib.hpc_devices(found, cap)
        check(count)
        if count <= cap:
            return tuple(_device(found[i]) for i in range(count))
        cap = count


def _device(c: Any) -> Device:
    values: dict[str, Any] = {}
    for name in Device.__dataclass_fields__:
        value = getattr(c, name)
        values[name] = text(value) if isinstance(value, ffi.CData) else value
    return Device(**values)


@dataclass(frozen=True)
class Waiting:
    """A wait of a thread of a rank: the operation, for so many seconds, and the ranks that are missing (of more
    than 16 the first 16, n of them in all)."""

    op: str
    seconds: float
    ranks: tuple[int, ...]
    n: int


@dataclass(frozen=True)
class ShownRank:
    """A context of a process, as hpc_jobs shows it. state: "runs", "starts", "silent" (it did not answer in time, as
    one that is stopped), "foreign" (it hung up: another version, or its end) or "gone" (it has left or failed, which
    gone explains). rank and size are -1, and job "", where they are not known; pid is 0 where this process cannot see
    it.

    A rank that is on another host, or gone, is told of by told_by, a rank of this host (-1: it was asked itself), which
    has heard nothing from it for unheard seconds. step and waits were so age seconds ago (-1: they are not known).
    """

    job: str
    state: str
    rank: int
    size: int
    pid: int
    host: str
    transports: tuple[str, ...]
    step: int
    waits: tuple[Waiting, ...]
    told_by: int
    age: float
    unheard: float
    gone: str
    moved: int = 0  # counts its sends and receives; in a deadlock it stands still


@dataclass(frozen=True)
class Blamed:
    """Whom the ranks of a job wait for in the end, and the sentence that their errors would say of it."""

    culprits: tuple[Culprit, ...]
    told: str


@dataclass(frozen=True)
class Jobs:
    """Every context of this host that this user may see, and the other ranks of their jobs, in order of jobs and ranks;
    by job, the ranks to blame for the waits (no entry: no rank waits)."""

    ranks: tuple[ShownRank, ...]
    blamed: dict[str, Blamed]


def jobs(timeout: float) -> Jobs:
    """The present ranks. timeout: seconds to answer for the ranks of this host, and then for the others.

    Ranks that exchange updates wait for each other now and then. So a circle of waits is looked at twice, and is a
    deadlock only if it is the same circle of the same waits at both looks, and its ranks have moved nothing in between.

    Raises:
        NotSupported: /proc/net/unix cannot be read.
    """
    first = _look(timeout)
    circles = {job for job, blamed in first.jobs.blamed.items() if _is_circle(blamed)}
    if not circles:
        return first.jobs
    elsewhere = any(rank.told_by >= 0 for rank in first.jobs.ranks if rank.job in circles)
    sleep(_AGAIN_ELSEWHERE if elsewhere else _AGAIN)
    return without_passing_circles(first, _look(timeout))


class Look(NamedTuple):
    """Jobs, and the time.monotonic at which the question and the last answer were sent."""

    jobs: Jobs
    begin: float
    end: float


def without_passing_circles(first: Look, second: Look) -> Jobs:
    """The jobs of the second look, without circles of waits that the first one did not show."""
    ranks = {(rank.job, rank.rank): rank for rank in first.jobs.ranks}
    since_first = second.end - first.begin
    blamed = {}
    for job, found in second.jobs.blamed.items():
        if _is_circle(found):
            members = {end.rank for end in found.culprits}
            known = first.jobs.blamed.get(job)
            if known is None or not _is_circle(known) or {end.rank for end in known.culprits} != members:
                continue
            now = [rank for rank in second.jobs.ranks if rank.job == job and rank.rank in members]
            if not all(_stands(ranks.get((job, rank.rank)), rank, since_first) for rank in now):
                continue
        blamed[job] = found
    return replace(second.jobs, blamed=blamed)


def _is_circle(blamed: Blamed) -> bool:
    return any(end.state == "circle" for end in blamed.culprits)


def _stands(before: ShownRank | None, now: ShownRank, since: float) -> bool:
    """Whether a rank is in the same waits as `since` seconds before, and has moved nothing. Older news of it tell
    nothing."""
    if before is None or before.moved != now.moved or max(now.age, 0.0) > since:
        return False
    lasted = all(wait.seconds >= since - max(now.age, 0.0) for wait in now.waits)
    return lasted and [(w.op, w.ranks, w.n) for w in before.waits] == [(w.op, w.ranks, w.n) for w in now.waits]


def _look(timeout: float) -> Look:
    begin = monotonic()
    cap = 64
    while True:
        found = ffi.new("hpc_shown_rank[]", cap)
        count = lib.hpc_jobs(found, cap, timeout)
        check(count)
        if count <= cap:
            break
        cap = 2 * count
    ranks = tuple(_shown(found[i]) for i in range(count))
    blamed = {}
    for job in {rank.job for rank in ranks} - {""}:
        first = next(i for i, rank in enumerate(ranks) if rank.job == job)
        members = sum(rank.job == job for rank in ranks)
        ends, room = ffi.new("hpc_culprit[]", _CULPRITS), ffi.new("char[]", 1024)
        n = lib.hpc_job_culprits(found + first, members, ends, _CULPRITS, room, len(room))
        if n > 0:
            blamed[job] = Blamed(culprits(ends, n), text(room))
    return Look(Jobs(ranks, blamed), begin, monotonic())


def _shown(c: Any) -> ShownRank:
    state = {0: "silent", -1: "foreign"}.get(c.answers, "runs" if c.connected else "starts")
    gone = text(c.gone)
    waits = tuple(
        Waiting(text(w.op), w.seconds, tuple(w.ranks[0 : min(w.n_ranks, lib.HPC_SHOWN_RANKS)]), w.n_ranks)
        for w in c.waits[0 : c.n_waits]
    )
    transports = tuple(name for name in text(c.transports).split(",") if name)
    return ShownRank(
        job=text(c.job),
        state="gone" if gone else state,
        rank=c.rank,
        size=c.size,
        pid=c.pid,
        host=text(c.host),
        transports=transports,
        step=c.step,
        waits=waits,
        told_by=c.told_by,
        age=c.age,
        unheard=c.unheard,
        gone=gone,
        moved=c.moved,
    )

"""Binds the facts of the build and of this host, and the list of jobs that run on it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic, sleep
from typing import Any, NamedTuple

from .._ffi import ffi, lib
from ..errors import Culprit
from .status import check, culprits, names, text

_CULPRITS = 16  # of a job, that are told
_AGAIN = 0.25  # seconds between two looks at a circle of waits
_AGAIN_ELSEWHERE = 1.1  # the same if some rank is on another host, whose news may be a second old

core_count: Callable[[], int] = lib.hpc_core_count
memory_available: Callable[[], int] = lib.hpc_memory_available


def version() -> str:
    return text(lib.hpc_version())


def build_info() -> str:
    return text(lib.hpc_build_info())


def transports(of: str = "") -> tuple[str, ...]:
    """Returns the names of this build's transports, best first: all, or of one kind. "default": used unless others
    are named; "mapped": ranks of a host share memory; "socket": connects hosts without RDMA devices."""
    return names(getattr(lib, f"HPC_{of.upper()}_TRANSPORTS" if of else "HPC_TRANSPORTS"))


def instruction_sets() -> tuple[str, ...]:
    """Returns the instruction sets of the fold kernels that this machine can run, simplest first."""
    known = dict(fact.split("=", 1) for fact in build_info().split("; "))
    return tuple(reversed(known["isa"].split(",")))


@dataclass(frozen=True)
class Device:
    name: str  # "mlx5_0"
    port: int  # from 1
    state: str  # "active": it can send; otherwise "down", "init" or "armed"
    link_layer: str  # "InfiniBand" or "Ethernet" (RoCE)
    netdev: str  # the network interface of a RoCE port; "" on InfiniBand
    gid: str  # the address that hpcomm uses, in IPv6 notation ("::ffff:10.0.0.1"); "": it has none
    gid_index: int  # the address's index in the port's table; -1: it has none
    lid: int  # InfiniBand's local address, otherwise 0
    mtu: int  # bytes of the largest packet; 0: unknown
    gbits: float  # Gb/s of the link; 0.0: unknown
    numa_node: int  # -1: unknown
    why: str  # why hpcomm cannot use the port; "" if it can

    @property
    def usable(self) -> bool:
        return not self.why


def devices() -> tuple[Device, ...]:
    """Returns every port of every RDMA device of this host, usable or not; HPCOMM_DEVICES is ignored. Raises
    NotSupported if this build has no verbs, or this host no libibverbs."""
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
    """A wait of a rank's thread for n ranks; ranks holds the first 16 of them."""

    op: str
    seconds: float
    ranks: tuple[int, ...]
    n: int


@dataclass(frozen=True)
class ShownRank:
    job: str  # "": not known
    state: str  # "runs", "starts", "silent" (no answer in time), "foreign" (hung up: other version, or ends), "gone"
    rank: int  # -1: not known
    size: int  # -1: not known
    pid: int  # 0: not seen from here
    host: str
    transports: tuple[str, ...]
    step: int
    waits: tuple[Waiting, ...]
    told_by: int  # the rank of this host that reported it, because it is gone or elsewhere; -1: it answered itself
    age: float  # of step and waits, in seconds; -1: unknown
    unheard: float  # seconds since told_by last heard from it
    gone: str  # why it has left or failed
    title: str = ""  # of the context, on that rank
    moved: int = 0  # number of its sends and receives, constant in a deadlock


@dataclass(frozen=True)
class Blamed:
    """The ranks at the end of a job's waits, and the sentence that its errors have about them."""

    culprits: tuple[Culprit, ...]
    told: str


@dataclass(frozen=True)
class Jobs:
    """The jobs on this host.

    ranks lists, in order, the ranks of this host that this user may see, and the other ranks of their jobs. blamed has,
    for each job whose ranks wait, the ranks to blame.
    """

    ranks: tuple[ShownRank, ...]
    blamed: dict[str, Blamed]


def jobs(timeout: float) -> Jobs:
    """Returns the present jobs of this host.

    timeout: seconds in which ranks of this host may answer, and then the same for ranks of other hosts. A circle of
    waits is reported as a deadlock only if a second look finds the same waits and no data moved in between. Raises
    NotSupported if /proc/net/unix cannot be read.
    """
    first = _look(timeout)
    circles = {job for job, blamed in first.jobs.blamed.items() if _is_circle(blamed)}
    if not circles:
        return first.jobs
    elsewhere = any(rank.told_by >= 0 for rank in first.jobs.ranks if rank.job in circles)
    sleep(_AGAIN_ELSEWHERE if elsewhere else _AGAIN)
    return without_passing_circles(first, _look(timeout))


class Look(NamedTuple):
    """One look at the jobs; begin and end are the times (time.monotonic) of the question and of the last answer."""

    jobs: Jobs
    begin: float
    end: float


def without_passing_circles(first: Look, second: Look) -> Jobs:
    """Returns the second look's jobs, without circles of waits that the first look did not show."""
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
    """Returns whether a rank has been in the same waits for `since` seconds and has moved no data; False if its news
    are older."""
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
    gone, state = text(c.gone), {0: "silent", -1: "foreign"}.get(c.answers, "runs" if c.connected else "starts")
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
        title=text(c.title),
        moved=c.moved,
    )

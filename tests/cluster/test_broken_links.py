"""Links between hosts that break, and hosts that vanish or freeze. Every rank is told in time which ranks are lost,
none hangs, and the survivors go on.

Twelve ranks on six hosts, and nine on three, take part in one case after another, with a context for each case. No test
needs nft or iptables: tc and the switch drop packets, and rules of routing reject them."""

import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np
import pytest

import hpcomm

from .hosts import Cluster
from .job import Desk, Ended, Job

SILENCE = 1.5
SLACK = 8.0  # seconds of two busy cores
LONG = 20.0  # seconds that a wait lasts which nothing ends
PATIENCE = 60.0  # seconds for all else, on a busy machine
N = 6000
HOSTS = {2: ("h1", "h2", "h3", "h4", "h5", "h6"), 3: ("h1", "h2", "h3")}  # by the number of ranks of each host


# ---- the ranks' side -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """wait: "steps" of an exchange, for which every two ranks need each other; "signals" that never come, each from the
    next rank, so that no two ranks exchange data; or "meeting", a first exchange of data by pairs of ranks.
    shrinks: whether a rank that has failed goes on with the survivors. Otherwise it leaves. timeout: of the wait."""

    number: int
    wait: str
    shrinks: bool
    timeout: float
    init_timeout: float


@dataclass(frozen=True)
class Told:
    """How a rank's wait ended, and then its work with the survivors, or after a meeting its barrier."""

    first: Ended
    then: Ended = Ended()  # noqa: RUF009


def waits_of(ctx: hpcomm.Context, wait: str, timeout: float) -> Callable[[], object]:
    if wait == "signals":
        window = ctx.window(1, "int64", signals=1)
        return lambda: window.wait_signal(0, 1, timeout, peer=(ctx.rank + 1) % ctx.size)
    params, ones = {"w": np.zeros(N, np.float32)}, np.ones(N, np.float32)
    ex = hpcomm.Exchange(ctx, params, rule=hpcomm.SGD(lr=1), reduce="sum", progress="inline", chunk_bytes=512)
    ex.push_pull("w", ones)
    return lambda: ex.push_pull("w", ones, timeout)


def with_survivors(ctx: hpcomm.Context) -> tuple[tuple[int, ...], set[float]]:
    """Barriers and an exchange of the survivors: their ranks, and the sum of what each of them gave."""
    ctx.revoke()
    with ctx.shrink() as fresh:
        fresh.barrier()
        params = {"w": np.zeros(N, np.float32)}
        with hpcomm.Exchange(fresh, params, rule=hpcomm.SGD(lr=1), reduce="sum", progress="inline") as ex:
            found = fresh.ranks, set(ex.push_pull("w", np.full(N, -(1 << ctx.rank), np.float32)).tolist())
            fresh.barrier()
        return found


def meet(desk: Desk, ctx: hpcomm.Context, number: int) -> Told:
    """This rank exchanges data with the rank that the test names, and then meets all ranks."""
    window = ctx.window(1, "int64", signals=1)
    ctx.barrier()
    desk.tell(f"in {number}")
    peer = desk.meet("apart")
    met = after = Ended()
    try:
        window.put_signal(peer, None, signal=0, value=1)
        window.wait_signal(0, 1, peer=peer)
        met = Ended()
    except hpcomm.HpcommError as error:
        met = Ended.of(error)
    desk.tell(f"met {number}")
    try:
        ctx.barrier()
        after = Ended()
    except hpcomm.HpcommError as error:
        after = Ended.of(error)
    return Told(met, after)


def take_part(desk: Desk, case: Case) -> Told:
    ctx = hpcomm.init(desk.world(), silence=SILENCE, timeout=PATIENCE, init_timeout=case.init_timeout)
    told = Told(Ended())
    with suppress(hpcomm.HpcommError), ctx:
        if case.wait == "meeting":
            return meet(desk, ctx, case.number)
        wait = waits_of(ctx, case.wait, case.timeout)
        desk.tell(f"in {case.number}")
        try:
            while True:
                wait()
        except hpcomm.HpcommError as error:
            told = Told(Ended.of(error))
            if not case.shrinks:
                raise
        try:
            told = Told(told.first, Ended(with_survivors(ctx)))
        except hpcomm.HpcommError as error:
            told = Told(told.first, Ended.of(error))
    return told


def rounds(desk: Desk) -> None:
    """One case after another, until there is none."""
    told = None
    while (case := desk.meet("free", told)) is not None:
        told = take_part(desk, case)


# ---- the test's side -----------------------------------------------------------------------------------------------


class Rounds:
    """Jobs whose ranks take part in one case after another. The network is whole when a case begins."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.number = cluster, 0
        self._jobs: dict[int, Job] = {}

    @contextmanager
    def case(
        self,
        wait: str,
        *,
        per_host: int = 2,
        shrinks: bool = True,
        timeout: float = LONG,
        init_timeout: float = PATIENCE,
    ) -> Iterator[Job]:
        """All ranks wait. At the end all of them are free again; if they are not, the next case has other jobs."""
        if per_host not in self._jobs:
            job = Job(self.cluster, rounds, hosts=HOSTS[per_host], ranks_per_host=per_host, by="desk", timeout=PATIENCE)
            self._jobs[per_host] = job.__enter__()
        job = self._jobs[per_host]
        self.number += 1
        try:
            job.reached("free")
            job.wait_longer(PATIENCE)
            job.go(Case(self.number, wait, shrinks, timeout, init_timeout))
            job.heard(f"in {self.number}")
            yield job
            job.reached("free")
        except BaseException:
            self.end(well=False)
            raise
        finally:
            self.mend()

    def mend(self) -> None:
        for host in self.cluster.hosts:
            self.cluster.restore(host)
            self.cluster.open(host)
            self.cluster.run(host, ["ip", "neigh", "flush", "all"])  # it may know a host as one that does not answer

    def end(self, well: bool = True) -> None:
        jobs, self._jobs = list(self._jobs.values()), {}
        try:
            for job in jobs:
                if well:
                    job.wait_longer(PATIENCE)
                    job.go()
                    job.values()
                else:
                    print(job.said())
        finally:
            for job in jobs:  # each ends all processes of its hosts
                job.__exit__(None, None, None)


@pytest.fixture(scope="module")
def all_rounds() -> Iterator[Rounds]:
    with Cluster(6) as six:
        made = Rounds(six)
        yield made
        made.end()


def ranks_of(job: Job, *hosts: str) -> set[int]:
    return {rank for rank, host in job.host_of.items() if host in hosts}


def free(job: Job, ranks: Collection[int]) -> dict[int, Told]:
    return dict(zip(sorted(ranks), job.reached("free", ranks), strict=True))


def named(told: dict[int, Told], ranks: Collection[int], lost: set[int], start: float) -> None:
    """These ranks were told in time that some of the lost ranks failed, and no other rank."""
    for rank in ranks:
        ended = told[rank].first
        saw = f"rank {rank}, after {ended.at - start:.1f} s: {ended}"
        assert ended.error == "PeerFailed", saw
        assert ended.ranks, saw
        assert set(ended.ranks) <= lost, saw
        assert SILENCE / 2 < ended.at - start < SILENCE + SLACK, saw


def went_on(told: dict[int, Told], ranks: Collection[int]) -> None:
    """These ranks went on with each other and no other rank."""
    for rank in ranks:
        ended = told[rank].then
        assert ended.value == (tuple(sorted(ranks)), {float(sum(1 << one for one in ranks))}), f"rank {rank}: {ended}"


# ---- two hosts that do not reach each other ------------------------------------------------------------------------

PARTED = ("h2", "h3")


def part(cluster: Cluster, how: str) -> None:
    if how == "both":
        cluster.part(*PARTED)
    else:
        cluster.lose(*(PARTED if how == "there" else PARTED[::-1]))


@pytest.mark.some(2)
@pytest.mark.parametrize(("per_host", "how"), [(2, "both"), (3, "both"), (2, "there"), (2, "back")])
def test_all_ranks_name_ranks_of_two_hosts_that_lose_each_other(all_rounds: Rounds, per_host: int, how: str) -> None:
    """Both ways, or only one way. They leave, and then the others are told."""
    with all_rounds.case("steps", per_host=per_host, shrinks=False) as job:
        start = time.monotonic()
        part(all_rounds.cluster, how)
        named(free(job, job.host_of), job.host_of, ranks_of(job, *PARTED), start)


@pytest.mark.some(1)
@pytest.mark.parametrize("how", ["both", "there"])
def test_one_of_two_hosts_that_lose_each_other_is_left_out(all_rounds: Rounds, how: str) -> None:
    """All other ranks go on together. Ranks that do not need the broken link learn of it at their deadline at last."""
    with all_rounds.case("steps", timeout=3 * SILENCE) as job:
        start = time.monotonic()
        part(all_rounds.cluster, how)
        told = free(job, job.host_of)
        late = {rank for rank, one in told.items() if one.first.error == "Timeout"} - ranks_of(job, *PARTED)
        assert all(told[rank].first.at - start < 3 * SILENCE + SLACK for rank in late), told
        named(told, set(told) - late, ranks_of(job, *PARTED), start)
        out = {rank for rank, one in told.items() if one.then.error}
        saw = "; ".join(f"{told[rank].then.error}: {told[rank].then.message}" for rank in sorted(out))
        assert out in [ranks_of(job, host) for host in PARTED], saw
        went_on(told, set(told) - out)
        for rank in out:
            assert told[rank].then.error == "TransportError", told[rank]
            assert "counts this rank as failed" in told[rank].then.message, told[rank]


# ---- hosts that vanish ---------------------------------------------------------------------------------------------

VANISHED = {
    "unplugged": ("h3",),
    "the host of rank 0": ("h1",),
    "two hosts": ("h2", "h5"),
    "a half": ("h4", "h5", "h6"),
}
WITH = [(2, how, wait) for how in VANISHED for wait in ("steps", "signals")]


@pytest.mark.some(4)
@pytest.mark.parametrize(("per_host", "how", "wait"), [*WITH, (3, "the host of rank 0", "signals")])
def test_the_others_go_on_without_hosts_that_vanish(all_rounds: Rounds, per_host: int, how: str, wait: str) -> None:
    """Whether data moves or no rank needs the lost ones. The lost ones see the others vanish."""
    cluster, hosts = all_rounds.cluster, VANISHED[how]
    with all_rounds.case(wait, per_host=per_host) as job:
        start = time.monotonic()
        if how == "a half":
            cluster.split(*hosts)
        else:
            for host in hosts:
                cluster.cut(host, unplugged=how == "unplugged")
        told = free(job, job.host_of)
        everyone, lost = set(job.host_of), ranks_of(job, *hosts)
        named(told, everyone - lost, lost, start)
        went_on(told, everyone - lost)
        if how == "a half":
            named(told, lost, everyone - lost, start)
            went_on(told, lost)
        for host in hosts:
            named(told, ranks_of(job, host), everyone - ranks_of(job, host), start)


@pytest.mark.parametrize("wait", ["steps", "signals"])
def test_a_host_that_freezes_is_told_that_it_counts_as_failed(all_rounds: Rounds, wait: str) -> None:
    with all_rounds.case(wait) as job:
        start = time.monotonic()
        all_rounds.cluster.pause("h3")
        frozen = ranks_of(job, "h3")
        others = set(job.host_of) - frozen
        try:
            told = free(job, others)
        finally:
            all_rounds.cluster.resume("h3")
        named(told, others, frozen, start)
        went_on(told, others)
        resumed = time.monotonic()
        for rank, one in free(job, frozen).items():
            saw = f"rank {rank}: {one}"
            assert one.first.error in ("PeerFailed", "TransportError"), saw
            assert set(one.first.ranks) <= others, saw
            assert max(one.first.at, one.then.at) - resumed < SLACK, saw
            assert one.then.error == "TransportError", saw
            for ended in (one.first, one.then):
                assert re.search("heard nothing from this rank|counts this rank as failed", ended.message), saw


# ---- a link that one side refuses ----------------------------------------------------------------------------------

BRIEF = 3.0  # seconds for a connection
CALLED, CALLER = "h2", "h4"  # as ranks call lower ones


@contextmanager
def refused(cluster: Cluster, host: str, by: str, how: str) -> Iterator[None]:
    """The host refuses connections that another host makes. Those that are there stay."""
    if how == "dropped":
        cluster.firewall(host, 1, 65535, source=by)
        yield  # mend ends it
        return
    cluster.refuse(host, by)
    try:
        yield
    finally:
        cluster.admit(host)


def meetings(all_rounds: Rounds, job: Job) -> tuple[dict[int, Told], dict[int, int], float]:
    """Ranks of hosts between which no connection is refused meet first. What all ranks were told, the ranks of the two
    hosts with the rank that each of them met, and when they met."""
    job.reached("apart")
    with_ranks = dict(zip(sorted(ranks_of(job, CALLED)), sorted(ranks_of(job, CALLER)), strict=True))
    with_ranks |= {peer: rank for rank, peer in with_ranks.items()}
    others = sorted(set(job.host_of) - set(with_ranks))
    for rank, peer in zip(others, reversed(others), strict=True):
        job.go(peer, [rank])
    job.heard(f"met {all_rounds.number}", others)
    start = time.monotonic()
    for rank, peer in with_ranks.items():
        job.go(peer, [rank])
    return free(job, job.host_of), with_ranks, start


@pytest.mark.parametrize("how", ["rejected", "dropped"])
def test_a_refused_link_is_an_error_that_names_the_rank_and_the_reason(all_rounds: Rounds, how: str) -> None:
    """The two hosts refuse a new connection before their ranks first exchange data. A call that gets no answer has no
    other reason than the time."""
    with all_rounds.case("meeting", init_timeout=BRIEF) as job, refused(all_rounds.cluster, CALLED, CALLER, how):
        told, pairs, start = meetings(all_rounds, job)
        for rank, peer in pairs.items():
            ended, other = told[rank].first, told[peer].first
            assert ended.error in ("TransportError", "PeerFailed", "Timeout"), ended
            assert f"rank {peer}" in ended.message, ended
            assert ended.at - start < BRIEF + SLACK, ended
            assert how == "dropped" or "No route to host" in ended.message + other.message, (ended, other)
        for rank, one in told.items():
            assert rank in pairs or not one.first.error, one
            assert one.then.at - start < BRIEF + SLACK, one
            assert not one.then.error or (one.then.ranks and set(one.then.ranks) <= set(pairs)), one


def test_a_link_that_one_side_refuses_is_made_by_the_other(all_rounds: Rounds) -> None:
    with all_rounds.case("meeting") as job, refused(all_rounds.cluster, CALLER, CALLED, "rejected"):
        told, _, _ = meetings(all_rounds, job)
        assert not any(one.first.error or one.then.error for one in told.values()), told

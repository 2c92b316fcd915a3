"""Where jobs run: a crew, its hubs and their CPUs, on one host or on hosts with their own links; and jobs."""

import functools
import itertools
import mmap
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.common.launch import ROOT
from bench.service import work
from bench.service.crew import Crew, Rank, results
from bench.service.hubs import Hub
from bench.service.work import NEVER, Model
from hpcomm.launch import free_port

sys.path.insert(0, str(ROOT / "tests"))
from cluster.hosts import Cluster, Unavailable

__all__ = ["ELSEWHERE", "HERE", "MIB", "PLACES", "WEIGHTS", "Field", "Team", "Unavailable"]

PLACES = {"shm": "shared memory", "tcp": "sockets over loopback", "links": "hosts with shaped links"}
HERE, ELSEWHERE = "here", "elsewhere"  # names of hubs
WEIGHTS = {"light": 1.0, "heavy": 3.0}  # of each hub's namespaces
MIB = 1 << 20
SETTLE = 0.1  # of a stream is not counted
TOLD = 0.002  # seconds in which a process is told to begin: the processes of a job begin together


@dataclass
class Team:
    """A job's workers, as the benchmark sees them.

    Attributes:
        began: for each rank, the times of work.join or work.meet.
        server: the job's own server, or none.
    """

    name: str
    ranks: Sequence[Rank]
    model: Model
    words: Any
    began: list[list[float]]
    server: Sequence[Rank] = ()

    def start(self, call: Callable[..., Any], *args: Any) -> None:
        for rank in self.ranks:
            rank.start(call, self.name, *args)

    def results(self) -> list[Any]:
        return results(self.ranks)

    def call(self, call: Callable[..., Any], *args: Any) -> list[Any]:
        self.start(call, *args)
        return self.results()

    def steps(self, n: int) -> float:
        """Returns the median of n steps, each the mean of all ranks."""
        return statistics.median(map(statistics.fmean, zip(*self.call(work.steps, n), strict=True)))

    def stream(self, seconds: float = NEVER, pause: float = 0.0) -> None:
        """Begins a stream of operations. results() or stop() must follow."""
        self.words[:] = NEVER, 0
        self.start(work.stream, seconds, pause)

    def stop(self) -> list[Any]:
        self.words[1] = 1
        return self.results()

    def wrong(self, plant: bool = False) -> int:
        return sum(self.call(work.wrong, plant))

    def leave(self) -> None:
        self.start(work.leave)
        for rank in self.server:
            rank.start(work.leave, self.name)
        results([*self.ranks, *self.server])

    def connecting(self) -> float:
        """Returns the seconds from the first rank's beginning to the end of the last rank's first step."""
        return max(times[-1] for times in self.began) - min(times[0] for times in self.began)


def count_at(stream: tuple[float, list[float]], when: float) -> float:
    """Returns how many operations of a stream had ended at a time; an operation grows evenly from the last end."""
    began, ends = stream
    return float(np.interp(when, [began, *ends], range(len(ends) + 1)))


def rates(teams: Sequence[Team], streams: Sequence[Sequence[tuple[float, list[float]]]], seconds: float) -> list[float]:
    """Returns the bytes a second of each team, over the time that all streams share; if that is less than half of
    seconds, each over its own time. A byte counts once, for all workers of the team."""
    first = [each[0] for each in streams]
    until = min(ends[-1] for _, ends in first)
    since = max(began for began, _ in first)
    since += SETTLE * (until - since)
    times = [(since, until) if until - since > seconds / 2 else (began, ends[-1]) for began, ends in first]
    found = []
    for team, each, (begin, end) in zip(teams, first, times, strict=True):
        found.append(team.model.nbytes * (count_at(each, end) - count_at(each, begin)) / (end - begin))
    return found


def operations(streams: Sequence[tuple[float, list[float]]]) -> list[float]:
    """Returns the times from one operation's end to the next one's, on the first worker."""
    _, ends = streams[0]
    return [after - before for before, after in itertools.pairwise(ends)]


def shared_words(path: Path) -> Any:
    path.write_bytes(bytes(16))
    with path.open("r+b") as file:
        words = np.frombuffer(mmap.mmap(file.fileno(), 0), np.int64)
    words[:] = NEVER, 0
    return words


class Field:
    """A place with two hubs. close ends all processes.

    Attributes:
        place: of PLACES.
        hub_cpus, worker_cpus: the CPUs of servers and of workers; empty: all.
    """

    def __init__(
        self,
        place: str = "shm",
        cpus: str = "own",
        rate: str | None = "1gbit",
    ) -> None:
        """cpus: "own": servers get the last CPU and workers the others; "any": all get all. rate: of links."""
        self.place = place
        all_cpus = sorted(os.sched_getaffinity(0))
        is_pinned = cpus == "own" and len(all_cpus) > 1
        self.hub_cpus, self.worker_cpus = (all_cpus[-1:], all_cpus[:-1]) if is_pinned else ([], [])
        self._undo, self._numbers = ExitStack(), itertools.count()
        self.hubs: dict[str, Hub] = {}
        try:
            self._open(rate)
        except BaseException:
            self._undo.close()
            raise

    def _open(self, rate: str | None) -> None:
        hosts: dict[str, Any] = {}
        at: dict[str, Any] = {}
        if self.place == "links":
            cluster = self._undo.enter_context(Cluster(3, rate=rate))
            hosts = {host: functools.partial(cluster.popen, host) for host in cluster.hosts}
            at = {"host": cluster.address("h1"), "popen": hosts["h1"]}
        self.crew = self._undo.enter_context(Crew(hosts))
        for name in (HERE, ELSEWHERE):
            hub = self.hubs[name] = Hub(self.crew.folder / name, WEIGHTS, cpus=self.hub_cpus, **at)
            self._undo.callback(hub.end)
        for hub in self.hubs.values():
            hub.begun()
        self._clerk = self.fork_server() if hosts else None

    def close(self) -> None:
        self._undo.close()

    @property
    def transport(self) -> str:
        return "" if self.place == "links" else self.place

    def fork_server(self) -> Rank:
        return self.crew.fork(1, "h1" if self.place == "links" else "", self.hub_cpus)[0]

    def fork(self, n: int = 2, is_free: bool = False) -> list[Rank]:
        """Starts workers. On hosts with links, equally many on each of two hosts. is_free: they may use all CPUs."""
        hosts = ("h2", "h3") if self.place == "links" else ("",)
        cpus = [] if is_free else self.worker_cpus
        return [self.crew.fork(1, hosts[i % len(hosts)], cpus)[0] for i in range(n)]

    def created(self, hub: str = HERE, space: str = "light") -> tuple[str, str]:
        """Creates a job at a hub; returns its handle and the token."""
        one = self.hubs[hub]
        if self._clerk is None:
            return work.create(one.where, space, one.tokens[space]), one.tokens[space]
        return self._clerk.call(work.create, one.where, space, one.tokens[space]), one.tokens[space]

    def at_hub(
        self,
        model: Model,
        ranks: Sequence[Rank] | int = 2,
        hub: str = HERE,
        space: str = "light",
        wait: float = work.TIMEOUT,
    ) -> Team:
        """Makes a job at a hub.

        Args:
            ranks: its workers, or how many to start.
            wait: seconds for workers to come.
        """
        workers = self.fork(ranks) if isinstance(ranks, int) else ranks
        return self._team(model, workers, work.join, lambda: (*self.created(hub, space), wait))

    def with_server(self, model: Model, ranks: Sequence[Rank] | int, server: Rank | None = None) -> Team:
        """Makes a job with its own server, which uses the CPUs of hubs."""
        workers = self.fork(ranks) if isinstance(ranks, int) else ranks
        owner = self.fork_server() if server is None else server
        address = self.hubs[HERE].where.rpartition(":")[0]
        return self._team(model, workers, work.meet, lambda: (address, free_port("127.0.0.1")), [owner])

    def _team(
        self,
        model: Model,
        ranks: Sequence[Rank],
        call: Callable[..., Any],
        place: Callable[[], tuple[Any, ...]],
        server: Sequence[Rank] = (),
    ) -> Team:
        """Lets workers, and their server, make one job. place: makes the last arguments of the call, once the processes
        are ready."""
        name = f"job {next(self._numbers)}"
        path = self.crew.folder / f"{name}.words"
        words, everybody = shared_words(path), [*ranks, *server]
        for i, rank in enumerate(everybody):
            rank.start(work.prepare, model, i, len(ranks))
        results(everybody)
        where = place()
        at = time.monotonic() + TOLD * len(everybody)
        for rank in everybody:
            rank.start(call, name, str(path), self.transport, at, *where)
        return Team(name, ranks, model, words, results(everybody)[: len(ranks)], server)

    def end(self, *teams: Team) -> None:
        """Ends jobs and their processes."""
        for team in teams:
            team.leave()
        self.dismiss(*teams)

    def dismiss(self, *teams: Team) -> None:
        """Ends the processes of jobs that have ended, or failed."""
        for team in teams:
            for rank in (*team.ranks, *team.server):
                rank.end()
            with suppress(OSError):
                (self.crew.folder / f"{team.name}.words").unlink()


@contextmanager
def beside(*teams: Team) -> Iterator[None]:
    """Lets teams stream meanwhile."""
    for team in teams:
        team.stream()
    try:
        yield
    finally:
        for team in teams:
            team.words[1] = 1
        for team in teams:
            team.results()

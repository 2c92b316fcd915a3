"""Jobs that end: one after the other, and many at once that are killed; their remains, and the steps of others."""

import random
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from bench.common.judge import Promise
from bench.service.crew import Failed
from bench.service.field import ELSEWHERE, HERE, MIB, Field, operations
from bench.service.hubs import Hub, held, memory
from bench.service.options import Found, Options, judged, percentile, turns
from bench.service.work import NEVER, Model
from hpcomm import errors
from hpcomm.bench.rows import Row

SMALL = Model(1, MIB)
WARM = 10  # jobs before the hub's memory is first measured
MEMORY_WITHIN = 1.01
AT_ONCE = 8
KILLED = 0.5  # of the jobs
LONGEST = 0.15  # seconds after which a job is killed
STEPS_SECONDS = 0.03  # of a job that may end by itself
STEP_AT_MOST = 1.5  # times a bystander's step beside equal load elsewhere
EARLY = 0.3  # of the killed jobs, while they begin
COME = 10.0  # seconds for the workers of a job to come: some are killed before
QUIET_SECONDS = 60.0  # for a hub to free ended jobs
LETS_GO, LOOK = 2.0, 0.01  # seconds for the last descriptors, and between two looks


def settled(hub: Hub, before: Row | None = None) -> Row:
    """Counts descriptors, threads and memory of the hub's process, once no job is left. Where it has more than before,
    it gets a while to let them go: a connection ends a moment after its last byte."""

    def is_quiet() -> bool:
        return not hub.status()["jobs"]

    def has_let_go() -> bool:
        return before is not None and all(count <= before[what] for what, count in held(hub.pid).items())

    look_until(is_quiet, QUIET_SECONDS)
    look_until(has_let_go, LETS_GO if before else 10 * LOOK)
    return {**held(hub.pid), **memory(hub.pid), "jobs": hub.status()["jobs"]}


def look_until(is_so: Callable[[], bool], seconds: float) -> None:
    """Returns when another process is as it should be, which that process tells nobody, or after so many seconds."""
    until = time.monotonic() + seconds
    while not is_so() and time.monotonic() < until:
        time.sleep(LOOK)


def one_job(field: Field, options: Options) -> int:
    """Runs a small job to its end; returns the wrong values."""
    team = field.at_hub(SMALL)
    team.steps(2)
    wrong = team.wrong(options.plant)
    field.end(team)
    return wrong


def jobs_after_jobs(options: Options, field: Field) -> Iterator[Found]:
    """Descriptors, threads and memory of the hub after jobs that began and ended, one after the other."""
    n, place = max(options.jobs // 10, 2), field.place
    hub = field.hubs[HERE]
    wrong = sum(one_job(field, options) for _ in range(2 if options.quick else WARM))
    before, after = settled(hub), list[Row]()
    for _ in range(n):
        wrong += one_job(field, options)
        after.append(settled(hub, before))
    row: Row = {"line": "d", "place": place, "name": f"{n} jobs", "cycles": [each["pss"] for each in after]}
    row |= {"before": before, "after": after, "wrong": wrong}
    last = after[-max(n // 10, 1) :]
    promises = [_more(f"d: {n} jobs, {place}, {what}", before, last, what) for what in ("descriptors", "threads")]
    for what in ("rss", "pss"):
        each = [one[what] / before[what] for one in last]
        value = statistics.median(each)
        ours, other = (f"{nbytes / MIB:.1f} MiB" for nbytes in (last[-1][what], before[what]))
        figures = (value, min(each), max(each), MEMORY_WITHIN, True)
        promises.append(Promise(f"d: {n} jobs, {place}, {what.upper()}", ours, f"{other} before", *figures))
    yield Found([row], promises)


def _more(what: str, before: Row, after: list[Row], name: str) -> Promise:
    """Judges whether a process holds no more than before."""
    counts = [one[name] - before[name] for one in after]
    ours, other = str(after[-1][name]), f"{before[name]} before"
    return Promise(f"{what} more", ours, other, counts[-1], min(counts), max(counts), 0, True, unit="")


# ---- many jobs at once, half of them killed --------------------------------------------------------------------------


@dataclass
class Storm:
    """Jobs at one hub, AT_ONCE at a time.

    Attributes:
        is_early: some are killed while they begin.
        counts: jobs by how they ended: done, killed, or an error that none should have.
        errors: the first sentences of those errors.
    """

    place: Field
    hub: str
    plant: bool
    is_early: bool
    random: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    wrong: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, jobs: int) -> None:
        plans = [self._plan() for _ in range(jobs)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self._job, plans, [self.random.randrange(2) for _ in range(jobs)]))

    def _plan(self) -> tuple[float, float]:
        """Returns after how many seconds a worker is killed, from the start of the processes and from their first
        step on; NEVER: it is not."""
        if self.random.random() >= KILLED:
            return NEVER, NEVER
        if self.is_early and self.random.random() < EARLY:
            return self.random.uniform(0, LONGEST), NEVER
        return NEVER, self.random.uniform(0, LONGEST)

    def _job(self, plan: tuple[float, float], victim: int) -> None:
        with self._lock:  # processes are started one after the other
            ranks = self.place.fork()
        killers = [threading.Timer(after, ranks[victim].signal, [signal.SIGKILL]) for after in plan]
        is_killed = min(plan) < NEVER
        try:
            if plan[0] < NEVER:
                killers[0].start()
            team = self.place.at_hub(SMALL, ranks, self.hub, wait=COME)
            if plan[1] < NEVER:
                killers[1].start()
            team.stream(LONGEST if is_killed else STEPS_SECONDS)
            team.results()
            wrong = team.wrong(self.plant)
            team.leave()
        except Failed as error:
            is_expected = is_killed and (not error.kind or hasattr(errors, error.kind))
            with self._lock:
                self.counts["killed" if is_expected else "errors"] += 1
                if not is_expected:
                    self.errors.append(str(error).splitlines()[0])
        else:
            with self._lock:
                self.counts["done"] += 1
                self.wrong += wrong
        finally:
            for killer in killers:
                killer.cancel()
            for rank in ranks:
                with suppress(OSError):
                    rank.end()


ALONE, BESIDE, EQUAL = "alone", "beside jobs at its hub", "beside equal jobs at another hub"


def killed_jobs(options: Options, field: Field) -> Iterator[Found]:
    """Jobs that come and go, many at once, half of them killed; and a bystander."""
    place = field.place
    seed = random.Random(1)
    blocks = min(options.cycles, options.jobs)
    share = -(-options.jobs // blocks)
    samples: dict[str, list[list[float]]] = {name: [] for name in (ALONE, BESIDE, EQUAL)}
    storms = {
        name: Storm(field, hub, options.plant, not options.quick, seed)
        for name, hub in ((BESIDE, HERE), (EQUAL, ELSEWHERE))
    }
    for storm in storms.values():
        storm.run(0 if options.quick else WARM)
    before = settled(field.hubs[HERE])
    bystander = field.at_hub(SMALL)
    for name in turns(list(samples), blocks):
        bystander.stream(options.seconds if name == ALONE else NEVER)
        if name in storms:
            storms[name].run(share)
        samples[name].append(operations(bystander.results() if name == ALONE else bystander.stop()))
    wrong = bystander.wrong(options.plant)
    field.end(bystander)
    after = settled(field.hubs[HERE], before)
    here = storms[BESIDE]
    rows: list[Row] = []
    for name, each in samples.items():
        facts: Row = {"line": "f", "place": place, "name": name, "size": SMALL.size, "wrong": 0}
        facts |= {"cycles": [statistics.median(one) for one in each], "p99": [percentile(one, 99) for one in each]}
        rows.append(facts)
    rows[1] |= {"before": before, "after": after, "counts": dict(here.counts), "errors": here.errors[:10]}
    rows[1]["wrong"] = wrong + here.wrong
    jobs = f"{sum(here.counts.values())} jobs, {here.counts['killed']} killed, {place}"
    promises = [_more(f"f: {jobs}, {what}", before, [after], what) for what in ("descriptors", "threads", "jobs")]
    failed = here.counts["errors"]
    promises.append(Promise(f"f: {jobs}, errors of others", str(failed), "", failed, failed, failed, 0, True, unit=""))
    value = after["pss"] / before["pss"]
    told = [f"{one['pss'] / MIB:.1f} MiB" for one in (after, before)]
    figures = (value, value, value, MEMORY_WITHIN, True)
    promises.append(Promise(f"f: {jobs}, PSS", told[0], f"{told[1]} before", *figures))
    promises.append(judged("f: a bystander's step, beside equal load", rows[1], rows[2], STEP_AT_MOST, at_most=True))
    yield Found(rows, promises)

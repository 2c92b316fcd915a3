"""Many jobs of C workers at once, half of them killed at random moments: their remains, and the steps of others."""

import os
import random
import signal
import statistics
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.common.judge import Promise
from bench.common.native import BUILD, compile_c, stale
from bench.service.ends import MEMORY_WITHIN, SMALL, grown, more, settled
from bench.service.field import ELSEWHERE, HERE, Field, beside, operations
from bench.service.options import Found, Options, judged, percentile, turns
from bench.service.work import NEVER
from hpcomm.bench.rows import Row

AT_ONCE = 8
WORKERS, STEPS = 2, 4  # of a job
KILLED = 0.5  # of the jobs
STEP_AT_MOST = 1.5  # times a bystander's step beside equal load elsewhere
SECONDS = 60.0  # for a job to end
STAGES = {  # of worker.c, and seconds within which a worker is killed there
    "connect": 0.06,
    "create": 0.03,
    "push": 0.001,
    "pull": 0.004,
    "close": 0.02,
}
TOLD = {-2, -5, -6}  # HPC_ERR_CONFIG, PEER and TIMEOUT: errors that a killed job's other worker may get
EQUAL_FEWER = 2  # times fewer jobs at the other hub, for shorter turns of the same load
WARM_FEWER = 10  # times fewer jobs come before the hub's memory is first measured


def program() -> Path:
    """Compiles the worker if it is older than its sources."""
    found = BUILD / "service_worker"
    if stale(found):
        compile_c(found, ["service/worker.c"])
    return found


@dataclass(frozen=True)
class Plan:
    """One job: how long its victim lives after the beginning of a stage. stage: "" if none is killed."""

    victim: int
    stage: str
    seconds: float


@dataclass
class Storm:
    """Jobs at one hub, AT_ONCE at a time.

    Attributes:
        counts: jobs by how they ended: done, killed, or an error that none should have.
        stages: killed jobs by the stage of the worker that was killed.
        errors: the first sentences of those errors.
        wrong: the number of wrong parameters in jobs that ended well.
    """

    place: Field
    hub: str
    plant: bool
    random: random.Random
    program: Path = field(default_factory=program)
    counts: Counter[str] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    wrong: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, jobs: int) -> None:
        plans = [self._plan() for _ in range(jobs)]
        cpus = self.place.worker_cpus or os.sched_getaffinity(0)
        # A process inherits the CPUs of the thread that starts it.
        with ThreadPoolExecutor(AT_ONCE, initializer=os.sched_setaffinity, initargs=(0, cpus)) as pool:
            list(pool.map(self._job, plans))

    def _plan(self) -> Plan:
        if self.random.random() >= KILLED:
            return Plan(0, "", 0.0)
        stage = self.random.choice(list(STAGES))
        return Plan(self.random.randrange(WORKERS), stage, self.random.uniform(0, STAGES[stage]))

    def _job(self, plan: Plan) -> None:
        workers = self._started(plan)
        try:
            ends = [_end(worker) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
        with self._lock:
            self.count(ends)

    def _started(self, plan: Plan) -> list["subprocess.Popen[str]"]:
        hub = self.place.hubs[self.hub]
        handle, _ = self.place.created(self.hub)
        env = {**os.environ, "HPCOMM_SERVICE": handle, "HPCOMM_SECRET_FILE": str(hub.token_file("light"))}
        common = [str(WORKERS), str(STEPS), str(int(self.plant))]
        started = []
        for rank in range(WORKERS):
            death = [plan.stage, f"{plan.seconds:.6f}"] if plan.stage and rank == plan.victim else []
            line = [str(self.program), str(rank), *common, *death]
            pipes: dict[str, Any] = {
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.STDOUT,
            }
            started.append(subprocess.Popen(line, env=env, text=True, **pipes))
        return started

    def count(self, ends: list["End"]) -> None:
        """Counts a job by the ends of its workers."""
        dead = [end for end in ends if end.status == -signal.SIGKILL]
        others = [end for end in ends if end.status != -signal.SIGKILL]
        self.stages.update(end.stage for end in dead)
        strange = [end.last for end in others if not (end.is_good or (dead and end.is_told))]
        if strange:
            self.counts["errors"] += 1
            self.errors.append(strange[0])
        elif dead:
            self.counts["killed"] += 1
        else:
            self.counts["done"] += 1
            self.wrong += sum(end.wrong for end in others)


@dataclass(frozen=True)
class End:
    """The end of a worker: its exit status, the last stage that it reached, and its last line."""

    status: int
    stage: str
    last: str

    @property
    def is_good(self) -> bool:
        return self.status == 0 and self.last.startswith("wrong ")

    @property
    def wrong(self) -> int:
        return int(self.last.split()[1])

    @property
    def is_told(self) -> bool:
        """Whether a call has failed with an error that tells of another worker's death."""
        return self.status == 1 and int(self.last.split()[0]) in TOLD


def _end(worker: "subprocess.Popen[str]") -> End:
    lines = worker.communicate(timeout=SECONDS)[0].splitlines()
    stages = [line for line in lines if line in STAGES]
    return End(worker.returncode, stages[-1] if stages else "start", lines[-1] if lines else "no word")


ALONE, BESIDE, EQUAL = "alone", "beside jobs at its hub", "beside equal jobs at another hub"


def killed_jobs(options: Options, place: Field) -> Iterator[Found]:
    """Jobs that come and go, many at once, half of them killed; and a bystander."""
    chance, name_of = random.Random(1), place.place
    blocks = min(options.cycles, options.jobs)
    share = -(-options.jobs // blocks)
    samples: dict[str, list[list[float]]] = {name: [] for name in (ALONE, BESIDE, EQUAL)}
    hubs = {BESIDE: HERE, EQUAL: ELSEWHERE}
    for hub in hubs.values():  # as later, so that the heap then has room for all this
        warm = place.at_hub(SMALL, hub=hub)
        with beside(warm):
            Storm(place, hub, False, chance).run(-(-options.jobs // WARM_FEWER))
        place.end(warm)
    storms = {name: Storm(place, hub, options.plant, chance) for name, hub in hubs.items()}
    before = settled(place.hubs[HERE])
    bystander = place.at_hub(SMALL)
    for i, name in enumerate(turns(list(samples), blocks)):
        bystander.stream(options.seconds if name == ALONE else NEVER)
        if name in storms:
            storms[name].run(share if name == BESIDE else -(-share // EQUAL_FEWER))
        samples[name].append(operations(bystander.results() if name == ALONE else bystander.stop()))
        options.tell(f"f, turn {i + 1} of {blocks * len(samples)}")
    wrong = bystander.wrong(options.plant)
    place.end(bystander)
    after = settled(place.hubs[HERE], before)
    here = storms[BESIDE]
    rows: list[Row] = []
    for name, each in samples.items():
        facts: Row = {"line": "f", "place": name_of, "name": name, "size": SMALL.size, "wrong": 0}
        facts |= {"cycles": [statistics.fmean(one) for one in each]}
        facts |= {f"p{percent}": [percentile(one, percent) for one in each] for percent in (50, 99)}
        rows.append(facts)
    told = {"counts": dict(here.counts), "stages": dict(here.stages), "errors": here.errors[:10]}
    rows[1] |= {"before": before, "after": after, **told, "wrong": wrong + here.wrong}
    jobs = f"f: {sum(here.counts.values())} jobs, {here.counts['killed']} killed, {name_of}"
    promises = [more(f"{jobs}, {what}", before, [after], what) for what in ("descriptors", "threads", "jobs", "books")]
    failed = here.counts["errors"]
    promises.append(Promise(f"{jobs}, errors of others", str(failed), "", failed, failed, failed, 0, True, unit=""))
    promises += [grown(jobs, what, before, [after]) for what in MEMORY_WITHIN]
    for what in ("cycles", "p50"):
        ours, equal = ({**row, "cycles": row[what]} for row in (rows[1], rows[2]))
        label = f"f: a bystander's step, {'mean' if what == 'cycles' else what}"
        promises.append(judged(label, ours, equal, STEP_AT_MOST, at_most=True))
    yield Found(rows, promises)

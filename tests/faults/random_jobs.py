"""Random jobs of which one rank is killed or stopped at a random moment, while the others are left to fail by
themselves: every other rank must be told in time who fell, and nobody else be named.

    python tests/faults/random_jobs.py --jobs 200 --seed 7           # prints a table; 0: no hang, nothing wrong twice
    python tests/faults/random_jobs.py --seed 7 --only 31            # job 31 of that run again
    python tests/faults/random_jobs.py --wide --jobs 200 --seed 7    # up to 32 ranks, of which two may fall

With --wide a rank may also abort or close its context, hierarchies are among the kinds, and the ranks of a job over
"mixed" are on two hosts: shm inside, tcp between them. These hosts are tests/cluster's, and the machine must be able to
make them. PYTHONPATH chooses the build of hpcomm.

A replay needs the run's --wide, --kinds, --transports, --ranks, --signals and so on too, where they were given.
Ranks are started as by hand, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. All are forked from this process,
which has imported what they need and has a single thread.
"""

import argparse
import json
import mmap
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy starts threads, which no fork would take along
sys.path.insert(0, str(Path(__file__).parents[1]))

import random_rank
from cluster.hosts import Cluster, Unavailable
from mpi import PATIENCE, free_port
from random_plan import KINDS, LEAVES, LOOK_AFTER, SIGNALS, SIZES, TIMEOUT, TRANSPORTS, WIDE, Job, plan
from random_verdict import HUNG, WRONG, Outcome, Verdict, follow, judge, table

TICK = 0.003  # seconds between two looks at the ranks
START = 60.0 * PATIENCE  # seconds until the first victim has fallen
SENT = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "abort": signal.SIGUSR2, "close": signal.SIGUSR2}
MOST = 5  # wrong jobs, or one in twenty, that may be accidents of a busy machine


def needed_after(timeout: float) -> float:
    """Seconds from the fall until each rank that needs the victim has failed."""
    return 2 * timeout + 2


def longest(timeout: float) -> float:
    """Seconds from the fall until every survivor has ended: after its error it closes the exchange and the context."""
    return (4 * timeout + 20.0) * PATIENCE


class Running:
    """A job under way."""

    def __init__(self, job: Job, bound: float, ports: set[int], hosts: Sequence[tuple[str, Path]]) -> None:
        self.job, self.started, self._bound, self._hosts = job, time.monotonic(), bound, hosts
        self.folder = Path(tempfile.mkdtemp(prefix="random-job-"))
        self.board = memoryview(mmap.mmap(-1, 8 * (job.size + random_rank.WORDS))).cast("Q")
        self.pids: dict[int, int] = {}  # of the ranks that have not ended
        self.statuses: dict[int, int] = {}
        self._due = [0.0] * len(job.falls)  # when each victim falls; 0: not known yet
        self._woken: dict[int, float] = {}  # when a stopped rank was told to go on
        if job.apart:
            (self.folder / "secret").touch(0o600)
            (self.folder / "secret").write_bytes(os.urandom(32))
        self._port = free_port()
        while self._port in ports:
            self._port = free_port()
        ports.add(self._port)

    def start(self) -> None:
        for rank in range(self.job.size):
            pid = os.fork()
            if pid == 0:
                random_rank.live(self.job, rank, self.board, self._port, self.folder, self._hosts)
            self.pids[rank] = pid

    @property
    def fell(self) -> dict[int, int]:
        """When each victim that has fallen fell, in nanoseconds of the monotonic clock."""
        first = self.job.size + random_rank.FELL
        return {fall.victim: self.board[first + i] for i, fall in enumerate(self.job.falls) if self.board[first + i]}

    def poll(self) -> Outcome | None:
        """Looks at the ranks once, and does what is due; the outcome when no survivor is left."""
        job, now = self.job, time.monotonic()
        self._reap()
        self._fell_victims(now)
        late = now > self.started + START
        if self.fell:
            since = now - min(self.fell.values()) / 1e9
            if since > needed_after(job.timeout):
                self.board[job.size + random_rank.END] = 1
            late = since > self._bound
        living = self._living()
        if not living and self._wake(now):
            living = self._living()
        if self._woken:
            late = now > max(self._woken.values()) + self._bound
        return self._end(living) if late or not living else None

    def _living(self) -> list[int]:
        """The ranks that have not ended, and must do so by themselves."""
        ends = [*self._woken, *(fall.victim for fall in self.job.falls if fall.signal in LEAVES)]
        return [rank for rank in self.pids if rank not in self.fell or rank in ends]

    def _wake(self, now: float) -> bool:
        """Resumes each stopped rank that is to go on when all others have ended."""
        for fall in self.job.falls:
            victim = fall.victim
            if fall.signal == "stop" and fall.resumes and victim in self.fell and victim in self.pids:
                os.kill(self.pids[victim], signal.SIGCONT)
                self._woken[victim] = now
        return bool(self._woken)

    def _reap(self) -> None:
        for rank, pid in list(self.pids.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self.statuses[rank] = os.waitstatus_to_exitcode(status)
                del self.pids[rank]

    def _fell_victims(self, now: float) -> None:
        made, fell = self.board[: self.job.size], self.fell
        for i, fall in enumerate(self.job.falls):
            if fall.moment == "itself" or fall.victim in fell or fall.victim not in self.pids:
                continue
            if not self._due[i]:
                reached = {
                    "started": True,
                    "looping": min(made) > 0,
                    "step": max(made) >= fall.step,
                    "fell": bool(fell),
                }
                self._due[i] = now + fall.after if reached[fall.moment] else 0.0
            if self._due[i] and now >= self._due[i]:
                os.kill(self.pids[fall.victim], SENT[fall.signal])
                self.board[self.job.size + random_rank.FELL + i] = time.monotonic_ns()

    def _end(self, hung: list[int]) -> Outcome:
        for rank in hung:
            os.kill(self.pids[rank], signal.SIGUSR1)  # writes down where its threads are
        if hung:
            time.sleep(0.5)
        self.kill()
        job, fell = self.job, self.fell
        asked = bool(self.board[job.size + random_rank.END])
        verdicts = []
        for rank in range(job.size):
            if rank in hung:
                verdicts.append(Verdict(rank, HUNG, "has not ended", None, self._saw(rank) or {}))
            elif rank not in fell:
                verdicts.append(judge(job, rank, self.statuses[rank], self._saw(rank), fell, asked=asked))
            elif self.statuses[rank] not in (0, -signal.SIGKILL):
                verdicts.append(Verdict(rank, WRONG, f"ended with status {self.statuses[rank]} after its fall"))
        return Outcome(job, len(fell), follow(job, fell, verdicts), hung, time.monotonic() - self.started)

    def _saw(self, rank: int) -> dict[str, object] | None:
        with suppress(FileNotFoundError, ValueError):
            return dict(json.loads((self.folder / f"saw.{rank}").read_text(encoding="utf-8")))
        return None

    def kill(self) -> None:
        """Ends every rank that is left."""
        for rank, pid in list(self.pids.items()):
            os.kill(pid, signal.SIGKILL)
            self.statuses[rank] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            del self.pids[rank]


def run(
    jobs: list[Job], at_once: int, bound: float, keep: Path | None, replay: str, hosts: Sequence[tuple[str, Path]]
) -> list[Outcome]:
    """All jobs, some side by side. What ranks of a bad one printed is put into keep. hosts: the address and the
    namespaces of two hosts, for jobs that are apart."""
    waiting, ports = deque(jobs), set[int]()
    running: list[Running] = []
    outcomes: list[Outcome] = []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(Running(waiting.popleft(), bound, ports, hosts))
                running[-1].start()
            for one in list(running):
                outcome = one.poll()
                if outcome is None:
                    continue
                running.remove(one)
                outcomes.append(outcome)
                if keep is not None and not outcome.good:
                    outcome.kept = str(keep / f"{outcome.job.seed}-{outcome.job.number}")
                    shutil.rmtree(outcome.kept, ignore_errors=True)
                    shutil.copytree(one.folder, outcome.kept)
                shutil.rmtree(one.folder)
                _tell(outcome, replay)
            time.sleep(TICK)
    finally:
        for one in running:
            one.kill()
            shutil.rmtree(one.folder)
    return outcomes


def _tell(outcome: Outcome, replay: str) -> None:
    if outcome.good:
        return
    job = outcome.job
    hung = f"HANG of ranks {outcome.hung}" if outcome.hung else "wrong"
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
    lines = [f"{hung} after {outcome.seconds:.1f} s, {load}: {job}", *outcome.told()]
    lines += [f"  again: {replay} --seed {job.seed} --only {job.number}"]
    lines += [f"  what its ranks printed: {outcome.kept}"] if outcome.kept else []
    print("\n".join(lines), flush=True)


def run_again(outcomes: list[Outcome], bound: float, replay: str, hosts: Sequence[tuple[str, Path]]) -> list[Outcome]:
    """Plays the few wrong jobs once more, one at a time; what is right then is told as FLAKY. A hang stays one."""
    wrong = [k for k, outcome in enumerate(outcomes) if not outcome.good]
    if len(wrong) > max(MOST, len(outcomes) // 20) or any(outcomes[k].hung for k in wrong):
        return outcomes
    again = run([outcomes[k].job for k in wrong], 1, bound, None, replay, hosts)
    for k, outcome in zip(wrong, again, strict=True):
        if outcome.good:
            print(f"FLAKY job {outcome.job.number} of seed {outcome.job.seed}: right when it was played again alone")
            outcomes[k] = outcome
    return outcomes


def _list(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200, help="how many (default: %(default)s)")
    parser.add_argument("--seed", default="1", help="any word: which jobs they are (default: %(default)s)")
    parser.add_argument("--only", type=int, metavar="K", help="job K of the seed alone")
    parser.add_argument("--kinds", default=",".join(KINDS), help="default: %(default)s")
    parser.add_argument("--transports", default=",".join(TRANSPORTS), help="default: %(default)s")
    parser.add_argument("--ranks", default=",".join(map(str, SIZES)), help="default: %(default)s")
    parser.add_argument("--signals", default=",".join(SIGNALS), help="default: %(default)s")
    parser.add_argument("--victims", type=int, default=1, help="the most ranks of a job that fall: 1 or 2 (default: 1)")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds of each call (default: %(default)s)")
    parser.add_argument("--look-after", type=float, default=LOOK_AFTER, help="seconds (default: %(default)s)")
    parser.add_argument("--wide", action="store_true", help=f"other defaults: {WIDE}")
    parser.add_argument("-j", type=int, default=4, dest="at_once", help="jobs side by side (default: %(default)s)")
    parser.add_argument(
        "--bound",
        type=float,
        metavar="SECONDS",
        help="from the fall until every other rank has ended, else it hangs (default: four times --timeout, and 20)",
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="file for every job and all that its ranks saw")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folder for what the ranks of bad jobs printed")
    if parser.parse_known_args()[0].wide:
        parser.set_defaults(**WIDE)
    given = parser.parse_args()
    kinds, transports, signals = _list(given.kinds), _list(given.transports), _list(given.signals)
    if unknown := set(kinds) - set(_list(WIDE["kinds"])):
        parser.error(f"no such kinds: {', '.join(sorted(unknown))}")
    numbers = range(given.jobs) if given.only is None else [given.only]
    sizes = [int(n) for n in _list(given.ranks)]
    more = (given.victims, given.timeout, given.look_after)
    jobs = [plan(given.seed, k, kinds, transports, sizes, signals, *more) for k in numbers]
    if given.only is not None:
        print(jobs[0], flush=True)
    names = ("kinds", "transports", "ranks", "signals", "victims", "timeout", "look_after")
    changed = [" --wide"] * given.wide
    told = {name: getattr(given, name) for name in names if getattr(given, name) != parser.get_default(name)}
    changed += [f" --{name.replace('_', '-')} {value}" for name, value in told.items()]
    start = time.monotonic()
    replay = f"{sys.argv[0]}{''.join(changed)}"
    with ExitStack() as stack:
        hosts: list[tuple[str, Path]] = []
        if any(job.apart for job in jobs):
            try:
                cluster = stack.enter_context(Cluster(2, rate=None))
            except Unavailable as why:
                parser.error(f"transport mixed needs two hosts: {why}")
            hosts = [(cluster.address(host), cluster.namespaces(host)) for host in cluster.hosts]
        most = longest(given.timeout) if given.bound is None else given.bound
        outcomes = run(jobs, given.at_once, most, given.keep, replay, hosts)
        if given.only is None:
            outcomes = run_again(outcomes, most, replay, hosts)
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1), encoding="utf-8")
    print(table(outcomes))
    good = sum(outcome.good for outcome in outcomes)
    print(f"seed {given.seed}: {good} of {len(jobs)} jobs all right, in {time.monotonic() - start:.0f} s")
    return 0 if good == len(jobs) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Judges a rewrite by bits: random jobs run through two builds of hpcomm, and their facts must be equal.

    python tests/same_bits.py --before ../before --after . --jobs 200 --seed 1

Facts are digests of parameters after each step, of optimizer states, means and counts, and the first sentence of each
error with the rank that raised it. A job is drawn from a seed (same_bits_jobs.py) and run by a worker of each build
(same_bits_run.py), in a process of its own. Facts that depend on the clock are left out: kind_of says which stay.
A job that differs is run again by the build before, and if it does not repeat there it is listed apart.
"""

import argparse
import collections
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from same_bits_jobs import FAMILIES, Job, consistencies, draw

HERE = Path(__file__).parent
SECONDS = 60.0  # for a job
MORE = 20  # of these, where the build after does not repeat
AGAIN = 5  # runs of the build before, to tell whether a job that differs repeats there
MEMBERS = list(FAMILIES)


class Worker:
    """A process of one build, which runs one job after another."""

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout
        env = {**os.environ, "PYTHONPATH": str(checkout), "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        for name in [name for name in env if name.startswith("HPCOMM_")]:
            del env[name]
        command = [sys.executable, "-X", "faulthandler", str(HERE / "same_bits_run.py")]
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        found = Path(self._answer()["hpcomm"])
        if not found.is_relative_to(checkout):
            raise SystemExit(f"same_bits: a worker for {checkout} has imported {found}")

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"same_bits: the worker of {self.checkout} has ended: is hpcomm built there?")
        found: dict[str, Any] = json.loads(line)
        return found

    def run(self, job: Job, seconds: float = SECONDS) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"job": job, "seconds": seconds}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(SECONDS)


# ---- what is compared ------------------------------------------------------------------------------------------------


def kind_of(job: Job) -> str:
    """What repeats: all bits, or only sums at the end, or only whether and how the job is refused."""
    if job["drive"] == "turns" and job["loop_seed"] == 0 and "None" not in _graces(job):
        return "bits, in turns"
    if in_order(job):
        return "bits until a rank goes" if _is_cut(job) else "bits, in any order"
    return "sums" if is_exact(job) else "errors"


def _graces(job: Job) -> str:
    """Graces, of which None is learned from the clock."""
    return str([told[2] for told in consistencies(job) if told[0] == "quorum"])


def in_order(job: Job) -> bool:
    """Whether every fold takes the same updates in the same order, whenever they come."""
    for told in consistencies(job):
        if told[0] in ("ASYNC", "BARRIER") or (told[0] == "SSP" and told[1] > 0):
            return False
        if told[0] == "quorum" and (told[2] != "inf" or told[3]):  # on a graph ranks skip versions
            return False
    return True


def _is_cut(job: Job) -> bool:
    return any(op[0] in ("die", "close") for op in job["ops"])


def is_exact(job: Job) -> bool:
    """Whether the last parameters are the sum of all updates, which is exact in any order."""
    text = str(job["consistency"])
    rule = job["rule"]
    plain = "by key" not in rule and rule[0] == "SGD" and set(rule[1]) == {"lr"} and rule[1]["lr"] in (0.5, 1.0)
    names = {op[0] for op in job["ops"]}
    graph = "graph" in str(job["topology"])
    return (
        bool(job["whole"] and plain and job["reduce"] == "sum")
        and not graph
        and "quorum" not in text
        and not (names & {"die", "close", "set", "load"})
        and "codec" not in job
        and "codec_out" not in job
        and not job.get("check_finite")
    )


CLOCKED = ("counts",)  # names of facts that depend on the clock where ranks are threads or processes


def compared(job: Job, facts: dict[str, Any]) -> dict[str, Any]:
    """The facts that repeat."""
    kind = kind_of(job)
    if kind == "bits, in turns":
        cut = meeting_of(job)
        return facts if cut is None else {name: value for name, value in facts.items() if is_before(name, cut)}
    if kind == "bits, in any order":
        return {name: value for name, value in facts.items() if not name.endswith(CLOCKED)}
    kept = {name: value for name, value in facts.items() if name.endswith((" made", "crashed"))}
    if kind == "bits until a rank goes":
        cut = next(i for i, op in enumerate(job["ops"]) if op[0] in ("die", "close"))
        return kept | {name: value for name, value in facts.items() if is_before(name, cut)}
    if kind == "sums":
        kept |= {name: value for name, value in facts.items() if " final " in name or " error" in name}
    return kept


def meeting_of(job: Job) -> int | None:
    """The op after which facts depend on how often ranks look while all call together; None: they never do."""
    ops = [op[0] for op in job["ops"]]
    text = str(job["consistency"]) + str(job["topology"])
    told = ("recover", "save", "load", "barrier") if "SSP" in text and "apply_at" in text else ("recover",)
    return None if in_order(job) else next((i for i, name in enumerate(ops) if name in told), None)


def is_before(name: str, op: int) -> bool:
    """Whether a fact is of an op before that one, or of no op: "r1 03 step k0" is of op 3."""
    if name.endswith((" made", "crashed")):
        return True
    number = name.split(" ")[1]
    return number.isdigit() and int(number) < op


def differences(job: Job, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    one, other = compared(job, before["facts"]), compared(job, after["facts"])
    names = [*one, *(name for name in other if name not in one)]
    told = []
    for name in names:
        a, b = one.get(name, "nothing"), other.get(name, "nothing")
        if a != b:
            told.append(f"{name}: {_short(a, b)}")
    return told


def _short(a: Any, b: Any) -> str:
    """Both values; of dicts the entries that differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        found = {name: (a.get(name), b.get(name)) for name in {**a, **b} if a.get(name) != b.get(name)}
        return ", ".join(f"{name} {x} before, {y} after" for name, (x, y) in found.items())
    return f"{a} before, {b} after"


# ---- the run ---------------------------------------------------------------------------------------------------------


class Judge:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.jobs: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.kinds: collections.Counter[str] = collections.Counter()
        self.members: collections.Counter[str] = collections.Counter()
        self.families: collections.Counter[str] = collections.Counter()
        self.different: list[dict[str, Any]] = []
        self.more: list[dict[str, Any]] = []
        self.unstable: list[dict[str, Any]] = []
        self.slowest: list[tuple[float, int]] = []

    def run(self) -> None:
        first = self.options.seed
        for seed in range(first, first + self.options.jobs):
            self.jobs.put(seed)
        threads = [threading.Thread(target=self._pair) for _ in range(self.options.pairs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _pair(self) -> None:
        """A worker of each build; they run one job at the same time."""
        workers = [Worker(self.options.before), Worker(self.options.after)]
        while True:
            try:
                job = draw(self.jobs.get_nowait())
            except queue.Empty:
                break
            found: list[Any] = [None, None]

            def ask(i: int, job: Job = job, found: list[Any] = found) -> None:
                found[i] = workers[i].run(job)

            other = threading.Thread(target=ask, args=(1,))
            other.start()
            ask(0)
            other.join()
            again = self._again(job, found[0], found[1], workers)
            with self.lock:
                self._judge(job, found[0], found[1], again)
        for worker in workers:
            worker.close()

    def _again(self, job: Job, before: dict[str, Any], after: dict[str, Any], workers: list[Worker]) -> list[Any]:
        """Further runs of a job that differs, by the build before: more of them where the build after wavers."""
        if not differences(job, before, after):
            return []
        again = [workers[0].run(job) for _ in range(AGAIN)]
        if any(differences(job, after, workers[1].run(job)) for _ in range(AGAIN)):
            again += [workers[0].run(job) for _ in range(MORE)]
        return again

    def _judge(self, job: Job, before: dict[str, Any], after: dict[str, Any], again: list[dict[str, Any]]) -> None:
        """again: further runs of the build before, of a job that differs."""
        made = [name for name in before["facts"] if name.endswith(" made")]
        self.kinds["refused" if made else kind_of(job)] += 1
        self.families[job["family"]] += 1
        self.members.update(set(before["used"]))
        self.slowest = sorted([*self.slowest, (max(before["took"], after["took"]), job["seed"])])[-5:]
        wrong = differences(job, before, after)
        if not wrong:
            return
        told = {"seed": job["seed"], "job": job, "kind": kind_of(job), "differs": wrong}
        if any(differences(job, before, one) for one in again):
            self.unstable.append(told)
            return
        if self.options.more_runs and made and not any(name.endswith(" made") for name in after["facts"]):
            self.more.append({**told, "refused": before["facts"][made[0]]})
            return
        self.different.append(told)
        if not self.options.json:
            print(shown(told), flush=True)

    def document(self) -> dict[str, Any]:
        return {
            "jobs": self.options.jobs,
            "seed": self.options.seed,
            "kinds": dict(self.kinds),
            "members": {name: self.members[name] for name in [*MEMBERS, "refused", "none"]},
            "different": self.different,
            "more": self.more,
            "unstable": self.unstable,
            "slowest": self.slowest,
        }


def shown(told: dict[str, Any]) -> str:
    lines = told["differs"][:8]
    rest = len(told["differs"]) - len(lines)
    return "\n".join(
        [
            f"seed {told['seed']} ({told['kind']}) differs; again: --job {told['seed']}",
            f"  {json.dumps(told['job'])}",
            *(f"  {line}" for line in lines),
            *([f"  and {rest} more"] if rest else []),
        ]
    )


def table(document: dict[str, Any]) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(document["kinds"].items()))
    lines = [f"{document['jobs']} jobs from seed {document['seed']}: {kinds}"]
    lines.append("members of the array: " + ", ".join(f"{name} {n}" for name, n in document["members"].items()))
    for sentence, count in collections.Counter(one["refused"] for one in document["more"]).most_common():
        lines.append(f"runs now, {count} times refused before: {sentence}")
    if document["unstable"]:
        seeds = ", ".join(str(one["seed"]) for one in document["unstable"])
        lines.append(f"{len(document['unstable'])} jobs do not repeat with the build before: {seeds}")
    seeds = ", ".join(str(one["seed"]) for one in document["different"])
    lines.append(f"{len(document['different'])} jobs differ" + (f": {seeds}" if seeds else ""))
    return "\n".join(lines)


def one_job(options: argparse.Namespace) -> int:
    """Runs one job through both builds, again and again if asked, and shows all of it."""
    job = draw(options.job)
    print(json.dumps(job, indent=1))
    workers = [Worker(options.before), Worker(options.after)]
    wrong: list[str] = []
    for _ in range(options.times):
        before, after = (worker.run(job) for worker in workers)
        wrong += differences(job, before, after)
    kept = compared(job, before["facts"])
    for name, value in before["facts"].items():
        mark = " " if name in kept else "-"
        other = after["facts"].get(name, "nothing")
        print(f"{mark} {name}: {value}" + ("" if other == value else f"\n    after: {other}"))
    for name in after["facts"]:
        if name not in before["facts"]:
            print(f"  {name}: nothing\n    after: {after['facts'][name]}")
    print(f"members: {', '.join(before['used'])}; {before['took']:.2f} s and {after['took']:.2f} s; {kind_of(job)}")
    for line in wrong:
        print(f"differs: {line}")
    for worker in workers:
        worker.close()
    return 1 if wrong else 0


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Random jobs through two builds of hpcomm: are the bits the same?")
    parser.add_argument("--before", type=Path, required=True, help="a checkout, built in place")
    parser.add_argument("--after", type=Path, default=HERE.parent, help="another one; by default this one")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the first job; the others follow")
    parser.add_argument("--job", type=int, help="the seed of one job, to run alone and to show")
    parser.add_argument("--times", type=int, default=1, help="how often --job is run")
    parser.add_argument("--pairs", type=int, default=1, help="jobs that run at the same time")
    parser.add_argument("--more-runs", action="store_true", help="a job that was refused and now runs is no difference")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    options.before, options.after = options.before.resolve(), options.after.resolve()
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parsed(arguments)
    if options.job is not None:
        return one_job(options)
    judge = Judge(options)
    judge.run()
    document = judge.document()
    print(json.dumps(document, indent=1) if options.json else table(document))
    return 1 if document["different"] else 0


if __name__ == "__main__":
    sys.exit(main())

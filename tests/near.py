"""Runs the tests that cover the files changed since a commit, in a minute: make near.

python tests/near.py BUILD [--since COMMIT] [--seconds S]

.ci/near.json says which tests these are (tests/covered.py). A header counts for all files that include it.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from functools import cache
from itertools import zip_longest
from pathlib import Path

import chosen
from covered import MAP, ROOT, Case, Map, is_test

START = 5.0  # seconds until pytest runs its first test
PATIENCE = (
    3  # times as long as they may take the tests of one language have: with a fault, many end by their time limits
)
CODE = (".c", ".h", ".cpp", ".hpp", ".py")


# ---- choosing ------------------------------------------------------------------------------------------------------


def changed_since(since: str, root: Path) -> list[str]:
    """Files that differ from the commit, those that git does not know yet too."""
    git = ["git", "-C", str(root)]
    lines = []
    for command in (["diff", "--name-only", since, "--"], ["ls-files", "--others", "--exclude-standard"]):
        lines += subprocess.run([*git, *command], capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted(set(lines))


def base(root: Path) -> str:
    """The commit at which this branch left main, else HEAD."""
    for main in ("origin/main", "main"):
        command = ["git", "-C", str(root), "merge-base", "HEAD", main]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout.strip()
    return "HEAD"


@cache
def includers(root: Path) -> dict[str, set[str]]:
    """By each file of C the files that include it."""
    found = defaultdict(set)
    for path in (each for folder in ("csrc", "tests", "hpcomm") for each in (root / folder).rglob("*")):
        if path.suffix not in CODE or path.suffix == ".py":
            continue
        for name in re.findall(r'^\s*#\s*include\s*["<]([^">]+)', path.read_text(encoding="utf-8"), re.MULTILINE):
            for folder in (path.parent, root / "csrc", root / "csrc/include", root / "tests/c"):
                if (folder / name).is_file():
                    found[os.path.relpath(folder / name, root)].add(str(path.relative_to(root)))
                    break
    return found


@cache
def importers(root: Path) -> dict[str, set[str]]:
    """By each module, and each extension in C, the files that import it by its own name."""
    found = defaultdict(set)
    for path in (each for folder in ("hpcomm", "bench", "examples", "tests") for each in (root / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for dots, module, names in re.findall(r"^\s*from (\.*)([\w.]*) import ([^\n(]*)", text, re.MULTILINE):
            folder = path.parents[len(dots) - 1] if dots else root
            target = folder / module.replace(".", "/")
            inside = [target / name for name in ("__init__", *re.findall(r"\w+", names))]
            for each in (target, *inside):
                for file in (Path(f"{each}.py"), *each.parent.glob(f"{each.name}*.c")):  # C: _fast.c, _fast_calls.c
                    if file.is_file():
                        found[str(file.relative_to(root))].add(str(path.relative_to(root)))
    return found


def closure(path: str, users: Mapping[str, set[str]]) -> set[str]:
    """The file, those that use it, those that use these, ..."""
    found, new = set[str](), {path}
    while new:
        found |= new
        new = {user for file in new for user in users.get(file, ())} - found
    return found


def stand_ins(path: str, covered: set[str], root: Path) -> set[str]:
    """The files whose tests are those of a changed file: itself; of a header, those that include it; of a module that
    no test covers, those that import it: it may have no functions."""
    if path.endswith((".h", ".hpp")):
        return closure(path, includers(root))
    return {path} if path in covered else {path, *importers(root).get(path, ())}


def estimate(cases: Iterable[Case], shared: Mapping[str, Case], cores: int) -> float:
    """Seconds that these tests take side by side: C's, then Python's."""
    seconds = 0.0
    for is_python, lanes in ((False, 3 * cores), (True, cores + 1)):
        mine = [case for case in cases if case.is_python == is_python]
        alone: dict[str, float] = defaultdict(
            float
        )  # by what one worker runs: a test, a fixture with its tests, a group
        added: set[str] = set()
        wall = processor = 0.0
        for case in mine:
            runs = [case, *(shared[name] for name in case.needs if name in shared and name not in added)]
            added.update(case.needs)
            took = sum(each.wall for each in runs)
            alone[case.needs[-1] if case.needs else case.name] += took
            wall, processor = wall + took, processor + sum(each.processor for each in runs)
        if mine:
            seconds += max(wall / lanes, processor / cores, *alone.values()) + (START if is_python else 0.0)
    return seconds


def covered_by(case: Case, of: Map) -> frozenset[str]:
    """Its files, and those of the fixtures that it needs."""
    return case.files.union(*(of.shared[name].files for name in case.needs if name in of.shared))


def judges(path: str, root: Path) -> tuple[str, ...]:
    """Patterns of the test files whose subject has the file, by chosen.py."""
    subjects = [each for each in chosen.SUBJECTS.values() if root / path in chosen.files(root, each.watched)]
    return tuple(pattern for subject in subjects for pattern in subject.tests)


def choose(
    changed: Iterable[str], of: Map, seconds: float, cores: int, root: Path = ROOT
) -> tuple[list[Case], list[Case], list[str]]:
    """The tests to run, those for which there is no time, and the changed files that no test covers.

    Tests of a changed test file all run. Each other changed file in turn gives its next program of C and its next test
    of Python. Those come first of whose files the largest part has changed, and which are quick."""
    changed = list(changed)
    covers = {name: covered_by(case, of) for name, case in of.cases.items()}
    known = frozenset().union(*covers.values())
    whole = [path for path in changed if is_test(path)]
    picked = [case for case in of.cases.values() if case.file in whole]
    tellers: dict[str, list[Case]] = {}  # by changed file
    stands: dict[str, set[str]] = {}
    for path in changed:
        if path not in whole:
            stands[path] = stand_ins(path, set(known), root)
            patterns = judges(path, root)
            tellers[path] = [
                case
                for name, case in of.cases.items()
                if covers[name] & stands[path]
                or case.file in stands[path]
                or any(fnmatch(case.file, pattern) for pattern in patterns)
            ]
    every = set().union(*stands.values())

    def order(case: Case) -> tuple[float, str]:
        files, wall = (
            covers[case.name],
            case.wall + sum(of.shared[need].wall for need in case.needs if need in of.shared),
        )
        return -len(files & every) / max(1, len(files)) / (1 + wall), case.name

    queues = [
        sorted((case for case in cases if case.is_python == is_python), key=order)
        for cases in tellers.values()
        for is_python in (False, True)
    ]
    left_out: list[Case] = []
    seen = {case.name for case in picked}
    for case in (case for row in zip_longest(*queues) for case in row if case is not None):
        if case.name not in seen:
            seen.add(case.name)
            fits = estimate([*picked, case], of.shared, cores) <= seconds
            (picked if fits else left_out).append(case)
    bare = [path for path, cases in tellers.items() if not cases and path.endswith(CODE)]
    return picked, left_out, bare


# ---- running -------------------------------------------------------------------------------------------------------


def is_there(case: Case, root: Path) -> bool:
    """Whether the test is still there: the map may be older."""
    path = root / case.file
    if case.is_python:
        function = case.name.rpartition("::")[2]
        return path.exists() and re.search(rf"\bdef {function}\(", path.read_text(encoding="utf-8")) is not None
    return path.exists() or case.name.startswith("fuzz_")


def by_file(programs: Iterable[str], tests: Iterable[str]) -> dict[str, list[str]]:
    found = {"C": list(programs)}
    for test in tests:
        file, _, name = test.partition("::")
        found.setdefault(file, []).append(name or "all")
    return {file: names for file, names in found.items() if names}


def bounded(command: list[str], env: dict[str, str], seconds: float) -> int:
    """The exit status of a command; 1 where it takes longer, and is ended with all that it has started."""
    with subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            print(f"\nended after {seconds:.0f} s: some tests hang", flush=True)
            return 1
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGINT)
            raise


def run(build: str, since: str, seconds: float, cores: int) -> int:
    try:
        of = Map.read((ROOT / MAP).read_text(encoding="utf-8"))
    except FileNotFoundError:
        print(f"there is no {MAP}: make map writes it", file=sys.stderr)
        return 1
    since = since or base(ROOT)
    changed = changed_since(since, ROOT)
    of = Map({name: case for name, case in of.cases.items() if is_there(case, ROOT)}, of.shared)
    picked, left_out, bare = choose(changed, of, seconds, cores)
    whole = [path for path in changed if is_test(path) and (ROOT / path).exists()]
    programs = sorted(
        {case.name for case in picked if not case.is_python} | {Path(p).stem for p in whole if p.endswith(".c")}
    )
    tests = sorted(
        {p for p in whole if p.endswith(".py")}
        | {case.name for case in picked if case.is_python and case.file not in whole}
    )
    print(
        f"{len(changed)} files changed since {since[:8]}: {len(programs)} programs of C, {len(tests)} tests of Python, "
        f"{estimate(picked, of.shared, cores):.0f} s by {MAP}"
    )
    for file, names in by_file(programs, tests).items():
        print(f"  {file}: {' '.join(names)}")
    if left_out:
        first = ", ".join(case.name for case in left_out[:5])
        print(f"{len(left_out)} more cover these files and have no time: {first}{', ...' if len(left_out) > 5 else ''}")
    for path in bare:
        print(f"no test of the map covers {path}")
    sys.stdout.flush()
    status, ran, began = 0, [], time.monotonic()
    limit = PATIENCE * seconds
    command = [sys.executable, str(ROOT / "tests/again.py")]
    if programs:
        ran.append("near-c")
        options = [build, f"-j{3 * cores}", "-R", f"^({'|'.join(programs)})$"]
        status |= bounded([*command, "ctest", "near-c", *options], dict(os.environ), limit)
    if tests:
        ran.append("near-python")
        env = {**os.environ, chosen.BY_NAME: "yes"}
        options = ["-q", "-n", str(min(cores + 1, 8, len(tests))), *tests]
        status |= bounded([*command, "pytest", "near-python", *options], env, limit)
    if ran:
        subprocess.call([*command, "told", *ran], cwd=ROOT)
        print(f"the tests took {time.monotonic() - began:.0f} s")
    return 1 if status else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the tests that cover what has changed.")
    parser.add_argument("build", help="the folder of CMake's build")
    parser.add_argument("--since", default="", help="a commit (the one at which this branch left main)")
    parser.add_argument("--seconds", type=float, default=60, help="the time that the tests may take (60)")
    given = parser.parse_args()
    return run(given.build, given.since, given.seconds, len(os.sched_getaffinity(0)))


if __name__ == "__main__":
    sys.exit(main())

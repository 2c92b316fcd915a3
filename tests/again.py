"""Runs tests, and those that fail once more, alone, after all others: python tests/again.py ctest|pytest NAME OPTION...

again.py ctest NAME FOLDER [OPTION...]    ctest in the build FOLDER
again.py pytest NAME [OPTION...]          pytest
again.py told NAME...                     the flaky tests of these runs, their slowest cases, and their processor time

A test that passes the second time is flaky: the run is green and ends with a line "FLAKY test log", and log keeps what
the first run said. Some failures are red at once and no second run excuses them: a sanitizer's report, wrong bits, a
crash, a hang, something left behind. The C tests say so themselves (RED in tests/c/check.h). A failure of pytest is
judged by its exception and by what the test printed, not by the source that the traceback quotes. More than a few
failures are no accident, and are not run again either.

Tests run with SIGINT at its default, whoever started this: a shell ignores SIGINT in what it starts in the background,
and every child would inherit that.

Sets HPC_TEST_SEED, where it is not set, to a number that the commit gives: every commit sees another order of events,
and the same one gives the same again. build/again/NAME has the first run's log, its JUnit file and costs.json.
"""

import importlib.util
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build/again"
KEPT = ROOT / "build/flaky"
MOST = 5  # failures that may be accidents

RED = {
    "red": r"^(?:E +|\W*)RED: (.*)",
    "a sanitizer's report": r"\b(?:ERROR|WARNING): \w+Sanitizer|: runtime error: ",
    "a hang": r"took more than \d|timed out after \d|\ba rank hangs\b|\bhang: |^\W*Timeout >",
    "wrong bits": r"\bMismatched elements: |\bArrays are not equal\b|\bwrong bits\b",
    "a crash": r"Fatal Python error: |[Ss]egmentation fault|\bSIG(?:SEGV|ABRT|BUS|FPE|ILL)\b",
    "something left behind": r"\bleft behind\b",
}


def why_red(said: str) -> str:
    """Why a failure with this text is red at once; empty if it may be an accident."""
    for why, pattern in RED.items():
        if found := re.search(pattern, said, re.MULTILINE):
            return found[1] if found.groups() else why
    return ""


def exception_of(text: str) -> str:
    """The lines of a failure's text that pytest marks as the exception's; the whole text where it marks none."""
    marked = [line for line in text.splitlines() if re.match(r"E\b", line)]
    return "\n".join(marked) if marked else text


def seed(environ: Mapping[str, str] = os.environ, root: Path = ROOT) -> str:
    """The number that HPC_TEST_SEED has, else the commit's, else 1."""
    if given := environ.get("HPC_TEST_SEED"):
        return given
    with suppress(OSError, subprocess.CalledProcessError):
        command = ["git", "-C", str(root), "rev-parse", "HEAD"]
        head = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return str(int(head[:8], 16) or 1)
    return "1"


@dataclass(frozen=True)
class Failure:
    """A test that failed, what it said, and why it is red at once."""

    name: str
    said: str
    red: str


def keep(name: str, said: str) -> Path:
    """Writes the log of a test that is run again, and says where."""
    KEPT.mkdir(parents=True, exist_ok=True)
    path = KEPT / f"{re.sub(r'[^A-Za-z0-9.-]+', '_', name)}-{time.strftime('%m%d-%H%M%S')}.log"
    path.write_text(said, encoding="utf-8")
    return path


def tee(command: Sequence[str], log: Path) -> int:
    """Runs a command that prints here and into a file; its exit status."""
    with log.open("wb") as file, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
        assert running.stdout is not None
        fd = running.stdout.fileno()
        while chunk := os.read(fd, 1 << 16):  # as it comes: pytest's dots are no lines
            for to in (sys.stdout.buffer, file):
                to.write(chunk)
                to.flush()
        return running.wait()


def of_ctest(junit: Path, failed: Path) -> list[Failure]:
    """What ctest says of each test that failed. One that could not run, or that nothing is known of, is red."""
    known = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        failure, name = case.find("failure"), case.get("name", "")
        if case.get("status") == "fail":
            how = "" if failure is None else failure.get("message", "")
            said = case.findtext("system-out") or ""
            ended = {"Failed": "", "Timeout": "a hang"}.get(how, f"a crash ({how})")
            known[name] = Failure(name, said, ended or why_red(said))
    names = [line.partition(":")[2] for line in failed.read_text(encoding="utf-8").splitlines()]
    return [known.get(name, Failure(name, "", "it did not run")) for name in names]


def of_pytest(junit: Path) -> list[Failure]:
    """What pytest says of each test that failed, or whose set-up or end did."""
    found = []
    for case in ElementTree.parse(junit).iter("testcase"):
        wrong = [*case.findall("failure"), *case.findall("error")]
        if wrong:
            texts = [each.text or each.get("message") or "" for each in wrong]
            printed = [case.findtext(tag) or "" for tag in ("system-out", "system-err")]
            red = why_red("\n".join([*map(exception_of, texts), *printed]))
            said = "\n".join(part for part in (*texts, *printed) if part)
            found.append(Failure(f"{case.get('classname', '')}::{case.get('name', '')}", said, red))
    return found


def once_more(failures: Sequence[Failure], status: int, second: Callable[[], int]) -> tuple[int, list[str]]:
    """The run's exit status and its last lines, given what failed first and how to run that again."""
    red = [f"RED {each.name}: {each.red}" for each in failures if each.red]
    if red or not failures:
        return status, red
    if len(failures) > MOST:
        return status, [f"{len(failures)} tests failed: too many for accidents"]
    print(f"\n--- once more, alone: {', '.join(each.name for each in failures)}", flush=True)
    kept = {each.name: keep(each.name, each.said) for each in failures}
    if again := second():
        return again, [f"FAILED twice; the first log: {path}" for path in kept.values()]
    return 0, [f"FLAKY {name} {path}" for name, path in kept.items()]


# ---- what tests cost -----------------------------------------------------------------------------------------------

COSTS = "COSTS_OF_TESTS"  # the file to which the workers of pytest add a line a case
CASE = re.compile(r"^(\S+) +(\S+) +(\d+) ms +(\d+) ms CPU  ", re.MULTILINE)  # of tests/c/ranks.c
SLOWEST = 10


@dataclass(frozen=True)
class Cost:
    """Seconds that a case took, and seconds of processors, its children's among them. file: its file or program."""

    file: str
    case: str
    seconds: float
    processor: float


def processor_seconds() -> float:
    """Of all children that have ended, and of their children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def costs_of_ctest(junit: Path) -> list[Cost]:
    """The cases of the programs that have ranks; of every other program what it took as a whole."""
    found = []
    for test in ElementTree.parse(junit).iter("testcase"):
        file, took = f"tests/c/{test.get('name', '')}", float(test.get("time") or 0)
        cases = CASE.findall(test.findtext("system-out") or "")
        found += [Cost(file, f"{case} {mode}", int(ms) / 1e3, int(cpu) / 1e3) for case, mode, ms, cpu in cases]
        if not cases:
            found.append(Cost(file, "", took, 0.0))
    return found


def costs_of_pytest(lines: Path) -> list[Cost]:
    if not lines.exists():
        return []
    return [Cost(*json.loads(line)) for line in lines.read_text(encoding="utf-8").splitlines()]


def write_costs(here: Path, cases: Sequence[Cost], processor: float) -> None:
    """processor: of all of the run, which is more than its cases took: imports, collecting, programs without cases."""
    document = {"processor": processor, "cases": [asdict(case) for case in cases]}
    (here / "costs.json").write_text(json.dumps(document), encoding="utf-8")


def told(*names: str, root: Path = FOLDER) -> int:
    """Prints what was flaky in these runs, and what their tests cost."""
    cases: list[Cost] = []
    folders: dict[str, float] = defaultdict(float)
    files: dict[str, float] = defaultdict(float)
    for name in names:
        here = root / name
        if (here / "costs.json").exists():
            document = json.loads((here / "costs.json").read_text(encoding="utf-8"))
            mine = [Cost(**case) for case in document["cases"]]
            for case in mine:
                folders[str(Path(case.file).parent)] += case.processor
                files[case.file] += case.processor
            in_cases = sum(case.processor for case in mine)
            folders[f"{name}, beside its cases"] = max(0.0, document["processor"] - in_cases)
            cases += mine
    if cases:
        print(f"\n--- the {SLOWEST} slowest cases: seconds, seconds of processors")
        for case in sorted(cases, key=lambda case: -case.seconds)[:SLOWEST]:
            print(f"{case.seconds:8.1f} {case.processor:8.1f}  {case.file} {case.case}".rstrip())
        print("--- seconds of processors, by folder, and the files that take most")
        for table in (folders, files):
            for what, seconds in sorted(table.items(), key=lambda row: -row[1])[:SLOWEST]:
                print(f"{seconds:8.1f}  {what}")
        print(f"{sum(folders.values()):8.1f}  together", flush=True)
    for name in names:
        flaky = root / name / "flaky"
        print(flaky.read_text(encoding="utf-8") if flaky.exists() else "", end="", flush=True)
    return 0


# ---- the runs ------------------------------------------------------------------------------------------------------


def ctest(name: str, folder: str, *options: str) -> int:
    here = FOLDER / name
    command = ["ctest", "--test-dir", folder, "--output-on-failure"]
    junit = here / "first.xml"
    whole = ["--test-output-size-passed", str(1 << 20), "--output-junit", str(junit)]
    status = tee([*command, *options, *whole], here / "first.log")
    if junit.exists():
        write_costs(here, costs_of_ctest(junit), processor_seconds())
    failed = Path(folder, "Testing/Temporary/LastTestsFailed.log")
    failures = of_ctest(junit, failed) if status and junit.exists() and failed.exists() else []
    # By name: --rerun-failed goes by numbers, which options such as -E change.
    names = f"^({'|'.join(re.escape(each.name) for each in failures)})$"
    again = [*command, "-R", names, "--no-tests=error", "-j1"]
    return finish(here, *once_more(failures, status, lambda: tee(again, here / "second.log")))


def passed_by_name(options: Sequence[str], failures: Sequence[Failure]) -> set[str]:
    """The tests that these options name, FILE::TEST, and that have passed: pytest --last-failed does not find them."""
    failed = {re.split(r"[\[@]", each.name)[0] for each in failures}
    named = {option: option.split("[")[0].partition("::") for option in options if "::" in option}
    return {
        option
        for option, (file, _, test) in named.items()
        if f"{file.removesuffix('.py').replace('/', '.')}::{test}" not in failed
    }


def pytest(name: str, *options: str) -> int:
    here = FOLDER / name
    junit = here / "first.xml"
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={here}/cache", "-o", "junit_logging=all", *options]
    os.environ[COSTS] = str(here / "costs")
    status = tee([*command, f"--junitxml={junit}"], here / "first.log")
    write_costs(here, costs_of_pytest(here / "costs"), processor_seconds())
    del os.environ[COSTS]
    failures = of_pytest(junit) if status == 1 and junit.exists() else []
    alone = ["-n0"] if importlib.util.find_spec("xdist") else []
    passed = passed_by_name(options, failures)
    again = [word for word in command if word not in passed]
    again += ["--last-failed", "--last-failed-no-failures=none", *alone]
    return finish(here, *once_more(failures, status, lambda: tee(again, here / "second.log")))


def finish(here: Path, status: int, lines: Sequence[str]) -> int:
    (here / "flaky").write_text("".join(f"{line}\n" for line in lines if line.startswith("FLAKY ")), encoding="utf-8")
    print(*lines, sep="\n", end="\n" if lines else "", flush=True)
    return status


def main(kind: str, name: str, *options: str) -> int:
    if kind == "told":
        return told(name, *options)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    here = FOLDER / name
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir(parents=True)
    os.environ["HPC_TEST_SEED"] = seed()
    print(f"seed={os.environ['HPC_TEST_SEED']} load={os.getloadavg()[0]:.2f} cores={os.cpu_count()}", flush=True)
    runs: dict[str, Callable[..., int]] = {"ctest": ctest, "pytest": pytest}
    return runs[kind](name, *options)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

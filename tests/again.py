"""Runs tests, and those that fail once more, alone, after all others: python tests/again.py ctest|pytest NAME OPTION...

again.py ctest NAME FOLDER [OPTION...]    ctest in the build FOLDER
again.py pytest NAME [OPTION...]          pytest

A test that passes the second time is flaky: the run is green and ends with a line "FLAKY test log", and log keeps what
the first run said. Some failures are red at once and no second run excuses them: a sanitizer's report, wrong bits, a
crash, a hang, something left behind. The C tests say so themselves (RED in tests/c/check.h); of pytest the text of the
failure is looked at. More than a few failures are no accident, and are not run again either.

Sets HPC_TEST_SEED, where it is not set, to a number that the commit gives: every commit sees another order of events,
and the same one gives the same again. build/again/NAME has the first run's log and its JUnit file.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
    "something left behind": r"\bleft behind\b|\b(?:is|are) left\b",
}


def why_red(said: str) -> str:
    """Why a failure with this text is red at once; empty if it may be an accident."""
    for why, pattern in RED.items():
        if found := re.search(pattern, said, re.MULTILINE):
            return found[1] if found.groups() else why
    return ""


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
            parts = [each.text or each.get("message") or "" for each in wrong]
            parts += [case.findtext(tag) or "" for tag in ("system-out", "system-err")]
            said = "\n".join(part for part in parts if part)
            found.append(Failure(f"{case.get('classname', '')}::{case.get('name', '')}", said, why_red(said)))
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


def ctest(name: str, folder: str, *options: str) -> int:
    here = FOLDER / name
    command = ["ctest", "--test-dir", folder, "--output-on-failure"]
    junit = here / "first.xml"
    status = tee([*command, *options, "--output-junit", str(junit)], here / "first.log")
    failed = Path(folder, "Testing/Temporary/LastTestsFailed.log")
    failures = of_ctest(junit, failed) if status and junit.exists() and failed.exists() else []
    # By name: --rerun-failed goes by numbers, which options such as -E change.
    names = f"^({'|'.join(re.escape(each.name) for each in failures)})$"
    again = [*command, "-R", names, "--no-tests=error", "-j1"]
    return finish(here, *once_more(failures, status, lambda: tee(again, here / "second.log")))


def pytest(name: str, *options: str) -> int:
    here = FOLDER / name
    junit = here / "first.xml"
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={here}/cache", "-o", "junit_logging=all", *options]
    status = tee([*command, f"--junitxml={junit}"], here / "first.log")
    failures = of_pytest(junit) if status == 1 and junit.exists() else []
    alone = ["-n0"] if importlib.util.find_spec("xdist") else []
    again = [*command, "--last-failed", "--last-failed-no-failures=none", *alone]
    return finish(here, *once_more(failures, status, lambda: tee(again, here / "second.log")))


def finish(here: Path, status: int, lines: Sequence[str]) -> int:
    (here / "flaky").write_text("".join(f"{line}\n" for line in lines if line.startswith("FLAKY ")), encoding="utf-8")
    print(*lines, sep="\n", end="\n" if lines else "", flush=True)
    return status


def main(kind: str, name: str, *options: str) -> int:
    here = FOLDER / name
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir(parents=True)
    os.environ["HPC_TEST_SEED"] = seed()
    print(f"seed={os.environ['HPC_TEST_SEED']} load={os.getloadavg()[0]:.2f} cores={os.cpu_count()}", flush=True)
    runs: dict[str, Callable[..., int]] = {"ctest": ctest, "pytest": pytest}
    return runs[kind](name, *options)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

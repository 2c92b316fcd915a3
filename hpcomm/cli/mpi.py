"""Finds out which MPI is installed: the launcher on PATH, and the library that mpi4py loads. Other processes load it,
not this one."""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_SECONDS = 20.0
_ASK_MPI4PY = """
import mpi4py
mpi4py.rc.initialize = False
print(mpi4py.__version__)
from mpi4py import MPI
print(MPI.Get_library_version().replace(chr(0), ' ').splitlines()[0].strip())
"""


@dataclass(frozen=True)
class Launcher:
    """A launcher of ranks, on PATH or beside this Python."""

    path: str
    version: str  # the first line of --version, or family and number
    family: str  # "Open MPI", "MPICH" or "?"


@dataclass(frozen=True)
class Mpi4py:
    version: str  # "" if mpi4py is not installed
    library: str  # the MPI library's version; "" if mpi4py cannot load one
    family: str
    wrong: str  # why mpi4py cannot load a library, or ""


def output(*command: str) -> str:
    """Returns the output of a command; "" if it cannot be run or takes more than 20 s."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + done.stderr).strip()


def family(text: str) -> str:
    if re.search(r"open ?mpi|open-mpi|prrte", text, re.IGNORECASE):
        return "Open MPI"
    if re.search(r"mpich|hydra|mvapich|intel\(r\) mpi", text, re.IGNORECASE):
        return "MPICH"
    return "?"


def launcher() -> Launcher | None:
    beside = str(Path(sys.executable).parent)  # where pip installs mpirun
    path = shutil.which("mpirun") or shutil.which("mpiexec") or shutil.which("mpirun", path=beside)
    if path is None:
        return None
    said = output(path, "--version")
    number = re.search(r"Version:\s*(\S+)", said)  # Hydra's second line
    kind = family(said)
    version = f"{kind} {number[1]}" if number and kind == "MPICH" else (said.splitlines() or ["?"])[0]
    return Launcher(path, version, kind)


def mpi4py() -> Mpi4py:
    lines = output(sys.executable, "-c", _ASK_MPI4PY).splitlines()
    if not lines or "ModuleNotFoundError" in lines[-1]:
        return Mpi4py("", "", "?", "it is not installed")
    if len(lines) == 2:
        return Mpi4py(lines[0], lines[1], family(lines[1]), "")
    return Mpi4py(lines[0], "", "?", lines[-1])

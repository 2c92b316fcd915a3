"""Which files of the project a test runs, for covered.py: only where FOLDER is set, in the run of make map.

HPC_COVER, in the environment of a test and of all that it starts, is the beginning of two paths. PATH.py gets a line
for each Python file of which a function was called, from every process of the test. PATH.c is the table of
tests/c/cover.c, where the library is built with HPC_COVER. Both outlive a process that is killed.

Code that runs while a module is imported does not count: ranks are forked from a process that has imported everything.
"""

import ctypes
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

FOLDER = "COVER_OF_TESTS"  # the folder of all tests' files
VARIABLE = "HPC_COVER"
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OURS = tuple(f"{ROOT}/{folder}/" for folder in ("hpcomm", "examples", "bench", "tests"))
CO_OPTIMIZED = 1  # the code is a function's, and not the body of a module or a class

_seen: set[str] = set()
_lines = -1  # the file that gets the lines
_within = (0.0, 0.0)  # seconds, and seconds of processors, of what has run within the test or fixture that runs


def _note(frame: FrameType, event: str, arg: object) -> None:
    code = frame.f_code
    name = code.co_filename
    if name in _seen:
        return
    if not name.startswith(OURS):
        _seen.add(name)
    elif code.co_flags & CO_OPTIMIZED:
        _seen.add(name)
        os.write(_lines, f"{name[len(ROOT) + 1 :]}\n".encode())


def start(path: str) -> None:
    """Notes under this path from now on what this process runs; "" for nothing."""
    global _lines  # noqa: PLW0603
    if not path:
        sys.setprofile(None)
        threading.setprofile(None)
        return
    file = os.open(f"{path}.py", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    if _lines < 0:
        _lines = file
    else:  # under the same number: another thread may be writing
        os.dup2(file, _lines, inheritable=False)
        os.close(file)
    _seen.clear()
    _seen.add(__file__)
    threading.setprofile(_note)
    sys.setprofile(_note)
    if "hpcomm._ffi" in sys.modules:  # a library that is loaded later opens its table itself
        with suppress(OSError, AttributeError):  # the process has loaded another build
            library = ctypes.CDLL("libhpcomm.so.0", os.RTLD_NOW | os.RTLD_NOLOAD)
            library.hpc_cover_open(f"{path}.c".encode())


@contextmanager
def of(name: str, needs: Iterable[str], used: Callable[[], float]) -> Iterator[None]:
    """Notes what runs meanwhile, here and in processes that are started, for the test or the fixture of that name.

    needs: the names of fixtures that several tests share. used: seconds of processors until now. A fixture that is set
    up within a test counts for itself alone."""
    global _within  # noqa: PLW0603
    if FOLDER not in os.environ:
        yield
        return
    outer, beside = os.environ.get(VARIABLE, ""), _within
    path = f"{os.environ[FOLDER]}/{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    with open(f"{path}.name", "w", encoding="utf-8") as file:
        file.write("\n".join([name, *needs]))
    began, _within = (time.monotonic(), used()), (0.0, 0.0)
    os.environ[VARIABLE] = path
    start(path)
    try:
        yield
    finally:
        os.environ[VARIABLE] = outer
        start(outer)
        wall, processor = time.monotonic() - began[0], used() - began[1]
        with open(f"{path}.took", "a", encoding="utf-8") as file:
            file.write(f"{wall - _within[0]} {processor - _within[1]}\n")
        _within = beside[0] + wall, beside[1] + processor

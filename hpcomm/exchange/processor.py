"""Processor time of this process's threads, by thread name."""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

TASKS = Path("/proc/self/task")
TRAINER, OTHERS, OWN = "trainer", "others", "hpcomm-"


class Processor:
    """Measures the processor time of this process's threads since this object was made. Threads that have ended do not
    count."""

    __slots__ = ("_start", "_trainer")

    def __init__(self) -> None:
        self._trainer = threading.get_native_id()
        self._start = {thread: used for thread, (_, used) in _threads().items()}

    def seconds(self) -> dict[str, float]:
        """Returns seconds by thread name: "trainer" (the thread that made this object), the names of hpcomm's threads,
        and "others"."""
        found = {TRAINER: 0.0, OTHERS: 0.0}
        for thread, (name, used) in _threads().items():
            before = self._start.get(thread, 0)
            if used < before:  # a new thread got the number of an ended one
                before = 0
            what = TRAINER if thread == self._trainer else name if name.startswith(OWN) else OTHERS
            found[what] = found.get(what, 0.0) + (used - before) / 1e9
        return found


def _threads() -> dict[int, tuple[str, int]]:
    """Returns each thread's name and the nanoseconds of processor time that it has used; {} if the system does not
    tell."""
    found: dict[int, tuple[str, int]] = {}
    try:
        tasks = os.listdir(TASKS)
    except OSError:
        return found
    for task in tasks:
        with suppress(OSError):  # the thread has just ended
            clock = ~int(task) << 3 | 6  # the kernel's number for the clock of a thread, from clock_getcpuclockid
            found[int(task)] = ((TASKS / task / "comm").read_text().rstrip("\n"), time.clock_gettime_ns(clock))
    return found

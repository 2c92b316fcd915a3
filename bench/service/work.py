"""The calls of a crew's processes, which are workers of jobs at a hub, or of jobs with their own servers.

A job has a name by which the calls find it in their process. All jobs use hpcomm.bench.training's task: gradients are
random whole numbers, written once, and the parameters must be right to the bit after any number of steps.
"""

import ctypes
import mmap
import os
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

import hpcomm
from bench.common.native import Native, build
from hpcomm.bench.arrays import address, repeat
from hpcomm.bench.training import MOMENTUM, PERIOD, RATE, FlatKey, Reference, Task

RULE = hpcomm.Nesterov(lr=RATE, momentum=MOMENTUM)
TIMEOUT = 60.0  # of a call of hpcomm
NEVER = 1 << 62


class Model(NamedTuple):
    """Equal keys."""

    keys: int
    nbytes: int  # of a key

    @property
    def size(self) -> int:
        return self.keys * self.nbytes


@dataclass
class Job:
    """A worker's part of a job.

    Attributes:
        done: operations; operation i is on key i % len(names), and a call ends after whole rounds of all keys.
        words: memory of all of the job's workers: the operation after the last one, and whether to end soon.
    """

    context: Any
    exchange: Any
    task: Task
    names: Sequence[str]
    words: Any
    reference: Reference = field(init=False)
    done: int = 0
    checked: int = 0

    def __post_init__(self) -> None:
        self.reference = Reference(self.task)

    def start(self) -> Any:
        return self.exchange.push_pull_nb(self.names[self.done % len(self.names)])


JOBS: dict[str, Job] = {}
SERVERS: dict[str, threading.Thread] = {}
PREPARED: list[tuple[Task, dict[str, Any]]] = []


def compute(seconds: float) -> None:
    """Keeps a CPU busy."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


# ---- to begin, and to end --------------------------------------------------------------------------------------------


def create(where: str, space: str, token: str) -> str:
    return hpcomm.create_service(where, space, token, timeout=TIMEOUT)


def own_pages() -> None:
    """Gives this forked process its own copies of the pages that it shares with its parent, as a process has that was
    not forked: its calls then wait for no copies. Older kernels than 5.14 do nothing."""
    libc, populate_write = ctypes.CDLL(None), 23
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        where, access, *_ = line.split()
        if access == "rw-p":
            first, last = (int(end, 16) for end in where.split("-"))
            libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), populate_write)


def prepare(model: Model, rank: int, size: int) -> None:
    """Makes a worker's task and the parameters at first, for the next join or meet of this process."""
    keys = [FlatKey(f"key{k}", model.nbytes // 4) for k in range(model.keys)]
    place = SimpleNamespace(rank=min(rank, size - 1), size=size)
    task = Task(place, keys, 1)
    place.rank = rank  # a server comes after the last worker, and has no gradients
    PREPARED.append((task, dict(zip((key.name for key in keys), task.params(), strict=True))))


def join(name: str, path: str, transport: str, at: float, handle: str, token: str, wait: float) -> list[float]:
    """Joins a job at a hub and makes one step. Returns the times of the beginning, the connected context, the made
    exchange and the end of the step.

    Args:
        path: of the job's words.
        at: the time at which all workers begin.
        wait: seconds for the other workers to come.
    """
    task, values = PREPARED.pop()
    rank, size = task.bench.rank, task.bench.size
    time.sleep(max(at - time.monotonic(), 0))
    began = time.monotonic()
    limits: Any = {"timeout": TIMEOUT, "init_timeout": wait}
    context = hpcomm.connect_service(handle, token, rank, size, transport=transport, **limits)
    connected = time.monotonic()
    exchange = hpcomm.parameter_hub(context, values, servers="hub", rule=RULE)
    return _opened(name, context, exchange, task, path, [began, connected, time.monotonic()])


def meet(name: str, path: str, transport: str, at: float, host: str, port: int) -> list[float]:
    """Joins a job that has its own server, the rank after the last worker. Returns the same times as join, or the
    first three of them if this is the server."""
    task, values = PREPARED.pop()
    rank, size = task.bench.rank, task.bench.size
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size + 1), "MASTER_ADDR": host, "MASTER_PORT": str(port)}
    time.sleep(max(at - time.monotonic(), 0))
    began = time.monotonic()
    context = hpcomm.init(timeout=TIMEOUT, transport=transport)
    connected = time.monotonic()
    is_server = rank == size
    progress: Any = "thread" if is_server else "auto"
    how: Any = {"plan": hpcomm.PlanOptions(cores=1), "engine": hpcomm.EngineOptions(progress=progress)}
    exchange = hpcomm.parameter_hub(context, values, placement="NCC", servers=[size], rule=RULE, **how)
    times = [began, connected, time.monotonic()]
    if not is_server:
        return _opened(name, context, exchange, task, path, times)
    SERVERS[name] = threading.Thread(target=_serve, args=(context, exchange), daemon=True)
    SERVERS[name].start()
    return times


def _serve(context: Any, exchange: Any) -> None:
    exchange.serve()
    exchange.close()
    context.close()


def _opened(name: str, context: Any, exchange: Any, task: Task, path: str, times: list[float]) -> list[float]:
    names = [key.name for key in task.keys]
    for key, gradient in zip(names, task.gradients, strict=True):
        np.copyto(exchange.gradient(key), gradient)
    task.gradients.clear()  # the exchange has them, and other tenants need the memory
    with Path(path).open("r+b") as file:
        words = np.frombuffer(mmap.mmap(file.fileno(), 0), np.int64)
    job = JOBS[name] = Job(context, exchange, task, names, words)
    step(job)
    return [*times, time.monotonic()]


def leave(*names: str) -> None:
    """Closes jobs, all if no names are given."""
    for name in names or (*JOBS, *SERVERS):
        if name in SERVERS:
            SERVERS.pop(name).join(TIMEOUT)
            continue
        job = JOBS.pop(name)
        job.exchange.close()
        job.context.close()


# ---- to work ---------------------------------------------------------------------------------------------------------


def step(job: Job) -> None:
    """Makes one operation of every key, all at once."""
    waiting = []
    for _ in job.names:
        waiting.append(job.start())
        job.done += 1
    for one in waiting:
        one.wait()


def steps(name: str, n: int) -> list[float]:
    """Returns the seconds of n steps."""
    job, found = JOBS[name], []
    for _ in range(n):
        began = time.perf_counter()
        step(job)
        found.append(time.perf_counter() - began)
    return found


def stream(name: str, seconds: float, pause: float = 0.0) -> tuple[float, list[float]]:
    """Keeps an operation of each key in flight for so many seconds, or until word 1 is set. Returns the time of the
    beginning, and the times at which operations ended; the workers end after the same operation. Before the call the
    words are NEVER and 0.

    pause: mean seconds of sleep after each operation: half to one and a half times as many, equally many on all workers
    of the job. Jobs that sleep equally long would meet at the hub in each step.
    """
    job, ends, waiting = JOBS[name], list[float](), list[Any]()
    words, n = job.words, len(job.names)
    is_first = job.task.bench.rank == 0
    began = time.monotonic()
    first, over = job.done, began + seconds
    chance = random.Random(f"{name} {first}")
    while True:
        if len(waiting) == n or job.done >= words[0]:
            if not waiting:
                return began, ends
            waiting.pop(0).wait()
            ends.append(time.monotonic())
            if pause > 0:
                time.sleep(pause * chance.uniform(0.5, 1.5))
        if is_first and words[0] == NEVER and (words[1] or time.monotonic() >= over):
            # No other worker has begun operation done + n: that needs this one's operation done.
            words[0] = first + -(-(job.done + n - first) // n) * n
        if job.done < words[0]:
            waiting.append(job.start())
            job.done += 1


def wrong(name: str, plant: bool = False) -> int:
    """Returns how many parameters differ from the right ones. plant: spoils a value first."""
    job = JOBS[name]
    while job.checked < job.done // len(job.names):
        job.reference.step()
        job.checked += 1
    params = [job.exchange.params[key] for key in job.names]
    if plant:
        params[0] = params[0].copy()
        params[0][0] += 1
    return job.reference.wrong(params)


# ---- pings and loads that use no exchange ----------------------------------------------------------------------------


def ping(path: str, rank: int, seconds: float, most: int) -> list[float]:
    """Returns the seconds of round trips of a futex word between two processes, on rank 0. path: of zeros, which both
    map."""
    samples = np.zeros(most)
    with Path(path).open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        words = np.frombuffer(memory, np.uint8)
        n = Native(build(), rank, 2).bench_futex_ping(address(words), rank, seconds, most, address(samples))
        del words
    found: list[float] = samples[:n].tolist()
    return found


def copy_memory(nbytes: int, path: str) -> float:
    """Copies memory until the word of path is set; returns bytes a second."""
    tile = np.random.default_rng(1).integers(-99, 99, PERIOD).astype(np.float32)
    source, target = (np.empty(nbytes // 4, np.float32) for _ in range(2))
    repeat(source, tile)
    moved, began = 0, time.monotonic()
    with Path(path).open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        words = np.frombuffer(memory, np.int64)
        while not words[1]:
            np.copyto(target, source)
            moved += nbytes
        del words
    return moved / (time.monotonic() - began)


def processor_of(pid: int) -> float:
    """Returns the processor seconds of all threads of a process of this host."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

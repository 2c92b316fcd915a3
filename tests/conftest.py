"""Ranks that are threads of the test's own process: quick, and the only ones that transport loop has."""

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

import hpcomm

settings.register_profile("calm", deadline=None)  # imports and a busy machine take their time
settings.load_profile("calm")


class ThreadWorld:
    """A communicator of threads."""

    def __init__(self, rank: int, size: int, parts: list[bytes], meeting: threading.Barrier) -> None:
        self.rank, self.size = rank, size
        self._parts, self._meeting = parts, meeting

    def allgather(self, data: bytes) -> list[bytes]:
        self._parts[self.rank] = data
        self._meeting.wait()
        parts = list(self._parts)
        self._meeting.wait()
        return parts


def thread_worlds(n: int) -> list[ThreadWorld]:
    parts, meeting = [b""] * n, threading.Barrier(n, timeout=30)
    return [ThreadWorld(rank, n, parts, meeting) for rank in range(n)]


class Left(Exception):
    """Raised by a body that has closed its context and so takes no part in the last barrier."""


def run_threads(n: int, body: Callable[[hpcomm.Context], Any], **config: Any) -> list[Any]:
    """What body(context) returns in each of n threads. An exception of a rank is raised here: the cause, not what
    follows from it on other ranks."""
    values: list[Any] = [None] * n
    raised: list[BaseException] = []

    def rank(world: ThreadWorld) -> None:
        try:
            with hpcomm.init(world, **{"timeout": 20, **config}) as context:
                values[world.rank] = body(context)
                context.barrier()
        except Left:
            pass
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=rank, args=(world,), daemon=True) for world in thread_worlds(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    if raised:
        raise min(raised, key=lambda error: isinstance(error, hpcomm.PeerFailed))
    return values


# What the tests that take any transport run on: HPC_TEST_TRANSPORTS=verbs where there is an RDMA port.
TRANSPORTS = os.environ.get("HPC_TEST_TRANSPORTS", "shm,tcp").split(",")
LOOP = [] if "HPC_TEST_TRANSPORTS" in os.environ else ["loop", "loop late"]


@pytest.fixture(params=[*TRANSPORTS, *LOOP])
def transport(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The settings of each transport; "late" delays, splits and reorders what may be."""
    name, _, late = request.param.partition(" ")
    return {"transport": name, "loop_seed": 7 if late else 0}


@pytest.fixture(params=TRANSPORTS)
def ranks_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The transport of all ranks that the test starts and gives none: threads, processes, under mpirun or not."""
    name = str(request.param)
    monkeypatch.setenv("HPCOMM_TRANSPORT", name)
    return name


on_both = pytest.mark.usefixtures("ranks_by")  # a test without it, of ranks on one host, has them on shm


@pytest.fixture
def alone() -> Any:
    """A world of one."""
    with hpcomm.init() as context:
        yield context

"""Waits that last for longer than look_after: they go on while others compute, and end where nothing can come."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import mpi
import numpy as np
import pytest
from told import logs

import hpcomm
from hpcomm import PeerFailed, Timeout
from hpcomm.config import Config, resolve

SIZE, LATE = 3, 2
SOON = 0.3  # seconds: a look_after for tests
TRANSPORTS = pytest.mark.parametrize("transport", ["shm", "tcp"])


def test_defaults() -> None:
    assert Config().timeout == 1800
    assert Config().init_seconds == 30
    assert resolve({}, {"timeout": 120}).init_seconds == 120
    assert resolve({}, {"timeout": 5, "init_timeout": 60}).init_seconds == 60


def evaluates() -> list[str]:
    """Rank LATE computes for four times as long as it takes until others look."""
    with logs() as told, hpcomm.init(mpi.world(), look_after=SOON, timeout=1800) as context:
        params = {"w": np.zeros(1000, np.float32)}
        ex = hpcomm.parameter_hub(context, params, rule=hpcomm.SGD(1.0))
        ex.step({"w": np.ones(1000, np.float32)})
        if context.rank == LATE:
            time.sleep(4.5 * SOON)
        ex.step({"w": np.ones(1000, np.float32)})
        assert (ex.params["w"] == -2).all()
        ex.close()
    return told


@TRANSPORTS
def test_a_rank_that_computes_is_waited_for(transport: str) -> None:
    told = mpi.spawn(SIZE, evaluates, env={"HPCOMM_TRANSPORT": transport}).values
    assert 2 <= len(told[0]) <= 4, told  # after one, two and four times look_after
    for sentence in told[0]:
        assert sentence.startswith("rank 0: ")
        assert " and keeps waiting (until 1800 s): rank" in sentence
        assert f"rank {LATE} has computed for " in sentence
    assert len(told[1]) <= 1, told  # one only if rank 0 was too busy to answer
    assert told[LATE] == []


def saves_with_a_server(folder: str) -> None:
    """Rank LATE computes, rank 0 waits for the server, and the server for rank 0, which says when to save."""
    with hpcomm.init(mpi.world(), look_after=SOON, timeout=1800) as context:
        params = {"w": np.zeros(10, np.float32)}
        topology = hpcomm.ParameterServer("NCC", servers=[1])
        ex = hpcomm.Exchange(context, params, topology, rule=hpcomm.SGD(1.0))
        with hpcomm.Checkpointer(ex, folder, every=2) as checkpointer:
            if not ex.params:
                checkpointer.serve()
            for step in range(2) if ex.params else ():
                if context.rank == LATE and step == 1:
                    time.sleep(4.5 * SOON)
                ex.step({"w": np.ones(10, np.float32)})
                checkpointer.after(step + 1)
        ex.close()
        context.barrier()
        assert hpcomm.latest(folder) == 2


def test_a_server_that_saves_waits_while_a_rank_computes(tmp_path: Path) -> None:
    mpi.spawn(SIZE, saves_with_a_server, str(tmp_path))


def frozen() -> list[tuple[int, str]]:
    """Rank LATE stops itself; rank 0, which knows it by its process, ends it."""
    context = hpcomm.init(mpi.world(), look_after=SOON, timeout=1800)
    ex = hpcomm.parameter_hub(context, {"w": np.zeros(1000, np.float32)}, rule=hpcomm.SGD(1.0))
    pid = context.peers[LATE].pid
    context.barrier()
    if context.rank == LATE:
        os.kill(os.getpid(), signal.SIGSTOP)
    found: list[tuple[int, str]] = []
    while len(found) < 2:  # a call that is made again finds it again
        try:
            ex.step(None if found else {"w": np.ones(1000, np.float32)})
        except Timeout as late:
            found = found[: context.rank == 0] + [(culprit.rank, culprit.state) for culprit in late.culprits]
        except PeerFailed:  # rank 0 is done
            break
    context.abort("it has found what it looked for")
    if context.rank == 0:
        os.kill(pid, signal.SIGKILL)
    return found


@TRANSPORTS
def test_a_stopped_rank_ends_a_wait(transport: str) -> None:
    ended = mpi.spawn(SIZE, frozen, env={"HPCOMM_TRANSPORT": transport}, check=False)
    assert ended.values[0] == [[LATE, "stopped"]] * 2, ended.err


def all_wait() -> list[Any]:
    """The first rank that finds it leaves at once: the others find it themselves, or hear of it."""
    with hpcomm.init(mpi.world(), look_after=SOON, timeout=1800) as context:
        window = context.window(1, signals=1)
        with pytest.raises(Timeout) as raised:
            window.wait_signal(0, 1, peer=(context.rank + 1) % SIZE)
        return [[culprit.state for culprit in raised.value.culprits], str(raised.value)]


@TRANSPORTS
def test_a_deadlock_ends_a_wait(transport: str) -> None:
    ended = mpi.spawn(SIZE, all_wait, env={"HPCOMM_TRANSPORT": transport}).values
    for states, told in ended:
        assert states == ["circle"] * SIZE
        assert "ranks 0, 1 and 2 wait for each other: ranks 0, 1 and 2 in wait_signal (a deadlock of the prog" in told

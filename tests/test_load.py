"""stats().load: processor seconds by thread, system calls, wake-ups and events."""

import threading
import time
from pathlib import Path
from typing import Any

import mpi
import numpy as np
import pytest

import hpcomm
from hpcomm.exchange import processor

KEYS, STEPS, ELEMENTS = 5, 20, 256
BURNT = 0.05  # seconds of processor time


def burn(seconds: float = BURNT) -> float:
    """Uses that much processor time of this thread; how much it was."""
    start = time.thread_time()
    while time.thread_time() - start < seconds:
        pass
    return time.thread_time() - start


def made(ctx: hpcomm.Context, progress: Any) -> hpcomm.Exchange:
    params = {f"key {k}": np.zeros(ELEMENTS, np.float32) for k in range(KEYS)}
    return hpcomm.parameter_hub(ctx, params, topology="flat", progress=progress)


def stepped(wire: str, progress: str) -> dict[str, Any]:
    """What a rank has after STEPS steps, and what an exchange has that is made behind them."""
    with hpcomm.init(mpi.world(), transport=wire) as ctx, made(ctx, progress) as ex:
        for _ in range(STEPS):
            ex.step({name: np.ones(ELEMENTS, np.float32) for name in ex.params})
        ctx.barrier()
        load = ex.stats().load
        with made(ctx, progress) as later:
            late = later.stats().load
        ctx.barrier()
        return {
            **{name: getattr(load, name) for name in hpcomm.stats.CALLS},
            "threads": sorted(load.processor),
            "calls": load.calls,
            "steps": load.steps,
            "per_step": load.per_step,
            "late": [late.sends, late.receives, late.events, late.steps, late.per_step],
        }


@pytest.mark.parametrize("progress", ["thread", "inline"])
def test_a_step_over_tcp_is_sent_and_received_and_counted(progress: str) -> None:
    found = mpi.spawn(2, stepped, "tcp", progress).values
    for load in found:
        assert load["sends"] >= STEPS  # an update at least
        assert load["receives"] - load["empty"] >= STEPS
        assert load["polls"] > 0
        assert load["steps"] == STEPS
        assert load["calls"] == sum(
            load[name] for name in ("sends", "receives", "polls", "futexes", "alarms", "yields")
        )
        assert load["per_step"]["calls"] == load["calls"] / STEPS
        assert load["per_step"]["events"] == load["events"] / STEPS
        core = ["hpcomm-core-0"] if progress == "thread" else []
        assert load["threads"] == ["hpcomm-control", *core, "hpcomm-reactor", "others", "trainer"]
        sends, _, events, steps, per_step = load["late"]
        assert sends < load["sends"]
        assert (events, steps, per_step) == (0, 0, {})
    # each rank owns some of the keys, and takes both ranks' updates of them
    assert 2 * STEPS <= sum(load["events"] for load in found) <= 2 * STEPS * KEYS


def test_shared_memory_takes_no_call_for_data() -> None:
    for load in mpi.spawn(2, stepped, "shm", "inline").values:
        assert (load["sends"], load["receives"], load["empty"], load["polls"]) == (0, 0, 0, 0)
        assert load["threads"] == ["hpcomm-control", "others", "trainer"]


def waited(wire: str) -> list[int]:
    """Rank 0 waits for rank 1, which computes until it does."""
    with hpcomm.init(mpi.world(), transport=wire) as ctx, made(ctx, "inline") as ex:
        before = ex.stats().load
        if ctx.rank == 1:
            burn(0.2)
        ex.step({name: np.ones(ELEMENTS, np.float32) for name in ex.params})
        after = ex.stats().load
        return [after.wakeups - before.wakeups, after.futexes - before.futexes, after.polls - before.polls]


@pytest.mark.parametrize("wire", ["shm", "tcp"])
def test_a_sleep_that_ended_is_a_wakeup(wire: str) -> None:
    wakeups, futexes, polls = mpi.spawn(2, waited, wire).values[0]
    assert wakeups >= 1
    assert futexes >= 1 if wire == "shm" else polls >= 1


def test_without_proc_no_thread_has_used_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "TASKS", tmp_path / "proc")
    used = processor.Processor()
    burn(0.001)
    assert used.seconds() == {"trainer": 0.0, "others": 0.0}


def test_processor_time_goes_to_the_thread_that_used_it() -> None:
    with hpcomm.init() as ctx, made(ctx, "inline") as ex:
        before = ex.stats().load.processor
        own = burn()
        after = ex.stats().load.processor
        assert after["trainer"] - before["trainer"] >= own
        burnt, told, seen = [0.0], threading.Event(), threading.Event()

        def other() -> None:
            burnt[0] = burn()
            told.set()
            seen.wait(60)

        thread = threading.Thread(target=other)
        thread.start()
        told.wait(60)
        last = ex.stats().load.processor
        seen.set()
        thread.join()
        assert last["others"] - after["others"] >= burnt[0]
        assert last["trainer"] - after["trainer"] < burnt[0]

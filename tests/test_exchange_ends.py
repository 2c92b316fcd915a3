"""How exchanges end: closed, dropped, interrupted, forked, with a peer that is gone; and what else runs in a wait."""

import gc
import os
import re
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import mpi
import numpy as np
import pytest
from conftest import Left, on_both, run_threads, thread_worlds
from test_context import interrupted, wait_until_asleep

import hpcomm
from hpcomm import ASYNC, BSP, SGD, Exchange, InvalidArgument, ParameterServer, PlanOptions

F32 = np.float32


def params() -> dict[str, Any]:
    return {"w": np.zeros(1000, F32), "b": np.zeros(3, F32)}


# ---- close -----------------------------------------------------------------------------------------------------------


@on_both
def test_wait_for_a_key_that_a_closed_rank_never_pushed() -> None:
    def body(context: hpcomm.Context) -> None:
        ex = Exchange(context, params(), rule=SGD(lr=1))
        ex.push_pull("w", np.ones(1000, F32))
        if context.rank == 1:
            ex.push("b", np.ones(3, F32))
            ex.close()
        else:
            assert list(ex.push_pull("b", np.ones(3, F32))) == [-1, -1, -1]  # what was pushed before counts
            with pytest.raises(hpcomm.PeerFailed, match=r"rank 1 has closed the exchange") as raised:
                ex.push_pull("w", np.ones(1000, F32))
            assert raised.value.ranks == (1,)
            with pytest.raises(hpcomm.PeerFailed):
                ex.pull_nb("w").wait()
            with pytest.raises(hpcomm.PeerFailed):
                ex.close()  # it waits for what is under way
        context.barrier()

    run_threads(3, body)


@on_both
@pytest.mark.parametrize("placement", ["CC", "CS", "NCC"])
def test_async_owner_serves_until_all_have_closed(placement: str) -> None:
    topology = ParameterServer(placement)
    gone = threading.Event()

    def body(context: hpcomm.Context) -> None:
        ex = Exchange(context, params(), topology, ASYNC, SGD(lr=1), progress="inline")
        if context.rank == 0:
            gone.set()
            if placement == "NCC":
                ex.serve()
            ex.close()
            return
        assert gone.wait(20)
        for _ in range(20):
            ex.push_pull("w", np.ones(1000, F32))
        ex.close()

    run_threads(3, body)


@on_both
def test_close_that_times_out_may_be_called_again() -> None:
    gate = threading.Event()

    def body(context: hpcomm.Context) -> None:
        ex = Exchange(context, params(), ParameterServer("CC"), ASYNC, progress="inline")
        if context.rank == 0:
            with pytest.raises(hpcomm.Timeout) as raised:
                ex.close(timeout=0.15)
            assert raised.value.waiting_for == (1,)
            with pytest.raises(InvalidArgument, match="closed"):
                ex.push("w")
            gate.set()
        else:
            assert gate.wait(20)
            ex.push_pull("w", np.ones(1000, F32))
        ex.close()

    run_threads(2, body)


@on_both
@pytest.mark.parametrize("consistency", [BSP, ASYNC], ids=str)
@pytest.mark.parametrize("progress", ["inline", "thread"])
def test_context_closes_its_exchanges_first(consistency: hpcomm.Consistency, progress: Any) -> None:
    def body(context: hpcomm.Context) -> None:
        first, second = (Exchange(context, params(), consistency=consistency, progress=progress) for _ in range(2))
        first.step(params())
        second.push("w", np.ones(1000, F32))
        context.close()
        for ex in (first, second):
            assert "closed" in repr(ex)
            ex.close()
            assert len(ex.params["w"]) == 1000
        raise Left

    run_threads(2, body)


@on_both
def test_with_that_raises_does_not_wait_for_the_others() -> None:
    def body(context: hpcomm.Context) -> None:
        def train() -> None:
            with Exchange(context, params(), consistency=ASYNC, progress="inline") as ex:
                ex.push_pull("w", np.ones(1000, F32))
                context.barrier()
                raise LookupError

        with pytest.raises(LookupError):
            train()

    run_threads(2, body, timeout=10)


def test_dropped_exchange_gives_all_back() -> None:
    def body(context: hpcomm.Context) -> None:
        for progress in ("inline", "thread"):
            gc.collect()
            before = maps()
            ex = Exchange(context, params(), progress=progress)
            ex.step(params())
            ref, array = weakref.ref(ex), ex.params["w"]
            assert maps() > before
            context.barrier()
            del ex
            assert ref() is None  # without the collector
            assert array.sum() == 0
            del array
            context.barrier()
            gc.collect()
            context.barrier()
            assert maps() == before

    def maps() -> int:
        with open("/proc/self/maps", encoding="ascii") as file:
            return sum("hpcomm" in line for line in file)

    run_threads(1, body)


@on_both
def test_exchange_keeps_its_context_open() -> None:
    made: list[Exchange] = []

    def rank(world: Any) -> None:
        made.append(Exchange(hpcomm.init(world), params(), rule=SGD(lr=1)))

    threads = [threading.Thread(target=rank, args=(world,)) for world in thread_worlds(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    gc.collect()
    handles = [ex.push_pull_nb("w", np.ones(1000, F32)) for ex in made]
    while sum(handle.test() for handle in handles) < 2:
        pass
    assert {float(ex.params["w"][5]) for ex in made} == {-1.0}
    for ex in made:
        ex.context.close()


# ---- a wait's thread -------------------------------------------------------------------------------------------------

WAITS: dict[str, Callable[[Any], Any]] = {
    "push_pull": lambda ex: ex.push_pull("w"),
    "of its own timeout": lambda ex: ex.push_pull("b", timeout=60),
    "pull": lambda ex: (ex.push("w"), ex.pull("w")),
    "handle": lambda ex: ex.push_pull_nb("w").wait(),
    "step": lambda ex: ex.step(),
    "step of arrays": lambda ex: ex.step(params()),
    "gradient": lambda ex: (ex.push("w"), ex.gradient("w")),
    "serve": lambda ex: ex.serve(),
    "close": lambda ex: (ex.push("w"), ex.close(timeout=60)),
}


@on_both
@pytest.mark.parametrize("wait", WAITS)
def test_keyboard_interrupt_ends_a_wait(wait: str) -> None:
    """The main thread is rank 0; rank 1 is there and does nothing."""
    done = threading.Event()
    mine, other = thread_worlds(2)
    topology = ParameterServer("NCC" if wait == "serve" else "CS")

    def rank_1() -> None:
        with hpcomm.init(other) as context:
            ex = Exchange(context, params(), topology)
            done.wait(60)
            assert len(ex.params) == 2

    thread = threading.Thread(target=rank_1)
    thread.start()
    try:
        with hpcomm.init(mine, timeout=60) as context:
            ex = Exchange(context, params(), topology)
            with interrupted(), pytest.raises(KeyboardInterrupt):
                WAITS[wait](ex)
            assert context.peers[1].state == "alive"
            context.abort("done")
    finally:
        done.set()
        thread.join(30)


@on_both
@pytest.mark.parametrize("size", [2, 100_000])
def test_other_threads_run_while_one_waits(size: int) -> None:
    """The main thread waits for rank 1, a thread that can run only if it has let go of the GIL."""
    mine, other = thread_worlds(2)
    start = {"w": np.zeros(size, F32)}

    def rank_1() -> None:
        with hpcomm.init(other) as context, Exchange(context, start, rule=SGD(lr=1)) as ex:
            for _ in range(2):
                wait_until_asleep(threading.main_thread())
                ex.push_pull("w", np.ones(size, F32))
            context.barrier()

    thread = threading.Thread(target=rank_1)
    thread.start()
    with hpcomm.init(mine) as context, Exchange(context, start, rule=SGD(lr=1)) as ex:
        ex.push_pull("w", np.ones(size, F32), timeout=20)
        ex.step({"w": np.ones(size, F32)}, timeout=20)
        assert (ex.params["w"] == -2).all()
        context.barrier()
    thread.join(30)


# ---- forks -----------------------------------------------------------------------------------------------------------


def test_forked_child_neither_uses_nor_ends_its_parents_exchange(alone: hpcomm.Context) -> None:
    ex = Exchange(alone, params(), rule=SGD(lr=1), progress="inline")
    ex.step({"w": np.ones(1000, F32), "b": np.ones(3, F32)})
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert list(ex.params["b"]) == [-1, -1, -1]
            for call in (lambda: ex.push("w"), lambda: ex.push_pull("b"), ex.step, lambda: ex.gradient("b")):
                with pytest.raises(InvalidArgument, match="fork"):
                    call()
            del ex
            gc.collect()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert list(ex.push_pull("b", np.ones(3, F32))) == [-2, -2, -2]


# ---- the end of a process --------------------------------------------------------------------------------------------

kept: list[Any] = []


def end(how: str, placement: str, consistency: str, progress: Any) -> str:
    """Rank 1 ends in the middle of training, by `how`; who is left tells what it learns. Nothing is closed by hand."""
    context = hpcomm.init(mpi.world(), timeout=20)
    topology = ParameterServer(placement, servers=[1] if placement == "NCS" else None)
    mode = BSP if consistency == "BSP" else ASYNC
    works = context.rank in topology.roles(context.size)[0]

    def made() -> Exchange:
        ex = Exchange(context, params(), topology, mode, progress=progress, chunk_bytes=512)
        kept.extend([ex, context, ex.params])
        return ex

    if context.rank == 1:
        ex = made()
        if works:
            ex.push_pull("w")
        if how == "raise":
            raise LookupError("lost my way")
        if how == "drop":
            kept.clear()
            del ex
        if how == "exit":
            sys.exit(3)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return "ended"

    def go_on() -> None:
        ex = made()  # in which the others may still be when rank 1 has it
        if not works:
            ex.serve()
        while True:
            ex.push_pull("w")

    with pytest.raises(hpcomm.PeerFailed) as raised:
        go_on()
    assert {1, 2 - context.rank}.intersection(raised.value.ranks)  # the other one may have heard it first, and left
    return str(raised.value)


@pytest.mark.some(6)
@on_both
@pytest.mark.parametrize("progress", ["inline", "thread"])
@pytest.mark.parametrize(
    ("how", "code", "told"),
    [
        ("return", 0, r"rank 1 .*(closed|ended)"),
        ("drop", 0, r"rank 1 .*(closed|freed|ended)"),
        ("exit", 3, r"rank 1 .*(closed|ended)"),
        ("raise", 1, "LookupError: lost my way"),
        ("kill", -signal.SIGKILL, r"rank 1 .*died"),
    ],
)
def test_end_of_a_worker_is_told_to_its_peer(how: str, code: int, told: str, progress: Any) -> None:
    ended = mpi.spawn(2, end, how, "CS", "BSP", progress, check=False, taken_apart=True)
    assert ended.codes == [0, code], ended.err
    assert re.search(told, ended.values[0])
    assert "Fatal" not in ended.err


@on_both
@pytest.mark.parametrize(("placement", "consistency"), [("NCS", "BSP"), ("NCS", "ASYNC"), ("CS", "ASYNC")])
def test_server_that_dies_fails_all_workers(placement: str, consistency: str) -> None:
    ended = mpi.spawn(3, end, "kill", placement, consistency, "inline", check=False)
    assert ended.codes == [0, -signal.SIGKILL, 0], ended.err
    assert re.search("rank 1 (failed|has ended)", f"{ended.values[0]}\n{ended.values[2]}")


@on_both
def test_dead_worker_fails_a_rank_that_only_serves() -> None:
    ended = mpi.spawn(3, end, "kill", "NCC", "BSP", "inline", check=False)
    assert ended.codes == [0, -signal.SIGKILL, 0], ended.err
    assert None not in (ended.values[0], ended.values[2])


def handle_a_failure() -> None:
    """Rank 0 catches it, and leaves its exchange to the interpreter's end."""
    context = hpcomm.init(mpi.world(), timeout=20)
    ex = Exchange(context, params(), rule=SGD(lr=1))
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(hpcomm.PeerFailed):
        ex.push_pull("w", np.ones(1000, F32))
    kept.extend([context, ex])


def test_a_failure_that_was_handled_is_no_traceback_at_exit() -> None:
    ended = mpi.spawn(2, handle_a_failure, check=False)
    assert ended.codes == [0, -signal.SIGKILL], ended.err
    assert len(ended.err.splitlines()) <= 1, ended.err


def train_to_the_end(progress: Any) -> float:
    """All ranks leave their exchanges to the interpreter's end, engines running."""
    context = hpcomm.init(mpi.world(), timeout=20)
    ex = Exchange(context, params(), rule=SGD(lr=1), progress=progress, plan=PlanOptions(cores=2))
    for _ in range(50):
        ex.step({"w": np.ones(1000, F32), "b": np.ones(3, F32)})
    kept.extend([context, ex, ex.params["w"]])
    return float(ex.params["w"].mean())


@pytest.mark.some(2)
@on_both
@pytest.mark.parametrize("progress", ["inline", "thread"])
def test_interpreter_ends_with_exchanges_open(progress: Any) -> None:
    ended = mpi.spawn(3, train_to_the_end, progress, taken_apart=True)
    assert ended.values == [-50.0] * 3
    assert ended.err == ""

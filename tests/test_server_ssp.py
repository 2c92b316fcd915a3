"""SSP(s) with servers: how far workers may be apart, what they see, and what goes with it."""

import random
import threading
import time
from pathlib import Path
from typing import Any

import mpi
import numpy as np
import pytest
from conftest import on_both, run_threads

import hpcomm
from hpcomm import BSP, SGD, SSP, Exchange, Momentum, Nesterov, ParameterServer, Timeout

F32 = np.float32
SHAPES = {"w": (40, 70), "b": (7,)}


def zeros() -> dict[str, Any]:
    return {name: np.zeros(shape, F32) for name, shape in SHAPES.items()}


def exchange(context: hpcomm.Context, s: int, **options: Any) -> Exchange:
    """Each update counts in full, and takes from the parameters what is pushed."""
    given = {"rule": SGD(lr=1), "reduce": "sum", "progress": "inline", "chunk_bytes": 1024, **options}
    return Exchange(context, zeros(), consistency=SSP(s), **given)


def mine(context: hpcomm.Context) -> dict[str, Any]:
    """A gradient that counts this rank's updates, in elements of its own."""
    found = zeros()
    for value in found.values():
        value.reshape(-1)[context.rank :: context.size] = -1
    return found


def counts(ex: Exchange, name: str, rank: int) -> Any:
    """The updates of rank in this rank's parameters, in each element that counts them."""
    return np.unique(ex.params[name].reshape(-1)[rank :: ex.context.size])


# ---- the bound -------------------------------------------------------------------------------------------------------


class Clocks:
    """What all ranks say of their steps."""

    def __init__(self, n: int) -> None:
        self.done, self.begun = [0] * n, [0] * n

    def check(self, ex: Exchange, step: int, s: int) -> None:
        """A step begins when this rank has made so many: nobody is more than s apart, and the parameters have what they
        must have."""
        done, begun = list(self.done), list(self.begun)
        assert min(done) >= step - s
        assert max(begun) <= step + s
        for name in SHAPES:
            for rank in range(len(done)):
                seen = counts(ex, name, rank)
                if rank == ex.context.rank:
                    assert list(seen) == [step]
                else:
                    assert step - s <= seen.min() <= seen.max() <= self.done[rank]


def delayed(lot: random.Random) -> None:
    if lot.random() < 0.25:
        time.sleep(lot.uniform(0, 0.004))


@pytest.mark.parametrize("s", [1, 4])
@pytest.mark.parametrize("progress", ["inline", "thread"])
def test_no_two_workers_are_more_than_s_apart(s: int, progress: Any, transport: dict[str, Any]) -> None:
    clocks, steps = Clocks(3), 40

    def body(context: hpcomm.Context) -> None:
        lot, grads = random.Random(7 * context.rank + s), mine(context)
        with exchange(context, s, progress=progress, depth=1 + s % 2) as ex:
            for step in range(1, steps + 1):
                before = {name: value.copy() for name, value in ex.params.items()}
                delayed(lot)
                for name, value in before.items():
                    np.testing.assert_array_equal(ex.params[name], value)  # nobody writes while a worker computes
                clocks.done[context.rank] = step
                ex.step(grads)
                clocks.begun[context.rank] = step
                clocks.check(ex, step, s)
            seen = ex.stats().by_staleness
            assert len(seen) == s + 1
            assert sum(seen) == ex.stats().pulls == len(SHAPES) * steps

    run_threads(3, body, **transport)


def _trained(s: int, steps: int) -> list[Any] | None:
    """A process of its own for each rank; the second one is slow."""
    world = mpi.world()
    assert world is not None
    with hpcomm.init(world) as context, exchange(context, s, progress="thread") as ex:
        lot, grads = random.Random(context.rank), mine(context)
        for step in range(1, steps + 1):
            time.sleep(0.004 if context.rank == 1 else lot.uniform(0, 0.002))
            ex.step(grads)
            for name in SHAPES:
                assert all(counts(ex, name, rank).min() >= step - s for rank in range(context.size))
        told = [list(ex.stats().by_staleness)]
        for _ in range(2):  # what is pushed before the barrier is in the second pull
            for name in SHAPES:
                ex.pull(name)
            context.barrier()
        return [*told, [float(ex.params[name].sum()) for name in SHAPES]]


@on_both
def test_ranks_as_processes_and_everybodys_updates_in_the_end() -> None:
    n, s, steps = 3, 3, 30
    ended = mpi.spawn(n, _trained, s, steps)
    for seen, sums in ended.values:
        assert len(seen) == s + 1
        assert sum(seen) == len(SHAPES) * steps
        assert sums == [steps * float(np.prod(shape)) for shape in SHAPES.values()]
    assert sum(ended.values[0][0][1:]) > 0, "the fast ranks have begun steps without the slow one"


# ---- what a worker sees ----------------------------------------------------------------------------------------------


@on_both
def test_a_fresh_copy_makes_no_round_trip() -> None:
    """The server looks at nothing until the worker has made its steps. Its own updates are in its copy at once."""
    gate, s = threading.Event(), 3

    def body(context: hpcomm.Context) -> None:
        with exchange(context, s, topology=ParameterServer("NCC", servers=[0]), depth=s + 1) as ex:
            if not ex.params:
                gate.wait(20)
                ex.serve()
                return
            for step in range(1, s + 1):
                ex.push_pull("w", -np.ones(SHAPES["w"], F32))
                assert np.unique(ex.params["w"]) == [step]
            assert ex.stats().by_staleness == (0, 1, 1, 1)
            with pytest.raises(Timeout) as late:
                ex.push_pull("w", -np.ones(SHAPES["w"], F32), timeout=0.05)
            assert late.value.waiting_for == (0,)
            gate.set()
            np.testing.assert_array_equal(ex.pull("w"), s + 1)
            assert ex.stats().by_staleness == (1, 1, 1, 1)

    run_threads(2, body)


@on_both
def test_a_rule_with_state_shows_own_updates_with_the_next_pull_that_asks() -> None:
    def body(context: hpcomm.Context) -> None:
        with exchange(context, 2, rule=Momentum(lr=1, momentum=0.5)) as ex:
            ex.push_pull("w", -np.ones(SHAPES["w"], F32))
            np.testing.assert_array_equal(ex.params["w"], 0)
            np.testing.assert_array_equal(ex.pull("w"), 1)

    run_threads(1, body)


@on_both
def test_gradient_waits_until_its_slot_is_free() -> None:
    gate = threading.Event()

    def body(context: hpcomm.Context) -> None:
        with exchange(context, 2, topology=ParameterServer("NCC", servers=[0])) as ex:
            if not ex.params:
                gate.wait(20)
                ex.serve()
                return
            ex.gradient("w")[...] = -1
            ex.push_pull("w")
            with pytest.raises(Timeout):
                ex.gradient("w", timeout=0.05)
            for call in (ex.push, ex.push_pull):
                with pytest.raises(Timeout, match=r"nothing was sent: make the call again"):
                    call("w", -np.ones(SHAPES["w"], F32), timeout=0.05)
            gate.set()
            ex.gradient("w")[...] = -1
            ex.push_pull("w")
            np.testing.assert_array_equal(ex.pull("w"), 2)

    run_threads(2, body)


@on_both
@pytest.mark.parametrize("depth", [1, 2])
def test_a_gradient_that_is_written_before_the_pull_is_not_added(depth: int) -> None:
    def body(context: hpcomm.Context) -> None:
        with exchange(context, 3, depth=depth) as ex:
            ex.gradient("w")[...] = -1
            ex.push("w")
            ex.gradient("w")[...] = -100
            np.testing.assert_array_equal(ex.pull("w"), 1)
            np.testing.assert_array_equal(ex.push_pull("w"), 101)

    run_threads(1, body)


@pytest.mark.parametrize("progress", ["inline", "thread"])
def test_zero_takes_the_path_of_bsp_bit_for_bit(progress: Any, transport: dict[str, Any]) -> None:
    def body(context: hpcomm.Context) -> None:
        rng = np.random.default_rng(context.rank)
        with (
            hpcomm.parameter_hub(context, zeros(), consistency=SSP(0), rule=Nesterov(), progress=progress) as ours,
            hpcomm.parameter_hub(context, zeros(), consistency=BSP, rule=Nesterov(), progress=progress) as theirs,
        ):
            for _ in range(5):
                for name, shape in SHAPES.items():
                    grad = rng.standard_normal(shape).astype(F32)
                    assert ours.push_pull(name, grad).tobytes() == theirs.push_pull(name, grad).tobytes()
            assert ours.stats().by_staleness == ()

    run_threads(3, body, **transport)


# ---- who is waited for -----------------------------------------------------------------------------------------------


@on_both
def test_a_worker_that_closes_is_not_waited_for() -> None:
    parked = threading.Event()

    def body(context: hpcomm.Context) -> None:
        ex, grads = exchange(context, 1), mine(context)
        for step in range(1 if context.rank == 2 else 6):
            if context.rank == 2:
                while not parked.is_set():
                    ex.progress()
            handle = ex.push_pull_nb("w", grads["w"])
            if step == 1 and context.rank == 0:
                with pytest.raises(Timeout) as late:
                    handle.wait(0.05)
                assert 2 in late.value.waiting_for
                assert 0 not in late.value.waiting_for
                parked.set()
            handle.wait()
        ex.close()

    run_threads(3, body)


# ---- checkpoints -----------------------------------------------------------------------------------------------------


@on_both
def test_workers_go_on_from_one_clock(tmp_path: Path) -> None:
    """The shards of workers at different clocks; after they are loaded all are at the furthest one's, and the bound
    counts from there."""
    shards: list[Any] = [None] * 2
    gate = threading.Event()

    def save(context: hpcomm.Context) -> None:
        with exchange(context, 2, rule=Momentum(lr=1, momentum=0)) as ex:
            for _ in range(3 - 2 * context.rank):
                ex.step(mine(context))
            shards[context.rank] = ex.state_dict()
            assert ex.clock == 3 - 2 * context.rank

    def again(context: hpcomm.Context) -> None:
        with exchange(context, 2, rule=Momentum(lr=1, momentum=0)) as ex:
            if context.rank == 1:
                ex.step(mine(context))
            ex.load_state_dict(shards)
            assert ex.clock == 3
            first, other = (counts(ex, "w", rank) for rank in range(2))
            assert first.max() <= 3
            assert other.max() <= 1
            if context.rank == 0:
                for _ in range(2):
                    ex.push_pull("w", mine(context)["w"])
                with pytest.raises(Timeout) as late:
                    ex.push_pull("w", mine(context)["w"], timeout=0.05)
                assert late.value.waiting_for == (1,)
                gate.set()
                ex.pull("w")
            else:
                while not gate.is_set():
                    ex.progress()
                ex.push_pull("w", mine(context)["w"])
            assert ex.clock == (6 if context.rank == 0 else 4)

    run_threads(2, save)
    run_threads(2, again)

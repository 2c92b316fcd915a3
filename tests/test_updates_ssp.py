"""SSP(s) where receivers apply the rule: only updates travel, and all workers have the same parameters in the end."""

import random
import time
from dataclasses import replace
from typing import Any

import mpi
import numpy as np
import pytest
from conftest import on_both, run_threads

import hpcomm
from hpcomm import ASYNC, SGD, SSP, Adam, Exchange, Hierarchy, InvalidArgument, ParameterServer, PeerToPeer
from hpcomm.codec import Threshold
from hpcomm.topology import Request

F32 = np.float32
SHAPES = {"w": (40, 70), "b": (7,)}
RECEIVERS = ParameterServer(apply_at="receivers")


def zeros() -> dict[str, Any]:
    return {name: np.zeros(shape, F32) for name, shape in SHAPES.items()}


def exchange(context: hpcomm.Context, s: int, topology: Any = RECEIVERS, **options: Any) -> Exchange:
    given = {"rule": SGD(lr=1), "reduce": "sum", "progress": "inline", "chunk_bytes": 1024, **options}
    return Exchange(context, zeros(), topology, SSP(s), **given)


def mine(context: hpcomm.Context) -> dict[str, Any]:
    """A gradient that counts this rank's updates, in elements of its own."""
    found = zeros()
    for value in found.values():
        value.reshape(-1)[context.rank :: context.size] = -1
    return found


def counts(ex: Exchange, rank: int) -> Any:
    """The updates of rank in this rank's parameters, in each element that counts them."""
    return np.unique(np.concatenate([ex.params[name].reshape(-1)[rank :: ex.context.size] for name in SHAPES]))


@pytest.mark.parametrize("progress", ["inline", "thread"])
@pytest.mark.parametrize(
    "topology",
    [
        RECEIVERS,
        ParameterServer("CS", [1], apply_at="both"),
        {"w": ParameterServer("CC", [2], apply_at="receivers"), "b": RECEIVERS},
    ],
)
def test_no_step_begins_without_what_it_must_have(topology: Any, progress: str) -> None:
    n, s, steps = 3, 2, 25
    done = [0] * n

    def body(context: hpcomm.Context) -> dict[str, bytes]:
        lot, grads = random.Random(7 * context.rank), mine(context)
        with exchange(context, s, topology, progress=progress) as ex:
            for step in range(1, steps + 1 + context.rank):
                time.sleep(lot.uniform(0, 0.002))
                done[context.rank] = step
                ex.step(grads)
                assert all(counts(ex, rank).min() >= step - s for rank in range(n) if step - s <= steps + rank)
                assert all(counts(ex, rank).max() <= done[rank] for rank in range(n))
            assert sum(ex.stats().by_staleness) == len(SHAPES) * (steps + context.rank)
        return {name: value.copy() for name, value in ex.params.items()}

    for found in run_threads(n, body):
        for value in found.values():
            for rank in range(n):
                assert set(value.reshape(-1)[rank::n]) == {steps + rank}  # of all ranks, in the end


@pytest.mark.parametrize("progress", ["inline", "thread"])
@pytest.mark.parametrize("codec", ["float32", "float16", Threshold(0.5)])
@pytest.mark.parametrize("hosts", [Hierarchy([[0, 1], [2, 3, 4]]), Hierarchy([[0, 3], [1], [2, 4]], leaders=[0, 1, 4])])
def test_ranks_of_a_host_fold_first(hosts: Hierarchy, codec: Any, progress: str) -> None:
    """Ranks of a host make as many steps; each rank has what it must have, and in the end everything."""
    n, s, steps = 5, 2, 15
    topology, done = replace(hosts, apply_at="receivers"), [0] * n
    assert hosts.hosts is not None
    more = {rank: number for number, host in enumerate(hosts.hosts) for rank in host}

    def body(context: hpcomm.Context) -> dict[str, Any]:
        lot, grads = random.Random(7 * context.rank), mine(context)
        with exchange(context, s, topology, progress=progress, codec=codec) as ex:
            assert sorted(set(ex.plan.rows.column("owner")[ex.plan.rows.column("n_out") == 1])) == list(range(n))
            for step in range(1, steps + 1 + more[context.rank]):
                time.sleep(lot.uniform(0, 0.002))
                done[context.rank] = step
                ex.step(grads)
                assert all(counts(ex, rank).min() >= step - s for rank in range(n) if step - s <= steps + more[rank])
                assert all(counts(ex, rank).max() <= done[rank] for rank in range(n))
        return {name: value.copy() for name, value in ex.params.items()}

    for found in run_threads(n, body):
        for value in found.values():
            for rank in range(n):
                assert set(value.reshape(-1)[rank::n]) == {steps + more[rank]}


def test_servers_that_keep_masters() -> None:
    def body(context: hpcomm.Context) -> dict[str, Any]:
        with exchange(context, 3, ParameterServer("NCS", [0, 2], apply_at="both"), rule=Adam(lr=0.01)) as ex:
            for _ in range(6) if ex.params else ():
                ex.step(mine(context))
            if not ex.params:
                ex.serve()
        return dict(ex.params)

    found = [params for params in run_threads(4, body) if params]
    assert len(found) == 2
    assert all(np.array_equal(found[0][name], found[1][name]) for name in SHAPES)


@on_both
def test_a_state_is_of_one_version_and_comes_back() -> None:
    """After as many steps of all, each copy has all of them and nothing else, for state_dict settles."""
    n, steps = 3, 5

    def body(context: hpcomm.Context) -> tuple[Any, Any]:
        with exchange(context, 2, rule=Adam(lr=0.01)) as ex:
            for _ in range(steps):
                ex.step(mine(context))
            state = ex.state_dict()
            settled = {name: value.copy() for name, value in ex.params.items()}
            context.barrier()
            for _ in range(2):
                ex.step(mine(context))
            ex.load_state_dict(state)
            assert all(np.array_equal(settled[name], ex.params[name]) for name in SHAPES)
            context.barrier()
            ex.step(mine(context))
        return state["params"], ex.params

    (first, after), *others = run_threads(n, body)
    for state, params in others:
        assert np.array_equal(first, state)
        assert all(np.array_equal(after[name], params[name]) for name in SHAPES)


def test_a_learning_rate_of_its_own_for_each_step() -> None:
    def body(context: hpcomm.Context) -> dict[str, Any]:
        rates = [1.0, 0.5, 0.25, 2.0]
        with exchange(context, 2) as ex:
            for rate in rates:
                ex.set(lr=rate)
                ex.step({name: np.ones(shape, F32) for name, shape in SHAPES.items()})
        assert float(ex.params["b"][0]) < -3 * 0.25 * len(rates)
        return dict(ex.params)

    first, *others = run_threads(3, body)
    assert all(np.array_equal(first[name], params[name]) for params in others for name in SHAPES)


def test_with_no_staleness_it_is_bsp() -> None:
    def body(context: hpcomm.Context) -> tuple[Any, Any]:
        found = []
        for consistency in (hpcomm.BSP, SSP(0)):
            with Exchange(context, zeros(), RECEIVERS, consistency, rule=Adam(lr=0.01), progress="inline") as ex:
                rng = np.random.default_rng(context.rank)
                for _ in range(4):
                    ex.step({name: rng.standard_normal(shape).astype(F32) for name, shape in SHAPES.items()})
                found.append({name: value.tobytes() for name, value in ex.params.items()})
        return found[0], found[1]

    assert all(one == other for one, other in run_threads(3, body))


@pytest.mark.parametrize(
    ("topology", "s", "sentence"),
    [
        (RECEIVERS, 31, "staleness is 31; 0 to 30 are possible where receivers apply the rule"),
        (Hierarchy([[0], [1]], apply_at="receivers"), 31, "staleness is 31; 0 to 30 are possible where receivers"),
        ({"w": RECEIVERS, "b": "flat"}, 2, "only some keys have apply_at='receivers' or 'both'"),
    ],
)
def test_what_does_not_go_with_it_is_refused_on_every_rank(topology: Any, s: int, sentence: str) -> None:
    def body(context: hpcomm.Context) -> None:
        with pytest.raises(hpcomm.InvalidArgument, match=sentence):
            exchange(context, s, topology)

    run_threads(2, body)


def test_the_plan_has_a_slot_for_each_version_on_its_way() -> None:
    def body(context: hpcomm.Context) -> None:
        for s, depth, expected in ((3, 1, 5), (1, 4, 4), (30, 1, 32)):
            with exchange(context, s, depth=depth) as ex:
                assert set(ex.plan.rows.column("depth").tolist()) == {expected}
        plan = RECEIVERS.compile(Request(zeros(), context.size, depth=3, reduce="sum"))
        with pytest.raises(hpcomm.ConfigError, match=r"the plan has depth 3; SSP\(2\) where receivers apply.*needs 4"):
            Exchange(context, zeros(), consistency=SSP(2), plan=plan)

    run_threads(2, body)


def _trained(s: int, steps: int) -> list[Any]:
    world = mpi.world()
    assert world is not None
    with hpcomm.init(world) as context:
        with exchange(context, s, progress="thread") as ex:
            for step in range(1, steps + 1):
                time.sleep(0.004 if context.rank == 1 else 0)
                ex.step(mine(context))
                assert all(counts(ex, rank).min() >= step - s for rank in range(context.size))
            told = list(ex.stats().by_staleness)
        return [told, [float(ex.params[name].sum()) for name in SHAPES]]


@on_both
def test_ranks_as_processes() -> None:
    n, s, steps = 3, 3, 20
    ended = mpi.spawn(n, _trained, s, steps)
    for seen, sums in ended.values:
        assert sum(seen) == len(SHAPES) * steps
        assert sums == [steps * float(np.prod(shape)) for shape in SHAPES.values()]
    assert sum(ended.values[0][0][1:]) > 0, "the fast ranks have begun steps without the slow one"


@pytest.mark.parametrize("depth", [1, 9])
@pytest.mark.parametrize(
    "topology", [RECEIVERS, Hierarchy(((0, 1), (2,)), apply_at="receivers"), PeerToPeer()], ids=str
)
def test_under_async_slots_bound_a_worker_and_every_update_counts_in_full(topology: Any, depth: int) -> None:
    """Also where receivers or peers apply. A host's update is the mean of its ranks'."""
    n, steps = 3, 20

    def body(context: hpcomm.Context) -> None:
        grads = mine(context)
        with Exchange(context, zeros(), topology, ASYNC, SGD(lr=1), depth=depth, chunk_bytes=1024) as ex:

            def check() -> None:
                for rank in range(n):
                    share = 2 if isinstance(topology, Hierarchy) and rank < 2 else 1
                    assert counts(ex, rank).tolist() == [steps / share]

            for _ in range(steps):
                for name, grad in grads.items():
                    ex.push_pull(name, grad)
            behind = ex.stats().by_staleness
            assert (len(behind), sum(behind)) == (max(depth, 6) - 1, 2 * steps)
            saved = ex.state_dict()  # waits for ranks that have made fewer steps
            check()
            assert set(saved["row_step"].tolist()) == {steps} or topology != PeerToPeer()
            context.barrier()
            for name, grad in grads.items():
                ex.push_pull(name, grad)
            ex.load_state_dict(saved)
            check()

    run_threads(n, body)


def test_under_async_all_keys_are_applied_at_receivers_or_none() -> None:
    def body(context: hpcomm.Context) -> None:
        with pytest.raises(InvalidArgument, match="consistency is ASYNC, and only some keys have apply_at='receivers'"):
            Exchange(context, zeros(), {"w": RECEIVERS, "b": ParameterServer()}, ASYNC)

    run_threads(2, body)

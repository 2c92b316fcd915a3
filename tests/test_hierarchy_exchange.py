"""Exchanges over hierarchies: the values of the flat plan, checkpoints, and what is left when a rank is gone."""

import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Left, on_both, run_threads
from flat import grouped
from numpy.typing import NDArray

import hpcomm
from hpcomm import (
    ASYNC,
    BSP,
    SGD,
    SSP,
    Consistency,
    Exchange,
    Hierarchy,
    InvalidArgument,
    Momentum,
    ParameterServer,
)
from hpcomm.graphs import ring
from hpcomm.topology import HostGraph, Request
from hpcomm.topology.by_key import ByKey

F32 = np.float32
SHAPES = {"conv": (37, 29), "bias": (), "fc": (211, 65), "norm": (64,)}
RULE = Momentum(lr=0.5, momentum=0.5)
STEPS = 4


def params() -> dict[str, NDArray[np.float32]]:
    return {name: np.full(shape, i, F32) for i, (name, shape) in enumerate(SHAPES.items())}


def gradient(name: str, rank: int, step: int) -> NDArray[np.float32]:
    """Small whole numbers, so that every order of a sum has the same bits."""
    rng = np.random.default_rng([len(name), rank, step])
    return rng.integers(-8, 9, SHAPES[name]).astype(F32)


def step_of(ex: Exchange, rank: int, step: int) -> None:
    handles = [ex.push_pull_nb(name, gradient(name, rank, step)) for name in SHAPES]
    for handle in handles:
        handle.wait()


def steps_of(ex: Exchange, rank: int, steps: int) -> None:
    for step in range(steps):
        step_of(ex, rank, step)


def trained(ctx: hpcomm.Context, topology: Any, **options: Any) -> dict[str, NDArray[np.float32]]:
    with Exchange(ctx, params(), topology, rule=RULE, chunk_bytes=1024, **grouped(options)) as ex:
        steps_of(ex, ctx.rank, STEPS)
        return {name: value.copy() for name, value in ex.params.items()}


HOSTS = [[0, 1, 2], [3, 4], [5, 6], [7]]
RACKS = [[0, 1, 2, 3, 4], [5, 6, 7]]
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "hosts": (Hierarchy(HOSTS), {}),
    "round robin": (Hierarchy([[0, 2, 4, 6], [1, 3, 5, 7]]), {"depth": 2}),
    "racks": (Hierarchy(HOSTS, RACKS), {"cores": 2}),
    "leaders": (Hierarchy(HOSTS, RACKS, leaders=[1, 3, 6, 7]), {}),
    "ring": (Hierarchy(HOSTS, (), top="ring"), {}),
    "ring of racks": (Hierarchy(HOSTS, [[0, 1, 2], [3, 4], [5, 6, 7]], top="ring"), {"progress": "thread"}),
    "16 bits": (Hierarchy(HOSTS, RACKS), {"codec": "float16", "reduce": "sum"}),
    "16 bits for one key": (Hierarchy(HOSTS, RACKS), {"codec_out": {"fc": "bfloat16"}, "codec": {"conv": "float16"}}),
    "by key": ({"fc": Hierarchy(HOSTS, RACKS), "conv": Hierarchy([[0, 2, 4, 6], [1, 3, 5, 7]], top="ring")}, {}),
}


@pytest.mark.some(7)
@on_both
@pytest.mark.parametrize("case", CASES)
def test_a_hierarchy_has_the_values_of_the_flat_plan(case: str) -> None:
    topology, options = CASES[case]
    options = {"progress": "inline", **options}

    def body(ctx: hpcomm.Context) -> None:
        flat, found = (trained(ctx, each, **options) for each in ("flat", topology))
        for name, value in flat.items():
            assert np.array_equal(value, found[name]), name

    run_threads(8, body)


APART: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "SSP": (Hierarchy(HOSTS), SSP(2), {}),
    "SSP of racks": (Hierarchy(HOSTS, RACKS), SSP(1), {"cores": 2, "progress": "thread"}),
    "ASYNC": (Hierarchy(HOSTS), ASYNC, {"depth": 2}),
    "ASYNC, sums": (Hierarchy(HOSTS, RACKS), ASYNC, {"reduce": "sum"}),
    "by key": ({"fc": Hierarchy(HOSTS, RACKS), "conv": Hierarchy([[0, 2, 4, 6], [1, 3, 5, 7]])}, SSP(3), {}),
    "by key, ASYNC": ({"fc": Hierarchy(HOSTS, RACKS), "norm": "flat"}, ASYNC, {"reduce": "sum"}),
}


@pytest.mark.some(4)
@on_both
@pytest.mark.parametrize("case", APART)
def test_groups_that_run_apart_count_every_update_once(case: str) -> None:
    """With SGD, which treats all updates alike, what comes of them does not depend on their order."""
    topology, consistency, options = APART[case]
    mean = options.get("reduce") != "sum"
    groups = [[0, 1, 2], [3, 4], [5, 6], [7]] if consistency == ASYNC else [list(range(8))]

    def body(ctx: hpcomm.Context) -> None:
        everything: dict[str, Any] = {"progress": "inline", **options}
        with Exchange(
            ctx,
            params(),
            topology,
            rule=SGD(lr=0.25),
            consistency=consistency,
            chunk_bytes=1024,
            **grouped(everything),
        ) as ex:
            steps_of(ex, ctx.rank, STEPS)
            ex.context.barrier()
            ex.load_state_dict(ex.state_dict())
            for name, start in params().items():
                expected = start.astype(np.float64)
                for group in groups:
                    total = sum(
                        gradient(name, rank, step).astype(np.float64) for rank in group for step in range(STEPS)
                    )
                    expected = expected - 0.25 * total / (len(group) if mean else 1)
                assert np.allclose(ex.params[name], expected, rtol=1e-6, atol=1e-6), name

    run_threads(8, body)


@on_both
@pytest.mark.parametrize("consistency", [ASYNC, SSP(3)])
@pytest.mark.parametrize("by_key", [False, True])
def test_parameters_come_with_the_answer_to_a_push_where_groups_run_apart(
    by_key: bool, consistency: hpcomm.Consistency
) -> None:
    """Of flat keys beside others too: a pull without a push brings nothing new, and a key has one push under way."""
    refused = threading.Event()

    def body(ctx: hpcomm.Context) -> None:
        hosts = Hierarchy([[0, 1], [2, 3]])
        topology: Any = {"fc": hosts} if by_key else hosts
        options: dict[str, Any] = {"rule": SGD(lr=1), "reduce": "sum", "depth": 2, "progress": "inline"}
        with Exchange(ctx, params(), topology, consistency, **grouped(options)) as ex:
            steps_of(ex, ctx.rank, 1)
            before = {name: value.copy() for name, value in ex.params.items()}
            ctx.barrier()
            for name, value in before.items():
                assert np.array_equal(ex.pull(name), value)
            assert ex.stats().by_staleness == ()
            ctx.barrier()
            if ctx.rank == 1:  # rank 0's push waits for this one's
                assert refused.wait(20)
            ex.push("fc", gradient("fc", ctx.rank, 1))
            if ctx.rank == 0:
                with pytest.raises(InvalidArgument, match="key fc is under way since push 2 of rank 0"):
                    ex.push("fc", gradient("fc", ctx.rank, 2))
                refused.set()
            ex.pull("fc")
            ctx.barrier()
            ex.load_state_dict(ex.state_dict())
            for name, start in params().items():
                total = sum(gradient(name, rank, step) for rank in range(4) for step in range(1 + (name == "fc")))
                assert np.allclose(ex.params[name], start - total, rtol=1e-6, atol=1e-6), name

    run_threads(4, body)


@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_a_quorum_of_hosts_goes_on_without_a_host(reduce: str, transport: dict[str, Any]) -> None:
    """Both ranks of the host that comes late are told, get what the others have, and count again from there."""
    passed, meet, hosts = threading.Event(), threading.Barrier(5, timeout=20), Hierarchy([[0, 1], [2, 3], [4]])
    folded = threading.Barrier(3, timeout=20)

    def made(*folds: tuple[tuple[int, ...], int]) -> dict[str, NDArray[np.float32]]:
        want = params()
        for ranks, step in folds:
            for name in SHAPES:
                total = sum(gradient(name, rank, step) for rank in ranks)
                want[name] = want[name] - (total / F32(len(ranks)) if reduce == "mean" else total)
        return want

    def same(ex: Exchange, want: dict[str, NDArray[np.float32]]) -> None:
        for name, value in want.items():
            assert np.allclose(ex.params[name], value, rtol=1e-5, atol=1e-5), name

    def body(ctx: hpcomm.Context) -> tuple[int, list[int]]:
        enough = Consistency(quorum=2, late="drop", grace=0)
        options: dict[str, Any] = {"rule": SGD(lr=1), "chunk_bytes": 1024, "progress": "thread", "reduce": reduce}
        with Exchange(ctx, params(), hosts, enough, **grouped(options)) as ex:
            if ctx.rank in (2, 3):
                assert passed.wait(20)
                same(ex, params())
                step_of(ex, ctx.rank, 0)
                assert (ex.version(), ex.late) == (2, tuple(SHAPES))
                assert ex.stats().dropped_at == 2
            else:
                for step in range(2):
                    step_of(ex, ctx.rank, step)
                    assert (ex.version(), ex.late) == (step + 1, ())
                    folded.wait()
                passed.set()
            others = ((0, 1, 4), 0), ((0, 1, 4), 1)
            same(ex, made(*others))
            meet.wait()
            if ctx.rank < 4:  # now the last host is late
                step_of(ex, ctx.rank, 2)
                assert (ex.version(), ex.late) == (3, ())
                same(ex, made(*others, ((0, 1, 2, 3), 2)))
            meet.wait()
            stats = ex.stats()
            assert stats.by_inputs == (() if stats.reduces == 0 else (0, 0, stats.reduces, 0))
            ctx.barrier()
            ex.load_state_dict(ex.state_dict())
            assert ex.version() == 3
            same(ex, made(*others, ((0, 1, 2, 3), 2)))
            return stats.reduces, [peer.late for peer in stats.peers]

    told = run_threads(5, body, **transport)
    late = np.sum([late for _, late in told], axis=0).tolist()
    assert late == [0, 0, sum(reduces for reduces, _ in told) // 3, 0, 0]


@on_both
def test_a_quorum_needs_the_same_hosts_for_all_keys() -> None:
    def body(ctx: hpcomm.Context) -> None:
        topology = {"fc": Hierarchy([[0, 1], [2, 3]]), "conv": Hierarchy([[0, 2], [1, 3]])}
        with pytest.raises(hpcomm.ConfigError, match="with a quorum the groups of all keys are the same"):
            Exchange(ctx, params(), topology, Consistency(quorum=1))

    run_threads(4, body)


def test_the_same_groups_give_the_same_bits() -> None:
    """With numbers whose sums depend on their order."""

    def body(ctx: hpcomm.Context) -> list[bytes]:
        found = []
        for _ in range(3):
            with Exchange(ctx, params(), Hierarchy(HOSTS, RACKS), rule=RULE, chunk_bytes=1024) as ex:
                for step in range(STEPS):
                    for name in SHAPES:
                        ex.push(name, gradient(name, ctx.rank, step) / F32(3))
                    for name in SHAPES:
                        ex.pull(name)
                found.append(b"".join(value.tobytes() for value in ex.params.values()))
        return found

    every = run_threads(8, body)
    assert len({found for rank in every for found in rank}) == 1


@pytest.mark.some(2)
@on_both
@pytest.mark.parametrize(
    "consistency", [BSP, Consistency(quorum=1, late="drop", grace=math.inf)], ids=["BSP", "quorum"]
)
def test_a_checkpoint_goes_over_to_another_hierarchy(consistency: Consistency, tmp_path: Path) -> None:
    def body(ctx: hpcomm.Context) -> None:
        whole = trained(ctx, "flat", progress="inline")
        options: dict[str, Any] = {"rule": RULE, "chunk_bytes": 1024, "progress": "inline"}
        with (
            Exchange(ctx, params(), Hierarchy(HOSTS, RACKS), consistency, **grouped(options)) as ex,
            hpcomm.Checkpointer(ex, tmp_path, every=1) as ckpt,
        ):
            for step in range(2):
                step_of(ex, ctx.rank, step)
                ckpt.after(step + 1)
        for topology in (
            Hierarchy(HOSTS, RACKS),
            Hierarchy([[0, 1], [2, 3, 4, 5, 6, 7]], top="ring"),
            ParameterServer(),
        ):
            with Exchange(ctx, params(), topology, **grouped(options)) as ex:
                found = hpcomm.restore(ex, tmp_path)
                assert found is not None
                assert found.step == 2
                for step in range(2, STEPS):
                    step_of(ex, ctx.rank, step)
                for name, value in whole.items():
                    assert np.array_equal(value, ex.params[name]), name

    run_threads(8, body)


@on_both
@pytest.mark.parametrize("by_key", [False, True])
def test_the_others_go_on_when_a_rank_that_owns_nothing_has_left(by_key: bool) -> None:
    """The hierarchy is then that of those that are left."""
    found = []

    def body(ctx: hpcomm.Context) -> None:
        tree = Hierarchy([[0, 1], [2, 3], [4, 5]], leaders=[0, 2, 4])
        servers = ParameterServer("CS", [0, 2, 4])
        topology: Any = {"conv": servers, "bias": tree, "fc": tree, "norm": servers} if by_key else tree
        ex = Exchange(ctx, params(), topology, rule=RULE, chunk_bytes=1024, progress="inline", reduce="sum")
        if ctx.rank == 3:
            steps_of(ex, ctx.rank, 1)
            ctx.abort("test")
            raise Left
        with pytest.raises(hpcomm.PeerFailed):
            steps_of(ex, ctx.rank, 100)
        recovered = hpcomm.recover(ex)
        fresh = recovered.exchange
        assert recovered.lost == (3,)
        left: Any = Hierarchy([[0, 1], [2], [3, 4]], leaders=[0, 2, 3])
        if by_key:
            few = ParameterServer("CS", [0, 2, 3])
            left = ByKey({"conv": few, "bias": left, "fc": left, "norm": few})
        assert fresh.plan == left.compile(Request(params(), 5, chunk_bytes=1024, reduce="sum"))
        step_of(fresh, fresh.context.rank, 7)
        found.append({name: value.tobytes() for name, value in fresh.params.items()})
        fresh.context.close()
        raise Left

    run_threads(6, body, timeout=10)
    assert len(found) == 5
    assert all(each == found[0] for each in found)


@on_both
@pytest.mark.parametrize("consistency", [ASYNC, SSP(2)])
def test_groups_that_run_apart_go_on_when_a_rank_has_left(consistency: hpcomm.Consistency) -> None:
    """What its host had folded before counts, and the host goes on with the rank that is left."""
    steps = 5

    def body(ctx: hpcomm.Context) -> None:
        tree = Hierarchy([[0, 1], [2, 3], [4, 5]], leaders=[0, 2, 4])
        options: dict[str, Any] = {"rule": SGD(lr=1), "chunk_bytes": 1024, "reduce": "sum", "progress": "inline"}
        ex = Exchange(ctx, params(), tree, consistency, **grouped(options))
        if ctx.rank == 3:
            steps_of(ex, ctx.rank, 1)
            ctx.abort("test")
            raise Left
        with pytest.raises(hpcomm.PeerFailed):
            steps_of(ex, ctx.rank, 1000)
        recovered = hpcomm.recover(ex)
        fresh = recovered.exchange
        assert recovered.lost == (3,)
        left = Hierarchy([[0, 1], [2], [3, 4]], leaders=[0, 2, 3])
        assert fresh.plan == left.compile(Request(params(), 5, chunk_bytes=1024, reduce="sum", consistency=consistency))
        before = {name: value.copy() for name, value in fresh.params.items()}
        for _ in range(steps):
            step_of(fresh, fresh.context.rank, 7)
        fresh.context.barrier()
        fresh.load_state_dict(fresh.state_dict())
        for name, value in fresh.params.items():
            total = sum(gradient(name, rank, 7) for rank in range(5))
            assert np.array_equal(value, before[name] - F32(steps) * total), name
        fresh.context.close()
        raise Left

    run_threads(6, body, timeout=10)


@on_both
@pytest.mark.parametrize("gone", [3, 4])
def test_a_quorum_of_hosts_goes_on_when_a_rank_has_left(gone: int) -> None:
    """One chunk, which rank 0 owns. With its last rank a host is gone: a quorum of three hosts becomes one of two."""

    def body(ctx: hpcomm.Context) -> None:
        hosts, one = Hierarchy([[0, 1], [2, 3], [4]], leaders=[0, 2, 4]), np.ones(16, F32)
        enough = Consistency(quorum=3, late="drop", grace=10)
        options: dict[str, Any] = {"rule": SGD(lr=1), "reduce": "sum", "progress": "inline"}
        ex = Exchange(ctx, {"w": 0 * one}, hosts, enough, **grouped(options))
        assert {row.owner for row in ex.plan.rows if row.action == "apply"} == {0}
        if ctx.rank == gone:
            ex.push_pull("w", one)
            ctx.abort("test")
            raise Left

        def go_on() -> None:
            while True:
                ex.push_pull("w", one)

        with pytest.raises(hpcomm.PeerFailed):
            go_on()
        recovered = hpcomm.recover(ex)
        fresh = recovered.exchange
        assert recovered.lost == (gone,)
        assert {len(row.in_edges) for row in fresh.plan.rows if row.action == "apply"} == {3 if gone == 3 else 2}
        before = fresh.params["w"].copy()
        for step in range(3):
            fresh.push_pull("w", one)
            assert (fresh.version(), fresh.late) == (step + 1, ())
        assert np.array_equal(fresh.params["w"], before - 12 * one)
        fresh.context.close()
        raise Left

    run_threads(5, body, timeout=10)


@on_both
def test_the_others_go_on_when_a_leader_that_owns_nothing_has_left() -> None:
    """One chunk, which rank 0 owns: rank 2 folds for its host, and takes no parameters with it."""

    def body(ctx: hpcomm.Context) -> None:
        one = np.ones(16, F32)
        ex = Exchange(ctx, {"w": 0 * one}, Hierarchy([[0, 1], [2, 3]]), rule=RULE, progress="inline", reduce="sum")
        assert {row.owner for row in ex.plan.rows} == {0, 2}
        if ctx.rank == 2:
            ex.push_pull("w", one)
            ctx.abort("test")
            raise Left

        def go_on() -> None:
            while True:
                ex.push_pull("w", one)

        with pytest.raises(hpcomm.PeerFailed):
            go_on()
        recovered = hpcomm.recover(ex)
        assert recovered.lost == (2,)
        recovered.exchange.push_pull("w", one)
        recovered.exchange.context.close()
        raise Left

    run_threads(4, body, timeout=10)


@on_both
def test_a_graph_of_hosts_is_not_rebuilt() -> None:
    """Nobody hangs: all that are left hear the same."""

    def body(ctx: hpcomm.Context) -> None:
        one = np.ones(16, F32)
        topology = HostGraph(ring, ((0, 1), (2, 3)))
        ex = Exchange(ctx, {"w": 0 * one}, topology, rule=hpcomm.Average(), progress="inline")
        ex.push_pull("w", one)
        if ctx.rank == 3:
            ctx.barrier()  # a neighbour may still be in its first push_pull
            ctx.abort("test")
            raise Left

        def go_on() -> None:
            ctx.barrier()  # rank 3 may be through, and gone, before the others are
            while True:
                ex.push_pull("w", one)

        with pytest.raises(hpcomm.PeerFailed):
            go_on()
        with pytest.raises(hpcomm.NotSupported, match="each host has its own model"):
            hpcomm.recover(ex)
        raise Left

    run_threads(4, body, timeout=10)


@pytest.mark.some(8)
@on_both
@pytest.mark.parametrize(("top", "apply_at"), [("sharded", "owners"), ("ring", "owners"), ("sharded", "receivers")])
@pytest.mark.parametrize("gone", [0, 3, 6, 7])
def test_all_name_a_rank_that_dies_in_any_level(gone: int, top: str, apply_at: str) -> None:
    """Rank 0 owns, 3 leads a host of a rack, 6 leads a rack, 7 leads nothing."""
    hosts, racks = [[0, 1], [2, 3], [4, 5], [6, 7]], [[0, 1, 2, 3], [4, 5, 6, 7]]

    def body(ctx: hpcomm.Context) -> None:
        topology = Hierarchy(hosts, racks, leaders=[0, 3, 4, 6], top=top, apply_at=apply_at)
        ex = Exchange(ctx, params(), topology, rule=RULE, chunk_bytes=1024, progress="inline")
        if ctx.rank == gone:
            steps_of(ex, gone, 1)  # all have made the exchange then
            for name in ("conv", "fc"):  # two keys are under way when it goes
                ex.push(name, gradient(name, gone, 1))
            ctx.abort("test")
            raise Left
        with pytest.raises(hpcomm.PeerFailed) as error:
            steps_of(ex, ctx.rank, 3)
        assert error.value.ranks == (gone,)
        raise Left

    run_threads(8, body, timeout=10)

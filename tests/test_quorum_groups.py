"""Groups of keys under a quorum: each group has versions of its own, and is pushed at times of its own."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import mpi
import numpy as np
import pytest
from conftest import on_both, run_threads

import hpcomm
from hpcomm import (
    SGD,
    Checkpointer,
    ConfigError,
    Consistency,
    Context,
    EngineOptions,
    Exchange,
    InvalidArgument,
    ParameterServer,
)
from hpcomm.topology import Request

F32 = np.float32
SIZES = {"a": 700, "c": 90, "b": 3}
GROUPS = (("a", "b"), ("c",))
Folds = list[tuple[tuple[int, ...], int]]  # the ranks whose updates are in it, and the number of the update


def zeros() -> dict[str, Any]:
    return {name: np.zeros(size, F32) for name, size in SIZES.items()}


def update(name: str, rank: int, n: int) -> Any:
    """Even numbers, whose mean of two ranks is whole."""
    rng = np.random.default_rng([ord(name), rank, n])
    return 2 * rng.integers(-50, 50, SIZES[name]).astype(F32)


def quorum(n: int, grace: float = 0) -> Consistency:
    return Consistency(quorum=n, late="drop", grace=grace)


def after(name: str, folds: Folds) -> Any:
    want = np.zeros(SIZES[name], F32)
    for ranks, n in folds:
        want -= sum(update(name, rank, n) for rank in ranks) / F32(len(ranks))
    return want


def push(ex: Exchange, group: tuple[str, ...], n: int) -> None:
    """The keys of a group, started together."""
    handles = [ex.push_pull_nb(name, update(name, ex.context.rank, n)) for name in group]
    for handle in handles:
        handle.wait()


def steps_of(shard: Any) -> dict[str, int]:
    return {str(shard["keys"][key]): int(step) for key, step in zip(shard["row_key"], shard["row_step"], strict=True)}


@on_both
def test_groups_have_versions_of_their_own(tmp_path: Path) -> None:
    """Ranks 0 and 1 push the first group twice as often as the second; rank 2 comes late to both, and then is in
    time for the second one, for which rank 0 is missing."""
    first, second = GROUPS
    passed, caught_up = threading.Event(), threading.Event()
    pair, meet = threading.Barrier(2, timeout=20), threading.Barrier(3, timeout=20)

    def body(ctx: Context) -> list[int]:
        me = ctx.rank
        with Exchange(
            ctx, zeros(), consistency=quorum(2), rule=SGD(lr=1), engine=EngineOptions(groups=GROUPS), progress="thread"
        ) as ex:
            if me == 2:
                assert passed.wait(20)
                push(ex, second, 0)
                assert (ex.late, ex.version("c"), ex.version("a")) == (("c",), 1, 0)
                push(ex, first, 0)
                assert (set(ex.late), ex.version("c"), ex.version("b"), ex.version()) == ({"a", "b", "c"}, 1, 2, 2)
                caught_up.set()
            else:
                push(ex, first, 0)
                pair.wait()  # else who has closed its fold may be late for the next one
                push(ex, first, 1)
                push(ex, second, 0)
                assert (ex.late, ex.version("c"), ex.version("a"), ex.version()) == ((), 1, 2, 2)
                pair.wait()
                passed.set()
                assert caught_up.wait(20)
            meet.wait()
            if me != 0:
                push(ex, second, 1)
                assert ex.version("c") == 2
            if me != 2:
                push(ex, first, 2)
                assert ex.version("b") == 3
            meet.wait()
            both: Folds = [((0, 1), 0), ((0, 1), 1), ((0, 1), 2)]
            want = {"a": after("a", both), "b": after("b", both), "c": after("c", [((0, 1), 0), ((1, 2), 1)])}
            assert ex.stats().dropped == (len(SIZES) if me == 2 else 0)  # of both groups: each key is a share
            with Checkpointer(ex, tmp_path, every=3) as ckpt:
                ckpt.after(3)
        with Exchange(
            ctx, zeros(), consistency=quorum(2), rule=SGD(lr=1), engine=EngineOptions(groups=GROUPS), progress="thread"
        ) as ex:
            assert hpcomm.restore(ex, tmp_path) is not None
            for name, value in want.items():
                np.testing.assert_array_equal(ex.params[name], value, err_msg=name)
            shard = ex.state_dict()
            steps = steps_of(shard)
            assert steps.items() <= {"a": 3, "b": 3, "c": 2}.items()
            meet.wait()
            push(ex, second, 3)  # of all three, or of two of them
            meet.wait()
            assert (ex.version("c"), ex.version("a")) == (1, 0)
            return sorted(steps.values())

    assert sum(len(steps) for steps in run_threads(3, body)) >= 3  # each key has an owner


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        ([["a", "b"], ["b", "c"]], "groups has key 'b' twice"),
        ([["a", "a"], ["b", "c"]], "groups has key 'a' twice"),
        ([["a"], ["c"]], "groups leaves out key 'b'"),
        ([["a", "b"], ["c", "d"]], "groups has an entry for 'd', which is not a key"),
        (["a", "b", "c"], "groups has 'a': must be sequences of names"),
        ("abc", "groups has 'abc': must be sequences of names"),
        (3, "groups has 3: must be sequences of names"),
    ],
)
@pytest.mark.parametrize("consistency", [quorum(1), hpcomm.BSP])
def test_each_key_is_in_one_group(alone: Context, groups: Any, sentence: str, consistency: Consistency) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        Exchange(alone, zeros(), consistency=consistency, engine=EngineOptions(groups=groups))


@pytest.mark.parametrize(
    ("theirs", "sentence"),
    [
        (None, "rank 1 gives 2 configurations of keys and rank 0 gives 1: .* same group"),
        ([["a", "c"], ["b"]], "groups"),
        ([["a"], ["b", "c"]], "rank 1 has 1 keys and rank 0 has 2 of one configuration: .* same groups"),
    ],
)
def test_ranks_with_other_groups_are_told(theirs: Any, sentence: str) -> None:
    def body(ctx: Context) -> None:
        groups = GROUPS if (theirs is None) == (ctx.rank == 1) else theirs
        with pytest.raises(ConfigError, match=sentence):
            Exchange(ctx, zeros(), consistency=quorum(1), engine=EngineOptions(groups=groups))

    run_threads(2, body)


def test_without_a_quorum_groups_change_nothing(alone: Context) -> None:
    for consistency in (hpcomm.BSP, hpcomm.SSP(2), hpcomm.ASYNC):
        with Exchange(alone, zeros(), consistency=consistency, engine=EngineOptions(groups=GROUPS)) as ex:
            assert len(ex._schemes) == 1
            assert ex._state.made.engine.groups == GROUPS
            ex.push_pull("a", update("a", 0, 0))
            ex.push_pull("a", update("a", 0, 1))  # each key is counted by itself
            ex.push_pull("c", update("c", 0, 0))
            assert (ex.version("a"), ex.version("b"), ex.version("c"), ex.version()) == (2, 0, 1, 2)


def test_a_plan_is_of_one_scheme(alone: Context) -> None:
    plan = ParameterServer().compile(Request(zeros(), 1))
    with pytest.raises(InvalidArgument, match="with a quorum leave out plan, or groups"):
        Exchange(alone, zeros(), consistency=quorum(1), plan=plan, engine=EngineOptions(groups=GROUPS))


def _dies() -> dict[str, Any] | None:
    """Rank 2 dies after three pushes of the first group and one of the second; rank 0 owns everything."""
    first = hpcomm.init(mpi.world())
    topology, consistency = ParameterServer(servers=[0]), quorum(3, float("inf"))
    ex = Exchange(
        first,
        zeros(),
        topology,
        consistency,
        SGD(lr=1),
        reduce="sum",
        engine=EngineOptions(groups=GROUPS),
        progress="inline",
    )
    for n in range(3):
        push(ex, GROUPS[0], n)
        if n == 1:
            push(ex, GROUPS[1], n)
    told = [ex.version("a"), ex.version("c")]
    with pytest.raises(hpcomm.PeerFailed):
        _goes_on_without_the_last(ex)
    recovered = hpcomm.recover(ex)
    ex = recovered.exchange
    shard = ex.state_dict()
    for group in reversed(GROUPS):
        push(ex, group, 4)
    found = {name: value.tolist() for name, value in ex.params.items()}
    versions = [ex.version("a"), ex.version("c")]
    ex.close()
    ex.context.close()
    first.close()
    return {"told": told, "clock": recovered.clock, "steps": steps_of(shard), "versions": versions, "found": found}


def _goes_on_without_the_last(ex: Exchange) -> None:
    ex.context.barrier()  # all have ended their pushes
    if ex.context.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    push(ex, GROUPS[0], 3)


def test_recovery_goes_on_from_the_version_of_each_group() -> None:
    ended = mpi.spawn(3, _dies, check=False)
    assert ended.codes == [0, 0, -signal.SIGKILL], ended.err
    pushes = {"a": (0, 1, 2), "b": (0, 1, 2), "c": (1,)}
    for rank in (0, 1):
        one = ended.values[rank]
        assert (one["told"], one["clock"], one["versions"]) == ([3, 1], 3, [1, 1])
        assert one["steps"] == ({"a": 3, "b": 3, "c": 1} if rank == 0 else {})
        for name, numbers in pushes.items():
            want = -sum(update(name, of, n) for n in numbers for of in (0, 1, 2))
            want -= update(name, 0, 4) + update(name, 1, 4)
            np.testing.assert_array_equal(one["found"][name], want, err_msg=name)

"""Broadcasts over trees: every rank has what the root pushed, step by step, whatever the tree."""

from typing import Any

import mpi
import numpy as np
import pytest
from flat import grouped
from hypothesis import given
from hypothesis import strategies as st

import hpcomm
from hpcomm import InvalidArgument, Tree
from hpcomm.topology import Request

STEPS = 5
TREES: dict[str, Tree] = {
    "binary": Tree(),
    "chain": Tree(arity=1, root=2),
    "star": Tree(arity=9, root=1),
    "by hand": Tree(parents=[4, 0, 0, 4, -1]),
}


def given_by_root(step: int, n: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return ((np.arange(n) * (step + 3)) % 251).astype(np.float32)


def in_two_calls(ex: hpcomm.Exchange, key: str, new: Any, root: int) -> Any:
    """The parameters after an apply; NaN where the model that is kept is not right, or where nothing changes it."""
    ex.split.fold(key, new if ex.context.rank == root else None)
    keeps = np.array_equal(ex.split.gather(key), new) and np.isclose(
        ex.split.squares(key), new.astype(np.float64) @ new
    )
    ex.split.apply(key)
    ex.split.fold(key, nothing=ex.context.rank % 2 == root % 2)
    return ex.split.apply(key, 2) * (1 if keeps else np.nan)


def broadcasts(options: dict[str, Any]) -> dict[str, str]:
    """What went wrong with each tree."""
    told = {}
    with hpcomm.init(mpi.world(), timeout=30) as ctx:
        for name, tree in TREES.items():
            root = tree.above(ctx.size).index(-1)
            start = {"a": np.zeros(100_003, np.float32), "b": np.zeros(7, np.float32)}
            told[name] = ""
            with hpcomm.broadcast(ctx, start, tree, **grouped(options)) as ex:
                for step in range(STEPS):
                    for key, value in start.items():
                        new = given_by_root(step, value.size)
                        if options.get("split"):
                            got = in_two_calls(ex, key, new, root)
                        else:
                            got = ex.push_pull(key, new) if ctx.rank == root else ex.push_pull(key)
                        if not np.array_equal(got, new):
                            told[name] += f"rank {ctx.rank}, step {step}, {key}: {int((got != new).sum())} are wrong; "
                if ctx.rank != root:
                    with pytest.raises(hpcomm.NotSupported, match="gives no updates"):
                        ex.gradient("a")
                saved = ex.state_dict()
                ex.load_state_dict(saved)
                if not np.array_equal(ex.params["a"], given_by_root(STEPS - 1, 100_003)):
                    told[name] += "what was loaded is wrong; "
    return told


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("split", [False, True])
def test_all_have_what_the_root_pushed(transport: str, split: bool) -> None:
    options: dict[str, Any] = {"chunk_bytes": 4096, "split": split} if transport == "shm" else {"split": split}
    job = mpi.spawn(5, broadcasts, options, timeout=90, env={"HPCOMM_TRANSPORT": transport})
    assert [rank for rank in job.values if any(rank.values())] == []


@given(st.integers(1, 40), st.integers(1, 6), st.data())
def test_trees_by_arity(size: int, arity: int, data: st.DataObject) -> None:
    root = data.draw(st.integers(0, size - 1))
    above = Tree(arity, root).above(size)
    assert above.count(-1) == 1
    assert above[root] == -1
    assert max(above.count(rank) for rank in range(size)) <= arity
    assert set(Tree(arity, root).roles(size)[1]) == {root, *above} - {-1}
    for rank in range(size):
        at, steps = rank, 0
        while at != root:
            at, steps = above[at], steps + 1
            assert steps < size


@given(st.integers(1, 12), st.data())
def test_what_is_left_is_a_tree(size: int, data: st.DataObject) -> None:
    parents = [-1, *(data.draw(st.integers(0, rank - 1)) for rank in range(1, size))]
    left = data.draw(st.lists(st.sampled_from(range(size)), min_size=1, unique=True).map(sorted))
    above = Tree(parents=parents).among(left, size).above(len(left))
    hpcomm.plan.Plan.tree({"a": 5}, above)  # refuses what is none
    if 0 in left:
        assert above[left.index(0)] == -1


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Tree(arity=0), "arity is 0: must be 1"),
        (lambda: Tree(root=-1), "root is -1"),
        (lambda: Tree(parents=[-2, 0]), "parents is -2"),
        (lambda: Tree(parents=3), "parents is 3: must be a sequence"),  # type: ignore[arg-type]
        (lambda: Tree(root=3).above(3), "root is 3: must be 0 to 2"),
        (lambda: Tree(parents=[-1, 0]).above(3), "parents has 2 ranks: this job has 3"),
        (lambda: Tree(parents=[-1, 2, 1]).compile(Request({"a": 5}, 3)), "go in a circle"),
    ],
)
def test_bad_trees_are_refused(make: Any, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        make()


def test_bad_settings_are_refused() -> None:
    start = {"a": np.zeros(64, np.float32)}
    with hpcomm.init() as ctx:
        for options, told in (
            ({"topology": "flat"}, "must be a Tree"),
            ({"consistency": hpcomm.ASYNC}, "consistency is ASYNC"),
        ):
            with pytest.raises(InvalidArgument, match=told):
                hpcomm.broadcast(ctx, start, **grouped(options))

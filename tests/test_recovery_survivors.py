"""recover(ex, survivors=True): ranks that own parameters are killed between push and pull, and the others go on from
what they have."""

import itertools
import os
import signal
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import mpi
import numpy as np
import pytest
from flat import grouped

import hpcomm
from hpcomm import BSP, SGD, SSP, Consistency, Exchange, Hierarchy, Momentum, ParameterServer, _core
from hpcomm.codec import TopK
from hpcomm.recovery import recovery

F32 = np.float32
SIZES = {"w": 600, "b": 5}
STEP = 2  # in which a rank dies
PLACES = ("before", "w pushed", "pushed", "w pulled", "pulled")

KINDS: dict[str, dict[str, Any]] = {
    "flat": {},
    "receivers": {"topology": ParameterServer(apply_at="receivers")},
    "hosts": {"topology": Hierarchy([[0, 1], [2, 3]])},
    "peers": {"topology": hpcomm.PeerToPeer()},
    "quorum": {"consistency": Consistency(quorum=3, late="drop", grace=float("inf")), "groups": [["w"], ["b"]]},
    "SSP": {"consistency": SSP(2)},
    "wide": {"codec_out": "bfloat16"},
}


def update(name: str, rank: int, step: int) -> Any:
    """Whole numbers of which sums and halves are exact."""
    rng = np.random.default_rng([ord(name), rank, step])
    return 64 * rng.integers(-8, 9, SIZES[name]).astype(F32)


def kill(now: bool) -> None:
    if now:
        os.kill(os.getpid(), signal.SIGKILL)


def rows_of(shard: Any) -> list[Any]:
    """Key, offset, count, step, parameters and state of each row."""
    at = state_at = 0
    found = []
    for key, offset, count, step in zip(
        *(shard[f"row_{name}"].tolist() for name in ("key", "offset", "count", "step")), strict=True
    ):
        n = count * int(shard["slots"][key])
        params, state = shard["params"][at : at + count], shard["state"][state_at : state_at + n]
        found.append([str(shard["keys"][key]), offset, count, step, params.tolist(), state.tolist()])
        at, state_at = at + count, state_at + n
    return found


def residuals_of(shard: Any) -> dict[str, Any]:
    """By key, what this rank holds back, as a worker and of rows."""
    found, at = {name: np.zeros(size) for name, size in SIZES.items()}, 0
    if "encoders" not in shard:
        return {}
    for key, offset, count, n in zip(
        *(shard[f"encoder_{name}"].tolist() for name in ("key", "offset", "count", "values")), strict=True
    ):
        found[str(shard["keys"][key])][offset : offset + count] += shard["encoders"][at : at + count]
        at += n
    return {name: value.tolist() for name, value in found.items()}


def train(ex: Exchange, step: int, dies: str, counts: bool = True) -> None:
    """One step. counts: its updates are not zero."""
    me = ex.context.ranks[ex.context.rank]
    kill(dies == "before")
    for name in SIZES:
        ex.push(name, update(name, me, step) * F32(counts))
        kill(dies == "w pushed" and name == "w")
    kill(dies == "pushed")
    for name in SIZES:
        ex.pull(name)
        kill(dies == "w pulled" and name == "w")
    kill(dies == "pulled")


def _body(kind: str, victims: dict[str, str], codec: str, later: int) -> dict[str, Any] | None:
    """later: a rank that dies in the recovery, when the others have the new exchange, or some of them; -1: none."""
    first = hpcomm.init(mpi.world())
    me = first.rank
    rule: Any = SGD(lr=1) if codec else Momentum(lr=0.5, momentum=0.5)
    options = {**KINDS[kind], "rule": rule, "reduce": "sum", "chunk_bytes": 256, "cores": 1, "progress": "inline"}
    if codec:
        options["codec"] = TopK(0.1, kernel="c")
    zeros = {name: np.zeros(size, F32) for name, size in SIZES.items()}
    ex = Exchange(first, zeros, **grouped(options))
    dies = victims.get(str(me), "")
    owner = [[row.key, row.offset, row.count, row.owner, row.action] for row in ex.plan.rows]
    with suppress(hpcomm.PeerFailed):
        for step in itertools.count():  # under SSP an owner that left too soon would serve no rows
            train(ex, step, dies if step == STEP else "", counts=not (codec and dies))
    kill(bool(dies))  # it has heard of another's death before it came to its own
    pushes = {name: _core.exchange_pushed(ex._handle, ex._key(name).index, None) for name in SIZES}
    if later >= 0:
        made = recovery._over

        def over(*args: Any) -> Any:
            found = made(*args)
            kill(me == later)
            return found

        patch.object(recovery, "_over", over).start()
    recovered = hpcomm.recover(ex, survivors=True)
    new = recovered.exchange
    old = {name: new.params[name].tolist() for name in SIZES}
    shard = new.state_dict()
    new.context.barrier()
    train(new, 9, "")
    told = {
        "clock": recovered.clock,
        "ranks": new.context.ranks,
        "pushes": pushes,
        "keys": [key.name for key in ex.plan.keys],
        "owner": owner,
        "params": old,
        "rows": rows_of(shard),
        "residuals": residuals_of(shard),
        "next": {name: new.params[name].tolist() for name in SIZES},
    }
    new.close()
    new.context.close()
    first.close()
    return told


def run(kind: str, n: int, victims: dict[int, str], codec: bool = False, later: int = -1) -> tuple[list[Any], str]:
    args = ({str(rank): at for rank, at in victims.items()}, "topk" if codec else "", later)
    ended = mpi.spawn(n, _body, kind, *args, check=False)
    left = [rank for rank in range(n) if rank not in victims and rank != later]
    assert [ended.codes[rank] for rank in left] == [0] * len(left), ended.err
    told = [ended.values[rank] for rank in left]
    for one in told:
        assert (one["ranks"], one["clock"], one["params"]) == (left, told[0]["clock"], told[0]["params"])
    return told, ended.err


def reference(name: str, ranks: Any, steps: int) -> tuple[Any, Any]:
    w, m = np.zeros(SIZES[name], F32), np.zeros(SIZES[name], F32)
    for step in range(steps):
        m = F32(0.5) * m + sum(update(name, rank, step) for rank in ranks)
        w = w - F32(0.5) * m
    return w, m


def check_rows(told: list[Any], n: int, victims: Any, has_copies: bool, moved: bool = False) -> int:
    """Each row is as after STEP or STEP + 1 steps; its state too, and zero if its owner is gone (moved: rows had other
    owners between). Returns how many elements have no state."""
    lost = 0
    found = {name: np.full((2, size), np.nan, F32) for name, size in SIZES.items()}
    steps: dict[str, set[int]] = {name: set() for name in SIZES}
    for one in told:
        for name, offset, count, step, params, state in one["rows"]:
            found[name][:, offset : offset + count] = params, state
            steps[name].add(step)
    assert all(len(of) == 1 for of in steps.values())  # the same for all rows of a key
    for key, offset, count, owner, action in told[0]["owner"]:
        name, part = told[0]["keys"][key], slice(offset, offset + count)
        if action != "apply":
            continue
        known = {done: [value[part] for value in reference(name, range(n), done)] for done in (STEP, STEP + 1)}
        params, state = found[name][:, part]
        done = [steps_ for steps_, (w, _) in known.items() if (w == params).all()]
        assert done, f"row {name} {offset} of rank {owner}: {params} at steps {steps}, {told[0]['pushes']}"
        assert max(steps[name]) >= min(done)
        if moved and not state.any():
            continue
        if owner in victims and not has_copies and not moved:
            lost += count
            assert not state.any()
        else:
            assert any((known[steps_][1] == state).all() for steps_ in done)
    return lost


def check_next(told: list[Any]) -> None:
    """The step after is what the rule makes of the rows that there were."""
    for one in told:
        for name, offset, count, _, params, state in [row for other in told for row in other["rows"]]:
            part = slice(offset, offset + count)
            m = F32(0.5) * np.array(state, F32) + sum(update(name, rank, 9)[part] for rank in one["ranks"])
            np.testing.assert_array_equal(np.array(one["next"][name], F32)[part], np.array(params, F32) - F32(0.5) * m)


@pytest.mark.some(2)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("kind", "n"), [("flat", 3), ("flat", 4), ("receivers", 3), ("hosts", 4), ("quorum", 3)])
def test_an_owner_dies_and_the_others_go_on(kind: str, n: int, place: str) -> None:
    victims = {1: place}
    told, err = run(kind, n, victims)
    lost = check_rows(told, n, victims, kind == "receivers")
    assert (lost > 0) == (kind != "receivers")
    assert (f"the state of the rule begins at zero for {lost} of 605 elements" in err) == (lost > 0)
    check_next(told)


def test_two_owners_die_at_once() -> None:
    victims = {0: "pushed", 3: "w pushed"}
    told, _ = run("flat", 4, victims)
    assert check_rows(told, 4, victims, has_copies=False) > 0
    check_next(told)


@pytest.mark.parametrize("later", [0, 2])
def test_an_owner_dies_in_the_recovery(later: int) -> None:
    """Some have the exchange between, and others do not: all go on from one that they all had."""
    told, _ = run("flat", 4, {1: "w pulled"}, later=later)
    check_rows(told, 4, {1, later}, has_copies=False, moved=True)
    check_next(told)


@pytest.mark.parametrize("kind", ["SSP", "wide"])
def test_copies_are_equal_where_counts_or_types_differ(kind: str) -> None:
    """Under SSP no reference knows the order; in 16 bits these numbers are exact."""
    told, _ = run(kind, 3, {1: "w pulled"})
    if kind == "wide":
        check_rows(told, 3, {1}, has_copies=False)


@pytest.mark.some(2)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["flat", "peers", "receivers"])
def test_nothing_of_a_survivor_is_lost(kind: str, place: str) -> None:
    """What it has pushed is in the parameters, or held back. What owners that are gone held back of folds is lost."""
    told, _ = run(kind, 3, {1: place}, codec=True)
    for name, size in SIZES.items():
        pushed = sum(
            update(name, rank, step)
            for rank, one in zip((0, 2), told, strict=True)
            for step in range(one["pushes"][name])
        )
        held = sum(np.array(one["residuals"][name], F32) for one in told)
        known = np.ones(size, bool)
        for key, offset, count, owner, action in told[0]["owner"]:
            if kind == "receivers" and action == "forward" and told[0]["keys"][key] == name:
                known[offset : offset + count] = owner != 1
        np.testing.assert_array_equal(
            (held - np.array(told[0]["params"][name], F32))[known], pushed[known], err_msg=name
        )


def _ends_in_an_error() -> str:
    ctx = hpcomm.init(mpi.world())
    ex = Exchange(ctx, {"w": np.zeros(300, F32)}, "flat", BSP)
    with suppress(hpcomm.PeerFailed):
        while True:
            ex.push_pull("w", np.ones(300, F32))
            kill(ctx.rank == 2)
    told = ""
    try:
        hpcomm.recover(ex, survivors=ctx.rank == 0)
    except hpcomm.ConfigError as wrong:
        told = str(wrong)
    ctx.close()
    return told


def test_ranks_that_disagree_are_told() -> None:
    ended = mpi.spawn(3, _ends_in_an_error, check=False)
    assert all("some ranks give survivors=True" in ended.values[rank] for rank in (0, 1)), ended

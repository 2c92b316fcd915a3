"""Local steps when ranks die at any point, and when they are slow: nobody hangs, and what the others learned stays."""

import os
import signal
from contextlib import suppress
from typing import Any

import mpi
import numpy as np
import pytest
from flat import grouped

import hpcomm
from hpcomm import SGD, Consistency, EngineOptions, ParameterServer

SHAPES = {"a.w": (300,), "a.b": (3,), "b.w": (40, 5), "b.b": (7,)}
GROUPS = [["a.w", "a.b"], ["b.w", "b.b"]]
EVERY, DELAY, STEPS = 4, 2, 39  # at the end both fragments have something for a sync, and one is on its way

Deaths = dict[str, tuple[int, str]]  # by rank: the step, and the place in it


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def make(ctx: hpcomm.Context, **options: Any) -> hpcomm.local.LocalSteps:
    zeros = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    ex = hpcomm.Exchange(ctx, zeros, rule=SGD(lr=1.0), **grouped(options))
    return hpcomm.local_steps(ex, every=EVERY, fragments=2, delay=DELAY)


def train(local: hpcomm.local.LocalSteps, rank: int) -> None:
    for i, own in enumerate(local.params.values()):
        own[...] -= np.float32(0.25) * (own - np.float32(rank + i))


def flat(local: hpcomm.local.LocalSteps) -> np.ndarray:
    return np.concatenate([value.ravel() for value in local.params.values()])


def gathered(local: hpcomm.local.LocalSteps, values: np.ndarray) -> np.ndarray:
    """The values of all ranks, a row a rank."""
    return np.stack([np.frombuffer(part, values.dtype) for part in local.context.allgather(values.tobytes())])


def all_of(local: hpcomm.local.LocalSteps) -> np.ndarray:
    return gathered(local, flat(local))


def kill_inside(local: hpcomm.local.LocalSteps, place: str) -> None:
    """This rank dies in its next begin, when one key of the fragment has been pushed, or in its next take, when one key
    has been taken."""
    values, seen = local._values, []
    method = {"in a begin": "subtract", "in a take": "take"}[place]
    inner = getattr(values, method)

    def counted(*args: Any) -> None:
        seen.append(args)
        die() if len(seen) == 2 else None
        inner(*args)

    setattr(values, method, counted)


def goes_on(local: hpcomm.local.LocalSteps, coded: bool) -> None:
    """Recovers, as often as ranks die, and looks whether anything of those that are left is lost."""
    while True:
        try:
            own, begun = flat(local), [one.rounds for one in local._fragments]
            still = [one.begun is not None for one in local._fragments]
            done = [one.rounds - (one.begun is not None and not one.look()) for one in local._fragments]
            found = local.recover()
            assert found.clock == local.steps
            before = gathered(local, own)
            rounds, ended, under_way = (gathered(local, np.array(own)) for own in (begun, done, still))
            local.sync()
            every = all_of(local)
        except hpcomm.PeerFailed:
            continue
        assert all(one.tobytes() == every[0].tobytes() for one in every)
        # Where no rank had still to take what had come, all that was cut short is in the update of the sync.
        same = (~under_way | (ended.max(axis=0) < rounds)).all(axis=0)
        known = [np.full(local.params[name].size, same[i]) for i, names in enumerate(local.fragments) for name in names]
        if not coded:
            chosen = np.concatenate(known)
            np.testing.assert_allclose(every[0][chosen], before.mean(axis=0)[chosen], rtol=1e-5, atol=1e-5)
        return


def survives(deaths: Deaths, options: str) -> list[float]:
    """Trains while ranks die one after the other, some in the recovery from another death; the parameters that the
    others have in the end."""
    coded = options != "arrays"
    more: dict[str, Any] = {}
    if options == "stale peers":
        more = {"topology": hpcomm.PeerToPeer(), "consistency": hpcomm.SSP(3)}
    elif coded:
        more = {"codec": hpcomm.codec.TopK(0.3, kernel="c"), "topology": ParameterServer(apply_at="receivers")}
    with hpcomm.init(mpi.world(), timeout=20) as ctx:
        me = ctx.rank
        step, place = deaths.get(str(me), (STEPS, ""))
        local = make(ctx, **more)
        with suppress(hpcomm.PeerFailed):  # no rank dies before all have made theirs
            ctx.barrier()
        armed = False
        while local.steps < STEPS:
            train(local, me)
            if local.steps >= step and place == "between":
                die()
            if local.steps >= step and place and not armed:
                armed = True
                kill_inside(local, place)
            try:
                local.step()
            except hpcomm.PeerFailed:
                goes_on(local, coded)
        if step == STEPS and place:
            kill_inside(local, place)
        called, every = False, None
        while every is None:
            try:
                if not called:
                    called = True
                    local.sync()
                every = all_of(local)
            except hpcomm.PeerFailed:  # recover completes the sync
                with suppress(hpcomm.PeerFailed):
                    local.recover()
        assert all(one.tobytes() == every[0].tobytes() for one in every)
        assert local.context.size == len(every) == ctx.size - len(deaths)
        result: list[float] = every[0].astype(float).tolist()
        local.exchange.close()
        local.context.close()
        return result


POINTS: list[Deaths] = [
    {"1": (STEPS, "in a begin"), "3": (STEPS, "in a take")},
    {"1": (6, "between"), "3": (13, "in a begin"), "0": (25, "in a take")},
    {"0": (3, "in a begin"), "2": (12, "in a take"), "1": (13, "between")},
]


@pytest.mark.some(2)
@pytest.mark.parametrize("options", ["arrays", "pieces", "stale peers"])
@pytest.mark.parametrize("deaths", POINTS, ids=["in a sync", "1, 3, 0", "0, 2, 1"])
def test_ranks_die_at_any_point(deaths: Deaths, options: str) -> None:
    ended = mpi.spawn(4, survives, deaths, options, timeout=60, check=False)
    left = [rank for rank in range(4) if str(rank) not in deaths]
    assert [ended.codes[rank] for rank in left] == [0] * len(left), ended.err
    aims = np.concatenate([np.full(np.prod(shape), np.mean(left) + i) for i, shape in enumerate(SHAPES.values())])
    assert np.abs(np.array(ended.values[left[0]]) - aims).max() < 1.5


def residuals_of(local: hpcomm.local.LocalSteps) -> np.ndarray:
    """What this rank's codec holds back, in the order of flat."""
    shard, at, found = local.exchange.state_dict(), 0, {}
    for key, count, n in zip(*(shard[f"encoder_{name}"] for name in ("key", "count", "values")), strict=True):
        found[str(shard["keys"][key])] = shard["encoders"][at : at + count]
        at += n
    return np.concatenate([found[name] for name in local.params])


def dies_before_a_begin() -> None:
    """Rank 2 dies before all begin an exchange. Rank 0 finds that when it has pushed one key of three, rank 1 when it
    has pushed none: what both have learned is in the parameters afterwards, or held back."""
    world = mpi.world()
    assert world is not None
    with hpcomm.init(world, timeout=20) as ctx:
        zeros = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
        ex = hpcomm.Exchange(ctx, zeros, rule=SGD(lr=1.0), codec=hpcomm.codec.TopK(0.3, kernel="c"))
        local = hpcomm.local_steps(ex, every=EVERY)
        for _ in range(2 * EVERY - 1):
            train(local, ctx.rank)
            local.step()
        world.allgather(b"")  # no rank dies before all have made theirs
        if ctx.rank == 2:
            die()
        train(local, ctx.rank)
        held, inner, seen = residuals_of(local), local._values.subtract, []

        def counted(*args: Any) -> None:
            seen.append(args)
            if len(seen) == 2 - ctx.rank:
                raise hpcomm.PeerFailed("rank 2 is gone")
            inner(*args)

        setattr(local._values, "subtract", counted)  # noqa: B010
        with pytest.raises(hpcomm.PeerFailed):
            local.step()
        setattr(local._values, "subtract", inner)  # noqa: B010
        before = flat(local) - held
        local.recover()
        local.wait()
        after = flat(local) - residuals_of(local)
        np.testing.assert_allclose(
            gathered(local, after).mean(axis=0), gathered(local, before).mean(axis=0), rtol=1e-5, atol=1e-5
        )
        assert flat(local).any()
        local.exchange.close()
        local.context.close()


def test_what_was_not_pushed_stays() -> None:
    assert mpi.spawn(3, dies_before_a_begin, timeout=60, check=False).codes[:2] == [0, 0]


# ---- unequal speed ---------------------------------------------------------------------------------------------------


def is_late() -> int:
    """A quorum of two: rank 2 begins each exchange when the others have taken it. It takes their parameters, and its
    own updates are left out."""
    with hpcomm.init(mpi.world(), timeout=20) as ctx:
        zeros = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
        consistency = Consistency(quorum=2, late="drop", grace=0.0)
        ex = hpcomm.Exchange(ctx, zeros, consistency=consistency, rule=SGD(lr=1.0), engine=EngineOptions(groups=GROUPS))
        local = hpcomm.local_steps(ex, every=EVERY, fragments=2)
        for _ in range(3 * EVERY // 2):
            for own in local.params.values():
                own[...] += np.float32(4 if ctx.rank < 2 else 1024)
            fast = ctx.rank < 2
            if not fast:
                ctx.barrier()
            local.step()
            if fast:
                ctx.barrier()
        late = sum(one.late for one in local.stats().fragments)
        fast_steps, since = 3 * EVERY // 2, EVERY // 2  # and those since the exchange of the second fragment
        for i, own in enumerate(local.params.values()):
            slow = 4 * (fast_steps - since) + 1024 * since if i >= 2 and ctx.rank == 2 else 4 * fast_steps
            assert own.min() == own.max() == slow, (i, own)
        ctx.barrier()
        ex.close()
        return late


def test_late_ranks_take_the_newest_parameters() -> None:
    assert mpi.spawn(3, is_late, timeout=60).values == [0, 0, 3]


def is_slow() -> list[int]:
    """A quorum of two: rank 2 begins when the others have made all their steps and wait in the sync. It counts them."""
    with hpcomm.init(mpi.world(), timeout=20) as ctx:
        local = make(ctx, consistency=Consistency(quorum=2, late="drop", grace=0.0), groups=GROUPS)
        window, made = ctx.window(8, signals=1), 0
        if ctx.rank == 2:
            window.wait_signal(0, 1, 20, 0)
        while local.steps < STEPS:
            train(local, ctx.rank)
            local.step()
            made += 1
        if ctx.rank == 0:
            window.put_signal(2, None, signal=0, value=1)
        local.sync()
        every = all_of(local)
        assert all(one.tobytes() == every[0].tobytes() for one in every)
        local.exchange.close()
        return [made, local.steps]


def test_a_slow_rank_ends_with_the_others() -> None:
    first, second, slow = mpi.spawn(3, is_slow, timeout=60).values
    assert first == second == [STEPS, STEPS]
    assert slow[0] < STEPS / 2
    assert slow[1] == STEPS


def runs_ahead() -> None:
    """SSP(1): a rank may be one exchange of a fragment ahead, and no more. A sync has all updates."""
    hosts = property(lambda ctx: tuple(rank // 2 for rank in ctx.ranks))
    hpcomm.Context.hosts = hosts  # type: ignore[assignment,method-assign]
    receivers = ParameterServer(apply_at="receivers")
    for topology in (ParameterServer(), hpcomm.Hierarchy(), receivers, hpcomm.PeerToPeer()):
        with hpcomm.init(mpi.world(), timeout=20) as ctx:
            local = make(ctx, consistency=hpcomm.SSP(1), topology=topology)
            numbers = np.random.default_rng(ctx.rank)
            for _ in range(STEPS):
                for own in local.params.values():  # sums that depend on their order
                    own[...] += numbers.standard_normal(own.shape).astype(np.float32)
                local.step()
            local.sync()
            every = all_of(local)
            assert all(one.tobytes() == every[0].tobytes() for one in every), topology
            local.exchange.close()


def test_ranks_of_unequal_speed_end_alike() -> None:
    mpi.spawn(4, runs_ahead, timeout=60)

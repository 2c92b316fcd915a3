"""Context.shrink: after ranks were killed those that are left go on in a new context, whatever they were doing."""

import gc
import os
import random
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import mpi
import numpy as np
import pytest
from conftest import Left, on_both, run_threads

import hpcomm
from hpcomm import ASYNC, BSP, Exchange, InvalidArgument, PeerFailed, Timeout

F32 = np.float32
KILLED = -signal.SIGKILL


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_within(seconds: float) -> None:
    """At a moment that nothing else knows."""
    threading.Timer(seconds, die).start()


def forever(call: Callable[[], Any]) -> NoReturn:
    """Until it raises."""
    while True:
        call()


def check(fresh: hpcomm.Context, first: int) -> list[int]:
    """The members know each other by their ranks in the first context, and can exchange updates."""
    said = [int.from_bytes(part, "little") for part in fresh.allgather(first.to_bytes(4, "little"))]
    assert said == list(fresh.ranks) == sorted(said)
    assert fresh.ranks[fresh.rank] == first
    assert fresh.size == len(fresh.ranks)
    ex = Exchange(fresh, {"w": np.zeros(10_000, F32)}, rule=hpcomm.SGD(lr=1), reduce="sum", progress="inline")
    assert (ex.push_pull("w", np.full(10_000, -(1 << first), F32)) == sum(1 << rank for rank in said)).all()
    ex.close()
    return said


# ---- in one process --------------------------------------------------------------------------------------------------


@on_both
def test_nobody_is_gone() -> None:
    def body(context: hpcomm.Context) -> None:
        assert context.ranks == (0, 1, 2)
        with context.shrink() as fresh:
            assert (fresh.rank, fresh.size, fresh.ranks) == (context.rank, 3, (0, 1, 2))
            assert fresh.config == context.config
            check(fresh, context.rank)
            context.barrier()
            context.close()
            with pytest.raises(InvalidArgument, match="closed"):
                context.shrink()
            check(fresh, context.rank)
        raise Left

    run_threads(3, body)


@on_both
def test_who_left_is_left_out() -> None:
    def body(context: hpcomm.Context) -> None:
        if context.rank == 1:
            context.close()
            raise Left
        while context.peers[1].state == "alive":
            pass
        with context.shrink() as fresh:
            assert check(fresh, context.rank) == [0, 2]
            with fresh.shrink() as again:
                assert check(again, context.rank) == [0, 2]
                again.barrier()
        raise Left

    run_threads(3, body)


@on_both
def test_revoke_ends_what_waits_for_nobody() -> None:
    """Under ASYNC nobody would miss the one who left."""

    def body(context: hpcomm.Context) -> None:
        ex = hpcomm.stochastic_reduce(context, {"w": np.zeros(100, F32)}, consistency=ASYNC)
        if context.rank == 2:
            context.close()
            raise Left
        if context.rank == 0:
            while context.peers[2].state == "alive":
                pass
            context.revoke()
        with pytest.raises(PeerFailed) as raised:
            forever(lambda: ex.push_pull("w", np.ones(100, F32)))
        assert raised.value.ranks == (2,)
        with context.shrink() as fresh:
            assert check(fresh, context.rank) == [0, 1]
        raise Left

    run_threads(3, body)


def test_alone() -> None:
    with hpcomm.init() as context, context.shrink() as fresh:
        assert fresh.ranks == (0,)
        assert fresh.allgather(b"x") == [b"x"]


def test_timeout_is_checked_before_anything_is_sent() -> None:
    with hpcomm.init() as context, pytest.raises(InvalidArgument, match="timeout"):
        context.shrink(timeout=-1)


# ---- processes that are killed ---------------------------------------------------------------------------------------


def killed_at_random(seed: int, transport: str) -> list[int]:
    """Half of eight ranks die one after another: before a shrink, in it, or while the next exchange runs."""
    plan = random.Random(seed)
    order = plan.sample(range(8), 4)
    moments = [plan.choice([0.001, 0.003, 0.01, 0.03]) * plan.random() for _ in order]
    context = hpcomm.init(mpi.world(), transport=transport)
    first = context.rank

    def train(victim: int, moment: float) -> NoReturn:
        ex = Exchange(context, {"w": np.zeros(1000, F32)}, rule=hpcomm.SGD(lr=1))
        if first == victim:
            die_within(moment)
        while True:
            ex.step({"w": np.ones(1000, F32)})

    for victim, moment in zip(order, moments, strict=True):
        with pytest.raises(PeerFailed):
            train(victim, moment)
        while victim in context.ranks:
            fresh = context.shrink()
            context.close()
            context = fresh
    said = check(context, first)
    context.close()
    return said


@pytest.mark.some(2)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("seed", range(4))
def test_killed_at_random(seed: int, transport: str) -> None:
    ended = mpi.spawn(8, killed_at_random, seed, transport, timeout=120, check=False)
    victims = random.Random(seed).sample(range(8), 4)
    left = sorted(set(range(8)) - set(victims))
    assert [ended.codes[rank] for rank in left] == [0] * 4, ended.err
    assert [ended.codes[rank] for rank in victims] == [KILLED] * 4, ended.err
    assert [ended.values[rank] for rank in left] == [left] * 4


def closes_what_it_had(transport: str, consistency: str, progress: Any) -> list[Any]:
    """A rank dies under exchanges, queues and windows: they close, or are dropped, without waiting for it."""
    context = hpcomm.init(mpi.world(), transport=transport, timeout=60)
    kept = [
        Exchange(context, {"w": np.zeros(50_000, F32)}, consistency=BSP if consistency == "BSP" else ASYNC, progress=p)
        for p in (progress, progress, "inline")
    ]
    window = context.window(1000, signals=1)
    others = [rank for rank in range(context.size) if rank != context.rank]
    queue = context.receive_queue(others, others, 1000)
    with suppress(PeerFailed):  # it may die while the others are still in it
        context.barrier()
    if context.rank == 1:
        die()
    for ex in kept:
        with suppress(PeerFailed):
            ex.push("w", np.ones(50_000, F32))
    with pytest.raises(PeerFailed) as raised:
        forever(context.barrier)
    assert raised.value.ranks == (1,)
    for peer in others:
        with suppress(PeerFailed):
            queue.send(peer, np.ones(1000, F32), timeout=0)
            window.put(peer, b"abc")
    with suppress(PeerFailed):
        kept.pop().close(timeout=10)
    fresh = context.shrink(10)
    kept.pop()
    gc.collect()
    context.close()
    said = check(fresh, context.rank)
    del window, queue
    kept.clear()
    gc.collect()
    assert check(fresh, context.rank) == said
    fresh.close()
    return said


@pytest.mark.some(3)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("consistency", ["BSP", "ASYNC"])
@pytest.mark.parametrize("progress", ["inline", "thread"])
def test_what_a_dead_rank_shared_is_closed(transport: str, consistency: str, progress: Any) -> None:
    ended = mpi.spawn(3, closes_what_it_had, transport, consistency, progress, timeout=25, check=False)
    assert ended.codes == [0, KILLED, 0], ended.err
    assert ended.values == [[0, 2], None, [0, 2]]


def waits_for_a_stopped_rank() -> Any:
    context = hpcomm.init(mpi.world(), transport="shm")
    pid = context.peers[1].pid
    context.barrier()
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        return None
    if context.rank == 0:  # the other one waits meanwhile
        with pytest.raises(Timeout) as raised:
            context.shrink(timeout=0.5)
        assert raised.value.op == "shrink"
        assert 1 in raised.value.waiting_for
        os.kill(pid, signal.SIGKILL)
    with context.shrink() as fresh:
        return check(fresh, context.rank)


def test_stopped_rank_is_named_and_may_be_killed() -> None:
    ended = mpi.spawn(3, waits_for_a_stopped_rank, check=False)
    assert ended.codes == [0, KILLED, 0], ended.err
    assert ended.values == [[0, 2], None, [0, 2]]


# ---- a loop that goes on, as in docs/failures.md ---------------------------------------------------------------------


def go_on(ctx: hpcomm.Context, train: Callable[[hpcomm.Context], None]) -> None:
    while True:
        try:
            train(ctx)
            break
        except PeerFailed:
            ctx.revoke()
            fresh = ctx.shrink()
            ctx.close()
            ctx = fresh
    ctx.close()


def newest(ctx: hpcomm.Context, params: np.ndarray[Any, Any], done: int) -> int:
    """Gives every rank the parameters of the one that has come furthest, in place, and says how far that is."""
    every = [int.from_bytes(said, "little") for said in ctx.allgather(done.to_bytes(8, "little"))]
    leader = every.index(max(every))
    window = ctx.window(params.shape, params.dtype, signals=1)
    if ctx.rank == leader:
        for peer in set(range(ctx.size)) - {leader}:
            window.put_signal(peer, params, signal=0, value=1)
        window.flush()
    else:
        window.wait_signal(0, 1, peer=leader)
        params[...] = window.array
    ctx.barrier()  # nobody lets go of the window while others wait
    return every[leader]


def trains_on(seed: int, steps: int) -> Any:
    """Four ranks count their steps in the parameters; two die at steps of their own."""
    plan = random.Random(seed)
    falls = dict(zip(plan.sample(range(4), 2), sorted(plan.sample(range(steps), 2)), strict=True))
    context = hpcomm.init(mpi.world())
    me = context.rank
    saved: np.ndarray[Any, Any] = np.zeros((4, 25), F32)
    done = 0
    begun = []

    def train(ctx: hpcomm.Context) -> None:
        nonlocal done
        start = newest(ctx, saved, done)
        begun.append((start, list(ctx.ranks)))
        assert (saved == start).all()
        with Exchange(ctx, {"w": saved}, rule=hpcomm.SGD(lr=1)) as ex:
            for step in range(start, steps):
                if falls.get(me) == step:
                    die()
                ex.step({"w": np.full((4, 25), -1, F32)})
                saved[:], done = ex.params["w"], step + 1

    go_on(context, train)
    return float(saved[0, 0]), begun


@pytest.mark.some(1)
@pytest.mark.parametrize("seed", range(3))
def test_training_goes_on(seed: int) -> None:
    ended = mpi.spawn(4, trains_on, seed, 30, check=False)
    plan = random.Random(seed)
    victims = plan.sample(range(4), 2)
    left = sorted(set(range(4)) - set(victims))
    assert [ended.codes[rank] for rank in left] == [0, 0], ended.err
    one, other = (ended.values[rank] for rank in left)
    assert one[0] == other[0] == 30
    assert one[1][-1] == other[1][-1]
    assert one[1][-1][1] == left
    assert one[1][0] == [0, [0, 1, 2, 3]]


def trains_until_one_leaves() -> list[int]:
    """On a ring one rank waits for the one who leaves. Exchanges are kept, so that none is freed under the others."""
    context = hpcomm.init(mpi.world())
    kept = []

    def train(ctx: hpcomm.Context) -> None:
        ring = hpcomm.graphs.ring
        kept.append(hpcomm.stochastic_reduce(ctx, {"w": np.zeros(100, F32)}, topology=ring))
        for step in range(10):
            if context.rank == 2 and step == 5:
                return
            kept[-1].push_pull("w", np.ones(100, F32))
        ranks.extend(ctx.ranks)

    ranks: list[int] = []
    go_on(context, train)
    return ranks


def test_training_goes_on_without_one_who_leaves() -> None:
    assert mpi.spawn(5, trains_until_one_leaves).values == [[0, 1, 3, 4], [0, 1, 3, 4], [], [0, 1, 3, 4], [0, 1, 3, 4]]


# ---- the timeline ----------------------------------------------------------------------------------------------------


def leaves_a_timeline(path: str) -> Any:
    world = mpi.world()
    assert world is not None
    context = hpcomm.init(world, timeline=path)
    for _ in range(3):
        context.barrier()
    world.allgather(b"met")  # some may still be in the last barrier
    if context.rank == 0:
        die()
    with suppress(PeerFailed):
        while True:
            context.barrier()
    with context.shrink() as fresh:
        fresh.barrier()
    context.close()
    return None


def test_who_is_left_writes_no_timeline_but_its_own(tmp_path: Path) -> None:
    """The ranks have other numbers after a shrink; what the dead one has written stays."""
    ended = mpi.spawn(3, leaves_a_timeline, str(tmp_path / "t.json"), check=False)
    assert ended.codes == [KILLED, 0, 0], ended.err
    names = ["t.rank0.json", "t.rank1-2.json", "t.rank1.json", "t.rank2-2.json", "t.rank2.json"]
    assert sorted(file.name for file in tmp_path.iterdir()) == names
    for name, rank in zip(names, (0, 0, 1, 1, 2), strict=True):
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert f'"name": "rank {rank} of {2 if "-2" in name else 3} on' in text
        assert text.count('"hpcomm_clock"') == 1

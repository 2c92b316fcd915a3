"""recover under ASYNC and SSP with servers: what was folded counts once, and all go on from one step.

The push of worker w in step n adds 1 to element (w, n) of every chunk, so that the parameters say of each chunk how
often each update has been folded.
"""

import os
import signal
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mpi
import numpy as np
import pytest

import hpcomm
from hpcomm import ASYNC, SGD, SSP, Checkpointer, Exchange, ParameterServer, _core

STEPS = 32
HALF = STEPS // 2  # where they wait for the death
SECOND = 3  # the place of a death after another
EVERY = 4
CHUNKS = {"w": 6, "b": 2}  # of each key
PLACES = {"colocated": ParameterServer(servers=[0, 1]), "dedicated": ParameterServer("NCC", servers=[0])}
ON = [("colocated", "shm", "inline"), ("colocated", "tcp", "thread"), ("dedicated", "shm", "thread")]


def _exchange(ctx: hpcomm.Context, placed: ParameterServer, progress: Any, staleness: int = 0) -> Exchange:
    """staleness: of SSP; 0: ASYNC."""
    zeros = {name: np.zeros((n, ctx.size, STEPS), np.float32) for name, n in CHUNKS.items()}
    return Exchange(
        ctx,
        zeros,
        placed,
        SSP(staleness) if staleness else ASYNC,
        SGD(lr=1),
        reduce="sum",
        chunk_bytes=4 * ctx.size * STEPS,
        progress=progress,
    )


def _update(ex: Exchange, name: str, me: int, step: int) -> Any:
    found = ex.gradient(name)
    found[...] = 0
    found[:, me, step] = -1
    return found


def _rows(ex: Exchange) -> list[list[float]]:
    """Of each row of this rank: its step, and the updates in it."""
    shard = ex.state_dict()
    chunks = shard["params"].reshape(len(shard["row_step"]), -1 if len(shard["row_step"]) else 0)
    return [[float(step), float(chunk.sum())] for step, chunk in zip(shard["row_step"], chunks, strict=True)]


def _meet(ex: Exchange, ranks: list[int], step: int) -> None:
    """Until every worker's update of a step is in all chunks; the parameters are then those of after it."""
    while not all((ex.pull(name)[:, ranks, step] >= 1).all() for name in CHUNKS):
        pass
    for name in CHUNKS:
        ex.pull(name)


def _train(
    placed: str, progress: Any, deaths: dict[str, list[int]], killer: int, staleness: int = 0
) -> dict[str, Any] | None:
    """deaths: rank -> step and place at which it kills itself, before, in or after its pushes, or when it has seen
    another one's death; or at which the killer kills it, wherever it is."""
    world = mpi.world()
    assert world is not None
    first = ctx = hpcomm.init(world)
    me, pids = ctx.rank, [peer.pid for peer in ctx.peers]
    ex = _exchange(ctx, PLACES[placed], progress, staleness)
    step, done, clocks = 0, [], []
    lost: list[int] = []
    world.allgather(b"made")  # in a barrier of hpcomm's some may still be when one has died

    def die(place: int) -> None:
        for rank, at in deaths.items():
            if at == [step, place] and me == (killer if killer >= 0 else int(rank)):
                os.kill(pids[int(rank)], signal.SIGKILL)

    while True:
        try:
            if not ex.params:
                ex.serve()
                break
            while step < STEPS:
                while step == HALF and len(lost) < len(deaths):
                    if lost:
                        die(SECOND)
                    ex.pull("w")
                for place, name in enumerate(CHUNKS):
                    die(place)
                    ex.push(name, _update(ex, name, me, step))
                die(len(CHUNKS))
                for name in CHUNKS:
                    ex.pull(name)
                if staleness:  # a pull may end before its push is applied
                    _core.exchange_settle(ex._handle, 20)
                done.append(step)
                step += 1
            _meet(ex, list(ex.context.ranks) if placed == "colocated" else list(ex.context.ranks)[1:], STEPS - 1)
            break
        except hpcomm.PeerFailed:
            recovered = hpcomm.recover(ex)
            ex, step = recovered.exchange, recovered.clock
            lost += recovered.lost
            clocks.append(step)
    clock = ex.clock
    if placed == "colocated":
        ex.context.barrier()
    found = {name: np.asarray(value).tolist() for name, value in ex.params.items()}
    rows = _rows(ex)
    ex.close()
    ex.context.close()
    first.close()
    return {"done": done, "clocks": clocks, "clock": clock, "found": found, "rows": rows, "lost": lost}


def _check(told: list[dict[str, Any]], left: list[int], victims: dict[int, int]) -> None:
    """victims: the steps that each has surely ended, and no more than one after."""
    workers = [(r, one) for r, one in zip(left, told, strict=True) if one["found"]]
    for one in told:
        assert one["clocks"][-1] == told[0]["clocks"][-1]  # one recovery may see two deaths
        for step, updates in one["rows"]:
            assert step == updates
    for _, one in workers:
        assert one["clock"] == STEPS
        assert one["found"] == workers[0][1]["found"]
    for name in CHUNKS:
        counts = np.array(workers[0][1]["found"][name])
        assert set(np.unique(counts)) <= {0, 1}, "an update was folded twice"
        for rank, one in workers:
            assert (counts[:, rank, one["done"]] == 1).all(), "an update that had ended is lost"
        for rank, steps in victims.items():
            assert (counts[:, rank, :steps] == 1).all()
            assert (counts[:, rank, steps + 1 :] == 0).all()


@pytest.mark.some(4)
@pytest.mark.parametrize(("placed", "transport", "progress"), ON)
@pytest.mark.parametrize(("place", "staleness"), [(0, 0), (1, 0), (2, 0), (1, 3)])
def test_what_was_folded_counts_once(placed: str, transport: str, progress: Any, place: int, staleness: int) -> None:
    env = {"HPCOMM_TRANSPORT": transport}
    deaths = {"3": [5, place]}
    ended = mpi.spawn(4, _train, placed, progress, deaths, -1, staleness, check=False, env=env)
    assert ended.codes == [0, 0, 0, -signal.SIGKILL], ended.err
    _check(ended.values[:3], [0, 1, 2], {3: 5})


@pytest.mark.some(2)
@pytest.mark.parametrize(("placed", "transport", "progress"), ON)
@pytest.mark.parametrize("staleness", [0, 2])
def test_killed_from_outside_while_all_push(placed: str, transport: str, progress: Any, staleness: int) -> None:
    env = {"HPCOMM_TRANSPORT": transport}
    ended = mpi.spawn(4, _train, placed, progress, {"3": [7, 1]}, 2, staleness, check=False, env=env)
    assert ended.codes == [0, 0, 0, -signal.SIGKILL], ended.err
    _check(ended.values[:3], [0, 1, 2], {})


@pytest.mark.parametrize("staleness", [0, 3])
def test_two_die_one_after_the_other(staleness: int) -> None:
    deaths = {"2": [4, 1], "4": [HALF, SECOND]}
    ended = mpi.spawn(5, _train, "colocated", "inline", deaths, -1, staleness, check=False)
    assert ended.codes == [0, 0, -signal.SIGKILL, 0, -signal.SIGKILL], ended.err
    _check([ended.values[r] for r in (0, 1, 3)], [0, 1, 3], {2: 4})


def _reached(folds: bool) -> list[Any] | None:
    """Rank 2 has pushed to two servers, of which rank 0 folds it or not, and rank 1 surely not, when rank 3 dies."""
    world = mpi.world()
    assert world is not None
    first = hpcomm.init(world)
    me = first.rank
    ex = _exchange(first, PLACES["colocated"], "inline")
    own = len(ex.state_dict()["row_step"])
    if me == 2:
        for name in CHUNKS:
            ex.push(name, _update(ex, name, me, 0))
    world.allgather(b"pushed")  # no wait of hpcomm's, which would work for the rows
    while me == 0 and folds and ex.stats().applied < own:
        ex.progress()
    world.allgather(b"folded")
    if me == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    recovered = hpcomm.recover(ex)
    ex = recovered.exchange
    counts = [chunk.sum() for name in CHUNKS for chunk in ex.params[name]]
    rows = _rows(ex)
    told = [recovered.clock, ex.clock, sum(counts), rows == [[float(folds and me == 0)] * 2] * own]
    ex.context.barrier()
    if me == 2 and recovered.clock == 0:
        for name in CHUNKS:
            ex.push_pull(name, _update(ex, name, me, 0))
    ex.context.barrier()
    told += [float(ex.pull(name).sum()) for name in CHUNKS]
    ex.close()
    ex.context.close()
    first.close()
    return [float(x) for x in told]


@pytest.mark.parametrize("folds", [True, False])
def test_what_one_server_has_folded_is_not_pushed_again(folds: bool) -> None:
    """Of which rank 2 has not been told; what no server has is."""
    ended = mpi.spawn(4, _reached, folds, check=False)
    assert ended.codes == [0, 0, 0, -signal.SIGKILL], ended.err
    chunks = sum(CHUNKS.values())
    for told in ended.values[:3]:
        assert told[:4] == [folds, folds, chunks / 2 if folds else 0, True]
        assert sum(told[4:]) == (chunks / 2 if folds else chunks)


def _passed_or_not() -> list[Any] | None:
    """Rank 3 dies, and rank 2 when rank 1 has gone on and its update is folded by rank 0, which has not."""
    world = mpi.world()
    assert world is not None
    first = hpcomm.init(world)
    me = first.rank
    ex = _exchange(first, ParameterServer(servers=[0]), "inline")
    world.allgather(b"made")
    if me == 3:
        os.kill(os.getpid(), signal.SIGKILL)

    def held_back(ctx: hpcomm.Context, timeout: float | None = None) -> None:
        patched.stop()
        ctx.barrier(timeout)
        while True:  # works for the new exchange
            ctx.barrier(timeout)

    patched = patch.object(hpcomm.Context, "barrier", held_back)
    if me == 0:
        patched.start()
    recovered = hpcomm.recover(ex)
    if me > 0:
        ex = recovered.exchange
        try:
            for name, step in (("w", 0), ("b", 0), ("w", 1)) if me == 1 else ():
                ex.push_pull(name, _update(ex, name, me, step))
            while me == 1 or not ex.pull("w")[:, 1, 1].all():
                ex.pull("w")
            os.kill(os.getpid(), signal.SIGKILL)
        except hpcomm.PeerFailed:
            recovered = hpcomm.recover(ex)
    ex = recovered.exchange
    found = [ex.params[name][:, 1, :3].tolist() for name in CHUNKS]
    told = [recovered.clock, found, list(recovered.lost)]
    ex.context.barrier()
    ex.close()
    ex.context.close()
    first.close()
    return told


def test_who_has_not_passed_goes_on_with_what_the_others_have_pushed() -> None:
    ended = mpi.spawn(4, _passed_or_not, check=False)
    assert ended.codes == [0, 0, -signal.SIGKILL, -signal.SIGKILL], ended.err
    found = [[[1, 1, 0]] * CHUNKS["w"], [[1, 0, 0]] * CHUNKS["b"]]
    assert ended.values[:2] == [[2, found, [2, 3]], [2, found, [2]]]


def _rate(ex: hpcomm.Exchange) -> float:
    assert isinstance(ex.rule, SGD)
    return ex.rule.lr


def _setting(victim: int) -> list[Any]:
    """It dies when rank 1 has set a learning rate and gone on, and rank 2 does not know yet that all have it."""
    first = hpcomm.init(mpi.world())
    ex = _exchange(first, PLACES["colocated"], "thread")
    step = 0
    rates: list[float] = []
    set_args = _core.exchange_set_args

    def cut_short(*args: Any) -> None:
        set_args(*args)
        while True:
            ex.pull("w")

    with patch.object(_core, "exchange_set_args", cut_short) if first.rank == 2 else nullcontext():
        while step < 4:
            try:
                if step == 2:
                    ex.set(lr=2.0)
                for name in CHUNKS:
                    ex.push_pull(name, _update(ex, name, first.rank, step))
                step += 1
                if first.rank == victim and step == 3:
                    _meet(ex, [0, 1], 2)
                    os.kill(os.getpid(), signal.SIGKILL)
                while step == 3 and not rates:
                    ex.pull("w")
            except hpcomm.PeerFailed:
                recovered = hpcomm.recover(ex)
                ex, step = recovered.exchange, recovered.clock
                rates.append(_rate(ex))
    ex.context.barrier()
    ex.close()
    ex.context.close()
    first.close()
    return [rates, _rate(ex)]


def test_who_dies_while_others_set_a_rate() -> None:
    ended = mpi.spawn(4, _setting, 3, check=False)
    assert ended.codes == [0, 0, 0, -signal.SIGKILL], ended.err
    assert ended.values[:3] == [[[2.0], 2.0]] * 3


def _runs(folder: str, victim: int) -> dict[str, Any]:
    """By hpcomm.run. The checkpoints are of steps at which all have met, so that they are the same on all ranks."""
    first = hpcomm.init(mpi.world())
    me = first.rank
    made = _exchange(first, ParameterServer(servers=[0, 3]), "inline")
    ckpt = Checkpointer(made, folder, every=EVERY)
    news: list[Any] = []

    def step(ex: Exchange, n: int) -> None:
        if (me, n) == (victim, HALF + 1):
            os.kill(os.getpid(), signal.SIGKILL)
        for name in CHUNKS:
            ex.push_pull(name, _update(ex, name, me, n))
        if (n + 1) % EVERY == 0:
            ex.context.barrier()
        if ckpt.after(n + 1):
            ex.context.barrier()

    def recovered(found: hpcomm.recovery.Recovered) -> None:
        nonlocal ckpt
        with suppress(hpcomm.HpcommError):
            ckpt.close()
        ckpt = Checkpointer(found.exchange, folder, every=EVERY)
        news.append([found.clock, *found.lost])

    ex = hpcomm.run(made, step, STEPS, recovered=recovered, checkpoint=folder)
    found = {name: ex.pull(name).tolist() for name in CHUNKS}
    clock = ex.clock
    ex.close()
    ex.context.close()
    first.close()
    return {"news": news, "found": found, "clock": clock}


def _restarted(news: list[Any], found: dict[str, Any], left: list[int], lost: int) -> None:
    """Every update of before the checkpoint and of those that are left is there once, no other of the lost one's."""
    ((clock, who),) = news
    assert who == lost
    assert clock in range(EVERY, HALF + 1, EVERY)
    for name in CHUNKS:
        counts = np.array(found[name])
        assert (counts[:, :, :clock][:, [*left, lost]] == 1).all()
        assert (counts[:, left] == 1).all()
        assert (counts[:, lost, clock:] == 0).all()


def test_run_goes_back_to_the_checkpoint_when_a_server_dies(tmp_path: Path) -> None:
    ended = mpi.spawn(4, _runs, str(tmp_path), 3, check=False)
    assert ended.codes == [0, 0, 0, -signal.SIGKILL], ended.err
    for one in ended.values[:3]:
        assert one["found"] == ended.values[0]["found"]
        assert one["clock"] == STEPS
        _restarted(one["news"], one["found"], [0, 1, 2], 3)


def test_run_goes_on_when_a_worker_dies(tmp_path: Path) -> None:
    ended = mpi.spawn(4, _runs, str(tmp_path), 2, check=False)
    assert ended.codes == [0, 0, -signal.SIGKILL, 0], ended.err
    for rank in (0, 1, 3):
        one = ended.values[rank]
        ((clock, who),) = one["news"]
        assert who == 2
        assert HALF <= clock <= HALF + EVERY  # where the others wait for each other
        assert one["found"] == ended.values[0]["found"]
        assert one["clock"] == STEPS
        for name in CHUNKS:
            counts = np.array(one["found"][name])
            assert set(np.unique(counts)) <= {0, 1}
            assert (counts[:, :, :HALF] == 1).all()
            assert (counts[:, 2, HALF + 1 :] == 0).all()
            assert (counts[:, [0, 1, 3], clock:] == 1).all()


def _served(folder: str) -> dict[str, Any]:
    """Ranks 0 and 4 only serve; rank 1 kills rank 4. The workers meet before a checkpoint, and push again when the
    servers have copied, for which rank 1 waits."""
    first = hpcomm.init(mpi.world())
    me, pid = first.rank, first.peers[4].pid
    ex = _exchange(first, ParameterServer("NCS", servers=[0, 4]), "thread")
    step, workers = 0, [1, 2, 3]
    news: list[Any] = []
    ckpt = Checkpointer(ex, folder, every=EVERY)
    while True:
        try:
            if not ex.params:
                ckpt.serve()
                break
            while step < STEPS:
                if (me, step) == (1, HALF + 1) and not news:
                    os.kill(pid, signal.SIGKILL)
                for name in CHUNKS:
                    ex.push_pull(name, _update(ex, name, me, step))
                step += 1
                if step % EVERY == 0:
                    _meet(ex, workers, step - 1)
                if ckpt.after(step) and me > 1 and step < STEPS:
                    _meet(ex, [1], step)
            break
        except hpcomm.PeerFailed:
            with suppress(hpcomm.HpcommError):
                ckpt.close()
            recovered = hpcomm.recover(ex, checkpoint=folder)
            ex, step = recovered.exchange, recovered.clock
            ckpt = Checkpointer(ex, folder, every=EVERY)
            news.append([step, *recovered.lost])
    found = {name: ex.pull(name).tolist() for name in CHUNKS} if ex.params else {}
    clock = ex.clock
    ckpt.close()
    ex.close()
    ex.context.close()
    first.close()
    return {"news": news, "found": found, "clock": clock}


def test_a_dead_rank_that_only_served_takes_the_job_back(tmp_path: Path) -> None:
    ended = mpi.spawn(5, _served, str(tmp_path), check=False)
    assert ended.codes == [0, 0, 0, 0, -signal.SIGKILL], ended.err
    for rank in (1, 2, 3):
        one = ended.values[rank]
        assert one["clock"] == STEPS
        assert one["found"] == ended.values[1]["found"]
        ((clock, who),) = one["news"]
        assert who == 4
        assert clock in range(EVERY, HALF + 1, EVERY)
        for name in CHUNKS:
            assert (np.array(one["found"][name])[:, 1:4] == 1).all()

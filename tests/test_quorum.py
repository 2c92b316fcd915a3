"""A quorum on servers: folds go on without stragglers, who keep what they have until they push, and are told."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpi
import numpy as np
import pytest
from conftest import Left, on_both, run_threads
from flat import grouped

import hpcomm
from hpcomm import SGD, Checkpointer, Context, Exchange, Hierarchy, InvalidArgument, ParameterServer
from hpcomm.codec import ErrorFeedback, Factors
from hpcomm.consistency import Consistency

F32 = np.float32
SHAPES = {"w": (40, 70), "b": (3,)}
OTHERS = (0, 1, 2)


def zeros() -> dict[str, Any]:
    return {name: np.zeros(shape, F32) for name, shape in SHAPES.items()}


def pairs(rank: int, step: int) -> dict[str, Any]:
    """Multiples of 3, whose mean of three ranks is whole; w is a sum of products."""
    rng = np.random.default_rng(100 * step + rank)
    u, v, b = (rng.integers(-8, 8, shape).astype(F32) for shape in ((2, 40), (2, 70), 3))
    return {"w": (3 * u, v), "b": 3 * b}


def whole(rank: int, step: int) -> dict[str, Any]:
    found = pairs(rank, step)
    return {**found, "w": found["w"][0].T @ found["w"][1]}


def quorum(n: int, grace: float | None = 0) -> Consistency:
    return Consistency(quorum=n, late="drop", grace=grace)


def exchange(context: Context, consistency: Consistency | dict[str, Consistency], **options: Any) -> Exchange:
    return Exchange(
        context, zeros(), **grouped({"consistency": consistency, "rule": SGD(lr=1), "chunk_bytes": 1024, **options})
    )


@pytest.mark.parametrize(("reduce", "codec"), [("mean", None), ("sum", None), ("mean", {"w": Factors(3)})])
def test_a_straggler_keeps_what_it_has_until_it_pushes(reduce: str, codec: Any, transport: dict[str, Any]) -> None:
    """Of pairs too: the owner decides whose count, so all copies agree."""
    update = pairs if codec else whole
    passed = threading.Event()
    meet = threading.Barrier(4, timeout=20)
    folded = [threading.Barrier(3, timeout=20) for _ in range(2)]

    def made(ranks: tuple[int, ...], steps: tuple[int, ...]) -> dict[str, Any]:
        want = zeros()
        for step in steps:
            for name in SHAPES:
                total = sum(whole(rank, step)[name] for rank in ranks)
                want[name] -= total / F32(len(ranks)) if reduce == "mean" else total
        return want

    def same(ex: Exchange, want: dict[str, Any]) -> None:
        for name, value in want.items():
            np.testing.assert_array_equal(ex.params[name], value, err_msg=name)

    def body(context: Context) -> tuple[int, int, list[int]]:
        with exchange(context, quorum(3), reduce=reduce, codec=codec, progress="thread") as ex:
            if context.rank == 3:
                assert passed.wait(20)
                same(ex, zeros())
                assert (ex.version(), ex.late) == (0, ())
                ex.step(update(3, 0))
                assert (ex.version(), ex.late) == (2, tuple(SHAPES))
                assert ex.stats().dropped_at == 2
            else:
                for step in range(2):
                    ex.step(update(context.rank, step))
                    same(ex, made(OTHERS, tuple(range(step + 1))))
                    assert (ex.version(), ex.late) == (step + 1, ())
                    folded[step].wait()
                passed.set()
            same(ex, made(OTHERS, (0, 1)))
            meet.wait()
            if context.rank != 0:  # now that one is late
                ex.step(update(context.rank, 2))
                assert (ex.version(), ex.late) == (3, ())
                want = made(OTHERS, (0, 1))
                for name, value in made((1, 2, 3), (2,)).items():
                    want[name] += value
                same(ex, want)
            meet.wait()
            stats = ex.stats()
            assert stats.by_inputs == ((0, 0, 0, stats.reduces, 0) if stats.reduces else ())
            assert stats.whole == 3 * stats.missing == 3 * stats.reduces
            return stats.dropped, stats.reduces, [peer.late for peer in stats.peers]

    told = run_threads(4, body, **transport)
    shares = told[3][0]
    assert [dropped for dropped, _, _ in told] == [0, 0, 0, shares]
    assert sum(reduces for _, reduces, _ in told) == 3 * shares
    assert np.sum([late for _, _, late in told], axis=0).tolist() == [0, 0, 0, shares]


def test_with_servers_the_quorum_of_neighbours_is_that_of_all() -> None:
    """A program that gives graphs waits_for="neighbours" may give it keys with servers too."""
    folded = threading.Barrier(3, timeout=20)

    def body(context: Context) -> None:
        neighbours = Consistency(quorum=2, grace=0, waits_for="neighbours")
        with exchange(context, {"w": neighbours, "b": quorum(2)}, progress="thread") as ex:
            if context.rank < 2:
                ex.step(whole(context.rank, 0))
            folded.wait()
            if context.rank == 2:
                ex.step(whole(2, 0))
                assert (ex.version(), ex.late) == (1, tuple(SHAPES))
            for name in SHAPES:
                mean = (whole(0, 0)[name] + whole(1, 0)[name]) / F32(2)
                np.testing.assert_array_equal(ex.params[name], -mean, err_msg=name)

    run_threads(3, body)


@on_both
def test_all_are_waited_for_with_time_enough() -> None:
    def body(context: Context, consistency: Consistency, **options: Any) -> list[Any]:
        with exchange(context, consistency, codec="bfloat16", rule=hpcomm.Adam(), **options) as ex:
            for step in range(4):
                rng = np.random.default_rng(10 * step + context.rank)
                ex.step({name: rng.standard_normal(shape).astype(F32) for name, shape in SHAPES.items()})
                assert ex.late == ()
            return [value.tobytes() for value in ex.params.values()]

    want = run_threads(3, body_of(body, hpcomm.BSP))
    for consistency in (quorum(2, float("inf")), quorum(3)):
        assert run_threads(3, body_of(body, consistency, depth=2)) == want


def body_of(body: Any, *args: Any, **options: Any) -> Any:
    return lambda context: body(context, *args, **options)


def _frozen(steps: int) -> dict[str, Any]:
    """Rank 0 serves, and stops rank 2 for most of the training."""
    with hpcomm.init(mpi.world()) as ctx:
        pids = [int(part) for part in ctx.allgather(str(os.getpid()).encode().ljust(12))]
        ex = exchange(ctx, quorum(2, None), topology=ParameterServer("CC"), reduce="sum")
        pushes, late = 0, 0
        while ex.version() < steps:
            if ctx.rank == 0 and ex.version() == 5:
                os.kill(pids[2], signal.SIGSTOP)
            if ctx.rank == 0 and ex.version() == steps - 1:
                os.kill(pids[2], signal.SIGCONT)
            ex.step({name: np.ones(shape, F32) for name, shape in SHAPES.items()})
            pushes += 1
            late += len(ex.late)
        dropped, version = ex.stats().dropped, ex.version()
        ex.close()
        ctx.barrier()
        stats: dict[str, Any] = {"pushes": pushes, "late": late, "dropped": dropped, "version": version}
        stats["folded"] = [float(ex.params[name].flat[0]) for name in SHAPES]
        return stats


def test_a_frozen_rank_stops_nobody() -> None:
    steps = 40
    told = mpi.spawn(3, _frozen, steps).values
    for one in told:
        assert one["version"] == steps
        assert one["dropped"] == one["late"]  # a key has one share
    assert told[2]["pushes"] < steps
    for key, folded in enumerate(told[0]["folded"]):
        assert -folded <= sum(one["pushes"] for one in told), key
    dropped = sum(one["dropped"] for one in told)
    assert sum(len(SHAPES) * one["pushes"] for one in told) + sum(told[0]["folded"]) == dropped


def test_a_checkpoint_is_not_missed_by_who_was_late(tmp_path: Path) -> None:
    meet = threading.Barrier(3, timeout=20)

    def body(context: Context) -> list[bool]:
        began = []
        with exchange(context, quorum(2), progress="thread") as ex, Checkpointer(ex, tmp_path, every=2) as ckpt:
            for step, ranks in enumerate([(0, 2), (1,), (0, 1), (0, 1), (2,)]):  # 1 is late once, and 2 later
                if context.rank in ranks:
                    ex.step(whole(context.rank, step))
                    began.append(ckpt.after(ex.version()))
                meet.wait()
            assert ex.version() == 3
        with exchange(context, quorum(2), progress="thread") as ex, Checkpointer(ex, tmp_path, every=2) as ckpt:
            found = hpcomm.restore(ex, tmp_path)
            assert found is not None
            assert found.step == 2
            ex.step(whole(context.rank, 9))  # and it goes on
            assert ex.version() == 1
            assert not ckpt.after(found.step + ex.version())  # what was restored is there
        return began

    assert run_threads(3, body) == [[False, True, False], [False, True, False], [False, True]]


@pytest.mark.filterwarnings("ignore:.*step 4 stays incomplete")
def test_a_checkpoint_that_was_skipped_is_not_complete(tmp_path: Path) -> None:
    meet = threading.Barrier(3, timeout=20)
    turns = [(0, 2), (1,), (0, 2), (1,), *[(0, 1)] * 5, (2,)]  # rank 2 skips step 4, and is late for 6

    def body(context: Context) -> list[int]:
        saved = []
        with exchange(context, quorum(2), progress="thread") as ex, Checkpointer(ex, tmp_path, every=2) as ckpt:
            for step, ranks in enumerate(turns):
                if context.rank in ranks:
                    ex.step(whole(context.rank, step))
                    if ckpt.after(ex.version()):
                        saved.append(ex.version())
                meet.wait()
            for rank in range(3):
                ckpt._window.wait_signal(rank, 6, 20)  # has been written
            assert not ckpt._is_complete(4)
            assert ckpt._is_complete(6)
            context.barrier()
        return saved

    assert run_threads(3, body) == [[2, 4, 6], [2, 4, 6], [2, 7]]


def test_run_takes_along_who_was_late() -> None:
    passed = threading.Event()

    def body(context: Context) -> list[int]:
        steps = []

        def step(ex: Exchange, n: int) -> None:
            steps.append(n)
            if (context.rank, n) == (2, 0):
                assert passed.wait(20)
            ex.step(whole(context.rank, n))
            if (context.rank, n) == (0, 3):
                passed.set()

        with exchange(context, quorum(2), progress="thread") as ex:
            hpcomm.run(ex, step, 6)
            assert ex.version() == 6
        return steps

    assert [n for n in run_threads(3, body)[2] if n < 4] == [0]


def test_nobody_waits_for_a_quorum_that_cannot_come(transport: dict[str, Any]) -> None:
    """Rank 1 closes in the middle of version 2; rank 2, who was late, is ahead of what rank 0 has pushed."""
    closed, pushed = threading.Event(), threading.Event()

    def body(context: Context) -> None:
        ex = exchange(context, quorum(2), topology=ParameterServer(servers=[0]), progress="thread")
        if context.rank < 2:
            ex.step(whole(context.rank, 0))
            ex.push_pull("w", whole(context.rank, 1)["w"])
        if context.rank == 1:
            ex.close(0)
            closed.set()
        elif context.rank == 0:
            ex.push("b", whole(0, 1)["b"])
            pushed.set()
            with pytest.raises(hpcomm.PeerFailed, match="quorum"):
                ex.pull("b")
        else:
            assert closed.wait(20)
            assert pushed.wait(20)
            ex.step(whole(2, 0))
            assert ex.late == tuple(SHAPES)
            with pytest.raises(hpcomm.PeerFailed, match=r"quorum|rank 0 has freed"):
                ex.step(whole(2, 1))

    run_threads(3, body, **transport)


@on_both
def test_close_tells_of_a_push_that_found_no_quorum(told_by_logger: Callable[[], str]) -> None:
    def body(context: Context) -> tuple[str, ...]:
        with exchange(context, quorum(2, float("inf")), topology=ParameterServer(servers=[0])) as ex:
            ex.step(whole(context.rank, 0))
            if context.rank == 2:
                for name, grad in whole(2, 1).items():
                    ex.push(name, grad)
        return tuple(note for note in context.notes if note.startswith("lost "))

    note = "lost the last push of 2 keys of rank 2, w first: version 2 found no quorum of 2"
    assert run_threads(3, body) == [(), (), (note,)]
    assert f"hpcomm rank 2: {note}\n" in told_by_logger()


def test_who_has_closed_and_left_is_not_waited_for(transport: dict[str, Any]) -> None:
    left, looked = threading.Event(), threading.Event()

    def body(context: Context) -> None:
        with exchange(context, quorum(2), topology=ParameterServer(servers=[0]), progress="thread") as ex:
            if context.rank == 2:
                ex.close()
                context.close()
                left.set()
                raise Left
            assert left.wait(20)
            if context.rank == 1:
                assert looked.wait(20)
                ex.step(whole(1, 0))
            else:
                pulls = [ex.push_pull_nb(name, grad) for name, grad in whole(0, 0).items()]
                for _ in range(20):
                    assert [pull.test() for pull in pulls] == [False, False]
                looked.set()
                for pull in pulls:
                    pull.wait()
            assert ex.version() == 1
        context.close()
        raise Left

    run_threads(3, body, **transport)


@on_both
def test_loading_a_state_takes_along_who_is_behind() -> None:
    meet = threading.Barrier(3, timeout=20)
    shards: dict[int, Any] = {}

    def body(context: Context) -> None:
        with exchange(context, quorum(2), progress="thread") as ex:
            for step in range(2):
                if context.rank != 2:
                    ex.step(whole(context.rank, step))
                meet.wait()
            shards[context.rank] = ex.state_dict()
            meet.wait()
            ex.load_state_dict(shards.values())
            assert ex.version() == 2
            meet.wait()
            if context.rank != 0:
                ex.step(whole(context.rank, 2))
                assert (ex.version(), ex.late) == (3, ())
            meet.wait()

    run_threads(3, body)


def _recover(victim: int) -> list[Any]:
    first = ctx = hpcomm.init(mpi.world())
    ex = exchange(ctx, quorum(3, float("inf")), topology=ParameterServer(servers=[0]))
    lost: tuple[int, ...] = ()
    while ex.clock + ex.version() * (ctx.rank > 0) < 8 or not lost:
        if ctx.rank == victim and ex.version() == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            ex.step({name: np.ones(shape, F32) for name, shape in SHAPES.items()})
        except hpcomm.PeerFailed:
            recovered = hpcomm.recover(ex)
            ex, lost = recovered.exchange, recovered.lost
            break
    for _ in range(2):
        ex.step({name: np.ones(shape, F32) for name, shape in SHAPES.items()})
    value, ranks = float(ex.params["b"][0]), ex.context.size
    ex.close()
    ex.context.close()
    first.close()
    return [value, ranks, list(lost)]


def test_recovery_lowers_the_quorum_to_those_left() -> None:
    """An exchange of two with a quorum of three is refused."""
    ended = mpi.spawn(3, _recover, 2, check=False)
    assert ended.codes == [0, 0, -signal.SIGKILL], ended.err
    assert ended.values[:2] == [[-5.0, 2, [2]]] * 2


@on_both
@pytest.mark.parametrize("codec", [None, ErrorFeedback("bfloat16")])
@pytest.mark.parametrize("skips", [False, True])
def test_a_late_fold_decides_nothing_and_comes_back_once(transport: dict[str, Any], codec: Any, skips: bool) -> None:
    """Its mean is that of the others, and its scale and its skip count for nobody. The update goes back into the
    residual, unless its worker skips it."""
    meet = threading.Barrier(3, timeout=20)

    def fold(ex: Exchange, value: float) -> None:
        for name, shape in SHAPES.items():
            ex.split.fold(name, np.full(shape, value, F32))

    def end(ex: Exchange, scale: float) -> None:
        for name in SHAPES:
            if scale:
                ex.split.apply(name, scale)
            else:
                ex.split.skip(name)

    def body(context: Context) -> None:
        options: dict[str, Any] = {"split": True, "codec": codec, "progress": "thread"}
        with exchange(context, quorum(2), **options) as ex:
            if context.rank < 2:
                fold(ex, 2)
            meet.wait()
            if context.rank == 2:
                fold(ex, 8)
                assert ex.late == tuple(SHAPES)
            for name, shape in SHAPES.items():
                assert ex.split.squares(name) == 4 * np.prod(shape)
                np.testing.assert_array_equal(ex.split.gather(name), np.full(shape, 2, F32))
            meet.wait()
            end(ex, 0.5 if context.rank < 2 else 0.0 if skips else 3.0)
            assert (ex.version(), ex.params["b"].tolist()) == (1, [-1] * 3)
            meet.wait()
            if context.rank > 0:
                fold(ex, 0)
                assert ex.late == ()
                end(ex, 1)
                back = 0 if codec is None or skips else 8 / 2
                for name in SHAPES:
                    np.testing.assert_array_equal(ex.params[name], -1 - back, err_msg=name)
            meet.wait()

    run_threads(3, body, **transport)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_mean_that_is_over_is_not_seen(alone: Context, ranks: int) -> None:
    """A worker, or a host of two ranks, whose update is in it gathers behind the others' apply, or asks for squares
    behind their next fold: what it computes then counts for nobody, and may differ in a host."""
    meet = threading.Barrier(3 * ranks, timeout=20)
    hosts: Any = Hierarchy([[0, 1], [2, 3], [4, 5]]) if ranks == 2 else ParameterServer()

    def fold(ex: Exchange, value: float) -> None:
        for name, shape in SHAPES.items():
            ex.split.fold(name, np.full(shape, value, F32))

    def end(ex: Exchange, scale: float) -> None:
        for name in SHAPES:
            ex.split.apply(name, scale)

    def body(context: Context) -> None:
        worker = context.rank // ranks
        with exchange(context, quorum(2), topology=hosts, split=True, progress="thread") as ex:
            for version in (1, 2):
                if worker < 2:
                    fold(ex, 1 + 2 * worker)
                meet.wait()
                if worker == 0:
                    end(ex, 0.5)
                if worker == 2:
                    fold(ex, 9)
                    end(ex, 0)
                meet.wait()
                if version == 2 and worker != 1:
                    fold(ex, 5)
                meet.wait()
                if worker == 1:
                    for name, shape in SHAPES.items():
                        found = ex.split.gather(name) if version == 1 else ex.split.squares(name)
                        np.testing.assert_array_equal(found, np.full(shape, 3, F32) if version == 1 else 0)
                    end(ex, 7 + context.rank)
                    for name in SHAPES:
                        np.testing.assert_array_equal(ex.params[name], -version)
                meet.wait()

    run_threads(3 * ranks, body)


@pytest.mark.parametrize("skips", [False, True])
def test_a_late_fold_whose_end_is_not_waited_for(alone: Context, skips: bool) -> None:
    """Skipped before its worker has heard that it is late, an update is not returned afterwards."""
    meet = threading.Barrier(3, timeout=20)

    def body(context: Context) -> None:
        options: dict[str, Any] = {"split": True, "codec": ErrorFeedback("bfloat16"), "progress": "thread"}
        with exchange(context, quorum(2), **options) as ex:
            handles: list[Any] = []
            for turn in (False, True):
                for name, shape in SHAPES.items():
                    if (context.rank == 2) == turn:
                        handles.append(ex.split.fold_nb(name, np.full(shape, 8, F32)))
                        handles.append(ex.split.skip_nb(name) if turn and skips else ex.split.apply_nb(name))
                for handle in reversed(handles):
                    handle.wait()
                meet.wait()
            if context.rank > 0:
                for name, shape in SHAPES.items():
                    ex.split.fold(name, np.zeros(shape, F32))
                    np.testing.assert_array_equal(ex.split.apply(name), -8 if skips else -12)
            meet.wait()

    run_threads(3, body)


def test_a_mean_is_ended_before_the_next_fold(alone: Context) -> None:
    def body(context: Context) -> None:
        with exchange(context, quorum(1, float("inf")), split=True) as ex:
            for name, value in whole(0, 0).items():
                ex.split.fold(name, value)
            with pytest.raises(InvalidArgument, match="for version 1 already, and key w not, or not to"):
                ex.split.fold("w", whole(0, 1)["w"])
            ex.split.apply("w")
            with pytest.raises(InvalidArgument, match="for version 1 already, and key b not, or not to"):
                ex.split.fold("w", whole(0, 1)["w"])
            ex.split.skip("b")
            ex.step(whole(0, 1))
            assert ex.version() == 2

    run_threads(2, body)


def test_keys_are_pushed_in_steps(alone: Context) -> None:
    def body(context: Context) -> None:
        with exchange(context, quorum(1, float("inf"))) as ex:
            ex.push_pull("w", whole(0, 0)["w"])
            with pytest.raises(InvalidArgument, match="pushed key w for version 1 already, and key b not"):
                ex.push_pull("w", whole(0, 1)["w"])
            ex.push_pull("b", whole(0, 0)["b"])
            ex.step(whole(0, 1))
            assert ex.version() == 2

    run_threads(2, body)

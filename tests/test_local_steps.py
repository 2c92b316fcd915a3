"""Local steps over NumPy arrays: the paper's algorithm 2, written in NumPy for all ranks, is what ranks end with."""

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpi
import numpy as np
import pytest
from conftest import leave, run_threads
from hypothesis import given
from hypothesis import strategies as st

import hpcomm
from hpcomm import SGD, InvalidArgument, Nesterov
from hpcomm.local import Strided
from hpcomm.local.fragments import fragments_of
from hpcomm.local.schedule import Schedule

SHAPES = {"a.w": (5, 3), "a.b": (3,), "b.w": (40,), "c.w": (2, 7), "c.b": (7,)}
RATE = 0.125

Arrays = dict[str, np.ndarray]


def start() -> Arrays:
    return {name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 7 for name, shape in SHAPES.items()}


def train(own: Mapping[str, np.ndarray], rank: int, step: int) -> None:
    """A step of the inner optimizer, which draws parameters to a number of the rank's own."""
    for i, value in enumerate(own.values()):
        value[...] -= np.float32(RATE) * (value - np.float32(rank + i + step % 3))


@dataclass(frozen=True)
class Way:
    """The arguments of local_steps, and of the outer rule."""

    every: int
    fragments: Any = 1
    delay: int = 0
    mix: float = 1.0
    lr: float = 0.7
    momentum: float = 0.9

    def options(self) -> dict[str, Any]:
        return {"every": self.every, "fragments": self.fragments, "delay": self.delay, "mix": self.mix}


WAYS = [
    Way(4),
    Way(1),
    Way(5, 3, delay=4, mix=0.5),
    Way(6, Strided(2), delay=2),
    Way(4, [["b.w", "a.b"], ["a.w"], ["c.w", "c.b"]], delay=1, mix=0.25),
    Way(3, 2, lr=1.0, momentum=0.0),
    Way(2, 3, delay=1),  # more fragments than steps between exchanges
]
STEPS = 23


def algorithm_2(size: int, way: Way, steps: int, groups: Sequence[Sequence[str]]) -> list[Arrays]:
    """Streaming DiLoCo, algorithm 2, for all ranks together: in float64, so that hpcomm's rounding is what differs."""
    own = [{name: value.astype(np.float64) for name, value in start().items()} for _ in range(size)]
    shared = {name: value.astype(np.float64) for name, value in start().items()}
    moments = {name: np.zeros_like(value) for name, value in shared.items()}
    sent: dict[int, tuple[int, Arrays]] = {}  # by fragment: the step, and the mean of the updates
    offsets = [(p + 1) * way.every // len(groups) % way.every for p in range(len(groups))]
    for t in range(1, steps + 1):
        for rank in range(size):
            for i, value in enumerate(own[rank].values()):
                value[...] -= RATE * (value - (rank + i + (t - 1) % 3))
        for receive in (True, False, True):
            for p, names in enumerate(groups):
                if receive and p in sent and t == sent[p][0] + way.delay:
                    for name, update in sent.pop(p)[1].items():
                        moments[name] = way.momentum * moments[name] + update
                        shared[name] = shared[name] - way.lr * (update + way.momentum * moments[name])
                        for rank in range(size):
                            own[rank][name] = (1 - way.mix) * own[rank][name] + way.mix * shared[name]
                if not receive and t % way.every == offsets[p]:
                    sent[p] = t, {n: shared[n] - sum(own[r][n] for r in range(size)) / size for n in names}
    return own


# ---- ranks -----------------------------------------------------------------------------------------------------------


def make(ctx: hpcomm.Context, way: Way, **options: Any) -> tuple[hpcomm.Exchange, hpcomm.local.LocalSteps]:
    rule = Nesterov(lr=way.lr, momentum=way.momentum) if way.momentum else SGD(lr=way.lr)
    ex = hpcomm.Exchange(ctx, start(), rule=rule, **options)
    return ex, hpcomm.local_steps(ex, **way.options())


def check_near(own: Any, expected: Arrays) -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(own[name], value, rtol=2e-5, atol=2e-5, err_msg=name)


def check_alike(ctx: hpcomm.Context, own: Any) -> None:
    """All ranks have the same bits."""
    mine = b"".join(value.tobytes() for value in own.values())
    assert set(ctx.allgather(mine)) == {mine}


def algorithms(ctx: hpcomm.Context) -> None:
    for way in WAYS:
        ex, local = make(ctx, way)
        for step in range(STEPS):
            train(local.params, ctx.rank, step)
            local.step()
        check_near(local.params, algorithm_2(ctx.size, way, STEPS, local.fragments)[ctx.rank])
        rounds = [one.rounds for one in local.stats().fragments]
        assert rounds == [local.schedule.begun_by(fragment, STEPS) for fragment in range(len(rounds))]
        local.sync()
        check_alike(ctx, local.params)
        stats, traffic = local.stats(), ex.stats().traffic
        assert stats.steps == STEPS
        assert stats.bytes == sum(one.bytes for one in traffic)
        assert (stats.bytes > 0) == (ctx.size > 1)
        ex.close()


def codecs(ctx: hpcomm.Context) -> None:
    """16 bits and pieces, back as small as they went: ranks end alike, near their common aim."""
    for options in (
        {"codec": "bfloat16"},
        {"codec": hpcomm.codec.TopK(0.25, kernel="c")},
        {"codec": hpcomm.codec.TopK(0.25, kernel="c"), "topology": hpcomm.ParameterServer(apply_at="receivers")},
        {"codec": hpcomm.codec.Float4(), "topology": hpcomm.ParameterServer(apply_at="receivers")},
        {"codec": hpcomm.codec.OneBit(), "topology": hpcomm.ParameterServer(apply_at="receivers")},
        {"topology": hpcomm.PeerToPeer()},
    ):
        way = Way(4, 2, delay=2, lr=1.0, momentum=0.0)
        ex, local = make(ctx, way, **options)
        for step in range(200):
            train(local.params, ctx.rank, step)
            local.step()
        local.sync()
        check_alike(ctx, local.params)
        for i, value in enumerate(local.params.values()):
            aim = (ctx.size - 1) / 2 + i + 1
            assert np.abs(value - aim).max() < 1, (options, i)
        ex.close()


def resumes(ctx: hpcomm.Context, folder: str) -> None:
    """A job that goes on from a checkpoint, between a begin and its take, has the bits of one that was not stopped."""
    way = Way(5, 2, delay=3)

    def go_on(local: hpcomm.local.LocalSteps, first: int, saver: hpcomm.Checkpointer | None, last: int = STEPS) -> None:
        for step in range(first, last):
            train(local.params, ctx.rank, step)
            local.step()
            if saver is not None:
                local.wait()
                saver.after(step + 1, local.state_dict)

    options = {"codec": hpcomm.codec.TopK(0.5, kernel="c"), "topology": hpcomm.ParameterServer(apply_at="receivers")}
    ex, local = make(ctx, way, **options)
    with hpcomm.Checkpointer(ex, folder, every=11) as saver:  # begun at 10
        go_on(local, 0, saver)
    ctx.barrier()
    ex2, again = make(ctx, way, **options)
    ex3, third = make(ctx, way, **options)
    go_on(third, 0, None, 11)
    for syncs in (True, False):
        found = hpcomm.restore(ex2, folder, 11)
        assert found is not None
        again.load_state_dict(found.extra)
        assert again.steps == 11
        if syncs:  # what was learned since step 10 is in it
            again.sync()
            third.sync()
            assert [one.rounds for one in again.stats().fragments] == [3, 3]
            for name, value in third.params.items():
                assert value.tobytes() == again.params[name].tobytes(), name
    ex3.close()
    go_on(again, 11, None)
    for name, value in local.params.items():
        assert value.tobytes() == again.params[name].tobytes(), name
    again.wait()
    assert found is not None
    with pytest.raises(InvalidArgument, match="every=5 and 2 fragments, and here are every=6"):
        hpcomm.local_steps(ex2, every=6, fragments=2).load_state_dict(found.extra)
    ex.close()
    ex2.close()


def joins(ctx: hpcomm.Context) -> None:
    """A rank that has run out gives what it had learned, and nothing more, until all have."""
    way = Way(4, 2, delay=1, lr=1.0, momentum=0.0)
    ex, local = make(ctx, way)
    for epoch in range(2):
        with local.join():
            for _ in range(3 if ctx.rank == 0 else 9 + ctx.rank):
                train(local.params, ctx.rank, 0)
                local.step()
        assert len(set(ctx.allgather(str(local.steps).encode().ljust(8)))) == 1, epoch
    assert local.steps == (2 * (8 + ctx.size) if ctx.size > 1 else 6)
    local.sync()
    check_alike(ctx, local.params)
    rounds, steps = [one.rounds for one in local.stats().fragments], local.steps
    since = [steps % 4 != local.schedule.offset(fragment) for fragment in range(2)]  # only then the sync exchanges it
    assert rounds == [local.schedule.begun_by(fragment, steps) + since[fragment] for fragment in range(2)]
    local.sync()
    assert [one.rounds for one in local.stats().fragments] == rounds
    ex.close()


REFUSED: dict[str, tuple[Callable[[hpcomm.Exchange], Any], str]] = {
    "every": (lambda ex: hpcomm.local_steps(ex, every=0), "every is 0"),
    "delay": (lambda ex: hpcomm.local_steps(ex, every=3, delay=3), "delay is 3 and every is 3"),
    "mix": (lambda ex: hpcomm.local_steps(ex, every=3, mix=0), "mix is 0"),
    "mix above 1": (lambda ex: hpcomm.local_steps(ex, every=3, mix=1.5), "mix is 1.5"),
    "left out": (
        lambda ex: hpcomm.local_steps(ex, every=3, fragments=[["a.w", "a.b", "b.w", "c.w"]]),
        "'c.b' stands in no",
    ),
    "twice": (
        lambda ex: hpcomm.local_steps(ex, every=3, fragments=[[*SHAPES], ["b.w"]]),
        "'b.w' stands in fragments 2",
    ),
    "unknown": (lambda ex: hpcomm.local_steps(ex, every=3, fragments=[["d"]]), "'d' is not a key"),
    "too many": (lambda ex: hpcomm.local_steps(ex, every=3, fragments=4), "fragments is 4, and there are 3 layers"),
    "params": (lambda ex: hpcomm.local_steps(ex, {"a.w": 1}, every=3), "params has no array 'a.b'"),
}


def refusals(ctx: hpcomm.Context) -> None:
    """One rank gives what cannot be: every rank raises, and the exchange is as before."""
    ex = hpcomm.Exchange(ctx, start(), rule=SGD(lr=1.0))
    for call, sentence in REFUSED.values():
        if ctx.rank == 0:
            with pytest.raises(InvalidArgument, match=sentence):
                call(ex)
        else:
            with pytest.raises(InvalidArgument, match=f"rank 0 refuses local steps: .*{sentence}"):
                hpcomm.local_steps(ex, every=3)
    if ctx.size > 1:
        with pytest.raises(hpcomm.ConfigError, match="give the same"):
            hpcomm.local_steps(ex, every=3 + (ctx.rank == 1))
    graph = hpcomm.stochastic_reduce(ctx, start())
    with pytest.raises(InvalidArgument, match="on a graph"):
        hpcomm.local_steps(graph, every=3)
    average = hpcomm.Exchange(ctx, start(), rule=hpcomm.Average())
    with pytest.raises(InvalidArgument, match="Average"):
        hpcomm.local_steps(average, every=3)
    pieces = hpcomm.Exchange(ctx, start(), rule=SGD(lr=1.0), codec=hpcomm.codec.TopK(0.5, kernel="c"))
    with pytest.raises(InvalidArgument, match=r"mix is 0.5, and the codec of 'a.w', .* keeps a residual"):
        hpcomm.local_steps(pieces, every=3, mix=0.5)
    pieces.close()
    local = hpcomm.local_steps(ex, every=3)
    for _ in range(3):
        local.step()
    for one in (ex, graph, average):
        one.close()


def cases(folder: str) -> None:
    with hpcomm.init(mpi.world(), timeout=30) as ctx:
        algorithms(ctx)
        codecs(ctx)
        resumes(ctx, folder)
        joins(ctx)
        refusals(ctx)


@pytest.mark.parametrize("size", [1, 3])
def test_ranks_end_as_the_algorithm_says(size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mpi.spawn(size, cases, folder, timeout=90, env={"HPCOMM_TIMELINE": f"{folder}/timeline-%r.json"})
        lines = Path(folder, "timeline-0.json").read_text(encoding="utf-8").splitlines()
        shown = Counter(json.loads(line.rstrip(","))["name"] for line in lines if "fragment 1" in line)
    assert shown["fragment 1: begin"] == shown["fragment 1: under way"] > 10
    assert shown["fragment 1: take"] > 10


# ---- one process -----------------------------------------------------------------------------------------------------


@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 300))
def test_schedule_counts_what_is_due(every: int, fragments: int, steps: int) -> None:
    schedule = Schedule(every, fragments)
    due = Counter(p for t in range(1, steps + 1) for p in range(fragments) if t % every == schedule.offset(p))
    assert [schedule.begun_by(p, steps) for p in range(fragments)] == [due[p] for p in range(fragments)]
    after = schedule.next_due(steps)
    assert schedule.due(after)
    assert not any(schedule.due(t) for t in range(steps + 1, after))


SIZES = st.lists(st.integers(1, 1000), min_size=1, max_size=30)


@given(SIZES, st.data())
def test_fragments_hold_each_layer_once(sizes: list[int], data: st.DataObject) -> None:
    keys = {f"{i // 2}.{'wb'[i % 2]}": n for i, n in enumerate(sizes)}
    layers = {name.partition(".")[0] for name in keys}
    number = data.draw(st.integers(1, len(layers)))
    for value in (number, Strided(number)):
        found = fragments_of(keys, value)
        assert len(found) == number
        assert sorted(name for names in found for name in names) == sorted(keys)
        where = {name: p for p, names in enumerate(found) for name in names}
        assert all(where[name] == where[f"{name.partition('.')[0]}.w"] for name in keys)
    assert [name for names in fragments_of(keys, number) for name in names] == list(keys)
    assert fragments_of(keys, number) == fragments_of(keys, fragments_of(keys, number))


def test_waits_have_the_names_of_calls_and_fewer_steps_are_told() -> None:
    told: dict[int, hpcomm.HpcommError] = {}

    def trains(ctx: hpcomm.Context, local: hpcomm.local.LocalSteps, first: int, last: int) -> None:
        for step in range(first, last):
            train(local.params, ctx.rank, step)
            local.step()

    def body(ctx: hpcomm.Context) -> None:
        _, local = make(ctx, Way(2))
        trains(ctx, local, 0, 6)
        with pytest.raises(hpcomm.Timeout) as overdue:
            local.sync() if ctx.rank == 0 else trains(ctx, local, 6, 8)
        told[ctx.rank] = overdue.value
        leave(ctx)

    def ends(ctx: hpcomm.Context) -> None:
        _, local = make(ctx, Way(2))
        trains(ctx, local, 0, 4)
        if ctx.rank == 1:
            leave(ctx)
        with pytest.raises(hpcomm.PeerFailed) as failed:
            trains(ctx, local, 4, 9)
        told[2] = failed.value
        leave(ctx)

    run_threads(2, body, look_after=0.3, timeout=1800)
    assert [getattr(told[rank], "op", "") for rank in range(2)] == ["local.sync()", "local.step()"]
    assert "rank 0 is in local.sync(), which every rank must call; rank 1 is in local.step()" in str(told[1])
    run_threads(2, ends)
    assert "rank 1 has made fewer steps and has ended, rank 0 is at step 6: use local.join()" in str(told[2])

"""What a checkpoint holds, by values that are reckoned here in integers: the model, the rule's state, clocks, and what
has become of the updates that were on their way."""

import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import on_both, run_threads
from flat import grouped

from hpcomm import (
    ASYNC,
    BSP,
    NOTIFY_ACK,
    SSP,
    Checkpointer,
    Consistency,
    Context,
    Exchange,
    Momentum,
    ParameterServer,
    graphs,
    restore,
)
from hpcomm.checkpoint import files

F32 = np.float32
PATTERN = (np.arange(1200) % 7 + 1).reshape(40, 30)  # of several chunks; what differs in place differs in value
RULE = Momentum(lr=1.0, momentum=0.5)  # m = m / 2 + g; w -= lr * m


class Reckoned:
    """Parameters w * PATTERN and momentum m * PATTERN, in ints."""

    def __init__(self) -> None:
        self.w = self.m = 0

    def apply(self, gradient: int, lr: int = 1) -> None:
        half, odd = divmod(self.m, 2)
        assert not odd, "the numbers are to be exact"
        self.m = half + gradient
        self.w -= lr * self.m
        assert abs(7 * self.w) < 1 << 24


def exchange(context: Context, where: Any, consistency: Consistency, **options: Any) -> Exchange:
    params = {"w": np.zeros(PATTERN.shape, F32)}
    return Exchange(
        context, params, where, consistency, RULE, chunk_bytes=1024, **grouped({"progress": "thread", **options})
    )


def assert_shard(shard: Any, want: Reckoned, steps: int) -> None:
    at = 0
    assert len(shard["row_count"])
    for offset, count in zip(shard["row_offset"], shard["row_count"], strict=True):
        part = PATTERN.reshape(-1)[offset : offset + count]
        np.testing.assert_array_equal(shard["params"][at : at + count], want.w * part)
        np.testing.assert_array_equal(shard["state"][at : at + count], want.m * part)
        at += count
    assert set(shard["row_step"]) == {steps}


def saved(folder: Path, step: int) -> dict[int, Any]:
    """The shards of a step by rank."""
    found = [files.read(one.path) for one in files.listed(folder) if one.step == step]
    return {label.rank: sections["shard"] for label, sections in found}


@pytest.mark.parametrize("consistency", [ASYNC, SSP(2)], ids=str)
@pytest.mark.parametrize("placement", ["CS", "NCC"])
@on_both
def test_an_asynchronous_hub(tmp_path: Path, placement: str, consistency: Consistency) -> None:
    """Saved while no push is under way, every row has had all updates of all workers, in whatever order; the rate is
    one that the workers have set."""
    placed = ParameterServer(placement)
    workers = 3 if placement == "CS" else 2
    idle = threading.Barrier(workers, timeout=20)
    gradient = 1 << 12

    def reckoned(steps: int) -> Reckoned:
        found = Reckoned()
        for _ in range(steps * workers):
            found.apply(gradient, lr=2)
        return found

    def train(ex: Exchange, ckpt: Checkpointer, first: int, last: int) -> None:
        for step in range(first, last):
            ex.push_pull("w", (gradient * PATTERN).astype(F32))
            ex.pull("w")  # without a push before it: comes after the push at the owners
            idle.wait()
            ckpt.after(step + 1)
            np.testing.assert_array_equal(ex.pull("w"), reckoned(step + 1).w * PATTERN)
            idle.wait()

    def body(context: Context, last: int) -> None:
        with exchange(context, placed, consistency, reduce="sum") as ex:
            found = restore(ex, tmp_path)
            first = found.step if found else 0
            if ex.params and not found:
                ex.set(lr=2.0)
            if ex.params and found:
                np.testing.assert_array_equal(ex.params["w"], reckoned(first).w * PATTERN)
            with Checkpointer(ex, tmp_path, every=1, keep=5) as ckpt:
                train(ex, ckpt, first, last) if ex.params else ckpt.serve()

    for last in (2, 4):
        run_threads(3, partial(body, last=last))
    for step in range(1, 5):
        found = saved(tmp_path, step)
        for owner in range(3) if placement == "CS" else (0,):
            assert_shard(found[owner], reckoned(step), step * workers)


@on_both
def test_an_asynchronous_graph(tmp_path: Path) -> None:
    """Ranks push in turn, so that it is known what each finds. What a rank has not folded at the cut is lost, and what
    it has folded counts once."""
    n, grain = 3, 6 << 6

    def update(rank: int, step: int) -> int:
        return grain * (1 + rank + 3 * step)

    def reckoned(last: int, restarts: int) -> list[list[Reckoned]]:
        """Of each rank after each step; with nothing in its queue after step `restarts`."""
        found = [[Reckoned() for _ in range(last + 1)] for _ in range(n)]
        queues: list[dict[int, int]] = [{} for _ in range(n)]
        for step in range(1, last + 1):
            if step == restarts + 1:
                queues = [{} for _ in range(n)]
            for rank in range(n):
                now, before = found[rank][step], found[rank][step - 1]
                now.w, now.m = before.w, before.m
                inputs = [update(rank, step), *queues[rank].values()]
                assert sum(inputs) % len(inputs) == 0
                now.apply(sum(inputs) // len(inputs))
                queues[rank] = {}
                for other in range(n):
                    if other != rank:
                        queues[other][rank] = update(rank, step)
        return found

    want = reckoned(4, 2)
    assert want[0][3].w != reckoned(3, 9)[0][3].w, "something is lost"

    def body(context: Context, last: int) -> None:
        rank = context.rank
        with exchange(context, graphs.complete(n), ASYNC) as ex:
            found = restore(ex, tmp_path)
            first = found.step if found else 0
            assert ex.clock == first
            np.testing.assert_array_equal(ex.params["w"], want[rank][first].w * PATTERN)
            with Checkpointer(ex, tmp_path, every=1, keep=5) as ckpt:
                for step in range(first + 1, last + 1):
                    for turn in range(n):
                        if turn == rank:
                            ex.gradient("w")[...] = update(rank, step) * PATTERN
                            ex.push_pull("w")
                            ex.gradient("w")  # what was sent has arrived
                        context.barrier()
                    np.testing.assert_array_equal(ex.params["w"], want[rank][step].w * PATTERN)
                    ckpt.after(step)

    for last in (2, 4):
        run_threads(n, partial(body, last=last))
    for step in range(1, 5):
        for rank, shard in saved(tmp_path, step).items():
            assert_shard(shard, want[rank][step], step)


HUB = ParameterServer("CC", [1])


@pytest.mark.parametrize(
    ("where", "consistency", "options"),
    [
        (HUB, BSP, {}),
        (graphs.complete(2), NOTIFY_ACK, {"depth": 2}),
        (graphs.complete(2), BSP, {}),
    ],
    ids=["hub", "graph, NOTIFY_ACK", "graph, BSP"],
)
@on_both
def test_an_update_on_its_way_at_the_cut_counts_once(
    tmp_path: Path, where: Any, consistency: Consistency, options: dict[str, Any]
) -> None:
    """Rank 0's update of step 3 has come to rank 1 before that copies step 2; the job goes on from step 2."""
    want = [Reckoned() for _ in range(5)]
    for step in range(1, 5):
        for update in range(step):
            want[step].apply(96 * (update + 1))

    def gradient(rank: int, step: int) -> Any:
        return ((64 + 64 * rank) * step * PATTERN).astype(F32)  # 96 * step in the mean

    def before(context: Context) -> None:
        ex = exchange(context, where, consistency, **options)
        ckpt = Checkpointer(ex, tmp_path, every=2)
        for step in (1, 2):
            ex.push_pull("w", gradient(context.rank, step))
        if context.rank == 0:
            ckpt.after(2)
            ex.push_nb("w", gradient(0, 3))
        context.barrier()
        if context.rank == 1:
            ckpt.after(2)
            ex.push_nb("w", gradient(1, 3))
        ckpt.close()
        ex.close()

    def after(context: Context) -> None:
        with exchange(context, where, consistency, **options) as ex:
            found = restore(ex, tmp_path)
            assert found is not None
            for step in range(found.step, 4):
                np.testing.assert_array_equal(ex.params["w"], want[step].w * PATTERN)
                ex.push_pull("w", gradient(context.rank, step + 1))
            np.testing.assert_array_equal(ex.params["w"], want[4].w * PATTERN)

    run_threads(2, before)
    found = saved(tmp_path, 2)
    for rank in (1,) if where is HUB else (0, 1):
        assert_shard(found[rank], want[2], 2)
    run_threads(2, after)

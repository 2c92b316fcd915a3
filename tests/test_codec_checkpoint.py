"""What encoders keep in checkpoints: the same bits after a restart, other numbers of ranks, and after a death."""

import os
import signal
from pathlib import Path
from typing import Any

import mpi
import numpy as np
import pytest
from conftest import on_both, run_threads
from numpy.typing import NDArray
from told import logs

import hpcomm
from hpcomm import SGD, Adam, Checkpointer, Exchange, Hierarchy, InvalidArgument, ParameterServer, graphs
from hpcomm.codec import ErrorFeedback, Float4, OneBit, Threshold, TopK
from hpcomm.exchange import encoders

F32 = np.float32
Floats = NDArray[np.float32]
C: dict[str, Any] = {"kernel": "c"}
SHAPES = {"w": (90, 40), "v": (3000,), "u": (20, 64), "s": (70,), "f": (20, 30), "b": (3,)}
CODECS: dict[str, Any] = {
    "w": TopK(0.05, **C),
    "v": Threshold(1.5, **C),
    "u": OneBit(),
    "s": ErrorFeedback("bfloat16"),
    "f": ErrorFeedback(Float4()),
}
TOPOLOGIES: dict[str, Any] = {
    "servers": ParameterServer(),
    "receivers": ParameterServer(apply_at="receivers"),
    "tree": ParameterServer(apply_at="receivers", tree=hpcomm.Tree(arity=1)),
    "hosts": Hierarchy([[0, 1], [2]], apply_at="receivers"),
}


def zeros() -> dict[str, Floats]:
    return {name: np.zeros(shape, F32) for name, shape in SHAPES.items()}


def step_of(ex: Exchange, step: int) -> None:
    rng = np.random.default_rng([ex.context.rank, step])
    ex.step({name: rng.standard_normal(shape).astype(F32) for name, shape in SHAPES.items()})


# ---- a job that is killed --------------------------------------------------------------------------------------------

EVERY, DIES, STEPS = 3, 8, 12
JOBS: dict[str, Any] = {**TOPOLOGIES, "graph": graphs.ring}


def _job(folder: str, end: int, kills: bool) -> dict[str, Any]:
    """Trains in each topology from where a checkpoint is until step end."""
    ctx = hpcomm.init(mpi.world())
    found: dict[str, Any] = {}
    for name, how in JOBS.items():
        ex = Exchange(ctx, zeros(), how, rule=Adam(lr=0.01), codec=CODECS, chunk_bytes=2048, progress="inline")
        resumed = hpcomm.restore(ex, Path(folder, name))
        first = 0 if resumed is None else resumed.step
        ckpt = Checkpointer(ex, Path(folder, name), every=EVERY)
        for step in range(first, end):
            step_of(ex, step)
            ckpt.after(step + 1)
        bits = {key: value.tobytes().hex() for key, value in ex.params.items()}
        found[name] = [first, bits, np.flatnonzero(ex.state_dict()["encoders"]).size]
        ckpt.close()
        if not kills:
            ex.close()
    if kills:
        try:
            ctx.barrier()
        finally:  # who leaves the barrier first is dead before the last one has left
            os.kill(os.getpid(), signal.SIGKILL)
    ctx.close()
    return found


def test_a_job_that_was_killed_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    whole = mpi.spawn(3, _job, str(tmp_path / "whole"), STEPS, False).values
    killed = mpi.spawn(3, _job, str(tmp_path / "cut"), DIES, True, check=False)
    assert killed.codes == [-signal.SIGKILL] * 3
    again = mpi.spawn(3, _job, str(tmp_path / "cut"), STEPS, False).values
    for name in JOBS:
        for one, other in zip(whole, again, strict=True):
            assert (one[name][0], other[name][0]) == (0, DIES // EVERY * EVERY)
            assert one[name][1] == other[name][1], name
            assert other[name][2] > 100, "something is kept back"


# ---- other numbers of ranks ------------------------------------------------------------------------------------------


def shards_of(ranks: int, how: Any = TOPOLOGIES["receivers"], **options: Any) -> list[dict[str, Any]]:
    def body(ctx: hpcomm.Context) -> dict[str, Any]:
        with Exchange(ctx, zeros(), how, codec=CODECS, progress="inline", chunk_bytes=2048, **options) as ex:
            for step in range(3):
                step_of(ex, step)
            ctx.barrier()
            return {
                name: value.copy() if isinstance(value, np.ndarray) else value
                for name, value in ex.state_dict().items()
            }

    return run_threads(ranks, body)


def pending(shards: list[dict[str, Any]], of_rows: int) -> dict[int, NDArray[np.float64]]:
    """By key: what encoders of workers (or of rows) keep back, by the weight that it will have."""
    found: dict[int, NDArray[np.float64]] = {}
    for shard in shards:
        at = 0
        columns = (shard[f"encoder_{name}"].tolist() for name in ("key", "row", "offset", "count", "values", "weight"))
        for key, is_row, offset, count, n, weight in zip(*columns, strict=True):
            size = int(shard["counts"][key])
            whole = found.setdefault(key, np.zeros(size))
            if is_row == of_rows:
                whole[offset : offset + count] += weight * shard["encoders"][at : at + count].astype(np.float64)
            at += n
    return found


def loaded(ranks: int, shards: list[dict[str, Any]], how: Any, **options: Any) -> list[dict[str, Any]]:
    def body(ctx: hpcomm.Context) -> dict[str, Any]:
        with Exchange(ctx, zeros(), how, progress="inline", **{"codec": CODECS, **options}) as ex:
            step_of(ex, 77)  # what is kept back by now is forgotten
            ex.load_state_dict(shards)
            return ex.state_dict()

    return run_threads(ranks, body)


@on_both
@pytest.mark.parametrize("reduce", ["mean", "sum"])
@pytest.mark.parametrize("ranks", [2, 4, 7])
def test_what_is_kept_back_counts_as_much_with_other_ranks(ranks: int, reduce: str) -> None:
    before = shards_of(4, reduce=reduce)
    after = loaded(ranks, before, TOPOLOGIES["receivers"], reduce=reduce, chunk_bytes=4096)
    for of_rows in (0, 1):
        old, new = pending(before, of_rows), pending(after, of_rows)
        for key, values in old.items():
            np.testing.assert_allclose(new[key], values, rtol=1e-6, atol=1e-6)
            assert values.any()
    if ranks == 7:
        assert not pending(after[4:], 0)[0].any(), "new ranks begin with nothing"


@pytest.mark.parametrize(
    ("of", "to"),
    [("hosts", "receivers"), ("receivers", "tree"), ("tree", "hosts")],
)
def test_what_rows_keep_back_moves_with_their_elements(of: str, to: str) -> None:
    before = shards_of(3, TOPOLOGIES[of])
    after = loaded(3, before, TOPOLOGIES[to])
    old, new = pending(before, 1), pending(after, 1)
    for key, values in old.items():
        np.testing.assert_allclose(new[key], values, rtol=1e-6, atol=1e-6)
        assert values.any()


@pytest.mark.parametrize(("ranks", "to"), [(1, "receivers"), (3, "servers")])
def test_a_worker_takes_what_rows_kept_back_where_none_forwards(ranks: int, to: str) -> None:
    before = shards_of(2)
    after = loaded(ranks, before, TOPOLOGIES[to])
    workers, rows, new = pending(before, 0), pending(before, 1), pending(after, 0)
    for key, values in new.items():
        assert rows[key].any()
        np.testing.assert_allclose(values, workers[key] + rows[key], rtol=1e-6, atol=1e-6)


def test_a_load_looks_at_each_residual_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a model of many layers takes minutes."""
    looked_at: list[int] = []
    worker = encoders._worker

    def counted(place: Any, held: Any, *rest: Any) -> Any:
        looked_at.append(len(held))
        return worker(place, held, *rest)

    monkeypatch.setattr(encoders, "_worker", counted)
    keys = {f"k{i}": np.zeros(4, F32) for i in range(20)}

    def body(ctx: hpcomm.Context) -> None:
        with Exchange(ctx, keys, codec=TopK(0.25, **C), progress="inline") as ex:
            ex.step({name: np.arange(1, 5, dtype=F32) for name in keys})
            ex.load_state_dict(ex.state_dict())

    run_threads(1, body)
    assert looked_at == [1] * len(keys)


def test_an_older_checkpoint_is_loaded_and_other_codecs_are_told() -> None:
    before = shards_of(2)
    older = [{name: value for name, value in shard.items() if not name.startswith("encoder")} for shard in before]
    assert not any(shard["encoders"].any() for shard in loaded(2, older, TOPOLOGIES["receivers"]))

    def body(ctx: hpcomm.Context) -> None:
        codec = {name: TopK(0.1, **C) for name in ("w", "v", "u")}
        with Exchange(ctx, zeros(), TOPOLOGIES["receivers"], codec=codec, progress="inline") as ex:
            with logs("held back of key 's' is left out"):
                ex.load_state_dict(before)
            assert np.flatnonzero(ex.state_dict()["encoders"]).size > 1000, "residuals stay, whatever the codec"

    run_threads(1, body)


@pytest.mark.parametrize(
    "wrong",
    [
        {"encoder_values": np.array([1])},
        {"encoders": np.zeros(3, F32)},
        {"encoder_worker": "x"},
        {"encoder_weight": np.array([np.nan])},
        {"encoder_key": np.array([9])},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_malformed_shard_is_refused(wrong: dict[str, Any]) -> None:
    def body(ctx: hpcomm.Context) -> None:
        with Exchange(ctx, {"w": np.zeros(5, F32)}, codec=TopK(0.5, **C), progress="inline") as ex:
            ex.push_pull("w", np.arange(5, dtype=F32))
            before = ex.state_dict()["encoders"].copy()
            assert before.any()
            with pytest.raises(InvalidArgument, match="load_state_dict: a shard is not what state_dict gave"):
                ex.load_state_dict({**ex.state_dict(), **wrong})
            assert np.array_equal(ex.state_dict()["encoders"], before)

    run_threads(1, body)


# ---- a death ---------------------------------------------------------------------------------------------------------


def _recovers(consistency: str) -> dict[str, Any]:
    first = hpcomm.init(mpi.world())
    options: dict[str, Any] = {"codec": {"w": TopK(0.1, **C)}, "progress": "inline"}
    if consistency == "SSP":
        options["consistency"] = hpcomm.SSP(1)
    ex = Exchange(first, {"w": np.zeros(2000, F32)}, ParameterServer(servers=[0, 2]), rule=SGD(lr=0.1), **options)
    kept = same = step = 0
    while step < 30:
        try:
            if first.rank == 1 and step == 10:
                os.kill(os.getpid(), signal.SIGKILL)
            ex.push_pull("w", np.random.default_rng([first.rank, step]).standard_normal(2000).astype(F32))
            step += 1
        except hpcomm.PeerFailed:
            before = ex._state.saved()["encoders"]
            recovered = hpcomm.recover(ex)
            ex, step = recovered.exchange, recovered.clock
            after = ex.state_dict()["encoders"]
            kept, same = np.flatnonzero(after).size, int(np.array_equal(before, after))
    density = ex.stats().codecs["w"].density
    ex.close()
    ex.context.close()
    first.close()
    return {"kept": kept, "same": same, "density": density}


@pytest.mark.parametrize("consistency", ["BSP", "SSP"])
def test_those_that_are_left_keep_what_they_held_back(consistency: str) -> None:
    ended = mpi.spawn(3, _recovers, consistency, check=False)
    assert ended.codes == [0, -signal.SIGKILL, 0], ended.err
    assert "the lost ranks' residuals are lost" in ended.err
    for rank in (0, 2):
        told = ended.values[rank]
        assert told["kept"] > 500
        assert told["same"]
        assert 0.05 < told["density"] < 0.3

"""Exchanges whose updates are sent in pieces: the bounds of Parameter Flow (section 3.3), nothing is lost, what is
refused, and what "auto" chooses."""

import re
from pathlib import Path
from typing import Any

import mpi
import numpy as np
import pytest
from conftest import on_both, run_threads
from flat import grouped
from numpy.typing import NDArray

import hpcomm
from hpcomm import (
    ASYNC,
    BARRIER,
    BSP,
    NOTIFY_ACK,
    SGD,
    SSP,
    Average,
    Consistency,
    EngineOptions,
    Exchange,
    Hierarchy,
    HpcommError,
    InvalidArgument,
    Momentum,
    ParameterServer,
    Plan,
    Tree,
    graphs,
)
from hpcomm.codec import FLOAT32, Auto, ErrorFeedback, OneBit, Threshold, TopK, name_of
from hpcomm.topology import Request

F32 = np.float32
Floats = NDArray[np.float32]
RECEIVERS = ParameterServer(apply_at="receivers")
C: dict[str, Any] = {"kernel": "c"}  # Numba takes a second


def held_back(ex: Exchange) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """By key: the residual of this rank as a worker, and of its rows, 0 where it has none."""
    shard = ex.state_dict()
    worker, rows = ({key.name: np.zeros(key.count, F32) for key in ex.plan.keys} for _ in range(2))
    at = 0
    columns = (shard[f"encoder_{name}"].tolist() for name in ("key", "row", "offset", "count", "values"))
    for key, is_row, offset, count, n in zip(*columns, strict=True) if "encoders" in shard else ():
        into = (rows if is_row else worker)[ex.plan.keys[key].name]
        into[offset : offset + count] += shard["encoders"][at : at + count]
        at += n
    return worker, rows


# ---- the theory ------------------------------------------------------------------------------------------------------

N = 10_000
DELTA, STEPS = 6.0, 12


def _whole(ctx: hpcomm.Context, step: int, n: int = N) -> Floats:
    """Numbers whose sums are exact in any order."""
    return np.random.default_rng([ctx.rank, step]).integers(-5, 6, n).astype(F32)


def _theory() -> list[Any]:
    """Of each step: the norms of what this rank keeps back as worker and owner, what all have computed, and w."""
    ctx = hpcomm.init(mpi.world())
    codec = Threshold(DELTA, **C)
    told = []
    with Exchange(
        ctx, {"w": np.zeros(N, F32)}, RECEIVERS, rule=SGD(lr=1.0), reduce="sum", codec=codec, chunk_bytes=4096
    ) as ex:
        computed = np.zeros(N, F32)
        for step in range(STEPS):
            mine = _whole(ctx, step)
            computed += mine
            ex.push_pull("w", mine)
            worker, rows = (part["w"] for part in held_back(ex))
            norms = [float(np.linalg.norm(part)) for part in (worker, rows)]
            told.append([norms, *(np.flatnonzero(part).size for part in (worker, rows))])
        parts = [np.frombuffer(part, F32) for part in ctx.allgather(np.stack([computed, worker, rows]).tobytes())]
        sums = [sum(part.reshape(3, N)[i] for part in parts) for i in range(3)]
        w = ex.params["w"].copy()
        exact = bool(np.array_equal(-w + sums[1] + sums[2], sums[0]))
        away = float(np.linalg.norm(w + sums[0]))
        same = len(set(ctx.allgather(np.array(hash(w.tobytes()), np.int64).tobytes()))) == 1
    ctx.close()
    return [told, exact, away, same]


def test_what_is_kept_back_is_bounded_and_never_lost() -> None:
    ranks = 3
    values = mpi.spawn(ranks, _theory, env={"PYTHONHASHSEED": "0"}).values
    for told, exact, away, same in values:
        assert exact, "what was sent and what is kept back is all that was computed"
        assert same, "all workers have the same bits"
        for step, (norms, *kept) in enumerate(told):
            delta = DELTA / np.sqrt(step + 1)
            assert max(norms) <= delta * np.sqrt(N)
            assert kept[0] > 100
        assert max(kept[1] for _, *kept in told) > 100, "owners keep back as well"
        assert 0 < away <= (ranks + 1) * DELTA / np.sqrt(STEPS) * np.sqrt(N)


@pytest.mark.parametrize("staleness", [1, 3])
def test_what_ssp_keeps_back_and_misses_is_bounded(staleness: int) -> None:
    """Lemma 2, with a constant threshold: besides what is kept back, the updates of s steps may be missing or new."""
    ranks, steps = 3, 20

    def body(ctx: hpcomm.Context) -> list[float]:
        every = [[np.random.default_rng([r, t]).integers(-5, 6, N).astype(F32) for t in range(steps)] for r in range(3)]
        codec = Threshold(3.0, decays=False, **C)
        away = []
        with Exchange(
            ctx, {"w": np.zeros(N, F32)}, consistency=SSP(staleness), rule=SGD(lr=1.0), reduce="sum", codec=codec
        ) as ex:
            exact = np.zeros(N, F32)
            for step in range(steps):
                w = ex.push_pull("w", every[ctx.rank][step])
                exact -= sum(updates[step] for updates in every)
                away.append(float(np.linalg.norm(w - exact)))
        largest = max(np.linalg.norm(update) for updates in every for update in updates)
        assert max(away) <= (ranks + 1) * 3.0 * np.sqrt(N) + ranks * staleness * largest
        return away

    assert max(max(away) for away in run_threads(ranks, body)) > 0


@on_both
@pytest.mark.parametrize("where", [ParameterServer(), RECEIVERS, Hierarchy([[0, 1], [2]])], ids=["hub", "ucc", "hosts"])
def test_without_a_threshold_the_bits_are_those_of_float32(where: Any) -> None:
    def body(ctx: hpcomm.Context) -> list[bytes]:
        found = []
        for codec in ("float32", Threshold(0.0, **C), ErrorFeedback("float32")):
            with Exchange(
                ctx, {"w": np.ones((70, 30), F32)}, where, rule=Momentum(lr=0.1), codec=codec, progress="inline"
            ) as ex:
                for step in range(4):
                    update = np.random.default_rng([ctx.rank, step]).standard_normal((70, 30)).astype(F32)
                    ex.push_pull("w", update)
                found.append(ex.params["w"].tobytes())
        return found

    assert len({bits for found in run_threads(3, body) for bits in found}) == 1


WAYS: dict[str, dict[str, Any]] = {
    "hub": {},
    "hosts": {"topology": Hierarchy([[0, 1], [2]])},
    "hosts, receivers": {"topology": Hierarchy([[0, 1], [2]], apply_at="receivers")},
    "ring": {"topology": Hierarchy([[0], [1, 2]], (), top="ring")},
    "two servers": {"topology": ParameterServer("CS", [0, 2], apply_at="both")},
    "SSP": {"consistency": SSP(1), "depth": 2},
    "SSP, receivers": {"consistency": SSP(1), "topology": RECEIVERS},
    "SSP, tree": {"consistency": SSP(1), "topology": ParameterServer(apply_at="receivers", tree=hpcomm.Tree(arity=1))},
}
CODECS = {
    "topk": TopK(0.05, **C),
    "paper": TopK(0.3, form="paper", **C),
    "threshold": Threshold(4.0, decays=False, **C),
    "16 bits": ErrorFeedback("bfloat16"),
}


@pytest.mark.some(16)
@on_both
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("way", WAYS)
def test_sent_and_kept_back_is_all_there_was(way: str, codec: str) -> None:
    """In whole numbers, by any way: parameters and residuals add up to the updates."""

    def body(ctx: hpcomm.Context) -> tuple[Floats, Floats, Floats]:
        options = {"rule": SGD(lr=1.0), "reduce": "sum", "progress": "inline", "chunk_bytes": 2048, **WAYS[way]}
        with Exchange(ctx, {"w": np.zeros(3000, F32)}, codec=CODECS[codec], **grouped(options)) as ex:
            computed = np.zeros(3000, F32)
            for step in range(5):
                mine = _whole(ctx, step, 3000)
                computed += mine
                ex.push_pull("w", mine)
            ctx.barrier()
            if way.startswith("SSP"):
                ex.pull("w")
                ctx.barrier()
            worker, rows = held_back(ex)  # under SSP when all pushes of this rank are applied
            w = ex.pull("w").copy()
            ctx.barrier()
            return w, computed, worker["w"] + rows["w"]

    every = run_threads(3, body)
    computed, kept = (sum(part[i] for part in every) for i in (1, 2))
    for w, *_ in every:
        assert np.array_equal(computed - kept, -w)
    assert codec == "16 bits" or kept.any()


@on_both
@pytest.mark.parametrize("consistency", [BSP, NOTIFY_ACK], ids=str)
@pytest.mark.parametrize("codec", CODECS)
def test_on_a_graph_the_same_pieces_go_to_all_neighbours(consistency: Consistency, codec: str) -> None:
    def body(ctx: hpcomm.Context) -> tuple[Floats, Floats]:
        with Exchange(
            ctx,
            {"w": np.zeros(3000, F32)},
            graphs.complete,
            consistency,
            rule=SGD(lr=1.0),
            codec=CODECS[codec],
            chunk_bytes=2048,
            progress="inline",
        ) as ex:
            computed = np.zeros(3000, F32)
            for step in range(5):
                computed += _whole(ctx, step, 3000)
                ex.push_pull("w", _whole(ctx, step, 3000))
            return ex.params["w"].copy(), computed - held_back(ex)[0]["w"]

    every = run_threads(4, body)  # whose weights are exact
    sent = sum(part for _, part in every) / 4
    for w, _ in every:
        assert np.array_equal(w, -sent)


@on_both
def test_what_a_quorum_leaves_out_is_sent_later() -> None:
    def body(ctx: hpcomm.Context) -> tuple[Floats, Floats, Floats, int]:
        with Exchange(
            ctx,
            {"w": np.zeros(3000, F32)},
            consistency=Consistency(quorum=2, late="drop", grace=0.0),
            rule=SGD(lr=1.0),
            reduce="sum",
            codec=TopK(0.1, **C),
            progress="inline",
        ) as ex:
            computed = np.zeros(3000, F32)
            for step in range(4):
                computed += _whole(ctx, step, 3000)
                for late in (False, True):  # rank 2 pushes when the others have their fold
                    if (ctx.rank == 2) == late:
                        ex.push_pull("w", _whole(ctx, step, 3000))
                    ctx.barrier()
            return ex.params["w"].copy(), computed, held_back(ex)[0]["w"], ex.stats().codecs["w"].returned

    every = run_threads(3, body)
    computed, kept = (sum(part[i] for part in every) for i in (1, 2))
    assert np.array_equal(every[2][1], every[2][2]), "all that rank 2 has computed is still there"
    assert [returned > 0 for *_, returned in every] == [False, False, True]
    for w, *_ in every:
        assert np.array_equal(computed - kept, -w)


def test_feedback_can_be_left_out() -> None:
    def body(ctx: hpcomm.Context) -> tuple[float, bool]:
        codec = ErrorFeedback(Threshold(3.0, decays=False, **C), on=False)
        with Exchange(
            ctx, {"w": np.zeros(64, F32)}, rule=SGD(lr=1.0), reduce="sum", codec=codec, progress="inline"
        ) as ex:
            for _ in range(4):
                ex.push_pull("w", np.full(64, 2, F32))
            return float(np.abs(ex.params["w"]).max()), bool(held_back(ex)[0]["w"].any())

    assert run_threads(2, body) == [(0.0, False)] * 2


def test_regret_falls_with_the_root_of_the_steps() -> None:
    """Least squares over rows that come one by one to each rank (section 3.3.2)."""
    ranks, width, steps = 3, 20, 800

    def body(ctx: hpcomm.Context) -> list[float]:
        rng = np.random.default_rng(ctx.rank)
        truth = np.random.default_rng(99).standard_normal(width).astype(F32)
        x = rng.standard_normal((steps, width)).astype(F32)
        y = x @ truth + 0.5 * rng.standard_normal(steps).astype(F32)
        parts = [np.frombuffer(part, F32) for part in ctx.allgather(np.column_stack([x, y]).tobytes())]
        rows = np.concatenate([part.reshape(steps, width + 1) for part in parts])
        best = np.linalg.lstsq(rows[:, :width], rows[:, width], rcond=None)[0].astype(F32)
        regret, at = 0.0, []
        with Exchange(
            ctx, {"w": np.zeros(width, F32)}, RECEIVERS, rule=SGD(lr=1.0), codec=Threshold(0.2, **C), reduce="sum"
        ) as ex:
            for t in range(steps):
                w = ex.params["w"]
                error = float(x[t] @ w - y[t])
                regret += 0.5 * error**2 - 0.5 * float(x[t] @ best - y[t]) ** 2
                ex.push_pull("w", x[t] * F32(error * 0.1 / np.sqrt(t + 1) / ranks))
                at.append(regret)
            assert ex.stats().codecs["w"].density < 0.9
        return [at[t - 1] / t for t in (50, 200, 800)]

    mean = np.mean(run_threads(ranks, body), axis=0)
    assert mean[0] > 0
    assert mean[1] <= 0.6 * mean[0], "a half, if it falls with the root"
    assert mean[2] <= 0.6 * mean[1]


def test_rows_that_few_steps_touch_travel_alone() -> None:
    """docs/codecs.md: Threshold(0) gives the table that float32 gives, and nothing dense travels either way."""
    rows, width, touched = 2000, 16, 20

    def body(ctx: hpcomm.Context) -> list[tuple[bytes, int]]:
        found = []
        for codec in (FLOAT32, Threshold(0.0, **C)):
            rng = np.random.default_rng(ctx.rank)
            with Exchange(ctx, {"t": np.zeros((rows, width), F32)}, RECEIVERS, rule=SGD(lr=0.5), codec=codec) as ex:
                for _ in range(4):
                    grad = np.zeros((rows, width), F32)
                    grad[rng.choice(rows, touched, replace=False)] = rng.integers(-9, 9, (touched, width))
                    ex.push_pull("t", grad)
                peers = ex.stats().peers
                found.append((ex.params["t"].tobytes(), sum(p.bytes_sent + p.bytes_received for p in peers)))
        return found

    for (dense, whole), (sparse, few) in run_threads(2, body):
        assert sparse == dense
        assert few <= 0.05 * whole


# ---- what is refused -------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "codec_out": (
        {"codec": "float32", "codec_out": TopK(0.1)},
        r"codec_out is TopK\(0.1\): parameters are sent as arr",
    ),
    "models": ({"rule": Average()}, "a model is no update"),
    "models on a graph": ({"topology": graphs.ring, "rule": Average(), "in_place": True}, "a model is no update"),
    "quorum on a graph": (
        {
            "topology": graphs.complete,
            "consistency": Consistency(quorum=1, late="drop", waits_for="neighbours"),
        },
        "codec topk does not go with a quorum",
    ),
    "barrier": ({"topology": graphs.ring, "consistency": BARRIER}, "codec topk does not go with BARRIER or ASYNC on"),
    "async on a graph": ({"topology": graphs.ring, "consistency": ASYNC}, "does not go with BARRIER or ASYNC on"),
    "tree": ({"topology": Tree(), "rule": Average()}, "a model is no update"),
    "no key": ({"codec": {"v": TopK(0.1)}}, "codec has an entry for 'v', which is not a key"),
    "no codec": ({"codec": "gzip"}, "codec is 'gzip': must be one of"),
    "other plan": (
        {"plan": Plan.hub({"w": 1000}, [0, 1, 2], [0], 3, codec=TopK(0.1)), "codec": "float16"},
        "the plan was made for 'topk'",
    ),
    "auto with a plan": (
        {"plan": Plan.hub({"w": 1000}, [0, 1, 2], [0], 3, codec=TopK(0.1)), "codec": "auto"},
        "the plan was made for 'topk'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_every_rank_is_told_what_is_refused(name: str) -> None:
    options, sentence = REFUSED[name]

    def body(ctx: hpcomm.Context) -> None:
        with pytest.raises(HpcommError, match=sentence):
            Exchange(ctx, {"w": np.zeros(1000, F32)}, **grouped({"codec": TopK(0.1), "progress": "inline", **options}))

    run_threads(3, body)


def test_ranks_must_give_the_same_codec() -> None:
    def body(ctx: hpcomm.Context) -> None:
        with pytest.raises(
            hpcomm.ConfigError, match=r"the codec of key w has fraction 0.2 on rank 1 and 0.1 on rank 0"
        ):
            Exchange(ctx, {"w": np.zeros(10, F32)}, codec=TopK(0.1 * (ctx.rank + 1)), progress="inline")

    run_threads(2, body)


def test_a_plan_that_was_made_earlier_takes_its_codec_from_the_exchange() -> None:
    plan = Plan.hub({"w": 1000}, [0, 1], [0], 2, codec=TopK(0.1))

    def body(ctx: hpcomm.Context) -> Any:
        with Exchange(ctx, {"w": np.zeros(1000, F32)}, plan=plan, codec=TopK(0.5, **C), progress="inline") as ex:
            return ex.codecs["w"]

    assert run_threads(2, body) == [TopK(0.5, **C)] * 2


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite(value: float) -> None:
    """It is refused with check_finite, and leaves no trace; else it arrives, and does not stay in the residual."""

    def body(ctx: hpcomm.Context) -> None:
        wild, tame = np.ones(100, F32), np.ones(100, F32)
        wild[7] = value
        for check in (True, False):
            with Exchange(
                ctx,
                {"w": np.zeros(100, F32)},
                rule=SGD(lr=1.0),
                codec=Threshold(3.0, decays=False, **C),
                engine=EngineOptions(check_finite=check),
                progress="inline",
            ) as ex:
                if check:
                    with pytest.raises(InvalidArgument, match=f"the gradient of 'w' is {value:g} at element 7"):
                        ex.step({"w": wild})
                    with pytest.raises(InvalidArgument, match=r"the gradient of key w on rank . has a NaN or an Inf"):
                        ex.push("w", wild)
                    assert not held_back(ex)[0]["w"].any()
                    ex.push_pull("w", tame)
                    assert (held_back(ex)[0]["w"] == 1).all()
                    continue
                ex.push_pull("w", wild)
                kept = held_back(ex)[0]["w"]
                assert kept[7] == 0
                assert (np.delete(kept, 7) == 1).all()
                w = ex.params["w"]
                assert not np.isfinite(w[7])
                assert not np.delete(w, 7).any()

    run_threads(2, body)


# ---- what it tells ---------------------------------------------------------------------------------------------------


def test_stats_tell_what_a_codec_does() -> None:
    def body(ctx: hpcomm.Context) -> None:
        codecs: Any = {"w": Threshold(3.0, decays=False, **C), "u": OneBit()}
        given = {"w": np.zeros(6400, F32), "b": np.zeros(4, F32), "u": np.zeros((40, 160), F32)}
        with Exchange(ctx, given, RECEIVERS, codec=codecs, progress="inline", chunk_bytes=1024) as ex:
            w = np.zeros(6400, F32)
            w[::64] = 9
            ex.step({"w": w, "b": np.ones(4, F32), "u": np.ones((40, 160), F32)})
            ctx.barrier()
            assert dict(ex.codecs) == {**codecs, "b": FLOAT32}
            assert ex.gradient("w").dtype == F32
            told = ex.stats().codecs
            assert list(told) == ["w", "u"]
            one = told["w"]
            assert one.codec == "Threshold(3.0, kernel='c', decays=False)"
            assert one.density == 1 / 64
            assert one.bytes_before == 4 * one.elements > 4 * 6400  # as worker, and as owner
            assert 0.01 < one.ratio < 0.05
            assert one.ratio == one.bytes / one.bytes_before
            assert one.decoded > 0
            assert one.encode > 0
            assert one.decode > 0
            assert (one.gain, one.why, one.returned) == (None, "", 0)
            assert told["u"].ratio < 0.1

    run_threads(2, body)


@on_both
def test_auto_takes_the_codec_where_it_is_faster(ranks_by: str) -> None:
    def body(ctx: hpcomm.Context) -> tuple[dict[str, Any], Plan]:
        given = {"w": np.zeros(1 << 20, F32), "b": np.zeros(5, F32), "v": np.zeros(5000, F32)}
        codec: Any = {"w": Auto(Threshold(1.0, **C)), "b": "auto", "v": "float16"}
        with Exchange(ctx, given, codec=codec, progress="inline", chunk_bytes=65536) as ex:
            ex.step({name: np.ones(value.shape, F32) for name, value in given.items()})
            told = ex.stats().codecs
            assert set(told) == {"w", "b"}
            assert told["b"].why
            assert ("MB/s" in told["w"].why) == (ranks_by != "shm")
            assert (told["w"].gain is None) == (ex.codecs["w"] == FLOAT32)
            kept = ex._state.made.plan.codec  # of which recover makes the next exchange
            assert kept == {name: name_of(one) for name, one in ex.codecs.items()}
            return dict(ex.codecs), ex.plan

    every = run_threads(2, body)
    assert every[0] == every[1]
    codecs, plan = every[0]
    assert (codecs["b"], codecs["v"].name) == (FLOAT32, "float16")
    assert codecs["w"] in (FLOAT32, Threshold(1.0, **C))
    if ranks_by == "shm":
        assert codecs["w"] == FLOAT32
    if codecs["w"] == FLOAT32:
        dense = ParameterServer().compile(
            Request({"w": 1 << 20, "b": 5, "v": 5000}, 2, codec={"v": "float16"}, chunk_bytes=65536)
        )
        assert plan == dense, "the step is that of float32"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"codec": "auto", "chunk_bytes": 7}, "rank 1: .*chunk"),
        ({"codec": "float32"}, "rank 1|rank 0"),
    ],
    ids=["refused", "other codec"],
)
def test_auto_is_refused_by_all_where_one_rank_gives_something_else(options: dict[str, Any], sentence: str) -> None:
    def body(ctx: hpcomm.Context) -> None:
        given: dict[str, Any] = {"codec": "auto"} if ctx.rank == 0 else options
        with pytest.raises(HpcommError, match="." if ctx.rank else sentence):
            Exchange(ctx, {"w": np.zeros(5000, F32)}, progress="inline", **grouped(given))

    run_threads(2, body, transport="tcp")


# ---- the example -----------------------------------------------------------------------------------------------------


def test_the_example_trains_with_each_codec() -> None:
    example = Path(__file__).resolve().parents[1] / "examples/train_codecs.py"
    env = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    ended = mpi.program(2, example, env=env)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = [re.split(r"\s{2,}", line.strip()) for line in ended.stdout.splitlines()]
    told = {name: [float(cell.rstrip("%").replace(",", "")) for cell in cells] for name, *cells in rows[1:]}
    assert len(told) == 7
    for first, last, _, nbytes in told.values():
        assert last < 0.1 * first
        assert nbytes <= told["float32"][3]
    assert told["the largest 1 %"][2] < 2
    assert told["auto"][3] == told["float32"][3], "ranks of one host share memory"
    assert 25 * told["1 bit"][3] < told["float32"][3]

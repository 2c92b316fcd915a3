"""Fold and apply in two calls where each update is applied by itself, under SSP(s) and ASYNC: a worker looks at its own
update, scales it, skips it, and no other rank waits for that."""

from typing import Any

import numpy as np
import pytest
from conftest import run_threads
from flat import grouped
from numpy.typing import NDArray

import hpcomm
from hpcomm import (
    ASYNC,
    SGD,
    SSP,
    EngineOptions,
    Exchange,
    Hierarchy,
    InvalidArgument,
    Momentum,
    ParameterServer,
    PeerToPeer,
)
from hpcomm.codec import ErrorFeedback, Factors, OneBit, Threshold, TopK

F32 = np.float32
N = 3000
EDGES: dict[str, dict[str, Any]] = {
    "servers": {"consistency": SSP(2)},
    "servers, ASYNC": {"consistency": ASYNC},
    "hosts": {"topology": Hierarchy([[0, 1], [2]]), "consistency": SSP(1)},
    "peers": {"topology": PeerToPeer(), "consistency": SSP(1)},
    "receivers": {"topology": ParameterServer(apply_at="receivers"), "consistency": SSP(2)},
}


def update(rank: int, step: int, n: int = N) -> NDArray[np.float32]:
    return np.random.default_rng(100 * rank + step).standard_normal(n).astype(F32)


@pytest.mark.parametrize("edges", EDGES)
def test_a_worker_looks_at_its_own_update(edges: str, transport: dict[str, Any]) -> None:
    """Whatever others do, and without its weight in the plan."""

    def body(ctx: hpcomm.Context) -> None:
        with Exchange(ctx, {"w": np.zeros(N, F32)}, split=True, **grouped(EDGES[edges])) as ex:
            for step in range(3):
                own = update(ctx.rank, step)
                ex.split.fold("w", own)
                assert ex.split.squares("w") == pytest.approx(float((own.astype(float) ** 2).sum()))
                assert np.array_equal(ex.split.gather("w"), own)
                if ctx.rank == step % 3:
                    ex.split.skip("w")
                else:
                    ex.split.apply("w", 1 / (1 + ctx.rank))
            ex.split.fold("w", nothing=True)
            assert ex.split.squares("w") == 0
            assert not ex.split.gather("w").any()
            ex.split.apply("w")

    run_threads(3, body, **transport)


LOSSY: dict[str, Any] = {
    "ErrorFeedback": ErrorFeedback("bfloat16"),
    "Threshold": Threshold(0.5),
    "TopK": TopK(0.1),
    "OneBit": OneBit(unit=50),
}


@pytest.mark.parametrize("codec", LOSSY)
def test_a_skip_leaves_what_codecs_hold_back(codec: str, alone: hpcomm.Context) -> None:
    """Updates that are skipped, replaced or looked at change no later one; residuals are those of scaled updates."""

    def trained(*, between: bool) -> list[bytes]:
        with Exchange(alone, {"w": np.zeros(N, F32)}, "flat", SSP(1), SGD(lr=1), codec=LOSSY[codec], split=True) as ex:
            for step in range(4):
                if between:
                    ex.split.fold("w", update(7, step))
                    ex.split.squares("w")
                    ex.split.gather("w")
                    if step % 2:
                        ex.split.skip("w")
                ex.split.fold("w", update(0, step) if between else update(0, step) * F32(0.5))
                ex.split.apply("w", 0.5 if between else 1)
            found = [ex.pull("w").tobytes()]
            for _ in range(3):  # what was held back comes out
                ex.push_pull("w", np.zeros(N, F32))
                found.append(ex.pull("w").tobytes())
            return found

    assert trained(between=True) == trained(between=False)


def test_scaled_values_are_rounded_once(alone: hpcomm.Context) -> None:
    """Float32 values are scaled before they become 16 bits; those that come in 16 bits are scaled as they are."""
    own = update(0, 0)
    for wire in ("float16", "bfloat16"):
        with Exchange(alone, {"w": np.zeros(N, F32)}, "flat", SSP(1), SGD(lr=1), codec=wire, split=True) as ex:
            slot = ex.gradient("w")
            ex.split.fold("w", own)
            scaled = (own * F32(0.3)).astype(slot.dtype).astype(F32)
            assert np.array_equal(ex.split.apply("w", 0.3), -scaled)
            slot = ex.gradient("w")
            slot[:] = 1
            ex.split.fold("w")
            assert ex.split.squares("w") == N
            assert np.array_equal(ex.split.apply("w", 0.5), -scaled - F32(0.5))


def test_pairs_are_scaled_as_the_matrix_is(alone: hpcomm.Context) -> None:
    u, v = update(0, 0, 80).reshape(2, 40), update(0, 1, 60).reshape(2, 30)
    product = u.T @ v
    options: dict[str, Any] = {"codec": Factors(2), "split": True, "chunk_bytes": 1920}
    with Exchange(alone, {"w": np.zeros((40, 30), F32)}, "flat", SSP(1), SGD(lr=1), **grouped(options)) as ex:
        for scale in (1.0, 0.25):
            ex.split.fold("w", (u, v))
            assert ex.split.squares("w") == pytest.approx(float((product.astype(float) ** 2).sum()), rel=1e-5)
            np.testing.assert_allclose(ex.split.gather("w"), product, rtol=1e-5, atol=1e-6)
            ex.split.apply("w", scale)
        np.testing.assert_allclose(ex.params["w"], -1.25 * product, rtol=1e-5, atol=1e-5)


def test_no_rule_runs_for_a_skip(transport: dict[str, Any]) -> None:
    """Momentum would move the parameters. And one rank may skip as often as it likes."""

    def body(ctx: hpcomm.Context) -> list[float]:
        with Exchange(ctx, {"w": np.zeros(N, F32)}, "flat", SSP(1), Momentum(lr=1, momentum=0.5), split=True) as ex:
            for step in range(6):
                ex.split.fold("w", np.full(N, 2, F32), nothing=ctx.rank == 1 and step == 3)
                if ctx.rank == 0 and step == 0:
                    ex.split.apply("w")
                elif ctx.rank == 1 and step == 3:
                    ex.split.apply("w", 0.5)
                else:
                    ex.split.skip("w")
            ex.pull("w")  # its own pushes have come to the owners
            ctx.barrier()
            ex.pull("w")
            return sorted(set(ex.params["w"].tolist()))

    assert run_threads(2, body, **transport) == [[-1.0]] * 2


def test_what_is_refused_leaves_nothing(alone: hpcomm.Context) -> None:
    wrong = np.full(N, np.nan, F32)
    for codec in (None, "float16", TopK(0.5)):
        with Exchange(
            alone,
            {"w": np.zeros(N, F32)},
            "flat",
            ASYNC,
            codec=codec,
            engine=EngineOptions(check_finite=True),
            split=True,
        ) as ex:
            ex.split.fold("w", np.ones(N, F32))
            with pytest.raises(InvalidArgument, match="has a NaN or an Inf"):
                ex.split.fold("w", wrong)
            with pytest.raises(InvalidArgument, match="no fold on rank 0: fold it first"):
                ex.split.apply("w")
            ex.split.fold("w", np.ones(N, F32))
            with pytest.raises(InvalidArgument, match="it must be finite"):
                ex.split.apply("w", float("inf"))
            ex.split.apply("w", float("nan"))  # as torch clips a gradient with a NaN
            assert np.isnan(ex.params["w"]).all()


def test_a_checkpoint_may_come_between(transport: dict[str, Any]) -> None:
    """It has the updates that were applied; what is folded stays folded."""

    def body(ctx: hpcomm.Context) -> None:
        with Exchange(ctx, {"w": np.zeros(N, F32)}, "flat", SSP(2), SGD(lr=1), reduce="sum", split=True) as ex:
            ex.split.fold("w", np.ones(N, F32))
            ex.split.apply("w")
            ex.split.fold("w", np.full(N, 4, F32))
            ctx.barrier()
            shards[ctx.rank] = ex.state_dict()
            ctx.barrier()
            ex.load_state_dict(shards.values())
            assert (ex.params["w"] == -2).all()
            ex.split.apply("w", 2)
            ex.pull("w")
            ctx.barrier()
            ex.pull("w")
            assert (ex.params["w"] == -18).all()

    shards: dict[int, dict[str, Any]] = {}
    run_threads(2, body, **transport)


def test_a_skip_changes_no_copy(alone: hpcomm.Context) -> None:
    """Under SGD a worker adds its own update to its copy, where it does not ask the owners: of a skip there is none."""
    with Exchange(alone, {"w": np.zeros(N, F32)}, "flat", SSP(2), SGD(lr=1), split=True) as ex:
        for step in range(1, 8):
            ex.split.fold("w", np.ones(N, F32))
            ex.split.apply("w")
            assert (ex.params["w"] == -step).all()
            ex.split.fold("w", np.ones(N, F32))
            ex.split.skip("w")
            assert (ex.params["w"] == -step).all()

"""Fold and apply in two calls: the bits of push_pull, whatever the rule, the codecs and the ranks; and what may come in
between."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from conftest import run_threads
from flat import grouped
from numpy.typing import NDArray

import hpcomm
from hpcomm import AdamW, Exchange, InvalidArgument, Momentum, ParameterServer, Timeout
from hpcomm.graphs import complete, ring, spread

F32 = np.float32
ALL = hpcomm.Consistency(quorum=1, whole=True, late=None, grace=math.inf)  # who may come is waited for
SHAPES = {"conv": (3, 5, 2), "fc": (400, 70), "bias": (7,), "scale": ()}
JOBS: dict[str, dict[str, Any]] = {
    "CS": {"rule": AdamW(lr=0.1)},
    "threads": {"rule": Momentum(lr=0.1), "cores": 2, "progress": "thread", "chunk_bytes": 1024},
    "NCC, 16 bits": {"topology": ParameterServer("NCC"), "codec": {"fc": "float16"}, "codec_out": "bfloat16"},
    "peers that pass on": {"topology": hpcomm.PeerToPeer(spread(3, 1), relay=True), "rule": Momentum(lr=0.1)},
    "a graph": {"topology": ring, "depth": 2, "rule": Momentum(lr=0.1)},
    "a graph, NOTIFY_ACK": {"topology": ring, "depth": 3, "rule": AdamW(lr=0.1), "consistency": hpcomm.NOTIFY_ACK},
    "a graph of phases": {"topology": [ring(3), complete(3)], "rule": AdamW(lr=0.1)},
    "a graph, a quorum of all": {"topology": complete, "rule": Momentum(lr=0.1), "consistency": ALL},
    "rules by key": {"rule": {name: AdamW(lr=0.1) if name == "fc" else Momentum(lr=0.2) for name in SHAPES}},
}


def values(seed: int) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(F32).reshape(shape) for name, shape in SHAPES.items()}


def trained(transport: dict[str, Any], *, split: bool, **options: Any) -> list[dict[str, bytes]]:
    def body(context: hpcomm.Context) -> dict[str, bytes]:
        with Exchange(context, values(0), **grouped({"progress": "inline", **options}), split=split) as ex:
            if not ex.params:
                ex.serve(20)
                return {}
            for n in range(4):
                grads = values(10 * n + context.rank + 1)
                if n == 2:
                    ex.set(lr=0.3)
                if n == 3 or not split:
                    ex.step(grads)
                    continue
                handles = [ex.split.fold_nb(name, grad) for name, grad in reversed(grads.items())]
                if n == 1:
                    for handle in handles:
                        handle.wait()
                for handle in [ex.split.apply_nb(name) for name in grads]:
                    handle.wait()
            return {name: value.tobytes() for name, value in ex.params.items()}

    return run_threads(3, body, **transport)


@pytest.mark.parametrize("job", JOBS)
def test_fold_and_apply_give_the_bits_of_push_pull(job: str, transport: dict[str, Any]) -> None:
    assert trained(transport, split=True, **JOBS[job]) == trained(transport, split=False, **JOBS[job])


def test_models_on_a_graph_are_averaged_in_two_calls(transport: dict[str, Any]) -> None:
    """A skipped average leaves the parameters as they were, and a scale of 0.5 halves them."""

    def body(context: hpcomm.Context) -> bool:
        with Exchange(context, {"w": np.zeros(40, F32)}, ring, rule=hpcomm.Average(), depth=2, split=True) as ex:
            for n, scale in enumerate([1.0, None, 0.5, 1.0]):
                before = ex.params["w"].copy()
                ex.split.fold("w", np.full(40, 3 * (context.rank + n), F32))
                if scale is None:
                    ex.split.skip("w")
                    assert np.array_equal(ex.params["w"], before)
                else:
                    ex.split.apply("w", scale)
                    mean = 3 * (n + (context.rank + (context.rank - 1) % 3) / 2)
                    assert np.array_equal(ex.params["w"], np.full(40, scale * mean, F32))
            return True

    assert all(run_threads(3, body, **transport))


def test_pulls_that_go_before_their_gradients_find_each_row_once() -> None:
    """Over TCP pulls pass gradients that wait for room, so rows come before, between and behind them."""
    rng = np.random.default_rng(1)
    sizes = {"first": 1_500_000, "small": 7, "last": 700_000}
    grads = {name: rng.integers(-9, 9, size).astype(F32) for name, size in sizes.items()}

    def body(context: hpcomm.Context) -> dict[str, bytes]:
        zeros = {name: np.zeros(size, F32) for name, size in sizes.items()}
        with Exchange(context, zeros, rule=Momentum(lr=0.5), progress="inline", split=True) as ex:
            for n in range(3):
                handles = [ex.split.fold_nb(name, grad * (context.rank + n)) for name, grad in reversed(grads.items())]
                for handle in [*[ex.split.apply_nb(name) for name in grads], *handles]:
                    handle.wait()
            return {name: value.tobytes() for name, value in ex.params.items()}

    expected, velocity = np.zeros(sizes["last"], F32), np.zeros(sizes["last"], F32)
    for n in range(3):
        velocity = F32(0.9) * velocity + grads["last"] * F32(n + 0.5)
        expected = expected - F32(0.5) * velocity
    found = run_threads(2, body, transport="tcp")
    assert found[0] == found[1]
    np.testing.assert_allclose(np.frombuffer(found[0]["last"], F32), expected, rtol=1e-5)


@pytest.mark.some(1)
def test_a_rule_and_a_fold_of_ones_own_are_applied_to_the_scaled_mean(transport: dict[str, Any]) -> None:
    pytest.importorskip("numba")
    from hpcomm import kernels  # noqa: PLC0415

    @kernels.fold
    def doubled(acc: Any, update: Any, weight: float, args: Any) -> None:
        acc += np.float32(2 * weight) * update

    @kernels.rule(args=(0.5,), fold=doubled)
    def counted(param: Any, acc: Any, count: int, state: Any, args: Any) -> None:
        param -= np.float32(args[1] * count) * acc

    def body(context: hpcomm.Context) -> list[float]:
        with Exchange(context, {"w": np.zeros(5000, F32)}, rule=counted, reduce="sum", split=True) as ex:
            ex.split.fold("w", np.full(5000, context.rank + 1, F32))
            ex.split.apply("w", 0.25)
            return [float(ex.params["w"].min()), float(ex.params["w"].max())]

    assert run_threads(3, body, **transport) == [[-0.5 * 12 * 0.25 * 3] * 2] * 3


def test_what_comes_between(transport: dict[str, Any]) -> None:
    """Means that are gathered, measured, skipped, or changed and folded again; and workers without a gradient."""

    def body(context: hpcomm.Context) -> None:
        rank, mean = context.rank, np.arange(6000, dtype=F32)
        with Exchange(context, {"w": np.zeros(6000, F32)}, rule=Momentum(lr=1, momentum=0.5), split=True) as ex:
            ex.split.fold("w", mean + (rank - 0.5))
            assert ex.split.squares("w") == float((mean.astype(float) ** 2).sum())
            assert np.array_equal(ex.split.gather("w"), mean)
            ex.split.skip("w")
            saved = ex.state_dict()
            assert not ex.params["w"].any()
            ex.split.fold("w", mean + (rank - 0.5))
            gathered = ex.split.gather("w")
            gathered *= 2
            ex.split.fold("w")
            assert np.array_equal(ex.split.apply("w", 0.5), -mean)
            ex.split.fold("w", nothing=True)
            assert np.array_equal(ex.split.apply("w"), -mean)  # momentum too stays as it is
            if rank == 0:
                ex.split.fold("w", np.full(6000, 2, F32))
            else:
                ex.split.fold("w", nothing=True)
            assert np.array_equal(ex.split.apply("w"), -mean - (0.5 * mean + 1))
            shards[rank] = saved
            ex.split.fold("w", mean)  # which no checkpoint keeps
            context.barrier()
            ex.load_state_dict(shards.values())
            assert not ex.params["w"].any()
            ex.split.fold("w", mean)
            assert np.array_equal(ex.split.apply("w"), -mean)

    shards: dict[int, dict[str, Any]] = {}
    run_threads(2, body, **transport)


def test_refusals(alone: hpcomm.Context) -> None:
    made = {"w": np.zeros(3, F32)}
    with Exchange(alone, made) as ex:
        for call in (ex.split.apply_nb, ex.split.skip, ex.split.gather, ex.split.squares):
            with pytest.raises(InvalidArgument, match="made without split"):
                call("w")
        with pytest.raises(InvalidArgument, match="made without split"):
            ex.split.fold("w", nothing=True)
    with Exchange(alone, made, split=True) as ex:
        with pytest.raises(InvalidArgument, match="'v'"):
            ex.split.apply("v")
        with pytest.raises(InvalidArgument, match="key w has no fold on rank 0: fold it first"):
            ex.split.apply("w")
        ex.split.fold("w", made["w"])
        with pytest.raises(InvalidArgument, match="it must be finite"):
            ex.split.apply("w", float("inf"))
        ex.split.apply("w")


def test_who_does_not_apply_is_named(transport: dict[str, Any]) -> None:
    def body(context: hpcomm.Context) -> bool:
        with Exchange(context, {"w": np.zeros(3, F32)}, split=True) as ex:
            ex.split.fold("w", np.ones(3, F32))
            named = context.rank == 1
            if context.rank == 0:
                with pytest.raises(Timeout) as late:
                    ex.split.apply("w", timeout=0.2)
                named = 1 in late.value.waiting_for
            context.barrier()
            if context.rank == 1:
                ex.split.apply("w")
            ex.pull("w")  # ends what a timeout has cut short
            return named and bool((ex.params["w"] != 0).all())

    assert all(itertools.chain(run_threads(2, body, **transport)))

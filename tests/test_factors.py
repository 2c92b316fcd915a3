"""Updates as pairs of vectors (codec.Factors), through servers and from peer to peer (PeerToPeer)."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Left, on_both, run_threads
from flat import grouped
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_model import mapped_bytes

import hpcomm
from hpcomm import (
    ASYNC,
    BSP,
    SGD,
    SSP,
    Average,
    ConfigError,
    Consistency,
    Exchange,
    HpcommError,
    InvalidArgument,
    Momentum,
    PeerToPeer,
    ProxSGD,
    model,
)
from hpcomm.codec import FLOAT32, Auto, Codec, Factors, Products
from hpcomm.exchange import trial
from hpcomm.graphs import complete, from_edges, ring, spread
from hpcomm.measure import hosts_of
from hpcomm.prox import L1
from hpcomm.topology import ParameterServer, Request

F32 = np.float32
STEPS = 3
Pair = tuple[NDArray[np.float32], NDArray[np.float32]]


def pairs_of(rank: int, step: int, k: int, shape: tuple[int, ...], seed: int = 0) -> Pair:
    """Small whole numbers, whose products and sums are exact in any order; many of them 0."""
    rng = np.random.default_rng([seed, rank, step])
    return tuple(rng.integers(-2, 3, (k, n)).astype(F32) for n in shape)  # type: ignore[return-value]


def dense(pair: Pair) -> NDArray[np.float32]:
    found: NDArray[np.float32] = pair[0].T @ pair[1]
    return found


def trained_by(updates: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """The parameters that exchange makes of these updates, from 0 on."""
    found: NDArray[np.float32] = 0 - F32(0.5) * sum(updates, np.zeros((), F32))
    return found


def exchange(
    ctx: hpcomm.Context, shapes: Mapping[str, tuple[int, ...]], topology: Any, codec: Any, **options: Any
) -> Any:
    params = {name: np.zeros(shape, F32) for name, shape in shapes.items()}
    options = {"rule": SGD(lr=0.5), "reduce": "sum", "progress": "inline", **options}
    return Exchange(ctx, params, topology, codec=codec, **grouped(options))


@pytest.mark.some(2)
@on_both
@settings(max_examples=12)
@given(
    shape=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    most=st.integers(1, 5),
    blocks=st.integers(1, 4),
    ranks=st.integers(1, 4),
    cores=st.integers(1, 2),
    rule=st.sampled_from([SGD(lr=0.5), Momentum(lr=0.5, momentum=0.5)]),
    seed=st.integers(0, 1 << 30),
)
def test_factors_give_the_bits_of_dense_updates(
    shape: tuple[int, int], most: int, blocks: int, ranks: int, cores: int, rule: Any, seed: int
) -> None:
    def body(ctx: hpcomm.Context) -> list[bytes]:
        found = []
        for topology, codec in (
            (ParameterServer(), None),
            (ParameterServer(), Factors(most, blocks)),
            (PeerToPeer(), Factors(most, blocks)),
            (PeerToPeer(), Factors(most, values="bfloat16")),
            (PeerToPeer(), None),
            (PeerToPeer(spread(ranks, 1) if ranks > 1 else None, relay=True), Factors(most, blocks)),
        ):
            with exchange(ctx, {"w": shape}, topology, codec, cores=cores, rule=rule) as ex:
                for step in range(STEPS):
                    k = int(np.random.default_rng([seed, ctx.rank, step]).integers(0, most + 1))
                    pair = pairs_of(ctx.rank, step, k, shape, seed)
                    ex.push_pull("w", dense(pair) if codec is None else pair)
                found.append(ex.params["w"].tobytes())
        return found

    every = run_threads(ranks, body)
    assert all(found == every[0][0] for rank in every for found in rank)


def test_topologies_by_key_stand_side_by_side() -> None:
    """Poseidon's choice: a large matrix from peer to peer, and other keys through servers."""
    shapes = {"conv": (3, 50), "fc": (20, 33), "bias": (20,), "out": (9, 20)}
    codec = {"fc": Factors(4), "out": Factors(2)}

    def body(ctx: hpcomm.Context) -> list[dict[str, bytes]]:
        found = []
        for topology, own in (({"fc": PeerToPeer()}, codec), ("flat", None)):
            with exchange(ctx, shapes, topology, own) as ex:
                for step in range(STEPS):
                    pairs = {name: pairs_of(ctx.rank, step, one.K, shapes[name]) for name, one in codec.items()}
                    rng = np.random.default_rng([ctx.rank, step])
                    grads: dict[str, Any] = {n: rng.integers(-2, 3, shape).astype(F32) for n, shape in shapes.items()}
                    grads |= {name: dense(pair) if own is None else pair for name, pair in pairs.items()}
                    ex.step(grads)
                found.append({name: value.tobytes() for name, value in ex.params.items()})
                assert {row.owner for row in ex.plan.rows_of("fc")} == {0, 1, 2} or own is None
        return found

    every = run_threads(3, body)
    assert all(found == every[0][1] for rank in every for found in rank)


@on_both
def test_vectors_in_place_are_those_that_are_pushed() -> None:
    shape = (40, 24)

    def body(ctx: hpcomm.Context) -> list[bytes]:
        found = []
        for in_place in (False, True):
            with exchange(ctx, {"w": shape}, PeerToPeer(), Factors(3)) as ex:
                for step in range(STEPS):
                    u, v = pairs_of(ctx.rank, step, step, shape)
                    if in_place:
                        pairs = ex.factors("w")
                        assert pairs.u.shape == (3, 40)
                        assert pairs.v.shape == (3, 24)
                        pairs.u[:step], pairs.v[:step], pairs.count = u, v, step
                        ex.push_pull("w", pairs if step == 1 else None)
                    else:
                        ex.push_pull("w", (u, v))
                found.append(ex.params["w"].tobytes())
        return found

    every = run_threads(2, body)
    assert all(found == every[0][0] for rank in every for found in rank)


@pytest.fixture(scope="module")
def alone() -> Any:
    with hpcomm.init() as ctx, exchange(ctx, {"w": (6, 8), "b": (6,)}, {"w": PeerToPeer()}, {"w": Factors(3)}) as ex:
        yield ex


ONES = np.ones(6, F32), np.ones(8, F32)


@pytest.mark.parametrize(
    ("u", "v", "expected"),
    [
        (*ONES, np.ones((6, 8))),
        (ONES[0][None], ONES[1][None], np.ones((6, 8))),
        ([], np.empty((0, 8), F32), np.zeros((6, 8))),
        (([2, 5], np.array([1, 2], F32)), ONES[1], np.outer([0, 0, 1, 0, 0, 2], np.ones(8))),
        ([ONES[0], (np.array([1], np.uint8), np.array([3], F32))], [([], np.empty(0, F32)), ONES[1]],
         np.outer([0, 3, 0, 0, 0, 0], np.ones(8))),
        (np.ones((6, 3), F32).T, np.ones((16,), F32)[::2], None),
    ],
)  # fmt: skip
def test_all_forms_of_vectors(alone: Exchange, u: Any, v: Any, expected: Any) -> None:
    before = alone.params["w"].copy()
    if expected is None:
        with pytest.raises(InvalidArgument, match="u has 3 vectors and v 1: each pair has one of both"):
            alone.push_pull("w", (u, v))
        expected = np.zeros((6, 8))
    else:
        alone.push_pull("w", (u, v))
    assert np.array_equal(before - alone.params["w"], 0.5 * expected.astype(F32))


@pytest.mark.parametrize(
    ("grad", "told"),
    [
        (np.ones((6, 8), F32), r"goes as Factors\(3\) and takes a pair \(u, v\), not a ndarray.*codec 'float32'"),
        ([*ONES], r"takes a pair \(u, v\), not a list"),
        ((np.ones(5, F32), ONES[1]), r"u has shape \(5,\): must be \(k, 6\), or \(6,\) for one vector"),
        ((ONES[0], np.ones((1, 6), F32)), r"v has shape \(1, 6\): must be \(k, 8\)"),
        ((np.ones((4, 6), F32), np.ones((4, 8), F32)), r"u has 4 vectors: Factors\(3\) takes 3 at most"),
        (([ONES[0]] * 4, [ONES[1]] * 4), "u has 4 vectors"),
        (([ONES[0]] * 2, [ONES[1]]), "u has 2 vectors and v 1: each pair has one of both"),
        ((np.ones(6), ONES[1]), "u is float64: must be float32"),
        (([ONES[1]], ONES[1]), r"u\[0\] has shape \(8,\): must be \(6,\)"),
        ((([6], np.ones(1, F32)), ONES[1]), r"u\[0\] has index 6: must be 0 to 5"),
        ((([-1], np.ones(1, F32)), ONES[1]), r"u\[0\] has index -1"),
        ((([1, 1], np.ones(2, F32)), ONES[1]), r"u\[0\] has index 1 twice"),
        ((([1], np.ones(2, F32)), ONES[1]), r"u\[0\] has 1 indices and values of shape \(2,\)"),
        (((ONES[0], ONES[0]), ONES[1]), r"u\[0\] has indices of shape \(6,\) and dtype float32: must be whole numbers"),
        (((ONES[0],) * 3, ONES[1]), r"u\[0\] is a tuple of 3"),
        (("u", ONES[1]), "u: a str has neither the buffer protocol nor DLPack"),
    ],
)
def test_wrong_vectors_are_refused_by_key_and_rank(alone: Exchange, grad: Any, told: str) -> None:
    before = alone.params["w"].copy()
    with pytest.raises(InvalidArgument, match=f"rank 0: the gradient of 'w': .*{told}"):
        alone.push_pull("w", grad)
    with pytest.raises(InvalidArgument, match=told):
        alone.step({"w": grad, "b": np.ones(6, F32)})
    assert np.array_equal(alone.params["w"], before)
    assert not alone.params["b"].any()


def test_calls_that_are_not_for_a_key_say_which_are(alone: Exchange) -> None:
    with pytest.raises(InvalidArgument, match=r"'w' goes as Factors\(3\): write its vectors into factors\('w'\)"):
        alone.gradient("w")
    with pytest.raises(InvalidArgument, match=r"'b' goes as Codec\('?.*float32.*gradient\('b'\)"):
        alone.factors("b")
    for count in (-1, 4, 1.5):
        with pytest.raises(InvalidArgument, match="factors of 'w': count is"):
            alone.factors("w").count = count  # type: ignore[assignment]
    assert repr(alone.factors("w")) == "<0 pairs of 'w', u (3, 6), v (3, 8)>"


@given(
    wrong=st.sampled_from([np.nan, np.inf, -np.inf]),
    at=st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 4)),
)
@settings(max_examples=10)
def test_what_is_not_finite_is_refused(wrong: float, at: tuple[int, int, int]) -> None:
    pair = np.ones((2, 5), F32), np.ones((2, 5), F32)
    pair[at[0]][at[1:]] = wrong
    shapes = {"w": (5, 5)}
    with hpcomm.init() as ctx, exchange(ctx, shapes, PeerToPeer(), Factors(3), check_finite=True) as ex:
        with pytest.raises(InvalidArgument, match="key w on rank 0 has a NaN or an Inf"):
            ex.push("w", pair)
        with pytest.raises(InvalidArgument, match=rf"rank 0: .* 'w' has {'uv'[at[0]]}\[{at[1]}\] .* element {at[2]},"):
            ex.step({"w": pair})
        assert not ex.params["w"].any()
        pairs = ex.factors("w")
        pairs.u[2] = np.nan  # of no pair that is sent
        pairs.u[:2], pairs.v[:2], pairs.count = 1, 1, 2
        ex.step()
        assert np.array_equal(ex.params["w"], np.full((5, 5), -1, F32))


def peers(shape: tuple[int, ...], **options: Any) -> hpcomm.Plan:
    return PeerToPeer().compile(Request({"w": shape}, 2, **options))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Factors(0), "Factors: K is 0"),
        (lambda: Factors(1 << 31), "Factors: K is"),
        (lambda: Factors(2.5), "Factors: K is 2.5"),  # type: ignore[arg-type]
        (lambda: Factors(2, blocks=0), "Factors: blocks is 0"),
        (lambda: Factors(2, values="int8"), "Factors: values is 'int8'"),
        (lambda: PeerToPeer(3), "graph is 3: must be a Graph, or None"),  # type: ignore[arg-type]
        (lambda: PeerToPeer(from_edges(3, [(0, 1)]), relay=True), "the update of rank 0 never reaches rank 2"),
        (lambda: PeerToPeer(relay=1), "relay is 1: must be True or False"),  # type: ignore[arg-type]
        (lambda: peers((5,), codec=Factors(2)), r"codec of 'w' is Factors\(2\): its shape is"),
        (lambda: ParameterServer().compile(Request({"w": (4, 5, 6)}, 2, codec=Factors(2))), "only a matrix"),
        (lambda: peers((1 << 15, 1 << 15), codec=Factors(2)), "'w' .* at most 536870912 elem"),
        (lambda: peers((5, 5), codec_out="float16"), "peers send no parameters"),
        (lambda: peers((5, 5), in_place=True), "in_place is True"),
    ],
)
def test_wrong_settings_are_refused(make: Any, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        make()


@given(shape=st.tuples(st.integers(1, 300), st.integers(1, 300)), blocks=st.integers(1, 9))
def test_parts_are_whole_rows_that_plans_can_begin_at(shape: tuple[int, int], blocks: int) -> None:
    codec = Factors(3, blocks)
    unit, (rows, columns) = codec.unit_of(shape), shape
    assert unit % columns == 0
    assert columns <= unit <= rows * columns
    assert unit == rows * columns or unit % 16 == 0
    assert blocks > 1 or unit == rows * columns
    assert -(-rows * columns // unit) <= blocks
    plan = PeerToPeer().compile(Request({"w": shape}, 2, codec=codec, chunk_bytes=64))
    assert len(plan.rows) == 2 * -(-rows * columns // unit)


# ---- checkpoints and recovery ----------------------------------------------------------------------------------------

SHAPES = {"fc": (20, 33), "bias": (20,)}
MIXED = {"fc": PeerToPeer()}
CODECS = {"fc": Factors(4, blocks=2)}


def trained(ex: Exchange, first: int, steps: int) -> dict[str, bytes]:
    for step in range(first, steps):
        pair = pairs_of(ex.context.rank, step, 1 + step % 4, SHAPES["fc"])
        grad = np.random.default_rng([ex.context.rank, step]).integers(-2, 3, SHAPES["bias"]).astype(F32)
        is_dense = isinstance(ex.codecs["fc"], Codec)
        ex.step({"fc": dense(pair) if is_dense else pair, "bias": grad})
    return {name: value.tobytes() for name, value in ex.params.items()}


def settled(ex: Exchange, first: int, steps: int) -> dict[str, bytes]:
    trained(ex, first, steps)
    ex.state_dict()  # waits for the updates of peers up to this step
    return {name: value.tobytes() for name, value in ex.params.items()}


@pytest.mark.some(3)
@on_both
@pytest.mark.parametrize(
    "topology",
    [MIXED, PeerToPeer(), "flat", PeerToPeer(ring(3), relay=True)],
    ids=["by key", "peers", "servers", "relay"],
)
def test_a_checkpoint_goes_on_with_the_same_bits(topology: Any, tmp_path: Path) -> None:
    options: Any = {"rule": Momentum(lr=0.5, momentum=0.5)}

    def body(ctx: hpcomm.Context) -> None:
        with exchange(ctx, SHAPES, topology, CODECS, **options) as ex:
            whole = trained(ex, 0, 4)
        with (
            exchange(ctx, SHAPES, topology, CODECS, **options) as ex,
            hpcomm.Checkpointer(ex, tmp_path, every=2) as ckpt,
        ):
            for step in range(3):  # the third is lost
                trained(ex, step, step + 1)
                ckpt.after(step + 1)
        for again, codec in ((topology, CODECS), ("flat", None), (PeerToPeer(), CODECS)):
            with exchange(ctx, SHAPES, again, codec, **options) as ex:
                found = hpcomm.restore(ex, tmp_path)
                assert found is not None
                assert found.step == 2
                assert trained(ex, 2, 4) == whole
                saved = ex.state_dict()
                trained(ex, 4, 5)
                ex.load_state_dict(saved)
                assert {name: value.tobytes() for name, value in ex.params.items()} == whole

    run_threads(3, body)


@pytest.mark.some(1)
@on_both
@pytest.mark.parametrize("topology", [PeerToPeer(), PeerToPeer(ring(3), relay=True)], ids=["direct", "relay"])
def test_a_checkpoint_under_ssp_has_all_updates_of_its_step(topology: PeerToPeer, tmp_path: Path) -> None:
    def body(ctx: hpcomm.Context) -> None:
        with (
            exchange(ctx, SHAPES, topology, CODECS, consistency=SSP(2)) as ex,
            hpcomm.Checkpointer(ex, tmp_path, every=2) as ckpt,
        ):
            for step in range(3):
                trained(ex, step, step + 1)
                ckpt.after(step + 1)
            whole = settled(ex, 3, 4)
        for other, consistency in ((topology, SSP(2)), (PeerToPeer(), BSP)):
            with exchange(ctx, SHAPES, other, CODECS, consistency=consistency) as ex:
                found = hpcomm.restore(ex, tmp_path)
                assert found is not None
                assert (found.step, ex.clock) == (2, 2)
                assert settled(ex, 2, 4) == whole

    run_threads(3, body)


@pytest.mark.some(2)
@on_both
@pytest.mark.parametrize(
    ("topology", "consistency", "needs_checkpoint"),
    [
        (PeerToPeer(), BSP, False),
        (PeerToPeer(ring(4), relay=True), BSP, False),
        (PeerToPeer(), Consistency(quorum=3, grace=math.inf), False),
        (PeerToPeer(spread(4, 2), relay=True), SSP(2), True),
        (PeerToPeer(), ASYNC, True),
    ],
    ids=["direct", "relay", "direct under a quorum", "relay under SSP", "direct under ASYNC"],
)
def test_peers_go_on_without_a_rank(
    topology: PeerToPeer, consistency: Consistency, needs_checkpoint: bool, tmp_path: Path
) -> None:
    """Under SSP copies may differ by the steps of each rank, and the last checkpoint is restored."""
    found = []

    def body(ctx: hpcomm.Context) -> None:
        ex = exchange(ctx, SHAPES, topology, CODECS, consistency=consistency)
        with hpcomm.Checkpointer(ex, tmp_path, every=1) as ckpt:
            saved = settled(ex, 0, 1)
            ckpt.after(1)
        if ctx.rank == 3:
            ctx.abort("test")
            raise Left
        with pytest.raises(hpcomm.PeerFailed, match="3"):
            trained(ex, 1, 100)
        recovered = hpcomm.recover(ex, checkpoint=tmp_path if needs_checkpoint else None)
        fresh = recovered.exchange
        assert (recovered.clock, recovered.lost) == (1, (3,))
        assert len(fresh.plan.rows_of("fc")) % 3 == 0
        assert {name: value.tobytes() for name, value in fresh.params.items()} == saved
        found.append(settled(fresh, 1, 2))
        fresh.context.close()
        raise Left

    run_threads(4, body, timeout=10)
    assert len(found) == 3
    assert all(each == found[0] for each in found)


@pytest.mark.some(1)
@on_both
def test_the_furthest_copy_counts_after_a_step_that_was_cut_short() -> None:
    """Rank 0 has applied the step to fc, rank 1 has not, and bias lies at both; rank 2 owns nothing alone."""
    pairs, found = [pairs_of(rank, 0, 4, SHAPES["fc"]) for rank in range(3)], []

    def body(ctx: hpcomm.Context) -> None:
        topology, rule = {"fc": PeerToPeer(), "bias": ParameterServer(servers=[0, 1])}, Momentum(lr=0.5, momentum=0.5)
        ex = exchange(ctx, {"bias": (20,), "fc": SHAPES["fc"]}, topology, CODECS, rule=rule, split=True)
        ex.set(lr=0.25)
        ex.split.fold("fc", pairs[ctx.rank])
        ctx.barrier()
        if ctx.rank == 0:
            ex.split.apply("fc")
        if ctx.rank == 2:
            ctx.barrier()
            ctx.abort("test")
            raise Left

        def meet() -> None:
            ctx.barrier()  # rank 2 may be through, and gone, before the others are
            ctx.barrier()

        with pytest.raises(hpcomm.PeerFailed):
            meet()
        recovered = hpcomm.recover(ex)
        fresh = recovered.exchange
        assert (recovered.clock, recovered.lost) == (1, (2,))
        assert (list(fresh.params), fresh.rule) == (["bias", "fc"], Momentum(lr=0.25, momentum=0.5))
        once = -F32(0.25) * sum(map(dense, pairs))
        np.testing.assert_array_equal(fresh.params["fc"], once)
        fresh.split.fold("fc", pairs[ctx.rank])
        fresh.split.fold("bias", np.full(20, 1 + ctx.rank, F32))
        now = sum(map(dense, pairs[:2])) + F32(0.5) * sum(map(dense, pairs))  # momentum is there as well
        np.testing.assert_array_equal(fresh.split.apply("fc"), once - F32(0.25) * now)
        np.testing.assert_array_equal(fresh.split.apply("bias"), np.full(20, -0.75, F32))
        found.append(ctx.rank)
        fresh.context.close()
        raise Left

    run_threads(3, body, timeout=10)
    assert sorted(found) == [0, 1]


# ---- peers under SSP(s), and peers that not all send to --------------------------------------------------------------


@pytest.mark.some(3)
@on_both
@pytest.mark.parametrize("staleness", [1, 20])
@pytest.mark.parametrize("codec", [Factors(2), None], ids=str)
def test_copies_have_all_updates_in_the_end(staleness: int, codec: Any) -> None:
    """Ranks run at their own pace. A checkpoint of a step has the updates of all ranks up to that step."""
    shape, steps = (20, 33), 12

    def body(ctx: hpcomm.Context) -> tuple[bytes, bytes]:
        keys, codecs = {"w": shape, "b": (7,)}, {"w": codec or "float32"}
        with exchange(ctx, keys, {"w": PeerToPeer()}, codecs, consistency={"w": SSP(staleness)}) as ex:
            halfway = b""
            for step in range(steps):
                pair = pairs_of(ctx.rank, step, 2, shape)
                w = ex.push_pull("w", dense(pair) if codec is None else pair)
                ex.push_pull("b", np.ones(7, F32))
                if step == steps // 2:
                    halfway = ex.state_dict()["params"][: w.size].tobytes()
            ctx.barrier()
            saved = ex.state_dict()
            assert ex.clock == steps
            assert np.array_equal(saved["params"][: w.size].reshape(shape), ex.params["w"])
            assert set(saved["row_step"].tolist()) == {steps}
            ctx.barrier()
            ex.push_pull("w", np.ones(shape, F32) if codec is None else (np.ones(20, F32), np.ones(33, F32)))
            ex.load_state_dict(saved)
            return halfway, ex.params["w"].tobytes()

    every = run_threads(3, body)
    for found, n in zip(zip(*every, strict=True), (steps // 2 + 1, steps), strict=True):
        updates = [dense(pairs_of(rank, step, 2, shape)) for rank in range(3) for step in range(n)]
        assert set(found) == {trained_by(updates).tobytes()}


PARTIAL = from_edges(4, [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (1, 3), (2, 0), (3, 1)])


@pytest.mark.some(3)
@on_both
@pytest.mark.parametrize("consistency", [BSP, SSP(3), ASYNC], ids=str)
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_a_rank_applies_the_updates_of_its_neighbours(consistency: Any, reduce: str) -> None:
    """Under ASYNC each of them in full."""
    shape, weight = (20, 33), 1.0 if reduce == "sum" or consistency == ASYNC else 0.25

    def body(ctx: hpcomm.Context) -> NDArray[np.float32]:
        topology = PeerToPeer(PARTIAL)
        with exchange(ctx, {"w": shape}, topology, Factors(2), consistency=consistency, reduce=reduce) as ex:
            for step in range(STEPS):
                ex.push_pull("w", pairs_of(ctx.rank, step, 2, shape))
            saved = ex.state_dict()
            assert int(saved["replica"]) == ctx.rank
            found: NDArray[np.float32] = ex.params["w"].copy()
            ctx.barrier()
            ex.push_pull("w", (np.ones(20, F32), np.ones(33, F32)))
            ctx.barrier()
            ex.load_state_dict(saved)
            assert np.array_equal(ex.params["w"], found)
            return found

    for rank, found in enumerate(run_threads(4, body)):
        sources = [*PARTIAL.in_peers(rank), rank]
        updates = [dense(pairs_of(source, step, 2, shape)) for source in sources for step in range(STEPS)]
        assert np.array_equal(found, F32(weight) * trained_by(updates))


def test_peers_that_are_left_send_to_as_many() -> None:
    assert PeerToPeer().among([0, 2], 3) == PeerToPeer()
    assert PeerToPeer(complete(3)).among([0, 2], 3) == PeerToPeer()
    assert PeerToPeer(PARTIAL).among(range(4), 4) == PeerToPeer(PARTIAL)
    assert PeerToPeer(PARTIAL).among([0, 1, 3], 4) == PeerToPeer()  # two others are left
    assert PeerToPeer(PARTIAL).among([2], 4) == PeerToPeer()
    alone = PeerToPeer(from_edges(3, [])).among([0, 2], 3)  # nobody sends to anybody
    assert alone.graph is not None
    assert alone.graph.out_degrees.tolist() == [0, 0]
    left = PeerToPeer(ring(6)).among([0, 2, 3, 4, 5], 6)
    assert left.graph is not None
    assert left.graph.out_degrees.tolist() == [1] * 5


@on_both
def test_neighbours_that_are_left_keep_their_parameters() -> None:
    shape = (20, 33)

    def body(ctx: hpcomm.Context) -> None:
        ex = exchange(ctx, {"w": shape}, PeerToPeer(PARTIAL), Factors(2))
        if ctx.rank == 3:
            ex.push_pull("w", pairs_of(ctx.rank, 0, 2, shape))
            ctx.abort("test")
            raise Left

        def go_on() -> None:
            for step in range(100):
                ex.push_pull("w", pairs_of(ctx.rank, step, 2, shape))

        with pytest.raises(hpcomm.PeerFailed):
            go_on()
        recovered = hpcomm.recover(ex)
        fresh = recovered.exchange
        assert recovered.lost == (3,)
        assert recovered.gap is None
        assert recovered.clock in (0, 1, 2)  # rank 3 has made one step, and nobody two more
        fresh.push_pull("w", pairs_of(ctx.rank, 0, 2, shape))
        assert fresh.clock == recovered.clock + 1
        fresh.context.barrier()
        fresh.context.close()
        raise Left

    run_threads(4, body, timeout=10)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "quorum": ({"consistency": replace(SSP(2), quorum=2)}, "with ASYNC and SSP.s. peers take each update as it comes"),
    "too stale": ({"consistency": SSP(31)}, r"room for s \+ 2 updates .* give SSP\(30\) or less"),
    "models": ({"rule": Average()}, "its rule is Average, and peers send updates, not models"),
    "other size": ({"topology": PeerToPeer(from_edges(3, [(0, 1)]))}, "graph is .* must have 2 ranks, as the job has"),
    "one copy": ({"shared_params": True}, "shared_params needs servers: each peer has parameters of its own"),
    "in place": ({"in_place": True}, "in_place is True: peers apply updates"),
    "parameters in 16 bits": ({"codec_out": "float16"}, "codec_out is 'float16': peers send no parameters"),
    "vector": ({"codec": {"b": Factors(2)}}, r"codec of 'b' is Factors\(2\): its shape is \(7,\)"),
    "receivers": ({"topology": ParameterServer(apply_at="receivers")}, r"apply_at is 'receivers', where servers send"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_go_together_is_refused_on_every_rank(case: str) -> None:
    options, told = REFUSED[case]

    def body(ctx: hpcomm.Context) -> None:
        given: dict[str, Any] = {"topology": PeerToPeer(), "codec": {"w": Factors(2)}, **options}
        with pytest.raises(HpcommError, match=told):
            exchange(ctx, {"w": (6, 8), "b": (7,)}, **given)

    run_threads(2, body)


def test_ranks_that_disagree_are_told() -> None:
    def body(ctx: hpcomm.Context) -> None:
        with pytest.raises(ConfigError, match="the codec of key w has pairs 3 on rank 1 and 2 on rank 0"):
            exchange(ctx, {"w": (6, 8)}, PeerToPeer(), Factors(2 + ctx.rank))

    run_threads(2, body)


# ---- costs and choice ------------------------------------------------------------------------------------------------


@pytest.mark.some(4)
@on_both
@pytest.mark.parametrize(("blocks", "values"), [(1, "float32"), (4, "float32"), (1, "float16")])
@pytest.mark.parametrize("topology", [PeerToPeer(), "flat", {"w": PeerToPeer()}], ids=["peers", "servers", "by key"])
def test_bytes_and_memory_are_those_of_the_model(topology: Any, blocks: int, values: str) -> None:
    """Peers send P (P - 1) K (J + D) values a step, and the heads of their pieces."""
    ranks, most, shape = 4, 8, (500, 512)

    def body(ctx: hpcomm.Context) -> tuple[int, int, int]:
        codec = {"w": Factors(most, blocks, values)}
        with exchange(ctx, {"w": shape, "b": (70,)}, topology, codec) as ex:
            codecs, hosts = list(ex.codecs.values()), hosts_of(ctx)
            memory = model.memory_of(ex.plan, hosts, codecs=codecs)
            assert not memory.residuals.any()
            assert 0 <= mapped_bytes(ex) - memory.window[ctx.rank] <= 16 * 4096
            ex.step({"w": tuple(np.ones((most, n), F32) for n in shape), "b": np.ones(70, F32)})
            ctx.barrier()
            sent = model.load_of(ex.plan, hosts, codecs=codecs).sent
            of_w = sent.nbytes[(sent.source == ctx.rank) & (sent.key == ex.plan.key("w"))].sum()
            counted = sum(one.bytes for one in ex.stats().traffic)
            return counted, int(sent.nbytes[sent.source == ctx.rank].sum()), int(of_w)

    every = run_threads(ranks, body)
    assert all(counted == predicted for counted, predicted, _ in every)
    if topology != "flat":
        n, width = ranks * (ranks - 1), 4 if values == "float32" else 2
        assert sum(of_w for *_, of_w in every) == n * (most * (shape[0] + blocks * shape[1]) * width + 16 * blocks)


@pytest.mark.parametrize("faster", ["pairs", "arrays"])
def test_the_faster_way_is_chosen_and_takes_pairs(faster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement itself is a step of an exchange of that key alone."""
    shape = (64, 80)
    real = trial.step_seconds
    timed: list[type] = []

    def measured(*args: Any) -> list[float]:
        timed.extend(map(type, args[-1]))
        assert min(real(*args)) > 0
        return [float(faster == "arrays"), float(faster == "pairs")]

    monkeypatch.setattr("hpcomm.exchange.agreed.step_seconds", measured)

    def body(ctx: hpcomm.Context) -> bytes:
        auto = Auto(Factors(3))
        shapes = {"w": shape, "b": (64,), "small": (3, 3)}
        with exchange(ctx, shapes, {"w": PeerToPeer()}, auto, check_finite=True) as ex:
            assert ex.codecs == {
                "w": Factors(3) if faster == "pairs" else Products(3),
                "b": FLOAT32,
                "small": Products(3),
            }
            why = {name: one.why for name, one in ex.stats().codecs.items()}
            assert "by Factors(3) and" in why["w"]
            assert "only a matrix" in why["b"]
            for step in range(4):
                pair = pairs_of(ctx.rank, step, 3, shape)
                others = {"b": np.ones(64, F32), "small": np.ones((3, 3), F32)}
                pairs = ex.factors("w")
                pairs.u[:], pairs.v[:], pairs.count = *pair, 3
                if step == 0:
                    ex.push_pull("w", pair)
                elif step == 1:
                    ex.push_pull("w")
                elif step == 2:
                    ex.step({"w": None, **others})
                else:
                    ex.step({"w": pair, **others})
            if faster == "arrays":
                ex.push_pull("w", np.zeros(shape, F32))
            with pytest.raises(InvalidArgument, match="'w': u has 4 vectors"):
                ex.push("w", (np.ones((4, 64), F32), np.ones((4, 80), F32)))
            found: bytes = ex.params["w"].tobytes()
            return found

    every = run_threads(2, body)
    updates = [dense(pairs_of(rank, step, 3, shape)) for rank in range(2) for step in range(4)]
    assert set(every) == {trained_by(updates).tobytes()}
    assert {*timed} == {Factors, Products}


def _memory(field: str) -> int:
    """Bytes of this process by /proc/self/status."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{field}:"))


@pytest.mark.parametrize("rule", [SGD(lr=0.5), Momentum(lr=0.5, momentum=0.5)], ids=["sgd", "momentum"])
def test_a_rank_has_no_dense_gradient_and_no_dense_sum(rule: Any) -> None:
    """Training takes no memory beside W, the rule's state and slots: no matrix of any kind."""
    n, ranks, spare = 1536, 2, 4 << 20
    matrix = n * n * 4
    grown = []

    def body(ctx: hpcomm.Context) -> None:
        with exchange(ctx, {"w": (n, n)}, PeerToPeer(), Factors(4), rule=rule) as ex:
            for step in range(3):
                pair = pairs_of(ctx.rank, step, 4, (n, n))
                ctx.barrier()
                if ctx.rank == 0 and step == 1:  # all pages of W and of the state have been written
                    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
                    grown.append(-_memory("VmRSS"))
                ctx.barrier()
                ex.push_pull("w", pair)
            ctx.barrier()
            if ctx.rank == 0:
                grown.append(_memory("VmHWM"))

    run_threads(ranks, body)
    assert sum(grown) < spare < matrix


@pytest.mark.some(2)
@on_both
@settings(max_examples=8)
@given(
    shape=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    most=st.integers(1, 5),
    blocks=st.integers(1, 3),
    ranks=st.integers(1, 4),
    cores=st.integers(1, 2),
    rule=st.sampled_from([SGD(lr=0.5), SGD(lr=0.5, weight_decay=0.25), Momentum(lr=0.5, momentum=0.5)]),
    seed=st.integers(0, 1 << 30),
)
def test_fold_and_apply_among_peers_are_those_of_servers(
    shape: tuple[int, int], most: int, blocks: int, ranks: int, cores: int, rule: Any, seed: int
) -> None:
    """A scale, steps that are skipped, squares and gathered sums: of factors from peer to peer as of dense updates."""

    def body(ctx: hpcomm.Context) -> list[list[Any]]:
        found = []
        for topology, codec in (
            (ParameterServer(), None),
            (ParameterServer(), Factors(most, blocks)),
            (PeerToPeer(), Factors(most, blocks)),
            (PeerToPeer(), None),
        ):
            with exchange(ctx, {"w": shape}, topology, codec, cores=cores, rule=rule, split=True) as ex:
                told: list[Any] = []
                for step in range(5):
                    pair = pairs_of(ctx.rank, step, (step + ctx.rank) % (most + 1), shape, seed)
                    if step == 2 and ctx.rank == 1:
                        ex.split.fold("w", nothing=True)
                    else:
                        ex.split.fold("w", dense(pair) if codec is None else pair)
                    if step % 2 == 1:
                        told += [ex.split.squares("w"), ex.split.gather("w").tobytes()]
                    if step == 3:
                        ex.split.skip("w")
                    else:
                        ex.split.apply("w", 0.5 if step else 1.0)
                    told.append(ex.params["w"].tobytes())
                found.append(told)
        return found

    every = run_threads(ranks, body)
    assert all(found == every[0][0] for rank in every for found in rank)


def test_a_prox_goes_over_parameters_that_travel_rounded() -> None:
    def body(ctx: hpcomm.Context) -> list[bytes]:
        found = []
        for codec in (None, Factors(3)):
            rule = ProxSGD(lr=0.5, prox=L1(0.5))
            with exchange(ctx, {"w": (40, 24)}, ParameterServer(), codec, codec_out="float16", rule=rule) as ex:
                for step in range(STEPS):
                    pair = pairs_of(ctx.rank, step, 2, (40, 24))
                    ex.push_pull("w", dense(pair) if codec is None else pair)
                found.append(ex.params["w"].tobytes())
        return found

    every = run_threads(2, body)
    assert all(found == every[0][0] for rank in every for found in rank)


def test_fold_and_apply_give_the_bits_of_push_pull_where_updates_pass_from_peer_to_peer() -> None:
    def body(ctx: hpcomm.Context) -> list[bytes]:
        found = []
        for split in (False, True):
            with exchange(ctx, {"w": (4, 5)}, PeerToPeer(spread(5, 2), relay=True), Factors(2), split=split) as ex:
                for step in range(STEPS):
                    pair = pairs_of(ctx.rank, step, 2, (4, 5))
                    if split:
                        ex.split.fold("w", pair)
                        ex.split.apply("w")
                    else:
                        ex.push_pull("w", pair)
                found.append(ex.params["w"].tobytes())
        return found

    every = run_threads(5, body)
    assert all(found == every[0][0] for rank in every for found in rank)

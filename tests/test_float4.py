"""4-bit floats (Streaming DiLoCo, arXiv 2501.18512): values against a reference in NumPy, and exchanges."""

from typing import Any

import numpy as np
import pytest
from conftest import on_both, run_threads
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

import hpcomm
from hpcomm import ASYNC, SGD, SSP, Exchange, Hierarchy, ParameterServer, graphs
from hpcomm.codec import Auto, ErrorFeedback, Float4

F32 = np.float32
Floats = NDArray[np.float32]
LEAST = F32(2.0**-118)  # the smallest scale
STEPS = F32(2.0) ** np.arange(-6, 1, dtype=F32)


def sent(ctx: hpcomm.Context, x: Floats, codec: Any, chunk_bytes: int = 32768) -> Floats:
    """What a rank decodes of the update that it has encoded."""
    given = {"w": np.zeros(x.shape, F32)}
    with Exchange(ctx, given, rule=SGD(lr=1.0), codec=codec, progress="inline", chunk_bytes=chunk_bytes) as ex:
        return -ex.push_pull("w", x)


def scales_of(x: Floats, unit: int) -> Floats:
    """The scale of each element's unit."""
    scales = [max(LEAST, np.abs(x[at : at + unit]).max()) for at in range(0, x.size, unit)]
    return np.repeat(np.array(scales, F32), unit)[: x.size]


values = (
    st.floats(-(2.0**100), 2.0**100, width=32)
    | st.floats(-4, 4, width=32)
    | st.sampled_from([0.0, 1.0, -0.75, 0.0078125])
)
updates = st.integers(1, 300).flatmap(lambda n: arrays(F32, n, elements=values))


@given(updates, st.sampled_from([16, 17, 48, 256]))
def test_an_element_is_sent_as_the_nearest_value(x: Floats, unit: int) -> None:
    with hpcomm.init() as ctx:
        got = sent(ctx, x, Float4(unit)).astype(np.float64)
    scales = scales_of(x, unit).astype(np.float64)
    levels = np.concatenate([np.zeros((1, x.size)), scales * STEPS[:, None]])
    errors = np.abs(np.abs(x).astype(np.float64) - levels)
    assert np.array_equal(np.abs(got - x), errors.min(axis=0))
    assert (np.abs(got - x) <= np.maximum(np.abs(x) / 3.0, scales / 128)).all()
    assert ((got == 0) | (np.sign(got) == np.sign(x))).all()
    assert np.array_equal(got == 0, np.abs(x) < scales / 128)


@given(st.integers(0, 9999), st.sampled_from([16, 100, 256]), st.floats(2.0**-100, 2.0**100, width=32))
def test_values_of_the_format_come_back_as_they_are(seed: int, unit: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    x = F32(scale) * rng.choice(np.concatenate([[F32(0)], STEPS, -STEPS]), 400)
    x[::unit] = scale
    with hpcomm.init() as ctx:
        assert np.array_equal(sent(ctx, x, Float4(unit)), x)


def test_the_bits_do_not_depend_on_chunks() -> None:
    """Scales belong to units: a key of 10,000 elements ends with a short unit, one of 4097 with one element."""
    with hpcomm.init() as ctx:
        for n in (10_000, 4097, 1):
            x = np.random.default_rng(n).standard_normal(n).astype(F32)
            for codec in (Float4(), Float4(48), Float4(compress="zlib"), ErrorFeedback(Float4())):
                whole = sent(ctx, x, codec, 1 << 20)
                assert all(np.array_equal(sent(ctx, x, codec, size), whole) for size in (1024, 2048, 16384)), codec
            assert (sent(ctx, x, Float4()) != x).any() == (n > 1)


# ---- exchanges -------------------------------------------------------------------------------------------------------

N, UNIT, RANKS = 3000, 64, 3
WAYS: dict[str, dict[str, Any]] = {
    "hub": {},
    "receivers": {"topology": ParameterServer(apply_at="receivers")},
    "hosts": {"topology": Hierarchy([[0, 1], [2]])},
    "hosts, receivers": {"topology": Hierarchy([[0, 1], [2]], apply_at="receivers")},
    "ring": {"topology": Hierarchy([[0], [1, 2]], (), top="ring")},
    "two servers": {"topology": ParameterServer("CS", [0, 2], apply_at="both")},
    "peers": {"topology": hpcomm.PeerToPeer()},
    "graph": {"topology": graphs.complete},
    "SSP": {"consistency": SSP(1), "depth": 2},
    "ASYNC": {"consistency": ASYNC},
    "compressed": {"codec": Float4(UNIT, compress="zlib")},
    "feedback": {"codec": ErrorFeedback(Float4(UNIT))},
}


@pytest.mark.some(8)
@on_both
@pytest.mark.parametrize("way", WAYS)
def test_sums_of_what_the_format_has_are_exact(way: str) -> None:
    """Updates are whole multiples of one pattern, 0 and powers of 2 by whose largest each unit begins. So sums that are
    encoded again, by leaders and owners, are values of the format too."""
    pattern = np.random.default_rng(7).choice(np.array([0, *(1 << np.arange(7)), *(-1 << np.arange(7))], F32), N)
    pattern[::UNIT] = 64
    every = [[F32(1 + rank + 2 * step) for step in range(4)] for rank in range(RANKS)]

    def body(ctx: hpcomm.Context) -> Floats:
        options = {"reduce": "sum", "progress": "inline", "chunk_bytes": 2048, "codec": Float4(UNIT), **WAYS[way]}
        if way == "graph":
            options["topology"], options["reduce"] = graphs.complete(RANKS), "mean"
        with Exchange(ctx, {"w": np.zeros(N, F32)}, rule=SGD(lr=1.0), **options) as ex:
            for factor in every[ctx.rank]:
                ex.push_pull("w", factor * pattern)
            ctx.barrier()
            if way in ("SSP", "ASYNC"):
                ex.pull("w")
                ctx.barrier()
            w: Floats = ex.pull("w").copy() if way != "graph" else ex.params["w"].copy()
            ctx.barrier()
            return w

    total = sum(sum(factors) for factors in every)
    if way == "graph":
        total /= RANKS
    for w in run_threads(RANKS, body):
        assert np.array_equal(w, -total * pattern)


def test_feedback_keeps_back_what_rounding_leaves_out() -> None:
    """Without it an update that rounds to less is always less; with it the sum of what was sent follows. Only then is
    there a residual."""

    def body(ctx: hpcomm.Context) -> list[tuple[Floats, int]]:
        x = np.where(np.arange(1024) % 256 == 0, 64, np.arange(1024) % 9 + F32(0.4)).astype(F32)
        found = []
        for codec in (Float4(), ErrorFeedback(Float4()), ErrorFeedback(Float4(), on=False)):
            with Exchange(ctx, {"w": np.zeros(1024, F32)}, rule=SGD(lr=1.0), codec=codec, progress="inline") as ex:
                for _ in range(40):
                    ex.push_pull("w", x)
                kept = np.flatnonzero(ex.state_dict().get("encoders", np.zeros(0))).size
                found.append((np.abs(ex.params["w"] + 40 * x), kept))
        return found

    for lost, fed, off in run_threads(2, body):
        assert lost[0].max() > 40
        assert np.array_equal(lost[0], off[0])
        assert fed[0].max() < 8
        assert (lost[1], off[1], fed[1] > 500) == (0, 0, True)


def test_a_piece_takes_an_eighth_and_says_so() -> None:
    codec = Float4()

    def body(ctx: hpcomm.Context) -> None:
        given = {"w": np.zeros((100, 300), F32), "b": np.zeros(1, F32)}
        with Exchange(ctx, given, codec=codec, progress="inline", chunk_bytes=1 << 20) as ex:
            ex.step({name: np.ones(value.shape, F32) for name, value in given.items()})
            told = ex.stats().codecs
            assert max(key.unit for key in ex.plan.keys) == 256
            assert told["w"].bytes == codec.most_bytes((100, 300), 30_000) == 16 + 4 * 118 + 15_000
            assert told["b"].bytes == codec.most_bytes((1,), 1) == 20
            assert told["w"].codec == "Float4(unit=256, compress=None)"

    run_threads(2, body)


def test_auto_takes_float4_or_float32() -> None:
    def body(ctx: hpcomm.Context) -> Any:
        with Exchange(ctx, {"w": np.zeros(1 << 18, F32)}, codec=Auto(Float4()), progress="inline") as ex:
            assert "MB/s" in ex.stats().codecs["w"].why
            return ex.codecs["w"].name

    assert run_threads(2, body, transport="tcp") in (["float4"] * 2, ["float32"] * 2)

"""The choice of a way for each layer (Poseidon, section 3.2): bytes are those of the plans, algorithm 1 is the
paper's, and what is chosen is what costs least."""

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpcomm
from hpcomm import InvalidArgument, NotSupported, Plan, model
from hpcomm.codec import Factors, OneBit, TopK, WireFormat
from hpcomm.exchange import Book
from hpcomm.model import Cluster, CodecRates, Layer, Rates, best_way, cost_of

RATES = Rates(between=1.2e8, inside=4e9, memory=5e9, fold=5e-10, multiply=4.4e10)
sides = st.integers(1, 40)


@given(sides, sides, st.integers(1, 60), st.integers(1, 4), st.integers(1, 3))
def test_bytes_are_those_of_the_plans(rows: int, columns: int, pairs: int, hosts: int, near: int) -> None:
    """All servers have equal parts of the layer, as servers have on the average of many layers."""
    size = hosts * near
    shape = (rows * size, 16 * columns)
    where = [rank // near for rank in range(size)]
    layer, cluster = Layer("w", shape, pairs), Cluster(size, hosts=hosts)
    piece = Factors(pairs).most_bytes(shape, math.prod(shape))
    groups = [[host * near + i for i in range(near)] for host in range(hosts)]
    adding = groups if hosts > 1 else [[rank] for rank in range(size)]
    chunk = 64 * columns
    plans: dict[str, tuple[Plan, Any]] = {
        "ps": (Plan.hub({"w": shape}, range(size), range(size), size, chunk_bytes=chunk), ()),
        "hosts": (Plan.hosts({"w": shape}, [groups], size, chunk_bytes=chunk), ()),
        "factors": (Plan.peer_to_peer({"w": shape}, size, hosts=adding, codec=Factors(pairs)), (Factors(pairs),)),
        "adam": (Plan.hub({"w": shape}, range(size), range(size), size, codec=Factors(pairs)), (Factors(pairs),)),
    }
    for way, (plan, codecs) in plans.items():
        load = model.load_of(plan, where, codecs=codecs)
        copies = (size - 1) * (len(adding) if way == "factors" else 1)
        heads = (piece - 4 * min(pairs * sum(shape), math.prod(shape))) * copies
        out, into = (side[0] for side in load.by_rank())
        cost = cost_of(way, layer, cluster)
        assert out.sum() == cost.sent + (heads if codecs else 0)
        most = float((out + into).max())
        assert most == pytest.approx(cost.busiest, rel=0.01, abs=2 * heads)
        far = [float(side[0].max()) for side in load.by_host()]
        link = Rates(between=1.0)
        assert max(far) == pytest.approx(cost_of(way, layer, cluster, link).seconds, rel=0.01, abs=2 * heads)


@given(sides, sides, st.integers(0, 500), st.integers(1, 64), st.integers(1, 64))
def test_the_paper_counts_bytes(m: int, n: int, k: int, p1: int, p2: int) -> None:
    m, n, p2 = 64 * m, 64 * n, min(p1, p2)
    saves = k > 0 and 2 * k * (p1 - 1) * (m + n) * p2 <= 2 * m * n * (p1 + p2 - 2)
    found = best_way(Layer("w", (m, n), k), Cluster(p1, p2), by="paper")
    assert (found.paper, found.name) == (("SFB", "factors") if saves else ("PS", "ps"))


@given(
    sides, sides, st.integers(0, 600), st.integers(2, 6), st.integers(1, 3), st.floats(1e6, 1e10), st.floats(1e9, 1e12)
)
def test_what_is_chosen_takes_the_fewest_seconds(
    m: int, n: int, k: int, hosts: int, near: int, between: float, multiply: float
) -> None:
    rates = Rates(between=between, inside=4e9, memory=5e9, fold=5e-10, multiply=multiply)
    layer, cluster = Layer("w", (64 * m, 64 * n), k), Cluster(hosts * near, hosts=hosts)
    found = best_way(layer, cluster, rates)
    assert found.cost.seconds == min(cost.seconds for cost in found.costs.values())
    assert ("factors" in found.costs) == (k > 0)
    assert ("hosts" in found.costs) == (near > 1)
    fits = max(cost.memory for cost in found.costs.values()) / 2
    within = best_way(layer, cluster, rates, memory=fits)
    if min(cost.memory for cost in found.costs.values()) <= fits:
        assert within.cost.memory <= fits
    assert (within.why == "") == (within.way == found.way)
    codecs: dict[WireFormat, CodecRates] = {
        TopK(0.01): CodecRates(0.02, 1e-9, 1e-9),
        OneBit(): CodecRates(1 / 32, 0, 0),
    }
    for memory in {0.0, *(cost.memory for cost in found.costs.values())}:
        lossy = best_way(layer, cluster, rates, codecs=codecs, memory=memory)
        fitting = [cost for cost in lossy.costs.values() if not memory or cost.memory <= memory]
        assert lossy.cost in fitting
        assert lossy.cost.seconds == min(cost.seconds for cost in fitting)
        assert (lossy.why == "") == (lossy.cost.seconds == min(cost.seconds for cost in lossy.costs.values()))


def test_a_codec_is_left_out_where_it_needs_too_much_memory() -> None:
    layer, cluster, rates = Layer("w", (64, 64), 1), Cluster(3), Rates(between=1e6, multiply=1e6)
    codecs: dict[WireFormat, CodecRates] = {TopK(0.01): CodecRates(0.02, 0, 0)}
    memory = cost_of("factors", layer, cluster, rates).memory
    found = best_way(layer, cluster, rates, codecs=codecs, memory=memory)
    assert (found.name, found.codec) == ("factors", None)
    assert re.match(r"'TopK\(0.01\)' would take .* and 'factors' is taken with .* may be taken$", found.why)
    tight = best_way(layer, cluster, rates, codecs=codecs, memory=1)
    assert (tight.way, tight.codec) == ("factors", None)  # nothing fits: it needs the least


def test_bytes_and_products_decide_otherwise_than_bytes() -> None:
    """The issue's example: half the bytes, and 275 GFLOP of products."""
    many, few = (Layer("fc", (4096, 4096), k) for k in (512, 32))
    cluster = Cluster(4)
    assert best_way(many, cluster, by="paper").paper == "SFB"
    assert best_way(many, cluster, RATES).paper == "PS"
    assert best_way(few, cluster, RATES).paper == "SFB"
    factors = cost_of("factors", few, cluster, RATES)
    assert factors.seconds == pytest.approx(
        3 * 4 * 32 * 8192 / 1.2e8 + 2 * 4 * 32 * 4096**2 / 4.4e10 + 4 * (4096**2 + 32 * 8192) / 5e9
    )
    assert cost_of("ps", few, cluster, RATES).seconds > 0.84


def test_adams_busiest_node() -> None:
    """Table 1: (P1 - 1)(MN + KM + KN) values of the busiest server, and what others send and get of it."""
    layer, cluster = Layer("fc6", (1024, 6272), 8), Cluster(8)
    m, n = layer.shape
    assert cost_of("adam", layer, cluster).busiest == 4 * 7 * (m * n + 8 * m + 8 * n)
    assert cost_of("factors", layer, cluster).busiest == 4 * 2 * 8 * 7 * (m + n)
    assert cost_of("ps", layer, Cluster(8, 4)).busiest == 4 * 2 * m * n * (8 + 4 - 2) / 4


def test_lossy_codecs_are_taken_where_they_are_faster() -> None:
    layer, cluster = Layer("conv", (512, 4608)), Cluster(8, hosts=4)
    codecs = {OneBit(): CodecRates(1 / 30, 1e-9, 1e-9), TopK(0.01): CodecRates(0.015, 9e-8, 1e-9)}
    found = best_way(layer, cluster, RATES, codecs=codecs)
    assert (found.name, found.paper, found.codec) == ("1bit", "1bit", OneBit())
    assert found.cost.seconds < found.costs["hosts"].seconds < found.costs["ps"].seconds
    assert best_way(layer, cluster, Rates(between=1e12), codecs=codecs).codec is None
    assert best_way(layer, cluster, by="paper", codecs=codecs).codec is None


@pytest.mark.parametrize(
    ("make", "error", "told"),
    [
        (lambda: Layer("w", (3, 4, 5), 2), InvalidArgument, r"pairs is 2, and shape is \(3, 4, 5\): only a matrix"),
        (lambda: Layer("w", (0, 4)), InvalidArgument, "shape is 0: must be 1 to"),
        (lambda: Layer("w", (4, 4), -1), InvalidArgument, "pairs is -1: must be 0 to"),
        (lambda: Cluster(4, 5), InvalidArgument, "servers is 5: must be 1 to 4"),
        (lambda: Cluster(4, hosts=0), InvalidArgument, "hosts is 0: must be 1 to 4"),
        (
            lambda: best_way(Layer("w", (4, 4)), Cluster(2)),
            InvalidArgument,
            'by="measured" needs the rates of the machine',
        ),
        (
            lambda: best_way(Layer("w", (4, 4)), Cluster(2), by="bytes"),
            InvalidArgument,
            "by is 'bytes': must be one",
        ),
        (lambda: cost_of("sfb", Layer("w", (4, 4)), Cluster(2)), InvalidArgument, "way is 'sfb': must be one of"),
        (lambda: cost_of("adam", Layer("w", (4, 4)), Cluster(2)), NotSupported, "the layer has no pairs"),
        (
            lambda: Rates(between=1e9, multiply=0),
            InvalidArgument,
            "multiply is 0: must be a number above 0, in operations",
        ),
        (
            lambda: cost_of("ps", Layer("w", (4, 4)), Cluster(2), RATES, CodecRates(-1, 0, 0)),
            InvalidArgument,
            "ratio is -1: must be finite, 0 or more",
        ),
    ],
)
def test_refusals(make: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        make()


def test_the_book_of_an_exchange() -> None:
    with hpcomm.init() as ctx:
        params = {"fc": np.zeros((64, 32), np.float32), "bias": np.zeros(64, np.float32)}
        with hpcomm.Exchange(ctx, params, codec={"fc": Factors(7)}, rule=hpcomm.Adam()) as ex:
            assert Book.of(ex).query("n_worker", "n_server", "n_host", "batchsize") == (1, 1, 1, 7)
            assert Book.of(ex).query("fc") == Layer("fc", (64, 32), 7, 2)
            assert Book.of(ex).query("bias").pairs == 0
            assert Book.of(ex).best_way("bias") == "PS"
            with pytest.raises(InvalidArgument, match="the book has no 'fcc': did you mean 'fc'"):
                Book.of(ex).query("fcc")
            with pytest.raises(InvalidArgument, match="no name is given"):
                Book.of(ex).query()
    book = Book({"fc": Layer("fc", (4096, 4096), 512)}, Cluster(4), RATES)
    assert (book.best_way("fc"), book.best_way("fc", "paper")) == ("PS", "SFB")

"""Node communication graphs: their edges and weights, and what is measured of them."""

import math
import pickle
import sys
from collections.abc import Callable
from functools import reduce
from typing import Any

import networkx
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import hpcomm
from hpcomm import InvalidArgument, NotSupported, graphs, topology
from hpcomm.graphs import Graph, makers, spectrum

DIRECTED = [
    graphs.complete(7),
    graphs.ring(6),
    graphs.chain(6),
    graphs.root_expander(25),
    graphs.root_expander(30, degree=3),
    graphs.exponential(11),
]
UNDIRECTED = [
    graphs.ring(6, directed=False),
    graphs.chain(6, directed=False),
    graphs.star(5, center=2),
    graphs.hypercube(8),
    graphs.torus(3, 4),
    graphs.random_regular(10, 3),
]
GRAPHS = DIRECTED + UNDIRECTED


def named(graph: Graph) -> str:
    return graph.name


@st.composite
def edge_sets(draw: st.DrawFn, most: int = 8) -> Graph:
    """Any graph of so many ranks, connected or not."""
    n = draw(st.integers(1, most))
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return graphs.from_edges(n, edges)


# ---- the value -----------------------------------------------------------------------------------------------------


@given(edge_sets())
def test_all_views_show_the_same_edges(graph: Graph) -> None:
    dense = graph.dense()
    np.testing.assert_array_equal(graph.sparse().toarray(), dense)
    for rank in range(graph.size):
        row = dict(graph.in_edges(rank))
        assert list(row) == sorted(row)
        assert rank in row
        assert {j: dense[rank, j] for j in np.flatnonzero(dense[rank]).tolist()} == row
        assert graph.in_peers(rank) == tuple(j for j in row if j != rank)
        assert graph.out_peers(rank) == tuple(j for j in range(graph.size) if j != rank and rank in graph.in_peers(j))
        assert graph.in_degrees[rank] == len(graph.in_peers(rank))
        assert graph.out_degrees[rank] == len(graph.out_peers(rank))
    assert [(j, i, w) for i in range(graph.size) for j, w in graph.in_edges(i)] == list(graph)


@given(edge_sets())
def test_default_weights_are_the_adjacency_over_the_in_degree(graph: Graph) -> None:
    adjacency = (graph.dense() != 0).astype(float)
    np.testing.assert_allclose(graph.dense(), adjacency / adjacency.sum(axis=1, keepdims=True), rtol=1e-15)


@given(edge_sets())
def test_a_graph_comes_back_from_every_form(graph: Graph) -> None:
    copies = [
        pickle.loads(pickle.dumps(graph)),
        graphs.from_adjacency(graph.dense()),
        graphs.from_adjacency(graph.dense(), weighted=True),
        graphs.from_adjacency(graph.sparse()),
        graphs.from_adjacency(graph.sparse().tocoo(), weighted=True),
        graphs.from_networkx(graph.to_networkx()),
        graphs.from_networkx(graph.to_networkx(self_loops=True), weight="weight"),
        graphs.from_edges(graph.size, [(i, j) for i, j, _ in graph if i != j]),
    ]
    for copy in copies:
        assert copy == graph
        assert hash(copy) == hash(graph)
    assert copies[0].name == graph.name


def test_equality_is_of_edges_and_weights() -> None:
    ring = graphs.ring(4)
    assert ring == graphs.from_edges(4, [(0, 1), (1, 2), (2, 3), (3, 0)], name="mine")
    assert ring != graphs.from_edges(4, [(1, 0), (2, 1), (3, 2), (0, 3)])
    assert ring != graphs.ring(5)
    assert ring != graphs.from_edges(4, [(0, 1), (1, 2), (2, 3), (3, 0)], [0.5, 0.5, 0.5, 0.25])
    assert ring != "ring(4)"
    assert len({ring, graphs.ring(4), graphs.exponential(4)}) == 2
    swap = graphs.from_edges(2, [(0, 1), (1, 0)], [1, 1])
    assert len({swap, graphs.from_edges(2, [(0, 1), (1, 0), (0, 0)], [1, 1, -0.0])}) == 1
    assert repr(ring) == "<Graph ring(4): 4 ranks, 4 edges>"


def test_undirected_networkx_graphs_send_both_ways() -> None:
    path = networkx.path_graph(3)
    assert graphs.from_networkx(path, name="path") == graphs.chain(3, directed=False)
    networkx.set_edge_attributes(path, {(0, 1): 0.25, (1, 2): 0.5}, "share")
    expected = [[0.75, 0.25, 0], [0.25, 0.25, 0.5], [0, 0.5, 0.5]]
    assert graphs.from_networkx(path, weight="share").dense().tolist() == expected


def test_a_graph_does_not_change() -> None:
    graph = graphs.ring(4)
    for array in (graph.starts, graph.sources, graph.weights):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(AttributeError):
        graph.size = 5  # type: ignore[misc]
    with pytest.raises(AttributeError):
        graph.more = 5  # type: ignore[attr-defined]
    graph.dense()[0, 0] = graph.sparse().data[0] = 7
    assert graph == graphs.ring(4)


def test_given_weights_leave_the_rest_to_oneself() -> None:
    graph = graphs.from_edges(3, [(1, 0), (2, 0), (0, 1), (2, 2)], [0.25, 0.25, 1.0, 1.0])
    assert graph.in_edges(0) == ((0, 0.5), (1, 0.25), (2, 0.25))
    assert graph.in_edges(1) == ((0, 1.0), (1, 0.0))
    assert graph.in_edges(2) == ((2, 1.0),)
    assert graph.in_peers(1) == (0,)
    rounded = graphs.from_edges(3, [(1, 0), (2, 0)], [0.5, 0.5 + 1e-12])
    assert rounded.in_edges(0)[0] == (0, 0.0)


def test_a_big_graph_is_small() -> None:
    graph = graphs.root_expander(10_000, degree=4)
    assert sum(array.nbytes for array in (graph.starts, graph.sources, graph.weights)) < 1_000_000
    assert graph.out_peers(0) == (1, 10, 100, 1000)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Graph(0, [], []), "size is 0: must be 1"),
        (lambda: Graph(3, [0], [1, 2]), "sources has 1 ranks and targets 2"),
        (lambda: Graph(3, [0.5], [1]), "sources is .*: must be ranks"),
        (lambda: Graph(3, [0], [1], name=3), "name is 3"),  # type: ignore[arg-type]
        (lambda: graphs.from_edges(3, [(0, 3)]), "targets has rank 3: the ranks of this graph are 0 to 2"),
        (lambda: graphs.from_edges(3, [(-1, 0)]), "sources has rank -1"),
        (lambda: graphs.from_edges(3, [(0, 1), (1, 2), (0, 1)]), "edge 0 -> 1 is given twice"),
        (lambda: graphs.from_edges(3, [(0, 1, 2)]), "edges has shape"),
        (lambda: graphs.from_edges(3, [0]), "pairs of ranks"),  # type: ignore[list-item]
        (lambda: graphs.from_edges(3, [(0, 1)], [0.5, 0.5]), "there are 1 edges"),
        (lambda: graphs.from_edges(3, [(0, 1)], ["x"]), "weights is"),
        (lambda: graphs.from_edges(3, [(0, 1)], [0.0]), "edge 0 -> 1 has weight 0"),
        (lambda: graphs.from_edges(3, [(0, 1)], [math.nan]), "edge 0 -> 1 has weight nan"),
        (lambda: graphs.from_edges(3, [(0, 1)], [1.5]), "rank 1 would take its own update with weight -0.5"),
        (lambda: graphs.from_edges(3, [(0, 1), (1, 1)], [0.5, 0.4]), "in-edges of rank 1 sum to 0.9"),
        (lambda: graphs.from_adjacency(np.ones((2, 3))), "must be square"),
        (lambda: graphs.from_adjacency([["a"]]), "must be square, of numbers"),
        (lambda: graphs.from_networkx(3), "must be a networkx"),
        (lambda: graphs.from_networkx(networkx.MultiGraph([(0, 1)])), "may have an edge twice"),
        (lambda: graphs.from_networkx(networkx.Graph([("a", "b")])), "convert_node_labels_to_integers"),
        (lambda: graphs.from_networkx(networkx.Graph([(0, 1)]), weight="w"), "edge 0 -> 1 of g has no attribute 'w'"),
        (lambda: graphs.ring(0), "n is 0"),
        (lambda: graphs.ring(3, directed=1), "directed is 1"),  # type: ignore[arg-type]
        (lambda: graphs.chain("3"), "n is '3': must be an int"),  # type: ignore[arg-type]
        (lambda: graphs.star(3, 3), "center is 3: must be 0 to 2"),
        (lambda: graphs.root_expander(5, 5), "degree is 5: must be 1 to 4"),
        (lambda: graphs.hypercube(12), "a power of two of ranks, such as 8 or 16"),
        (lambda: graphs.torus(0, 3), "rows is 0"),
        (lambda: graphs.random_regular(5, 3), "degree is 3: 5 ranks of odd degree do not pair up"),
        (lambda: graphs.random_regular(5, 2, seeds=0), "seeds is 0"),
        (lambda: graphs.random_matchings(5, 0), "phases is 0"),
        (lambda: graphs.ring(3).in_edges(3), "rank is 3: must be 0 to 2"),
        (lambda: graphs.ring(3).out_peers(-1), "rank is -1"),
        (lambda: graphs.spectral_gap([]), "must be a Graph"),
        (lambda: graphs.spectral_gap(3), "must be a Graph"),  # type: ignore[arg-type]
        (lambda: graphs.spectral_gap([graphs.ring(3), graphs.ring(4)]), "phase 1 has 4 ranks and phase 0 3"),
        (lambda: graphs.influence(graphs.from_edges(3, [(0, 1)])), "no rank's update reaches all others"),
        (lambda: graphs.metropolis(graphs.ring(3)), "rank 2 sends to 0, which does not send back"),
        (lambda: graphs.first_wait(graphs.ring(3), 3), "straggler is 3"),
        (lambda: graphs.first_wait(graphs.ring(3), 0, depth=0), "depth is 0"),
        (lambda: graphs.bytes_per_step(graphs.ring(3), -1), "nbytes is -1"),
        (lambda: graphs.steps_to_consensus(graphs.ring(3), 1), "accuracy is 1: must be above 0 and below 1"),
        (lambda: graphs.recommend(3, 8, 0), "bandwidth is 0"),
        (lambda: graphs.recommend(3, 8, 1e9, latency=math.inf), "latency is inf"),
        (lambda: graphs.recommend(3, 8, "x"), "bandwidth is 'x'"),  # type: ignore[arg-type]
    ],
)
def test_what_is_wrong_is_said(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        make()


@pytest.mark.parametrize(
    ("missing", "use"),
    [
        ("scipy.sparse", lambda: graphs.ring(3).sparse()),
        ("scipy.sparse", lambda: graphs.spectral_gap(graphs.ring(spectrum.DENSE + 1))),
        ("networkx", lambda: graphs.ring(3).to_networkx()),
    ],
)
def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch, missing: str, use: Callable[[], Any]) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(NotSupported, match=r"pip install matplotlib 'networkx>=3' 'scipy>=1\.12'"):
        use()


def test_small_graphs_need_numpy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("scipy", "networkx", "matplotlib")]:
        monkeypatch.setitem(sys.modules, name, None)
    assert graphs.recommend(16, 1 << 20, 1e9)
    assert graphs.influence(graphs.star(5)).sum() == pytest.approx(1)
    assert graphs.check(graphs.ring(5)) == []


def test_module_is_public() -> None:
    assert hpcomm.topology is topology
    assert sorted(topology.__all__) == sorted(set(topology.__all__))
    assert all(getattr(home, name).__doc__ for home in (graphs, topology) for name in home.__all__)


# ---- constructors --------------------------------------------------------------------------------------------------


def edges(graph: Graph) -> set[tuple[int, int]]:
    return {(source, target) for source, target, _ in graph if source != target}


@given(st.integers(1, 40))
def test_edges_are_those_of_the_definition(n: int) -> None:
    ranks = range(n)

    def strides(*values: int) -> set[tuple[int, int]]:
        return {(i, (i + value) % n) for i in ranks for value in values if value % n}

    line = {(i, i + 1) for i in range(n - 1)}
    back = {(j, i) for i, j in line}
    root = math.isqrt(n)
    assert edges(graphs.complete(n)) == {(i, j) for i in ranks for j in ranks if i != j}
    assert edges(graphs.ring(n)) == strides(1)
    assert edges(graphs.ring(n, directed=False)) == strides(1, -1)
    assert edges(graphs.chain(n)) == line
    assert edges(graphs.chain(n, directed=False)) == line | back
    assert edges(graphs.star(n, n - 1)) == {(n - 1, i) for i in range(n - 1)} | {(i, n - 1) for i in range(n - 1)}
    assert edges(graphs.root_expander(n)) == strides(1, root)
    assert edges(graphs.exponential(n)) == strides(*(1 << k for k in range(8) if 1 << k < n))
    phases = graphs.one_peer_exponential(n)
    assert [edges(phase) for phase in phases] == ([strides(1 << k) for k in range(8) if 1 << k < n] or [set()])
    if n & (n - 1) == 0:
        assert edges(graphs.hypercube(n)) == {(i, j) for i in ranks for j in ranks if (i ^ j).bit_count() == 1}


@given(st.integers(1, 7), st.integers(1, 7))
def test_torus_is_that_of_networkx(rows: int, cols: int) -> None:
    grid = networkx.grid_2d_graph(rows, cols, periodic=True)
    number = {(row, col): row * cols + col for row, col in grid}
    theirs = {(number[a], number[b]) for a, b in grid.edges if a != b}
    assert edges(graphs.torus(rows, cols)) == theirs | {(b, a) for a, b in theirs}


@given(st.integers(2, 60), st.data())
def test_root_expander_has_the_degree_asked_for(n: int, data: st.DataObject) -> None:
    degree = data.draw(st.integers(1, n - 1))
    graph = graphs.root_expander(n, degree)
    assert set(graph.in_degrees.tolist()) == set(graph.out_degrees.tolist()) == {degree}
    assert 1 in graph.out_peers(0)
    assert graphs.check(graph) == []


@pytest.mark.parametrize(
    ("n", "degree", "strides"),
    [(25, 2, (1, 5)), (27, 3, (1, 3, 9)), (10_000, 4, (1, 10, 100, 1000)), (3, 2, (1, 2))],
)
def test_root_expander_spreads_its_strides(n: int, degree: int, strides: tuple[int, ...]) -> None:
    assert graphs.root_expander(n, degree).out_peers(0) == strides


@given(st.integers(1, 1 << 200), st.integers(1, 12))
def test_roots_are_exact(value: int, degree: int) -> None:
    root = makers._root(value, degree)
    assert root**degree <= value < (root + 1) ** degree


@given(st.integers(2, 24), st.data())
def test_random_regular_is_regular(n: int, data: st.DataObject) -> None:
    degree = data.draw(st.integers(1, n - 1).filter(lambda degree: n * degree % 2 == 0))
    seed = data.draw(st.integers(0, 1000))
    graph = graphs.random_regular(n, degree, seeds=2, seed=seed)
    assert set(graph.in_degrees.tolist()) == {degree}
    assert edges(graph) == {(j, i) for i, j in edges(graph)}
    draws = [graphs.random_regular(n, degree, 1, seed + k) for k in range(2)]
    assert graph in draws
    assert graphs.spectral_gap(graph) == pytest.approx(max(map(graphs.spectral_gap, draws)), abs=1e-8)
    assert graph == graphs.random_regular(n, degree, seeds=2, seed=seed)


@given(st.integers(1, 20), st.integers(1, 5), st.integers(0, 100))
def test_matchings_pair_up_all_ranks(n: int, phases: int, seed: int) -> None:
    found = graphs.random_matchings(n, phases, seed)
    assert len(found) == phases
    for phase in found:
        assert sorted(phase.in_degrees.tolist()) == [0] * (n % 2) + [1] * (n - n % 2)
        assert edges(phase) == {(j, i) for i, j in edges(phase)}


# ---- the spectral gap ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("graph", "gap"),
    [
        (graphs.complete(6), 1.0),  # ASAP, figure 2
        (graphs.complete(25), 1.0),
        (graphs.chain(25), 0.0021),  # the figure's 0.002: rows over their own in-degree, with self-loops
        (graphs.ring(25), 0.0079),  # section 6.1 has "around 0.008"
        (graphs.root_expander(6), 0.3333),  # the figure's 0.38 does not follow from its formula,
        (graphs.root_expander(25), 0.1419),  # nor does its 0.2
        (graphs.star(25), 0.5),  # nor the 0.68 of a parameter server
        (graphs.hypercube(16), 0.4),  # 2 / (log2(n) + 1)
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_known_gaps(graph: Graph, gap: float) -> None:
    assert graphs.spectral_gap(graph) == pytest.approx(gap, abs=5e-5)


@given(st.integers(2, 64))
def test_gaps_with_a_formula(n: int) -> None:
    assert graphs.spectral_gap(graphs.complete(n)) == 1
    assert graphs.spectral_gap(graphs.ring(n)) == pytest.approx(1 - math.cos(math.pi / n), abs=1e-12)
    eigenvalues = (1 + 2 * np.cos(2 * np.pi * np.arange(1, n) / n)) / 3
    if n > 2:
        assert graphs.second_singular(graphs.ring(n, directed=False)) == pytest.approx(np.abs(eigenvalues).max())


@given(edge_sets())
def test_gap_is_one_less_the_second_singular_value(graph: Graph) -> None:
    expected = np.linalg.svd(graph.dense(), compute_uv=False)[1] if graph.size > 1 else 0
    assert graphs.spectral_gap(graph) == pytest.approx(1 - expected, abs=1e-12)


@pytest.mark.parametrize("graph", [*GRAPHS, graphs.ring(300), graphs.chain(200), graphs.star(90)], ids=named)
def test_sparse_and_dense_agree(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    dense, influence = graphs.second_singular(graph), graphs.influence(graph)
    monkeypatch.setattr(spectrum, "DENSE", 0)
    if graph.size > 20:  # ARPACK's basis
        assert graphs.second_singular(graph) == pytest.approx(dense, abs=1e-10)
    np.testing.assert_allclose(graphs.influence(graph), influence, atol=1e-12)
    monkeypatch.setattr(spectrum, "_POWERS", 1)
    if graph.size > 20:
        np.testing.assert_allclose(graphs.influence(graph), influence, atol=1e-12)


@settings(max_examples=30)
@given(st.integers(30, 80), st.integers(0, 10_000), st.floats(0.01, 0.2))
def test_inverse_iteration_agrees(n: int, seed: int, density: float) -> None:
    random = np.random.default_rng(seed)
    graph = graphs.from_adjacency(random.random((n, n)) < density)
    singular = np.linalg.svd(graph.dense())
    value, _ = spectrum._inverse(graph.sparse(), None)
    assert value == pytest.approx(singular[1][0] ** 2, rel=1e-9)
    value, _ = spectrum._inverse(graph.sparse(), singular[2][0])
    assert value == pytest.approx(singular[1][1] ** 2, rel=1e-7)


@pytest.mark.parametrize(
    ("graph", "sigma"),
    [
        (graphs.ring(10_000), math.cos(math.pi / 10_000)),
        (graphs.ring(5_000, directed=False), (1 + 2 * math.cos(2 * math.pi / 5_000)) / 3),
        (graphs.torus(100, 100), (3 + 2 * math.cos(2 * math.pi / 100)) / 5),
        (graphs.complete(600), 0.0),
        (graphs.star(10_000), 0.5),
        (graphs.from_edges(1_000, []), 1.0),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_thousands_of_ranks(graph: Graph, sigma: float) -> None:
    assert graphs.second_singular(graph) == pytest.approx(sigma, abs=1e-11)


def test_gap_of_two_parts_is_zero() -> None:
    for n in (5, 400):
        halves = {(i + part, (i + 1) % n + part) for i in range(n) for part in (0, n)}
        assert graphs.spectral_gap(graphs.from_edges(2 * n, halves)) == pytest.approx(0, abs=1e-12)


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 100))
def test_gap_of_phases_is_that_of_their_product(n: int, phases: int, seed: int) -> None:
    matchings = graphs.random_matchings(n, phases, seed)
    product = reduce(lambda before, phase: phase.dense() @ before, matchings, np.eye(n))
    sigma = np.linalg.svd(product, compute_uv=False)[1] if n > 1 else 0
    assert (1 - graphs.spectral_gap(matchings)) ** phases == pytest.approx(sigma, abs=1e-9)


def test_phases_are_multiplied_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = graphs.star(30), graphs.chain(30)
    product = second.dense() @ first.dense()
    sigma = np.linalg.svd(product, compute_uv=False)[1]
    assert sigma != pytest.approx(np.linalg.svd(first.dense() @ second.dense(), compute_uv=False)[1])
    assert graphs.second_singular([first, second]) ** 2 == pytest.approx(sigma)
    monkeypatch.setattr(spectrum, "DENSE", 0)
    assert graphs.second_singular([first, second]) ** 2 == pytest.approx(sigma)


@pytest.mark.parametrize("n", [1, 2, 8, 64, 1024])
def test_one_peer_exponential_averages_exactly(n: int) -> None:
    phases = graphs.one_peer_exponential(n)
    assert graphs.spectral_gap(phases) == 1
    assert graphs.steps_to_consensus(phases, 0.01) == len(phases)


@pytest.mark.parametrize("graph", [g for g in GRAPHS if not graphs.check(g)], ids=named)
def test_sigma_bounds_the_distance_from_the_mean(graph: Graph) -> None:
    x = np.random.default_rng(0).standard_normal(graph.size)
    away, sigma = np.linalg.norm(x - x.mean()), graphs.second_singular(graph)
    steps = graphs.steps_to_consensus(graph, 0.01)
    for step in range(1, int(steps) + 1):
        x = graph.dense() @ x
        assert np.linalg.norm(x - x.mean()) <= sigma**step * away + 1e-12
    assert sigma**steps <= 0.01 + 1e-12


# ---- influence and fairness ----------------------------------------------------------------------------------------


@given(edge_sets())
def test_influence_is_the_limit_of_powers(graph: Graph) -> None:
    limit = np.linalg.matrix_power((graph.dense() + np.eye(graph.size)) / 2, 1 << 16)
    if np.ptp(limit, axis=0).max() > 1e-6:
        with pytest.raises(InvalidArgument, match="no rank's update reaches all others"):
            graphs.influence(graph)
    else:
        np.testing.assert_allclose(graphs.influence(graph), limit[0], atol=1e-9)


def test_influence_without_self_loops() -> None:
    swap = graphs.from_edges(3, [(0, 1), (1, 0), (0, 2)], [1, 1, 1])
    assert graphs.influence(swap).tolist() == pytest.approx([0.5, 0.5, 0])


@given(edge_sets())
def test_check_finds_what_keeps_from_the_mean(graph: Graph) -> None:
    limit = np.linalg.matrix_power(graph.dense(), 1 << 16)
    assert (graphs.check(graph) == []) == np.allclose(limit, 1 / graph.size, atol=1e-6)


def test_check_names_the_rank() -> None:
    chain = graphs.check(graphs.chain(5))
    assert [sentence.partition(":")[0] for sentence in chain] == [
        "not strongly connected",
        "not in-regular",
        "not doubly stochastic",
    ]
    assert "from rank 1 to rank 0" in chain[0]
    assert "rank 0 takes the updates of 0 others, rank 1 of 1" in chain[1]
    assert "rank 0 is taken sum to 1.5" in chain[2]
    lonely = graphs.check(graphs.from_edges(4, [(0, 1), (1, 2), (2, 0)]))
    assert "from rank 0 to rank 3" in lonely[0]
    regular = graphs.from_edges(4, [(0, 1), (2, 1), (0, 2), (3, 2), (0, 3), (1, 3), (1, 0), (2, 0)])
    assert len(graphs.check(regular)) == 1  # connected, and each takes the updates of two
    assert "rank 0 is taken sum to 1.333" in graphs.check(regular)[0]


@given(st.integers(1, 6), st.lists(st.integers(1, 2), min_size=1, max_size=3), st.integers(0, 10_000))
def test_check_sees_models_that_go_around(n: int, mixed: list[int], seed: int) -> None:
    """Averages of permutations, which leave out a rank's own update as often as not, in phases."""
    random = np.random.default_rng(seed)
    matrices = [np.mean([np.eye(n)[random.permutation(n)] for _ in range(k)], axis=0) for k in mixed]
    phases = [graphs.from_adjacency(matrix, weighted=True) for matrix in matrices]
    limit = np.linalg.matrix_power(reduce(lambda before, matrix: matrix @ before, matrices), 1 << 16)
    assert (graphs.check(phases) == []) == np.allclose(limit, 1 / n, atol=1e-6)
    if len(phases) == 1:
        assert graphs.check(phases[0]) == graphs.check(phases)


def test_check_says_the_period() -> None:
    def shift(stride: int) -> Graph:
        return graphs.from_edges(6, [(i, (i + stride) % 6) for i in range(6)], [1] * 6)

    (around,) = graphs.check(shift(1))
    assert around.startswith("periodic: the update of rank 0 comes back every 6 steps only, and to rank 1 never at the")
    (rounds,) = graphs.check([shift(4), shift(1)])
    assert rounds.startswith("periodic: the update of rank 0 comes back every 6 rounds only")
    (back,) = graphs.check([shift(1), shift(5)])
    assert back.startswith("not strongly connected: no path of edges, one of each phase in turn, leads from rank 0")
    assert graphs.check(graphs.from_edges(3, [(0, 1), (1, 2), (2, 0), (1, 0), (2, 1), (0, 2)], [0.5] * 6)) == []


def test_check_of_phases() -> None:
    assert graphs.check(graphs.one_peer_exponential(6)) == []
    apart = graphs.check([graphs.from_edges(3, [(0, 1), (1, 0)])] * 2)
    assert len(apart) == 1
    assert "rank 2" in apart[0]
    unfair = graphs.check([graphs.ring(4), graphs.star(4)])
    assert [sentence.partition(":")[0] for sentence in unfair] == ["phase 1", "phase 1"]


@given(edge_sets())
def test_metropolis_is_fair(graph: Graph) -> None:
    both = graphs.from_adjacency(graph.dense() + graph.dense().T)
    repaired = graphs.metropolis(both)
    matrix = repaired.dense()
    np.testing.assert_allclose(matrix.sum(axis=0), 1)
    np.testing.assert_array_equal(matrix, matrix.T)
    assert edges(repaired) == edges(both)
    degrees = both.in_degrees
    for i, j in edges(both):
        assert matrix[i, j] == 1 / (1 + max(degrees[i], degrees[j]))
    assert all(sentence.startswith("not strongly") for sentence in graphs.check(repaired))


# ---- without some ranks --------------------------------------------------------------------------------------------


def test_a_graph_keeps_its_kind_without_some_ranks() -> None:
    assert graphs.among(graphs.ring(6), [0, 2, 3, 5]) == graphs.ring(4)
    assert graphs.among(graphs.chain(5), [1, 2, 4]) == graphs.chain(3)
    np.testing.assert_allclose(graphs.among(graphs.complete(5), [4, 1, 0]).dense(), 1 / 3)
    server = graphs.among(graphs.star(5), [1, 2, 3, 4])
    assert server.in_degrees.tolist() == [3] * 4, "all-reduce"
    lazy = graphs.from_edges(4, [(i, (i + 1) % 4) for i in range(4)], [0.25] * 4)
    assert graphs.among(lazy, [0, 1, 3]) == graphs.from_edges(3, [(0, 1), (1, 2), (2, 0)], [0.25] * 3)
    assert graphs.among(graphs.ring(3), [2]).dense().tolist() == [[1]]
    assert graphs.among(graphs.ring(3), [2, 0, 1]).in_edges(0) == ((0, 0.5), (2, 0.5))
    for ranks in ([], [0, 0], [0, 3], [-1]):
        with pytest.raises(InvalidArgument, match="must be different ranks of 0 to 2, one or more"):
            graphs.among(graphs.ring(3), ranks)


@given(edge_sets(), st.data())
def test_what_is_left_is_the_stochastic_complement(graph: Graph, data: st.DataObject) -> None:
    left = data.draw(st.lists(st.sampled_from(range(graph.size)), unique=True, min_size=1))
    gone = [rank for rank in range(graph.size) if rank not in left]
    p = graph.dense()
    ways = np.eye(len(gone)) - p[np.ix_(gone, gone)]
    found = graphs.among(graph, left)
    if abs(np.linalg.det(ways)) > 1e-9:  # else some of them took only each other
        want = p[np.ix_(left, left)] + p[np.ix_(left, gone)] @ np.linalg.solve(ways, p[np.ix_(gone, left)])
        np.testing.assert_allclose(found.dense(), want, atol=1e-12)
    if graphs.check(graph) == []:
        assert graphs.check(found) == []


def test_phases_keep_their_kinds_without_some_ranks() -> None:
    peers = graphs.among(graphs.one_peer_exponential(8), [0, 1, 2, 4, 5, 6, 7])
    assert len(peers) == 3
    assert all(phase.in_degrees.max() == 1 == phase.out_degrees.max() for phase in peers)
    assert graphs.check(peers) == []
    pairs = graphs.among(graphs.random_matchings(6, 3), [0, 1, 2, 4, 5])
    assert [phase.in_degrees.tolist().count(0) for phase in pairs] == [1, 1, 1]
    assert all(edges(phase) == {(j, i) for i, j in edges(phase)} for phase in pairs)
    line = [graphs.from_edges(3, [(0, 1), (1, 0)]), graphs.from_edges(3, [(1, 2), (2, 1)])]
    apart = graphs.among(line, [0, 2])
    assert [len(edges(phase)) for phase in apart] == [0, 0, 2], "a ring as one more phase"
    assert graphs.check(line) == graphs.check(apart) == []


# ---- distance and lateness -----------------------------------------------------------------------------------------


@given(edge_sets())
def test_diameter_is_that_of_networkx(graph: Graph) -> None:
    theirs = graph.to_networkx()
    connected = networkx.is_strongly_connected(theirs)
    assert graphs.diameter(graph) == (networkx.diameter(theirs) if connected else math.inf)
    hops = graphs.distances(graph, 0)
    assert {i: hop for i, hop in enumerate(hops.tolist()) if hop >= 0} == dict(
        networkx.single_source_shortest_path_length(theirs, 0)
    )


@pytest.mark.parametrize(
    ("graph", "hops"),
    [
        (graphs.ring(200), 199),
        (graphs.chain(150, directed=False), 149),
        (graphs.star(300), 2),
        (graphs.torus(12, 10), 11),
        (graphs.hypercube(128), 7),
        (graphs.root_expander(25), 8),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_known_diameters(graph: Graph, hops: int) -> None:
    assert graphs.diameter(graph) == hops


def simulated_first_wait(graph: Graph, straggler: int, depth: int, steps: int) -> NDArray[np.float64]:
    """The clocks of all ranks under NOTIFY-ACK; all compute for 1 s a step, the straggler once for far longer."""
    late = 1e6
    done = np.zeros((steps + 1, graph.size))
    waits = np.full(graph.size, math.inf)
    for step in range(1, steps + 1):
        push = done[step - 1] + 1
        push[straggler] += late if step == 1 else 0
        if step > depth:
            for rank in range(graph.size):
                push[rank] = max([push[rank], *(done[step - depth, peer] for peer in graph.out_peers(rank))])
        done[step] = [max(push[peer] for peer, _ in graph.in_edges(rank)) for rank in range(graph.size)]
        waits[(done[step] >= late) & (waits == math.inf)] = step
    waits[straggler] = 0
    return waits


@given(edge_sets(), st.integers(1, 4), st.data())
def test_first_wait_is_that_of_the_clocks(graph: Graph, depth: int, data: st.DataObject) -> None:
    straggler = data.draw(st.integers(0, graph.size - 1))
    expected = simulated_first_wait(graph, straggler, depth, steps=1 + graph.size * (depth + 1))
    np.testing.assert_array_equal(graphs.first_wait(graph, straggler, depth), expected)


def test_lateness_comes_back_slower_through_deeper_queues() -> None:
    assert graphs.first_wait(graphs.chain(6), 2).tolist() == [3, 2, 0, 1, 2, 3]
    assert graphs.first_wait(graphs.chain(6), 2, depth=3).tolist() == [7, 4, 0, 1, 2, 3]
    assert graphs.first_wait(graphs.from_edges(4, [(0, 1)]), 0).tolist() == [0, 1, math.inf, math.inf]


# ---- which one -----------------------------------------------------------------------------------------------------


@given(edge_sets())
def test_bytes_are_sent_along_the_out_edges(graph: Graph) -> None:
    sent = graphs.bytes_per_step(graph, 10)
    assert sent.tolist() == [10 * len(graph.out_peers(rank)) for rank in range(graph.size)]


@pytest.mark.parametrize("n", [1, 2, 3, 25, 32])
def test_recommended_graphs_are_ranked_and_fair(n: int) -> None:
    choices = graphs.recommend(n, 1 << 20, 1.25e9, latency=1e-5, compute=1e-3, accuracy=0.01)
    assert [choice.seconds for choice in choices] == sorted(choice.seconds for choice in choices)
    assert len({choice.graph for choice in choices}) == len(choices)
    for choice in choices:
        phases = choice.graph if isinstance(choice.graph, tuple) else (choice.graph,)
        assert graphs.check(choice.graph) == []
        assert choice.gap == graphs.spectral_gap(choice.graph)
        assert choice.steps == graphs.steps_to_consensus(choice.graph, 0.01)
        busiest = max(max(phase.in_degrees.max(), phase.out_degrees.max()) for phase in phases)
        assert choice.bytes_per_step == busiest << 20
        assert choice.seconds_per_step == pytest.approx(1e-3 + 1e-5 + choice.bytes_per_step / 1.25e9)
        assert choice.seconds == pytest.approx(choice.steps * choice.seconds_per_step)


def test_bandwidth_decides() -> None:
    fast = graphs.recommend(25, 4, 1e12, latency=1e-3)[0]
    assert fast.name == "complete(25)"
    assert fast.steps == 1
    slow = graphs.recommend(25, 1 << 30, 1e8)
    assert slow[0].name == "one_peer_exponential(25)"
    assert slow[0].bytes_per_step == 1 << 30


def test_steps_to_consensus() -> None:
    assert graphs.steps_to_consensus(graphs.complete(9), 1e-6) == 1
    assert graphs.steps_to_consensus(graphs.ring(25), 0.01) == math.ceil(
        math.log(100) / -math.log(math.cos(math.pi / 25))
    )
    assert graphs.steps_to_consensus(graphs.from_edges(3, []), 0.01) == math.inf


@pytest.mark.parametrize("seed", range(3))
def test_steps_over_phases_are_whole_rounds(seed: int) -> None:
    phases = graphs.random_matchings(7, 5, seed)
    steps = graphs.steps_to_consensus(phases, 0.01)
    product = reduce(lambda before, phase: phase.dense() @ before, phases, np.eye(7))
    sigma = np.linalg.svd(product, compute_uv=False)[1]
    rounds, rest = divmod(steps, 5)
    assert rest == 0
    assert sigma**rounds <= 0.01 < sigma ** (rounds - 1)


def test_sparse_matrix_is_of_scipy() -> None:
    assert scipy.sparse.issparse(graphs.ring(3).sparse())

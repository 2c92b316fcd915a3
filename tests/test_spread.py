"""Graphs with the least sum of all shortest paths, and the trees of shortest paths in them."""

import math
import subprocess
import sys
from itertools import combinations, product

import networkx
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcomm import InvalidArgument, graphs
from hpcomm.cli import main as command
from hpcomm.graphs import Graph
from hpcomm.graphs.branch import search
from hpcomm.graphs.climb import Candidate, climb, moore_bound, path_sum

PROVEN = {(7, 2): 4, (8, 2): 2}  # gaps of optimal graphs that miss the Moore bound


@st.composite
def shapes(draw: st.DrawFn, most: int = 9) -> tuple[int, int]:
    P = draw(st.integers(2, most))
    return P, draw(st.integers(1, P - 1))


@st.composite
def connected(draw: st.DrawFn) -> Graph:
    """A ring of some ranks with more edges."""
    n = draw(st.integers(1, 8))
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j and j != (i + 1) % n]
    more = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    ring = [(i, (i + 1) % n) for i in range(n)] if n > 1 else []
    return graphs.from_edges(n, ring + more)


def all_paths(graph: Graph) -> int:
    """The sum of all shortest paths, by networkx."""
    lengths = dict(networkx.all_pairs_shortest_path_length(graph.to_networkx()))
    assert all(len(row) == graph.size for row in lengths.values())
    return sum(sum(row.values()) for row in lengths.values())


def exhaustive(P: int, Q: int) -> int:
    """The least sum of all graphs whose rank 0 sends to ranks 1 to Q, which is any graph up to its numbers."""
    rows = [[row for row in combinations(range(P), Q) if i not in row] for i in range(P)]
    first = [tuple(range(1, Q + 1))]
    return min(path_sum(P, [list(row) for row in arcs]) for arcs in product(first, *rows[1:]))


# ---- the graph -----------------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(shapes())
def test_any_graph_has_the_degrees_and_states_its_gap(shape: tuple[int, int]) -> None:
    P, Q = shape
    graph = graphs.spread(P, Q)
    assert graph.size == P
    assert set(graph.out_degrees) == set(graph.in_degrees) == {Q}
    gap = graphs.spread_gap(graph)
    assert gap == all_paths(graph) - moore_bound(P, Q) == PROVEN.get(shape, 0)
    assert graph.name == f"spread({P}, {Q})"


@pytest.mark.parametrize("Q", range(1, 12))
def test_twelve_ranks_meet_the_bound(Q: int) -> None:
    graph = graphs.spread(12, Q)
    assert graphs.spread_gap(graph) == 0
    assert set(graph.in_degrees) == {Q}


def test_ten_and_eleven_ranks_meet_the_bound() -> None:
    for P in (10, 11):
        for Q in range(1, P):
            assert graphs.spread_gap(graphs.spread(P, Q)) == 0


@pytest.mark.parametrize(("P", "Q"), [(P, Q) for P in range(2, 6) for Q in range(1, P)])
def test_no_graph_of_few_ranks_has_a_smaller_sum(P: int, Q: int) -> None:
    assert all_paths(graphs.spread(P, Q)) == exhaustive(P, Q)


def test_branch_and_bound_finds_the_optimum_from_a_bad_start() -> None:
    for P, Q in ((4, 2), (5, 2), (6, 2), (6, 3), (7, 2)):
        ring = Candidate([[(i + k) % P for k in range(1, Q + 1)] for i in range(P)], P**3)
        best, proven = search(P, Q, ring, ring.total, 100_000)
        assert proven
        assert best.total == path_sum(P, best.targets) == moore_bound(P, Q) + PROVEN.get((P, Q), 0)


def test_the_sum_of_all_paths_counts_orbits_once() -> None:
    assert path_sum(12, [[1, 4]]) == path_sum(12, [[(i + 1) % 12, (i + 4) % 12] for i in range(12)])
    assert path_sum(6, [[2, 4]]) == 6**3  # two groups of ranks


def test_all_ranks_and_runs_find_the_same_graph() -> None:
    code = "from hpcomm import graphs; print(sorted(graphs.spread(13, 3, nodes=2000)))"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": s}
        )
        for s in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout == f"{sorted(graphs.spread(13, 3, nodes=2000))}\n"


def test_a_search_that_runs_out_states_its_gap() -> None:
    graph = graphs.spread(13, 3, nodes=100)
    gap = graphs.spread_gap(graph)
    assert gap > 0
    assert graph.name == f"spread(13, 3, gap={gap})"
    assert climb(13, 3, 100)[2] <= 100


def test_many_ranks_take_a_moment() -> None:
    graph = graphs.spread(200, 6, nodes=64)
    assert set(graph.out_degrees) == {6}
    assert graphs.diameter(graph) <= 4
    assert graphs.spread_gap(graph) < 200 * 199 * 0.3


def test_the_complete_graph_and_the_ring_are_the_ends() -> None:
    assert graphs.spread(7, 6) == graphs.complete(7)
    assert graphs.spread(7, 1) == graphs.ring(7)
    assert graphs.spread(2, 1) == graphs.ring(2)


@pytest.mark.parametrize("Q", [0, 4, -1])
def test_a_q_that_no_graph_has_is_refused(Q: int) -> None:
    with pytest.raises(
        InvalidArgument, match=f"^Q is {Q}: no graph has this Q, as each of 4 ranks sends to 1 to 3 others"
    ):
        graphs.spread(4, Q)


def test_bad_arguments_are_refused() -> None:
    for arguments, nodes in (((1, 1), None), ((4, 2.5), None), ((4, 2), 0), (("4", 2), None)):
        with pytest.raises(InvalidArgument):
            graphs.spread(*arguments, nodes=nodes)


def test_the_gap_of_any_graph() -> None:
    assert graphs.spread_gap(graphs.complete(5)) == 0
    assert graphs.spread_gap(graphs.complete(1)) == 0
    assert graphs.spread_gap(graphs.chain(5)) == math.inf
    ring = graphs.ring(6, directed=False)
    assert graphs.spread_gap(ring) == 6 * (2 * 1 + 2 * 2 + 3) - 6 * (2 * 1 + 3 * 2)


def test_the_command_lists_it() -> None:
    result = CliRunner().invoke(command, ["graph", "spread", "spread:3", "12", "--bytes", "1"])
    assert result.exit_code == 0, result.output
    names = [line.split("  ")[0] for line in result.output.splitlines()[2:]]
    assert names == ["spread(12, 2)", "spread(12, 3)"]


# ---- the trees -----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(connected())
def test_trees_are_shortest_paths(graph: Graph) -> None:
    parents = graphs.shortest_path_trees(graph)
    for source in range(graph.size):
        steps = graphs.distances(graph, source)
        for rank in range(graph.size):
            parent = int(parents[source, rank])
            if rank == source:
                assert parent == source
            else:
                assert parent in graph.in_peers(rank)
                assert steps[parent] == steps[rank] - 1


def loads(parents: np.ndarray) -> list[int]:
    """Updates that each rank sends, the most first; a source is its own parent once."""
    return sorted((np.bincount(parents.ravel(), minlength=len(parents)) - 1).tolist(), reverse=True)


@settings(max_examples=40, deadline=None)
@given(connected().filter(lambda graph: graph.size <= 4))
def test_no_choice_of_parents_is_more_even(graph: Graph) -> None:
    n = graph.size
    choices = []
    for source in range(n):
        steps = graphs.distances(graph, source)
        for rank in range(n):
            near = [p for p in graph.in_peers(rank) if steps[p] == steps[rank] - 1]
            choices.append([source] if rank == source else near)
    best = min(loads(np.array(one).reshape(n, n)) for one in product(*choices))
    assert loads(graphs.shortest_path_trees(graph)) == best


def test_trees_of_symmetric_graphs_are_balanced() -> None:
    graph = graphs.spread(12, 4)
    parents = graphs.shortest_path_trees(graph)
    assert loads(parents) == [11] * 12
    np.testing.assert_array_equal(parents, graphs.shortest_path_trees(graph))
    hypercube = graphs.shortest_path_trees(graphs.hypercube(16))
    assert loads(hypercube) == [15] * 16


def test_trees_need_a_connected_graph() -> None:
    with pytest.raises(InvalidArgument, match="the update of rank 1 never reaches rank 0"):
        graphs.shortest_path_trees(graphs.chain(3))

"""The cheapest broadcast tree (P3 of Parameter Flow), its costs, and a tree for each owner."""

import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcomm import InvalidArgument, Tree, graphs, model, topology
from hpcomm.graphs.cheapest import _branching
from hpcomm.graphs.tree_costs import Costs, priced
from hpcomm.graphs.tree_search import room, search

TWO_RACKS = [[0, 1, 2], [3, 4]]


def hops(parents: tuple[int, ...], root: int) -> list[int] | None:
    """By rank its hops from the root; None where parents are no tree of this root."""
    found = []
    for rank in range(len(parents)):
        n, at = 0, rank
        while parents[at] >= 0 and n < len(parents):
            n, at = n + 1, parents[at]
        if at != root:
            return None
        found.append(n)
    return found


def every_tree(size: int, degree: int, depth: int, root: int) -> Iterator[tuple[int, ...]]:
    for parents in product(*([-1] if r == root else [p for p in range(size) if p != r] for r in range(size))):
        far = hops(parents, root)
        if far is not None and max(far) <= depth and max(map(parents.count, range(size))) <= degree:
            yield parents


def drawn_costs(size: int, seed: int, racks: int) -> Costs:
    """Random costs, or of so many racks where that is above 0."""
    random = np.random.default_rng(seed)
    if not racks:
        return random.random((size, size))
    return graphs.rack_costs([f"core.pod{n // 2}.rack{n}" for n in random.integers(0, racks, size)])


@st.composite
def problems(draw: st.DrawFn, most: int) -> tuple[Costs, int, int, float, int]:
    size = draw(st.integers(1, most))
    degree = draw(st.integers(1, 4))
    least = next(depth for depth in range(1, size + 1) if room(degree, depth, size) == size)
    depth = draw(st.integers(least, size + 1))
    costs = drawn_costs(size, draw(st.integers(0, 999)), draw(st.sampled_from([0, 0, 2, 4])))
    return costs, degree, depth, draw(st.sampled_from([0.0, 0.01, 0.4])), draw(st.integers(0, size - 1))


@settings(max_examples=12, deadline=None)
@given(problems(5))
def test_no_tree_of_any_shape_costs_less(problem: tuple[Costs, int, int, float, int]) -> None:
    costs, degree, depth, leaf, root = problem
    best = graphs.cheapest_tree(costs, degree=degree, depth=depth, leaf=leaf, root=root)
    least = min(graphs.tree_cost(p, costs, leaf) for p in every_tree(len(costs), degree, depth, root))
    assert best.cost == pytest.approx(least, abs=1e-9)
    assert best.cost == graphs.tree_cost(best.parents, costs, leaf)
    assert best.optimal
    assert best.bound == best.cost


@settings(max_examples=20, deadline=None)
@given(problems(25))
def test_the_search_holds_degree_and_depth(problem: tuple[Costs, int, int, float, int]) -> None:
    costs, degree, depth, leaf, root = problem
    parents = tuple(search(costs, degree, depth, leaf, root, all_moves=1))
    far = hops(parents, root)
    assert far is not None
    assert max(far) <= depth
    assert max(map(parents.count, range(len(costs)))) <= degree
    assert priced(parents, costs, 0.0) >= _branching(costs, root) - 1e-9


def test_circles_apart_from_the_root_are_no_tree() -> None:
    """As printed, P3 takes 0.41: both racks a circle, and a root without children."""
    costs = graphs.rack_costs(TWO_RACKS)
    best = graphs.cheapest_tree(costs, degree=2, depth=2)
    assert best.cost == pytest.approx(1.32)
    assert best.optimal
    assert graphs.tree_cost([-1, 0, 0, 0, 3], costs, 0.01) == pytest.approx(1.0 + 0.3 + 0.03)


@pytest.mark.some(1)
@pytest.mark.parametrize(("racks", "degree", "depth"), [(3, 2, 4), (0, 3, 3)])
def test_twelve_workers_are_solved_and_the_search_is_near(racks: int, degree: int, depth: int) -> None:
    costs = drawn_costs(13, 5, racks)
    best = graphs.cheapest_tree(costs, degree=degree, depth=depth)
    np.fill_diagonal(costs, 0.0)
    assert best.optimal
    assert best.cost <= priced(search(costs, degree, depth, 0.01, 0), costs, 0.01) <= 1.1 * best.cost + 1e-9


def test_costs_that_the_search_misses_are_found_by_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any unit: HiGHS takes 1e-6 for nothing, and 1 / bandwidth is less."""
    monkeypatch.setattr("hpcomm.graphs.cheapest.search", lambda *problem: [-1, 0, 1, 2, 3, 4])
    costs = drawn_costs(6, 1, 0)
    np.fill_diagonal(costs, 0.0)
    expected = min(graphs.tree_cost(p, costs, 0.01) for p in every_tree(6, 2, 5, 0))
    for unit in (1.0, 1e-9, 1e9):
        best = graphs.cheapest_tree(costs * unit, degree=2, depth=5, leaf=0.01 * unit)
        assert best.cost == pytest.approx(expected * unit)
        assert best.optimal


def test_a_search_out_of_time_states_its_gap() -> None:
    costs = drawn_costs(30, 3, 0)
    best = graphs.cheapest_tree(costs, degree=2, depth=5, time_limit=1e-3)
    assert not best.optimal
    assert 0 < best.gap < 1
    assert best.gap == pytest.approx(1 - best.bound / best.cost)
    assert best.cost == graphs.tree_cost(best.parents, costs, 0.01)


def test_all_ranks_find_the_same_tree() -> None:
    costs = drawn_costs(9, 7, 0)
    code = (
        "import numpy; from hpcomm.graphs.tree_search import search;"
        "print(search(numpy.random.default_rng(7).random((9, 9)), 2, 3, 0.01, 0, 1))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.strip() == str(search(costs, 2, 3, 0.01, 0, 1))


def test_costs_of_racks() -> None:
    costs = graphs.rack_costs(["a.p.0", "a.p.0", "a.p.1", "a.q.2"])
    assert costs.tolist() == [[0, 0.1, 0.5, 1], [0.1, 0, 0.5, 1], [0.5, 0.5, 0, 1], [1, 1, 1, 0]]
    assert np.array_equal(graphs.rack_costs([[0, 1], [2], [3]], [[0, 1, 2], [3]]), costs)
    assert np.array_equal(graphs.rack_costs([[[0], [1]], [[2]], [[3]]], ["p", "p", "p", "q"]), costs)
    assert graphs.rack_costs([[0], [1]]).tolist() == [[0, 1], [1, 0]]
    assert graphs.rack_costs(["x", "y"]).tolist() == [[0, 1], [1, 0]]


def test_costs_of_bandwidths() -> None:
    costs = graphs.bandwidth_costs([[0, 1e9, 5e8], [1e9, 0, np.inf], [1e9, np.inf, 0]])
    assert costs.tolist() == [[0, 1, 2], [1, 0, 0], [1, 0, 0]]


def cheapest(**changed: Any) -> graphs.CheapestTree:
    given: dict[str, Any] = {"costs": np.ones((8, 8)), "degree": 2, "depth": 3, **changed}
    return graphs.cheapest_tree(given.pop("costs"), **given)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"depth": 2}, "at most 7 ranks, the root among them, and costs are of 8; use degree 3 or depth 3"),
        ({"degree": 1}, "at most 4 ranks, the root among them, and costs are of 8; use degree 2 or depth 7"),
        ({"degree": 0}, "degree is 0: must be 1"),
        ({"depth": 2.5}, "depth is 2.5: must be an int"),
        ({"root": 8}, "root is 8: must be 0 to 7"),
        ({"leaf": -0.1}, "leaf is -0.1: must be a finite number, 0 or more"),
        ({"leaf": "x"}, "leaf is 'x': must be"),
        ({"time_limit": 0}, "time_limit is 0: must be a finite number above 0, in seconds"),
        ({"time_limit": float("nan")}, "time_limit is nan: must be"),
        ({"costs": np.ones((3, 4))}, r"costs have shape \(3, 4\): must be \(ranks, ranks\)"),
        ({"costs": []}, "must be numbers|must be .ranks, ranks."),
        ({"costs": [[0, 1], [1]]}, "costs are no matrix: its rows differ in length"),
        ({"costs": [["a", "b"], ["c", "d"]]}, "must be numbers"),
        ({"costs": [[0, np.nan], [1, 0]]}, r"costs\[0, 1\] is nan: must be a finite number, 0 or more"),
        ({"costs": [[0, 1], [-1, 0]]}, r"costs\[1, 0\] is -1: must be"),
    ],
)
def test_a_sentence_refuses_what_no_tree_has(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        cheapest(**changed)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: graphs.rack_costs([[0, 1], [1, 2]]), "rank 1 is in two groups"),
        (lambda: graphs.rack_costs([[0, 1], [3]]), "rank 2 is in no group"),
        (lambda: graphs.rack_costs(["a", ""]), "the name of rank 1 is empty"),
        (lambda: graphs.rack_costs([[0, 1], [2]], [[0], [1, 2]]), "pods splits the rack of rank 1"),
        (lambda: graphs.rack_costs([[0, 1]], ["a"]), "pods are of 1 ranks, and racks of 2"),
        (lambda: graphs.bandwidth_costs([[0, 0], [1, 0]]), r"bandwidths\[0, 1\] is 0: must be above 0"),
        (lambda: graphs.tree_cost([-1, 5], np.ones((2, 2))), "parents has rank 5"),
        (lambda: topology.trees_for([], 4), "owners is empty"),
        (lambda: topology.trees_for([4], 4), "owners is 4: must be 0 to 3"),
        (lambda: topology.trees_for([0], 4, degree=0), "degree is 0"),
        (lambda: topology.trees_for([0], 4, hosts=[0, 0]), "hosts has 2 ranks: this job has 4"),
        (lambda: topology.trees_for([0], 4, costs=np.ones((3, 3))), "costs are of 3 ranks: this job has 4"),
        (lambda: topology.trees_for([0], 4, weights={0: -1}), "weights.0. is -1: must be a finite number"),
        (lambda: topology.trees_for([0], 4, nbytes=0), "nbytes is 0: must be a finite number above 0"),
    ],
)
def test_a_sentence_refuses_places_and_owners(call: Any, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        call()


def busiest(trees: dict[int, Tree], shares: dict[int, float], hosts: list[int]) -> float:
    size = len(hosts)
    parents = {owner: tree.above(size) for owner, tree in trees.items()}
    return model.busiest_link(*model.broadcast_bytes(parents, shares, hosts, np.ones((size, size))))


@pytest.mark.parametrize(
    ("owners", "degree", "saved"), [([0], 2, 3.5), ([3], 1, 7), ([0, 1], 2, 3.5), ([2, 6], 2, 3.5), ([0, 1], 1, 3.5)]
)
def test_trees_of_several_owners_share_the_sending(owners: list[int], degree: int, saved: float) -> None:
    """Against flat sends; two trees of the same inner ranks save 1.75."""
    shares = {owner: 1 / len(owners) for owner in owners}
    trees = topology.trees_for(owners, 8, degree=degree)
    assert trees is not None
    assert list(trees) == owners
    flat = {owner: Tree(arity=8, root=owner) for owner in owners}
    assert busiest(flat, shares, [*range(8)]) / busiest(trees, shares, [*range(8)]) == pytest.approx(saved)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_each_tree_has_its_owner_as_root_and_enters_each_host_once(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 12))
    hosts = [data.draw(st.integers(0, 5)) for _ in range(size)]
    owners = data.draw(st.sets(st.integers(0, size - 1), min_size=1))
    degree = data.draw(st.integers(1, 4))
    weights = {owner: data.draw(st.sampled_from([0.0, 1.0, 2.5])) for owner in owners}
    trees = topology.trees_for(owners, size, degree=degree, hosts=hosts, weights=weights)
    assert trees is not None
    assert set(trees) == owners
    for owner, tree in trees.items():
        parents = tree.above(size)
        assert hops(parents, owner) is not None
        links = [(hosts[p], hosts[r]) for r, p in enumerate(parents) if p >= 0 and hosts[p] != hosts[r]]
        assert sorted(to for _, to in links) == sorted(set(hosts) - {hosts[owner]})
        assert all(sum(host == one for host, _ in links) <= degree for one in hosts)


def test_trees_are_taken_where_they_pay() -> None:
    assert topology.trees_for(range(8), 8) is None
    assert topology.trees_for([0], 8, hosts=[0] * 8) is None
    for owners in ([0], [0, 1], [5, 2]):
        assert topology.trees_for(owners, 8) is not None
    (one,) = (topology.trees_for([0], 8) or {}).values()
    assert max(map(one.above(8).count, range(8))) == 1, "a chain sends least"
    trees = topology.trees_for([0, 1], 8)
    assert trees is not None
    assert all(max(map(tree.above(8).count, range(8))) == 2 for tree in trees.values()), "and two trees have fewer hops"
    few = topology.trees_for([0], 8, nbytes=1000, rates=model.Rates(between=1.25e9, latency=1e-3))
    assert few is None, "hops cost more than bytes"


def test_trees_of_owners_keep_to_cheap_links() -> None:
    racks = [[0, 1, 2, 3], [4, 5, 6, 7]]
    trees = topology.trees_for([0, 4], 8, degree=2, costs=graphs.rack_costs(racks))
    assert trees is not None
    for tree in trees.values():
        parents = tree.above(8)
        assert sum(p >= 0 and p // 4 != r // 4 for r, p in enumerate(parents)) <= 2

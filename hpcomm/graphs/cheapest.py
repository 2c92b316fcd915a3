"""Finds the cheapest broadcast tree of limited degree and depth (problem P3 of Parameter Flow, section 3.4.1)."""

from dataclasses import dataclass
from math import inf
from time import monotonic

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InvalidArgument
from ..stage import whole
from . import tree_program
from .tree_costs import Costs, checked_costs, checked_leaf, checked_number, priced
from .tree_program import TreeProblem
from .tree_search import Parents, room, search

_ROUNDING = 1e-6  # accuracy of HiGHS, as a part of the largest cost


@dataclass(frozen=True)
class CheapestTree:
    """A tree of small cost, and a lower bound of the cost of all trees.

    Attributes:
        parents: parents[r] is the rank that sends to rank r, -1 for the root, as hpcomm.Tree(parents=...) takes them.
        cost: tree_cost(parents, costs, leaf).
        bound: a lower bound of the cost of any tree of this degree and depth.
    """

    parents: tuple[int, ...]
    cost: float
    bound: float

    @property
    def gap(self) -> float:
        """(cost - bound) / cost. It is 0 if this tree is proven to be the cheapest."""
        return (self.cost - self.bound) / self.cost if self.cost > self.bound else 0.0

    @property
    def optimal(self) -> bool:
        """True if it is proven that no tree of this degree and depth costs less; otherwise False."""
        return self.gap == 0


def cheapest_tree(
    costs: ArrayLike, *, degree: int, depth: int, leaf: float = 0.01, root: int = 0, time_limit: float = 60.0
) -> CheapestTree:
    """Returns the tree over which a broadcast costs least (Parameter Flow, section 3.4.1, problem P3).

    The cost of a tree is the sum of its edges' costs, plus leaf for each rank without children, because a tree with
    fewer leaves is more balanced. First a heuristic search finds a tree. Then HiGHS, an integer-program solver, looks
    for cheaper trees. If HiGHS reaches the time limit, or the problem is too large for it (150 ranks and 4 hops, say),
    the result is the best tree found; its gap says by how much the cheapest tree may cost less.

        best = graphs.cheapest_tree(graphs.rack_costs([[0, 1, 2], [3, 4]]), degree=2, depth=2)
        best.parents, best.cost, best.optimal    # (-1, 0, 0, 0, 3) with cost 1.32 is one of several

    All ranks get the same tree, unless the time limit stopped HiGHS. If it may, call this on one rank and send the tree
    to the others.

    Args:
        costs: (ranks, ranks): costs[i, j] is the cost of sending from rank i to rank j, 0 or more, from rack_costs,
            bandwidth_costs or your own measurements. The diagonal is ignored.
        degree: most children of a rank, 1 or more (T in the paper).
        depth: most hops from the root to a rank, 1 or more (H in the paper).
        leaf: cost of a rank without children, 0 or more, in the unit of costs (alpha in the paper).
        root: the rank at the root, which is the server.
        time_limit: seconds for search and solver together, above 0. The search of hundreds of ranks takes some seconds
            and does not stop at the limit.

    Raises:
        InvalidArgument: an argument is out of range, or a tree of this degree and depth has no place for all ranks.
        NotSupported: SciPy is not installed.
    """
    start = monotonic()
    matrix = checked_costs(costs)
    size = len(matrix)
    degree, depth = whole("degree", degree, 1), whole("depth", depth, 1)
    leaf, root = checked_leaf(leaf), whole("root", root, 0, size - 1)
    limit = checked_number("time_limit", time_limit, "a finite number above 0, in seconds", above=0.0)
    check_room(size, degree, depth)
    scale = max(float(matrix.max()), leaf) or 1.0
    most = max(size - 1, 1)
    problem = TreeProblem(matrix / scale, min(degree, most), min(depth, most), leaf / scale, root)
    parents = search(*problem)
    cost = priced(parents, problem.costs, problem.leaf)
    bound = _branching(problem.costs, root) + problem.leaf * tree_program.least_leaves(problem) if size > 1 else cost
    if cost - bound > _ROUNDING and problem.rows <= tree_program.MOST_ROWS:
        found = tree_program.solve(problem, cost, start + limit)
        sound = found.parents is not None and _is_tree(found.parents, problem)
        if found.parents is not None and sound:
            solved = priced(found.parents, problem.costs, problem.leaf)
            if solved < cost - _ROUNDING / 10:
                parents, cost = found.parents, solved
        bound = cost if found.ended and sound else max(bound, found.bound)
    bound = cost if cost - bound <= _ROUNDING else bound
    exact = priced(parents, matrix, leaf)
    return CheapestTree(tuple(parents), exact, exact if bound == cost else bound * scale)


def check_room(size: int, degree: int, depth: int) -> None:
    """Raises InvalidArgument if a tree of this degree and depth has no place for size ranks."""
    if room(degree, depth, size) < size:
        wide = next(more for more in range(degree, size) if room(more, depth, size) == size)
        deep = next(more for more in range(depth, size) if room(degree, more, size) == size)
        raise InvalidArgument(
            f"degree is {degree} and depth {depth}: a tree of these has at most {room(degree, depth, size)} ranks, the "
            f"root among them, and costs are of {size}; use degree {wide} or depth {deep}"
        )


def _is_tree(parents: Parents, problem: TreeProblem) -> bool:
    """Whether these parents form one tree within degree and depth: HiGHS rounds, so its result is checked."""
    hops = {problem.root: 0}
    for rank in range(len(parents)):
        way = [rank]
        while way[-1] not in hops and len(way) <= len(parents):
            way.append(parents[way[-1]])
        if way[-1] not in hops:
            return False
        hops.update((one, hops[way[-1]] + i) for i, one in enumerate(reversed(way)))
    most = max(parents.count(rank) for rank in hops)
    return parents.count(-1) == 1 and most <= problem.degree and max(hops.values()) <= problem.depth


def _branching(costs: Costs, root: int) -> float:
    """Returns the least cost of a tree of any degree and depth, by contraction of cycles (Edmonds, 1967)."""
    left = costs.copy()
    np.fill_diagonal(left, inf)
    left[:, root] = inf
    total = 0.0
    while True:
        size = len(left)
        parents = left.argmin(axis=0)
        parents[root] = root
        least = left.min(axis=0)
        least[root] = 0.0
        total += float(least.sum())
        top = parents.copy()
        for _ in range(size.bit_length()):
            top = top[top]
        if (top == root).all():
            return total
        label = _contracted(parents, root)
        left -= least
        groups = label.max() + 1
        merged = np.full((groups, groups), inf)
        np.minimum.at(merged, (label[:, None], label[None, :]), left)
        np.fill_diagonal(merged, inf)
        root = int(label[root])
        merged[:, root] = inf
        left = merged


def _contracted(parents: np.ndarray, root: int) -> np.ndarray:
    """Returns each rank's group number: the ranks of a cycle form one group, every other rank is alone."""
    label = np.full(len(parents), -1)
    count = 0
    for rank in range(len(parents)):
        way = []
        at = rank
        while label[at] < 0 and at not in way and at != root:
            way.append(at)
            at = int(parents[at])
        circle = way[way.index(at) :] if at in way else []
        if circle:
            label[circle] = count
            count += 1
        for one in [*way, at]:
            if label[one] < 0:
                label[one] = count
                count += 1
    return label

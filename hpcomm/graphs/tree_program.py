"""States P3 of Parameter Flow (section 3.4.1) as a mixed-integer program, and solves it with HiGHS, through SciPy.

A row is one linear constraint of the program. The paper's variables h[i, j, k] say which edges lie on the path to each
rank. Here each rank has a depth label instead, which needs fewer variables, and also forbids cycles that do not contain
the root; P3 as printed allows such cycles.
"""

from collections.abc import Iterable
from itertools import pairwise
from math import ceil, inf
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from ..errors import NotSupported
from .graph import PIP_GRAPH
from .tree_costs import Costs

MOST_ROWS = 150_000  # larger programs are not started
_ROUNDS = 12  # most linear programs that are solved to find cuts
_CUT = 0.99  # a group of ranks gets a cut if edges into it sum to less than this; a tree has at least 1
_SLACK = 1e-6  # added to the cost of the known tree, for rounding
_FLOW = 1 << 20  # capacity of a whole edge: maximum_flow takes integers

Terms = list[tuple[int, float]]


class Solved(NamedTuple):
    """The result of solve.

    Attributes:
        parents: the parents of the best tree that HiGHS found; None if it found no tree.
        bound: a lower bound of the cost of all trees; -inf if none is known.
        ended: whether HiGHS finished before the time limit, so that no tree is cheaper.
    """

    parents: list[int] | None
    bound: float
    ended: bool


class TreeProblem(NamedTuple):
    """An instance of P3. A rank has at most degree children, and is at most depth hops from the root; leaf is the cost
    of a rank without children."""

    costs: Costs
    degree: int
    depth: int
    leaf: float
    root: int

    @property
    def rows(self) -> int:
        """The approximate number of rows of the program."""
        return 2 * self.depth * len(self.costs) ** 2


def solve(problem: TreeProblem, known: float, until: float) -> Solved:
    """Looks for the cheapest tree with HiGHS.

    Args:
        problem: its costs should be around 1, because HiGHS treats 1e-6 as 0.
        known: the cost of a known tree; HiGHS looks only for trees that cost no more.
        until: the time.monotonic() at which to stop.

    Raises:
        NotSupported: SciPy is not installed.
    """
    try:
        from scipy import optimize  # noqa: PLC0415
    except ModuleNotFoundError:
        raise NotSupported(f"cheapest_tree needs SciPy: {PIP_GRAPH}") from None
    program = _Program(problem)
    program.row([(at, cost) for at, cost in enumerate(program.costs) if cost], -inf, known + _SLACK)
    bound = program.cut(until)
    left = until - monotonic()
    if left <= 0:
        return Solved(None, bound, False)
    found = optimize.milp(
        np.array(program.costs),
        integrality=np.ones(len(program.costs)),
        bounds=optimize.Bounds(0, 1),
        constraints=optimize.LinearConstraint(*program.matrix()),
        options={"time_limit": left, "mip_rel_gap": 0.0},
    )
    if found.mip_dual_bound is not None and not np.isnan(found.mip_dual_bound):
        bound = max(bound, float(found.mip_dual_bound))
    parents = None if found.x is None else program.parents(found.x)
    return Solved(parents, bound, found.status == 0)


class _Program:
    """The variables, each 0 or 1, and the rows of a problem.

    - edge[i, j] is 1 if i sends to j (l in the paper).
    - at[j, d] is 1 if j is d hops from the root: the depth label.
    - end[j, d] is 1 if j is d hops from the root and has no children. The paper's t does not depend on d; with d the
      linear programs give far better bounds.
    """

    def __init__(self, problem: TreeProblem) -> None:
        self.problem = problem
        size, self.hops, self.root = len(problem.costs), range(1, problem.depth + 1), problem.root
        self.others = [rank for rank in range(size) if rank != problem.root]
        self.costs: list[float] = []
        self.edge = {(i, j): self._new(problem.costs[i, j]) for i in range(size) for j in self.others if i != j}
        self.at = {(j, d): self._new(0.0) for j in self.others for d in self.hops}
        self.end = {(j, d): self._new(problem.leaf) for j in self.others for d in self.hops}
        self.rows: list[Terms] = []
        self.low: list[float] = []
        self.high: list[float] = []
        self._trees()
        self._leaves()
        self._twins()
        for group in _groups(problem):
            self.enter(group)

    def _new(self, cost: float) -> int:
        self.costs.append(float(cost))
        return len(self.costs) - 1

    def row(self, terms: Iterable[tuple[int, float]], low: float, high: float) -> None:
        """Adds the row low <= sum of factor * variable <= high; a term is (index of a variable, factor)."""
        self.rows.append(list(terms))
        self.low.append(low)
        self.high.append(high)

    def enter(self, group: Iterable[int]) -> None:
        """Adds a cut: at least one edge must enter this group of ranks, which does not contain the root."""
        inside = set(group)
        self.row([(at, 1) for (i, j), at in self.edge.items() if j in inside and i not in inside], 1, inf)

    def _below(self, rank: int) -> Terms:
        return [(self.edge[rank, child], 1) for child in self.others if child != rank]

    def _trees(self) -> None:
        """Adds rows: each rank has one parent, which is one hop nearer to the root, and at most degree children
        (equations 13, 14 and 16)."""
        size, degree = len(self.problem.costs), self.problem.degree
        self.row(self._below(self.root), 1, degree)
        for j in self.others:
            self.row([(self.edge[i, j], 1) for i in range(size) if i != j], 1, 1)
            self.row([(self.at[j, d], 1) for d in self.hops], 1, 1)
            self.row([(self.at[j, 1], 1), (self.edge[self.root, j], -1)], 0, 0)
            ends: Terms = [(self.end[j, d], 1) for d in self.hops]
            self.row(self._below(j) + ends, 1, inf)
            self.row(self._below(j) + [(at, degree) for at, _ in ends], -inf, degree)
            for k in self.others:
                if k == j:
                    continue
                self.row([(self.edge[j, k], 1), *ends], -inf, 1)
                self.row([(self.edge[j, k], 1), (self.edge[k, j], 1)], -inf, 1)
                for d in self.hops[:-1]:
                    inner: Terms = [(self.at[j, d], 1), (self.end[j, d], -1)]
                    self.row([(self.edge[j, k], 1), *inner, (self.at[k, d + 1], -1), *ends], -inf, 1)
                    down: Terms = [(at, -factor) for at, factor in inner]
                    self.row([(self.edge[j, k], 1), (self.at[k, d + 1], 1), *down], -inf, 1)

    def _leaves(self) -> None:
        """Adds rows that count the ranks without children at each hop (equation 15): of n ranks at hop d + 1 the
        parents number at most n, and at least n / degree."""
        problem, last = self.problem, self.hops[-1]
        for j in self.others:
            self.row([(self.end[j, last], 1), (self.at[j, last], -1)], 0, 0)
            for d in self.hops[:-1]:
                self.row([(self.end[j, d], 1), (self.at[j, d], -1)], -inf, 0)
        for d in self.hops[:-1]:
            after: Terms = [(self.at[j, d + 1], 1) for j in self.others]
            inner = [term for j in self.others for term in ((self.at[j, d], 1.0), (self.end[j, d], -1.0))]
            self.row(inner + [(at, -1) for at, _ in after], -inf, 0)
            self.row([(at, -problem.degree * factor) for at, factor in inner] + after, -inf, 0)
        self.row([(at, 1) for at in self.end.values()], least_leaves(problem), inf)

    def _twins(self) -> None:
        """Adds rows that order ranks which are interchangeable: the lower rank has fewer hops, or equal hops and at
        least as many children."""
        wide = self.problem.degree + 1
        for twins in _twins(self.problem):
            for a, b in pairwise(twins):
                order: dict[int, float] = {}
                for sign, rank in ((1, a), (-1, b)):
                    for d in self.hops:
                        order[self.at[rank, d]] = sign * d * wide
                    for at, _ in self._below(rank):
                        order[at] = order.get(at, 0) - sign
                self.row(order.items(), -inf, 0)
                for d in self.hops[:-1]:
                    terms: Terms = [(self.at[b, e], 1) for e in self.hops[:d]]
                    self.row(terms + [(self.at[a, e], -1) for e in self.hops[:d]], -inf, 0)

    def matrix(self) -> tuple[Any, list[float], list[float]]:
        """Returns the rows as a scipy.sparse.csr_array, with their low and high limits."""
        from scipy.sparse import csr_array  # noqa: PLC0415

        flat = [term for terms in self.rows for term in terms]
        columns, factors = np.array([at for at, _ in flat]), np.array([factor for _, factor in flat], np.float64)
        rows = np.repeat(np.arange(len(self.rows)), [len(terms) for terms in self.rows])
        shape = (len(self.rows), len(self.costs))
        return csr_array((factors, (rows, columns)), shape=shape), self.low, self.high

    def cut(self, until: float) -> float:
        """Solves linear programs, in which edges may be fractions. After each it adds a cut for every group of ranks
        whose incoming edges sum to less than 1, until no such group is left. Returns the best lower bound, or -inf if
        no linear program was solved in time."""
        from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415

        bound = -inf
        for _ in range(_ROUNDS):
            left = until - monotonic()
            if left <= 0:
                break
            found = milp(
                np.array(self.costs),
                bounds=Bounds(0, 1),
                constraints=LinearConstraint(*self.matrix()),
                options={"time_limit": left},
            )
            if found.status != 0:
                break
            bound = max(bound, float(found.fun))
            groups = self._weak(found.x)
            if not groups:
                break
            for group in groups:
                self.enter(group)
        return bound

    def _weak(self, x: Any) -> set[frozenset[int]]:
        """Returns groups of ranks whose incoming edges sum to less than 1 in the solution x, from the minimum cut
        between the root and each rank."""
        from scipy.sparse import csr_array  # noqa: PLC0415
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow  # noqa: PLC0415

        size = len(self.problem.costs)
        capacity = np.zeros((size, size), np.int32)
        for (i, j), at in self.edge.items():
            capacity[i, j] = round(x[at] * _FLOW)
        network, found = csr_array(capacity), set()
        for rank in self.others:
            flow = maximum_flow(network, self.root, rank)
            if flow.flow_value < _CUT * _FLOW:
                open_ = csr_array(capacity - flow.flow.toarray() > 0)
                reached = breadth_first_order(open_, self.root, return_predecessors=False)
                found.add(frozenset(range(size)) - frozenset(reached.tolist()))
        return found

    def parents(self, x: Any) -> list[int]:
        """Returns the parents of the tree in solution x."""
        found = [-1] * len(self.problem.costs)
        for (i, j), at in self.edge.items():
            if x[at] > 0.5:
                found[j] = i
        return found


def least_leaves(problem: TreeProblem) -> int:
    """Returns the least number of leaves (ranks without children): a path from below the root to a leaf has at most
    depth ranks, and all these paths together have every rank but the root."""
    return ceil((len(problem.costs) - 1) / problem.depth)


def _twins(problem: TreeProblem) -> list[list[int]]:
    """Returns groups of ranks that are interchangeable, as the costs stay the same if two of them change places. The
    root is in no group."""
    costs, found = problem.costs, list[list[int]]()
    for rank in range(len(costs)):
        if rank == problem.root:
            continue
        for twins in found:
            swapped = np.arange(len(costs))
            swapped[[rank, twins[0]]] = twins[0], rank
            if np.array_equal(costs[np.ix_(swapped, swapped)], costs):
                twins.append(rank)
                break
        else:
            found.append([rank])
    return found


def _groups(problem: TreeProblem) -> set[frozenset[int]]:
    """Returns groups of ranks with low costs between them, such as racks, by single linkage; without the root."""
    near = np.minimum(problem.costs, problem.costs.T)
    home = {rank: frozenset([rank]) for rank in range(len(near))}
    found = set()
    pairs = sorted((near[i, j], i, j) for i in home for j in range(i))
    for k, (cost, i, j) in enumerate(pairs):
        if home[i] is not home[j]:
            both = home[i] | home[j]
            home.update(dict.fromkeys(both, both))
        if k + 1 == len(pairs) or pairs[k + 1][0] > cost:
            found |= {group for group in home.values() if problem.root not in group and len(group) > 1}
    return found

"""Finds trees of small cost within a degree and a depth, by a heuristic search (for P3 of Parameter Flow)."""

from collections.abc import Sequence
from random import Random

import numpy as np

from .tree_costs import Costs, priced

Parents = list[int]

# The search makes turns, each with many moves (tried changes of the tree) from a new start.
NEAR = 8  # for each rank, this many of its cheapest parents are tried most often
MOVES = 4  # moves of a turn = MOVES * size^2, but from LEAST_MOVES to MOST_MOVES
LEAST_MOVES, MOST_MOVES = 10_000, 400_000
ALL_MOVES = 120_000  # default number of moves over all turns
FEW_MOVES = 1000  # over all turns at most FEW_MOVES * size^2 moves, which matters for few ranks
WARM = 4.0  # at the beginning of a turn a change may cost this many mean edges
_EPSILON = 1e-12


def room(degree: int, depth: int, enough: int) -> int:
    """Returns how many ranks, root included, a tree of this degree and depth may have, or `enough` if that is less."""
    ranks = level = 1
    for _ in range(depth):
        level *= degree
        ranks += level
        if ranks >= enough:
            return enough
    return ranks


def search(costs: Costs, degree: int, depth: int, leaf: float, root: int, all_moves: int = ALL_MOVES) -> Parents:
    """Returns the parents of a tree of small cost. A tree of this degree and depth must exist (room).

    First it grows a tree by the cheapest edges, then it changes the tree in small moves. A move that raises the cost is
    accepted if the rise is below a random part of a threshold, which falls to 0 (threshold accepting, similar to
    simulated annealing). It makes as many turns as all_moves allows, at least one. All ranks find the same tree, as
    neither time nor functions that machines round differently, such as exp, decide anything.
    """
    size = len(costs)
    grown = [_grown(costs, degree, depth, leaf, root), _grown(costs, degree, depth, 0.0, root)]
    best = min(grown, key=lambda parents: priced(parents, costs, leaf))
    if size < 3:
        return best
    table = costs.tolist()
    near = np.argsort(costs + np.diag(np.full(size, np.inf)), axis=0, kind="stable")[:NEAR].T.tolist()
    moves = min(max(LEAST_MOVES, MOVES * size**2), MOST_MOVES)
    for turn in range(max(1, min(all_moves, FEW_MOVES * size**2) // moves)):
        work = _Changes(table, grown[turn % 2], degree, depth, leaf, root)
        found = work.run(Random(size * 1_000_003 + turn), near, moves)
        if priced(found, costs, leaf) < priced(best, costs, leaf) - _EPSILON:
            best = found
    return best


def _grown(costs: Costs, degree: int, depth: int, leaf: float, root: int) -> Parents:
    """Grows a tree from the root: joins one rank after another, each time by the cheapest edge.

    A full tree of this degree and depth has a fixed number of places, and each rank that joins takes one of them,
    wherever it joins. So no order of joining runs out of places.
    """
    size = len(costs)
    parents, hops, children = [-1] * size, [0] * size, np.zeros(size, np.int64)
    extra = np.full(size, np.inf)  # extra[r]: added to the cost of edges from rank r; inf if r may have no more child
    extra[root] = 0.0
    left = np.arange(size) != root
    least, who = costs[root].copy(), np.full(size, root)  # cost and sender of the cheapest edge to each rank
    for _ in range(size - 1):
        rank = int(np.argmin(np.where(left, least, np.inf)))
        parent = int(who[rank])
        parents[rank], hops[rank], left[rank] = parent, hops[parent] + 1, False
        children[parent] += 1
        extra[parent] = np.inf if children[parent] == degree else leaf
        extra[rank] = 0.0 if hops[rank] < depth else np.inf
        cheaper = left & (costs[rank] + extra[rank] < least)
        least[cheaper], who[cheaper] = costs[rank][cheaper] + extra[rank], rank
        stale = np.flatnonzero(left & (who == parent))
        if stale.size:
            edges = costs[:, stale] + extra[:, None]
            who[stale] = np.argmin(edges, axis=0)
            least[stale] = edges[who[stale], np.arange(stale.size)]
    return parents


class _Changes:
    """A tree under change: a path moves to another place, or two ranks, or two subtrees, change places."""

    def __init__(
        self, costs: list[list[float]], parents: Sequence[int], degree: int, depth: int, leaf: float, root: int
    ) -> None:
        self.costs, self.degree, self.depth, self.leaf, self.root = costs, degree, depth, leaf, root
        self.parents = list(parents)
        self.children: list[list[int]] = [[] for _ in parents]
        for rank, parent in enumerate(parents):
            if parent >= 0:
                self.children[parent].append(rank)
        self.hops = [0] * len(parents)
        self._set_hops(root)

    def run(self, random: Random, near: list[list[int]], moves: int) -> Parents:
        size = len(self.parents)
        spent = sum(self.costs[parent][rank] for rank, parent in enumerate(self.parents) if parent >= 0)
        first = WARM * (spent / size + self.leaf)
        total = least = 0.0  # changes of cost since the start
        best = list(self.parents)
        others = [rank for rank in range(size) if rank != self.root]
        for move in range(moves):
            limit = first * (1 - move / moves) ** 3
            rank = others[int(random.random() * len(others))]
            kind = random.random()
            if kind < 0.6:
                change = self._moved(random, rank, near[rank], limit * random.random())
            else:
                other = others[int(random.random() * len(others))]
                change = (self._swap if kind < 0.85 else self._exchange)(rank, other, limit * random.random())
            if change is not None:
                total += change
                if total < least - _EPSILON:
                    least, best = total, list(self.parents)
        return best

    def _moved(self, random: Random, top: int, near: list[int], limit: float) -> float | None:
        """Moves a random path that begins at top, mostly to below one of top's cheapest parents. The limit and the
        result are as in _move."""
        end, then = top, -1
        while self.children[end] and random.random() < 0.6:
            then = self.children[end][int(random.random() * len(self.children[end]))]
            if random.random() < 0.5:
                break
            end, then = then, -1
        at = int(random.random() * len(near) * 1.5)
        parent = near[at] if at < len(near) else int(random.random() * len(self.parents))
        child = -1
        if self.children[parent] and random.random() < 0.5:
            child = self.children[parent][int(random.random() * len(self.children[parent]))]
        if child == top or parent == (self.parents[top] if then < 0 and child < 0 else top):
            return None
        return self._move(top, end, then, parent, child, limit)

    def _move(self, top: int, end: int, then: int, parent: int, child: int, limit: float) -> float | None:
        """Moves a path of ranks, from top down to end, with all ranks below it except then and the ranks below then.

        then, a child of end, takes the place of top. The path goes between parent and child, which is a child of
        parent. then and child may be -1: no such rank. The move is made if it raises the cost by at most limit and
        keeps degree and depth. Returns the change of cost, or None if the move was not made.
        """
        costs, children, old = self.costs, self.children, self.parents[top]
        change = costs[parent][top] - costs[old][top]
        counts = {old: -1, end: 0, parent: 0}
        counts[parent] += 1
        if then >= 0:
            change += costs[old][then] - costs[end][then]
            counts[old] += 1
            counts[end] -= 1
        if child >= 0:
            change += costs[end][child] - costs[parent][child]
            counts[parent] -= 1
            counts[end] += 1
        for rank, more in counts.items():
            if more:
                had = len(children[rank])
                if had + more > self.degree:
                    return None
                change += self.leaf * ((had + more == 0) - (had == 0))
        if change > limit or (self._is_below(parent, top) and (then < 0 or not self._is_below(parent, then))):
            return None
        self._hang((then, old), (top, parent), (child, end))
        if max(self._set_hops(one) for one in (then, top) if one >= 0) > self.depth:
            self._hang((child, parent), (top, old), (then, end))
            for one in (top, child):
                if one >= 0:
                    self._set_hops(one)
            return None
        return change

    def _hang(self, *below: tuple[int, int]) -> None:
        """Gives each rank of the pairs (rank, parent) its new parent; skips pairs with rank -1."""
        for rank, parent in below:
            if rank >= 0:
                self.children[self.parents[rank]].remove(rank)
                self.children[parent].append(rank)
                self.parents[rank] = parent

    def _swap(self, a: int, b: int, limit: float) -> float | None:
        """Swaps two ranks: each gets the other's parent and children. The limit and the result are as in _move."""
        if a == b:
            return None
        if self.parents[a] == b:
            a, b = b, a
        over_a, over_b = self.parents[a], self.parents[b]
        own_a, own_b = self.children[a], self.children[b]
        costs = self.costs
        to_a, to_b, by_a, by_b = costs[over_a], costs[over_b], costs[a], costs[b]
        change = to_a[b] - to_a[a]
        change += (by_b[a] - by_a[b]) if over_b == a else (to_b[a] - to_b[b])
        for child in own_a:
            if child != b:
                change += by_b[child] - by_a[child]
        for child in own_b:
            change += by_a[child] - by_b[child]
        if change > limit:
            return None
        new_a, new_b = [a if child == b else child for child in own_a], own_b
        self.children[a], self.children[b] = new_b, new_a
        if over_b == a:
            self.children[over_a][self.children[over_a].index(a)] = b
            self.parents[a], self.parents[b] = b, over_a
        else:
            at, to = self.children[over_a].index(a), self.children[over_b].index(b)
            self.children[over_a][at], self.children[over_b][to] = b, a
            self.parents[a], self.parents[b] = over_b, over_a
        for rank in (a, b):
            for child in self.children[rank]:
                self.parents[child] = rank
        self.hops[a], self.hops[b] = self.hops[b], self.hops[a]
        return change

    def _exchange(self, a: int, b: int, limit: float) -> float | None:
        """Swaps two subtrees: ranks a and b exchange parents. The limit and the result are as in _move."""
        over_a, over_b = self.parents[a], self.parents[b]
        if over_a == over_b:
            return None
        change = self.costs[over_a][b] - self.costs[over_a][a] + self.costs[over_b][a] - self.costs[over_b][b]
        if change > limit or self._is_below(a, b) or self._is_below(b, a):
            return None
        self._hang((a, over_b), (b, over_a))
        if self.hops[a] != self.hops[b] and max(self._set_hops(a), self._set_hops(b)) > self.depth:
            self._hang((a, over_a), (b, over_b))
            self._set_hops(a)
            self._set_hops(b)
            return None
        return change

    def _is_below(self, rank: int, top: int) -> bool:
        """Whether rank is top, or below it."""
        hops = self.hops[top]
        while self.hops[rank] > hops:
            rank = self.parents[rank]
        return rank == top

    def _set_hops(self, top: int) -> int:
        """Sets the hops of a rank and of all ranks below it. Returns the largest number of hops that it set."""
        parent = self.parents[top]
        self.hops[top] = 0 if parent < 0 else self.hops[parent] + 1
        below = [top]
        for rank in below:  # the loop appends to this list
            for child in self.children[rank]:
                self.hops[child] = self.hops[rank] + 1
                below.append(child)
        return self.hops[below[-1]]

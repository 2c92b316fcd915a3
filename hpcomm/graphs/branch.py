"""Searches all graphs of one out-degree, by branch and bound, for the least path sum (SFB, problem (3)).

A graph's path sum is the sum of the lengths of its shortest paths, over all pairs of ranks.
"""

from collections.abc import Iterator
from itertools import combinations

from .climb import Candidate, moore_bound


class _OutOfNodesError(Exception):
    pass


def search(P: int, Q: int, best: Candidate, fair_total: int, nodes: int) -> tuple[Candidate, bool]:
    """Returns the best graph found, and whether the search has proven that no graph has a smaller path sum.

    Among graphs of equal path sums it prefers one in which every rank has in-degree Q.

    Args:
        P, Q: number of ranks, and out-degree of each rank.
        best: the best known graph.
        fair_total: the least known path sum of a graph in which every rank has in-degree Q.
        nodes: how many partial graphs the search may look at.
    """
    walk = _Walk(P, Q, nodes)
    bound = moore_bound(P, Q)
    proven = False
    try:
        while fair_total > bound and (found := walk.below(min(fair_total, best.total + 1), fair=True)) is not None:
            best, fair_total = found, found.total
        while best.total > bound and (found := walk.below(best.total, fair=False)) is not None:
            best = found
        proven = True
        if best.total < fair_total and (found := walk.below(best.total + 1, fair=True)) is not None:
            best = found
    except _OutOfNodesError:
        pass
    return best, proven or best.total == bound


class _Walk:
    """A depth-first search that decides the targets of one rank after another.

    Graphs that differ only in the numbering of their ranks are visited once. For that, rank 0 has the least path sum of
    all ranks, and ranks are numbered in the order in which they are first named as targets. So the targets of a rank
    are ranks that were named before, and the next numbers.
    """

    def __init__(self, P: int, Q: int, nodes: int) -> None:
        self.P, self.Q, self.nodes = P, Q, nodes
        self.out = [0] * P  # out[r]: a bit mask of rank r's targets; valid only for ranks that are decided
        self.into = [0] * P

    def below(self, total: int, fair: bool) -> Candidate | None:
        """Returns the first graph whose path sum is below total, or None. fair: only graphs with in-degree Q
        everywhere."""
        self.into = [0] * self.P
        found = self._down(0, 1, total, fair)
        if found is None:
            return None
        return Candidate([[w for w in range(self.P) if mask >> w & 1] for mask in self.out], found)

    def _down(self, rank: int, named: int, total: int, fair: bool) -> int | None:
        """Decides the targets of rank and all later ranks. Returns the path sum of the first graph below total, or
        None."""
        if self.nodes == 0:
            raise _OutOfNodesError
        self.nodes -= 1
        bound = self._bound(rank)
        if bound >= total:
            return None
        if rank == self.P:
            return bound
        for row in self._rows(rank, named, fair):
            self.out[rank] = sum(1 << w for w in row)
            for w in row:
                self.into[w] += 1
            found = self._down(rank + 1, max(named, row[-1] + 1), total, fair)
            for w in row:
                self.into[w] -= 1
            if found is not None:
                return found
        return None

    def _rows(self, rank: int, named: int, fair: bool) -> Iterator[tuple[int, ...]]:
        """Yields the sets of targets that a rank may have, each in rising order; sets with most new ranks come
        first."""
        old = [w for w in range(named) if w != rank and not (fair and self.into[w] == self.Q)]
        for new in range(min(self.Q, self.P - named), -1, -1):
            if named + new == rank + 1 < self.P:
                continue  # no rank after this one would ever be named
            for row in combinations(old, self.Q - new):
                yield *row, *range(named, named + new)

    def _bound(self, known: int) -> int:
        """Returns a lower bound of the path sum of any graph in which the first known ranks have their present targets.

        If all ranks are known, this is the path sum. The bound assumes that each undecided rank reaches Q ranks that
        were not reached before, and that each of these reaches Q more in the next step.
        """
        P, Q, out = self.P, self.Q, self.out
        bound = first = 0
        below = (1 << known) - 1
        for source in range(P):
            seen = front = 1 << source
            free = fresh = total = 0
            count = 1
            while count < P:
                total += P - count
                fresh = Q * (fresh + (front & ~below).bit_count())
                free += fresh
                new, rest = 0, front & below
                while rest:
                    low = rest & -rest
                    new |= out[low.bit_length() - 1]
                    rest ^= low
                front = new & ~seen
                seen |= front
                if not front and not fresh:
                    return P**3
                count = seen.bit_count() + free
            if source == 0:
                first = total
            bound += max(total, first)  # rank 0 has the least sum
        return bound

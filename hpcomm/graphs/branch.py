"""Branch and bound over all graphs of an out-degree, for the least sum of all shortest paths (SFB, problem (3))."""

from collections.abc import Iterator
from itertools import combinations

from .climb import Candidate, moore_bound


class _OutOfNodesError(Exception):
    pass


def search(P: int, Q: int, best: Candidate, fair_total: int, nodes: int) -> tuple[Candidate, bool]:
    """The graph with the least sum, and whether the search has proven that no graph has a smaller one.

    Among graphs of equal sums it takes one with in-degree Q everywhere.

    Args:
        P, Q: ranks, and out-neighbours of each.
        best: the best known graph.
        fair_total: the least known sum of a graph with in-degree Q everywhere.
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
    """Goes through graphs rank by rank, in the order in which rank 0 reaches them.

    Graphs that differ only in the numbers of their ranks count as one: rank 0 has the least sum of all, and ranks are
    numbered as they are first named. So a rank may name only ranks already named, and the next ones.
    """

    def __init__(self, P: int, Q: int, nodes: int) -> None:
        self.P, self.Q, self.nodes = P, Q, nodes
        self.out = [0] * P  # by rank, a bit mask of its targets; valid for decided ranks
        self.into = [0] * P

    def below(self, total: int, fair: bool) -> Candidate | None:
        """The first graph whose sum is below total; if fair, with in-degree Q everywhere."""
        self.into = [0] * self.P
        found = self._down(0, 1, total, fair)
        if found is None:
            return None
        return Candidate([[w for w in range(self.P) if mask >> w & 1] for mask in self.out], found)

    def _down(self, rank: int, named: int, total: int, fair: bool) -> int | None:
        """The sum of the first graph below total that keeps the targets of all ranks before rank, or None."""
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
        """The sets of targets that a rank may have, each rising; sets with the most new ranks come first."""
        old = [w for w in range(named) if w != rank and not (fair and self.into[w] == self.Q)]
        for new in range(min(self.Q, self.P - named), -1, -1):
            if named + new == rank + 1 < self.P:
                continue  # no rank after this one would ever be named
            for row in combinations(old, self.Q - new):
                yield *row, *range(named, named + new)

    def _bound(self, known: int) -> int:
        """A lower bound of the sums of all graphs with these first known ranks; the sum itself if all ranks are known.

        It assumes that any other rank reaches Q new ranks in a step, and each of these Q new ones in the next.
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

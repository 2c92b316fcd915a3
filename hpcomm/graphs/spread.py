"""Finds graphs of a given out-degree over which updates spread fastest (SFB, section 3, "Partial Broadcasting")."""

from math import inf

import numpy as np

from ..errors import InvalidArgument
from ..stage import MOST_INT, whole
from .branch import search
from .climb import climb, moore_bound
from .graph import Graph
from .paths import distances

WORK = 1_500_000  # edges that the search looks at by default, over all graphs: about two seconds
LEAST_NODES = 64
MOST_RANKS = 24  # for more ranks no proof has ever finished, so none is tried


def spread(P: int, Q: int, *, nodes: int | None = None) -> Graph:
    """Returns the graph of P ranks with out-degree Q that has the least path sum (SFB, problem (3)).

    The path sum is the sum of the lengths of all shortest paths, so updates reach all ranks soonest, on average.
    Weights are uniform. Among graphs of equal path sums it prefers one in which each rank also has Q in-neighbours.

    A rank reaches at most Q ranks in one step, at most Q^2 more in two steps, and so on. The path sum that follows is
    the Moore bound; a graph that meets it is optimal. Up to 12 ranks all graphs found meet it, except for Q = 2 with 7
    or 8 ranks, where the search proves its graph optimal. A search that runs out of nodes returns the best graph it
    found, and the graph's name states the gap to the bound: "spread(13, 3, gap=11)". The same arguments give the same
    graph on every rank, because a number of nodes limits the search, not a time.

    Args:
        P: number of ranks, 2 or more.
        Q: how many ranks each rank sends to, 1 to P - 1. P - 1 gives the complete graph.
        nodes: how many graphs and partial graphs the search may look at. None: a number that takes about two seconds.

    Raises:
        InvalidArgument: no graph of P ranks has this Q, or nodes is below 1.
    """
    P = whole("P", P, 2)
    Q = whole("Q", Q, -MOST_INT)
    if not 1 <= Q < P:
        raise InvalidArgument(
            f"Q is {Q}: no graph has this Q, as each of {P} ranks sends to 1 to {P - 1} others; use {P - 1} for all"
        )
    budget = max(LEAST_NODES, WORK // (P * Q)) if nodes is None else whole("nodes", nodes, 1)
    bound = moore_bound(P, Q)
    best, fair_total, left = climb(P, Q, budget)
    proven = best.total == bound
    if P <= MOST_RANKS and (not proven or fair_total > bound):
        best, finished = search(P, Q, best, fair_total, left)
        proven = finished or best.total == bound
    name = f"spread({P}, {Q})" if proven else f"spread({P}, {Q}, gap={best.total - bound})"
    sources = np.repeat(np.arange(P), Q)
    return Graph(P, sources, np.array(best.targets, np.int64).ravel(), name=name)


def spread_gap(graph: Graph) -> float:
    """Returns a graph's path sum (spread) minus the Moore bound for its largest out-degree.

    It is 0 if the graph meets the bound, and inf if some rank cannot reach some other rank. Divided by size (size - 1)
    it says how many steps longer the mean path is than the bound allows.
    """
    if graph.size == 1:
        return 0
    total = 0
    for rank in range(graph.size):
        steps = distances(graph, rank)
        if steps.min() < 0:
            return inf
        total += int(steps.sum())
    return total - moore_bound(graph.size, int(graph.out_degrees.max()))

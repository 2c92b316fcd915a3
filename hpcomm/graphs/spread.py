"""Graphs of a given out-degree over which updates spread soonest (SFB, section 3, "Partial Broadcasting")."""

from math import inf

import numpy as np

from ..errors import InvalidArgument
from ..stage import MOST_INT, whole
from .branch import search
from .climb import climb, moore_bound
from .graph import Graph
from .paths import distances

WORK = 1_500_000  # edges in all graphs that the search looks at by default: about two seconds
LEAST_NODES = 64
MOST_RANKS = 24  # no proof of more ranks has ever come to an end


def spread(P: int, Q: int, *, nodes: int | None = None) -> Graph:
    """The graph of P ranks, each with Q out-neighbours, with the least sum of all shortest paths (SFB, problem (3)),
    and with uniform weights: updates reach all ranks soonest, on average. Among equal sums it takes a graph in which
    each rank also has Q in-neighbours.

    A rank reaches at most Q ranks in one step, Q^2 more in two, and so on: this is the Moore bound, and a graph that
    meets it is optimal. Up to 12 ranks all graphs meet it, except with Q = 2 and 7 or 8 ranks, where the search proves
    that its graph is optimal. A search that runs out of nodes returns the best graph that it found, whose name states
    its gap to the bound: "spread(13, 3, gap=11)". The same arguments give the same graph on every rank, because nodes
    limit the search, and not seconds.

    Args:
        P: number of ranks, 2 or more.
        Q: how many ranks each rank sends to, 1 to P - 1. P - 1 gives the complete graph.
        nodes: how many graphs, and parts of graphs, the search may look at. None: as many as take about two seconds.

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
    """The sum of all shortest paths of a graph, less the Moore bound of its largest out-degree: 0 where it meets the
    bound, inf where an update never reaches some rank. Divided by P (P - 1) it is the mean delay in steps, over all
    pairs."""
    if graph.size == 1:
        return 0
    total = 0
    for rank in range(graph.size):
        steps = distances(graph, rank)
        if steps.min() < 0:
            return inf
        total += int(steps.sum())
    return total - moore_bound(graph.size, int(graph.out_degrees.max()))

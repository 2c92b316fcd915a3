"""Whether all ranks count for the same, what keeps a graph from it, and weights that repair it (ASAP, appendix A)."""

from collections.abc import Sequence

import numpy as np

from ..errors import InvalidArgument
from .graph import TOLERANCE, Graph, as_phases
from .paths import distances
from .spectrum import column_sums


def check(graph: Graph | Sequence[Graph]) -> list[str]:
    """What keeps averaging over a graph from converging to the mean of all ranks, a sentence each; empty: nothing.

    Each sentence names a rank that breaks one of these (ASAP, appendix A, network requirement):

    - The graph is strongly connected: every update gets to every rank. Phases need be so only together.
    - P is doubly stochastic: the weights with which a rank's update is taken sum to 1, as do those that it takes.
    - Where P is not: all ranks have the same in-degree, which uniform weights need for that.

    Raises:
        InvalidArgument: graph is no graph and no phases of one.
    """
    phases = as_phases(graph)
    found = _unreached(_union(phases))
    for k, phase in enumerate(phases):
        where = f"phase {k}: " if len(phases) > 1 else ""
        found += [where + sentence for sentence in _unfair(phase)]
    return found


def metropolis(graph: Graph) -> Graph:
    """The same edges with weights that make P doubly stochastic, after Metropolis and Hastings.

    Each end of an edge takes the other's update with weight 1/(1 + max(d_i, d_j)), where d are the degrees without
    self-loops, and its own with what is left to 1. P is symmetric then, and all ranks have the same influence.

    Raises:
        InvalidArgument: an edge has none that comes back.
    """
    if not isinstance(graph, Graph):
        raise InvalidArgument(f"graph is {graph!r}: must be a Graph")
    source, target = graph.sources.astype(np.int64), graph.targets
    alone = ~np.isin(source * graph.size + target, target * np.int64(graph.size) + source)
    if alone.any():
        k = int(np.argmax(alone))
        raise InvalidArgument(
            f"graph {graph.name} is directed: rank {source[k]} sends to {target[k]}, which does not send back; add the "
            f"edge {target[k]} -> {source[k]}, or give all ranks the same in- and out-degree, which needs no repair"
        )
    other, degrees = source != target, graph.in_degrees
    source, target = source[other], target[other]
    weights = 1 / (1 + np.maximum(degrees[source], degrees[target]))
    return Graph(graph.size, source, target, weights, f"metropolis({graph.name})")


def _union(phases: tuple[Graph, ...]) -> Graph:
    """The edges of all phases together."""
    if len(phases) == 1:
        return phases[0]
    size = phases[0].size
    edges = np.unique(np.concatenate([phase.targets.astype(np.int64) * size + phase.sources for phase in phases]))
    return Graph(size, edges % size, edges // size, name=phases[0].name)


def _unreached(graph: Graph) -> list[str]:
    """The sentence of a graph that is not strongly connected."""
    for backward in (False, True):
        hops = distances(graph, 0, backward)
        if hops.min() < 0:
            rank = int(np.argmin(hops))
            of, to = (rank, 0) if backward else (0, rank)
            return [f"not strongly connected: no path of edges leads from rank {of} to rank {to}; add edges"]
    return []


def _unfair(graph: Graph) -> list[str]:
    """The sentences of a graph whose ranks do not count for the same."""
    sums = column_sums(graph)
    rank = int(np.argmax(np.round(np.abs(sums - 1), 9)))  # the first of those that are as far off
    if abs(sums[rank] - 1) <= TOLERANCE:
        return []
    found = []
    degrees = graph.in_degrees
    usual = int(np.bincount(degrees).argmax())
    odd = int(np.argmax(np.abs(degrees - usual)))
    if degrees[odd] != usual:
        found.append(
            f"not in-regular: rank {odd} takes the updates of {degrees[odd]} others, rank "
            f"{int(np.argmax(degrees == usual))} of {usual}; give all the same in-degree"
        )
    found.append(
        f"not doubly stochastic: the weights with which the update of rank {rank} is taken sum to {sums[rank]:.4g}, "
        f"not 1; use the weights of topology.metropolis, or give all ranks the same in- and out-degree"
    )
    return found

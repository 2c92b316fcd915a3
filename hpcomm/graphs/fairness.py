"""Checks whether averaging over a graph gives all ranks the same influence, and makes weights that give it (ASAP,
appendix A). P is the matrix of weights, Graph.dense()."""

from collections.abc import Sequence

import numpy as np

from ..errors import InvalidArgument
from .graph import TOLERANCE, Graph, as_phases
from .paths import reached
from .spectrum import column_sums


def check(graph: Graph | Sequence[Graph]) -> list[str]:
    """Returns the reasons why averaging over a graph does not converge to the mean of all ranks; empty if it converges.

    Each reason is a sentence that names a rank at which one of these requirements fails (ASAP, appendix A):

    - The graph is strongly connected: every update reaches every rank. Phases must connect all ranks over a round.
    - The graph is aperiodic. In a connected graph one rank that averages its own update too is enough for this. In a
      periodic graph, such as a ring without self-loops, models may go around for ever and never agree.
    - P is doubly stochastic: each column (the weights that all ranks give to one update) sums to 1, like each row.
    - If P is not doubly stochastic: all ranks have the same in-degree, since otherwise uniform weights cannot make P
      doubly stochastic.

    Raises:
        InvalidArgument: graph is neither a graph nor phases.
    """
    phases = as_phases(graph)
    found = _unmixed(phases)
    for k, phase in enumerate(phases):
        where = f"phase {k}: " if len(phases) > 1 else ""
        found += [where + sentence for sentence in _unfair(phase)]
    return found


def metropolis(graph: Graph) -> Graph:
    """Returns a graph with the same edges and weights that make P doubly stochastic, after Metropolis and Hastings.

    If ranks i and j have an edge, each gives the other's update the weight 1/(1 + max(d_i, d_j)), where d_i is the
    degree of rank i. A rank gives its own update the weight 1 minus the sum of these weights.

    Raises:
        InvalidArgument: an edge has no reverse edge.
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


def _unmixed(phases: tuple[Graph, ...]) -> list[str]:
    """Returns a sentence if models do not converge to one model, not even to one that weights ranks unequally.

    Models converge if the product of all phases' matrices is primitive: irreducible, and of period 1 (Perron and
    Frobenius). The product is never computed. Instead the search visits nodes (phase, rank), with an edge from a phase
    to the next for every weight above 0, so that a path through one round is a nonzero entry of the product.
    """
    size, n = phases[0].size, len(phases)
    edges = [(k, phase, phase.weights > 0) for k, phase in enumerate(phases)]
    source = np.concatenate([k * size + phase.sources[taken].astype(np.int64) for k, phase, taken in edges])
    target = np.concatenate([(k + 1) % n * size + phase.targets[taken].astype(np.int64) for k, phase, taken in edges])
    there, back = reached(source, target, n * size), reached(target, source, n * size)
    for hops, backward in ((there, False), (back, True)):
        if hops[:size].min() < 0:
            rank = int(np.argmin(hops[:size]))
            of, to = (rank, 0) if backward else (0, rank)
            over = ", one of each phase in turn," if n > 1 else ""
            return [f"not strongly connected: no path of edges{over} leads from rank {of} to rank {to}; add edges"]
    around = (there[source] >= 0) & (back[target] >= 0)  # edges on any walk from rank 0 back to it
    period = int(np.gcd.reduce(there[source[around]] + 1 - there[target[around]])) // n
    if period == 1:
        return []
    rank = int(np.argmax(there[:size] // n % period != 0))
    return [
        f"periodic: the update of rank 0 comes back every {period} {'steps' if n == 1 else 'rounds'} only, and to rank "
        f"{rank} never at the same time: models go around and do not come together; let rank 0 take its own update too"
    ]


def _unfair(graph: Graph) -> list[str]:
    """Returns sentences that say which ranks have more influence than others."""
    sums = column_sums(graph)
    rank = int(np.argmax(np.round(np.abs(sums - 1), 9)))  # the first of the largest deviations
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
        f"not 1; use the weights of graphs.metropolis, or give all ranks the same in- and out-degree"
    )
    return found

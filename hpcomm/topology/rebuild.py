"""A graph over those of its ranks that are left (ASAP, section 5: it can be rebuilt after a failure)."""

from collections.abc import Sequence

import numpy as np

from ..errors import InvalidArgument
from .graph import Graph
from .paths import diameter


def among(graph: Graph, ranks: Sequence[int]) -> Graph:
    """The graph of some of another one's ranks: their own edges and, where these no longer connect all of them, a
    directed ring. Every rank takes the updates of its in-neighbours and its own with equal weights.

    Args:
        graph: of all ranks.
        ranks: those that are left, in their new order.

    Raises:
        InvalidArgument: a rank is not of the graph, or there twice.
    """
    new = {rank: i for i, rank in enumerate(ranks)}
    if len(new) != len(ranks) or not new or not all(0 <= rank < graph.size for rank in new):
        raise InvalidArgument(f"ranks is {tuple(ranks)}: must be different ranks of 0 to {graph.size - 1}, one or more")
    edges = {(new[source], new[rank]) for rank in ranks for source in graph.in_peers(rank) if source in new}
    name = f"{graph.name} without {graph.size - len(ranks)}"
    left = _graph(len(ranks), edges, name)
    if len(ranks) > 1 and not np.isfinite(diameter(left)):
        edges |= {(i, (i + 1) % len(ranks)) for i in range(len(ranks))}
        left = _graph(len(ranks), edges, f"{name}, with a ring")
    return left


def _graph(size: int, edges: set[tuple[int, int]], name: str) -> Graph:
    pairs = np.array(sorted(edges), np.int64).reshape(-1, 2)
    return Graph(size, pairs[:, 0], pairs[:, 1], name=name)

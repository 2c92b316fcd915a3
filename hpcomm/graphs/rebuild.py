"""Rebuilds a graph over the ranks that remain after a failure (ASAP, section 5)."""

from collections.abc import Sequence
from typing import overload

from ..errors import InvalidArgument
from .fairness import check
from .graph import TOLERANCE, Graph, as_phases
from .makers import ring


@overload
def among(graph: Graph, ranks: Sequence[int]) -> Graph: ...
@overload
def among(graph: Sequence[Graph], ranks: Sequence[int]) -> tuple[Graph, ...]: ...
def among(graph: Graph | Sequence[Graph], ranks: Sequence[int]) -> Graph | tuple[Graph, ...]:
    """Returns the graph over the given ranks; rank i of the new graph is ranks[i] of the old one.

    A rank that took the update of a missing rank instead takes the updates that the missing rank took from others, in
    the same proportions, so that its weights still sum to 1. So a ring stays a ring, all-reduce stays all-reduce, and a
    rank whose partner is gone averages only its own update. A doubly stochastic P stays doubly stochastic, and a
    strongly connected graph stays connected: the new P is the stochastic complement of the old one (C. D. Meyer, 1989).
    Each phase is rebuilt separately. If the old phases together connected all ranks and the new ones do not, a directed
    ring is added as one more phase.

    Raises:
        InvalidArgument: ranks is empty, or has a rank twice or one that is not in the graph.
    """
    phases = as_phases(graph)
    size, left = phases[0].size, len(ranks)
    if len(set(ranks)) != left or not left or not all(0 <= rank < size for rank in ranks):
        raise InvalidArgument(f"ranks is {tuple(ranks)}: must be different ranks of 0 to {size - 1}, one or more")
    found = tuple(_without(phase, ranks) for phase in phases)
    if isinstance(graph, Graph):
        return found[0]
    if not _connects(found) and _connects(phases):
        found = (*found, ring(left))
    return found


def _without(graph: Graph, ranks: Sequence[int]) -> Graph:
    rows = [dict(graph.in_edges(rank)) for rank in range(graph.size)]
    for gone in sorted(set(range(graph.size)) - set(ranks)):
        taken, rows[gone] = rows[gone], {}
        others = 1 - taken.pop(gone)
        parts = {source: weight / others for source, weight in taken.items()} if others > TOLERANCE else {}
        for rank, row in enumerate(rows):
            share = row.pop(gone, 0.0)
            for other, part in (parts or {rank: 1.0}).items() if share else ():  # no parts: add to its own weight
                row[other] = row.get(other, 0.0) + share * part
    new = {rank: i for i, rank in enumerate(ranks)}
    edges = [(new[source], new[rank], weight) for rank in ranks for source, weight in rows[rank].items()]
    source, target, weights = zip(*edges, strict=True)
    return Graph(len(ranks), source, target, weights, f"{graph.name} without {graph.size - len(ranks)}")


def _connects(phases: tuple[Graph, ...]) -> bool:
    return not any(sentence.startswith("not strongly connected") for sentence in check(phases))

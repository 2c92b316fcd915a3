"""Builds trees of shortest paths, along which each rank's update is forwarded to all other ranks (SFB, section 3)."""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidArgument
from .graph import Graph
from .paths import distances


def shortest_path_trees(graph: Graph) -> NDArray[np.int32]:
    """Returns parents, int32 (size, size): rank r receives the update of source s from rank parents[s, r].

    Updates travel along shortest paths; parents[s, s] is s. If several in-neighbours are equally near to the source,
    the choice balances load: the largest number of updates that a rank sends is as small as possible, then the second
    largest, and so on. If choices are still equal, the edge that carries fewer updates so far is taken, then the lower
    rank. So all ranks compute the same trees.

    Raises:
        InvalidArgument: the graph is not strongly connected, so an update would not reach some rank.
    """
    size = graph.size
    parents = np.full((size, size), -1, np.int32)
    takes: list[tuple[int, int, list[int]]] = []  # (source, receiving rank, in-neighbours that may send to it)
    for source in range(size):
        steps = distances(graph, source)
        lost = np.flatnonzero(steps < 0)
        if lost.size:
            raise InvalidArgument(
                f"the update of rank {source} never reaches rank {lost[0]}: "
                f"use a graph in which every rank reaches every other"
            )
        parents[source, source] = source
        for rank in range(size):
            if rank != source:
                near = [peer for peer in graph.in_peers(rank) if steps[peer] == steps[rank] - 1]
                takes.append((source, rank, near))
    _assign(takes, parents)
    return parents


def _assign(takes: list[tuple[int, int, list[int]]], parents: NDArray[np.int32]) -> None:
    """Chooses a sender for each take (source, receiver): first greedily, then chains of changes even out the loads."""
    size = len(parents)
    loads = [0] * size
    edges = np.zeros((size, size), np.int64)  # edges[sender, receiver]: how many updates the edge carries
    sent: list[set[int]] = [set() for _ in range(size)]  # indices of takes, by sender
    for index in sorted(range(len(takes)), key=lambda index: len(takes[index][2])):
        source, rank, near = takes[index]
        peer = min(near, key=lambda peer: (loads[peer], edges[peer, rank], peer))
        parents[source, rank] = peer
        loads[peer] += 1
        edges[peer, rank] += 1
        sent[peer].add(index)
    by_load = sorted(range(size), key=lambda rank: (-loads[rank], rank))
    while by_load:
        chain = _chain(by_load[0], takes, sent, loads)
        if not chain:
            by_load.pop(0)
            continue
        for index, giver, peer in chain:
            source, rank, _ = takes[index]
            parents[source, rank] = peer
            sent[giver].remove(index)
            sent[peer].add(index)
            loads[giver] -= 1
            loads[peer] += 1
        by_load = sorted(range(size), key=lambda rank: (-loads[rank], rank))


def _chain(
    first: int, takes: list[tuple[int, int, list[int]]], sent: list[set[int]], loads: list[int]
) -> list[tuple[int, int, int]]:
    """Returns changes (take, old sender, new sender) that move one update of load from first to a rank which sends at
    least 2 fewer; an empty list if there are no such changes."""
    came: dict[int, tuple[int, int]] = {first: (-1, -1)}
    queue = deque([first])
    while queue:
        giver = queue.popleft()
        if loads[giver] <= loads[first] - 2:
            chain = []
            while giver != first:
                index, before = came[giver]
                chain.append((index, before, giver))
                giver = before
            return chain
        for index in sorted(sent[giver]):
            for peer in takes[index][2]:
                if peer not in came:
                    came[peer] = index, giver
                    queue.append(peer)
    return []

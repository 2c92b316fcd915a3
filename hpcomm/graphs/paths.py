"""Computes in how many steps updates, or the delay of a straggler, spread over a graph (ASAP, sections 3.1 and 4)."""

from itertools import count
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..stage import whole
from .graph import Graph


def distances(graph: Graph, rank: int, backward: bool = False) -> NDArray[np.int64]:
    """Returns how many steps the update of a rank needs to reach each rank, int64 (size,); -1 if the update never
    reaches it. With backward=True, returns how many steps the update of each rank needs to reach this rank.

    Raises:
        InvalidArgument: the graph has no such rank.
    """
    rank = whole("rank", rank, 0, graph.size - 1)
    return _hops(*((graph.starts, graph.sources) if backward else graph.out_edges()), rank)


def reached(source: NDArray[np.int64], target: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Returns distances from node 0, as distances does, over the edges source[k] -> target[k] of size nodes."""
    order = np.argsort(source, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=size))])
    return _hops(starts.astype(np.int64), target[order], 0)


def _hops(starts: NDArray[np.int64], peers: NDArray[Any], first: int) -> NDArray[np.int64]:
    found = np.full(len(starts) - 1, -1, np.int64)
    found[first] = 0
    front = np.array([first])
    for hops in count(1):
        near = _peers_of(front, starts, peers)
        front = np.unique(near[found[near] < 0])
        if not front.size:
            return found
        found[front] = hops
    raise AssertionError("count never ends")


def diameter(graph: Graph) -> float:
    """Returns the largest number of steps from any rank to any other; inf if some rank cannot reach some other rank.

    If the ranks do not all send by the same strides, this takes size^2 / 2 bytes of memory, and for each step the time
    to move edges * size / 8 bytes.
    """
    there, back = distances(graph, 0), distances(graph, 0, backward=True)
    if there.min() < 0 or back.min() < 0:
        return inf
    if _same_strides(graph):
        return int(there.max())
    ranks = np.arange(graph.size)
    heard = np.zeros((graph.size, -(-graph.size // 64)), np.uint64)  # bit j of row i: j's update has reached i
    heard[ranks, ranks // 64] = np.uint64(1) << (ranks % 64).astype(np.uint64)
    everybody = np.bitwise_or.reduce(heard)
    order = [np.flatnonzero(graph.in_degrees >= k) for k in range(1 + int(graph.in_degrees.max()))]
    edges = [(ranks, graph.sources[graph.starts[ranks] + k]) for k, ranks in enumerate(order)]
    for hops in count(0):
        if (heard == everybody).all():
            return hops
        before, heard = heard, heard.copy()
        for ranks, sources in edges:  # the k-th in-edge of all ranks that have at least k + 1
            heard[ranks] |= before[sources]
    raise AssertionError("count never ends")


def first_wait(graph: Graph, straggler: int, depth: int = 1) -> NDArray[np.float64]:
    """Returns the step in which each rank first waits because of a straggler, under NOTIFY-ACK (ASAP, section 4).

    The result is float64 (size,). Steps count from 1; the straggler itself has 0, a rank that never waits has inf. The
    straggler's push of step 1 is delayed until no other rank can go on. In step t rank i pushes, and is done when the
    pushes of step t of all its in-neighbours have come. It may push when it is done with step t - 1, and each of its
    out-neighbours is done with step t - depth, which frees a slot:

        push(i, t) = max(done(i, t-1), done(j, t-depth) of all out-neighbours j)
        done(i, t) = max(push(k, t) of itself and all in-neighbours k)

    Args:
        graph: a graph.
        straggler: the rank whose push is delayed.
        depth: slots of each receive queue.

    Raises:
        InvalidArgument: the graph has no such rank, or depth is below 1.
    """
    straggler = whole("straggler", straggler, 0, graph.size - 1)
    depth = whole("depth", depth, 1)
    starts, targets = graph.out_edges()
    waits = np.full(graph.size, inf)
    delayed = np.zeros(graph.size, bool)  # whether a push of this rank has been delayed
    done: list[NDArray[Any]] = [np.array([], np.int64)] * depth  # ranks first delayed in the last depth steps
    pushes = np.array([straggler])
    for step in count(1):
        delayed[pushes] = True
        reached = _peers_of(pushes, starts, targets)  # includes the ranks themselves, by their self-loops
        new = np.unique(reached[waits[reached] == inf])
        waits[new] = step
        done = [*done[1:], new]
        candidates = np.concatenate([new, _peers_of(done[0], graph.starts, graph.sources)])
        pushes = np.unique(candidates[~delayed[candidates]])
        if not pushes.size and not any(ranks.size for ranks in done):
            break
    waits[straggler] = 0
    return waits


def _peers_of(ranks: NDArray[Any], starts: NDArray[np.int64], peers: NDArray[np.int32]) -> NDArray[np.int32]:
    """Returns the peers of all these ranks in one array."""
    lengths = starts[ranks + 1] - starts[ranks]
    ends = np.cumsum(lengths)
    found: NDArray[np.int32] = peers[np.arange(lengths.sum()) + np.repeat(starts[ranks] - ends + lengths, lengths)]
    return found


def _same_strides(graph: Graph) -> bool:
    """Whether the in-edges of every rank have the same strides, as in rings and expanders, so that all ranks have the
    same distances."""
    degrees = np.diff(graph.starts)
    if degrees.min() != degrees.max():
        return False
    strides = np.sort(((graph.targets - graph.sources) % graph.size).reshape(graph.size, -1), axis=1)
    return bool((strides == strides[0]).all())

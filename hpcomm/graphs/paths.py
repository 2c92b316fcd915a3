"""The spread of updates, and of a straggler's delay, step by step (ASAP, sections 3.1 and 4)."""

from itertools import count
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..stage import whole
from .graph import Graph


def distances(graph: Graph, rank: int, backward: bool = False) -> NDArray[np.int64]:
    """The number of steps that the update of a rank takes to each rank, int64 (size,); -1: it never gets there.
    backward: the steps that the updates of other ranks take to this rank.

    Raises:
        InvalidArgument: there is no such rank.
    """
    rank = whole("rank", rank, 0, graph.size - 1)
    return _hops(*((graph.starts, graph.sources) if backward else graph.out_edges()), rank)


def reached(source: NDArray[np.int64], target: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """distances from node 0 of any edges among so many nodes."""
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
    """The most steps that an update takes from any rank to any other; inf where it never gets to some rank. Unless all
    ranks have the same strides it takes memory of size^2 / 2 bytes, and the time to move edges * size / 8 bytes for
    each step."""
    there, back = distances(graph, 0), distances(graph, 0, backward=True)
    if there.min() < 0 or back.min() < 0:
        return inf
    if _same_strides(graph):
        return int(there.max())
    ranks = np.arange(graph.size)
    heard = np.zeros((graph.size, -(-graph.size // 64)), np.uint64)  # a bit for each rank that one has heard of
    heard[ranks, ranks // 64] = np.uint64(1) << (ranks % 64).astype(np.uint64)
    everybody = np.bitwise_or.reduce(heard)
    order = [np.flatnonzero(graph.in_degrees >= k) for k in range(1 + int(graph.in_degrees.max()))]
    edges = [(ranks, graph.sources[graph.starts[ranks] + k]) for k, ranks in enumerate(order)]
    for hops in count(0):
        if (heard == everybody).all():
            return hops
        before, heard = heard, heard.copy()
        for ranks, sources in edges:  # the k-th in-edge of all ranks that have so many
            heard[ranks] |= before[sources]
    raise AssertionError("count never ends")


def first_wait(graph: Graph, straggler: int, depth: int = 1) -> NDArray[np.float64]:
    """The step in which each rank first waits because of a straggler in step 1, under NOTIFY-ACK (ASAP, section 4):
    float64 (size,), steps from 1: 0 for the straggler, inf for ranks that never wait for it.

    In step t rank i pushes, and is done when the pushes of step t of all its in-neighbours are there. It may push when
    it is done with step t - 1, and when each of its out-neighbours is done with step t - depth and so has freed a slot:

        push(i, t) = max(done(i, t-1), done(j, t-depth) of all out-neighbours j)
        done(i, t) = max(push(k, t) of itself and all in-neighbours k)

    Args:
        graph: a graph.
        straggler: the rank whose push is delayed for so long that all others come to a stop.
        depth: slots of each receive queue.

    Raises:
        InvalidArgument: there is no such rank, or depth is below 1.
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
        reached = _peers_of(pushes, starts, targets)  # self-loops among them
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
    """The peers of these ranks, one after another."""
    lengths = starts[ranks + 1] - starts[ranks]
    ends = np.cumsum(lengths)
    found: NDArray[np.int32] = peers[np.arange(lengths.sum()) + np.repeat(starts[ranks] - ends + lengths, lengths)]
    return found


def _same_strides(graph: Graph) -> bool:
    """Whether every rank has in-edges of the same strides, as in rings and expanders: then all ranks are alike."""
    degrees = np.diff(graph.starts)
    if degrees.min() != degrees.max():
        return False
    strides = np.sort(((graph.targets - graph.sources) % graph.size).reshape(graph.size, -1), axis=1)
    return bool((strides == strides[0]).all())

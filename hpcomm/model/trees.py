"""Predicts how long owners need to send their updates to all ranks, down trees or without trees (Parameter Flow,
section 3.4)."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .costs import busiest_link

Parents = Sequence[int]


def broadcast_bytes(
    trees: Mapping[int, Parents], nbytes: Mapping[int, float], hosts: Sequence[int], costs: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the bytes that leave each host, and the bytes that enter it, when every owner's update goes to all ranks.

    Args:
        trees: a mapping from owners to trees: trees[o][i] is the rank that sends owner o's update to rank i, or -1 if i
            is o.
        nbytes: a mapping from owners to the encoded bytes of their updates.
        hosts: hosts[i] is the lowest rank on rank i's host.
        costs: array (ranks, ranks): a byte from rank i to rank j counts costs[i, j] times; 1 for a usual link.

    Returns:
        Two arrays float64 (ranks,). The element of a host's lowest rank has the host's bytes; other elements are 0.
    """
    at = np.asarray(hosts)
    out, into = np.zeros(len(at)), np.zeros(len(at))
    for owner, parents in trees.items():
        above = np.asarray(parents)
        ranks = np.flatnonzero(above >= 0)
        ranks = ranks[at[ranks] != at[above[ranks]]]
        sent = nbytes[owner] * costs[above[ranks], ranks]
        np.add.at(out, at[above[ranks]], sent)
        np.add.at(into, at[ranks], sent)
    return out, into


def hops(parents: Parents, hosts: Sequence[int]) -> int:
    """Returns the largest number of links between hosts on the path from the owner to a rank."""
    found = [-1] * len(parents)
    for rank in range(len(parents)):
        way = [rank]
        while found[way[-1]] < 0 <= parents[way[-1]]:
            way.append(parents[way[-1]])
        for one in reversed(way):
            above = parents[one]
            found[one] = 0 if above < 0 else found[above] + (hosts[above] != hosts[one])
    return max(found)


def broadcast_seconds(
    trees: Mapping[int, Parents],
    nbytes: Mapping[int, float],
    hosts: Sequence[int],
    costs: NDArray[np.float64],
    *,
    chunk_bytes: float,
    between: float = 1.0,
    latency: float = 0.0,
) -> float:
    """Returns the seconds to send all owners' updates to all ranks (see broadcast_bytes): the time of the busiest link
    at `between` bytes a second, plus, for each further hop, the time of one chunk and `latency` seconds."""
    load = busiest_link(*broadcast_bytes(trees, nbytes, hosts, costs))
    far = [(hops(parents, hosts), min(chunk_bytes, nbytes[owner])) for owner, parents in trees.items()]
    return load / between + max((max(n - 1, 0) * chunk / between + n * latency for n, chunk in far), default=0.0)


def push_bytes(nbytes: Mapping[int, float], hosts: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the same arrays as broadcast_bytes, but for pushes: every rank sends nbytes[o] bytes to each owner o."""
    at = np.asarray(hosts)
    ranks = np.bincount(at, minlength=len(at)).astype(np.float64)
    out, into = np.zeros(len(at)), np.zeros(len(at))
    for owner, part in nbytes.items():
        others = ranks.copy()
        others[at[owner]] = 0.0
        out += part * others
        into[at[owner]] += part * others.sum()
    return out, into

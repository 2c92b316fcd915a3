"""The seconds in which owners' updates go out to all ranks, down trees or without them (Parameter Flow, section
3.4)."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .costs import busiest_link

Parents = Sequence[int]


def broadcast_bytes(
    trees: Mapping[int, Parents], nbytes: Mapping[int, float], hosts: Sequence[int], costs: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the bytes that leave each host, and that enter it, when every owner's update goes to all ranks.

    Args:
        trees: for each owner, its tree: for each rank the rank that sends to it, -1 for the owner.
        nbytes: for each owner, the bytes of its update on the wire.
        hosts: for each rank, the lowest rank on its host.
        costs: (ranks, ranks): the factor by which a byte from rank row to rank column counts; 1 for a usual link.

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
    """Returns the most links between hosts that an update passes."""
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
    """Returns the same as broadcast_bytes for pushes: every rank sends each owner nbytes[owner] bytes."""
    at = np.asarray(hosts)
    ranks = np.bincount(at, minlength=len(at)).astype(np.float64)
    out, into = np.zeros(len(at)), np.zeros(len(at))
    for owner, part in nbytes.items():
        others = ranks.copy()
        others[at[owner]] = 0.0
        out += part * others
        into[at[owner]] += part * others.sum()
    return out, into

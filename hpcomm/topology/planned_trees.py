"""Plans a tree for each owner, with different ranks as inner nodes of each tree (Parameter Flow, sections 3.4.1,
3.4.2)."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InvalidArgument
from ..graphs.places import by_name
from ..graphs.tree_costs import Costs, checked_costs, checked_number
from ..graphs.tree_search import search
from ..model import Rates
from ..model.costs import busiest_link
from ..model.trees import broadcast_seconds, push_bytes
from ..stage import whole
from .tree import Tree

GAIN = 1.1  # trees must speed up a step by this factor, otherwise they are not worth their hops
_DEGREES = (1, 2, 3, 4, 8)
_MOVES = 20_000  # moves of a search, which every rank does at its start
_MOST_SEARCHED = 64  # with more hosts, trees are not searched for by costs


def trees_for(
    owners: Iterable[int],
    size: int,
    *,
    degree: int | None = None,
    weights: Mapping[int, float] | None = None,
    hosts: Sequence[object] | None = None,
    costs: ArrayLike | None = None,
    nbytes: float = 32 << 20,
    chunk_bytes: float = 256 << 10,
    pushed: float = 1.0,
    rates: Rates | None = None,
) -> dict[int, Tree] | None:
    """Returns for each owner the tree down which the owner's updates go to all ranks, or None if it is about as fast
    when owners send to all ranks themselves.

    A rank that passes updates on in one tree passes on less in other trees, so that the busiest link carries as little
    as possible. Each host gets an update once: one rank gets it, and passes it to the host's other ranks. The same
    arguments give the same trees on all ranks.

    Args:
        owners: the ranks that own parts of the parameters.
        size: the number of ranks in the job.
        degree: the most hosts to which a host sends in one tree. None: the degree with the least predicted time; then
            the function returns None if trees save less than a tenth of a step (pushes, then broadcasts).
        weights: a mapping from owners to the size of their part of the parameters, in any unit. None: all parts have
            the same size.
        hosts: hosts[i] names the host of rank i by any hashable value, as Context.hosts does. None: each rank has a
            host alone.
        costs: array of shape (size, size): costs[i, j] is the cost of a byte from rank i to rank j, as
            graphs.bandwidth_costs or rack_costs return it. A link of bandwidth rates.between has cost 1. None: all
            links have the same cost.
        nbytes: the bytes that owners send for one update of all parameters.
        chunk_bytes: the bytes that a rank passes on at a time; each hop adds the time to send so many bytes.
        pushed: the bytes of the update that one rank pushes, divided by nbytes.
        rates: Rates, whose `between` is the bandwidth of the links and whose `latency` is the latency of a hop. None:
            latency is 0.

    Raises:
        InvalidArgument: an argument is out of range.
    """
    size = whole("size", size, 1)
    named = sorted({whole("owners", owner, 0, size - 1) for owner in owners})
    if not named:
        raise InvalidArgument("owners is empty: name one rank at least")
    nbytes = checked_number("nbytes", nbytes, "a finite number above 0", above=0.0)
    chunk_bytes = checked_number("chunk_bytes", chunk_bytes, "a finite number above 0", above=0.0)
    pushed = checked_number("pushed", pushed, "a finite number, 0 or more")
    places = list(range(size)) if hosts is None else list(hosts)
    if len(places) != size:
        raise InvalidArgument(f"hosts has {len(places)} ranks: this job has {size}")
    groups = by_name(places)
    at = [0] * size
    for group in groups:
        for rank in group:
            at[rank] = group[0]
    matrix = None if costs is None else checked_costs(costs)
    if matrix is not None and len(matrix) != size:
        raise InvalidArgument(f"costs are of {len(matrix)} ranks: this job has {size}")
    sent = _shares(named, weights, nbytes)
    if degree is not None:
        return _made(_planned(groups, at, sent, whole("degree", degree, 1), matrix), groups, at)
    if len(groups) < 2:
        return None
    measure = np.ones((size, size)) if matrix is None else matrix
    links = Rates(between=1.0) if rates is None else rates

    def seconds(trees: Mapping[int, Sequence[int]]) -> float:
        return broadcast_seconds(
            trees, sent, at, measure, chunk_bytes=chunk_bytes, between=links.between, latency=links.latency
        )

    flat = {owner: [-1 if rank == owner else owner for rank in range(size)] for owner in named}
    pushes = busiest_link(*push_bytes({owner: part * pushed for owner, part in sent.items()}, at)) / links.between
    degrees = [degree for degree in _DEGREES if degree < len(groups)]
    made = (_made(_planned(groups, at, sent, one, matrix), groups, at) for one in degrees)
    best = min(made, key=lambda trees: seconds({owner: tree.above(size) for owner, tree in trees.items()}))
    taken = seconds({owner: tree.above(size) for owner, tree in best.items()})
    return best if pushes + seconds(flat) >= GAIN * (pushes + taken) else None


def _shares(owners: Sequence[int], weights: Mapping[int, float] | None, nbytes: float) -> dict[int, float]:
    """Returns the bytes of each owner's update."""
    must = "a finite number, 0 or more"
    found = {
        owner: 1.0 if weights is None else checked_number(f"weights[{owner}]", weights.get(owner, 0.0), must)
        for owner in owners
    }
    total = sum(found.values()) or 1.0
    return {owner: nbytes * weight / total for owner, weight in found.items()}


def _planned(
    groups: Sequence[Sequence[int]], at: Sequence[int], sent: Mapping[int, float], degree: int, costs: Costs | None
) -> dict[int, list[int]]:
    """Returns for each owner a list `tree`: tree[h] is the number of the host that sends to host h, or -1 if the owner
    is on h."""
    number = {group[0]: i for i, group in enumerate(groups)}
    order = sorted(sent, key=lambda owner: (-sent[owner], owner))
    degree, load = min(degree, max(len(groups) - 1, 1)), [0.0] * len(groups)
    roots = {owner: number[at[owner]] for owner in order}
    shape = [max(0, min(degree, len(groups) - 1 - degree * i)) for i in range(len(groups))]  # children by place
    for owner, root in roots.items():
        load[root] += shape[0] * sent[owner]
    if costs is not None and 2 < len(groups) <= _MOST_SEARCHED:
        return _by_costs(groups, roots, sent, degree, costs)
    found = {}
    for owner, root in roots.items():
        inner = sum(n > 0 for n in shape)
        rest = [(root + i) % len(groups) for i in range(1, len(groups))]
        senders = sorted(rest, key=lambda host: load[host])[: inner - 1]
        chosen = set(senders)
        places = [root, *senders, *(host for host in rest if host not in chosen)]
        for host, children in zip(places[1:inner], shape[1:inner], strict=True):
            load[host] += children * sent[owner]
        parents = [-1] * len(groups)
        for i, host in enumerate(places[1:]):
            parents[host] = places[i // degree]
        found[owner] = parents
    return found


def _by_costs(
    groups: Sequence[Sequence[int]], roots: Mapping[int, int], sent: Mapping[int, float], degree: int, costs: Costs
) -> dict[int, list[int]]:
    """Returns trees of cheap edges, as _planned does. The price of an edge includes the load that its sender has from
    other trees, so different hosts send in different trees."""
    first = [group[0] for group in groups]
    between = costs[np.ix_(first, first)]
    load, depth = np.zeros(len(first)), 1
    while sum(degree**hop for hop in range(depth + 1)) < len(first):
        depth += 1
    found = {}
    for owner, root in roots.items():
        priced = between * sent[owner] + load[:, None]
        np.fill_diagonal(priced, 0.0)
        found[owner] = search(priced / (float(priced.max()) or 1.0), degree, depth, 0.0, root, _MOVES)
        for host, parent in enumerate(found[owner]):
            if parent >= 0:
                load[parent] += between[parent, host] * sent[owner]
    return found


def _made(planned: Mapping[int, Sequence[int]], groups: Sequence[Sequence[int]], at: Sequence[int]) -> dict[int, Tree]:
    """Returns trees of ranks for trees of hosts. On each host one rank gets the update and sends it on; a host's ranks
    take turns from tree to tree."""
    work = [0] * len(at)
    found = {}
    for owner, parents in planned.items():
        gates = [owner if owner in group else min(group, key=lambda rank: work[rank]) for group in groups]
        above = [-1] * len(at)
        for host, group in enumerate(groups):
            for rank in group:
                above[rank] = gates[host]
            above[gates[host]] = -1 if parents[host] < 0 else gates[parents[host]]
            if parents[host] >= 0:
                work[gates[parents[host]]] += 1
            work[gates[host]] += len(group) - 1
        found[owner] = Tree(parents=above)
    return dict(sorted(found.items()))

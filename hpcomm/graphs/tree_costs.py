"""Computes the costs of links, from racks or from measured bandwidths, and the cost of a tree (Parameter Flow,
3.4.1)."""

from collections.abc import Iterable, Sequence
from math import fsum, inf
from numbers import Real
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InvalidArgument
from ..stage import whole
from .places import checked_racks

Costs = NDArray[np.float64]

SAME_EDGE, SAME_AGGREGATION, APART = 0.1, 0.5, 1.0  # the paper's costs


def rack_costs(
    racks: Sequence[str] | Sequence[Sequence[int]] | Sequence[Sequence[Sequence[int]]],
    pods: Sequence[str] | Sequence[Sequence[int]] | None = None,
) -> Costs:
    """Returns the paper's costs of links (Parameter Flow, section 3.4.1), float64 (ranks, ranks).

    Entry (i, j) is the cost of sending from rank i to rank j: 0.1 within a rack (one edge switch), 0.5 between two
    racks of a pod (one aggregation switch), 1.0 between pods, 0 on the diagonal.

        graphs.rack_costs([[0, 1], [2, 3], [4, 5]], [[0, 1, 2, 3], [4, 5]])    # racks 0 and 1 are a pod
        graphs.rack_costs(ctx.racks)                                           # names of racks, from SLURM

    Args:
        racks: for each rack a list of its ranks, or a list of its hosts, which are lists of ranks, as in Hierarchy. Or
            racks[i] is the name of rank i's rack, as in Context.racks.
        pods: for each pod a list of its ranks. Or pods[i] is the name of rank i's pod. None: a pod's name is the part
            of a rack's name before the last dot, such as "core" of SLURM's "core.rack3". A rack whose name has no dot
            is the only one in its pod.

    Raises:
        InvalidArgument: a rank is in no rack or pod, or in two; a name is empty; or a pod splits a rack.
    """
    edge = _places("racks", racks)
    named = [name.rpartition(".")[0] or name for name in edge]
    above = named if pods is None else _places("pods", pods, len(edge))
    home: dict[str, str] = {}
    for rank, (rack, pod) in enumerate(zip(edge, above, strict=True)):
        if home.setdefault(rack, pod) != pod:
            raise InvalidArgument(f"pods splits the rack of rank {rank}: all ranks of a rack are in one pod")
    racked, podded = np.array(edge), np.array(above)
    near = podded[:, None] == podded[None]
    found = np.where(racked[:, None] == racked[None], SAME_EDGE, np.where(near, SAME_AGGREGATION, APART))
    np.fill_diagonal(found, 0.0)
    return found


def _places(what: str, given: Iterable[object], size: int | None = None) -> list[str]:
    """Returns the name of each rank's group: the given name, or the group's number if groups were given."""
    names = list(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else []
    if names and all(isinstance(name, str) for name in names):
        found = [str(name) for name in names]
        if "" in found:
            raise InvalidArgument(f"{what}: the name of rank {found.index('')} is empty: name all, or give groups")
    else:
        _, groups = checked_racks(given)
        by_rank: dict[int, str] = {}
        for i, group in enumerate(groups):
            for rank in group:
                if by_rank.setdefault(rank, f"{i}") != f"{i}":
                    raise InvalidArgument(f"{what}: rank {rank} is in two groups: each rank is in one")
        missing = set(range(max(by_rank, default=0) + 1)) - set(by_rank)
        if missing:
            raise InvalidArgument(f"{what}: rank {min(missing)} is in no group: each rank is in one")
        found = [by_rank[rank] for rank in range(len(by_rank))]
    if size is not None and len(found) != size:
        raise InvalidArgument(f"{what} are of {len(found)} ranks, and racks of {size}: both are of all ranks")
    return found


def bandwidth_costs(bandwidths: ArrayLike) -> Costs:
    """Returns costs of links, float64 (ranks, ranks): the median bandwidth divided by the link's bandwidth, and 0 on
    the diagonal.

    So a link of median bandwidth costs 1, and cheapest_tree's leaf of 0.01 is a hundredth of a typical link.

    Args:
        bandwidths: (ranks, ranks): entry (i, j) is the bandwidth from rank i to rank j in bytes a second, above 0. The
            diagonal is ignored. Use inf for ranks of one host: their links then cost 0.

    Raises:
        InvalidArgument: bandwidths is not a square matrix of numbers above 0.
    """
    rates = _square("bandwidths", bandwidths)
    np.fill_diagonal(rates, inf)
    if (wrong := ~(rates > 0)).any():
        i, j = np.argwhere(wrong)[0].tolist()
        raise InvalidArgument(f"bandwidths[{i}, {j}] is {rates[i, j]:g}: must be above 0, in bytes a second")
    links = rates[np.isfinite(rates)]
    found: Costs = (np.median(links) if links.size else 1.0) / rates
    return found


class _Tree(Protocol):
    """The method of hpcomm.Tree that tree_cost calls."""

    def above(self, size: int) -> tuple[int, ...]: ...


def tree_cost(tree: _Tree | Sequence[int], costs: ArrayLike, leaf: float = 0.0) -> float:
    """Returns a tree's cost: the sum of its edges' costs, plus leaf (alpha) for each rank without children (Parameter
    Flow, equation 12).

    Args:
        tree: an hpcomm.Tree, or parents, one for each row of costs.
        costs: (ranks, ranks): entry (i, j) is the cost of sending from rank i to rank j. The diagonal is ignored.
        leaf: as in cheapest_tree.

    Raises:
        InvalidArgument: tree, costs or leaf is out of range, or tree and costs differ in size.
    """
    matrix = checked_costs(costs)
    size = len(matrix)
    above = tree.above(size) if hasattr(tree, "above") else checked_parents(tree, size)
    if (wrong := max(above)) >= len(above):
        raise InvalidArgument(f"parents has rank {wrong}: the ranks are 0 to {len(above) - 1}")
    return priced(above, matrix, checked_leaf(leaf))


def checked_parents(parents: object, size: int | None = None) -> tuple[int, ...]:
    """Returns parents as a tuple of int.

    Raises:
        InvalidArgument: parents is not a sequence of ranks and -1, or its length is not size.
    """
    if not isinstance(parents, Iterable):
        raise InvalidArgument(f"parents is {parents!r}: must be a sequence of ranks, with -1 for the root")
    found = tuple(whole("parents", parent, -1) for parent in parents)
    if size is not None and len(found) != size:
        raise InvalidArgument(f"parents has {len(found)} ranks: this job has {size}")
    return found


def priced(parents: Sequence[int], costs: Costs, leaf: float) -> float:
    """Computes tree_cost without checking the arguments."""
    edges = [float(costs[parent, rank]) for rank, parent in enumerate(parents) if parent >= 0]
    return fsum(edges) + leaf * (len(parents) - len(set(parents) - {-1}))


def checked_costs(costs: ArrayLike) -> Costs:
    """Returns costs as float64 with a diagonal of 0.

    Raises:
        InvalidArgument: costs is not a square matrix of finite numbers, 0 or more.
    """
    found = _square("costs", costs)
    np.fill_diagonal(found, 0.0)
    if (wrong := ~((found >= 0) & np.isfinite(found))).any():
        i, j = np.argwhere(wrong)[0].tolist()
        raise InvalidArgument(f"costs[{i}, {j}] is {found[i, j]:g}: must be a finite number, 0 or more")
    return found


def checked_leaf(leaf: float) -> float:
    return checked_number("leaf", leaf, "a finite number, 0 or more")


def checked_number(name: str, value: object, must: str, *, above: float = -inf) -> float:
    """Returns value as a float; raises InvalidArgument unless it is finite, 0 or more, and larger than above."""
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else inf
    except OverflowError:
        number = inf
    if not (0 <= number < inf and number > above):
        raise InvalidArgument(f"{name} is {value!r}: must be {must}")
    return number


def _square(name: str, matrix: ArrayLike) -> Costs:
    """Returns a float64 copy of a matrix; raises InvalidArgument unless it is square, not empty, and of numbers."""
    try:
        found = np.asarray(matrix)
    except ValueError:
        raise InvalidArgument(f"{name} are no matrix: its rows differ in length") from None
    if found.dtype.kind not in "iuf":
        raise InvalidArgument(f"{name} are of type {found.dtype}: must be numbers")
    if found.ndim != 2 or found.shape[0] != found.shape[1] or not found.size:
        raise InvalidArgument(f"{name} have shape {found.shape}: must be (ranks, ranks), from row to column")
    return found.astype(np.float64)

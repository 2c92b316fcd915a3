"""A communication graph: which ranks' updates each rank averages, with which weights (ASAP, section 3, appendix A).

A rank "takes" an update if it receives the update, or has it itself, and averages it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InvalidArgument, NotSupported
from ..stage import whole

PIP_GRAPH = "pip install matplotlib 'networkx>=3' 'scipy>=1.12'"
TOLERANCE = 1e-9  # largest allowed difference between a sum of weights and 1


class Graph:
    """Edges over which ranks send updates, and the weights by which each rank averages the updates that it takes.

    In a step rank i takes its own update and the updates of its in-neighbours j: x_i becomes the sum of P_ij x_j. P is
    the matrix that dense() returns; each row of P sums to 1. A graph is immutable. Two graphs are equal if they have
    the same edges and weights; names may differ. A graph takes 12 bytes for each edge and 20 for each rank.

    Args:
        size: number of ranks.
        sources, targets: int (edges,): rank sources[k] sends to rank targets[k]. Each pair may occur once. Self-loops
            are optional.
        weights: float (edges,): weights[k] is the weight that targets[k] gives to the update of sources[k]. A rank
            without a given self-loop gives its own update 1 minus the sum of its other weights. None: rank i weights
            all its inputs, its own included, by 1/(in-degree + 1) (ASAP, appendix A).
        name: a name for people, such as "ring(8)".

    Raises:
        InvalidArgument: a rank is out of range, an edge is given twice, the weight of an edge is 0 or less, that of a
            self-loop is below 0, or the weights of a rank do not sum to 1.
    """

    __slots__ = ("_name", "_out", "_size", "_sources", "_starts", "_weights")

    def __init__(
        self, size: int, sources: ArrayLike, targets: ArrayLike, weights: ArrayLike | None = None, name: str = "graph"
    ) -> None:
        self._size = whole("size", size, 1)
        if not isinstance(name, str):
            raise InvalidArgument(f"name is {name!r}: must be a str")
        self._name = name
        source, target = _ranks("sources", sources, self._size), _ranks("targets", targets, self._size)
        if len(source) != len(target):
            raise InvalidArgument(
                f"sources has {len(source)} ranks and targets {len(target)}: each edge has one of both"
            )
        given = None if weights is None else _numbers(weights, len(source))

        # Adds missing self-loops, and sorts the edges by target, then source.
        bare = np.ones(self._size, bool)
        bare[target[source == target]] = False
        loops = np.flatnonzero(bare)
        source, target = np.concatenate([source, loops]), np.concatenate([target, loops])
        order = np.lexsort((source, target))
        source, target = source[order], target[order]
        twice = np.flatnonzero((source[1:] == source[:-1]) & (target[1:] == target[:-1]))
        if twice.size:
            raise InvalidArgument(f"edge {source[twice[0]]} -> {target[twice[0]]} is given twice: name it once")

        degrees = np.bincount(target, minlength=self._size)
        if given is None:
            values = np.repeat(1 / degrees, degrees)
        else:
            values = np.concatenate([given, np.zeros(len(loops))])[order]
            rest = 1 - np.bincount(target, values, self._size)
            own = (source == target) & bare[target]
            values[own] = np.where(rest > -TOLERANCE, np.maximum(rest, 0), rest)[loops]
            _check_weights(source, target, values, self._size)
        self._starts: NDArray[np.int64] = _frozen(np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64))
        self._sources: NDArray[np.int32] = _frozen(source.astype(np.int32))
        self._weights: NDArray[np.float64] = _frozen(values + 0.0)  # turns -0.0 into 0.0, as __hash__ compares bits
        self._out: tuple[NDArray[np.int64], NDArray[np.int32]] | None = None

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._size

    @property
    def name(self) -> str:
        return self._name

    @property
    def starts(self) -> NDArray[np.int64]:
        """int64 (size + 1,), read-only: the in-edges of rank i have the indices starts[i] to starts[i + 1] - 1."""
        return self._starts

    @property
    def sources(self) -> NDArray[np.int32]:
        """int32 (edges + size,), read-only: the source of each in-edge, self-loops included, sorted within a rank."""
        return self._sources

    @property
    def weights(self) -> NDArray[np.float64]:
        """float64 (edges + size,), read-only: the weight of each in-edge; the weights of a rank sum to 1."""
        return self._weights

    @property
    def targets(self) -> NDArray[np.int32]:
        """int32 (edges + size,): the target of each in-edge."""
        return np.repeat(np.arange(self._size, dtype=np.int32), np.diff(self._starts))

    @property
    def in_degrees(self) -> NDArray[np.int64]:
        """int64 (size,): the number of other ranks from which each rank takes updates."""
        degrees: NDArray[np.int64] = np.diff(self._starts) - 1
        return degrees

    @property
    def out_degrees(self) -> NDArray[np.int64]:
        """int64 (size,): the number of other ranks to which each rank sends its update."""
        return np.bincount(self._sources, minlength=self._size) - 1

    def in_edges(self, rank: int) -> tuple[tuple[int, float], ...]:
        """Returns (source, weight) of each update that a rank takes, sorted by source, the rank itself included.

        Raises:
            InvalidArgument: the graph has no such rank.
        """
        edges = self._edges(rank)
        return tuple(zip(self._sources[edges].tolist(), self._weights[edges].tolist(), strict=True))

    def in_peers(self, rank: int) -> tuple[int, ...]:
        """Returns the other ranks that send to a rank, sorted."""
        return tuple(source for source in self._sources[self._edges(rank)].tolist() if source != rank)

    def out_peers(self, rank: int) -> tuple[int, ...]:
        """Returns the other ranks that a rank sends to, sorted."""
        rank = whole("rank", rank, 0, self._size - 1)
        starts, targets = self.out_edges()
        return tuple(target for target in targets[starts[rank] : starts[rank + 1]].tolist() if target != rank)

    def out_edges(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Returns starts, int64 (size + 1,), and targets, int32 (edges + size,): rank i sends to targets[starts[i]] to
        targets[starts[i + 1] - 1], itself included."""
        if self._out is None:
            order = np.argsort(self._sources, kind="stable")
            starts = np.concatenate([[0], np.cumsum(np.bincount(self._sources, minlength=self._size))])
            self._out = _frozen(starts.astype(np.int64)), _frozen(self.targets[order])
        return self._out

    def dense(self) -> NDArray[np.float64]:
        """Returns P, float64 (size, size): entry (i, j) is the weight that rank i gives to the update of rank j; 0
        without an edge."""
        matrix = np.zeros((self._size, self._size))
        matrix[self.targets, self._sources] = self._weights
        return matrix

    def sparse(self) -> Any:
        """Returns P as a scipy.sparse.csr_array.

        Raises:
            NotSupported: SciPy is not installed.
        """
        try:
            from scipy.sparse import csr_array  # noqa: PLC0415
        except ModuleNotFoundError:
            raise NotSupported(f"a sparse matrix needs SciPy: {PIP_GRAPH}") from None
        shape = (self._size, self._size)
        return csr_array((self._weights.copy(), self._sources.copy(), self._starts.astype(np.int32)), shape=shape)

    def to_networkx(self, self_loops: bool = False) -> Any:
        """Returns a networkx.DiGraph whose edges have the attribute "weight". self_loops: include self-loops.

        Raises:
            NotSupported: networkx is not installed.
        """
        try:
            import networkx  # noqa: PLC0415
        except ModuleNotFoundError:
            raise NotSupported(f"a networkx graph needs networkx: {PIP_GRAPH}") from None
        found = networkx.DiGraph(name=self._name)
        found.add_nodes_from(range(self._size))
        found.add_weighted_edges_from(edge for edge in self if self_loops or edge[0] != edge[1])
        return found

    def __iter__(self) -> Iterator[tuple[int, int, float]]:
        """Yields (source, target, weight) sorted by target, then source; self-loops included."""
        return zip(self._sources.tolist(), self.targets.tolist(), self._weights.tolist(), strict=True)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph):
            return NotImplemented
        return self._size == other._size and all(
            np.array_equal(mine, theirs) for mine, theirs in zip(self._arrays(), other._arrays(), strict=True)
        )

    def __hash__(self) -> int:
        return hash((self._size, *(array.tobytes() for array in self._arrays())))

    def __reduce__(self) -> tuple[Any, ...]:
        return Graph, (self._size, self._sources, self.targets, self._weights, self._name)

    def __repr__(self) -> str:
        return f"<Graph {self._name}: {self._size} ranks, {len(self._sources) - self._size} edges>"

    def _arrays(self) -> tuple[NDArray[Any], ...]:
        return self._starts, self._sources, self._weights

    def _edges(self, rank: int) -> slice:
        rank = whole("rank", rank, 0, self._size - 1)
        return slice(int(self._starts[rank]), int(self._starts[rank + 1]))


def as_phases(graph: Graph | Sequence[Graph]) -> tuple[Graph, ...]:
    """Returns the graphs of one round as a tuple: a single graph, or phases, which the steps use in turn.

    Raises:
        InvalidArgument: graph is neither a Graph nor a non-empty sequence of graphs of the same size.
    """
    phases = (graph,) if isinstance(graph, Graph) else tuple(graph) if isinstance(graph, Sequence) else ()
    if not phases or not all(isinstance(phase, Graph) for phase in phases):
        raise InvalidArgument(f"graph is {graph!r}: must be a Graph, or a sequence of them, one for each phase")
    for k, phase in enumerate(phases):
        if phase.size != phases[0].size:
            raise InvalidArgument(f"phase {k} has {phase.size} ranks and phase 0 {phases[0].size}: all have as many")
    return phases


def _frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array


def _ranks(name: str, values: ArrayLike, size: int) -> NDArray[np.int64]:
    """Returns values as int64; raises InvalidArgument unless all are ranks of a graph of that size."""
    found = np.asarray(values)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise InvalidArgument(f"{name} is {values!r}: must be ranks, one for each edge")
    wrong = np.flatnonzero((found < 0) | (found >= size))
    if wrong.size:
        raise InvalidArgument(f"{name} has rank {found[wrong[0]]}: the ranks of this graph are 0 to {size - 1}")
    return found.astype(np.int64)


def _numbers(weights: ArrayLike, edges: int) -> NDArray[np.float64]:
    try:
        found = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        raise InvalidArgument(f"weights is {weights!r}: must be numbers, one for each edge") from None
    if found.shape != (edges,):
        raise InvalidArgument(f"weights has shape {found.shape}: there are {edges} edges, and each has one weight")
    return found


def _check_weights(
    source: NDArray[np.int64], target: NDArray[np.int64], weights: NDArray[np.float64], size: int
) -> None:
    """Raises InvalidArgument for a weight out of range, or if the weights of a rank do not sum to 1."""
    wrong = np.flatnonzero(~(np.isfinite(weights) & ((weights > 0) | ((weights == 0) & (source == target)))))
    if wrong.size:
        k = wrong[0]
        if source[k] == target[k]:
            raise InvalidArgument(
                f"rank {target[k]} would take its own update with weight {weights[k]:g}: must be 0 or more, so that "
                f"the weights of its other in-edges sum to 1 at the most"
            )
        raise InvalidArgument(f"edge {source[k]} -> {target[k]} has weight {weights[k]:g}: must be above 0")
    sums = np.bincount(target, weights, size)
    wrong = np.flatnonzero(np.abs(sums - 1) > TOLERANCE)
    if wrong.size:
        rank = wrong[0]
        raise InvalidArgument(f"the weights of the in-edges of rank {rank} sum to {sums[rank]:.9g}: must sum to 1")

"""Makes graphs by name and from edges, and graphs that change from step to step (ASAP, section 3).

Over an edge of an undirected graph both ranks send. Weights that are not given are uniform, 1/(in-degree + 1).
"""

from collections.abc import Iterable, Sequence
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InvalidArgument
from ..stage import whole
from .graph import Graph
from .spectrum import spectral_gap

Ints = NDArray[np.int64]


def complete(n: int) -> Graph:
    """Returns the all-reduce graph: every rank sends to every other rank (ASAP, figure 2a). It takes 12 n^2 bytes of
    memory, and more while it is made."""
    n = whole("n", n, 1)
    return _circulant(n, range(1, n), f"complete({n})")


def ring(n: int, directed: bool = True) -> Graph:
    """Returns a ring: rank i sends to rank i + 1, mod n; in an undirected ring also to i - 1."""
    n = whole("n", n, 1)
    return _circulant(n, (1,) if directed else (1, -1), _named("ring", n, directed))


def chain(n: int, directed: bool = True) -> Graph:
    """Returns a chain: rank i sends to rank i + 1, in an undirected chain also to i - 1 (ASAP, figure 2d). In a
    directed chain all models converge to rank 0's model."""
    n = whole("n", n, 1)
    source = np.arange(n - 1)
    return _graph(n, source, source + 1, _named("chain", n, directed), directed)


def star(n: int, center: int = 0) -> Graph:
    """Returns a star: the center sends to all other ranks, and they send to it, as with one parameter server (ASAP,
    figure 2b). Its P is not doubly stochastic; metropolis(star(n)) gives all ranks the same influence."""
    n = whole("n", n, 1)
    center = whole("center", center, 0, n - 1)
    others = np.delete(np.arange(n), center)
    name = f"star({n})" if center == 0 else f"star({n}, center={center})"
    return _graph(n, others, np.full(n - 1, center), name, directed=False)


def root_expander(n: int, degree: int | None = None) -> Graph:
    """Returns the graph in which rank i sends to i + 1 and to i + floor(sqrt(n)), mod n (ASAP, section 3.1, figure 2c).

    Other degrees are ours: rank i sends to i + floor(n^(j/degree)), mod n, for j = 0 to degree - 1. If two strides are
    equal, the second becomes the next larger free stride, or the next smaller one if all larger strides are taken.

    The spectral gap of the graph with two edges is 0.333 for 6 ranks and 0.142 for 25. The paper's figure 2c has 0.38
    and 0.2, which do not follow from its formula.

    Args:
        n: number of ranks.
        degree: out-degree, 1 to n - 1. None: the two edges of the paper, or one if they are the same (n < 4).
    """
    n = whole("n", n, 1)
    if degree is None:
        return _circulant(n, (1, isqrt(n)), f"root_expander({n})")
    degree = whole("degree", degree, 1, max(n - 1, 1))
    strides: list[int] = []
    for j in range(degree) if n > 1 else ():
        low = _root(n**j, degree)
        free = [*range(low, n), *range(low - 1, 0, -1)]
        strides.append(next(stride for stride in free if stride not in strides))
    return _circulant(n, strides, f"root_expander({n}, degree={degree})")


def hypercube(n: int) -> Graph:
    """Returns a hypercube: rank i sends to each rank whose number differs from i in one bit. n must be a power of two;
    otherwise it raises InvalidArgument."""
    n = whole("n", n, 1)
    if n & (n - 1):
        below = 1 << n.bit_length() - 1
        raise InvalidArgument(
            f"n is {n}: a hypercube has a power of two of ranks, such as {below} or {2 * below}; use exponential({n})"
        )
    ranks = np.arange(n)
    bits = [1 << k for k in range(n.bit_length() - 1)]
    return _graph(n, np.tile(ranks, len(bits)), _joined([ranks ^ bit for bit in bits]), f"hypercube({n})")


def exponential(n: int) -> Graph:
    """Returns the graph in which rank i sends to i + 1, i + 2, i + 4, ..., mod n: all i + 2^k with 2^k < n."""
    n = whole("n", n, 1)
    return _circulant(n, _powers(n), f"exponential({n})")


def torus(rows: int, cols: int) -> Graph:
    """Returns a torus: the rank row * cols + col sends to its four neighbours in a grid that wraps around."""
    rows, cols = whole("rows", rows, 1), whole("cols", cols, 1)
    n = whole("rows * cols", rows * cols, 1)
    row, col = np.divmod(np.arange(n), cols)
    targets = [(row + 1) % rows * cols + col, row * cols + (col + 1) % cols]
    source, target = np.tile(np.arange(n), 2), _joined(targets)
    return _graph(n, source, target, f"torus({rows}, {cols})", directed=False)


def random_regular(n: int, degree: int, seeds: int = 16, seed: int = 0) -> Graph:
    """Returns an undirected random graph in which every rank has the same degree. Of several random graphs it returns
    the one with the largest spectral gap. The same arguments give the same graph on every rank.

    Args:
        n: number of ranks.
        degree: neighbours of each rank, 1 to n - 1; n * degree must be even.
        seeds: how many graphs are drawn.
        seed: seed of the first graph, 0 or more; graph k, counted from 0, has seed + k.

    Raises:
        InvalidArgument: an argument is out of range, or n * degree is odd.
        NotSupported: seeds is above 1, n is more than 512, and SciPy is not installed.
    """
    n = whole("n", n, 2)
    degree, seeds, seed = whole("degree", degree, 1, n - 1), whole("seeds", seeds, 1), whole("seed", seed, 0)
    if n * degree % 2:
        raise InvalidArgument(f"degree is {degree}: {n} ranks of odd degree do not pair up; use {degree - 1 or 2}")
    drawn = (_regular(n, degree, np.random.default_rng(seed + k)) for k in range(seeds))
    name = f"random_regular({n}, {degree})"
    found = [_graph(n, source, target, name, directed=False) for source, target in drawn]
    # Rounding hides differences between the hosts' arithmetic: of equally good graphs all ranks take the first.
    return max(found, key=lambda graph: round(spectral_gap(graph), 9)) if seeds > 1 else found[0]


def from_edges(
    n: int, edges: Iterable[Sequence[int]], weights: ArrayLike | None = None, name: str = "from_edges"
) -> Graph:
    """Returns a graph of n ranks with the edges (source, target), each given once. Self-loops are optional. weights: as
    in Graph."""
    try:
        pairs = np.array([tuple(edge) for edge in edges])
    except (TypeError, ValueError):
        raise InvalidArgument("edges must be pairs of ranks (source, target)") from None
    if pairs.size == 0:
        pairs = np.zeros((0, 2), np.int64)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise InvalidArgument(f"edges has shape {pairs.shape}: must be pairs of ranks (source, target)")
    return Graph(n, pairs[:, 0], pairs[:, 1], weights, name)


def from_adjacency(matrix: Any, weighted: bool = False, name: str = "from_adjacency") -> Graph:
    """Returns a graph from an adjacency matrix as in ASAP's appendix: entry (i, j) is not 0 if rank i takes the update
    of rank j. networkx writes adjacency matrices the other way round: transpose them.

    Args:
        matrix: (n, n), an array or a SciPy sparse matrix.
        weighted: if true, the entries are the weights, and a 0 on the diagonal becomes 1 minus the rest of its row. If
            false, nonzero entries are edges and weights are uniform.
        name: the graph's name.
    """
    found = matrix.tocoo() if hasattr(matrix, "tocoo") else np.asarray(matrix)
    if len(found.shape) != 2 or found.shape[0] != found.shape[1] or found.dtype.kind not in "biuf":
        raise InvalidArgument(f"matrix has shape {found.shape} and dtype {found.dtype}: must be square, of numbers")
    if isinstance(found, np.ndarray):
        target, source = np.nonzero(found)
        values = found[target, source]
    else:
        found.sum_duplicates()
        there = found.data != 0
        target, source, values = found.row[there], found.col[there], found.data[there]
    return Graph(found.shape[0], source, target, values if weighted else None, name)


def from_networkx(g: Any, weight: str | None = None, name: str | None = None) -> Graph:
    """Returns a graph from a networkx.Graph or DiGraph whose nodes are 0 to n - 1; over an undirected edge both ranks
    send. weight: the attribute that holds the weight of each edge; None: uniform weights."""
    if not all(hasattr(g, method) for method in ("is_directed", "is_multigraph", "nodes", "edges")):
        raise InvalidArgument(f"g is a {type(g).__name__}: must be a networkx.Graph or DiGraph")
    if g.is_multigraph():
        raise InvalidArgument(f"g is a {type(g).__name__}, which may have an edge twice: use networkx.DiGraph(g)")
    n = g.number_of_nodes()
    strange = next((node for node in g if not isinstance(node, int | np.integer) or not 0 <= node < n), None)
    if strange is not None:
        raise InvalidArgument(
            f"g has node {strange!r}: nodes must be 0 to {n - 1}; use networkx.convert_node_labels_to_integers(g)"
        )
    edges = [(u, v, data) for u, v, data in g.edges(data=True)]
    if not g.is_directed():
        edges += [(v, u, data) for u, v, data in edges if u != v]
    if weight is not None:
        for u, v, data in edges:
            if weight not in data:
                raise InvalidArgument(f"edge {u} -> {v} of g has no attribute {weight!r}: all edges need it, or none")
    weights = None if weight is None else [data[weight] for _, _, data in edges]
    return from_edges(n, [(u, v) for u, v, _ in edges], weights, name or str(g.name) or "from_networkx")


def one_peer_exponential(n: int) -> tuple[Graph, ...]:
    """Returns phases that use one stride of exponential(n) each: in phase k rank i sends to i + 2^k, mod n.

    All weights are 1/2. The steps use the phases in turn. If n is a power of two, one round gives exactly the mean of
    all ranks.
    """
    n = whole("n", n, 1)
    name = f"one_peer_exponential({n})"
    return tuple(_circulant(n, (stride,), f"{name}[{k}]") for k, stride in enumerate(_powers(n) or [0]))


def random_matchings(n: int, phases: int, seed: int = 0) -> tuple[Graph, ...]:
    """Returns phases in each of which the ranks form random pairs, and each pair averages. If n is odd, one rank has no
    partner. The steps use the phases in turn. The same seed, 0 or more, gives the same graphs on every rank."""
    n, phases, seed = whole("n", n, 1), whole("phases", phases, 1), whole("seed", seed, 0)
    random = np.random.default_rng(seed)
    name = f"random_matchings({n}, {phases})"
    found = []
    for k in range(phases):
        pairs = random.permutation(n)[: n // 2 * 2].reshape(-1, 2)
        found.append(_graph(n, pairs[:, 0], pairs[:, 1], f"{name}[{k}]", directed=False))
    return tuple(found)


def _graph(n: int, source: Ints, target: Ints, name: str, directed: bool = True) -> Graph:
    """Returns a graph of these edges without duplicates and self-loops; if not directed, with all reverse edges."""
    if not directed:
        source, target = np.concatenate([source, target]), np.concatenate([target, source])
    other = source != target
    edges = np.unique(target[other].astype(np.int64) * n + source[other])
    return Graph(n, edges % n, edges // n, name=name)


def _circulant(n: int, strides: Iterable[int], name: str) -> Graph:
    """Returns the graph in which rank i sends to i + stride, mod n, for each stride."""
    ranks = np.arange(n)
    distinct = sorted({stride % n for stride in strides} - {0})
    return _graph(n, np.tile(ranks, len(distinct)), _joined([(ranks + stride) % n for stride in distinct]), name)


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _named(kind: str, n: int, directed: bool) -> str:
    if not isinstance(directed, bool):
        raise InvalidArgument(f"directed is {directed!r}: must be True or False")
    return f"{kind}({n})" if directed else f"{kind}({n}, directed=False)"


def _powers(n: int) -> list[int]:
    return [1 << k for k in range((n - 1).bit_length())]


def _root(value: int, degree: int) -> int:
    """Returns the largest int whose degree-th power is at most value."""
    found = round(value ** (1 / degree)) if value < 1 << 52 else 1 << -(-value.bit_length() // degree)
    while found**degree > value:
        found = min(found - 1, ((degree - 1) * found + value // found ** (degree - 1)) // degree)
    return found


def _regular(n: int, degree: int, random: np.random.Generator) -> tuple[Ints, Ints]:
    """Returns the sources and targets of a random regular graph's edges, each edge once."""
    if 2 * degree > n - 1 and degree < n:  # more than half of all pairs: the complement of a sparser graph
        absent = np.eye(n, dtype=bool)
        if degree < n - 1:
            source, target = _regular(n, n - 1 - degree, random)
            absent[source, target] = absent[target, source] = True
        low, high = np.nonzero(np.triu(~absent))
        return low, high
    ends = random.permutation(np.repeat(np.arange(n), degree)).reshape(-1, 2)
    while (wrong := _no_edges(ends, n)).size:
        others = random.choice(len(ends), size=len(wrong), replace=False)
        for a, b in zip(wrong.tolist(), others.tolist(), strict=True):
            ends[a, 1], ends[b, 1] = ends[b, 1], ends[a, 1]
    return ends[:, 0], ends[:, 1]


def _no_edges(ends: Ints, n: int) -> Ints:
    """Returns the indices of pairs that cannot be edges: a rank with itself, or the same pair again."""
    names = ends.min(axis=1) * n + ends.max(axis=1)
    first = np.zeros(len(ends), bool)
    first[np.unique(names, return_index=True)[1]] = True
    return np.flatnonzero(~first | (ends[:, 0] == ends[:, 1]))

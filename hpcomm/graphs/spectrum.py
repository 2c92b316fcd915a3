"""Computes how fast updates spread over a graph, and how much influence each rank has (ASAP, section 3.1, appendix A).

P is the matrix of weights, Graph.dense(); its rows sum to 1. If P is doubly stochastic, then after t steps the distance
of all models from their mean is at most sigma_2(P)^t times the first distance, where sigma_2 is the second largest
singular value.
"""

from collections.abc import Sequence
from functools import reduce
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidArgument, NotSupported
from .graph import PIP_GRAPH, TOLERANCE, Graph, as_phases
from .paths import distances

DENSE = 512  # more ranks use sparse matrices
Eigen = tuple[float, NDArray[np.float64]]  # an eigenvalue and its vector
_EPSILON = float(np.finfo(np.float64).eps)
_RESTARTS = 100  # most restarts of Lanczos; then the matrix is factored
_POWERS = 2000  # most steps of power iteration; then the matrix is factored


def spectral_gap(graph: Graph | Sequence[Graph]) -> float:
    """Returns the spectral gap 1 - sigma_2(P), where sigma_2 is the second largest singular value (ASAP, appendix A).

    For phases, which the steps use in turn, it returns the gap of one step: 1 - sigma_2(P_k ... P_2 P_1)^(1/k). The gap
    is 1 for all-reduce, and 0 for a regular graph that is not connected. If P is doubly stochastic, it equals the
    appendix's sigma_1 - sigma_2. If P is not doubly stochastic (star, chains), the two differ, the gap may be below 0,
    and no distance is bounded by it: see graphs.check and graphs.metropolis. We use 1 - sigma_2, as it gives the
    paper's 0.002 for the directed chain of 25.

    Raises:
        InvalidArgument: graph is neither a graph nor phases.
        NotSupported: there are more than 512 ranks, and SciPy is not installed.
    """
    return 1 - second_singular(graph)


def second_singular(graph: Graph | Sequence[Graph]) -> float:
    """Returns sigma_2(P); for k phases the k-th root of the round's sigma_2; for one rank 0. Raises the same errors as
    spectral_gap."""
    phases = as_phases(graph)
    size = phases[0].size
    if size == 1:
        return 0.0
    if size <= DENSE:
        product = reduce(lambda before, phase: phase.dense() @ before, phases[1:], phases[0].dense())
        found = float(np.linalg.svd(product, compute_uv=False)[1])
        found = 0.0 if found < size * _EPSILON else found
    else:
        found = _second_sparse([phase.sparse() for phase in phases], all(map(doubly_stochastic, phases)))
    return float(found ** (1 / len(phases)))


def influence(graph: Graph) -> NDArray[np.float64]:
    """Returns the weight of each rank's update in the limit of many steps, float64 (size,), with sum 1.

    This is the stationary distribution pi of P: pi P = pi (ASAP, appendix A). It is 0 for ranks whose updates do not
    reach all others.

    Raises:
        InvalidArgument: no rank's update reaches all others, so groups of ranks converge to different models.
        NotSupported: there are more than 512 ranks among which updates spread slowly, and SciPy is not installed.
    """
    leader = _leader(graph)
    heard = distances(graph, leader)
    if heard.min() < 0:
        deaf = int(np.argmin(heard))
        raise InvalidArgument(
            f"graph {graph.name}: no rank's update reaches all others; that of rank {leader} does "
            f"not reach rank {deaf}: add edges"
        )
    members = np.flatnonzero(distances(graph, leader, backward=True) >= 0)
    found = np.zeros(graph.size)
    found[members] = _stationary(_among(graph, members))
    return found


def column_sums(graph: Graph) -> NDArray[np.float64]:
    """Returns the column sums of P, float64 (size,): the sum of the weights that all ranks give to each rank's
    update. If all are 1, P is doubly stochastic."""
    return np.bincount(graph.sources, graph.weights, graph.size).astype(np.float64)


def doubly_stochastic(graph: Graph) -> bool:
    return bool(np.abs(column_sums(graph) - 1).max() <= TOLERANCE)


def _scipy() -> tuple[Any, Any]:
    """Returns the modules scipy.sparse and scipy.sparse.linalg."""
    try:
        from scipy import sparse  # noqa: PLC0415
        from scipy.sparse import linalg  # noqa: PLC0415
    except ModuleNotFoundError:
        raise NotSupported(f"a graph of more than {DENSE} ranks needs SciPy: {PIP_GRAPH}") from None
    return sparse, linalg


def _second_sparse(factors: list[Any], doubly: bool) -> float:
    """Returns sigma_2 of the product of sparse matrices, with the last factor on the left."""
    size = factors[0].shape[0]
    first = np.full(size, size**-0.5) if doubly else _largest(factors, None)[1]
    return sqrt(max(_largest(factors, first)[0], 0.0))


def _largest(factors: list[Any], known: NDArray[np.float64] | None) -> Eigen:
    """Returns the largest eigenvalue of M^T M and its eigenvector, where M is the product of factors.

    known: an eigenvector to leave out, or None. Lanczos iteration converges fast on graphs over which updates spread
    fast. Otherwise, as on a ring, few edges join large parts of the graph: the shifted matrix then has sparse factors,
    and inverse iteration is fast.
    """
    _, linalg = _scipy()
    turned = [factor.T.tocsr() for factor in factors]

    def apply(x: NDArray[np.float64]) -> NDArray[np.float64]:
        for factor in factors:
            x = factor @ x
        for factor in reversed(turned):
            x = factor @ x
        return x

    try:
        return _lanczos(apply, factors[0].shape[0], known, tolerance=1e-12)
    except linalg.ArpackNoConvergence:
        return _inverse(reduce(lambda before, factor: factor @ before, factors), known)


def _lanczos(apply: Any, size: int, known: NDArray[np.float64] | None, tolerance: float) -> Eigen:
    """Returns the largest eigenvalue of a symmetric operator and its eigenvector, among vectors orthogonal to known."""
    _, linalg = _scipy()

    def project(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return x if known is None else x - known * (known @ x)

    start = project(np.random.default_rng(0).standard_normal(size))
    image = project(apply(start))
    if np.linalg.norm(image) <= size * _EPSILON * np.linalg.norm(start):  # the operator is 0, which ARPACK refuses
        return 0.0, start / float(np.linalg.norm(start))
    operator = linalg.LinearOperator((size, size), matvec=lambda x: project(apply(project(x.ravel()))), dtype=float)
    values, vectors = linalg.eigsh(operator, k=1, which="LA", v0=start, ncv=20, maxiter=_RESTARTS, tol=tolerance)
    return float(values[0]), vectors[:, 0]


def _inverse(matrix: Any, known: NDArray[np.float64] | None) -> Eigen:
    """Computes the result of _largest by inverse iteration with a falling shift.

    The shift starts above all eigenvalues, at the largest column sum of M times its largest row sum. Each round
    estimates the distance from the shift to the largest eigenvalue, and lowers the shift by nine tenths of that
    distance. Rough estimates suffice, as the error of an estimate is a small part of the distance.
    """
    sparse, linalg = _scipy()
    size = matrix.shape[0]
    square = (matrix.T @ matrix).tocsc()
    shift = float(abs(matrix).sum(axis=0).max() * abs(matrix).sum(axis=1).max()) * 1.001
    while True:
        shifted = (shift * sparse.eye_array(size, format="csc") - square).tocsc()
        factored = linalg.splu(shifted, "MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
        distance = 1 / _lanczos(factored.solve, size, known, tolerance=1e-2)[0]
        if distance < 1e-8 * shift:
            value, vector = _lanczos(factored.solve, size, known, tolerance=1e-10)
            return shift - 1 / value, vector
        shift -= 0.9 * distance


def _leader(graph: Graph) -> int:
    """Returns a rank whose update reaches all ranks, if there is such a rank: the last rank at which a search had to
    start."""
    starts, targets = graph.out_edges()
    seen = np.zeros(graph.size, bool)
    leader = 0
    for rank in range(graph.size):
        if seen[rank]:
            continue
        leader, waiting = rank, [rank]
        seen[rank] = True
        while waiting:
            of = waiting.pop()
            near = targets[starts[of] : starts[of + 1]]
            new = near[~seen[near]]
            seen[new] = True
            waiting += new.tolist()
    return leader


def _among(graph: Graph, members: NDArray[Any]) -> Graph:
    """Returns the graph over members, which must not take the update of any other rank."""
    if len(members) == graph.size:
        return graph
    number = np.zeros(graph.size, np.int64)
    number[members] = np.arange(len(members))
    kept = np.isin(graph.targets, members)
    source, target = number[graph.sources[kept]], number[graph.targets[kept]]
    return Graph(len(members), source, target, graph.weights[kept], graph.name)


def _stationary(graph: Graph) -> NDArray[np.float64]:
    """Returns influence(graph) for a strongly connected graph."""
    size = graph.size
    if doubly_stochastic(graph):
        return np.full(size, 1 / size)
    if size > DENSE:
        found: NDArray[np.float64] = np.full(size, 1 / size)
        targets = graph.targets
        for _ in range(_POWERS):
            before = found
            found = np.bincount(graph.sources, graph.weights * before[targets], size).astype(np.float64)
            if np.abs(found - before).sum() < 1e-14:
                return _scaled(found)

    # Solves pi (I - P) = 0 with the last entry set to 1, without the last equation, which follows from the others.
    if size <= DENSE:
        equations = np.eye(size) - graph.dense().T
        found = np.linalg.solve(equations[:-1, :-1], -equations[:-1, -1])
    else:
        sparse, linalg = _scipy()
        equations = (sparse.eye_array(size) - graph.sparse().T).tocsc()
        found = linalg.spsolve(equations[:-1, :-1], -equations[:-1, [-1]].toarray().ravel())
    return _scaled(np.append(found, 1.0))


def _scaled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values / float(values.sum())

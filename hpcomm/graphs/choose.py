"""Chooses the fastest graph, from the predicted time of a step and the predicted number of steps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite, isqrt, log

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidArgument
from ..model import Rates, busiest_link, link_seconds
from ..stage import whole
from . import makers
from .fairness import metropolis
from .graph import Graph, as_phases
from .spectrum import second_singular

MOST_EDGES = 1 << 20  # recommend leaves out an all-reduce with more edges
_MOST_BYTES = 1 << 48


@dataclass(frozen=True)
class Choice:
    """The predicted cost of a graph.

    Attributes:
        graph: a graph, or a tuple of phases: graphs that the steps of a round use one after another.
        name: the graph's name.
        gap: spectral_gap(graph).
        bytes_per_step: the most bytes that any rank sends or receives in one step.
        seconds_per_step: time to compute and to send these bytes.
        steps: steps_to_consensus(graph, accuracy), a whole number, or inf.
        seconds: steps * seconds_per_step.
    """

    graph: Graph | tuple[Graph, ...]
    name: str
    gap: float
    bytes_per_step: int
    seconds_per_step: float
    steps: float
    seconds: float


def bytes_per_step(graph: Graph, nbytes: int) -> NDArray[np.int64]:
    """Returns the bytes that each rank sends in a step, int64 (size,): its out-degree times nbytes, which is the size
    of an encoded update.

    Raises:
        InvalidArgument: nbytes is below 0.
    """
    return graph.out_degrees * whole("nbytes", nbytes, 0, _MOST_BYTES)


def busiest_degree(graph: Graph | Sequence[Graph]) -> int:
    """Returns the most updates that any rank sends or receives in one step."""
    return max(int(busiest_link(phase.out_degrees, phase.in_degrees)) for phase in as_phases(graph))


def steps_to_consensus(graph: Graph | Sequence[Graph], accuracy: float) -> float:
    """Returns how many steps bring the models' distance from their mean down to accuracy times the first distance.

    The number is log(1/accuracy) / -log(sigma_2), rounded up: a bound that holds if the weight matrix P is doubly
    stochastic (ASAP, appendix A). With phases the bound holds only over a round, so the steps are rounded up to whole
    rounds. If sigma_2 is 0, one step or one round is enough; if sigma_2 is 1 or more, the result is inf.

    Args:
        graph: a graph, or the phases of a round.
        accuracy: above 0 and below 1.

    Raises:
        InvalidArgument: graph is neither a graph nor phases, or accuracy is out of range.
        NotSupported: see spectral_gap.
    """
    accuracy = _checked_accuracy(accuracy)
    return _steps(second_singular(graph), len(as_phases(graph)), accuracy)


def recommend(
    n: int, nbytes: int, bandwidth: float, *, latency: float = 20e-6, compute: float = 0.0, accuracy: float = 0.01
) -> tuple[Choice, ...]:
    """Returns graphs of n ranks, sorted by the predicted time until all models agree; equal times by rising bytes.

    A step takes compute + latency + bytes / bandwidth seconds, where bytes is the most that any rank sends or receives:
    links are full duplex. steps_to_consensus gives the number of steps. Training may need fewer steps, as gradients
    also pull models together. All-reduce is left out if it has more than 2^20 edges.

    Args:
        n: number of ranks.
        nbytes: bytes of an encoded update.
        bandwidth: bytes a second of each rank's link: 1.25e9 for 10 Gb/s.
        latency: seconds of a step, apart from computing and sending.
        compute: seconds of computing between two exchanges.
        accuracy: the models' distance from their mean at the end, relative to the first distance.

    Raises:
        InvalidArgument: an argument is out of range.
        NotSupported: n is more than 512, and SciPy is not installed.
    """
    n, nbytes = whole("n", n, 1), whole("nbytes", nbytes, 0, _MOST_BYTES)
    bandwidth, latency, compute = _real("bandwidth", bandwidth), _real("latency", latency), _real("compute", compute)
    accuracy = _checked_accuracy(accuracy)
    if bandwidth == 0:
        raise InvalidArgument("bandwidth is 0: must be above 0, in bytes a second")
    rates = Rates(between=bandwidth, latency=latency)
    found: dict[tuple[Graph, ...], Choice] = {}
    for graph in _candidates(n):
        phases = as_phases(graph)
        if phases in found:
            continue
        busiest, sigma = busiest_degree(graph), second_singular(graph)
        step = compute + link_seconds(busiest * nbytes, rates)
        steps = _steps(sigma, len(phases), accuracy)
        name = phases[0].name.removesuffix("[0]")
        found[phases] = Choice(graph, name, 1 - sigma, busiest * nbytes, step, steps, steps * step if step else 0.0)
    return tuple(sorted(found.values(), key=lambda choice: (choice.seconds, choice.bytes_per_step)))


def _steps(sigma: float, phases: int, accuracy: float) -> float:
    if sigma == 0:
        return phases
    return phases * max(1, ceil(log(1 / accuracy) / -log(sigma) / phases - 1e-9)) if sigma < 1 - 1e-15 else inf


def _candidates(n: int) -> Iterator[Graph | tuple[Graph, ...]]:
    """Yields graphs of n ranks whose P is doubly stochastic; some graphs come twice."""
    if n * (n - 1) <= MOST_EDGES:
        yield makers.complete(n)
    yield makers.ring(n)
    yield makers.ring(n, directed=False)
    yield metropolis(makers.star(n))
    yield makers.root_expander(n)
    for degree in range(3, min(5, n)):
        yield makers.root_expander(n, degree)
    yield makers.exponential(n)
    yield makers.one_peer_exponential(n)
    if n & (n - 1) == 0:
        yield makers.hypercube(n)
    rows = next(rows for rows in range(isqrt(n), 0, -1) if n % rows == 0)
    if rows > 2:
        yield makers.torus(rows, n // rows)
    for degree in range(3, min(7, n)):
        if n * degree % 2 == 0:
            yield makers.random_regular(n, degree, seeds=4)


def _checked_accuracy(value: float) -> float:
    accuracy = _real("accuracy", value)
    if not 0 < accuracy < 1:
        raise InvalidArgument(f"accuracy is {accuracy:g}: must be above 0 and below 1, such as 0.01")
    return accuracy


def _real(name: str, value: float) -> float:
    """Returns value as a float; raises InvalidArgument unless it is finite and 0 or more."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{name} is {value!r}: must be a number") from None
    if not isfinite(number) or number < 0:
        raise InvalidArgument(f"{name} is {number:g}: must be a finite number, 0 or more")
    return number

"""The choice of the fastest graph, by the cost of a step and the number of steps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite, isqrt, log

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidArgument
from ..model import Rates, busiest_link, link_seconds
from ..stage import whole
from . import graphs
from .fairness import metropolis
from .graph import Graph, as_phases
from .spectrum import second_singular

MOST_EDGES = 1 << 20  # of an all-reduce that is worth a look
_MOST_BYTES = 1 << 48


@dataclass(frozen=True)
class Choice:
    """The predicted cost of a graph.

    Attributes:
        graph: it; or several, one for each step of a round.
        name: of the graph.
        gap: spectral_gap(graph).
        bytes_per_step: that the busiest rank sends or takes in a step, whichever is more; of phases the most.
        seconds_per_step: of computing, and of sending them.
        steps: steps_to_consensus(graph, accuracy), a whole number, or inf.
        seconds: all steps together.
    """

    graph: Graph | tuple[Graph, ...]
    name: str
    gap: float
    bytes_per_step: int
    seconds_per_step: float
    steps: float
    seconds: float


def bytes_per_step(graph: Graph, nbytes: int) -> NDArray[np.int64]:
    """Bytes that each rank sends in a step, int64 (size,): its out-degree times nbytes. The busiest one is its max().

    Args:
        graph: a graph.
        nbytes: of an update, as it is sent.

    Raises:
        InvalidArgument: nbytes is below 0.
    """
    return graph.out_degrees * whole("nbytes", nbytes, 0, _MOST_BYTES)


def busiest_degree(graph: Graph | Sequence[Graph]) -> int:
    """How many updates the busiest rank sends or takes in a step, whichever is more; of phases the most."""
    return max(int(busiest_link(phase.out_degrees, phase.in_degrees)) for phase in as_phases(graph))


def steps_to_consensus(graph: Graph | Sequence[Graph], accuracy: float) -> float:
    """Steps until the models' distance from their mean has come down to accuracy times what it was, or inf.

    They are log(1/accuracy) / -log(sigma_2), rounded up, by the bound of ASAP's appendix A, which holds if P is doubly
    stochastic. Of phases they are whole rounds, for only over a round does it hold. Where sigma_2 is 0, as in
    all-reduce, it is one step, or one round.

    Args:
        graph: a graph, or phases.
        accuracy: above 0 and below 1.

    Raises:
        InvalidArgument: an argument is none of these.
        NotSupported: that of spectral_gap.
    """
    accuracy = _checked_accuracy(accuracy)
    return _steps(second_singular(graph), len(as_phases(graph)), accuracy)


def recommend(
    n: int, nbytes: int, bandwidth: float, *, latency: float = 20e-6, compute: float = 0.0, accuracy: float = 0.01
) -> tuple[Choice, ...]:
    """Graphs of n ranks, the one first that should bring all models together soonest.

    A step takes compute + latency + bytes / bandwidth seconds, where bytes are what the busiest rank sends or takes,
    whichever is more: its link works both ways at once. There are as many steps as steps_to_consensus says. Training
    itself may need fewer, for gradients, too, pull models together: it is a bound, good to rank graphs by.

    All-reduce is left out where it has more than a million edges, beyond 1024 ranks.

    Args:
        n: number of ranks.
        nbytes: of an update, as it is sent.
        bandwidth: bytes a second of each rank's link: 1.25e9 for 10 Gb/s.
        latency: seconds that a step takes beside that.
        compute: seconds between two exchanges.
        accuracy: how close models are to come, relative to how far apart they were.

    Returns:
        choices by rising seconds; those that take the same by rising bytes.

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
    """Doubly stochastic graphs of n ranks, some of them the same."""
    if n * (n - 1) <= MOST_EDGES:
        yield graphs.complete(n)
    yield graphs.ring(n)
    yield graphs.ring(n, directed=False)
    yield metropolis(graphs.star(n))
    yield graphs.root_expander(n)
    for degree in range(3, min(5, n)):
        yield graphs.root_expander(n, degree)
    yield graphs.exponential(n)
    yield graphs.one_peer_exponential(n)
    if n & (n - 1) == 0:
        yield graphs.hypercube(n)
    rows = next(rows for rows in range(isqrt(n), 0, -1) if n % rows == 0)
    if rows > 2:
        yield graphs.torus(rows, n // rows)
    for degree in range(3, min(7, n)):
        if n * degree % 2 == 0:
            yield graphs.random_regular(n, degree, seeds=4)


def _checked_accuracy(value: float) -> float:
    accuracy = _real("accuracy", value)
    if not 0 < accuracy < 1:
        raise InvalidArgument(f"accuracy is {accuracy:g}: must be above 0 and below 1, such as 0.01")
    return accuracy


def _real(name: str, value: float) -> float:
    """value as a float, 0 or more."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{name} is {value!r}: must be a number") from None
    if not isfinite(number) or number < 0:
        raise InvalidArgument(f"{name} is {number:g}: must be a finite number, 0 or more")
    return number

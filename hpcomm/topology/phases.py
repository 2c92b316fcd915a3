"""Node communication graphs as a topology: one graph, several that the steps take in turn, or a function that makes
them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from .. import _core
from ..codec import by_key, by_key_out
from ..errors import InvalidArgument
from ..graphs.graph import Graph
from ..graphs.rebuild import among
from ..plan import Plan, chunk_of_part
from ..stage import MOST_INT, Key, as_keys, whole
from .protocol import Job, Request, Topology

Graphs = Graph | Sequence[Graph]


@dataclass(frozen=True)
class Phases(Topology):
    """Every rank keeps its own parameters, and folds its update and its in-neighbours' updates by the weights of a
    graph (ASAP, sections 3 and 4). The steps take several graphs in turn.

    Attributes:
        given: the graphs, one or more. (): the function make returns them.
        make: a function that takes a number of ranks and returns a graph or several. Exchange.recover() calls it with
            the number of remaining ranks.

    Raises:
        InvalidArgument: neither graphs nor a function are given. Phases.graphs() checks that the graphs match the
            number of ranks.
    """

    given: tuple[Graph, ...] = ()
    make: Callable[[int], Graphs] | None = None

    def __post_init__(self) -> None:
        if not all(isinstance(graph, Graph) for graph in self.given) or not (self.given or self.make):
            raise InvalidArgument(
                f"graphs are {self.given!r}: must be one Graph or more, or a function that makes them"
            )

    @property
    def updates_of(self) -> Literal["neighbours"]:
        return "neighbours"

    @property
    def interfaces(self) -> int:
        return 1

    def graphs(self, size: int) -> tuple[Graph, ...]:
        """Returns the graphs for a job of size ranks.

        Raises:
            InvalidArgument: the function makes no graph, or a graph has another number of ranks.
        """
        found = self.given or self._made(size)
        for graph in found:
            if graph.size != size:
                raise InvalidArgument(f"topology is {graph!r}: must have {size} ranks, as the job has")
        return found

    def _made(self, size: int) -> tuple[Graph, ...]:
        assert self.make is not None
        what = f"topology: {getattr(self.make, '__name__', self.make)}({size})"
        try:
            made: object = self.make(size)
        except Exception as wrong:
            raise InvalidArgument(f"{what} cannot make a graph: {str(wrong) or type(wrong).__name__}") from wrong
        found = as_graphs(made)
        if found is None:
            raise InvalidArgument(f"{what} is {made!r}: must be a Graph, or several")
        return found

    def resolved(self, job: Job) -> "Phases":
        return replace(self, given=self.graphs(job.size))

    def compile(self, request: Request) -> Plan:
        """Returns Plan.graph of all phases.

        Under SSP(s) the plan's depth is at least s + 2; if models are trained in place, it is one more. By default a
        chunk has 256 KiB, since the fixed cost of a row is then small. With several cores chunks are smaller, so that
        each core gets about four chunks. The request's field over_sockets is ignored.

        Raises:
            InvalidArgument: reduce is not "mean", which a graph does not need, since its weights say how updates are
                folded; codec_out is given; or graphs or Plan.graph raise it.
        """
        if request.reduce != "mean":
            raise InvalidArgument(f"reduce is {request.reduce!r}: on a graph the weights say how updates are folded")
        own_keys, cores, chunk_bytes = as_keys(request.keys), request.cores, request.chunk_bytes
        names = [key.name for key in own_keys]
        if any(out.name != "float32" for out in by_key_out(names, request.codec_out)):
            raise InvalidArgument(
                f"codec_out is {request.codec_out!r}: on a graph parameters stay at their rank, leave it out"
            )
        rotates = request.in_place and all(one.name == "float32" for one in by_key(names, request.codec))
        return Plan.graph(
            own_keys,
            np.stack([graph.dense() for graph in self.graphs(request.size)]),
            cores=cores,
            chunk_bytes=_chunk(own_keys, cores) if chunk_bytes is None else chunk_bytes,
            depth=_depth(request.depth, request.consistency.staleness or 0, rotates=rotates),
            codec=request.codec,
        )

    def among(self, ranks: Sequence[int], size: int) -> "Phases":
        """Returns phases for the remaining ranks: with the same function make if this topology has one, otherwise with
        the graphs that hpcomm.graphs.among returns."""
        return Phases((), self.make) if self.make else Phases(among(self.given, ranks))


def as_graphs(value: object) -> tuple[Graph, ...] | None:
    """Returns a graph, or a sequence of graphs, as a tuple; None if value is neither."""
    found = (value,) if isinstance(value, Graph) else value
    if not isinstance(found, Sequence) or not found or not all(isinstance(graph, Graph) for graph in found):
        return None
    return tuple(found)


def _chunk(keys: Sequence[Key], cores: object) -> int:
    n, most = whole("cores", cores, 1), 256 << 10
    return chunk_of_part(keys, n, 4, most, 32 << 10) if n > 1 else most


def _depth(depth: object, staleness: int, *, rotates: bool) -> int:
    """Returns the number of slots of a key: one for each step of staleness, one for the update that is folded, one for
    the next update, and one for the model if models rotate through the slots. It may be too large: C refuses a plan
    with more slots than a plan can have."""
    most = _core.PLAN_DEPTH - rotates
    found = whole("depth", depth, 1 if rotates else 0, most if rotates else MOST_INT)
    return (max(found, min(staleness + 2, most)) if staleness else found) + rotates

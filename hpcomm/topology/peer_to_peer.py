"""Peers: each rank applies the updates of all ranks to its own copy of the parameters (SFB, section 3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .. import _core
from ..codec import by_key_out
from ..consistency import ASYNC, BSP, SSP, steps_ahead, with_servers
from ..errors import InvalidArgument
from ..graphs.forwarding import shortest_path_trees
from ..graphs.graph import Graph
from ..graphs.makers import from_edges
from ..graphs.spread import spread
from ..plan import Plan
from ..stage import as_keys, whole
from .protocol import Job, Request, Roles, Topology

_MOST_STALE = _core.PLAN_DEPTH - 2


@dataclass(frozen=True)
class PeerToPeer(Topology):
    """Every rank sends its updates to the others, and applies all updates to its own copy of the parameters; no
    parameters are sent (SFB, section 3). With codec.Factors, P ranks send P (P - 1) K (J + D) values a step for a
    matrix of shape (J, D), if each rank has K pairs of vectors.

    Under BSP all ranks apply all updates of a step in the order of ranks, so all copies have the same bits. With a
    quorum the copies have the same bits too, since for each share (the rows of one key on one core) one rank decides
    which updates are in the fold. Under SSP(s) a rank applies its own update at once. It applies others' updates of the
    same and earlier steps, each at most s steps late (equation 4); until then copies differ. Under ASYNC a rank applies
    all updates that have come, each with weight 1, and may be depth - 2 steps ahead of others.

    Attributes:
        graph: a Graph whose edges say which rank sends to which (section 3, partial broadcast). Copies then differ,
            unless relay is True. The graph's weights are ignored: each update has weight 1 / P with reduce="mean", and
            1 with "sum". None: every rank sends to all others.
        relay: True: ranks pass updates on, unchanged, to ranks to which the sender has no edge. Each update goes down a
            tree of shortest paths, so every rank applies the updates of all ranks once.

    Raises:
        InvalidArgument: graph is not a Graph, relay is not a bool, or relay is True and some rank cannot reach another
            one in the graph.
    """

    graph: Graph | None = None
    relay: bool = False

    def __post_init__(self) -> None:
        if self.graph is not None and not isinstance(self.graph, Graph):
            raise InvalidArgument(f"PeerToPeer: graph is {self.graph!r}: must be a Graph, or None for all to all")
        if not isinstance(self.relay, bool):
            raise InvalidArgument(f"PeerToPeer: relay is {self.relay!r}: must be True or False")
        if self.relay and self.graph is not None:
            shortest_path_trees(self.graph)

    @property
    def all_to_all(self) -> bool:
        """Whether the updates of every rank reach all others."""
        return self.relay or self._direct

    @property
    def _direct(self) -> bool:
        return self.graph is None or int(self.graph.in_degrees.min()) == self.graph.size - 1

    @property
    def apply_at(self) -> str:
        """Where the rule is applied."""
        return "peers"

    @property
    def updates_of(self) -> Literal["all", "neighbours"]:
        return "all" if self.all_to_all else "neighbours"

    @property
    def interfaces(self) -> int:
        return 1

    def roles(self, size: int) -> Roles:
        """Returns all ranks as workers, and all as ranks that fold.

        Raises:
            InvalidArgument: the graph has another number of ranks.
        """
        if self.graph is not None and self.graph.size != size:
            raise InvalidArgument(f"PeerToPeer: graph is {self.graph!r}: must have {size} ranks, as the job has")
        return super().roles(size)

    def refuses(self, job: Job) -> str | None:
        consistency = with_servers(job.consistency)
        staleness = consistency.staleness
        if consistency.quorum is not None and staleness != 0 and consistency != ASYNC:
            return (
                f"consistency is {consistency}: with ASYNC and SSP(s) peers take each update as it comes, and no fold "
                "waits for several: leave quorum out, or give BSP"
            )
        if consistency.quorum is None and consistency not in (BSP, ASYNC) and consistency != SSP(staleness or 0):
            return (
                f"consistency is {consistency}: peers apply each update of each rank once and in order, which needs "
                "BSP, SSP(s) or ASYNC"
            )
        if staleness and staleness > _MOST_STALE:
            return (
                f"consistency is {consistency}: a peer keeps room for s + 2 updates of each rank, of at most "
                f"{_core.PLAN_DEPTH}: give SSP({_MOST_STALE}) or less"
            )
        if job.averages:
            return (
                "its rule is Average, and peers send updates, not models: give a rule that applies updates, or a Graph "
                "as the topology"
            )
        return None

    def compile(self, request: Request) -> Plan:
        """Returns Plan.peer_to_peer. The plan's depth is at least 2; under SSP(s) it is at least s + 2, and under ASYNC
        at least 6. Under ASYNC every update has weight 1. The request's fields interfaces and over_sockets are ignored.

        Raises:
            InvalidArgument: in_place is True, codec_out is given, or roles or Plan.peer_to_peer raise it.
        """
        if request.in_place:
            raise InvalidArgument(
                "in_place is True: peers apply updates, and training in place pushes models: leave it out"
            )
        self.roles(request.size)
        own_keys = as_keys(request.keys)
        if any(out.name != "float32" for out in by_key_out([key.name for key in own_keys], request.codec_out)):
            raise InvalidArgument(f"codec_out is {request.codec_out!r}: peers send no parameters, leave it out")
        least = min(steps_ahead(request.consistency) + 2, _core.PLAN_DEPTH)
        return Plan.peer_to_peer(
            own_keys,
            request.size,
            sends=None if self.graph is None or self.all_to_all else self.graph.dense().T != 0,
            parents=None if self.graph is None or self._direct or not self.relay else shortest_path_trees(self.graph),
            cores=request.cores,
            chunk_bytes=request.chunk_bytes,
            depth=max(whole("depth", request.depth, 0), least),
            codec=request.codec,
            reduce="sum" if request.consistency == ASYNC else request.reduce,
        )

    def among(self, ranks: Sequence[int], size: int) -> "PeerToPeer":
        """Returns peers for the remaining ranks. Without a graph, or with a graph that has no edges, nothing else
        changes. Any other graph is replaced by one that spreads updates well over the remaining ranks, with the same
        out-degree if enough ranks remain."""
        if self.graph is None or self._direct:
            return PeerToPeer()
        if len(ranks) == size:
            return self
        degree = min(int(self.graph.out_degrees.max()), len(ranks) - 1)
        if degree == len(ranks) - 1:
            return PeerToPeer()
        return PeerToPeer(spread(len(ranks), degree) if degree > 0 else from_edges(len(ranks), []), self.relay)

"""Parameter servers in the four placements of PHub (sections 2.1, 3.3 and 4.5)."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from .. import _core
from ..consistency import ASYNC, steps_ahead
from ..errors import ConfigError, InvalidArgument
from ..plan import Plan
from ..stage import choice, whole
from .owner_trees import Trees, as_trees, trees_among, trees_of
from .protocol import Job, Request, Topology

PLACEMENTS = {
    "CC": "colocated, centralized: one worker serves as well",
    "CS": "colocated, sharded: all ranks work, several of them serve",
    "NCC": "not colocated, centralized: one rank only serves (PBox)",
    "NCS": "not colocated, sharded: several ranks only serve",
}


@dataclass(frozen=True)
class ParameterServer(Topology):
    """Workers push updates to servers, which apply them and send the parameters back (PHub, sections 2.1 and 3.3).

        | placement | who serves                                        | who works            |
        |-----------|---------------------------------------------------|----------------------|
        | "CC"      | rank 0, or the one of servers                     | all ranks            |
        | "CS"      | all ranks, or the ranks in servers                | all ranks            |
        | "NCC"     | rank 0, or the one of servers                     | the others           |
        | "NCS"     | the ranks in servers, which must be given         | the others           |

    Attributes:
        placement: one of these names (section 2.2), in upper or lower case.
        servers: a number n, so that ranks 0 to n - 1 serve, or the ranks that serve. None: the table gives them.
        affinity: which of several NICs carries a chunk between a worker and the chunk's owner (section 4.5). "key": the
            NIC of the chunk's core, so each worker uses all NICs. "worker": one NIC for each pair of ranks. Affinity
            never moves a chunk to another core, and has no effect between ranks that share memory or use TCP.
        interfaces: the number of NICs over which each server's chunks are balanced (sections 3.2.4 and 3.3), with any
            transport. None: as many NICs as the servers can use; 1 if the servers have no NIC, or share memory with all
            other ranks.
        apply_at: where the rule is applied. "owners": at servers, which send parameters back. "receivers": servers send
            the folded update, and each worker applies it with its own state. "both": as "receivers", and servers that
            are not workers apply it too. "receivers" and "both" need BSP, SSP(s) or ASYNC; docs/topology.md gives the
            costs.
        tree: the trees down which workers pass folded updates on, unchanged and as soon as they come (Parameter Flow,
            section 3.4). It needs apply_at="receivers" or "both". A Tree: each server uses it, with itself as the root.
            A mapping from ranks of servers to Trees: servers that it does not name send to all workers. "auto": the
            trees that cost the least by hpcomm.model, or no trees if they save no time. None: servers send to all
            workers.

    Raises:
        InvalidArgument: the placement, affinity or apply_at is unknown; servers is neither a number nor ranks;
            interfaces is not a number of NICs; tree has another type; or tree is given with apply_at="owners".
        ConfigError: the placement and servers contradict each other.
    """

    placement: str = "CS"
    servers: int | Iterable[int] | None = None
    affinity: str = "key"
    interfaces: int | None = None
    apply_at: str = "owners"
    tree: Trees = None

    def __post_init__(self) -> None:
        placement = self.placement.upper() if isinstance(self.placement, str) else ""
        if placement not in PLACEMENTS:
            known = "; ".join(f'"{name}" ({meaning})' for name, meaning in PLACEMENTS.items())
            raise InvalidArgument(f"placement is {self.placement!r}: must be one of {known}")
        servers = _servers(self.servers)
        n = len(servers) if isinstance(servers, tuple) else servers
        if placement in ("CC", "NCC") and n not in (None, 1):
            raise ConfigError(
                f"placement {placement} has one server, servers is {self.servers!r}: use {placement[:-1]}S"
            )
        if placement == "NCS" and n is None:
            raise ConfigError("placement NCS needs servers, a number or ranks: they serve and do nothing else")
        choice("affinity", self.affinity, _core.AFFINITIES)
        choice("apply_at", self.apply_at, _core.APPLY_AT)
        object.__setattr__(self, "tree", as_trees(self.tree))
        if self.tree is not None and self.apply_at == "owners":
            raise InvalidArgument(
                f"tree is {self.tree!r} and apply_at 'owners': only folded updates go down a tree; give "
                "apply_at='receivers', or leave tree out"
            )
        if self.interfaces is not None:
            object.__setattr__(self, "interfaces", whole("interfaces", self.interfaces, 1))
        object.__setattr__(self, "placement", placement)
        object.__setattr__(self, "servers", servers)

    def roles(self, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the workers and the servers of a job of size ranks, each in rising order.

        Raises:
            InvalidArgument: servers are out of range.
            ConfigError: no rank is a worker, since all ranks serve and the placement separates servers from workers.
        """
        size = whole("size", size, 1)
        ranks = tuple(range(size))
        if self.servers is None:
            servers = ranks if self.placement == "CS" else (0,)
        elif isinstance(self.servers, int):
            if self.servers > size:
                raise InvalidArgument(f"servers is {self.servers}: a job of {size} ranks has at most {size}")
            servers = ranks[: self.servers]
        else:
            servers = tuple(self.servers)
            if servers[-1] >= size:
                raise InvalidArgument(f"servers has rank {servers[-1]}: the ranks of this job are 0 to {size - 1}")
        if self.placement in ("CC", "CS"):
            return ranks, servers
        workers = tuple(rank for rank in ranks if rank not in set(servers))
        if not workers:
            raise ConfigError(
                f"placement {self.placement} leaves no worker: all {size} ranks would only serve; start more ranks, "
                f"or use {self.placement[1:]}, where servers work as well"
            )
        return workers, servers

    def among(self, ranks: Sequence[int], size: int) -> "ParameterServer":
        """Returns the same placement with the remaining servers. If no server remains, the lowest remaining rank
        serves."""
        living = [ranks.index(rank) for rank in self.roles(size)[1] if rank in ranks]
        rest = self.affinity, self.interfaces, self.apply_at, trees_among(self.tree, ranks, size)
        if not living:  # a former worker serves and works
            return ParameterServer("CC", [0], *rest)
        return ParameterServer(self.placement, living, *rest)

    def resolved(self, job: Job) -> "ParameterServer":
        return self if self.tree != "auto" else replace(self, tree=job.trees(self.roles(job.size)[1]))

    def refuses(self, job: Job) -> str | None:
        return None if self.apply_at == "owners" else refused_at_receivers(self.apply_at, job)

    def compile(self, request: Request) -> Plan:
        """Returns Plan.hub of this placement's workers and servers.

        If receivers apply the rule, the plan's depth is at least s + 2 under SSP(s), and at least 6 under ASYNC.
        tree="auto" means None unless ParameterServer.resolved() has replaced it. The number of NICs is this topology's
        interfaces, or the request's if this topology has None; it is at most the number of cores.
        """
        size, (workers, servers) = request.size, self.roles(request.size)
        cores, interfaces = whole("cores", request.cores, 1), whole("interfaces", request.interfaces, 1)
        cut = request.cut
        if self.apply_at != "owners":
            cut["depth"] = depth_at_receivers(request)
        return Plan.hub(
            request.keys,
            workers,
            servers,
            size,
            interfaces=min(interfaces, cores) if self.interfaces is None else self.interfaces,
            affinity=self.affinity,
            reduce=request.reduce,
            each=request.consistency == ASYNC,
            apply_at=self.apply_at,
            parents=trees_of(self.tree, workers, servers, size),
            **cut,
        )


def depth_at_receivers(request: Request) -> int:
    """Returns the depth of a plan whose receivers apply the rule. Under SSP(s) and ASYNC each version that may be
    pending needs a slot."""
    ahead = steps_ahead(request.consistency)
    least = min(ahead + 2, _core.PLAN_DEPTH) if ahead else 0
    return max(whole("depth", request.depth, 0), least)


def refused_at_receivers(apply_at: str, job: Job) -> str | None:
    """Returns the reason why a job cannot apply its rules at receivers, or None if it can."""
    if job.consistency != ASYNC and job.consistency.quorum is not None:
        return (
            f"consistency is {job.consistency}: with apply_at={apply_at!r} receivers apply folds of all updates, which "
            "needs BSP, SSP(s) or ASYNC, without a quorum"
        )
    return None


def _servers(value: object) -> int | tuple[int, ...] | None:
    """Returns servers as a number, or as ranks in rising order."""
    if value is None:
        return None
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        return whole("servers", value, 1)
    ranks = sorted(whole("servers", rank, 0) for rank in value)
    if not ranks:
        raise InvalidArgument("servers is empty: name one rank at least")
    for rank, following in itertools.pairwise(ranks):
        if rank == following:
            raise InvalidArgument(f"servers has rank {rank} twice: name it once")
    return tuple(ranks)

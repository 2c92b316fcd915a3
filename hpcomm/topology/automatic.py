"""topology="auto": a Hierarchy if some hosts or racks have several ranks, otherwise a flat parameter server."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..consistency import BSP
from ..errors import InvalidArgument
from ..plan import Plan
from .hierarchy import Hierarchy
from .parameter_server import ParameterServer
from .peer_to_peer import PeerToPeer
from .protocol import Job, Request, Topology

_FLAT = ParameterServer()


@dataclass(frozen=True)
class Automatic(Topology):
    """Stands for a Hierarchy or a ParameterServer: Automatic.resolved() chooses one of them for a job.

    It chooses a Hierarchy only under BSP, without a quorum and without custom folds, since the owner would apply a
    custom fold to the sum of a host, not to the updates.

    Attributes:
        apply_at: the argument apply_at of the chosen topology. With "receivers", a chosen ParameterServer has the trees
            that cost the least.
    """

    apply_at: str = "owners"

    def resolved(self, job: Job) -> Topology:
        plain = job.consistency == BSP and job.own_fold is None
        return (automatic(job.hosts, job.racks, self._flat) if plain else self._flat).resolved(job)

    def refuses(self, job: Job) -> str | None:
        return self._flat.refuses(job)

    @property
    def _flat(self) -> ParameterServer:
        return _FLAT if self.apply_at == "owners" else ParameterServer(apply_at=self.apply_at, tree="auto")

    def compile(self, request: Request) -> Plan:
        """Raises InvalidArgument, since Automatic.resolved() must replace this topology before a plan can be made.

        Raises:
            InvalidArgument: always.
        """
        raise InvalidArgument("topology is 'auto', which an Exchange decides: give a ParameterServer or a Hierarchy")


def automatic_pairs(hosts: Sequence[int]) -> Topology:
    """Returns the topology of keys with codec.Factors. If the job has several hosts and some host has several ranks,
    returns a Hierarchy, so that one rank of each host adds the products; otherwise returns PeerToPeer. hosts[i] is the
    lowest rank on rank i's host."""
    return Hierarchy() if 1 < len(set(hosts)) < len(hosts) else PeerToPeer()


def automatic(hosts: Sequence[int], racks: Sequence[str], flat: ParameterServer = _FLAT) -> Topology:
    """Returns the topology that "auto" stands for: a Hierarchy with the apply_at of the argument flat, if there are
    several hosts (or known racks) and some of them have several ranks; otherwise the argument flat. hosts and racks are
    as in Hierarchy.settled."""
    found = Hierarchy(apply_at=flat.apply_at).settled(hosts, racks)
    levels = [level for level in (found.hosts, found.racks) if level]
    several = [level for level in levels if 1 < len(level) < len(hosts)]
    return found if several else flat

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
    """Becomes a Hierarchy or a ParameterServer, which resolved chooses for a job.

    A Hierarchy is possible only under BSP without a quorum, and without custom folds, as these would fold the sum of a
    host again.

    Attributes:
        apply_at: apply_at of the chosen topology. With receivers, the ParameterServer has the trees that cost the
            least.
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
        """Raises InvalidArgument, as the hosts are not known.

        Raises:
            InvalidArgument: always.
        """
        raise InvalidArgument("topology is 'auto', which an Exchange decides: give a ParameterServer or a Hierarchy")


def automatic_pairs(hosts: Sequence[int]) -> Topology:
    """Returns the topology of keys with codec.Factors. If there are several hosts and some host has several ranks, it
    is a Hierarchy, so that one rank of each host adds the products; otherwise PeerToPeer. hosts: for each rank, the
    lowest rank on its host."""
    return Hierarchy() if 1 < len(set(hosts)) < len(hosts) else PeerToPeer()


def automatic(hosts: Sequence[int], racks: Sequence[str], flat: ParameterServer = _FLAT) -> Topology:
    """Returns the topology that "auto" stands for: a Hierarchy with flat's apply_at, if the hosts or the known racks
    are several and some have several ranks; otherwise flat. hosts, racks: as in Hierarchy.settled."""
    found = Hierarchy(apply_at=flat.apply_at).settled(hosts, racks)
    levels = [level for level in (found.hosts, found.racks) if level]
    several = [level for level in levels if 1 < len(level) < len(hosts)]
    return found if several else flat

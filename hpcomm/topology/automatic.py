"""topology="auto": hosts first where that pays, else flat."""

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
    """A Hierarchy or a ParameterServer, as resolved decides for a job. A Hierarchy needs BSP without a quorum, and
    rules without a custom fold, which would fold the sum of a host again.

    Attributes:
        apply_at: of either. Where receivers apply, the ParameterServer has the trees that cost the least.
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
        """Refused: the hosts are not known.

        Raises:
            InvalidArgument: always.
        """
        raise InvalidArgument("topology is 'auto', which an Exchange decides: give a ParameterServer or a Hierarchy")


def automatic_pairs(hosts: Sequence[int]) -> Topology:
    """The topology of keys with codec.Factors: a Hierarchy, where one rank of each host adds the products, if there
    are several hosts and one has several ranks; else PeerToPeer. hosts: by rank: the lowest rank on its host."""
    return Hierarchy() if 1 < len(set(hosts)) < len(hosts) else PeerToPeer()


def automatic(hosts: Sequence[int], racks: Sequence[str], flat: ParameterServer = _FLAT) -> Topology:
    """The topology of "auto": a Hierarchy with flat's apply_at if hosts, or known racks, make several groups and one
    group has several ranks; else flat. hosts, racks: as in Hierarchy.settled."""
    found = Hierarchy(apply_at=flat.apply_at).settled(hosts, racks)
    levels = [level for level in (found.hosts, found.racks) if level]
    several = [level for level in levels if 1 < len(level) < len(hosts)]
    return found if several else flat

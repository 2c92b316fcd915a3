"""Topologies, the values of Exchange(topology=), say which ranks send to which. There are parameter servers,
hierarchies of hosts, peers, trees, and graphs that average models (hpcomm.graphs). Each compiles to a plan. Topology is
the protocol of all topologies, also of a user's own.

    hpcomm.Exchange(ctx, params, hpcomm.topology.HostGraph(hpcomm.graphs.ring(4)))
"""

from .hierarchy import Hierarchy
from .host_graph import HostGraph
from .parameter_server import ParameterServer
from .peer_to_peer import PeerToPeer
from .phases import Phases
from .planned_trees import trees_for
from .protocol import Job, Request, Topology
from .tree import Tree

__all__ = [
    "Hierarchy",
    "HostGraph",
    "Job",
    "ParameterServer",
    "PeerToPeer",
    "Phases",
    "Request",
    "Topology",
    "Tree",
    "trees_for",
]

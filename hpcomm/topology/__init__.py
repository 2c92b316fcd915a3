"""Topologies, which say which ranks send to which: parameter servers, hierarchies of hosts and peers, which compile to
plans, and node communication graphs with their measures. Topology is the protocol of all topologies, also of a user's.

    graph = hpcomm.topology.root_expander(25)
    graph.in_edges(0)                          # whose updates rank 0 takes, with which weights
    hpcomm.topology.spectral_gap(graph)        # how fast updates spread
"""

from ..model import Bandwidths
from .cheapest import CheapestTree, cheapest_tree
from .choose import Choice, bytes_per_step, recommend, steps_to_consensus
from .fairness import check, metropolis
from .forwarding import shortest_path_trees
from .graph import Graph
from .graphs import (
    chain,
    complete,
    exponential,
    from_adjacency,
    from_edges,
    from_networkx,
    hypercube,
    one_peer_exponential,
    random_matchings,
    random_regular,
    ring,
    root_expander,
    star,
    torus,
)
from .hierarchy import Hierarchy
from .host_graph import HostGraph
from .parameter_server import ParameterServer
from .paths import diameter, distances, first_wait
from .peer_to_peer import PeerToPeer
from .phases import Phases
from .planned_trees import trees_for
from .protocol import Job, Topology
from .rebuild import among
from .spectrum import influence, second_singular, spectral_gap
from .spread import spread, spread_gap
from .tree import Tree
from .tree_costs import bandwidth_costs, rack_costs, tree_cost

__all__ = [
    "Bandwidths",
    "CheapestTree",
    "Choice",
    "Graph",
    "Hierarchy",
    "HostGraph",
    "Job",
    "ParameterServer",
    "PeerToPeer",
    "Phases",
    "Topology",
    "Tree",
    "among",
    "bandwidth_costs",
    "bytes_per_step",
    "chain",
    "cheapest_tree",
    "check",
    "complete",
    "diameter",
    "distances",
    "exponential",
    "first_wait",
    "from_adjacency",
    "from_edges",
    "from_networkx",
    "hypercube",
    "influence",
    "metropolis",
    "one_peer_exponential",
    "rack_costs",
    "random_matchings",
    "random_regular",
    "recommend",
    "ring",
    "root_expander",
    "second_singular",
    "shortest_path_trees",
    "spectral_gap",
    "spread",
    "spread_gap",
    "star",
    "steps_to_consensus",
    "torus",
    "tree_cost",
    "trees_for",
]

"""Communication graphs, over which neighbours average models. The package makes graphs, measures them, and chooses a
graph or a broadcast tree for a job. It does not use hpcomm's plans.

    graph = hpcomm.graphs.root_expander(25)
    graph.in_edges(0)                        # (source, weight) of each update that rank 0 averages
    hpcomm.graphs.spectral_gap(graph)        # how fast updates spread
"""

from .cheapest import CheapestTree, cheapest_tree
from .choose import Choice, bytes_per_step, recommend, steps_to_consensus
from .fairness import check, metropolis
from .forwarding import shortest_path_trees
from .graph import Graph
from .makers import (
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
from .paths import diameter, distances, first_wait
from .rebuild import among
from .spectrum import influence, second_singular, spectral_gap
from .spread import spread, spread_gap
from .tree_costs import bandwidth_costs, rack_costs, tree_cost

__all__ = [
    "CheapestTree",
    "Choice",
    "Graph",
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
]

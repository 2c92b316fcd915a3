"""Who sends to whom: parameter servers, which compile to plans, and node communication graphs with their measures.

graph = hpcomm.topology.root_expander(25)
graph.in_edges(0)                          # whose updates rank 0 takes, with which weights
hpcomm.topology.spectral_gap(graph)        # how fast updates spread
"""

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
from .parameter_server import ParameterServer

__all__ = [
    "Graph",
    "ParameterServer",
    "chain",
    "complete",
    "exponential",
    "from_adjacency",
    "from_edges",
    "from_networkx",
    "hypercube",
    "one_peer_exponential",
    "random_matchings",
    "random_regular",
    "ring",
    "root_expander",
    "star",
    "torus",
]

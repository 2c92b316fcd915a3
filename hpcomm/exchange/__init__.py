"""The exchange of updates: arguments in, push and pull on the way, the rows of its owners as plain arrays.

exchange over calls (how C is called), arguments (what is given, checked), keys, snapshot and pieces (what owners keep).
"""

from .calls import Handle
from .exchange import AnyTopology, Exchange, ExchangeStats, Graphs, PeerStats
from .pieces import Shard

__all__ = ["AnyTopology", "Exchange", "ExchangeStats", "Graphs", "Handle", "PeerStats", "Shard"]

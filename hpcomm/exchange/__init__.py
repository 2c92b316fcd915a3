"""The exchange of updates: arguments in, push and pull on the way, the rows of its owners as plain arrays.

exchange: its methods. calls: how they call C. options, arguments: the arguments, and how they are checked. schemes:
which keys have which topology and consistency. codecs, auto: the codec of each key, given or chosen. keys: gradients
and parameters by name. factors: gradients as pairs of vectors. facts: of keys, as C has decided them. state: the
knowledge that hpcomm's other packages use. shards, encoders: the state of owners and encoders, as checkpoints.
"""

from .book import Book
from .calls import Handle
from .exchange import Exchange
from .factors import Pairs
from .options import EngineOptions, PlanOptions
from .shards import Shard
from .split import TwoCalls

__all__ = [
    "Book",
    "EngineOptions",
    "Exchange",
    "Handle",
    "Pairs",
    "PlanOptions",
    "Shard",
    "TwoCalls",
]

"""The exchange of updates: it takes arguments, offers push and pull, and gives the rows of its owners as plain arrays.

exchange.py has the methods of Exchange, split.py the methods of fold and apply in two calls, and calls.py their calls
into C. options.py and arguments.py: the arguments and their checks. schemes.py: which keys have which topology and
consistency. codecs.py and auto.py: the codec of each key, given or chosen. keys.py: gradients and parameters by name.
factors.py: gradients as pairs of vectors. facts.py: facts of keys that C has decided. book.py: facts and rates by which
hpcomm.torch chooses ways. state.py: the part that hpcomm's other packages use. shards.py and encoders.py: the state of
owners and encoders in checkpoints.
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

"""The exchange of updates: it takes arguments, offers push and pull, and gives the rows of its owners as plain arrays.

exchange.py has the methods of Exchange; split.py has fold and apply in two calls; calls.py has the calls into C.
options.py and arguments.py have the arguments and their checks. agreed.py has the ranks' agreement on them. schemes.py
tells which keys have which topology and consistency. codecs.py has the codec of each key; auto.py and trial.py choose
codecs. keys.py has gradients and parameters by name; factors.py has gradients as pairs of vectors. facts.py has facts
of keys that C has decided. book.py has the rates by which hpcomm.torch chooses ways. state.py has the part that
hpcomm's other packages use. shards.py and encoders.py have the state of owners and encoders in checkpoints.
processor.py measures processor time.
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

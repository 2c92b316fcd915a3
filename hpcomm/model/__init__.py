"""The cost model: how many seconds and bytes a step of a plan takes, and how much memory a rank needs for it.

It is a pure function of a plan's rows, the hosts of its ranks and a machine's rates (hpcomm.measure), so it answers for
hypothetical clusters too.

rates: the rates, as values. load: bytes and elements of a step. costs: seconds. memory: bytes that a rank keeps.
way: the way of each layer that costs least (Poseidon). trees: the seconds in which updates go out by trees.
"""

from .costs import (
    busiest_link,
    link_seconds,
    racks_pay,
    saved_seconds,
    step_seconds,
    update_seconds,
    work_seconds,
)
from .load import PARAMETERS, STAGES, UPDATES, Load, Sent, load_of
from .memory import Memory, memory_of
from .rates import DENSE, Bandwidths, CodecRates, Rates
from .trees import broadcast_bytes, broadcast_seconds, push_bytes
from .way import Cluster, Cost, Layer, WayChoice, best_way, cost_of

__all__ = [
    "DENSE",
    "PARAMETERS",
    "STAGES",
    "UPDATES",
    "Bandwidths",
    "Cluster",
    "CodecRates",
    "Cost",
    "Layer",
    "Load",
    "Memory",
    "Rates",
    "Sent",
    "WayChoice",
    "best_way",
    "broadcast_bytes",
    "broadcast_seconds",
    "busiest_link",
    "cost_of",
    "link_seconds",
    "load_of",
    "memory_of",
    "push_bytes",
    "racks_pay",
    "saved_seconds",
    "step_seconds",
    "update_seconds",
    "work_seconds",
]

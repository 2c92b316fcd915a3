"""The cost model: it predicts the seconds and bytes of a plan's step, and the memory that each rank needs for the plan.

The model computes from a plan's rows, the hosts of the ranks and the rates of a machine (hpcomm.measure) alone, so it
also predicts for clusters that do not exist.

Modules: `rates` has the rates, as values; `load` counts the bytes and elements of a step; `costs` predicts the seconds
of a step; `memory` counts the bytes that a rank needs; `way` finds the cheapest way to exchange each layer (Poseidon);
`trees` predicts the seconds of broadcasts down trees.
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

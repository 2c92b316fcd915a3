"""The seconds of a step, from its load and the machine's rates.

Nothing is taken to overlap: a step waits for the busiest host's link and then for the busiest rank's work. That
compares plans and codecs; an exchange, which does much at once, is mostly faster.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .load import STAGES, UPDATES, Load
from .rates import DENSE, Bandwidths, CodecRates, Rates

Seconds = NDArray[np.float64]


def step_seconds(load: Load, rates: Rates, codecs: Sequence[CodecRates] = ()) -> float:
    """Seconds of a step of all keys: latency, link and work. For a graph whose phases take turns, take their mean.
    codecs: by key, the rates of its codec of pieces; (): updates are arrays."""
    out, into = (side.sum(axis=0) for side in load.by_host(STAGES, codecs))
    work = work_seconds(load, rates, codecs).sum(axis=0)
    return link_seconds(busiest_link(out, into), rates) + float(work.max(initial=0.0))


def busiest_link(out: NDArray[np.generic], into: NDArray[np.generic]) -> float:
    """Bytes that the busiest link carries in one direction, as both work at the same time."""
    return float(max(out.max(initial=0), into.max(initial=0)))


def link_seconds(nbytes: float, rates: Rates) -> float:
    return rates.latency + nbytes / rates.between


def work_seconds(load: Load, rates: Rates, codecs: Sequence[CodecRates] = ()) -> Seconds:
    """Seconds, float64 (keys, ranks), that each rank folds, encodes, decodes, copies, and writes within its host."""
    by_key = codecs or (DENSE,) * load.keys
    encode, decode = (np.array([[getattr(codec, name)] for codec in by_key]) for name in ("encode", "decode"))
    found: Seconds = (
        load.folds * rates.fold
        + load.encodes * encode
        + load.decodes * decode
        + load.copies / rates.memory
        + load.inside() / rates.inside
    )
    return found


def update_seconds(load: Load, between: float, codecs: Sequence[CodecRates] = ()) -> Seconds:
    """Seconds, float64 (keys,), of each key's updates by themselves: on the busiest host's link, and of the ranks that
    encode and decode most. codec="auto" chooses by it. between: bytes a second of a host's link to other hosts."""
    out, into = load.by_host(UPDATES, codecs)
    by_key = codecs or (DENSE,) * load.keys
    encode, decode = (np.array([getattr(codec, name) for codec in by_key]) for name in ("encode", "decode"))
    carried = np.maximum(out.max(axis=1), into.max(axis=1))
    found: Seconds = carried / between + load.encodes.max(axis=1) * encode + load.decodes.max(axis=1) * decode
    return found


def saved_seconds(bytes_before: int, nbytes: int, working: float, between: float) -> float:
    """Seconds that a codec has saved, by its bytes as float32 and as pieces, its seconds of working, and the bytes a
    second between hosts."""
    return (bytes_before - nbytes) / between - working


def racks_pay(bandwidths: Bandwidths, hosts: float, racks: int) -> bool:
    """Whether folding in each rack first is faster, by the model of PHub, section 3.4:
    N(R-1)/(R B_Core) > max(N/B_PBox, 1/B_Wkr) + C, where C = (R-1)/(R min(B_PBox, B_Core)), N is hosts of a rack, and
    R is racks."""
    leader = hosts * bandwidths.host if bandwidths.leader is None else bandwidths.leader
    crossing = (racks - 1) / racks
    flat = hosts * crossing / bandwidths.core
    return flat > max(hosts / leader, 1 / bandwidths.host) + crossing / min(leader, bandwidths.core)

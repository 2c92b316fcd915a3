"""The seconds of a step, from its load and the machine's rates.

The model assumes no overlap: a step first waits for the busiest host's link, then for the busiest rank's work. This
suffices to compare plans and codecs. An exchange is usually faster, since it sends and works at the same time.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .load import STAGES, UPDATES, Load
from .rates import DENSE, Bandwidths, CodecRates, Rates

Seconds = NDArray[np.float64]


def step_seconds(load: Load, rates: Rates, codecs: Sequence[CodecRates] = ()) -> float:
    """Returns the seconds of a step of all keys: latency, link and work. For a graph with several phases, take the mean
    over the phases. codecs[k] has the rates of key k's codec of pieces; with codecs=() all updates are arrays."""
    out, into = (side.sum(axis=0) for side in load.by_host(STAGES, codecs))
    work = work_seconds(load, rates, codecs).sum(axis=0)
    return link_seconds(busiest_link(out, into), rates) + float(work.max(initial=0.0))


def busiest_link(out: NDArray[np.generic], into: NDArray[np.generic]) -> float:
    """Returns the bytes that the busiest link carries in one direction. Only the fuller direction counts, since both
    work at the same time."""
    return float(max(out.max(initial=0), into.max(initial=0)))


def link_seconds(nbytes: float, rates: Rates) -> float:
    return rates.latency + nbytes / rates.between


def work_seconds(load: Load, rates: Rates, codecs: Sequence[CodecRates] = ()) -> Seconds:
    """Returns the seconds, float64 (keys, ranks), that each rank spends on folds, encoding, decoding, copies, and
    writes within its host."""
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
    """Returns the seconds, float64 (keys,), of each key's updates without its parameters: the time on the busiest
    host's link, plus the time of the rank that encodes and decodes longest. codec="auto" chooses by this time. between:
    the bandwidth of a host's link to other hosts, in bytes a second."""
    out, into = load.by_host(UPDATES, codecs)
    by_key = codecs or (DENSE,) * load.keys
    encode, decode = (np.array([getattr(codec, name) for codec in by_key]) for name in ("encode", "decode"))
    carried = np.maximum(out.max(axis=1), into.max(axis=1))
    found: Seconds = carried / between + load.encodes.max(axis=1) * encode + load.decodes.max(axis=1) * decode
    return found


def saved_seconds(bytes_before: int, nbytes: int, working: float, between: float) -> float:
    """Returns the seconds that a codec has saved; below 0 if the codec costs time. bytes_before: bytes of the updates
    as float32; nbytes: bytes of their pieces; working: seconds of encoding and decoding; between: bandwidth between
    hosts, in bytes a second."""
    return (bytes_before - nbytes) / between - working


def racks_pay(bandwidths: Bandwidths, hosts: float, racks: int) -> bool:
    """Returns whether it is faster to fold in each rack first, by the model of PHub, section 3.4: N(R-1)/(R B_Core) >
    max(N/B_PBox, 1/B_Wkr) + C, where C = (R-1)/(R min(B_PBox, B_Core)). N, the argument hosts, is the number of hosts
    in a rack; R, the argument racks, is the number of racks; the B are fields of Bandwidths."""
    leader = hosts * bandwidths.host if bandwidths.leader is None else bandwidths.leader
    crossing = (racks - 1) / racks
    flat = hosts * crossing / bandwidths.core
    return flat > max(hosts / leader, 1 / bandwidths.host) + crossing / min(leader, bandwidths.core)

"""The choice of a way for each layer by its cost on this job's machines (Poseidon, section 3.2)."""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .. import _core, measure
from ..codec import BFLOAT16, FLOAT32, Codec, Factors, OneBit, Products, TopK, WireFormat
from ..context import Context
from ..errors import InvalidArgument
from ..exchange import Exchange
from ..model import Cluster, CodecRates, Layer, Rates, WayChoice, best_way

LOSSY: tuple[WireFormat, ...] = (BFLOAT16, TopK(0.01), OneBit())
WAYS = ("ps", "factors", "1bit")  # values of WayChoice.name
_MEMORY = 0.5  # the part of a host's available memory that its ranks may use for factors
_BYTES = struct.Struct("<q")


@dataclass(frozen=True)
class Decision:
    """The chosen ways and codecs, with the numbers that led to them.

    Attributes:
        ways: for each key name, its way, and the lossy codec that was chosen for it or None.
        choices: for each key name, the cost of each way.
        rates: the measured rates of the machine; None if they were not measured.
        codecs: the rates of the lossy codecs that were compared.
        free: how many bytes of memory factors may use on each rank.
    """

    ways: Mapping[str, tuple[str, WireFormat | None]] = field(default_factory=dict)
    choices: Mapping[str, WayChoice] = field(default_factory=dict)
    rates: Rates | None = None
    codecs: Mapping[WireFormat, CodecRates] = field(default_factory=dict)
    free: float = 0.0


def decide(ctx: Context, layers: Sequence[Layer], cluster: Cluster, by: str, codecs: Sequence[WireFormat]) -> Decision:
    """Returns the way of each layer. All ranks take rank 0's decision. Collective.

    Args:
        by: the rule of the choice, as in Book.best_way.
        codecs: lossy codecs to compare. They are compared only if ranks send to other hosts, since ranks of one host
            map each other's memory and send nothing.
    """
    rates, costs = None, {}
    if by == "measured":
        limit = ctx.config.timeout
        rates = measure.measure_rates(ctx, limit)
        if rates.between < math.inf:
            costs = {one: measure.codec_rates(ctx, one, Exchange, limit) for one in codecs}
        rates = replace(rates, multiply=measure.multiply_rate(ctx, Exchange, limit))
    available = [n for (n,) in map(_BYTES.unpack, ctx.allgather(_BYTES.pack(_core.memory_available())))]
    left = free = _MEMORY * min(available) / math.ceil(cluster.workers / (cluster.hosts or 1))
    choices = {}
    for layer in layers:
        own = {one: cost for one, cost in costs.items() if one.refuses(layer.shape) is None}
        choice = best_way(layer, cluster, rates, by=by, codecs=own, memory=max(1.0, left))
        choices[layer.name] = choice
        left -= choice.cost.memory if choice.name == "factors" else 0
    numbers = (None, *costs)
    picked = [(WAYS.index(one.name), numbers.index(one.codec)) for one in choices.values()]
    first = ctx.allgather(bytes(n for pair in picked for n in pair))[0]
    ways = {
        name: (WAYS[way], numbers[codec]) for name, way, codec in zip(choices, first[::2], first[1::2], strict=True)
    }
    return Decision(ways, choices, rates, costs, free)


def check_lossy(lossy: Any, word: str, codec: Any) -> tuple[WireFormat, ...]:
    """Returns the lossy codecs that may be chosen. word: the value of way=, or "" if that is a mapping. codec: the
    value of codec=.

    Raises:
        InvalidArgument: lossy is neither a bool nor a list of codecs, or another argument already sets the codecs of
        keys.
    """
    if isinstance(lossy, bool):
        found = LOSSY if lossy else ()
    else:
        found = tuple(lossy) if isinstance(lossy, Sequence) and not isinstance(lossy, str) else (lossy,)
        for one in found:
            fits = isinstance(one, Codec) and one != FLOAT32
            if isinstance(one, Factors | Products) or not (fits or _sends_pieces(one)):
                raise InvalidArgument(
                    f"lossy has {one!r}: must be True, False, or lossy values of hpcomm.codec, such as Threshold(1e-3)"
                )
    if found and word != "auto":
        raise InvalidArgument(
            f'lossy is {lossy!r}, and way is not "auto", which alone chooses codecs: leave one of the two out'
        )
    if found and codec is not None and not isinstance(codec, Mapping):
        raise InvalidArgument(f"lossy is {lossy!r}, and codec is {codec!r} for all keys: leave one of the two out")
    return found


def _sends_pieces(codec: Any) -> bool:
    return isinstance(codec, WireFormat) and codec.settings(()) is not None

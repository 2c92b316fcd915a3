"""codec="auto": when an exchange is made, hpcomm.model predicts for which keys a codec is faster than float32."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..codec import FLOAT32, Auto, Factors, Products, WireFormat, asked
from ..context import Context
from ..measure import between_hosts, codec_rates, hosts_of
from ..model import UPDATES, busiest_link, load_of, update_seconds
from ..optim import AnyRule, Average
from ..plan import Plan
from ..stage import Key

_SHORT = 4096  # elements; smaller keys are always sent as float32


@dataclass(frozen=True)
class Decided:
    """The codecs that were chosen for the keys of an exchange.

    Attributes:
        codecs: the codec of every key.
        why: for each key whose codec hpcomm chose, a sentence with the reason.
        between: the measured rate of a host's link to other hosts, in bytes per second; None if it was not measured.
    """

    codecs: dict[str, WireFormat]
    why: dict[str, str]
    between: float | None


def undecided(keys: Sequence[str], codec: Any) -> dict[str, Auto]:
    """Returns the keys whose codec hpcomm must choose, each with its Auto."""
    return {key: one for key, one in zip(keys, asked(keys, codec), strict=True) if isinstance(one, Auto)}


def tried(shapes: Mapping[str, Sequence[int]], codec: Any) -> dict[str, WireFormat]:
    """Returns a codec for each key. A key whose codec is not decided gets the codec that may be chosen for it; if that
    codec does not fit the key, float32."""
    found = dict(zip(shapes, asked(tuple(shapes), codec), strict=True))
    for key, one in found.items():
        if isinstance(one, Auto):
            found[key] = FLOAT32 if one.codec.refuses(shapes[key]) else one.codec
    return found


def decided(
    ctx: Context,
    plan: Plan,
    codec: Any,
    rules: Mapping[str, AnyRule],
    make: Callable[..., Any],
    timeout: float,
    step: Callable[[Key, Sequence[Factors | Products]], Sequence[float]],
) -> Decided:
    """Chooses the codecs. Collective; call it once all ranks have accepted their arguments.

    Args:
        plan: the plan that was made with the codecs of tried.
        rules: the rule of each key.
        make: hpcomm.Exchange; exchanges are made for measuring codecs.
        step: a function that measures how many seconds a step of a key takes with each of the given codecs.
    """
    keys = [key.name for key in plan.keys]
    codecs, open_ = tried({key.name: key.shape for key in plan.keys}, codec), undecided(keys, codec)
    why: dict[str, str] = {}
    hosts = hosts_of(ctx, timeout)
    is_mapped = len(set(hosts)) == 1
    for own in plan.keys:
        if own.name not in open_:
            continue
        asks = open_[own.name].codec
        if (refused := asks.refuses(own.shape)) is not None:
            why[own.name] = refused
        elif isinstance(asks, Factors) and own.count >= _SHORT and not isinstance(rules[own.name], Average):
            by_pairs, by_array = step(own, (asks, Products(asks.K)))
            why[own.name] = f"a step took {by_pairs:.3g} s by {asks} and {by_array:.3g} s in float32"
            if by_pairs <= by_array:
                del open_[own.name]
                continue
        elif is_mapped:
            why[own.name] = "all ranks map each other's memory, where nothing is sent"
        elif isinstance(rules[own.name], Average):
            why[own.name] = "its rule is Average: a model is no update of which a part can come later"
        elif own.count < _SHORT:
            why[own.name] = f"it has {own.count} elements: fewer than {_SHORT} take as long in float32"
        else:
            continue
        codecs[own.name] = Products(asks.K) if isinstance(asks, Factors) and len(own.shape) == 2 else FLOAT32
        del open_[own.name]
    if not open_:
        return Decided(codecs, why, None)
    rates = {one: codec_rates(ctx, one, make, timeout) for one in dict.fromkeys(one.codec for one in open_.values())}
    between = between_hosts(ctx, hosts, timeout)
    load = load_of(plan, hosts)
    dense = update_seconds(load, between)
    for key, asks in open_.items():
        at, cost = keys.index(key), rates[asks.codec]
        coded = update_seconds(load, between, [cost] * len(keys))[at]
        if coded >= dense[at]:
            codecs[key] = FLOAT32
        crosses = busiest_link(*(side[at] for side in load.by_host(UPDATES)))
        why[key] = (
            f"{asks.codec} is to take {coded:.3g} s a step and float32 {dense[at]:.3g} s: {crosses:.0f} bytes go "
            f"between hosts, at {between / 1e6:.0f} MB/s; the codec leaves {cost.ratio:.3f} of them, and takes "
            f"{cost.encode * 1e9:.2f} ns an element to encode and {cost.decode * 1e9:.2f} ns to decode"
        )
    return Decided(codecs, why, between)

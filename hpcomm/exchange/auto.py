"""The choice of the keys that a codec makes faster, when an exchange with codec="auto" is made, by hpcomm.model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..codec import FLOAT32, Auto, WireFormat, asked
from ..context import Context
from ..measure import between_hosts, codec_rates, hosts_of
from ..model import UPDATES, busiest_link, load_of, update_seconds
from ..optim import AnyRule, Average
from ..plan import Plan

_SHORT = 4096  # elements of a key that is float32 in any case


@dataclass(frozen=True)
class Decided:
    """The decision for the keys of an exchange.

    Attributes:
        codecs: of every key.
        why: of the keys that left it to the exchange, a sentence.
        between: bytes a second of a host's link to other hosts; None: it was not measured.
    """

    codecs: dict[str, WireFormat]
    why: dict[str, str]
    between: float | None


def undecided(keys: Sequence[str], codec: Any) -> dict[str, Auto]:
    """The keys that leave their codec to the exchange."""
    return {key: one for key, one in zip(keys, asked(keys, codec), strict=True) if isinstance(one, Auto)}


def tried(keys: Sequence[str], codec: Any) -> dict[str, WireFormat]:
    """The codecs of the keys, if each that is left to the exchange were taken."""
    return {key: one.codec if isinstance(one, Auto) else one for key, one in zip(keys, asked(keys, codec), strict=True)}


def decided(
    ctx: Context, plan: Plan, codec: Any, rules: Mapping[str, AnyRule], make: Callable[..., Any], timeout: float
) -> Decided:
    """Collective, once all ranks have accepted. plan: that of the codecs tried. rules: by key. make: Exchange, which
    measures codecs."""
    keys = [key.name for key in plan.keys]
    codecs, open_ = tried(keys, codec), undecided(keys, codec)
    why: dict[str, str] = {}
    hosts = hosts_of(ctx, timeout)
    if len(set(hosts)) == 1:
        mapped = "all ranks map each other's memory, where nothing is sent"
        return Decided({**codecs, **dict.fromkeys(open_, FLOAT32)}, dict.fromkeys(open_, mapped), None)
    for own in plan.keys:
        if own.name not in open_:
            continue
        if isinstance(rules[own.name], Average):
            why[own.name] = "its rule is Average: a model is no update of which a part can come later"
        elif own.count < _SHORT:
            why[own.name] = f"it has {own.count} elements: fewer than {_SHORT} take as long in float32"
        else:
            continue
        codecs[own.name] = FLOAT32
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

"""Which keys a codec makes faster: measured when an exchange is made, for codec="auto"."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from ..codec import FLOAT32, Auto, WireFormat, asked
from ..context import Context
from ..measure import carried, hosts_of
from ..optim import SGD
from ..plan import ELEMENT, Plan
from ..topology import ParameterServer

_MAPPED = ("self", "shm")
_TRIED = 1 << 17  # elements of the update that is encoded and decoded
_STEPS = 10  # of which the first half finds the delta, and the best of the others counts
_SHORT = 4096  # elements of a key that is float32 in any case
_CARRIED = 4 << 20  # bytes that a rank of each host writes to the next host
_COSTS = struct.Struct("<3d")


@dataclass(frozen=True)
class Costs:
    """What a codec takes, on the slowest rank.

    Attributes:
        ratio: bytes of pieces by bytes of float32.
        encode, decode: seconds an element.
    """

    ratio: float
    encode: float
    decode: float


@dataclass(frozen=True)
class Decided:
    """What was decided of the keys.

    Attributes:
        codecs: of every key.
        why: of the keys that left it to the exchange, a sentence.
        bandwidth: bytes a second between hosts; None: it was not measured.
    """

    codecs: dict[str, WireFormat]
    why: dict[str, str]
    bandwidth: float | None


def undecided(keys: Sequence[str], codec: Any) -> dict[str, Auto]:
    """The keys that leave their codec to the exchange."""
    return {key: one for key, one in zip(keys, asked(keys, codec), strict=True) if isinstance(one, Auto)}


def tried(keys: Sequence[str], codec: Any) -> dict[str, WireFormat]:
    """The codecs of the keys, if each that is left to the exchange were taken."""
    return {key: one.codec if isinstance(one, Auto) else one for key, one in zip(keys, asked(keys, codec), strict=True)}


def decided(ctx: Context, plan: Plan, codec: Any, make: Callable[..., Any], timeout: float) -> Decided:
    """Collective. plan: that of the codecs tried. make: Exchange, whose creation comes first: a rank that refuses its
    arguments meanwhile is heard there."""
    keys = [key.name for key in plan.keys]
    codecs, open_ = tried(keys, codec), undecided(keys, codec)
    why: dict[str, str] = {}
    if all(peer.transport in _MAPPED for peer in ctx.peers):
        mapped = "all ranks map each other's memory, where nothing is sent"
        return Decided({**codecs, **dict.fromkeys(open_, FLOAT32)}, dict.fromkeys(open_, mapped), None)
    for own in plan.keys:
        if own.name in open_ and own.count < _SHORT:
            codecs[own.name] = FLOAT32
            why[own.name] = f"it has {own.count} elements: fewer than {_SHORT} take as long in float32"
            del open_[own.name]
    if not open_:
        return Decided(codecs, why, None)
    costs = {one: _costs(ctx, one, make, timeout) for one in dict.fromkeys(one.codec for one in open_.values())}
    hosts = hosts_of(ctx, timeout)
    leads = sorted(set(hosts))
    flows = [(rank, leads[(i + 1) % len(leads)]) for i, rank in enumerate(leads)]
    bandwidth = carried(ctx, flows, _CARRIED, timeout) / len(flows)
    loads = _loads(plan, np.array(hosts))
    for key, asks in open_.items():
        load, cost = loads[keys.index(key)], costs[asks.codec]
        dense = load.crosses / bandwidth
        coded = dense * cost.ratio + load.encodes * cost.encode + load.decodes * cost.decode
        if coded >= dense:
            codecs[key] = FLOAT32
        why[key] = (
            f"{asks.codec} is to take {coded:.3g} s a step and float32 {dense:.3g} s: {load.crosses} bytes go between "
            f"hosts, at {bandwidth / 1e6:.0f} MB/s; the codec leaves {cost.ratio:.3f} of them, and takes "
            f"{cost.encode * 1e9:.2f} ns an element to encode and {cost.decode * 1e9:.2f} ns to decode"
        )
    return Decided(codecs, why, bandwidth)


def _costs(ctx: Context, codec: WireFormat, make: Callable[..., Any], timeout: float) -> Costs:
    """By an exchange of its own, of random updates with a normal distribution; each rank owns its part of them."""
    random = np.random.default_rng(ctx.rank)
    with make(
        ctx,
        {"trial": np.zeros(_TRIED, np.float32)},
        ParameterServer(),
        rule=SGD(lr=0.0),
        codec=codec.trial(),
        cores=1,
        progress="inline",
        timeout=timeout,
    ) as ex:
        seen = []
        for _ in range(_STEPS):
            ex.push_pull("trial", random.standard_normal(_TRIED, np.float32))
            ctx.barrier(timeout)  # owners have folded what the others pushed
            seen.append(_core.codec_stats(ex._handle, 0))
    best = [
        min((now[name] - before[name]) / _TRIED for before, now in pairwise(seen[_STEPS // 2 :]))
        for name in ("encode", "decode")
    ]
    sent, before = (seen[-1][name] - seen[-2][name] for name in ("bytes", "bytes_before"))
    ratio = sent / max(1, before)
    every = [_COSTS.unpack(part) for part in ctx.allgather(_COSTS.pack(ratio, *best), timeout)]
    return Costs(*(max(column) for column in zip(*every, strict=True)))


@dataclass(frozen=True)
class _Load:
    """What a key has in a step. crosses: bytes of float32, into or out of the host that has most of them. encodes,
    decodes: elements, of the rank that has most."""

    crosses: int
    encodes: int
    decodes: int


def _loads(plan: Plan, hosts: NDArray[np.int64]) -> list[_Load]:
    row, source, fold = plan.rows.inputs()
    updates = plan.rows.column("action")[row] != _core.ACTIONS["relay"]  # the others are parameters
    row, source, fold = row[updates], source[updates], fold[updates]
    key, offset, count, owner = (
        plan.rows.column(name).astype(np.int64)[row] for name in ("key", "offset", "count", "owner")
    )
    goes = hosts[source] != hosts[owner]
    wires = np.where(fold < 0, plan.rows.column("codec_in")[row], plan.rows.column("codec_out")[np.maximum(fold, 0)])
    coded = np.isin(wires, list(_core.PIECES.values()))
    first = np.zeros(len(row), bool)  # what goes to several rows is encoded once
    first[np.unique(np.stack([source, key, offset, fold]), axis=1, return_index=True)[1]] = True
    n, size = len(plan.keys), len(hosts)

    def most(of: NDArray[np.int64], where: NDArray[np.bool_]) -> list[int]:
        """By key: the sum of counts of the rank, or of the host, that has most."""
        sums = np.zeros((n, size), np.int64)
        np.add.at(sums, (key[where], of[where]), count[where])
        return sums.max(axis=1).tolist()  # type: ignore[no-any-return]

    out, into = most(hosts[source], goes), most(hosts[owner], goes)
    encodes, decodes = most(source, first & coded), most(owner, coded)
    return [_Load(ELEMENT * max(o, i), e, d) for o, i, e, d in zip(out, into, encodes, decodes, strict=True)]

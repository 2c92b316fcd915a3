"""The rates of a context's machine, measured once and kept, by which hpcomm.model predicts.

Measuring is collective. Before each measurement the ranks agree whether all of them have its result already.
"""

import math
import statistics
import struct
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from . import _core
from .codec import Codec, Factors, WireFormat
from .context import Context
from .model import Bandwidths, CodecRates, Rates
from .optim import SGD
from .topology import Hierarchy, ParameterServer, PeerToPeer

_ROUNDS = 3
_TIME = struct.Struct("<d")
_CODEC = struct.Struct("<3d")
_CARRIED = 4 << 20  # bytes that a rank writes to another
_WORKED = 1 << 20  # elements that a rank copies, and folds
_TRIED = 1 << 17  # elements of the update that is encoded and decoded
_SIDE, _PAIRS = 1024, 320  # of the matrix whose pairs are added; of all ranks, about where the choice is close
_STEPS = 10  # of which the first half finds the delta, and the best of the others counts

Flows = Sequence[tuple[int, int]]  # ranks that write, and the ranks that they write to
T = TypeVar("T")

_kept: WeakKeyDictionary[Context, dict[Hashable, Any]] = WeakKeyDictionary()


def once(ctx: Context, what: Hashable, measure: Callable[[], T], timeout: float | None) -> T:
    """The result of measure, which is kept for the context. Collective: where a rank has none, because its measurement
    failed, all ranks measure again."""
    own = _kept.setdefault(ctx, {})
    if not all(map(any, ctx.allgather(bytes([what in own]), timeout))):
        own[what] = measure()
    found: T = own[what]
    return found


def measure_rates(ctx: Context, timeout: float | None = None, *, topology: Hierarchy | None = None) -> Rates:
    """The rates of this context's machine, by which hpcomm.model predicts. Collective; all ranks get the same numbers,
    of the slowest rank and link. They are measured once for a context, each as the best of three rounds.

    Args:
        ctx: the ranks.
        timeout: seconds for each part; None means the context's default.
        topology: the same on all ranks: if it has several racks, one of them with several hosts, Rates.racks has their
            bandwidths, for Hierarchy(bandwidths=...). The context gives hosts and racks that it leaves out.

    Raises:
        InvalidArgument: as Hierarchy.levels.
    """
    hosts = hosts_of(ctx, timeout)
    return Rates(
        between=between_hosts(ctx, hosts, timeout),
        inside=once(ctx, "inside", lambda: _inside(ctx, hosts, timeout), timeout),
        memory=once(ctx, "memory", lambda: 4 * _WORKED / _slowest(ctx, _copier(), timeout), timeout),
        fold=once(ctx, "fold", lambda: _slowest(ctx, _folder(), timeout) / (2 * _WORKED), timeout),
        racks=None if topology is None else _of_racks(ctx, topology, timeout),
    )


def hosts_of(ctx: Context, timeout: float | None = None) -> list[int]:
    """The lowest of the ranks that map each rank's memory, itself among them. Collective."""
    mine = bytes(peer.maps or peer.rank == ctx.rank for peer in ctx.peers)
    return [part.index(1) for part in ctx.allgather(mine, timeout)]


def between_hosts(ctx: Context, hosts: Sequence[int], timeout: float | None) -> float:
    """Bytes a second that a host's link carries when a rank of each host writes to the next host; inf if there is but
    one. Collective."""
    leads = sorted(set(hosts))
    found: float = once(ctx, "between", lambda: _ring(ctx, [leads], timeout), timeout)
    return found


def _inside(ctx: Context, hosts: Sequence[int], timeout: float | None) -> float:
    groups = [[rank for rank, host in enumerate(hosts) if host == lead] for lead in sorted(set(hosts))]
    return _ring(ctx, groups, timeout)


def _ring(ctx: Context, groups: Sequence[Sequence[int]], timeout: float | None) -> float:
    """Bytes a second of each rank, when all write to the next one of their group at once."""
    flows = [(rank, group[(i + 1) % len(group)]) for group in groups if len(group) > 1 for i, rank in enumerate(group)]
    return carried(ctx, flows, _CARRIED, timeout) / len(flows) if flows else math.inf


def _slowest(ctx: Context, work: Callable[[], None], timeout: float | None) -> float:
    """Seconds of the slowest rank while all work: of each rank its best round."""
    taken = math.inf
    work()  # the first time, pages are new
    for _ in range(_ROUNDS):
        ctx.barrier(timeout)
        start = time.monotonic()
        work()
        taken = min(taken, time.monotonic() - start)
    every: list[float] = [_TIME.unpack(part)[0] for part in ctx.allgather(_TIME.pack(taken), timeout)]
    return max(every)


def _copier() -> Callable[[], None]:
    source, target = np.ones(_WORKED, np.float32), np.empty(_WORKED, np.float32)
    return lambda: np.copyto(target, source)


def _folder() -> Callable[[], None]:
    inputs, total = [np.ones(_WORKED, np.float32), np.ones(_WORKED, np.float32)], np.empty(_WORKED, np.float32)
    return lambda: _core.fold(total, inputs, [0.5, 0.5])


def codec_rates(ctx: Context, codec: WireFormat, make: Callable[..., Any], timeout: float) -> CodecRates:
    """The rates of a codec, on the slowest rank. Collective; measured once for a context.

    For a codec of pieces a separate exchange pushes random updates with a normal distribution, and each rank owns its
    part of them. A codec that is tried as another one (WireFormat.trial) is measured as that. Arrays of 16 bits are
    encoded, and folded beside arrays of float32.

    Args:
        ctx: the ranks.
        codec: a value of hpcomm.codec that sends pieces, or arrays of 16 bits.
        make: hpcomm.Exchange.
        timeout: seconds for each part.
    """
    trial = codec.trial()
    if isinstance(trial, Codec):
        return once(ctx, ("codec", trial), lambda: _narrowed(ctx, trial, timeout), timeout)
    return once(ctx, ("codec", trial), lambda: _tried(ctx, trial, make, timeout), timeout)


def multiply_rate(ctx: Context, make: Callable[..., Any], timeout: float | None) -> float:
    """Floating-point operations a second by which the slowest rank adds up products of pairs of vectors, while all do.
    Collective; measured once for a context.

    Args:
        ctx: the ranks.
        make: hpcomm.Exchange.
        timeout: seconds for each part.
    """
    found: float = once(ctx, "multiply", lambda: _multiplied(ctx, make, timeout), timeout)
    return found


def _multiplied(ctx: Context, make: Callable[..., Any], timeout: float | None) -> float:
    random = np.random.default_rng(ctx.rank)
    pairs = -(-_PAIRS // ctx.size)
    u, v = random.standard_normal((2, pairs, _SIDE), np.float32)
    busy = []
    with make(
        ctx,
        {"trial": np.zeros((_SIDE, _SIDE), np.float32)},
        PeerToPeer(),
        rule=SGD(lr=0.0),
        codec=Factors(pairs),
        progress="inline",
        timeout=timeout,
    ) as ex:
        for _ in range(2 + 2 * _ROUNDS):  # in the first one pages are new
            ctx.barrier(timeout)
            ex.push_pull("trial", (u, v))
            busy.append(ex.stats().busy)
    mine = statistics.median(now - before for before, now in pairwise(busy))  # ranks may share cores, more or less
    taken = max(_TIME.unpack(part)[0] for part in ctx.allgather(_TIME.pack(mine), timeout))
    found: float = 2 * ctx.size * pairs * _SIDE * _SIDE / taken
    return found


def forget(ctx: Context) -> None:
    """Drops the rates of a context: the next call measures them again. Every rank calls it."""
    _kept.pop(ctx, None)


def _narrowed(ctx: Context, codec: Codec, timeout: float) -> CodecRates:
    dtype, source = _core.CODECS[codec.name], np.ones(_WORKED, np.float32)
    wire, total = np.empty(_WORKED, np.uint16), np.empty(_WORKED, np.float32)
    encode = _slowest(ctx, lambda: _core.encode(wire, source, dtype), timeout)
    wide, narrow = (
        _slowest(ctx, partial(_core.fold, total, [own, own], [0.5, 0.5], of), timeout)
        for own, of in ((source, _core.CODECS["float32"]), (wire, dtype))
    )
    return CodecRates(0.5, encode / _WORKED, max(0.0, narrow - wide) / (2 * _WORKED))


def _tried(ctx: Context, codec: WireFormat, make: Callable[..., Any], timeout: float) -> CodecRates:
    random = np.random.default_rng(ctx.rank)
    with make(
        ctx,
        {"trial": np.zeros(_TRIED, np.float32)},
        ParameterServer(),
        rule=SGD(lr=0.0),
        codec=codec,
        progress="inline",
        timeout=timeout,
    ) as ex:
        seen = []
        for _ in range(_STEPS):
            ex.push_pull("trial", random.standard_normal(_TRIED, np.float32))
            ctx.barrier(timeout)  # owners have folded the others' pushes
            seen.append(ex.stats().codecs["trial"])
    best = [
        min((getattr(now, name) - getattr(before, name)) / _TRIED for before, now in pairwise(seen[_STEPS // 2 :]))
        for name in ("encode", "decode")
    ]
    ratio = (seen[-1].bytes - seen[-2].bytes) / max(1, seen[-1].bytes_before - seen[-2].bytes_before)
    every = [_CODEC.unpack(part) for part in ctx.allgather(_CODEC.pack(ratio, *best), timeout)]
    return CodecRates(*(max(column) for column in zip(*every, strict=True)))


def measured(ctx: Context, topology: Hierarchy, timeout: float | None = None) -> Hierarchy:
    """A hierarchy that asks for measured bandwidths, with them; without, where it has no racks for which they count.
    Collective; measured once for a context. Args and errors: as measure_rates."""
    return replace(topology, bandwidths=_of_racks(ctx, topology, timeout))


def _of_racks(ctx: Context, topology: Hierarchy, timeout: float | None) -> Bandwidths | None:
    found = replace(topology, bandwidths=None).settled(ctx.hosts, ctx.racks)
    racks = [[host[0] for host in found.hosts or () if host[0] in rack] for rack in found.racks or ()]
    found.levels(ctx.size)
    if len(racks) < 2 or all(len(rack) < 2 for rack in racks):
        return None
    return once(ctx, ("bandwidths", found.hosts, found.racks), lambda: _linked(ctx, racks, timeout), timeout)


def _linked(ctx: Context, racks: Sequence[Sequence[int]], timeout: float | None) -> Bandwidths:
    """racks: of each rack a rank of each host. For the host, one of them writes to another one of its rack; for the
    core, all of the first rack write to the second one at once."""
    full = next(rack for rack in racks if len(rack) > 1)
    crossing = [(rank, racks[1][i % len(racks[1])]) for i, rank in enumerate(racks[0])]
    host, core = (carried(ctx, flows, _CARRIED, timeout) for flows in ([(full[0], full[1])], crossing))
    return Bandwidths(host=host, core=core)


def carried(ctx: Context, flows: Flows, nbytes: int, timeout: float | None) -> float:
    """Bytes a second of all flows together, until the last of them is over."""
    window = ctx.window(nbytes, timeout=timeout)
    data = np.zeros(nbytes, np.uint8)
    times: list[float] = []
    for _ in range(_ROUNDS):
        ctx.barrier(timeout)
        start = time.monotonic()
        for source, target in flows:
            if source == ctx.rank:
                window.put(target, data)
        window.flush(timeout=timeout)
        taken = ctx.allgather(_TIME.pack(time.monotonic() - start), timeout)
        times.append(max(_TIME.unpack(taken[source])[0] for source, _ in flows))
    return len(flows) * nbytes / min(times)

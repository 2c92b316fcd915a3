"""Measures the rates of the machine on which a context's ranks run, for predictions by hpcomm.model, and keeps the
rates with the context.

Measuring is collective. Before each measurement the ranks agree whether all of them already have its result.
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
_CARRIED = 4 << 20  # bytes that a rank writes to another rank
_WORKED = 1 << 20  # elements that a rank copies, and folds
_TRIED = 1 << 17  # elements of the update that is encoded and decoded
_SIDE, _PAIRS = 1024, 320  # a matrix of 1024 x 1024, and pairs of vectors that cost about as much
_STEPS = 10  # the first half finds TopK's delta; the best step of the second half counts

Flows = Sequence[tuple[int, int]]  # pairs (rank that writes, rank to whose memory it writes)
T = TypeVar("T")

_kept: WeakKeyDictionary[Context, dict[Hashable, Any]] = WeakKeyDictionary()


def once(ctx: Context, what: Hashable, measure: Callable[[], T], timeout: float | None) -> T:
    """Returns the result of measure(), which is called once for a context and then kept under the name what.
    Collective: if a rank has no result, since its measurement failed, all ranks measure again."""
    own = _kept.setdefault(ctx, {})
    if not all(map(any, ctx.allgather(bytes([what in own]), timeout))):
        own[what] = measure()
    found: T = own[what]
    return found


def measure_rates(ctx: Context, timeout: float | None = None, *, topology: Hierarchy | None = None) -> Rates:
    """Measures the rates of the machine on which this context's ranks run, for predictions by hpcomm.model. Collective.

    All ranks get the same numbers: the rates of the slowest rank and link. A context measures each rate once, takes the
    best of three rounds, and keeps it.

    Args:
        ctx: the context.
        timeout: seconds for each wait; None: the context's default.
        topology: a Hierarchy, the same on all ranks. If it has several racks, and some rack has several hosts, the
            result's field racks has their bandwidths, for Hierarchy(bandwidths=...). If hosts or racks are None, the
            context gives them.

    Raises:
        InvalidArgument: Hierarchy.levels raises it.
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
    """Returns a list whose element i is the lowest rank whose memory rank i maps, possibly i itself. Collective."""
    mine = bytes(peer.maps or peer.rank == ctx.rank for peer in ctx.peers)
    return [part.index(1) for part in ctx.allgather(mine, timeout)]


def between_hosts(ctx: Context, hosts: Sequence[int], timeout: float | None) -> float:
    """Returns the bandwidth of a host's link, in bytes a second, while one rank of each host writes to the next host;
    inf if the job has one host. Collective."""
    leads = sorted(set(hosts))
    found: float = once(ctx, "between", lambda: _ring(ctx, [leads], timeout), timeout)
    return found


def _inside(ctx: Context, hosts: Sequence[int], timeout: float | None) -> float:
    groups = [[rank for rank, host in enumerate(hosts) if host == lead] for lead in sorted(set(hosts))]
    return _ring(ctx, groups, timeout)


def _ring(ctx: Context, groups: Sequence[Sequence[int]], timeout: float | None) -> float:
    """Returns the bytes a second of each rank while every rank writes to the next rank of its group."""
    flows = [(rank, group[(i + 1) % len(group)]) for group in groups if len(group) > 1 for i, rank in enumerate(group)]
    return carried(ctx, flows, _CARRIED, timeout) / len(flows) if flows else math.inf


def _slowest(ctx: Context, work: Callable[[], None], timeout: float | None) -> float:
    """Returns the seconds that the slowest rank takes while all ranks work; for each rank its fastest round counts."""
    taken = math.inf
    work()  # not measured, since the first round touches new pages
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
    """Measures the rates of a codec on the slowest rank. Collective; a context measures each codec once.

    A codec of pieces is measured in an exchange that pushes normally distributed random updates; each rank owns a part
    of the key. If WireFormat.trial() returns another codec, this other codec is measured. For a 16-bit dtype, it is
    measured how long the encoding takes, and how much longer a fold takes than with float32.

    Args:
        ctx: the context.
        codec: a value of hpcomm.codec that sends pieces, or arrays of 16 bits.
        make: hpcomm.Exchange.
        timeout: seconds for each part.
    """
    trial = codec.trial()
    if isinstance(trial, Codec):
        return once(ctx, ("codec", trial), lambda: _narrowed(ctx, trial, timeout), timeout)
    return once(ctx, ("codec", trial), lambda: _tried(ctx, trial, make, timeout), timeout)


def multiply_rate(ctx: Context, make: Callable[..., Any], timeout: float | None) -> float:
    """Returns how many floating-point operations a second the slowest rank does when all ranks add up products u v^T.
    Collective; a context measures this once.

    Args:
        ctx: the context.
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
        for _ in range(2 + 2 * _ROUNDS):  # the first round touches new pages
            ctx.barrier(timeout)
            ex.push_pull("trial", (u, v))
            busy.append(ex.stats().busy)
    mine = statistics.median(now - before for before, now in pairwise(busy))  # a median, as ranks may share cores
    taken = max(_TIME.unpack(part)[0] for part in ctx.allgather(_TIME.pack(mine), timeout))
    found: float = 2 * ctx.size * pairs * _SIDE * _SIDE / taken
    return found


def forget(ctx: Context) -> None:
    """Drops the rates kept for a context, so that the next call measures them again. Every rank must call it."""
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
    """Returns the hierarchy with its field bandwidths set to measured values, or to None if it has no racks for which
    they matter. Collective; a context measures the bandwidths once. Arguments and errors are as in measure_rates."""
    return replace(topology, bandwidths=_of_racks(ctx, topology, timeout))


def _of_racks(ctx: Context, topology: Hierarchy, timeout: float | None) -> Bandwidths | None:
    found = replace(topology, bandwidths=None).settled(ctx.hosts, ctx.racks)
    racks = [[host[0] for host in found.hosts or () if host[0] in rack] for rack in found.racks or ()]
    found.levels(ctx.size)
    if len(racks) < 2 or all(len(rack) < 2 for rack in racks):
        return None
    return once(ctx, ("bandwidths", found.hosts, found.racks), lambda: _linked(ctx, racks, timeout), timeout)


def _linked(ctx: Context, racks: Sequence[Sequence[int]], timeout: float | None) -> Bandwidths:
    """Measures Bandwidths. Each element of racks has one rank of each host of a rack. For the field host one rank
    writes to another rank of its rack; for the field core all ranks of the first rack write to the second rack at the
    same time."""
    full = next(rack for rack in racks if len(rack) > 1)
    crossing = [(rank, racks[1][i % len(racks[1])]) for i, rank in enumerate(racks[0])]
    host, core = (carried(ctx, flows, _CARRIED, timeout) for flows in ([(full[0], full[1])], crossing))
    return Bandwidths(host=host, core=core)


def carried(ctx: Context, flows: Flows, nbytes: int, timeout: float | None) -> float:
    """Returns the bytes a second of all flows together, measured from their common start to the end of the last
    flow."""
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

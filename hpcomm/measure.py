"""The bandwidths by which a hierarchy decides whether racks pay, measured at the start of a job (PHub, section 3.4)."""

import struct
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .context import Context
from .errors import InvalidArgument
from .model import Bandwidths
from .stage import whole
from .topology import Hierarchy

_DEFAULT = Hierarchy()
_ROUNDS = 3
_TIME = struct.Struct("<d")
_COUNT = struct.Struct("<q")
_MAPPED = ("self", "shm")

Flows = Sequence[tuple[int, int]]  # ranks that write, and the ranks that they write to


def measure_bandwidths(
    ctx: Context, topology: Hierarchy = _DEFAULT, nbytes: int = 16 << 20, timeout: float | None = None
) -> Bandwidths:
    """What a host's link and the links between racks carry now, for Hierarchy(bandwidths=...). Collective; all ranks
    get the same numbers.

    For the host a rank writes to another host of its rack; for the core all hosts of the first rack write to hosts of
    the second one at once. Each is the best of three rounds.

    Args:
        ctx: the ranks.
        topology: its hosts and racks; those that it leaves out are the context's.
        nbytes: that each of these ranks writes in a round.
        timeout: seconds for each part.

    Raises:
        InvalidArgument: nbytes is below 1, or not the same on all ranks; there are no two racks, or none of them has
            two hosts; as Hierarchy.levels.
    """
    given = [_COUNT.unpack(each)[0] for each in ctx.allgather(_COUNT.pack(_checked(nbytes)), timeout)]
    if min(given) < 1 or min(given) < max(given):
        whole("nbytes", nbytes, 1)
        raise InvalidArgument(f"nbytes is {given} by rank: must be the same on all, 1 or more")
    found = replace(topology, bandwidths=None).settled(ctx.hosts, ctx.racks)
    racks = [[host[0] for host in found.hosts or () if host[0] in rack] for rack in found.racks or ()]
    found.levels(ctx.size)
    full = [rack for rack in racks if len(rack) > 1]
    if len(racks) < 2 or not full:
        raise InvalidArgument(
            f"there are {len(racks)} racks, {len(full)} of them with several hosts: bandwidths are for two racks or "
            "more, one of them with several hosts"
        )
    with_link = [(full[0][0], full[0][1])]
    crossing = [(rank, racks[1][i % len(racks[1])]) for i, rank in enumerate(racks[0])]
    host, core = (carried(ctx, flows, nbytes, timeout) for flows in (with_link, crossing))
    return Bandwidths(host=host, core=core)


def _checked(nbytes: int) -> int:
    """0 for what is no number of bytes: every rank hears of it."""
    try:
        return whole("nbytes", nbytes, 1, 1 << 62)
    except InvalidArgument:
        return 0


def measured(ctx: Context, topology: Hierarchy, timeout: float | None = None) -> Hierarchy:
    """A hierarchy that asks for measured bandwidths, with them; without, where it has no racks for which they count.
    Collective. Args and errors are those of measure_bandwidths, and topology knows its hosts and racks."""
    several = any(sum(host[0] in rack for host in topology.hosts or ()) > 1 for rack in topology.racks or ())
    found = measure_bandwidths(ctx, topology, 4 << 20, timeout) if len(topology.racks or ()) > 1 and several else None
    return replace(topology, bandwidths=found)


def hosts_of(ctx: Context, timeout: float | None = None) -> list[int]:
    """By rank: the lowest of the ranks that map its memory, itself among them. Collective."""
    mine = bytes(peer.transport in _MAPPED for peer in ctx.peers)
    return [part.index(1) for part in ctx.allgather(mine, timeout)]


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

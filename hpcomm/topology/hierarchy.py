"""Hierarchies: updates are folded inside a host, then inside a rack, before they go on (PHub, section 3.4)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .. import _core
from ..codec import by_key, by_key_out
from ..consistency import ASYNC, BSP, applies_each, goes_apart
from ..errors import InvalidArgument
from ..graphs.places import Groups, as_list, by_name, checked_group, checked_racks, flat
from ..model import Bandwidths, racks_pay
from ..plan import Plan, group_numbers
from ..stage import as_keys, choice, whole
from .by_key import compiled
from .parameter_server import depth_at_receivers, refused_at_receivers
from .protocol import Job, Request, Topology

MEASURED = "measured"


@dataclass(frozen=True)
class Hierarchy(Topology):
    """Hosts first: one rank of each host folds the updates of the host's ranks and sends the fold on; it also takes the
    parameters and passes them to these ranks. Each leading rank of a host does so for its part of the chunks. So a link
    between hosts carries each chunk once in each direction, however many ranks they have. Racks do so among hosts.

        ex = hpcomm.Exchange(ctx, params, hpcomm.Hierarchy())                                   # this job's hosts
        ex = hpcomm.Exchange(ctx, params, hpcomm.Hierarchy(racks=[[0, 1, 2, 3], [4, 5, 6, 7]]))

    Each sum adds ranks in order, then groups in order, so the same placement gives the same bits.

    Pairs of vectors (codec.Factors) cannot be added on their way: each rank sends them once to each host, to a rank
    that adds the products of all ranks; racks make no difference. Under ASYNC, SSP(s) and a quorum they go to the rank
    that folds for the group, which sends the sum on as an array.

    Under ASYNC and SSP(s) the ranks of an outermost group (a host; with racks, a rack) are in step, and their fold is
    one update: groups go on by themselves, under SSP(s) at most s steps apart. Under SSP(s) each rank's gradient counts
    1 / size, under ASYNC as its part of the group's mean. A quorum counts these groups; a group that comes late is left
    out.

    Attributes:
        hosts: the ranks of each host; None: as the context knows them (Context.hosts).
        racks: of each rack its ranks, or its hosts, each as a list of ranks, which are then the hosts too. None:
            SLURM's racks if every rank knows its rack (Context.racks), else no racks. (): no racks in any case.
        leaders: ranks that may own chunks and fold for others, one at least of each host. None: all.
        top: "sharded" (each outermost group sends to the owner of a chunk) or "ring" (the fold goes around the groups
            to the owner, and the answer likewise).
        bandwidths: if given, racks count only where they pay, as hpcomm.model.racks_pay says. All ranks give the same.
            "measured": an Exchange measures them when it is made, and two runs may decide differently; Rates.racks of
            hpcomm.measure_rates has the same numbers.
        apply_at: who applies the rule: "owners", whose parameters go to all hosts; or "receivers": the folded update
            goes there, and one rank of each host applies it for the host's ranks, with a private state; under SSP(s)
            each rank applies it. "both" is the same here, where owners are receivers.

    Raises:
        InvalidArgument: hosts or racks hold anything but ranks, or top or apply_at is unknown. levels checks the number
            of ranks.
    """

    hosts: Sequence[Sequence[int]] | None = None
    racks: Sequence[Sequence[int] | Sequence[Sequence[int]]] | None = None
    leaders: Iterable[int] | None = None
    top: str = "sharded"
    bandwidths: Bandwidths | str | None = None
    apply_at: str = "owners"

    def __post_init__(self) -> None:
        put = object.__setattr__
        choice("top", self.top, _core.TOPS)
        if self.bandwidths not in (None, MEASURED) and not isinstance(self.bandwidths, Bandwidths):
            raise InvalidArgument(f"bandwidths is {self.bandwidths!r}: must be a Bandwidths, {MEASURED!r} or None")
        choice("apply_at", self.apply_at, _core.APPLY_AT)
        if self.hosts is not None:
            put(
                self,
                "hosts",
                tuple(checked_group(f"hosts[{i}]", host) for i, host in enumerate(as_list("hosts", self.hosts))),
            )
        if self.racks is not None:
            hosts, racks = checked_racks(self.racks, hosted=self.hosts is not None)
            if hosts is not None:
                put(self, "hosts", hosts)
            put(self, "racks", racks)
        if self.leaders is not None:
            put(self, "leaders", checked_group("leaders", self.leaders))

    def settled(self, hosts: Sequence[int], racks: Sequence[str]) -> "Hierarchy":
        """With the hosts and racks of a context where none are given: by rank the lowest rank on its host, and the name
        of its rack, "" where it is not known."""
        found = self
        if found.hosts is None:
            found = replace(found, hosts=by_name(hosts))
        if found.racks is None:
            named = by_name(racks) if all(racks) else ()
            found = replace(found, racks=named if len(named) > 1 else ())
        return found

    def levels(self, size: int) -> list[Groups]:
        """The groups of each level for a job of size ranks, the innermost first: hosts, then racks if they count.

        Raises:
            InvalidArgument: hosts are not known, a level is empty or leaves out a rank, groups overlap, or a rack
                splits a host.
        """
        size = whole("size", size, 1)
        if self.hosts is None:
            raise InvalidArgument("hosts is None: give the ranks of each host, or an Exchange the hierarchy")
        found: list[Any] = [self.hosts, *([self.racks] if self.racks else [])]
        numbers = group_numbers(found, size)
        if missing := set(range(size)) - set(numbers[0]):
            raise InvalidArgument(f"rank {min(missing)} is in none of hosts: each rank is on one")
        if len(numbers) > 1:
            for i, host in enumerate(self.hosts):
                parts = sorted({numbers[1][rank] for rank in host})
                if len(parts) > 1:
                    raise InvalidArgument(
                        f"hosts[{i}], ranks {tuple(host)}, is split by racks[{parts[0]}] and racks[{parts[1]}]: a host "
                        "is in one rack"
                    )
            racks = len(found[1])
            if isinstance(self.bandwidths, str):
                raise InvalidArgument(
                    f"bandwidths is {self.bandwidths!r}: an Exchange measures them; without one give the "
                    "racks of hpcomm.measure_rates(ctx, topology=...)"
                )
            if self.bandwidths is not None and not racks_pay(self.bandwidths, len(self.hosts) / racks, racks):
                found.pop()
        return found

    def roles(self, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The workers and the leaders of a job of size ranks, each in rising order.

        Raises:
            InvalidArgument: leaders are out of range, or a host has none.
        """
        workers = tuple(range(whole("size", size, 1)))
        if self.leaders is None:
            return workers, workers
        leaders = tuple(sorted(whole("leaders", rank, 0, size - 1) for rank in self.leaders))
        for i, host in enumerate(self.hosts or ()):
            if not set(host) & set(leaders):
                raise InvalidArgument(f"leaders is {leaders}: none of them is on hosts[{i}], {tuple(host)}; name one")
        return workers, leaders

    def refuses(self, job: Job) -> str | None:
        if self.top == "ring" and goes_apart(job.consistency):
            what = (
                "ASYNC and SSP(s) apply the update of each host by itself"
                if applies_each(job.consistency)
                else "a quorum is one of the updates of hosts"
            )
            return (
                f"consistency is {job.consistency}: {what}, and a ring folds all into one: give BSP, or top='sharded'"
            )
        return None if self.apply_at == "owners" else refused_at_receivers(self.apply_at, job)

    def resolved(self, job: Job) -> "Hierarchy":
        known = self.settled(job.hosts, job.racks)
        if known.bandwidths != MEASURED:
            return known
        found: Hierarchy = job.measured(known)
        return found

    def inputs(self, size: int) -> int:
        return len(self.levels(size)[-1])

    def compile(self, request: Request) -> Plan:
        """Plan.hosts of these levels, and for keys with codec.Factors Plan.peer_to_peer of these hosts. interfaces and
        in_place have no meaning. Where receivers apply the rule and consistency is SSP(s), depth is s + 2 at least.

        Raises:
            InvalidArgument: as Plan.hosts, levels and roles.
        """
        names = [key.name for key in as_keys(request.keys)]
        codecs = dict(zip(names, by_key(names, request.codec), strict=True))
        pairs = [name for name in names if not codecs[name].sums]
        if not pairs or request.consistency != BSP:
            return self._hosts(request)
        rest = [name for name in names if codecs[name].sums]
        return compiled(request, [(self._peers, pairs), *([(self._hosts, rest)] if rest else [])])

    def _hosts(self, request: Request) -> Plan:
        cut, size = request.cut, request.size
        if self.apply_at != "owners":
            cut["depth"] = depth_at_receivers(request)
        return Plan.hosts(
            request.keys,
            self.levels(size),
            size,
            leaders=self.roles(size)[1],
            top=self.top,
            reduce=request.reduce,
            apart=goes_apart(request.consistency),
            each=request.consistency == ASYNC,
            apply_at=self.apply_at,
            **cut,
        )

    def _peers(self, request: Request) -> Plan:
        """The plan of keys whose updates go once to each host."""
        names = [key.name for key in as_keys(request.keys)]
        for name, out in zip(names, by_key_out(names, request.codec_out), strict=True):
            if out.name != "float32":
                raise InvalidArgument(
                    f"codec_out of {name!r} is {out.name}: parameters of keys with codec.Factors stay on each host: "
                    "leave it out"
                )
        hosts, leaders = self.levels(request.size)[0], self.roles(request.size)[1]
        least = 1 if any(len(host) > 1 for host in hosts) else 2  # as peers need it
        return Plan.peer_to_peer(
            request.keys,
            request.size,
            hosts=hosts,
            leaders=leaders,
            cores=request.cores,
            chunk_bytes=request.chunk_bytes,
            depth=max(whole("depth", request.depth, 0), least),
            codec=request.codec,
            reduce=request.reduce,
        )

    def among(self, ranks: Sequence[int], size: int) -> "Hierarchy":
        """The hierarchy of the remaining ranks. Groups without a rank are dropped; a host that has lost its leaders is
        led by all its remaining ranks."""
        new = {rank: i for i, rank in enumerate(ranks)}
        hosts, racks, leaders = self.hosts, self.racks, self.leaders
        if leaders is not None:
            leading = set(leaders)
            for host in hosts or ():
                if not leading & set(host) & set(new):
                    leading |= set(host)
            leaders = _left([sorted(leading)], new)[0]
        return replace(
            self,
            hosts=None if hosts is None else _left(hosts, new),
            racks=None if racks is None else _left([flat(rack) for rack in racks], new),
            leaders=leaders,
        )


def _left(groups: Iterable[Sequence[int]], new: Mapping[int, int]) -> Groups:
    found = (tuple(new[rank] for rank in group if rank in new) for group in groups)
    return tuple(group for group in found if group)

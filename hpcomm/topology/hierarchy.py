"""Hierarchies: the updates of a host, then of a rack, are folded before they are sent on (PHub, section 3.4)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .. import _core
from ..codec import by_key, by_key_out
from ..consistency import ASYNC, BSP, applies_each, goes_apart
from ..errors import InvalidArgument
from ..graphs.places import Groups, as_list, by_name, checked_group, checked_racks, flat
from ..model import Bandwidths, racks_pay
from ..plan import Plan
from ..stage import as_keys, choice, group_numbers, whole
from .by_key import compiled
from .parameter_server import depth_at_receivers, refused_at_receivers
from .protocol import Job, Request, Topology

MEASURED = "measured"


@dataclass(frozen=True)
class Hierarchy(Topology):
    """One rank of each host, the leader, folds the updates of the host's ranks and sends the fold to the owner. The
    owner sends the parameters back to the leader, and the leader passes them to the host's ranks.

    If a host has several leaders, each does this for some of the chunks. So a link between hosts carries each chunk
    once in each direction, however many ranks the hosts have. Likewise one rank of each rack folds for the rack's
    hosts.

        ex = hpcomm.Exchange(ctx, params, hpcomm.Hierarchy())                                   # this job's hosts
        ex = hpcomm.Exchange(ctx, params, hpcomm.Hierarchy(racks=[[0, 1, 2, 3], [4, 5, 6, 7]]))

    Each sum adds ranks in order, then groups in order, so the same hosts and racks give the same bits.

    Pairs of vectors (codec.Factors) cannot be folded on the way. Under BSP each rank sends its pairs once to each host,
    and one rank of that host adds the products of all ranks; racks have no effect. Under ASYNC, under SSP(s) or with a
    quorum, the leader of a group gets the pairs, and sends their sum to the owner as an array.

    Under ASYNC and SSP(s) the ranks of an outermost group (a rack, or a host if there are no racks) stay in step, and
    their fold is one update. Groups do not wait for each other, except that under SSP(s) they are at most s steps
    apart. Under SSP(s) each rank's gradient has weight 1 / size, for size ranks; under ASYNC a group's update is the
    mean over its ranks. A quorum counts these groups, and the update of a late group is left out.

    Servers are ranks that do not work, such as the hubs of racks: hosts fold first, then the server of each rack, and
    servers alone own chunks. The owner of a chunk applies the rule and sends the parameters to the servers of the other
    racks, which pass them on. Several servers of a rack share the chunks.

        ex = hpcomm.Exchange(ctx, params, hpcomm.Hierarchy(racks=[[0, 1, 2, 6], [3, 4, 5, 7]], servers=[6, 7]))

    Attributes:
        hosts: a list of lists: the ranks of each host. None: Context.hosts tells them. Servers may be left out.
        racks: for each rack a list of its ranks, or a list of its hosts, each a list of ranks. The second form also
            sets hosts. None: SLURM's racks if every rank knows its rack (Context.racks), otherwise no racks. (): no
            racks.
        leaders: the ranks that may own chunks and fold for other ranks, at least one on each host. None: all ranks.
            With servers they fold for their hosts, and in racks without a server.
        servers: the ranks that only serve. With racks each is in one, where it needs a worker. (): all ranks work.
        top: how outermost groups send. "sharded": each group sends its fold to the chunk's owner. "ring": the fold goes
            from group to group until it reaches the owner, and the parameters go from group to group likewise.
        bandwidths: if given, racks are used only if hpcomm.model.racks_pay says that they are faster. The value must be
            the same on all ranks. "measured": the Exchange measures the bandwidths when it is made, so two runs may
            decide differently; hpcomm.measure_rates gives the same numbers as Rates.racks.
        apply_at: where the rule is applied. "owners": owners apply it and send the parameters to all hosts.
            "receivers": owners send the folded update to all hosts, and one rank of each host applies it for the host's
            ranks, with this rank's rule state; under SSP(s) each rank applies it. "both" means the same as "receivers",
            since owners are receivers too.

    Raises:
        InvalidArgument: hosts or racks contain anything but ranks, or top or apply_at is unknown. Hierarchy.levels()
            checks that hosts and racks match the number of ranks.
    """

    hosts: Sequence[Sequence[int]] | None = None
    racks: Sequence[Sequence[int] | Sequence[Sequence[int]]] | None = None
    leaders: Iterable[int] | None = None
    servers: Sequence[int] = ()
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
        put(self, "servers", tuple(sorted(checked_group("servers", self.servers))))
        if self.servers and self.apply_at != "owners":
            raise InvalidArgument(
                f"apply_at is {self.apply_at!r} and servers {self.servers}: servers apply: leave one out"
            )

    def settled(self, hosts: Sequence[int], racks: Sequence[str]) -> "Hierarchy":
        """Returns the hierarchy with hosts and racks filled in if they are None. hosts[i] is the lowest rank on rank
        i's host; racks[i] is the name of rank i's rack, "" if not known."""
        found = self
        if found.hosts is None:
            found = replace(found, hosts=by_name(hosts))
        if found.racks is None:
            named = by_name(racks) if all(racks) else ()
            found = replace(found, racks=named if len(named) > 1 else ())
        return found

    def levels(self, size: int) -> list[Groups]:
        """Returns the groups of each level for a job of size ranks, the innermost level first: hosts, then racks if
        they are used.

        Raises:
            InvalidArgument: hosts are not known, a level is empty or lacks a rank, groups overlap, a rack splits a
                host, or bandwidths is still "measured".
        """
        size = whole("size", size, 1)
        if self.hosts is None:
            raise InvalidArgument("hosts is None: give the ranks of each host, or an Exchange the hierarchy")
        serving = set(self.servers)  # each is a host of its own
        hosts: Any = self.hosts
        if serving:
            hosts = tuple(left for host in hosts if (left := tuple(rank for rank in host if rank not in serving)))
        found: list[Any] = [(*hosts, *((rank,) for rank in self.servers)), *([self.racks] if self.racks else [])]
        numbers = group_numbers(found, size)
        if missing := set(range(size)) - set(numbers[0]):
            raise InvalidArgument(f"rank {min(missing)} is in none of hosts: each rank is on one")
        if len(numbers) > 1:
            for i, host in enumerate(hosts):
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
            if self.bandwidths is not None and not racks_pay(self.bandwidths, len(hosts) / racks, racks):
                found.pop()
        return found

    def roles(self, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the workers and the leaders of a job of size ranks, each in rising order.

        Raises:
            InvalidArgument: leaders are out of range, or a host has no leader.
        """
        ranks = tuple(range(whole("size", size, 1)))
        serving = {whole("servers", rank, 0, size - 1) for rank in self.servers}
        workers = tuple(rank for rank in ranks if rank not in serving)
        if not workers:
            raise InvalidArgument(f"servers is {self.servers}: no rank is left that works")
        if self.leaders is None:
            return workers, ranks
        leaders = {whole("leaders", rank, 0, size - 1) for rank in self.leaders}
        for i, host in enumerate(self.hosts or ()):
            if not set(host) & (leaders | serving):
                raise InvalidArgument(
                    f"leaders is {tuple(sorted(leaders))}: none of them is on hosts[{i}], {tuple(host)}; name one"
                )
        return workers, tuple(sorted(leaders | serving))

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
        levels = self.levels(size)
        return len(levels[-1]) - (len(self.servers) if len(levels) == 1 else 0)

    def compile(self, request: Request) -> Plan:
        """Returns Plan.hosts of these levels; under BSP, keys with codec.Factors get Plan.peer_to_peer of these hosts.

        The request's fields interfaces and in_place are ignored. If receivers apply the rule, the plan's depth is at
        least s + 2 under SSP(s), and at least 6 under ASYNC.

        Raises:
            InvalidArgument: Plan.hosts, levels or roles raise it.
        """
        names = [key.name for key in as_keys(request.keys)]
        codecs = dict(zip(names, by_key(names, request.codec), strict=True))
        pairs = [name for name in names if not codecs[name].sums]
        if not pairs or request.consistency != BSP:
            return self._hosts(request)
        if self.servers:
            raise InvalidArgument(
                f"codec of {pairs[0]!r} is {codecs[pairs[0]]} and servers {self.servers}: pairs go from worker to "
                "worker: leave servers out"
            )
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
            servers=self.servers,
            top=self.top,
            reduce=request.reduce,
            apart=goes_apart(request.consistency),
            each=request.consistency == ASYNC,
            apply_at=self.apply_at,
            **cut,
        )

    def _peers(self, request: Request) -> Plan:
        """Returns the plan of keys with codec.Factors under BSP: each rank sends its pairs once to each host."""
        names = [key.name for key in as_keys(request.keys)]
        for name, out in zip(names, by_key_out(names, request.codec_out), strict=True):
            if out.name != "float32":
                raise InvalidArgument(
                    f"codec_out of {name!r} is {out.name}: parameters of keys with codec.Factors stay on each host: "
                    "leave it out"
                )
        hosts, leaders = self.levels(request.size)[0], self.roles(request.size)[1]
        least = 1 if any(len(host) > 1 for host in hosts) else 2  # with one rank a host, ranks are peers, which need 2
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
        """Returns the hierarchy of the remaining ranks. Groups without ranks are dropped; if a host has lost all its
        leaders, all its remaining ranks become leaders. Servers of a rack without workers go to another rack."""
        new = {rank: i for i, rank in enumerate(ranks)}
        hosts, racks, leaders = self.hosts, self.racks, self.leaders
        servers = [new[rank] for rank in self.servers if rank in new]
        if leaders is not None:
            leading = set(leaders)
            for host in hosts or ():
                if not leading & set(host) & set(new):
                    leading |= set(host)
            leaders = _left([sorted(leading)], new)[0]
        return replace(
            self,
            hosts=None if hosts is None else _left(hosts, new),
            racks=None if racks is None else _with_workers(_left([flat(rack) for rack in racks], new), servers),
            leaders=leaders,
            servers=servers,
        )


def _with_workers(racks: Groups, servers: Sequence[int]) -> Groups:
    """Returns the racks with workers. The first one gets the servers of the others."""
    kept = [rack for rack in racks if not set(rack) <= set(servers)]
    spare = tuple(rank for rack in racks for rank in rack if rack not in kept)
    return ((*kept[0], *spare), *kept[1:]) if kept else racks


def _left(groups: Iterable[Sequence[int]], new: Mapping[int, int]) -> Groups:
    found = (tuple(new[rank] for rank in group if rank in new) for group in groups)
    return tuple(group for group in found if group)

"""Plans: tables of rows that say which rank folds, applies and sends which chunk (PHub, sections 3.2.3, 3.2.4 and
4.5)."""

import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import FrozenInstanceError, fields, replace
from math import lcm
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from . import _core
from .codec import Codec, Codecs, WireFormat, by_key, by_key_out
from .errors import InvalidArgument
from .flow import Flow, drawn
from .rows import ACTION_OF, CODEC_OF, Rows, distinct
from .stage import Edge, Key, Row, as_keys, choice, group_numbers, ranks_in, whole

__all__ = ["Edge", "Imbalance", "Key", "Plan", "Row", "Rows"]

ELEMENT = 4  # bytes of a parameter
SHOWN = 24  # the most lines of each table in str(plan)
_PASSED_ON = 128 << 10  # the most bytes of a chunk that workers pass on down a tree


class Imbalance(NamedTuple):
    """How unevenly bytes are spread: the most bytes divided by the mean, which is 1.0 if all have the same. The field
    core compares cores, and the field server compares ranks that serve."""

    core: float
    server: float


_AFFINITY = {value: name for name, value in _core.AFFINITIES.items()}


# ---- plan ----------------------------------------------------------------------------------------------------------


class Plan:
    """An immutable table of rows. Each row is one step on a chunk's path: it has the rank and core that work on it, the
    chunk, and the edges over which inputs come and the result leaves.

    Plan.hub makes the plan of a parameter server; the other class methods make plans of other topologies, and this
    constructor takes any rows. Every plan is checked when it is made: numbers must be in range, each edge must be
    listed in the rows at both ends, rows must not forward in a circle, and a rank that gets a key's parameters must get
    each element once.

    Args:
        keys: the tensors, in order: Key values, or a mapping from names to float32 arrays or shapes.
        rows: the rows, in order of key, then offset.
        size: the number of ranks in the job.
        places: every pair (rank, core) that serves, also one without rows. None: the pairs (owner, core) of the rows.
        affinity: "key" or "worker", see ParameterServer.

    Attributes:
        handle: the plan in C, valid as long as this object lives.
        arguments: C's struct of the planner's arguments; None for a plan that was made of rows.

    Raises:
        InvalidArgument: a key or row is wrong; the message names it, and its fault.
    """

    __slots__ = ("__weakref__", "affinity", "arguments", "handle", "keys", "places", "rows", "size")

    keys: tuple[Key, ...]
    rows: Rows
    size: int
    places: tuple[tuple[int, int], ...]
    affinity: str
    handle: Any
    arguments: Any

    def __init__(
        self,
        keys: Mapping[str, Any] | Iterable[Key],
        rows: Iterable[Row],
        size: int,
        places: Iterable[tuple[int, int]] | None = None,
        affinity: str = "key",
    ) -> None:
        choice("affinity", affinity, _core.AFFINITIES)
        own_keys = as_keys(keys)
        numbers: dict[tuple[Edge, ...], int] = {}
        table = []
        for row in rows:
            if not isinstance(row, Row):
                raise InvalidArgument(f"rows hold {row!r}: must be Row values")
            n_in, n_out = (numbers.setdefault(edges, len(numbers)) for edges in (row.in_edges, row.out_edges))
            table.append(
                (row.key, row.owner, row.core, _core.ACTIONS[row.action], row.offset, row.count, row.depth, row.quorum,
                 _core.WIRES[row.codec_in], _core.WIRES[row.codec_out], n_in, n_out)
            )  # fmt: skip
        lists = [[(edge.rank, edge.row, edge.weight) for edge in edges] for edges in numbers]
        handle = _core.plan_make(c_keys(own_keys), table, lists, _core.AFFINITIES[affinity])
        self._fill(handle, own_keys, size, places)

    @classmethod
    def hub(
        cls,
        keys: Mapping[str, Any] | Iterable[Key],
        workers: Sequence[int],
        servers: Sequence[int],
        size: int,
        *,
        cores: int = 1,
        chunk_bytes: int | None = None,
        depth: int = 1,
        codec: Codecs | None = None,
        reduce: str = "mean",
        each: bool = False,
        affinity: str = "key",
        interfaces: int = 1,
        codec_out: Codecs | None = None,
        apply_at: str = "owners",
        parents: Sequence[Sequence[int]] | None = None,
        over_sockets: bool = False,
    ) -> "Plan":
        """Makes the plan of a parameter server (PHub, sections 3.2.3 and 3.2.4).

        Keys are cut into chunks. Each chunk, the largest first, goes to the core with the fewest bytes so far; if cores
        are equal, to the one on the server with the fewest bytes. The fullest core then has at most 4/3 of the bytes
        that it would have in the best plan, and at most the mean plus one chunk. One core works on a chunk for the
        updates of all workers (section 4.5). With n NICs a server (n is `interfaces`), chunks are first dealt to NICs
        and then to the cores of each NIC, which are every n-th core. Each of these two deals is within 4/3 of the best.

        Args:
            keys: the tensors, as Plan takes them.
            workers: the ranks that push. Updates are folded in this order.
            servers: the ranks that own chunks; a rank may be a worker too.
            size: the number of ranks in the job.
            cores: the number of cores of each server.
            chunk_bytes, depth, codec, codec_out, reduce: as in PlanOptions. A plan keeps only the kind and the unit of
                a codec of pieces, so the codec must also be given to the exchange. If parents are given, chunks of the
                default size have at most 128 KiB, since each hop adds the time of one chunk.
            each: True: owners apply each update separately, with weight 1, when it comes. False: owners apply the fold
                of all updates.
            affinity, apply_at: as in ParameterServer.
            interfaces: the number of each server's NICs over which chunks are balanced, 1 to cores.
            parents: parents[s][w] says who sends the folds of servers[s]'s chunks to workers[w]: i, if workers[i]
                passes them on unchanged, or -1, if the server sends them (Parameter Flow, section 3.4.2). It must not
                be given with apply_at="owners". None: servers send to all workers.
            over_sockets: whether some pair of these ranks is connected by TCP rather than by mapped memory or RDMA. It
                changes the default of chunk_bytes.

        Raises:
            InvalidArgument: a value is out of range, a key has no elements, two keys have one name, or a mapping names
                an unknown key.
        """
        choice("reduce", reduce, ("mean", "sum"))
        choice("affinity", affinity, _core.AFFINITIES)
        choice("apply_at", apply_at, _core.APPLY_AT)
        own_keys = as_keys(keys)
        size = whole("size", size, 1)
        own_workers, own_servers = ranks_in("workers", workers, size), ranks_in("servers", servers, size)
        own_keys, codecs = coded(own_keys, codec)
        if apply_at != "owners":
            _check_sums(own_keys, codecs, f"apply_at is {apply_at!r}, where servers send the sum of all updates on")
        cut = _cutting(chunk_bytes, 32768, own_keys, codecs, len(own_servers) * cores, over_sockets)
        if parents is not None and chunk_bytes is None:  # a worker must have a whole chunk before it passes it on
            cut["chunk"] = min(cut["chunk"], _PASSED_ON)
        return cls._planned(
            "hub",
            own_keys,
            codecs,
            size,
            own_servers if apply_at == "owners" else sorted({*own_servers, *own_workers}),
            workers=own_workers,
            servers=own_servers,
            cores=cores,
            **cut,
            depth=depth,
            sum=reduce == "sum",
            each=bool(each),
            affinity=_core.AFFINITIES[affinity],
            interfaces=whole("interfaces", interfaces, 1),
            codecs_out=_numbers(by_key_out([key.name for key in own_keys], codec_out)),
            apply_at=_core.APPLY_AT[apply_at],
            **({} if parents is None else {"parents": [whole("parents", at, -1) for tree in parents for at in tree]}),
        )

    @classmethod
    def hosts(
        cls,
        keys: Mapping[str, Any] | Iterable[Key],
        levels: Sequence[Sequence[Sequence[int]]],
        size: int,
        *,
        leaders: Iterable[int] | None = None,
        servers: Iterable[int] = (),
        top: str = "sharded",
        apart: bool = False,
        each: bool = False,
        cores: int = 1,
        chunk_bytes: int | None = None,
        depth: int = 1,
        codec: Codecs | None = None,
        reduce: str = "mean",
        codec_out: Codecs | None = None,
        apply_at: str = "owners",
        over_sockets: bool = False,
    ) -> "Plan":
        """Makes the plan of a hierarchy (PHub, section 3.4): each chunk crosses the border of a group once in each
        direction.

        Each chunk has an owner, chosen as Plan.hub() chooses cores. In each group without the owner, one rank folds the
        group's updates, sends the fold to the owner, and passes the parameters from the owner to the group. A fold adds
        the updates of ranks in the order of ranks, then the sums of groups in the order of their lowest ranks, so the
        same groups give the same bits.

        Args:
            keys, size, cores, chunk_bytes, depth, codec, reduce, codec_out, over_sockets: as Plan.hub() takes them;
                each leader has `cores` cores.
            levels: lists of groups of ranks, the innermost level first: hosts, then perhaps racks, and so on. In each
                level every worker must be in exactly one group, and all ranks of a group must be in the same group of
                the next level.
            leaders, servers, top, apply_at: as in Hierarchy. In the innermost level a server is in a group, which
                counts for nothing.
            apart: True: each outermost group's fold is a separate input of the owner, also the fold of the owner's
                group; SSP(s) and a quorum of groups need this. False: the owner itself folds the updates of its group.
            each: True: as with apart, and each outermost group's fold is applied separately: the mean (or with
                reduce="sum" the sum) over the ranks of the group. ASYNC needs this.

        Raises:
            InvalidArgument: a value is out of range; a level is empty or lacks a rank; groups overlap, or split a group
                of the level below; a leader or a server is in no group; a server's group has no worker; or apart, or
                servers without racks, are given with top="ring".
        """
        choice("reduce", reduce, ("mean", "sum"))
        choice("top", top, _core.TOPS)
        choice("apply_at", apply_at, _core.APPLY_AT)
        own_keys = as_keys(keys)
        size = whole("size", size, 1)
        groups = group_numbers(levels, size)
        workers, serving = sorted(groups[0]), set(ranks_in("servers", servers, size))
        own_leaders = workers if leaders is None else ranks_in("leaders", leaders, size)
        for name, ranks in (("leader", own_leaders), ("server", serving)):
            if stranger := set(ranks) - set(workers):
                raise InvalidArgument(
                    f"{name}s has rank {min(stranger)}, which is in no group: a {name} belongs to one"
                )
        own_leaders = sorted({*own_leaders, *serving})
        own_keys, codecs = coded(own_keys, codec)
        if apply_at != "owners":
            _check_sums(own_keys, codecs, f"apply_at is {apply_at!r}, where owners send the sum of all updates on")
        return cls._planned(
            "hosts",
            own_keys,
            codecs,
            size,
            workers if apart and apply_at != "owners" else own_leaders,
            workers=workers,
            n_levels=len(groups),
            groups=[level[rank] for level in groups for rank in workers],
            leads=[rank in set(own_leaders) for rank in workers],
            **({"serves": [rank in serving for rank in workers]} if serving else {}),
            top=_core.TOPS[top],
            cores=cores,
            **_cutting(chunk_bytes, 65536, own_keys, codecs, len(serving or own_leaders) * cores, over_sockets),
            depth=depth,
            sum=reduce == "sum",
            codecs_out=_numbers(by_key_out([key.name for key in own_keys], codec_out)),
            apart=bool(apart or each),
            each=bool(each),
            apply_at=_core.APPLY_AT[apply_at],
        )

    @classmethod
    def tree(
        cls,
        keys: Mapping[str, Any] | Iterable[Key],
        parents: Sequence[int],
        *,
        cores: int = 1,
        chunk_bytes: int | None = None,
        depth: int = 1,
        codec: Codecs | None = None,
        codec_out: Codecs | None = None,
        over_sockets: bool = False,
    ) -> "Plan":
        """Makes the plan of a broadcast: the root's pushes go down a tree from rank to rank, chunk by chunk (Parameter
        Flow, section 3.4).

        Args:
            keys, chunk_bytes, depth, codec, codec_out: as Plan.hub() takes them.
            parents: parents[i] is the rank that sends to rank i, or -1 if rank i is the root.
            cores: the number of cores of each rank that has children.
            over_sockets: ignored, since the default of chunk_bytes does not depend on it.

        Raises:
            InvalidArgument: a value is out of range, there is not exactly one root, or parents go in a circle.
        """
        own_keys, codecs = coded(as_keys(keys), codec)
        names = [key.name for key in own_keys]
        above = [whole("parents", parent, -1, len(parents) - 1) for parent in parents]
        return cls._planned(
            "tree",
            own_keys,
            codecs,
            len(above),
            None,
            parents=above,
            ranks=len(above),
            cores=cores,
            chunk=chunk_size(chunk_bytes, 131072, own_keys, codecs, max(1, len({*above} - {-1})) * cores),
            depth=depth,
            codecs_out=_numbers(by_key_out(names, codec_out)),
        )

    @classmethod
    def graph(
        cls,
        keys: Mapping[str, Any] | Iterable[Key],
        weights: NDArray[np.float64],
        *,
        cores: int = 1,
        chunk_bytes: int = 131072,
        depth: int = 1,
        codec: Codecs | None = None,
    ) -> "Plan":
        """Makes the plan of a node communication graph (ASAP, section 3): every rank owns a row of every chunk. The row
        folds the updates of the rank and of the rank's in-neighbours.

        Args:
            keys, chunk_bytes, depth, codec: as Plan.hub() takes them.
            weights: float64 (phases, ranks, ranks): in steps of a phase, rank i multiplies rank j's update by
                weights[phase, i, j]; 0 means that j has no edge to i. The diagonal must not be 0. Steps take the phases
                in turn.
            cores: the number of cores of each rank; its chunks are dealt to them, the largest first.

        Raises:
            InvalidArgument: a value is out of range, a key has no elements, two keys have one name, or a mapping names
                an unknown key.
        """
        if weights.ndim != 3 or weights.shape[1] != weights.shape[2] or weights.dtype != np.float64:
            raise InvalidArgument(
                f"weights is {weights.dtype} of shape {weights.shape}: must be float64 (phases, ranks, ranks)"
            )
        own_keys, codecs = coded(as_keys(keys), codec)
        size = weights.shape[1]
        return cls._planned(
            "graph",
            own_keys,
            codecs,
            size,
            range(size),
            n_phases=len(weights),
            ranks=size,
            weights=np.ascontiguousarray(weights),
            cores=cores,
            chunk=whole("chunk_bytes", chunk_bytes, 0, (1 << 64) - 1),
            depth=depth,
        )

    @classmethod
    def peer_to_peer(
        cls,
        keys: Mapping[str, Any] | Iterable[Key],
        size: int,
        *,
        sends: NDArray[np.bool_] | None = None,
        parents: NDArray[np.int32] | None = None,
        hosts: Sequence[Sequence[int]] | None = None,
        leaders: Sequence[int] | None = None,
        cores: int = 1,
        chunk_bytes: int | None = None,
        depth: int = 2,
        codec: Codecs | None = None,
        reduce: str = "mean",
    ) -> "Plan":
        """Makes the plan of peers (SFB, section 3): every rank owns a row of every chunk. The row applies the rank's
        own updates, and all updates that come from other ranks, to the rank's copy of the parameters.

        Args:
            keys, size, chunk_bytes, depth, codec, reduce: as Plan.hub() takes them, but a chunk has 256 KiB by default.
                BSP needs a depth of 2 or more, SSP(s) of s + 2 or more.
            sends: bool (size, size): whether rank i sends its updates to rank j is sends[i, j]. None: all ranks send to
                all others.
            parents: int32 (size, size): parents[i, j] is the rank that sends rank i's updates to rank j: rank i itself,
                or a rank that passes the updates on unchanged. None: each rank sends its own updates.
            hosts: lists of the ranks of each host. Only one rank of each host then owns a row of a chunk: this rank
                gets the pushes of all ranks, and sends the parameters to the ranks of its host. Only for BSP, and
                without `sends` and `parents`. None: each rank owns a row of every chunk.
            leaders: the ranks that may own rows, at least one on each host. Only with hosts. None: all ranks.
            cores: the number of cores of each rank; its chunks are dealt to them, the largest first.

        Raises:
            InvalidArgument: a value is out of range; a key has no elements, two keys have one name, or a mapping names
                an unknown key; parents do not lead from every rank to every other rank; two of sends, parents and hosts
                are given; leaders are given without hosts; a rank is on no host or on two; or a host has no leader.
        """
        choice("reduce", reduce, ("mean", "sum"))
        size = whole("size", size, 1)
        if parents is not None and (parents.shape != (size, size) or parents.dtype != np.int32):
            raise InvalidArgument(f"parents is {parents.dtype} of shape {parents.shape}: must be int32 {(size, size)}")
        if sends is not None and (sends.shape != (size, size) or sends.dtype != np.bool_):
            raise InvalidArgument(f"sends is {sends.dtype} of shape {sends.shape}: must be bool {(size, size)}")
        own_keys, codecs = coded(as_keys(keys), codec)
        given: dict[str, Any] = {} if sends is None else {"sends": np.ascontiguousarray(sends).view(np.uint8)}
        if parents is not None:
            given["parents"] = parents.ravel().tolist()
        if hosts is not None:
            numbers = group_numbers([hosts], size)[0]
            if missing := set(range(size)) - set(numbers):
                raise InvalidArgument(f"rank {min(missing)} is in none of hosts: each rank is on one")
            given["hosts"] = [numbers[rank] for rank in range(size)]
        if leaders is not None:
            given["leads"] = np.isin(np.arange(size), ranks_in("leaders", leaders, size)).view(np.uint8)
        return cls._planned(
            "peer_to_peer",
            own_keys,
            codecs,
            size,
            range(size),
            workers=list(range(size)),
            cores=cores,
            chunk=chunk_size(chunk_bytes, 262144, own_keys, codecs, cores),
            depth=depth,
            sum=reduce == "sum",
            **given,
        )

    @classmethod
    def _planned(
        cls,
        planner: str,
        keys: tuple[Key, ...],
        codecs: Sequence[WireFormat],
        size: int,
        owners: Iterable[int] | None,
        *,
        cores: int,
        depth: int,
        **arguments: Any,
    ) -> "Plan":
        """Makes a plan with a planner of csrc/plan; the keyword arguments are fields of the planner's struct. owners:
        the ranks that serve, with all their cores; None: the ranks that own rows."""
        more = {"cores": whole("cores", cores, 1), "depth": whole("depth", depth, 0), "wires": _numbers(codecs)}
        given = _core.plan_arguments(planner, c_keys(keys), **more, **arguments)
        handle = _core.plan_of(planner, given)
        plan = cls.__new__(cls)
        places = None if owners is None else [(rank, core) for rank in owners for core in range(cores)]
        plan._fill(handle, keys, size, places, given)
        return plan

    def _fill(
        self,
        handle: Any,
        keys: tuple[Key, ...],
        size: int,
        places: Iterable[tuple[int, int]] | None,
        arguments: Any = None,
    ) -> None:
        size = whole("size", size, 1)
        _core.plan_check(handle, size)
        rows = Rows(handle)
        used = distinct(np.stack([rows.column("owner"), rows.column("core")], axis=1), axis=0)
        working = [(rank, core) for rank, core in used.tolist()]
        own_places = tuple(working) if places is None else _places(places, size)
        if homeless := set(working) - set(own_places):
            raise InvalidArgument(f"places lack (rank, core) {min(homeless)}, which owns rows")
        affinity = _AFFINITY[_core.plan_affinity(handle)]
        for name, value in (
            ("handle", handle),
            ("arguments", arguments),
            ("keys", keys),
            ("rows", rows),
            ("size", size),
            ("places", own_places),
            ("affinity", affinity),
        ):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"a plan cannot be changed: {name} was to be set; make another plan")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"a plan cannot be changed: {name} was to be deleted; make another plan")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        return (
            (self.size, self.keys, self.places, self.affinity) == (other.size, other.keys, other.places, other.affinity)
            and len(self.rows) == len(other.rows)
            and all(map(operator.eq, self.rows, other.rows))
        )

    def __hash__(self) -> int:
        return hash((self.size, self.keys, self.places, self.affinity, len(self.rows)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Plan.from_json, (self.to_json(),)

    # ---- questions -------------------------------------------------------------------------------------------------

    @property
    def workers(self) -> tuple[int, ...]:
        """The ranks that push, in rising order."""
        return tuple(distinct(self.rows.pushes()[1]).tolist())

    @property
    def servers(self) -> tuple[int, ...]:
        """The ranks whose cores serve, in rising order."""
        return tuple(sorted({rank for rank, _ in self.places}))

    def key(self, key: str | int) -> int:
        """Returns the number of a key, given its name or its number."""
        if not isinstance(key, str):
            return whole("key", key, 0, len(self.keys) - 1)
        for i, own in enumerate(self.keys):
            if own.name == key:
                return i
        raise InvalidArgument(f"key {key!r} is not in the plan; its keys are {_few([own.name for own in self.keys])}")

    def range_of(self, key: str | int) -> range:
        """Returns the numbers of a key's rows, as a range."""
        number = self.key(key)
        column = self.rows.column("key")
        return range(int(np.searchsorted(column, number)), int(np.searchsorted(column, number, side="right")))

    def rows_of(self, key: str | int) -> tuple[Row, ...]:
        """Returns a key's rows, in order of offset."""
        found = self.range_of(key)
        return self.rows[found.start : found.stop]

    def owners(self, key: str | int) -> tuple[int, ...]:
        """Returns the ranks that own rows of a key, in rising order."""
        found = self.range_of(key)
        return tuple(distinct(self.rows.column("owner")[found.start : found.stop]).tolist())

    def loads(self) -> dict[tuple[int, int], int]:
        """Returns a dict from (rank, core) to the bytes, as float32, that the core folds when all keys are updated
        once. Relayed bytes do not count."""
        return {place: nbytes for place, (nbytes, _) in self._shares().items()}

    @property
    def imbalance(self) -> Imbalance:
        """The Imbalance of this plan: the bytes of the fullest core over the mean of all cores, and the bytes of the
        fullest server over the mean of all servers."""
        loads = self.loads()
        servers = dict.fromkeys(self.servers, 0)
        for (rank, _), nbytes in loads.items():
            servers[rank] += nbytes
        core, server = (max(values) * len(values) / sum(values) for values in (loads.values(), servers.values()))
        return Imbalance(core, server)

    def _shares(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Returns a dict from (rank, core) to the bytes that the core folds and the number of its rows."""
        folds = self.rows.column("action") != _core.ACTIONS["relay"]
        owner, core, count = (self.rows.column(name)[folds] for name in ("owner", "core", "count"))
        number = {place: i for i, place in enumerate(self.places)}
        pairs, which = np.unique(np.stack([owner, core], axis=1), axis=0, return_inverse=True)
        elements, chunks = np.zeros(len(pairs), np.uint64), np.bincount(which.reshape(-1), minlength=len(pairs))
        np.add.at(elements, which.reshape(-1), count)
        found = [(0, 0)] * len(number)
        for pair, n, rows in zip(pairs.tolist(), elements.tolist(), chunks.tolist(), strict=True):
            found[number[pair[0], pair[1]]] = (n * ELEMENT, rows)
        return dict(zip(self.places, found, strict=True))

    # ---- as text ---------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<hpcomm.Plan of {self.size} ranks, {len(self.keys)} keys, {len(self.rows)} rows>"

    def __str__(self) -> str:
        imbalance = self.imbalance
        total = sum(key.count for key in self.keys) * ELEMENT
        ends = np.isin(self.rows.column("action"), [_core.ACTIONS[name] for name in ("apply", "emit")])
        key, owner, offset = (self.rows.column(name)[ends] for name in ("key", "owner", "offset"))
        first = np.ones(len(key), bool)  # the first row of each chunk, among the rows that apply or emit
        first[1:] = (key[1:] != key[:-1]) | (offset[1:] != offset[:-1])
        head = (
            f"plan of {self.size} ranks: {len(self.keys)} keys, {int(first.sum())} chunks, {_bytes(total)}; "
            f"fullest over mean: core {imbalance.core:.3f}, server {imbalance.server:.3f}; affinity {self.affinity}"
        )
        chunk = np.cumsum(first)
        # Each further row of a chunk is a receiver's, unless its inputs are pushes, as in a graph.
        copies = chunk[~first & ~np.isin(np.flatnonzero(ends), self.rows.pushes()[0])]
        if len(copies) > 0:
            head += f"; receivers apply the rule: ranks {_few(np.unique(owner[np.isin(chunk, copies)]).tolist())}"
        keys = [("key", "shape", "bytes", "chunks", "servers")]
        for i, own in enumerate(self.keys[:SHOWN]):
            servers = np.unique(owner[key == i]).tolist()
            chunks = str(int(first[key == i].sum()))
            keys.append((own.name, str(own.shape), _bytes(own.count * ELEMENT), chunks, _few(servers)))
        places = [("server", "core", "bytes", "chunks")]
        for (rank, core), (nbytes, rows) in list(self._shares().items())[:SHOWN]:
            places.append((str(rank), str(core), _bytes(nbytes), str(rows)))
        return "\n".join(
            [head, "", *_table(keys, "llrrl", len(self.keys), "keys"), "",
             *_table(places, "rrrr", len(self.places), "cores"), *([] if ends.all() else ["", *self._stages()])]
        )  # fmt: skip

    def _stages(self) -> list[str]:
        """Returns the lines about stages, with bytes as encoded for the wire."""
        owner, action = self.rows.column("owner").tolist(), [ACTION_OF[a] for a in self.rows.column("action").tolist()]
        size = {value: Codec(name).dtype.itemsize for name, value in _core.CODECS.items()}
        size |= dict.fromkeys(_core.PIECES.values(), ELEMENT)  # pieces count as float32, their largest size
        inputs, outputs = (
            [size[codec] * n for codec, n in zip(self.rows.column(name).tolist(), counts, strict=True)]
            for counts in [self.rows.column("count").tolist()]
            for name in ("codec_in", "codec_out")
        )
        return drawn(Flow(self.rows.lists(), owner, action, inputs, outputs), _bytes, SHOWN)

    def to_json(self) -> str:
        """Returns the plan as JSON, from which from_json makes an equal plan. A list of edges that several rows share
        is written once."""
        lists, inputs, outputs = self.rows.lists()
        column = {name: self.rows.column(name).tolist() for name in _NUMBERS}
        column["action"] = [ACTION_OF[value] for value in column["action"]]
        for name in ("codec_in", "codec_out"):
            column[name] = [CODEC_OF[value] for value in column[name]]
        column["in_edges"], column["out_edges"] = inputs, outputs
        return json.dumps(
            {
                "hpcomm_plan": 1,
                "size": self.size,
                "keys": [[key.name, key.shape, *([key.unit] if key.unit > 1 else [])] for key in self.keys],
                "places": self.places,
                "affinity": self.affinity,
                "edges": lists,
                "columns": _COLUMNS,
                "rows": list(zip(*(column[name] for name in _COLUMNS), strict=True)),
            },
            allow_nan=False,
        )

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Returns the plan that to_json wrote.

        Raises:
            InvalidArgument: the text does not have this form, or its plan is wrong.
        """
        try:
            found = json.loads(text)
            if found["hpcomm_plan"] != 1:
                raise InvalidArgument(f"the plan has version {found['hpcomm_plan']!r}: this hpcomm reads version 1")
            lists = [tuple(Edge(*edge) for edge in edges) for edges in found["edges"]]
            rows = []
            for values in found["rows"]:
                row = dict(zip(found["columns"], values, strict=True))
                for name in ("in_edges", "out_edges"):
                    row[name] = lists[whole(name, row[name], 0)]
                choice("row: fold", row.pop("fold", "sum"), ("sum",))  # a field of older plans
                rows.append(Row(**row))
            keys = [Key(name, shape, unit=unit) for name, shape, unit in ([*key, 1][:3] for key in found["keys"])]
            places = [(rank, core) for rank, core in found["places"]]
            return cls(keys, rows, found["size"], places, found.get("affinity", "key"))
        except InvalidArgument:
            raise
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as wrong:
            raise InvalidArgument(f"this is not a plan's JSON: {type(wrong).__name__}: {wrong}") from None


def chunk_size(given: object, usual: int, keys: Sequence[Key], codecs: Sequence[WireFormat], cores: int) -> int:
    """Returns the bytes of float32 in a chunk: the user's chunk_bytes if given, otherwise usual.

    A codec of pieces makes a separate message of each chunk, however few elements it sends. With such a codec chunks
    have 32 KiB to 1 MiB, so that each core of all servers gets about eight chunks.
    """
    if given is not None:
        return whole("chunk_bytes", given, 0, (1 << 64) - 1)
    if all(isinstance(codec, Codec) for codec in codecs):
        return usual
    return chunk_of_part(keys, cores, 8, 1 << 20, 32 << 10)


def chunk_of_part(keys: Sequence[Key], cores: int, chunks: int, most: int, least: int) -> int:
    """Returns the bytes of float32 in a chunk. Starts with the argument `most` and halves it until each core gets
    `chunks` chunks of all keys; the result is never below `least`."""
    chunk, all_bytes = most, sum(key.count for key in keys) * ELEMENT
    while chunk > least and chunks * cores * chunk > all_bytes:
        chunk //= 2
    return chunk


def _cutting(
    given: object, usual: int, keys: Sequence[Key], codecs: Sequence[WireFormat], cores: int, over_sockets: bool
) -> dict[str, int]:
    """Returns the fields chunk and least of a planner's arguments. Over sockets each chunk is a message in each
    direction, so few large chunks cost least. But each core needs more than one chunk, since with one it cannot receive
    and send at the same time."""
    if given is None and over_sockets and all(isinstance(codec, Codec) for codec in codecs):
        return {"chunk": chunk_of_part(keys, cores, 4, 256 << 10, 64 << 10), "least": 16 << 10}
    return {"chunk": chunk_size(given, usual, keys, codecs, cores), "least": 0}


_COLUMNS = [field.name for field in fields(Row)]
_NUMBERS = [name for name in _COLUMNS if name not in ("in_edges", "out_edges")]


def coded(keys: tuple[Key, ...], codec: Codecs | None) -> tuple[tuple[Key, ...], list[WireFormat]]:
    """Returns the keys with the units of their codecs, and these codecs."""
    codecs = by_key([key.name for key in keys], codec)
    return with_units(keys, codecs), codecs


def with_units(keys: Iterable[Key], codecs: Sequence[WireFormat]) -> tuple[Key, ...]:
    """Returns the keys with larger units: each unit becomes a multiple of the key's unit and of the codec's unit, but
    at most the whole key.

    Raises:
        InvalidArgument: a codec cannot take a key of this shape.
    """
    keys = tuple(keys)
    for key, codec in zip(keys, codecs, strict=True):
        if (refused := codec.refuses(key.shape)) is not None:
            raise InvalidArgument(f"codec of {key.name!r} is {codec!r}: {refused}")
    units = [codec.unit_of(key.shape) for key, codec in zip(keys, codecs, strict=True)]
    return tuple(
        key if unit == 1 else replace(key, unit=min(lcm(key.unit, unit), key.count))
        for key, unit in zip(keys, units, strict=True)
    )


def _check_sums(keys: Sequence[Key], codecs: Sequence[WireFormat], why: str) -> None:
    for key, codec in zip(keys, codecs, strict=True):
        if not codec.sums:
            raise InvalidArgument(
                f"codec of {key.name!r} is {codec!r}, which only the rank that made an update can write, and {why}: "
                "give the key topology 'flat' or PeerToPeer(), or another codec"
            )


def c_keys(keys: Iterable[Key]) -> list[_core.PlanKey]:
    return [(key.name, key.count, key.unit) for key in keys]


def _numbers(codecs: Sequence[WireFormat]) -> list[int]:
    """Returns C's numbers of codecs."""
    return [_core.WIRES[codec.name] for codec in codecs]


def _places(places: Iterable[tuple[int, int]], size: int) -> tuple[tuple[int, int], ...]:
    found = tuple((whole("places: rank", rank, 0, size - 1), whole("places: core", core, 0)) for rank, core in places)
    if len(set(found)) != len(found):
        raise InvalidArgument(f"places are {_few(found)}: each may be there once")
    return found


def _bytes(n: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{n / size:.2f} {unit}"
    return f"{n} B"


def _few(values: Sequence[object], most: int = 8) -> str:
    more = f", and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(map(str, values[:most])) + more


def _table(lines: Sequence[tuple[str, ...]], sides: str, n: int, what: str) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    made = [
        "  ".join(
            cell.ljust(width) if side == "l" else cell.rjust(width)
            for cell, width, side in zip(line, widths, sides, strict=True)
        ).rstrip()
        for line in lines
    ]
    return made + [f"... and {n - SHOWN} more {what}"] * (n > SHOWN)

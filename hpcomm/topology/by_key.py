"""ByKey: a topology for each key, all in one plan."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from ..codec import by_key, by_key_out
from ..consistency import applies_each
from ..errors import ConfigError, InvalidArgument
from ..plan import Plan, with_units
from ..stage import Edge, Key, Row, as_keys, nearest
from .parameter_server import ParameterServer
from .protocol import Job, Request, Roles, Topology

_FLAT = ParameterServer()


@dataclass(frozen=True)
class ByKey(Topology):
    """Gives each key a separate topology, e.g. a Hierarchy to a few large keys and a flat ParameterServer, which needs
    fewer hops, to many small keys.

    Every worker pushes all keys. An exchange joins the plans of keys with servers, and makes separate schemes for
    graphs.

    Attributes:
        topologies: a mapping from names of keys to their topologies.
        rest: the topology of all other keys. None: the mapping must name every key.
    """

    topologies: Mapping[str, Topology]
    rest: Topology | None = _FLAT

    def __hash__(self) -> int:
        return hash((frozenset(self.topologies.items()), self.rest))

    @property
    def updates_of(self) -> Literal["all", "root", "neighbours", "hosts"]:
        """The value of updates_of that all topologies have; if they differ, one value that is not "all"."""
        return min((one.updates_of for _, one in self._each()), key=["hosts", "neighbours", "root", "all"].index)

    def _each(self) -> Iterator[tuple[str, Topology]]:
        """Yields each topology, with the name that refusals use for its keys."""
        for name, one in self.topologies.items():
            yield f"key {name!r}", one
        if self.rest is not None:
            yield "keys that topology does not name", self.rest

    def of(self, name: str) -> Topology:
        """Returns the topology of a key."""
        found = self.topologies.get(name, self.rest or _FLAT)
        return found.of(name) if isinstance(found, ByKey) else found

    def roles(self, size: int) -> Roles:
        """Returns the workers and the servers of a job of size ranks, for all keys together, each in rising order.

        Raises:
            ConfigError: keys have different workers.
        """
        workers = check_workers(tuple(one.roles(size)[0]) for _, one in self._each())
        return workers, tuple(sorted({rank for _, one in self._each() for rank in one.roles(size)[1]}))

    def refuses(self, job: Job) -> str | None:
        """Returns the sentence of the first topology that refuses the job, with its key, or None. Under SSP(s) and
        ASYNC also refuses a mix of keys that receivers apply and keys that owners apply, since their versions are
        counted differently."""
        for name, one in self._each():
            if (refused := one.refuses(job)) is not None:
                return f"{name}: {refused}"
        if not applies_each(job.consistency):
            return None
        away = [_at_receivers(one) for _, one in self._each()]
        if all(away) or not any(away):
            return None
        name, other = next(each for each, there in zip(self._each(), away, strict=True) if not there)
        return (
            f"consistency is {job.consistency}, and only some keys have apply_at='receivers' or 'both': give it to all "
            f"of them, also to {name}, {other!r}"
        )

    def resolved(self, job: Job) -> "ByKey":
        return self._with(lambda one: one.resolved(job))

    def inputs(self, size: int) -> int:
        return min(one.inputs(size) for _, one in self._each())

    def among(self, ranks: Sequence[int], size: int) -> "ByKey":
        """Returns a ByKey in which each topology is replaced by what its method among returns for the remaining
        ranks."""
        return self._with(lambda one: one.among(ranks, size))

    def _with(self, change: Callable[[Topology], Topology]) -> "ByKey":
        """Returns a ByKey with change(topology) for each topology; of equal topologies, change is called for one
        only."""
        rest = [] if self.rest is None else [(None, self.rest)]
        changed = {
            name: new
            for one, names in grouped([*self.topologies.items(), *rest])
            for new in [change(one)]
            for name in names
        }
        found = {name: changed[name] for name in self.topologies}
        return ByKey(found, changed.get(None))

    def compile(self, request: Request) -> Plan:
        """Returns one plan, joined from the plans that the topologies make of their keys.

        Raises:
            InvalidArgument: a name is not a key, or a topology's compile raises it.
            ConfigError: keys have different workers, or topologies have different affinities.
        """
        names = [key.name for key in as_keys(request.keys)]
        check_names("topology", self.topologies, names)
        self.roles(request.size)
        own = {name: self.of(name) for name in names}
        check_affinity(own.values())
        return compiled(request, [(one.compile, group) for one, group in grouped(own.items())])


def compiled(request: Request, parts: Iterable[tuple[Callable[[Request], Plan], Sequence[str]]]) -> Plan:
    """Returns one plan, joined from partial plans. Each element of parts is a function that makes a plan, with the
    names of the keys that the function gets."""
    keys = as_keys(request.keys)
    names = [key.name for key in keys]
    number = {name: i for i, name in enumerate(names)}
    codecs, codecs_out = (
        dict(zip(names, found, strict=True))
        for found in (by_key(names, request.codec), by_key_out(names, request.codec_out))
    )
    made = []
    for make, group in parts:
        numbers = [number[name] for name in group]
        own = {name: codecs[name] for name in group}
        own_out = {name: codecs_out[name] for name in group}
        made.append((make(replace(request, keys=[keys[i] for i in numbers], codec=own, codec_out=own_out)), numbers))
    return join(with_units(keys, [codecs[name] for name in names]), request.size, made)


Named = TypeVar("Named")


def grouped(topologies: Iterable[tuple[Named, Topology]]) -> list[tuple[Topology, list[Named]]]:
    """Returns each distinct topology with the names of its keys, in the order in which each topology first occurs."""
    found: list[tuple[Topology, list[Named]]] = []
    for name, one in topologies:
        names = next((names for other, names in found if other is one or other == one), None)
        if names is None:
            found.append((one, [name]))
        else:
            names.append(name)
    return found


def check_names(what: str, given: Iterable[object], names: Sequence[str]) -> None:
    """Raises InvalidArgument if a mapping names something that is not a key."""
    known = set(names)
    for name in given:
        if name not in known:
            raise InvalidArgument(f"{what} has an entry for {name!r}, which is not a key: {nearest(name, names)}")


def check_workers(workers: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Returns the workers of all keys. Raises ConfigError if keys have different workers."""
    found = sorted(set(workers))
    if len(found) > 1:
        raise ConfigError(
            f"ranks {found[0]} work for some keys and ranks {found[1]} for others: all keys have the same workers"
        )
    return found[0]


def check_affinity(topologies: Iterable[Topology]) -> None:
    found = {one.affinity for one in topologies if isinstance(one, ParameterServer)}
    if len(found) > 1:
        raise ConfigError(f"affinity is {' and '.join(sorted(found))}: a plan has one, give all keys the same")


def by_names(topology: Topology, names: Sequence[str]) -> dict[str, Topology]:
    """Returns the topology of each key."""
    if not isinstance(topology, ByKey):
        return dict.fromkeys(names, topology)
    check_names("topology", topology.topologies, names)
    return {name: topology.of(name) for name in names}


def joined(topologies: Mapping[str, Topology]) -> Topology:
    """Returns one topology for all these keys."""
    groups = grouped(topologies.items())
    return groups[0][0] if len(groups) == 1 else ByKey(dict(topologies), None)


def _at_receivers(topology: Topology) -> bool:
    """Whether receivers or peers apply the rule, not owners."""
    return getattr(topology, "apply_at", "owners") != "owners"


def join(keys: Sequence[Key], size: int, parts: Sequence[tuple[Plan, list[int]]]) -> Plan:
    """Returns one plan with the rows of these plans, in order of key. Each element of parts is a plan, with the numbers
    that its keys have in the joined plan."""
    found = [
        (numbers[row.key], part, i, row)
        for part, (plan, numbers) in enumerate(parts)
        for i, row in enumerate(plan.rows)
    ]
    found.sort(key=lambda place: place[:3])
    new = {place[1:3]: i for i, place in enumerate(found)}

    def moved(part: int, edges: Iterable[Edge]) -> tuple[Edge, ...]:
        return tuple(edge if edge.row < 0 else replace(edge, row=new[part, edge.row]) for edge in edges)

    depth = max(row.depth for _, _, _, row in found)  # a plan has one depth, and receivers need 2
    rows: list[Row] = [
        replace(row, key=key, depth=depth, in_edges=moved(part, row.in_edges), out_edges=moved(part, row.out_edges))
        for key, part, _, row in found
    ]
    places = sorted({place for plan, _ in parts for place in plan.places})
    affinity = next((plan.affinity for plan, _ in parts if plan.affinity != "key"), "key")
    return Plan(keys, rows, size, places, affinity)

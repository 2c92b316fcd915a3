"""A topology for each key, in one plan."""

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
    """A topology for each key: a Hierarchy for a few large keys, say, and flat for the many small ones, which takes
    fewer hops. Every worker pushes all keys. An exchange joins keys with servers in one plan, and makes separate
    schemes for graphs.

    Attributes:
        topologies: from names of keys to topologies.
        rest: for keys that topologies does not name; None: it names all.
    """

    topologies: Mapping[str, Topology]
    rest: Topology | None = _FLAT

    def __hash__(self) -> int:
        return hash((frozenset(self.topologies.items()), self.rest))

    @property
    def updates_of(self) -> Literal["all", "root", "neighbours", "hosts"]:
        """The answer of all topologies; where they differ, one that is not "all"."""
        return min((one.updates_of for _, one in self._each()), key=["hosts", "neighbours", "root", "all"].index)

    def _each(self) -> Iterator[tuple[str, Topology]]:
        """Each topology, with its name in a refusal."""
        for name, one in self.topologies.items():
            yield f"key {name!r}", one
        if self.rest is not None:
            yield "keys that topology does not name", self.rest

    def of(self, name: str) -> Topology:
        """The topology of a key."""
        found = self.topologies.get(name, self.rest or _FLAT)
        return found.of(name) if isinstance(found, ByKey) else found

    def roles(self, size: int) -> Roles:
        """The workers and the servers of a job of size ranks, each in rising order: of all keys together.

        Raises:
            ConfigError: keys have different workers.
        """
        workers = check_workers(tuple(one.roles(size)[0]) for _, one in self._each())
        return workers, tuple(sorted({rank for _, one in self._each() for rank in one.roles(size)[1]}))

    def refuses(self, job: Job) -> str | None:
        """The sentence of a topology that refuses the job, with its key. Under SSP(s) and ASYNC either all keys are
        applied at receivers or none is, as their versions are counted differently."""
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
        """Each topology of some of the ranks, as its own among."""
        return self._with(lambda one: one.among(ranks, size))

    def _with(self, change: Callable[[Topology], Topology]) -> "ByKey":
        """Each topology changed; equal topologies are changed once."""
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
        """One plan, joined from the plans that topologies make of their keys.

        Raises:
            InvalidArgument: a name is no key, or compile of a topology raises it.
            ConfigError: keys have different workers, or topologies use NICs in different ways.
        """
        names = [key.name for key in as_keys(request.keys)]
        check_names("topology", self.topologies, names)
        self.roles(request.size)
        own = {name: self.of(name) for name in names}
        check_affinity(own.values())
        return compiled(request, [(one.compile, group) for one, group in grouped(own.items())])


def compiled(request: Request, parts: Iterable[tuple[Callable[[Request], Plan], Sequence[str]]]) -> Plan:
    """One plan, joined from the plans that functions make of some keys each. parts: the functions, each with the names
    of its keys."""
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
    """Each distinct topology with its names, in the order of first names."""
    found: list[tuple[Topology, list[Named]]] = []
    for name, one in topologies:
        names = next((names for other, names in found if other is one or other == one), None)
        if names is None:
            found.append((one, [name]))
        else:
            names.append(name)
    return found


def check_names(what: str, given: Iterable[object], names: Sequence[str]) -> None:
    """Refuses a mapping with an entry for a name that is no key."""
    known = set(names)
    for name in given:
        if name not in known:
            raise InvalidArgument(f"{what} has an entry for {name!r}, which is not a key: {nearest(name, names)}")


def check_workers(workers: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The workers of all keys. Raises ConfigError where keys have different ones."""
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
    """The topology of each key."""
    if not isinstance(topology, ByKey):
        return dict.fromkeys(names, topology)
    check_names("topology", topology.topologies, names)
    return {name: topology.of(name) for name in names}


def joined(topologies: Mapping[str, Topology]) -> Topology:
    """One topology of all these keys."""
    groups = grouped(topologies.items())
    return groups[0][0] if len(groups) == 1 else ByKey(dict(topologies), None)


def _at_receivers(topology: Topology) -> bool:
    """Whether the rule is applied away from the owners."""
    return getattr(topology, "apply_at", "owners") != "owners"


def join(keys: Sequence[Key], size: int, parts: Sequence[tuple[Plan, list[int]]]) -> Plan:
    """The plan of these plans' rows, in order of key. Each plan comes with the numbers of its keys in the whole."""
    found = [
        (numbers[row.key], part, i, row)
        for part, (plan, numbers) in enumerate(parts)
        for i, row in enumerate(plan.rows)
    ]
    found.sort(key=lambda place: place[:3])
    new = {place[1:3]: i for i, place in enumerate(found)}

    def moved(part: int, edges: Iterable[Edge]) -> tuple[Edge, ...]:
        return tuple(edge if edge.row < 0 else replace(edge, row=new[part, edge.row]) for edge in edges)

    depth = max(row.depth for _, _, _, row in found)  # a plan has one; receivers need 2
    rows: list[Row] = [
        replace(row, key=key, depth=depth, in_edges=moved(part, row.in_edges), out_edges=moved(part, row.out_edges))
        for key, part, _, row in found
    ]
    places = sorted({place for plan, _ in parts for place in plan.places})
    affinity = next((plan.affinity for plan, _ in parts if plan.affinity != "key"), "key")
    return Plan(keys, rows, size, places, affinity)

"""A topology for each key, in one plan."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..codec import Codecs, by_key_out
from ..errors import ConfigError, InvalidArgument
from ..plan import Plan, coded
from ..stage import Edge, Key, Row, as_keys, nearest
from .hierarchy import Hierarchy, OneTopology
from .parameter_server import ParameterServer

_FLAT = ParameterServer()


@dataclass(frozen=True)
class ByKey:
    """Topologies of keys by themselves: a few large ones through the hosts, say, and the many small ones flat, which
    takes fewer hops. All ranks that work push all keys.

    Attributes:
        topologies: from names of keys to ParameterServer, Hierarchy or Tree values.
        rest: of the keys that are not named; None: all are.

    Raises:
        ConfigError: topologies use NICs in different ways.
    """

    topologies: Mapping[str, OneTopology]
    rest: OneTopology | None = _FLAT

    def __post_init__(self) -> None:
        affinities = {one.affinity for one in self._each() if isinstance(one, ParameterServer)}
        if len(affinities) > 1:
            raise ConfigError(f"affinity is {' and '.join(sorted(affinities))}: a plan has one, give all keys the same")

    def __hash__(self) -> int:
        return hash((frozenset(self.topologies.items()), self.rest))

    def _each(self) -> Iterator[OneTopology]:
        yield from self.topologies.values()
        if self.rest is not None:
            yield self.rest

    def roles(self, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The workers and the servers of a job of size ranks, each in rising order: of all keys together.

        Raises:
            ConfigError: keys have different workers.
        """
        workers = {one.roles(size)[0] for one in self._each()}
        if len(workers) > 1:
            a, b = sorted(workers)[:2]
            raise ConfigError(f"ranks {a} work for some keys and ranks {b} for others: all keys have the same workers")
        return workers.pop(), tuple(sorted({rank for one in self._each() for rank in one.roles(size)[1]}))

    def among(self, ranks: Sequence[int], size: int) -> "ByKey":
        """Each topology of some of the ranks, as its own among."""
        found = {name: one.among(ranks, size) for name, one in self.topologies.items()}
        return ByKey(found, None if self.rest is None else self.rest.among(ranks, size))

    def compile(
        self,
        keys: Mapping[str, Any] | Iterable[Key],
        size: int,
        *,
        codec: Codecs | None = None,
        codec_out: Codecs | None = None,
        each: bool = False,
        apart: bool = False,
        interfaces: int = 1,
        **options: Any,
    ) -> Plan:
        """One plan, of those that each topology makes of its keys. Args and errors are those of
        ParameterServer.compile, of Hierarchy.compile and of roles.

        Raises:
            InvalidArgument: a name is no key.
        """
        own_keys = as_keys(keys)
        names = [key.name for key in own_keys]
        self.roles(size)
        for name in self.topologies:
            if name not in names:
                raise InvalidArgument(f"topology has an entry for {name!r}, which is not a key: {nearest(name, names)}")
        own_keys, codecs = coded(own_keys, codec)
        codecs_out = by_key_out(names, codec_out)
        groups: dict[OneTopology, list[int]] = {}
        for i, name in enumerate(names):
            groups.setdefault(self.topologies.get(name, self.rest or _FLAT), []).append(i)
        parts = []
        for one, numbers in groups.items():
            more: dict[str, Any] = {"apart": apart, "each": each} if isinstance(one, Hierarchy) else {}
            if isinstance(one, ParameterServer):
                more = {"each": each, "interfaces": interfaces}
            plan = one.compile(
                [own_keys[i] for i in numbers],
                size,
                codec={names[i]: codecs[i] for i in numbers},
                codec_out={names[i]: codecs_out[i] for i in numbers},
                **more,
                **options,
            )
            parts.append((plan, numbers))
        return _joined(own_keys, size, parts)


Servers = OneTopology | ByKey


def _joined(keys: Sequence[Key], size: int, parts: Sequence[tuple[Plan, list[int]]]) -> Plan:
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

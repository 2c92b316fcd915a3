"""Reads groups of ranks, such as hosts and racks, which users give as lists of ranks or by name."""

from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import InvalidArgument
from ..stage import whole

Groups = tuple[tuple[int, ...], ...]


def by_name(names: Sequence[Any]) -> Groups:
    """Returns the ranks with each name, where names[r] is the name of rank r. Groups are sorted by their lowest
    ranks."""
    groups: dict[Any, list[int]] = {}
    for rank, name in enumerate(names):
        groups.setdefault(name, []).append(rank)
    return tuple(map(tuple, groups.values()))


def as_list(name: str, value: Any) -> list[Any]:
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return list(value)
    raise InvalidArgument(f"{name} is {value!r}: must be a sequence of ranks")


def checked_group(name: str, value: Any) -> tuple[int, ...]:
    return tuple(whole(name, rank, 0) for rank in as_list(name, value))


def checked_racks(value: Any, hosted: bool = False) -> tuple[Groups | None, Groups]:
    """Returns the hosts of all racks, and the ranks of each rack.

    A rack is given as a list of ranks, or as a list of hosts, which are lists of ranks. The hosts in the result are
    None if all racks are lists of ranks, or if hosted is True because the caller already knows the hosts.

    Raises:
        InvalidArgument: value contains something else than ranks.
    """
    racks = [as_list(f"racks[{i}]", rack) for i, rack in enumerate(as_list("racks", value))]
    nested = not hosted and any(not hasattr(host, "__index__") for rack in racks for host in rack)
    hosts = tuple(checked_group("racks: host", host) for rack in racks for host in rack) if nested else None
    return hosts, tuple(checked_group(f"racks[{i}]", flat(rack)) for i, rack in enumerate(racks))


def flat(rack: Any) -> list[Any]:
    """Returns the ranks of a rack that is a list of ranks, or a list of hosts, which are lists of ranks."""
    return [rank for part in _parts(rack) for rank in part]


def _parts(rack: Iterable[Any]) -> list[list[Any]]:
    return [[part] if hasattr(part, "__index__") else as_list("racks", part) for part in rack]

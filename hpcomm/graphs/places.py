"""Groups of ranks: of a host or of a rack, given as ranks or by name."""

from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import InvalidArgument
from ..stage import whole

Groups = tuple[tuple[int, ...], ...]


def by_name(names: Sequence[Any]) -> Groups:
    """The ranks with each name; groups are in the order of their lowest ranks."""
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
    """The hosts and the ranks of each rack. A rack is given as ranks, or as hosts that are lists of ranks; the hosts
    are None in the first case, and where they are known already (hosted).

    Raises:
        InvalidArgument: value holds anything but ranks.
    """
    racks = [as_list(f"racks[{i}]", rack) for i, rack in enumerate(as_list("racks", value))]
    nested = not hosted and any(not hasattr(host, "__index__") for rack in racks for host in rack)
    hosts = tuple(checked_group("racks: host", host) for rack in racks for host in rack) if nested else None
    return hosts, tuple(checked_group(f"racks[{i}]", flat(rack)) for i, rack in enumerate(racks))


def flat(rack: Any) -> list[Any]:
    """The ranks of a rack given as ranks, or as hosts that are lists of ranks."""
    return [rank for part in _parts(rack) for rank in part]


def _parts(rack: Iterable[Any]) -> list[list[Any]]:
    return [[part] if hasattr(part, "__index__") else as_list("racks", part) for part in rack]

"""Fragments: the groups of keys that are exchanged together (Streaming DiLoCo, arXiv 2501.18512)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..errors import InvalidArgument
from ..stage import nearest, whole

Fragments: TypeAlias = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Strided:
    """Fragments of layers that lie far apart: layer i is in fragment i mod number. According to Streaming DiLoCo (arXiv
    2501.18512) their loss is slightly lower than with fragments of neighbouring layers.

    Attributes:
        number: the number of fragments, 1 or more.

    Raises:
        InvalidArgument: number is not an int, or is below 1.
    """

    number: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "number", whole("Strided: number", self.number, 1))


def fragments_of(sizes: Mapping[str, int], given: object) -> Fragments:
    """Returns the fragments: for each, the names of its keys.

    Args:
        sizes: the number of elements of each key by name, in the order of the model. Keys that have the same name up to
            the last dot form a layer.
        given: the user's argument. A number n: n groups of neighbouring layers, with about the same number of elements
            each. Strided(n): see there. Otherwise a sequence of fragments, each a sequence of key names.

    Raises:
        InvalidArgument: there are fewer layers than fragments; a name is not a key; or a key is in no fragment or in
        two.
    """
    if isinstance(given, Strided):
        layers = _layers(sizes)
        _check_enough(given.number, len(layers))
        return tuple(tuple(name for layer in layers[i :: given.number] for name in layer) for i in range(given.number))
    if isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping):
        return _named(sizes, given)
    number = whole("fragments", given, 1)
    layers = _layers(sizes)
    _check_enough(number, len(layers))
    return _side_by_side(sizes, layers, number)


def _check_enough(number: int, layers: int) -> None:
    if number > layers:
        raise InvalidArgument(f"fragments is {number}, and there are {layers} layers: give at most as many fragments")


def _layers(sizes: Iterable[str]) -> list[list[str]]:
    """Returns the layers: lists of keys that have the same name up to the last dot, in the order of their first
    keys."""
    found: dict[str, list[str]] = {}
    for name in sizes:
        prefix, dot, _ = name.rpartition(".")
        found.setdefault(prefix if dot else f"{name}.", []).append(name)
    return list(found.values())


def _side_by_side(sizes: Mapping[str, int], layers: Sequence[Sequence[str]], number: int) -> Fragments:
    """Cuts the list of layers into parts with nearly equal numbers of elements. No part is empty."""
    counts = [sum(sizes[name] for name in layer) for layer in layers]
    total, so_far, start = sum(counts), 0, 0
    found = []
    for part in range(1, number + 1):
        end = start + 1
        so_far += counts[start]
        while end < len(layers) - (number - part):
            target = total * part / number
            if part < number and abs(so_far + counts[end] - target) >= abs(so_far - target):
                break
            so_far += counts[end]
            end += 1
        found.append(tuple(name for layer in layers[start:end] for name in layer))
        start = end
    return tuple(found)


def _named(sizes: Mapping[str, int], given: Iterable[object]) -> Fragments:
    found = []
    for i, one in enumerate(given):
        if isinstance(one, str | bytes) or not isinstance(one, Iterable):
            raise InvalidArgument(f"fragments[{i}] is {one!r}: must be a sequence of names of keys")
        names = tuple(one)
        for name in names:
            if name not in sizes:
                raise InvalidArgument(f"fragments[{i}]: {name!r} is not a key: {nearest(name, sizes)}")
        if not names:
            raise InvalidArgument(f"fragments[{i}] is empty: leave it out")
        found.append(names)
    times = Counter(name for names in found for name in names)
    for name in sizes:
        if times[name] != 1:
            where = "in no fragment" if not times[name] else f"in fragments {times[name]} times"
            raise InvalidArgument(f"fragments: {name!r} stands {where}: each key must be in one")
    return tuple(found)

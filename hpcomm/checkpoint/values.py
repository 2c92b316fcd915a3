"""A trainer's values as JSON, so that reading a file runs no code. A value is refused when it is saved unless it can be
read back equal and with the same type. (Plain JSON would turn int keys into texts, and tuples into lists.)

JSON has None, bool, str, float, int and list. Any other value is stored as a dict with one entry, {kind: content}.
"""

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidArgument

Put = Callable[[Any], Any]
"""Stores a value that JSON lacks, and returns the key by which Get finds it; None: it stores no such value."""
Get = Callable[[Any], Any]
"""The reverse of Put."""

_DEEPEST = 100  # greatest depth of nested lists and dicts; JSON recurses
_PLAIN_INT = 2**63  # larger ints are written in base 16, as Python limits the digits in base 10
_FACTORIES = {kind.__name__: kind for kind in (int, float, bool, str, bytes, list, tuple, dict, set)}
_SERIES: dict[str, Callable[[Iterable[Any]], Any]] = {kind.__name__: kind for kind in (tuple, set, frozenset)}
_MAPS: dict[str, Callable[[Any], Any]] = {kind.__name__: kind for kind in (dict, OrderedDict)}


def packed(value: Any, what: str, put: Put, depth: int = 0) -> Any:
    """Returns a value in the form of JSON.

    Args:
        value: None, bool, int, float, complex, str, bytes, bytearray, range, list, tuple, set, frozenset, dict,
            OrderedDict, Counter, a defaultdict of a builtin type, or a value that put stores.
        what: its name in an error.

    Raises:
        InvalidArgument: the value cannot be read back unchanged; the error names the value.
    """
    kind = type(value)
    if value is None or kind in (bool, str, float) or (kind is int and abs(value) < _PLAIN_INT):
        return value
    if depth > _DEEPEST:
        raise InvalidArgument(f"{what}: lists and dicts are more than {_DEEPEST} deep, or one contains itself")

    def parts(values: Iterable[Any]) -> list[Any]:
        return [packed(one, f"{what}[{i}]", put, depth + 1) for i, one in enumerate(values)]

    def pairs(values: Mapping[Any, Any]) -> list[Any]:
        return [
            [packed(key, f"key {key!r} of {what}", put, depth + 1), packed(one, f"{what}[{key!r}]", put, depth + 1)]
            for key, one in values.items()
        ]

    if kind is list:
        return parts(value)
    if kind is int:
        return {"int": hex(value)}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind in (bytes, bytearray):
        return {kind.__name__: value.hex()}
    if kind is range:
        return {"range": [value.start, value.stop, value.step]}
    if kind in (tuple, set, frozenset):
        return {kind.__name__: parts(value)}
    if kind in (dict, OrderedDict):
        return {kind.__name__: pairs(value)}
    if kind is Counter:
        return {"Counter": pairs(value)}
    if kind is defaultdict and (value.default_factory is None or value.default_factory in _FACTORIES.values()):
        return {"defaultdict": [value.default_factory and value.default_factory.__name__, pairs(value)]}
    found = put(value)
    if found is not None:
        return {"stored": found}
    if isinstance(value, np.ndarray | np.generic):
        raise InvalidArgument(f"{what} is {value.dtype}: give a view of it as plain numbers")
    raise InvalidArgument(
        f"{what} is a {kind.__name__}: must be an array, a number, a text, or lists, tuples, sets and dicts of these"
    )


def unpacked(tree: Any, get: Get) -> Any:
    """Returns the value from which packed made the tree."""
    if isinstance(tree, list):
        return [unpacked(one, get) for one in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "stored":
        return get(content)
    if kind == "int":
        return int(content, 16)
    if kind == "complex":
        return complex(*content)
    if kind in ("bytes", "bytearray"):
        return bytes.fromhex(content) if kind == "bytes" else bytearray.fromhex(content)
    if kind == "range":
        return range(*content)
    if kind in _SERIES:
        return _SERIES[kind](unpacked(one, get) for one in content)
    if kind == "defaultdict":
        return defaultdict(content[0] and _FACTORIES[content[0]], _items(content[1], get))
    if kind == "Counter":
        return Counter(dict(_items(content, get)))
    return _MAPS[kind](_items(content, get))


def _items(pairs: Iterable[Any], get: Get) -> list[tuple[Any, Any]]:
    return [(unpacked(key, get), unpacked(one, get)) for key, one in pairs]


# ---- arrays ----------------------------------------------------------------------------------------------------------


def plain_array(value: Any) -> NDArray[Any] | None:
    """Returns a copy of a NumPy array or scalar, if dtype name, shape and bytes describe it completely; otherwise
    None."""
    if type(value) is not np.ndarray and not isinstance(value, np.generic):
        return None
    if value.dtype.hasobject or np.dtype(value.dtype.str) != value.dtype or value.dtype.itemsize == 0:
        return None
    array: NDArray[Any] = np.array(value, order="C")
    if array.dtype.kind in "US" and isinstance(value, np.generic) and array[()] != value:  # it ends in zero bytes
        return None
    return array


def as_was(array: NDArray[Any], *, scalar: bool) -> Any:
    """Returns a copy of the value that plain_array was given. scalar: whether it was a NumPy scalar."""
    return array.copy()[()] if scalar else np.array(array)

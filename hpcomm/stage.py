"""The parts of a plan, as immutable values: keys, edges and rows (PHub, section 3.2.3).

A chunk is a range of a key's elements that one core owns. A row is one stage, that is one step, on a chunk's path. A
fold is the weighted sum of a row's inputs.
"""

import difflib
import math
import numbers
import operator
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

from . import _core
from .errors import InvalidArgument

MOST_ELEMENTS = 1 << 48  # of all keys together
MOST_INT = (1 << 31) - 1


@dataclass(frozen=True)
class Key:
    """A named tensor that is exchanged, such as a layer's weights.

    Attributes:
        shape: () for a single number; an int means one dimension.
        count: the number of float32 elements; None: as many as the shape holds.
        unit: chunks may begin only at multiples of so many elements, as OneBit and Float4 need; 1: anywhere.

    Raises InvalidArgument for a name that C cannot hold, for a shape without elements, and for a count that is not the
    shape's.
    """

    name: str
    shape: tuple[int, ...]
    count: int = None  # type: ignore[assignment]  # an int from __post_init__ on
    unit: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or "\0" in self.name or any("\ud800" <= c <= "\udfff" for c in self.name):
            raise InvalidArgument(f"key {self.name!r}: a name must be a str without NUL and lone surrogates")
        shape = _shape(self.name, self.shape)
        count = prod(shape)
        if count == 0:
            raise InvalidArgument(f"key {self.name!r} has shape {shape}, which holds no elements: leave it out")
        if count > MOST_ELEMENTS:
            raise InvalidArgument(f"key {self.name!r} has {count} elements: at most {MOST_ELEMENTS} are possible")
        if self.count is not None and self.count != count:
            raise InvalidArgument(f"key {self.name!r}: count is {self.count!r}, but shape {shape} holds {count}")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "count", count)
        object.__setattr__(self, "unit", whole(f"key {self.name!r}: unit", self.unit, 1))


def _shape(name: str, value: object) -> tuple[int, ...]:
    try:
        dims: tuple[Any, ...] = tuple(value) if isinstance(value, Iterable) else (value,)
        shape = tuple(int(operator.index(n)) for n in dims)
    except TypeError:
        raise InvalidArgument(f"key {name!r}: shape is {value!r}: must be a sequence of ints") from None
    if any(n < 0 for n in shape):
        raise InvalidArgument(f"key {name!r}: shape is {shape}: its lengths must be 0 or more")
    return shape


def as_keys(keys: Mapping[str, Any] | Iterable[Key]) -> tuple[Key, ...]:
    """Returns keys in order, from Key values or from a mapping of names to arrays, shapes or Key values."""
    if isinstance(keys, Mapping):
        return tuple(_key_of(name, value) for name, value in keys.items())
    found = tuple(keys)
    for key in found:
        if not isinstance(key, Key):
            raise InvalidArgument(f"keys hold {key!r}: must be Key values, or a mapping from names to arrays or shapes")
    return found


def _key_of(name: str, value: Any) -> Key:
    return value if isinstance(value, Key) and value.name == name else Key(name, getattr(value, "shape", value))


@dataclass(frozen=True)
class Edge:
    """The source of a row's input, or the target of its output. Raises InvalidArgument for a number out of range.

    Attributes:
        rank: the rank at the other end.
        row: a row that this rank owns. -1: as a source, the rank's pushes of the key; as a target, its parameters.
            -2 - r: among peers, the rank's pushes, which come through rank r.
        weight: the factor of the input in the fold.
    """

    rank: int
    row: int = -1
    weight: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "rank", whole("edge: rank", self.rank, 0))
        object.__setattr__(self, "row", whole("edge: row", self.row, -(1 << 31)))
        try:
            weight = float(self.weight)
        except (TypeError, ValueError):
            weight = float("nan")
        if not isfinite(weight):
            raise InvalidArgument(f"edge: weight is {self.weight!r}: must be a finite number")
        object.__setattr__(self, "weight", weight)


@dataclass(frozen=True)
class Row:
    """A stage of a chunk: the owner's core folds the inputs of the in-edges by their weights; the action says what
    happens to the fold.

    Attributes:
        key: the key's number in the plan.
        owner, core: the rank that does the stage's work, and its core.
        offset, count: the chunk's first element and its number of elements; the offset must be a multiple of 16 (64
            bytes).
        in_edges, out_edges: the inputs, in the order of the fold, and the outputs.
        action: "apply": the rule changes the parameters, which go to the out-edges. "emit": the fold goes to the
            out-edges as parameters. "forward": the fold goes to the rows of the out-edges. "relay": the in-edge's row
            sends parameters, which go on to the out-edges unchanged.
        depth: the number of slots of each in-edge, 1 to 32: so many of its inputs may be pending.
        quorum: the number of inputs for one fold: all, or 1 (each input is folded by itself); None: all.
        codec_in, codec_out: the codecs of the inputs and of the outputs: "float32", "float16" or "bfloat16"; for
            updates also a codec of pieces: "threshold", "topk", "onebit", "float4" or "own". Inputs that other rows
            forward have the codec_out of these rows. All rows that send parameters of one key must have the same
            codec_out.

    Raises InvalidArgument for a value that is out of range or unknown. Plan checks that the rows fit together.
    """

    key: int
    owner: int
    core: int
    offset: int
    count: int
    in_edges: tuple[Edge, ...]
    out_edges: tuple[Edge, ...]
    action: str = "apply"
    depth: int = 1
    quorum: int = None  # type: ignore[assignment]  # an int from __post_init__ on
    codec_in: str = "float32"
    codec_out: str = "float32"

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "in_edges", _edges("in_edges", self.in_edges))
        put(self, "out_edges", _edges("out_edges", self.out_edges))
        if self.quorum is None:
            put(self, "quorum", len(self.in_edges))
        for name in ("key", "owner", "core", "depth", "quorum"):
            put(self, name, whole(f"row: {name}", getattr(self, name), 0))
        for name in ("offset", "count"):
            put(self, name, whole(f"row: {name}", getattr(self, name), 0, MOST_ELEMENTS))
        choice("row: action", self.action, _core.ACTIONS)
        choice("row: codec_in", self.codec_in, _core.WIRES)
        choice("row: codec_out", self.codec_out, _core.WIRES)


def _edges(name: str, edges: Iterable[Edge]) -> tuple[Edge, ...]:
    found = tuple(edges)
    if not all(isinstance(edge, Edge) for edge in found):
        raise InvalidArgument(f"row: {name} is {edges!r}: must be Edge values")
    return found


def whole(name: str, value: object, low: int, high: int = MOST_INT) -> int:
    """Returns value as an int; raises InvalidArgument unless it is an int from low to high."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = int(operator.index(value))  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgument(f"{name} is {value!r}: must be an int") from None
    if not low <= number <= high:
        raise InvalidArgument(f"{name} is {number}: must be {low} to {high}")
    return number


def check_number(rule: object, name: str, low: float, high: float = math.inf, *, open_high: bool = False) -> None:
    """Checks that a rule's field is a finite number in [low, high], or in [low, high) if open_high; stores it as a
    float."""
    value = getattr(rule, name)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidArgument(f"{type(rule).__name__}: {name} is {value!r}: must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not (low <= number < high if open_high else low <= number <= high) or not math.isfinite(number):
        limits = f"{low:g} or more" if high == math.inf else f"from {low:g} to {'less than ' * open_high}{high:g}"
        raise InvalidArgument(f"{type(rule).__name__}: {name} is {value!r}: must be finite and {limits}")
    object.__setattr__(rule, name, number)


def checked_args(title: str, args: Any, most: int) -> Mapping[str, float] | tuple[float, ...]:
    """Returns a user's arguments for machine code, checked: at most `most` finite numbers, with names if args is a
    mapping."""
    found: dict[str, float] | tuple[float, ...]
    try:
        if isinstance(args, Mapping):
            found = {str(name): float(value) for name, value in args.items()}
        else:
            found = tuple(float(value) for value in args)
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"{title}: args are {args!r}: must be numbers, or a mapping of names to numbers"
        ) from None
    if len(found) > most or not all(map(math.isfinite, found.values() if isinstance(found, dict) else found)):
        raise InvalidArgument(f"{title}: args are {args!r}: must be at most {most} finite numbers")
    return found


def checked_title(what: str, name: object, function: object, otherwise: str, most: int) -> str:
    """Returns the name of a user's machine code, checked: the given name, or the function's, or otherwise; at most
    `most` bytes of UTF-8."""
    found = name or getattr(function, "__name__", None) or otherwise
    if not isinstance(found, str) or not 0 < len(found.encode("utf-8", "replace")) <= most or "\0" in found:
        raise InvalidArgument(f"{what} is {found!r}: must be a text of 1 to {most} bytes")
    return found


def choice(name: str, value: object, values: Iterable[str]) -> None:
    if value not in tuple(values):
        raise InvalidArgument(f"{name} is {value!r}: must be one of {', '.join(map(repr, values))}")


def nearest(name: object, names: Collection[str]) -> str:
    """Returns a hint for the error about an unknown name: similarly spelt names, otherwise the first few names."""
    close = difflib.get_close_matches(name, names, 3, 0.5) if isinstance(name, str) else []
    if close:
        return f"did you mean {', '.join(map(repr, close))}?"
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"they are {', '.join(map(repr, list(names)[:8]))}{more}"

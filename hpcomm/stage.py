"""The parts of a plan, as immutable values: keys, edges and rows (PHub, section 3.2.3).

A chunk is a range of a key's elements that one core owns. A row is one stage (one step) of a chunk's path from worker
to worker. A fold is the weighted sum of a row's inputs.
"""

import difflib
import math
import numbers
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

from . import _core
from .errors import InvalidArgument

MOST_ELEMENTS = 1 << 48  # the most elements of all keys together
MOST_INT = (1 << 31) - 1


@dataclass(frozen=True)
class Key:
    """A named tensor that is exchanged, such as a layer's weights.

    Attributes:
        shape: () for a single number; an int means one dimension.
        count: the number of float32 elements, which must be the product of the shape; None: this product.
        unit: a number of elements: chunks may begin only at its multiples, as OneBit and Float4 need. 1: chunks may
            begin anywhere.

    Raises InvalidArgument for a name that C cannot hold, for a shape without elements, and for a count that does not
    match the shape.
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
        row: the number of a row that the rank at the other end owns. -1: in an in-edge, the rank's pushes of the key;
            in an out-edge, the rank's parameters. -2 - r, only among peers: the rank's pushes, which rank r passes on.
        weight: the factor by which the fold multiplies the input.
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
    """A stage of a chunk: the owner's core folds the inputs that come over the in-edges, by the weights of these edges.
    The action says what happens to the fold.

    Attributes:
        key: the key's number in the plan.
        owner: the rank that does the stage's work.
        core: the number of the owner's core that does the work.
        offset: the index of the chunk's first element, which must be a multiple of 16 (64 bytes).
        count: the number of elements in the chunk.
        in_edges: the edges of the inputs, in the order in which they are folded.
        out_edges: the edges over which the result leaves.
        action: "apply": the rule changes the parameters by the fold, and the new parameters are sent over the
            out-edges. "emit": the fold is sent over the out-edges as parameters. "forward": the fold is sent over the
            out-edges to other rows, as an update. "relay": there is no fold; parameters that come over the in-edge are
            sent over the out-edges unchanged.
        depth: the number of slots of each in-edge, 1 to 32, which is how many of its inputs may be pending.
        quorum: how many inputs a fold takes: the number of in-edges, or 1 if each input is folded separately. None:
            all.
        codec_in: the codec of the inputs that are pushes: "float32", "float16" or "bfloat16", or a codec of pieces:
            "threshold", "topk", "onebit", "float4" or "own". Inputs that other rows forward have these rows' codec_out
            instead.
        codec_out: the codec of the outputs. Updates may have any of these codecs, parameters only the first three. All
            rows that send parameters of one key must have the same codec_out.

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
    """Stores a rule's field as a float, if it is a finite number in [low, high], or in [low, high) with open_high;
    otherwise raises InvalidArgument."""
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
    """Returns a user's arguments for machine code: a mapping from names if args is one, otherwise a tuple. Raises
    InvalidArgument unless they are at most `most` finite numbers."""
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
    """Returns a name for a user's machine code: the argument name, or the function's title, or the argument otherwise.
    Raises InvalidArgument if it has more than `most` bytes in UTF-8."""
    found = name or getattr(function, "__name__", None) or otherwise
    if not isinstance(found, str) or not 0 < len(found.encode("utf-8", "replace")) <= most or "\0" in found:
        raise InvalidArgument(f"{what} is {found!r}: must be a text of 1 to {most} bytes")
    return found


def choice(name: str, value: object, values: Iterable[str]) -> None:
    if value not in tuple(values):
        raise InvalidArgument(f"{name} is {value!r}: must be one of {', '.join(map(repr, values))}")


def nearest(name: object, names: Collection[str]) -> str:
    """Returns a hint for an error about an unknown name: names with a similar spelling, or the first few names if there
    are none."""
    close = difflib.get_close_matches(name, names, 3, 0.5) if isinstance(name, str) else []
    if close:
        return f"did you mean {', '.join(map(repr, close))}?"
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"they are {', '.join(map(repr, list(names)[:8]))}{more}"


def ranks_in(name: str, ranks: Iterable[int], size: int) -> list[int]:
    """Returns ranks of a job of so many. Raises InvalidArgument for other values."""
    try:
        found = list(ranks)
    except TypeError:
        raise InvalidArgument(f"{name} is {ranks!r}: must be a sequence of ranks") from None
    return [whole(name, rank, 0, size - 1) for rank in found]


def group_numbers(levels: Sequence[Sequence[Sequence[int]]], size: int) -> list[dict[int, int]]:
    """Returns, for each level (the innermost first), a dict from each rank to the number of its group.

    Raises:
        InvalidArgument: a level or a group is empty, a rank is in two groups of a level, or two levels have different
            ranks.
    """
    if not levels:
        raise InvalidArgument("levels is empty: the innermost level, the hosts, must be there")
    found: list[dict[int, int]] = []
    for i, level in enumerate(levels):
        name = ("hosts", "racks")[i] if i < 2 else f"level {i}"
        if not level:
            raise InvalidArgument(f"{name} is empty: a level has one group or more")
        number: dict[int, int] = {}
        for g, group in enumerate(level):
            ranks = ranks_in(f"{name}[{g}]", group, size)
            if not ranks:
                raise InvalidArgument(f"{name}[{g}] is empty: a group has one rank or more")
            for rank in ranks:
                if rank in number:
                    twice = "twice" if number[rank] == g else f"and {name}[{number[rank]}]"
                    raise InvalidArgument(f"rank {rank} is in {name}[{g}] {twice}: name it once")
                number[rank] = g
        if found and (missing := set(found[0]) - set(number)):
            raise InvalidArgument(f"rank {min(missing)} is in none of {name}: each level has all ranks")
        if found and (more := set(number) - set(found[0])):
            raise InvalidArgument(f"rank {min(more)} is in {name}, but in none of hosts: each level has all ranks")
        found.append(number)
    return found

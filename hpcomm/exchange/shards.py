"""Checkpoints of an exchange: the rows of its owners as plain arrays, which can be loaded under another plan too.

A *row* is a part of a key that one rank, its owner, keeps. A *shard* has one rank's rows: it is a dict of arrays, ints
and texts, fit for numpy.savez. A *part* is a range of a key's elements with its step, parameters and state (`slots`
values for each element, stored slot by slot). Every key has its own rule; in format 1, which can still be read, all
keys have one rule. If rows count updates instead of steps (ASYNC and SSP with servers), a shard also has the rank's
clock. Readers ignore entries with other names, so a rank may add its own entries.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidArgument
from ..optim import MOST_ARGS

FORMAT = 2
SHARED = -1

Shard = Mapping[str, Any]


@dataclass(frozen=True)
class Span:
    """The elements of a key from offset up to offset + count."""

    key: str
    offset: int
    count: int


@dataclass(frozen=True)
class Part:
    """A span with its owner's values: params (count,) and state (slots, count), both float32."""

    span: Span
    step: int
    params: NDArray[np.float32]
    state: NDArray[np.float32]


class RuleKind(NamedTuple):
    """A key's rule: its name in C, the number of state values of an element, and the number of arguments."""

    name: str
    slots: int
    n_args: int


@dataclass(frozen=True)
class Kind:
    """The properties in which a checkpoint and an exchange must agree.

    Attributes:
        rules: the rule of each key.
        keys: the number of elements of each key.
        replica: this rank, if ranks' parameters of some keys differ; SHARED if all ranks have the same parameters.
        own: the names of the keys whose parameters differ between ranks.
    """

    rules: tuple[RuleKind, ...]
    keys: Mapping[str, int]
    replica: int = SHARED
    own: frozenset[str] = frozenset()


Args: TypeAlias = tuple[tuple[float, ...], ...]  # for each key, the arguments of its rule


def blank(kind: Kind, args: Args, spans: Sequence[Span]) -> dict[str, Any]:
    """Returns a shard of these spans, without steps, parameters and state. The caller writes these through parts()."""
    numbers = {name: i for i, name in enumerate(kind.keys)}
    elements = sum(span.count for span in spans)
    return {
        "format": FORMAT,
        "rule": np.array([rule.name for rule in kind.rules], np.str_),
        "slots": np.array([rule.slots for rule in kind.rules], np.int32),
        "replica": kind.replica,
        "own": np.array([name in kind.own for name in kind.keys], np.bool_),
        "args": padded(args),
        "keys": np.array(list(kind.keys), np.str_),
        "counts": np.array(list(kind.keys.values()), np.int64),
        "row_key": np.array([numbers[span.key] for span in spans], np.int32),
        "row_offset": np.array([span.offset for span in spans], np.int64),
        "row_count": np.array([span.count for span in spans], np.int64),
        "row_step": np.zeros(len(spans), np.uint64),
        "params": np.empty(elements, np.float32),
        "state": np.empty(sum(kind.rules[numbers[span.key]].slots * span.count for span in spans), np.float32),
    }


def padded(args: Args) -> NDArray[np.float64]:
    """Returns the arguments as an array with one row for each key, filled up with a constant."""
    table = np.zeros((len(args), MOST_ARGS), np.float64)
    for row, own in zip(table, args, strict=True):
        row[: len(own)] = own
    return table


def found(shards: Shard | Iterable[Shard], kind: Kind, wanted: Sequence[Span]) -> tuple[Args, int, list[Part]]:
    """Returns three things: the rules' arguments; the largest clock of the shards (0 if they have none); and the wanted
    spans, assembled from the parts in the shards.

    Raises:
        InvalidArgument: a shard is malformed, or has another rule or other keys; the shards have different steps or
            arguments; or elements are missing. For keys whose parameters differ between ranks only this rank's shards
            count.
    """
    given = [shards] if isinstance(shards, Mapping) else list(shards)
    if not given:
        raise InvalidArgument("load_state_dict: shards is empty: give one or more")
    by_key: dict[str, list[Part]] = {}
    args: Args | None = None
    clock, has_mine = 0, False
    known: set[str] = set()  # the keys whose arguments have been read
    for shard in given:
        if not isinstance(shard, Mapping):
            raise InvalidArgument(f"load_state_dict: a shard is a {type(shard).__name__}: must be what state_dict gave")
        theirs = _checked(shard, kind)
        mine = int(shard["replica"]) == kind.replica
        counts = {name for name in kind.keys if mine or name not in kind.own}
        for name, its, other in zip(kind.keys, theirs, args or theirs, strict=True):
            if its != other and name in counts & known:
                raise InvalidArgument(
                    f"load_state_dict: the shards have different rule arguments: {other} and {its}, for key {name!r}"
                )
        if mine or args is None:
            args = theirs
        known |= counts
        has_mine |= mine
        clock = max(clock, int(shard.get("clock", 0)) if counts else 0)
        for part in parts(shard, kind):
            if part.span.key in counts:
                by_key.setdefault(part.span.key, []).append(part)
    if args is None or not has_mine:
        raise InvalidArgument(
            f"load_state_dict: none of the shards has the replica of rank {kind.replica}: give that rank's shard"
        )
    for own in by_key.values():
        own.sort(key=lambda part: part.span.offset)
    return args, clock, list(_assembled(by_key, kind, wanted))


def _checked(shard: Shard, kind: Kind) -> Args:
    """Checks that a shard agrees with kind. Returns the shard's arguments of rules in the order of kind's keys."""
    try:
        keys = dict(zip(_names(shard), map(int, shard["counts"]), strict=True))
        format_, n = int(shard["format"]), len(keys)
        rules = [str(name) for name in np.broadcast_to(shard["rule"], n)]  # format 1 has one rule for all keys
        slots = [int(value) for value in np.broadcast_to(shard["slots"], n)]
        args = np.asarray(shard["args"], np.float64)
        args = np.broadcast_to(args, (n, args.shape[-1]))
        owned = own_keys(shard)
        clock = int(shard.get("clock", 0))
        elements = int(np.sum(shard["row_count"]))
        states = sum(slots[key] * int(count) for key, count in zip(shard["row_key"], shard["row_count"], strict=True))
        sizes = [np.asarray(shard[name]).shape for name in ("params", "state")]
        rows = {len(shard[name]) for name in ("row_key", "row_offset", "row_count", "row_step")}
    except (KeyError, TypeError, ValueError, IndexError) as wrong:
        raise InvalidArgument(f"load_state_dict: a shard is not what state_dict gave: {wrong!r}") from None
    if format_ not in (1, FORMAT):
        raise InvalidArgument(
            f"load_state_dict: a shard has format {format_}: this version reads format 1 and format {FORMAT}"
        )
    if keys != dict(kind.keys):
        odd = sorted(set(keys.items()) ^ set(kind.keys.items()))[:4]
        raise InvalidArgument(f"load_state_dict: a shard and the exchange differ in keys, such as {odd}")
    of = {name: i for i, name in enumerate(keys)}
    for key, own in zip(kind.keys, kind.rules, strict=True):
        rule, values = rules[of[key]], slots[of[key]]
        if (rule, values) != (own.name, own.slots):
            raise InvalidArgument(
                f"load_state_dict: a shard is of rule {rule!r} with {values} values of state an element, "
                f"the exchange of {own.name!r} with {own.slots}, for key {key!r}"
            )
        if args.shape[1] < own.n_args:
            raise InvalidArgument(f"load_state_dict: a shard has {args.shape[1]} arguments of rule {rule!r}")
    for key in kind.keys:
        if (key in owned) != (key in kind.own):
            have, want = ("a graph", "a hub") if key in owned else ("a hub", "a graph")
            raise InvalidArgument(
                f"load_state_dict: a shard holds parameters of {have}, but the exchange is one of {want}, for key "
                f"{key!r}"
            )
    if not 0 <= clock < 1 << 63:
        raise InvalidArgument(f"load_state_dict: a shard's clock is {clock}: steps are counted from 0 up")
    if len(rows) != 1 or sizes != [(elements,), (states,)]:
        raise InvalidArgument(f"load_state_dict: a shard of {elements} elements has arrays of other sizes: {sizes}")
    return tuple(tuple(args[of[key]].tolist()[: own.n_args]) for key, own in zip(kind.keys, kind.rules, strict=True))


def _names(shard: Shard) -> list[str]:
    return [str(name) for name in shard["keys"]]


def own_keys(shard: Shard) -> frozenset[str]:
    """Returns the names of the keys whose parameters differ between ranks. A shard without the entry "own" means all
    keys or none."""
    if int(shard["replica"]) == SHARED:
        return frozenset()
    own = np.broadcast_to(np.asarray(shard.get("own", True), np.bool_), len(shard["keys"]))
    return frozenset(name for name, is_own in zip(_names(shard), own, strict=True) if is_own or not own.any())


def parts(shard: Shard, kind: Kind) -> Iterator[Part]:
    """Yields the parts of a shard that agrees with kind. They are views of the shard's arrays if these are float32, as
    blank makes them."""
    names, slots_of = _names(shard), dict(zip(kind.keys, (rule.slots for rule in kind.rules), strict=True))
    params = np.ascontiguousarray(shard["params"], np.float32)
    state = np.ascontiguousarray(shard["state"], np.float32)
    at = state_at = 0
    rows = (shard[name] for name in ("row_key", "row_offset", "row_count", "row_step"))
    for key, offset, count, step in zip(*rows, strict=True):
        n, slots = int(count), slots_of[names[key]]
        own = state[state_at : state_at + slots * n].reshape(slots, n)
        yield Part(Span(names[key], int(offset), n), int(step), params[at : at + n], own)
        at += n
        state_at += slots * n


def _assembled(by_key: Mapping[str, list[Part]], kind: Kind, wanted: Sequence[Span]) -> Iterator[Part]:
    slots = {key: rule.slots for key, rule in zip(kind.keys, kind.rules, strict=True)}
    longest = {key: max(part.span.count for part in parts) for key, parts in by_key.items()}
    for span in wanted:
        params = np.empty(span.count, np.float32)
        state = np.empty((slots[span.key], span.count), np.float32)
        at, end = span.offset, span.offset + span.count
        step: int | None = None
        for part in _overlapping(by_key.get(span.key, []), longest.get(span.key, 0), at, end):
            if step is not None and part.step != step:
                raise InvalidArgument(
                    f"load_state_dict: the shards have key {span.key!r} at step {step} and at step {part.step}: "
                    "they are of different checkpoints"
                )
            step = part.step
            low, high = part.span.offset, min(end, part.span.offset + part.span.count)
            if low > at:
                break
            if high > at:
                params[at - span.offset : high - span.offset] = part.params[at - low : high - low]
                state[:, at - span.offset : high - span.offset] = part.state[:, at - low : high - low]
                at = high
        if at < end or step is None:
            raise InvalidArgument(
                f"load_state_dict: elements {at} to {end} of key {span.key!r} are in none of the shards: "
                "give those of every rank that owned rows"
            )
        yield Part(span, step, params, state)


def _overlapping(parts: Sequence[Part], longest: int, low: int, high: int) -> Iterator[Part]:
    """Yields the parts that have elements between low and high. The parts must be sorted by offset, and none may be
    longer than longest."""
    first = bisect_left(parts, low - longest, key=lambda part: part.span.offset)
    for i in range(first, len(parts)):
        span = parts[i].span
        if span.offset >= high:
            return
        if span.offset + span.count > low:
            yield parts[i]

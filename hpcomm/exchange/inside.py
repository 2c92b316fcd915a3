"""Functions for checkpoint and recovery beside the public methods of an exchange: its arguments, and its state."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core, optim
from ..codec import Products
from ..consistency import BSP, applies_each, in_step
from ..context import Context
from ..errors import HpcommError, NotSupported, Timeout
from ..optim import Average
from ..plan import Plan
from . import encoders, pieces, split
from .arguments import Compiled, has_copies
from .book import Book
from .exchange import Exchange
from .pieces import Shard, Span
from .schemes import Made


@dataclass(frozen=True)
class Kept:
    """The state of an exchange on this rank, also after a rank has died.

    Attributes:
        shard: its rows, as Exchange.state_dict gives them.
        folded: by rank: how many of its steps these rows have folded, in full or in part.
        begun: steps that this rank has begun since the start of the training; -1 on a rank that only serves.
        steps: by key, the most steps that one of these rows has had.
    """

    shard: Shard
    folded: Sequence[int]
    begun: int
    steps: NDArray[np.uint64]


def is_over(ex: Exchange) -> bool:
    """Whether the exchange is closed, or its context is, or another context has taken the place of that."""
    return ex._closed or ex.context._is_over


def drop(ex: Exchange) -> None:
    """Closes an exchange that its user left open: now if nothing is pending and no other rank needs it, otherwise in a
    later sweep, or with its context."""
    ex.context._dropped.append(ex)
    sweep(ex.context)


def sweep(ctx: Context) -> None:
    """Closes exchanges that were dropped, as far as that needs no wait."""
    ctx._dropped[:] = [one for one in ctx._dropped if not _closes(one)]


def _closes(ex: Any) -> bool:
    try:
        ex.close(0)
    except Timeout:
        return False
    except HpcommError:  # the exchange is closed; no caller is there to be told of the failure
        pass
    return True


def kept(ex: Exchange) -> Kept:
    begun = -1 if not ex.params else ex.clock if has_own_models(ex) else ex._begun()
    shard = ex._saved()
    steps = np.zeros(len(shard["keys"]), np.uint64)
    np.maximum.at(steps, shard["row_key"], shard["row_step"])
    return Kept(shard, ex._folded(), begun, steps)


@dataclass(frozen=True)
class Heard:
    """A survivor's knowledge of an exchange that has lost ranks.

    Attributes:
        copies: by row of the plan: how new this rank's copy of its elements is; -1: it has none.
        folds: by row: how often it was folded in this exchange, if this rank owns it; else -1.
        steps: by row: its step, if this rank owns it and it applies; else -1.
        pushes: by key: the pushes of this rank that have begun.
        base: by key: the steps of its rows before the first fold here.
        pushed: by number of the key: the values of its last push as pieces, where the codec keeps a residual.
        forwarded: by row of this rank: the values of its last forwarded piece, where the codec keeps a residual.
    """

    copies: NDArray[np.int64]
    folds: NDArray[np.int64]
    steps: NDArray[np.int64]
    pushes: NDArray[np.int64]
    base: NDArray[np.int64]
    pushed: Mapping[int, NDArray[np.float32]]
    forwarded: Mapping[int, NDArray[np.float32]]


def heard(ex: Exchange, kept: Kept) -> Heard:
    """Once the cores of all ranks that are left have stopped (after Context.shrink), and before the context of ex is
    closed."""
    owner, n = ex.plan.rows.column("owner"), len(ex.plan.rows)
    folds, steps = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    forwarded = {one.row: np.empty(one.count, np.float32) for one in ex._encoders.places if one.row >= 0}
    pushed = {one.key: np.empty(one.count, np.float32) for one in ex._encoders.places if one.row < 0}
    for row in np.flatnonzero(owner == ex.context.rank).tolist():
        folds[row] = _core.exchange_forwarded(ex._handle, row, forwarded.get(row))
    steps[[row for row, _ in ex._rows]] = kept.shard["row_step"]
    counts = [_core.exchange_pushed(ex._handle, key, pushed.get(key)) for key in range(len(ex.plan.keys))]
    copies = _core.exchange_heard(ex._handle, n)
    return Heard(copies, folds, steps, np.array(counts), np.array(ex._base), pushed, forwarded)


def counts_folds(ex: Exchange) -> list[bool]:
    """By key: whether rows and workers count steps alike: one push of each worker makes one fold, or a version."""
    its = {name: one.mode == "BSP" and not ex._made.engine.split for one in ex._schemes for name in one.scheme.names}
    return [its[key.name] for key in ex.plan.keys]


def groups(ex: Exchange) -> list[list[int]]:
    """The numbers of keys whose versions are counted together: with a quorum a group for each scheme, else for each
    key."""
    numbers = {key.name: i for i, key in enumerate(ex.plan.keys)}
    found = []
    for one in ex._schemes:
        own = [numbers[name] for name in one.scheme.names]
        found += [own] if one.counts_versions else [[key] for key in own]
    return found


def counts_updates(ex: Exchange) -> bool:
    """Whether rows count updates and not steps (ASYNC and SSP(s) with servers)."""
    return ex._counts_updates


def blank(ex: Exchange, args: NDArray[np.float64], spans: Sequence[Span]) -> dict[str, Any]:
    """A shard of ex whose steps, parameters and state are still to be written."""
    shard = pieces.blank(ex._kind, tuple(tuple(row) for row in args.tolist()), spans)
    return shard


def encoded_by(ex: Exchange, shard: dict[str, Any]) -> dict[str, Any]:
    """The shard, whose encoder entries now belong to this rank in ex."""
    return shard | encoders.whose(ex._encoders) if "encoders" in shard else shard


def forwards_pieces(ex: Exchange) -> list[int]:
    """The rows of the plan that forward their folds as pieces."""
    rows, pieces_of = ex.plan.rows, list(_core.PIECES.values())
    sends = (rows.column("action") == _core.ACTIONS["forward"]) & np.isin(rows.column("codec_out"), pieces_of)
    return np.flatnonzero(sends).tolist()  # type: ignore[no-any-return]


def applies(ex: Exchange) -> NDArray[np.bool_]:
    """By row of the plan: whether it applies."""
    return ex.plan.rows.column("action") == _core.ACTIONS["apply"]  # type: ignore[no-any-return]


def has_own_models(ex: Exchange) -> bool:
    """Whether ranks' parameters differ for some keys: on graphs, and among peers where not all send to all."""
    return bool(ex._kind.own)


def made(ex: Exchange) -> Made:
    """The arguments from which recover makes the next exchange."""
    return ex._made


def keep_book(ex: Exchange, book: Book) -> None:
    """The book of an exchange from here on."""
    ex._book = book


def memory_available() -> int:
    """Bytes that this host has for new memory."""
    return _core.memory_available()


def begin_together(ex: Exchange) -> None:
    """From here on starts may be kept back as in Exchange.together, until one waits or a block of that ends."""
    _core.exchange_together(ex._handle, True)


def check_recovers(ex: Exchange) -> None:
    """Raises NotSupported where an exchange of several schemes cannot be recovered: schemes that are not all BSP with
    common parameters, nor all under one quorum with servers."""
    if len(ex._schemes) == 1 or all(one.scheme.consistency == BSP and not one.own for one in ex._schemes):
        return
    if len({one.scheme.consistency for one in ex._schemes}) == 1 and all(one.counts_versions for one in ex._schemes):
        return
    each = (f"key {one.scheme.names[0]!r} is {_where(one)} under {one.scheme.consistency}" for one in ex._schemes)
    raise NotSupported(
        f"recover: {', '.join(each)}: keys may have several schemes only under BSP, with servers and among peers that "
        "all send to all, or under one quorum with servers: make another exchange, of Context.shrink's context, and "
        "restore a checkpoint"
    )


def copied(ex: Exchange) -> frozenset[str]:
    """The keys of which every rank has a copy, where copies of equal steps have equal bits: among peers under BSP."""
    return frozenset(name for one in ex._schemes if one.is_copied for name in one.scheme.names)


def differing(ex: Exchange) -> frozenset[str]:
    """The keys of which every rank has a copy, where ranks have added the same updates in different orders: among peers
    under SSP(s)."""
    stale = (one for one in ex._schemes if one.peers and not one.own and not one.is_copied)
    return frozenset(name for one in stale for name in one.scheme.names)


def may_differ(ex: Exchange) -> bool:
    """Whether several ranks apply the same elements, and nothing tells which of their differing copies is newer."""
    return any(not one.own and not one.is_copied and has_copies(one.plan) for one in ex._schemes)


def needed(ex: Exchange) -> set[int]:
    """The ranks with which parameters go, or after which copies may differ."""
    if may_differ(ex):
        return set(range(ex.context.size))
    return {rank for one in ex._schemes if not one.own and not one.is_copied for rank in _owners(one.plan)}


def _owners(plan: Plan) -> set[int]:
    """The ranks that keep parameters; others may only fold for their hosts, and pass on."""
    keeps = np.isin(plan.rows.column("action"), [_core.ACTIONS[name] for name in ("forward", "relay")], invert=True)
    return set(np.unique(plan.rows.column("owner")[keeps]).tolist())


def clocks(ex: Exchange, steps: NDArray[np.uint64], clock: int) -> NDArray[np.uint64]:
    """By key, the step from which its rows go on: the agreed clock, or where groups count separate versions the newest
    step of the key's group. steps: by key, the most that one of its rows has had on any rank."""
    found = np.full(len(steps), clock, np.uint64)
    numbers = {key.name: i for i, key in enumerate(ex.plan.keys)}
    for one in ex._schemes if len(ex._schemes) > 1 else ():
        if one.counts_versions:
            own = [numbers[name] for name in one.scheme.names]
            found[own] = steps[own].max()
    return found


def _where(one: Compiled) -> str:
    return "on a graph" if one.phases else "among peers" if one.peers else "with servers"


def make_as(ex: Exchange, arguments: Made) -> None:
    """From here on made(ex) gives these arguments, whatever ex itself was made of."""
    ex._made = arguments


def has_quorum(ex: Exchange) -> bool:
    """Whether a worker's steps may jump, because a fold goes on without it."""
    return any(one.scheme.consistency.quorum is not None for one in ex._schemes)


def is_whole(ex: Exchange) -> bool:
    """Whether all keys are under BSP, so that all workers push a key equally often."""
    return all(one.scheme.consistency == BSP for one in ex._schemes)


def steps_of_all(ex: Exchange) -> int | None:
    """How many steps the exchange has made, where all workers are at the same one when they stand between two steps;
    None: they are not, or this rank only serves."""
    return ex.version if ex.params and all(in_step(one.scheme.consistency) for one in ex._schemes) else None


def pushes(ex: Exchange, name: str) -> int:
    """How often this rank has begun to push a key, one that was cut short included."""
    return _core.exchange_pushed(ex._handle, ex._every[name].index, None)


def folds(ex: Exchange, name: str) -> int:
    """How many folds the newest parameters of a key that this rank knows of have had since the start of the
    training."""
    return ex._base[ex._every[name].index] + ex.version_of(name)


def bytes_sent(ex: Exchange, names: Iterable[str]) -> int:
    """The bytes of these keys that this rank has sent to others, in all stages."""
    return sum(_core.key_sent(ex._handle, ex._every[name].index) for name in names)


def refuses_updates(ex: Exchange) -> str | None:
    """A sentence where the exchange cannot take updates that a trainer writes whenever it likes, key by key."""
    if not all(one.scheme.topology.updates_of == "all" for one in ex._schemes):
        return (
            "the exchange is on a graph, or its hosts have models of their own: give a topology in which the updates "
            "of all ranks count alike, such as ParameterServer, Hierarchy or PeerToPeer"
        )
    if ex._made.engine.split:
        return "the exchange folds and applies in two calls: leave out split=True"
    for name, rule in optim.by_key(ex._made.rule, ex.codecs).items():
        if isinstance(rule, Average):
            return f"key {name!r} has the rule Average, by which an update would become the parameters: give SGD(lr=1)"
    for name, codec in ex.codecs.items():
        if isinstance(codec, Products) or codec.name == "factors":
            return f"key {name!r} goes as {codec!r}, and an update of many steps is no product of few vectors"
    return None


def keeps_back(ex: Exchange, name: str) -> bool:
    """Whether the codec of this rank's updates of a key leaves parts of them for later."""
    key = ex._every[name].index
    return any(place.key == key and place.row < 0 and place.n_values > place.count + 1 for place in ex._encoders.places)


def gathered(ex: Exchange, name: str) -> NDArray[np.float32]:
    """The array that a gather of a key writes."""
    return split.gathered(ex, ex._every[name])


def counts_apart(ex: Exchange, groups: Iterable[Iterable[str]]) -> bool:
    """Whether a quorum counts the steps of each of these groups of keys by itself."""
    scheme_of = {name: i for i, one in enumerate(ex._schemes) for name in one.scheme.names}
    every = [{scheme_of[name] for name in group} for group in groups]
    return sum(map(len, every)) == len(set().union(*every))


def sums(ex: Exchange) -> bool:
    """Whether an update is the sum of the workers', and not their mean."""
    return ex._made.plan.reduce == "sum"


def holds_back(ex: Exchange) -> bool:
    """Whether updates are sent in pieces, which leave parts of them for later."""
    return bool(ex._encoders.coded)


def takes_writes(ex: Exchange, name: str) -> bool:
    """Whether the next update is added to values that all workers write into params[name]."""
    return _core.exchange_takes_writes(ex._handle, ex._key(name).index)


def reads_on(ex: Exchange) -> bool:
    """Whether a gradient may still be read when the pull behind its push has ended."""
    return ex._settles or bool(ex.graph)


def has_one_slot(ex: Exchange, name: str) -> bool:
    """Whether all gradients of a key lie in one place, one behind the other: with split, if servers keep a mean."""
    own = next(one for one in ex._schemes if name in one.scheme.names)
    means = ex._made.engine.split and not own.peers and not own.phases and not applies_each(own.scheme.consistency)
    return bool(means) or own.plan.rows.column("depth").max() == 1


def check_idle(ex: Exchange, op: str) -> None:
    """Raises InvalidArgument if ex is closed, or a push, a pull or a step of this rank is pending."""
    ex._check_idle(op)


def go_on(
    ex: Exchange,
    from_: Kept,
    args: NDArray[np.float64],
    clock: int,
    clocks: NDArray[np.uint64],
    timeout: float | None,
) -> None:
    """Loads this rank's state of the exchange before, with the rules' arguments (a row a key), the step that all ranks
    have agreed on, and by key the step of its rows. Collective."""
    shard = {**from_.shard, "replica": ex._kind.replica, "args": args, "clock": clock}
    if "encoders" in shard:  # this rank's own, whatever its number is now
        shard |= encoders.whose(ex._encoders)
    if not ex._counts_updates:
        steps, its = shard["row_step"], clocks[shard["row_key"]]
        # rows without a gradient in some steps
        left_out = (its > steps + 1) & (not has_own_models(ex) and not has_quorum(ex))
        shard["row_step"] = np.where(left_out, steps, its).astype(steps.dtype)
    ex.load_state_dict(shard, timeout)

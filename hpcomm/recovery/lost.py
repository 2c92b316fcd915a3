"""A remaining rank's knowledge of an exchange that has lost ranks: its own state, the ranks without which the state is
incomplete, and the steps from which keys continue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import _core
from ..errors import NotSupported
from ..exchange import Exchange, Shard
from ..exchange.encoders import whose
from ..exchange.facts import KeyFacts


@dataclass(frozen=True)
class Kept:
    """The state of an exchange on this rank. It can be read after a rank has died.

    Attributes:
        shard: this rank's rows, as Exchange.state_dict returns them.
        folded: folded[r] is how many of rank r's steps these rows have folded, in full or in part.
        begun: how many steps this rank has begun since the start of the training; -1 on a rank that only serves.
        steps: steps[k] is the most steps of any of these rows of key number k.
    """

    shard: Shard
    folded: Sequence[int]
    begun: int
    steps: NDArray[np.uint64]


def kept_of(ex: Exchange) -> Kept:
    state = ex._state
    begun = -1 if not state.works else state.clock() if state.any.own else state.begun()
    shard = state.saved()
    steps = np.zeros(len(shard["keys"]), np.uint64)
    np.maximum.at(steps, shard["row_key"], shard["row_step"])
    return Kept(shard, state.folded(), begun, steps)


@dataclass(frozen=True)
class Heard:
    """What one remaining rank tells the others of an exchange that has lost ranks.

    Attributes:
        copies: for each row of the plan, the version of this rank's copy of the row's elements; -1 if this rank has no
            copy.
        folds: for each row, how often it was folded in this exchange; -1 if another rank owns the row.
        steps: for each row, its step; -1 if another rank owns the row, or the row's action is not apply.
        pushes: for each key, how many pushes of this rank have begun.
        base: for each key, the steps that its rows had before the first fold in this exchange.
        pushed: for each number of a key whose codec keeps a residual, the values of this rank's last push as pieces.
        forwarded: for each row of this rank whose codec keeps a residual, the values of its last forwarded piece.
    """

    copies: NDArray[np.int64]
    folds: NDArray[np.int64]
    steps: NDArray[np.int64]
    pushes: NDArray[np.int64]
    base: NDArray[np.int64]
    pushed: Mapping[int, NDArray[np.float32]]
    forwarded: Mapping[int, NDArray[np.float32]]


def heard_of(ex: Exchange, kept: Kept) -> Heard:
    """Collects Heard on this rank. Call it after Context.shrink, when the cores of all remaining ranks have stopped,
    and before the context of ex is closed."""
    state, handle = ex._state, ex._state.handle
    owner, n = ex.plan.rows.column("owner"), len(ex.plan.rows)
    folds, steps = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    forwarded = {one.row: np.empty(one.count, np.float32) for one in state.encoders.places if one.row >= 0}
    pushed = {one.key: np.empty(one.count, np.float32) for one in state.encoders.places if one.row < 0}
    for row in np.flatnonzero(owner == ex.context.rank).tolist():
        folds[row] = _core.exchange_forwarded(handle, row, forwarded.get(row))
    steps[[row for row, _ in state.rows]] = kept.shard["row_step"]
    counts = [_core.exchange_pushed(handle, key, pushed.get(key)) for key in range(len(ex.plan.keys))]
    copies = _core.exchange_heard(handle, n)
    return Heard(copies, folds, steps, np.array(counts), np.array(state.base), pushed, forwarded)


def check_recovers(ex: Exchange) -> None:
    """Raises NotSupported if an exchange of several schemes cannot be recovered.

    It can be recovered if all schemes are under BSP and all ranks have the same parameters, or if all schemes are under
    one quorum with servers.
    """
    state = ex._state
    schemes, every = state.made.schemes, state.all
    if len(schemes) == 1 or (every.in_step and not state.any.own):
        return
    if every.counts_versions and len({one.consistency for one in schemes}) == 1:
        return
    each = (f"key {one.names[0]!r} is {_where(state.facts[one.names[0]])} under {one.consistency}" for one in schemes)
    raise NotSupported(
        f"recover: {', '.join(each)}: keys may have several schemes only under BSP, with servers and among peers that "
        "all send to all, or under one quorum with servers: make another exchange, of Context.shrink's context, and "
        "restore a checkpoint"
    )


def _where(its: KeyFacts) -> str:
    return "on a graph" if its.graph else "among peers" if its.peers else "with servers"


def groups(ex: Exchange) -> list[list[int]]:
    """Returns lists of the numbers of keys. The keys of one list share a version: with a quorum each scheme has one
    list, otherwise each key has one."""
    found: dict[tuple[int, int], list[int]] = {}
    for key, its in enumerate(ex._state.facts.values()):
        found.setdefault((its.scheme, -1 if its.counts_versions else key), []).append(key)
    return list(found.values())


def needed_of(ex: Exchange) -> set[int]:
    """Returns the ranks that must all remain: without one of them parameters are lost, or copies may differ."""
    state, rows = ex._state, ex.plan.rows
    if state.any.may_differ:
        return set(range(ex.context.size))
    alone = [key for key, its in enumerate(state.facts.values()) if not its.own and not its.copied]
    # the other owners only fold for their hosts, and pass the fold on
    keeps = np.isin(rows.column("action"), [_core.ACTIONS[name] for name in ("forward", "relay")], invert=True)
    return set(np.unique(rows.column("owner")[keeps & np.isin(rows.column("key"), alone)]).tolist())


def clocks(ex: Exchange, steps: NDArray[np.uint64], clock: int) -> NDArray[np.uint64]:
    """Returns, for each key, the step from which its rows continue. This is the argument clock, on which ranks have
    agreed. If each group of keys counts its own versions, it is the newest step in the key's group.

    Args:
        steps: for each key, the most steps of any of its rows on any rank.
    """
    found = np.full(len(steps), clock, np.uint64)
    for group in groups(ex) if len(ex._state.made.schemes) > 1 and ex._state.all.counts_versions else ():
        found[group] = steps[group].max()
    return found


def forwards_pieces(ex: Exchange) -> list[int]:
    """Returns the numbers of the plan's rows that forward their folds as pieces."""
    rows, pieces_of = ex.plan.rows, list(_core.PIECES.values())
    sends = (rows.column("action") == _core.ACTIONS["forward"]) & np.isin(rows.column("codec_out"), pieces_of)
    return np.flatnonzero(sends).tolist()  # type: ignore[no-any-return]


def applies(ex: Exchange) -> NDArray[np.bool_]:
    """Returns, for each row of the plan, whether the row's action is apply."""
    return ex.plan.rows.column("action") == _core.ACTIONS["apply"]  # type: ignore[no-any-return]


def holds_back(ex: Exchange) -> bool:
    """Returns whether any codec writes pieces, which leave values of an update for later updates."""
    return bool(ex._state.encoders.coded)


def go_on(
    ex: Exchange,
    from_: Kept,
    args: NDArray[np.float64],
    clock: int,
    clocks: NDArray[np.uint64],
    timeout: float | None,
) -> None:
    """Loads this rank's state of the lost exchange into ex. Collective.

    Args:
        args: the rules' arguments, one row for each key.
        clock: the step on which all ranks have agreed.
        clocks: for each key, the step of its rows.
    """
    state = ex._state
    shard = {**from_.shard, "replica": state.kind.replica, "args": args, "clock": clock}
    if "encoders" in shard:  # this rank's own encoders, now under its new number
        shard |= whose(state.encoders)
    if not state.any.counts_updates:
        steps, its = shard["row_step"], clocks[shard["row_key"]]
        # a row misses steps if it had no gradient in them
        left_out = (its > steps + 1) & (not state.any.own and not state.any.jumps)
        shard["row_step"] = np.where(left_out, steps, its).astype(steps.dtype)
    ex.load_state_dict(shard, timeout)

"""Recovery without a checkpoint after ranks that owned parameters are lost.

A row is a part of a key with one owner. It continues from its owner if that rank remains, otherwise from the newest
copy that a worker has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..context import Context
from ..errors import ConfigError
from ..exchange import Exchange
from ..exchange.shards import Span, blank
from ..plan import Plan
from .lost import Heard, Kept, applies, forwards_pieces, groups, holds_back

Array = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """The rows of a plan as ranges of elements. Elements are numbered through all keys.

    Attributes:
        first, end: for each row, its first element, and its last element plus one.
    """

    key: Array
    offset: Array
    count: Array
    owner: Array
    first: Array
    end: Array


def layout(plan: Plan) -> Layout:
    key, offset, count, owner = (
        plan.rows.column(name).astype(np.int64) for name in ("key", "offset", "count", "owner")
    )
    starts = np.cumsum([0, *(one.count for one in plan.keys)])[key]
    return Layout(key, offset, count, owner, starts + offset, starts + offset + count)


@dataclass(frozen=True)
class Agreed:
    """The remaining ranks' common knowledge of the lost exchange. Ranks have their new numbers. A *span* is a range of
    elements that one row, or copies of one row, apply.

    Attributes:
        rows: the rows of the lost exchange's plan.
        spans: for each span, the number of a row that applies it.
        source: for each span, the rank from which its values are taken.
        lives: for each span, whether one of its owners remains, so that its rule state is known.
        folds: for each span, how many folds of the lost exchange are in its values.
        steps: for each key, the step from which its rows continue.
        owner: for each row, the new number of its owner; -1 if the owner is lost.
        folded: for each row, how often it was folded; -1 if its owner is lost.
    """

    rows: Layout
    spans: Array
    source: Array
    lives: NDArray[np.bool_]
    folds: Array
    steps: Array
    owner: Array
    folded: Array
    own: Array  # for each span, a row of this rank as new as the source's; -1: none

    @cached_property
    def first(self) -> Array:
        return self.rows.first[self.spans]

    @cached_property
    def end(self) -> Array:
        return self.rows.end[self.spans]

    @cached_property
    def key(self) -> Array:
        return self.rows.key[self.spans]

    @cached_property
    def count(self) -> Array:
        return self.rows.count[self.spans]


def agreed(ctx: Context, ex: Exchange, heard: Heard, here: Sequence[int], timeout: float | None) -> Agreed:
    """Makes Agreed. Collective over the ranks of ctx. here: for each rank of ctx, its number in ex.

    Raises:
        ConfigError: no remaining rank has a copy of some row.
    """
    rows, n = layout(ex.plan), len(ex.plan.rows)
    told = np.concatenate([heard.copies, heard.folds, heard.steps, heard.base]).tobytes()
    every = np.stack([np.frombuffer(part, np.int64) for part in ctx.allgather(told, timeout)])
    copies, folds, steps, base = np.split(every, [n, 2 * n, 3 * n], axis=1)
    new = np.full(ex.context.size, -1, np.int64)
    new[list(here)] = np.arange(len(here))
    every_row = np.flatnonzero(applies(ex))
    every_row = every_row[np.lexsort((every_row, rows.first[every_row]))]
    heads = np.flatnonzero(np.diff(rows.first[every_row], prepend=-1))  # rows that begin at the same element are copies
    spans = every_row[heads]
    best = np.maximum.reduceat(steps[:, every_row], heads, axis=1)  # for each rank and span, the step of the rank's row
    lives = best.max(axis=0) >= 0
    newest = copies[:, spans]
    if not (newest.max(axis=0) >= 0)[~lives].all():
        raise ConfigError(f"rank {ctx.rank}: recover: no worker is left, and ranks that owned parameters are gone")
    source = np.where(lives, best.argmax(axis=0), newest.argmax(axis=0))
    at = np.arange(len(spans))
    folded = np.maximum.reduceat(folds[:, every_row], heads, axis=1)[source, at]
    folded = np.where(lives, folded, newest[source, at])
    alike = _alike(ex)[rows.key[spans]]
    heard_steps = np.where(alike, base[source, rows.key[spans]] + newest[source, at], 0)
    reached = np.where(lives, best[source, at], heard_steps)
    of_key = np.zeros(len(ex.plan.keys), np.int64)
    np.maximum.at(of_key, rows.key[spans], reached)
    for group in groups(ex):
        of_key[group] = of_key[group].max()
    own = np.full(len(spans), -1, np.int64)
    mine = np.flatnonzero(rows.owner[every_row] == here[ctx.rank])
    span_of = np.repeat(at, np.diff([*heads, len(every_row)]))
    as_new = mine[steps[ctx.rank, every_row[mine]] == best.max(axis=0)[span_of[mine]]]
    own[span_of[as_new]] = every_row[as_new]
    return Agreed(rows, spans, source, lives, folded, of_key, new[rows.owner], folds.max(axis=0), own)


def _alike(ex: Exchange) -> NDArray[np.bool_]:
    """Returns, for each key, the fact counts_folds (facts.py)."""
    return np.array([its.counts_folds for its in ex._state.facts.values()])


# ---- rows ------------------------------------------------------------------------------------------------------------


def _wanted(found: Agreed, plan: Plan, chosen: NDArray[np.bool_], size: int) -> NDArray[np.bool_]:
    """Returns a table by rank and span: whether the rank owns a chosen row of a new plan that overlaps the span."""
    to = layout(plan)
    need = np.zeros((size, len(found.spans) + 1), np.int64)
    rows = np.flatnonzero(chosen)
    low = np.searchsorted(found.end, to.first[rows], "right")
    high = np.searchsorted(found.first, to.end[rows], "left")
    np.add.at(need, (to.owner[rows], low), 1)
    np.add.at(need, (to.owner[rows], high), -1)
    return np.cumsum(need, axis=1)[:, :-1] > 0


class _Transfer:
    """float32 arrays that are sent from rank to rank. Every rank adds all of them in the same order, so every rank
    knows the places of all arrays at their receivers."""

    def __init__(self, ctx: Context) -> None:
        self._ctx, self._ends = ctx, [0] * ctx.size
        self._parts: list[tuple[int, int, int, int, int]] = []

    def add(self, source: int, to: int, number: int, n: int) -> None:
        """Adds an array of n values from rank source to rank to, under a number."""
        self._parts.append((source, to, number, self._ends[to], n))
        self._ends[to] += n

    def run(self, give: Any, timeout: float | None) -> dict[int, NDArray[np.float32]]:
        """Sends all arrays, and returns the arrays that came to this rank, by number. Collective. give: a function that
        returns the values of a number; it is called on their source."""
        ctx = self._ctx
        if max(self._ends) == 0:
            return {}
        window = ctx.window(4 * max(self._ends), timeout=timeout)
        for source, to, number, at, n in self._parts:
            if source == ctx.rank and n:
                values = np.ascontiguousarray(give(number), np.float32)
                window.put(to, values.view(np.uint8), 4 * at)
                window.flush(to, timeout=timeout)
        window.flush(timeout=timeout)
        ctx.barrier(timeout)
        values = window.array.view(np.float32)
        return {number: values[at : at + n].copy() for _, to, number, at, n in self._parts if to == ctx.rank}


def moved(
    ctx: Context,
    ex: Exchange,
    kept: Kept,
    found: Agreed,
    new: Exchange,
    args: NDArray[np.float64],
    timeout: float | None,
) -> dict[str, Any]:
    """Returns a shard of all rows that this rank owns in the exchange new. Collective."""
    shard, me = kept.shard, ctx.rank
    slots = np.asarray(shard["slots"], np.int64)[found.key]
    held = np.where(found.lives, found.count * (1 + slots), found.count)  # how many values the source of each span has
    need = _wanted(found, new.plan, applies(new), ctx.size)
    has = np.frombuffer(b"".join(ctx.allgather((found.own >= 0).tobytes(), timeout)), np.bool_)
    has = has.reshape(ctx.size, -1)
    transfer = _Transfer(ctx)
    for to, span in np.argwhere(need & ~has).tolist():
        if found.source[span] != to:
            transfer.add(int(found.source[span]), to, span, int(held[span]))
    row_of = {row: i for i, row in enumerate(np.flatnonzero(applies(ex) & (found.owner == me)).tolist())}
    counts = np.asarray(shard["row_count"], np.int64)
    own_slots = np.asarray(shard["slots"], np.int64)[shard["row_key"]]
    starts, state_starts = (np.cumsum([0, *values]) for values in (counts, counts * own_slots))

    def give(span: int) -> NDArray[np.float32]:
        if found.lives[span]:
            i = row_of[int(found.own[span])]
            params = shard["params"][starts[i] : starts[i + 1]]
            return np.concatenate([params, shard["state"][state_starts[i] : state_starts[i + 1]]])
        offset = int(found.rows.offset[found.spans[span]])
        name = ex.plan.keys[int(found.key[span])].name
        copy: NDArray[np.float32] = ex.params[name].reshape(-1)[offset : offset + int(found.count[span])]
        return copy

    came = transfer.run(give, timeout)
    wanted = np.flatnonzero(need[me]).tolist()
    names = [key.name for key in ex.plan.keys]
    spans = [
        Span(names[int(found.key[s])], int(found.rows.offset[found.spans[s]]), int(found.count[s])) for s in wanted
    ]
    fresh = blank(new._state.kind, args.tolist(), spans)
    at = state_at = 0
    for i, span in enumerate(wanted):
        n, s = int(found.count[span]), int(found.count[span] * slots[span])
        values = came[span] if span in came else give(span)
        fresh["params"][at : at + n] = values[:n]
        fresh["state"][state_at : state_at + s] = values[n:] if found.lives[span] else 0
        fresh["row_step"][i] = found.steps[found.key[span]]
        at, state_at = at + n, state_at + s
    return fresh


# ---- residuals -------------------------------------------------------------------------------------------------------


def residuals(ex: Exchange, kept: Kept, heard: Heard, found: Agreed) -> dict[str, Any]:
    """Returns this rank's shard with changed residuals: if a row has not applied this rank's last piece for it, the
    values of the piece are added back to the residual."""
    shard = dict(kept.shard)
    if "encoders" not in shard:
        return shard
    shard["encoders"] = shard["encoders"].copy()
    alike, gone = _alike(ex), ex._state.any.jumps
    at = 0
    for key, is_row, offset, count, n in zip(
        *(shard[f"encoder_{name}"].tolist() for name in ("key", "row", "offset", "count", "values")), strict=True
    ):
        residual = shard["encoders"][at : at + count]
        at += n
        if n < count or not alike[key] or gone:  # there is no residual, or no rank knows which part was applied
            continue
        back, made, row = _piece(heard, found, (key, is_row, offset, count))
        for span in np.flatnonzero((found.key == key) & (found.folds < made)).tolist():
            low = int(found.rows.offset[found.spans[span]])
            high = low + int(found.count[span])
            first, end = max(low, offset), min(high, offset + count)
            if first < end and not _is_held(ex, found, span, made, row):
                residual[first - offset : end - offset] += back[first - offset : end - offset]
        residual[~np.isfinite(residual)] = 0
    return shard


def _piece(heard: Heard, found: Agreed, encoder: tuple[int, int, int, int]) -> tuple[NDArray[np.float32], int, int]:
    """Returns an encoder's last piece, its number, and the row that made it; the row is -1 if a push of this rank made
    it."""
    key, is_row, offset, count = encoder
    if not is_row:
        return heard.pushed[key], int(heard.pushes[key]), -1
    rows = found.rows
    for row, values in heard.forwarded.items():
        if (rows.key[row], rows.offset[row], rows.count[row]) == (key, offset, count):
            return values, int(heard.folds[row]), row
    return np.zeros(count, np.float32), 0, -1


def _is_held(ex: Exchange, found: Agreed, span: int, made: int, row: int) -> bool:
    """Returns whether the piece with this number is in the fold of a row that keeps its own residual and whose owner
    remains. That owner then adds the piece back to the row's residual."""
    rows, plan, rank = found.rows, ex.plan.rows, ex.context.rank
    pieces = set(forwards_pieces(ex))
    if row < 0:
        same = np.flatnonzero((rows.first == found.first[span]) & ~applies(ex)).tolist()
        row = next((i for i in same if any(e.row < 0 and e.rank == rank for e in plan.in_edges(i))), -1)
    else:
        row = _onward(ex, row)
    while row >= 0 and not applies(ex)[row]:
        if row in pieces and found.owner[row] >= 0 and found.folded[row] >= made:
            return True
        row = _onward(ex, row)
    return False


def _onward(ex: Exchange, row: int) -> int:
    return next((edge.row for edge in ex.plan.rows[row].out_edges if edge.row >= 0), -1)


def strays(
    ctx: Context,
    ex: Exchange,
    kept: Mapping[str, Any],
    found: Agreed,
    new: Exchange,
    args: NDArray[np.float64],
    timeout: float | None,
) -> list[dict[str, Any]]:
    """Returns shards with the residuals of forwarding rows that other ranks have kept, for rows that this rank now
    owns. Collective. kept: this rank's shard."""
    old, to = found.rows, layout(new.plan)
    sends = forwards_pieces(new)
    placed = {(int(to.key[i]), int(to.offset[i]), int(to.count[i]), int(to.owner[i])) for i in sends}
    transfer = _Transfer(ctx)
    moves: list[tuple[int, int]] = []
    for row in forwards_pieces(ex):
        owner = int(found.owner[row])
        where = (int(old.key[row]), int(old.offset[row]), int(old.count[row]))
        if owner < 0 or (*where, owner) in placed:
            continue
        takers = {int(to.owner[i]) for i in sends if to.first[i] < old.end[row] and old.first[row] < to.end[i]}
        for rank in sorted(takers - {owner}):
            number = len(moves)
            moves.append((row, owner))
            transfer.add(owner, rank, number, where[2] + 2)
    residual = _kept_rows(kept)

    def give(number: int) -> NDArray[np.float32]:
        row = moves[number][0]
        where = (int(old.key[row]), int(old.offset[row]), int(old.count[row]))
        values, weight, made = residual.get(where, (np.zeros(where[2], np.float32), 1.0, 0))
        return np.concatenate([values, np.array([weight, made], np.float32)])

    shards = []
    for number, values in transfer.run(give, timeout).items():
        row, owner = moves[number]
        extra = blank(new._state.kind, args.tolist(), [])
        columns: dict[str, Any] = {
            "key": old.key[row],
            "row": 1,
            "offset": old.offset[row],
            "count": old.count[row],
            "values": old.count[row] + 2,
            "weight": float(values[-2]),
            "made": int(values[-1]),
        }
        extra |= {f"encoder_{name}": np.array([value]) for name, value in columns.items()}
        extra |= {"encoders": values, "encoder_worker": -1, "encoder_workers": 0, "encoder_owner": owner}
        shards.append(extra)
    return shards


def _kept_rows(shard: Mapping[str, Any]) -> dict[tuple[int, int, int], tuple[NDArray[np.float32], float, int]]:
    """Returns the residual, weight and piece count of each row's encoder, by the row's (key, offset, count)."""
    found, at = {}, 0
    names = ("key", "row", "offset", "count", "values", "weight", "made")
    columns = [np.asarray(shard.get(f"encoder_{name}", ())).tolist() for name in names]
    for key, is_row, offset, count, n, weight, made in zip(*columns, strict=True):
        if is_row and n >= count:
            found[key, offset, count] = (shard["encoders"][at : at + count], weight, made)
        at += n
    return found


# ---- words -----------------------------------------------------------------------------------------------------------


def losses(ex: Exchange, kept: Kept, found: Agreed, *, gone: bool) -> str:
    """Returns a sentence for the log that names the losses."""
    slots = np.asarray(kept.shard["slots"], np.int64)[found.key]
    lost, every = (int(found.count[(slots > 0) & chosen].sum()) for chosen in (~found.lives, slots >= 0))
    told = "; the updates of the lost ranks since their last exchange are lost" if gone else ""
    if gone and holds_back(ex):
        told += ", and so are their residuals"
    if lost:
        told += f"; the state of the rule begins at zero for {lost} of {every} elements"
    return told

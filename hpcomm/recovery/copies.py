"""Makes copies of the same parameters on all ranks equal. Copies differ if only some ranks have applied an interrupted
step, or if ranks have added updates in different orders."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..context import Context
from .lost import Kept


def furthest(ctx: Context, kept: Kept, keys: Container[str], timeout: float | None) -> Kept:
    """Returns this rank's state, in which each row of these keys is replaced by the row of the rank that has applied
    the most steps to it (of several such ranks, the lowest). Collective.

    All ranks must have the same rows of these keys, in the same order. Rows with equal steps must have equal bits.
    """
    shard = kept.shard
    copied = np.isin(shard["row_key"], [i for i, name in enumerate(shard["keys"]) if str(name) in keys])
    told = np.ascontiguousarray(shard["row_step"][copied], np.uint64)
    if not told.size:
        return kept
    steps = np.stack([np.frombuffer(part, np.uint64) for part in ctx.allgather(told.tobytes(), timeout)])
    source = steps.argmax(axis=0)
    differ = np.flatnonzero((steps != steps[0]).any(axis=0))
    if not differ.size:
        return kept
    rows = np.flatnonzero(copied)[differ]
    shard = _moved(ctx, shard, rows, source[differ].tolist(), timeout)
    shard["row_step"][rows] = steps.max(axis=0)[differ]
    return replace(kept, shard=shard)


def equal_copies(ctx: Context, shard: Mapping[str, Any], keys: Container[str], timeout: float | None) -> dict[str, Any]:
    """Returns this rank's shard, in which row i of these keys is replaced by row i of rank i mod n (n ranks), so that
    all ranks have the same values. Collective. All ranks must have the same rows of these keys, in the same order."""
    copied = np.isin(shard["row_key"], [i for i, name in enumerate(shard["keys"]) if str(name) in keys])
    rows = np.flatnonzero(copied)
    if ctx.size == 1 or not rows.size:
        return dict(shard)
    return _moved(ctx, shard, rows, [i % ctx.size for i in range(rows.size)], timeout)


def _moved(
    ctx: Context, shard: Mapping[str, Any], rows: NDArray[np.int64], sources: Sequence[int], timeout: float | None
) -> dict[str, Any]:
    """Returns the shard, with parameters and state of rows[i] received from rank sources[i]. Collective."""
    count, slots = shard["row_count"], shard["slots"][shard["row_key"]]
    starts, state_starts = _starts(count), _starts(count * slots)
    shard = {**shard, **{name: shard[name].copy() for name in ("row_step", "params", "state")}}
    ends = np.cumsum([0, *(count[rows] * (1 + slots[rows]))]).tolist()
    window = ctx.window(4 * ends[-1], timeout=timeout)
    parts: list[list[NDArray[Any]]] = []
    for row in rows.tolist():
        n, s = int(count[row]), int(slots[row])
        parts.append([shard["params"][starts[row] :][:n], shard["state"][state_starts[row] :][: n * s]])
    for (params, state), at, owner in zip(parts, ends, sources, strict=False):
        if owner != ctx.rank:
            continue
        for own, place in ((params, at), (state, at + params.size)):
            window.array[4 * place : 4 * (place + own.size)] = own.view(np.uint8)
            for peer in range(ctx.size):
                if peer != ctx.rank and own.size:
                    window.put(peer, own.view(np.uint8), 4 * place)
    window.flush(timeout=timeout)
    ctx.barrier(timeout)
    values = window.array.view(np.float32)
    for (params, state), at in zip(parts, ends, strict=False):
        params[:], state[:] = np.split(values[at : at + params.size + state.size], [params.size])
    return shard


def _starts(counts: NDArray[np.int64]) -> list[int]:
    found: list[int] = np.cumsum([0, *counts]).tolist()
    return found

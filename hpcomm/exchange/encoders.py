"""The state of encoders in checkpoints: a residual for each worker and key, and for each row that forwards pieces. A
residual has the values of updates that a codec has not sent yet; a piece has the bytes that the codec has sent.

A worker's residual is saved under the worker's number. If a job continues with n workers instead, worker q's residual
goes to worker q mod n. It is scaled by q's old weight over its new weight, so that its part of the mean (or the sum)
stays the same. A row's residual belongs to the row's elements. If the rows have changed, the residual goes to the first
row that forwards these elements.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from ..codec import WireFormat
from ..errors import InvalidArgument
from ..log import logger
from ..plan import Plan
from .shards import Kind, Shard

_WORKER = -1  # in place of a row's number, for an encoder that is a worker's
NOTHING_KEPT = 2  # how many values an encoder without residual and state has
_COLUMNS = {  # columns of a shard; each has one entry for each encoder
    "encoder_key": np.int32,
    "encoder_row": np.int8,  # 0 for a worker's encoder
    "encoder_offset": np.int64,
    "encoder_count": np.int64,
    "encoder_values": np.int64,
    "encoder_weight": np.float64,
    "encoder_made": np.uint64,
}


@dataclass(frozen=True)
class Place:
    """The key, and the row if any, for which this rank has an encoder.

    Attributes:
        key: the number of the key.
        row: the number of the row; -1 if this rank encodes the key as a worker.
        offset, count: the range of the key's elements.
        n_values: how many values the encoder keeps; the first count of them are the residual.
        weight: the weight of the encoder's values in the update that a rule applies.
        first: whether no earlier row forwards the same elements.
    """

    key: int
    row: int
    offset: int
    count: int
    n_values: int
    weight: float
    first: bool


@dataclass(frozen=True)
class Encoders:
    """The encoders of this rank.

    Attributes:
        worker: this rank's number among the workers; -1 if this rank only serves.
        workers: how many workers there are.
        owner: the number of this rank.
        names: the names of all keys.
        coded: the names of the keys that are sent as pieces.
        rows: key, offset, count and owner of each row of the plan that forwards pieces.
    """

    worker: int
    workers: int
    owner: int
    places: tuple[Place, ...]
    names: tuple[str, ...]
    coded: frozenset[str]
    rows: frozenset[tuple[int, int, int, int]]

    @cached_property
    def forwarded(self) -> frozenset[int]:
        """The numbers of the keys that rows of this rank encode."""
        return frozenset(key for key, *_ in self.rows)


def encoders_of(exchange: Any, plan: Plan, codecs: Mapping[str, WireFormat], rank: int) -> Encoders:
    names, workers = tuple(codecs), plan.workers
    coded = frozenset(name for name, codec in codecs.items() if codec.settings(()) is not None)
    places: list[Place] = []
    rows: set[tuple[int, int, int, int]] = set()
    if coded:
        forwards = plan.rows.column("action") == _core.ACTIONS["forward"]
        pushed, pushers = plan.rows.pushes()
        mine = pushed[pushers == rank]
        keys, firsts = np.unique(plan.rows.column("key")[mine], return_index=True)
        for key, row in zip(keys.tolist(), mine[firsts].tolist(), strict=True):
            n = _core.encoder_values(exchange, key, _WORKER)
            if n:
                weight = next(e.weight for e in plan.rows.in_edges(row) if e.row < 0 and e.rank == rank)
                count = plan.keys[key].count
                places.append(Place(key, _WORKER, 0, count, n, weight * _weight(plan, forwards, row), first=True))
        sends_pieces = forwards & np.isin(plan.rows.column("codec_out"), list(_core.PIECES.values()))
        columns = (plan.rows.column(name).tolist() for name in ("key", "offset", "count", "owner"))
        table = list(zip(*columns, strict=True))
        seen: set[tuple[int, int]] = set()
        for row in np.flatnonzero(sends_pieces).tolist():
            key, offset, count, owner = table[row]
            rows.add(table[row])
            n = _core.encoder_values(exchange, key, row) if owner == rank else 0
            if n:
                places.append(
                    Place(key, row, offset, count, n, _weight(plan, forwards, row), (key, offset) not in seen)
                )
            seen.add((key, offset))
    worker = workers.index(rank) if rank in workers else -1
    return Encoders(worker, len(workers), rank, tuple(places), names, coded, frozenset(rows))


def _weight(plan: Plan, forwards: NDArray[np.bool_], row: int) -> float:
    """Returns the weight of a row's fold in the final value that a rule applies."""
    weight = 1.0
    while forwards[row]:
        onward = next((edge.row for edge in plan.rows[row].out_edges if edge.row >= 0), -1)
        if onward < 0:
            break
        weight *= next((edge.weight for edge in plan.rows.in_edges(onward) if edge.row == row), 1.0)
        row = onward
    return weight


# ---- save ------------------------------------------------------------------------------------------------------------


def save(exchange: Any, encoders: Encoders, shard: dict[str, Any]) -> None:
    """Adds the values that this rank's encoders keep to a shard. Does nothing if this rank has no encoders."""
    places = encoders.places
    if not places:
        return
    if "encoders" not in shard:
        shard |= {name: np.zeros(len(places), dtype) for name, dtype in _COLUMNS.items()}
        shard["encoders"] = np.empty(sum(place.n_values for place in places), np.float32)
        for i, place in enumerate(places):
            shard["encoder_key"][i], shard["encoder_row"][i] = place.key, place.row != _WORKER
            shard["encoder_offset"][i], shard["encoder_count"][i] = place.offset, place.count
            shard["encoder_values"][i], shard["encoder_weight"][i] = place.n_values, place.weight
    shard |= whose(encoders)
    at = 0
    for i, place in enumerate(places):
        values = shard["encoders"][at : at + place.n_values]
        shard["encoder_made"][i] = _core.get_encoder(exchange, place.key, place.row, values)
        at += place.n_values


def whose(encoders: Encoders) -> dict[str, int]:
    """Returns the entries of a shard that tell to which rank and worker its encoders belong."""
    return {
        "encoder_worker": encoders.worker,
        "encoder_workers": encoders.workers,
        "encoder_owner": encoders.owner,
    }


# ---- restore ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Held:
    """An encoder that was found in a shard. worker: the number of its worker; -1 if it is a row's."""

    worker: int
    workers: int
    owner: int
    key: int
    offset: int
    count: int
    weight: float
    made: int
    values: NDArray[np.float32]

    @property
    def residual(self) -> NDArray[np.float32]:
        kept = self.values.size > NOTHING_KEPT
        return self.values[: self.count] if kept else np.zeros(self.count, np.float32)


Encoding = tuple[Place, int, NDArray[np.float32]]  # place, number of pieces made, and values


def found(encoders: Encoders, shards: Iterable[Shard], kind: Kind) -> list[Encoding]:
    """Returns the state of each of this rank's encoders. The state is zeros if the shards have none for the encoder, as
    older shards may.

    Raises:
        InvalidArgument: a shard is malformed.
    """
    held: dict[int, list[_Held]] = {}  # by key
    for shard in shards:
        for one in _parsed(shard, encoders) if "encoders" in shard else ():
            if encoders.names[one.key] not in kind.own or int(shard["replica"]) == kind.replica:
                held.setdefault(one.key, []).append(one)
    _warn_of_lost(chain(*held.values()), encoders)
    return [
        (_worker if place.row == _WORKER else _row)(
            place, held.get(place.key, ()), encoders, encoders.names[place.key] in kind.own
        )
        for place in encoders.places
    ]


def restore(exchange: Any, encodings: Iterable[Encoding]) -> None:
    for place, made, values in encodings:
        _core.set_encoder(exchange, place.key, place.row, made, values)


def _parsed(shard: Shard, encoders: Encoders) -> Iterator[_Held]:
    try:
        numbers = {name: i for i, name in enumerate(encoders.names)}
        number_of = [numbers[str(name)] for name in shard["keys"]]
        columns = [np.asarray(shard[name]).tolist() for name in _COLUMNS]
        every = np.ascontiguousarray(shard["encoders"], np.float32)
        worker, workers, owner = (int(shard[f"encoder_{name}"]) for name in ("worker", "workers", "owner"))
        at = 0
        for key, is_row, offset, count, n, weight, made in zip(*columns, strict=True):
            if (
                count <= 0
                or (n < count and n != NOTHING_KEPT)
                or offset < 0
                or at + n > every.size
                or not np.isfinite(weight)
            ):
                raise ValueError(f"an encoder of {n} values for {count} elements from {offset} on")
            values = every[at : at + n]
            yield _Held(-1 if is_row else worker, workers, owner, number_of[key], offset, count, weight, made, values)
            at += n
        if at != every.size:
            raise ValueError(f"{at} values of encoders, and an array of {every.size}")
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as wrong:
        raise InvalidArgument(f"load_state_dict: a shard is not what state_dict gave: {wrong!r}") from None


def _warn_of_lost(held: Iterable[_Held], encoders: Encoders) -> None:
    lost = {encoders.names[one.key] for one in held if one.residual.any()} - encoders.coded
    for name in sorted(lost):
        logger.warning(
            "what the checkpoint's ranks held back of key %r is left out: the key is sent as an array now", name
        )


def _worker(place: Place, held: Iterable[_Held], encoders: Encoders, alone: bool) -> Encoding:
    """Returns the state of a worker's encoder. held: all encoders of the key in the shards."""
    mine = [one for one in held if one.worker >= 0 and one.count == place.count]
    here, n = encoders.worker, encoders.workers
    homeless: list[_Held] = []  # residuals of rows, if no row forwards this key any more
    if here == 0 and place.key not in encoders.forwarded:
        homeless = [one for one in held if one.worker < 0]
    for one in mine:
        if alone or (one.worker, one.workers) == (here, n):
            return _added(place, homeless, _as_kept(place, one), one.made)
    folded = [one for one in mine if one.workers != n and one.worker % n == here]
    return _added(place, [*folded, *homeless], np.zeros(place.n_values, np.float32), 0)


def _row(place: Place, held: Iterable[_Held], encoders: Encoders, alone: bool) -> Encoding:
    """Returns the state of a row's encoder. held: all encoders of the key in the shards."""
    made, values = 0, np.zeros(place.n_values, np.float32)
    strays = []
    for one in held:
        if one.worker >= 0:
            continue
        where = (one.key, one.offset, one.count, one.owner)
        if where == (place.key, place.offset, place.count, encoders.owner):
            made, values = one.made, _as_kept(place, one)
        elif where not in encoders.rows and place.first:
            strays.append(one)
    return _added(place, strays, values, made)


def _as_kept(place: Place, one: _Held) -> NDArray[np.float32]:
    """Returns all values that the found encoder has kept; only its residual if the codec has changed."""
    values = np.zeros(place.n_values, np.float32)
    if place.n_values == one.values.size:
        values[:] = one.values
    elif place.n_values > NOTHING_KEPT:
        values[: place.count] = one.residual
    return values


def _added(place: Place, more: Iterable[_Held], values: NDArray[np.float32], made: int) -> Encoding:
    """Adds the residuals of other encoders to the values, for the elements of the place."""
    total: NDArray[np.float64] | None = None
    for one in more if place.n_values > NOTHING_KEPT else ():
        low, high = max(place.offset, one.offset), min(place.offset + place.count, one.offset + one.count)
        if low >= high:
            continue
        if total is None:
            total = values[: place.count].astype(np.float64)
        scale = one.weight / place.weight if place.weight else 1.0
        total[low - place.offset : high - place.offset] += scale * one.residual[low - one.offset : high - one.offset]
        made = max(made, one.made)
    if total is not None:
        values[: place.count] = total
    return place, made, values

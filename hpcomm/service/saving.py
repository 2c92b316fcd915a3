"""How workers and hubs save an exchange together, and how a job that comes back restores it.

Each of both has two rounds, in which every rank tells numbers, or refuses: then all ranks raise the same error.

    save      all ranks have come, with nothing pending, and agree on the number of the save; the hubs write their
              files; all ranks know whether all hubs have written them
    restore   the hubs tell which files they see, and choose the newest save that all hubs have written; the hubs have
              read it, and tell steps and hyper-parameters; owners publish
"""

import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _core, optim
from ..checkpoint import files
from ..context import Context
from ..errors import CheckpointError, ConfigError, HpcommError, InvalidArgument
from ..exchange import shards
from ..exchange.facts import facts_of
from ..exchange.state import copy_rows, write_rows
from . import refusals
from .books import Holding
from .described import Served
from .store import JobStore, Save

SECONDS = 600.0  # for a hub to write or read its file, if nothing else is said
NUMBERS = 3  # of a rank in the first round of a save: run, number, and begun steps
_SAVES = 8  # that a hub tells
SEEN = _SAVES * len(Save._fields)  # numbers of a rank in the first round of a restore
_ROW_BYTES = 512  # of each row of a shard, beside its elements
_HEADER_BYTES = 64 << 10
_SENTENCE = 480


class Told(NamedTuple):
    """The numbers and the refusal of a rank."""

    numbers: tuple[int, ...]
    more: bytes


class Round(NamedTuple):
    """What all ranks have told, in the order of ranks; and the error that all ranks raise if one has refused."""

    told: list[Told]
    refusal: HpcommError | None


def take_round(
    context: Context, numbers: Sequence[int], wrong: Exception | None, timeout: float, more: bytes = b""
) -> Round:
    """Tells numbers to all ranks, or refuses. Collective. wrong: the error if this rank refuses."""
    words = struct.Struct(f"<{len(numbers)}Q")
    own = None if wrong is None else _as_ours(wrong)
    sentence = b"" if own is None else refusals.packed(own)[:_SENTENCE]
    parts = context.allgather(words.pack(*numbers) + sentence.ljust(_SENTENCE, b"\0") + more, timeout=timeout)
    start = words.size + _SENTENCE
    refusing = (part[words.size : start].rstrip(b"\0") for part in parts)
    first = next(filter(None, refusing), b"")
    refusal = own or (refusals.unpacked(first) if first else None)
    return Round([Told(words.unpack(part[: words.size]), part[start:]) for part in parts], refusal)


def gathered(
    context: Context, numbers: Sequence[int], wrong: Exception | None, timeout: float, more: bytes = b""
) -> list[Told]:
    """As take_round, but raises the refusal."""
    told, refusal = take_round(context, numbers, wrong, timeout, more)
    if refusal is not None:
        raise refusal
    return told


def _as_ours(wrong: Exception) -> HpcommError:
    return wrong if isinstance(wrong, HpcommError) else CheckpointError(f"{type(wrong).__name__}: {wrong}")


def newest_whole(told: Sequence[Told]) -> Save | None:
    """Returns the newest save of which the ranks together see the files of all hubs."""
    found: dict[tuple[int, int], Save] = {}
    for one in told:
        for at in range(0, len(one.numbers), len(Save._fields)):
            save = Save(*one.numbers[at : at + len(Save._fields)])
            if save.size:
                before = found.get(save[:2], save)
                found[save[:2]] = save._replace(ranks=before.ranks | save.ranks)
    return max((save for save in found.values() if save.ranks == (1 << save.size) - 1), default=None)


class JobSaver:
    """The hub's part in saves and restores of a job. One thread uses it.

    Args:
        title: NAMESPACE/JOB.
        workers: how many workers there are: the hubs are the ranks after them.
        index, hubs: this hub's number among the job's hubs, and how many there are.
        store: the job's saved state; None if the hub keeps none.
    """

    def __init__(self, title: str, workers: int, index: int, hubs: int, store: JobStore | None) -> None:
        self._title, self._workers, self._index, self._hubs = title, workers, index, hubs
        self._given = store
        self._run = 0  # not known yet
        self._last: dict[int, int] = {}  # by exchange: its newest save that all hubs have written

    @property
    def _store(self) -> JobStore:
        if self._given is None:
            raise ConfigError(
                f"{self._title}: this hub saves nothing: its owner must give a folder, by `checkpoints` in hub.toml"
            )
        return self._given

    # ---- save ------------------------------------------------------------------------------------------------------

    def save(self, context: Context, exchange: int, served: Served | None, held: Holding, timeout: float) -> bool:
        """Saves an exchange. Collective: the workers call HubExchange.save. Returns whether all hubs did: otherwise
        all ranks know why not.

        Args:
            exchange: the number of the exchange.
            served: the exchange, or None if no exchange has this number.
            held: takes the memory of the copy from the namespace.
        """
        mine = (0, 0, 0)
        wrong: Exception | None = None
        try:
            if served is None:
                raise InvalidArgument(f"{self._title} has no exchange {exchange}")
            run = self._run or self._store.newest_run() + 1
            mine = (run, self._store.newest_save(run, exchange), 0)
        except (HpcommError, OSError) as refused:
            wrong = refused
        told, refusal = take_round(context, mine, wrong, timeout)
        if refusal is not None or served is None:
            return False
        run, last, begun = (max(column) for column in zip(*(one.numbers for one in told), strict=True))
        self._run, number, clock = run, last + 1, 0
        try:
            clock = self._write(run, exchange, number, served, held, begun)
        except (HpcommError, OSError, MemoryError) as refused:
            wrong = refused
        _, refusal = take_round(context, (clock,), wrong, timeout)
        if refusal is not None:
            self._store.undo(run, exchange, self._label(run, exchange, number, clock))
            return False
        self._last[exchange] = number
        with suppress(CheckpointError):  # they do not count any more; the next save tries again
            self._store.drop_runs_before(run)
        return True

    def _label(self, run: int, exchange: int, number: int, clock: int) -> files.Label:
        return files.Label(number, self._index, self._hubs, str(run), "", self._last.get(exchange, 0), clock)

    def _write(self, run: int, exchange: int, number: int, served: Served, held: Holding, begun: int) -> int:
        """Writes this hub's file; returns the exchange's clock."""
        keys = served.keys()
        kind, rows = keys.kind, keys.rows
        nbytes = _nbytes(kind, rows)
        held.hold(nbytes)
        try:
            with served.handle() as handle:
                counts = any(facts_of(handle, key).counts_updates for key in range(len(kind.keys)))
                args = tuple(_core.exchange_get_args(handle, key, optim.MOST_ARGS) for key in range(len(kind.keys)))
                shard = shards.blank(kind, args, [span for _, span in rows])
                copy_rows(handle, rows, shard, kind)
            clock = begun if counts else max(shard["row_step"].tolist(), default=0)
            if counts:
                shard["clock"] = clock
            self._store.write(run, exchange, self._label(run, exchange, number, clock), shard, nbytes)
        finally:
            held.free()
        return clock

    # ---- restore ---------------------------------------------------------------------------------------------------

    def restore(self, context: Context, exchange: int, served: Served, held: Holding, timeout: float) -> bool:
        """Restores an exchange that was made just now. Collective: the workers make a HubExchange. Returns whether the
        hubs did: otherwise all ranks know why not."""
        wrong: Exception | None = None
        seen: list[int] = []
        try:
            seen = [number for save in self._store.saves(exchange, self._run, _SAVES) for number in save]
        except (HpcommError, OSError) as refused:
            wrong = refused
        told, refusal = take_round(context, seen + [0] * (SEEN - len(seen)), wrong, timeout)
        if refusal is not None:
            return False
        keys, save = served.keys(), newest_whole(told)
        n = len(keys.kind.keys)
        numbers, args = [0] * (1 + n), np.zeros((n, optim.MOST_ARGS))
        parts: list[shards.Part] = []
        try:
            if save is None:
                raise ConfigError(self._nothing(exchange, told))
            held.hold(_nbytes(keys.kind, keys.rows))
            given = self._store.shards(save.run, exchange, save.number)
            found, clock, parts = shards.found(given, keys.kind, [span for _, span in keys.rows])
            args, numbers = shards.padded(found), [clock, *_steps(keys.kind, parts)]
        except InvalidArgument as refused:
            why = str(refused).removeprefix("load_state_dict: ")
            wrong = InvalidArgument(f"{self._title}: its exchange {exchange} cannot come back: {why}")
        except (HpcommError, OSError, MemoryError) as refused:
            wrong = refused
        try:
            told, refusal = take_round(context, numbers, wrong, timeout, args.tobytes())
            if refusal is not None or save is None:
                return False
            with served.handle() as handle:
                write_rows(handle, keys.rows, parts)
                for key, own in enumerate(arguments(told[self._workers], n)):
                    _core.exchange_set_args(handle, key, tuple(own.tolist()))
                _core.exchange_publish(handle, timeout)
        finally:
            held.free()
        self._run, self._last[exchange] = save.run, save.number
        return True

    def _nothing(self, exchange: int, told: Sequence[Told]) -> str:
        """Returns why there is nothing to restore."""
        hubs = max(one.numbers[2] for one in told)  # that wrote the newest save that a rank sees
        if not hubs:
            return (
                f"{self._title} has no saved state of its exchange {exchange}: save every exchange, or create the job "
                "without resume"
            )
        return (
            f"{self._title}: {hubs} hubs saved its exchange {exchange}, and these {self._hubs} do not see the files of "
            "all: create the job at the same hubs, or let the hubs share one folder"
        )


def arguments(told: Told, keys: int) -> NDArray[np.float64]:
    """Returns the hyper-parameters of each key's rule that a hub has told in the second round of a restore."""
    return np.frombuffer(told.more, np.float64).reshape(keys, optim.MOST_ARGS)


def _steps(kind: shards.Kind, parts: Sequence[shards.Part]) -> list[int]:
    steps: dict[str, int] = dict.fromkeys(kind.keys, 0)
    for part in parts:
        steps[part.span.key] = max(steps[part.span.key], part.step)
    return list(steps.values())


def _nbytes(kind: shards.Kind, rows: Sequence[tuple[int, shards.Span]]) -> int:
    """Returns a bound on the bytes of a shard."""
    slots = {name: rule.slots for name, rule in zip(kind.keys, kind.rules, strict=True)}
    elements = sum((1 + slots[span.key]) * span.count for _, span in rows)
    longest = max(map(len, kind.keys)) + max(len(rule.name) for rule in kind.rules)
    return 4 * elements + _ROW_BYTES * (len(rows) + len(slots)) + 4 * longest * len(slots) + _HEADER_BYTES

"""An exchange's checkpoint: the rows of its owners into a shard, and back by all ranks together."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .. import _core, optim
from ..context import Context
from ..errors import ConfigError, InvalidArgument
from ..optim import AnyRule
from . import encoders as encoding
from . import pieces
from .encoders import Encoders, Encoding
from .pieces import Args, Kind, Piece, Shard, Span

_SENTENCE_BYTES = 400  # of a refusal, told to the peers


Rules: TypeAlias = dict[str, AnyRule]  # by key


def arguments(rules: Rules) -> Args:
    return tuple(optim.arguments(rule) for rule in rules.values())


def saved(
    exchange: Any, rows: list[tuple[int, Span]], kind: Kind, rules: Rules, out: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The shard of these rows: one copy of the owner's data. out: a shard of the same rows, written again."""
    args = arguments(rules)
    shard = pieces.blank(kind, args, [span for _, span in rows]) if out is None else out
    shard["args"][:] = pieces.padded(args)
    for i, ((row, _), piece) in enumerate(zip(rows, pieces.pieces(shard, kind), strict=True)):
        shard["row_step"][i] = _core.exchange_get_row(exchange, row, piece.params, piece.state)
    return shard


def restored(
    ctx: Context,
    exchange: Any,
    rows: list[tuple[int, Span]],
    kind: Kind,
    rules: Rules,
    shards: Shard | Iterable[Shard],
    wrong: Exception | None,
    *,
    encoders: Encoders,
    pushes: int,
    timeout: float,
) -> tuple[Rules, list[int], NDArray[np.int64]]:
    """Writes the shards into the rows and the encoders of every rank. Collective. Returns the rules with the shards'
    hyper-parameters, by rank how far the largest clock of any shard is ahead of the rank's pushes in this exchange, and
    by key the most steps of a row.
    wrong: the reason if this rank refuses. pushes: of this rank."""
    args: Args = ()
    clock = 0
    owned: list[Piece] = []
    kept: list[Encoding] = []
    found = rules
    try:
        if wrong is None:
            given = [shards] if isinstance(shards, Mapping) else list(shards)
            args, clock, owned = pieces.found(given, kind, [span for _, span in rows])
            kept = encoding.found(encoders, given, kind)
            found = {
                name: optim.with_arguments(rule, own) for (name, rule), own in zip(rules.items(), args, strict=True)
            }
    except Exception as refused:  # the other ranks wait for this one
        wrong = refused
    steps = dict.fromkeys(rules, 0)
    for piece in owned:
        steps[piece.span.key] = max(steps[piece.span.key], piece.step)
    every = _agree(ctx, wrong, args, [clock, pushes, *steps.values()], list(rules), timeout)
    for (row, _), piece in zip(rows, owned, strict=True):
        _core.exchange_set_row(exchange, row, piece.step, piece.params, piece.state)
    encoding.restore(exchange, kept)
    for key, (own, before) in enumerate(zip(args, arguments(rules), strict=True)):
        if own != before:
            _core.exchange_set_args(exchange, key, own)
    _core.exchange_publish(exchange, timeout)
    furthest = int(every[:, 0].max())
    return found, [furthest - theirs for theirs in every[:, 1].tolist()], every[:, 2:].max(axis=0)


def _agree(
    ctx: Context, wrong: Exception | None, args: Args, counts: list[int], names: list[str], timeout: float
) -> NDArray[np.int64]:
    """The counts of every rank, a row a rank. Raises on every rank if a rank has found something wrong, or if their
    arguments differ."""
    words = np.zeros((len(names), optim.MOST_ARGS), np.float64)
    if args:
        words[:] = pieces.padded(args)
    told = "" if wrong is None else str(wrong) or type(wrong).__name__
    sentence = told.encode()[:_SENTENCE_BYTES].ljust(_SENTENCE_BYTES, b"\0")
    mine = np.array(counts, np.int64)
    parts = ctx.allgather(mine.tobytes() + words.tobytes() + sentence, timeout)
    every = [part[mine.nbytes :] for part in parts]
    if wrong is not None:
        raise wrong
    for rank, part in enumerate(every):
        told = part[words.nbytes :].rstrip(b"\0").decode("utf-8", "replace")
        if told:
            raise InvalidArgument(f"rank {rank} refuses the checkpoint: {told}")
    for rank, part in enumerate(every):
        if part != every[0]:
            first, theirs = (np.frombuffer(one[: words.nbytes]).reshape(words.shape) for one in (every[0], part))
            key = int(np.argmax(np.any(first != theirs, axis=1)))
            n = len(args[key])
            raise ConfigError(
                f"load_state_dict: rank 0's shards have rule arguments {tuple(first[key, :n].tolist())}, rank {rank}'s "
                f"{tuple(theirs[key, :n].tolist())}, for key {names[key]!r}"
            )
    return np.stack([np.frombuffer(part, np.int64, len(mine)) for part in parts])

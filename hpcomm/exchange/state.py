"""The state of an exchange that other packages use: its arguments, the facts of its keys, and the rows of its owners.
Rows are saved into shards, and all ranks restore them together."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .. import _core, optim
from ..context import Context
from ..errors import ConfigError, InvalidArgument
from ..optim import AnyRule
from . import encoders as encoding
from . import shards
from .arguments import Checked, check_owners, owned_rows
from .facts import facts_of, merged
from .schemes import Made
from .shards import SHARED, Args, Kind, Part, RuleKind, Shard, Span

_SENTENCE_BYTES = 400  # bytes of a refusal's text for the other ranks


Rules: TypeAlias = dict[str, AnyRule]  # by key


class State:
    """The part of an exchange that checkpoint, recovery, local and torch use besides the public methods. It is
    Exchange._state.

    Attributes:
        handle: the exchange's handle in C.
        made: the arguments from which recover() makes the next exchange.
        facts: the facts of each key by name, in the order of the plan.
        any, all: the facts that hold for some key, and the facts that hold for all keys.
        rules: the rule of each key by name, with the hyper-parameters that this rank has set.
        works: whether this rank is a worker.
        rows: the rows whose parameters this rank owns, as pairs of number and span.
        kind: the properties in which a checkpoint and the exchange must agree.
        encoders: the encoders of this rank.
        base: for each key, the steps that its rows had before the first fold in this exchange.
        book: the result of Book.of(exchange); None until Book.of is first called.
    """

    __slots__ = (
        "_ahead",
        "_by_clock",
        "_ctx",
        "_numbers",
        "_schemes",
        "all",
        "any",
        "base",
        "book",
        "encoders",
        "facts",
        "handle",
        "kind",
        "made",
        "rows",
        "rules",
        "works",
    )

    def __init__(self, ctx: Context, handle: Any, made: Made, given: Checked) -> None:
        self._ctx, self.handle, self._schemes = ctx, handle, given.schemes
        self.made, self.rules, self.works = made, given.rules, bool(_core.exchange_params_address(handle, 0))
        self.facts = {name: facts_of(handle, key) for key, name in enumerate(given.values)}
        self.any, self.all = (merged(of, self.facts.values()) for of in (any, all))
        self._numbers = {name: key for key, name in enumerate(self.facts)}
        self.rows = owned_rows(given.plan, ctx.rank)
        by_clock = {name for name, its in self.facts.items() if its.peers and its.counts_updates}
        self._by_clock = [i for i, (_, span) in enumerate(self.rows) if span.key in by_clock]
        self._ahead = [0] * ctx.size  # with servers: for each rank, its steps before its first push in this exchange
        self.base = [0] * len(self.facts)
        self.book: Any = None
        own = frozenset(name for name, its in self.facts.items() if its.own)
        kinds = (
            RuleKind(optim.c_name(rule), c_rule.slots, len(optim.arguments(rule)))
            for rule, c_rule in zip(given.rules.values(), given.c_rules, strict=True)
        )
        counts = {name: value.size for name, value in given.values.items()}
        self.kind = Kind(tuple(kinds), counts, ctx.rank if own else SHARED, own)
        self.encoders = encoding.encoders_of(handle, given.plan, given.codecs.values, ctx.rank)

    @property
    def sums(self) -> bool:
        """Whether an update is the sum of the workers' updates; otherwise it is their mean."""
        return self.made.plan.reduce == "sum"

    # ---- counts ----

    def pushes(self, name: str) -> int:
        """Returns how often this rank has begun to push a key, interrupted pushes included."""
        return _core.exchange_pushed(self.handle, self._numbers[name], None)

    def folds(self, name: str) -> int:
        """Returns how many folds since the start of the training are in a key's parameters. Counts the newest
        parameters that this rank knows of."""
        key = self._numbers[name]
        return self.base[key] + _core.exchange_version_of(self.handle, key)

    def bytes_sent(self, names: Iterable[str]) -> int:
        """Returns how many bytes this rank has sent to other ranks for these keys, in all stages."""
        return sum(_core.key_sent(self.handle, self._numbers[name]) for name in names)

    def begun(self) -> int:
        """With servers: returns how many steps this worker has begun since the start of the training."""
        return self._ahead[self._ctx.rank] + _core.exchange_version(self.handle)

    def clock(self) -> int:
        """Returns Exchange.clock."""
        if self.any.counts_updates:
            return self.begun() if self.works else 0
        return max((_core.exchange_row_step(self.handle, row) for row, _ in self.rows), default=0)

    def folded(self) -> list[int]:
        """Returns, for each rank, how many of its steps this rank's rows have folded, in full or in part. Can be called
        after a rank has died."""
        if not self.any.counts_updates:
            return [self.clock()] * self._ctx.size
        return [ahead + _core.exchange_folded(self.handle, rank) for rank, ahead in enumerate(self._ahead)]

    # ---- checkpoints ----

    def check_rows(self, op: str) -> None:
        """Raises NotSupported if the shards of all ranks together would lack elements or have elements twice."""
        for one in self._schemes:
            if not self.facts[one.scheme.names[0]].own:
                check_owners(one.plan, op)

    def rules_now(self) -> Rules:
        """Returns the rules with the hyper-parameters of this rank's next pushes. On a rank that only serves: of the
        last pushes that came."""
        if self.works:
            return self.rules
        return {  # only the workers set hyper-parameters
            name: optim.with_arguments(
                rule, _core.exchange_get_args(self.handle, self._numbers[name], len(optim.arguments(rule)))
            )
            for name, rule in self.rules.items()
        }

    def saved(self, out: dict[str, Any] | None = None) -> dict[str, Any]:
        """Returns a shard with a copy of this rank's rows. It also works after a rank has died. out: an earlier shard
        of the same rows, to overwrite instead of allocating."""
        args = _arguments(self.rules_now())
        shard = shards.blank(self.kind, args, [span for _, span in self.rows]) if out is None else out
        shard["args"][:] = shards.padded(args)
        copy_rows(self.handle, self.rows, shard, self.kind)
        encoding.save(self.handle, self.encoders, shard)
        if self.any.counts_updates:
            shard["clock"] = self.clock()
        for i in self._by_clock:  # rows that count this rank's own folds; the counts differ between ranks
            shard["row_step"][i] = self.clock()
        return shard

    def restore(self, saved: Shard | Iterable[Shard], wrong: Exception | None, timeout: float) -> None:
        """Writes the shards into the rows and encoders of every rank, and sets the hyper-parameters and the clock from
        them. Collective. wrong: the error if this rank refuses, otherwise None."""
        args: Args = ()
        clock = 0
        owned: list[Part] = []
        kept: list[encoding.Encoding] = []
        rules = found = self.rules_now()
        pushes = _core.exchange_version(self.handle)
        try:
            if wrong is None:
                given = [saved] if isinstance(saved, Mapping) else list(saved)
                args, clock, owned = shards.found(given, self.kind, [span for _, span in self.rows])
                kept = encoding.found(self.encoders, given, self.kind)
                found = {
                    name: optim.with_arguments(rule, own) for (name, rule), own in zip(rules.items(), args, strict=True)
                }
        except Exception as refused:  # the other ranks wait for this one
            wrong = refused
        steps = dict.fromkeys(rules, 0)
        for part in owned:
            steps[part.span.key] = max(steps[part.span.key], part.step)
        told = _agree(self._ctx, wrong, args, [clock, pushes, *steps.values()], list(rules), timeout)
        write_rows(self.handle, self.rows, owned)
        encoding.restore(self.handle, kept)
        self.go_on(found, told, timeout)

    def go_on(self, rules: Rules, told: NDArray[np.int64], timeout: float) -> None:
        """Takes the rules, and the parameters that owners have restored. Collective. told: for each rank its clock, how
        often it has pushed, and the steps of its rows of each key."""
        before = _arguments(self.rules_now())
        for key, (own, old) in enumerate(zip(_arguments(rules), before, strict=True)):
            if own != old:
                _core.exchange_set_args(self.handle, key, own)
        _core.exchange_publish(self.handle, timeout)
        furthest = int(told[:, 0].max())
        self.rules, self._ahead = rules, [furthest - theirs for theirs in told[:, 1].tolist()]
        most = told[:, 2:].max(axis=0).tolist()
        self.base = [step - _core.exchange_version_of(self.handle, key) for key, step in enumerate(most)]


def copy_rows(handle: Any, rows: Sequence[tuple[int, Span]], shard: dict[str, Any], kind: Kind) -> None:
    """Copies rows into a shard that is blank, or was made of the same rows."""
    for i, ((row, _), part) in enumerate(zip(rows, shards.parts(shard, kind), strict=True)):
        shard["row_step"][i] = _core.exchange_get_row(handle, row, part.params, part.state)


def write_rows(handle: Any, rows: Sequence[tuple[int, Span]], parts: Sequence[Part]) -> None:
    for (row, _), part in zip(rows, parts, strict=True):
        _core.exchange_set_row(handle, row, part.step, part.params, part.state)


def _arguments(rules: Rules) -> Args:
    return tuple(optim.arguments(rule) for rule in rules.values())


def _agree(
    ctx: Context, wrong: Exception | None, args: Args, counts: list[int], names: list[str], timeout: float
) -> NDArray[np.int64]:
    """Returns every rank's counts, one row for each rank. Raises on every rank if any rank gives an error in wrong, or
    if the ranks' arguments differ."""
    words = np.zeros((len(names), optim.MOST_ARGS), np.float64)
    if args:
        words[:] = shards.padded(args)
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

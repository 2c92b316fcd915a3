"""How each layer of a model is exchanged: as a matrix through servers, or as pairs of vectors, whichever costs least
here (Poseidon, section 3.2)."""

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Protocol

from torch import nn

from .. import measure
from ..codec import Factors, OneBit
from ..context import Context
from ..errors import ConfigError, InvalidArgument
from ..exchange import Exchange, inside
from ..exchange.book import Book
from ..log import logger
from ..model import Cluster, Cost, Layer, Rates, SchemeChoice, best_scheme, cost_of
from ..stage import nearest, whole
from ..topology import Hierarchy, ParameterServer, PeerToPeer, Topology
from .key import ParamKey
from .linear import LinearKey, why_not

VALUES = ("ps", "factors", "adam", "1bit")
WORDS = ("auto", "paper", *VALUES)
_PAIRS = ("factors", "adam")  # send pairs
_SERVERS = ("placement", "servers", "affinity", "interfaces", "apply_at")  # of ParameterServer
_LEAST = 4096  # elements: smaller layers go as matrices
_ROWS = struct.Struct("<q")
_SPENT = struct.Struct("<dq")
_WORDS = 5  # columns of words in the table
_MEMORY = 0.5  # of what a host has available, which its ranks may take for factors


class Owner(Protocol):
    """What makes the exchange: split.py."""

    exchange: Exchange
    keys: list[ParamKey]

    def remake(self) -> None: ...


@dataclass(frozen=True)
class Measured:
    """What a key's exchange took by itself: seconds of the slowest rank, and bytes that all ranks sent to others."""

    seconds: float
    sent: int


class Schemes:
    """The scheme of each key: "ps", "factors", "adam" or "1bit". print shows them.

    Attributes:
        of: by name of the key.
        choices: by name of the key, of those that were decided by cost.
        measured: by name of the key, what DistributedOptimizer.measure_schemes found.
        why: by name of the key, why a linear layer goes as a matrix where its cost did not decide it.
    """

    def __init__(
        self,
        ctx: Context,
        model: nn.Module,
        keys: Sequence[ParamKey],
        slots: Mapping[str, int],
        asked: str | Mapping[str, str],
        batch: int | None,
        revisit: int | None,
        skips: bool,
        named: Sequence[str],
    ) -> None:
        """slots: by name of the key, values of state that its rule keeps of an element. named: keys that topology= or
        codec= name.

        Raises:
            InvalidArgument: an argument that cannot be.
        """
        self._ctx, self._keys, self._slots, self._skips = ctx, list(keys), dict(slots), skips
        self._named = {key.name: key for key in keys}
        self._word = asked if isinstance(asked, str) else ""
        self._batch = None if batch is None else whole("batch", batch, 1)
        self._revisit = None if revisit is None else whole("revisit", revisit, 1)
        self._types = {id(p): type(m).__name__ for m in model.modules() for p in m._parameters.values()}
        self.of = {key.name: "ps" for key in keys}
        self.choices: dict[str, SchemeChoice] = {}
        self.measured: dict[str, Measured] = {}
        self.why: dict[str, str] = {}
        self._rates: Rates | None = None
        self._free = 0.0
        self._steps = 0
        self._given = self._checked(asked, named)
        self._asked = (self._word or sorted(self._given.items()), batch, revisit, skips)
        compiled = any(hasattr(module, "_orig_mod") for module in model.modules())
        self._open: list[LinearKey] = []  # layers whose scheme is looked for
        for key in keys if ctx.size > 1 else ():
            wanted = self._given.get(key.name, self._word)
            if key.name in named or wanted in ("", "ps"):
                continue
            if wanted == "1bit":
                if isinstance(key, LinearKey) or key.name in self._given:
                    self.of[key.name] = "1bit"
                continue
            refused = self._refused(key, compiled)
            if not refused:
                assert isinstance(key, LinearKey)
                self._open.append(key)
            elif key.name in self._given:
                raise InvalidArgument(f"scheme of {key.name!r} is {wanted!r}: {refused}: give it 'ps'")
            elif isinstance(key, LinearKey):
                self.why[key.name] = refused

    def _checked(self, asked: Any, named: Sequence[str]) -> dict[str, str]:
        if isinstance(asked, str):
            if asked not in WORDS:
                raise InvalidArgument(
                    f"scheme is {asked!r}: must be one of {', '.join(map(repr, WORDS))}, or a mapping from names of "
                    "parameters to the last four"
                )
            return {}
        if not isinstance(asked, Mapping):
            raise InvalidArgument(f"scheme is {asked!r}: must be a word, or a mapping from names of parameters to some")
        for name, value in asked.items():
            if name not in self.of:
                raise InvalidArgument(f"scheme names {name!r}, which is no parameter: {nearest(name, self.of)}")
            if value not in VALUES:
                raise InvalidArgument(f"scheme of {name!r} is {value!r}: must be one of {', '.join(map(repr, VALUES))}")
            if name in named:
                raise InvalidArgument(
                    f"scheme of {name!r} is {value!r}, and topology= or codec= names it as well: give it one of them"
                )
        return dict(asked)

    @staticmethod
    def _refused(key: ParamKey, compiled: bool) -> str:
        """Why a key cannot go as pairs; "" if it can."""
        if not isinstance(key, LinearKey):
            return "it is not the weight of a plain nn.Linear that nothing else uses"
        if compiled:
            return "its model is compiled, so that its inputs are not seen"
        if key.param.numel() < _LEAST:
            return f"it has {key.param.numel()} elements: fewer than {_LEAST} take as long as a matrix"
        return why_not(key.module)

    # ---- the exchange ------------------------------------------------------------------------------------------------

    def arranged(self, topology: Any, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The topology and the options of an exchange of these schemes, of those that a user gave."""
        apart = {name: scheme for name, scheme in self.of.items() if scheme != "ps"}
        if not apart:
            return topology, dict(options)
        servers = {name: options[name] for name in _SERVERS if options.get(name) is not None}
        base = ParameterServer(**servers) if servers else "auto" if topology is None else topology
        places = {name: base.get(name, "flat") if isinstance(base, Mapping) else base for name in self.of}
        codec = options.get("codec")
        codecs = dict(codec) if isinstance(codec, Mapping) else {} if codec is None else dict.fromkeys(self.of, codec)
        for name, scheme in apart.items():
            if scheme in _PAIRS:
                places[name] = self._peers if scheme == "factors" else ParameterServer()
                codecs[name] = Factors(self._layer(name).pairs)
            else:
                codecs[name] = OneBit()
        return places, {**{name: one for name, one in options.items() if name not in _SERVERS}, "codec": codecs}

    @property
    def _peers(self) -> Topology:
        """Of factors: where hosts have several ranks, one of each adds the products for all."""
        return PeerToPeer() if len(set(self._ctx.hosts)) == self._ctx.size else Hierarchy()

    def begin(self) -> None:
        """Before the first exchange is made: with batch= the schemes are known, else the first step shows how many rows
        layers have. Collective.

        Raises:
            ConfigError: ranks ask for different schemes, or have other layers that may go as pairs.
        """
        self._agree()
        for key in self._open:
            key.watch()
        if self._batch is not None and self._open:
            self._settle()

    def _agree(self) -> None:
        told = repr((self._asked, [key.name for key in self._open]))
        digests = self._ctx.allgather(hashlib.blake2b(told.encode(), digest_size=8).digest())
        if other := [rank for rank, digest in enumerate(digests) if digest != digests[0]]:
            raise ConfigError(
                f"rank {other[0]} has another scheme, batch, revisit or skip_weight_grad than rank 0, or other layers "
                f"that may go as pairs, as where one rank alone has hooks on a weight: give the same; rank "
                f"{self._ctx.rank} has {told[:200]}"
            )

    def made(self, exchange: Exchange) -> None:
        """An exchange has been made of them."""
        layers = {key.name: self._layer(key.name) for key in self._keys}
        inside.keep_book(exchange, Book(layers, self._cluster(exchange), self._rates, self.choices, self._free))

    def after_step(self, mode: Owner) -> None:
        """Between two steps. Collective."""
        if not self._open:
            return
        self._steps += 1
        first = self._steps == 1 and self._batch is None
        again = self._revisit is not None and self._steps % self._revisit == 0
        if not first and not again:
            return
        if again and not first:
            measure.forget(self._ctx)
        if self._settle():
            mode.remake()
        self.made(mode.exchange)

    def _settle(self) -> bool:
        """Decides, and tells the keys; whether a scheme has changed. Collective."""
        self._find_pairs()
        before = dict(self.of)
        self._decide()
        for key in self._open:
            now = self.of[key.name]
            if now == before[key.name]:
                continue
            if now in _PAIRS:
                key.goes_as_pairs(self._layer(key.name).pairs, skips=self._skips)
            else:
                key.goes_as_matrix()
        if self._revisit is None:
            for key in self._open:
                if self.of[key.name] not in _PAIRS:
                    key.unwatch()
            self._open = [key for key in self._open if self.of[key.name] in _PAIRS]
        return self.of != before

    # ---- the choice --------------------------------------------------------------------------------------------------

    def _find_pairs(self) -> None:
        """K of each layer: batch, or twice the most rows that a rank has had in a step. Layers whose gradient is no sum
        of their pairs, or that were not used, go as matrices."""
        left = []
        told = b"".join(_ROWS.pack(-1 if key.refused else key.rows) for key in self._open)
        every = [[rows for (rows,) in _ROWS.iter_unpack(part)] for part in self._ctx.allgather(told)]
        for key, rows in zip(self._open, zip(*every, strict=True), strict=True):
            if min(rows) < 0:
                rank = rows.index(-1)
                why = key.refused or f"rank {rank} finds that its gradient is not the sum of its pairs"
                if key.name in self._given:
                    raise InvalidArgument(f"scheme of {key.name!r} is {self._given[key.name]!r}: {why}: give it 'ps'")
                self.why[key.name] = why
                self._tell(f"{key.name!r} goes as a matrix: {why}")
                key.unwatch()
                continue
            left.append(key)
            if not key.K:
                key.K = self._batch or 2 * max(rows)
            if not key.K:
                self.why[key.name] = "its layer has had no rows yet"
        self._open = left

    def _decide(self) -> None:
        deciding = [key for key in self._open if self._given.get(key.name, self._word) in ("auto", "paper")]
        for key in self._open:
            asked = self._given.get(key.name, self._word)
            if asked in _PAIRS and key.K:
                self.of[key.name] = asked
        if not deciding:
            return
        self._rates = self._measured_rates() if self._word == "auto" else None
        cluster = self._cluster(None)
        available = [n for (n,) in map(_ROWS.unpack, self._ctx.allgather(_ROWS.pack(inside.memory_available())))]
        free = self._free = _MEMORY * min(available) / math.ceil(cluster.workers / (cluster.hosts or 1))
        by = "measured" if self._word == "auto" else "paper"
        picked = []
        for key in deciding:
            choice = best_scheme(self._layer(key.name), cluster, self._rates, by=by, memory=max(1.0, free))
            self.choices[key.name] = choice
            free -= choice.cost.memory if choice.scheme == "factors" else 0
            picked.append(VALUES.index(choice.scheme))
            if choice.why:
                self._tell(f"{key.name!r}: {choice.why}")
        for key, index in zip(deciding, self._ctx.allgather(bytes(picked))[0], strict=True):
            self.of[key.name] = VALUES[index]

    def _measured_rates(self) -> Rates:
        limit = self._ctx.config.timeout
        rates = measure.measure_rates(self._ctx, limit)
        return replace(rates, multiply=measure.multiply_rate(self._ctx, Exchange, limit))

    def _cluster(self, exchange: Exchange | None) -> Cluster:
        size = self._ctx.size
        return Cluster(size, size if exchange is None else len(exchange.plan.servers), len(set(self._ctx.hosts)))

    def _layer(self, name: str) -> Layer:
        key = self._named[name]
        pairs = key.K if isinstance(key, LinearKey) else 0
        kind = self._types.get(id(key.param), "")
        return Layer(name, tuple(key.param.shape), pairs, self._slots.get(name, 0), kind)

    def _tell(self, sentence: str) -> None:
        if self._ctx.rank == 0:
            logger.warning("%s", sentence)

    # ---- what it costs -----------------------------------------------------------------------------------------------

    def predicted(self, name: str) -> Cost:
        """The cost of a key by the model; its seconds are 0 where no rates were measured."""
        way = self.of[name]
        if name in self.choices and way in self.choices[name].costs:
            return self.choices[name].costs[way]
        cluster = self._cluster(None)
        base = "hosts" if cluster.hosts not in (1, cluster.workers) else "ps"
        return cost_of(way if way in _PAIRS else base, self._layer(name), cluster, self._rates)

    def time(self, exchange: Exchange, rounds: int) -> None:
        """Exchanges each key by itself, and takes the best of some rounds into measured. Collective, between two steps;
        p.grad is overwritten, parameters stay as they are."""
        ctx = self._ctx
        for key in self._keys:
            best, sent = math.inf, 0
            for _ in range(rounds):
                if self.of[key.name] in _PAIRS:
                    pairs = exchange.factors(key.name)
                    pairs.u[:], pairs.v[:], pairs.count = 1, 1, len(pairs.u)
                else:
                    exchange.gradient(key.name).fill(1)
                before = _sent(exchange)
                ctx.barrier()
                start = monotonic()
                exchange.fold(key.name)
                exchange.gather(key.name)
                taken = monotonic() - start
                exchange.skip(key.name)
                ctx.barrier()  # owners have sent all
                every = [_SPENT.unpack(one) for one in ctx.allgather(_SPENT.pack(taken, _sent(exchange) - before))]
                best, sent = min(best, max(seconds for seconds, _ in every)), sum(n for _, n in every)
            self.measured[key.name] = Measured(best, sent)

    def __str__(self) -> str:
        head = ("key", "layer", "shape", "K", "scheme", "predicted ms", "bytes", "measured ms", "bytes", "why")
        lines = [head, *(self._line(key) for key in self._keys)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        sides = ["<"] * _WORDS + [">"] * (len(head) - _WORDS - 1) + ["<"]
        padded = [
            [f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths, strict=True)] for line in lines
        ]
        return "\n".join("  ".join(line).rstrip() for line in padded)

    def _line(self, key: ParamKey) -> tuple[str, ...]:
        layer, cost, seen = self._layer(key.name), self.predicted(key.name), self.measured.get(key.name)
        return (
            key.name,
            layer.type,
            " x ".join(map(str, layer.shape)),
            str(layer.pairs or "-"),
            self.of[key.name],
            f"{1e3 * cost.seconds:.2f}" if self._rates else "-",
            f"{cost.sent:.0f}",
            f"{1e3 * seen.seconds:.2f}" if seen else "-",
            str(seen.sent) if seen else "-",
            self.why.get(key.name, ""),
        )


def _sent(exchange: Exchange) -> int:
    return sum(entry.bytes for entry in exchange.stats().traffic)

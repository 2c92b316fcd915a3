"""Chooses the way of each layer of a model by its cost on this job's machines. A layer is sent as a matrix through
servers, or as pairs of vectors (Poseidon, section 3.2)."""

import hashlib
import struct
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from torch import nn

from .. import measure
from ..codec import Codec, Factors, OneBit, WireFormat
from ..context import Context
from ..errors import ConfigError, InvalidArgument
from ..exchange import Exchange
from ..exchange.book import Book
from ..log import logger
from ..model import Cluster, Cost, Layer, WayChoice, cost_of
from ..stage import nearest, whole
from ..topology import ParameterServer
from ..topology.automatic import automatic_pairs
from . import way_table
from .choice import Decision, check_lossy, decide
from .key import ParamKey
from .linear import LinearKey, why_not
from .start import SERVER_OPTIONS, server_options

VALUES = ("ps", "factors", "adam", "1bit")
WORDS = ("auto", "paper", *VALUES)
_PAIRS = ("factors", "adam")  # the ways that send pairs of vectors
_LEAST = 4096  # elements; smaller layers are always sent as float32 matrices
_ROWS = struct.Struct("<q")
_SHUT = -1  # in place of K: this layer's way cannot change any more


class Owner(Protocol):
    """The part of a mode that makes the exchange; see split.py."""

    exchange: Exchange
    keys: list[ParamKey]

    def remake(self) -> None: ...


class Ways:
    """The way of each key: "ps", "factors", "adam" or "1bit". Print the object to see a table.

    Attributes, all by key name:
        of: the way of the key.
        codecs: the lossy codec that was chosen for the key because of lossy=.
        choices: the costs of the key's ways, if the costs decided.
        measured: the result of DistributedOptimizer.measure_ways.
        why: why a linear layer is sent as a matrix, if this was not decided by its cost.
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
        topology: Any,
        codec: Any,
        codec_out: Any,
        lossy: bool | Sequence[WireFormat],
    ) -> None:
        """Checks the arguments. slots: for each key name, how many values of state the rule keeps for an element.
        topology, codec, codec_out: the user's arguments. A key that topology or codec names keeps the topology or codec
        given there.

        Raises:
            InvalidArgument: an invalid argument.
        """
        self._ctx, self._keys, self._slots, self._skips = ctx, list(keys), dict(slots), skips
        self._named = {key.name: key for key in keys}
        self._word = asked if isinstance(asked, str) else ""
        self._batch = None if batch is None else whole("batch", batch, 1)
        self._revisit = None if revisit is None else whole("revisit", revisit, 1)
        self._types = {id(p): type(m).__name__ for m in model.modules() for p in m._parameters.values()}
        self.of = {key.name: "ps" for key in keys}
        self.codecs: dict[str, WireFormat] = {}
        self.measured: dict[str, way_table.Measured] = {}
        self.why: dict[str, str] = {}
        self._decision = Decision()
        self._decided, self._steps = False, 0
        self._fixed = named = frozenset(name for one in (topology, codec) if isinstance(one, Mapping) for name in one)
        self._given = self._checked(asked, named, codec_out if isinstance(codec_out, Mapping) else ())
        self._lossy = check_lossy(lossy, self._word, codec)
        self._asked = (self._word or sorted(self._given.items()), batch, revisit, skips, self._lossy)
        compiled = any(hasattr(module, "_orig_mod") for module in model.modules())
        self._open: list[LinearKey] = []  # layers whose way can still change
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
                raise InvalidArgument(f"way of {key.name!r} is {wanted!r}: {refused}: give it 'ps'")
            elif isinstance(key, LinearKey):
                self.why[key.name] = refused
        self._could = tuple(self._open)
        self._keep()

    @property
    def may_be_pairs(self) -> Sequence[LinearKey]:
        return self._could

    @property
    def choices(self) -> Mapping[str, WayChoice]:
        return self._decision.choices

    def _checked(self, asked: Any, named: Container[str], rounded: Container[str]) -> dict[str, str]:
        if isinstance(asked, str):
            if asked not in WORDS:
                raise InvalidArgument(
                    f"way is {asked!r}: must be one of {', '.join(map(repr, WORDS))}, or a mapping from names of "
                    "parameters to the last four"
                )
            return {}
        if not isinstance(asked, Mapping):
            raise InvalidArgument(f"way is {asked!r}: must be a word, or a mapping from names of parameters to some")
        for name, value in asked.items():
            if name not in self.of:
                raise InvalidArgument(f"way names {name!r}, which is no parameter: {nearest(name, self.of)}")
            if value not in VALUES:
                raise InvalidArgument(f"way of {name!r} is {value!r}: must be one of {', '.join(map(repr, VALUES))}")
            if name in named:
                raise InvalidArgument(
                    f"way of {name!r} is {value!r}, and topology= or codec= names it as well: give it one of them"
                )
            if value == "factors" and name in rounded:
                raise InvalidArgument(
                    f"way of {name!r} is 'factors', by which no parameters are sent, and codec_out= names it: leave "
                    "it out of one of them"
                )
        return dict(asked)

    @staticmethod
    def _refused(key: ParamKey, compiled: bool) -> str:
        """Returns why a key cannot be sent as pairs of vectors; "" if it can."""
        if not isinstance(key, LinearKey):
            return "it is not the weight of a plain nn.Linear that nothing else uses"
        if compiled:
            return "its model is compiled, so that its inputs are not seen"
        if key.param.numel() < _LEAST:
            return f"it has {key.param.numel()} elements: fewer than {_LEAST} take as long as a matrix"
        return why_not(key.module)

    # ---- the exchange ------------------------------------------------------------------------------------------------

    def arranged(self, topology: Any, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Returns the topology and the options for an exchange with these ways, made from the user's topology and
        options."""
        apart = {name: way for name, way in self.of.items() if way != "ps"}
        if not apart and not self.codecs:
            return topology, dict(options)
        servers = server_options(options)
        base = ParameterServer(**servers) if servers else "auto" if topology is None else topology
        places = {name: base.get(name, "flat") if isinstance(base, Mapping) else base for name in self.of}
        plan = options["plan"]
        codec = plan.codec
        codecs = dict(codec) if isinstance(codec, Mapping) else {} if codec is None else dict.fromkeys(self.of, codec)
        for name, way in apart.items():
            if way in _PAIRS:
                places[name] = automatic_pairs(self._ctx.hosts) if way == "factors" else ParameterServer()
                codecs[name] = Factors(self._layer(name).pairs)
            else:
                codecs[name] = OneBit()
        codecs |= self.codecs
        parameters = plan.codec_out
        if parameters is not None:
            each = parameters if isinstance(parameters, Mapping) else dict.fromkeys(self.of, parameters)
            parameters = {name: one for name, one in each.items() if self.of.get(name) != "factors"}
        rest = {name: one for name, one in options.items() if name not in SERVER_OPTIONS}
        return places, {**rest, "plan": replace(plan, codec=codecs, codec_out=parameters)}

    def begin(self) -> None:
        """Prepares the first exchange. With batch= it decides the ways; without, the first step shows how many rows
        layers have. Collective.

        Raises:
            ConfigError: ranks ask for different ways, or differ in the layers that may be sent as pairs.
        """
        self._agree()
        for key in self._open:
            key.watch()
        if self._batch is not None and self._open_or_lossy():
            self._settle()
        self._decided = self._batch is not None
        self._keep()

    def _agree(self) -> None:
        told = repr((self._asked, [key.name for key in self._open]))
        digests = self._ctx.allgather(hashlib.blake2b(told.encode(), digest_size=8).digest())
        if other := [rank for rank, digest in enumerate(digests) if digest != digests[0]]:
            raise ConfigError(
                f"rank {other[0]} has another way, batch, revisit, skip_weight_grad or lossy than rank 0, or other "
                f"layers that may go as pairs, as where one rank alone has hooks on a weight: give the same; rank "
                f"{self._ctx.rank} has {told[:200]}"
            )

    def made(self, exchange: Exchange) -> None:
        """Gives an exchange that was made with these ways the costs of the ways, which appear in its stats."""
        layers, found = {key.name: self._layer(key.name) for key in self._keys}, self._decision
        exchange._state.book = Book(layers, self._cluster(exchange), found.rates, found.choices, found.free)

    def after_step(self, mode: Owner) -> None:
        """Between two steps: decides the ways if a decision is due, and remakes the exchange if any way has changed.
        Collective."""
        if not self._open_or_lossy():
            return
        self._steps += 1
        again = self._decided and self._revisit is not None and self._steps % self._revisit == 0
        if self._decided and not again:
            return
        if again:
            measure.forget(self._ctx)
        if self._settle():
            mode.remake()
        self._decided = True
        self._keep()
        self.made(mode.exchange)

    def refuse(self, keys: Sequence[ParamKey], mode: Owner) -> None:
        """Makes these keys send matrices from this step on, because some rank has found that the gradient is not the
        sum of its pairs. Collective."""
        for key in keys:
            assert isinstance(key, LinearKey)
            self.of[key.name] = "ps"
            self.why[key.name] = why = key.refused or "another rank finds that its gradient is not the sum of its pairs"
            self._tell(f"{key.name!r} goes as a matrix from this step on: {why}")
            key.whole_gradient()
            key.goes_as_matrix()
        mode.remake()
        for key in keys:
            key.unwatch()  # type: ignore[attr-defined]
        self._open = [key for key in self._open if key not in keys]
        self._keep()

    def _open_or_lossy(self) -> bool:
        """Returns whether any way or codec can still change. The result is the same on all ranks."""
        return bool(self._open or self._by_codec())

    def _by_codec(self) -> list[ParamKey]:
        """Returns the keys for which only lossy codecs are compared, and not pairs."""
        if not self._lossy or self._ctx.size == 1 or (self._decided and self._revisit is None):
            return []
        open_ = {key.name for key in self._open} | self._fixed
        return [key for key in self._keys if key.param.numel() >= _LEAST and key.name not in open_]

    def _settle(self) -> bool:
        """Decides the ways and tells the keys. Returns whether any way has changed. Collective."""
        self._find_pairs()
        before = dict(self.of), dict(self.codecs)
        self._decide()
        for key in self._open:
            now = self.of[key.name]
            if now != before[0][key.name]:
                self._goes(key)
        if self._revisit is None:
            for key in self._open:
                if self.of[key.name] not in _PAIRS:
                    key.unwatch()
            self._open = [key for key in self._open if self.of[key.name] in _PAIRS]
        return (self.of, self.codecs) != before

    def _goes(self, key: LinearKey) -> None:
        """Makes the key send a matrix or pairs, according to its way."""
        if self.of[key.name] not in _PAIRS:
            key.goes_as_matrix()
        elif not key.most:
            key.goes_as_pairs(self._layer(key.name).pairs, skips=self._skips)

    # ---- when ranks are gone -----------------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Remembers the ways with which the mode's present exchange was made."""
        self._kept = dict(self.of), dict(self.codecs)

    def lost(self) -> None:
        """Returns to the ways of the present exchange. A decision that is not complete is dropped."""
        ways, codecs = self._kept
        self.of, self.codecs = dict(ways), dict(codecs)
        for key in self._could:
            self._goes(key)

    def recovered(self, ctx: Context, exchange: Exchange) -> None:
        """Continues with the same ways on the remaining ranks. Collective. If only some ranks had decided at the end of
        the interrupted step, all ranks decide after the next step."""
        self._ctx = ctx
        told = [self._decided, self._steps, *(key.K if key in self._open else _SHUT for key in self._could)]
        every = [
            [n for (n,) in _ROWS.iter_unpack(part)] for part in ctx.allgather(b"".join(_ROWS.pack(n) for n in told))
        ]
        self._decided = all(theirs[0] for theirs in every)
        self._steps = max(theirs[1] for theirs in every)
        self._open = []
        for key, *given in zip(self._could, *(theirs[2:] for theirs in every), strict=True):
            if not self._decided:
                key.K = 0
            elif min(given) != _SHUT:
                key.K = given[0]
            else:
                key.unwatch()
                continue
            key.watch()
            self._open.append(key)
        self.made(exchange)

    # ---- the choice --------------------------------------------------------------------------------------------------

    def _find_pairs(self) -> None:
        """Sets K of each layer: batch, or twice the most rows that any rank has had in a step. Layers that were not
        used, or whose gradient is not the sum of their pairs, are sent as matrices."""
        left = []
        told = b"".join(_ROWS.pack(-1 if key.refused else key.rows) for key in self._open)
        every = [[rows for (rows,) in _ROWS.iter_unpack(part)] for part in self._ctx.allgather(told)]
        for key, rows in zip(self._open, zip(*every, strict=True), strict=True):
            if min(rows) < 0:
                rank = rows.index(-1)
                why = key.refused or f"rank {rank} finds that its gradient is not the sum of its pairs"
                if key.name in self._given:
                    raise InvalidArgument(f"way of {key.name!r} is {self._given[key.name]!r}: {why}: give it 'ps'")
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
        if self._word not in ("auto", "paper"):
            for key in self._open:
                if key.K:
                    self.of[key.name] = self._given.get(key.name, self._word)
            return
        layers = [self._layer(key.name) for key in self._open]
        layers += [replace(self._layer(key.name), pairs=0) for key in self._by_codec()]
        if not layers:
            return
        by = "measured" if self._word == "auto" else "paper"
        self._decision = decide(self._ctx, layers, self._cluster(None), by, self._lossy)
        for name, (way, codec) in self._decision.ways.items():
            self.of[name] = way
            self.codecs.pop(name, None)
            if codec is not None:
                self.codecs[name] = codec
            if self.choices[name].why:
                self._tell(f"{name!r}: {self.choices[name].why}")

    def _cluster(self, exchange: Exchange | None) -> Cluster:
        size = self._ctx.size
        servers = size if exchange is None else min(len(exchange.plan.servers), size)  # hubs may be more than workers
        return Cluster(size, servers, len(set(self._ctx.hosts)))

    def _layer(self, name: str) -> Layer:
        key = self._named[name]
        pairs = key.K if isinstance(key, LinearKey) else 0
        kind = self._types.get(id(key.param), "")
        return Layer(name, tuple(key.param.shape), pairs, self._slots.get(name, 0), kind)

    def _tell(self, sentence: str) -> None:
        if self._ctx.rank == 0:
            logger.warning("%s", sentence)

    # ---- the cost ----------------------------------------------------------------------------------------------------

    def predicted(self, name: str) -> Cost:
        """Returns the cost of a key that the model predicts. Its seconds are 0 if no rates were measured."""
        way, cluster, found = self.of[name], self._cluster(None), self._decision
        if way not in _PAIRS:
            way = "hosts" if cluster.hosts not in (1, cluster.workers) else "ps"
        coded = found.codecs.get(self.codecs[name]) if name in self.codecs else None
        return cost_of(way, self._layer(name), cluster, found.rates, coded)

    def time(self, exchange: Exchange, rounds: int) -> None:
        """Exchanges each key alone, and adds the results to the attribute measured; see way_table.measured."""
        pairs = {name for name, way in self.of.items() if way in _PAIRS}
        self.measured |= way_table.measured(self._ctx, exchange, list(self._named), pairs, rounds)

    def __str__(self) -> str:
        rates = self._decision.rates is not None
        return way_table.table(
            [
                way_table.line(
                    self._layer(name),
                    self._told(name),
                    self.predicted(name),
                    self.measured.get(name),
                    self.why.get(name, ""),
                    has_rates=rates,
                )
                for name in self.of
            ]
        )

    def _told(self, name: str) -> str:
        codec = self.codecs.get(name)
        if codec is None or self.of[name] == "1bit":
            return self.of[name]
        return f"{self.of[name]}, {codec.name if isinstance(codec, Codec) else repr(codec)}"

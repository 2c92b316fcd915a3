"""The information book of an exchange (Poseidon, section 4.1: the coordinator)."""

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidArgument
from ..model import Cluster, Layer, Rates, WayChoice, best_way
from ..stage import nearest

_NAMES = ("n_worker", "n_server", "n_host", "batchsize", "rates", "layers")


class Book:
    """The facts and rates by which ways are chosen, equal on all ranks.

    Attributes:
        layers: by name of the key: its shape, K, and the state of its rule.
        cluster: workers, servers and hosts.
        batch: the most pairs of a layer's update on a rank; 0 where no key can go as pairs.
        rates: of the machine; None: they were not measured.
        memory: bytes that the choice left for factors on each rank; 0: any.
        choices: by name of the key, the choices that were made.
    """

    def __init__(
        self,
        layers: Mapping[str, Layer],
        cluster: Cluster,
        rates: Rates | None = None,
        choices: Mapping[str, WayChoice] | None = None,
        memory: float = 0,
    ) -> None:
        self.layers, self.cluster, self.rates = dict(layers), cluster, rates
        self.choices, self.memory = dict(choices or {}), memory
        self.batch = max((layer.pairs for layer in layers.values()), default=0)

    @classmethod
    def of(cls, exchange: Any) -> "Book":
        """The book of an Exchange. hpcomm.torch keeps its choices and the rates of the machine there."""
        if exchange._state.book is None:
            layers = {}
            for key, kind in zip(exchange.plan.keys, exchange._state.kind.rules, strict=True):
                pairs = int(getattr(exchange.codecs[key.name], "K", 0))
                layers[key.name] = Layer(key.name, key.shape, pairs, kind.slots)
            ctx = exchange.context
            exchange._state.book = cls(layers, Cluster(ctx.size, len(exchange.plan.servers), len(set(ctx.hosts))))
        return exchange._state.book  # type: ignore[no-any-return]

    def query(self, *names: str) -> Any:
        """The book's values of these names, one value or a tuple of them (Query of the paper): "n_worker" (P1),
        "n_server" (P2), "n_host", "batchsize" (K), "rates", "layers", or the name of a key, which gives its
        model.Layer.

        Raises:
            InvalidArgument: it has nothing under a name.
        """
        if not names:
            raise InvalidArgument(f"query: no name is given; there are {', '.join(_NAMES)} and the names of keys")
        found = tuple(self._find(name) for name in names)
        return found[0] if len(found) == 1 else found

    def best_way(self, key: str, by: str | None = None) -> str:
        """The way of a key in the words of the paper: "PS", "SFB" or "1bit" (BestScheme, algorithm 1).

        Args:
            key: its name.
            by: "paper": algorithm 1. "measured": the fewest seconds. None: the choice that was made, if there is one;
                else "measured" where rates are known, and "paper" where not.

        Raises:
            InvalidArgument: no such key; or by="measured" without rates.
        """
        layer = self._layer(key)
        if by is None and key in self.choices:
            return self.choices[key].paper
        if by is None:
            by = "paper" if self.rates is None else "measured"
        return best_way(layer, self.cluster, self.rates, by=by, memory=self.memory).paper

    def _find(self, name: str) -> Any:
        known = {
            "n_worker": self.cluster.workers,
            "n_server": self.cluster.servers,
            "n_host": self.cluster.hosts,
            "batchsize": self.batch,
            "rates": self.rates,
            "layers": self.layers,
        }
        return known[name] if name in known else self._layer(name)

    def _layer(self, name: str) -> Layer:
        if name not in self.layers:
            raise InvalidArgument(f"the book has no {name!r}: {nearest(name, (*_NAMES, *self.layers))}")
        return self.layers[name]

    def __repr__(self) -> str:
        return f"<book of {len(self.layers)} layers, {self.cluster}>"

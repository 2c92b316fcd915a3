"""The information book of an exchange (Poseidon, section 4.1: the coordinator)."""

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidArgument
from ..model import Cluster, Layer, Rates, WayChoice, best_way
from ..stage import nearest

_NAMES = ("n_worker", "n_server", "n_host", "batchsize", "rates", "layers")


class Book:
    """The facts and rates by which hpcomm.torch chooses ways (see docs/glossary.md). They are the same on all ranks.

    Attributes:
        layers: for each key name, its shape, K, and the size of its rule's state.
        cluster: the numbers of workers, servers and hosts.
        batch: K, the most pairs of vectors in any layer's update on a rank; 0 if no key can be sent as pairs.
        rates: the measured rates of the machine; None if they were not measured.
        memory: how many bytes of memory factors may use on each rank; 0 means no limit.
        choices: the choice that was made for each key name.
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
        """Returns the book of an Exchange. hpcomm.torch also stores its choices and the machine's rates in this
        book."""
        if exchange._state.book is None:
            layers = {}
            for key, kind in zip(exchange.plan.keys, exchange._state.kind.rules, strict=True):
                pairs = int(getattr(exchange.codecs[key.name], "K", 0))
                layers[key.name] = Layer(key.name, key.shape, pairs, kind.slots)
            ctx = exchange.context
            exchange._state.book = cls(layers, Cluster(ctx.size, len(exchange.plan.servers), len(set(ctx.hosts))))
        return exchange._state.book  # type: ignore[no-any-return]

    def query(self, *names: str) -> Any:
        """Returns the book's value for a name, or a tuple for several names (Query in the paper).

        Names are "n_worker" (P1), "n_server" (P2), "n_host", "batchsize" (K), "rates" and "layers". The name of a key
        gives the key's model.Layer.

        Raises:
            InvalidArgument: the book has no such name.
        """
        if not names:
            raise InvalidArgument(f"query: no name is given; there are {', '.join(_NAMES)} and the names of keys")
        found = tuple(self._find(name) for name in names)
        return found[0] if len(found) == 1 else found

    def best_way(self, key: str, by: str | None = None) -> str:
        """Returns the way of a key under the paper's name: "PS", "SFB" or "1bit" (BestScheme, algorithm 1).

        Args:
            key: the name of the key.
            by: how the way is found. "paper": by algorithm 1. "measured": the way that takes the fewest seconds at the
                measured rates. None: the way that was already chosen; if none was chosen, "measured" if rates are
                known, otherwise "paper".

        Raises:
            InvalidArgument: there is no such key; or by is "measured" and rates are not known.
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

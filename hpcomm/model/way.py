"""The way to exchange a layer that costs least (Poseidon, section 3.2): by bytes, as in the paper, or by seconds.

The formulas are in C (hpcomm/way.h). They count as load_of counts the plans of these ways. Values out of range raise
InvalidArgument.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isinf, prod

from .. import _core
from ..codec import OneBit, WireFormat
from ..errors import InvalidArgument
from ..stage import choice, whole
from .rates import CodecRates, Rates

BY = ("measured", "paper")
_PAPER = {"ps": "PS", "hosts": "PS", "factors": "SFB", "adam": "Adam", "1bit": "1bit"}


@dataclass(frozen=True)
class Layer:
    """A layer of a model.

    Attributes:
        name: of its key.
        shape: of its parameters: (M, N) for a fully connected one.
        pairs: K: pairs of vectors of a worker's update, such as the samples of its batch; 0: its updates are no sums of
            products u v^T, as of a convolution.
        slots: float32 values of state of an element: 0 for SGD, 2 for Adam.
        type: in words, such as "Linear".
    """

    name: str
    shape: tuple[int, ...]
    pairs: int = 0
    slots: int = 0
    type: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(whole(f"layer {self.name!r}: shape", n, 1) for n in self.shape))
        whole(f"layer {self.name!r}: pairs", self.pairs, 0)
        whole(f"layer {self.name!r}: slots", self.slots, 0)
        if self.pairs and len(self.shape) != 2:
            raise InvalidArgument(
                f"layer {self.name!r}: pairs is {self.pairs}, and shape is {self.shape}: only a matrix is a sum of "
                "products: give pairs 0"
            )

    @property
    def _terms(self) -> tuple[int, int, int, int]:
        rows, columns = self.shape if len(self.shape) == 2 else (prod(self.shape), 1)
        return rows, columns, self.pairs, self.slots


@dataclass(frozen=True)
class Cluster:
    """The ranks that exchange a layer: P1 workers, of which P2 (None: all) are servers too, spread evenly over hosts
    (None: one host a worker)."""

    workers: int
    servers: int | None = None
    hosts: int | None = None

    def __post_init__(self) -> None:
        whole("cluster: workers", self.workers, 1)
        for name in ("servers", "hosts"):
            value = getattr(self, name)
            most = whole(f"cluster: {name}", self.workers if value is None else value, 1, self.workers)
            object.__setattr__(self, name, most)

    @property
    def _terms(self) -> tuple[int, int, int]:
        assert self.servers
        assert self.hosts
        return self.workers, self.servers, self.hosts


@dataclass(frozen=True)
class Cost:
    """The cost of a step of a layer in a way: seconds and bytes."""

    seconds: float  #: of the busiest link, then of the busiest rank's work
    sent: float  #: by all ranks to others
    busiest: float  #: that the busiest rank sends and gets (table 1 of the paper)
    memory: float  #: of a rank at most: parameters, gradients, slots and state


@dataclass(frozen=True)
class WayChoice:
    """The way of a layer.

    Attributes:
        way: "ps", "hosts" (the same with each host's updates folded there first), "factors", or "codec": to servers.
        costs: of all compared ways, by way, or by the codec's repr.
        by: "measured" or "paper".
        codec: of way "codec".
        why: a sentence where the fastest way does not fit in memory, else "".
    """

    way: str
    costs: Mapping[str, Cost]
    by: str
    codec: WireFormat | None = None
    why: str = ""

    @property
    def name(self) -> str:
        """Its name in hpcomm.torch: "ps", "factors" or "1bit"."""
        if self.codec is not None:
            return "1bit" if isinstance(self.codec, OneBit) else "ps"
        return "factors" if self.way == "factors" else "ps"

    @property
    def paper(self) -> str:
        """Its name in the paper: "PS", "SFB" or "1bit"."""
        return _PAPER[self.name]

    @property
    def cost(self) -> Cost:
        return self.costs[self.way if self.codec is None else repr(self.codec)]


def cost_of(
    way: str, layer: Layer, cluster: Cluster, rates: Rates | None = None, codec: CodecRates | None = None
) -> Cost:
    """The cost of a layer by a way: "ps", "hosts", "factors" or "adam" (pairs to one server, the matrix back).

    Without rates it counts bytes alone; codec is that of updates to servers, None float32. Raises NotSupported for a
    way that sends pairs, if the layer has none.
    """
    choice("way", way, _core.WAYS)
    given = None if codec is None else (codec.ratio, codec.encode, codec.decode)
    return Cost(*_core.way_cost(way, layer._terms, cluster._terms, _terms(rates), given))


def best_way(
    layer: Layer,
    cluster: Cluster,
    rates: Rates | None = None,
    *,
    by: str = "measured",
    codecs: Mapping[WireFormat, CodecRates] | None = None,
    memory: float = 0,
) -> WayChoice:
    """The way to exchange a layer that costs least.

    Args:
        layer, cluster: the layer to exchange, and its ranks.
        rates: of the machine (hpcomm.measure.measure_rates); by="paper" needs none.
        by: "measured": the fewest seconds of servers, servers with hosts first, and factors to all. "paper": algorithm
            1, which counts bytes alone.
        codecs: lossy ones that may be taken too, with their rates.
        memory: bytes of a rank that a layer may take; 0: any. A way that needs more is left out if another fits.
    """
    choice("by", by, BY)
    if by == "measured" and rates is None:
        raise InvalidArgument('rates is None: by="measured" needs the rates of the machine, see hpcomm.measure')
    ways = ["ps", *(["hosts"] if cluster.hosts != cluster.workers else []), *(["factors"] if layer.pairs else [])]
    costs = {way: cost_of(way, layer, cluster, rates) for way in ways}
    terms = _terms(rates) if by == "measured" else None
    way = _core.best_way(layer._terms, cluster._terms, terms, memory)
    found = None
    if by == "measured":

        def rank(cost: Cost) -> tuple[bool, float]:
            """As C compares: ways that fit by their seconds, then the others by their bytes."""
            fits = not memory or cost.memory <= memory
            return not fits, cost.seconds if fits else cost.memory

        bases = [one for one in ways if one != "factors"]
        for codec, own in (codecs or {}).items():
            costs[repr(codec)] = min((cost_of(base, layer, cluster, rates, own) for base in bases), key=rank)
            if rank(costs[repr(codec)]) < rank(costs[way if found is None else repr(found)]):
                found = codec
    chosen = WayChoice("codec" if found else way, costs, by, found)
    fastest = min(costs, key=lambda one: costs[one].seconds)
    if by == "paper" or costs[fastest].seconds >= chosen.cost.seconds:
        return chosen
    taken = way if found is None else repr(found)
    why = (
        f"{fastest!r} would take {costs[fastest].seconds:.3g} s, and {taken!r} is taken with "
        f"{chosen.cost.seconds:.3g} s, as that needs {costs[fastest].memory:.3g} bytes of a rank, and "
        f"{memory:.3g} may be taken"
    )
    return replace(chosen, why=why)


def _terms(rates: Rates | None) -> tuple[float, ...] | None:
    """As C has them: 0 costs nothing."""
    if rates is None:
        return None
    speeds = [getattr(rates, name) for name in ("between", "inside", "memory")]
    between, inside, memory, multiply = (0.0 if isinf(one) else one for one in (*speeds, rates.multiply))
    return between, inside, memory, rates.fold, multiply

"""Finds the cheapest way to exchange a layer (Poseidon, section 3.2): the way with the fewest bytes, as in the paper,
or with the fewest seconds.

The formulas are in C (hpcomm/way.h). They give the same numbers that load_of counts in the plans of these ways. A value
out of range raises InvalidArgument.
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
        name: the name of its key.
        shape: the shape of its parameters: (M, N) for a fully connected layer.
        pairs: the number of pairs of vectors in one worker's update (K in the paper), such as the number of samples in
            its batch. 0: the layer's updates are not sums of products u v^T, as in a convolution.
        slots: the number of float32 values of optimizer state for each element, e.g. 0 for SGD and 2 for Adam.
        type: the layer's type as text, such as "Linear".
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
    """The ranks that exchange a layer: P1 workers, of whom P2 are servers too (None: all), spread evenly over `hosts`
    hosts (None: one host for each worker)."""

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
    """The seconds and bytes of one step of a layer that is exchanged in one way."""

    seconds: float  #: time of the busiest link, plus time of the busiest rank's work
    sent: float  #: bytes that all ranks together send to others
    busiest: float  #: bytes that the busiest rank sends and gets (table 1 of the paper)
    memory: float  #: bytes for parameters, gradients, slots and state on the rank that needs most


@dataclass(frozen=True)
class WayChoice:
    """The way that best_way chose for a layer.

    Attributes:
        way: "ps": through parameter servers. "hosts": as "ps", but one rank of each host first folds the host's
            updates. "factors": as pairs of vectors to all ranks. "codec": as "ps", with a codec.
        costs: a dict from the names of all compared ways to their Cost. The name of a way with a codec is the codec's
            repr.
        by: "measured" or "paper".
        codec: the codec of way "codec".
        why: a sentence about the fastest way if it does not fit in memory; otherwise "".
    """

    way: str
    costs: Mapping[str, Cost]
    by: str
    codec: WireFormat | None = None
    why: str = ""

    @property
    def name(self) -> str:
        """The way's name in hpcomm.torch: "ps", "factors" or "1bit"."""
        if self.codec is not None:
            return "1bit" if isinstance(self.codec, OneBit) else "ps"
        return "factors" if self.way == "factors" else "ps"

    @property
    def paper(self) -> str:
        """The way's name in the paper: "PS", "SFB" or "1bit"."""
        return _PAPER[self.name]

    @property
    def cost(self) -> Cost:
        return self.costs[self.way if self.codec is None else repr(self.codec)]


def cost_of(
    way: str, layer: Layer, cluster: Cluster, rates: Rates | None = None, codec: CodecRates | None = None
) -> Cost:
    """Returns the cost of exchanging a layer in a way: "ps", "hosts", "factors" or "adam". With "adam" workers send
    pairs to one server, and the server sends the matrix back.

    Without rates only bytes are counted, and the seconds are 0. codec: the rates of the codec in which updates go to
    servers; None: float32. Raises NotSupported for a way that sends pairs, if the layer has no pairs.
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
    """Returns the cheapest way to exchange a layer.

    Args:
        layer, cluster: the layer, and the ranks that exchange it.
        rates: the machine's rates (hpcomm.measure.measure_rates); by="paper" needs none.
        by: "measured": the result is the way with the fewest seconds among "ps", "hosts", "factors" and the codecs.
            "paper": algorithm 1 of the paper, which counts only bytes.
        codecs: lossy codecs that may be chosen too, with their rates.
        memory: the bytes that the layer may need on a rank; 0: any number. A way that needs more is chosen only if no
            way fits.
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
            """Returns a sort key that orders costs as C does: first the ways that fit in memory, by seconds, then the
            others, by bytes of memory."""
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
    """Returns the rates as C takes them; in C, 0 means that a rate adds no time."""
    if rates is None:
        return None
    speeds = [getattr(rates, name) for name in ("between", "inside", "memory")]
    between, inside, memory, multiply = (0.0 if isinf(one) else one for one in (*speeds, rates.multiply))
    return between, inside, memory, rates.fold, multiply

"""The protocol between an exchange and a topology, the same for all topologies and for a user's own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from ..codec import Codecs
from ..consistency import BSP, Consistency
from ..graphs.graph import Graph
from ..plan import Plan
from ..stage import Key, as_keys, whole

Roles = tuple[tuple[int, ...], tuple[int, ...]]  # workers, and ranks whose cores fold


@dataclass(frozen=True)
class Job:
    """Facts about an exchange, which it gives to its topology.

    Attributes:
        size: the number of ranks in the job.
        hosts: for each rank, the lowest rank on its host (Context.hosts).
        racks: for each rank, the name of its rack, "" if not known (Context.racks).
        consistency: the consistency of the keys that have this topology.
        own_fold: the name of the first of these keys' rules that has a custom fold; None: no rule has one.
        averages: whether the rule of each of these keys is Average, so that ranks push models.
        measured: a function that returns a given Hierarchy with bandwidths measured between its ranks. Collective; only
            resolved may call it.
        trees: a function from owners to the Trees that cost the least, by owner (topology.trees_for); it returns None
            if sends without trees are about as fast.
    """

    size: int
    hosts: Sequence[int]
    racks: Sequence[str]
    consistency: Consistency = BSP
    own_fold: str | None = None
    averages: bool = False
    measured: Callable[[Any], Any] = lambda hierarchy: hierarchy
    trees: Callable[[Sequence[int]], Mapping[int, Any] | None] = lambda owners: None


_CUT = ("cores", "chunk_bytes", "depth", "codec", "codec_out", "over_sockets")


@dataclass(frozen=True)
class Request:
    """A request for a plan: the keys, and the options of the exchange that affect the plan.

        hpcomm.Hierarchy([[0, 1], [2, 3]]).compile(Request({"w": (512, 64)}, 4, cores=2))

    Attributes:
        keys: Key values. The constructor also accepts a mapping from names to float32 arrays or shapes.
        size: the number of ranks in the job.
        consistency: the consistency of these keys.
        in_place: whether trainers change models directly in the exchange's memory.
        reduce: "mean" or "sum" of the workers' updates.
        interfaces: the number of each server's NICs over which chunks are balanced; a number in the topology precedes
            it.
        cores, chunk_bytes, depth, codec, codec_out, over_sockets: as Plan.hub takes them.

    Raises:
        InvalidArgument: keys have another form.
    """

    keys: Mapping[str, Any] | Iterable[Key]
    size: int
    _: KW_ONLY
    consistency: Consistency = BSP
    in_place: bool = False
    reduce: str = "mean"
    interfaces: int = 1
    cores: int = 1
    chunk_bytes: int | None = None
    depth: int = 1
    codec: Codecs | None = None
    codec_out: Codecs | None = None
    over_sockets: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", as_keys(self.keys))

    @property
    def cut(self) -> dict[str, Any]:
        """The last six fields, by which the planners of Plan cut keys into chunks."""
        return {name: getattr(self, name) for name in _CUT}


@runtime_checkable
class Topology(Protocol):
    """A value that says which ranks send to which, for one key or for all.

    A class that inherits from Topology must define compile, and may override the defaults below; a class that does not
    inherit must define all members. An exchange calls refuses, then resolved, and then roles and compile of the
    resolved topology, on every rank; all ranks must give the same answers. An exchange never asks for a topology's
    class. Topologies must be immutable, and equal topologies must give equal plans.
    """

    @property
    def updates_of(self) -> Literal["all", "root", "neighbours", "hosts"]:
        """The ranks whose updates reach a rank's parameters. "all": all workers, which train one model. "root": one
        rank. "neighbours": each rank has its own model, averaged over graphs. "hosts": each host has its own model."""
        return "all"

    @property
    def interfaces(self) -> int | None:
        """The number of each server's NICs over which chunks are balanced; None: as many as the servers can use."""
        return None

    def roles(self, size: int) -> Roles:
        """Returns the ranks that work and the ranks whose cores fold, each in rising order, for a job of size ranks. By
        default both are all ranks.

        Raises:
            InvalidArgument, ConfigError: the topology cannot have so many ranks.
        """
        ranks = tuple(range(whole("size", size, 1)))
        return ranks, ranks

    def refuses(self, job: Job) -> str | None:
        """Returns one sentence that says why this topology does not suit the job, with the value and the remedy, or
        None if it suits.

        With a sentence the exchange raises InvalidArgument on every rank. Jobs that the C library refuses need no
        sentence.
        """
        return None

    def resolved(self, job: Job) -> "Topology":
        """Returns this topology with missing values, such as the hosts, taken from the job."""
        return self

    def graphs(self, size: int) -> tuple[Graph, ...]:
        """Returns the graphs by which models are averaged, which the steps take in turn, if updates_of is "neighbours";
        otherwise ()."""
        return ()

    def inputs(self, size: int) -> int:
        """Returns the most updates that a fold can have in a job of size ranks, as a quorum counts them."""
        return len(self.roles(size)[0])

    def compile(self, request: Request) -> Plan:
        """Returns the plan of the request's keys for its number of ranks. Options that mean nothing to a topology are
        ignored.

        Raises:
            InvalidArgument: a value is out of range, or is not possible with the topology.
        """
        ...

    def among(self, ranks: Sequence[int], size: int) -> "Topology":
        """Returns this topology for the remaining ranks (of size), numbered in the order of ranks; recover continues
        with it. The default returns the topology unchanged, which is right if it names no rank.

        Raises:
            NotSupported: it cannot continue without the other ranks.
        """
        return self

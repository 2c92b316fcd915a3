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
    """Facts about the job that an exchange passes to its topology.

    Attributes:
        size: the number of ranks in the job.
        hosts: hosts[i] is the lowest rank on rank i's host (Context.hosts).
        racks: racks[i] is the name of rank i's rack, "" if not known (Context.racks).
        consistency: the consistency of the keys that have this topology.
        own_fold: the name of a rule with a custom fold, the first among the rules of these keys. None: no rule has a
            custom fold.
        averages: whether all these keys have the rule Average. Ranks then push models.
        measured: a function that takes a Hierarchy, measures the bandwidths between its ranks, and returns the
            Hierarchy with them. Collective; only Topology.resolved() may call it.
        trees: a function that takes owners and returns a mapping from owners to the Trees that cost the least
            (topology.trees_for). It returns None if sends without trees are about as fast.
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
        keys: a tuple of Key values. The constructor also accepts a mapping from names to float32 arrays or shapes.
        size: the number of ranks in the job.
        consistency: the consistency of these keys.
        in_place: whether trainers change models directly in the exchange's memory.
        reduce: "mean" or "sum" of the workers' updates.
        interfaces: the number of NICs over which each server's chunks are balanced. If the topology has a number too,
            that number is used.
        cores, chunk_bytes, depth, codec, codec_out, over_sockets: arguments of Plan.hub with these names.

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
        """The last six fields as a dict: the arguments with which the planners of Plan cut keys into chunks."""
        return {name: getattr(self, name) for name in _CUT}


@runtime_checkable
class Topology(Protocol):
    """A value that says which ranks send to which, for one key or for all.

    A class that inherits from Topology must define `compile`, and may override the defaults below; a class that does
    not inherit must define all members. On every rank an exchange calls `refuses`, then `resolved`, and then `roles`
    and `compile` of the resolved topology. Each call must return the same on all ranks. An exchange never asks for a
    topology's class. Topologies must be immutable, and equal topologies must give equal plans.
    """

    @property
    def updates_of(self) -> Literal["all", "root", "neighbours", "hosts"]:
        """The ranks whose updates reach a rank's parameters. "all": all workers, which train one model. "root": one
        rank. "neighbours": each rank has its own model, averaged over graphs. "hosts": each host has its own model."""
        return "all"

    @property
    def interfaces(self) -> int | None:
        """The number of NICs over which each server's chunks are balanced; None: as many as the servers can use."""
        return None

    def roles(self, size: int) -> Roles:
        """Returns two tuples for a job of size ranks: the workers, and the ranks whose cores fold, each in rising
        order. By default both have all ranks.

        Raises:
            InvalidArgument, ConfigError: the topology cannot have so many ranks.
        """
        ranks = tuple(range(whole("size", size, 1)))
        return ranks, ranks

    def refuses(self, job: Job) -> str | None:
        """Returns one sentence that says why this topology does not suit the job, with the value and the remedy, or
        None if it suits.

        If a sentence is returned, the exchange raises InvalidArgument with it on every rank. A job that the C library
        refuses needs no sentence.
        """
        return None

    def resolved(self, job: Job) -> "Topology":
        """Returns this topology with missing values, such as the hosts, taken from the job."""
        return self

    def graphs(self, size: int) -> tuple[Graph, ...]:
        """Returns the graphs by which models are averaged, if updates_of is "neighbours"; the steps take the graphs in
        turn. Otherwise returns ()."""
        return ()

    def inputs(self, size: int) -> int:
        """Returns the largest number of updates that a fold can have in a job of size ranks. A quorum may not exceed
        this number."""
        return len(self.roles(size)[0])

    def compile(self, request: Request) -> Plan:
        """Returns the plan of the request's keys for its number of ranks. Options that mean nothing to a topology are
        ignored.

        Raises:
            InvalidArgument: a value is out of range, or is not possible with the topology.
        """
        ...

    def among(self, ranks: Sequence[int], size: int) -> "Topology":
        """Returns the topology with which Exchange.recover() continues. The remaining ranks, some of 0 to size - 1, get
        new numbers in the order of the argument ranks. The default returns the topology unchanged, which is right if it
        names no rank.

        Raises:
            NotSupported: the topology cannot continue without the ranks that are gone.
        """
        return self

"""The questions of an exchange to a topology: one interface for all topologies, a user's own included."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from ..codec import Codecs
from ..consistency import BSP, Consistency
from ..graphs.graph import Graph
from ..plan import Plan
from ..stage import Key, as_keys, whole

Roles = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Job:
    """Facts about the exchange for which a topology is asked.

    Attributes:
        size: ranks of the job.
        hosts: by rank: the lowest rank on its host (Context.hosts).
        racks: by rank: the name of its rack, "" where it is not known (Context.racks).
        consistency: of the keys that have this topology.
        own_fold: the name of the first rule of these keys with a custom fold; None: no rule has one.
        averages: whether the rule of each of these keys is Average, so that models are pushed.
        measured: gives a Hierarchy with the bandwidths that were measured between its ranks. Collective, and for
            resolved alone.
        trees: gives the trees of owners that cost the least (topology.trees_for): by owner its Tree, or None.
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
    """A request for a plan: its keys, and the options of the exchange that matter to it.

        hpcomm.Hierarchy([[0, 1], [2, 3]]).compile(Request({"w": (512, 64)}, 4, cores=2))

    Attributes:
        keys: Key values; or a mapping from names to float32 arrays or shapes, of which the values are made.
        size: ranks of the job.
        consistency: of these keys.
        in_place: whether models are trained where they lie.
        reduce: "mean" or "sum" of the workers' updates.
        interfaces: NICs of each server that chunks are balanced over, unless the topology has its own number.
        cores, chunk_bytes, depth, codec, codec_out, over_sockets: as Plan.hub takes them.

    Raises:
        InvalidArgument: keys hold something else.
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
        """The last six, by which the planners of Plan cut keys."""
        return {name: getattr(self, name) for name in _CUT}


@runtime_checkable
class Topology(Protocol):
    """A value that says which ranks send to which, for one key or all. A class that inherits from it writes compile,
    and members that differ from the defaults below; a class that does not inherit writes all members.

    An exchange asks in this order, on every rank and with the same answers: refuses, resolved, and of the resolved
    topology roles, then compile. It never asks for the class of a topology. All values are immutable; equal topologies
    give the same plan.
    """

    @property
    def updates_of(self) -> Literal["all", "root", "neighbours", "hosts"]:
        """The ranks whose updates count in a rank's parameters. "all": all workers, in one model; "root": one rank;
        "neighbours": each rank has its own model, over graphs; "hosts": each host has its own."""
        return "all"

    @property
    def interfaces(self) -> int | None:
        """NICs of each server that chunks are balanced over; None: as many as the servers can use."""
        return None

    def roles(self, size: int) -> Roles:
        """The ranks that work and the ranks whose cores fold, each in rising order, for a job of size ranks: all.

        Raises:
            InvalidArgument, ConfigError: the topology is not for so many ranks.
        """
        ranks = tuple(range(whole("size", size, 1)))
        return ranks, ranks

    def refuses(self, job: Job) -> str | None:
        """One sentence that says why this topology is not for the job, with the value and the fix; None: it is. An
        exchange raises InvalidArgument with it on every rank. A job that the core refuses needs no sentence here.
        """
        return None

    def resolved(self, job: Job) -> "Topology":
        """This topology, with missing values, such as the hosts, taken from the job."""
        return self

    def graphs(self, size: int) -> tuple[Graph, ...]:
        """The graphs by which models are averaged, which the steps take in turn, for updates_of "neighbours"; else
        ()."""
        return ()

    def inputs(self, size: int) -> int:
        """The updates that a fold of a job of size ranks has at most, as a quorum counts them."""
        return len(self.roles(size)[0])

    def compile(self, request: Request) -> Plan:
        """The plan of the request's keys, for its number of ranks. Options that have no meaning for a topology are
        ignored.

        Raises:
            InvalidArgument: a value is out of range, or the topology has no use for it.
        """
        ...

    def among(self, ranks: Sequence[int], size: int) -> "Topology":
        """This topology over the remaining ranks of size, in their new order; recover goes on with it. By default the
        topology stays as it is, which is right where it names no rank.

        Raises:
            NotSupported: it cannot go on without the others.
        """
        return self

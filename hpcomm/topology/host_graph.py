"""Graphs whose nodes are hosts: ranks average the models of their host, and hosts send each other one model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..codec import by_key_out
from ..consistency import BSP
from ..errors import InvalidArgument, NotSupported
from ..graphs.graph import Graph
from ..graphs.makers import root_expander
from ..graphs.places import Groups, by_name, checked_group
from ..plan import Plan, chunk_size, coded
from ..stage import Edge, Row, as_keys, whole
from .protocol import Job, Request, Topology


@dataclass(frozen=True)
class HostGraph(Topology):
    """Averages models over the ranks of each host first, then over hosts by a graph (ASAP, sections 3 and 4, with hosts
    as nodes).

    All ranks of a host have the same model after each step. The graph's weights apply to hosts; all ranks of a host
    count alike. For each chunk one rank of a host averages the host's models. It sends the average to the rank that
    does the same on each out-neighbour, once that rank has pushed too. So a host waits only for its neighbours.

    Attributes:
        graph: a graph whose nodes are the hosts, in the order of their lowest ranks; or a function that makes it for a
            number of hosts.
        hosts: a list of lists: the ranks of each host. None: Context.hosts tells them.

    Raises:
        InvalidArgument: hosts contains anything but ranks. HostGraph.compile() checks that the hosts match the number
            of ranks.
    """

    graph: Graph | Callable[[int], Graph] = root_expander
    hosts: Groups | None = None

    def __post_init__(self) -> None:
        if self.hosts is None:
            return
        hosts = tuple(checked_group(f"hosts[{i}]", host) for i, host in enumerate(self.hosts))
        if not all(hosts):
            raise InvalidArgument(f"hosts[{hosts.index(())}] is empty: a host has one rank or more")
        object.__setattr__(self, "hosts", hosts)

    def settled(self, hosts: Sequence[int]) -> "HostGraph":
        """Returns the topology with its hosts filled in if they are None. hosts[i] is the lowest rank on rank i's
        host."""
        return self if self.hosts is not None else replace(self, hosts=by_name(hosts))

    @property
    def updates_of(self) -> Literal["hosts"]:
        return "hosts"

    def refuses(self, job: Job) -> str | None:
        if job.consistency != BSP:
            return (
                f"consistency is {job.consistency}: on a HostGraph it must be NOTIFY_ACK or BSP, which are the same "
                "there: a rank waits for its host and the neighbours of that"
            )
        if not job.averages:
            return "on a HostGraph every rule must be Average: ranks push models"
        return None

    def resolved(self, job: Job) -> "HostGraph":
        return self.settled(job.hosts)

    def among_hosts(self) -> Graph:
        """Returns the graph of the hosts.

        Raises:
            InvalidArgument: hosts is None, or the number of the graph's nodes is not the number of hosts.
        """
        if self.hosts is None:
            raise InvalidArgument("hosts is None: give the ranks of each host, or an Exchange the topology")
        graph = self.graph(len(self.hosts)) if callable(self.graph) else self.graph
        if not isinstance(graph, Graph) or graph.size != len(self.hosts):
            raise InvalidArgument(
                f"graph is {graph!r}: it must be one Graph of {len(self.hosts)} nodes, as there are hosts, or a "
                "function that makes one for a number of hosts"
            )
        return graph

    def among(self, ranks: Sequence[int], size: int) -> "HostGraph":
        """Raises NotSupported, since each host has its own model and the models of failed hosts may be lost.

        Raises:
            NotSupported: always.
        """
        raise NotSupported(
            "on a HostGraph each host has its own model, which recover does not rebuild: make another exchange "
            "on Context.shrink's context, from the params of this one"
        )

    def compile(self, request: Request) -> Plan:
        """Returns a plan with one or two rows for each host and chunk; a chunk has 256 KiB by default. The request's
        fields consistency, in_place, interfaces and over_sockets are ignored.

        Raises:
            InvalidArgument: an argument is out of range, reduce is not "mean", codec_out is given, a rank is on no host
                or on two, or among_hosts raises it.
        """
        graph, hosts, size = self.among_hosts(), self.hosts or (), request.size
        if sorted(rank for host in hosts for rank in host) != list(range(whole("size", size, 1))):
            raise InvalidArgument(f"hosts are {hosts}: each of the {size} ranks must be on one of them")
        own_keys, whole_cores = as_keys(request.keys), whole("cores", request.cores, 1)
        names = [key.name for key in own_keys]
        if request.reduce != "mean" or any(out.name != "float32" for out in by_key_out(names, request.codec_out)):
            raise InvalidArgument(
                f"reduce is {request.reduce!r} and codec_out {request.codec_out!r}: on a HostGraph the weights are "
                "the graph's, and averages stay float32 in their host; leave both out"
            )
        own_keys, codecs = coded(own_keys, request.codec)
        chunk = chunk_size(request.chunk_bytes, 262144, own_keys, codecs, size * whole_cores)
        step = whole("chunk_bytes", chunk, 64, 1 << 40) // 64 * 16  # elements
        rows: list[Row] = []
        chunks = 0
        for k, key in enumerate(own_keys):
            for offset in range(0, key.count, step):
                leaders = [host[chunks // whole_cores % len(host)] for host in hosts]
                place = (k, chunks % whole_cores, offset, min(step, key.count - offset), request.depth, codecs[k].name)
                rows += _chunk(graph, hosts, leaders, place, len(rows))
                chunks += 1
        return Plan(own_keys, rows, size)


def _chunk(
    graph: Graph,
    hosts: Groups,
    leaders: Sequence[int],
    place: tuple[int, int, int, int, int, str],
    base: int,
) -> list[Row]:
    """Returns the rows of a chunk, numbered from base. Each host has a row that averages its inputs for its ranks. A
    host with several ranks and with out-edges also has a row that averages the host's models for other hosts."""
    several = [len(host) > 1 for host in hosts]
    folds, sends, at = [], [], base
    for i, many in enumerate(several):
        goes = many and set(graph.out_peers(i)) != {i} and graph.out_degrees[i] > 0
        folds.append(at)
        sends.append(at + 1 if goes else -1)
        at += 1 + goes
    rows = []
    for i, host in enumerate(hosts):
        weights = dict(graph.in_edges(i))
        inputs = [Edge(rank, -1, weights[i] / len(host)) for rank in host]
        inputs += [Edge(hosts[j][0], -1, weight) for j, weight in weights.items() if j != i and not several[j]]
        inputs.sort(key=lambda edge: edge.rank)
        inputs += [Edge(leaders[j], sends[j], weight) for j, weight in weights.items() if j != i and several[j]]
        outputs = [Edge(rank) for rank in host]
        rows.append(_row(place, leaders[i], inputs, outputs, "apply"))
        if sends[i] >= 0:
            targets = [j for j in graph.out_peers(i) if j != i]
            ready = [Edge(leaders[j], -1, 0.0) for j in targets]
            inputs = sorted([*(Edge(rank, -1, 1 / len(host)) for rank in host), *ready], key=lambda edge: edge.rank)
            outputs = [Edge(leaders[j], folds[j]) for j in targets]
            rows.append(_row(place, leaders[i], inputs, outputs, "forward"))
    return rows


def _row(
    place: tuple[int, int, int, int, int, str],
    owner: int,
    inputs: Sequence[Edge],
    outputs: Sequence[Edge],
    action: str,
) -> Row:
    key, core, offset, count, depth, codec = place
    sent = codec if action == "forward" else "float32"
    return Row(
        key, owner, core, offset, count, tuple(inputs), tuple(outputs), action, depth, codec_in=codec, codec_out=sent
    )

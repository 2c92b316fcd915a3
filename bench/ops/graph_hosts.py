"""graph_hosts: stochastic_reduce where hosts have several ranks: over a graph of ranks, and hosts first.

The hosts are namespaces of this machine with links of 1 Gb/s (tests/cluster/hosts.py). All contenders run in one job
and take turns by cycles. A flat graph is the root_expander of all ranks. Its nodes are numbered host by host, or round
robin over the hosts, which changes the edges that cross the links. hosts_first uses the root_expander of the hosts.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hpcomm
from bench.common.harness import Bench, Benchmark, Contender
from bench.common.harness import main as on_this_rank
from bench.common.judge import Promise, compare, library, table
from bench.common.launch import ROOT, launched
from bench.common.options import add_output, add_quick, write
from bench.ops.cluster_bench import UNABLE, Group, start
from bench.ops.hosts_bench import MIB, SMALL, carried, rate_of
from bench.ops.remote import unasked
from hpcomm.bench.rows import Row, ratio
from hpcomm.graphs import Graph, from_adjacency, from_edges, root_expander, spectral_gap
from hpcomm.topology import HostGraph

sys.path.insert(0, str(ROOT / "tests"))
from cluster.hosts import Cluster, Unavailable

HOSTS, RANKS = 4, 2
BY_HOST, ROUND_ROBIN, HOSTS_FIRST = "flat, by host", "flat, round robin", "hosts_first"
TARGETS = {BY_HOST: 1.4, ROUND_ROBIN: 1.8}  # least ratio of the flat graph's time to hosts_first's
IN_PLACE = ", in place"
PAGE, SHIFTS = 1021, 512  # elements; a prime, so that data misplaced by a power of two are wrong
VALUES = 64  # different values of an element
BLOCK = 32768  # elements checked at once, to fit into a cache
CYCLES = "480"  # seconds for the job's cycles; cluster_bench ends the job after 600

Floats = NDArray[np.float32]


# ---- graphs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """One way to average the models of all ranks.

    Attributes:
        graph: its nodes are ranks; for hosts_first, hosts.
        averages: the weight with which each rank averages each rank's model in a step.
        links: by (sending host, receiving host), how many models a step sends between them.
    """

    name: str
    graph: Graph
    averages: Graph
    links: Counter[tuple[int, int]]

    @property
    def hosts_first(self) -> bool:
        return self.name == HOSTS_FIRST

    @property
    def crossing(self) -> int:
        """Counts the models that leave their host in a step."""
        return self.links.total()

    @property
    def busiest(self) -> int:
        """Returns the most models that one host's link carries in one direction in a step."""
        ends = [Counter[int](), Counter[int]()]
        for link, models in self.links.items():
            for end, host in zip(ends, link, strict=True):
                end[host] += models
        return max((models for end in ends for models in end.values()), default=0)


def ways(hosts: Sequence[int]) -> list[Way]:
    """Returns all ways. hosts: the number of each rank's host, from 0; all hosts must have equally many ranks."""
    n = max(hosts) + 1
    each = len(hosts) // n
    places = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
    by_host = [host * each + place for host, place in zip(hosts, places, strict=True)]
    round_robin = [place * n + host for host, place in zip(hosts, places, strict=True)]
    return [flat(BY_HOST, by_host, hosts), flat(ROUND_ROBIN, round_robin, hosts), hosts_first(hosts, each)]


def flat(name: str, nodes: Sequence[int], hosts: Sequence[int]) -> Way:
    """Makes a way over a flat graph. nodes: the node number of each rank."""
    graph, ranks = root_expander(len(nodes)), np.argsort(nodes)
    edges = [(int(ranks[j]), int(ranks[i])) for i in range(graph.size) for j in graph.in_peers(i)]
    placed = from_edges(graph.size, edges, name=f"{graph.name}, {name.partition(', ')[2]}")
    links = Counter((hosts[source], hosts[target]) for source, target in edges if hosts[source] != hosts[target])
    return Way(name, placed, placed, links)


def hosts_first(hosts: Sequence[int], each: int) -> Way:
    graph = root_expander(len(hosts) // each)
    averages = from_adjacency(graph.dense()[np.ix_(hosts, hosts)] / each, weighted=True)
    links = Counter((j, i) for i in range(graph.size) for j in graph.in_peers(i))
    return Way(HOSTS_FIRST, graph, averages, links)


# ---- a rank ----------------------------------------------------------------------------------------------------------


class Models:
    """The models that all ranks push. Each rank knows them all, and so every right average.

    An element is 1 to 64 times 6 times the number of ranks on a host. Weights are 1/1, 1/2 or 1/3, for hosts_first
    divided by a power of two. So each product is a whole number after rounding, and sums are exact in any order.
    """

    def __init__(self, bench: Bench, count: int) -> None:
        self.bench, self.count, self.steps = bench, count, 0
        order = list(dict.fromkeys(bench.hosts))
        self.hosts = [order.index(host) for host in bench.hosts]
        self.each = bench.size // len(order)
        if set(Counter(self.hosts).values()) != {self.each} or self.each & (self.each - 1):
            raise SystemExit("graph_hosts: each host must have equally many ranks, 1, 2, 4, 8 ...")
        words = bench.native.words(count + SHIFTS * PAGE) % VALUES + 1
        self.source: Floats = (words * np.uint64(6 * self.each)).astype(np.float32)

    def of(self, rank: int) -> Floats:
        """Returns a rank's model in the current step; it is another page of the source in each step."""
        at = (self.steps * self.bench.size + rank) % SHIFTS * PAGE
        return self.source[at : at + self.count]

    def wrong(self, way: Way, got: Floats) -> int:
        """Counts the wrong elements of this rank's average."""
        sources = [self.of(source) for source, weight in way.averages.in_edges(self.bench.rank) if weight]
        found = 0
        for at in range(0, self.count, BLOCK):
            part = slice(at, min(at + BLOCK, self.count))
            total = sources[0][part].copy()
            for source in sources[1:]:
                total += source[part]
            found += int(np.count_nonzero(got[part] != total / np.float32(len(sources))))
        return found

    def astray(self, way: Way, exchange: hpcomm.Exchange, steps: int) -> int:
        """Counts, on rank 0, the links between hosts that carried more or fewer bytes than these steps need.
        Collective."""
        sent = Counter[tuple[int, int]]()
        for rank, peer in enumerate(exchange.stats().peers):
            link = self.hosts[self.bench.rank], self.hosts[rank]
            if link[0] != link[1] and peer.bytes_sent:
                sent[link] += peer.bytes_sent
        carried_by = sum(self.bench.comm.allgather(sent), Counter[tuple[int, int]]())
        if self.bench.rank != 0:
            return 0
        expected = {link: 4 * self.count * models * steps for link, models in way.links.items()}
        return sum(carried_by[link] != expected.get(link, 0) for link in carried_by.keys() | expected.keys())


def contender(models: Models, way: Way, in_place: bool) -> Contender:
    bench, clock, steps, spoil = models.bench, time.perf_counter, 0, models.bench.options.plant
    zeros = {"w": np.zeros(models.count, np.float32)}
    topology = HostGraph(way.graph) if way.hosts_first else way.graph
    exchange = hpcomm.stochastic_reduce(bench.context, zeros, topology=topology, in_place=in_place)

    def measure(n: int) -> tuple[list[float], int]:
        nonlocal steps, spoil
        seconds, wrong = [], 0
        for _ in range(n):
            models.steps += 1
            own = exchange.gradient("w")
            np.copyto(own, models.of(bench.rank))
            own[0] += np.float32(6 * models.each * spoil * (bench.rank == 0))
            spoil = False
            bench.context.barrier()
            before = clock()
            got = exchange.push_pull("w")
            seconds.append(clock() - before)
            wrong += models.wrong(way, got) if bench.options.check else 0
        steps += n
        bench.context.barrier()  # by then this rank has sent all that it owes, and counted it
        return seconds, wrong + (models.astray(way, exchange, steps) if bench.options.check else 0)

    return Contender(f"hpcomm {way.name}{IN_PLACE * in_place}", "hpcomm", measure, exchange.close)


def wanted(bench: Bench, size: int) -> Iterator[Contender]:
    models = Models(bench, size // 4)
    for way in ways(models.hosts):
        for in_place in (False,) if way.hosts_first else (False, True):
            if bench.wanted(f"hpcomm {way.name}{IN_PLACE * in_place}"):
                yield contender(models, way, in_place)


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    return list(wanted(bench, size))


BENCHMARK = Benchmark(
    name="graph_hosts",
    about="stochastic_reduce over a graph of ranks and over one of hosts.",
    dtype="float32",
    contenders=contenders,
    defaults={"minbytes": 32 * MIB, "maxbytes": 32 * MIB, "iters": 1, "average": 3},
    ranks=HOSTS * RANKS,
)


# ---- the hosts -------------------------------------------------------------------------------------------------------


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m bench.ops.graph_hosts", description=__doc__.partition("\n")[0])
    p.add_argument("--hosts", type=int, default=HOSTS, help="number of hosts")
    p.add_argument("--ranks_per_host", type=int, default=RANKS, help="1, 2, 4, 8 ...")
    p.add_argument("-s", "--size", type=int, default=32, help="MiB of the model")
    p.add_argument("-N", "--run_cycles", type=int, default=11, help="alternated cycles: the contenders take turns")
    p.add_argument("--rate", type=rate_of, default="1gbit", help="of each host's link, as tc writes it")
    p.add_argument("--burst", default="", help="bucket of the links; default: 256k, 16k where a step sends under 4 MiB")
    p.add_argument("--only", default="", help="contenders by part of their name, comma-separated; default: all")
    p.add_argument("--plant", action="store_true", help="spoil a value of each contender, to see that #wrong counts it")
    add_quick(p, "1 MiB, one cycle")
    add_output(p, "")
    options = p.parse_args(arguments)
    if options.quick:
        options.size, options.run_cycles = 1, 1
    if options.hosts < 2 or min(options.size, options.run_cycles) < 1:
        p.error("--hosts must be 2 or more, -s and -N 1 or more")
    if options.ranks_per_host < 1 or options.ranks_per_host & (options.ranks_per_host - 1):
        p.error(f"--ranks_per_host is {options.ranks_per_host}: answers are exact for 1, 2, 4, 8 ... only")
    return options


def graph_row(way: Way, size: int, rate: float) -> Row:
    """Returns the facts about a way before it runs. rate: bytes a second of a host's link."""
    return {
        "name": way.name,
        "graph": way.graph.name,
        "gap": spectral_gap(way.graph),
        "gap_of_ranks": spectral_gap(way.averages),
        "bytes_between_hosts": way.crossing * size,
        "bytes_of_busiest_link": way.busiest * size,
        "bound": way.busiest * size / rate,
    }


def measure(options: argparse.Namespace, document: Row) -> None:
    """Makes the hosts and runs the job on them."""
    words = ["-N", str(options.run_cycles), "-w", "0" if options.quick else "1", "-L", CYCLES, "--only", options.only]
    words += ["-b", f"{options.size}M", "-e", f"{options.size}M", *(["--plant"] if options.plant else [])]
    given = tuple(words)
    group = Group("graph_hosts", "graph_hosts", options.hosts, options.ranks_per_host, given, given)
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(options.hosts, rate=options.rate, burst=document["burst"]) as cluster,
    ):
        found = start(cluster, group, sys.executable, options, Path(folder))
    document |= {name: found[name] for name in ("ranks", "transport", "mpi", "rows")}


def graph_of(document: Row, row: Row) -> Row:
    """Returns the facts about a contender's way."""
    name = row["name"].removeprefix("hpcomm ").removesuffix(IN_PLACE)
    return next(graph for graph in document["graphs"] if graph["name"] == name)


def lines(document: Row) -> Iterator[str]:
    rows, size = document["rows"], document["size"]
    shape = f"{document['hosts']} hosts x {document['ranks_per_host']}"
    links = f"links of {document['rate']}, bucket {document['burst']}"
    yield f"# graph_hosts: {size // MIB} MiB, {shape}, {links}, hpcomm {document['hpcomm']}, {library(document)}"
    yield f"\n# {'way':28}{'graph':32}{'gap':>8}{'of ranks':>10}{'MiB sent':>10}{'MiB a link':>12}{'bound ms':>10}"
    for graph in document["graphs"]:
        sent, most = (graph[key] / MIB for key in ("bytes_between_hosts", "bytes_of_busiest_link"))
        figures = f"{graph['gap']:8.3f}{graph['gap_of_ranks']:10.3f}{sent:10.0f}{most:12.0f}"
        figures += f"{1e3 * graph['bound']:10.1f}"
        yield f"  {graph['name']:28}{graph['graph']:32}{figures}"
    first = next((row for row in rows if HOSTS_FIRST in row["name"]), None)
    yield f"\n# {'who':36}{'median':>9}{'p10':>9}{'p90':>9}{'/ bound':>9}{'/ hosts_first':>15}{'#wrong':>8}"
    for row in rows:
        median, low, high = (float(np.percentile(row["cycles"], percent)) for percent in (50, 10, 90))
        times = "".join(f"{1e3 * seconds:9.1f}" for seconds in (median, low, high))
        over = "" if first is None else f"{ratio(row, first)[0]:.3f}"
        bound = graph_of(document, row)["bound"]
        yield f"  {row['name']:36}{times}{median / bound:9.3f}{over:>15}{row['wrong']:8}"
    found = promises(document)
    if found:
        yield "\n" + table(found)


def promises(document: Row) -> list[Promise]:
    """Judges hosts_first against each flat graph, by the faster of its two rows."""
    rows = document["rows"]
    shape = (document["hosts"], document["ranks_per_host"], document["size"])
    names = [row["name"] for row in rows]
    found = []
    for flat_way, target in TARGETS.items():
        if all(any(part in name for name in names) for part in (HOSTS_FIRST, flat_way)):
            what = f"{shape[0]} x {shape[1]}, {shape[2] // MIB} MiB: {flat_way} / {HOSTS_FIRST}"
            promise = compare(what, rows, HOSTS_FIRST, flat_way, target)
            found.append(promise if shape == (HOSTS, RANKS, 32 * MIB) else unasked(promise))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    size = options.size * MIB
    known = ways([rank // options.ranks_per_host for rank in range(options.hosts * options.ranks_per_host)])
    burst = options.burst or ("16k" if min(way.busiest for way in known) * size < SMALL else "256k")
    document: dict[str, Any] = {
        "benchmark": "graph_hosts",
        "hpcomm": hpcomm.__version__,
        "size": size,
        "hosts": options.hosts,
        "ranks_per_host": options.ranks_per_host,
        "rate": options.rate,
        "burst": burst,
        "graphs": [graph_row(way, size, carried(options.rate)) for way in known],
    }
    try:
        measure(options, document)
    except Unavailable as why:
        print(f"graph_hosts: no hosts here: {why}", file=sys.stderr)
        return UNABLE
    wrong = sum(row["wrong"] for row in document["rows"])
    text = json.dumps(document, indent=1)
    write(options, text)
    closing = f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    print(text if options.json else "\n".join([*lines(document), "", closing]))
    return 1 if wrong else 0


if __name__ == "__main__":
    if launched():
        on_this_rank(BENCHMARK)
    sys.exit(main())

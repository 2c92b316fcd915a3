"""codec_hosts: updates that are sent in part, both ways, beside a dense parameter server.

The hosts are namespaces of this machine with links of 1 Gb/s (tests/cluster/hosts.py), one rank on each. All contenders
run in one job and take turns by cycles. The dense hub sends float32 gradients and parameters. The others filter by a
threshold both the updates of workers and the folded update that owners send to all workers (Parameter Flow's UCC with
its DVF). The bound of a density is the time for its bytes at iperf3's rate, plus encoding and decoding.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hpcomm
from bench.common.harness import Bench, Benchmark, Contender, nbytes
from bench.common.harness import main as on_this_rank
from bench.common.judge import Promise, compare, library, table
from bench.common.launch import ROOT, launched
from bench.common.options import add_links, add_output, add_quick, write
from bench.ops.cluster_bench import UNABLE, Group, start
from bench.ops.hosts_bench import MIB, carried, rate_of
from bench.ops.remote import unasked
from hpcomm.bench.peers import has_iperf3
from hpcomm.bench.rows import Row, ratio
from hpcomm.bench.wire import afar, has_rates, rate
from hpcomm.codec import Threshold

sys.path.insert(0, str(ROOT / "tests"))
from cluster.hosts import Cluster, Unavailable

HOSTS = 4
DENSE, BOUND, OVER = "hpcomm dense hub", "bytes / wire + encode + decode, ", 1.3
TARGETS = {1: 10.0, 20: 3.0, 40: 2.0}  # percentage kept: least speed relative to the dense hub
DELTA, RATE = 256, 2.0**-12
PERIOD = 1 << 16  # elements of a tile; an update is one tile, repeated
TILES = 8  # updates that take turns
STEPS = 4  # of a sample, one after the other as in training
CYCLES = "480"  # seconds for the job's cycles; cluster_bench ends the job after 600

Floats = NDArray[np.float32]


# ---- a rank ----------------------------------------------------------------------------------------------------------


class Updates:
    """The updates that workers push.

    In the given percentage of elements, the value is a whole number beyond DELTA; these are kept. All other elements
    are -1, 0 or 1, and stay behind. All workers have the kept elements at the same places, which change from step to
    step. So the folded update has the same percentage, all sums are exact, and the right result follows from the tile.
    """

    def __init__(self, bench: Bench, count: int, percent: float) -> None:
        self.bench, self.count = bench, count
        self.tiles = [[_tile(turn, percent, rank) for rank in range(bench.size)] for turn in range(TILES)]
        self.arrays = [np.resize(tiles[bench.rank], count) for tiles in self.tiles]


def _tile(turn: int, percent: float, rank: int) -> Floats:
    places, values = np.random.default_rng(turn), np.random.default_rng([turn, rank])
    kept, sign = places.random(PERIOD) < percent / 100, places.choice([-1, 1], PERIOD)
    large, small = values.integers(DELTA + 1, 2 * DELTA, PERIOD), values.integers(-1, 2, PERIOD)
    found: Floats = np.where(kept, sign * large, small).astype(np.float32)
    return found


class Model:
    """Computes the right parameters of an exchange for a tile: filters each worker's update, and then their sum."""

    def __init__(self, updates: Updates, delta: float) -> None:
        self.updates, self.delta, self.steps = updates, delta, 0
        self.param = np.zeros(PERIOD, np.float32)
        self.held = np.zeros((updates.bench.size + 1, PERIOD), np.float32)

    def filtered(self, update: Floats, place: int) -> Floats:
        update = update + self.held[place]
        sent: Floats = np.where(np.abs(update) > self.delta, update, np.float32(0))
        self.held[place] = update - sent
        return sent

    def step(self) -> None:
        tiles = self.updates.tiles[self.steps % TILES]
        total = np.zeros(PERIOD, np.float32)
        for rank, tile in enumerate(tiles):
            total += self.filtered(tile, rank)
        self.param -= np.float32(RATE) * self.filtered(total, len(tiles))
        self.steps += 1

    def wrong(self, got: Floats) -> int:
        whole = got.size // PERIOD * PERIOD
        found = np.count_nonzero(got[:whole].reshape(-1, PERIOD) != self.param)
        return int(found + np.count_nonzero(got[whole:] != self.param[: got.size - whole]))


@dataclass
class Costs:
    """Costs of a step in the last measurement: bytes that this rank sent, and its seconds of encoding and decoding."""

    nbytes: float = 0
    seconds: float = 0


def contender(updates: Updates, name: str, percent: float | None, costs: Costs) -> Contender:
    """Makes a contender. percent: kept elements; None for the dense hub."""
    bench, clock, spoil = updates.bench, time.perf_counter, updates.bench.options.plant
    model = Model(updates, -1.0 if percent is None else DELTA)
    zeros = {"w": np.zeros(updates.count, np.float32)}
    given: dict[str, Any] = {"rule": hpcomm.SGD(lr=RATE), "reduce": "sum", "timeout": bench.options.timeout}
    if percent is not None:
        given["codec"] = Threshold(float(DELTA), decays=False, kernel=bench.options.kernel)
    if bench.options.chunk:
        given["chunk_bytes"] = bench.options.chunk
    topology = hpcomm.ParameterServer(apply_at="owners" if percent is None else "receivers")
    exchange = hpcomm.Exchange(bench.context, zeros, topology, **given)

    def spent() -> tuple[float, float]:
        stats = exchange.stats()
        codecs = stats.codecs.values()
        return float(stats.bytes_sent), sum(codec.encode + codec.decode for codec in codecs)

    def measure(n: int) -> tuple[list[float], int]:
        nonlocal spoil
        seconds, wrong, before = [], 0, spent()
        m = bench.options.agg_iters
        for _ in range(n):
            turns = [updates.arrays[(model.steps + k) % TILES] for k in range(m)]
            if spoil:
                turns[0], spoil = turns[0].copy(), False
                turns[0][0] += np.float32(4 * DELTA)
            bench.context.barrier()
            began = clock()
            for update in turns:
                got = exchange.push_pull("w", update)
            seconds.append((clock() - began) / m)
            for _ in turns:
                model.step()
            wrong += model.wrong(got) if bench.options.check else 0
        bench.context.barrier()
        after = spent()
        costs.nbytes, costs.seconds = (after[0] - before[0]) / (n * m), (after[1] - before[1]) / (n * m)
        return seconds, wrong

    return Contender(name, "hpcomm", measure, exchange.close)


def bound(bench: Bench, name: str, costs: Costs) -> Contender:
    """Makes the bound, by the rank that needs the most time."""

    def measure(n: int) -> tuple[list[float], int]:
        rates = [rate(bench, afar(bench, 0)) for _ in range(n)]
        each = bench.comm.allgather((costs.nbytes, costs.seconds))
        if bench.rank != 0:
            return [], 0
        return [max(nbytes / found + seconds for nbytes, seconds in each) for found in rates], 0

    return Contender(name, "bound", measure)


def wanted(bench: Bench, size: int) -> Iterator[Contender]:
    for k, percent in enumerate(bench.options.kept):
        updates, costs = Updates(bench, size // 4, percent), Costs()
        if k == 0 and bench.wanted(DENSE):
            yield contender(updates, DENSE, None, Costs())
        name = f"hpcomm UCC, {percent:g} % kept"
        if bench.wanted(name):
            yield contender(updates, name, percent, costs)
            if has_rates(bench):
                yield bound(bench, f"{BOUND}{percent:g} %", costs)


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    return list(wanted(bench, size))


def percents(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def own_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-k", "--kept", type=percents, default=list(TARGETS), help="percents of elements, e.g. 1,20,40")
    parser.add_argument("--kernel", choices=("auto", "c", "numba"), default="auto", help="of the filter")
    parser.add_argument("--chunk", type=nbytes, default=0, help="bytes that one core owns, e.g. 256K; default: its own")
    add_links(parser)


BENCHMARK = Benchmark(
    name="codec_hosts",
    about="A dense parameter server, and updates that are filtered both ways.",
    dtype="float32",
    contenders=contenders,
    defaults={"minbytes": 32 * MIB, "maxbytes": 32 * MIB, "iters": 1, "agg_iters": STEPS, "average": 3},
    options=own_options,
    ranks=HOSTS,
)


# ---- the hosts -------------------------------------------------------------------------------------------------------


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m bench.ops.codec_hosts", description=__doc__.partition("\n")[0])
    p.add_argument("--hosts", type=int, default=HOSTS, help="number of hosts")
    p.add_argument("-s", "--size", type=int, default=32, help="MiB of the update")
    p.add_argument("-N", "--run_cycles", type=int, default=11, help="alternated cycles: the contenders take turns")
    p.add_argument("--rate", type=rate_of, default="1gbit", help="of each host's link, as tc writes it")
    p.add_argument("--burst", default="16k", help="bucket of the links")
    p.add_argument("--only", default="", help="contenders by part of their name, comma-separated; default: all")
    p.add_argument("--plant", action="store_true", help="spoil a value of each contender, to see that #wrong counts it")
    own_options(p)
    add_quick(p, "1 MiB, one cycle")
    add_output(p, "")
    options = p.parse_args(arguments)
    if options.quick:
        options.size, options.run_cycles = 1, 1
    if options.hosts < 2 or min(options.size, options.run_cycles) < 1:
        p.error("--hosts must be 2 or more, -s and -N 1 or more")
    return options


def measure(options: argparse.Namespace, document: Row) -> None:
    """Makes the hosts and runs the job on them."""
    words = ["-N", str(options.run_cycles), "-w", "0" if options.quick else "1", "-L", CYCLES, "--only", options.only]
    words += ["-b", f"{options.size}M", "-e", f"{options.size}M", *(["--plant"] if options.plant else [])]
    words += [
        "-k",
        ",".join(f"{percent:g}" for percent in options.kept),
        "--kernel",
        options.kernel,
        "--chunk",
        str(options.chunk),
    ]
    if options.wire or not has_iperf3():
        words += ["--wire", ",".join(f"{link / 1e6:.3f}" for link in options.wire or [carried(options.rate)])]
    given = tuple(words)
    group = Group("codec_hosts", "codec_hosts", options.hosts, 1, given, given)
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(options.hosts, rate=options.rate, burst=options.burst) as cluster,
    ):
        found = start(cluster, group, sys.executable, options, Path(folder))
    document |= {name: found[name] for name in ("ranks", "transport", "mpi", "rows")}


def lines(document: Row) -> Iterator[str]:
    rows, size = document["rows"], document["size"]
    links = f"links of {document['rate']}, bucket {document['burst']}, wire: {document['wire']}"
    shape = f"{document['hosts']} hosts"
    yield f"# codec_hosts: {size // MIB} MiB, {shape}, {links}, hpcomm {document['hpcomm']}, {library(document)}"
    dense = next((row for row in rows if row["name"] == DENSE), None)
    yield f"\n# {'who':44}{'median':>9}{'p10':>9}{'p90':>9}{'dense /':>9}{'#wrong':>8}"
    for row in rows:
        times = "".join(f"{1e3 * float(np.percentile(row['cycles'], percent)):9.1f}" for percent in (50, 10, 90))
        faster = "" if dense is None else f"{ratio(dense, row)[0]:.2f}"
        yield f"  {row['name']:44}{times}{faster:>9}{row['wrong']:8}"
    found = promises(document)
    if found:
        yield "\n" + table(found)


def promises(document: Row) -> list[Promise]:
    rows = document["rows"]
    names = [row["name"] for row in rows]
    found = []
    for percent, target in TARGETS.items():
        ours, least = f"{percent} % kept", f"{BOUND}{percent} %"
        what = f"{document['hosts']} hosts, {document['size'] // MIB} MiB, {percent} % kept"
        if any(ours in name for name in names) and DENSE in names:
            found.append(compare(f"{what}: dense hub / UCC", rows, ours, DENSE, target))
        if percent == min(TARGETS) and any(ours in name for name in names) and least in names:
            found.append(compare(f"{what}: UCC / {BOUND.rstrip(', ')}", rows, ours, least, OVER, at_most=True))
    asked = (document["hosts"], document["size"]) == (HOSTS, 32 * MIB)
    return found if asked else [unasked(promise) for promise in found]


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    document: Row = {"benchmark": "codec_hosts", "hpcomm": hpcomm.__version__, "size": options.size * MIB}
    document |= {"hosts": options.hosts, "rate": options.rate, "burst": options.burst}
    document["wire"] = "as given" if options.wire else "iperf3" if has_iperf3() else "rate of the shaped links"
    try:
        measure(options, document)
    except Unavailable as why:
        print(f"codec_hosts: no hosts here: {why}", file=sys.stderr)
        return UNABLE
    wrong = sum(row["wrong"] for row in document["rows"])
    text = json.dumps(document, indent=1)
    write(options, text)
    closing = f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    print(text if options.json else "\n".join([*lines(document), closing]))
    return 1 if wrong else 0


if __name__ == "__main__":
    if launched():
        on_this_rank(BENCHMARK)
    sys.exit(main())

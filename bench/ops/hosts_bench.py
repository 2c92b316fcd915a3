"""hosts_bench: push_pull where hosts have several ranks each, and where hosts stand in racks.

The hosts are namespaces of this machine with links of 1 Gb/s (tests/cluster/hosts.py). A shape gives their numbers: 4x2
is four hosts of two ranks, 2x2x1 is two racks of two hosts of one rank. The shapes take turns, --rounds times. Each
shape runs under every Python of --python, whose MPI and torch are peers, and with Open MPI's default algorithms and its
rings. A run is bench.ops.push_pull; --broadcast adds bench.ops.broadcast on eight hosts. hosts_table.py prints the
figures.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hpcomm
from bench.common.launch import ROOT, library
from bench.common.options import add_links, add_output, add_quick, write
from bench.ops.cluster_bench import UNABLE, Group, start
from bench.ops.hosts_table import lines
from hpcomm.bench.peers import has_iperf3
from hpcomm.bench.rows import Row

sys.path.insert(0, str(ROOT / "tests"))
from cluster.hosts import Cluster, Unavailable

SHAPES = "4x1,4x2,2x2,2x4,4x4,2x2x1"
ONLY = "hpcomm,wire,blocks,alone"  # of the composites, only the ones with the update in blocks, which are faster
QUICK = "hpcomm,wire,Allreduce"
MIB = 1 << 20
BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
PAYLOAD, FRAME = 1448, 1514  # bytes of a full TCP segment with timestamps, and of its frame as tbf counts it
SMALL = 4 * MIB  # smaller steps look too fast, because of a burst of 256 KiB
RECEIVERS = 7  # of a broadcast
CYCLES = "480"  # seconds for the cycles of one run; cluster_bench ends it after 600
DEFAULTS, RINGS = "defaults", "rings"
# The fastest algorithms of Open MPI's component `tuned` for large arrays on these links, without han above it.
FASTEST = {
    "coll": "^han",
    "coll_tuned_use_dynamic_rules": "1",
    "coll_tuned_allreduce_algorithm": "4",  # ring
    "coll_tuned_reduce_scatter_algorithm": "3",  # ring
    "coll_tuned_reduce_scatter_block_algorithm": "4",  # butterfly; there is no ring
    "coll_tuned_allgather_algorithm": "4",  # ring
    "coll_tuned_reduce_algorithm": "3",  # pipeline
    "coll_tuned_reduce_algorithm_segmentsize": "1048576",
    "coll_tuned_bcast_algorithm": "3",  # pipeline
    "coll_tuned_bcast_algorithm_segmentsize": "1048576",
}
SETTINGS = {DEFAULTS: (), RINGS: tuple(word for name in FASTEST for word in ("--mca", name, FASTEST[name]))}


@dataclass(frozen=True)
class Shape:
    """A shape: racks, the hosts of each rack, and the ranks of each host."""

    racks: int
    hosts: int
    ranks: int
    module: str = "push_pull"

    @property
    def key(self) -> str:
        numbers = (self.racks, self.hosts, self.ranks) if self.racks > 1 else (self.hosts, self.ranks)
        return "x".join(map(str, numbers))

    @property
    def all_hosts(self) -> int:
        return self.racks * self.hosts

    def racks_of_ranks(self) -> list[list[int]]:
        """Returns the ranks of each rack; ranks are placed host by host."""
        each = self.hosts * self.ranks
        return [list(range(rack * each, (rack + 1) * each)) for rack in range(self.racks)]

    def least(self, nbytes: int) -> float:
        """Returns the least bytes that a step needs, on the link that sends the fewest."""
        if self.module != "push_pull" or self.all_hosts == 1:
            return nbytes
        parts = min(n for n in (self.all_hosts, self.racks) if n > 1)
        return 2 * (parts - 1) / parts * nbytes


def shape_of(text: str) -> Shape:
    if not re.fullmatch(r"\d+x\d+(x\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no shape: 4x2 are hosts and ranks, 2x2x1 racks before them")
    *racks, hosts, each = (int(number) for number in text.split("x"))
    shape = Shape(racks[0] if racks else 1, hosts, each)
    ranks = shape.all_hosts * shape.ranks
    if ranks < 2 or ranks & (ranks - 1):
        raise argparse.ArgumentTypeError(f"{text} are {ranks} ranks: answers are exact for 2, 4, 8 ... ranks only")
    return shape


def line_rate(rate: str) -> float:
    """Returns the bytes of frames that a link of this rate carries in a second."""
    found = re.fullmatch(r"([\d.]+)([kmg]bit)", rate)
    if found is None:
        raise argparse.ArgumentTypeError(f"{rate!r} is no rate: 1gbit, 250mbit")
    return float(found[1]) * BITS[found[2]] / 8


def carried(rate: str) -> float:
    """Returns the bytes of TCP payload that a link of this rate carries in a second."""
    return line_rate(rate) * PAYLOAD / FRAME


def rate_of(text: str) -> str:
    carried(text)
    return text


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m bench.ops.hosts_bench", description=__doc__.partition("\n")[0])
    p.add_argument("--shapes", default=SHAPES, help=f"hosts x ranks, or racks x hosts x ranks; default: {SHAPES}")
    p.add_argument("--broadcast", action="store_true", help=f"a broadcast to {RECEIVERS} hosts too")
    p.add_argument("-s", "--size", type=int, default=32, help="MiB of the array")
    p.add_argument("-N", "--run_cycles", type=int, default=5, help="cycles of a round: the contenders take turns")
    p.add_argument("--rounds", type=int, default=2, help="rounds: shapes and Pythons take turns")
    p.add_argument("--rate", type=rate_of, default="1gbit", help="of each host's link, as tc writes it")
    p.add_argument("--uplink", type=rate_of, default="250mbit", help="rate of the link that the hosts of a rack share")
    p.add_argument("--burst", default="", help="bucket of the links; default: 256k, 16k where a step sends under 4 MiB")
    p.add_argument("--python", action="append", default=[], type=os.path.abspath, help="another Python, with its MPI")
    p.add_argument("--settings", default=f"{DEFAULTS},{RINGS}", help="of Open MPI; comma-separated; default: both")
    p.add_argument("--only", default="", help=f"contenders by part of their name; default: {ONLY}")
    p.add_argument("--plant", action="store_true", help="spoil a value of each contender, to see that #wrong counts it")
    add_quick(p, "4 MiB, one cycle, few contenders")
    add_links(p)
    add_output(p, "")
    options = p.parse_args(arguments)
    if options.quick:
        options.size, options.run_cycles, options.rounds = 4, 1, 1
    options.settings = [word.strip() for word in options.settings.split(",") if word.strip()]
    unknown = set(options.settings) - set(SETTINGS)
    if unknown or not options.settings:
        p.error(f"--settings: {', '.join(SETTINGS)}, not {', '.join(sorted(unknown)) or 'nothing'}")
    options.only = options.only or (QUICK if options.quick else ONLY)
    if min(options.size, options.run_cycles, options.rounds) < 1:
        p.error("-s, -N and --rounds must be 1 or more")
    try:
        options.shapes = [shape_of(word.strip()) for word in options.shapes.split(",") if word.strip()]
    except argparse.ArgumentTypeError as wrong:
        p.error(f"--shapes: {wrong}")
    if options.broadcast:
        options.shapes.append(Shape(1, RECEIVERS + 1, 1, "broadcast"))
    return options


def words(options: argparse.Namespace, shape: Shape) -> Iterator[str]:
    """The arguments of a shape's benchmark."""
    yield from ("-N", str(options.run_cycles), "-n", "1", "-w", "0" if options.quick else "1", "-L", CYCLES)
    if shape.module == "push_pull":
        yield from ("-s", f"{options.size}M", "--hosts_first", "--only", options.only)
        if shape.racks > 1:
            yield from ("--racks", "/".join(",".join(map(str, ranks)) for ranks in shape.racks_of_ranks()))
    else:
        yield from ("-b", f"{options.size}M", "-e", f"{options.size}M")
    if options.plant:
        yield "--plant"
    if options.wire or not has_iperf3():
        given = options.wire or [carried(options.rate), carried(options.uplink)]
        yield from ("--wire", ",".join(f"{link / 1e6:.3f}" for link in given))


def add(runs: list[Row], shape: Shape, burst: str, settings: str, found: Row) -> None:
    """Appends the cycles of another round of a shape under an MPI to the earlier ones."""
    key = {"shape": shape.key, "benchmark": shape.module, "mpi": found["mpi"], "settings": settings}
    run = next((run for run in runs if key.items() <= run.items()), None)
    if run is None:
        facts = {name: found[name] for name in ("ranks", "hosts", "transport")}
        runs.append({**key, "racks": shape.racks, **facts, "burst": burst, "rows": found["rows"]})
        return
    for row, more in zip(run["rows"], found["rows"], strict=True):
        row["cycles"] += more["cycles"]
        row["wrong"] += more["wrong"]


def measure(options: argparse.Namespace) -> list[Row]:
    runs: list[Row] = []
    mpis = [
        (python, settings)
        for python in (sys.executable, *options.python)
        for settings in (options.settings if "Open MPI" in library(python) else [DEFAULTS])
    ]
    turns = options.rounds * options.shapes
    with tempfile.TemporaryDirectory() as folder:
        for i, shape in enumerate(turns):
            burst = options.burst or ("16k" if shape.least(options.size * MIB) < SMALL else "256k")
            given = tuple(words(options, shape))
            group = Group(shape.key, shape.module, shape.all_hosts, shape.ranks, given, given)
            links = {"rate": options.rate, "burst": burst, "racks": shape.racks, "uplink": options.uplink}
            with Cluster(shape.all_hosts, **links) as cluster:
                for python, settings in mpis:
                    found = start(cluster, group, python, options, Path(folder), SETTINGS[settings])
                    add(runs, shape, burst, settings, found)
            if options.progress is not None:
                options.progress.write_text(f"{(i + 1) / len(turns):.4f}")
    return runs


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch looks up the address of each host's name, and warns
    document: dict[str, Any] = {"benchmark": "hosts_bench", "hpcomm": hpcomm.__version__, "size": options.size * MIB}
    document |= {"rate": options.rate, "uplink": options.uplink}
    document["wire"] = "as given" if options.wire else "iperf3" if has_iperf3() else "rate of the shaped links"
    try:
        document["runs"] = measure(options)
    except Unavailable as why:
        print(f"hosts_bench: no hosts here: {why}", file=sys.stderr)
        return UNABLE
    document["rows"] = [row for run in document["runs"] for row in run["rows"]]
    wrong = sum(row["wrong"] for row in document["rows"])
    text = json.dumps(document, indent=1)
    write(options, text)
    closing = f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    print(text if options.json else "\n".join([*lines(document), closing]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

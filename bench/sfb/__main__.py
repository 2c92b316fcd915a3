"""factors: a matrix update as pairs of vectors from peer to peer (SFB), beside the dense hub and an exact peer.

Three groups of ranks, one after another:

    hosts   four hosts of one rank each, namespaces of this machine with links of 1 Gb/s (tests/cluster/hosts.py):
            factors to all peers and to Q of them, the dense hub, and all_gather over Gloo with a sgemm for each rank;
            also the bytes that were sent and the memory that it took (the paper's figure 4)
    ranks   the same hosts with two ranks each: factors once to each host and to all peers, and dense, hosts first
    host    two ranks of one host, over K: factors, and the dense hub with and without the product that makes a
            gradient of the pairs, and Auto(Factors(K)), which chooses

The ways of a group take turns in the same processes, and every W is checked after each turn. table.py derives the
columns.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mpi4py import MPI

import hpcomm
from bench.common import by_shapes
from bench.common.harness import as_rank
from bench.common.launch import ROOT, attend, cores, launched, launcher
from bench.common.options import add_output, add_quick, write
from bench.ops.cluster_bench import UNABLE
from bench.ops.hosts_bench import Shape, carried, rate_of
from bench.ops.hosts_bench import shape_of as shape_of_hosts
from bench.ops.keys_hosts import process_group
from bench.sfb import plots, table
from bench.sfb.ranks import Ranks, cases_of
from hpcomm.bench.rows import Row

sys.path.insert(0, str(ROOT / "tests"))
from cluster.hosts import Unavailable

GROUPS = ("hosts", "ranks", "host")
LIMIT = 3600.0  # seconds of the ranks of one group


def shape_of(text: str) -> tuple[int, int]:
    rows, _, columns = text.partition("x")
    if not (rows.isdecimal() and columns.isdecimal() and int(rows) and int(columns)):
        raise argparse.ArgumentTypeError(f"{text!r} is no shape of a matrix, such as 4096x4096")
    return int(rows), int(columns)


def shapes_of(text: str) -> list[tuple[int, int]]:
    return [shape_of(word.strip()) for word in text.split(",")]


def numbers_of(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m bench.sfb", description=__doc__.partition("\n")[0])

    p.add_argument("--groups", default=",".join(GROUPS), help=f"of {', '.join(GROUPS)}; default: all")
    p.add_argument("--hosts", type=int, default=4, help="hosts of groups hosts and ranks, a power of two; default: 4")
    p.add_argument("--per-host", type=int, default=2, help="ranks of a host of group ranks, a power of two; default: 2")
    p.add_argument("--degree", type=int, default=2, help="Q, the peers that factors go to in partial broadcasting")
    p.add_argument(
        "--shapes-of-hosts", help="of W, between hosts; default: 4096x4096", type=shapes_of, default="4096x4096"
    )
    p.add_argument("--pairs-of-hosts", help="K, between hosts; default: 32", type=numbers_of, default="32")
    p.add_argument("--shapes-of-host", help="of W, in a host", type=shapes_of, default="1024x1024,4096x4096")
    p.add_argument("--pairs-of-host", help="K, in a host", type=numbers_of, default="1,2,4,8,16,32,64,128,256,512,1024")
    p.add_argument("--ways", default="", help="names that contain one of these, separated by semicolons; default: all")
    p.add_argument("--warmup", type=int, default=2, help="steps of a turn before the timed ones, 1 at least")
    p.add_argument("-N", "--run_cycles", type=int, default=5, help="alternated cycles: the ways take turns")
    p.add_argument("--rate", type=rate_of, default="1gbit", help="of each host's link, as tc writes it")
    p.add_argument("--burst", default="256k", help="bucket of the links; a smaller one slows the dense hub down")
    p.add_argument("--plant", action="store_true", help="spoil a value of each way, to see that #wrong counts it")
    p.add_argument("--part", default="", help=argparse.SUPPRESS)  # the shape of these ranks
    p.add_argument("--address", default="", help=argparse.SUPPRESS)  # of rank 0
    add_quick(p, "small matrices, one cycle")
    add_output(p, "figures")
    options = p.parse_args(arguments)
    if options.quick:
        options.shapes_of_hosts, options.pairs_of_hosts = [(512, 384)], [8]
        options.shapes_of_host, options.pairs_of_host, options.run_cycles = [(256, 192)], [1, 64], 1
    options.groups = [word.strip() for word in options.groups.split(",") if word.strip()]
    unknown = set(options.groups) - set(GROUPS)
    if unknown:
        p.error(f"--groups: there is no {', '.join(sorted(unknown))}: {', '.join(GROUPS)}")
    if min(options.run_cycles, options.warmup, *options.pairs_of_hosts, *options.pairs_of_host) < 1:
        p.error("-N, --warmup and all K must be 1 or more")
    if min(options.hosts, options.per_host) < 2 or any(n & (n - 1) for n in (options.hosts, options.per_host)):
        p.error("--hosts and --per-host must be 2, 4, 8, ...")
    if options.degree < 1:
        p.error("--degree must be 1 or more")
    return options


def job(options: argparse.Namespace) -> int:
    """Runs a rank; returns 0 if no value was wrong."""
    comm = MPI.COMM_WORLD
    part = "host" if not options.part else "hosts" if shape_of_hosts(options.part).ranks == 1 else "ranks"
    cases = cases_of(options, part)
    with hpcomm.init(comm) as ctx:
        ranks = Ranks(options, ctx)
        if part != "host":
            with process_group(comm, comm.bcast(options.address)) as torch:
                rows = ranks.hosts(cases) if part == "hosts" else ranks.ranks(cases)
        else:
            torch, rows = "", ranks.host(cases)
        transport = ",".join(sorted({peer.transport for peer in ctx.peers} - {"self"}))
    wrong = comm.bcast(sum(row["wrong"] for row in rows))
    if comm.rank == 0:
        write(options, json.dumps({"transport": transport, "torch": torch, "rows": rows}))
    return 1 if wrong else 0


def in_a_host(options: argparse.Namespace, given: Sequence[str], folder: Path) -> Row:
    """Runs two ranks of this host, and returns their results."""
    output = folder / "host.json"
    command = [*launcher(2), "bench.sfb", *given, "-J", str(output)]
    status = attend(command, "factors, one host", quiet=options.json, limit=LIMIT)
    if not output.exists():
        raise SystemExit(f"factors: the ranks of one host ended with status {status}, no figures")
    return json.loads(output.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def start(options: argparse.Namespace, given: Sequence[str]) -> int:
    """Starts the groups one after another, and prints the results of all."""
    document: Row = {"benchmark": "factors", "hpcomm": hpcomm.__version__, "rate": options.rate, "burst": options.burst}
    document |= {"carried": carried(options.rate), "cores": cores(), "transport": "", "torch": "", "rows": []}
    several = (("hosts", 1), ("ranks", options.per_host))
    try:
        with tempfile.TemporaryDirectory() as folder:
            for shape in [Shape(1, options.hosts, near) for group, near in several if group in options.groups]:
                found = by_shapes.measure("sfb", options, given, shape, Path(folder))
                document |= {"transport": found["transport"], "torch": found["torch"]}
                document["rows"] += found["rows"]
            if "host" in options.groups:
                document["rows"] += in_a_host(options, given, Path(folder))["rows"]
    except Unavailable as why:
        document["unable"] = f"no hosts here: {why}"
        print(f"factors: {document['unable']}", file=sys.stderr)
    write(options, json.dumps(document, indent=1))
    wrong = sum(row["wrong"] for row in document["rows"])
    closing = f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    lines = table.lines(document)
    print(json.dumps(document, indent=1) if options.json else "\n".join([*lines, closing]))
    if options.plot is not None:
        plots.draw(document, options.plot)
    return UNABLE if "unable" in document else 1 if wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = options_of(given)
    if launched():
        return as_rank(lambda: job(options))
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return start(options, given)


if __name__ == "__main__":
    sys.exit(main())

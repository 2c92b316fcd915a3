"""phub.training: PHub's networks trained by eight workers over links of 10 and 56 Gb/s (PHub, section 4.3).

The hosts are namespaces of this machine, one rank on each. The networks of table 3 are lists of layers that compute by
timer, at a quarter of their width. Links and computing are slower than the paper's by the same factor, so their ratio
is the paper's. --groups:

    plane       figure 11: the cost of four copies of each parameter.
    cloud       figure 12: 10 Gb/s.
    infiniband  figure 13: 56 Gb/s.

MXNet IB is hpcomm with MXNet's chunks of 4 MB. PShard is hpcomm's servers on all workers. PBox is a host that only
serves, with a link ten times as fast. PBox has two rows: with eight workers, and with seven, which makes as many hosts
as the others have.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence

from mpi4py import MPI

import hpcomm
from bench.common import by_shapes
from bench.common.harness import has_torch
from bench.common.layers import FLOAT, QUARTER, too_large
from bench.common.options import add_output, add_quick, write
from bench.common.steps import UNABLE
from bench.ops.hosts_bench import Shape, carried, rate_of
from bench.phub.networks import NETWORKS
from bench.phub.systems import FIGURES, PBOX, PORTS, SYSTEMS
from hpcomm.bench.rows import Row

HOSTS, RATE = 8, "250mbit"  # two cores can carry eight such links
QUICK, QUICK_WIDTH = "AlexNet,ResNet 18", 0.05
HEAD = ("network", "system", "workers", "step", "bound", "compute", "wire", "images/s", "x", "bound x", "stall", "CPU")
UNITS = ("", "", "", "(ms)", "(ms)", "(ms)", "(ms)", "", "", "", "", "(ms)")
WIDTHS = (12, 23, 7, 8, 8, 8, 8, 9, 6, 7, 6, 7)


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m bench.phub.training", description=__doc__.partition("\n")[0])
    p.add_argument("--groups", default=",".join(FIGURES), help=f"of {', '.join(FIGURES)}; default: all")
    p.add_argument("--networks", default="", help=f"of {', '.join(NETWORKS)}; default: the figure's")
    p.add_argument("--ways", default="", help="systems whose names contain one of these, comma-separated; default: all")
    p.add_argument("--hosts", type=int, default=HOSTS, help="workers of the systems without a host that only serves")
    p.add_argument("--width", type=float, default=QUARTER, help="as a fraction of the networks' widths")
    p.add_argument("--rate", type=rate_of, default=RATE, help="rate of each worker's link, as tc writes it")
    p.add_argument("--burst", default="256k", help="bucket of the links")
    p.add_argument("--steps", type=int, default=2, help="timed steps of a turn")
    p.add_argument("-N", "--run_cycles", type=int, default=1, help="turns of each system")
    p.add_argument("--plant", action="store_true", help="spoil the parameters, to see that #wrong counts it")
    p.add_argument("--part", default="", help=argparse.SUPPRESS)  # the shape of these ranks
    p.add_argument("--workers", type=int, default=0, help=argparse.SUPPRESS)  # of these ranks; another one serves
    p.add_argument("--address", default="", help=argparse.SUPPRESS)  # of rank 0
    add_quick(p, "two workers, two small networks, one step")
    add_output(p, "")
    options = p.parse_args(arguments)
    if options.quick:
        options.hosts, options.width, options.steps, options.run_cycles = 2, QUICK_WIDTH, 1, 1
    options.networks = options.networks or (QUICK if options.quick else ",".join(NETWORKS))
    for name, known in (("groups", FIGURES), ("networks", NETWORKS)):
        chosen = [word.strip() for word in getattr(options, name).split(",") if word.strip()]
        if unknown := set(chosen) - set(known):
            p.error(f"--{name}: there is no {', '.join(sorted(unknown))}: {', '.join(known)}")
        setattr(options, name, chosen)
    options.models = options.networks  # Group reports progress by these
    if options.hosts < 2:
        p.error(f"--hosts is {options.hosts}: must be 2 or more")
    if min(options.steps, options.run_cycles) < 1 or options.width <= 0:
        p.error("--steps and --run_cycles must be 1 or more, --width above 0")
    words = [word.strip().lower() for word in options.ways.split(",") if word.strip()]
    if not all(any(word in name.lower() for name in SYSTEMS) for word in words):
        p.error(f"--ways: no name contains each of {options.ways!r}; there are {', '.join(SYSTEMS)}")
    if not options.part and (why := too_large(NETWORKS, options.networks, options.width, options.hosts)):
        p.error(why)
    return options


def runs(options: argparse.Namespace, given: Sequence[str]) -> Iterator[tuple[Shape, Sequence[str], str, str]]:
    """Returns each job: its hosts, its ranks' arguments, the rate of its links and that of the last link."""
    fast = f"{PORTS * carried(options.rate) / carried('1gbit'):g}gbit"
    systems = {name for group in options.groups for name in FIGURES[group].systems}
    words = [word.strip().lower() for word in options.ways.split(",") if word.strip()]
    wanted = {name for name in systems if not words or any(word in name.lower() for word in words)}
    if wanted - {PBOX}:
        yield Shape(1, options.hosts, 1), [*given, "--workers", str(options.hosts)], options.rate, options.rate
    for workers in (options.hosts - 1, options.hosts) if wanted & {PBOX} else ():
        if workers > 1:
            yield Shape(1, workers + 1, 1), [*given, "--workers", str(workers)], options.rate, fast


# ---- a rank ----------------------------------------------------------------------------------------------------------


def job(options: argparse.Namespace) -> int:
    """Runs a rank; returns 0 if no parameter was wrong."""
    import torch  # noqa: PLC0415

    from bench.phub.training_ranks import Timed  # noqa: PLC0415
    from bench.torch.ways import gloo  # noqa: PLC0415

    torch.set_num_threads(1)
    comm, rows = MPI.COMM_WORLD, list[Row]()
    address = comm.bcast(options.address)
    with hpcomm.init(comm) as ctx, gloo(comm, "eth0", address):
        for group in options.groups:
            found = Timed(options, ctx).rows(FIGURES[group])
            rows += [{"group": group, **row} for row in found]
        transports = sorted({peer.transport for peer in ctx.peers} - {"self"})
    wrong = comm.bcast(sum(row["wrong"] for row in rows))
    if comm.rank == 0:
        write(options, json.dumps({"transport": ",".join(transports), "torch": torch.__version__, "rows": rows}))
    return 1 if wrong else 0


# ---- the table -------------------------------------------------------------------------------------------------------


def bound(row: Row) -> float:
    """Returns the seconds of a step if a system did everything but sending and computing in no time."""
    if row["after"]:
        return float(row["compute"] + row["wire"] + row["copies"])
    return float(max(row["compute"], row["wire"]))


def images(row: Row, step: float) -> float:
    """Returns the images a second of all workers on the paper's cluster, by the ratio of computing times there and
    here."""
    return float(row["workers"] * row["batch"] / step * row["compute"] / row["paper"])


def lines(document: Row) -> Iterator[str]:
    for group, figure in FIGURES.items():
        rows = [row for row in document["rows"] if row["group"] == group]
        if not rows:
            continue
        yield f"\n# {figure.title}. The paper: {figure.said}"
        base, copy = figure.systems[0], FLOAT / rows[0]["copy"] / 1e9
        yield f"# {rows[0]['link']} stands for {figure.gigabits:g} Gb/s; x: over {base}; a copy: {copy:.1f} GB/s"
        yield from ("# " + _line((*HEAD, "sent", "#wrong")), "# " + _line((*UNITS, "(MB)", "")))
        order = list(figure.networks)
        for row in sorted(rows, key=lambda row: order.index(row["network"])):
            yield "  " + _line(cells(row, rows))


def cells(row: Row, rows: Sequence[Row]) -> list[str]:
    """Makes the cells of a row. rows: of the group; among them is the network's baseline, if it was measured."""
    step, least = statistics.median(row["cycles"]), bound(row)
    found = [row["network"], row["name"], str(row["workers"])]
    found += [f"{1e3 * value:.0f}" for value in (step, least, row["compute"], row["wire"])]
    found.append(f"{images(row, step):.0f}")
    first = FIGURES[row["group"]].systems[0]
    base = next((one for one in rows if (one["network"], one["name"]) == (row["network"], first)), None)
    if base is None:
        found += ["", ""]
    else:
        found.append(f"{images(row, step) / images(base, statistics.median(base['cycles'])):.2f}")
        found.append(f"{images(row, least) / images(base, bound(base)):.2f}")
    waits = statistics.median(a / b for a, b in zip(row["stalled"], row["cycles"], strict=True))
    found += [f"{100 * waits:.0f} %", f"{1e3 * statistics.median(row['processor']):.0f}"]
    return [*found, f"{row['sent'] / 1e6:.1f}", str(row["wrong"])]


def _line(words: Sequence[str]) -> str:
    pairs = enumerate(zip(words, (*WIDTHS, 7, 7), strict=True))
    return "  ".join(f"{word:<{w}}" if i < 2 else f"{word:>{w}}" for i, (word, w) in pairs).rstrip()


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = options_of(given)
    if not has_torch():
        print("phub.training: torch is missing: pip install 'torch>=2.4'", file=sys.stderr)
        return UNABLE
    jobs = runs(options, given)
    return by_shapes.run(
        lambda: by_shapes.start("phub.training", options, given, {}, lines, jobs), lambda: job(options)
    )


if __name__ == "__main__":
    sys.exit(main())

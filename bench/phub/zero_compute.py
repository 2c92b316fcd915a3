"""zero_compute: exchanges a second of infinitely fast workers, by their number (PHub, section 4.4 and figure 15).

It starts push_pull once for each number of workers and each model. Beside hpcomm stands the fastest composite of
--python's MPI, both key by key. It counts the exchanges of whole models that all workers together make in a second.
Over RDMA (--transport verbs) the wire and the NICs' own copies take the composite's place, as in figure 17.

With --placement it starts placements: PBox's arrangement (NCC) and others beside PShard's (CS), all keys at once, and
Gloo (figure 20, right). With --hosts each rank has its own host (tests/cluster/hosts.py) with a link of --rate; a rank
that only serves has a link of --server-rate, as PBox has ten NICs. Then each row has a bound: the time in which the
busiest link carries its bytes in either direction. Composites and Gloo have the bound of CS, because a sum over all
workers moves as many bytes.
"""

import argparse
import functools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common import models
from bench.common.launch import ROOT, attend, cores, launcher, module_of
from bench.common.options import add_output, add_quick, write
from bench.ops.cluster_bench import UNABLE, Group, start
from bench.ops.hosts_bench import carried, rate_of
from bench.phub.paper import PLACEMENTS, each_way
from hpcomm.bench import plots
from hpcomm.bench.rows import Row, named, short_library

sys.path.insert(0, str(ROOT / "tests"))
from cluster.hosts import Cluster, Unavailable

STYLES = {
    "hpcomm": ("tab:blue", "-"),
    "NCC": ("tab:blue", "-"),
    "NCS": ("tab:cyan", "-"),
    "CS": ("tab:green", "-"),
    "CC": ("tab:olive", "-"),
    "composite": ("tab:red", "--"),
    "Gloo": ("tab:orange", "--"),
    "wire": ("black", "--"),
    "NIC copies": ("tab:gray", "--"),
}
ONLY = "hpcomm,Allreduce + update,Gloo"  # of placements: just one composite, as slow links make all alike
BURST = "256k"


@dataclass(frozen=True)
class Point:
    """Exchanges a second of all workers together: the median, the slowest and the fastest cycle. bound: by the
    links; None if no link is known."""

    model: str
    workers: int
    who: str
    name: str
    rate: float
    low: float
    high: float
    bound: float | None = None


def arguments_of(model: str) -> list[str]:
    """Returns push_pull's arguments for a model's name, or for the bytes of a flat buffer."""
    return ["-M", model] if model in models.NAMES else ["-M", "flat", "-s", model]


def point(model: str, workers: int, who: str, row: Row, bound: float | None = None) -> Point:
    cycles = row["cycles"]
    rate, low, high = (workers / seconds for seconds in (statistics.median(cycles), max(cycles), min(cycles)))
    return Point(model, workers, who, row["name"], rate, low, high, bound)


def points(model: str, document: Row) -> list[Point]:
    rows, workers = document["rows"], document["ranks"]
    peers = [row for row in rows if row["role"] == "peer"]
    limits = [(who, row) for who in ("wire", "NIC copies") for row in rows if row["name"].startswith(who)]
    return [
        point(model, workers, "hpcomm", named(rows, "hpcomm Python")),
        *([point(model, workers, "composite", named(peers, ""))] if peers else []),
        *(point(model, workers, who, row) for who, row in limits),
    ]


def placed(model: str, document: Row, links: tuple[float, float] | None) -> list[Point]:
    """Makes points from placements' rows: each placement, Gloo and the fastest composite. links: bytes a second of a
    worker's host and of a server's host; None if the ranks share one host."""
    rows, servers = document["rows"], document["options"]["servers"]
    workers = document["ranks"] - servers
    chosen = {name: row for name in PLACEMENTS for row in rows if row["name"] == f"hpcomm {name}"}
    chosen |= {"Gloo": named(rows, "Gloo")} if any(row["name"].startswith("Gloo") for row in rows) else {}
    composites = [row for row in rows if row["role"] == "peer" and row not in chosen.values()]
    chosen |= {"composite": named(composites, "")} if composites else {}
    found = []
    for who, row in chosen.items():
        way = who if who in PLACEMENTS else "CS"
        least = None if links is None else seconds_on_links(way, workers, servers, row["size"], links)
        if least != 0:  # 0: a single worker that serves itself sends nothing
            found.append(point(model, workers, who, row, None if least is None else workers / least))
    return found


def seconds_on_links(placement: str, workers: int, servers: int, nbytes: int, links: tuple[float, float]) -> float:
    """Returns the time in which the busiest link carries an exchange. A server that also works has a worker's link."""
    at_worker, at_server = (nbytes * part for part in each_way(placement, workers, servers))
    worker, server = links
    return max(at_worker / worker, at_server / (server if placement in ("NCC", "NCS") else worker))


def table(found: Sequence[Point], available: int) -> list[str]:
    """Makes the table. Speedup: relative to the same system with the fewest workers. / CS: relative to CS with as
    many workers."""
    wide = any(p.who in PLACEMENTS for p in found)
    more = f"{'/ CS':>8}{'bound':>10}{'/ bound':>9}" if wide else ""
    lines = [f"{'model':<10}{'workers':>8}  {'who':<50}{'exchanges/s':>12}{'speedup':>9}{more}  spread"]
    for p in found:
        base = next(q for q in found if q.model == p.model and q.who == (p.who if wide else "hpcomm"))
        crowd = " *" if p.workers > available else "  "
        shard = next((q for q in found if (q.model, q.workers, q.who) == (p.model, p.workers, "CS")), None)
        over = f"{p.rate / shard.rate:.2f}x" if shard else "-"
        bound, reached = (f"{p.bound:.2f}", f"{p.rate / p.bound:.3f}") if p.bound else ("-", "-")
        more = f"{over:>8}{bound:>10}{reached:>9}" if wide else ""
        lines.append(
            f"{p.model:<10}{p.workers:>6}{crowd}  {p.name:<50}{p.rate:>12.1f}{p.rate / base.rate:>8.2f}x{more}  "
            f"{p.low:.1f} .. {p.high:.1f}"
        )
    if any(p.workers > available for p in found):
        lines.append(f"* more workers than the {available} cores")
    return lines


def scaling(axis: Any, found: Sequence[Point], model: str, mpi: str) -> None:
    own = [p for p in found if p.model == model]
    for who, (colour, dashes) in STYLES.items():
        line = [p for p in own if p.who == who]
        if not line:
            continue
        workers = [p.workers for p in line]
        axis.fill_between(workers, [p.low for p in line], [p.high for p in line], alpha=0.2, color=colour)
        text = f"best composite, {short_library(mpi)}" if who == "composite" else who
        axis.plot(workers, [p.rate for p in line], dashes, marker="o", color=colour, label=text)
        bounds = [(p.workers, p.bound) for p in line if p.bound is not None and who in PLACEMENTS]
        if bounds:
            axis.plot(*zip(*bounds, strict=True), ":", marker=".", color=colour, label=f"{who}, busiest link")
    if own:
        counts = sorted({p.workers for p in own})
        first = next((p for p in own if p.who == "NCC"), own[0])
        linear = [first.rate * count / first.workers for count in counts]
        axis.plot(counts, linear, ":", color="black", label="linear, as the paper's PBox")
        axis.set_xticks(counts)
    at_once = any(p.who in PLACEMENTS for p in own)
    way = "one flat buffer" if model not in models.NAMES else "all keys at once" if at_once else "key by key"
    axis.set(title=f"{model}, {way}", xlabel="workers", ylabel="exchanges/s, all workers", yscale="log")
    axis.grid(alpha=0.3)
    axis.legend()


def alone(options: argparse.Namespace) -> int:
    """How many ranks only serve."""
    return int(options.servers) if "NCS" in options.placement else int("NCC" in options.placement)


def words(options: argparse.Namespace, model: str) -> tuple[str, ...]:
    """Returns the benchmark that the ranks run, and its arguments."""
    few = ("-N", str(options.run_cycles), "-n", "1", *(("--transport", options.transport) if options.transport else ()))
    if not options.placement:
        return ("push_pull", *arguments_of(model), *few, "--only", "hpcomm Python,update,wire,NIC copies")
    how = ("--placement", ",".join(options.placement), "--servers", str(alone(options)), "--only", options.only)
    return ("placements", *arguments_of(model), *few, *how, *(("--plant",) if options.plant else ()))


def on_one_host(options: argparse.Namespace, model: str, workers: int, folder: Path) -> Row:
    output, (name, *given) = folder / "figures.json", words(options, model)
    output.unlink(missing_ok=True)
    started = launcher(workers + alone(options), options.python, options.transport)
    bar = not options.json and options.progress is None
    command = [*started, module_of(name), *given, "-J", str(output)]
    status = attend(command, f"{model}, {workers} workers", quiet=True, bar=bar)
    if not output.exists():
        raise SystemExit(f"{name} of {model} with {workers} workers ended with status {status}, no figures")
    return json.loads(output.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def on_hosts(options: argparse.Namespace, model: str, workers: int, folder: Path) -> Row:
    hosts, (name, *given) = workers + alone(options), words(options, model)
    group = Group(f"{model}, {workers} workers", name, hosts, 1, tuple(given), tuple(given))
    serving = {f"h{i + 1}": options.server_rate for i in range(workers, hosts)}
    with Cluster(hosts, rate=options.rate, rates=serving, burst=options.burst) as cluster:
        return start(cluster, group, options.python, options, folder)


def measure(options: argparse.Namespace) -> tuple[list[Point], list[Row]]:
    found, documents = [], []
    links = (carried(options.rate), carried(options.server_rate)) if options.hosts else None
    runs = [(model, int(workers)) for model in options.models.split(",") for workers in options.workers.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        for i, (model, workers) in enumerate(runs):
            if options.progress is not None:
                options.progress.write_text(f"{i / len(runs):.4f}")
            run = on_hosts if options.hosts else on_one_host
            documents.append(run(options, model, workers, Path(folder)))
            found += placed(model, documents[-1], links) if options.placement else points(model, documents[-1])
    return found, documents


def options_of(given: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(
        prog="python -m bench.phub.zero_compute", description="Exchanges a second against workers."
    )
    p.add_argument("-W", "--workers", default="1,2,4,8", help="numbers of workers, powers of two, e.g. 1,2,4")
    p.add_argument("--models", default="resnet50,32M", help="models, or bytes of a flat buffer, e.g. vgg19,4M")
    p.add_argument("-N", "--run_cycles", type=int, default=5, help="alternated cycles of each")
    p.add_argument("--placement", default="", help=f"servers' places beside each other, of {','.join(PLACEMENTS)}")
    p.add_argument("--servers", type=int, default=2, help="ranks that serve under NCS")
    p.add_argument("--only", default=ONLY, help=f"contenders of --placement by part of their name; default: {ONLY}")
    p.add_argument("--plant", action="store_true", help="spoil a value of each, to see that #wrong counts it")
    p.add_argument("--hosts", action="store_true", help="each rank on its own host, with a shaped link")
    p.add_argument("--rate", type=rate_of, default="200mbit", help="of a worker's link, as tc writes it")
    p.add_argument("--server-rate", type=rate_of, default="2gbit", help="of the link of a host that only serves")
    p.add_argument("--burst", default=BURST, help=f"bucket of the links; default: {BURST}")
    add_output(p)
    add_quick(p, "one and two workers, 2 MiB, one cycle")
    p.add_argument("--transport", default="", choices=("", "verbs"), help="verbs: beside the limits of RDMA")
    p.add_argument("--python", default=sys.executable, help="of the ranks, whose MPI is the peer")
    options = p.parse_args(given)
    if options.quick:
        options.workers, options.models, options.run_cycles = "1,2", "2M", 1
    options.placement = [word.strip().upper() for word in options.placement.split(",") if word.strip()]
    if unknown := set(options.placement) - set(PLACEMENTS):
        p.error(f"--placement: {', '.join(PLACEMENTS)}, not {', '.join(sorted(unknown))}")
    if options.hosts and not options.placement:
        p.error("--hosts: give --placement too, e.g. --placement CS,NCC")
    if options.servers < 1:
        p.error(f"--servers: {options.servers}, must be 1 or more")
    return options


def main(given: Sequence[str] | None = None) -> int:
    options = options_of(given)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch looks up the address of each host's name, and warns
    try:
        found, documents = measure(options)
    except Unavailable as why:
        print(f"zero_compute: no hosts here: {why}", file=sys.stderr)
        return UNABLE
    rows = [row for document in documents for row in document["rows"]]
    wrong = sum(row["wrong"] for row in rows)
    mpi = documents[0]["mpi"]
    facts = {"benchmark": "zero_compute", "cores": cores(), "mpi": mpi}
    facts |= {"rate": options.rate, "server_rate": options.server_rate} if options.hosts else {}
    figures = {**facts, "points": [vars(q) for q in found], "rows": rows}
    text = json.dumps({**figures, "runs": documents}, indent=1)
    write(options, text)
    if options.plot is not None:
        draws = [functools.partial(scaling, found=found, model=model, mpi=mpi) for model in options.models.split(",")]
        heading = f"zero compute, hpcomm {documents[0]['hpcomm']}, {cores()} cores, {short_library(mpi)}"
        heading += f", links of {options.rate}, servers' of {options.server_rate}" if options.hosts else ""
        plots.figure(options.plot, draws, heading)
    if options.json:
        print(text)
    else:
        print(f"# composites by {mpi}")
        print("\n".join([*table(found, cores()), f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""zero_compute: exchanges a second of infinitely fast workers, against their number (PHub, section 4.4 and figure 15).

Starts push_pull once for each number of workers and each model, takes the fastest composite of --python's MPI beside
hpcomm, both key by key, and counts the exchanges of whole models that all workers together make in a second. Over RDMA
(--transport verbs) the wire and the NICs' own copies stand in the composite's place, as in figure 17.
"""

import argparse
import functools
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common import models, plots
from bench.common.launch import attend, cores, launcher
from bench.common.options import add_output, write
from bench.common.rows import Row, named, short_library

STYLES = {
    "hpcomm": ("tab:blue", "-"),
    "composite": ("tab:red", "--"),
    "wire": ("black", "--"),
    "NIC copies": ("tab:gray", "--"),
}


@dataclass(frozen=True)
class Point:
    """Exchanges a second of all workers together, with those of the slowest and the fastest cycle."""

    model: str
    workers: int
    who: str
    name: str
    rate: float
    low: float
    high: float


def arguments_of(model: str) -> list[str]:
    """push_pull's, for a model's name or the bytes of a flat buffer."""
    return ["-M", model] if model in models.NAMES else ["-M", "flat", "-s", model]


def point(model: str, workers: int, who: str, row: Row) -> Point:
    rates = [
        workers / seconds for seconds in (statistics.median(row["cycles"]), max(row["cycles"]), min(row["cycles"]))
    ]
    return Point(model, workers, who, row["name"], *rates)


def points(model: str, document: Row) -> list[Point]:
    rows, workers = document["rows"], document["ranks"]
    peers = [row for row in rows if row["role"] == "peer"]
    limits = [(who, row) for who in ("wire", "NIC copies") for row in rows if row["name"].startswith(who)]
    return [
        point(model, workers, "hpcomm", named(rows, "hpcomm Python")),
        *([point(model, workers, "composite", named(peers, ""))] if peers else []),
        *(point(model, workers, who, row) for who, row in limits),
    ]


def table(found: Sequence[Point], available: int) -> list[str]:
    """Speedup: over hpcomm with the fewest workers."""
    lines = [f"{'model':<10}{'workers':>8}  {'who':<50}{'exchanges/s':>12}{'speedup':>9}  spread"]
    for p in found:
        base = next(q for q in found if q.model == p.model and q.who == "hpcomm")
        crowd = " *" if p.workers > available else "  "
        lines.append(
            f"{p.model:<10}{p.workers:>6}{crowd}  {p.name:<50}{p.rate:>12.1f}{p.rate / base.rate:>8.2f}x  "
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
    if own:
        counts = sorted({p.workers for p in own})
        linear = [own[0].rate * count / own[0].workers for count in counts]
        axis.plot(counts, linear, ":", color="black", label="linear, as the paper's PBox")
        axis.set_xticks(counts)
    title = f"{model}, {'key by key' if model in models.NAMES else 'one flat buffer'}"
    axis.set(title=title, xlabel="workers", ylabel="exchanges/s, all workers", yscale="log")
    axis.grid(alpha=0.3)
    axis.legend()


def measure(options: argparse.Namespace) -> tuple[list[Point], list[Row]]:
    found, documents = [], []
    runs = [(model, int(workers)) for model in options.models.split(",") for workers in options.workers.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "push_pull.json")
        for i, (model, workers) in enumerate(runs):
            if options.progress is not None:
                options.progress.write_text(f"{i / len(runs):.4f}")
            started = launcher(workers, options.python, options.transport)
            command = [*started, "bench.ops.push_pull", *arguments_of(model), "-J", str(output)]
            command += ["-N", str(options.run_cycles), "-n", "1", "--only", "hpcomm Python,update,wire,NIC copies"]
            command += ["--transport", options.transport] if options.transport else []
            bar = not options.json and options.progress is None
            status = attend(command, f"{model}, {workers} workers", quiet=True, bar=bar)
            if not output.exists():
                raise SystemExit(f"push_pull of {model} with {workers} workers ended with status {status}, no figures")
            documents.append(json.loads(output.read_text(encoding="utf-8")))
            output.unlink()
            found += points(model, documents[-1])
    return found, documents


def main(given: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(
        prog="python -m bench.phub.zero_compute", description="Exchanges a second against workers."
    )
    p.add_argument("-W", "--workers", default="1,2,4,8", help="numbers of workers, powers of two, e.g. 1,2,4")
    p.add_argument("--models", default="resnet50,32M", help="models, or bytes of a flat buffer, e.g. vgg19,4M")
    p.add_argument("-N", "--run_cycles", type=int, default=5, help="alternated cycles of each")
    add_output(p)
    p.add_argument("--transport", default="", choices=("", "verbs"), help="verbs: beside the limits of RDMA")
    p.add_argument("--python", default=sys.executable, help="of the ranks, whose MPI is the peer")
    options = p.parse_args(given)
    found, documents = measure(options)
    rows = [row for document in documents for row in document["rows"]]
    wrong = sum(row["wrong"] for row in rows)
    mpi = documents[0]["mpi"]
    facts = {"benchmark": "zero_compute", "cores": cores(), "mpi": mpi}
    figures = {**facts, "points": [vars(q) for q in found], "rows": rows}
    text = json.dumps({**figures, "runs": documents}, indent=1)
    write(options, text)
    if options.plot is not None:
        draws = [functools.partial(scaling, found=found, model=model, mpi=mpi) for model in options.models.split(",")]
        heading = f"zero compute, hpcomm {documents[0]['hpcomm']}, {cores()} cores, {short_library(mpi)}"
        plots.figure(options.plot, draws, heading)
    if options.json:
        print(text)
    else:
        print(f"# composites by {mpi}")
        print("\n".join([*table(found, cores()), f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

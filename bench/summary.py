"""Runs all benchmarks, one after another, and tabulates hpcomm's promises: python -m bench.summary.

It starts every mpirun itself, prints each benchmark's own table, then one row for each promise: met or missed. It
writes all figures as JSON, and a plot beside them. A group of processes has one MPI, so --python names other Pythons,
with another MPI or with torch; the benchmarks with such peers run once more under each.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.asap import consistent_reduces, convergence, straggler
from bench.common import models
from bench.common.judge import table
from bench.common.launch import LIMIT, ROOT, attend, launcher, library, memory, module_of
from bench.common.options import add_quick
from bench.ops import cluster_bench
from bench.phub import chunk_plots, zero_compute
from bench.promises import AGAIN, groups, notes, promises
from hpcomm.bench import plots
from hpcomm.bench.rows import Row


@dataclass(frozen=True)
class Run:
    """One benchmark: its module, its arguments, and fewer arguments for --quick.

    Attributes:
        ranks: 0 if it starts its ranks itself.
        again: whether it runs under the Pythons of --python too: "peers": all of them; "MPI": one for each other MPI;
            "itself": it gets them all as arguments; "": none.
        memory: GiB that all ranks together need; with less free memory the benchmark is left out.
    """

    key: str
    module: str
    ranks: int
    arguments: tuple[str, ...]
    quick: tuple[str, ...]
    again: str = ""
    memory: float = 1


CROWD = ("-b", "4M", "-e", "4M", "-g", "1,2")
BEST = ("--only", "hpcomm Python,blocks")  # the composites with the update in blocks
TCP = ("--transport", "tcp")
FEW, FEWEST = ("-N", "3", "-n", "1"), ("-N", "1", "-n", "1", "-m", "2")
RUNS = (
    Run("latency", "put_lat", 2, ("-e", "32K"), ("-e", "8", "-N", "5", "-n", "5")),
    Run("bandwidth", "put_bw", 2, (), ("-e", "256K", "-N", "5", "-n", "1")),
    Run("exchange", "queue_bench", 2, ("-b", "512K", "-N", "25"), ("-b", "1M", "-e", "1M", "-N", "5")),
    Run("crowded exchange", "queue_bench", 8, (*CROWD, "-n", "5"), (*CROWD, "-N", "5", "-n", "1")),
    Run("crowded latency", "put_lat", 8, ("-n", "10", "-m", "100"), ("-N", "5", "-n", "2", "-m", "50")),
    Run("waiting", "wait_cpu", 2, (), ("-t", "1")),
    Run("push_pull", "push_pull", 2, ("-s", "8,64K,4M,32M"), ("-s", "8,64K,2M", *FEWEST), again="peers"),
    Run(
        "large push_pull",
        "push_pull",
        2,
        ("-s", "256M", "-N", "9", "--only", "hpcomm,blocks,traffic,Gloo"),
        ("-s", "32M", *FEW, "--only", "hpcomm,blocks,traffic,Gloo"),
        again="peers",
        memory=10,
    ),
    Run("resnet50", "push_pull", 2, ("-M", "resnet50", "-N", "7"), ("-M", "resnet50", *FEW, *BEST), "MPI", 5),
    Run("alexnet", "push_pull", 2, ("-M", "alexnet", "-N", "5", *BEST), ("-M", "alexnet", *FEW, *BEST), memory=6),
    Run("vgg19", "push_pull", 2, ("-M", "vgg19", "-N", "3", *BEST), ("-M", "vgg19", *FEW, *BEST), memory=14),
    Run(
        "crowded push_pull",
        "push_pull",
        8,
        ("-s", "32M", "-N", "7", *BEST),
        ("-s", "2M", *FEW, *BEST),
        again="MPI",
        memory=4,
    ),
    Run("fold", "fold_bench", 2, (), ("-b", "16M", "-e", "16M", *FEW), memory=2),
    Run("zero_compute", "zero_compute", 0, ("-N", "3"), ("-N", "1", "-W", "1,2", "--models", "2M"), again="MPI"),
    Run("chunk_sweep", "chunk_sweep", 2, ("-N", "7"), ("-b", "4M", "-e", "4M", *FEW)),
    Run("tcp latency", "put_lat", 2, TCP, (*TCP, "-N", "5", "-n", "5")),
    Run("tcp bandwidth", "put_bw", 2, TCP, (*TCP, "-b", "1M", "-e", "1M", *FEW)),
    Run("tcp exchange", "queue_bench", 2, (*TCP, "-b", "4M"), (*TCP, "-b", "1M", "-e", "1M", *FEW), again="MPI"),
    Run(
        "tcp push_pull",
        "push_pull",
        2,
        (*TCP, "-s", "8,64K,4M,32M", "-N", "7"),
        (*TCP, "-s", "2M", *FEW, *BEST),
        again="peers",
    ),
    Run("limits", "limits", 2, (), ("-b", "8M", "-e", "8M", "-R", "8M", *FEW)),
    Run("footprint", "footprint", 0, (), ("--ranks", "8")),
    Run("links", "links", 0, ("--rounds", "1"), ("--quick",)),
    Run("cluster", "cluster_bench", 0, (), ("--quick",), again="itself", memory=4),
    Run(
        "many keys",
        "keys_hosts",
        0,
        ("--shapes", "4x1", "--sets", "transformer38,gpt145,100x1K,200x1K", "-N", "3"),
        ("--quick",),
        memory=3,
    ),
    Run("graph exchange", "graph_exchange", 8, (), ("-b", "1M", "-e", "1M", *FEW)),
    Run("consistent reduces", "consistent_reduces", 8, (), ("-n", "50", "--endure", "1000")),
    Run("straggler", "straggler", 8, (), ("-t", "0.02", "-n", "8")),
    Run("convergence", "convergence", 0, ("-N", "1"), ("--quick", "--only", "shm"), memory=6),
)


def others(run: Run, pythons: Sequence[str]) -> list[str]:
    """Returns the other Pythons under which it runs."""
    if run.again != "MPI":
        return list(pythons) if run.again == "peers" else []
    seen, found = {library(sys.executable)}, []
    for python in pythons:
        if library(python) not in seen:
            found.append(python)
        seen.add(library(python))
    return found


def start(
    run: Run, quick: bool, silent: bool, folder: Path, python: str = sys.executable, others: Sequence[str] = ()
) -> Row:
    """Runs one benchmark to its end and returns its JSON. others: the Pythons that it gets as arguments."""
    output = folder / "figures.json"
    output.unlink(missing_ok=True)
    arguments = run.quick if quick else run.arguments
    transport = "tcp" if "tcp" in arguments else ""
    started = launcher(run.ranks, python, transport) if run.ranks else [sys.executable, "-m"]
    given = [*others, *([] if run.ranks or python == sys.executable else [python])]
    arguments += tuple(word for each in given for word in ("--python", each))
    if not silent:
        by = f"mpirun -n {run.ranks} python -m" if run.ranks else "python -m"
        print(
            f"\n# {by} {module_of(run.module)}",
            *arguments,
            "" if python == sys.executable else f"({python})",
            flush=True,
        )
    command = [*started, module_of(run.module), *arguments, "-J", str(output)]
    status = attend(command, run.key, quiet=silent, limit=LIMIT if run.ranks else 3 * LIMIT)
    if not output.exists():
        raise SystemExit(f"{run.module} with {run.ranks} ranks under {python} ended with status {status}, no figures")
    return json.loads(output.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def plot(documents: dict[str, Row], path: Path) -> bool:
    """Draws one panel for each benchmark with figures to show; returns False without matplotlib."""
    draws: list[plots.Draw] = []
    for key, title, unit, value in (
        ("latency", "put_signal to wait_signal, one way", "time (us)", plots.microseconds),
        ("bandwidth", "put", "GB/s", lambda row: row["size"] / statistics.median(row["cycles"]) / 1e9),
        ("exchange", "exchange and average, one neighbour", "time (ms)", plots.milliseconds),
        ("tcp bandwidth", "put over TCP", "GB/s", lambda row: row["size"] / statistics.median(row["cycles"]) / 1e9),
        ("tcp exchange", "exchange and average over TCP", "time (ms)", plots.milliseconds),
        ("tcp push_pull", "push_pull over TCP", "time (us)", plots.microseconds),
    ):
        if key in documents:
            rows = documents[key]["rows"]
            draws.append(partial(plots.over_size, rows=rows, heading=title, unit=unit, value=value))
    flat = [row for key in ("push_pull", "large push_pull") if key in documents for row in documents[key]["rows"]]
    if flat:
        draws.append(
            partial(plots.over_size, rows=flat, heading="push_pull", unit="time (us)", value=plots.microseconds)
        )
    for key in ("resnet50", "alexnet", "vgg19"):
        if key in documents:
            heading = f"push_pull, {models.load(key).title}, key by key"
            draws.append(partial(plots.bars, rows=documents[key]["rows"], heading=heading))
    if "crowded push_pull" in documents:
        crowded = documents["crowded push_pull"]
        heading = f"push_pull, {crowded['ranks']} ranks on {crowded['cores']} cores"
        draws.append(partial(plots.bars, rows=crowded["rows"], heading=heading))
    for document in groups(documents, "zero_compute"):
        found = [zero_compute.Point(**point) for point in document["points"]]
        for model in dict.fromkeys(point.model for point in found):
            draws.append(partial(zero_compute.scaling, found=found, model=model, mpi=document["mpi"]))
    if "chunk_sweep" in documents:
        draws.append(partial(chunk_plots.sweep, document=documents["chunk_sweep"]))
    if "tcp latency" in documents:
        heading = "8 B put_signal over TCP, one way"
        draws.append(partial(plots.bars, rows=documents["tcp latency"]["rows"], heading=heading))
    if "limits" in documents:
        draws.append(partial(plots.rates, rows=documents["limits"]["rows"], heading="what bounds this machine"))
    if "cluster" in documents:
        draws += cluster_bench.panels(documents["cluster"])
    if "graph exchange" in documents:
        graph = documents["graph exchange"]
        heading = f"averaging over a graph, {graph['ranks']} ranks on {graph['cores']} cores"
        draws.append(partial(plots.bars, rows=graph["rows"], heading=heading))
    for key, panels in (
        ("consistent reduces", consistent_reduces.panels),
        ("straggler", straggler.panels),
        ("convergence", convergence.panels),
    ):
        if key in documents:
            draws += panels(documents[key])
    facts = next((document for document in documents.values() if "mpi" in document and "ranks" in document), None)
    if facts is None:
        return False
    return plots.figure(path, draws, plots.title(facts))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.summary", description="All benchmarks, and the table of promises."
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=ROOT / "build" / "bench", help="folder of the JSON and the plot"
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        type=os.path.abspath,
        help="another Python whose MPI, and torch, are peers too; repeatable",
    )
    parser.add_argument("--only", default="", help=f"of {', '.join(run.key for run in RUNS)}; comma-separated")
    parser.add_argument("--json", action="store_true", help="print the promises as JSON and nothing else")
    add_quick(parser)
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    wanted = [part.strip() for part in options.only.split(",") if part.strip()]
    unknown = set(wanted) - {run.key for run in RUNS}
    if unknown:
        parser.error(f"--only: there is no {', '.join(sorted(unknown))}")
    load = os.getloadavg()[0]
    if load > 0.5 and not options.json:
        print(f"# load {load:.1f}: others use this machine too, which shows in the figures", flush=True)
    documents: dict[str, Row] = {}
    left_out = []
    with tempfile.TemporaryDirectory() as folder:
        for run in RUNS:
            if wanted and run.key not in wanted:
                continue
            if memory() < run.memory:
                left_out.append(f"{run.key} left out: it needs {run.memory:g} GiB, {memory():.1f} are free")
                continue
            given = options.python if run.again == "itself" else ()
            found_now = start(run, options.quick, options.json, Path(folder), others=given)
            if "unable" in found_now:
                left_out.append(f"{run.key} left out: {found_now['unable']}")
                continue
            documents[run.key] = found_now
            for i, python in enumerate(others(run, options.python), 1):
                documents[f"{run.key}{AGAIN}{i}"] = start(run, options.quick, options.json, Path(folder), python)
    found = promises(documents)
    wrong = sum(row["wrong"] for document in documents.values() for row in document["rows"])
    judged = [{**vars(promise), "met": promise.met} for promise in found]
    text = json.dumps(
        {"promises": judged, "wrong": wrong, "load": load, "left_out": left_out, "runs": documents}, indent=1
    )
    (options.output / "summary.json").write_text(text + "\n", encoding="utf-8")
    drawn = plot(documents, options.output / "summary.png")
    if options.json:
        print(json.dumps(judged, indent=1))
        return 1 if wrong else 0
    print("\n" + table(found))
    for note in (*left_out, *notes(documents)):
        print(f"# {note}")
    print(
        f"# #wrong {wrong}; all figures in {options.output / 'summary.json'}" + (", plot beside them" if drawn else "")
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs benchmarks that start their ranks once for each shape (hosts x ranks), on namespaces as hosts."""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import hpcomm
from bench.common.harness import as_rank
from bench.common.launch import ROOT, attend, launched, module_of, mpirun
from bench.common.options import write
from bench.ops.cluster_bench import UNABLE
from bench.ops.hosts_bench import Shape
from hpcomm.bench.rows import Row

sys.path.insert(0, str(ROOT / "tests"))
from cluster.hosts import HEAD, Cluster, Unavailable

LIMIT = 3600.0  # for the ranks of one shape, in seconds


def measure(
    name: str, options: argparse.Namespace, given: Sequence[str], shape: Shape, folder: Path, rate: str = "", *more: str
) -> Row:
    """Runs the ranks of one shape, and returns the document that they write. rate: of the links; "" means --rate. more:
    the rate of the last host's link, if it differs."""
    output = folder / f"{shape.key}.json"
    output.unlink(missing_ok=True)
    rates = {f"h{shape.all_hosts}": last for last in more}
    with Cluster(shape.all_hosts, rate=rate or options.rate, rates=rates, burst=options.burst) as cluster:
        command = cluster.mpirun(ranks_per_host=shape.ranks, path=mpirun(sys.executable))
        command += [sys.executable, "-m", module_of(name), *given, "--part", shape.key]
        command += ["--address", cluster.address(cluster.hosts[0]), "-J", str(output)]
        there = partial(cluster.popen, HEAD)
        status = attend(command, f"{name}, {shape.key}", quiet=options.json, limit=LIMIT, popen=there)
    if not output.exists():
        raise SystemExit(f"{name}: the ranks of {shape.key} ended with status {status}, no figures")
    return json.loads(output.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def start(
    name: str,
    options: argparse.Namespace,
    given: Sequence[str],
    facts: Row,
    lines: Callable[[Row], Iterable[str]],
    runs: Iterable[tuple[Shape, Sequence[str], str] | tuple[Shape, Sequence[str], str, str]] | None = None,
    draw: Callable[[Row, Path], object] | None = None,
) -> int:
    """Starts the ranks of one shape after another, and prints the rows of all.

    facts: entries of the document. lines: makes its table. runs: tuples of a shape, the arguments of its ranks, the
    rate of its links, and the rate of the last host's link if it differs; None means options.shapes, all with the same
    arguments. draw: plots the document into the file of --plot.
    """
    document: Row = {"benchmark": name, "hpcomm": hpcomm.__version__, "rate": options.rate, **facts, "rows": []}
    try:
        with tempfile.TemporaryDirectory() as folder:
            for shape, its, *rates in [(shape, given, "") for shape in options.shapes] if runs is None else runs:
                found = measure(name, options, its, shape, Path(folder), *rates)
                document |= {"transport": found["transport"], "torch": found["torch"]}
                document["rows"] += found["rows"]
                write(options, json.dumps(document, indent=1))  # kept if this run ends early
    except Unavailable as why:
        document["unable"] = f"no hosts here: {why}"
        write(options, json.dumps(document, indent=1))
        print(f"{name}: {document['unable']}", file=sys.stderr)
        return UNABLE
    if draw is not None and options.plot is not None:
        draw(document, options.plot)
    wrong = sum(row["wrong"] for row in document["rows"])
    closing = f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    print(json.dumps(document, indent=1) if options.json else "\n".join([*lines(document), closing]))
    return 1 if wrong else 0


def run(begin: Callable[[], int], job: Callable[[], int]) -> int:
    """Runs the program: `begin` makes the hosts, `job` is the work of each rank."""
    if not launched():
        os.environ |= {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}  # hosts' names lead to no address
        return begin()
    return as_rank(job)

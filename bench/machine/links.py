"""links: the cost of a rank's links to its peers, on one host, over shared memory and over TCP, beside another build.

The ranks run the C program links.c. A job makes a context and a hub of ResNet-50's keys on four owners, with scaled
sizes, makes steps of all keys, does nothing for a while, and loses a worker. Two more ranks make and close contexts.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

import hpcomm
from bench.common.launch import cores
from bench.common.models import load
from bench.common.native import BUILD, compile_c, package
from bench.common.options import add_output, add_quick, write
from hpcomm.bench.rows import Row

TRANSPORTS = ("shm", "tcp")
LEAST_COUNT = 16  # elements of a key
LIMIT = 300.0  # seconds for the ranks of one run
SHOWN = 200  # characters of an error
GROWING = ("init", "hub", "descriptors of the last worker")
QUICK: Row = {"ranks": [4], "rounds": 1, "steps": 2, "seconds": 0.05, "contexts": 16, "scale": 4096, "death": True}
UNITS = {"s": ("ms", 1e3, 3), "B": ("MiB", 2**-20, 2), "cores": ("% of a core", 100, 3), "": ("", 1, 0)}


@dataclass
class Told:
    """The figures of one run, by name."""

    values: dict[str, float] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    wrong: int = 0
    error: str = ""


@dataclass(frozen=True)
class Case:
    """Ranks that run together."""

    what: str
    transport: str
    ranks: int
    arguments: tuple[str, ...]


def read(lines: str) -> Told:
    told = Told()
    for line in lines.splitlines():
        row = json.loads(line)
        if row["name"] == "wrong":
            told.wrong += int(row["value"])
        else:
            told.values[row["name"]], told.units[row["name"]] = row["value"], row["unit"]
    return told


def run(program: Path, case: Case) -> Told:
    """Runs the ranks of a case. If they fail, the result has the figures until then, and the first error."""
    command = [str(program), case.what, *case.arguments, "-t", str(case.ranks), "--transport", case.transport]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return Told(error=f"not done after {LIMIT:g} s")
    told = read(ended.stdout)
    if ended.returncode != 0:
        first = ended.stderr.strip().partition("\n")[0] or f"a rank ended with status {ended.returncode}"
        told.error = first if len(first) <= SHOWN else f"{first[:SHOWN]} ..."
    return told


def cases(options: argparse.Namespace) -> Iterator[Case]:
    counts = ",".join(str(max(LEAST_COUNT, key.count // options.scale)) for key in load("resnet50").keys)
    job = (counts, f"{options.seconds:g}", str(int(options.death)), "-n", str(options.steps))
    for transport in options.transports:
        for ranks in options.ranks:
            yield Case("job", transport, ranks, job)
        if options.contexts > 0:
            yield Case("contexts", transport, 2, (str(options.alive), "-n", str(options.contexts)))


def spread(here: Sequence[float], against: Sequence[float]) -> list[float] | None:
    """Returns the ratio of the medians, and the smallest and largest ratio of a pair; None if a figure is 0."""
    if len(here) != len(against) or min(against, default=0) <= 0:
        return None
    pairs = [mine / other for mine, other in zip(here, against, strict=True)]
    return [statistics.median(here) / statistics.median(against), min(pairs), max(pairs)]


def rows_of(case: Case, rounds: Mapping[str, Sequence[Told]]) -> Iterator[Row]:
    """Yields a row for each figure of a case, and one for each build that failed. rounds: by build."""
    told = [run for runs in rounds.values() for run in runs]
    units = {name: unit for run in told for name, unit in run.units.items()}
    at = {"what": case.what, "transport": case.transport, "ranks": case.ranks, "wrong": sum(run.wrong for run in told)}
    for name, unit in units.items():
        values = {build: [run.values[name] for run in runs if name in run.values] for build, runs in rounds.items()}
        row: Row = {**at, "name": name, "unit": unit, "rounds": values}
        row |= {build: statistics.median(found) if found else None for build, found in values.items()}
        if "against" in values:
            row["ratio"] = spread(values["here"], values["against"])
        yield row
    for build, runs in rounds.items():
        errors = [run.error for run in runs if run.error]
        if errors:
            yield {**at, "name": "failed", "build": build, "times": len(errors), "error": errors[0]}


def growth(rows: Sequence[Row]) -> Iterator[Row]:
    """Yields by how much figures grow from each number of ranks to the next."""
    for name in GROWING:
        found = [row for row in rows if row["name"] == name and row["here"] is not None]
        for few, many in pairwise(found):
            if few["transport"] == many["transport"] and few["ranks"] < many["ranks"]:
                ratio = many["here"] / few["here"]
                yield {"transport": few["transport"], "name": name, "ranks": [few["ranks"], many["ranks"]], "by": ratio}


def shown(value: float | None, unit: str) -> str:
    _, factor, digits = UNITS[unit]
    return "-" if value is None else f"{value * factor:.{digits}f}"


def table(document: Row) -> str:
    against = document["against"]
    before, after = document["load"]
    lines = [
        f"# links: {document['keys']} keys of ResNet-50, sizes / {document['scale']}, {document['steps']} steps, on "
        f"{document['cores']} cores, hpcomm {document['hpcomm']}",
        f"# medians of {document['rounds']} rounds; load of the machine before {before:.2f}, after {after:.2f}; wrong "
        f"{sum(row['wrong'] for row in document['rows'])}",
    ]
    if against:
        lines.append(f"# against {against}: ratio of the medians [smallest, largest of a round]")
    head = f"{'here':>12}" + (f" {'against':>12}   ratio" if against else "")
    lines.append(f"{'transport':9} {'ranks':>5}  {'figure':35} {'':11} {head}")
    for row in document["rows"]:
        start = f"{row['transport']:9} {row['ranks']:5}  "
        if row["name"] == "failed":
            lines.append(f"{start}{row['build']} failed {row['times']} x: {row['error']}")
            continue
        line = f"{start}{row['name']:35} {UNITS[row['unit']][0]:11} {shown(row['here'], row['unit']):>12}"
        if against:
            line += f" {shown(row['against'], row['unit']):>12}"
        if row.get("ratio"):
            line += "   {:.3f} [{:.3f}, {:.3f}]".format(*row["ratio"])
        lines.append(line)
    for row in document["growth"]:
        few, many = row["ranks"]
        lines.append(f"# {row['transport']}: from {few} to {many} ranks {row['name']} grows by {row['by']:.2f}")
    return "\n".join(lines)


def numbers(text: str) -> list[int]:
    found = [int(part) for part in text.split(",")]
    if any(ranks < 2 or ranks % 2 for ranks in found):
        raise argparse.ArgumentTypeError(f"{text!r}: numbers of ranks are even")
    return found


def chosen(text: str) -> list[str]:
    found = text.split(",")
    if not set(found) <= set(TRANSPORTS):
        raise argparse.ArgumentTypeError(f"{text!r}: choose from {', '.join(TRANSPORTS)}")
    return found


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.machine.links", description="Cost of a rank's links.")
    parser.add_argument("--ranks", type=numbers, default=[16, 64], help="numbers of ranks, each even, 256 at most")
    parser.add_argument("--transports", type=chosen, default=list(TRANSPORTS), help="shm,tcp")
    parser.add_argument("--against", type=Path, help="the folder of another built package (.../hpcomm), beside it")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each case; builds take turns")
    parser.add_argument("--steps", type=int, default=100, help="steps after the first one")
    parser.add_argument("--seconds", type=float, default=5, help="of the idle part; 0 leaves it out")
    parser.add_argument("--scale", type=int, default=64, help="divides the sizes of ResNet-50's keys")
    parser.add_argument("--death", action="store_true", help="kills a worker at the end")
    parser.add_argument("--contexts", type=int, default=1000, help="contexts that two ranks make and close")
    parser.add_argument("--alive", type=int, default=8, help="contexts that are alive at a time")
    add_quick(parser, "few ranks, small keys and few steps")
    add_output(parser, plot="")
    options = parser.parse_args(arguments)
    if options.quick:
        vars(options).update(QUICK)
    if (
        min(options.rounds, options.steps, options.scale, options.alive) < 1
        or min(options.seconds, options.contexts) < 0
    ):
        parser.error("--rounds, --steps, --scale and --alive must be positive, --seconds and --contexts at least 0")
    return options


def compiled(options: argparse.Namespace) -> dict[str, Path]:
    """Returns the program of each build, by its name in rows."""
    builds = {"here": package()} | ({} if options.against is None else {"against": options.against.resolve()})
    made = {build: BUILD / ("links" if build == "here" else "links-against") for build in builds}
    for build, of in builds.items():
        compile_c(made[build], ["machine/links.c"], of=of)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    programs = compiled(options)
    load_before = os.getloadavg()[0]
    rows: list[Row] = []
    every = list(cases(options))
    total, done = len(every) * options.rounds * len(programs), 0
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("links", total=total)
        for case in every:
            rounds: dict[str, list[Told]] = {build: [] for build in programs}
            for i in range(options.rounds):
                for build in sorted(programs, reverse=i % 2 == 0):
                    rounds[build].append(run(programs[build], case))
                    done += 1
                    bar.update(task, advance=1, description=f"{case.what}, {case.transport}, {case.ranks} ranks")
                    if options.progress is not None:
                        options.progress.write_text(f"{done / total:.4f}")
            rows += rows_of(case, rounds)
    document: Row = {
        "benchmark": "links",
        "cores": cores(),
        "hpcomm": hpcomm.__version__,
        "against": None if options.against is None else str(options.against),
        "keys": len(load("resnet50").keys),
        "scale": options.scale,
        "steps": options.steps,
        "rounds": options.rounds,
        "load": [load_before, os.getloadavg()[0]],
        "rows": rows,
        "growth": list(growth(rows)),
    }
    text = json.dumps(document, indent=1)
    write(options, text)
    print(text if options.json else table(document), flush=True)
    return 1 if any(row["wrong"] for row in rows) or any("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

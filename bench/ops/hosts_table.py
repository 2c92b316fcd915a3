"""Tabulates the runs of hosts_bench, and judges them by the targets of issue 17. Needs neither MPI nor hpcomm."""

from collections.abc import Iterator, Sequence

import numpy as np

from bench.common.judge import Promise, compare, library, span, table
from bench.ops.remote import unasked
from hpcomm.bench.plots import named_size
from hpcomm.bench.rows import Row, ratio

BOUNDS = {"2x2": 1.12, "2x4": 1.15, "4x4": 1.25, "2x2x1": 1.15}  # of the bound, at most
COMPOSITE = {"4x2": 2.0}  # least ratio to the best composite with Open MPI's defaults; elsewhere 1
SAME = {"4x2": ("4x1", 1.10)}  # most, relative to the same with one rank on a host
TREE = 1.15  # of the tree's bound, at most
ALONE = 1.02  # most, relative to the flat way, where hosts have nothing to fold
FLAT = {"hpcomm auto": "hpcomm Python", "hpcomm C auto": "hpcomm C"}
HEAD = ("shape", "who", "median", "p10", "p90", "/ bound")
FIRST, WHO, WIDTH = 7, 52, 9


def median(row: Row) -> float:
    return float(np.median(row["cycles"]))


def bound_of(run: Row) -> Row | None:
    """The least of the bounds."""
    return min((row for row in run["rows"] if row["role"] == "bound"), key=median, default=None)


def ways(run: Row) -> list[Row]:
    return [row for row in run["rows"] if row["role"] == "hpcomm"]


def judged(run: Row, name: str) -> bool:
    """Returns whether the target applies to this contender."""
    return name.endswith(" racks" if run["racks"] > 1 else " auto")


def mpi_of(run: Row) -> str:
    return library(run) if run["settings"] == "defaults" else f"{library(run)} by {run['settings']}"


def lines(document: Row) -> list[str]:
    found = [f"# hosts_bench: {named_size(document['size'])}, hpcomm {document['hpcomm']}, wire: {document['wire']}"]
    for run in document["runs"]:
        links = f"links of {document['rate']}"
        links += f", of {document['uplink']} for each of {run['racks']} racks" if run["racks"] > 1 else ""
        where = f"{run['hosts']} hosts, {run['ranks']} ranks, {links}, bucket {run['burst']}, {mpi_of(run)}"
        columns = [f"/ {row['name'].removeprefix('hpcomm ')}" for row in ways(run)]
        found += [f"\n# {run['benchmark']}: {where}", "# " + _line([*HEAD, *columns, "#wrong"])]
        bound = bound_of(run)
        for row in run["rows"]:
            times = [1e3 * float(np.percentile(row["cycles"], percent)) for percent in (50, 10, 90)]
            cells = [run["shape"], row["name"], *(f"{time:.1f}" for time in times)]
            cells.append("" if bound is None else f"{ratio(row, bound)[0]:.3f}")
            cells += [f"{ratio(row, way)[0]:.3f}" for way in ways(run)]
            found.append("  " + _line([*cells, str(row["wrong"])]))
    promised = list(promises(document))
    return [*found, *(["", table(promised)] if promised else [])]


def promises(document: Row) -> list[Promise]:
    runs = [run for run in document["runs"] if run["benchmark"] == "push_pull"]
    found = [promise for run in runs for row in ways(run) for promise in of_row(row, run, runs)]
    return found + [promise for run in document["runs"] if run not in runs for promise in of_trees(run)]


def of_trees(run: Row) -> Iterator[Promise]:
    """Judges each tree by that tree's bound; a star stands there only for comparison."""
    bounds = {row["name"].removesuffix(" (bound)"): row for row in run["rows"] if row["role"] == "bound"}
    for row in ways(run):
        tree = row["name"].removeprefix("hpcomm ")
        if tree in bounds:
            what = f"{run['shape']}, {row['name']}, {mpi_of(run)}: / bound"
            yield at_most_of(what, row, bounds[tree], TREE, tree != "flat")


def of_row(row: Row, run: Row, runs: Sequence[Row]) -> Iterator[Promise]:
    shape, name, bound = run["shape"], row["name"], bound_of(run)
    asked, what = judged(run, name), f"{shape}, {name}, {mpi_of(run)}"
    peers = [other for other in run["rows"] if other["role"] == "peer"]
    if bound is not None:
        at_most = BOUNDS.get(shape)
        yield at_most_of(f"{what}: / bound", row, bound, at_most or 1.0, asked and at_most is not None)
    if shape in SAME:
        other, target = SAME[shape]
        alike = [r for r in runs if r["shape"] == other and mpi_of(r) == mpi_of(run)]
        for same in (r for one in alike for r in ways(one) if r["name"] == name):
            yield at_most_of(f"{what}: / {other}", *between(row, same), target, asked)
    if (run["hosts"] == 1 or run["hosts"] == run["ranks"]) and run["racks"] == 1:
        for flat in (r for r in ways(run) if r["name"] == FLAT.get(name)):
            yield at_most_of(f"{what}: / {flat['name']}", row, flat, ALONE, asked)
    if any("update" in peer["name"] for peer in peers):
        target = COMPOSITE.get(shape, 1.0) if mpi_of(run) == "Open MPI" else 1.0
        more = asked and run["hosts"] < run["ranks"]
        promise = compare(f"{what}: best composite /", [row, *peers], name, "update", target)
        yield promise if more else unasked(promise)
    for peer in (peer for peer in peers if "alone" in peer["name"]):
        promise = compare(f"{what}: {peer['name']} /", [row, peer], name, peer["name"], 1.0)
        foreign = "Gloo" in peer["name"] or library(run) == "MPICH"
        yield promise if asked and shape in COMPOSITE and foreign else unasked(promise)


def at_most_of(what: str, row: Row, other: Row, target: float, asked: bool) -> Promise:
    beside = f"{span(median(other))} {other['name']}"
    return Promise(what, span(median(row)), beside, *ratio(row, other), target, at_most=True, asked=asked)


def between(row: Row, other: Row) -> tuple[Row, Row]:
    """Returns the rows of two runs, cut to the same number of cycles."""
    n = min(len(row["cycles"]), len(other["cycles"]))
    return {**row, "cycles": row["cycles"][:n]}, {**other, "cycles": other["cycles"][:n]}


def _line(cells: Sequence[str]) -> str:
    first, who, *rest = cells
    return "  ".join([f"{first:<{FIRST}}", f"{who:<{WHO}}", *(f"{cell:>{WIDTH}}" for cell in rest)]).rstrip()

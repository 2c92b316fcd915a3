"""What the benchmarks' figures look like: lines over size, bars where there is one size. Needs matplotlib."""

import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from bench.common.rows import Row, where

MIB = 1 << 20
STYLES = {"hpcomm": ("-", 2.4), "peer": ("--", 1.4), "bound": (":", 1.8)}
COLOURS = {"hpcomm C": "tab:blue", "hpcomm Python": "tab:cyan"}
OTHERS = {
    "hpcomm": ("tab:green", "tab:purple", "tab:olive"),
    "peer": ("tab:red", "tab:orange", "tab:brown", "tab:pink", "goldenrod", "salmon"),
    "bound": ("black", "tab:gray", "rosybrown", "darkkhaki", "slategray", "tan", "plum", "darkseagreen", "thistle"),
}
Draw = Callable[[Any], None]


def named_size(size: int) -> str:
    units = ((1 << 30, "GiB"), (MIB, "MiB"), (1 << 10, "KiB"))
    return next((f"{size / unit:.4g} {name}" for unit, name in units if size >= unit), f"{size} B")


def milliseconds(row: Row) -> float:
    return 1e3 * float(statistics.median(row["cycles"]))


def microseconds(row: Row) -> float:
    return 1e6 * float(statistics.median(row["cycles"]))


def gigabytes(row: Row) -> float:
    """GB/s of the median."""
    return float(row["size"] / statistics.median(row["cycles"]) / 1e9)


def title(document: Row) -> str:
    facts = (f"hpcomm {document['hpcomm']}", f"{document['ranks']} ranks {where(document)}")
    return ", ".join((*facts, document["mpi"].split(",")[0]))


def figure(path: Path, draws: Sequence[Draw], heading: str, columns: int = 3) -> bool:
    """One panel for each of draws, which gets matplotlib axes; False where there is no matplotlib."""
    try:
        import matplotlib  # noqa: PLC0415
    except ModuleNotFoundError:
        print("# no plot: pip install matplotlib", file=sys.stderr)
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    columns = min(columns, len(draws))
    lines = -(-len(draws) // columns)
    made, axes = plt.subplots(
        lines, columns, figsize=(max(8, 6 * columns), 5.5 * lines), layout="constrained", squeeze=False
    )
    for axis, draw in zip(axes.flat, draws, strict=False):
        draw(axis)
    for axis in axes.flat[len(draws) :]:
        axis.set_visible(False)
    made.suptitle(heading)
    made.savefig(path, dpi=110)
    plt.close(made)
    return True


def over_size(axis: Any, rows: Sequence[Row], heading: str, unit: str, value: Callable[[Row], float]) -> None:
    """A line for each contender over the size of one operation."""
    free = {role: iter(colours) for role, colours in OTHERS.items()}
    for name in dict.fromkeys(row["name"] for row in rows):
        own = [row for row in rows if row["name"] == name]
        dashes, width = STYLES[own[0]["role"]]
        colour = COLOURS.get(name) or next(free[own[0]["role"]], "tab:olive")
        points = [(row["size"], value(row)) for row in own]
        axis.plot(*zip(*points, strict=True), dashes, color=colour, linewidth=width, marker="o", ms=4, label=name)
    axis.set_xscale("log", base=2)
    axis.set_yscale("linear" if unit == "GB/s" else "log")
    if unit == "GB/s":
        axis.set_ylim(bottom=0)
    ticks(axis, (row["size"] for row in rows))
    axis.set(title=heading, xlabel="size", ylabel=unit)
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")


def ticks(axis: Any, sizes: Iterable[int]) -> None:
    chosen = sorted(set(sizes))
    axis.set_xticks(chosen, [named_size(size) for size in chosen], rotation=0 if len(chosen) < 8 else 45)
    axis.minorticks_off()


def bars(axis: Any, rows: Sequence[Row], heading: str) -> None:
    """A bar for each contender of one size."""
    colours = {"hpcomm": "tab:blue", "peer": "tab:red", "bound": "black"}
    times = [milliseconds(row) for row in rows]
    drawn = axis.barh(
        [row["name"].replace(" + ", "\n+ ") for row in rows], times, color=[colours[row["role"]] for row in rows]
    )
    axis.bar_label(drawn, [f"{t:.3g}" for t in times], padding=3)
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set(title=heading, xlabel="time (ms)")


def chunk_name(chunk: int, cores: int = 0, affinity: str = "key") -> str:
    """The contender of chunk_sweep."""
    return f"hpcomm Python, chunks of {named_size(chunk)}{_way(cores, affinity)}"


def _way(cores: int, affinity: str) -> str:
    pairs = f", {cores} QP{'' if cores == 1 else 's'}" if cores else ""
    return pairs + (", by worker" if affinity == "worker" else "")


def sweep(axis: Any, document: Row) -> None:
    """Time over chunk size, of chunk_sweep's largest buffer; a line for each number of queue pairs and affinity."""
    options = document["options"]
    size = max(row["size"] for row in document["rows"])
    found = {row["name"]: row for row in document["rows"] if row["size"] == size}
    for cores, affinity in product(options.get("cores", [0]), options.get("affinity", ["key"])):
        points = [(chunk, found.get(chunk_name(chunk, cores, affinity))) for chunk in sorted(options["chunks"])]
        own = [(chunk, row) for chunk, row in points if row is not None]
        if not own:
            continue
        at, rows = zip(*own, strict=True)
        low, high = ([1e3 * of(row["cycles"]) for row in rows] for of in (min, max))
        label = _way(cores, affinity).removeprefix(", ") or None
        drawn = axis.plot(at, [milliseconds(row) for row in rows], "-o", linewidth=2, label=label)
        axis.fill_between(at, low, high, alpha=0.2, color=drawn[0].get_color())
        if label:
            axis.legend(fontsize="small")
    axis.set_xscale("log", base=2)
    ticks(axis, options["chunks"])
    axis.set_ylim(bottom=0)
    axis.set(title=f"push_pull of {named_size(size)} (band: all cycles)", xlabel="chunk", ylabel="time (ms)")
    axis.grid(alpha=0.3)


def pairs(axis: Any, document: Row) -> None:
    """Exchanges a second of all workers over the number of queue pairs, of chunk_sweep's largest buffer (PHub, figure
    16, right); a line for each chunk size and affinity."""
    options = document["options"]
    size, workers = max(row["size"] for row in document["rows"]), document["ranks"] - options.get("servers", 0)
    found = {row["name"]: row for row in document["rows"] if row["size"] == size}
    for affinity, chunk in product(options.get("affinity", ["key"]), sorted(options["chunks"])):
        points = [(cores, found.get(chunk_name(chunk, cores, affinity))) for cores in sorted(options["cores"])]
        own = [(cores, 1e3 * workers / milliseconds(row)) for cores, row in points if row is not None]
        if own:
            axis.plot(*zip(*own, strict=True), "-o", linewidth=2, label=named_size(chunk) + _way(0, affinity))
    axis.set_xticks(sorted(options["cores"]))
    axis.set_ylim(bottom=0)
    title = f"push_pull of {named_size(size)} by {workers} workers"
    axis.set(title=title, xlabel="queue pairs of a worker", ylabel="exchanges/s, all workers")
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")


def rates(axis: Any, rows: Sequence[Row], heading: str) -> None:
    """GB/s of each contender of one size; between hosts and within one lie two orders of magnitude."""
    colours = {"hpcomm": "tab:blue", "peer": "tab:red", "bound": "black"}
    found = [row["size"] / statistics.median(row["cycles"]) / 1e9 for row in rows]
    drawn = axis.barh([row["name"] for row in rows], found, color=[colours[row["role"]] for row in rows])
    axis.bar_label(drawn, [f"{rate:.3g}" for rate in found], padding=3)
    axis.invert_yaxis()
    wide = max(found) > 20 * min(found)
    axis.set_xscale("log" if wide else "linear")
    axis.margins(x=0.2 if wide else 0.12)
    axis.set(title=heading, xlabel="GB/s (logarithmic)" if wide else "GB/s")


def limits(document: Row, path: Path) -> bool:
    rows = document["rows"]
    largest = max(row["size"] for row in rows)
    chosen = [row for row in rows if row["size"] == largest]
    heading = f"what bounds this machine, {named_size(largest)}"
    return figure(path, [lambda axis: rates(axis, chosen, heading)], title(document))


def benchmark(document: Row, path: Path) -> bool:
    """The plot of a benchmark that has none of its own."""
    rows, name = document["rows"], document["benchmark"]
    sizes = {row["size"] for row in rows}
    if len(sizes) == 1:
        heading = f"{name}, {named_size(*sizes)}"
        return figure(path, [lambda axis: bars(axis, rows, heading)], title(document))
    return figure(path, [lambda axis: over_size(axis, rows, name, "time (us)", microseconds)], title(document))

"""Draws the benchmarks' figures with matplotlib: lines over size, or bars if all rows have one size."""

import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from .rows import Row, where

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
    return float(row["size"] / statistics.median(row["cycles"]) / 1e9)


def title(document: Row) -> str:
    facts = (f"hpcomm {document['hpcomm']}", f"{document['ranks']} ranks {where(document)}")
    return ", ".join((*facts, document["mpi"].split(",")[0]))


def figure(path: Path, draws: Sequence[Draw], heading: str, columns: int = 3) -> bool:
    """Draws a figure with one panel for each function in draws, which gets the panel's axes. Returns False, and draws
    nothing, if matplotlib is not installed."""
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
    _bars(axis, rows, [milliseconds(row) for row in rows])
    axis.margins(x=0.12)
    axis.set(title=heading, xlabel="time (ms)")


def rates(axis: Any, rows: Sequence[Row], heading: str) -> None:
    """Draws the GB/s of each contender at one size; rates within a host may be a hundred times those between hosts."""
    found = [gigabytes(row) for row in rows]
    _bars(axis, rows, found)
    wide = max(found) > 20 * min(found)
    axis.set_xscale("log" if wide else "linear")
    axis.margins(x=0.2 if wide else 0.12)
    axis.set(title=heading, xlabel="GB/s (logarithmic)" if wide else "GB/s")


def _bars(axis: Any, rows: Sequence[Row], values: Sequence[float]) -> None:
    colours = {"hpcomm": "tab:blue", "peer": "tab:red", "bound": "black"}
    names = [row["name"].replace(" + ", "\n+ ") for row in rows]
    drawn = axis.barh(names, values, color=[colours[row["role"]] for row in rows])
    axis.bar_label(drawn, [f"{value:.3g}" for value in values], padding=3)
    axis.invert_yaxis()


def panel(document: Row) -> Draw:
    rows, name = document["rows"], document["benchmark"]
    sizes = {row["size"] for row in rows}
    if len(sizes) == 1:
        return lambda axis: bars(axis, rows, f"{name}, {named_size(*sizes)}")
    return lambda axis: over_size(axis, rows, name, "time (us)", microseconds)


def panel_of_rates(document: Row) -> Draw:
    largest = max(row["size"] for row in document["rows"])
    chosen = [row for row in document["rows"] if row["size"] == largest]
    return lambda axis: rates(axis, chosen, f"{document['benchmark']}, {named_size(largest)}")


def limits(document: Row, path: Path) -> bool:
    return figure(path, [panel_of_rates(document)], title(document))


def benchmark(document: Row, path: Path) -> bool:
    return figure(path, [panel(document)], title(document))


def together(documents: Sequence[Row], path: Path) -> bool:
    draws = [panel_of_rates(one) if "adapters" in one else panel(one) for one in documents]
    return figure(path, draws, title(documents[0]))

"""Draws bench.sfb: the ways between hosts, the ways over K in a host, and the paper's figure 4. Needs matplotlib."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.sfb.table import (
    ALL,
    AUTO,
    DENSE,
    FLOAT,
    PRODUCT,
    REBUILD,
    TITLES,
    bound,
    cases,
    formulas,
    median,
    of_name,
)
from hpcomm.bench import plots
from hpcomm.bench.rows import Row

STYLES = {ALL: ("tab:blue", "-"), PRODUCT: ("tab:red", "--"), AUTO: ("tab:green", ":")}


def draw(document: Row, path: Path) -> bool:
    panels: list[plots.Draw] = []
    for rows in cases(document, "hosts"):
        first = rows[0]
        heading = f"{first['ranks']} hosts, {first['rows']} x {first['columns']}, K = {first['K']}"
        shown = [row for row in rows if row["name"] != REBUILD]
        if of_name(rows, REBUILD):
            shown.append(bound(document, rows))
        panels += [partial(plots.bars, rows=shown, heading=heading), partial(_figure_4, rows=rows)]
    shapes = dict.fromkeys((rows[0]["rows"], rows[0]["columns"]) for rows in cases(document, "host"))
    panels += [partial(_over_pairs, document=document, shape=shape) for shape in shapes]
    return bool(panels) and plots.figure(path, panels, f"factors, links of {document['rate']}", columns=2)


def _figure_4(axis: Any, rows: Sequence[Row]) -> None:
    """Draws the bytes of a step and the memory of a rank, by formula and as measured."""
    own = [row for row in rows if row["name"] in TITLES]
    series = {
        "bytes of a step, by formula": [formulas(row)[0] for row in own],
        "measured": [row["sent"] for row in own],
        "memory of a rank, W": [formulas(row)[1] * FLOAT for row in own],
        "measured ": [row["memory"] for row in own],
    }
    colours = ("lightsteelblue", "tab:blue", "peachpuff", "tab:orange")
    for i, ((label, values), colour) in enumerate(zip(series.items(), colours, strict=True)):
        at = [k + 0.2 * (i - 1.5) for k in range(len(own))]
        axis.bar(at, [value / 1e6 for value in values], 0.18, label=label, color=colour)
    axis.set_xticks(range(len(own)), [TITLES[row["name"]] for row in own])
    axis.set_yscale("log")
    axis.set(title="figure 4 of the paper", ylabel="MB")
    axis.legend(fontsize="small")


def _over_pairs(axis: Any, document: Row, shape: tuple[int, int]) -> None:
    """Draws the time of a step over K, for each way."""
    own = [row for row in document["rows"] if row["part"] == "host" and (row["rows"], row["columns"]) == shape]
    for name, (colour, dashes) in STYLES.items():
        points = [(row["K"], 1e3 * median(row)) for row in own if row["name"] == name]
        if points:
            axis.plot(*zip(*points, strict=True), dashes, color=colour, marker="o", ms=4, label=name)
    for row in own:
        if row["name"] == DENSE:
            axis.axhline(1e3 * median(row), color="black", ls="-.", lw=1, label="dense, the product given")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set(title=f"two ranks of a host, {shape[0]} x {shape[1]}", xlabel="K", ylabel="time (ms)")
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")

"""Draws bench.poseidon: speedup by hosts and by bandwidth, stall, and trainings. Needs matplotlib."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.ops.hosts_bench import carried
from bench.poseidon.figures_table import linear, stall
from bench.poseidon.systems import ACCURACY, AFTER, CONVERGENCE, PAPER, POSEIDON, WFBP, WHOLE
from hpcomm.bench import plots
from hpcomm.bench.rows import Row

COLOURS = {AFTER: "tab:gray", WHOLE: "tab:orange", WFBP: "tab:red", POSEIDON: "tab:blue", PAPER: "tab:cyan"}
MEAN = 10  # iterations whose mean is one point of a loss curve


def draw(document: Row, path: Path) -> bool:
    """Draws; returns False if there is nothing to draw, or matplotlib is missing."""
    panels: list[plots.Draw] = []
    for group, make in (("scaling", _by_hosts), ("bandwidth", _by_link), ("stall", _stall)):
        rows = [row for row in document["rows"] if row["group"] == group]
        if group == "bandwidth":
            rows = [row for row in rows if row["hosts"] == max(one["hosts"] for one in rows)]
        networks = dict.fromkeys(row["network"] for row in rows)
        panels += [partial(make, rows=[row for row in rows if row["network"] == key], heading=key) for key in networks]
    trainings: dict[str, Callable[..., None]] = {ACCURACY: _accuracy, CONVERGENCE: _one_bit}
    for group, show in trainings.items():
        rows = [row for row in document["rows"] if row["group"] == group]
        panels += [partial(show, rows=rows)] * bool(rows)
    return bool(panels) and plots.figure(path, panels, "Poseidon's figures, by hpcomm", columns=3)


def _lines(axis: Any, rows: Sequence[Row], at: Callable[[Row], float]) -> None:
    for name in dict.fromkeys(row["name"] for row in rows):
        points = sorted((at(row), row["ranks"] * linear(row)[0]) for row in rows if row["name"] == name)
        axis.plot(*zip(*points, strict=True), marker="o", ms=4, color=COLOURS[name], label=name)
    axis.set(ylabel="speedup")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")


def _by_hosts(axis: Any, rows: Sequence[Row], heading: str) -> None:
    hosts = sorted({row["ranks"] for row in rows})
    axis.plot(hosts, hosts, ":", color="black", lw=1, label="linear")
    _lines(axis, rows, lambda row: float(row["ranks"]))
    axis.set_xticks(hosts)
    axis.set(title=f"{heading}, a link for 40 GbE", xlabel="hosts")


def _by_link(axis: Any, rows: Sequence[Row], heading: str) -> None:
    axis.axhline(rows[0]["ranks"], ls=":", color="black", lw=1, label="linear")
    gigabits = {row["link"]: carried(row["link"]) / carried("1gbit") for row in rows}
    _lines(axis, rows, lambda row: gigabits[row["link"]])
    axis.set_xscale("log")
    axis.set_xticks(list(gigabits.values()), [f"{value:g}" for value in gigabits.values()])
    axis.minorticks_off()
    axis.set(title=f"{heading}, {rows[0]['ranks']} hosts, 1 Gb/s for 10 GbE", xlabel="link (Gb/s)")


def _stall(axis: Any, rows: Sequence[Row], heading: str) -> None:
    names = [row["name"] for row in rows]
    waits = [100 * stall(row) for row in rows]
    axis.barh(names, [100 - wait for wait in waits], color="tab:blue", label="computing")
    axis.barh(names, waits, left=[100 - wait for wait in waits], color="lightgray", label="stall")
    axis.invert_yaxis()
    axis.set(title=f"{heading}, {rows[0]['ranks']} hosts", xlabel="of a step (%)")
    axis.legend(fontsize="small", loc="lower left")


def _accuracy(axis: Any, rows: Sequence[Row]) -> None:
    hosts = list(dict.fromkeys(row["hosts"] for row in rows))
    for row in rows:
        ours = row["name"] == rows[0]["name"]
        errors = [100 * error for error in row["errors"]]
        label = f"hosts: {row['hosts']}, batch {row['batch']}" if ours else f"one process, batch {row['batch']}"
        colour = f"C{hosts.index(row['hosts'])}"
        axis.plot(range(1, len(errors) + 1), errors, "-" if ours else ":", color=colour, label=label)
    axis.set(title="a small ResNet", xlabel="epoch", ylabel="test error (%)")
    axis.set_yscale("log")
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")


def _one_bit(axis: Any, rows: Sequence[Row]) -> None:
    second = axis.twinx()
    for row, colour in zip(rows, ("tab:blue", "tab:red"), strict=False):
        points = range(MEAN, len(row["losses"]) + 1, MEAN)
        axis.plot(points, [sum(row["losses"][at - MEAN : at]) / MEAN for at in points], color=colour, label=row["name"])
        second.plot(*zip(*((at, 100 * error) for at, error in row["errors"]), strict=True), "--", color=colour)
    axis.set(title=f"CIFAR-10 quick, {rows[0]['hosts']} hosts", xlabel="iteration", ylabel="loss (lines)")
    second.set(ylabel="test error (%, dashes)")
    axis.legend(fontsize="small")

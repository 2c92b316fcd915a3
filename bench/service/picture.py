"""Draws the figures of bench.service: throughput by the number of tenants (PHub, figure 18), and steps by neighbour."""

import functools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.service.neighbours import ALONE
from hpcomm.bench import plots
from hpcomm.bench.rows import Row


def draw(document: Row, path: Path) -> bool:
    shared = [row for row in document["rows"] if "tenants" in row]
    trained = [row for row in document["rows"] if "computing" in row]
    steps = [row for row in document["rows"] if row["line"] == "h"]
    panels: list[plots.Draw] = [functools.partial(throughput, rows=shared)] if shared else []
    if trained:
        panels.append(functools.partial(jobs, rows=trained))
    for place in dict.fromkeys(row["place"] for row in steps):
        panels.append(functools.partial(times, rows=[row for row in steps if row["place"] == place], place=place))
    if not panels:
        raise SystemExit("service: --plot needs a line sharing, training or neighbours")
    return plots.figure(path, panels, f"the hub as a service, hpcomm {document['hpcomm']}, {document['cores']} cores")


def throughput(axis: Any, rows: Sequence[Row]) -> None:
    by_number(axis, rows, "tenants", "all tenants, no computing")


def jobs(axis: Any, rows: Sequence[Row]) -> None:
    by_number(axis, rows, "jobs", "a job that computes")


def by_number(axis: Any, rows: Sequence[Row], number: str, title: str) -> None:
    """Draws throughput over the number of jobs, beside that of one job. A cycle is the time of a step."""
    for place in dict.fromkeys(row["place"] for row in rows):
        own = [row for row in rows if row["place"] == place]
        one = statistics.median(own[0]["cycles"])
        numbers = [row[number] for row in own]
        low, high = ([one / edge(row["cycles"]) for row in own] for edge in (max, min))
        axis.fill_between(numbers, low, high, alpha=0.2)
        axis.plot(numbers, [one / statistics.median(row["cycles"]) for row in own], marker="o", label=place)
    axis.set(title=title, xlabel=number, ylabel="throughput / one's", ylim=(0, None))
    axis.set_xticks(sorted({row[number] for row in rows}))
    axis.grid(alpha=0.3)
    axis.legend()


def times(axis: Any, rows: Sequence[Row], place: str) -> None:
    for part, name in (("p99", "p99"), ("cycles", "p50")):
        values = [1e3 * statistics.median(row[part]) for row in rows]
        axis.barh([row["name"] for row in rows], values, color=["tab:blue", "tab:cyan"][part == "p99"], label=name)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set(title=f"a step of 1 MiB, {place}: {ALONE}, and by neighbour", xlabel="ms")
    axis.legend()

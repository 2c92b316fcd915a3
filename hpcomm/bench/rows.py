"""The rows that benchmarks write, ratios of rows, and the printed table.

A row is a dict with the results of one contender at one size. Times are in seconds, bandwidths in GB/s. Its entries are
size, count, type, name, role, time (mean), algbw, busbw, wrong, p50, p90, p99, cycles (the median of each cycle) and
processor (processor seconds of an operation in each cycle, the median of the ranks; may be empty). docs/bench.md says
how each is computed.
"""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]

WIDTHS = (12, 12, 8, 50, 11, 8, 8, 7, 11, 11, 11, 8, 9)
HEADER = (
    "size",
    "count",
    "type",
    "who",
    "time",
    "algbw",
    "busbw",
    "#wrong",
    "p50",
    "p90",
    "p99",
    "x time",
    "processor",
)
SUBHEADER = ("(B)", "(elements)", "", "", "{}", "(GB/s)", "(GB/s)", "", "{}", "{}", "{}", "", "{}")


def ratio(over: Row, under: Row) -> tuple[float, float, float]:
    """Returns the ratio of two rows' median cycle times, and the least and the largest ratio within one cycle."""
    each = [a / b for a, b in zip(over["cycles"], under["cycles"], strict=True)]
    return statistics.median(over["cycles"]) / statistics.median(under["cycles"]), min(each), max(each)


def named(rows: Iterable[Row], part: str) -> Row:
    """Returns the fastest row whose name contains part."""
    return min((row for row in rows if part in row["name"]), key=lambda row: statistics.median(row["cycles"]))


def short_library(mpi: str) -> str:
    return "MPICH" if "MPICH" in mpi else mpi.partition(" v")[0].partition(",")[0]


def where(facts: Row) -> str:
    """Returns text about a run's hosts or cores, and its transport, such as "on 2 hosts by tcp"."""
    hosts = facts.get("hosts", 1)
    place = f"on {hosts} hosts" if hosts > 1 else f"on {facts['cores']} cores"
    return f"{place} by {facts['transport']}" if facts.get("transport") else place


def line(cells: Sequence[object]) -> str:
    text = [f"{cell:<{w}}" if i == 3 else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(cells, WIDTHS, strict=True))]
    return "  ".join(text)


def table(rows: list[Row], scale: float) -> list[str]:
    """Returns the lines of one size. Column "x time" is a row's median time over hpcomm's: over that of "hpcomm C" for
    bounds, if it ran, otherwise of "hpcomm Python"."""
    ours = {r["name"]: r for r in rows if r["role"] == "hpcomm"}
    lines = []
    for r in rows:
        base = (ours.get("hpcomm C") if r["role"] == "bound" else None) or ours.get("hpcomm Python")
        times = "" if base is None or r["role"] == "hpcomm" else f"{ratio(r, base)[0]:.2f}"
        bandwidths = [f"{r[key]:.2f}" for key in ("algbw", "busbw")]
        latencies = [f"{scale * r[key]:.3f}" for key in ("p50", "p90", "p99")]
        cells = [r["size"], r["count"], r["type"], r["name"], f"{scale * r['time']:.3f}", *bandwidths, r["wrong"]]
        used = f"{scale * statistics.median(r['processor']):.3f}" if r.get("processor") else ""
        lines.append(line([*cells, *latencies, times, used]))
    return lines

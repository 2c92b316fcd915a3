"""Judges promises by a benchmark's figures: against the fastest peer or a bound, by ratios of medians."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hpcomm.bench.rows import Row, named, ratio, short_library


@dataclass(frozen=True)
class Promise:
    """One line of the final table.

    Attributes:
        value, low, high: a ratio and its smallest and largest value in a cycle, or a share of a core.
        asked: False if the figure has no target, and only stands beside the others.
        missing: why it was not measured, or "".
    """

    what: str
    ours: str
    other: str
    value: float
    low: float
    high: float
    target: float
    at_most: bool = False
    unit: str = "x"
    asked: bool = True
    missing: str = ""

    @property
    def met(self) -> bool:
        if self.missing:
            return False
        return self.value <= self.target if self.at_most else self.value >= self.target

    @property
    def verdict(self) -> str:
        if self.missing:
            return "not measured"
        return "" if not self.asked else "met" if self.met else "MISSED"


def of_size(document: Row, size: int) -> list[Row]:
    return [row for row in document["rows"] if row["size"] == size]


def sizes(document: Row) -> list[int]:
    return sorted({row["size"] for row in document["rows"]})


def span(seconds: float) -> str:
    return f"{seconds * 1e6:.3f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def compare(what: str, rows: list[Row], ours: str, other: str, target: float, at_most: bool = False) -> Promise:
    """Compares hpcomm's row with the fastest of the others: their time over hpcomm's or, with at_most, hpcomm's over
    theirs."""
    mine, theirs = named(rows, ours), named(rows, other)
    value, low, high = ratio(mine, theirs) if at_most else ratio(theirs, mine)
    times = [span(statistics.median(row["cycles"])) for row in (mine, theirs)]
    return Promise(what, times[0], f"{times[1]} {theirs['name']}", value, low, high, target, at_most)


def library(document: Row) -> str:
    return short_library(document["mpi"])


def table(found: Sequence[Promise]) -> str:
    head = ("what", "hpcomm", "peer or bound", "ratio", "spread", "target", "")
    lines = [head]
    for p in found:
        sign = "<=" if p.at_most else ">="
        unit = "" if p.unit == "x" else " %" if "%" in p.unit else p.unit
        target = f"{sign} {p.target:g}{unit}" if p.asked else ""
        spread = f"{p.low:.2f} .. {p.high:.2f}"
        figures = ("-", p.missing) if p.missing else (f"{p.value:.2f}{unit}", spread)
        lines.append((p.what, p.ours, p.other, *figures, target, p.verdict))
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)

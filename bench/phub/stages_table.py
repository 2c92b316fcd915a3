"""Makes the table and the stacked bars of bench.phub.stages from its rows. Needs neither MPI nor hpcomm."""

import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from hpcomm.bench import plots
from hpcomm.bench.rows import Row, short_library

COMPUTE, COPY, AGGREGATION, OPTIMIZATION, SYNCHRONIZATION = STAGES = (
    "compute",
    "+ data copy",
    "+ aggregation",
    "+ optimization",
    "+ synchronization",
)
OURS, PLAIN = "hpcomm", "MPI + NumPy"
STACKS = {PLAIN: "as figure 5", OURS: "as figure 14"}
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:gray")
HEAD = ("shape", "network", "stack", "stage", "step", "least", "most", "added", "share", "#wrong")
UNITS = ("", "", "", "", "(ms)", "(ms)", "(ms)", "(ms)", "(%)", "")
WIDTHS = (5, 12, 11, 17, 9, 9, 9, 9, 7, 6)


def median(row: Row) -> float:
    return float(statistics.median(row["cycles"]))


def breakdowns(document: Row) -> list[list[Row]]:
    """Groups the rows by shape, network and stack, in the order of the stages."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in document["rows"]:
        found.setdefault((row["shape"], row["network"], row["stack"]), []).append(row)
    return [sorted(rows, key=lambda row: STAGES.index(row["stage"])) for rows in found.values()]


def added(rows: Sequence[Row]) -> list[float]:
    """Returns the seconds that each stage adds to a step: the part that earlier stages could not hide. A negative
    number is noise of two measurements, or the gain of one pass over two."""
    steps = [0.0, *map(median, rows)]
    return [after - before for before, after in pairwise(steps)]


def lines(document: Row) -> Iterator[str]:
    yield (
        f"# stages: links of {document['rate']}, bucket {document['burst']}, which stand for "
        f"{document['stands_for']:g} Gb/s; hpcomm {document['hpcomm']}, {short_library(document['mpi'])}"
    )
    for rows in breakdowns(document):
        first = rows[0]
        figure, size = STACKS[first["stack"]], plots.named_size(first["size"])
        yield f"\n# {first['stack']} by {first['transport']}, {figure}: {first['keys']} keys, {size}"
        yield from ("# " + _line(HEAD), "# " + _line(UNITS))
        for row, more in zip(rows, added(rows), strict=True):
            times = (median(row), min(row["cycles"]), max(row["cycles"]), more)
            cells = [row["shape"], row["network"], row["stack"], row["stage"]]
            cells += [f"{1e3 * value:.2f}" for value in times]
            yield "  " + _line([*cells, f"{100 * more / median(rows[-1]):.1f}", str(row["wrong"])])


def _line(words: Sequence[str]) -> str:
    pairs = enumerate(zip(words, WIDTHS, strict=True))
    return "  ".join(f"{word:<{w}}" if i < 4 else f"{word:>{w}}" for i, (word, w) in pairs).rstrip()


def draw(document: Row, path: Path) -> bool:
    """Draws stacked bars, a panel for each shape."""
    every = breakdowns(document)
    shapes = dict.fromkeys(rows[0]["shape"] for rows in every)
    panels: list[plots.Draw] = [
        partial(_bars, each=[rows for rows in every if rows[0]["shape"] == shape], heading=f"hosts x ranks: {shape}")
        for shape in shapes
    ]
    return plots.figure(path, panels, f"stages of a step (PHub, figures 5 and 14), hpcomm {document['hpcomm']}")


def _bars(axis: Any, each: Sequence[Sequence[Row]], heading: str) -> None:
    """Draws the bars; a stage that adds nothing has no part."""
    names = [f"{rows[0]['network']}\n{rows[0]['stack']}" for rows in each]
    ends = [0.0] * len(each)
    for i, (stage, colour) in enumerate(zip(STAGES, COLOURS, strict=True)):
        steps = [max(end, 1e3 * median(rows[i])) for end, rows in zip(ends, each, strict=True)]
        widths = [step - end for step, end in zip(steps, ends, strict=True)]
        axis.barh(names, widths, left=ends, color=colour, label=stage.removeprefix("+ "))
        ends = steps
    axis.invert_yaxis()
    axis.set(title=heading, xlabel="step (ms)")
    axis.legend(fontsize="small")

"""Tabulates the rows of torch.step, judges its promises and plots them. Needs neither torch nor MPI nor hpcomm."""

import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.common.judge import Promise, span, table
from hpcomm.bench import plots
from hpcomm.bench.rows import Row, ratio

ALONE, DDP = "alone", "DDP over Gloo"
STEP, BACKWARD, WAITS = "hpcomm, step", "hpcomm, backward", "hpcomm, waits"
HEAD = (
    "model",
    "parameters",
    "ranks",
    "who",
    "step",
    "p90",
    "cost",
    "of DDP's",
    "spread",
    "/ alone",
    "spread",
    "tail",
    "processor",
    "#wrong",
)
UNITS = ("", "", "", "", "(ms)", "(ms)", "(ms)", "", "", "", "", "(ms)", "(ms)", "")
WIDTHS = (17, 11, 5, 17, 9, 9, 9, 8, 14, 7, 13, 8, 9, 7)
LOADED = " +load"  # suffix of a model's name: run beside a process that loads one CPU
SLOWER = 1.1  # target of issue 29, relative to DDP's slowdown by such a process
COST, WHOLE, ONE = 1 / 8, 1.05, 1.02  # targets of issue 16 for mlp3, mlp38 and one rank


def times(ranks: Sequence[list[list[float]]]) -> dict[str, Any]:
    """Makes the times of a row. ranks: by rank and cycle, the seconds of each step. Step k of a cycle is averaged
    over the ranks."""
    cycles = [[statistics.fmean(step) for step in zip(*own, strict=True)] for own in zip(*ranks, strict=True)]
    samples = [second for cycle in cycles for second in cycle]
    p50, p90, p99 = (float(np.percentile(samples, percent)) for percent in (50, 90, 99))
    medians = [statistics.median(cycle) for cycle in cycles]
    return {"time": statistics.fmean(samples), "p50": p50, "p90": p90, "p99": p99, "cycles": medians}


def median(row: Row) -> float:
    return float(statistics.median(row["cycles"]))


def processor(row: Row) -> float:
    """Returns the processor seconds of a rank in a step: the median over cycles of the median over ranks."""
    return float(statistics.median(row["processor"]))


def beside(document: Row, row: Row) -> dict[str, Row]:
    """Returns the rows of the same model and number of ranks, by name."""
    return {
        other["name"]: other
        for other in document["rows"]
        if (other["model"], other["ranks"]) == (row["model"], row["ranks"])
    }


def cost(row: Row, others: dict[str, Row]) -> tuple[float, float, float]:
    """Returns the exchange's cost over DDP's cost: of the medians, and the least and greatest of a cycle."""
    alone, ddp = others[ALONE], others[DDP]
    each = [
        (own - base) / (theirs - base)
        for own, base, theirs in zip(row["cycles"], alone["cycles"], ddp["cycles"], strict=True)
        if theirs != base
    ]
    whole = (median(row) - median(alone)) / (median(ddp) - median(alone))
    return whole, min(each), max(each)


def cells(document: Row, row: Row) -> list[str]:
    others = beside(document, row)
    found = [row["model"], f"{row['parameters']:,}", str(row["ranks"]), row["name"]]
    found += [f"{1e3 * median(row):.2f}", f"{1e3 * row['p90']:.2f}"]
    if row["name"] == ALONE or ALONE not in others:
        found += [""] * 5
    else:
        found.append(f"{1e3 * (median(row) - median(others[ALONE])):.2f}")
        value, low, high = cost(row, others) if DDP in others and row["name"] != DDP else (0.0, 0.0, 0.0)
        found += [f"{value:.3f}", f"{low:.2f} .. {high:.2f}"] if value else ["", ""]
        value, low, high = ratio(row, others[ALONE])
        found += [f"{value:.3f}", f"{low:.2f} .. {high:.2f}"]
    found.append(f"{1e3 * median(row['tail']):.2f}" if "tail" in row else "")
    found.append(f"{1e3 * processor(row):.2f}" if "processor" in row else "")
    return [*found, str(row["wrong"])]


def line(words: Sequence[str]) -> str:
    left = {0, 3}
    text = [
        f"{cell:<{w}}" if i in left else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(words, WIDTHS, strict=True))
    ]
    return "  ".join(text).rstrip()


def rows(document: Row, head: bool = True) -> list[str]:
    found = []
    if head:
        found.append(
            f"# torch.step: {document['cores']} cores, hpcomm {document['hpcomm']}, torch {document['torch']}, "
            f"{document['mpi']}"
        )
        found += ["# " + line(HEAD), "# " + line(UNITS)]
    return found + ["  " + line(cells(document, row)) for row in document["rows"]]


def promises(document: Row) -> Iterator[Promise]:
    """Judges the step with overlap=True. Other ways are shown beside it, without a target."""
    for row in document["rows"]:
        others = beside(document, row)
        if row["role"] != "hpcomm" or ALONE not in others:
            continue
        if row["model"].endswith(LOADED):
            yield from slower(document, row, others)
            continue
        where = f"{row['model']}, {row['ranks']} rank{'s' if row['ranks'] > 1 else ''}, {row['name']}"
        own, asked = span(median(row)), row["name"] == STEP
        of = partial(Promise, at_most=True, asked=asked)
        alone = f"{span(median(others[ALONE]))} {ALONE}"
        if row["ranks"] == 1:
            yield of(f"{where}: step / plain torch", own, alone, *ratio(row, others[ALONE]), ONE)
            continue
        if row["model"] == "mlp38":
            yield of(f"{where}: step / alone", own, alone, *ratio(row, others[ALONE]), WHOLE)
        if DDP in others:
            ddp = f"{span(median(others[DDP]))} {DDP}"
            if row["model"] == "mlp3":
                yield of(f"{where}: cost / DDP's", own, ddp, *cost(row, others), COST)
            yield of(f"{where}: step / DDP's", own, ddp, *ratio(row, others[DDP]), 1.0)
        if row["name"] == WAITS and STEP in others:
            yield of(
                f"{where}: step / overlap's",
                own,
                f"{span(median(others[STEP]))} {STEP}",
                *ratio(row, others[STEP]),
                1.0,
            )


def slower(document: Row, row: Row, others: dict[str, Row]) -> Iterator[Promise]:
    """Returns the slowdown of a step beside a process that loads one CPU, relative to DDP's slowdown."""
    before = beside(document, {**row, "model": row["model"].removesuffix(LOADED)})
    if DDP not in others or row["ranks"] == 1:
        return
    mine, theirs = ratio(row, before[row["name"]])[0], ratio(others[DDP], before[DDP])[0]
    quads = zip(*(one["cycles"] for one in (row, before[row["name"]], others[DDP], before[DDP])), strict=True)
    each = sorted(a / b / (c / d) for a, b, c, d in quads)
    what = f"{row['model']}, {row['ranks']} ranks, {row['name']}: slowdown / DDP's"
    asked = row["name"] in {STEP, WAITS}
    spread = (mine / theirs, each[0], each[-1])
    yield Promise(what, f"{mine:.2f} x", f"{theirs:.2f} x {DDP}", *spread, SLOWER, at_most=True, asked=asked)


def verdicts(document: Row) -> list[str]:
    """The promises as lines."""
    found = list(promises(document))
    return ["", table(found)] if found else []


def draw(document: Row, path: Path) -> bool:
    """Draws bars of a step for each model and number of ranks."""
    draws: list[plots.Draw] = []
    seen = dict.fromkeys((row["model"], row["ranks"]) for row in document["rows"])
    for model, ranks in seen:
        of = [row for row in document["rows"] if (row["model"], row["ranks"]) == (model, ranks)]
        draws.append(partial(_bars, rows=of, heading=f"{of[0]['title']}, {ranks} rank{'s' if ranks > 1 else ''}"))
    heading = f"a training step, hpcomm {document['hpcomm']}, torch {document['torch']}, {document['cores']} cores"
    return plots.figure(path, draws, heading) if draws else False


def _bars(axes: Any, rows: Sequence[Row], heading: str) -> None:
    values = [1e3 * median(row) for row in rows]
    reach = [[1e3 * abs(median(row) - edge(row["cycles"])) for row in rows] for edge in (min, max)]
    colours = ["tab:gray" if row["name"] == ALONE else "tab:red" if row["name"] == DDP else "tab:cyan" for row in rows]
    axes.barh([row["name"] for row in rows], values, xerr=reach, color=colours, capsize=3)
    axes.invert_yaxis()
    axes.set(title=heading, xlabel="time of a step (ms)")

"""Figures 9 and 10 of Parameter Flow: the share of traffic that thresholds save, by clock, and the steps it costs.

Under SSP the paper compares with its baseline under SSP (section 5.2.2), which pulls less often than under BSP.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bench.common.judge import Promise
from bench.parameter_flow.cases import APPS, DENSE, FULL, LOW, UP, Case
from bench.parameter_flow.times import aim_of, label, of, reached, training, ways
from hpcomm.bench.rows import Row

GROUP, SIZE, RATE, BURST = "traffic", FULL, "1gbit", "256k"
HOSTS, STEPS = 8, 60
WAYS = ((DENSE, 0), (LOW, 0), (UP, 0), (DENSE, 4), (LOW, 4), (UP, 4), (DENSE, 16), (LOW, 16), (UP, 16))
CLOCKS = (1, 2, 5, 10, 20, 30, 50, 78)
ASKED = {"lr": 0.8, "mf": 0.9, "cnn": 0.8}  # of the traffic, at up
STEPS_MORE = 1.05
PAPER = {  # the largest savings in the text: delta and up, under BSP and under SSP(4)
    "lr": {(LOW, 0): 0.50, (UP, 0): 0.80, (LOW, 4): 0.46, (UP, 4): 0.70},
    "mf": {(LOW, 0): 0.82, (UP, 0): 0.90, (LOW, 4): 0.61, (UP, 4): 0.80},
    "cnn": {(LOW, 0): 0.45, (UP, 0): 0.80, (LOW, 4): 0.52, (UP, 4): 0.78, (LOW, 16): 0.40},
}


def cases(options: Any) -> Iterator[Case]:
    for app in options.apps:
        for way, staleness in options.ways or WAYS:
            yield training(GROUP, app, options.size, way, staleness, options.steps or STEPS, 0, options.plant)


def baseline(rows: Sequence[Row], row: Row) -> Row:
    """Returns the dense row with the same staleness, or otherwise the one under BSP."""
    own = of(rows, row["app"], DENSE, row["staleness"]) if row["way"] != DENSE else []
    return (own or of(rows, row["app"], DENSE, 0))[0]


def saved(rows: Sequence[Row], row: Row) -> list[float]:
    """Returns, by clock, 1 less the ratio of a rank's bytes to its baseline's."""
    each = np.diff(row["bytes"], prepend=0.0)
    return list(1 - each / baseline(rows, row)["sent"])


def overall(row: Row, dense: Row) -> float:
    return float(1 - row["sent"] / dense["sent"])


def by_stage(row: Row) -> tuple[float, float]:
    """Returns a rank's bytes in a step: pushes, and the folds or parameters that come back."""
    stages = row.get("stages", {})
    return stages.get("push", 0.0), sum(nbytes for name, nbytes in stages.items() if name != "push")


def steps_of(rows: Sequence[Row], row: Row) -> float | None:
    """Returns the steps to the objective of dense BSP, relative to dense BSP's steps."""
    end, (dense,) = reached(row, aim_of(rows, row)), of(rows, row["app"], DENSE, 0)
    return None if end is None else end[0] / float(dense["taken"])


def lines(document: Row) -> Iterator[str]:
    rows = [row for row in document["rows"] if row["group"] == GROUP]
    if not rows:
        return
    where = f"{rows[0]['ranks']} hosts, {rows[0]['size']}"
    yield f"\n# figures 9 and 10: traffic saved against dense under the same staleness, by clock (%), {where}"
    yield "# all: of all steps; of BSP: against dense BSP; push, fold: MB of a rank in a step"
    yield "# x steps: to the objective of dense BSP, over the steps of dense BSP"
    heads = "".join(f"{clock:>7}" for clock in CLOCKS)
    heads += f"{'all':>7}{'paper':>7}{'of BSP':>8}{'push':>8}{'fold':>8}"
    yield f"# {'app':4}  {'way':15}{heads}{'x steps':>9}{'#wrong':>8}"
    for app, way, staleness in ways(rows):
        (row,) = of(rows, app, way, staleness)
        if (way, staleness) == (DENSE, 0):
            continue
        each, paper = saved(rows, row), PAPER[app].get((way, staleness))
        by_clock = "".join(f"{100 * each[clock - 1]:>7.1f}" if clock <= len(each) else f"{'':>7}" for clock in CLOCKS)
        more = steps_of(rows, row)
        (dense,) = of(rows, app, DENSE, 0)
        cells = f"{100 * overall(row, baseline(rows, row)):>7.1f}{'' if paper is None else f'{100 * paper:.0f}':>7}"
        cells += f"{100 * overall(row, dense):>8.1f}"
        cells += "".join(f"{1e-6 * each:>8.3f}" for each in by_stage(row))
        cells += f"{'never' if more is None else f'{more:.3f}':>9}{row['wrong']:>8}"
        yield f"  {APPS[app].name:4}  {label(way, staleness):15}{by_clock}{cells}"


def promises(document: Row) -> Iterator[Promise]:
    rows = [row for row in document["rows"] if row["group"] == GROUP]
    for row in rows:
        if row["way"] == DENSE:
            continue
        what = f"{APPS[row['app']].name}, {label(row['way'], row['staleness'])}"
        if (row["way"], row["staleness"]) == (UP, 0):
            share = 100 * overall(row, baseline(rows, row))
            asked = 100 * ASKED[row["app"]]
            yield Promise(
                f"{what}: saved", f"{row['sent'] / 1e6:.1f} MB", "dense", share, share, share, asked, unit="%"
            )
        more = steps_of(rows, row)
        missing = "the objective was not reached" if more is None else ""
        value = more or 0.0
        yield Promise(f"{what}: steps", "", "dense BSP", value, value, value, STEPS_MORE, at_most=True, missing=missing)


def panel(rows: Sequence[Row], axis: Any, app: str) -> None:
    for _, way, staleness in (one for one in ways(rows) if one[0] == app and one[1] != DENSE):
        (row,) = of(rows, app, way, staleness)
        each = saved(rows, row)
        style = {0: "-", 4: "--", 16: ":"}[staleness]
        colour = "tab:blue" if way == LOW else "tab:red"
        axis.plot(
            range(1, len(each) + 1), [100 * value for value in each], style, color=colour, label=label(way, staleness)
        )
    axis.axhline(100 * ASKED[app], color="black", lw=0.8)
    axis.set(title=APPS[app].name, xlabel="clock", ylabel="traffic saved (%)")
    axis.set_ylim(0, 100)
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")

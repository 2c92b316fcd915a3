"""Figures 12 and 13 of Parameter Flow: time to an objective, computing and communicating apart, and the speed-up."""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from bench.common.judge import Promise, span
from bench.ops.hosts_bench import carried
from bench.parameter_flow.cases import APPS, DENSE, FULL, LOW, UP, Case
from hpcomm.bench.rows import Row

GROUP, SIZE, RATE, BURST = "time", FULL, "1gbit", "256k"
HOSTS, STEPS, CYCLES = 8, 40, 3
WAYS = ((DENSE, 0), (LOW, 0), (UP, 0), (DENSE, 16), (LOW, 4), (UP, 4), (LOW, 16), (UP, 16))
ASKED = {"lr": (2.4, 3.6), "mf": (1.8, 2.1), "cnn": (2.2, 3.6)}  # under BSP and SSP(16)
PAPER = {"lr": (2.4, 4.3), "mf": (1.4, 1.7), "cnn": (2.2, 3.2)}
NEAR = 1.25  # of a step's bound
# Looks at the objective: first and last, as parts of the steps of dense BSP, and steps between two looks.
FIRST, LAST, EVERY = 0.9, 1.3, 2
OVERSHOT = 1e-6  # rounding tolerance of an objective, relative


def cases(options: Any) -> Iterator[Case]:
    steps = options.steps or STEPS
    for app in options.apps:
        for cycle in range(options.run_cycles or CYCLES):
            ways = options.ways or WAYS
            turn = ways[cycle % len(ways) :] + ways[: cycle % len(ways)]  # each cycle begins with another way
            for way, staleness in turn:
                yield training(GROUP, app, options.size, way, staleness, steps, cycle, options.plant)


def training(
    group: str, app: str, size: str, way: str, staleness: int, steps: int, cycle: int, plant: bool = False
) -> Case:
    """Returns a training that can reach the objective that dense BSP reaches after this many steps."""
    first = (way, staleness) == (DENSE, 0)
    most = steps if first else math.ceil(LAST * steps)
    looks = (steps,) if first else (*range(math.ceil(FIRST * steps), most, EVERY), most)
    return Case(group, app, size, way, staleness, cycle, most, looks, plant=plant)


def whole(rows: Sequence[Row], group: str = GROUP) -> list[Row]:
    """Returns the rows of a group from cycles in which dense BSP was trained."""
    own = [row for row in rows if row["group"] == group]
    there = {(row["app"], row["cycle"]) for row in own if (row["way"], row["staleness"]) == (DENSE, 0)}
    return [row for row in own if (row["app"], row["cycle"]) in there]


def aim_of(rows: Sequence[Row], row: Row) -> float:
    """Returns the objective of dense BSP in the cycle of a row."""
    cycle = [one for one in rows if (one["app"], one["cycle"]) == (row["app"], row["cycle"])]
    return float(next(one for one in cycle if (one["way"], one["staleness"]) == (DENSE, 0))["points"][-1][2])


def reached(row: Row, aim: float) -> tuple[float, float] | None:
    """Returns the steps and seconds to an objective, interpolated between two looks; None if it is never reached."""
    before = None
    for step, seconds, objective in row["points"]:
        if objective <= aim * (1 + OVERSHOT):
            if before is None or before[2] <= objective:
                return float(step), float(seconds)
            part = (before[2] - aim) / (before[2] - objective)
            return before[0] + part * (step - before[0]), before[1] + part * (seconds - before[1])
        before = step, seconds, objective
    return None


def wire_of(row: Row) -> float:
    """Returns the seconds of a step in which the busiest link carries its bytes."""
    return float(row["link"] / carried(row["rate"]))


def bound(row: Row) -> float:
    """Returns the least seconds of a step. BSP: the sum of successive parts; SSP: the longest of overlapping parts."""
    wire = wire_of(row)
    if row["staleness"] == 0:
        return float(row["computing"] + wire + row["encode"] + row["decode"])
    return float(max(row["computing"], wire, row["processor"] / row["cores"]))


def of(rows: Sequence[Row], app: str, way: str, staleness: int) -> list[Row]:
    """The cycles of one way."""
    return [row for row in rows if (row["app"], row["way"], row["staleness"]) == (app, way, staleness)]


def ways(rows: Sequence[Row]) -> Iterator[tuple[str, str, int]]:
    yield from dict.fromkeys((row["app"], row["way"], row["staleness"]) for row in rows)


def speedups(rows: Sequence[Row], app: str, way: str, staleness: int) -> list[float]:
    """Returns, by cycle, dense BSP's seconds to its objective over the way's seconds; empty if some cycle never gets
    there."""
    found = []
    for row in of(rows, app, way, staleness):
        aim = aim_of(rows, row)
        base = next(one for one in of(rows, app, DENSE, 0) if one["cycle"] == row["cycle"])
        end = reached(row, aim)
        if end is None:
            return []
        found.append(float(base["points"][-1][1] / end[1]))
    return found


def label(way: str, staleness: int) -> str:
    return f"{way}, {f'SSP({staleness})' if staleness else 'BSP'}"


HEAD = (
    "app",
    "way",
    "step",
    "computing",
    "timer",
    "exchange",
    "behind",
    "wire",
    "encode",
    "decode",
    "CPU",
    "bound",
    "x bound",
)
MORE = ("MB", "steps", "time", "comp. s", "comm. s", "speed-up", "spread", "#wrong")
UNITS = ("", "", *["(ms)"] * 4, "", *["(ms)"] * 5, "", "", "", "(s)", "", "", "", "", "")
WIDTHS = (4, 15, 6, 9, 6, 8, 6, 6, 6, 6, 6, 6, 7, 6, 6, 6, 7, 7, 8, 11, 6)


def lines(document: Row) -> Iterator[str]:
    rows = whole(document["rows"])
    if not rows:
        return
    where = f"{rows[0]['ranks']} hosts, {rows[0]['rate']}, {rows[0]['size']}"
    yield f"\n# figures 12 and 13: time to the objective of dense BSP, {where}"
    yield from ("# " + line((*HEAD, *MORE)), "# " + line(UNITS))
    for app, way, staleness in ways(rows):
        yield "  " + line(cells(rows, app, way, staleness))
    yield from (f"# {text}" for text in findings(rows))


def cells(rows: Sequence[Row], app: str, way: str, staleness: int) -> list[str]:
    own = of(rows, app, way, staleness)

    def middle(value: Any) -> float:
        return float(statistics.median(map(value, own)))

    found = [APPS[app].name, label(way, staleness)]
    wire = middle(wire_of)
    parts = [middle(lambda row, part=part: row[part]) for part in ("step", "computing", "compute", "waited")]
    parts += [wire, *(middle(lambda row, part=part: row[part]) for part in ("encode", "decode", "processor"))]
    parts += [middle(bound)]
    found += [f"{1e3 * value:.0f}" for value in parts]
    found.insert(6, f"{middle(lambda row: row.get('behind', 0)):.1f}")
    found += [f"{middle(lambda row: row['step'] / bound(row)):.2f}"]
    found += [f"{middle(lambda row: row['sent']) / 1e6:.1f}"]
    ends = [reached(row, aim_of(rows, row)) for row in own]
    there = [end for end in ends if end is not None]
    if len(there) < len(ends):
        found += ["never", "", "", "", "", ""]
    else:
        steps, seconds = (statistics.median(end[i] for end in there) for i in (0, 1))
        computing = steps * middle(lambda row: row["computing"])
        each = speedups(rows, app, way, staleness)
        found += [f"{steps:.1f}", f"{seconds:.2f}", f"{computing:.2f}", f"{seconds - computing:.2f}"]
        found += [f"{statistics.median(each):.2f}", f"{min(each):.2f}..{max(each):.2f}"]
    return [*found, str(sum(row["wrong"] for row in own))]


def findings(rows: Sequence[Row]) -> Iterator[str]:
    for app in dict.fromkeys(row["app"] for row in rows):
        for staleness, asked, paper in zip((0, 16), ASKED[app], PAPER[app], strict=True):
            each = {way: speedups(rows, app, way, staleness) for way in (LOW, UP)}
            each = {way: found for way, found in each.items() if found}
            if not each:
                continue
            way = max(each, key=lambda name: statistics.median(each[name]))
            ours = statistics.median(each[way])
            yield f"{APPS[app].name}, {label(way, staleness)}: {ours:.2f}x, asked {asked}x, the paper {paper}x"


def promises(document: Row) -> Iterator[Promise]:
    rows = whole(document["rows"])
    for app, way, staleness in ways(rows):
        own = of(rows, app, way, staleness)
        if way == DENSE:
            continue
        each = sorted(row["step"] / bound(row) for row in own)
        what = f"{APPS[app].name}, {label(way, staleness)}: step / bound"
        step = span(statistics.median(row["step"] for row in own))
        yield Promise(what, step, "its bound", statistics.median(each), each[0], each[-1], NEAR, at_most=True)


def panel(every: Sequence[Row], axis: Any, app: str) -> None:
    """Draws computing and communicating to the objective, by way (figure 12), with the speed-up (figure 13)."""
    rows = whole(every)
    names, computing, rest, said = [], [], [], []
    for _, way, staleness in (one for one in ways(rows) if one[0] == app):
        own = of(rows, app, way, staleness)
        ends = [reached(row, aim_of(rows, row)) for row in own]
        if None in ends:
            continue
        steps, seconds = (statistics.median(end[i] for end in ends if end) for i in (0, 1))
        names.append(label(way, staleness))
        computing.append(steps * statistics.median(row["computing"] for row in own))
        rest.append(max(0.0, seconds - computing[-1]))
        said.append(f"{statistics.median(speedups(rows, app, way, staleness)):.2f}x")
    axis.barh(names, computing, color="tab:blue", label="computing")
    drawn = axis.barh(names, rest, left=computing, color="lightgray", label="communicating")
    axis.bar_label(drawn, said, padding=3)
    axis.invert_yaxis()
    axis.margins(x=0.12)
    bsp, ssp = PAPER[app]
    axis.set(title=f"{APPS[app].name} (paper: BSP {bsp}x, SSP {ssp}x)", xlabel="time to the objective (s)")
    axis.legend(fontsize="small", loc="lower right")


def line(words: Sequence[str]) -> str:
    pairs = enumerate(zip(words, WIDTHS, strict=True))
    return "  ".join(f"{word:<{w}}" if i < 2 else f"{word:>{w}}" for i, (word, w) in pairs).rstrip()

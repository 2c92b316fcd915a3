"""Makes the tables, findings and plots of sfb.apps from the rows that its ranks have written."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from hpcomm.bench import plots
from hpcomm.bench.rows import Row

NAMES = {"mlr": "MLR", "dml": "DML", "sc": "SC", "sdca": "L2-MLR", "text": "MLR text"}
PAPER = {
    "5": "SFB reaches the objective sooner than FMS, and the more so the larger W is",
    "S3": "the same under SSP(20)",
    "6": "SFB takes more samples a second; the progress by samples is the same under BSP; K = 10 to 100 is best",
    "S5": "SFB takes far more samples a second; its progress by samples is a little less than that of FMS",
    "7": "nearly linear, a little less at 12 machines; 17.4x and 15.7x for MLR and L2-MLR on 28",
    "S4": "the same under SSP(20)",
    "8": "SFB waits far less at every staleness; it computes a little longer; some staleness is best",
    "9": "each Q reaches the objective of all peers; from Q = 4 of 11 on it takes as long",
    "S6": "the same under SSP(20)",
    "S7": "SFB sends far less than FMS",
    "text": "as figure 5, MLR on 2.4 million documents of Wikipedia in 325,000 classes",
    "target": "(asked here: 6x where samples pick rows, 3x where they scatter; Q = 4 of 7 in 1.1 of the steps)",
}


def told(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.2f}"


def a_step(row: Row, what: str) -> float:
    """Milliseconds of a step."""
    return float(1e3 * row["run"][what] / max(row["run"]["steps"], 1))


def size_of(row: Row) -> float:
    """MB of W."""
    return float(4e-6 * row["size"][0] * row["size"][1])


def ratio(rows: Sequence[Row], **chosen: Any) -> str:
    """Returns the seconds of the dense way over the seconds of factors."""
    own = [row for row in rows if all(row[name] == value for name, value in chosen.items())]
    found = {row["way"]: row["seconds"] for row in own}
    dense, factors = found.get("dense"), found.get("factors")
    return "" if dense is None or factors is None else f"{dense / factors:.2f}x"


def lines(figure: str, rows: Sequence[Row]) -> Iterator[str]:
    yield f"\n# figure {figure}. The paper: {PAPER[figure]}"
    yield from (f"# {name}" for name in dict.fromkeys(row["data"] for row in rows if row["model"] == "text"))
    columns = (
        f"{'hosts':>6}{'K':>5}{'s':>4}{'Q':>4}{'lr':>7}{'steps':>7}{'time s':>9}{'compute ms':>11}{'exch. ms':>10}"
    )
    yield f"# {'model':8}{'W':>14}  {'way':14}{columns}{'MB a rank':>11}{'samples/s':>11}{'objective':>11}"
    for row in rows:
        run, size = row["run"], "x".join(map(str, row["size"]))
        way = row["way"] + (", scatter" if row["classes_first"] else "")
        rate = row["hosts"] * row["pairs"] * run["steps"] / max(run["seconds"], 1e-9)
        peers = "all" if row["peers"] is None else f"{row['peers']}{'r' * row['relay']}"
        cells = f"{row['hosts']:6}{row['pairs']:5}{row['staleness']:4}{peers:>4}{row['rate']:7.2f}"
        steps = "never" if row["steps_to"] is None else f"{row['steps_to']:.0f}"
        cells += f"{steps:>7}{told(row['seconds']):>9}{a_step(row, 'computed'):11.1f}{a_step(row, 'waited'):10.1f}"
        cells += f"{run['sent'] / 1e6:11.1f}{rate:11.0f}{row['points'][-1][2]:11.4f}"
        yield f"  {NAMES[row['model']]:8}{size:>14}  {way:14}{cells}"
    yield from (f"# ours: {text}" for text in findings(figure, rows))


def findings(figure: str, rows: Sequence[Row]) -> Iterator[str]:
    """Returns the results of a figure, one line each."""
    if figure == "target":
        yield from target_lines(rows)
    if figure in ("6", "S5"):
        for pairs in sorted({row["pairs"] for row in rows}):
            yield f"K = {pairs}: dense / factors {ratio(rows, pairs=pairs)}"
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        finding = of_model(figure, own)
        if finding:
            yield f"{NAMES[model]}: {finding}"


def of_model(figure: str, rows: Sequence[Row]) -> str:
    if figure in ("5", "S3", "text"):
        sizes = list(dict.fromkeys(tuple(row["size"]) for row in rows))
        ratios = [ratio(rows, size=list(size)) for size in sizes]
        largest = [row for row in rows if tuple(row["size"]) == sizes[-1]]
        sent = {row["way"]: row["run"]["sent"] / max(row["run"]["steps"], 1) for row in largest}
        fewer = (
            f"; bytes of a step (figure S7) {sent['dense'] / sent['factors']:.1f}x"
            if len(sent) == 2 and sent["factors"]
            else ""
        )
        return f"dense / factors {', '.join(filter(None, ratios))}, W growing{fewer}"
    if figure in ("7", "S4"):
        times = {row["hosts"]: row["seconds"] for row in rows if row["seconds"]}
        ups = [f"{hosts}: {times[1] / times[hosts]:.2f}x" for hosts in sorted(times) if 1 in times]
        timer = max(row["compute"] * row["hosts"] for row in rows)
        by_timer = f"computing by a timer of {timer:g} s, shared by the hosts" if timer else "no timer"
        return f"speed-up by hosts {', '.join(ups)} (all hosts share the cores of this machine; {by_timer})"
    if figure == "8":
        ratios = [f"s = {s}: {ratio(rows, staleness=s)}" for s in dict.fromkeys(row["staleness"] for row in rows)]
        return f"dense / factors {', '.join(ratios)}"
    if figure in ("9", "S6"):
        each = []
        for row in rows:
            steps = "never" if row["steps_to"] is None else f"{row['steps_to']:.0f}"
            each.append(f"Q = {row['peers'] or row['hosts'] - 1}{', relayed' * row['relay']}: {steps}")
        return f"steps of rank 0 by {'; '.join(each)}"
    return ""


def target_lines(rows: Sequence[Row]) -> Iterator[str]:
    for first, wanted in ((False, 6), (True, 3)):
        own = [row for row in rows if row["classes_first"] == first and row["group"] != "Q"]
        for staleness in sorted({row["staleness"] for row in own}):
            dense = [row["seconds"] for row in own if row["way"] == "dense" and row["seconds"]]
            ours = [
                row["seconds"]
                for row in own
                if row["way"] == "factors" and row["staleness"] == staleness and row["seconds"]
            ]
            if dense and ours:
                how = "scatter" if first else "rows"
                asked = "" if staleness else f", asked {wanted}"
                found = statistics.median(dense) / statistics.median(ours)
                yield f"MLR 4,000 x 5,000, {how}, s = {staleness}: {found:.2f}x{asked}"
    best: dict[tuple[int | None, bool], float] = {}
    for row in rows:
        if row["group"] == "Q" and row["steps_to"]:
            key = row["peers"], row["relay"]
            best[key] = min(row["steps_to"], best.get(key, row["steps_to"]))
    for (peers, relay), steps in best.items():
        if peers is not None:
            least = steps / best[None, False]
            yield f"Q = {peers} of 7{', relayed' * relay}: {least:.2f} of the steps of Q = 7, at best rates, asked 1.1"


def panels(document: Row) -> list[plots.Draw]:
    draws: list[plots.Draw] = []
    for figure, rows in document["figures"].items():
        for model in dict.fromkeys(row["model"] for row in rows):
            own = [row for row in rows if row["model"] == model]
            draws.append(partial(draw, figure, model, own))
    return draws


def draw(figure: str, model: str, rows: Sequence[Row], axis: Any) -> None:
    heading = f"figure {figure}: {NAMES[model]}"
    if figure in ("6", "S5"):
        for row in rows:
            points = np.array([point[:3] for point in row["points"]])
            axis.plot(points[:, 1], points[:, 2], marker=".", label=f"{row['way']}, K = {row['pairs']}")
        axis.set(title=heading, xlabel="seconds", ylabel="objective")
    elif figure == "8":
        for i, row in enumerate(rows):
            parts = [1e-3 * a_step(row, what) * (row["steps_to"] or np.nan) for what in ("computed", "waited")]
            axis.bar(i, parts[0], color="tab:blue", label="computing" if i == 0 else None)
            axis.bar(i, parts[1], bottom=parts[0], color="tab:red", label="exchange" if i == 0 else None)
        axis.set_xticks(range(len(rows)), [f"{row['way']}\ns = {row['staleness']}" for row in rows], fontsize="x-small")
        axis.set(title=heading, ylabel="seconds to the objective")
    else:
        over: dict[str, tuple[str, Callable[[Row], float]]] = {
            "7": ("hosts", lambda row: row["hosts"]),
            "9": ("Q", lambda row: row["peers"] or row["hosts"] - 1),
        }
        over |= {"S4": over["7"], "S6": over["9"], "target": over["9"]}
        label, value = over.get(figure, ("MB of W", size_of))
        for way in dict.fromkeys(row["way"] for row in rows):
            own = sorted((value(row), row["seconds"]) for row in rows if row["way"] == way and row["seconds"])
            if own:
                axis.plot(*zip(*own, strict=True), "-o", label=way)
        axis.set(title=heading, xlabel=label, ylabel="seconds to the objective")
        axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")

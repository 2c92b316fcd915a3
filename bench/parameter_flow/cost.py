"""Section 2.4 of Parameter Flow: the time that is spent communicating if nothing is done about it.

It has AlexNet's shape at a quarter of its parameters, five workers, five servers that do nothing else, and computing by
a timer of a quarter of the paper's time. --paper-size takes the full parameters and the full time.
"""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from bench.common.judge import Promise
from bench.ops.hosts_bench import carried
from bench.parameter_flow.cases import ALEXNET, DENSE, PARTS, QUARTER, Case
from bench.parameter_flow.times import label
from hpcomm.bench.rows import Row

GROUP, SIZE, RATE, BURST = "cost", QUARTER, "1gbit", "256k"
HOSTS, STEPS, CYCLES = 10, 8, 3
ONLY = (ALEXNET,)
WAYS = ((DENSE, 0), (DENSE, 4))
COMPUTING = 1.2  # seconds of the paper's GPU
PAPER = {0: 6.9 / 1.2, 4: 3.6}  # communicating over computing
LEAST = 0.01  # seconds of a timer


def cases(options: Any) -> Iterator[Case]:
    hosts = options.hosts or HOSTS
    size = options.size if options.size in PARTS else SIZE  # other sizes belong to other models
    compute = max(LEAST, COMPUTING / PARTS[size])
    for cycle in range(options.run_cycles or CYCLES):
        for way, staleness in WAYS:
            steps = options.steps or STEPS
            one = Case(GROUP, ALEXNET, size, way, staleness, cycle, steps, servers=hosts // 2, compute=compute)
            yield one if not options.plant else Case(**{**vars(one), "plant": True})


def of(rows: Sequence[Row], staleness: int) -> list[Row]:
    return [row for row in rows if row["group"] == GROUP and row["staleness"] == staleness]


def ratios(rows: Sequence[Row]) -> list[float]:
    """Of each cycle: communicating over computing."""
    return [float((row["step"] - row["computing"]) / row["computing"]) for row in rows]


def lines(document: Row) -> Iterator[str]:
    if not of(document["rows"], 0):
        return
    one = of(document["rows"], 0)[0]
    where = f"{one['ranks'] - one['servers']} workers, {one['servers']} servers, {one['rate']}"
    part = PARTS[one["size"]]
    yield f"\n# section 2.4: AlexNet's shape, {one['size']}, {where}; times {part}: of the whole model"
    head = f"{'computing':>10}{'comm. (s)':>10}{'wire (s)':>9}{f'x {part} (s)':>9}{'paper (s)':>10}"
    yield f"# {'way':15}{head}{'comm./comp.':>12}{'spread':>12}{'paper':>7}{'#wrong':>7}"
    for staleness, paper in PAPER.items():
        own = of(document["rows"], staleness)
        if not own:
            continue
        computing, step, wire = (
            statistics.median(row[part] / by for row in own)
            for part, by in (("computing", 1), ("step", 1), ("link", carried(one["rate"])))
        )
        each = ratios(own)
        said = f"{computing:>10.2f}{step - computing:>10.2f}{wire:>9.2f}{part * (step - computing):>9.2f}"
        said += f"{'6.9' if staleness == 0 else '':>10}{statistics.median(each):>12.2f}"
        spread, wrong = f"{min(each):.2f}..{max(each):.2f}", sum(row["wrong"] for row in own)
        yield f"  {label(DENSE, staleness):15}{said}{spread:>12}{paper:>7.2f}{wrong:>7}"


def promises(document: Row) -> Iterator[Promise]:
    for staleness, paper in PAPER.items():
        each = ratios(of(document["rows"], staleness))
        if each:
            what = f"AlexNet's shape, {label(DENSE, staleness)}: communicating / computing"
            value = statistics.median(each)
            yield Promise(what, "", f"the paper: {paper:.2f}", value, min(each), max(each), paper, asked=False)


def panel(rows: Sequence[Row], axis: Any, app: str) -> None:
    """Communicating over computing, beside the paper's."""
    names = [label(DENSE, staleness) for staleness in PAPER]
    ours = [statistics.median(ratios(of(rows, staleness)) or [0.0]) for staleness in PAPER]
    places = range(len(names))
    axis.bar([place - 0.2 for place in places], ours, 0.4, label="ours")
    axis.bar([place + 0.2 for place in places], list(PAPER.values()), 0.4, label="paper", color="lightgray")
    axis.set_xticks(list(places), names)
    axis.set(title="AlexNet's shape (section 2.4)", ylabel="communicating / computing")
    axis.legend(fontsize="small")

"""Tabulates the figures of bench.poseidon whose networks compute by timer, and its trainings. Needs neither torch
nor hpcomm."""

import statistics
from collections.abc import Iterator, Sequence

from bench.common.judge import Promise, span
from bench.poseidon.systems import ACCURACY, CONVERGENCE, FIGURES, PAPER, POSEIDON
from hpcomm.bench.rows import Row

ASKED = 0.9  # target: share of linear speedup, for figure 8's VGG19 on eight hosts, with 1 Gb/s for 10 GbE
SAID = {  # by the paper's text
    "scaling": "on 32 nodes Caffe+WFBP and Poseidon nearly linear, with VGG19-22K 21.5x and 29.5x; TF 10x with "
    "Inception-V3, and no gain with VGG19; Poseidon 31x with ResNet-152",
    "stall": "Poseidon keeps the GPU busy most of the time, TF waits for parameters, TF+WFBP waits less",
    "bandwidth": "10 GbE, 16 nodes: VGG19 8x by servers, nearly linear by Poseidon; GoogLeNet by servers in both",
    "methods": "VGG19 on 8 nodes: Adam 5x, CNTK's 1-bit 5.8x",
    "ranks": "linear to 4 GPUs of one node; on 4 nodes of 8 GPUs 32x (GoogLeNet) and 28x (VGG19)",
    ACCURACY: "ResNet-152: error 0.24 in less than 90 epochs on 16 and on 32 nodes, as on 8",
    CONVERGENCE: "4 GPUs: exact 0.3 error at iteration 1000, 1-bit 0.5 after 3000",
}
HEAD = ("network", "hosts", "link", "system", "step", "least", "most", "compute", "speedup", "linear", "stall", "CPU")
MORE = ("sent", "factors", "#wrong")
UNITS = ("", "", "", "", "(ms)", "(ms)", "(ms)", "(ms)", "", "", "", "(ms)", "(MB)", "", "")
WIDTHS = (12, 5, 8, 22, 8, 8, 8, 8, 7, 6, 5, 6, 8, 7, 6)


def lines(document: Row) -> Iterator[str]:
    for group, figure in FIGURES.items():
        rows = [row for row in document["rows"] if row["group"] == group]
        if rows:
            yield f"\n# {figure.title}. The paper: {SAID[group]}"
            yield from ("# " + _line((*HEAD, *MORE)), "# " + _line(UNITS))
            yield from ("  " + _line(cells(row)) for row in rows)
    yield from _accuracy([row for row in document["rows"] if row["group"] == ACCURACY])
    yield from _one_bit([row for row in document["rows"] if row["group"] == CONVERGENCE])


def linear(row: Row) -> tuple[float, float, float]:
    """Returns the speedup relative to as many hosts that exchange nothing: of the median, slowest and fastest turn."""
    each = sorted(row["compute"] / cycle for cycle in row["cycles"])
    return statistics.median(each), each[0], each[-1]


def stall(row: Row) -> float:
    """Returns the part of a step in which a rank waits."""
    return float(statistics.median(a / b for a, b in zip(row["stalled"], row["cycles"], strict=True)))


def cells(row: Row) -> list[str]:
    hosts, ranks = row["hosts"], row["ranks"]
    found = [row["network"], str(hosts) if hosts == ranks else f"{hosts}x{ranks // hosts}", row["link"], row["name"]]
    times = (statistics.median(row["cycles"]), min(row["cycles"]), max(row["cycles"]), row["compute"])
    found += [f"{1e3 * value:.0f}" for value in times]
    found += [f"{ranks * linear(row)[0]:.2f}", f"{linear(row)[0]:.3f}", f"{100 * stall(row):.0f} %"]
    found += [f"{1e3 * statistics.median(row['processor']):.0f}", f"{row['sent'] / 1e6:.1f}"]
    return [*found, str(len(row["factors"])), str(row["wrong"])]


def promises(document: Row) -> Iterator[Promise]:
    for row in document["rows"]:
        where = (row["group"], row.get("network"), row.get("link"), row.get("hosts"))
        if where == ("bandwidth", "VGG19", "1gbit", 8) and row["name"] in (POSEIDON, PAPER):
            what = f"figure 8: VGG19, 8 hosts, {row['name']}: of linear"
            step = statistics.median(row["cycles"])
            yield Promise(what, span(step), f"{span(row['compute'])} computing", *linear(row), ASKED)


def _data(rows: Sequence[Row]) -> str:
    return str(rows[0].get("data", "digits"))


def _accuracy(rows: Sequence[Row]) -> Iterator[str]:
    if not rows:
        return
    yield f"\n# figure 9b: a small ResNet on {_data(rows)}, test error (%) by epoch. The paper: {SAID[ACCURACY]}"
    yield f"# {'hosts':>5}{'batch':>7}  {'who':<12}" + "".join(f"{i + 1:>6}" for i in range(len(rows[0]["errors"])))
    for row in rows:
        errors = "".join(f"{100 * error:>6.1f}" for error in row["errors"])
        yield f"  {row['hosts']:>5}{row['batch']:>7}  {row['name']:<12}{errors}"


def _one_bit(rows: Sequence[Row]) -> Iterator[str]:
    if not rows:
        return
    yield f"\n# figure 11: CIFAR-10 quick on {_data(rows)}, {rows[0]['hosts']} hosts. The paper: {SAID[CONVERGENCE]}"
    yield "# iteration  " + "".join(f"{row['name'] + ' loss':>14}{'error (%)':>12}" for row in rows)
    for i, (step, _) in enumerate(rows[0]["errors"]):
        around = [row["losses"][max(0, step - 10) : step] for row in rows]
        parts = zip(rows, around, strict=True)
        own = "".join(f"{statistics.mean(losses):>14.4f}{100 * row['errors'][i][1]:>12.1f}" for row, losses in parts)
        yield f"  {step:>9}  {own}"


def _line(words: Sequence[str]) -> str:
    pairs = enumerate(zip(words, WIDTHS, strict=True))
    return "  ".join(f"{word:<{w}}" if i in (0, 3) else f"{word:>{w}}" for i, (word, w) in pairs).rstrip()

"""Tabulates the rows of bench.poseidon, and judges them by the targets of issue 31. Needs neither torch nor hpcomm."""

import statistics
from collections.abc import Iterator, Sequence

from bench.common.judge import Promise, span, table
from bench.poseidon import figures_table
from bench.torch.table import ALONE, DDP, cost, median, processor
from hpcomm.bench.rows import Row, ratio

FP16, POWER, PEER = "DDP, fp16 hook", "DDP, PowerSGD 4", "Gloo all_gather + sgemm"
HUB, AUTO, SKIPPED, ADAM, ONE_BIT = "hub (WFBP + PS)", "auto", "auto, skip", "Adam's way", "1-bit"
AFTER, COARSE = "PS after backward", "PS, whole tensors"
WAYS = {AFTER: None, COARSE: None, HUB: None, AUTO: "auto", SKIPPED: "auto", ADAM: "adam", ONE_BIT: "1bit"}
HYBRID = tuple(WAYS)
LOSSY = (FP16, POWER, ONE_BIT)
NAMES = (ALONE, DDP, FP16, POWER, PEER, *HYBRID)
OF_ONE = (ALONE, HUB, AUTO)  # of one rank, which exchanges nothing
ROLES = {ALONE: "bound", **dict.fromkeys((DDP, FP16, POWER, PEER), "peer"), **dict.fromkeys(HYBRID, "hpcomm")}
ADAM_OVER = 9.17  # for VGG19 with K = 8 at a quarter of its width and 8 hosts
HEAD = ("model", "hosts", "who", "step", "least", "most", "cost", "of DDP's", "processor", "sent", "#wrong")
UNITS = ("", "", "", "(ms)", "(ms)", "(ms)", "(ms)", "", "(ms)", "(MB)", "")
WIDTHS = (8, 5, 24, 9, 9, 9, 9, 9, 9, 9, 7)


def lines(document: Row) -> list[str]:
    found = [
        f"# poseidon: links of {document['rate']}, hpcomm {document['hpcomm']} by {document['transport']}, "
        f"torch {document['torch']}"
    ]
    for rows in models_of(document):
        one = next(iter(rows.values()))
        found.append(f"\n# {one['title']}: {one['parameters']:,} parameters, wire {span(one['wire'])}")
        found += ["# " + _line(HEAD), "# " + _line(UNITS)]
        found += ["  " + _line(cells(rows, row)) for row in rows.values()]
        for name in (AUTO, SKIPPED):
            if name in rows and rows[name]["ways"]:
                found += [f"\n# {name}, by layer", *("# " + line for line in rows[name]["ways"].splitlines())]
    found += choices(document)
    found += traffic(document)
    found += figures_table.lines(document)
    promised = list(promises(document))
    return [*found, *(["", table(promised)] if promised else [])]


def choices(document: Row) -> list[str]:
    rows = [row for row in document["rows"] if row["group"] == "choice"]
    found = ["\n# random layers: ms of a step by servers and by factors, beside the choice"] if rows else []
    found += [
        "# hosts   rows  columns    K    servers    factors   chosen   of the best   algorithm 1   of the best"
    ] * bool(rows)
    for row in rows:
        took = "".join(f"{1e3 * row[name]:>11.2f}" for name in ("ps", "factors"))
        place = f"  {row['ranks']:>5}{row['rows']:>7}{row['columns']:>9}{row['K']:>5}"
        chosen = f"{row['measured']:>9}{row['measured ratio']:>14.2f}{row['paper']:>14}{row['paper ratio']:>14.2f}"
        found.append(place + took + chosen)
    return found


def traffic(document: Row) -> list[str]:
    rows = [row for row in document["rows"] if row["group"] == "traffic"]
    found = (
        ["\n# figure 10: MB that each node sends and gets in a step of VGG19 at a quarter of its width"] if rows else []
    )
    found += [f"  {row['name']:<10}" + "".join(f"{n / 1e6:>9.2f}" for n in row["nodes"]) for row in rows]
    rows = [row for row in document["rows"] if row["group"] == "table 1"]
    if rows:
        first = rows[0]
        found.append(
            f"\n# table 1: MB of the busiest node, a layer of {first['rows']} x {first['columns']}, K = {first['K']}, "
            f"{first['ranks']} hosts"
        )
        found.append(f"# {'':<10}{'formula':>12}{'counted':>12}{'over':>9}")
    for row in rows:
        formula, counted = table_1(row) / 1e6, max(row["nodes"]) / 1e6
        found.append(f"  {row['name']:<10}{formula:>12.3f}{counted:>12.3f}{counted / formula:>9.4f}")
    return found


def table_1(row: Row) -> float:
    """Returns the paper's bytes of a node that is both server and worker, with float32 values."""
    m, n, k, p = (row[name] for name in ("rows", "columns", "K", "ranks"))
    values = {
        "PS": 2 * m * n * (p + p - 2) / p,
        "SFB": 2 * k * (p - 1) * (m + n),
        "Adam": (p - 1) * (m * n + k * (m + n)),
    }
    return float(4 * values[row["name"]])


def models_of(document: Row) -> list[dict[str, Row]]:
    """Groups the rows by model and number of hosts, then by name."""
    found: dict[tuple[str, int], dict[str, Row]] = {}
    for row in document["rows"]:
        if row["group"] == "steps":
            found.setdefault((row["model"], row["ranks"]), {})[row["name"]] = row
    return list(found.values())


def cells(rows: dict[str, Row], row: Row) -> list[str]:
    base = rows.get(ALONE)
    found = [row["model"], str(row["ranks"]), row["name"]]
    found += [f"{1e3 * value:.1f}" for value in (median(row), min(row["cycles"]), max(row["cycles"]))]
    apart = base is not None and row is not base
    found.append(f"{1e3 * (median(row) - median(base)):.1f}" if base is not None and apart else "")
    found.append(f"{cost(row, rows)[0]:.3f}" if apart and row["name"] != DDP and DDP in rows else "")
    found += [f"{1e3 * processor(row):.1f}", f"{row['sent'] / 1e6:.2f}" if row["sent"] else ""]
    return [*found, str(row["wrong"])]


def promises(document: Row) -> Iterator[Promise]:
    """Judges ratios of the costs of exchanges: a step less the time alone."""
    for rows in models_of(document):
        if ALONE not in rows:
            continue
        if next(iter(rows.values()))["ranks"] == 1:
            if AUTO in rows and HUB in rows:
                told = span(median(rows[AUTO])), f"{span(median(rows[HUB]))} {HUB}"
                yield Promise("one rank: with way / without", *told, *ratio(rows[AUTO], rows[HUB]), 1.0, True)
            continue
        for ours, other, target in (
            (AUTO, DDP, 5.0),
            (SKIPPED, DDP, 10.0),
            (AUTO, HUB, 4.0),
            (AUTO, PEER, 1.0),
            (SKIPPED, PEER, 1.4),
            (SKIPPED, POWER, 1.0),
        ):
            if ours in rows and other in rows:
                yield _less(rows, ours, other, target)
    yield from _chosen([row for row in document["rows"] if row["group"] == "choice"])
    nodes = {row["name"]: row["nodes"] for row in document["rows"] if row["group"] == "traffic"}
    if nodes:
        adam, ours = max(nodes["Adam"]), max(nodes["Poseidon"])
        asked = max(ADAM_OVER, adam / ours) / min(ADAM_OVER, adam / ours)
        what = f"figure 10: busiest node, Adam / Poseidon; {ADAM_OVER} by table 1, off by"
        yield Promise(
            what, f"{ours / 1e6:.2f} MB", f"{adam / 1e6:.2f} MB, {adam / ours:.2f}", asked, asked, asked, 1.02, True
        )
    yield from figures_table.promises(document)


def _chosen(rows: Sequence[Row]) -> Iterator[Promise]:
    """Judges how much longer than the best way the choice takes: for nine of ten layers, and
    for all."""
    if not rows:
        return
    for by, asked in (("measured", True), ("paper", False)):
        each = sorted(row[f"{by} ratio"] for row in rows)
        tenth = each[int(0.9 * (len(each) - 1))]
        spread = (each[0], each[-1])
        yield Promise(
            f"chosen, {by}: of the best, 9 of 10 layers",
            "",
            f"{len(each)} layers",
            tenth,
            *spread,
            1.1,
            True,
            asked=asked,
        )
        yield Promise(
            f"chosen, {by}: of the best, all layers",
            "",
            f"{len(each)} layers",
            each[-1],
            *spread,
            1.3,
            True,
            asked=asked,
        )


def _less(rows: dict[str, Row], ours: str, other: str, target: float) -> Promise:
    base, mine, theirs = (rows[name] for name in (ALONE, ours, other))
    trios = zip(base["cycles"], mine["cycles"], theirs["cycles"], strict=True)
    each = sorted((far - alone) / max(own - alone, 1e-9) for alone, own, far in trios)
    whole = [statistics.median(row["cycles"]) for row in (base, mine, theirs)]
    value = (whole[2] - whole[0]) / max(whole[1] - whole[0], 1e-9)
    what = f"{mine['model']}, {mine['ranks']} hosts: cost of {other} / {ours}"
    left, right = (span(max(0.0, own - whole[0])) for own in whole[1:])
    return Promise(what, left, f"{right} {other}", value, each[0], each[-1], target)


def _line(words: Sequence[str]) -> str:
    pairs = enumerate(zip(words, WIDTHS, strict=True))
    return "  ".join(f"{word:<{w}}" if i == 2 else f"{word:>{w}}" for i, (word, w) in pairs).rstrip()

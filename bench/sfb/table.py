"""Tabulates the rows of bench.sfb with the paper's figure 4, and judges them by the targets of issue 30. Needs
neither torch nor MPI nor hpcomm."""

import statistics
from collections.abc import Iterator, Sequence

from bench.common.judge import Promise, span, table
from hpcomm.bench.plots import named_size
from hpcomm.bench.rows import Row, ratio

ALL, SOME, RELAYED = "factors to all", "factors to Q", "factors to Q, relayed"
HUB, PEER = "dense hub", "Gloo all_gather + sgemm"
REBUILD, BOUND = "rebuild alone", "wire + rebuilds (bound)"
ONCE, FOLDED = "factors once to a host", "dense, hosts first"
DENSE, PRODUCT, AUTO = "dense", "product + dense", "Auto(Factors(K))"
DENSER, LEAST, PEERS, CHOSEN, BYTES = 5.0, 1.15, 1.0, 1.05, 1.01
TITLES = {ALL: "SFB, full", SOME: "SFB, partial", RELAYED: "SFB, relayed", HUB: "FMS"}  # in figure 4 of the paper
FLOAT = 4  # bytes
HEAD = ("W", "K", "ranks", "who", "step", "least", "most", "factors /", "processor", "sent", "memory", "#wrong")
UNITS = ("", "", "", "", "(ms)", "(ms)", "(ms)", "", "(ms)", "(MB)", "(MB)", "")
WIDTHS = (11, 5, 5, 26, 9, 9, 9, 9, 9, 9, 8, 7)


def median(row: Row) -> float:
    return float(statistics.median(row["cycles"]))


def lines(document: Row) -> list[str]:
    facts = f"links of {document['rate']}, bucket {document['burst']}, by {document['transport'] or 'nothing'}"
    found = [f"# factors: hpcomm {document['hpcomm']}, {document['cores']} cores, {facts}, torch {document['torch']}"]
    for rows in cases(document, "hosts"):
        shown = [*rows, bound(document, rows)] if of_name(rows, REBUILD) else rows
        found += _table(f"{rows[0]['ranks']} hosts of one rank", shown)
        found += real_hosts(document, rows)
        found += figure_4(document, rows)
    for rows in cases(document, "ranks"):
        found += _table(f"{rows[0]['ranks']} ranks, {rows[0]['near']} on each host", rows)
    host = cases(document, "host")
    if host:
        found += _table(f"{host[0][0]['ranks']} ranks of one host", [row for rows in host for row in rows])
    promised = list(promises(document))
    return [*found, *(["", table(promised)] if promised else [])]


def cases(document: Row, part: str) -> list[list[Row]]:
    """The rows by shape and K."""
    found: dict[tuple[int, int, int], list[Row]] = {}
    for row in document["rows"]:
        if row["part"] == part:
            found.setdefault((row["rows"], row["columns"], row["K"]), []).append(row)
    return list(found.values())


def of_name(rows: Sequence[Row], name: str) -> Row | None:
    return next((row for row in rows if row["name"] == name), None)


def shape(row: Row) -> str:
    return f"{row['rows']}x{row['columns']}"


def _table(heading: str, rows: Sequence[Row]) -> list[str]:
    found = [f"\n# {heading}", "# " + _line(HEAD), "# " + _line(UNITS)]
    return [*found, *("  " + _line(cells(rows, row)) for row in rows)]


def cells(rows: Sequence[Row], row: Row) -> list[str]:
    own = [other for other in rows if (shape(other), other["K"]) == (shape(row), row["K"])]
    factors = of_name(own, ALL)
    name = row["name"].replace("to Q", f"to Q = {row['Q']}")
    found = [shape(row), str(row["K"]), str(row["ranks"]), name]
    found += [f"{1e3 * value:.2f}" for value in (median(row), min(row["cycles"]), max(row["cycles"]))]
    found.append(f"{ratio(factors, row)[0]:.3f}" if factors and row is not factors else "")
    found.append(f"{1e3 * statistics.median(row['processor']):.2f}" if row["processor"] else "")
    found += [f"{row[name] / 1e6:.2f}" if row[name] else "" for name in ("sent", "memory")]
    return [*found, str(row["wrong"])]


def _line(words: Sequence[str]) -> str:
    cells = [w.ljust(n) if i == 3 else w.rjust(n) for i, (w, n) in enumerate(zip(words, WIDTHS, strict=True))]
    return " ".join(cells).rstrip()


# ---- bounds ----------------------------------------------------------------------------------------------------------


def vectors(row: Row) -> int:
    """Bytes of one rank's pairs."""
    return int(FLOAT * row["K"] * (row["rows"] + row["columns"]))


def wire(document: Row, row: Row) -> float:
    """Returns the seconds in which a link carries the pairs of all other ranks."""
    return float((row["ranks"] - 1) * vectors(row) / document["carried"])


def bound(document: Row, rows: Sequence[Row]) -> Row:
    """Returns the bound: the time of all pairs at the link's rate, plus the rebuilds of all ranks on this machine's
    cores."""
    rebuild = of_name(rows, REBUILD)
    assert rebuild is not None
    turns = rebuild["ranks"] / rebuild["busy"]
    return {**rebuild, "name": BOUND, "cycles": [wire(document, rebuild) + turns * time for time in rebuild["cycles"]]}


def real_hosts(document: Row, rows: Sequence[Row]) -> list[str]:
    """Returns a step on separate machines: the link, and one rebuild each. It is derived, not measured."""
    rebuild, hub = of_name(rows, REBUILD), of_name(rows, HUB)
    if rebuild is None:
        return []
    factors = wire(document, rebuild) + median(rebuild)
    found = f"# derived for {rebuild['ranks']} machines of one core: factors {1e3 * factors:.1f} ms (wire "
    found += f"{1e3 * wire(document, rebuild):.1f}, one rebuild {1e3 * median(rebuild):.1f})"
    if hub is None:
        return [found]
    ranks = rebuild["ranks"]
    dense = 2 * (ranks - 1) / ranks * FLOAT * rebuild["rows"] * rebuild["columns"] / document["carried"]
    return [f"{found}; dense hub {1e3 * dense:.0f} ms (wire alone): {dense / factors:.1f} x"]


def formulas(row: Row) -> tuple[float, float, float]:
    """Returns figure 4's formulas: bytes that all ranks send in a step, least floats that one rank holds, and
    multiply-adds of all ranks' updates of W. Dense: a rank's own part of W is not sent, and comes back to all
    others."""
    P, Q, K, W = row["ranks"], row["Q"], row["K"], row["rows"] * row["columns"]
    if row["name"] == HUB:
        return 2 * (P - 1) * W * FLOAT, W, P * W + P * K * W
    if row["name"] == RELAYED:
        return P * (P - 1) * vectors(row), W, P * P * K * W
    return P * Q * vectors(row), W, P * (Q + 1) * K * W


def figure_4(document: Row, rows: Sequence[Row]) -> list[str]:
    """Returns bytes, memory and time by formula, beside the measured ones. The time is the wire's plus the
    rebuilds'."""
    rebuild = of_name(rows, REBUILD)
    found = [
        "\n# figure 4 of the paper: a step by formula, and measured",
        "# {:14} {:>11} {:>11} {:>6} {:>12} {:>12} {:>10} {:>10}".format(
            "", "bytes", "measured", "ratio", "memory (W)", "measured", "time (ms)", "measured"
        ),
    ]
    for row in (row for row in rows if row["name"] in TITLES):
        sent, floats, work = formulas(row)
        seconds = sent / row["ranks"] / document["carried"]
        if rebuild is not None and row["name"] != HUB:  # a hub's rebuilds are in the gradient that it gets
            whole = formulas({**row, "name": ALL, "Q": row["ranks"] - 1})[2]
            seconds += work / whole * row["ranks"] / rebuild["busy"] * median(rebuild)
        measured = f"{row['sent']:.4g}", f"{row['sent'] / sent:.3f}"
        space = f"{floats * FLOAT / 1e6:.1f} MB", f"{row['memory'] / 1e6:.1f} MB"
        cells = [f"{sent:.4g}", *measured, *space, f"{1e3 * seconds:.1f}", f"{1e3 * median(row):.1f}"]
        found.append("  {:14} {:>11} {:>11} {:>6} {:>12} {:>12} {:>10} {:>10}".format(TITLES[row["name"]], *cells))
    return found


# ---- promises --------------------------------------------------------------------------------------------------------


def promises(document: Row) -> Iterator[Promise]:
    for rows in cases(document, "hosts"):
        factors, some, relayed = (of_name(rows, name) for name in (ALL, SOME, RELAYED))
        what = f"{rows[0]['ranks']} hosts, {shape(rows[0])}, K = {rows[0]['K']}"
        if factors:
            for name, target in ((HUB, DENSER), (PEER, PEERS)):
                other = of_name(rows, name)
                if other:
                    yield _times(f"{what}: {name} / factors", factors, other, ratio(other, factors), target, False)
            if of_name(rows, REBUILD):
                least = bound(document, rows)
                yield _times(f"{what}: factors / bound", factors, least, ratio(factors, least), LEAST, True)
        for row in (row for row in (factors, some, relayed) if row):
            sent = formulas(row)[0]
            over = max(row["sent"] / sent, sent / row["sent"]) if row["sent"] else float("inf")
            told = f"{row['sent']:.0f} B", f"{sent:.0f} B by formula"
            relay = ", relayed" if row is relayed else ""
            yield Promise(f"{what}: bytes, Q = {row['Q']}{relay}", *told, over, over, over, BYTES, at_most=True)
    for rows in cases(document, "ranks"):
        once = of_name(rows, ONCE)
        what = f"{rows[0]['ranks']} ranks, {rows[0]['near']} a host, {shape(rows[0])}, K = {rows[0]['K']}"
        for name in (ALL, FOLDED):
            other = of_name(rows, name)
            if once and other:
                yield _times(f"{what}: {name} / once to a host", once, other, ratio(other, once), 1.0, False)
    for rows in cases(document, "host"):
        auto, ways = of_name(rows, AUTO), [row for row in rows if row["name"] in (ALL, PRODUCT)]
        if auto and len(ways) == 2:
            best = min(ways, key=median)
            what = f"one host, {shape(auto)}, K = {auto['K']}: Auto / {best['name']}"
            yield _times(what, auto, best, ratio(auto, best), CHOSEN, True)


def _times(
    what: str, ours: Row, other: Row, found: tuple[float, float, float], target: float, at_most: bool
) -> Promise:
    return Promise(what, span(median(ours)), f"{span(median(other))} {other['name']}", *found, target, at_most)


def size(row: Row) -> str:
    return named_size(FLOAT * row["rows"] * row["columns"])

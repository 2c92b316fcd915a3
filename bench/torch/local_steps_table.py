"""Tabulates the rows of local_steps, and judges its promises. Needs neither torch nor MPI nor hpcomm."""

import statistics
from collections.abc import Callable, Iterator, Sequence

from bench.common.judge import Promise, span, table
from bench.torch.table import ALONE, DDP, median, processor
from hpcomm.bench.rows import Row, ratio

BY_HAND, WHOLE, STREAM, TOPK = "by hand over Gloo", "hpcomm, whole", "hpcomm, dense fragments", "hpcomm, TopK fragments"
NAMES = (ALONE, BY_HAND, WHOLE, STREAM, TOPK, DDP)
ROLES = {ALONE: "bound", BY_HAND: "peer", WHOLE: "hpcomm", STREAM: "hpcomm", TOPK: "hpcomm", DDP: "peer"}
KEPT = 0.02  # share of the elements that TopK keeps, in both directions
FAST, SLOW, LESS = 1.06, 1.1, 1.08  # targets: dense on a fast link, dense on a slow link, TopK
STALL, FEWER, SAME = 1.3, 30, 1.02  # targets: the worst step; how many times fewer bytes TopK sends; equal bytes
HEAD = ("rate", "who", "step", "spread", "/ alone", "/ bound", "worst", "bytes", "x DDP's", "processor", "#wrong")
UNITS = ("", "", "(ms)", "(ms)", "", "", "/ median", "(MB)", "", "(ms)", "")
WIDTHS = (9, 24, 8, 18, 8, 8, 9, 9, 10, 10, 7)


def ways(document: Row) -> list[dict[str, Row]]:
    """Groups the rows by rate and name."""
    found: dict[str, dict[str, Row]] = {}
    for row in document["rows"]:
        found.setdefault(row["rate"], {})[row["name"]] = row
    return list(found.values())


def bound(rows: dict[str, Row]) -> float:
    """Returns the seconds of a step's bound: the longer of computing and of sending dense updates."""
    return float(max(median(rows[ALONE]), rows[ALONE]["wire"]))


def shown(row: Row, part: str) -> float:
    return float(statistics.median(row[part]))


def ddp_bytes(document: Row) -> float:
    """Returns DDP's bytes in a step, from the run that has them; 0.0 if none has."""
    return next((row["bytes"] for row in document["rows"] if row["name"] == DDP), 0.0)


def promises(document: Row) -> list[Promise]:
    found: list[Promise] = []
    ddp = ddp_bytes(document)
    for rows in ways(document):
        found += _of_rate(rows)
        for name, fewer, most in ((STREAM, 1, SAME), (TOPK, FEWER, 1.0)):
            if name in rows and ddp:
                row = rows[name]
                value = row["bytes"] * row["every"] * fewer / ddp
                what = f"{row['rate']}, {name}: bytes x H{f' x {fewer}' if fewer > 1 else ''} / DDP's"
                told = f"{row['bytes'] / 1e6:.3f} MB", f"{ddp / 1e6:.1f} MB"
                found.append(Promise(what, *told, value, value, value, most, at_most=True))
    return found


def _of_rate(rows: dict[str, Row]) -> Iterator[Promise]:
    first = next(iter(rows.values()))
    has_time = ALONE in rows and rows[ALONE]["wire"] <= median(rows[ALONE])

    def against(name: str, what: str, other: float, most: float, asked: bool, each: Callable[[int], float]) -> Promise:
        row = rows[name]
        quotients = [own / each(i) for i, own in enumerate(row["cycles"])]
        spread = median(row) / other, min(quotients), max(quotients)
        named = f"{first['rate']}, {name}: step / {what}"
        return Promise(named, span(median(row)), span(other), *spread, most, at_most=True, asked=asked)

    for name in (STREAM, TOPK, WHOLE) if ALONE in rows else ():
        if name not in rows:
            continue
        cycles, wire = rows[ALONE]["cycles"], rows[ALONE]["wire"]
        if name == TOPK or has_time:
            most = LESS if name == TOPK else FAST
            yield against(name, "computing", median(rows[ALONE]), most, name != WHOLE, lambda i, c=cycles: c[i])  # type: ignore[misc]
        else:
            longer: Callable[[int], float] = lambda i, c=cycles, w=wire: max(c[i], w)  # type: ignore[misc] # noqa: E731
            yield against(name, "the longer of computing and wire", bound(rows), SLOW, name == STREAM, longer)
    for name in (STREAM, WHOLE):
        if name in rows and has_time:
            row = rows[name]
            worst = shown(row, "worst")
            told = span(worst * median(row)), "the median step"
            what = f"{first['rate']}, {name}: worst step / median"
            spread = worst, min(row["worst"]), max(row["worst"])
            yield Promise(what, *told, *spread, STALL, at_most=True, asked=name == STREAM)
    for name in (WHOLE, STREAM):
        if name in rows and BY_HAND in rows:
            value = ratio(rows[name], rows[BY_HAND])
            told = span(median(rows[name])), span(median(rows[BY_HAND]))
            yield Promise(f"{first['rate']}, {name}: step / by hand", *told, *value, 1.0, at_most=True)


def lines(document: Row) -> list[str]:
    found = [
        f"# local_steps: hpcomm {document['hpcomm']} by {document['transport']}, torch {document['torch']}",
    ]
    ddp = ddp_bytes(document)
    for rows in ways(document):
        first = next(iter(rows.values()))
        found += [
            f"\n# {first['ranks']} hosts, links of {first['rate']}: {first['parameters'] / 1e6:.1f} M parameters, "
            f"computing {1e3 * first['compute']:.0f} ms, H = {first['every']}; "
            f"{first['fragments']} fragments, taken {first['delay']} steps later; "
            f"dense bytes on the wire {1e3 * first['wire']:.1f} ms a step",
            "# " + _line(HEAD),
            "# " + _line(UNITS),
        ]
        for row in rows.values():
            own, low, high = (1e3 * value for value in (median(row), min(row["cycles"]), max(row["cycles"])))
            cells = [row["rate"], row["name"], f"{own:.1f}", f"{low:.1f} .. {high:.1f}"]
            cells += [f"{median(row) / median(rows[ALONE]):.3f}" if ALONE in rows else ""]
            cells += [f"{median(row) / bound(rows):.3f}" if ALONE in rows else "", f"{shown(row, 'worst'):.2f}"]
            cells += [f"{row['bytes'] / 1e6:.3f}", f"1/{ddp / row['bytes']:.1f}" if ddp and row["bytes"] else ""]
            found.append("  " + _line([*cells, f"{1e3 * processor(row):.1f}", str(row["wrong"])]))
    promised = promises(document)
    return [*found, *(["", table(promised)] if promised else [])]


def _line(cells: Sequence[str]) -> str:
    aligned = [
        f"{cell:<{w}}" if i == 1 else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(cells, WIDTHS, strict=True))
    ]
    return "  ".join(aligned).rstrip()

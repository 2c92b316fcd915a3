"""Tabulates torch.hosts with computing models, and judges it by the targets of issue 29. Needs neither torch nor
hpcomm."""

from collections.abc import Iterator, Sequence

from bench.common.judge import Promise, span, table
from bench.torch.table import ALONE, DDP, STEP, WAITS, cost, median, processor
from hpcomm.bench.rows import Row, ratio

REAL = "real"  # how models compute, of --computing
SHARED = 0.6  # most, relative to the cost of DDP's exchange, where ranks share a host
LONE = {STEP: 0.85, WAITS: 0.95}  # the same with one rank on each host
REACH = 1.03  # relative to the first gradient's time plus the wire's; enough if this limit is the larger
HEAD = ("shape", "model", "who", "step", "p90", "spread", "cost", "of DDP's", "tail", "processor", "- alone", "#wrong")
UNITS = ("", "", "", "(ms)", "(ms)", "(ms)", "(ms)", "", "(ms)", "(ms)", "(ms)", "")
WIDTHS = (5, 14, 16, 8, 8, 17, 8, 8, 8, 9, 8, 7)


def lines(document: Row) -> list[str]:
    found = [
        f"# torch.hosts, real computing: links of {document['rate']}, hpcomm {document['hpcomm']} by "
        f"{document['transport']}, torch {document['torch']}",
    ]
    for rows in models_of(document):
        one, base = next(iter(rows.values())), rows.get(ALONE)
        first = f", first gradient after {span(base['first'])}" if base else ""
        found.append(f"\n# {one['shape']}, {one['title']}: {one['parameters']:,}, wire {span(one['wire'])}{first}")
        found += ["# " + _line(HEAD), "# " + _line(UNITS)]
        found += ["  " + _line(cells(rows, row)) for row in rows.values()]
    promised = list(promises(document))
    return [*found, *(["", table(promised)] if promised else [])]


def models_of(document: Row) -> list[dict[str, Row]]:
    """Groups the rows by shape and model, then by name."""
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for row in document["rows"]:
        found.setdefault((row["shape"], row["model"]), {})[row["name"]] = row
    return list(found.values())


def cells(rows: dict[str, Row], row: Row) -> list[str]:
    base = rows.get(ALONE)
    found = [row["shape"], row["model"], row["name"], f"{1e3 * median(row):.1f}", f"{1e3 * row['p90']:.1f}"]
    found.append(f"{1e3 * min(row['cycles']):.1f} .. {1e3 * max(row['cycles']):.1f}")
    apart = base is not None and row is not base
    found.append(f"{1e3 * (median(row) - median(base)):.1f}" if base is not None and apart else "")
    found.append(f"{cost(row, rows)[0]:.2f}" if apart and row["name"] != DDP and DDP in rows else "")
    found += [f"{1e3 * median(row['tail']):.1f}" if "tail" in row else "", f"{1e3 * processor(row):.1f}"]
    found.append(f"{1e3 * (processor(row) - processor(base)):.1f}" if base is not None and apart else "")
    return [*found, str(row["wrong"])]


def promises(document: Row) -> Iterator[Promise]:
    """Judges the steps. A step may take the time alone plus a part of DDP's cost or, if that is more, slightly
    longer than the time to the first gradient plus the wire's time."""
    for rows in models_of(document):
        if not {ALONE, DDP} <= set(rows):
            continue
        base, ddp = rows[ALONE], rows[DDP]
        shares = not base["shape"].endswith("x1")
        least = 0.0 if shares else REACH * (base["first"] + base["wire"])
        for name, part in LONE.items():
            if name not in rows:
                continue
            row, most = rows[name], SHARED if shares else part
            trio = zip(row["cycles"], base["cycles"], ddp["cycles"], strict=True)
            each = sorted(own / max(alone + most * (theirs - alone), least) for own, alone, theirs in trio)
            allowed = max(median(base) + most * (median(ddp) - median(base)), least)
            why = "first gradient and wire" if allowed == least else f"{most} of DDP's cost"
            what = f"{row['shape']}, {row['model']}, {name}: step / allowed"
            spread = (median(row) / allowed, each[0], each[-1])
            yield Promise(what, span(median(row)), f"{span(allowed)} {why}", *spread, 1.0, at_most=True)
            beside = f"{span(median(ddp))} {DDP}"
            what = f"{row['shape']}, {row['model']}, {name}: step / DDP's"
            yield Promise(what, span(median(row)), beside, *ratio(row, ddp), 1.0, at_most=True, asked=False)


def _line(words: Sequence[str]) -> str:
    pairs = enumerate(zip(words, WIDTHS, strict=True))
    return "  ".join(f"{word:<{w}}" if i < 3 else f"{word:>{w}}" for i, (word, w) in pairs).rstrip()

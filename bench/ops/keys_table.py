"""Tabulates the rows of keys_hosts, and judges them by the targets of issue 29. Needs neither torch nor MPI nor
hpcomm."""

from collections.abc import Iterator, Sequence

from bench.common.judge import Promise, span, table
from bench.torch.table import median, processor
from hpcomm.bench.plots import named_size
from hpcomm.bench.rows import Row, ratio

LARGE = 8 << 20
WIRE, WIRE_SMALL, GLOO, PROCESSOR = 1.03, 1.08, 1.03, 1.2  # most: over the wire, Gloo and its processor time
KEY, KEYS, KEY_BYTES = 15e-6, 100, 1024  # seconds for one more key, besides the time of its bytes
HEAD = (
    "shape",
    "set",
    "who",
    "step",
    "least",
    "most",
    "/ Gloo",
    "/ wire",
    "processor",
    "/ Gloo's",
    "calls",
    "wakes",
    "#wrong",
)
UNITS = ("", "", "", "(ms)", "(ms)", "(ms)", "", "", "(ms)", "", "", "", "")
WIDTHS = (5, 14, 28, 9, 9, 9, 7, 7, 9, 8, 7, 7, 7)


def lines(document: Row) -> list[str]:
    found = [
        f"# keys_hosts: links of {document['rate']}, bucket {document['burst']}, hpcomm {document['hpcomm']} by "
        f"{document['transport']}, torch {document['torch']}",
    ]
    for rows in sets_of(document):
        first = rows[0]
        found += [f"\n# {first['shape']}, {first['set']}: {first['keys']} keys, {named_size(first['size'])}"]
        found += ["# " + _line(HEAD), "# " + _line(UNITS)]
        found += ["  " + _line(cells(rows, row)) for row in rows]
    promised = asked(document)
    return [*found, *(["", table(promised)] if promised else [])]


def asked(document: Row) -> list[Promise]:
    """Returns the promises with a target in issue 29; the other ratios are in the columns."""
    return [promise for promise in (*promises(document), *of_keys(document)) if promise.asked]


def sets_of(document: Row) -> list[list[Row]]:
    """The rows by shape and set."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in document["rows"]:
        found.setdefault((row["shape"], row["set"]), []).append(row)
    return list(found.values())


def of_role(rows: Sequence[Row], role: str) -> Row | None:
    return next((row for row in rows if row["role"] == role), None)


def of_processor(over: Row, under: Row) -> tuple[float, float, float]:
    return ratio({"cycles": over["processor"]}, {"cycles": under["processor"]})


def cells(rows: Sequence[Row], row: Row) -> list[str]:
    peer, bound = of_role(rows, "peer"), of_role(rows, "bound")
    found = [row["shape"], row["set"], row["name"]]
    found += [f"{1e3 * value:.2f}" for value in (median(row), min(row["cycles"]), max(row["cycles"]))]
    found += [f"{ratio(row, peer)[0]:.3f}" if peer else "", f"{ratio(row, bound)[0]:.3f}" if bound else ""]
    found.append(f"{1e3 * processor(row):.2f}" if row["processor"] else "")
    found.append(f"{of_processor(row, peer)[0]:.2f}" if peer and row["processor"] else "")
    load = row.get("load") or {}
    found += [f"{load[name]:.0f}" if name in load else "" for name in ("calls", "wakeups")]
    return [*found, str(row["wrong"])]


def promises(document: Row) -> Iterator[Promise]:
    for rows in sets_of(document):
        peer, bound = of_role(rows, "peer"), of_role(rows, "bound")
        for row in (row for row in rows if row["role"] == "hpcomm"):
            what, own = f"{row['shape']}, {row['set']}, {row['name']}", span(median(row))
            asked = row["mode"] == "auto" and not row["set"].endswith("x1K")  # there for of_keys only
            if bound:
                most = WIRE if row["size"] >= LARGE else WIRE_SMALL
                beside = f"{span(median(bound))} wire"
                yield Promise(f"{what}: / wire", own, beside, *ratio(row, bound), most, at_most=True, asked=asked)
            if peer:
                beside = f"{span(median(peer))} Gloo"
                yield Promise(f"{what}: / Gloo", own, beside, *ratio(row, peer), GLOO, at_most=True, asked=asked)
                mine, theirs = span(processor(row)), f"{span(processor(peer))} Gloo"
                spread = of_processor(row, peer)
                yield Promise(f"{what}: processor", mine, theirs, *spread, PROCESSOR, at_most=True, asked=asked)


def of_keys(document: Row) -> Iterator[Promise]:
    """Judges the time of one more key of 1 KB in a step of 100 keys, by the difference to each larger set."""
    small = [row for row in document["rows"] if row["set"].endswith("x1K") and row["role"] == "hpcomm"]
    bounds = {(row["shape"], row["set"]): row for row in document["rows"] if row["role"] == "bound"}
    most = max((row["keys"] for row in small), default=0)  # with more keys, chance has less weight in the difference
    for base in (row for row in small if row["keys"] == KEYS):
        for row in small:
            same = (row["shape"], row["name"]) == (base["shape"], base["name"])
            more = row["keys"] - base["keys"]
            if not same or more < 1:
                continue
            wire = median(bounds[base["shape"], base["set"]]) / base["keys"]
            each = sorted((b - a) / more / (wire + KEY) for a, b in zip(base["cycles"], row["cycles"], strict=True))
            seconds = (median(row) - median(base)) / more
            what = f"{row['shape']}, {row['name']}: a key of 1 KB more, by {row['keys']} keys"
            target = f"{span(wire + KEY)} asked"
            spread = (seconds / (wire + KEY), each[0], each[-1])
            asked = row["mode"] == "auto" and row["keys"] == most
            yield Promise(what, span(seconds), target, *spread, 1.0, at_most=True, asked=asked)


def _line(words: Sequence[str]) -> str:
    pairs = enumerate(zip(words, WIDTHS, strict=True))
    return "  ".join(f"{word:<{w}}" if i < 3 else f"{word:>{w}}" for i, (word, w) in pairs).rstrip()

"""Tabulates the rows of torch.hosts, and judges its promises. Needs neither torch nor MPI nor hpcomm."""

from collections.abc import Sequence

from bench.common.judge import Promise, span, table
from bench.torch.table import STEP, median, processor
from hpcomm.bench.rows import Row, ratio

REACH = 1.15  # target of issue 16, relative to the longer of compute and push_pull, plus a layer
PUSH_PULL, ALL_REDUCE = "push_pull alone", "Gloo all_reduce alone"
HEAD = ("model", "batch", "who", "step", "p90", "spread", "tail", "/ longer", "- longer", "processor", "#wrong")
WIDTHS = (6, 6, 22, 9, 9, 18, 8, 8, 9, 9, 9)


def longer(rows: Sequence[Row]) -> tuple[float, Row]:
    """Returns the longer of compute and push_pull, from rows of one model and batch."""
    push_pull = next(row for row in rows if row["name"] == PUSH_PULL)
    return max(push_pull["compute"], median(push_pull)), push_pull


def lines(document: Row) -> list[str]:
    found = [
        f"# torch.hosts: links of {document['rate']}, hpcomm {document['hpcomm']} by {document['transport']}, "
        f"torch {document['torch']}",
    ]
    promised: list[Promise] = []
    for rows in turns_of(document):
        first = rows[0]
        most, push_pull = longer(rows)
        target = REACH * most + first["layer"]
        where = f"{first['shape']}, {first['model']} M, batch {first['batch']}"
        found += [
            f"\n# {where}: computing {span(first['compute'])} (the whole model at once took {span(first['whole'])}), "
            f"push_pull {span(median(push_pull))}, a layer {span(first['layer'])}; aim {span(target)}",
            "# " + _line(HEAD),
        ]
        for row in rows:
            own, low, high = (1e3 * value for value in (median(row), min(row["cycles"]), max(row["cycles"])))
            tail = f"{1e3 * median(row['tail']):.1f}" if "tail" in row else ""
            cells = [row["model"], str(row["batch"]), row["name"], f"{own:.1f}", f"{1e3 * row['p90']:.1f}"]
            cells += [f"{low:.1f} .. {high:.1f}", tail, f"{median(row) / most:.3f}", f"{own - 1e3 * most:.1f}"]
            cells += [f"{1e3 * processor(row):.1f}", str(row["wrong"])]
            found.append("  " + _line(cells))
            if row["role"] == "hpcomm":
                each = sorted(cycle / target for cycle in row["cycles"])
                value = median(row) / target
                what = f"{where}, {row['name']}: step / aim"
                spread = (value, each[0], each[-1])
                promised.append(
                    Promise(
                        what, span(median(row)), span(target), *spread, 1.0, at_most=True, asked=row["name"] == STEP
                    )
                )
        ours = [row for row in rows if row["role"] == "hpcomm"]
        for ddp in (row for row in rows if row["role"] == "peer"):
            for row in ours:
                what = f"{where}, {row['name']}: DDP's step / this"
                spread = ratio(ddp, row)
                promised.append(Promise(what, span(median(row)), span(median(ddp)), *spread, 1.0, asked=False))
    return [*found, *(["", table(promised)] if promised else [])]


def turns_of(document: Row) -> list[list[Row]]:
    """Groups the rows by shape, model and batch."""
    found: dict[tuple[str, str, int], list[Row]] = {}
    for row in document["rows"]:
        found.setdefault((row["shape"], row["model"], row["batch"]), []).append(row)
    return list(found.values())


def _line(cells: Sequence[str]) -> str:
    aligned = [
        f"{cell:<{w}}" if i == 2 else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(cells, WIDTHS, strict=True))
    ]
    return "  ".join(aligned).rstrip()

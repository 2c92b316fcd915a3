"""Judges hpcomm's promises about graphs and consistencies, after ASAP: whole inputs, waits, time and bytes."""

from collections.abc import Iterator

from bench.asap.convergence import REFERENCE, SPARSE, lines
from bench.common.judge import Promise, compare, of_size, sizes
from hpcomm.bench.plots import named_size
from hpcomm.bench.rows import Row


def consistent_reduces(document: Row) -> Iterator[Promise]:
    """Figure 8."""
    for row in document["rows"]:
        share = 100 * row["by_inputs"][-1] / row["reduces"]
        told = f"{row['torn']} torn, {row['stale']} stale, {row['missing']} missing"
        asked = row["name"].startswith(("NOTIFY_ACK", "BSP"))
        what = f"{row['reduces']} reduces with all inputs, {row['name']}"
        yield Promise(what, f"{share:.2f} %", told, share, share, share, 100.0, unit="%", asked=asked)


def straggler(document: Row) -> Iterator[Promise]:
    for row in document["rows"]:
        what = f"ranks whose first wait is not in the step predicted, {row['name']}"
        elsewhere = float(row["elsewhere"])
        yield Promise(what, f"{elsewhere:g}", f"of {document['ranks'] - 1}", *3 * (elsewhere,), 0.0, at_most=True)
        what = f"rate over the straggler's, {row['name']}"
        yield Promise(what, f"{row['rate']:.3f}", "", row["rate"], row["rate"], row["rate"], 1.0, asked=False)


def exchange(document: Row) -> Iterator[Promise]:
    for size in sizes(document):
        what = f"averaging over a graph, {document['ranks']} ranks, {named_size(size)}, Python"
        yield compare(what, of_size(document, size), "hpcomm Python", "Neighbor_allgather", 2.0)


def convergence(document: Row) -> Iterator[Promise]:
    """Judges figures 5 to 7, 9 and 10; the targets are for links of 1 Gb/s and a sparse graph."""
    for key, cycles in document["runs"].items():
        (line,) = (line for line in lines(cycles) if line.name == SPARSE)
        what, asked = f"{key}: {SPARSE} to the accuracy of {REFERENCE}", key == "hosts"
        if line.seconds is None or line.sent is None:
            yield Promise(what, "never", "", 0, 0, 0, 2.0, asked=asked)
            continue
        yield Promise(f"{what}, time", f"{line.seconds:.2f} s", REFERENCE, *line.faster, 2.0, asked=asked)
        yield Promise(f"{what}, bytes", f"{line.sent / 1e6:.0f} MB", REFERENCE, *line.fewer, 3.0, asked=asked)

"""The rows of bench.ddp as a table. Needs neither torch nor MPI.

A row has the entries model, title, parameters, tensors, ranks, name, steps (timed steps of a turn), cycles (the median
step of each turn, in seconds), time (their median), above (time minus that of the empty hook), x (the ratio of step to
Gloo's, and its least and largest value in a cycle) and wrong.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.ddp.names import EMPTY, PEER
from hpcomm.bench.rows import Row, ratio

WIDTH = 130


def compared(rows: Sequence[Row]) -> Sequence[Row]:
    """Adds time, above and x to the rows of one model and number of ranks."""
    named = {row["name"]: row for row in rows}
    for row in rows:
        row["time"] = statistics.median(row["cycles"])
    for row in rows:
        floor, peer = named.get(EMPTY), named.get(PEER[row["name"]])
        row["above"] = None if floor is None else row["time"] - floor["time"]
        row["x"] = None if peer is None else ratio(row, peer)
    return rows


def cells(row: Row) -> list[str]:
    above, x = row["above"], row["x"]
    found = [row["model"], f"{row['parameters']:,}", str(row["tensors"]), str(row["ranks"]), row["name"]]
    found += [f"{1e3 * row['time']:.2f}", "" if above is None else f"{1e3 * above:.2f}"]
    found += ["", ""] if x is None else [f"{x[0]:.3f}", f"{x[1]:.2f} .. {x[2]:.2f}"]
    return [*found, str(row["wrong"])]


def show(document: dict[str, Any]) -> None:
    """Prints the table."""
    table = Table(box=None, pad_edge=False)
    for name in ("model", "parameters", "tensors", "ranks", "way"):
        table.add_column(name, justify="left" if name in ("model", "way") else "right", no_wrap=True)
    for name in ("step\n(ms)", "above the\nempty hook (ms)", "/ Gloo's", "spread", "#wrong"):
        table.add_column(name, justify="right", no_wrap=True)
    last = None
    for row in document["rows"]:
        if last is not None and (row["model"], row["ranks"]) != last:
            table.add_section()
        last = row["model"], row["ranks"]
        table.add_row(*cells(row))
    console = Console()
    console.width = console.width if console.is_terminal else WIDTH
    told = f"{document['cores']} cores, hpcomm {document['hpcomm']}, torch {document['torch']}, {document['mpi']}"
    print(f"# ddp: {told}", flush=True)
    console.print(table)

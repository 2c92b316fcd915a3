"""The rows and the table of the benchmark of collectives, in the columns of nccl-tests.

A row has the entries size, count, type, redop, root, time, algbw, busbw and wrong, as nccl-tests defines them, and
ranks, call, library, calls (calls of a turn), cycles (the time of each turn) and x (a ratio for each of hpcomm's rows:
this row's time over hpcomm's, and the least and the largest ratio of single cycles). Times are in seconds.
"""

import statistics
from collections.abc import Iterator, Sequence

from bench.collectives.data import Case
from bench.collectives.libraries import HPCOMM, WINDOW
from hpcomm.bench.rows import Row, ratio

COLUMNS = {
    "ranks": 5,
    "call": 14,
    "library": 14,
    "size": 10,
    "count": 9,
    "type": 8,
    "redop": 5,
    "root": 4,
    "time": 11,
    "algbw": 7,
    "busbw": 7,
    "#wrong": 6,
    "x hpcomm": 20,
    "x window": 20,
}
UNITS = {"size": "(B)", "count": "(elements)", "time": "(us)", "algbw": "(GB/s)", "busbw": "(GB/s)"}
OURS = {"x hpcomm": HPCOMM, "x window": WINDOW}


def row(case: Case, library: str, calls: int, cycles: Sequence[float], wrong: int) -> Row:
    seconds = statistics.median(cycles)
    algbw = case.size / seconds / 1e9
    names = {"size": case.size, "count": case.count, "type": case.dtype, "redop": case.op, "root": case.root}
    rates = {"time": seconds, "algbw": algbw, "busbw": algbw * case.bus, "wrong": wrong}
    place = {"ranks": case.ranks, "call": case.call, "library": library}
    return place | names | rates | {"calls": calls, "cycles": list(cycles)}


def compared(rows: Sequence[Row]) -> Sequence[Row]:
    """Adds the ratios to the rows of one case."""
    ours = {each["library"]: each for each in rows if each["library"] in OURS.values()}
    for each in rows:
        each["x"] = {name: ratio(each, base) for name, base in ours.items() if base is not each}
    return rows


def line(cells: Sequence[str]) -> str:
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, COLUMNS.values(), strict=True)).rstrip()


def header() -> Iterator[str]:
    yield line([*COLUMNS])
    yield line([UNITS.get(name, "") for name in COLUMNS])


def text(each: Row) -> str:
    cells = [str(each[name]) for name in [*COLUMNS][:8]]
    cells += [f"{1e6 * each['time']:.2f}", f"{each['algbw']:.2f}", f"{each['busbw']:.2f}", str(each["wrong"])]
    for base in OURS.values():
        found = each["x"].get(base)
        cells.append("" if found is None else "{:.2f} ({:.2f}-{:.2f})".format(*found))
    return line(cells)

"""The rows and the table of the benchmark of collectives, in the columns of nccl-tests.

A row has the entries size, count, type, redop, root, time, algbw, busbw and wrong, as nccl-tests defines them, and
ranks, call, library, calls (calls of a turn), cycles (the time of each turn) and x (a ratio for each of hpcomm's rows:
this row's time over hpcomm's, and the least and the largest ratio of single cycles). On several hosts it also has shape
(hosts x ranks), sent (bytes that the busiest host sends over its link in one call), least (the fewest that it can), and
wire (the bytes of a second over the link's rate). Times are in seconds.
"""

import statistics
from collections.abc import Iterator, Sequence

from bench.collectives.data import Case
from bench.collectives.libraries import BACKEND, C_WINDOW, HPCOMM, WINDOW
from bench.collectives.places import Here, Hosts
from hpcomm.bench.rows import Row, ratio

COLUMNS = {
    "ranks": 5,
    "call": 14,
    "library": len(C_WINDOW),
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
    "x torch": 20,
}
OF_LINKS = {"sent": 9, "x least": 7, "wire": 6}
UNITS = {"size": "(B)", "count": "(elements)", "time": "(us)", "algbw": "(GB/s)", "busbw": "(GB/s)", "sent": "(MB)"}
OURS = {"x hpcomm": HPCOMM, "x window": WINDOW, "x torch": BACKEND}


def row(
    case: Case,
    library: str,
    calls: int,
    cycles: Sequence[float],
    wrong: int,
    place: Here | Hosts,
    sent: Sequence[float],
) -> Row:
    """Returns a row without ratios. sent: bytes of the busiest host in each cycle."""
    seconds = statistics.median(cycles)
    algbw = case.size / seconds / 1e9
    names = {"size": case.size, "count": case.count, "type": case.dtype, "redop": case.op, "root": case.root}
    rates = {"time": seconds, "algbw": algbw, "busbw": algbw * case.bus, "wrong": wrong}
    found = {"ranks": case.ranks, "call": case.call, "library": library} | names | rates
    found |= {"calls": calls, "cycles": list(cycles)}
    if place.hosts > 1:
        most = statistics.median(sent)
        found |= {
            "shape": place.key,
            "sent": most,
            "least": case.least(place.hosts),
            "wire": most / seconds / place.rate,
        }
    return found


def compared(rows: Sequence[Row]) -> Sequence[Row]:
    """Adds the ratios to the rows of one case."""
    ours = {each["library"]: each for each in rows if each["library"] in OURS.values()}
    for each in rows:
        each["x"] = {name: ratio(each, base) for name, base in ours.items() if base is not each}
    return rows


def columns(hosts: bool) -> dict[str, int]:
    """Returns the widths of the columns, by their names. hosts: whether there are several."""
    return {**COLUMNS, **OF_LINKS} if hosts else COLUMNS


def line(cells: Sequence[str]) -> str:
    widths = columns(len(cells) > len(COLUMNS)).values()
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def header(hosts: bool) -> Iterator[str]:
    names = columns(hosts)
    yield line([*names])
    yield line([UNITS.get(name, "") for name in names])


def text(each: Row) -> str:
    cells = [str(each.get("shape", each["ranks"])), *(str(each[name]) for name in [*COLUMNS][1:8])]
    cells += [f"{1e6 * each['time']:.2f}", f"{each['algbw']:.2f}", f"{each['busbw']:.2f}", str(each["wrong"])]
    for base in OURS.values():
        found = each["x"].get(base)
        cells.append("" if found is None else "{:.2f} ({:.2f}-{:.2f})".format(*found))
    if "shape" in each:
        times = f"{each['sent'] / each['least']:.2f}" if each["least"] else ""
        cells += [f"{each['sent'] / 1e6:.3f}", times, f"{100 * each['wire']:.1f}%"]
    return line(cells)

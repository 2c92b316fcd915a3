"""hpcomm timeline: the ranks' timelines as one file, and where their time went."""

import glob
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

_CLOCK = "hpcomm_clock"
_OWN = (_CLOCK, "hpcomm_end")


@dataclass
class Trace:
    """The timeline of one rank: its events, what it says of its clock, and whether the rank has closed it."""

    path: Path
    events: list[dict[str, Any]] = field(default_factory=list)
    clock: dict[str, Any] = field(default_factory=dict)
    rank: int = -1
    ended: bool = False


class BadTrace(click.ClickException):
    """A file that is no timeline of hpcomm; ends the command with 2."""

    exit_code = 2


def files_of(path: str) -> list[Path]:
    """The files that HPCOMM_TIMELINE=path has made, in order of their names."""
    place = Path(path)
    if "%r" in path:
        stem = path[: -len(place.suffix)] if place.suffix else path
        found = glob.glob(f"{glob.escape(stem).replace('%r', '*')}*{glob.escape(place.suffix)}")
        number = re.escape(stem).replace("%r", r"\d+")
        exact = re.compile(rf"{number}(-\d+)?{re.escape(place.suffix)}")
    else:
        stem = path[: -len(place.suffix)] if place.suffix else path
        found = glob.glob(f"{glob.escape(stem)}.rank*{glob.escape(place.suffix)}")
        exact = re.compile(rf"{re.escape(stem)}\.rank\d+(-\d+)?{re.escape(place.suffix)}")
    return sorted(Path(name) for name in found if exact.fullmatch(name))


def read(path: Path) -> Trace:
    """A rank's file, whole or as a kill has left it: an event a line."""
    trace = Trace(path)
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            text = line.strip().rstrip(",")
            if text in ("[", "]", ""):
                continue
            try:
                event = json.loads(text)
            except ValueError:
                continue  # the last line, cut by a full disk
            if not isinstance(event, dict):
                continue
            if event.get("name") == _CLOCK:
                trace.clock, trace.rank = event["args"], event["pid"]
            elif event.get("name") == _OWN[1]:
                trace.ended = True
            else:
                trace.events.append(event)
    if not trace.clock:
        raise BadTrace(f"{path} is no timeline of hpcomm: it has no {_CLOCK!r}")
    return trace


def shift(trace: Trace, first: Trace) -> float:
    """Microseconds to add to a rank's times, so that they are those of the first one's host: by the wall clocks."""
    if trace.clock["boot"] == first.clock["boot"]:
        return 0.0
    ahead = [t.clock["realtime_us"] - t.clock["monotonic_us"] for t in (trace, first)]
    return float(ahead[0] - ahead[1])


def merged(traces: list[Trace]) -> Iterator[dict[str, Any]]:
    """All events on the first one's clock. Several contexts of a rank (files -2, -3) are processes of their own."""
    taken: set[int] = set()
    for trace in traces:
        pid = trace.rank
        while pid in taken:
            pid += int(trace.clock["size"])
        taken.add(pid)
        late = shift(trace, traces[0])
        for event in trace.events:
            moved = {"ts": round(event["ts"] + late, 3)} if "ts" in event else {}
            yield {**event, **moved, "pid": pid}


def write(events: Iterator[dict[str, Any]], to: Path) -> int:
    n = 0
    with to.open("w", encoding="utf-8") as file:
        file.write("[\n")
        for event in events:
            file.write(",\n" if n else "")
            json.dump(event, file)
            n += 1
        file.write("\n]\n")
    return n


def waits(traces: list[Trace]) -> dict[int, dict[int, float]]:
    """Seconds that each rank waited for each other one alone: who is the last to come is who is waited for."""
    total: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for trace in traces:
        for event in trace.events:
            if event.get("cat") == "wait" and event["args"]["of"] == 1:
                total[trace.rank][event["args"]["ranks"][0]] += event["dur"] * 1e-6
    return total


def _print_waits(traces: list[Trace]) -> None:
    total = waits(traces)
    ranks = sorted({trace.rank for trace in traces} | {peer for row in total.values() for peer in row})
    click.echo("seconds that a rank waited for one other alone")
    table = Table(box=None, pad_edge=False)
    table.add_column("rank")
    for peer in ranks:
        table.add_column(f"for {peer}", justify="right")
    for rank in ranks:
        table.add_row(str(rank), *(f"{total[rank][peer]:.3f}" if total[rank][peer] else "-" for peer in ranks))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


@click.command("timeline")
@click.argument("path")
@click.option(
    "-o", "--output", metavar="FILE", help="Where the whole goes; without it PATH, which HPCOMM_TIMELINE said."
)
@click.option("--waits", "waits_", is_flag=True, help="Print how long each rank waited for which, and write nothing.")
def command(path: str, output: str | None, waits_: bool) -> None:
    """Make one timeline of those that the ranks have written.

    PATH is what HPCOMM_TIMELINE (or init's timeline) was: trace.json, of which the ranks made trace.rank0.json and so
    on. Open the result in https://ui.perfetto.dev or chrome://tracing. Files of ranks that were killed are read as far
    as they go. Ranks of one host share a clock; between hosts the wall clocks count, as NTP keeps them.
    """
    files = files_of(path)
    if not files:
        raise BadTrace(f"no timelines of {path} are here, such as {Path(path).stem}.rank0{Path(path).suffix}")
    traces = sorted((read(file) for file in files), key=lambda trace: (trace.rank, len(trace.path.name), trace.path))
    missing = sorted(set(range(int(traces[0].clock["size"]))) - {trace.rank for trace in traces})
    if missing:
        click.echo(f"ranks {', '.join(map(str, missing))} are missing: on other hosts, or never started", err=True)
    for trace in traces:
        if not trace.ended:
            click.echo(f"{trace.path} has no end: rank {trace.rank} still runs or was killed", err=True)
    if waits_:
        _print_waits(traces)
        return
    to = Path(output) if output is not None else Path(path.replace("%r", "all"))
    n = write(merged(traces), to)
    click.echo(f"{to}: {n} events of {len(traces)} rank{'s' if len(traces) != 1 else ''}")

"""hpcomm timeline: merges the ranks' timelines into one file, or prints how long ranks waited for each other."""

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

_CLOCK, _JOB, _END = "hpcomm_clock", "hpcomm_job", "hpcomm_end"


@dataclass
class Trace:
    path: Path
    events: list[dict[str, Any]] = field(default_factory=list)
    clock: dict[str, Any] = field(default_factory=dict)  # readings of the rank's clocks when the file was opened
    rank: int = -1
    job: str = ""  # identifies the context; "": the file ends before all ranks had connected
    ended: bool = False  # whether the rank has closed the file

    @property
    def began(self) -> float:
        """The start of the trace by the wall clock, in microseconds."""
        return float(self.clock["realtime_us"])

    @property
    def last(self) -> float:
        """The end of the trace's last span, by the wall clock, in microseconds."""
        ends = (event["ts"] + event.get("dur", 0) for event in self.events if "ts" in event)
        return self.began + max(0.0, max(ends, default=0.0) - float(self.clock["monotonic_us"]))

    @property
    def process(self) -> str:
        return str(self.clock.get("process", self.path))

    @property
    def first(self) -> int:
        """The rank's number before the context first shrank."""
        return int(self.clock.get("first", self.rank))


class BadTrace(click.ClickException):
    """An error that ends the command with status 2."""

    exit_code = 2


def files_of(path: str) -> list[Path]:
    """Returns the files that jobs with HPCOMM_TIMELINE=path have written, sorted by name."""
    suffix = Path(path).suffix
    stem = path.removesuffix(suffix) + ("" if "%r" in path else ".rank%r")
    found = glob.glob(f"{glob.escape(stem).replace('%r', '*')}*{glob.escape(suffix)}")
    number = re.escape(stem).replace("%r", r"\d+")
    exact = re.compile(rf"{number}(-\d+)?{re.escape(suffix)}")
    return sorted(Path(name) for name in found if exact.fullmatch(name))


def read(path: Path) -> Trace:
    """Reads a rank's file, which has an event on each line. If the rank was killed, the last line may be cut off."""
    trace = Trace(path)
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            text = line.strip().rstrip(",")
            if text in ("[", "]", ""):
                continue
            try:
                event = json.loads(text)
            except ValueError:
                continue  # the last line, cut off by a kill or a full disk
            if not isinstance(event, dict):
                continue
            if event.get("name") == _CLOCK:
                trace.clock, trace.rank = event["args"], event["pid"]
            elif event.get("name") == _JOB:
                trace.job = event["args"]["job"]
            elif event.get("name") == _END:
                trace.ended = True
            else:
                trace.events.append(event)
    if not trace.clock:
        raise BadTrace(f"{path} is no timeline of hpcomm: it has no {_CLOCK!r}")
    return trace


def shift(trace: Trace, first: Trace) -> float:
    """Returns the microseconds to add to the times of trace so that they are times on the host of first. On different
    hosts it compares the wall clocks."""
    if trace.clock["boot"] == first.clock["boot"]:
        return 0.0
    ahead = [t.clock["realtime_us"] - t.clock["monotonic_us"] for t in (trace, first)]
    return float(ahead[0] - ahead[1])


def of_last_job(traces: list[Trace]) -> list[Trace]:
    """Returns the traces of the last job, without traces of earlier jobs.

    All ranks of a context, and all contexts of a process, belong to one job. A trace without a context belongs to the
    last job unless it ended before that job began.
    """
    jobs: list[tuple[set[str], list[Trace]]] = []
    for trace in traces:
        names, members = {trace.process, trace.job or trace.process}, [trace]
        for job in [job for job in jobs if job[0] & names]:
            jobs.remove(job)
            names |= job[0]
            members += job[1]
        jobs.append((names, members))
    _, last = max(jobs, key=lambda job: max((bool(trace.job), trace.began) for trace in job[1]))
    start = min(trace.began for trace in last)
    early = [members for _, members in jobs if not any(trace.job for trace in members)]
    return last + [trace for members in early if members is not last for trace in members if trace.last >= start]


def contexts_of(traces: list[Trace]) -> list[list[Trace]]:
    """Returns the traces of each context, sorted by rank; contexts are sorted by their start."""
    found: dict[str, list[Trace]] = defaultdict(list)
    for trace in traces:
        found[trace.job or str(trace.path)].append(trace)
    contexts = [sorted(context, key=lambda trace: trace.rank) for context in found.values()]
    return sorted(contexts, key=lambda context: min(trace.began for trace in context))


def merged(contexts: list[list[Trace]]) -> Iterator[dict[str, Any]]:
    """Yields all events, with times by the clock of the first trace. Each rank of each context gets its own "pid"."""
    before = 0
    for context in contexts:
        for trace in context:
            pid = before + trace.rank
            offset = shift(trace, contexts[0][0])
            for event in trace.events:
                moved = {"ts": round(event["ts"] + offset, 3)} if "ts" in event else {}
                if event.get("name") == "process_sort_index":
                    moved = {"args": {"sort_index": pid}}
                yield {**event, **moved, "pid": pid}
        before += int(context[0].clock["size"])


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


def waits(context: list[Trace]) -> dict[int, dict[int, float]]:
    """Returns total[a][b]: the seconds that rank a waited for rank b and for no other rank."""
    total: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for trace in context:
        for event in trace.events:
            if event.get("cat") == "wait" and event["args"]["of"] == 1:
                total[trace.rank][event["args"]["ranks"][0]] += event["dur"] * 1e-6
    return total


def _print_waits(contexts: list[list[Trace]]) -> None:
    """Prints a table of waits for each context. A rank that a shrink has renumbered has its first number beside it."""
    for number, context in enumerate(contexts, 1):
        total = waits(context)
        ranks = sorted({trace.rank for trace in context} | {peer for row in total.values() for peer in row})
        first = {trace.rank: trace.first for trace in context}
        of = f", context {number} of {len(contexts)}" if len(contexts) > 1 else ""
        click.echo(f"seconds that a rank waited for one other alone{of}")
        table = Table(box=None, pad_edge=False)
        table.add_column("rank")
        for peer in ranks:
            table.add_column(f"for {peer}", justify="right")
        for rank in ranks:
            was = f" (first {first[rank]})" if first.get(rank, rank) != rank else ""
            row = (f"{total[rank][peer]:.3f}" if total[rank][peer] else "-" for peer in ranks)
            table.add_row(f"{rank}{was}", *row)
        Console(width=None if sys.stdout.isatty() else 160).print(table)


@click.command("timeline")
@click.argument("path")
@click.option("-o", "--output", metavar="FILE", help="Write the merged timeline here; the default is PATH.")
@click.option("--waits", "waits_", is_flag=True, help="Print how long each rank waited for which, and write nothing.")
def command(path: str, output: str | None, waits_: bool) -> None:
    """Merge the timelines that the ranks have written into one file.

    PATH is the value of HPCOMM_TIMELINE: for trace.json the ranks wrote trace.rank0.json and so on. Open the result in
    https://ui.perfetto.dev or chrome://tracing. Times of different hosts are aligned by their wall clocks, so they are
    as exact as NTP keeps these.
    """
    files = files_of(path)
    if not files:
        raise BadTrace(f"found no timelines of {path}, such as {Path(path).stem}.rank0{Path(path).suffix}")
    found = [read(file) for file in files]
    traces = of_last_job(found)
    for path_of in sorted({trace.path for trace in found} - {trace.path for trace in traces}):
        click.echo(f"{path_of} is of an earlier job and left out", err=True)
    contexts = contexts_of(traces)
    for number, context in enumerate(contexts, 1):
        missing = sorted(set(range(int(context[0].clock["size"]))) - {trace.rank for trace in context})
        of = f" of context {number}" if len(contexts) > 1 else ""
        if missing:
            told = ", ".join(map(str, missing))
            click.echo(f"ranks {told}{of} are missing: on other hosts, or never started", err=True)
    for trace in traces:
        if not trace.ended:
            click.echo(f"{trace.path} has no end: rank {trace.rank} still runs or was killed", err=True)
    if waits_:
        _print_waits(contexts)
        return
    to = Path(output) if output is not None else Path(path.replace("%r", "all"))
    n = write(merged(contexts), to)
    click.echo(f"{to}: {n} events of {len(traces)} rank{'s' if len(traces) != 1 else ''}")

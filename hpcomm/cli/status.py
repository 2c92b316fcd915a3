"""hpcomm status: shows the state of jobs that have ranks on this host."""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from .. import _core
from .._core import Blamed, Jobs, ShownRank, Waiting
from ..errors import HpcommError

_STATES = {"T": "stopped", "t": "stopped by a debugger", "D": "in the kernel", "Z": "dead"}
_LONG = 1.0  # a rank that computes for so many seconds while others wait is reported
_JOB_CHARS = 8  # printed characters of a job's 32: enough to tell the jobs of a host apart


def process_state(pid: int) -> str:
    """Returns a state, from /proc, in which a process gives no answer, such as "stopped"; otherwise ""."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return _STATES.get(stat.rpartition(")")[2].split()[0], "")


def command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return ""
    line = " ".join(word for word in words if word)
    return "".join(char if char.isprintable() else "?" for char in line)


def told_ranks(waiting: Waiting) -> str:
    shown = ", ".join(map(str, waiting.ranks))
    more = waiting.n - len(waiting.ranks)
    return f"{shown} and {more} more" if more > 0 else shown


def told(rank: ShownRank) -> str:
    if rank.state == "gone":
        return f"gone: {rank.gone}"
    if rank.state == "foreign":
        return f"hung up: another version of hpcomm, or at its end; {command_of(rank.pid)}"
    waits = "; ".join(f"waits for {told_ranks(w)} since {w.seconds:.1f} s, in {w.op}" for w in rank.waits)
    now = waits or ("starts" if rank.state == "starts" else "runs")
    if rank.told_by >= 0:
        was = f"{now} ({rank.age:.1f} s ago)"
        if rank.state != "silent":
            return was
        silence = f"does not answer: nothing came from it for {rank.unheard:.1f} s"
        return f"{silence}; before: {was}" if rank.age >= 0 else silence
    if rank.state == "silent":
        why = process_state(rank.pid)
        return f"does not answer{f': its process is {why}' if why else ''}"
    return now


def is_stuck(blamed: Blamed) -> bool:
    """Whether to print that ranks hold up others: not if all that they do is compute for less than a second."""
    return any(end.state != "computing" or end.seconds >= _LONG for end in blamed.culprits)


def as_json(jobs: Jobs) -> str:
    rows: list[dict[str, Any]] = []
    for rank in jobs.ranks:
        here = rank.told_by < 0
        row = asdict(rank)
        row["process"] = process_state(rank.pid) if here else ""
        row["command"] = command_of(rank.pid) if here else ""
        rows.append(row)
    ends = {job: [asdict(end) for end in blamed.culprits] for job, blamed in jobs.blamed.items()}
    return json.dumps({"ranks": rows, "culprits": ends}, indent=2)


def _print(console: Console, jobs: Jobs) -> None:
    ranks = jobs.ranks
    if not ranks:
        console.print("no job of yours runs hpcomm in this host's network namespace")
    for job in sorted({rank.job for rank in ranks}):
        members = [rank for rank in ranks if rank.job == job]
        size = max(rank.size for rank in members)
        if job:
            here = [rank for rank in members if rank.told_by < 0]
            told_here = f", {len(here)} of them here" if len(here) < size else ""
            told_size = f"{size} rank{'s' if size != 1 else ''}{told_here}"
            titles = sorted({rank.title for rank in members} - {""})
            told_job = " ".join(["job", job[:_JOB_CHARS], *(f'"{title}"' for title in titles)])
            console.print(f"{told_job}: {told_size}; {command_of(here[0].pid)}", overflow="ellipsis", no_wrap=True)
        else:
            console.print("of no job that is known")
        table = Table(box=None, pad_edge=False)
        for column in ("rank", "host", "pid", "transports", "step", "now"):
            table.add_column(column, overflow="fold", no_wrap=column != "now")
        for rank in members:
            table.add_row(
                str(rank.rank) if rank.rank >= 0 else "?",
                rank.host or "?",
                str(rank.pid or "?"),
                ", ".join(rank.transports) or "-",
                str(rank.step) if rank.age >= 0 else "?",
                told(rank),
            )
        console.print(table)
        if job in jobs.blamed and is_stuck(jobs.blamed[job]):
            console.print(f"held up: {jobs.blamed[job].told}")


def _console() -> Console:
    console = Console(highlight=False, markup=False, emoji=False)
    return console if console.is_terminal else Console(width=160, highlight=False, markup=False, emoji=False)


@click.command("status")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
@click.option(
    "--watch", type=click.FloatRange(min=0.1), metavar="SECONDS", help="Print again at this interval, until Ctrl-C."
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0.01, max=60),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the ranks of this host may take to answer, and then the ranks of other hosts.",
)
def command(json_: bool, watch: float | None, wait: float) -> None:
    """Show the jobs that have ranks on this host: each rank's process, step and waits.

    A rank answers even while its trainer computes, unless its process is stopped. Ranks of other hosts are asked by one
    of this host, and are shown with the age of their answer. Below the ranks of a job it prints the ranks that hold the
    job up. You see the jobs of your user; root sees all.

    The exit status is 0 if a job was found, 1 if none was found, and 2 if the question cannot be asked here.
    """
    console = _console()
    while True:
        try:
            jobs = _core.jobs(wait)
        except HpcommError as error:
            click.echo(f"hpcomm status: {error}", err=True)
            sys.exit(2)
        if json_:
            click.echo(as_json(jobs))
        else:
            if watch is not None and console.is_terminal:
                console.clear()
            _print(console, jobs)
        if watch is None:
            sys.exit(0 if jobs.ranks else 1)
        try:
            time.sleep(watch)
        except KeyboardInterrupt:
            sys.exit(0 if jobs.ranks else 1)

"""papers: every figure, table and measured claim of the five papers, with the command that measures it here.

    python -m bench.papers                                   # the list: state, seconds, command
    python -m bench.papers --paper asap                      # one paper's
    python -m bench.papers --paper asap --figure 8           # run one; --quick: in a minute
    python -m bench.papers --paper phub --item "section 4.7" -- --workers 64    # and its options

docs/evidence.md has the numbers: the paper's, ours, and why they differ. Needs neither MPI nor hpcomm by itself.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.common.launch import ROOT

TITLES = {
    "phub": "PHub",
    "asap": "ASAP",
    "parameter_flow": "Parameter Flow",
    "poseidon": "Poseidon",
    "sfb": "SFB",
}
STATES = {
    "measured": "measured as in the paper, on this kind of machine",
    "stand-in": "measured with a substitute for hardware or data missing here",
    "partial": "measured in part",
    "diagram": "measures nothing",
    "to do": "not measured yet",
    "impossible": "cannot be done here",
}
WIDTH = 200  # columns if another program reads the list
INDEX = Path(__file__).with_name("papers.json")


@dataclass(frozen=True)
class Item:
    """A figure, table or section of a paper.

    Attributes:
        command: the arguments of python -m that measure all of it; None if nothing does.
        quick: arguments for a look in 60 s.
        seconds: roughly, of the command on two cores.
        needs: requirements of the machine besides hpcomm.
        where: the page that has the numbers, or shows the mechanism.
    """

    paper: str
    item: str
    title: str
    command: str | None
    quick: str | None
    seconds: int
    state: str
    needs: tuple[str, ...]
    where: str | None


def items() -> list[Item]:
    return [Item(**{**row, "needs": tuple(row["needs"])}) for row in json.loads(INDEX.read_text(encoding="utf-8"))]


def chosen(all_items: Iterable[Item], paper: str, item: str) -> list[Item]:
    """Returns the items of a paper with this name; "" selects all. "figure 12" also selects "figure 12 MF"."""
    of_paper = [each for each in all_items if paper in ("", each.paper)]
    wanted = item.lower()
    return [each for each in of_paper if f"{each.item.lower()} ".startswith(f"{wanted} ".lstrip())]


def told(seconds: int) -> str:
    return "" if seconds == 0 else f"{seconds} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def show(listed: Sequence[Item]) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table("item", "subject", "state", "takes", "python -m", box=None, pad_edge=False)
    paper = ""
    for each in listed:
        if each.paper != paper:
            paper = each.paper
            table.add_row(f"[bold]{TITLES[paper]}[/bold]")
        table.add_row(each.item, each.title, each.state, told(each.seconds), each.command or each.where or "")
    console = Console()
    console.width = console.width if console.is_terminal else WIDTH
    console.print(table)
    counts = {state: sum(each.state == state for each in listed) for state in STATES}
    print("# " + ", ".join(f"{count} {state}" for state, count in counts.items() if count))


def run(item: Item, quick: bool, more: Sequence[str]) -> int:
    """Runs an item's command; returns its exit status, or 2 if it has none."""
    words = shlex.split((item.quick if quick else item.command) or "")
    name = f"{TITLES[item.paper]}, {item.item}"
    if not words:
        short = " that takes a minute; without --quick it has one" if quick and item.command else ""
        see = f"; see {item.where}" if item.where else ""
        print(f"papers: {name} ({item.title}) has no command{short}: {STATES[item.state]}{see}", file=sys.stderr)
        return 2
    command = ["-m", *words, *more]
    needs = f" (it needs {', '.join(item.needs)})" if item.needs else ""
    print(f"# {name}: python {shlex.join(command)}{needs}", flush=True)
    return subprocess.run([sys.executable, *command], cwd=ROOT, check=False).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m bench.papers", description=__doc__.partition("\n")[0])
    p.add_argument("--paper", choices=tuple(TITLES), default="", help="of one paper alone")
    one = p.add_mutually_exclusive_group()
    one.add_argument("--figure", default="", help="run this figure, e.g. 8 or S3")
    one.add_argument("--table", default="", help="run this table")
    one.add_argument("--item", default="", help='run this item of the list, e.g. "section 4.7"')
    p.add_argument("--quick", action="store_true", help="small sizes, 60 s at most: to see that it runs")
    p.add_argument("--list", action="store_true", help="list what would run, and run nothing")
    p.add_argument("--json", action="store_true", help="print the list as JSON")
    p.add_argument("more", nargs="*", help="after --: more options for the command")
    options = p.parse_args(arguments)
    item = options.item or next((f"{k} {v}" for k, v in vars(options).items() if k in ("figure", "table") and v), "")
    if item and not options.paper:
        p.error(f"{item} of which paper? --paper {{{','.join(TITLES)}}}")
    listed = chosen(items(), options.paper, item)
    if not listed:
        names = ", ".join(each.item for each in chosen(items(), options.paper, ""))
        p.error(f"{TITLES[options.paper]} has no {item}: {names}")
    if options.json:
        print(json.dumps([asdict(each) for each in listed], indent=1))
        return 0
    if options.list or not item:
        show(listed)
        return 0
    return max(run(each, options.quick, options.more) for each in listed)


if __name__ == "__main__":
    sys.exit(main())

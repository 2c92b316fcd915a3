"""groups: the process groups of a mesh over the backend hpcomm, and over Gloo: made, used and destroyed.

The ranks are threads of one process: a mesh of 10 x 10 would take a hundred processes with torch. Each rank is in the
group of its row and in that of its column. In a turn all ranks make both of their groups, make one all_reduce of 16
bytes in each unless --unused, and destroy them. A turn's time is divided by the number of groups. Libraries take turns.
"""

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as _dist
from rich.console import Console
from rich.table import Table

import hpcomm
from bench.common.launch import cores
from bench.common.options import add_output, write
from hpcomm.bench.rows import Row, ratio
from hpcomm.torch.backend.member import Member
from hpcomm.torch.backend.memory import SUM

HPCOMM, GLOO = "hpcomm", "Gloo"
dist: Any = _dist  # whose stubs leave out stores
LIMIT = 120.0  # seconds of a call
ELEMENTS = 4
SETTLE = 0.5  # seconds

Group = tuple[Callable[[torch.Tensor], None], Callable[[], None]]  # all_reduce, and the group's end


def of_hpcomm(store: Any, rank: int, size: int, ranks: Sequence[int]) -> Group:
    member = Member(store, rank, size, LIMIT, ranks)
    return lambda x: member.allreduce([x], SUM, None, False), member.close


def of_gloo(store: Any, rank: int, size: int, _ranks: Sequence[int]) -> Group:
    held = [dist.ProcessGroupGloo(store, rank, size, timeout=timedelta(seconds=LIMIT))]
    return lambda x: held[0].allreduce([x]).wait(), held.clear


LIBRARIES = {HPCOMM: of_hpcomm, GLOO: of_gloo}


def groups_of(rank: int, rows: int, columns: int) -> list[tuple[str, list[int]]]:
    """Returns the name and the ranks of the row and of the column that a rank is in."""
    row, column = divmod(rank, columns)
    return [
        (f"row{row}", [row * columns + i for i in range(columns)]),
        (f"column{column}", [i * columns + column for i in range(rows)]),
    ]


class Mesh:
    """Ranks that are threads, and the times of their turns."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rows, self.columns = options.mesh
        self.size = self.rows * self.columns
        self.meeting = threading.Barrier(self.size, timeout=LIMIT)
        self.store = dist.HashStore()
        self.made: dict[str, list[float]] = {name: [] for name in options.libraries}
        self.whole: dict[str, list[float]] = {name: [] for name in options.libraries}
        self.wrong = dict.fromkeys(options.libraries, 0)
        self.left: list[dict[str, int]] = []  # after each turn
        self.failures: list[BaseException] = []

    def turn(self, rank: int, name: str, number: int) -> None:
        self.meeting.wait()
        begin = time.perf_counter()
        mine = [
            LIBRARIES[name](
                dist.PrefixStore(f"{name}/{number}/{group}", self.store), ranks.index(rank), len(ranks), ranks
            )
            for group, ranks in groups_of(rank, self.rows, self.columns)
        ]
        if rank == 0:
            made = time.perf_counter() - begin
        for (use, _), (_, ranks) in zip(mine, groups_of(rank, self.rows, self.columns), strict=True):
            if not self.options.unused:
                x = torch.full((ELEMENTS,), float(rank))
                use(x)
                self.wrong[name] += x.tolist() != [sum(ranks)] * ELEMENTS
        for _, end in mine:
            end()
        self.meeting.wait()
        if rank == 0 and number > 0:  # the first turn starts threads
            self.made[name].append(made / (self.rows + self.columns))
            self.whole[name].append((time.perf_counter() - begin) / (self.rows + self.columns))

    def run(self, rank: int) -> None:
        try:
            for number in range(self.options.turns + 1):
                for name in self.options.libraries:
                    self.turn(rank, name, number)
                if rank == 0:
                    self.left.append(least_open())
                self.meeting.wait()
        except BaseException as failure:
            self.failures.append(failure)
            self.meeting.abort()


def least_open() -> dict[str, int]:
    """Returns the least descriptors and threads of a short time: ends of links are closed soon after their groups."""
    least = {"descriptors": sys.maxsize, "threads": sys.maxsize}
    until = time.monotonic() + SETTLE
    while time.monotonic() < until:
        for name, folder in (("descriptors", "fd"), ("threads", "task")):
            least[name] = min(least[name], len(os.listdir(f"/proc/self/{folder}")))
        time.sleep(SETTLE / 20)
    return least


def measure(options: argparse.Namespace) -> Row:
    mesh = Mesh(options)
    ranks = [threading.Thread(target=mesh.run, args=(rank,)) for rank in range(mesh.size)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    if mesh.failures:
        raise next(each for each in mesh.failures if not isinstance(each, threading.BrokenBarrierError))
    rows: list[Row] = [
        {
            "name": name,
            "cycles": mesh.whole[name],
            "made": statistics.median(mesh.made[name]),
            "time": statistics.median(mesh.whole[name]),
            "wrong": mesh.wrong[name],
        }
        for name in options.libraries
    ]
    if HPCOMM in options.libraries:
        own = next(row for row in rows if row["name"] == HPCOMM)
        for row in rows:
            row["x"] = ratio(row, own)
    return {
        "benchmark": "groups",
        "cores": cores(),
        "hpcomm": hpcomm.__version__,
        "torch": torch.__version__,
        "mesh": options.mesh,
        "unused": options.unused,
        "left": {name: mesh.left[-1][name] - mesh.left[0][name] for name in mesh.left[0]},
        "rows": rows,
    }


def show(document: Row) -> None:
    rows, columns = document["mesh"]
    used = "not used" if document["unused"] else "used once"
    print(
        f"# groups: a mesh of {rows} x {columns} ranks, threads on {document['cores']} cores, each group {used}; "
        f"hpcomm {document['hpcomm']}, torch {document['torch']}; left over: {document['left']['descriptors']} "
        f"descriptors, {document['left']['threads']} threads",
        flush=True,
    )
    table = Table(box=None, pad_edge=False)
    for head in ("library", "made (ms a group)", "made, destroyed (ms a group)", "x", "spread", "#wrong"):
        table.add_column(head, justify="left" if head == "library" else "right", no_wrap=True)
    for row in document["rows"]:
        x = row.get("x")
        told = ["", ""] if x is None else [f"{x[0]:.2f}", f"{x[1]:.2f} .. {x[2]:.2f}"]
        table.add_row(row["name"], f"{1e3 * row['made']:.2f}", f"{1e3 * row['time']:.2f}", *told, str(row["wrong"]))
    console = Console()
    console.width = console.width if console.is_terminal else 110
    console.print(table)


def mesh_of(text: str) -> tuple[int, int]:
    rows, _, columns = text.partition("x")
    if not (rows.isdigit() and columns.isdigit() and int(rows) and int(columns)):
        raise argparse.ArgumentTypeError(f"{text!r}: must be two numbers, such as 10x10")
    return int(rows), int(columns)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.torch.groups", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--mesh", type=mesh_of, default=(10, 10), help="rows x columns of ranks; default: 10x10")
    parser.add_argument("--turns", type=int, default=5, help="of each library; default: %(default)s")
    parser.add_argument("--unused", action="store_true", help="make and destroy the groups alone")
    parser.add_argument("--libraries", default=",".join(LIBRARIES), help="default: %(default)s")
    add_output(parser, plot="")
    options = parser.parse_args(arguments)
    options.libraries = options.libraries.split(",")
    if not set(options.libraries) <= set(LIBRARIES) or options.turns < 1:
        parser.error(f"--libraries: choose from {', '.join(LIBRARIES)}; --turns must be 1 or more")
    torch.set_num_threads(1)
    document = measure(options)
    text = json.dumps(document, indent=1)
    write(options, text)
    if options.json:
        print(text)
    else:
        show(document)
    return 1 if any(row["wrong"] for row in document["rows"]) or any(n > 0 for n in document["left"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())

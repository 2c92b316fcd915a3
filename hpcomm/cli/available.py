"""hpcomm doctor --bandwidth: measures the available bandwidth between the hosts of a job, in each direction."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..bandwidth import Bandwidth
from ..config import Config
from ..context import Context
from ..launch import Group
from . import verdict
from .verdict import Host

LONGEST = 60.0  # most seconds to probe the paths from one host


@dataclass(frozen=True)
class Way:
    """The available bandwidth from one host to another. sender, receiver: the hosts' indices in the report.

    low, high: bounds in bytes a second; high: None if no probed rate was too fast. answered: whether any probe was
    answered.
    """

    sender: int
    receiver: int
    low: float | None
    high: float | None
    answered: bool


Gather = Callable[[Any, float], list[Any]]


def measure(group: Group, config: Config, hosts: Sequence[Host], gather: Gather) -> tuple[Way, ...]:
    """Returns the available bandwidth of all paths between hosts, the same on every rank. All ranks must call it.

    The lowest rank of each host probes the lowest ranks of all other hosts. gather(value, timeout) is an allgather with
    a timeout in seconds.

    Raises:
        HpcommError: a rank does not start in time, or dies.
    """
    leaders = [host.ranks[0] for host in hosts]
    found: tuple[Bandwidth, ...] = ()
    with Context(group, config) as ctx:
        if ctx.rank in leaders:
            found = ctx.bandwidth([rank for rank in leaders if rank != ctx.rank], timeout=LONGEST)
        told = [
            {"receiver": leaders.index(one.peer), "low": one.low, "high": _finite(one.high), "answered": one.answered}
            for one in found
        ]
        everybody = gather(told, LONGEST + config.timeout)
    return tuple(Way(number, **one) for number, rank in enumerate(leaders) for one in everybody[rank])


def _finite(rate: float | None) -> float | None:
    return None if rate is None or math.isinf(rate) else rate


def told(way: Way | None) -> str:
    """Returns the text of a cell of the table."""
    if way is None:
        return "-"
    if not way.answered:
        return "no answer"
    if way.high is None:
        return f"over {verdict.speed(way.low)}" if way.low else "not found out"
    return f"{verdict.speed(way.low or 0)} to {verdict.speed(way.high)}"


def show(hosts: Sequence[Host], ways: Sequence[Way], console: Console) -> None:
    table = Table(box=None, pad_edge=False, title="available bandwidth, from the host of a row", title_justify="left")
    table.add_column("from", overflow="fold")
    for host in hosts:
        table.add_column(f"to {host.name}", overflow="fold")
    by_ends = {(way.sender, way.receiver): way for way in ways}
    for number, host in enumerate(hosts):
        cells = [told(by_ends.get((number, other))) for other in range(len(hosts))]
        table.add_row(Text(host.name), *(Text(cell) for cell in cells))
    console.print(table)
    if any(not way.answered for way in ways):
        console.print(Text("no answer: a firewall may drop UDP between these hosts; training needs none of it"))

"""hpcomm graph: prints measures of communication graphs, and recommends a graph.

A kind is a word that names a graph, such as "ring" or "torus:4".
"""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import click
from rich.console import Console
from rich.table import Table

from .. import graphs
from ..errors import HpcommError, InvalidArgument
from ..graphs import Graph
from ..graphs.choose import busiest_degree
from ..graphs.graph import as_phases
from ..model import Rates, link_seconds
from . import drawing, tree

Graphs: TypeAlias = Graph | tuple[Graph, ...]

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
KINDS = {
    "complete": "all-reduce",
    "ring": "i -> i + 1; ring:both also i - 1",
    "chain": "i -> i + 1, not around; chain:both also i - 1",
    "star": "a parameter server; star:3 has it at rank 3",
    "root_expander": "i -> i + 1 and i + sqrt(N); root_expander:3 has out-degree 3",
    "hypercube": "N is a power of two",
    "exponential": "i -> i + 1, 2, 4, ...",
    "torus": "nearest to a square; torus:2 has 2 rows",
    "random_regular": "the best of some drawn, of degree 4; random_regular:6 of degree 6",
    "spread": "the least sum of shortest paths, of out-degree 2; spread:4 of 4; not in all",
    "one_peer_exponential": "one edge of exponential a step",
    "random_matchings": "pairs that change each step; random_matchings:8 in 8 steps",
}
ALL = (*(kind for kind in KINDS if kind != "spread"), "ring:both", "chain:both")  # a spread's search takes seconds
HEADINGS = ("graph", "gap", "sigma 2", "diameter", "in", "out", "influence", "bytes/step", "s/step", "check")


def make(kind: str, n: int, seeds: int = 16, seed: int = 0) -> Graphs:
    """Returns the graph of n ranks, or its phases, that a kind such as "ring", "ring:both" or "torus:4" names.

    Raises:
        InvalidArgument: the kind is unknown, or does not suit n.
    """
    match kind.replace("-", "_").partition(":"):
        case "complete", "", "":
            return graphs.complete(n)
        case "ring", _, ("" | "both") as way:
            return graphs.ring(n, directed=not way)
        case "chain", _, ("" | "both") as way:
            return graphs.chain(n, directed=not way)
        case "star", _, center:
            return graphs.star(n, _number(kind, center, 0))
        case "root_expander", _, degree:
            return graphs.root_expander(n, _number(kind, degree, 0) if degree else None)
        case "hypercube", "", "":
            return graphs.hypercube(n)
        case "exponential", "", "":
            return graphs.exponential(n)
        case "torus", _, text:
            rows = _number(kind, text, next(rows for rows in range(math.isqrt(n), 0, -1) if n % rows == 0) if n else 1)
            if rows == 0 or n % rows:
                raise InvalidArgument(f"{kind}: {n} ranks do not make {rows} rows; use a divisor of {n}")
            return graphs.torus(rows, n // rows)
        case "random_regular", _, degree:
            return graphs.random_regular(n, _number(kind, degree, 4), seeds, seed)
        case "spread", _, degree:
            return graphs.spread(n, _number(kind, degree, min(2, max(n - 1, 1))))
        case "one_peer_exponential", "", "":
            return graphs.one_peer_exponential(n)
        case "random_matchings", _, phases:
            return graphs.random_matchings(n, _number(kind, phases, max(1, (n - 1).bit_length())), seed)
        case name, ":", _ if name in KINDS:
            raise InvalidArgument(
                f"{kind}: {name} takes {'both' if name in ('ring', 'chain') else 'nothing'} behind it"
            )
    raise InvalidArgument(f"{kind} is not a kind of graph: must be one of {', '.join(KINDS)}, or all")


def _number(kind: str, text: str, default: int) -> int:
    """Returns the number after the colon of a kind, or default if the text is empty."""
    if text and not text.isdecimal():
        raise InvalidArgument(f"{kind}: {text!r} is no number")
    return int(text) if text else default


def from_file(file: TextIO, n: int | None) -> Graph:
    """Reads a graph from a file with an edge on each line: source, target and, on all lines or none, a weight.

    Raises:
        InvalidArgument: a line is not an edge, or the edges make no valid graph.
    """
    edges: list[tuple[int, int]] = []
    weights: list[float] = []
    for number, line in enumerate(file, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            source, target, *weight = words
            edges.append((int(source), int(target)))
            weights += map(float, weight)
        except ValueError:
            raise InvalidArgument(
                f"line {number} is {line.strip()!r}: must be source, target and perhaps a weight"
            ) from None
        if len(weights) not in (0, len(edges)):
            raise InvalidArgument(f"line {number} is {line.strip()!r}: all lines have a weight, or none")
    if n is None:
        n = 1 + max((max(edge) for edge in edges), default=0)
    return graphs.from_edges(n, edges, weights or None, Path(file.name).stem)


def name_of(graph: Graphs) -> str:
    return as_phases(graph)[0].name.removesuffix("[0]")


def facts(graph: Graphs, nbytes: int, rates: Rates | None = None, compute: float = 0.0) -> dict[str, Any]:
    """Returns the measures of a graph by name. A measure that does not exist has the value None: phases,
    and graphs that are not connected, have no diameter. If rates is given, the predicted seconds of a step are among
    the measures."""
    phases = as_phases(graph)
    sigma = graphs.second_singular(graph)
    diameter = graphs.diameter(phases[0]) if len(phases) == 1 else math.inf
    try:
        counts = [graphs.influence(phases[0])] if len(phases) == 1 else []
    except InvalidArgument:  # no rank reaches all others
        counts = []
    found = {
        "graph": name_of(graph),
        "ranks": phases[0].size,
        "phases": len(phases),
        "gap": 1 - sigma,
        "sigma_2": sigma,
        "diameter": None if diameter == math.inf else diameter,
        "in_degree": _range(phase.in_degrees for phase in phases),
        "out_degree": _range(phase.out_degrees for phase in phases),
        "influence": _range(counts) if counts else None,
        "bytes_per_step": max(int(graphs.bytes_per_step(phase, nbytes).max()) for phase in phases),
        "findings": graphs.check(graph),
    }
    if rates is not None:
        found["seconds_per_step"] = compute + link_seconds(busiest_degree(graph) * nbytes, rates)
    return found


def _range(arrays: Iterable[Any]) -> list[Any]:
    """Returns the smallest and the largest value of all arrays."""
    ends = [(array.min().item(), array.max().item()) for array in arrays]
    return [min(low for low, _ in ends), max(high for _, high in ends)]


def _span(ends: list[Any]) -> str:
    return f"{ends[0]}" if ends[0] == ends[1] else f"{ends[0]}-{ends[1]}"


def _told(row: dict[str, Any]) -> tuple[str, ...]:
    """Returns the cells of a row of the table. Influence is printed relative to 1/n, its value if all ranks have the
    same."""
    n, influence = row["ranks"], row["influence"]
    if influence is None:
        fair = "fair" if row["phases"] > 1 and not row["findings"] else "-"
    else:
        low, high = (round(end * n, 4) for end in influence)
        fair = "fair" if low == high else f"{low:.2g}-{high:.2g}"
    return (
        row["graph"],
        f"{row['gap']:.4g}",
        f"{row['sigma_2']:.6g}",
        "-" if row["phases"] > 1 else "inf" if row["diameter"] is None else str(row["diameter"]),
        _span(row["in_degree"]),
        _span(row["out_degree"]),
        fair,
        str(row["bytes_per_step"]),
        *([f"{row['seconds_per_step']:.3g}"] if "seconds_per_step" in row else []),
        str(len(row["findings"]) or "ok"),
    )


def _print_table(title: str, headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Console:
    console = Console()
    console = console if console.is_terminal else Console(width=160)
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="left" if i == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    return console


def _print_choices(choices: tuple[graphs.Choice, ...], as_json: bool) -> None:
    columns = ("name", "gap", "bytes_per_step", "seconds_per_step", "steps", "seconds")
    if as_json:
        rows = [{column: getattr(choice, column) for column in columns} for choice in choices]
        told = [{**row, **{k: None for k, value in row.items() if value == math.inf}} for row in rows]
        click.echo(json.dumps(told, indent=2))
        return
    headings = ("graph", "gap", "bytes/step", "s/step", "steps", "seconds")
    cells = [
        (c.name, f"{c.gap:.4g}", str(c.bytes_per_step), f"{c.seconds_per_step:.3g}", f"{c.steps:g}", f"{c.seconds:.3g}")
        for c in choices
    ]
    _print_table("graphs, the fastest first", headings, cells)


def amount(text: str) -> float:
    """Parses a number such as "28M" (28 * 2^20) or "1.25e9"; raises ValueError for other text."""
    unit = text[-1:] if text[-1:] in UNITS else ""
    number = float(text.removesuffix(unit)) * UNITS[unit]
    if not math.isfinite(number):
        raise ValueError(f"{text} is not finite")
    return number


def _asked(words: tuple[str, ...], edges: TextIO | None, seeds: int, seed: int) -> list[Graphs]:
    """Returns the graphs that the command line names."""
    kinds, sizes = [word for word in words if not word.isdecimal()], [int(word) for word in words if word.isdecimal()]
    if edges is not None:
        if kinds or len(sizes) > 1:
            raise click.UsageError("--edges takes no KIND and one N at the most")
        return [from_file(edges, sizes[0] if sizes else None)]
    if not kinds or not sizes:
        raise click.UsageError(f"give one KIND or more, then N; kinds are {', '.join(KINDS)}, or all")
    found: list[Graphs] = []
    for n in sizes:
        for kind in kinds:
            for one in ALL if kind == "all" else (kind,):
                try:
                    found.append(make(one, n, seeds, seed))
                except InvalidArgument:
                    if kind != "all":  # "all" skips kinds that do not suit n
                        raise
    return found


def _kinds() -> str:
    return "\b\n" + "\n".join(f"{name:22}{meaning}" for name, meaning in KINDS.items())


class _Graphs(click.Command):
    """The command hpcomm graph. If its first word is "tree", the command hpcomm graph tree gets the rest."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == ["tree"]:
            return tree.command.make_context(f"{info_name} tree", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(
    "graph",
    cls=_Graphs,
    help=f"""Print what to expect of node communication graphs of N ranks: how fast updates spread.

KIND is one of these, or all:

{_kinds()}

hpcomm graph tree --help is about broadcast trees.

The exit status is 0 if averaging over all graphs shown converges to the mean of all ranks, 1 if check found otherwise,
2 for wrong usage.""",
)
@click.argument("words", nargs=-1, metavar="[KIND]... [N]...")
@click.option("--edges", type=click.File(), help="A graph from a file: a line has source, target and perhaps a weight.")
@click.option("--metropolis", is_flag=True, help="Give undirected graphs the fair weights of Metropolis and Hastings.")
@click.option("--bytes", "nbytes", type=amount, default="1M", show_default=True, help="Bytes of an update, e.g. 28M.")
@click.option("--seeds", type=click.IntRange(1), default=16, show_default=True, help="How many random graphs to draw.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of random graphs.")
@click.option("--recommend", is_flag=True, help="Rank graphs of N ranks by the predicted time until all agree.")
@click.option(
    "--bandwidth",
    type=amount,
    help="Bytes per second of a rank's link, e.g. 1.25e9 for 10 Gb/s; it adds seconds.",
)
@click.option(
    "--latency", type=amount, default="20e-6", show_default=True, help="Seconds of a step in addition to sending."
)
@click.option("--compute", type=amount, default="0", show_default=True, help="Seconds between exchanges.")
@click.option(
    "--accuracy", type=amount, default="0.01", show_default=True, help="How far from the mean counts as agreed."
)
@click.option("--png", type=click.Path(dir_okay=False, path_type=Path), help="Draw the graphs into this file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    words: tuple[str, ...],
    edges: TextIO | None,
    metropolis: bool,
    nbytes: float,
    seeds: int,
    seed: int,
    recommend: bool,
    bandwidth: float | None,
    latency: float,
    compute: float,
    accuracy: float,
    png: Path | None,
    as_json: bool,
) -> None:
    try:
        if recommend:
            if len(words) != 1 or not words[0].isdecimal() or bandwidth is None or edges is not None:
                raise click.UsageError("--recommend takes N, --bandwidth and no KIND")
            choices = graphs.recommend(
                int(words[0]), int(nbytes), bandwidth, latency=latency, compute=compute, accuracy=accuracy
            )
            if png is not None:
                drawing.draw([choice.graph for choice in choices], png)
            _print_choices(choices, as_json)
            return
        asked = _asked(words, edges, seeds, seed)
        if metropolis:
            asked = [graphs.metropolis(graph) if isinstance(graph, Graph) else graph for graph in asked]
        rates = None if bandwidth is None else Rates(between=bandwidth, latency=latency)
        rows = [facts(graph, int(nbytes), rates, compute) for graph in asked]
        if png is not None:
            drawing.draw(asked, png)
    except HpcommError as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        headings = tuple(heading for heading in HEADINGS if bandwidth is not None or heading != "s/step")
        console = _print_table("node communication graphs", headings, [_told(row) for row in rows])
        for row in rows:
            for finding in row["findings"]:
                console.print(f"{row['graph']}: {finding}", highlight=False, markup=False, soft_wrap=True)
    raise SystemExit(1 if any(row["findings"] for row in rows) else 0)

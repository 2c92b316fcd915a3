"""hpcomm graph tree: prints and draws the cheapest broadcast tree (Parameter Flow, section 3.4.1)."""

import json
from math import ceil
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.tree import Tree as Branches

from .. import graphs
from ..errors import HpcommError, InvalidArgument
from ..graphs import CheapestTree
from ..model.trees import hops
from . import drawing


def costs_of(ranks: int | None, racks: int | None, pods: int | None, file: Path | None, bandwidths: bool) -> Any:
    """Returns costs from a file with a row of numbers on each line or, without a file, from numbers of racks and pods.

    Without a file, consecutive ranks share a rack, and consecutive racks share a pod.

    Raises:
        InvalidArgument: the file cannot be read or has no matrix, or the numbers of ranks, racks and pods do not fit.
    """
    if file is not None:
        try:
            found = np.loadtxt(file, ndmin=2, delimiter="," if file.suffix == ".csv" else None)
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"{file} is no matrix of numbers: {error}") from None
        if ranks is not None and found.shape != (ranks, ranks):
            raise InvalidArgument(f"{file} has shape {found.shape}: --ranks {ranks} needs {(ranks, ranks)}")
        return graphs.bandwidth_costs(found) if bandwidths else found
    if ranks is None:
        raise InvalidArgument("there are no costs: give --ranks, or --costs with a file")
    racks = 1 if racks is None else racks
    if not 1 <= (pods or racks) <= racks <= ranks:
        raise InvalidArgument(f"{ranks} ranks, {racks} racks and {pods} pods do not go together: give fewer")
    per_rack, per_pod = ceil(ranks / racks), ceil(racks / (pods or racks))
    place = [rank // per_rack for rank in range(ranks)]
    return graphs.rack_costs([f"rack{rack}" for rack in place], [f"pod{rack // per_pod}" for rack in place])


def told(best: CheapestTree, costs: Any) -> dict[str, Any]:
    """Returns the measures of a tree by name."""
    parents = best.parents
    return {
        "ranks": len(parents),
        "parents": list(parents),
        "cost": best.cost,
        "bound": best.bound,
        "gap": best.gap,
        "optimal": best.optimal,
        "degree": max(map(parents.count, range(len(parents)))),
        "depth": hops(parents, range(len(parents))),
        "leaves": len(parents) - len(set(parents) - {-1}),
    }


def _print(row: dict[str, Any], costs: Any) -> None:
    parents = row["parents"]
    sure = "the least of all trees" if row["optimal"] else f"at most {row['gap']:.1%} above the least"
    root = parents.index(-1)
    shown = {root: Branches(f"rank {root}")}
    waiting = [root]
    for parent in waiting:  # the loop appends to this list
        for rank in (rank for rank, above in enumerate(parents) if above == parent):
            shown[rank] = shown[parent].add(f"rank {rank}  {costs[parent][rank]:g}")
            waiting.append(rank)
    console = Console(highlight=False)
    console.print(f"cost {row['cost']:g}, {sure}; degree {row['degree']}, depth {row['depth']}, {row['leaves']} leaves")
    console.print(shown[root])


@click.command("tree")
@click.option("--ranks", type=click.IntRange(1), help="Number of ranks; with --costs it may be left out.")
@click.option("--racks", type=click.IntRange(1), help="Number of racks that the ranks are in, one rack after another.")
@click.option("--pods", type=click.IntRange(1), help="Groups of racks, each below a switch; left out: one a rack.")
@click.option("--costs", type=click.Path(dir_okay=False, path_type=Path), help="A matrix of costs: a row on each line.")
@click.option("--bandwidths", is_flag=True, help="The file has bandwidths in bytes a second; costs are their inverse.")
@click.option("--degree", type=int, default=2, show_default=True, help="Most children of a rank.")
@click.option("--depth", type=int, default=3, show_default=True, help="Most hops from the root.")
@click.option("--leaf", type=float, default=0.01, show_default=True, help="Cost of a rank without children.")
@click.option("--root", type=int, default=0, show_default=True, help="The rank at the root.")
@click.option("--time-limit", type=float, default=60.0, show_default=True, help="Seconds for the search.")
@click.option("--png", type=click.Path(dir_okay=False, path_type=Path), help="Draw the tree into this file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    ranks: int | None,
    racks: int | None,
    pods: int | None,
    costs: Path | None,
    bandwidths: bool,
    degree: int,
    depth: int,
    leaf: float,
    root: int,
    time_limit: float,
    png: Path | None,
    as_json: bool,
) -> None:
    """Print the broadcast tree that costs least (Parameter Flow, section 3.4.1), and draw it.

    Costs come from racks (0.1 within a rack, 0.5 within a pod, otherwise 1.0) or from a file.
    """
    try:
        matrix = costs_of(ranks, racks, pods, costs, bandwidths)
        best = graphs.cheapest_tree(matrix, degree=degree, depth=depth, leaf=leaf, root=root, time_limit=time_limit)
        if png is not None:
            drawing.draw_tree(best.parents, f"cost {best.cost:g}", png)
    except HpcommError as error:
        raise click.UsageError(str(error)) from None
    row = told(best, matrix)
    if as_json:
        click.echo(json.dumps(row, indent=2))
    else:
        _print(row, matrix)

"""Draws communication graphs, with the ranks on a circle, and trees, with the root on top. Edges are arrows."""

from collections.abc import Sequence
from math import ceil, sqrt
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument, NotSupported
from ..graphs import Graph
from ..graphs.graph import PIP_GRAPH, as_phases

_INCHES = 4  # side of one picture
_LABELLED = 64  # with more ranks their numbers are not drawn
_MOST_EDGES = 20000  # in all pictures of a file


def draw(graphs: Sequence[Graph | Sequence[Graph]], path: Path) -> None:
    """Draws graphs side by side into a PNG, PDF or SVG file, with a picture for each phase.

    Raises:
        InvalidArgument: the graphs have too many edges, or the file cannot be written.
        NotSupported: networkx or matplotlib is not installed.
    """
    networkx, figure_of, canvas_of = _libraries()
    singles = [phase for graph in graphs for phase in as_phases(graph)]
    edges = sum(int(graph.in_degrees.sum()) for graph in singles)
    if edges > _MOST_EDGES:
        raise InvalidArgument(f"{edges} edges are too many to draw: {_MOST_EDGES} at the most")
    columns = ceil(sqrt(len(singles)))
    rows = ceil(len(singles) / columns)
    figure = figure_of(figsize=(columns * _INCHES, rows * _INCHES), layout="tight")
    canvas_of(figure)
    for k, graph in enumerate(singles):
        axes = figure.add_subplot(rows, columns, k + 1)
        found = graph.to_networkx()
        axes.set_aspect("equal")
        _ranks_and_edges(axes, found, networkx.circular_layout(found), graph.name)
    _save(figure, path)


def draw_tree(parents: Sequence[int], title: str, path: Path) -> None:
    """Draws a tree into a file, and raises errors, as draw does. parents[r]: the rank that sends to r, -1 for the
    root."""
    networkx, figure_of, canvas_of = _libraries()
    if len(parents) > _MOST_EDGES:
        raise InvalidArgument(f"{len(parents)} ranks are too many to draw: {_MOST_EDGES} at the most")
    found = networkx.DiGraph()
    found.add_nodes_from(range(len(parents)))
    found.add_edges_from((parent, rank) for rank, parent in enumerate(parents) if parent >= 0)
    root = list(parents).index(-1)
    at: dict[int, tuple[float, float]] = {}
    hops = networkx.single_source_shortest_path_length(found, root)
    leaves = 0
    for rank in networkx.dfs_postorder_nodes(found, root):
        below = [at[child][0] for child in found[rank]]
        at[rank] = (sum(below) / len(below) if below else float(leaves), -float(hops[rank]))
        leaves += not below
    width = min(max(_INCHES, 0.4 * leaves), 20)
    figure = figure_of(figsize=(width, max(_INCHES, 0.8 * max(hops.values()))), layout="tight")
    canvas_of(figure)
    _ranks_and_edges(figure.add_subplot(), found, at, title)
    _save(figure, path)


def _libraries() -> tuple[Any, Any, Any]:
    try:
        import networkx  # noqa: PLC0415
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        raise NotSupported(f"a picture needs {missing.name}: {PIP_GRAPH}") from None
    return networkx, Figure, FigureCanvasAgg


def _ranks_and_edges(axes: Any, found: Any, at: Any, title: str) -> None:
    networkx, *_ = _libraries()
    few = len(found) <= _LABELLED
    axes.set_title(title)
    axes.set_axis_off()
    networkx.draw_networkx(
        found,
        at,
        ax=axes,
        with_labels=few,
        node_size=200 if few else 10,
        node_color="#cfe2f3",
        edge_color="#555555",
        font_size=7,
        width=0.6,
        arrowsize=7,
        connectionstyle="arc3,rad=0.08",
    )


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"cannot write {path}: {error}") from None

"""Pictures of node communication graphs: ranks on a circle, an arrow for each edge."""

from collections.abc import Sequence
from math import ceil, sqrt
from pathlib import Path

from ..errors import InvalidArgument, NotSupported
from ..topology import Graph
from ..topology.graph import PIP_GRAPH, as_phases

_INCHES = 4  # of the side of one picture
_LABELLED = 64  # ranks up to which their numbers can be read
_MOST_EDGES = 20000  # of all pictures together


def draw(graphs: Sequence[Graph | Sequence[Graph]], path: Path) -> None:
    """Draws graphs side by side into a file, whose ending chooses the format: PNG, PDF, SVG. Phases get one each.

    Raises:
        InvalidArgument: there are too many edges to see anything, or the file cannot be written.
        NotSupported: networkx or matplotlib is not installed.
    """
    try:
        import networkx  # noqa: PLC0415
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        raise NotSupported(f"a picture needs {missing.name}: {PIP_GRAPH}") from None
    singles = [phase for graph in graphs for phase in as_phases(graph)]
    edges = sum(int(graph.in_degrees.sum()) for graph in singles)
    if edges > _MOST_EDGES:
        raise InvalidArgument(f"{edges} edges are too many to draw: {_MOST_EDGES} at the most")
    columns = ceil(sqrt(len(singles)))
    rows = ceil(len(singles) / columns)
    figure = Figure(figsize=(columns * _INCHES, rows * _INCHES), layout="tight")
    FigureCanvasAgg(figure)
    for k, graph in enumerate(singles):
        axes = figure.add_subplot(rows, columns, k + 1)
        axes.set_title(graph.name)
        axes.set_axis_off()
        axes.set_aspect("equal")
        found = graph.to_networkx()
        few = graph.size <= _LABELLED
        networkx.draw_networkx(
            found,
            networkx.circular_layout(found),
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
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"cannot write {path}: {error}") from None

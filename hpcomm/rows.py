"""The rows of a plan. They lie in C's memory; a Row is made each time that a row is read."""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from . import _core
from .flow import Edges
from .stage import Edge, Row

ACTION_OF = {value: name for name, value in _core.ACTIONS.items()}  # from C's numbers to names
CODEC_OF = {value: name for name, value in _core.WIRES.items()}


def distinct(values: NDArray[Any], axis: int | None = None) -> NDArray[Any]:
    """Returns numpy.unique(values, axis=axis). With counts NumPy does not ask whether the array is masked, for which it
    would import a module for 6 ms in each new process."""
    return np.unique(values, axis=axis, return_counts=True)[0]


class Rows(Sequence[Row]):
    """The rows of a plan, as a sequence that makes each Row when it is read."""

    __slots__ = ("_columns", "_edges", "_handle")

    def __init__(self, handle: Any) -> None:
        self._handle = handle  # keeps the memory of _columns alive
        self._columns = _core.plan_rows(handle)
        self._edges: dict[tuple[int, int], tuple[Edge, ...]] = {}  # by address, as rows may share a list of edges

    def __len__(self) -> int:
        return len(self._columns)

    @overload
    def __getitem__(self, i: int) -> Row: ...
    @overload
    def __getitem__(self, i: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, i: int | slice) -> Row | tuple[Row, ...]:
        if isinstance(i, slice):
            return tuple(map(self._row, range(*i.indices(len(self)))))
        return self._row(i)

    def __iter__(self) -> Iterator[Row]:
        return map(self._row, range(len(self)))

    def __repr__(self) -> str:
        return f"<{len(self)} rows>"

    def _row(self, i: int) -> Row:
        values = dict(zip(_core.ROW_FIELDS, self._columns[i].item(), strict=True))
        n_in, n_out = values.pop("n_in"), values.pop("n_out")
        values["in_edges"], values["out_edges"] = (
            self.edges(values.pop("in"), n_in),
            self.edges(values.pop("out"), n_out),
        )
        values["action"] = ACTION_OF[values["action"]]
        values["codec_in"], values["codec_out"] = CODEC_OF[values["codec_in"]], CODEC_OF[values["codec_out"]]
        return Row(**values)

    def edges(self, address: int, n: int) -> tuple[Edge, ...]:
        found = self._edges.get((address, n))
        if found is None:
            found = tuple(Edge(*edge) for edge in _core.plan_edges(address, n))
            self._edges[address, n] = found
        return found

    def in_edges(self, i: int) -> tuple[Edge, ...]:
        """Returns the in-edges of row i, without making a Row."""
        return self.edges(int(self._columns["in"][i]), int(self._columns["n_in"][i]))

    def column(self, name: str) -> Any:
        """Returns one field of the C struct for all rows, as a new array."""
        return self._columns[name].copy()

    def pushes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns all in-edges that are pushes, as two arrays: for each edge its row, in rising order, and the rank
        that pushes."""
        row, rank, source = self.inputs()
        return row[source < 0], rank[source < 0]

    def inputs(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Returns all in-edges as three arrays: for each edge its row, in rising order, the rank at the other end, and
        the row of that rank that sends the input, or -1 if the input is a push."""
        return self.ends("in")[:3]

    def ends(self, way: str) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Returns all in-edges if way is "in", all out-edges if way is "out", as four arrays: for each edge its own
        row, in rising order, and the rank, row and weight that are the fields of Edge."""
        starts, n = self._columns[way], self._columns[f"n_{way}"].astype(np.int64)
        row = np.repeat(np.arange(len(n)), n)
        if len(row) == 0:
            return row, row, row, np.zeros(0)
        base = int(starts[n > 0].min())  # the edges of a plan lie in one block
        first = np.where(n > 0, starts - np.uintp(base), np.uintp(0)) // np.uintp(_core.EDGE_BYTES)
        at = np.repeat(first.astype(np.int64) - np.cumsum(n) + n, n) + np.arange(len(row))
        edges = _core.plan_edge_table(base, int(at.max()) + 1)
        return row, edges["rank"][at].astype(np.int64), edges["row"][at].astype(np.int64), edges["weight"][at]

    def lists(self) -> tuple[list[Edges], list[int], list[int]]:
        """Returns three lists: the distinct lists of edges (rank, row, weight); for each row the index of its in-edges
        in the first list; and for each row the index of its out-edges in the first list."""
        numbers: dict[Edges, int] = {}
        placed: dict[tuple[int, int], int] = {}

        def number(place: tuple[int, int]) -> int:
            if place not in placed:
                placed[place] = numbers.setdefault(tuple(_core.plan_edges(*place)), len(numbers))
            return placed[place]

        inputs, outputs = (
            [
                number(place)
                for place in zip(self._columns[way].tolist(), self._columns[f"n_{way}"].tolist(), strict=True)
            ]
            for way in ("in", "out")
        )
        return list(numbers), inputs, outputs

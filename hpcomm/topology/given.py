"""The forms in which a user gives a topology."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ..errors import InvalidArgument
from ..graphs.graph import Graph
from .automatic import Automatic
from .by_key import ByKey
from .parameter_server import ParameterServer
from .phases import Graphs, Phases, as_graphs
from .protocol import Topology

OneGiven: TypeAlias = "Topology | str | Graph | Sequence[Graph] | Callable[[int], Graphs]"
Given: TypeAlias = "OneGiven | Mapping[str, OneGiven]"

WORDS: dict[str, Topology] = {"auto": Automatic(), "flat": ParameterServer()}
KINDS = (
    "'auto', 'flat', a ParameterServer, a Hierarchy, a Tree, a Graph, several Graphs, a function that makes graphs for "
    "a number of ranks, a PeerToPeer, or a Topology of your own"
)


def as_topology(value: Any, what: str = "topology") -> Topology:
    """Returns the Topology for a value: a Topology, a word, a graph, several graphs, a function that makes them, or a
    mapping from names of keys to any of these. Keys that the mapping does not name get a flat ParameterServer.

    Raises:
        InvalidArgument: value has another form.
    """
    if isinstance(value, Topology) and not isinstance(value, type):
        return value
    if isinstance(value, str) and value in WORDS:
        return WORDS[value]
    if isinstance(value, Mapping):
        return ByKey({name: as_topology(one, f"{what} of {name!r}") for name, one in value.items()})
    if callable(value):
        return Phases(make=value)
    graphs = as_graphs(value)
    if graphs is None:
        raise InvalidArgument(f"{what} is {value!r}: must be {KINDS}")
    return Phases(graphs)

"""The rows of a plan and their edges as arrays, from which load and memory are counted."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _core
from ..codec import Codec, WireFormat
from ..errors import InvalidArgument
from ..plan import ELEMENT, Plan

Counts = NDArray[np.int64]


class Ends(NamedTuple):
    """Edges as arrays: the row to which the edge belongs, the rank and the row at the other end, and the weight. If the
    row at the other end is -1, the edge is the rank's push, or leads to the rank's parameters."""

    row: Counts
    rank: Counts
    other: Counts
    weight: NDArray[np.float64]

    def where(self, which: NDArray[np.bool_]) -> "Ends":
        return Ends(self.row[which], self.rank[which], self.other[which], self.weight[which])


class Table:
    """The fields of a plan's rows as arrays int64 (rows,), all inputs of the rows, and those outputs that are
    parameters for ranks."""

    def __init__(self, plan: Plan) -> None:
        fields = ("key", "owner", "action", "offset", "count", "depth", "codec_in", "codec_out")
        self.key, self.owner, self.action, self.offset, self.count, self.depth, self.codec_in, self.codec_out = (
            plan.rows.column(name).astype(np.int64) for name in fields
        )
        self.inputs, outputs = Ends(*plan.rows.ends("in")), Ends(*plan.rows.ends("out"))
        self.outputs = outputs.where(outputs.other < 0)
        self.size, self.keys = plan.size, len(plan.keys)

    def has(self, *actions: str) -> NDArray[np.bool_]:
        return np.isin(self.action, [_core.ACTIONS[action] for action in actions])

    def input_codec(self, inputs: Ends) -> Counts:
        pushed, forwarded = self.codec_in[inputs.row], self.codec_out[np.maximum(inputs.other, 0)]
        found: Counts = np.where(inputs.other < 0, pushed, forwarded)
        return found


def hosts_of(plan: Plan, hosts: ArrayLike | None) -> Counts:
    """Returns an array whose element i is the lowest rank on rank i's host. hosts[i] is a number that identifies rank
    i's host; None: each rank has a host alone."""
    if hosts is None:
        return np.arange(plan.size)
    given = np.asarray(hosts)
    if given.shape != (plan.size,):
        raise InvalidArgument(f"hosts has shape {given.shape}: must be {(plan.size,)}, by the plan's ranks")
    _, first, number = np.unique(given, return_index=True, return_inverse=True)
    return first[number.reshape(-1)].astype(np.int64)


def wire_bytes(plan: Plan, codecs: Sequence[WireFormat], key: Counts, count: Counts, codec: Counts) -> Counts:
    """Returns for each entry the bytes of count elements of a key, encoded with the codec of this number. Pieces count
    with their largest size if codecs, a value of hpcomm.codec for each key, are given; otherwise as float32. Raises
    InvalidArgument unless codecs are empty, or one for each key of the plan."""
    if codecs and len(codecs) != len(plan.keys):
        raise InvalidArgument(f"codecs are {len(codecs)}: the plan has {len(plan.keys)} keys, and each has one")
    found: Counts = count * WIDTH[codec]
    for k, one in enumerate(codecs):
        mine = np.flatnonzero((key == k) & PIECES[codec])
        known = {n: one.most_bytes(plan.keys[k].shape, n) for n in np.unique(count[mine]).tolist()}
        for at in mine.tolist():
            most = known[int(count[at])]
            found[at] = found[at] if most is None else most
    return found


# Indexed by a codec's number: the bytes of an element (4 for pieces), and whether the codec writes pieces.
WIDTH = np.full(max(_core.WIRES.values()) + 1, ELEMENT, np.int64)
PIECES = np.zeros(len(WIDTH), bool)
for _name, _number in _core.WIRES.items():
    if _name in _core.PIECES:
        PIECES[_number] = True
    else:
        WIDTH[_number] = Codec(_name).dtype.itemsize

"""The memory that each rank needs for a plan's exchange."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _core
from ..codec import WireFormat
from ..flow import feeders
from ..plan import ELEMENT, Plan
from .load import load_of
from .table import WIDTH, Counts, Table, hosts_of, wire_bytes

_FLOAT32 = _core.CODECS["float32"]
_LINE = 64  # bytes: the memory of keys, masters and slots is rounded up to a multiple


@dataclass(frozen=True)
class Memory:
    """The bytes that each rank needs. Each field is int64 (ranks,)."""

    parameters: Counts  #: a worker's parameters: all keys in float32
    gradients: Counts  #: slots for a worker's own pushes
    masters: Counts  #: an owner's masters; none for rows whose master is the owner's own parameters
    receive: Counts  #: an owner's slots for inputs that other ranks send
    encoded: Counts  #: a worker's room for parameters in 16 bits from another host
    state: Counts  #: the rules' state for the rows that the rank applies
    residuals: Counts  #: the residuals of codecs of pieces

    @property
    def window(self) -> Counts:
        """The bytes of each rank's part of the exchange's window. A few pages, and 8 bytes for each rank and key, do
        not count."""
        return self.parameters + self.gradients + self.masters + self.receive + self.encoded

    @property
    def total(self) -> Counts:
        return self.window + self.state + self.residuals


def memory_of(
    plan: Plan,
    hosts: ArrayLike | None = None,
    state: Sequence[int] = (),
    *,
    takes_turns: bool = False,
    codecs: Sequence[WireFormat] = (),
) -> Memory:
    """Returns the memory of an exchange under BSP without a quorum, and without shared_params, in_place and split.

    Args:
        plan: the exchange's plan.
        hosts, codecs: as in load_of. The vectors of Exchange.factors do not count, since they lie outside the window: 4
            K (J + D) bytes for K pairs of a key of shape (J, D).
        state: state[k] is the number of float32 values of rule state for each element of key k, e.g. 1 for Momentum and
            2 for Adam. (): 0 for all keys.
        takes_turns: True for a graph with several phases, in which edges of weight 0 in the first phase need slots too.

    Raises InvalidArgument as load_of does.
    """
    at, table = hosts_of(plan, hosts), Table(plan)
    inputs, outputs, depth = table.inputs, table.outputs, int(table.depth.max(initial=1))  # a plan has one depth
    pushes = inputs.other < 0
    gives = pushes & ((inputs.weight != 0) | takes_turns)
    counts = np.array([key.count for key in plan.keys], np.int64)
    wire = np.full(len(counts), _FLOAT32)  # by key
    wire[table.key[inputs.row[pushes]]] = table.codec_in[inputs.row[pushes]]
    comes = ~pushes | (gives & (at[inputs.rank] != at[table.owner[inputs.row]]))
    room = _aligned(wire_bytes(plan, codecs, table.key, table.count, table.codec_in))
    slots = room[inputs.row] * depth
    pushed = _aligned(counts * WIDTH[wire])  # by key
    for k, codec in enumerate(codecs):
        if codec.most_bytes(plan.keys[k].shape, plan.keys[k].count) is not None:
            rows = inputs.row[pushes & (table.key[inputs.row] == k)]
            pushed[k] = room[rows[np.unique(table.offset[rows], return_index=True)[1]]].sum()
    keeps = np.array([codec.keeps for codec in codecs] or [True] * len(counts))
    values = np.array(state if len(state) else np.zeros(len(counts)), np.int64)
    return Memory(
        parameters=_are(table, inputs.rank[pushes], outputs.rank) * _aligned(counts * ELEMENT).sum(),
        gradients=_are(table, inputs.rank[gives]) * pushed.sum() * depth,
        masters=_sums(table, table.owner, _aligned(table.count * ELEMENT), _has_master(plan, table)),
        receive=_sums(table, table.owner[inputs.row], slots, comes),
        encoded=_encoded(table, at, counts),
        state=_sums(table, table.owner, table.count * ELEMENT * values[table.key], table.has("apply")),
        residuals=load_of(plan, at).encodes[keeps].sum(axis=0) * ELEMENT,
    )


def _has_master(plan: Plan, table: Table) -> NDArray[np.bool_]:
    """Returns for each row whether its master is separate memory. It is not if the owner's push is in the fold and the
    owner's float32 parameters are an output: these parameters then are the master."""
    fed, owners = feeders(plan.rows.lists()), table.owner.tolist()
    is_fed = np.array([bool(mask >> owner & 1) for mask, owner in zip(fed, owners, strict=True)], bool)
    reads = np.zeros(len(table.key), bool)
    reads[table.outputs.row[table.outputs.rank == table.owner[table.outputs.row]]] = True
    found: NDArray[np.bool_] = table.has("apply", "emit") & ~(is_fed & reads & (table.codec_out == _FLOAT32))
    return found


def _encoded(table: Table, hosts: Counts, counts: Counts) -> Counts:
    """Returns the bytes that each rank needs for parameters in 16 bits: room for all keys if the rank gets any such
    parameters from another host, otherwise 0."""
    row, worker, *_ = table.outputs
    codec = np.full(len(counts), _FLOAT32)
    codec[table.key[row]] = table.codec_out[row]
    room = np.where(codec == _FLOAT32, 0, _aligned(counts * WIDTH[codec])).sum()
    far = (table.codec_out[row] != _FLOAT32) & (hosts[worker] != hosts[table.owner[row]])
    found: Counts = _are(table, worker[far]) * room
    return found


def _are(table: Table, *ranks: Counts) -> Counts:
    """Returns an array with 1 for each of these ranks, and 0 for the others."""
    found = np.zeros(table.size, np.int64)
    found[np.concatenate(ranks)] = 1
    return found


def _sums(table: Table, rank: Counts, nbytes: Counts, which: NDArray[np.bool_]) -> Counts:
    found = np.zeros(table.size, np.int64)
    np.add.at(found, rank[which], nbytes[which])
    return found


def _aligned(nbytes: Counts) -> Counts:
    return (nbytes + _LINE - 1) // _LINE * _LINE

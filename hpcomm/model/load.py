"""The load of a step: how many bytes ranks send and copy, and how many elements they encode, decode and fold, counted
from a plan's rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..codec import WireFormat
from ..errors import InvalidArgument
from ..plan import ELEMENT, Plan
from .rates import DENSE, CodecRates
from .table import PIECES, WIDTH, Counts, Ends, Table, hosts_of, wire_bytes

_Columns: TypeAlias = tuple[Counts, Counts, Counts, Counts, NDArray[np.bool_], Counts]  # of Sent

STAGES = ("push", "forward", "relay", "parameters")  # the values of Traffic.stage
UPDATES = STAGES[:2]
PARAMETERS = STAGES[2:]


@dataclass(frozen=True)
class Sent:
    """The bytes that ranks send each other in one step, as arrays of equal length. Each key, stage and pair of ranks
    has one entry, or two if both pieces and arrays are sent.

    The field nbytes has the encoded bytes. A piece counts with its largest size if load_of was given its codec,
    otherwise as float32.
    """

    key: Counts
    stage: Counts  #: the stage's number in STAGES
    source: Counts  #: the rank that sends
    target: Counts  #: the rank that gets the bytes
    pieces: NDArray[np.bool_]  #: whether the bytes are pieces of a codec
    nbytes: Counts


@dataclass(frozen=True)
class Load:
    """The bytes that one step of a plan moves, and the elements that the step computes with. Arrays are int64 (keys,
    ranks) unless another shape is given."""

    keys: int  #: the number of keys
    hosts: Counts  #: (ranks,): hosts[i] is the lowest rank on rank i's host
    sent: Sent
    encodes: Counts  #: elements that a rank encodes into pieces
    decodes: Counts  #: elements that a rank decodes from pieces
    folds: Counts  #: elements of inputs that a rank adds
    copies: Counts  #: bytes that a rank's pushes copy if gradients are not written in the exchange's memory

    @property
    def size(self) -> int:
        return len(self.hosts)

    def by_rank(
        self, stages: Sequence[str] = STAGES, codecs: Sequence[CodecRates] = ()
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns two arrays, float64 (keys, ranks): the bytes that each rank sends to other ranks in these stages, and
        the bytes that each rank gets. codecs[k] has the rates of key k's codec of pieces; with codecs=() pieces count
        as float32."""
        which = self._of(stages)
        return self._sums(self.sent.source, which, codecs), self._sums(self.sent.target, which, codecs)

    def by_host(
        self, stages: Sequence[str] = STAGES, codecs: Sequence[CodecRates] = ()
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns the same arrays as Load.by_rank, but for hosts: the entry of a host's lowest rank has the host's
        bytes, and other entries are 0."""
        source, target = self.hosts[self.sent.source], self.hosts[self.sent.target]
        which = self._of(stages) & (source != target)
        return self._sums(source, which, codecs), self._sums(target, which, codecs)

    def inside(self) -> NDArray[np.float64]:
        """Returns the bytes, float64 (keys, ranks), that each rank writes into the memory of other ranks on its host.
        Pushes do not count, as owners read them."""
        near = self.hosts[self.sent.source] == self.hosts[self.sent.target]
        return self._sums(self.sent.source, self._of(STAGES[1:]) & near, ())

    def _of(self, stages: Sequence[str]) -> NDArray[np.bool_]:
        return np.isin(self.sent.stage, [STAGES.index(stage) for stage in stages])

    def _sums(self, rank: Counts, which: NDArray[np.bool_], codecs: Sequence[CodecRates]) -> NDArray[np.float64]:
        ratio = np.array([codec.ratio for codec in codecs or (DENSE,) * self.keys])
        sums = np.zeros((self.keys, self.size))
        scaled = self.sent.nbytes * np.where(self.sent.pieces, ratio[self.sent.key], 1.0)
        np.add.at(sums, (self.sent.key[which], rank[which]), scaled[which])
        return sums


def load_of(
    plan: Plan,
    hosts: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    codecs: Sequence[WireFormat] = (),
) -> Load:
    """Returns the load of one step in which every worker pushes every key, as under BSP without a quorum. Parameters
    count for each rank, even if ranks of a host share them (shared_params).

    Args:
        plan: the rows.
        hosts: hosts[i] is a number that identifies rank i's host. None: each rank has a host alone.
        weights: array (ranks, ranks), only for a graph with several phases: the weights of this step's phase, as in
            Plan.graph. None: the first phase.
        codecs: codecs[k] is the codec of key k, a value of hpcomm.codec. (): pieces count as float32.

    Raises InvalidArgument if hosts or weights do not match the plan's ranks, or codecs do not match its keys.
    """
    at, table = hosts_of(plan, hosts), Table(plan)
    inputs = _carrying(table, weights)
    row, source, fold, _ = inputs
    target, key, count, codec = table.owner[row], table.key[row], table.count[row], table.input_codec(inputs)
    relayed, pieces = table.has("relay")[row], PIECES[codec]
    passed, fold = fold < -1, np.maximum(fold, -1)  # a peer's push that another peer passes on
    sender = np.where(passed, -2 - inputs.other, source)
    stage = np.where(fold < 0, _STAGE["push"], np.where(relayed, _STAGE["relay"], _STAGE["forward"]))
    stage[passed] = _STAGE["relay"]
    first = np.zeros(len(row), bool)  # an update that goes to several rows is encoded, and copied, once
    first[_firsts(source, key, table.offset[row], fold)[0]] = True

    def sums(rank: Counts, what: Counts, which: NDArray[np.bool_]) -> Counts:
        found = np.zeros((table.keys, table.size), np.int64)
        np.add.at(found, (key[which], rank[which]), what[which])
        return found

    return Load(
        keys=table.keys,
        hosts=at,
        sent=_summed(
            (key, stage, sender, target, pieces, wire_bytes(plan, codecs, key, count, codec)),
            _parameters(table, at),
        ),
        encodes=sums(source, count, first & pieces & ~relayed),
        decodes=sums(target, count, pieces & ~relayed),
        folds=sums(target, count, ~relayed),
        copies=sums(source, count * WIDTH[codec], first & ~pieces & (fold < 0)),
    )


def _carrying(table: Table, weights: ArrayLike | None) -> Ends:
    """Returns the inputs that carry data. A push of weight 0 carries none: it only tells that its rank is ready."""
    inputs = table.inputs
    if weights is None:
        return inputs.where((inputs.other >= 0) | (inputs.weight != 0))
    phase = np.asarray(weights, np.float64)
    if phase.shape != (table.size, table.size):
        shape = (table.size, table.size)
        raise InvalidArgument(f"weights has shape {phase.shape}: must be {shape}, by the plan's ranks")
    return inputs.where((inputs.other >= 0) | (phase[table.owner[inputs.row], inputs.rank] != 0))


def _parameters(table: Table, hosts: Counts) -> _Columns:
    """Returns the parameters that owners send to workers; within a host they are float32."""
    row, worker, *_ = table.outputs
    owner = table.owner[row]
    width = np.where(hosts[owner] == hosts[worker], ELEMENT, WIDTH[table.codec_out[row]])
    stage, pieces = np.full(len(row), _STAGE["parameters"]), np.zeros(len(row), bool)
    return table.key[row], stage, owner, worker, pieces, table.count[row] * width


def _summed(*flows: _Columns) -> Sent:
    """Adds up nbytes of entries that agree in all other columns, and drops entries from a rank to itself."""
    key, stage, source, target, pieces, nbytes = (np.concatenate(columns) for columns in zip(*flows, strict=True))
    goes = source != target
    first, which = _firsts(*(column[goes] for column in (key, stage, source, target, pieces)))
    sums = np.zeros(len(first), np.int64)
    np.add.at(sums, which, nbytes[goes])
    at = np.flatnonzero(goes)[first]
    return Sent(key[at], stage[at], source[at], target[at], pieces[at], sums)


def _firsts(*columns: NDArray[Any]) -> tuple[Counts, Counts]:
    """Returns two arrays: the index of the first entry of each set of equal entries, sorted by the columns; and for
    each entry the number of its set."""
    order = np.lexsort(columns[::-1])
    new = np.ones(len(order), bool)
    new[1:] = np.any([column[order][1:] != column[order][:-1] for column in columns], axis=0)
    which = np.empty(len(order), np.int64)
    which[order] = np.cumsum(new) - 1
    return order[new], which


_STAGE = {stage: i for i, stage in enumerate(STAGES)}

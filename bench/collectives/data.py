"""The calls that are measured: their shapes, the data that ranks send, and the expected answers.

Data are small whole numbers, so a sum is exact in every type. They repeat with a prime period: a chunk in the wrong
place is found, and one period of each rank is enough to know all of its data. Every turn has other data.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

PERIOD = 65521
OPS: dict[str, Callable[..., Array]] = {"sum": np.sum, "max": np.max, "min": np.min}
TYPES = ("float32", "float64", "int32", "int64")


@dataclass(frozen=True)
class Shape:
    """The arrays of a call. send, recv: whether the array has a block for each rank, or is one block. paired: only
    ranks 0 and 1 take part: rank 0 sends its array, and rank 1 sends back the one that it has received."""

    send: bool
    recv: bool
    reduces: bool = False
    rooted: bool = False
    paired: bool = False


SHAPES = {
    "allreduce": Shape(send=False, recv=False, reduces=True),
    "reduce_scatter": Shape(send=True, recv=False, reduces=True),
    "all_gather": Shape(send=False, recv=True),
    "broadcast": Shape(send=False, recv=False, rooted=True),
    "alltoall": Shape(send=True, recv=True),
    "sendrecv": Shape(send=False, recv=False, paired=True),
}


@dataclass(frozen=True)
class Case:
    """One call of one size.

    Attributes:
        count: elements of a block; nccl-tests prints this number.
        root: the root of a rooted collective, otherwise -1.
        op: "none" for collectives that do not reduce.
    """

    call: str
    ranks: int
    count: int
    dtype: str
    op: str
    root: int

    @property
    def shape(self) -> Shape:
        return SHAPES[self.call]

    @property
    def size(self) -> int:
        """Bytes of the larger of a rank's two arrays."""
        blocks = self.ranks if self.shape.send or self.shape.recv else 1
        return blocks * self.count * np.dtype(self.dtype).itemsize

    @property
    def bus(self) -> float:
        """Bytes that a rank has to send for each byte of the size."""
        return self._bus(self.ranks)

    def _bus(self, parts: int) -> float:
        if self.shape.rooted or self.shape.paired:
            return 1.0
        return (2 if self.call == "allreduce" else 1) * (parts - 1) / parts

    @property
    def trips(self) -> int:
        """How often the bytes travel in one run; a time is that of one trip."""
        return 2 if self.shape.paired else 1

    def least(self, hosts: int) -> float:
        """Returns the least bytes that the busiest host sends in one run, if ranks are placed host by host, equally
        many on each."""
        each = self.ranks // hosts
        if self.shape.paired:
            return self.size if hosts > 1 and each == 1 else 0.0
        blocks = each if self.call == "alltoall" else 1  # ranks of a host send other blocks, which cannot be combined
        return self.size * self._bus(hosts) * blocks if hosts > 1 else 0.0

    def counts(self) -> tuple[int, int]:
        """Returns the elements of the array that a rank sends, and of the one that it receives."""
        sent, received = (self.count * (self.ranks if many else 1) for many in (self.shape.send, self.shape.recv))
        return sent, received


def case(call: str, ranks: int, size: int, dtype: str, op: str) -> Case:
    """Returns the case of a size in bytes. A block has one element at least, so the size may grow."""
    shape = SHAPES[call]
    blocks = ranks if shape.send or shape.recv else 1
    count = max(1, size // (np.dtype(dtype).itemsize * blocks))
    return Case(call, ranks, count, dtype, op if shape.reduces else "none", 0 if shape.rooted else -1)


def period(rank: int, seed: int, dtype: str) -> Array:
    return np.random.default_rng((seed, rank)).integers(1, 128, PERIOD).astype(dtype)


def _parts(array: Array, values: Array, at: int) -> list[tuple[Array, Array]]:
    """Returns views of the array, each with the values that belong there. at: the first element's place in the data."""
    values = np.roll(values, -(at % PERIOD))
    whole = array.size // PERIOD * PERIOD
    return [(array[:whole].reshape(-1, PERIOD), values), (array[whole:], values[: array.size - whole])]


def write(array: Array, values: Array, at: int = 0) -> None:
    for part, right in _parts(array, values, at):
        part[...] = right


def differ(array: Array, values: Array, at: int = 0) -> int:
    """Returns how many elements of the array are wrong."""
    return sum(int(np.count_nonzero(part != right)) for part, right in _parts(array, values, at))


def spoil(array: Array) -> None:
    """Overwrites an array that a collective is about to fill."""
    array.fill(-1)


def fill(case: Case, rank: int, seed: int, send: Array, recv: Array) -> None:
    """Writes what a rank sends. Arrays that only receive get values that no answer has."""
    if recv is not send:
        spoil(recv)
    if not case.shape.rooted or rank == case.root:
        write(recv if case.shape.rooted else send, period(rank, seed, case.dtype))


def wrong(case: Case, rank: int, seed: int, recv: Array) -> int:
    """Returns how many elements of a rank's answer are wrong."""
    count = case.count
    if case.shape.paired:
        return differ(recv, period(0, seed, case.dtype)) if rank < 2 else 0
    if case.shape.rooted:
        return differ(recv, period(case.root, seed, case.dtype))
    periods = [period(other, seed, case.dtype) for other in range(case.ranks)]
    mine = rank * count if case.shape.send else 0
    if case.shape.reduces:
        return differ(recv, OPS[case.op](periods, axis=0), mine)
    return sum(differ(recv[r * count : (r + 1) * count], periods[r], mine) for r in range(case.ranks))

"""Counts of what an optimizer has moved and waited for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stats:
    """Counts of a DistributedOptimizer on this rank.

    Attributes:
        steps: that were applied.
        skipped: steps whose gradients were not finite, with a GradScaler.
        in_place: gradients that autograd had written where the exchange reads them.
        copied, copied_bytes: gradients that were copied there from torch's memory.
        converted: gradients that were copied with a change of dtype (16-bit parameters).
        dense: sparse gradients that were made dense.
        params_copied: parameters that were copied out of the exchange: 16-bit ones, and ones that torch has put
            elsewhere.
        early: keys that apply="backward" sent while the backward pass ran.
        wait: seconds that layers waited for their parameters, or step and wait for others.
        bytes_out, bytes_in: gradients that were copied from a device to the host's memory, and parameters back.
    """

    steps: int
    skipped: int
    in_place: int
    copied: int
    copied_bytes: int
    converted: int
    dense: int
    params_copied: int
    early: int
    wait: float
    bytes_out: int
    bytes_in: int


class Counts:
    """The same, being counted."""

    __slots__ = tuple(Stats.__dataclass_fields__)

    def __init__(self) -> None:
        self.steps = self.skipped = self.in_place = self.copied = self.copied_bytes = 0
        self.converted = self.dense = self.params_copied = self.early = 0
        self.wait = 0.0
        self.bytes_out = self.bytes_in = 0

    def stats(self) -> Stats:
        return Stats(**{name: getattr(self, name) for name in self.__slots__})

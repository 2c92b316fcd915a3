"""Counts of an optimizer: steps, copies, bytes and waits."""

import math
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
        seconds_out, seconds_in: that these copies took, as far as their ends are known.
        copy_wait: seconds that this rank waited for gradients to come, or that its device stood still for parameters.
        state_bytes: the optimizer's state, and the float32 values of 16-bit parameters, where owners have them in the
            host's memory: a rank that steps by itself holds as many, on its device where its parameters lie on one.
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
    seconds_out: float
    seconds_in: float
    copy_wait: float
    state_bytes: int

    @property
    def hidden(self) -> float:
        """The share of the seconds of copies for which nothing waited; NaN where none was made."""
        took = self.seconds_out + self.seconds_in
        return max(0.0, 1 - self.copy_wait / took) if took else math.nan


class Counts:
    """The same, being counted."""

    __slots__ = tuple(Stats.__dataclass_fields__)

    def __init__(self) -> None:
        self.steps = self.skipped = self.in_place = self.copied = self.copied_bytes = 0
        self.converted = self.dense = self.params_copied = self.early = 0
        self.wait = self.seconds_out = self.seconds_in = self.copy_wait = 0.0
        self.bytes_out = self.bytes_in = self.state_bytes = 0

    def stats(self) -> Stats:
        return Stats(**{name: getattr(self, name) for name in self.__slots__})

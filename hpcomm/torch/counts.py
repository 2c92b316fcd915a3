"""The running counts of an optimizer."""

from ..stats import OptimizerStats


class Counts:
    """The fields of OptimizerStats, as they are counted up."""

    __slots__ = tuple(OptimizerStats.__dataclass_fields__)

    def __init__(self) -> None:
        self.steps = self.skipped = self.in_place = self.copied = self.copied_bytes = 0
        self.converted = self.dense = self.params_copied = self.early = 0
        self.wait = self.seconds_out = self.seconds_in = self.copy_wait = 0.0
        self.bytes_out = self.bytes_in = self.state_bytes = 0

    def stats(self) -> OptimizerStats:
        return OptimizerStats(**{name: getattr(self, name) for name in self.__slots__})

"""Codecs that send only some elements of an update: those above a threshold, or the largest (Parameter Flow, 3.3)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any

from .. import _core
from ..errors import InvalidArgument
from .base import WireFormat, flag, number, word
from .dtype import check_dtype, dtype_name

FORMS = ("bytes", "paper")
KERNELS = ("auto", "numba", "c")


@dataclass(frozen=True, repr=False, kw_only=True)
class _Sparse(WireFormat):
    values: str = "float32"
    form: str = "bytes"
    compress: str | None = None
    kernel: Any = "auto"

    def __post_init__(self) -> None:
        title = type(self).__name__
        object.__setattr__(self, "values", dtype_name(self.values))
        check_dtype(f"{title}: values", self.values)
        word(f"{title}: form", self.form, FORMS)
        word(f"{title}: compress", self.compress, _core.COMPRESSIONS)
        if not isinstance(self.kernel, str):
            _core.function_address(self.kernel, f"{title}: kernel")
        elif self.kernel not in KERNELS:
            raise InvalidArgument(
                f"{title}: kernel is {self.kernel!r}: must be one of {', '.join(map(repr, KERNELS))}, or a filter of "
                "hpcomm.kernels"
            )
        if self.values != "float32" and self.kernel not in ("auto", "c"):
            raise InvalidArgument(
                f"{title}: values is {self.values!r} and kernel {self.kernel!r}: a filter outside the library writes "
                "float32; give kernel='c'"
            )

    def __repr__(self) -> str:
        told = [repr(getattr(self, one.name)) for one in fields(self) if not one.kw_only]
        mine = [one for one in fields(self) if one.kw_only and getattr(self, one.name) != one.default]
        return f"{type(self).__name__}({', '.join(told + [f'{one.name}={getattr(self, one.name)!r}' for one in mine])})"

    def settings(self, shape: Sequence[int]) -> dict[str, Any] | None:
        return {
            "values": _core.CODECS[self.values],
            "paper": self.form == "paper",
            "compress": _core.COMPRESSIONS[self.compress],
        }


@dataclass(frozen=True, repr=False)
class Threshold(_Sparse):
    """Sends the elements whose magnitude is larger than a threshold (Parameter Flow, 3.3).

    The other elements stay in a residual, which is added to the next update (equation 6). docs/parameter_flow.md
    describes thresholds that follow the network (section 3.3.3).

    Attributes:
        delta: the threshold, 0 or more; with 0 every nonzero element is sent.
        up: a larger threshold, which is used while the network lacks bandwidth. None: the threshold does not depend on
            the network.
        at_least: the bandwidth, in bytes a second, that other traffic should leave free on each path to another host.
            Arguments up and at_least must both be given, or neither.
        follow: how a rank finds out that bandwidth is missing. "probes": it calls Context.bandwidth repeatedly; while a
            path to another host has less than `at_least` free, the threshold of the rank's pushes and outgoing sums is
            `up`. "smooth": it sends no probes but takes its connections' throughput: the threshold is `up` for a
            throughput of `at_least` or less, and falls until it is `delta` at twice `at_least`.
        decays: True: the threshold in step t, from 1, is delta / sqrt(t). False: it is delta in every step.
        values: the dtype of the sent elements: "float32", "float16" or "bfloat16". The residual gets the rounding
            error.
        form: how a piece is written. "bytes": as the shortest of three forms: all values; a bitmap and the sent values;
            the gaps between sent elements and their values. "paper": as gaps and values if more than 80 % of the
            elements are 0, otherwise as all values (3.3.1).
        compress: None, or the library that compresses pieces: "lz4", "snappy", "zstd" or "zlib". It is loaded at run
            time.
        kernel: the code that selects the elements to send. "numba" (hpcomm.kernels.threshold) and "c" give the same
            bytes. "auto": Numba if it is installed and `values` is "float32", otherwise C. Or a user's code, which
            hpcomm.kernels.filter makes.
    """

    delta: float
    decays: bool = field(default=True, kw_only=True)
    up: float | None = field(default=None, kw_only=True)
    at_least: float | None = field(default=None, kw_only=True)
    follow: str = field(default="probes", kw_only=True)

    @property
    def name(self) -> str:
        return "threshold"

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "delta", number("Threshold: delta", self.delta, 0, inf))
        flag("Threshold: decays", self.decays)
        word("Threshold: follow", self.follow, tuple(_core.FOLLOWS))
        if (self.up is None) != (self.at_least is None):
            raise InvalidArgument(
                f"Threshold: up is {self.up!r} and at_least {self.at_least!r}: give both, for a threshold that follows "
                "the network, or neither"
            )
        if self.up is not None:
            put(self, "up", number("Threshold: up", self.up, 0, inf))
            put(self, "at_least", number("Threshold: at_least", self.at_least, 0, inf, above=True))
            if self.up < self.delta:
                raise InvalidArgument(
                    f"Threshold: up is {self.up!r}, below delta, which is {self.delta!r}: up is for while there is too "
                    "little bandwidth, so it is no smaller"
                )
        super().__post_init__()

    def settings(self, shape: Sequence[int]) -> dict[str, Any] | None:
        found = {**(super().settings(shape) or {}), "delta": self.delta, "decays": self.decays}
        if self.up is None:
            return found
        return found | {"follow": _core.FOLLOWS[self.follow], "up": self.up, "at_least": self.at_least}

    def trial(self) -> WireFormat:
        """Returns TopK(0.01), since no one can tell before the first update how many elements are above delta."""
        return TopK(0.01, values=self.values, form=self.form, compress=self.compress, kernel=self.kernel)


@dataclass(frozen=True, repr=False)
class TopK(_Sparse):
    """Sends approximately the largest elements: those above a threshold, which is adjusted until the wanted fraction of
    elements is sent. The other elements stay in a residual.

    The argument fraction is the part of a piece's elements to send, above 0 and at most 1. The arguments values, form,
    compress and kernel are as in Threshold.
    """

    fraction: float

    @property
    def name(self) -> str:
        return "topk"

    def __post_init__(self) -> None:
        object.__setattr__(self, "fraction", number("TopK: fraction", self.fraction, 0, 1, above=True))
        super().__post_init__()

    def settings(self, shape: Sequence[int]) -> dict[str, Any] | None:
        return {**(super().settings(shape) or {}), "fraction": self.fraction}

"""Codecs that send some elements of an update: those above a threshold, or the largest (Parameter Flow, 3.3)."""

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
    """Sends the elements whose magnitude is larger than a threshold (Parameter Flow, 3.3). The others stay in a
    residual, which is added to the next update (equation 6). docs/parameter_flow.md has thresholds that follow the
    network (section 3.3.3).

    Attributes:
        delta: the threshold, 0 or more. With 0 every element that is not 0 is sent.
        up: a larger one, for while the network is short of bandwidth; None: the threshold stays delta.
        at_least: bytes a second that a path to another host has to have left. It goes with up.
        follow: "probes": Context.bandwidth measures again and again, and up filters a rank's pushes, or an owner's
            outgoing sums, while a path has too little left. "smooth": without probes, the threshold goes from up where
            a rank's connections get at_least to delta where they get twice as much.
        decays: the threshold of step t is delta / sqrt(t); False: it stays delta.
        values: dtype of the sent elements: "float32", "float16" or "bfloat16". The residual has the error of rounding.
        form: "bytes": the form with the fewest bytes: dense, a bitmap and values, or gaps and values. "paper": gaps
            where more than 80 % of the elements are 0, otherwise dense (3.3.1).
        compress: None, or a library that makes pieces smaller, loaded at run time: "lz4", "snappy", "zstd" or "zlib".
        kernel: the filter: "numba" (hpcomm.kernels.threshold) and "c", which give the same bytes, or one of
            hpcomm.kernels.filter. "auto" is Numba where it is installed and values is "float32".
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
        """1 % of the elements: the density of a delta is not known before there are updates."""
        return TopK(0.01, values=self.values, form=self.form, compress=self.compress, kernel=self.kernel)


@dataclass(frozen=True, repr=False)
class TopK(_Sparse):
    """Sends about the largest elements, by a threshold that follows the density; fraction: of the elements of a piece,
    above 0 and at most 1. The others stay in a residual. values, form, compress and kernel are as Threshold has
    them."""

    fraction: float

    @property
    def name(self) -> str:
        return "topk"

    def __post_init__(self) -> None:
        object.__setattr__(self, "fraction", number("TopK: fraction", self.fraction, 0, 1, above=True))
        super().__post_init__()

    def settings(self, shape: Sequence[int]) -> dict[str, Any] | None:
        return {**(super().settings(shape) or {}), "fraction": self.fraction}

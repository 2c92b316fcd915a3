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
    """The fields of codecs that send some elements."""

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
        """Shows the fields without a default, and fields that differ from their defaults."""
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
    residual, which is added to the next update (equation 6).

    It may follow the network (section 3.3.3), between delta, which is the paper's low one, and up:

        Threshold(1e-4, up=2e-4, at_least=6.25e6)  # up while a path has less than 50 Mb/s left, as probes find
        Threshold(1e-4, up=2e-4, at_least=6.25e6, follow="smooth")

    Attributes:
        delta: the threshold, 0 or more. With 0 every element that is not 0 is sent.
        up: a larger one, for while the network is short of bandwidth; None: the threshold stays delta.
        at_least: bytes a second that a path to another host has to have left. It goes with up.
        follow: "probes": up filters a rank's pushes while a path that it sends on has too little left, and an owner's
            outgoing sums while a path of its tree has too little. Context.bandwidth measures this again and again.
            "smooth": without probes, the threshold goes from up where a rank's connections get at_least to delta where
            they get twice as much.
        decays: the threshold of step t is delta / sqrt(t); False: it stays delta.
        values: dtype of the sent elements: "float32", "float16" or "bfloat16". The error of rounding stays in the
            residual.
        form: "bytes": each piece takes the form with the fewest bytes: dense, a bitmap and values, or gaps and values.
            "paper": gaps where more than 80 % of the elements are 0, otherwise dense (3.3.1).
        compress: None, or the library that makes pieces smaller still: "lz4", "snappy", "zstd" or "zlib". It is loaded
            at run time. A piece that it does not make smaller is sent as it is.
        kernel: the code that filters: "numba" (hpcomm.kernels.threshold), "c", or a user's filter, made by
            hpcomm.kernels.filter. "auto" is Numba where it is installed and values is "float32". Ranks may differ:
            "numba" and "c" give the same bytes.

    Raises:
        InvalidArgument: a value is out of range.
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
        """1 % of the elements: the density for a delta is known only when there are updates."""
        return TopK(0.01, values=self.values, form=self.form, compress=self.compress, kernel=self.kernel)


@dataclass(frozen=True, repr=False)
class TopK(_Sparse):
    """Sends about the largest elements, by a threshold that follows the density. The others stay in a residual, which
    is added to the next update.

    Attributes:
        fraction: of the elements of a piece, above 0 and at most 1.
        values, form, compress, kernel: as Threshold has them.

    Raises:
        InvalidArgument: a value is out of range.
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

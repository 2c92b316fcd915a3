"""Proximal operators, for the rules ProxSGD and Dual (SFB, section 2.1).

A prox belongs to a regularizer h. Under ProxSGD a prox maps the matrix W to the W' that minimizes lr h(W') + 1/2 |W' -
W|^2, where lr is the learning rate. Under Dual a prox maps the state Z to the gradient at Z of a conjugate: for L2 and
ElasticNet, of the conjugate of h; for all others, of the conjugate of h + 1/2 |W|^2, since their h is not strongly
convex. A key with a prox must be a matrix; w is one of its rows. Elements are float32 and sums over a row are float64.
The bits are the same on every instruction set and for every size of chunks.

In the formulas t is the learning rate under ProxSGD, and 1 under Dual; soft(x, t) is x - min(max(x, -t), t). A prox
raises InvalidArgument for a number that is negative or not finite. `hpcomm.kernels.prox` makes a prox from a Python
function.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import _core
from .errors import InvalidArgument
from .stage import check_number, checked_args, checked_title

__all__ = ["L1", "L2", "ElasticNet", "L2Ball", "OwnProx", "Prox", "Simplex"]

MOST_ARGS = _core.RULE_ARGS - 3  # the step, the learning rate and the weight decay take the first three places


@dataclass(frozen=True)
class Prox:
    """The base class of all proximal operators."""

    def __post_init__(self) -> None:
        for one in dataclasses.fields(self):
            check_number(self, one.name, 0)

    @property
    def numbers(self) -> Mapping[str, float]:
        """A mapping from the names of the prox's parameters to their values, in C's order."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}

    @property
    def takes_matrix(self) -> bool:
        """Whether the prox needs the whole matrix at once."""
        return False

    def with_numbers(self, values: Sequence[float]) -> "Prox":
        return dataclasses.replace(self, **dict(zip(self.numbers, values, strict=True)))

    def title(self, dual: bool) -> str:
        """Returns the name in C, for the rule Dual or for ProxSGD."""
        name = _NAMES[type(self)]
        return f"dual_{name}" if dual and isinstance(self, L2 | ElasticNet) else name


@dataclass(frozen=True)
class L1(Prox):
    """h = lam |w|_1, which makes W sparse: w becomes soft(w, t lam)."""

    lam: float


@dataclass(frozen=True)
class L2(Prox):
    """h = lam/2 |w|^2 (ridge): w becomes w / (1 + lr lam); under Dual, z / lam."""

    lam: float


@dataclass(frozen=True)
class ElasticNet(Prox):
    """h = l1 |w|_1 + l2/2 |w|^2: w becomes soft(w, lr l1) / (1 + lr l2); under Dual, soft(z, l1) / l2."""

    l1: float
    l2: float


@dataclass(frozen=True)
class L2Ball(Prox):
    """Restricts each row to the ball of this radius: a row with a larger norm is scaled to it, in float64."""

    radius: float = 1.0


@dataclass(frozen=True)
class Simplex(Prox):
    """Projects each row to the simplex: the nearest row with elements of 0 or more whose sum is 1."""


@dataclass(frozen=True)
class OwnProx(Prox):
    """A user's prox: machine code. Raises InvalidArgument for a wrong value.

    Attributes:
        code: `int prox(float *rows, int64_t n_rows, int64_t columns, const double *args)`. It must return 0; any other
            number ends the exchange with an error. Give an address, a ctypes function pointer, or an object with an
            `address`.
        args: at most 5 numbers, in the forms that Rule accepts; the machine code gets them as args[3], args[4] and so
            on. args[0] is the number of the step, from 1, and args[1] is t.
        per: "rows": each call gets some rows of W. "matrix": each call gets all of W; the key then is one chunk on one
            core.
        name: the name in errors and checkpoints; it must be the same on all ranks.
    """

    code: Any
    args: Mapping[str, float] | Sequence[float] = field(default=())
    per: str = "rows"
    name: str | None = None

    def __post_init__(self) -> None:
        _core.function_address(self.code, "prox")
        if self.per not in ("rows", "matrix"):
            raise InvalidArgument(f"prox: per is {self.per!r}: must be 'rows' or 'matrix'")
        object.__setattr__(self, "name", checked_title("prox: name", self.name, self.code, "own", 40))
        args = checked_args("prox", self.args, MOST_ARGS)
        for name in ("lr", "weight_decay"):
            if isinstance(args, Mapping) and name in args:
                raise InvalidArgument(f"prox: args has {name!r}, which the rule has: give it another name")
        object.__setattr__(self, "args", args)

    @property
    def numbers(self) -> Mapping[str, float]:
        if isinstance(self.args, Mapping):
            return self.args
        return {f"args[{i}]": value for i, value in enumerate(self.args)}

    def with_numbers(self, values: Sequence[float]) -> "Prox":
        named = dict(zip(self.numbers, values, strict=True))
        return dataclasses.replace(self, args=named if isinstance(self.args, Mapping) else tuple(values))

    @property
    def takes_matrix(self) -> bool:
        return self.per == "matrix"

    def title(self, dual: bool) -> str:
        return str(self.name)


_NAMES: dict[type[Prox], str] = {
    L1: "l1",
    L2: "l2",
    ElasticNet: "elastic_net",
    L2Ball: "l2_ball",
    Simplex: "simplex",
}

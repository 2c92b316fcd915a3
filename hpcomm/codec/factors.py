"""Factors: a matrix as pairs of vectors (SFB, section 2)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from math import gcd
from typing import Any

from .. import _core
from ..stage import whole
from .base import WireFormat
from .dtype import Codec, check_dtype, dtype_name

_ALIGN = 16  # the rows of plans begin at multiples of so many elements
_HEAD = 16  # bytes of a piece before its values
_MOST = (1 << 31) - 1


@dataclass(frozen=True, repr=False)
class Factors(WireFormat):
    """Sends the update of a matrix as pairs of vectors u and v; the update is the sum of the products u v^T (SFB,
    section 2).

    W of shape (J, D) becomes W - lr * sum of u v^T, where u has J values and v has D. For a linear layer and one
    sample, u is the gradient of the loss with respect to the layer's outputs, and v is the layer's inputs. A trainer
    writes pairs into Exchange.factors(name), or pushes them: push(name, (u, v)). A vector is sent whole, or as the
    indices and values of its nonzero elements if these are shorter. If the sum of the products is shorter than all
    pairs, the sum is sent instead.

    Attributes:
        K: the largest number of pairs in one update, e.g. the number of samples in a batch; a step may have fewer.
        blocks: the number of parts that the matrix's rows are cut into, so that several cores can work. Each part is
            sent with all vectors v. A part gets a few more rows if it would not end at a multiple of 16 elements.
        values: the dtype of the sent vectors: "float32", "float16" or "bfloat16". The rounding error is lost.
    """

    K: int
    blocks: int = 1
    values: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "K", whole("Factors: K", self.K, 1, _MOST))
        object.__setattr__(self, "blocks", whole("Factors: blocks", self.blocks, 1, _MOST))
        object.__setattr__(self, "values", dtype_name(self.values))
        check_dtype("Factors: values", self.values)

    def __repr__(self) -> str:
        mine = [one.name for one in fields(self)[1:] if getattr(self, one.name) != one.default]
        return f"Factors({', '.join([repr(self.K), *(f'{name}={getattr(self, name)!r}' for name in mine)])})"

    @property
    def name(self) -> str:
        return "factors"

    @property
    def keeps(self) -> bool:
        return False

    @property
    def sums(self) -> bool:
        return False

    def refuses(self, shape: Sequence[int]) -> str | None:
        if len(shape) != 2:
            return f"its shape is {tuple(shape)}, and only a matrix is a sum of products u v^T: give it another codec"
        if shape[0] * shape[1] > _core.PIECE_ELEMENTS:
            return (
                f"its shape is {tuple(shape)}, and a matrix has at most {_core.PIECE_ELEMENTS} elements: make several "
                "keys of it"
            )
        return None

    def unit_of(self, shape: Sequence[int]) -> int:
        """Returns the number of elements in a part: of whole matrix rows, and a multiple of 16, as plans need."""
        if len(shape) != 2:
            return 1
        rows, columns = shape
        step = _ALIGN // gcd(_ALIGN, columns)
        part = -(-rows // self.blocks)
        part += -part % step
        return min(part, rows) * columns

    def settings(self, shape: Sequence[int]) -> dict[str, Any] | None:
        rows, columns = shape if len(shape) == 2 else (0, 0)
        return {
            "rows": rows,
            "columns": columns,
            "pairs": self.K,
            "unit": self.unit_of(shape),
            "values": _core.CODECS[self.values],
        }

    def most_bytes(self, shape: Sequence[int], count: int) -> int:
        columns = shape[1]
        pairs = self.K * (count // columns + columns)
        return min(pairs, count) * Codec(self.values).dtype.itemsize + _HEAD


@dataclass(frozen=True, repr=False)
class Products(Codec):
    """Sends a matrix as an array of float32; the trainer may give it as at most K pairs of vectors, as with Factors(K).

    Auto(Factors(K)) chooses Products if it is faster.
    """

    name: str = field(default="float32", init=False)
    K: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "K", whole("Products: K", self.K, 1, _MOST))

    def __repr__(self) -> str:
        return f"Products({self.K})"

    def refuses(self, shape: Sequence[int]) -> str | None:
        return Factors(self.K).refuses(shape) if len(shape) != 2 else None

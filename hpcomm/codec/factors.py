"""A matrix as pairs of vectors (SFB, section 2)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from math import gcd
from typing import Any

from .. import _core
from ..stage import whole
from .base import WireFormat
from .dtype import Codec, check_dtype, dtype_name

_ALIGN = 16  # elements: the rows of plans begin at multiples of it
_HEAD = 16  # bytes of a piece before its values
_MOST = (1 << 31) - 1


@dataclass(frozen=True, repr=False)
class Factors(WireFormat):
    """Sends an update of a matrix as pairs of vectors u and v, whose products u v^T add up to it (SFB, section 2): W of
    shape (J, D) gets W -= lr * sum of u v^T, with u of J and v of D values. Of a linear layer u is the gradient of the
    loss by a sample's outputs, and v the sample's inputs.

    Trainers write the pairs into Exchange.factors(name), or give them to push: push(name, (u, v)). A vector goes dense
    or as indices and values, and the sum of the pairs goes instead of them, where that takes fewer bytes.

    Attributes:
        K: the most pairs of an update, such as the samples of a batch; a step may have fewer.
        blocks: parts that the rows of the matrix are cut into, for several cores. v is sent with each part. Parts are a
            little larger where they would not end at multiples of 16 elements.
        values: dtype of the sent vectors: "float32", "float16" or "bfloat16". The error of rounding is lost.
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
        """Elements of a part: whole rows, aligned as plans need."""
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
    """Sends a matrix as an array of float32, of which a trainer may give at most K pairs of vectors, as to Factors(K).
    Auto(Factors(K)) is this where it is faster."""

    name: str = field(default="float32", init=False)
    K: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "K", whole("Products: K", self.K, 1, _MOST))

    def __repr__(self) -> str:
        return f"Products({self.K})"

    def refuses(self, shape: Sequence[int]) -> str | None:
        return Factors(self.K).refuses(shape) if len(shape) != 2 else None

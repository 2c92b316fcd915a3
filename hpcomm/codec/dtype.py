"""Codecs that send arrays of a dtype."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _core
from ..errors import InvalidArgument
from ..words import CODECS
from .base import WireFormat


def dtype_name(name: Any) -> Any:
    """Returns hpcomm's name of a dtype for another common name, such as "fp16"; returns any other value unchanged."""
    return CODECS.get(name, name) if isinstance(name, str) else name


def check_dtype(what: str, name: object) -> None:
    if not isinstance(name, str) or name not in _core.CODECS:
        raise InvalidArgument(f"{what} is {name!r}: must be one of {', '.join(map(repr, _core.CODECS))}")


@dataclass(frozen=True)
class Codec(WireFormat):
    """Sends updates, or parameters, as arrays of "float32", "float16" or "bfloat16" (also "fp32", "fp16", "bf16").

    Sums, masters and the arrays of parameters are always float32.
    """

    name: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", dtype_name(self.name))
        check_dtype("codec", self.name)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the arrays. For bfloat16 it is ml_dtypes.bfloat16 if that package is installed, otherwise uint16
        (the bits)."""
        if self.name != "bfloat16":
            return np.dtype(self.name)
        try:
            import ml_dtypes  # noqa: PLC0415
        except ModuleNotFoundError:
            return np.dtype(np.uint16)
        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found


FLOAT32, FLOAT16, BFLOAT16 = Codec("float32"), Codec("float16"), Codec("bfloat16")

"""What the bytes of an update are, and those of the parameters that come back, as values: the codecs of an exchange.

ex = hpcomm.parameter_hub(ctx, params, codec="float16")
ex = hpcomm.parameter_hub(ctx, params, codec=hpcomm.codec.FLOAT16)    # the same
ex = hpcomm.parameter_hub(ctx, params, codec="bfloat16", codec_out="bfloat16")
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _core
from ..errors import InvalidArgument


def _check(what: str, name: object) -> None:
    if not isinstance(name, str) or name not in _core.CODECS:
        raise InvalidArgument(f"{what} is {name!r}: must be one of {', '.join(map(repr, _core.CODECS))}")


@dataclass(frozen=True)
class Codec:
    """A wire format of updates, or of parameters. Sums, masters and the arrays of parameters are float32.

    Attributes:
        name: "float32", "float16" or "bfloat16".

    Raises:
        InvalidArgument: there is no codec of that name.
    """

    name: str = "float32"

    def __post_init__(self) -> None:
        _check("codec", self.name)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the arrays that hold what is sent. NumPy has no bfloat16: ml_dtypes' one if that is installed, else uint16
        for the bits."""
        if self.name != "bfloat16":
            return np.dtype(self.name)
        try:
            import ml_dtypes  # noqa: PLC0415
        except ModuleNotFoundError:
            return np.dtype(np.uint16)
        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found


FLOAT32, FLOAT16, BFLOAT16 = Codec("float32"), Codec("float16"), Codec("bfloat16")


def name_of(codec: object) -> Any:
    """The name of a codec that is given by its value or its name, unchecked; float32 where none is given."""
    return "float32" if codec is None else codec.name if isinstance(codec, Codec) else codec


def named(codec: object, wire: object = None) -> Any:
    """The name of the codec that is asked for, by its value or its name, unchecked. wire is the older name of codec;
    float32 where neither is given.

    Raises:
        InvalidArgument: both are given.
    """
    if codec is not None and wire is not None:
        raise InvalidArgument(f"codec is {codec!r} and wire is {wire!r}: wire is codec's older name, give one of them")
    return name_of(wire if codec is None else codec)


def chosen(codec: Codec | str | None, wire: str | None = None) -> Codec:
    """The codec that is asked for, as named has it.

    Raises:
        InvalidArgument: both are given, or there is no such codec.
    """
    return Codec(named(codec, wire))


def chosen_out(codec_out: Codec | str | None) -> Codec:
    """The codec of parameters that is asked for.

    Raises:
        InvalidArgument: there is no such codec.
    """
    name = name_of(codec_out)
    _check("codec_out", name)
    return Codec(name)

"""What the bytes of an update are, and those of the parameters that come back, as values: the codecs of an exchange.

ex = hpcomm.parameter_hub(ctx, params, codec="float16")
ex = hpcomm.parameter_hub(ctx, params, codec=hpcomm.codec.FLOAT16)    # the same
ex = hpcomm.parameter_hub(ctx, params, codec="bfloat16", codec_out="bfloat16")
ex = hpcomm.parameter_hub(ctx, params, codec={"embedding": "bfloat16"})    # by key; the other keys are float32
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from .. import _core
from ..errors import InvalidArgument
from ..stage import nearest


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

# One codec for all keys, by its value or its name, or those of some keys by the key's name: the others are float32.
Codecs: TypeAlias = Codec | str | Mapping[str, Codec | str]


def name_of(codec: object) -> Any:
    """The name of a codec that is given by its value or its name, unchecked; float32 where none is given. Of a mapping
    the names by key."""
    if isinstance(codec, Mapping):
        return {key: name_of(value) for key, value in codec.items()}
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


def by_key(keys: Sequence[str], codec: Codecs | None, wire: Codecs | None = None) -> list[Codec]:
    """The codec of each key, as named has it.

    Raises:
        InvalidArgument: codec and wire are given, there is no such codec, or a name in a mapping is no key.
    """
    return _by_key("codec", keys, named(codec, wire))


def by_key_out(keys: Sequence[str], codec_out: Codecs | None) -> list[Codec]:
    """The codec of each key's parameters.

    Raises:
        InvalidArgument: there is no such codec, or a name in a mapping is no key.
    """
    return _by_key("codec_out", keys, name_of(codec_out))


def _by_key(what: str, keys: Sequence[str], names: Any) -> list[Codec]:
    if not isinstance(names, Mapping):
        _check(what, names)
        return [Codec(names)] * len(keys)
    known = set(keys)
    for key, name in names.items():
        if key not in known:
            raise InvalidArgument(f"{what} has an entry for {key!r}, which is not a key: {nearest(key, keys)}")
        _check(f"{what} of {key!r}", name)
    return [Codec(names.get(key, "float32")) for key in keys]

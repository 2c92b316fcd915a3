"""Finds the codec of each key from a user's argument: one codec for all keys, or a mapping from names of keys."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ..errors import InvalidArgument
from ..stage import nearest
from .auto import Auto
from .base import WireFormat
from .dtype import FLOAT32, Codec, check_dtype, dtype_name

# One codec for all keys, as a value or a name; or a mapping from names of keys, in which a key without an entry is
# float32.
Codecs: TypeAlias = WireFormat | str | Mapping[str, WireFormat | str]


def name_of(codec: object) -> Any:
    """Returns a codec argument in its simplest form, unchecked: a Codec becomes the name of its dtype, a mapping a
    dict; any other codec stays the same."""
    if isinstance(codec, Mapping):
        return {key: name_of(value) for key, value in codec.items()}
    return "float32" if codec is None else codec.name if type(codec) is Codec else dtype_name(codec)


def asked(keys: Sequence[str], codec: Codecs | None) -> list[WireFormat]:
    """Returns the codec of each key; Auto stands for a codec that an exchange has yet to choose. Raises InvalidArgument
    for an unknown codec or key."""
    return _by_key("codec", keys, name_of(codec), _update)


def by_key(keys: Sequence[str], codec: Codecs | None) -> list[WireFormat]:
    """Returns the codec of each key, as asked does. Raises InvalidArgument for "auto" too."""
    found = asked(keys, codec)
    for key, one in zip(keys, found, strict=True):
        if isinstance(one, Auto):
            raise InvalidArgument(
                f"codec of {key!r} is 'auto', which an exchange chooses when it makes its own plan: give this plan a "
                "codec"
            )
    return found


def by_key_out(keys: Sequence[str], codec_out: Codecs | None) -> list[Codec]:
    """Returns the codec of each key's parameters. Raises InvalidArgument as asked does, and for any codec that is not a
    dtype, since parameters are never sent as pieces."""
    return _by_key("codec_out", keys, name_of(codec_out), _parameters)


def _update(what: str, codec: object) -> WireFormat:
    if isinstance(codec, WireFormat):
        return codec
    if codec == "auto":
        return Auto()
    try:
        check_dtype(what, codec)
    except InvalidArgument as wrong:
        raise InvalidArgument(f"{wrong}, 'auto', or a value of hpcomm.codec") from None
    return Codec(codec)  # type: ignore[arg-type]


def _parameters(what: str, codec: object) -> Codec:
    if isinstance(codec, WireFormat) and not isinstance(codec, Codec):
        raise InvalidArgument(
            f"{what} is {codec!r}: parameters are sent as arrays, in 'float32', 'float16' or 'bfloat16'"
        )
    check_dtype(what, codec)
    return Codec(codec)  # type: ignore[arg-type]


def _by_key(what: str, keys: Sequence[str], given: Any, value_of: Any) -> list[Any]:
    if not isinstance(given, Mapping):
        return [value_of(what, given)] * len(keys)
    known = set(keys)
    found = {}
    for key, one in given.items():
        if key not in known:
            raise InvalidArgument(f"{what} has an entry for {key!r}, which is not a key: {nearest(key, keys)}")
        found[key] = value_of(f"{what} of {key!r}", one)
    return [found.get(key, FLOAT32) for key in keys]

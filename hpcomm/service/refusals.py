"""An error as bytes, which a rank or hub sends to others."""

from .. import errors
from ..errors import ConfigError, HpcommError


def packed(wrong: HpcommError) -> bytes:
    """Returns the kind of an error, a newline and its sentence."""
    return f"{type(wrong).__name__}\n{wrong}".encode("utf-8", "replace")


def unpacked(told: bytes) -> HpcommError:
    name, newline, text = told.decode("utf-8", "replace").partition("\n")
    if not newline:
        return ConfigError("the hub refused, without a reason")
    kind = getattr(errors, name, None)
    good = isinstance(kind, type) and issubclass(kind, HpcommError)
    return (kind if good else HpcommError)(text)  # type: ignore[misc]

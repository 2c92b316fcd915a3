"""The codecs of an exchange's keys, in the form that C takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _core, kernels
from ..codec import Codec, Codecs, WireFormat, asked
from ..errors import InvalidArgument
from ..plan import Plan


@dataclass(frozen=True)
class KeyCodecs:
    """The codecs of the keys.

    Attributes:
        values: by key.
        configs: by key, C's struct of each, None for an array of a dtype; empty where all keys have arrays.
        keep: what holds the machine code that configs point to.
    """

    values: dict[str, WireFormat]
    configs: list[Any]
    keep: tuple[Any, ...]


def codecs_of(plan: Plan, codec: Codecs | None) -> KeyCodecs:
    """What the keys of a plan are encoded in. codec: what the user gave; of a plan that was made earlier only its
    codecs of pieces count, which a plan does not hold.

    Raises:
        InvalidArgument: the plan has a codec of pieces for a key, and codec another one.
        NotSupported: Numba is asked for, and missing.
    """
    names = wire_names(plan)
    pieces = any(name in _core.PIECES for name in names)
    given = asked([key.name for key in plan.keys], codec) if pieces else []
    values: dict[str, WireFormat] = {}
    configs: list[Any] = []
    keep: list[Any] = []
    for i, (key, name) in enumerate(zip(plan.keys, names, strict=True)):
        if name not in _core.PIECES:
            values[key.name] = Codec(name)
            configs.append(None)
            continue
        own = values[key.name] = given[i]
        if _name(own) != name:
            raise InvalidArgument(
                f"codec of {key.name!r} is {own!r}, and the plan was made for {name!r}: give the exchange the codecs "
                "that the plan had"
            )
        fields = dict(own.settings(key.shape) or {})
        filter_ = kernels.chosen_filter(own.kernel, _VALUES[fields["values"]]) if own.kernel is not None else None
        if filter_ is not None:
            fields["filter"] = _core.function_address(filter_, "kernel")
        configs.append(_core.codec_config(fields))
        keep += [own, filter_]
    return KeyCodecs(values, configs if pieces else [], tuple(keep))


_VALUES = {number: name for name, number in _core.CODECS.items()}


def _name(codec: WireFormat) -> str:
    try:
        return codec.name
    except InvalidArgument:  # still to be chosen
        return "auto"


def wire_names(plan: Plan) -> list[str]:
    """The codec of each key's pushes, as rows name it."""
    pushed = np.unique(plan.rows.pushes()[0])
    keys, numbers = (plan.rows.column(name)[pushed].tolist() for name in ("key", "codec_in"))
    found = dict(zip(keys, numbers, strict=True))
    return [_NAMES[found[key]] for key in range(len(plan.keys))]


_NAMES = {number: name for name, number in _core.WIRES.items()}


def dtypes_of(codecs: Mapping[str, WireFormat]) -> Sequence[np.dtype[Any]]:
    """The dtype of each key's gradients."""
    return [codec.dtype for codec in codecs.values()]

"""The codecs of an exchange's keys, in the form that C takes."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _core, kernels
from ..codec import Codec, Codecs, Products, WireFormat, asked
from ..errors import InvalidArgument
from ..plan import Plan
from ..rows import distinct


@dataclass(frozen=True)
class KeyCodecs:
    """The codecs of the keys.

    Attributes:
        values: the codec of each key.
        configs: for each key, C's struct of its codec; None for a key that is sent as an array of a dtype. The list is
            empty if all keys are sent as arrays.
        keep: objects that must stay alive, since their machine code is called through configs.
    """

    values: dict[str, WireFormat]
    configs: list[Any]
    keep: tuple[Any, ...]


def codecs_of(plan: Plan, codec: Codecs | None) -> KeyCodecs:
    """Returns the codecs of a plan's keys. codec: the user's argument. If the user gave the plan, the plan has the
    kinds of codecs, and codec only gives the arguments of codecs of pieces.

    Raises:
        InvalidArgument: for some key the plan has a codec of pieces, and the argument codec names another one.
        NotSupported: the codec needs Numba, which is missing.
    """
    names = _names(plan)
    pieces = any(name in _core.PIECES for name in names)
    given = asked([key.name for key in plan.keys], codec)
    values: dict[str, WireFormat] = {}
    configs: list[Any] = []
    keep: list[Any] = []
    for i, (key, name) in enumerate(zip(plan.keys, names, strict=True)):
        if name not in _core.PIECES:
            values[key.name] = given[i] if isinstance(given[i], Products) and name == "float32" else Codec(name)
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
    except InvalidArgument:  # the codec is not chosen yet
        return "auto"


def _names(plan: Plan) -> list[str]:
    """Returns the name of each key's codec according to the plan's rows. If any row sends pieces (in a hierarchy
    perhaps only folds), it is the codec of these pieces; otherwise it is the codec of the key's pushes."""
    pushed = distinct(plan.rows.pushes()[0])
    key, come, go = (plan.rows.column(name) for name in ("key", "codec_in", "codec_out"))
    found = dict(zip(key[pushed].tolist(), come[pushed].tolist(), strict=True))
    for codec in (come, go):
        pieces = np.isin(codec, list(_core.PIECES.values()))
        found |= dict(zip(key[pieces].tolist(), codec[pieces].tolist(), strict=True))
    return [_NAMES[found[k]] for k in range(len(plan.keys))]


_NAMES = {number: name for name, number in _core.WIRES.items()}

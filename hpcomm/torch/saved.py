"""State that torch has and the exchange lacks: param_groups, tensors of the model, the state of an optimizer that steps
on every rank. It becomes bytes that can be read without running code. Checkpoints store them in an entry of extra; at
the start rank 0 sends them to all ranks.

torch.load(weights_only=True) takes tensors and a few other types. All other values go through checkpoint.values: each
is read back with its type, or is refused when it is saved.
"""

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..checkpoint import values
from ..errors import InvalidArgument

_TORCH, _OWN = "torch", "trainer"
_SIDE = "the state of the optimizer and the model"
_AS_THEY_ARE = (Tensor, nn.Parameter, torch.dtype, torch.device, torch.Size)  # types that torch.load takes


def dumped(named: Mapping[str, Any]) -> bytes:
    """Returns values as bytes. named: the values, under the names that errors use for them.

    Raises:
        InvalidArgument: a value could not be read back; the error names the value.
    """
    stored: list[Any] = []

    def put(value: Any) -> Any:
        if type(value) in _AS_THEY_ARE:
            stored.append(value.detach().cpu() if isinstance(value, Tensor) else value)
            return [len(stored) - 1]
        array = values.plain_array(value)
        if array is None:
            return None
        stored.append(torch.frombuffer(bytearray(array.tobytes() or b"\0"), dtype=torch.uint8))
        return [len(stored) - 1, array.dtype.str, array.shape, isinstance(value, np.generic)]

    trees = {what: values.packed(value, what, put) for what, value in named.items()}
    file = io.BytesIO()
    torch.save({"values": json.dumps(trees), "stored": stored}, file)
    return file.getvalue()


def loaded(data: bytes) -> dict[str, Any]:
    """Returns the values from which dumped made the bytes."""
    found = torch.load(io.BytesIO(data), weights_only=True)
    if "values" not in found:
        return {_SIDE: found}  # an older checkpoint has only the state
    stored = found["stored"]

    def get(place: Any) -> Any:
        if len(place) == 1:
            return stored[place[0]]
        at, dtype, shape, scalar = place
        n = int(np.prod(shape))
        array = np.frombuffer(stored[at].numpy().tobytes(), dtype, n).reshape(shape)
        return values.as_was(array, scalar=scalar)

    return {what: values.unpacked(tree, get) for what, tree in json.loads(found["values"]).items()}


def packed(side: dict[str, Any], own: Any) -> dict[str, Any]:
    """Returns the extra of a checkpoint. side: the values of torch. own: the trainer's values."""
    if not isinstance(own, Mapping):
        raise InvalidArgument(f"extra is a {type(own).__name__}: must map names to arrays, numbers and texts")
    return {_TORCH: np.frombuffer(dumped({_SIDE: side, "extra": dict(own)}), np.uint8)}


def unpacked(extra: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the values of torch and the trainer's values, from the extra of a checkpoint."""
    if _TORCH not in extra:
        raise InvalidArgument("the checkpoint has no model: hpcomm.Checkpointer saved it, and hpcomm.restore loads it")
    found = loaded(np.asarray(extra[_TORCH]).tobytes())
    return found[_SIDE], dict(extra[_OWN] if _OWN in extra else found["extra"])

"""State that lies in torch and not in the exchange, as an entry of a checkpoint's extra: param_groups, buffers, and the
state of an optimizer that steps on every rank."""

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

_TORCH, _OWN = "torch", "trainer"


def packed(side: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The extra of a checkpoint. side: torch's part, own: the trainer's."""
    file = io.BytesIO()
    torch.save(side, file)
    return {_TORCH: np.frombuffer(file.getbuffer(), np.uint8), _OWN: dict(own)}


def unpacked(extra: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """torch's part and the trainer's."""
    file = io.BytesIO(np.asarray(extra[_TORCH]).tobytes())
    return torch.load(file, weights_only=True), dict(extra[_OWN])

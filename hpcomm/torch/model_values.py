"""The parameters of a model in the form of hpcomm.local: this rank's own values, which its optimizer trains."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from ..local.values import Array
from .key import ParamKey
from .optimizer import DistributedOptimizer
from .tensors import as_tensor, flat


class ModelValues:
    """The parameters of a model by name. They are float32, bfloat16 or float16, with any strides; the shared parameters
    are float32. take() writes the parameters in place, and rounds for 16-bit ones. hpcomm.local.values.Values explains
    all methods."""

    def __init__(self, keys: Sequence[ParamKey], inner: Optimizer) -> None:
        self._keys = {key.name: key for key in keys}
        self._trains_together = inner if isinstance(inner, DistributedOptimizer) else None

    @property
    def arrays(self) -> dict[str, Array]:
        """Returns the parameters as float32 arrays, which may be copies."""
        return {name: key.value() for name, key in self._keys.items()}

    def _own(self, name: str) -> Tensor:
        """Returns the parameter with its dimensions in the order that the exchange uses."""
        key = self._keys[name]
        return flat(key.param.detach(), key.order)

    def begin(self) -> None:
        if self._trains_together is not None:
            self._trains_together.wait()

    @torch.no_grad()
    def subtract(self, name: str, shared: Array, out: Array) -> None:
        torch.sub(as_tensor(shared), self._own(name).cpu(), out=as_tensor(out))

    @torch.no_grad()
    def copy(self, name: str) -> Array:
        copied: Array = self._own(name).to("cpu", torch.float32, copy=True).contiguous().numpy()
        return copied

    @torch.no_grad()
    def take(self, name: str, shared: Array, mix: float, since: Array | None = None) -> None:
        own, theirs = self._own(name), as_tensor(shared)
        if since is not None:
            before = as_tensor(since)
            learned = own.to("cpu", torch.float32) - before
            own.copy_((theirs if mix == 1 else torch.lerp(before, theirs, mix)) + learned)
        elif mix == 1:
            own.copy_(theirs)
        else:
            own.copy_(torch.lerp(own.to("cpu", torch.float32), theirs, mix))

    def end(self) -> None:
        if self._trains_together is not None:
            self._trains_together.written()

    def saved(self) -> dict[str, NDArray[Any]]:
        return {name: key.value().copy() for name, key in self._keys.items()}

    def load(self, saved: Mapping[str, Any]) -> None:
        for name in self._keys:
            self._own(name).copy_(torch.from_numpy(saved[name]))
        self.end()

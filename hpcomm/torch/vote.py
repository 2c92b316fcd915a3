"""The vote: ranks agree for which layers the gradient is not the sum of its pairs of vectors."""

from collections.abc import Sequence

import numpy as np

from ..consistency import BSP
from ..context import Context
from ..exchange import Exchange, Handle
from ..optim import SGD
from ..topology.automatic import automatic_pairs
from .key import ParamKey

_NAME = "layers that are refused as pairs"


class Vote:
    """A separate exchange for the vote. In each step every rank pushes a one for each layer that it refuses, and all
    ranks get the sums. The messages are sent at the same time as the gradients. A rank has the result when the pushes
    of all other ranks have come."""

    def __init__(self, ctx: Context, keys: Sequence[ParamKey]) -> None:
        """Makes the exchange. Collective."""
        self._keys = list(keys)
        self._values = np.zeros(len(keys), np.float32)
        self._counted = self._values.copy()
        self._handle: Handle | None = None
        peers = automatic_pairs(ctx.hosts)
        self.exchange = Exchange(ctx, {_NAME: self._values}, peers, BSP, SGD(lr=1), reduce="sum", progress="inline")

    def cast(self) -> None:
        """Tells the other ranks which keys this rank refuses in this step."""
        self._values[:] = [bool(key.refused) for key in self._keys]
        self._handle = self.exchange.push_pull_nb(_NAME, self._values)

    @property
    def is_cast(self) -> bool:
        return self._handle is not None

    def refused(self) -> list[ParamKey]:
        """Waits for the vote. Returns the keys that any rank has refused; they are the same on all ranks."""
        assert self._handle is not None
        counts = self._handle.wait()
        self._handle = None
        changed = counts != self._counted
        if not changed.any():
            return []
        self._counted = counts.copy()
        return [key for key, one in zip(self._keys, changed, strict=True) if one]

    def close(self, timeout: float | None = None) -> None:
        self.exchange.close(timeout)

"""The end of a DistributedOptimizer: its hooks are taken off the model and the wrapped optimizer."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from weakref import ref

from torch.optim import Optimizer

from .key import ParamKey
from .linear import LinearKey
from .mode import Mode
from .owned import OwnedState
from .syncer import Layers
from .wrapper import Wrapper, release


class Ties(NamedTuple):
    """The hooks on a model and on the wrapped optimizer. It has no reference to the DistributedOptimizer."""

    owner: "ref[Wrapper]"
    keys: Sequence[ParamKey]
    wrapped: Optimizer
    layers: Layers
    hooked: Mapping[int, Any]
    more: Sequence[Any]  # all other hooks

    def cut(self) -> None:
        """Takes all hooks off, and gives the wrapped optimizer an empty state. A second call does nothing."""
        if isinstance(self.wrapped.state, OwnedState):
            self.wrapped.state = defaultdict(dict)
        for hook in (*self.hooked.values(), *self.more):
            hook.remove()
        self.layers.remove()
        for key in self.keys:
            if isinstance(key, LinearKey):
                key.unwatch()
        release(self.owner, self.keys)


def dropped(mode: Mode, ties: Ties) -> None:
    """Closes the exchanges of an optimizer that was dropped without close()."""
    ties.cut()
    mode.workers.close()
    mode.release()
    for exchange in mode.exchanges():
        exchange.context._drop(exchange)
    ties.layers.end()
    for key in ties.keys:
        key.end()

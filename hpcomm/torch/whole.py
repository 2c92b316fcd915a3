"""Modes in which a push also applies the rule, in one pass: apply="backward", and exchanges whose updates cannot take
two calls (fold and apply)."""

from collections.abc import Callable, Sequence

import torch

from ..consistency import ASYNC, BSP, Consistency
from ..context import Context
from ..errors import InvalidArgument, NotSupported
from ..exchange import Exchange
from ..optim import Average
from .counts import Counts
from .key import ParamKey
from .mode import ROLL, Mode, Roll, Scaling, lie_in, push_zeros
from .rules import Rules

_keeps_graph = getattr(getattr(torch._C, "_autograd", None), "_get_current_graph_task_keep_graph", lambda: False)
"""Whether the backward pass that runs keeps its graph, and so may run again. Older versions of torch do not tell; with
them the second pass raises (ParamKey.arrived)."""


def made_in_one(
    make: Callable[..., Exchange], ctx: Context, keys: Sequence[ParamKey], rules: Rules, consistency: Consistency
) -> tuple[Exchange, Roll | None]:
    """Returns an exchange whose updates take one call, and its roll call (None if it needs no roll call)."""
    values, by_key = {key.name: key.value() for key in keys}, rules.by_key()
    roll = Roll(keys) if consistency == BSP and ctx.size > 1 else None
    if roll is not None:
        values[ROLL], by_key[ROLL] = roll.values, Average()
    return make(ctx, values, by_key), roll


class OnePass(Mode):
    """The mode in which step() calls push_pull for each key."""

    def __init__(
        self,
        ctx: Context,
        keys: Sequence[ParamKey],
        counts: Counts,
        passes: int,
        clip_norm: float | None,
        rules: Rules,
        make: Callable[..., Exchange],
        consistency: Consistency,
        why: str,
    ) -> None:
        """why: for errors, the reason why gradients are applied in the call that folds them."""
        if clip_norm is not None:
            raise InvalidArgument(f"clip_norm needs the norm of all gradients before one is applied: {why}")
        super().__init__(ctx, keys, counts, passes, clip_norm)
        self.why_no_mean = why
        self.rules = rules
        self._every_key = consistency not in (BSP, ASYNC)  # other ranks wait for a push of every key in every step
        made, self.roll = made_in_one(make, ctx, keys, rules, consistency)
        self.bind(made)

    def bind(self, exchange: Exchange) -> None:
        self.takes(exchange)
        self._start = exchange.push_pull_nb
        lie_in(self.keys, exchange)
        for key in self.keys:
            key.apart = not exchange._state.facts[key.name].takes_writes
            key.takes_slot(exchange)

    def send(self, key: ParamKey) -> None:
        """Does nothing, since step() sends the gradient."""

    def step(self, scaling: Scaling | None) -> None:
        if scaling is not None:
            raise NotSupported(f"GradScaler may skip a step before a gradient is applied: {self.why_no_mean}")
        self.check_unchanged()
        self._set()
        missing = []
        for key in self.order:
            if key.sent:
                continue
            if key.handle is not None:
                key.receive()
            if key.param.grad is None:
                key.find_home()
                missing.append(key)
            else:
                key.give()
                key.handle = key.fold = key.push(self._start)
        if self.roll is not None:
            missing = list(self.roll.call(self.exchange, missing))
        elif not self._every_key:
            missing = []
        for key in missing:
            key.handle = key.fold = push_zeros(self.exchange, key)
        self.starts.drain()
        Mode.forget(self)
        self.pending = True
        self.guard()
        self.counts.steps += 1

    def _set(self) -> None:
        self.rules.update(self.exchange)

    def check_scaler(self) -> None:
        """Does nothing, since step() refuses the scaler."""


class Backward(OnePass):
    """apply="backward": the hook pushes a key if nothing in this backward pass will read its weight again. step()
    pushes all other keys.

    Once a key is pushed, owners write its weight, and autograd's version counters do not notice. Every autograd node
    that has saved a weight also computes a gradient for it. So when the weight's hook runs, all these nodes have run,
    unless the graph is kept or the layer runs again (activation checkpointing, a layer that is used twice). So the hook
    pushes a key if all of these hold:

    - the weight belongs to one layer of torch.nn;
    - the interpreter has called this layer once since its last gradient;
    - the graph is freed by this backward pass.

    A weight that is pushed is marked as written: if a node has saved it nevertheless (detached, say), this node raises.
    """

    def send(self, key: ParamKey) -> None:
        syncer = key.syncer
        assert syncer is not None
        if key.shared or syncer.calls != 1 or not syncer.plain or torch.is_grad_enabled() or _keeps_graph():
            return
        if not self.begun:
            self.rules.update(self.exchange)
            self.begun = True
        key.give()
        key.handle = key.fold = key.push(self._start)
        self.pending = True
        self.counts.early += 1

    def passed(self, key: ParamKey) -> None:
        super().passed(key)
        if key.syncer is not None:
            key.syncer.calls = 0

    def step(self, scaling: Scaling | None) -> None:
        super().step(scaling)
        for key in self.keys:
            if key.syncer is not None:
                key.syncer.calls = 0

    def _set(self) -> None:
        if self.begun and self.rules.changed():
            raise InvalidArgument(
                'param_groups were changed between backward and step, and apply="backward" has applied gradients '
                'already: change them after step(), or give apply="step"'
            )
        super()._set()

    def forget(self) -> None:
        if self.begun:
            self.starts.drain()  # then all ranks refuse after the same pushes
            raise InvalidArgument(
                'zero_grad() came between backward and step, and apply="backward" has applied gradients already: give '
                'apply="step"'
            )
        super().forget()

"""Modes of optimizers that step in torch. A rank steps with averaged gradients, or averages its model with its
neighbours' models."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..context import Context
from ..errors import InvalidArgument
from ..exchange import Exchange
from ..optim import Average
from ..recovery import Recovered
from .counts import Counts
from .key import ParamKey
from .mode import ROLL, Differs, Mode, Roll, Scaling, lie_in, push_zeros, scale_gradients
from .rules import numbers
from .tensors import as_float32, as_tensor, broadcast

Versions = dict[str, tuple[Any, int]]  # for each name in a parameter's state: the value, and how often it was written


def made_of_means(
    make: Callable[..., Exchange], ctx: Context, keys: Sequence[ParamKey], same: Sequence[Callable[[], bytes]]
) -> tuple[Exchange, Roll | None]:
    """Returns an exchange that has gradients in place of parameters, and its roll call. same: the argument of Roll."""
    values = {key.name: np.zeros_like(key.value()) for key in keys}
    roll = Roll(keys, same) if ctx.size > 1 else None
    if roll is not None:
        values[ROLL] = roll.values
    return make(ctx, values, Average()), roll


class Averaged(Mode):
    """The mode of an optimizer that steps on every rank with the mean gradients. The exchange has the rule Average, so
    its parameters are these means."""

    has_params = False
    agreed_values = 2  # the roll call compares two values: _numbers and _written

    def __init__(
        self,
        ctx: Context,
        keys: Sequence[ParamKey],
        counts: Counts,
        passes: int,
        clip_norm: float | None,
        optimizer: torch.optim.Optimizer,
        make: Callable[..., Exchange],
    ) -> None:
        super().__init__(ctx, keys, counts, passes, clip_norm)
        self._optimizer, self._make = optimizer, make
        self._left: dict[Tensor, Versions]  # the versions of the optimizer's state after the last step
        self.bind(self._made(ctx))

    def _made(self, ctx: Context) -> Exchange:
        self._left = {}
        made, self.roll = made_of_means(self._make, ctx, self.keys, (self._numbers, self._written))
        return made

    def _numbers(self) -> bytes:
        """Returns, as bytes, all numbers in param_groups with which this rank steps."""
        return np.array(numbers(self._optimizer.param_groups)).tobytes()

    def _written(self) -> bytes:
        """Returns, for each key, how often the trainer has written each tensor of the optimizer's state since the last
        step."""
        told: list[Any] = []
        left, self._left = self._left, self._versions() if self._left else {}
        for number, (before, now) in enumerate(zip(left.values(), self._left.values(), strict=True)):
            if now.keys() != before.keys():
                told.append((number, sorted(map(str, now))))
                continue
            for name, (value, version) in before.items():
                own, since = now[name]
                if own is not value or since != version:
                    told.append((number, str(name), since - version if own is value else "another"))
        return repr(told).encode()

    def _versions(self) -> dict[Tensor, Versions]:
        return {key.param: _versions(self._optimizer.state.get(key.param)) for key in self.keys}

    def bind(self, exchange: Exchange) -> None:
        self.takes(exchange)
        self._start = exchange.push_pull_nb
        for key in self.keys:
            key.master = as_tensor(exchange.params[key.name], key.order)
            key.takes_slot(exchange)

    def recovered(self, checkpoint: str | PathLike[str] | None, timeout: float | None, *, survivors: bool) -> Recovered:
        """Continues with the remaining ranks. Every rank has the whole model, and all take the model of the rank that
        has made the most steps."""
        if self.workers.serving:
            raise self.workers.no_recovery()
        old = self.context
        old.revoke()
        fresh = old.shrink(timeout)
        gone = tuple(rank for rank, name in enumerate(old.ranks) if name not in fresh.ranks)
        clock = self.counts.steps + self.counts.skipped
        every = [int.from_bytes(part, "little") for part in fresh.allgather(clock.to_bytes(8, "little"))]
        self.reset()
        self.bind(self._made(fresh))
        states = self._optimizer.state
        tensors = [value for key in self.keys for value in states.get(key.param, {}).values() if torch.is_tensor(value)]
        broadcast(fresh, [*(key.param for key in self.keys), *tensors], every.index(max(every)))
        return Recovered(self.exchange, max(every), gone, None, {})

    def send(self, key: ParamKey) -> None:
        key.fold = key.push(self._start)
        self.begun = True

    def take_written(self) -> None:
        """Does nothing, since the exchange has no parameters."""

    def synchronize(self) -> None:
        if not self.synchronized:
            self.check_unchanged()
            self._average()

    def _average(self) -> None:
        missing = []
        for key in self.keys:
            if key.sent:
                continue
            if key.param.grad is None:
                missing.append(key)
            else:
                key.fold = key.push(self._start)
        if self.roll is not None:
            for key in self._call(self.roll, missing):
                key.fold = push_zeros(self.exchange, key)
        for key in self.keys:
            if key.sent:
                assert key.fold is not None
                key.fold.wait()
                key.take_mean()
        self.synchronized = True

    def _call(self, roll: Roll, missing: Sequence[ParamKey]) -> Sequence[ParamKey]:
        try:
            return roll.call(self.exchange, missing)
        except Differs as differs:
            if differs.args[0]:
                raise InvalidArgument(
                    f"optimizer.state was reset or written on some ranks and not alike on all: "
                    f"{type(self._optimizer).__name__} steps on every rank, so each rank would train another model. "
                    "Write it on every rank"
                ) from None
            groups = [{k: v for k, v in group.items() if k != "params"} for group in self._optimizer.param_groups]
            raise InvalidArgument(
                f"the numbers of param_groups differ between ranks: {type(self._optimizer).__name__} steps on every "
                "rank, so each rank would train another model. Give schedulers the same values on all ranks, such as "
                f"the mean loss of all; here they are {groups}"
            ) from None

    def step(self, scaling: Scaling | None) -> None:
        self.synchronize()
        if scale_gradients(self.keys, scaling, self.clip_norm):
            self._optimizer.step()
            self.counts.steps += 1
        else:
            self.counts.skipped += 1
        if self.roll is not None:
            self._left = self._versions()
        super().forget()

    def check_scaler(self) -> None:
        self.synchronize()

    def forget(self) -> None:
        if self.begun and not self.synchronized:
            self._average()
        super().forget()


class Neighbours(Mode):
    """The mode of a graph. Each rank steps with its own gradients, and averages its model with its neighbours'
    models."""

    why_no_mean = "on a graph every rank steps by its own gradients"

    def __init__(
        self,
        ctx: Context,
        keys: Sequence[ParamKey],
        counts: Counts,
        clip_norm: float | None,
        optimizer: torch.optim.Optimizer,
        make: Callable[..., Exchange],
    ) -> None:
        super().__init__(ctx, keys, counts, 1, clip_norm)
        self._optimizer = optimizer
        self.bind(make(ctx, {key.name: key.value() for key in keys}, Average()))

    def bind(self, exchange: Exchange) -> None:
        self.takes(exchange)
        lie_in(self.keys, exchange)

    def send(self, key: ParamKey) -> None:
        """Does nothing, since gradients are not exchanged."""

    def step(self, scaling: Scaling | None) -> None:
        self.wait()
        if scale_gradients(self.keys, scaling, self.clip_norm):
            self._optimizer.step()
            self.counts.steps += 1
        else:  # only this rank skips the step
            self.counts.skipped += 1
        start = self.exchange.push_pull_nb
        for key in self.order:
            key.find_home()
            key.handle = start(key.name, as_float32(key.param, key.order))
        self.pending = True

    def check_scaler(self) -> None:
        """Does nothing, since each rank looks only at its own gradients."""


def _versions(state: Any) -> Versions:
    """Returns the autograd versions of the tensors in a parameter's state; {} if the parameter has no state."""
    if not isinstance(state, Mapping):
        return {} if state is None else {"": (state, 0)}
    return {name: (one, one._version if torch.is_tensor(one) else 0) for name, one in state.items()}


def check_local(optimizer: torch.optim.Optimizer) -> None:
    """Raises for an optimizer that calls the model itself in its step."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidArgument("LBFGS calls the model several times in a step, each rank by its own loss: it is refused")

"""The common code of DistributedOptimizer and DiLoCo. Both wrap an optimizer."""

import gc
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from inspect import getclosurevars
from os import sep
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ..errors import HpcommError, InvalidArgument, NotSupported
from ..exchange import Exchange
from .key import ParamKey
from .tensors import listed
from .workers import Workers

_TORCH = f"{Path(torch.__file__).parent}{sep}"


class Wrapper(Optimizer):
    """An optimizer that shares the param_groups of the wrapped optimizer, and has an exchange of their parameters."""

    _ready = False  # whether the exchange has been made
    _stepping = False  # whether this optimizer's step() runs; it may call the wrapped one's
    _wrapped: Optimizer
    _guard: RemovableHandle

    @property
    @abstractmethod
    def exchange(self) -> Exchange:
        """The exchange of the parameters."""

    @abstractmethod
    def wait(self) -> None:
        """Waits for all pending exchanges."""

    @abstractmethod
    def _let_go(self) -> None:
        """Takes the hooks off the model and the wrapped optimizer; then another optimizer may take the parameters. A
        second call does nothing."""

    def _close(self, *exchanges: Any) -> None:
        """Waits for pending exchanges, takes the hooks off even if the wait failed, and closes the exchanges."""
        try:
            self.wait()
        except HpcommError:
            self._let_go()
            for one in exchanges:
                with suppress(HpcommError):  # the first exception is the one to report
                    one.close(0)
            raise
        self._let_go()
        for one in exchanges:
            one.close()

    @property
    def _workers(self) -> Workers:
        """The ranks that train. These are all ranks, unless a subclass overrides it."""
        ctx = self.exchange.context
        return Workers(ctx, tuple(range(ctx.size)))

    @property
    def state(self) -> Any:
        """The state of the wrapped optimizer."""
        wrapped = self.__dict__.get("_wrapped")
        return self.__dict__["state"] if wrapped is None else wrapped.state

    @state.setter
    def state(self, value: Any) -> None:
        if "_wrapped" in self.__dict__:
            self._set_state(value)
        else:  # called by torch's constructor
            self.__dict__["state"] = value

    def _set_state(self, value: Any) -> None:
        self._wrapped.state = value

    def _guard_steps(self) -> None:
        """Makes the wrapped optimizer raise if its step() is called by other code than this optimizer, until _guard is
        removed."""
        me = ref(self)

        def refused(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            own = me()
            if own is not None and not own._stepping:
                raise InvalidArgument(
                    f"the {type(optimizer).__name__} that a {type(own).__name__} wraps was stepped by itself, which "
                    f"exchanges nothing with the other ranks: call step() of the {type(own).__name__}"
                )

        self._guard = self._wrapped.register_step_pre_hook(refused)

    @contextmanager
    def _own_step(self) -> Iterator[None]:
        """Marks that a step of this optimizer runs, while the block runs."""
        self._stepping = True
        try:
            yield
        finally:
            self._stepping = False

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises, because the keys of an exchange are fixed once it is made.

        Raises:
            NotSupported: always. Give all parameters when you make the optimizer, with requires_grad=False if they are
            trained later.
        """
        if self._ready:
            raise NotSupported(
                "add_param_group: the exchange has its keys: give all parameters at first, frozen "
                "(requires_grad_(False)) as long as they are not trained"
            )
        super().add_param_group(param_group)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_wrapped" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._wrapped, name)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Accepts a dict that has only "state", since trainers reset the state by `optimizer.__setstate__({"state":
        defaultdict(dict)})`."""
        if state.keys() != {"state"}:
            raise NotSupported(f"__setstate__ has {sorted(state)}: must be the state alone: call load_state_dict()")
        self.state = state["state"]

    def __reduce__(self) -> Any:
        raise NotSupported(f"a {type(self).__name__} cannot be copied or pickled: its state_dict() can")


def steps_as_torch(optimizer: Optimizer) -> bool:
    """Returns whether step() is torch's own, perhaps wrapped by torch's schedulers or compiler."""
    step: Any = optimizer.step
    while True:
        if isinstance(step, MethodType):
            if step.__self__ is not optimizer:
                return False
            step = step.__func__
        if not isinstance(step, FunctionType) or not step.__code__.co_filename.startswith(_TORCH):
            return False
        if hasattr(step, "_wrapped_by_lr_sched") and not hasattr(step, "__wrapped__"):  # a scheduler's, in torch 2.4
            step = getclosurevars(step).nonlocals["func"]
        elif hasattr(step, "__wrapped__"):
            step = step.__wrapped__
        else:
            return step.__module__ in {kind.__module__ for kind in type(optimizer).__mro__}


# ---- the optimizer of a parameter ------------------------------------------------------------------------------------

_owners: dict[int, "list[ref[Wrapper]]"] = {}  # by id of the parameter; the optimizer keeps the parameter alive


def claim(optimizer: Wrapper, keys: Sequence[ParamKey]) -> "ref[Wrapper]":
    """Gives the parameters to this optimizer until release(), which takes the reference that this function returns."""
    me = ref(optimizer)
    for key in keys:
        _owners.setdefault(id(key.param), []).append(me)
    return me


def release(owner: "ref[Wrapper]", keys: Sequence[ParamKey]) -> None:
    """Takes the parameters away from the optimizer to which the reference owner refers. A second call does nothing."""
    for key in keys:
        left = [one for one in _owners.pop(id(key.param), ()) if one is not owner]
        if left:
            _owners[id(key.param)] = left


def check_free(keys: Sequence[ParamKey], inner: Optimizer) -> None:
    """Raises if an optimizer of hpcomm.torch other than inner already exchanges one of these parameters. An optimizer
    whose exchange or context is closed loses its claim.

    Raises:
        InvalidArgument: two exchanges would write the parameters, and each would lack the other's updates.
    """
    if any(_other(key, inner) for key in keys):
        gc.collect()  # a dropped optimizer may still be alive in a reference cycle
    shared = [(key.name, first) for key in keys if (first := _other(key, inner)) is not None]
    if not shared:
        return
    names, first = [name for name, _ in shared], shared[0][1]
    raise InvalidArgument(
        f"the {type(first).__name__} of {type(first._wrapped).__name__} that was made before exchanges "
        f"{listed(names)}: two optimizers would write them, each without the updates of the other. Give one optimizer "
        "all parameters, in groups, or close() the first one before"
    )


def _other(key: ParamKey, inner: Optimizer) -> Wrapper | None:
    """Returns the optimizer that already exchanges a parameter; None if no optimizer but inner does."""
    for owner in list(_owners.get(id(key.param), ())):
        found = owner()
        if found is None or found is inner:
            continue
        if not found.exchange._is_over:
            return found
        found._let_go()
    return None


def check_kinds(optimizer: Any, model: Any, refused: type[Optimizer], what: str = "optimizer") -> None:
    """Raises InvalidArgument if optimizer is not a torch optimizer or is of the class refused; or if model is not a
    module, or already exchanges gradients by itself. what: the word for the optimizer in errors."""
    if not isinstance(optimizer, Optimizer) or isinstance(optimizer, refused):
        raise InvalidArgument(f"{what} is a {type(optimizer).__name__}: must be an optimizer of torch")
    if not isinstance(model, nn.Module):
        raise InvalidArgument(f"model is a {type(model).__name__}: must be a torch.nn.Module")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise InvalidArgument("model is a DistributedDataParallel, which exchanges gradients itself: give model.module")

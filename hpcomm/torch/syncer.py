"""Syncers, one for each layer, as in Poseidon (section 4.1). A syncer's forward pre-hook waits for the layer's
parameters, and copies them if they lie outside the exchange (key.py). Hooks of the parameters send gradients."""

from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Any
from weakref import WeakMethod

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from .. import _core
from ..context import Context
from ..errors import PeerFailed
from .copies import copies_are_as_before, copies_are_plain
from .key import ParamKey
from .mode import Mode

_is_compiling = torch.compiler.is_compiling


class Syncer:
    """Waits for the parameters that one layer itself has.

    Attributes:
        name: the name of the module.
        keys: the keys for which the layer waits before its forward pass.
        fired: whether the pre-hook has ever run. If so, the layer can wait.
        calls: forward passes since the layer's last gradient or step, if they are counted.
        plain: whether the layer is one of torch.nn that reads its parameters only in its forward pass, and once.
    """

    __slots__ = ("calls", "fired", "keys", "layers", "mode", "name", "plain")

    def __init__(self, name: str, module: nn.Module | None, keys: Sequence[Any], layers: "Layers | None") -> None:
        self.name, self.keys, self.layers = name.replace("_orig_mod.", ""), list(keys), layers
        self.fired, self.calls = False, 0
        self.plain = type(module).__module__.startswith("torch.nn.modules.") and not isinstance(module, nn.RNNBase)
        self.mode: Mode | None = None

    def receive(self, module: nn.Module, args: object) -> None:
        """Pre-hook: waits for the layer's parameters. In eval mode it waits for all parameters of the model."""
        if _is_compiling():  # the compiler inlines the hook; the outermost module waits instead
            return
        if not self.fired:
            self._fire()
        if module.training:
            self.calls += 1
            if any(key.handle is not None for key in self.keys):
                self._wait(everything=False)
        elif self.mode is not None:
            self._wait(everything=True)

    @_core.named("model.forward()", every=False)
    def _wait(self, *, everything: bool) -> None:
        try:
            if everything and self.mode is not None:
                self.mode.wait()
            for key in self.keys:
                if key.handle is not None:
                    key.receive()
            if self.mode is not None:
                self.mode.ahead()
        except PeerFailed as failed:
            if self.mode is None:
                raise
            raise self.mode.explained(failed, self.mode.made() - 1) from failed  # the last step is incomplete

    @_core.named("model.state_dict()", every=False)
    def before_state_dict(self, module: nn.Module, prefix: str, keep_vars: bool) -> None:
        if self.mode is not None:
            self.mode.wait()

    @_core.named("model.load_state_dict()", every=True)
    def before_load(self, state_dict: object, prefix: str, *args: object) -> None:
        """Waits before this module and its submodules are loaded."""
        if self.layers is not None and self.mode is not None:
            if not prefix or not self.name or self.layers.loading is None:
                self.layers.loading = self
            self.mode.wait()

    def after_load(self, module: nn.Module, incompatible: object) -> None:
        if self.layers is not None and (self.layers.loading is self or not self.name):
            self.layers.loaded()

    def _fire(self) -> None:
        self.fired = True
        if self.layers is not None:
            self.layers.fired.append(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Makes a copy of the model (copy.deepcopy, pickle) have a syncer without keys, which does not wait."""
        return type(self), ("", None, (), None)


class TimedSyncer(Syncer):
    """A Syncer that records its waits, and the layer's forward and backward passes, in the timeline."""

    __slots__ = ("start",)

    def receive(self, module: nn.Module, args: object) -> None:
        if _is_compiling():
            return
        start = monotonic()
        super().receive(module, args)
        self.start = monotonic()
        if self.keys:
            self._span("wait", start, self.start)

    def computed(self, module: nn.Module, args: object, result: object) -> None:
        """Forward hook."""
        if not _is_compiling() and self.layers is not None:
            self._span("forward", self.start)
            self.layers.mark = monotonic()

    def sent(self, param: torch.Tensor) -> None:
        """Hook of a parameter; it runs after the hook that sends the gradient."""
        if self.layers is not None:
            self._span("backward", self.layers.mark)
            self.layers.mark = monotonic()

    def _span(self, what: str, start: float, end: float | None = None) -> None:
        if self.layers is not None:
            _core.context_span(self.layers.context._handle, f"{what} {self.name or 'model'}", start)


class Layers:
    """The syncers of a model, in the order in which a forward pass calls their layers."""

    def __init__(self, ctx: Context, model: nn.Module, keys: Sequence[ParamKey]) -> None:
        self.context, self.mark = ctx, monotonic()
        self.fired: list[Syncer] = []
        self.loading: Syncer | None = None  # the syncer of the outermost module that load_state_dict is writing
        self.mode: Mode | None = None
        self.late: list[Any] = []  # keys for which step() waits, since no module can wait for them
        self._hooks: dict[str, list[RemovableHandle]] = {}
        self._syncers: dict[str, Syncer] = {}
        self._settled = False
        self._modules = dict(model.named_modules())
        by_param = {id(key.param): key for key in keys}
        kind = TimedSyncer if ctx.config.timeline else Syncer
        for name, module in model.named_modules():
            own = [by_param[id(p)] for p in module._parameters.values() if id(p) in by_param]
            if not own and name and not any(id(p) in by_param for p in module.parameters()):
                continue
            syncer = self._syncers[name] = kind(name, module, own, self)
            for key in own:
                key.shared = key.syncer is not None
                key.syncer = syncer
            copies_are_plain(module)
            hooks = self._hooks[name] = [module.register_forward_pre_hook(syncer.receive, prepend=True)]
            if isinstance(syncer, TimedSyncer):
                hooks.append(module.register_forward_hook(syncer.computed))
            hooks += [
                module.register_state_dict_pre_hook(syncer.before_state_dict),
                module._register_load_state_dict_pre_hook(syncer.before_load),
                module.register_load_state_dict_post_hook(syncer.after_load),
            ]

    def begin(self, mode: Mode) -> None:
        """Sets the mode in which layers wait."""
        self.mode = mode
        for syncer in self._syncers.values():
            syncer.mode = mode

    def settle(self) -> None:
        """After the first forward pass: finds a module that waits for the keys of each layer that was not called. (An
        example is the projection in nn.MultiheadAttention, which reads the weight itself.) It is the innermost
        enclosing module that was called. If there is no such module, step() waits for these keys."""
        if self._settled:
            return
        self._settled = True
        assert self.mode is not None
        for name, syncer in self._syncers.items():
            if syncer.fired or not syncer.keys:
                continue
            outer = next((self._syncers[above] for above in _above(name) if self._fired(above)), None)
            if outer is None:
                self.late += syncer.keys
            else:
                outer.keys += syncer.keys
            syncer.keys = []
        root = self._syncers[""]
        if root.fired:
            root.keys += self.mode.extra
        else:
            self.late += self.mode.extra
        for name, syncer in self._syncers.items():
            if name and not syncer.keys:
                self._hooks[name].pop(0).remove()
        order = {id(key): key for syncer in self.fired for key in syncer.keys if isinstance(key, ParamKey)}
        order |= {id(key): key for key in self.mode.keys if id(key) not in order}
        self.mode.order = list(order.values())

    def _fired(self, name: str) -> bool:
        return name in self._syncers and self._syncers[name].fired

    def hook(self, key: ParamKey) -> None:
        """Puts a hook for the timeline after the hook that sends the key."""
        syncer = key.syncer
        if isinstance(syncer, TimedSyncer):
            self._hooks[""].append(key.param.register_post_accumulate_grad_hook(syncer.sent))

    def replace(self, old: Any, new: Any) -> None:
        """Makes layers wait for new, an entry of mode.extra, instead of old."""
        for keys in (self.late, self._syncers[""].keys):
            keys[:] = [new if key is old else key for key in keys]

    def wait_late(self) -> None:
        """Waits for the keys in the list late, at the end of a step."""
        for key in self.late:
            if key.handle is not None:
                key.receive()

    def loaded(self) -> None:
        """Tells the exchange that load_state_dict of a module has written parameters."""
        self.loading = None
        if self.on_load is not None:
            self.on_load()

    on_load: Any = None

    def remove(self) -> None:
        for hooks in self._hooks.values():
            for hook in hooks:
                hook.remove()
        for name in self._hooks:
            copies_are_as_before(self._modules[name])
        self._hooks.clear()

    def end(self) -> None:
        """Drops the references to the mode and its exchange, when the optimizer is gone."""
        self.mode = None
        self.late.clear()
        for syncer in self._syncers.values():
            syncer.mode = syncer.layers = None
            syncer.keys.clear()


def weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Returns a function that calls a method of an object as long as the object lives, and does not keep it alive."""
    found = WeakMethod(method)

    def call() -> None:
        mine = found()
        if mine is not None:
            mine()

    return call


def _above(name: str) -> Iterator[str]:
    """Yields the names of the modules that enclose a module, the innermost first."""
    while name:
        name = name.rpartition(".")[0]
        yield name

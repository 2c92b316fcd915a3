"""The weight of a linear layer. Its gradient is a sum of outer products: each is a row of the gradient of the layer's
outputs times a row of the layer's inputs (SFB, section 2; Poseidon, section 3.2). The key can send these pairs of
vectors (rows) instead of the matrix."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.utils.hooks import RemovableHandle

from ..errors import InvalidArgument
from ..exchange import Exchange, Handle, Pairs
from .copied_key import CopiedKey
from .counts import Counts
from .device import Copy, TensorDevice, Together
from .key import ParamKey, Start
from .only_pairs import is_sum_of_pairs

_is_compiling = torch.compiler.is_compiling
_USED = "its weight is used by more than its layer: autograd has given it a gradient"
_NOT_THEIR_SUM = "its gradient is not the sum of its layer's inputs and gradients of outputs alone"


class Call(NamedTuple):
    """A call of the layer whose backward pass has run. It has the rows of the layer's inputs and of the gradient of its
    outputs.

    Attributes:
        inputs: the inputs, of shape (..., N).
        version: the autograd version of inputs when the layer read them.
        outputs: the gradient of the outputs, of shape (..., M).
        task: the number of the backward pass.
    """

    inputs: Tensor
    version: int
    outputs: Tensor
    task: int

    @property
    def rows(self) -> int:
        return self.outputs.numel() // max(1, self.outputs.shape[-1])


class Hook:
    """A hook of a layer. In a copy of the model (copy.deepcopy, pickle) the hook does nothing."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any] | None = None) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return None if self._call is None else self._call(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


class LinearKey(ParamKey):
    """The key of a weight of shape (M, N). It is sent as a matrix until goes_as_pairs() is called. The class has no
    __slots__, because CopiedLinearKey combines it with another class that has slots.

    Attributes:
        module: the layer.
        rows: the most pairs of vectors that a step has had.
        K: the most pairs that a step may have; 0 if not known yet.
        most: K if the key is sent as pairs; 0 if it is sent as a matrix.
        refused: why this step's gradient is not the sum of its pairs; "" if it is that sum, or is not checked yet.
        used: with skip_weight_grad: whether autograd has given the weight a gradient, which then came from another use
            of the weight than the layer's.
    """

    _exchange: Exchange

    def __init__(self, module: nn.Linear, *args: Any) -> None:
        """args: the arguments of the other base class."""
        super().__init__(*args)
        self.module = module
        self.rows = self.K = self.most = self._open = 0
        self.refused = ""
        self.skips = self.used = False
        self._came: list[Call] = []  # calls in the backward pass that is running
        self._kept: list[Call] = []  # calls of finished backward passes, whose gradient the weight has
        self._mean: NDArray[np.float32] | None = None
        self._verdict: Tensor | None = None  # the result of _judge in the host's memory; None once it is read
        self._looked: Copy | None = None  # the copy that fills _verdict
        self._place: Tensor | None = None
        self._hooks: list[RemovableHandle] = []

    # ---- the layer's calls -------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Begins to collect the layer's pairs, by hooks."""
        if not self._hooks:
            self._hooks.append(self.module.register_forward_hook(Hook(self._called), with_kwargs=True))

    def unwatch(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._came.clear()
        self._kept.clear()
        self._open = 0

    def goes_as_pairs(self, most: int, *, skips: bool) -> None:
        """Makes the key send pairs from now on. most: the most pairs in a step. skips: whether autograd does not
        compute the weight's gradient."""
        self.most, self.skips = most, skips
        if skips:
            self._hooks.append(self.module.register_forward_pre_hook(Hook(self._hide)))
            self._hooks.append(self.module.register_forward_hook(Hook(self._show), always_call=True))

    def goes_as_matrix(self) -> None:
        """Makes the key send its gradient as a matrix from now on."""
        self.most, self.skips = 0, False
        for hook in self._hooks[1:]:
            hook.remove()
        del self._hooks[1:]

    def whole_gradient(self) -> None:
        """Makes p.grad the complete gradient of this step: adds the product of the pairs if autograd has not computed
        it."""
        if not self.skips or not self._kept:
            return
        grad = self.param.grad
        whole = torch.zeros_like(self.param) if grad is None else grad.detach().clone()
        for outputs, inputs in self._pairs():
            whole.addmm_(outputs.T, inputs)
        self.param.grad = whole

    def _hide(self, module: nn.Module, args: object) -> None:
        """Forward pre-hook: gives the layer a detached weight, so that autograd computes no gradient for it."""
        if torch.is_grad_enabled() and not _is_compiling():
            self._check_alone(module)
            module._parameters["weight"] = self.param.detach()  # type: ignore[assignment]

    def _check_alone(self, module: nn.Module) -> None:
        """Refuses hooks and parametrizations of the weight: they would change its gradient, which is not computed."""
        weight, hooks = self.param, getattr(self.param, "_post_accumulate_grad_hooks", None)
        if module._parameters.get("weight") is not weight:
            why = "is not a plain parameter of its layer any more, as after a parametrization or a prune mask"
        elif weight._backward_hooks or len(hooks or ()) > 1:  # one hook belongs to the optimizer
            why = "has got a hook, and autograd computes no gradient for it"
        else:
            return
        raise InvalidArgument(
            f"rank {self.mode.context.rank}: {self.name!r} {why}: leave out skip_weight_grad, or " + self._as_matrix()
        )

    def _show(self, module: nn.Module, args: object, result: object) -> None:
        module._parameters["weight"] = self.param  # type: ignore[assignment]

    def _called(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Any:
        """Forward hook: makes _backward run before the layer's backward pass."""
        if _is_compiling() or not torch.is_grad_enabled() or not self.param.requires_grad:
            return None
        given = result
        if result.grad_fn is None:  # no input requires a gradient, and the weight is detached
            if not self.skips:
                return None
            given = result.requires_grad_().clone()
        inputs: Tensor = args[0] if args else kwargs["input"]
        self._open += 1
        assert given.grad_fn is not None
        given.grad_fn.register_prehook(partial(self._backward, inputs.detach(), inputs._version))
        return None if given is result else given

    def _backward(self, inputs: Tensor, version: int, grads: tuple[Tensor, ...]) -> None:
        """Hook that runs before the layer's backward pass, and keeps the call's pairs."""
        if _is_compiling():  # compiled autograd traces the hook and shows it no pairs, so a matrix is sent
            if self.skips:
                _refuse_compiled(self)
            return
        self._check_inputs(inputs, version, "after its forward pass")
        self._open -= 1
        if grads[0] is not None:
            self._came.append(Call(inputs, version, grads[0].detach(), torch._C._current_graph_task_id()))
        if self.skips and self._open == 0:  # autograd will not call arrived() for this layer
            self._keep_pairs()
            super().arrived(self.param)

    def arrived(self, param: Tensor) -> None:
        if self.skips:
            self.used, self.refused = True, _USED
            return
        if not _is_compiling():
            self._keep_pairs()
        super().arrived(param)

    def _keep_pairs(self) -> None:
        """Keeps the pairs of this backward pass for the gradient. Drops pairs of other passes, such as
        torch.autograd.grad with respect to the inputs."""
        task = torch._C._current_graph_task_id()
        self._kept += [call for call in self._came if call.task == task]
        self._came.clear()

    # ---- send --------------------------------------------------------------------------------------------------------

    def takes_slot(self, exchange: Exchange) -> None:
        self._exchange = exchange
        if not self.most:
            super().takes_slot(exchange)
            return
        self.slot = self.lent = None
        self.slot_at = 0

    def _as_matrix(self) -> str:
        return f'give way={{{self.name!r}: "ps"}}, by which it goes as a matrix'

    def is_there(self) -> bool:
        return bool(self.skips and (self._kept or self._came)) or super().is_there()

    def push(self, start: Start) -> Handle:
        if self.skips and self._came:  # a call had no backward pass, so no hook has sent these pairs
            self._kept += self._came
            self._came.clear()
        rows = sum(call.rows for call in self._kept)
        self.rows = max(self.rows, rows)
        mode = self.mode
        if not self.most:
            if self._hooks and not self.refused and not mode.synchronized:
                self._judge()
            return super().push(start if self._verdict is None else partial(self._begin_matrix, start))
        if self.skips:
            self._check_alone(self.module)
        if not mode.agreed:  # agreed: this step's pairs have already been checked
            self._judge()
        grad = self.param.grad
        self.held, self.version, self.sent = grad, 0 if grad is None else grad._version, True
        if self.refused:  # the vote tells the other ranks
            return start(self.name, nothing=True)
        if rows > self.most:
            raise InvalidArgument(
                f"rank {self.mode.context.rank}: layer {self.name!r} had {rows} rows in this step, and goes as "
                f"{self.most} pairs at most: give "
                f"batch={rows} or more, or " + self._as_matrix()
            )
        pairs = self._exchange.factors(self.name)
        copies = [copy for copy in self._copies(pairs) if copy is not None]
        nbytes = 4 * rows * (pairs.u.shape[1] + pairs.v.shape[1])
        self.counts.copied += 1
        self.counts.copied_bytes += nbytes
        self.counts.bytes_out += nbytes * self.device.apart
        begin = partial(self._begin_pairs, start, pairs, rows, self._kept[:] if copies else ())
        handle: Handle = mode.starts.send(self.name, Together(copies) if copies else None, begin)
        return handle

    def _copies(self, pairs: Pairs) -> Iterator[Copy | None]:
        at = 0
        for call in self._kept:
            end = at + call.rows
            yield self.device.copy_out(torch.from_numpy(pairs.u[at:end]), _rows(call.outputs))
            yield self.device.copy_out(torch.from_numpy(pairs.v[at:end]), _rows(call.inputs))
            at = end

    def _begin_matrix(self, start: Start, *args: Any, **options: Any) -> Handle:
        self._decide()
        return start(*args, **options)

    def _begin_pairs(self, start: Start, pairs: Pairs, rows: int, copied: Sequence[Call]) -> Handle:
        self._decide()
        if self.refused:
            return start(self.name, nothing=True)
        for call in copied:
            self._check_inputs(call.inputs, call.version, "while they were copied from their device")
        pairs.count = rows
        return start(self.name)

    def _check_inputs(self, inputs: Tensor, version: int, when: str) -> None:
        if inputs._version != version:
            raise InvalidArgument(
                f"rank {self.mode.context.rank}: the inputs of the layer of {self.name!r} were written {when}, and its "
                "gradient is made of them: write a copy, or " + self._as_matrix()
            )

    def _judge(self) -> None:
        """Compares the gradient with the sum of its pairs, and stores the reason if they differ. On a device the result
        may come later; _decide reads it."""
        self.refused = self._differs()
        grad = self.param.grad
        if self.refused or self.skips or grad is None:
            return
        found = is_sum_of_pairs(grad.detach(), self._pairs())
        if self._place is None:
            self._place = self.device.host_like(found)
        self._verdict = self._place
        self._looked = self.device.copy_out(self._place, found)
        if self._looked is None:
            self._decide()  # otherwise when the exchange begins, after a later copy

    def _decide(self) -> None:
        if self._verdict is not None and not self._verdict:
            self.refused = f"{_NOT_THEIR_SUM}{_rounded()}"
        self._verdict = self._looked = None

    def _differs(self) -> str:
        """Returns why the gradient cannot be the sum of the pairs; "" if no reason is known."""
        grad = self.param.grad
        if self.skips:
            if self.used:
                return _USED
            return "" if self._kept or grad is None else "it has a gradient, and its layer was not called for it"
        if grad is None:
            return ""
        if not self._kept:
            return "its layer is not called where its weight is used"
        if grad.layout is not torch.strided:
            return "its gradient is sparse"
        narrow = next((one.dtype for call in self._kept for one in call[::2] if one.dtype != torch.float32), None)
        return "" if narrow is None else f"its layer computes in {narrow}, which rounds its gradient"

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the gradients of outputs (rows, M) and the inputs (rows, N) of one call after the other."""
        for call in self._kept:
            outputs, inputs = (one.reshape(-1, one.shape[-1]).float() for one in (call.outputs, call.inputs))
            yield outputs, inputs

    # ---- the mean ----------------------------------------------------------------------------------------------------

    def averaged(self, mean: NDArray[np.float32], *, copy: bool = False) -> None:
        super().averaged(mean, copy=copy)
        if self.most:
            self._mean = mean

    def sends_again(self, asked: bool) -> bool:
        """Returns False for pairs. They stay folded, since a trainer may change their mean only by a factor."""
        if not self.most:
            return super().sends_again(asked)
        if (asked or self.changed()) and self._mean is not None and self.param.grad is not None:
            self.scaled_by(self._mean, "it goes as pairs of vectors: " + self._as_matrix())
        return False

    def done(self) -> None:
        super().done()
        self._kept.clear()
        self._came.clear()
        self._open, self._mean = 0, None
        self.used = False
        if self.most:
            self.refused = ""


def _rounded() -> str:
    """Returns a sentence for the error: products in TF32 or bfloat16 are another reason for a different gradient."""
    with suppress(RuntimeError):  # torch raises if its older and newer settings are mixed
        precision = torch.get_float32_matmul_precision()
        if precision != "highest":
            return f", or torch.set_float32_matmul_precision({precision!r}) rounds it"
    return ""


@_disable_dynamo
def _refuse_compiled(key: LinearKey) -> None:
    raise InvalidArgument(
        f"{key.name!r} goes as pairs of vectors, with skip_weight_grad, and its backward pass is compiled (compiled "
        "autograd), which shows no pairs: " + key._as_matrix()
    )


class CopiedLinearKey(LinearKey, CopiedKey):
    """A LinearKey on a device."""

    def memory(self, exchange: Exchange) -> list[NDArray[Any]]:
        if not self.most:
            return super().memory(exchange)
        pairs = exchange.factors(self.name)
        return [exchange.params[self.name], pairs.u, pairs.v]


def make_linear(
    module: nn.Linear, name: str, param: Tensor, group: int, counts: Counts, sparse: str, device: TensorDevice
) -> LinearKey:
    """Returns the key of a linear layer's weight, which must be float32."""
    args = (module, name, param, group, counts, sparse)
    return CopiedLinearKey(*args, device) if device.apart else LinearKey(*args)


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def layers_of(model: nn.Module) -> dict[int, nn.Linear]:
    """Returns the plain linear layers whose weight is used by no other part of the model, by id of the weight."""
    uses: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, param in module._parameters.items():
            if param is not None:
                uses.setdefault(id(param), []).append((module, name))
    found = {}
    for own, ((module, name), *others) in uses.items():
        if type(module) is nn.Linear and name == "weight" and not others:
            found[own] = module
    return found


def why_not(module: nn.Linear) -> str:
    """Returns why a layer's gradient cannot be computed from its inputs and outputs; "" if it can."""
    weight = module.weight
    if weight.dtype != torch.float32:
        return f"its weight is {weight.dtype}"
    if not weight.is_contiguous():
        return "its weight is not contiguous"
    if weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None):
        return "its weight has hooks, which may change its gradient"
    if hasattr(module, "parametrizations"):
        return "its weight is parametrized"
    return ""

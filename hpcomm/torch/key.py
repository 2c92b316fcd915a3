"""A key: a parameter of the model, and the memory in the exchange where its values lie.

Each gradient goes into a slot, which is memory of the exchange that the parameter's owners read. Owners write the new
parameter into another part of the exchange's memory. For float32 parameters torch's own tensors (p.grad and p) lie in
this memory. So only a gradient that autograd has put elsewhere is copied.
"""

import math
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._compile import _disable_dynamo

from .._core import enter, named_call
from ..context import Context
from ..errors import InvalidArgument, PeerFailed
from ..exchange import Exchange, Handle
from ..log import logger
from .counts import Counts
from .device import Cpu, TensorDevice
from .pending import PendingStarts
from .tensors import Lent, Order, as_float32, as_tensor, is_held, order_of, written

_STRIDED = torch.strided
_HOST = torch.device("cpu")
_is_compiling = torch.compiler.is_compiling
_BACKWARD = named_call("loss.backward()", every=False)
_SCALED = 1e-5  # relative difference up to which a mean counts as a multiple of its old value

Start = Callable[..., Handle]  # fold_nb or push_pull_nb of an exchange


def _ratio(before: Tensor, now: Tensor) -> float:
    """Returns the factor from one gradient to the other; NaN if now is not a multiple of before."""
    if not bool(torch.isfinite(before).all()):
        return 1.0  # a scaler has seen the NaN or Inf too, and skips the step
    square = float((before.double() ** 2).sum())
    factor = float((before.double() * now.double()).sum()) / square if square else 1.0
    rounded = max(_SCALED, torch.finfo(now.dtype).eps) * abs(factor) * float(before.abs().max())
    return factor if float((now - factor * before).abs().max()) <= rounded else math.nan


class Sender(Protocol):
    """The part of a mode (mode.py) that a parameter's hook uses."""

    quiet: bool
    unguarded: bool
    synchronized: bool
    agreed: bool
    passes: int
    context: Context

    def send(self, key: "ParamKey") -> None: ...
    def passed(self, key: "ParamKey") -> None: ...
    def made(self) -> int: ...
    def explained(self, failed: PeerFailed, made: int) -> PeerFailed: ...
    @property
    def starts(self) -> PendingStarts: ...


class LayerUse(Protocol):
    """Facts about the layer of a parameter; see syncer.py."""

    calls: int
    plain: bool


@_disable_dynamo
def _apart(key: "ParamKey", param: Tensor) -> None:
    """Hook of a parameter, which a compiled backward pass does not trace. That pass may read the weight after the hook,
    so the hook forgets the layer's calls; then the mode Backward does not send the key early."""
    if key.syncer is not None:
        key.syncer.calls = 0
    key.arrived(param)


class ParamKey:
    """A float32 parameter.

    Attributes:
        name, param: the parameter, and its name in the model.
        group: the number of its parameter group.
        handle: the handle of the exchange for which the next reader of the parameter must wait; None if no wait is
            needed.
        sent: whether the gradient of this step has been sent.
        passes: the number of backward passes since the last step.
        factor: the factor by which the trainer has scaled the mean that synchronize() gave.
        fold: the handle of the gradient's fold.
        syncer: the Syncer of its layer. If several layers wait for the key, it is the last of them.
        shared: whether several modules use the parameter.
        apart: whether the owner keeps values that may differ from the parameter's. Then a trainer's writes to the
            parameter would be lost unless the exchange is told.
        stamp: the parameter's autograd version when the exchange last had all values written on this rank.
        master: the memory that owners write, as a tensor with the parameter's shape.
        home: the parameter's own memory, if this is not master; otherwise None.
        slot: the memory for the gradient in the exchange, if p.grad can lie in it; otherwise None.
        lent: the Lent that makes p.grad a tensor over slot; None without a slot.
        mean: the Lent that makes p.grad a tensor over master, if the mean of all ranks lies in master; otherwise None.
        sum: the tensor in which autograd summed several gradients. It is kept until zero_grad(). If each was freed when
            it was sent, malloc would return the memory to the system, and the next backward pass would have to fault it
            in.
    """

    __slots__ = (
        "address",
        "apart",
        "counts",
        "factor",
        "fold",
        "group",
        "handle",
        "held",
        "home",
        "lent",
        "master",
        "mean",
        "mode",
        "name",
        "order",
        "param",
        "passes",
        "sent",
        "shared",
        "slot",
        "slot_at",
        "sparse",
        "stamp",
        "sum",
        "syncer",
        "version",
    )

    mode: Sender
    master: Tensor
    most = 0  # if the key is sent as pairs of vectors: the most pairs in a step
    refused = ""  # why the key cannot be sent as pairs; "" if it can
    skips = False  # whether autograd does not compute its gradient
    device: TensorDevice = Cpu()
    has_master = False  # whether the exchange's values have more bits than the parameter
    copies = False  # whether the parameter never lies in the exchange

    def __init__(self, name: str, param: Tensor, group: int, counts: Counts, sparse: str) -> None:
        self.name, self.param, self.group, self.counts, self.sparse = name, param, group, counts, sparse
        self.order: Order = order_of(param)
        self.handle: Handle | None = None
        self.fold: Handle | None = None
        self.sent = self.shared = self.apart = False
        self.passes = self.version = self.address = self.stamp = 0
        self.factor = 1.0
        self.held: Tensor | None = None  # p.grad when it was sent; self.version is its version at that time
        self.home: Tensor | None = None
        self.slot: Tensor | None = None
        self.lent = self.mean = None  # type: Lent | None
        self.sum: Tensor | None = None
        self.slot_at = 0
        self.syncer: LayerUse | None = None

    # ---- its places --------------------------------------------------------------------------------------------------

    def value(self) -> NDArray[np.float32]:
        """Returns the parameter as a float32 array, with its dimensions in the exchange's order."""
        return as_float32(self.param, self.order)

    def lies_in(self, exchange: Exchange, *, stays: bool) -> None:
        """Moves the parameter into the exchange's memory. stays: if True, the parameter keeps its own memory, and each
        step copies the new values into it."""
        self.home = None
        self.master = as_tensor(exchange.params[self.name], self.order)
        self.home = None
        if stays:
            self._stays_at_home()
            return
        self.param.data = as_tensor(exchange.params[self.name], self.order)  # share_memory() may move param.data later
        self.address, self.stamp = self.param.data_ptr(), self.param._version

    def _stays_at_home(self) -> None:
        self.home = self.param.data
        self.home.copy_(self.master)  # the first values, which are rank 0's
        self.address, self.stamp = self.home.data_ptr(), self.param._version

    def takes_slot(self, exchange: Exchange) -> None:
        """Makes later gradients go into the exchange. If the key has a single float32 slot, p.grad lies in this
        slot."""
        slot = exchange.gradient(self.name)
        its = exchange._state.facts[self.name]
        single = its.one_slot and not its.reads_on
        self.slot = as_tensor(slot, self.order) if single and slot.dtype == np.float32 else None
        self.slot_at = 0 if self.slot is None else self.slot.data_ptr()
        self.lent = None if self.slot is None else Lent(self.slot, self.order)
        self.mean = None

    def memory(self, exchange: Exchange) -> list[NDArray[Any]]:
        """Returns the arrays of the exchange that copies from and to a device use."""
        return [exchange.params[self.name]]

    def find_home(self, *, take: bool = True) -> None:
        """Notices if torch has moved the parameter, as model.to and p.data = ... do. take: whether the exchange gets
        the values in the new memory; if False, these values are older than the exchange's."""
        if take and self.apart and self.home is None and self.stamp != self.param._version:
            raise self.lost_write()
        address = self.param.data_ptr()
        moved = address != self.address
        if moved:
            data = self.param.data
            self._check(data)
            self.address = address
            self.home = None if address == self.master.data_ptr() else data
        if take and self.home is not None and (moved or self._may_have_written()):
            self._take(self.home)
        self.stamp = self.param._version

    def give(self) -> None:
        """Begins an update: gives the exchange the values that the trainer has written, the same on all ranks. From now
        on owners write the parameter."""
        self.find_home()
        written(self.param)
        self.stamp = self.param._version

    def _may_have_written(self) -> bool:
        """Returns whether the trainer may have written the parameter in the parameter's own memory, perhaps by
        p.data."""
        return True

    def _take(self, data: Tensor) -> None:
        if self.apart and not torch.equal(data, self.master):
            raise self.lost_write()
        self.master.copy_(data)

    def _check(self, data: Tensor) -> None:
        if data.dtype != self.dtype or data.shape != self.master.shape or data.device != self.where:
            raise InvalidArgument(
                f"parameter {self.name!r} is {data.dtype} {tuple(data.shape)} on {data.device} now and was "
                f"{self.dtype} {tuple(self.master.shape)}: make another DistributedOptimizer"
            )

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def where(self) -> torch.device:
        return _HOST

    # ---- receive -----------------------------------------------------------------------------------------------------

    def receive(self) -> None:
        """Waits until the parameter may be read."""
        handle = self.handle
        if handle is not None:
            start = monotonic()
            handle.wait()
            self.counts.wait += monotonic() - start
            self.handle = None
            if self.param._version != self.stamp:
                raise self.torn_write()
            if self.param.data_ptr() != self.address:  # torch has moved it during the wait
                self.find_home(take=False)
            if self.home is not None:
                self.move()

    def move(self) -> None:
        """Copies the new parameter from the exchange into the parameter's own memory."""
        assert self.home is not None
        self.home.copy_(self.master)
        self.counts.params_copied += 1

    def tally(self) -> None:
        """If the last copy has ended, adds its seconds to the counts."""

    def fetch(self) -> bool:
        """If the new parameter has come from its owners, begins to copy it to its device. Returns whether it has
        come."""
        return self.handle is None

    # ---- send --------------------------------------------------------------------------------------------------------

    def is_there(self) -> bool:
        """Returns whether this rank has a gradient in this step."""
        return self.param.grad is not None

    def arrived(self, param: Tensor) -> None:
        """Hook of the parameter: a backward pass has computed the complete gradient."""
        if _is_compiling():  # compiled autograd traces the hook; _apart is not traced
            _apart(self, param)
            return
        mode = self.mode
        if self.sent or self.handle is not None:
            mode.starts.drain()  # then all ranks refuse after the same pushes
            raise self.twice() if self.sent else self.unwaited()
        if mode.quiet:
            mode.passed(self)
            return
        self.passes = passes = self.passes + 1
        if passes < mode.passes:
            mode.passed(self)
            return
        before = enter(_BACKWARD)
        if before:
            enter(before)
        try:
            mode.send(self)
        except PeerFailed as failed:
            raise mode.explained(failed, mode.made()) from failed
        except InvalidArgument:
            mode.starts.drain()  # then all ranks refuse after the same pushes
            raise
        finally:
            enter(before)

    def push(self, start: Start) -> Handle:
        """Starts the exchange of p.grad by calling start. If the key has a slot, p.grad lies in the slot afterwards."""
        grad, slot, lent = self.param.grad, self.slot, self.lent
        if lent is not None and grad is not None and grad is lent.tensor and grad.data_ptr() == lent.address:
            if self.mode.unguarded and grad._version - self.version > 1:
                raise self.early_write()
            handle = start(self.name)
            self.counts.in_place += 1
        else:
            assert grad is not None
            if grad.dtype is not torch.float32:
                self._check(self.param.data)
            plain = grad if grad.layout is _STRIDED and not grad.requires_grad else self.dense(grad)
            self.leave_kept(grad, plain)
            if slot is None:
                handle = start(self.name, self._array(plain))
            else:
                slot.copy_(plain)  # the slot is free, since the last exchange has been waited for
                handle = start(self.name)
                if not grad.requires_grad and lent is not None:
                    self.sum = grad if grad._version else None
                    self.param.grad = grad = lent.get()
            self.counts.copied += 1
            self.counts.copied_bytes += 4 * plain.numel()
        self.held, self.version, self.sent = grad, grad._version, True  # type: ignore[union-attr]
        return handle

    def push_nothing(self, start: Start) -> Handle:
        """Pushes zeros as this rank's gradient. p.grad stays as it is."""
        grad = self.param.grad
        self.held, self.version, self.sent = grad, 0 if grad is None else grad._version, True
        return start(self.name, nothing=True)

    def leave_kept(self, grad: Tensor | None = None, plain: Tensor | None = None) -> None:
        """Prepares slot and master to be written. A trainer may have kept p.grad of an earlier backward pass (as with
        several losses), or an array over it; the kept object keeps its values. grad, plain: local variables of the
        caller, which may refer to that tensor and do not count as kept."""
        for lent in (self.lent, self.mean):
            if lent is not None and lent.tensor is not None:
                local = 2 * ((grad is lent.tensor) + (plain is lent.tensor))  # names: the caller's and this function's
                lent.leave(self._names_of(lent.tensor) + local, p_grad=self.param.grad is lent.tensor)

    def _names_of(self, tensor: Tensor) -> int:
        """Returns how many references to this tensor the key itself holds."""
        return (self.held is tensor) + (self.sum is tensor)

    def _array(self, grad: Tensor) -> NDArray[Any]:
        """Returns a gradient as an array that C can read: its own memory if its strides are the parameter's, otherwise
        a copy."""
        order = self.order
        array: NDArray[Any] = (grad if order is None else grad.permute(order)).numpy()
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
            self.counts.copied += 1
            self.counts.copied_bytes += array.nbytes
        return array

    def dense(self, grad: Tensor) -> Tensor:
        """Returns a gradient as a plain tensor: a sparse one made dense, one that requires a gradient detached."""
        grad = grad.detach()
        if grad.layout is torch.strided:
            return grad
        if self.sparse == "refuse":
            raise InvalidArgument(
                f'the gradient of {self.name!r} is sparse: sparse="refuse" does not exchange it; sparse="dense" does'
            )
        if not self.counts.dense:
            logger.warning("the gradient of %r is sparse and is exchanged dense, as all sparse ones are", self.name)
        self.counts.dense += 1
        return grad.to_dense()

    def averaged(self, mean: NDArray[np.float32], *, copy: bool = False) -> None:
        """Sets p.grad to the mean of all ranks. If the mean lies in the slot and copy is False, p.grad lies in the
        slot; otherwise p.grad is a copy."""
        if self.lent is not None and mean.ctypes.data == self.slot_at and not copy:
            grad = self.param.grad = self.lent.get()
        else:
            if copy and self.lent is not None and self.param.grad is self.lent.tensor:
                self.param.grad = None
            grad = self._own_grad()
            grad.copy_(as_tensor(mean, self.order))
        self.held, self.version = grad, grad._version

    def scaled_by(self, mean: NDArray[np.float32], why: str) -> None:
        """Finds the factor by which the trainer has scaled this mean. why: the reason why only a factor is allowed, for
        the error.

        Raises:
            InvalidArgument: the mean was changed in another way than by a factor.
        """
        grad = self.param.grad
        self.factor = 1.0 if grad is None else _ratio(as_tensor(mean, self.order), grad.detach().cpu())
        if grad is None or math.isnan(self.factor):
            raise InvalidArgument(f"the mean gradient of {self.name!r} was changed by more than a factor: {why}")
        self.held, self.version = grad, grad._version

    def _own_grad(self) -> Tensor:
        """Returns p.grad as memory that may be written. If the trainer holds the present tensor, it is a new tensor."""
        grad = self.param.grad
        if grad is None or grad.layout is not _STRIDED or is_held(grad, self._names_of(grad), p_grad=True):
            self.param.grad = grad = torch.empty_like(self.param)
        return grad

    def take_mean(self) -> None:
        """Sets p.grad to the mean of all ranks, which lies in master. Used if the exchange has mean gradients in place
        of parameters."""
        if self.mean is None:
            self.mean = Lent(self.master, self.order)
        self.param.grad = self.mean.get()

    # ---- the trainer's changes ---------------------------------------------------------------------------------------

    def changed(self) -> bool:
        """Returns whether the trainer has changed p.grad since it was sent."""
        grad = self.param.grad
        if grad is not self.held:
            return True
        if grad is None:
            return False
        moved = self.lent is not None and grad is self.lent.tensor and grad.data_ptr() != self.lent.address
        return moved or grad._version != self.version

    def sends_again(self, asked: bool) -> bool:
        """Returns whether the mean that synchronize() gave must be folded again. asked: whether the trainer may have
        written it without a new version."""
        return asked or self.changed()

    def done(self) -> None:
        """Resets the key's state of a step, after the step."""
        self.sent, self.passes, self.factor = False, 0, 1.0
        if self.lent is None or self.held is not self.lent.tensor:
            self.held = None

    def end(self) -> None:
        """Drops the references to the exchange, after the optimizer is gone. p.grad stays."""
        self.handle = self.fold = self.held = self.sum = self.lent = self.mean = self.slot = self.syncer = None
        del self.mode

    def twice(self) -> InvalidArgument:
        return InvalidArgument(
            f"the gradient of {self.name!r} came a second time in one step, and the first is being exchanged: run the "
            "earlier backward passes of a step under optimizer.no_sync(), or give backward_passes_per_step"
        )

    def unwaited(self) -> InvalidArgument:
        return InvalidArgument(
            f"{self.name!r} was used in a forward pass that did not call its layer, while its update was on its way: "
            "call optimizer.wait() before that pass; give a model that is compiled later to another "
            "DistributedOptimizer"
        )

    def early_write(self) -> InvalidArgument:
        return InvalidArgument(
            f"the gradient of {self.name!r} was written after step() while it was being exchanged: use "
            "optimizer.zero_grad(), or call optimizer.wait() before"
        )

    def torn_write(self) -> InvalidArgument:
        return InvalidArgument(
            f"{self.name!r} was written while its update was on its way: call optimizer.wait() before parameters are "
            "written, or leave out overlap=True"
        )

    def lost_write(self) -> InvalidArgument:
        return InvalidArgument(
            f"{self.name!r} was written in place after step(), and would lose that: under this consistency, or with "
            "codec_out, its owner keeps values of its own. Write it by model.load_state_dict, on all ranks alike"
        )

    def late_change(self) -> InvalidArgument:
        return InvalidArgument(
            f"the gradient of {self.name!r} was changed after its exchange had begun: call optimizer.synchronize() "
            "before gradients are changed, or give clip_norm"
        )

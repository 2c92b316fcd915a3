"""Keys whose parameter never lies in the exchange. Either the parameter has 16 bits, and the exchange keeps a float32
master; or it lies on a device, and each step copies gradient and parameter between the device and the host's memory."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InvalidArgument
from ..exchange import Exchange, Handle
from .counts import Counts
from .device import Copy, TensorDevice
from .key import ParamKey, Start
from .pending import until_reached
from .tensors import as_tensor


class CopiedKey(ParamKey):
    """A key whose parameter and gradient are copied in each step.

    Attributes:
        coming: the parameter's last copy from the exchange; None once this copy is known to have ended.
    """

    __slots__ = ("_exchange", "_fetched", "_stage", "_uncounted", "_wires", "coming", "device")

    _exchange: Exchange
    device: TensorDevice
    copies = True

    def __init__(self, name: str, param: Tensor, group: int, counts: Counts, sparse: str, device: TensorDevice) -> None:
        super().__init__(name, param, group, counts, sparse)
        self.device = device
        self._stage: Tensor | None = None
        self._wires: dict[int, Tensor] = {}
        self.coming: Copy | None = None
        self._uncounted: Copy | None = None  # a copy whose seconds are not yet added to the counts
        self._fetched: Tensor | None = None  # the memory into which this step's new parameter is copied

    @property
    def has_master(self) -> bool:  # type: ignore[override]
        return self.dtype != torch.float32

    # ---- its places --------------------------------------------------------------------------------------------------

    def lies_in(self, exchange: Exchange, *, stays: bool) -> None:
        self.master = as_tensor(exchange.params[self.name], self.order)
        self.coming = self._fetched = None
        self._stays_at_home()

    def takes_slot(self, exchange: Exchange) -> None:
        self._exchange, self._wires = exchange, {}

    def _may_have_written(self) -> bool:
        """Returns False, although a trainer may write by p.data, which leaves the version unchanged. To notice that,
        each step would have to compare all values, which takes too long."""
        return self.stamp != self.param._version

    def _take(self, data: Tensor) -> None:
        data = data.to(self.master.device)
        if torch.equal(data, self.master.to(data.dtype)):  # the master may have more bits than the parameter
            return
        if self.apart:
            raise self.lost_write()
        self.master.copy_(data)

    def memory(self, exchange: Exchange) -> list[NDArray[Any]]:
        return [*super().memory(exchange), exchange.gradient(self.name)]

    @property
    def dtype(self) -> torch.dtype:
        return self.home.dtype if self.home is not None else self.param.dtype

    @property
    def where(self) -> torch.device:
        return self.home.device if self.home is not None else self.param.device

    def wire(self) -> Tensor:
        """Returns the slot that the next push sends. Waits until the slot is free."""
        array = self._exchange.gradient(self.name)
        found = self._wires.get(id(array))  # the exchange keeps its slots' arrays alive, so ids stay valid
        if found is None:
            found = self._wires[id(array)] = as_tensor(array, self.order)
        return found

    def _staged(self) -> Tensor:
        """Returns host memory for 16-bit values, which cross the bus as they are and are converted in the host's
        memory."""
        if self._stage is None:
            self._stage = self.device.host_like(self.param.detach())
        return self._stage

    # ---- the parameter -----------------------------------------------------------------------------------------------

    def fetch(self) -> bool:
        """If the new parameter has come from its owners, begins to copy it. Returns whether it has come."""
        if self.handle is None:
            return True
        if self._fetched is None and self.handle.test() and self.home is not None:
            self._begin_copy(self.home)
        return self._fetched is not None

    def move(self) -> None:
        assert self.home is not None
        if self._fetched is not self.home:
            self._begin_copy(self.home)
        self._fetched = None
        if self.coming is not None:
            self.coming.follow()
        self.counts.params_copied += 1

    def _begin_copy(self, home: Tensor) -> None:
        source = self.master
        if self.device.apart and self.has_master:
            self._rest()  # the last copy may still read the memory that is written next
            source = self._staged().copy_(self.master)
        self._come(home, source)
        self._fetched = home

    def _come(self, target: Tensor, source: Tensor) -> None:
        self.tally()
        self.coming = self._uncounted = self.device.copy_in(target, source)
        if self.device.apart:
            self.counts.bytes_in += source.nbytes

    def tally(self) -> None:
        told = None if self._uncounted is None else self._uncounted.told()
        if told is not None:
            self.counts.seconds_in += told[0]
            self.counts.copy_wait += told[1]
            self._uncounted = None

    def leave_kept(self, grad: Tensor | None = None, plain: Tensor | None = None) -> None:
        self._rest()
        super().leave_kept(grad, plain)

    def push_nothing(self, start: Start) -> Handle:
        self._rest()
        return super().push_nothing(start)

    def _rest(self) -> None:
        """Waits until the last copy has ended, so that its source may be written. push() need not call this: the
        gradient is computed after that copy on the device, and the gradient's own copy begins after that."""
        if self.coming is not None:
            until_reached(self.mode.context, self.name, self.coming)
            self.coming = None

    # ---- the gradient ------------------------------------------------------------------------------------------------

    def push(self, start: Start) -> Handle:
        grad = self.param.grad
        assert grad is not None
        plain = grad if grad.layout is torch.strided and not grad.requires_grad else self.dense(grad)
        wire, begin = self.wire(), partial(start, self.name)
        target = wire
        if self.device.apart:
            if plain.dtype != wire.dtype and plain.element_size() < wire.element_size():
                target, begin = self._staged(), partial(_converted, wire, self._staged(), begin)
            self.counts.bytes_out += target.nbytes
        copy = self.device.copy_out(target, plain)
        self.counts.converted += self.has_master
        self.counts.copied += not self.has_master
        self.held, self.version, self.sent = grad, grad._version, True
        handle: Handle = self.mode.starts.send(self.name, copy, begin)
        return handle

    def dense(self, grad: Tensor) -> Tensor:
        if self.device.apart and grad.layout is not torch.strided:
            raise InvalidArgument(
                f"the gradient of {self.name!r} is sparse, and lies on {grad.device}: give its layer sparse=False, or "
                "move the model to the CPU"
            )
        return super().dense(grad)

    def take_mean(self) -> None:
        self._come(self._own_grad(), self.master)
        if self.coming is not None:
            self.coming.follow()

    def end(self) -> None:
        super().end()
        self.tally()
        self.coming = self._uncounted = self._fetched = self._stage = None
        self._wires.clear()


def _converted(wire: Tensor, stage: Tensor, begin: Callable[[], Any]) -> Any:
    wire.copy_(stage)
    return begin()


def make_key(name: str, param: Tensor, group: int, counts: Counts, sparse: str, device: TensorDevice) -> ParamKey:
    """Returns the key of a parameter.

    Raises:
        InvalidArgument: the parameter's dtype is not float32, bfloat16 or float16.
    """
    if param.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise InvalidArgument(f"parameter {name!r} is {param.dtype}: must be float32, bfloat16 or float16")
    if param.dtype == torch.float32 and not device.apart:
        return ParamKey(name, param, group, counts, sparse)
    return CopiedKey(name, param, group, counts, sparse, device)

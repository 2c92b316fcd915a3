"""Devices: how values get from a model's tensors into the memory of an exchange and back. Each kind of device has one
class. All keys of a DistributedOptimizer lie on one device."""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InvalidArgument


class Copy(Protocol):
    """A copy that has begun. It keeps its source alive until the copy has ended."""

    def reached(self) -> bool:
        """Returns whether the copy has ended."""

    def follow(self) -> None:
        """Makes the device run work that it is given from now on after the copy. Does not wait for the copy."""

    def told(self) -> tuple[float, float] | None:
        """Returns two numbers: the seconds that the copy took, and the seconds for which the device's other work waited
        for it. Returns None if they are not known yet."""


class TensorDevice(Protocol):
    """Copies bytes between a device's tensors and the host's memory.

    The methods copy_out and copy_in return at once. The copy begins after the work that the device has been given
    before. Copies in one direction end in the order in which they began. A method returns None if its copy has already
    ended.

    Attributes:
        apart: whether the device's memory is separate from the host's, so that an exchange cannot write it.
    """

    apart: bool

    def register(self, arrays: Iterable[NDArray[Any]]) -> Callable[[], None]:
        """Registers host memory with the device, which makes copies direct. Returns a function that unregisters it."""

    def host_like(self, tensor: Tensor) -> Tensor:
        """Returns new host memory for copies, with the shape, strides and dtype of the tensor."""

    def copy_out(self, target: Tensor, source: Tensor) -> Copy | None:
        """Copies from the device into the host's memory."""

    def copy_in(self, target: Tensor, source: Tensor) -> Copy | None:
        """Copies from the host's memory to the device."""


class Together:
    """Copies in one direction that began one after the other, so the last one ends last. All of them are kept until
    then, since each keeps its source alive."""

    __slots__ = ("_copies",)

    def __init__(self, copies: Iterable[Copy]) -> None:
        self._copies = tuple(copies)

    def reached(self) -> bool:
        return self._copies[-1].reached()

    def follow(self) -> None:
        self._copies[-1].follow()

    def told(self) -> tuple[float, float] | None:
        every = [copy.told() for copy in self._copies]
        known = [one for one in every if one is not None]
        return (sum(took for took, _ in known), sum(stood for _, stood in known)) if len(known) == len(every) else None


class Cpu:
    """The host's memory, for tensors that lie on the CPU."""

    apart = False

    def register(self, arrays: Iterable[NDArray[Any]]) -> Callable[[], None]:
        return _nothing

    def host_like(self, tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor)

    def copy_out(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source)

    copy_in = copy_out


def _nothing() -> None:
    """Does nothing, since no memory was registered."""


def _cuda(where: torch.device) -> TensorDevice:
    made: TensorDevice = import_module(".cuda", __package__).Cuda(where)  # CPU jobs may lack torch.cuda
    return made


KINDS: dict[str, Callable[[torch.device], TensorDevice]] = {"cpu": lambda _: Cpu(), "cuda": _cuda}
"""By the type of a torch.device."""


def device_of(params: Mapping[str, Tensor]) -> TensorDevice:
    """Returns the device on which all parameters lie. params: the parameters by name. Their devices must be of the
    types in KINDS.

    Raises:
        InvalidArgument: the parameters lie on several devices.
    """
    first: tuple[str, torch.device] | None = None
    for name, param in params.items():
        if first is None:
            first = name, param.device
        elif param.device != first[1]:
            raise InvalidArgument(
                f"parameter {name!r} lies on {param.device} and {first[0]!r} on {first[1]}: a rank has one device: "
                "start a rank for each device, or move the model to one"
            )
    where = torch.device("cpu") if first is None else first[1]
    return KINDS[where.type](where)

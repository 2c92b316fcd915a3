"""Where a model's tensors lie, and how their bytes get into the memory of an exchange and back: a member for each kind
of device. All keys of a DistributedOptimizer have one device."""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InvalidArgument


class Copy(Protocol):
    """A copy that has begun. Its source stays alive until it has ended."""

    def reached(self) -> bool:
        """Whether it has ended."""

    def follow(self) -> None:
        """Work that the device is given from here on runs after the copy. This call need not wait for it."""

    def told(self) -> tuple[float, float] | None:
        """The seconds that it took, and for which the device's work stood still for it; None: not known yet."""


class TensorDevice(Protocol):
    """How bytes get from tensors of a device into the host's memory, and back.

    copy_out and copy_in begin behind the device's present work, and return at once. Copies of one direction end in the
    order in which they began. They return None where the copy is made already.

    Attributes:
        apart: its memory is not the host's, so an exchange cannot write it.
    """

    apart: bool

    def register(self, arrays: Iterable[NDArray[Any]]) -> Callable[[], None]:
        """Makes memory of the host known to the device, for copies that need no other place between. The call that it
        returns takes that back."""

    def host_like(self, tensor: Tensor) -> Tensor:
        """Memory of the host with the shape, strides and dtype of a tensor, for copies."""

    def copy_out(self, target: Tensor, source: Tensor) -> Copy | None:
        """Into the host's memory."""

    def copy_in(self, target: Tensor, source: Tensor) -> Copy | None:
        """From the host's memory."""


class Together:
    """Copies of one direction that have begun one behind the other: the last one ends last. All are kept until then, as
    each keeps its source alive."""

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
    """The host's own memory."""

    apart = False

    def register(self, arrays: Iterable[NDArray[Any]]) -> Callable[[], None]:
        return _nothing

    def host_like(self, tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor)

    def copy_out(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source)

    copy_in = copy_out


def _nothing() -> None:
    """There is nothing to take back."""


def _cuda(where: torch.device) -> TensorDevice:
    made: TensorDevice = import_module(".cuda", __package__).Cuda(where)  # which jobs on CPUs do without
    return made


KINDS: dict[str, Callable[[torch.device], TensorDevice]] = {"cpu": lambda _: Cpu(), "cuda": _cuda}
"""By the type of a torch.device."""


def device_of(params: Mapping[str, Tensor]) -> TensorDevice:
    """The device on which parameters lie, by name: each of one of KINDS.

    Raises:
        InvalidArgument: they lie on several devices.
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

"""Tensors and the arrays of an exchange. They are views of the same memory."""

from collections import Counter
from collections.abc import Iterable, Sequence
from sys import getrefcount
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.parameter import is_lazy

from .._core import MemoryView
from ..context import Context
from ..errors import InvalidArgument
from .device import KINDS

Order = tuple[int, ...] | None
"""The dimensions of a tensor by falling stride, as its elements lie in memory; None: it is C-contiguous."""


def check_dense(what: str, tensor: Tensor) -> None:
    """Raises for a tensor whose values cannot be exchanged."""
    if is_lazy(tensor):
        raise InvalidArgument(f"{what} has no shape yet: call the model on one batch before it is wrapped")
    if tensor.device.type not in KINDS:
        raise InvalidArgument(
            f"{what} lies on {tensor.device}: hpcomm.torch exchanges tensors of {' and '.join(KINDS)}"
        )
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise InvalidArgument(f"{what} is {tensor.layout} of {tensor.dtype}: hpcomm.torch takes dense tensors")


def check_written(what: str, tensor: Tensor) -> None:
    """Raises for a tensor into which rank 0's values cannot be written."""
    check_dense(what, tensor)
    if any(stride == 0 and n > 1 for stride, n in zip(tensor.stride(), tensor.shape, strict=True)):
        raise InvalidArgument(f"{what} is expanded, and its elements share memory: register its clone()")


def order_of(tensor: Tensor) -> Order:
    """Returns the order in which a dense tensor's dimensions lie in memory, as with channels_last. Returns None if the
    tensor is contiguous or has gaps."""
    if tensor.is_contiguous():
        return None
    order = tuple(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    return order if tensor.permute(order).is_contiguous() else None


def flat(tensor: Tensor, order: Order) -> Tensor:
    """Returns the tensor with its dimensions permuted into this order. If elements lie in memory in this order, the
    result is C-contiguous."""
    return tensor if order is None else tensor.permute(order)


def as_float32(tensor: Tensor, order: Order) -> NDArray[np.float32]:
    """Returns the values as a float32 array, with dimensions in this order. The array may be the tensor's own
    memory."""
    found: NDArray[np.float32] = flat(tensor.detach(), order).to("cpu", torch.float32).contiguous().numpy()
    return found


def as_tensor(array: NDArray[Any], order: Order = None) -> Tensor:
    """Returns the memory of an array as a tensor; order tells in which order the tensor's dimensions lie in it. Arrays
    of uint16 and of ml_dtypes' bfloat16 become bfloat16 tensors with the same bits."""
    narrow = array.dtype not in (np.float32, np.float16)
    found = torch.from_numpy(array.view(np.int16) if narrow else array)
    if narrow:
        found = found.view(torch.bfloat16)
    if order is None:
        return found
    return found.permute([order.index(dim) for dim in range(len(order))])


_uses = getattr(torch._C, "_storage_Use_Count", lambda _: 0)
_uses_of_tensor = getattr(Tensor, "_use_count", lambda _: 1)


def _holders_of(tensor: Tensor) -> tuple[int, int, int, int]:
    """Returns four counts of references: to the tensor from Python; to the tensor from C++ (p.grad, DLPack); to the
    tensor's storage from tensors; to the storage from Python."""
    storage = tensor.untyped_storage()
    return getrefcount(tensor), _uses_of_tensor(tensor), _uses(storage._cdata), getrefcount(storage)


def _python_counts_cpp() -> int:
    """Returns how many Python references to a tensor stand for all references from C++ together. It is 1 in newer
    versions of torch."""
    tensor, param = torch.zeros(1), torch.zeros(1, requires_grad=True)
    before = getrefcount(tensor)
    param.grad = tensor
    return getrefcount(tensor) - before


_LONE = [torch.zeros(1)]
_NAMES, _IN_CPP, _USES, _NAMES_OF_STORAGE = _holders_of(_LONE[0])  # the counts of a tensor with only one name
_FOR_CPP = _python_counts_cpp()


def is_held(tensor: Tensor, names: int, *, p_grad: bool) -> bool:
    """Returns whether a tensor or its memory has other users: by the tensor, a view, an array or DLPack. One name,
    `names` more names, and p.grad if p_grad is True do not count as users."""
    found, in_cpp, uses, of_storage = _holders_of(tensor)
    known = _NAMES + 1 + names + (_FOR_CPP if in_cpp > _IN_CPP or p_grad else 0)
    return found > known or in_cpp > _IN_CPP + p_grad or uses > _USES or of_storage > _NAMES_OF_STORAGE


def lies_with_others(tensors: Sequence[Tensor]) -> list[bool]:
    """Returns, for each tensor, whether its memory has a user other than these tensors: a process or another tensor."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    here = Counter(storage._cdata for storage in storages)
    return [storage.is_shared() or _uses(storage._cdata) > _USES + here[storage._cdata] - 1 for storage in storages]


def overlapping(tensors: Sequence[Tensor]) -> set[int]:
    """Returns the ids of those tensors that share an element with another of these tensors."""
    found, ends = set(), 0
    last: Tensor | None = None
    for tensor in sorted(tensors, key=Tensor.data_ptr):
        start = tensor.data_ptr()
        if last is not None and start < ends:
            found |= {id(last), id(tensor)}
        extent = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
        if start + extent * tensor.element_size() > ends:
            last, ends = tensor, start + extent * tensor.element_size()
    return found


def listed(names: Sequence[str]) -> str:
    """Returns the first three names as text, followed by how many more there are."""
    shown = ", ".join(repr(name) for name in names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


class Lent:
    """Memory of an exchange as a tensor that trainers get, such as p.grad. A trainer may keep the tensor, like any
    tensor of torch. A kept tensor keeps its values when the exchange next writes the memory.

    The tensor lies in a second mapping of the pages. If it is kept, these pages are replaced in the second mapping by a
    copy, for all arrays and tensors over it, and the next tensor gets a new mapping. In each step only four reference
    counts are read.

    Attributes:
        tensor: the tensor that trainers have; None if get() has not been called since the last tensor was given up.
        address: the address of the tensor's elements; 0 without a tensor.
    """

    __slots__ = ("_array", "_order", "_view", "address", "tensor")

    def __init__(self, memory: Tensor, order: Order) -> None:
        """memory: a tensor over the exchange's memory. order: the order in which its dimensions lie in it."""
        self._array, self._order = flat(memory, order).numpy(), order
        self.tensor: Tensor | None = None
        self.address = 0

    def get(self) -> Tensor:
        """Returns the tensor. Makes a tensor if the last one was given up."""
        found = self.tensor
        if found is None or found.data_ptr() != self.address:  # p.grad.data = ... has moved it
            self._view = MemoryView(self._array)
            self.tensor = found = as_tensor(self._view.array, self._order)
            self.address = found.data_ptr()
        return found

    def leave(self, names: int, *, p_grad: bool) -> None:
        """Gives up the tensor if it has other users. Call it before the exchange writes the memory; the users then keep
        the old values. names: how many references the caller knows of, besides the one in this object. p_grad: whether
        the tensor is p.grad."""
        if self.tensor is None:
            return
        moved = self.tensor.data_ptr() != self.address  # then references to the old memory cannot be counted
        if moved or is_held(self.tensor, names, p_grad=p_grad):
            self._view.part()
            self.tensor, self.address = None, 0


written = torch.autograd.graph.increment_version
"""Tells autograd that others write a tensor: a backward pass that still needs its old values raises."""


def broadcast(ctx: Context, tensors: Iterable[Tensor], root: int = 0) -> None:
    """Gives every rank the values of rank root, in place. Collective; shapes and dtypes must be the same on every
    rank."""
    targets = [tensor.detach() for tensor in tensors if tensor.numel()]
    if ctx.size == 1 or not targets:
        return
    parts = [target.contiguous().reshape(-1).view(torch.uint8).cpu().numpy() for target in targets]
    window = ctx.window(sum(part.nbytes for part in parts))
    if ctx.rank == root:
        whole = np.concatenate(parts)
        for peer in range(ctx.size):
            if peer != root:
                window.put(peer, whole)
        window.flush()
    ctx.barrier()
    if ctx.rank == root:
        return
    at = 0
    for target, part in zip(targets, parts, strict=True):
        theirs = torch.from_numpy(window.array[at : at + part.nbytes].copy())
        target.copy_(theirs.view(target.dtype).reshape(target.shape))
        at += part.nbytes

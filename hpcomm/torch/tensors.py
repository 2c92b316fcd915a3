"""Tensors and the arrays of an exchange: the same memory, seen from both sides."""

from collections.abc import Iterable
from sys import getrefcount
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.parameter import is_lazy

from ..context import Context
from ..errors import InvalidArgument

Order = tuple[int, ...] | None
"""The dimensions of a tensor by falling stride, as its elements lie in memory; None: it is C-contiguous."""


def check_dense(what: str, tensor: Tensor) -> None:
    """Refuses a tensor without values in this host's memory."""
    if is_lazy(tensor):
        raise InvalidArgument(f"{what} has no shape yet: call the model on one batch before it is wrapped")
    if tensor.device.type != "cpu":
        raise InvalidArgument(
            f"{what} lies on {tensor.device}: hpcomm.torch exchanges tensors in the host's memory only"
        )
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise InvalidArgument(f"{what} is {tensor.layout} of {tensor.dtype}: hpcomm.torch takes dense tensors")


def check_written(what: str, tensor: Tensor) -> None:
    """Refuses a tensor that rank 0's values could not be written into."""
    check_dense(what, tensor)
    if any(stride == 0 and n > 1 for stride, n in zip(tensor.stride(), tensor.shape, strict=True)):
        raise InvalidArgument(f"{what} is expanded, and its elements share memory: register its clone()")


def order_of(tensor: Tensor) -> Order:
    """The order of a dense tensor, such as one in channels_last; None also where there are gaps."""
    if tensor.is_contiguous():
        return None
    order = tuple(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    return order if tensor.permute(order).is_contiguous() else None


def flat(tensor: Tensor, order: Order) -> Tensor:
    """The tensor with its dimensions in the order of memory: C-contiguous if it lies like that."""
    return tensor if order is None else tensor.permute(order)


def as_float32(tensor: Tensor, order: Order) -> NDArray[np.float32]:
    """The values as a float32 array in the order of memory; it may be the tensor's own memory."""
    found: NDArray[np.float32] = flat(tensor.detach(), order).to(torch.float32).contiguous().numpy()
    return found


def as_tensor(array: NDArray[Any], order: Order = None) -> Tensor:
    """The memory of an array as a tensor whose elements lie in this order. uint16 and ml_dtypes' bfloat16 are the bits
    of bfloat16."""
    narrow = array.dtype not in (np.float32, np.float16)
    found = torch.from_numpy(array.view(np.int16) if narrow else array)
    if narrow:
        found = found.view(torch.bfloat16)
    if order is None:
        return found
    return found.permute([order.index(dim) for dim in range(len(order))])


_uses = getattr(torch._C, "_storage_Use_Count", lambda _: 0)


def _names_of(tensor: Tensor) -> int:
    return getrefcount(tensor)


_LONE = [torch.from_numpy(np.zeros(1, np.float32))]
_NAMES, _USES = _names_of(_LONE[0]), _uses(_LONE[0].untyped_storage()._cdata)  # of a tensor that one name holds


def part_with(tensor: Tensor, names: int) -> bool:
    """Gives a tensor memory of its own, with its views, if others hold it beside so many names; whether they do."""
    if _names_of(tensor) <= _NAMES + names and _uses(tensor.untyped_storage()._cdata) <= _USES:  # here is one more
        return False
    tensor.untyped_storage().share_memory_()  # torch has no other call that moves a storage under its views
    return True


written = torch.autograd.graph.increment_version
"""Tells autograd that others write a tensor: a backward pass that still needs its old values raises."""


def broadcast(ctx: Context, tensors: Iterable[Tensor], root: int = 0) -> None:
    """Gives every rank the values of one rank, in place. Collective: the same shapes and dtypes on every rank."""
    targets = [tensor.detach() for tensor in tensors if tensor.numel()]
    if ctx.size == 1 or not targets:
        return
    parts = [target.contiguous().reshape(-1).view(torch.uint8).numpy() for target in targets]
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

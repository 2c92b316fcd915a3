"""The memory of tensors: their types as C knows them, and checks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from ..._core import ELEMENTS, OPS
from ...errors import InvalidArgument

TYPES: dict[torch.dtype, int] = {
    getattr(torch, name): number for name, number in ELEMENTS.items() if hasattr(torch, name)
}
U8 = ELEMENTS["uint8"]
SUM = OPS["sum"]

_NAMES = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "mean",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.PRODUCT: "prod",
    ReduceOp.BAND: "and",
    ReduceOp.BOR: "or",
    ReduceOp.BXOR: "xor",
}
_CODES = {op: OPS[name] for op, name in _NAMES.items()}
MEAN = OPS["mean"]
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)  # those that torch divides
_strided = torch.strided


def op_code(name: str, op: Any) -> int:
    """Returns C's number of a ReduceOp.

    Raises:
        InvalidArgument: hpcomm has no such op.
    """
    kind = getattr(op, "op", op)
    code = _CODES.get(kind)
    if code is None:
        told = str(kind).rpartition(".")[2]
        raise InvalidArgument(f"{name}: op is {told}: must be one of {', '.join(_told(op) for op in _CODES)}")
    return code


def _told(op: Any) -> str:
    return str(op).rpartition(".")[2]


def reduced_type(name: str, tensor: Tensor, op: int) -> int:
    """Returns C's number of a tensor's dtype, for a reduction.

    Raises:
        InvalidArgument: the op does not take the dtype.
    """
    dtype = tensor.dtype
    kind = TYPES.get(dtype)
    if kind is None:
        known = ", ".join(str(known).removeprefix("torch.") for known in TYPES)
        raise InvalidArgument(f"{name}: a tensor is {dtype}: must be one of {known}")
    if op == MEAN and not (dtype.is_floating_point or dtype.is_complex or dtype in _INTEGERS):
        raise InvalidArgument(f"{name}: op AVG takes no {dtype}: convert to float32 first, or take SUM and divide")
    return kind


def is_integer(tensor: Tensor) -> bool:
    """Returns whether a mean of such tensors is an integral quotient."""
    return tensor.dtype in _INTEGERS


def copied_type(tensor: Tensor) -> tuple[int, int]:
    """Returns C's number of a tensor's dtype and the number of its elements, for a call that copies. A dtype that C
    does not know goes as bytes."""
    kind = TYPES.get(tensor.dtype)
    if kind is None:
        return U8, tensor.numel() * tensor.element_size()
    return kind, tensor.numel()


def is_plain(tensor: Tensor) -> bool:
    """Returns whether C can use the tensor's memory as it is."""
    return tensor.is_cpu and tensor.layout is _strided and tensor.is_contiguous()


def check(name: str, *tensors: Tensor) -> None:
    """Raises InvalidArgument for a tensor that has no memory of the CPU with all its elements."""
    for tensor in tensors:
        if tensor.layout is not _strided:
            raise InvalidArgument(
                f"{name}: a tensor has the layout {tensor.layout}: the backend hpcomm takes dense tensors: see "
                "Tensor.to_dense"
            )
        if not tensor.is_cpu:
            raise InvalidArgument(
                f"{name}: a tensor is on {tensor.device}: the backend hpcomm takes tensors of the CPU; give another "
                'backend for that device too, e.g. "cpu:hpcomm,cuda:nccl"'
            )


def same(name: str, first: Tensor, others: Sequence[Tensor], *, sizes: bool) -> None:
    """Raises InvalidArgument for tensors that differ in dtype, or in their number of elements."""
    for other in others:
        if other.dtype is not first.dtype or (sizes and other.numel() != first.numel()):
            raise InvalidArgument(
                f"{name}: tensors differ: {first.dtype} of {first.numel()} elements and {other.dtype} of "
                f"{other.numel()}"
            )


def adjacent(tensors: Sequence[Tensor]) -> Tensor | None:
    """Returns a flat tensor over the memory of tensors that lie one behind the other in one storage, else None."""
    first = tensors[0]
    at = first.data_ptr()
    storage = first.untyped_storage().data_ptr()
    count = 0
    for tensor in tensors:
        if (
            tensor.data_ptr() != at + count * first.element_size()
            or not tensor.is_contiguous()
            or tensor.untyped_storage().data_ptr() != storage
        ):
            return None
        count += tensor.numel()
    return first.detach().as_strided((count,), (1,)) if count else None


def copy(to: Tensor, tensor: Tensor) -> None:
    """Copies the elements of a tensor into another one of its shape, and leaves autograd out of it."""
    if to.is_inference():  # a helper thread may write it in this mode alone
        with torch.inference_mode():
            to.copy_(tensor)
    elif to.requires_grad or tensor.requires_grad:
        to.detach().copy_(tensor.detach())
    else:
        to.copy_(tensor)


def spread(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copies the elements of a flat tensor into tensors, one behind the other."""
    for tensor, part in zip(tensors, _parts(flat, tensors), strict=True):
        copy(tensor, part)


def pack(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copies the elements of tensors into a flat tensor, one behind the other."""
    for tensor, part in zip(tensors, _parts(flat, tensors), strict=True):
        copy(part, tensor)


def divide(tensor: Tensor, by: int) -> None:
    """Divides integers, and rounds towards zero."""
    with torch.inference_mode():
        tensor.div_(by, rounding_mode="trunc")


def _parts(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    parts = flat.detach().split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

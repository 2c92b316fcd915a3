"""The arguments of torch's calls: torch gives an object with all options of a call; a program may also give an op or a
root, and a timeout."""

from datetime import timedelta
from typing import Any

from torch import Tensor
from torch.distributed import ReduceOp

from ...errors import InvalidArgument
from .memory import op_code
from .work import as_seconds


def plain(opts: Any, timeout: Any) -> tuple[float | None, bool]:
    """Returns the time for a call, and whether it is asynchronous."""
    if opts is None or isinstance(opts, timedelta):
        return as_seconds(opts if timeout is None else timeout), True
    return as_seconds(getattr(opts, "timeout", timeout)), getattr(opts, "asyncOp", True)


def reduction(name: str, opts: Any, timeout: Any) -> tuple[int, float | None, bool]:
    """Returns C's number of the op, and what plain returns."""
    op = getattr(opts, "reduceOp", None)
    if op is None:
        return op_code(name, ReduceOp.SUM if opts is None else opts), as_seconds(timeout), True
    return op_code(name, op), *plain(opts, timeout)


def rooted(opts: Any, timeout: Any) -> tuple[int, float | None, bool]:
    """Returns the root, and what plain returns."""
    if opts is None or isinstance(opts, int):
        return opts or 0, as_seconds(timeout), True
    return opts.rootRank, *plain(opts, timeout)


def as_list(tensors: Any) -> Any:
    return [tensors] if isinstance(tensors, Tensor) else tensors


def inner(lists: Any) -> Any:
    """Returns the tensors of a list, or of the one list in it."""
    if lists and not isinstance(lists[0], Tensor):
        if len(lists) != 1:
            raise InvalidArgument(f"{len(lists)} lists of tensors are given: must be one")
        return lists[0]
    return lists


def one(name: str, tensors: Any) -> Tensor:
    tensors = as_list(tensors)
    if len(tensors) != 1:
        raise InvalidArgument(f"{name}: {len(tensors)} tensors are given: must be one")
    return tensors[0]  # type: ignore[no-any-return]


def by_tensor(outs: Any, count: int, size: int) -> list[list[Tensor]]:
    """Returns the outputs of each tensor by rank. torch gives, for each rank, those of all tensors."""
    if len(outs) != size or any(len(mine) != count for mine in outs):
        raise InvalidArgument(f"all_gather_coalesced: output must have {size} lists of {count} tensors")
    return [[outs[rank][i] for rank in range(size)] for i in range(count)]

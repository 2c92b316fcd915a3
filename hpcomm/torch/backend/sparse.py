"""all_reduce of sparse tensors: every rank gathers the indices and values of all ranks, and sums the values of each
index."""

import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..._core import COLLECTIVES
from ...errors import InvalidArgument
from .memory import MEAN, SUM, copied_type, is_integer, reduced_type

_ALLGATHER = COLLECTIVES["allgather"]


def allreduce(tensor: Tensor, op: int, rank: int, size: int) -> tuple[Iterator[Any], Callable[[], None]]:
    """Returns calls that gather the tensors of all ranks, and a function that then writes their sum or mean into this
    rank's tensor, whose layout is torch.sparse_coo.

    The calls come from an iterator. It needs the result of each call for the next one.

    Raises:
        InvalidArgument: the op is neither SUM nor AVG, or does not take the dtype; AVG takes no integers.
    """
    if op not in (SUM, MEAN) or (op == MEAN and is_integer(tensor)):
        raise InvalidArgument("all_reduce: op must be SUM, or AVG of floats, for a sparse tensor: see Tensor.to_dense")
    reduced_type("all_reduce", tensor, op)
    found: list[Tensor] = []

    def calls() -> Iterator[Any]:
        mine = tensor.detach().coalesce()
        shape = zlib.crc32(repr((tuple(mine.shape), mine.sparse_dim())).encode())
        header, told = torch.tensor([mine.values().shape[0], shape]), torch.empty(size, 2, dtype=torch.int64)
        yield _gather(header, told, [2] * size)
        other = [rank for rank, theirs in enumerate(told[:, 1].tolist()) if theirs != shape]
        if other:
            raise InvalidArgument(
                f"all_reduce: the sparse tensors of ranks {rank} and {other[0]} differ in shape or sparse dimensions: "
                f"this one has shape {tuple(mine.shape)} and {mine.sparse_dim()} sparse dimensions"
            )
        counts = told[:, 0].tolist()
        for part in (mine.indices().t().contiguous(), mine.values().contiguous()):
            whole = torch.empty(sum(counts), *part.shape[1:], dtype=part.dtype)
            yield _gather(part, whole, [count * part.shape[1:].numel() for count in counts])
            found.append(whole)

    def end() -> None:
        indices, values = found
        whole = torch.sparse_coo_tensor(indices.t(), values, tensor.shape, check_invariants=False).coalesce()
        with torch.no_grad():
            tensor.copy_(whole / size if op == MEAN else whole)

    return calls(), end


def _gather(part: Tensor, whole: Tensor, counts: Sequence[int]) -> Any:
    """Returns the call that gathers parts of so many elements. Both tensors must live until its end."""
    kind, count = copied_type(part)
    nbytes = whole.numel() * whole.element_size()
    return (_ALLGATHER, kind, SUM, 0, part.data_ptr(), whole.data_ptr(), count, None, array("Q", counts), nbytes)

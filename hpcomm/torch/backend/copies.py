"""The copies of one call: of tensors with gaps, of tensors that lie apart, and of tensors that overlap."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .memory import MEAN, SUM, adjacent, check, copy, divide, is_integer, is_plain, pack, spread

After = Callable[[], None]


class Copies:
    """What one call copies before and after C's calls.

    A call may wait in the line of its group, and earlier calls may write its inputs. So its inputs are copied when it
    is made, in steps(), and not when it is given.
    """

    __slots__ = ("_after", "_before")

    def __init__(self, *after: After) -> None:
        """after: functions that follow C's calls."""
        self._before: list[After] = []
        self._after = [*after]

    def steps(self, steps: Iterable[Any]) -> Iterable[Any]:
        """Returns C's calls behind the copies of inputs."""
        return self._behind(steps) if self._before else steps

    def _behind(self, steps: Iterable[Any]) -> Iterator[Any]:
        for copies in self._before:
            copies()
        yield from steps

    @property
    def after(self) -> After | None:
        """The function that follows C's calls; None if there is nothing to do."""
        return self._end if self._after else None

    def _end(self) -> None:
        for copies in self._after:
            copies()

    # ---- tensors for C -----------------------------------------------------------------------------------------------

    def in_place(self, name: str, tensor: Tensor, *, reads: bool = True, writes: bool = True) -> Tensor:
        """Returns a contiguous tensor: the same one, or one that is copied from it and back."""
        if is_plain(tensor):
            return tensor
        check(name, tensor)
        whole = torch.empty(tensor.shape, dtype=tensor.dtype)
        if reads:
            self._before.append(partial(copy, whole, tensor))
        if writes:
            self._after.append(partial(copy, tensor, whole))
        return whole

    def readable(self, tensor: Tensor) -> Tensor:
        """Returns the tensor, or a contiguous copy."""
        return tensor if tensor.is_contiguous() else self._copied(tensor)

    def joined(self, tensors: Sequence[Tensor], *, writes: bool = False) -> Tensor:
        """Returns a flat tensor with the elements of all tensors: their own memory if they lie one behind the other.
        writes: it is copied back, too."""
        whole = adjacent(tensors)
        if whole is None:
            whole = _room(tensors)
            self._before.append(partial(pack, whole, tensors))
            if writes:
                self._after.append(partial(spread, whole, tensors))
        return whole

    def gathered(self, outs: Sequence[Tensor]) -> Tensor:
        """Returns a flat tensor for the blocks that go to outs."""
        whole = adjacent(outs)
        if whole is None:
            whole = _room(outs)
            self._after.append(partial(spread, whole, outs))
        return whole

    def apart(self, send: Tensor, recv: Tensor, own: int) -> Tensor:
        """Returns send, or a copy of it if it overlaps recv other than as the block at `own`."""
        a, b = send.data_ptr(), recv.data_ptr()
        if a < b + recv.numel() * recv.element_size() and b < a + send.numel() * send.element_size():
            small = a if send.numel() <= recv.numel() else b
            if small != own:
                return self._copied(send)
        return send

    def mean(self, mine: Tensor, op: int, size: int, *, writes: bool = True) -> int:
        """Returns C's op. C has no mean of integers: it is their sum, divided as NCCL does, rounded towards zero.
        writes: this rank gets the result."""
        if op != MEAN or not is_integer(mine):
            return op
        if writes:  # divides before it is copied
            self._after.insert(0, partial(divide, mine, size))
        return SUM

    def _copied(self, tensor: Tensor) -> Tensor:
        whole = torch.empty(tensor.shape, dtype=tensor.dtype)
        self._before.append(partial(copy, whole, tensor))
        return whole


def _room(tensors: Sequence[Tensor]) -> Tensor:
    return torch.empty(sum(tensor.numel() for tensor in tensors), dtype=tensors[0].dtype)

"""Checks whether a gradient is exactly the sum of its pairs of vectors. Both sides are multiplied by one random vector,
so no product of two matrices is computed (Freivalds, Probabilistic Machines Can Use Less Running Time, 1977)."""

import math
from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor

_EPS = 2.0**-23
_TINY = 1e-22  # in float32 the squares of smaller numbers are 0
_NOTHING = 1e-30  # smaller numbers do not have float32's full precision


@cache
def _draw(where: torch.device) -> torch.Generator:
    """Returns a generator of random numbers on a device. Torch's own generator belongs to the trainer."""
    return torch.Generator(where)


def is_sum_of_pairs(grad: Tensor, pairs: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Returns whether grad is the sum of its pairs' outer products, up to float32 rounding. The result is a tensor with
    one bool, on grad's device; the function does not wait for the device.

    grad and each v are read once. If the product for a row is not finite, the gradient's row must not be finite either.
    The smaller a missing part of the sum is, the smaller is the chance that it goes unnoticed; each call draws another
    vector.

    Args:
        grad: the gradient, float32 (M, N).
        pairs: tensors u (rows, M) and v (rows, N), float32: the gradients of outputs, and the inputs.
    """
    where = grad.device
    vector = torch.randn(grad.shape[1], generator=_draw(where), device=where)
    left, right = torch.mv(grad, vector), torch.zeros(len(grad), device=where)
    rows, width, squares = 0, torch.zeros((), device=where), torch.zeros(len(grad), device=where)
    for u, v in pairs:
        rows += len(u)
        right = torch.addmv(right, u.T, torch.mv(v, vector))
        # A sum over dim 0 takes ten times as long as this product.
        squares = torch.addmv(squares, u.square().T, torch.ones(len(u), device=where))
        width = torch.hypot(width, torch.linalg.vector_norm(v))
    if not rows:
        return ~grad.any()
    height = squares.sqrt()
    # Each addition in the sums over pairs and columns rounds, so errors grow with the square root of the sums' lengths.
    part = _EPS * (8 + 2 * math.sqrt(rows) + math.sqrt(grad.shape[1]) / 4)
    allowed = (height + _TINY) * (part * (width + _TINY)) + _NOTHING
    fits = (left - right).abs() < allowed  # False where left or right is not finite
    return (fits | ~(left.isfinite() | right.isfinite())).all()

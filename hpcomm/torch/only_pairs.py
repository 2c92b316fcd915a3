"""Checks whether a gradient is the sum of its pairs of vectors and nothing else. Both are multiplied by one random
vector, so no product of two matrices is computed (Freivalds, Probabilistic Machines Can Use Less Running Time,
1977)."""

import math
from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor

_EPS = 2.0**-23
_TINY = 1e-22  # the squares of smaller numbers are 0 in float32
_NOTHING = 1e-30  # below it float32 has no full precision


@cache
def _draw(where: torch.device) -> torch.Generator:
    """The generator of random numbers on a device; torch's own generator belongs to the trainer."""
    return torch.Generator(where)


def is_sum_of_pairs(grad: Tensor, pairs: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Returns whether grad (M, N), float32, is the sum of its pairs' outer products, up to the rounding of float32: one
    bool on grad's device. Waits for no device.

    grad and each v are read once. If a row's products are not finite, the gradient's row must not be finite either. The
    probability that a missing part stays unseen is as small as the part; each call draws another vector.

    Args:
        pairs: u (rows, M) and v (rows, N), float32: the gradients of outputs, and the inputs.
    """
    where = grad.device
    vector = torch.randn(grad.shape[1], generator=_draw(where), device=where)
    left, right = torch.mv(grad, vector), torch.zeros(len(grad), device=where)
    rows, width, squares = 0, torch.zeros((), device=where), torch.zeros(len(grad), device=where)
    for u, v in pairs:
        rows += len(u)
        right = torch.addmv(right, u.T, torch.mv(v, vector))
        # Faster than a sum over dim 0, which takes ten times as long.
        squares = torch.addmv(squares, u.square().T, torch.ones(len(u), device=where))
        width = torch.hypot(width, torch.linalg.vector_norm(v))
    if not rows:
        return ~grad.any()
    height = squares.sqrt()
    # Each addition in the sums over pairs and columns rounds: errors grow with the square root of the length.
    part = _EPS * (8 + 2 * math.sqrt(rows) + math.sqrt(grad.shape[1]) / 4)
    allowed = (height + _TINY) * (part * (width + _TINY)) + _NOTHING
    fits = (left - right).abs() < allowed  # False where one of these is not finite
    return (fits | ~(left.isfinite() | right.isfinite())).all()

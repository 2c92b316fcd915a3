"""Whether a gradient is the sum of its pairs of vectors and nothing else: both are multiplied by one random vector, and
no product of matrices is made (Freivalds, Probabilistic Machines Can Use Less Running Time, 1977)."""

import math
from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor

_EPS = 2.0**-23
_TINY = 1e-22  # squares of smaller numbers are 0 in float32
_NOTHING = 1e-30  # below it float32 has no full precision


@cache
def _draw(where: torch.device) -> torch.Generator:
    """Numbers of a device; torch's own belong to the trainer."""
    return torch.Generator(where)


def is_sum_of_pairs(grad: Tensor, pairs: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Whether grad (M, N), float32, is the sum of the products of its pairs, up to the rounding of float32: one bool,
    where grad lies. Nothing here waits for a device.

    grad and each v are read once. A row whose products are not finite must have a gradient that is not finite either. A
    part that is left out stays unseen with a probability as small as its share: each call draws another vector.

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
        # A sum over dim 0 takes ten times as long.
        squares = torch.addmv(squares, u.square().T, torch.ones(len(u), device=where))
        width = torch.hypot(width, torch.linalg.vector_norm(v))
    if not rows:
        return ~grad.any()
    height = squares.sqrt()
    # The sums over pairs and over columns are rounded at each addition: the errors grow as roots of their lengths.
    part = _EPS * (8 + 2 * math.sqrt(rows) + math.sqrt(grad.shape[1]) / 4)
    allowed = (height + _TINY) * (part * (width + _TINY)) + _NOTHING
    fits = (left - right).abs() < allowed  # False where one of these is not finite
    return (fits | ~(left.isfinite() | right.isfinite())).all()

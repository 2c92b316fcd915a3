"""Distance metric learning (SFB, section 2): a projection W under which similar samples are near, and others are not.

The loss of a similar pair (x, y) is ||W (x - y)||^2, and of another pair max(0, 1 - ||W (x - y)||^2), as in Xing et al.
(2002) with the projection of Weinberger et al. (2005). The gradient is c W (x - y) (x - y)^T, with c = 2, or -2 for a
pair that is too near, or 0.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .data import Pairs
from .model import Floats, Model, Rows, Vectors, prox_sgd

MARGIN = 1.0  # of squared distances
NEAR = 0.5  # factor by which the first W changes a vector's length, on average


class Metric(Model):
    lr = 0.5

    def __init__(self, pairs: Pairs, latent: int, seed: int = 0) -> None:
        self.pairs, self.seed = pairs, seed
        self.name = f"distance metric learning, {pairs.name}"
        self.shape, self.samples = (latent, pairs.x.shape[1]), len(pairs.similar)

    def start(self) -> Floats:
        rng = np.random.default_rng(self.seed)
        mat: Floats = rng.standard_normal(self.shape, np.float32) * np.float32(NEAR / self.shape[0] ** 0.5)
        return mat

    def rule(self, lr: float) -> Any:
        return prox_sgd(lr)

    def _projected(self, mat: Floats, rows: Rows) -> tuple[Any, Floats, Floats]:
        """x - y; their projections; the squared lengths of these."""
        difference = self.pairs.x[self.pairs.first[rows]] - self.pairs.x[self.pairs.second[rows]]
        projected = difference.toarray() @ mat.T
        return difference, projected, np.einsum("ij,ij->i", projected, projected)

    def factors(self, mat: Floats, rows: Rows, total: int) -> tuple[Vectors, Vectors]:
        difference, projected, squares = self._projected(mat, rows)
        slope = np.where(self.pairs.similar[rows], 2, np.where(squares < MARGIN, -2, 0)) / total
        projected *= slope[:, None].astype(np.float32)
        return projected, difference

    def losses(self, mat: Floats, rows: Rows) -> NDArray[np.float64]:
        _, _, squares = self._projected(mat, rows)
        return np.where(self.pairs.similar[rows], squares, np.maximum(0, MARGIN - squares)).astype(np.float64)

"""Distance metric learning (SFB, section 2): finds a projection W that puts similar samples near, and others far apart.

The loss of a similar pair (x, y) is ||W (x - y)||^2. The loss of any other pair is max(0, 1 - ||W (x - y)||^2), as in
Xing et al. (2002) with the projection of Weinberger et al. (2005). The gradient is c W (x - y) (x - y)^T. c is 2 for a
similar pair, -2 for another pair whose squared distance is below 1, and 0 for all others.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .data import Pairs
from .model import Floats, Model, Rows, Vectors, prox_sgd

MARGIN = 1.0  # least squared distance that a pair which is not similar should have
NEAR = 0.5  # the first W changes a vector's length by this factor, on average


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
        """Returns the differences x - y, their projections, and the squared lengths of the projections."""
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

"""L2-regularized multiclass logistic regression by stochastic dual coordinate ascent (SFB, section 2.1).

The primal problem is P(W) = 1/N sum f_i(W a_i) + l2/2 ||W||^2. The dual problem is D(U) = -1/N sum f_i*(-u_i) - h*(Z),
with Z = 1/N U A^T and W = grad h*(Z) = Z / l2. The ranks exchange updates of Z; P(W) - D(U) is the duality gap. The
dual variable of a sample of class y is u = e_y - p, where p is a distribution over the classes.

A step moves p towards softmax(W a), by the step size that maximizes the bound of Shalev-Shwartz and Zhang (2013,
section 6.2, option III). All samples of a step move at once, so a sample's squared length is multiplied by beta in that
bound, as in Takac et al. (2013).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import svds
from scipy.special import xlogy

import hpcomm

from .data import Labelled
from .mlr import Linear, cross_entropy, softmax
from .model import Floats, Model, Rows, Vectors

CONVEX = np.float32(2)  # constant of strong convexity of f*, as the Hessian of f is at most 1/2
BLOCK = 4096  # samples that are scored at a time, which limits the memory


class DualRegression(Model):
    """The model. The exchange applies updates to Z, and the methods get W = Z / l2 as the argument mat.

    Args:
        data: the samples.
        l2: the regularization, above 0.
        classes_first: as in mlr.Linear.
        part: (rank, ranks): this process has the dual variables of that rank's samples; None: of all samples.
        staleness: staleness of the exchange, with which samples of several steps move at once.
    """

    lr = 1.0

    def __init__(
        self,
        data: Labelled,
        l2: float = 0.01,
        classes_first: bool = False,
        part: tuple[int, int] | None = None,
        staleness: int = 0,
    ) -> None:
        self.data, self.linear, self.l2, self.staleness = data, Linear(data, classes_first), l2, staleness
        self.name = f"L2-MLR by SDCA, {data.name}"
        self.shape, self.samples = self.linear.shape, len(data.y)
        rank, ranks = part or (0, 1)
        self.own = np.arange(rank, self.samples, ranks)
        self.p = np.zeros((len(self.own), data.classes), np.float32)  # p of each of this process's samples
        self.p[np.arange(len(self.own)), data.y[self.own]] = 1
        self.entropy = np.zeros(len(self.own))  # sum p log p, which is f*(-u)
        self.squares = np.asarray(data.x.multiply(data.x).sum(axis=1), np.float32).ravel()
        self.together = self._together()

    def _together(self) -> float:
        """Returns the squared largest singular value of the samples, scaled to length 1, over their number."""
        x = self.data.x.multiply(1 / np.sqrt(np.maximum(self.squares, 1e-12))[:, None]).tocsr()
        if min(x.shape) < 2:
            return 1.0
        (largest,) = svds(x, 1, return_singular_vectors=False, v0=np.ones(min(x.shape), np.float32))
        return float(largest) ** 2 / self.samples

    def beta(self, total: int) -> float:
        """Returns how much the samples of a step have in common, from 1 to their number."""
        moving = total * (self.staleness + 1)
        return 1 + (moving - 1) * max(0.0, self.samples * self.together - 1) / max(1, self.samples - 1)

    def start(self) -> Floats:
        return np.zeros(self.shape, np.float32)

    def rule(self, lr: float) -> Any:
        return hpcomm.Dual(hpcomm.prox.L2(self.l2))

    def factors(self, mat: Floats, rows: Rows, total: int) -> tuple[Vectors, Vectors]:
        """Model.factors. It also changes the dual variables of these samples."""
        x, y, every = self.data.x[rows], self.data.y[rows], np.arange(len(rows))
        at = np.searchsorted(self.own, rows)
        p, scores = self.p[at], self.linear.scores(mat, x)
        dual = -p
        dual[every, y] += 1
        gap = cross_entropy(scores.copy(), y) + self.entropy[at] + np.einsum("ij,ij->i", scores, dual)
        move = softmax(scores) - p
        far = np.einsum("ij,ij->i", move, move)
        bend = CONVEX + self.beta(total) * self.squares[rows] / (self.l2 * self.samples)
        rate = (gap + CONVEX * far / 2) / np.maximum(far * bend, 1e-30)
        move *= np.clip(rate, 0, 1).astype(np.float32)[:, None]  # a gap of 0 may be negative after rounding
        p += move
        self.p[at], self.entropy[at] = p, xlogy(p, p).sum(axis=1)
        move /= self.samples  # the rule subtracts the sum of the products from Z, as u = e_y - p fell by move
        return self.linear.pairs(x, move)

    def descend(self, mat: Floats, update: Floats, lr: float) -> None:
        mat -= update / np.float32(self.l2)  # subtracts update from Z, where W is Z / l2

    def losses(self, mat: Floats, rows: Rows) -> NDArray[np.float64]:
        parts = [rows[first : first + BLOCK] for first in range(0, len(rows), BLOCK)]
        x, y = self.data.x, self.data.y
        return np.concatenate([cross_entropy(self.linear.scores(mat, x[part]), y[part]) for part in parts])

    def held(self) -> Rows:
        return np.arange(self.samples)  # the duality gap is defined over all samples

    def penalty(self, mat: Floats) -> float:
        return self.l2 / 2 * float(np.vdot(mat, mat))

    @property
    def conjugate(self) -> float:
        """The sum of f*(-u) over this process's samples."""
        return float(self.entropy.sum())

    def dual(self, mat: Floats, conjugate: float) -> float:
        """Returns D(U) from W and conjugate, the sum of f*(-u) over all samples: h*(Z) is l2/2 ||W||^2."""
        return -conjugate / self.samples - self.penalty(mat)

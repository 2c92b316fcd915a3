"""Multiclass logistic regression (SFB, section 2 and figure 3). For a sample x of class y the gradient of the loss is
(softmax(W x) - e_y) x^T."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hpcomm

from .data import Labelled
from .model import Floats, Model, Rows, Vectors, prox_sgd

FEW = 128  # for more samples it pays to transpose W, which a product with sparse samples needs


def softmax(scores: Floats) -> Floats:
    """Computes the softmax of each row, in place."""
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    return scores


def cross_entropy(scores: Floats, labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns log sum exp(scores) - scores[label] of each row. It overwrites scores."""
    top = scores.max(axis=1)
    own = scores[np.arange(len(scores)), labels]
    scores -= top[:, None]
    np.exp(scores, out=scores)
    found: NDArray[np.float64] = np.log(scores.sum(axis=1, dtype=np.float64)) + (top - own)
    return found


@dataclass
class Linear:
    """A linear model of sparse samples. W is features x classes, so a sample touches only the rows of its features.
    With classes_first W is classes x features, and a sample touches all rows."""

    data: Labelled
    classes_first: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        shape = self.data.x.shape[1], self.data.classes
        return shape[::-1] if self.classes_first else shape

    def scores(self, mat: Floats, x: Any) -> Floats:
        if not self.classes_first:
            found: Floats = x @ mat
        elif x.shape[0] <= FEW:
            found = x.toarray() @ mat.T
        else:
            found = x @ np.ascontiguousarray(mat.T)
        return found

    def pairs(self, x: Any, by_class: Floats) -> tuple[Vectors, Vectors]:
        """Returns the pairs of vectors whose products sum to the gradient, which has the shape of W."""
        return (by_class, x) if self.classes_first else (x, by_class)


class Regression(Model):
    """Multiclass logistic regression by SGD. With l2 it is proximal SGD, and the objective has l2 / 2 times the squared
    weights."""

    lr = 20.0

    def __init__(self, data: Labelled, classes_first: bool = False, l2: float = 0.0) -> None:
        self.data, self.linear, self.l2 = data, Linear(data, classes_first), l2
        self.name = f"multiclass logistic regression, {data.name}"
        self.shape, self.samples = self.linear.shape, len(data.y)

    def start(self) -> Floats:
        return np.zeros(self.shape, np.float32)

    def rule(self, lr: float) -> Any:
        return prox_sgd(lr, hpcomm.prox.L2(self.l2) if self.l2 else None)

    def factors(self, mat: Floats, rows: Rows, total: int) -> tuple[Vectors, Vectors]:
        x = self.data.x[rows]
        wrong = softmax(self.linear.scores(mat, x))
        wrong[np.arange(len(rows)), self.data.y[rows]] -= 1
        wrong /= total
        return self.linear.pairs(x, wrong)

    def losses(self, mat: Floats, rows: Rows) -> NDArray[np.float64]:
        return cross_entropy(self.linear.scores(mat, self.data.x[rows]), self.data.y[rows])

    def penalty(self, mat: Floats) -> float:
        return self.l2 / 2 * float(np.vdot(mat, mat)) if self.l2 else 0.0

    def descend(self, mat: Floats, update: Floats, lr: float) -> None:
        super().descend(mat, update, lr)
        if self.l2:
            mat /= np.float32(1 + lr * self.l2)

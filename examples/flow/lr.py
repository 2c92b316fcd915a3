"""Softmax regression (Parameter Flow, section 5.1: LR), on sparse words or on dense random features.

W is features x classes. For a sample x of class y the gradient with respect to W is x (softmax(W^T x) - e_y)^T.
"""

from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from factors.mlr import cross_entropy, softmax
from numpy.typing import NDArray

from .data import Features, Words
from .model import Defaults, Floats, Model, Out, Params, Rows, Touched

KEY = "W"


def accuracy(scores: Floats, labels: NDArray[np.int64]) -> tuple[str, float]:
    return "accuracy", float((scores.argmax(axis=1) == labels).mean())


def wrong(scores: Floats, labels: NDArray[np.int64], scale: float) -> Floats:
    """Computes scale (softmax(scores) - e_y) for each row, in place; y is the row's label."""
    softmax(scores)
    scores[np.arange(len(scores)), labels] -= 1
    scores *= np.float32(scale)
    return scores


class WordRegression(Model):
    """Regression on sparse words: a batch changes only the rows of W whose words it has."""

    defaults: ClassVar[Defaults] = Defaults(steps=150, batch=512, eta=1000.0, low=1e-3, up=1e-2)

    def __init__(self, words: Words) -> None:
        self.words, self.samples = words, len(words.y)
        self.shape = words.x.shape[1], words.classes
        self.name = f"softmax regression, {words.name}"
        self._touched = Touched()

    def start(self) -> dict[str, Floats]:
        return {KEY: np.zeros(self.shape, np.float32)}

    def update(self, params: Params, rows: Rows, scale: float, out: Out) -> None:
        x: Any = self.words.x[rows]
        by_class = wrong(x @ params[KEY], self.words.y[rows], scale)
        columns, x.indices = np.unique(x.indices, return_inverse=True)
        x.resize(len(rows), len(columns))
        self._touched.write(out(KEY), columns, x.T @ by_class)

    def objective(self, params: Params) -> float:
        held = self.words.held
        return float(cross_entropy(self.words.x[held] @ params[KEY], self.words.y[held]).mean())

    def score(self, params: Params) -> tuple[str, float]:
        return accuracy(self.words.test_x @ params[KEY], self.words.test_y)


class FeatureRegression(Model):
    """Regression on dense features: no feature is 0, so every batch changes all of W."""

    defaults: ClassVar[Defaults] = Defaults(steps=150, batch=16, eta=4.0, low=4e-4, up=1e-3)

    def __init__(self, features: Features) -> None:
        self.features, self.samples = features, len(features.y)
        self.shape = features.count, features.classes
        self.name = f"softmax regression, {features.name}"

    def start(self) -> dict[str, Floats]:
        return {KEY: np.zeros(self.shape, np.float32)}

    def update(self, params: Params, rows: Rows, scale: float, out: Out) -> None:
        x = self.features.of(self.features.x[rows])
        np.matmul(x.T, wrong(x @ params[KEY], self.features.y[rows], scale), out=out(KEY))

    @cached_property
    def _held(self) -> Floats:
        return self.features.of(self.features.x[self.features.held])

    def objective(self, params: Params) -> float:
        return float(cross_entropy(self._held @ params[KEY], self.features.y[self.features.held]).mean())

    def score(self, params: Params) -> tuple[str, float]:
        return accuracy(self.features.of(self.features.test_x) @ params[KEY], self.features.test_y)

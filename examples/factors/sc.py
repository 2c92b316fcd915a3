"""Sparse coding (SFB, section 2 and figure 1 of its supplement): finds atoms, of which a few compose each image patch.

A patch x is about W^T a, where a is a sparse code. The loss is 1/2 ||W^T a - x||^2 + l1 ||a||_1, and no atom may be
longer than 1. The gradient is a (W^T a - x)^T. W has an atom in each row, as the prox L2Ball works on rows; the paper
has atoms in columns.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hpcomm

from .model import Floats, Model, Rows, Vectors, prox_sgd, spread

HELD = 256  # most patches from which the objective is computed, as each needs a code
STEPS = 30  # steps of FISTA for the codes of a minibatch
POWER = 8  # steps of the power method for the largest singular value of W
ABOVE = 1.05  # factor by which that value is enlarged, as the power method finds a little less


class Coding(Model):
    lr = 1.0

    def __init__(self, patches: Floats, atoms: int, name: str, l1: float = 0.1, seed: int = 0) -> None:
        """patches: (N, pixels)."""
        self.patches, self.l1, self.seed = patches, np.float32(l1), seed
        self.name = f"sparse coding, {name}"
        self.shape, self.samples = (atoms, patches.shape[1]), len(patches)

    def start(self) -> Floats:
        mat = np.random.default_rng(self.seed).standard_normal(self.shape, np.float32)
        mat /= np.linalg.norm(mat, axis=1, keepdims=True)
        return mat

    def rule(self, lr: float) -> Any:
        return prox_sgd(lr, hpcomm.prox.L2Ball(1.0))

    def descend(self, mat: Floats, update: Floats, lr: float) -> None:
        super().descend(mat, update, lr)
        mat /= np.maximum(1, np.linalg.norm(mat, axis=1, keepdims=True))

    def codes(self, mat: Floats, x: Floats) -> Floats:
        """Returns the codes of patches x, by FISTA (Beck and Teboulle, 2009) on all patches at once, from codes 0."""
        rate = np.float32(1 / (ABOVE * _norm(mat) ** 2))
        code: Floats = np.zeros((len(x), len(mat)), np.float32)
        ahead = code
        t = 1.0
        for _ in range(STEPS):
            before, code = code, ahead - rate * ((ahead @ mat - x) @ mat.T)
            code = np.sign(code) * np.maximum(np.abs(code) - rate * self.l1, 0)
            t, last = (1 + (1 + 4 * t * t) ** 0.5) / 2, t
            ahead = code + np.float32((last - 1) / t) * (code - before)
        return code

    def factors(self, mat: Floats, rows: Rows, total: int) -> tuple[Vectors, Vectors]:
        x = self.patches[rows]
        code = self.codes(mat, x)
        return code, (code @ mat - x) / np.float32(total)

    def losses(self, mat: Floats, rows: Rows) -> NDArray[np.float64]:
        x = self.patches[rows]
        code = self.codes(mat, x)
        rest = code @ mat - x
        found: Floats = np.einsum("ij,ij->i", rest, rest) / 2 + self.l1 * np.abs(code).sum(axis=1)
        return found.astype(np.float64)

    def held(self) -> Rows:
        return spread(self.samples, HELD)


def _norm(mat: Floats) -> float:
    """Returns about the largest singular value, a little less."""
    vector: Floats = np.ones(mat.shape[1], np.float32)
    for _ in range(POWER):
        vector /= np.linalg.norm(vector)
        vector = mat.T @ (mat @ vector)
    return math.sqrt(float(np.linalg.norm(vector)))

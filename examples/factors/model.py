"""The interface of a model with one matrix W, and its training by one process.

The update of each sample is the product of two vectors u v^T. In a step each of P ranks takes a minibatch of K samples
from its part. The update is the mean over all K P samples, so P ranks and one process make the same step.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

import hpcomm

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]
Vectors = Any  # K vectors: an array (K, length), or a SciPy CSR matrix of that shape
SAMPLE = 2048  # most samples from which the objective is computed


class Model(ABC):
    """A model. Its methods get W as the argument mat, because W belongs to the exchange.

    Attributes:
        name: the model's name.
        shape: (J, D), the shape of W.
        samples: number of training samples.
        lr: a learning rate that suits the model.
    """

    name: str
    shape: tuple[int, int]
    samples: int
    lr: float

    @abstractmethod
    def start(self) -> Floats:
        """Returns the first W, the same on all ranks."""

    @abstractmethod
    def rule(self, lr: float) -> Any:
        """Returns the rule that applies an update to W."""

    @abstractmethod
    def factors(self, mat: Floats, rows: Rows, total: int) -> tuple[Vectors, Vectors]:
        """Returns the vectors u and v of these samples. The sum of the products u v^T is the samples' part of the
        update of a minibatch that has `total` samples over all ranks."""

    @abstractmethod
    def losses(self, mat: Floats, rows: Rows) -> NDArray[np.float64]:
        """Returns the loss of each of these samples."""

    def penalty(self, mat: Floats) -> float:
        """Returns the regularization term of the objective."""
        return 0.0

    def held(self) -> Rows:
        """Returns the samples from which the objective is computed: all, or a part if all would take long."""
        return spread(self.samples, SAMPLE)

    def objective(self, mat: Floats) -> float:
        """Returns the objective: the mean loss of the samples held(), plus the penalty."""
        return float(self.losses(mat, self.held()).mean()) + self.penalty(mat)

    def descend(self, mat: Floats, update: Floats, lr: float) -> None:
        """Applies the rule to mat in place, for training by one process without an exchange."""
        mat -= np.float32(lr) * update


def spread(n: int, most: int) -> Rows:
    """Returns at most `most` of n row numbers, evenly spaced."""
    return np.linspace(0, n - 1, min(n, most)).astype(np.int64)


def matrix(u: Vectors, v: Vectors, out: Floats | None = None) -> Floats:
    """Returns the sum of the products u v^T, shape (J, D)."""
    rows, columns = (each.toarray() if sparse.issparse(each) else each for each in (u, v))
    found: Floats = np.matmul(rows.T, columns, out=out)
    return found


@dataclass(frozen=True)
class Batches:
    """The minibatches of all ranks: K samples of each rank's part, which is the samples rank, rank + ranks, ..."""

    samples: int
    ranks: int
    pairs: int  # K
    seed: int

    def __post_init__(self) -> None:
        part = self.samples // self.ranks
        if part < self.pairs:
            raise ValueError(
                f"{self.samples} samples, {self.ranks} ranks: a part has {part}, and a minibatch takes {self.pairs}"
            )

    @property
    def total(self) -> int:
        """The number of samples of all ranks in a step."""
        return self.ranks * self.pairs

    def of(self, rank: int, step: int) -> Rows:
        rng = np.random.default_rng([self.seed, rank, step])
        part = (self.samples - rank + self.ranks - 1) // self.ranks
        return rank + self.ranks * rng.choice(part, self.pairs, replace=False)

    def all(self, step: int) -> Rows:
        """Returns the samples of all ranks in a step, one rank after the other."""
        return np.concatenate([self.of(rank, step) for rank in range(self.ranks)])


def alone(model: Model, batches: Batches, lr: float) -> Iterator[Floats]:
    """Trains by one process, with the minibatches of all ranks. Yields W before each step, always in the same array."""
    mat = model.start()
    step = 0
    while True:
        yield mat
        u, v = model.factors(mat, batches.all(step), batches.total)
        model.descend(mat, matrix(u, v), lr)
        step += 1


def dense_options(staleness: int) -> dict[str, Any]:
    """Returns options of a dense exchange through servers. Under SSP(s) they are as docs/python.md advises.

    With two slots an update travels while the next one is computed; with one slot a rank would wait until its last
    update is applied, as under BSP. Threads let owners work while their rank computes.
    """
    return {"depth": 2, "progress": "thread"} if staleness else {}


def prox_sgd(lr: float, prox: Any = None) -> Any:
    """Returns the rule of proximal gradient descent; of plain SGD without prox."""
    return hpcomm.SGD(lr=lr) if prox is None else hpcomm.ProxSGD(lr, prox)

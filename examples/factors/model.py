"""A model of one matrix W, whose update of each sample is the product of two vectors, and its training by one process.

A step takes a minibatch of K samples from the part of each of P ranks. The update is the mean over all K P samples.
So P ranks and one process take the same step.
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
SAMPLE = 2048  # samples that the objective is measured by, at most


class Model(ABC):
    """A model has its own copy of its arrays; W is an argument.

    Attributes:
        name: in words.
        shape: (J, D) of W.
        samples: how many there are to train on.
        lr: a learning rate that suits the model.
    """

    name: str
    shape: tuple[int, int]
    samples: int
    lr: float

    @abstractmethod
    def start(self) -> Floats:
        """The first W: the same on all ranks."""

    @abstractmethod
    def rule(self, lr: float) -> Any:
        """The rule that applies an update to W."""

    @abstractmethod
    def factors(self, mat: Floats, rows: Rows, total: int) -> tuple[Vectors, Vectors]:
        """The pairs (u, v) of these samples, by W as it is in mat. Their products sum to the samples' part of the
        update of a minibatch of so many samples."""

    @abstractmethod
    def losses(self, mat: Floats, rows: Rows) -> NDArray[np.float64]:
        """The loss of each of these samples."""

    def penalty(self, mat: Floats) -> float:
        """The term that the objective adds to the mean loss."""
        return 0.0

    def held(self) -> Rows:
        """The rows whose objective is measured; not all if all would take long."""
        return spread(self.samples, SAMPLE)

    def objective(self, mat: Floats) -> float:
        """The mean loss of the samples that are held, and the penalty."""
        return float(self.losses(mat, self.held()).mean()) + self.penalty(mat)

    def descend(self, mat: Floats, update: Floats, lr: float) -> None:
        """Applies the rule in place: for one process, which has no exchange."""
        mat -= np.float32(lr) * update


def spread(n: int, most: int) -> Rows:
    """At most so many of n rows, evenly spaced."""
    return np.linspace(0, n - 1, min(n, most)).astype(np.int64)


def matrix(u: Vectors, v: Vectors, out: Floats | None = None) -> Floats:
    """The sum of the products u v^T, shape (J, D)."""
    rows, columns = (each.toarray() if sparse.issparse(each) else each for each in (u, v))
    found: Floats = np.matmul(rows.T, columns, out=out)
    return found


@dataclass(frozen=True)
class Batches:
    """The samples that a rank takes in each step: K of its part, which has the samples rank, rank + ranks ..."""

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
        """Samples of all ranks in a step."""
        return self.ranks * self.pairs

    def of(self, rank: int, step: int) -> Rows:
        rng = np.random.default_rng([self.seed, rank, step])
        part = (self.samples - rank + self.ranks - 1) // self.ranks
        return rank + self.ranks * rng.choice(part, self.pairs, replace=False)

    def all(self, step: int) -> Rows:
        """Of all ranks, one rank after the other."""
        return np.concatenate([self.of(rank, step) for rank in range(self.ranks)])


def alone(model: Model, batches: Batches, lr: float) -> Iterator[Floats]:
    """One process that takes the minibatches of all ranks: W before each step, in an array that it keeps."""
    mat = model.start()
    step = 0
    while True:
        yield mat
        u, v = model.factors(mat, batches.all(step), batches.total)
        model.descend(mat, matrix(u, v), lr)
        step += 1


def dense_options(staleness: int) -> dict[str, Any]:
    """Options of a dense exchange through servers; under SSP(s) the ones that docs/python.md advises. By a second slot
    an update travels while the next one is computed: with one slot a rank waits until its last update is applied, as
    under BSP. Threads let owners work while their rank computes."""
    return {"depth": 2, "progress": "thread"} if staleness else {}


def prox_sgd(lr: float, prox: Any = None) -> Any:
    """Proximal gradient descent; plain descent without prox."""
    return hpcomm.SGD(lr=lr) if prox is None else hpcomm.ProxSGD(lr, prox)

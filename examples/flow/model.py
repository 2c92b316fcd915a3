"""A model whose gradient each rank computes from a minibatch of the rank's part of the samples."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]
Params = Mapping[str, Floats]
Out = Callable[[str], Floats]  # the array of a key in which its update belongs


@dataclass(frozen=True)
class Defaults:
    """Settings that suit a model, found by the runs of docs/parameter_flow.md.

    Attributes:
        steps: until the objective that runs are compared at.
        batch: samples of a rank in a step.
        eta: the learning rate of step t is eta / sqrt(t).
        low, up: the thresholds delta_low and delta_up (section 3.3.3), of updates that have the learning rate in them.
    """

    steps: int
    batch: int
    eta: float
    low: float
    up: float


class Model(ABC):
    """A model's parameters are arguments: they belong to the exchange.

    Attributes:
        name: in words.
        samples: how many there are to train on.
    """

    name: str
    samples: int
    defaults: ClassVar[Defaults]

    @abstractmethod
    def start(self) -> dict[str, Floats]:
        """The first parameters by key, float32: the same on all ranks."""

    @abstractmethod
    def update(self, params: Params, rows: Rows, scale: float, out: Out) -> None:
        """Writes scale times the sum of these samples' gradients into the array of each key.

        The array has what its last update wrote, or zeros.
        """

    @abstractmethod
    def objective(self, params: Params) -> float:
        """The value that the training minimizes: a mean over training samples, always the same ones."""

    @abstractmethod
    def score(self, params: Params) -> tuple[str, float]:
        """A figure over samples that are not trained on, and its name."""


class Touched:
    """Updates of some rows of a matrix: only the rows that the last update wrote are zeroed.

    An exchange may give several arrays of one key in turn, so the rows are kept for each array.
    """

    def __init__(self) -> None:
        self._rows: dict[int, Any] = {}

    def write(self, out: Floats, rows: Rows, values: Floats) -> None:
        """rows: int64 (n,), each once. values: (n, columns)."""
        place = out.ctypes.data
        before = self._rows.get(place)
        if before is None:
            out[...] = 0
        else:
            out[before] = 0
        out[rows] = values
        self._rows[place] = rows

"""The interface of a model: each rank computes its gradient from a minibatch of the rank's part of the samples."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]
Params = Mapping[str, Floats]
Out = Callable[[str], Floats]  # returns, for a key, the array to write its update into


@dataclass(frozen=True)
class Defaults:
    """Settings that suit a model, from the runs in docs/parameter_flow.md.

    Attributes:
        steps: how many steps reach the objective at which runs are compared.
        batch: samples of a rank in a step.
        eta: the learning rate of step t is eta / sqrt(t).
        low, up: the thresholds delta_low and delta_up (section 3.3.3), for updates that include the learning rate.
    """

    steps: int
    batch: int
    eta: float
    low: float
    up: float


class Model(ABC):
    """A model. Its methods get the parameters as arguments, because these belong to the exchange.

    Attributes:
        name: the model's name.
        samples: number of training samples.
        defaults: settings that suit the model.
    """

    name: str
    samples: int
    defaults: ClassVar[Defaults]

    @abstractmethod
    def start(self) -> dict[str, Floats]:
        """Returns the first parameters by key, float32, the same on all ranks."""

    @abstractmethod
    def update(self, params: Params, rows: Rows, scale: float, out: Out) -> None:
        """Writes scale times the sum of these samples' gradients into the array out(key) of each key.

        At the call the array has the values of the last update that was written into it, or zeros.
        """

    @abstractmethod
    def objective(self, params: Params) -> float:
        """Returns the value that training minimizes, as a mean over a fixed subset of the training samples."""

    @abstractmethod
    def score(self, params: Params) -> tuple[str, float]:
        """Returns the name and the value of a measure over the test samples."""


class Touched:
    """Writes updates that have only some rows of a matrix, and zeroes only the rows that the previous update wrote.

    An exchange may give several arrays for one key in turn, so these rows are kept for each array.
    """

    def __init__(self) -> None:
        self._rows: dict[int, Any] = {}

    def write(self, out: Floats, rows: Rows, values: Floats) -> None:
        """Writes values, (n, columns), into the rows, int64 (n,), which must be distinct; all other rows become 0."""
        place = out.ctypes.data
        before = self._rows.get(place)
        if before is None:
            out[...] = 0
        else:
            out[before] = 0
        out[rows] = values
        self._rows[place] = rows

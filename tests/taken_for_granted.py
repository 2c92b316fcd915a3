"""The names that the Python blocks of all pages take for granted (test_docs.py): a context, a small model, its data and
numbers of steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hpcomm

Floats = NDArray[np.float32]

ctx = hpcomm.init()


def zeros(*shape: int) -> Floats:
    return np.zeros(shape, np.float32)


# ---- arrays --------------------------------------------------------------------------------------------------------

J, D, k, n = 12, 8, 2, 4096
layers = {"fc": zeros(J, D), "conv": zeros(64, 9), "embedding": zeros(50, 8), "head": zeros(8, 10)}
params, weights, w0, W = layers, zeros(n), zeros(n), zeros(J, D)
u, v = zeros(k, J), zeros(k, D)
grad, update, my_array = zeros(256, 10), zeros(1024), zeros(1024)
gradients_of_outputs = inputs = zeros(k, 4096)
lr = rate = eta = 0.1
step, steps, epoch = 0, 3, 0


# ---- training by hand ----------------------------------------------------------------------------------------------


class Batches(list[int]):
    """Three batches, each of which stands for data; called with a rank and the number of ranks, pairs of tensors."""

    def __call__(self, rank: int, size: int) -> Iterator[Any]:
        import torch  # noqa: PLC0415

        return ((torch.randn(4, 8), torch.randint(10, (4,))) for _ in self)


batches = data = Batches([0, 1, 2])


def gradient(w: Any, batch: Any) -> Any:
    return np.ones_like(w)


def gradients(of: Any) -> dict[str, Floats]:
    return {name: np.ones_like(w) for name, w in (of if isinstance(of, Mapping) else layers).items()}


def backward(of: Any, out: Floats | None = None) -> dict[str, Floats]:
    if out is not None:
        out[:] = 1
    return gradients(layers)


def train(params: Mapping[str, Floats], batch: Any, gradient_of: Any) -> float:
    for name in params:
        gradient_of(name)[:] = 1
    return 0.0


def model(batch: Any) -> Floats:
    return zeros(10)


ex = hpcomm.parameter_hub(ctx, layers)


# ---- a matrix by pairs of vectors ----------------------------------------------------------------------------------

target = 1.0


def objective(matrix: Floats) -> float:
    return 0.0


def minibatch() -> list[tuple[Floats, int]]:
    return [(np.ones(D, np.float32), 1)]


def indices_of(x: Floats) -> NDArray[np.intp]:
    return np.flatnonzero(x)


def values_of(x: Floats) -> Floats:
    return x[indices_of(x)]


# ---- with PyTorch --------------------------------------------------------------------------------------------------


def make_model() -> Any:
    import torch  # noqa: PLC0415

    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)), torch.nn.ReLU(), torch.nn.Linear(8, 10))


def loss(outputs: Any, labels: Any) -> Any:
    import torch  # noqa: PLC0415

    return torch.nn.functional.cross_entropy(outputs, labels)

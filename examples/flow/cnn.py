"""A convolutional network of AlexNet's layout (Krizhevsky et al., 2012): five convolutions and three wide layers.

It has 8.4 million parameters, and images have 32 x 32 pixels, grey or in colour. AlexNet has 61 million, and colour
images of 227 x 227. In both, the first two wide layers have most of the parameters.
"""

import math
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from .data import SIDE, Pictures
from .lr import accuracy
from .model import Defaults, Floats, Model, Out, Params, Rows

torch.set_num_threads(1)  # ranks share the cores
LAST = 0.015  # the standard deviation of the last layer's first weights
BLOCK = 64  # images that are scored at a time, which limits the memory


class Convolutional(Model):
    """The model. Its keys are conv1.weight, conv1.bias, ... conv5, fc1.weight, fc1.bias, ... fc3.

    width: units of each wide layer. channels: channels of each convolution, roughly in proportion to AlexNet's 96, 256,
    384, 384, 256.
    """

    defaults: ClassVar[Defaults] = Defaults(steps=150, batch=4, eta=0.002, low=2e-6, up=2e-5)
    kernels: ClassVar[tuple[int, ...]] = (5, 5, 3, 3, 3)
    strides: ClassVar[tuple[int, ...]] = (2, 1, 1, 1, 1)
    pooled: ClassVar[tuple[bool, ...]] = (True, True, False, False, False)  # max pooling, 3 x 3 with stride 2

    def __init__(self, pictures: Pictures, width: int, channels: tuple[int, ...], seed: int = 0) -> None:
        self.pictures, self.seed, self.samples = pictures, seed, len(pictures.y)
        self.name = f"convolutional network, {pictures.name}"
        self.channels = channels
        side = SIDE // math.prod(self.strides) // 2 ** sum(self.pooled)
        self.widths = channels[-1] * side * side, width, width, pictures.classes

    def start(self) -> dict[str, Floats]:
        """Returns weights as in He et al. (2015), for ReLU, but smaller ones in the last layer; biases are 0."""
        rng, found = np.random.default_rng(self.seed), {}
        shapes: list[tuple[str, tuple[int, ...]]] = []
        sizes = zip((self.pictures.x.shape[1], *self.channels), self.channels, self.kernels, strict=False)
        for at, (before, after, kernel) in enumerate(sizes):
            shapes.append((f"conv{at + 1}", (after, before, kernel, kernel)))
        for at, (before, after) in enumerate(zip(self.widths, self.widths[1:], strict=False)):
            shapes.append((f"fc{at + 1}", (after, before)))
        for name, shape in shapes:
            deviation = np.float32(LAST if name == f"fc{len(self.widths) - 1}" else (2 / np.prod(shape[1:])) ** 0.5)
            found[f"{name}.weight"] = rng.standard_normal(shape, np.float32) * deviation
            found[f"{name}.bias"] = np.zeros(shape[0], np.float32)
        return found

    def _convolved(self, x: Any, params: dict[str, Any]) -> Any:
        """Applies the convolutions: (n, channels, 32, 32) to (n, widths[0])."""
        for at, (kernel, stride, pooled) in enumerate(zip(self.kernels, self.strides, self.pooled, strict=True)):
            weight, bias = params[f"conv{at + 1}.weight"], params[f"conv{at + 1}.bias"]
            x = functional.relu(functional.conv2d(x, weight, bias, stride=stride, padding=kernel // 2))
            x = functional.max_pool2d(x, 3, 2, 1) if pooled else x
        return x.flatten(1)

    def _wide(self, x: Any, params: dict[str, Any]) -> list[Any]:
        """Applies the wide layers. Returns the input of each, and the scores."""
        layers = [x]
        for at in range(1, len(self.widths)):
            x = torch.addmm(params[f"fc{at}.bias"], x, params[f"fc{at}.weight"].t())
            layers.append(torch.relu_(x) if at + 1 < len(self.widths) else x)
        return layers

    def update(self, params: Params, rows: Rows, scale: float, out: Out) -> None:
        """Model.update. Gradients of the wide layers are written in place, which autograd cannot do."""
        own = {name: torch.from_numpy(array) for name, array in params.items()}
        narrow = [name for name in own if name.startswith("conv")]
        leaves = {name: own[name].detach().requires_grad_() for name in narrow}
        x = self._convolved(torch.from_numpy(self.pictures.of(self.pictures.x[rows])), leaves)
        with torch.no_grad():
            *inputs, scores = self._wide(x.detach(), own)
            slope = torch.softmax(scores, 1)
            slope[torch.arange(len(rows)), torch.from_numpy(self.pictures.y[rows])] -= 1
            slope *= scale
            for at in reversed(range(1, len(self.widths))):
                torch.mm(slope.t(), inputs[at - 1], out=torch.from_numpy(out(f"fc{at}.weight")))
                torch.sum(slope, 0, out=torch.from_numpy(out(f"fc{at}.bias")))
                slope = slope @ own[f"fc{at}.weight"]
                slope *= inputs[at - 1] > 0 if at > 1 else 1
        gradients = torch.autograd.grad(x, [leaves[name] for name in narrow], slope)
        for name, gradient in zip(narrow, gradients, strict=True):
            out(name)[...] = gradient.numpy()

    def scores(self, params: Params, images: NDArray[Any]) -> Floats:
        own = {name: torch.from_numpy(array) for name, array in params.items()}
        with torch.no_grad():
            parts = (
                torch.from_numpy(self.pictures.of(images[first : first + BLOCK]))
                for first in range(0, len(images), BLOCK)
            )
            found: Floats = torch.cat([self._wide(self._convolved(part, own), own)[-1] for part in parts]).numpy()
        return found

    def objective(self, params: Params) -> float:
        held = self.pictures.held
        scores, labels = torch.from_numpy(self.scores(params, self.pictures.x[held])), self.pictures.y[held]
        return float(functional.cross_entropy(scores, torch.from_numpy(labels)))

    def score(self, params: Params) -> tuple[str, float]:
        labels: NDArray[np.int64] = self.pictures.test_y
        return accuracy(self.scores(params, self.pictures.test_x), labels)

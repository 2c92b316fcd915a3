"""A model whose layers only sleep, each for the time that a real layer took alone on a host. Needs torch."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench.torch.models import TOLERANCE, Batch, mlp

TRIALS = 9


@dataclass(frozen=True)
class Time:
    """Seconds that a layer takes."""

    forward: float
    backward: float

    @property
    def both(self) -> float:
        return self.forward + self.backward


def calibrate(sizes: Sequence[int], batch: int) -> tuple[list[Time], float]:
    """Measures each linear layer with its ReLU, alone and on one thread, and the whole model's forward and backward
    pass without loss and optimizer. Returns medians."""
    torch.manual_seed(16)
    found = []
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        one = mlp([inputs, outputs])
        if i < len(sizes) - 2:
            one.append(nn.ReLU())
        found.append(_times(one, torch.randn(batch, inputs, requires_grad=i > 0), outputs))
    whole = _times(mlp(sizes), torch.randn(batch, sizes[0]), sizes[-1])
    return found, whole.both


def _times(model: nn.Module, x: Tensor, outputs: int) -> Time:
    clock, slope = time.perf_counter, torch.randn(len(x), outputs)
    each = []
    for _ in range(TRIALS):
        model.zero_grad()
        x.grad = None
        began = clock()
        y = model(x)
        turned = clock()
        y.backward(slope)
        each.append((turned - began, clock() - turned))
    return Time(*(statistics.median(own) for own in zip(*each, strict=True)))


def until(moment: float) -> None:
    """Sleeps until a time: four hosts share the cores of this machine."""
    left = moment - time.perf_counter()
    if left > 0:
        time.sleep(left)


@dataclass(frozen=True)
class Known:
    """A layer's time, and the gradients that it returns."""

    time: Time
    gradients: Sequence[NDArray[np.float32]]


class Timer(torch.autograd.Function):
    """Sleeps for a layer's time. The gradients are known before; each is a new tensor over the same memory, which
    autograd takes over without a copy, like the gradients of a real layer."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor, known: Known) -> Tensor:
        began = time.perf_counter()
        context.known = known
        context.save_for_backward(weight)  # a real one reads it again
        y = x.clone()
        until(began + known.time.forward)
        return y

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        began, known = time.perf_counter(), context.known
        given = tuple(torch.from_numpy(gradient) for gradient in known.gradients)
        until(began + known.time.backward)
        return (slopes[0].clone() if context.needs_input_grad[0] else None, *given, None)


def layer(inputs: int, outputs: int, time: Time, random: torch.Generator) -> nn.Linear:
    """Makes torch's own linear layer, as hpcomm knows it, whose forward is a Timer. A single number passes through
    it."""
    made = nn.Linear(inputs, outputs)
    gradients = [torch.randn(parameter.shape, generator=random).numpy() for parameter in made.parameters()]
    known = Known(time, gradients)

    def forward(x: Tensor) -> Tensor:
        return Timer.apply(x, made.weight, made.bias, known)  # type: ignore[no-any-return,no-untyped-call]

    made.forward = forward  # type: ignore[assignment]
    return made


@dataclass(frozen=True)
class Timers:
    """A task of bench.torch.models with such layers."""

    sizes: tuple[int, ...]
    times: Sequence[Time]
    rank: int
    rate: float = 0.01
    tolerance: float = TOLERANCE

    def model(self) -> nn.Module:
        torch.manual_seed(16)
        random = torch.Generator().manual_seed(1000 + self.rank)
        layers = zip(pairwise(self.sizes), self.times, strict=True)
        return nn.Sequential(*(layer(inputs, outputs, time, random) for (inputs, outputs), time in layers))

    def batches(self, rank: int) -> list[Batch]:
        return [(torch.ones(1), torch.ones(1))]


def loss(y: Tensor, _: Tensor) -> Tensor:
    return y.sum()

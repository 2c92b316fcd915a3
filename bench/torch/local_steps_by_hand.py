"""DiLoCo in forty lines of torch over Gloo, written as without a library. Needs torch."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn


class ByHand:
    """Local steps with an outer optimizer (DiLoCo, arXiv 2311.08105, algorithm 1), in plain torch.

    The process group must exist, and all ranks must start with the same parameters.
    """

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        parameters: Iterable[nn.Parameter],
        every: int,
        lr: float = 0.7,
        momentum: float = 0.9,
    ) -> None:
        self.inner, self.every, self.steps = inner, every, 0
        self.local = list(parameters)
        self.shared = [parameter.detach().clone() for parameter in self.local]
        self.outer = torch.optim.SGD(self.shared, lr=lr, momentum=momentum, nesterov=True)

    def zero_grad(self) -> None:
        self.inner.zero_grad()

    def step(self) -> None:
        """Takes a step of the inner optimizer; after every H steps it brings all ranks to the same parameters."""
        self.inner.step()
        self.steps += 1
        if self.steps % self.every == 0:
            self.exchange()

    @torch.no_grad()
    def exchange(self) -> None:
        updates = [shared - local for shared, local in zip(self.shared, self.local, strict=True)]
        works = [dist.all_reduce(update, async_op=True) for update in updates]
        for shared, update, work in zip(self.shared, updates, works, strict=True):
            work.wait()
            shared.grad = update.div_(dist.get_world_size())
        self.outer.step()
        for shared, local in zip(self.shared, self.local, strict=True):
            local.copy_(shared)

"""The ways to train that local_steps compares. Needs torch.

The model's layers are timers (timers.py), and so is the inner optimizer, which only changes a part of the parameters.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

import hpcomm
from bench.torch.local_steps_by_hand import ByHand
from bench.torch.local_steps_table import BY_HAND, KEPT, STREAM, TOPK, WHOLE
from bench.torch.table import ALONE, DDP
from bench.torch.timers import Time, Timers, loss
from bench.torch.ways import OverGloo, Rule, Way, fused
from hpcomm.codec import TopK

RATE, MOMENTUM = 0.7, 0.9  # of the outer rule


class Drift(torch.optim.Optimizer):
    """An optimizer that computes almost nothing: each step adds random numbers, different on each rank, to another
    H-th part of each parameter. So after H steps every part has changed."""

    def __init__(self, parameters: Iterator[nn.Parameter], rank: int, every: int) -> None:
        super().__init__(parameters, {})
        self.every, self.taken = every, 0
        random = torch.Generator().manual_seed(rank)
        own = [p for group in self.param_groups for p in group["params"]]
        self.moves = [(p, 1e-3 * torch.randn(-(-p.numel() // every), generator=random)) for p in own]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        part, cycle = self.taken % self.every, self.taken // self.every
        self.taken += 1
        for parameter, move in self.moves:
            own = parameter.view(-1)[part * len(move) : (part + 1) * len(move)]
            own.add_(move[: len(own)], alpha=1 + (part + cycle) / self.every)
        return None if closure is None else closure()


class Local(Way):
    """Computing alone, and the code shared by the other ways with local steps."""

    def __init__(self, name: str, case: Timers, every: int) -> None:
        self.name = name
        super().__init__(case, case.batches(case.rank), drift(case.rank, every), loss)

    def sync(self) -> None:
        """Waits until all ranks have the same parameters. Collective."""


class OverGlooByHand(Local):
    def __init__(self, case: Timers, every: int) -> None:
        super().__init__(BY_HAND, case, every)
        self.by_hand = ByHand(self.optimizer, self.model.parameters(), every, RATE, MOMENTUM)

    def update(self) -> None:
        self.by_hand.step()


class ByHpcomm(Local):
    """hpcomm.torch.DiLoCo: the whole model at once, or fragments that travel while the next steps are computed."""

    def __init__(self, name: str, case: Timers, ctx: hpcomm.Context, every: int, fragments: int, delay: int) -> None:
        import hpcomm.torch  # noqa: PLC0415 - the other ways do without

        super().__init__(name, case, every)
        streamed: Any = {} if name == WHOLE else {"fragments": fragments, "delay": delay}
        coded: Any = (
            {"codec": TopK(KEPT), "topology": hpcomm.ParameterServer(apply_at="receivers")} if name == TOPK else {}
        )
        outer = hpcomm.Nesterov(lr=RATE, momentum=MOMENTUM)
        self.wrapped = hpcomm.torch.DiLoCo(
            self.optimizer, ctx, self.model, outer=outer, every=every, **streamed, **coded
        )
        self.optimizer = self.wrapped

    def wait(self) -> None:
        self.wrapped.wait()

    def sync(self) -> None:
        self.wrapped.sync()

    def close(self) -> None:
        self.wrapped.close()


class Gloo(OverGloo):
    """DDP, which exchanges in every step."""

    def sync(self) -> None:
        pass


def drift(rank: int, every: int) -> Rule:
    return lambda parameters, rate: Drift(parameters, rank, every)


def times_of(sizes: Sequence[int], compute: float) -> list[Time]:
    """Returns the seconds of each layer, by its weights; a backward pass takes twice as long as a forward pass."""
    weights = [a * b for a, b in pairwise(sizes)]
    return [Time(compute * own / sum(weights) / 3, 2 * compute * own / sum(weights) / 3) for own in weights]


def make(name: str, case: Timers, ctx: hpcomm.Context, every: int, fragments: int, delay: int) -> "Local | Gloo":
    """One of NAMES. Collective."""
    if name == ALONE:
        return Local(ALONE, case, every)
    if name == BY_HAND:
        return OverGlooByHand(case, every)
    if name == DDP:
        return Gloo(case, case.batches(case.rank), fused, loss)
    assert name in (WHOLE, STREAM, TOPK)
    return ByHpcomm(name, case, ctx, every, fragments, delay)

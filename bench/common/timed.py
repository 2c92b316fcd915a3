"""Training steps, on one rank, of networks that compute by timer, over a real exchange.

A layer computes by sleeping until a time that is fixed when the layer before it ends. So a rank that wakes up late
catches up, because a GPU would not have waited for a core.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bench.common.layers import Layer, times
from hpcomm.bench.rows import Row
from hpcomm.bench.training import processor
from hpcomm.codec import Factors

RATE = 2.0**-10  # learning rate; sums of whole numbers times it are exact
WARMUP = 1  # steps; a step's parameters are first waited for in the next step


class Trainer:
    """Takes steps of a network.

    Attributes:
        exchange: hpcomm.Exchange, or an object with the methods called here.
        after: push layers only after the backward pass; implies whole.
        whole: wait for all layers before the next forward pass.
        copying: seconds per parameter of a layer, before its push and again after its arrival.
        at: the time at which all layers asked for so far have been computed.
        stalled: seconds spent waiting for layers.
        marks: the start of each step.
    """

    def __init__(
        self,
        exchange: Any,
        layers: Sequence[Layer],
        seconds: float,
        after: bool = False,
        whole: bool = False,
        copying: float = 0.0,
    ) -> None:
        self.exchange, self.layers, self.after, self.copying = exchange, layers, after, copying
        self.whole = after or whole
        self.times = list(times(layers, seconds))
        self.under_way: dict[str, Any] = {}
        self.at, self.stalled, self.steps = time.perf_counter(), 0.0, 0
        self.marks = list[tuple[float, float, float]]()

    def step(self) -> None:
        if self.whole:
            self.drain()
        self.marks.append((self.at, self.stalled, processor()))
        for layer, (forward, _) in zip(self.layers, self.times, strict=True):
            self.arrived(layer)
            self.compute(forward)
        for layer, (_, backward) in reversed(list(zip(self.layers, self.times, strict=True))):
            self.compute(backward)
            if not self.after:
                self.push(layer)
        if self.after:
            for layer in reversed(self.layers):
                self.push(layer)
        self.steps += 1

    def compute(self, seconds: float) -> None:
        self.at += seconds
        left = self.at - time.perf_counter()
        if left > 0:
            time.sleep(left)

    def push(self, layer: Layer) -> None:
        self.compute(self.copying * layer.count)
        self.under_way[layer.name] = self.exchange.push_pull_nb(layer.name)

    def arrived(self, layer: Layer) -> None:
        handle = self.under_way.pop(layer.name, None)
        if handle is None:
            return
        if not handle.test():
            handle.wait()
            now = time.perf_counter()
            self.stalled += max(0.0, now - self.at)
            self.at = max(self.at, now)
        self.compute(self.copying * layer.count)

    def drain(self) -> None:
        for layer in self.layers:
            self.arrived(layer)

    def fill(self, value: float, pairs: int = 1) -> None:
        """Sets all of this rank's updates to pairs * value."""
        for layer in self.layers:
            if isinstance(self.exchange.codecs[layer.name], Factors):
                one = self.exchange.factors(layer.name)
                one.u[:], one.v[:], one.count = 1, value, pairs
            else:
                self.exchange.gradient(layer.name).fill(pairs * value)

    def wrong(self, mean: float, plant: bool) -> int:
        """Returns how many parameters differ from the result of all steps with this mean update."""
        expected, found = np.float32(-RATE * mean * self.steps), 0  # without copying an array: some have 400 MB
        for layer in self.layers:
            array = self.exchange.params[layer.name]
            found += int(np.count_nonzero(array != expected - plant))
        return found

    def turn(self, steps: int, meet: Callable[[], None]) -> Row:
        """Times this many steps, and takes a few untimed ones. meet: a barrier of all ranks, including those that only
        serve."""
        meet()
        self.at = time.perf_counter()
        for _ in range(WARMUP + steps + 1):
            self.step()
        self.drain()
        meet()  # owners have sent all
        (began, stalled, used), (ended, in_all, used_by) = self.marks[WARMUP], self.marks[-1]
        parts = {"step": ended - began, "stalled": in_all - stalled, "processor": used_by - used}
        return {part: value / steps for part, value in parts.items()}


def joined(gathered: Sequence[Sequence[Row]]) -> Row:
    """Combines the turns of all ranks: the slowest rank's step, the mean stall, and the sums of processor time and
    bytes."""
    turns = list(zip(*gathered, strict=True))
    found: Row = {"cycles": [max(rank["step"] for rank in turn) for turn in turns]}
    found["stalled"] = [float(np.mean([rank["stalled"] for rank in turn])) for turn in turns]
    found["processor"] = [sum(rank["processor"] for rank in turn) for turn in turns]
    found["sent"] = sum(rank["sent"] for rank in turns[-1])
    return {**found, "wrong": sum(rank["wrong"] for turn in turns for rank in turn)}

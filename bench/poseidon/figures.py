"""The ranks of bench.poseidon whose networks compute by timer (Poseidon, figures 5 to 8, and several ranks a host).

A layer's share of the time is asleep, to a moment that is fixed when the layer before ends: a rank that wakes up late
makes up for it, as a GPU would not have waited for a core. What is exchanged is real.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import hpcomm
from bench.common.rows import Row
from bench.common.training import processor
from bench.ops.hosts_bench import Shape, carried
from bench.poseidon.choice import rates_of
from bench.poseidon.networks import FLOAT, NETWORKS, Layer, Network, count, times
from bench.poseidon.systems import AFTER, FIGURES, LINEAR, PAPER, POSEIDON, WHOLE, Figure
from bench.torch.step import Group
from hpcomm.codec import Factors, OneBit
from hpcomm.model import Cluster, Rates, best_scheme
from hpcomm.model import Layer as Exchanged
from hpcomm.topology.automatic import automatic_pairs

RATE = 2.0**-10  # of learning; sums of whole numbers times this are exact
WARMUP = 1  # steps; parameters are first waited for in the next one
CHUNK = 1 << 30  # bytes, so that each tensor is one chunk: TensorFlow's placement


@dataclass(frozen=True)
class System:
    """How each layer of a network is exchanged."""

    name: str
    schemes: Mapping[str, str]
    pairs: int

    def exchange(self, ctx: hpcomm.Context, layers: Sequence[Layer]) -> hpcomm.Exchange:
        topologies: dict[str, Any] = {"hosts": "auto", "factors": automatic_pairs(ctx.hosts)}
        codecs: dict[str, Any] = {"factors": Factors(self.pairs), "adam": Factors(self.pairs), "1bit": OneBit()}
        return hpcomm.Exchange(
            ctx,
            {one.name: np.zeros((one.rows, one.columns), np.float32) for one in layers},
            {name: topologies[scheme] for name, scheme in self.schemes.items() if scheme in topologies},
            codec={name: codecs[scheme] for name, scheme in self.schemes.items() if scheme in codecs},
            rule=hpcomm.SGD(RATE),
            chunk_bytes=CHUNK if self.name == WHOLE else None,
            progress="thread",  # a GPU leaves the processor to it
        )


class Trainer:
    """Takes steps of a network on one rank.

    Attributes:
        at: the moment at which the layers that were asked for so far have been computed.
        stalled: seconds in which a forward pass waited for a layer.
        marks: when each step began.
    """

    def __init__(self, exchange: hpcomm.Exchange, layers: Sequence[Layer], seconds: float, after: bool) -> None:
        self.exchange, self.layers, self.after = exchange, layers, after
        self.times = list(times(layers, seconds))
        self.under_way: dict[str, Any] = {}
        self.at, self.stalled, self.steps = time.perf_counter(), 0.0, 0
        self.marks = list[tuple[float, float, float]]()

    def step(self) -> None:
        if self.after:
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
        self.under_way[layer.name] = self.exchange.push_pull_nb(layer.name)

    def arrived(self, layer: Layer) -> None:
        handle = self.under_way.pop(layer.name, None)
        if handle is None or handle.test():
            return
        handle.wait()
        now = time.perf_counter()
        self.stalled += max(0.0, now - self.at)
        self.at = max(self.at, now)

    def drain(self) -> None:
        for layer in self.layers:
            self.arrived(layer)

    def fill(self, pairs: int, value: float) -> None:
        """All updates are pairs * value, on this rank."""
        for layer in self.layers:
            if isinstance(self.exchange.codecs[layer.name], Factors):
                one = self.exchange.factors(layer.name)
                one.u[:], one.v[:], one.count = 1, value, pairs
            else:
                self.exchange.gradient(layer.name).fill(pairs * value)

    def wrong(self, mean: float, plant: bool) -> int:
        """Parameters that are not what the steps make of them."""
        expected, found = np.float32(-RATE * mean * self.steps), 0
        for layer in self.layers:
            array = self.exchange.params[layer.name]
            found += int(np.count_nonzero(array + plant != expected))
        return found


class Timed(Group):
    """The networks of one figure, on all hosts of a shape."""

    def rows(self, name: str, shape: Shape) -> list[Row]:
        """[] on all ranks but 0."""
        figure, found = FIGURES[name], list[Row]()
        rates = rates_of(self.ctx) if self.size > 1 else None
        networks = [one for one in figure.networks if one in self.options.networks]
        for i, key in enumerate(networks):
            self.done = i / len(networks)
            found += self.network(name, figure, key, shape, rates)
        return found

    def systems(
        self, figure: Figure, layers: Sequence[Layer], pairs: int, rates: Rates | None, hosts: int
    ) -> list[System]:
        """Those that choose alike are one."""
        base = "ps" if hosts == self.size else "hosts"
        found: list[System] = []
        for name in figure.systems:
            schemes = {one.name: LINEAR.get(name, base) if one.linear else base for one in layers}
            if name in (POSEIDON, PAPER) and self.size > 1:
                cluster = Cluster(self.size, hosts=hosts)
                for one in layers:
                    own = Exchanged(one.name, (one.rows, one.columns), pairs if one.linear else 0)
                    way = best_scheme(own, cluster, rates, by="paper" if name == PAPER else "measured").way
                    schemes[one.name] = base if name == PAPER and way == "ps" else way
            same = [one for one in found if one.schemes == schemes and one.name == POSEIDON]
            if self.wanted(name) and not same:
                found.append(System(name, schemes, pairs))
        return found

    def network(self, name: str, figure: Figure, key: str, shape: Shape, rates: Rates | None) -> list[Row]:
        network: Network = NETWORKS[key]
        layers, pairs = network.make(self.options.width), network.pairs(self.options.width)
        seconds = network.seconds(self.options.width, 1, self.options.stands_for or figure.stands_for)
        found = []
        for system in self.systems(figure, layers, pairs, rates, shape.all_hosts):
            cycles = [self.turn(system, layers, seconds) for _ in range(self.options.timer_cycles)]
            gathered = self.comm.gather(cycles)
            if gathered is None:
                continue
            row: Row = {"group": name, "network": key, "hosts": shape.all_hosts, "ranks": self.size}
            row |= {"link": self.options.rate, "name": system.name, "compute": seconds, "K": pairs}
            row |= {"parameters": count(layers), "wire": 2 * FLOAT * count(layers) * (1 - 1 / shape.all_hosts)}
            row["wire"] /= carried(self.options.rate)
            row["factors"] = [one for one, scheme in system.schemes.items() if scheme == "factors"]
            found.append(row | joined(gathered))
        return found

    def turn(self, system: System, layers: Sequence[Layer], seconds: float) -> Row:
        """A few steps by a system, on this rank."""
        with system.exchange(self.ctx, layers) as exchange:
            trainer = Trainer(exchange, layers, seconds, system.name == AFTER)
            trainer.fill(system.pairs, self.rank + 1)
            self.meet()
            trainer.at = time.perf_counter()
            for _ in range(WARMUP + self.options.steps + 1):
                trainer.step()
            trainer.drain()
            self.meet()  # owners have sent all
            sent = sum(entry.bytes for entry in exchange.stats().traffic) / trainer.steps
            wrong = trainer.wrong(system.pairs * (self.size + 1) / 2, self.options.plant)
        (began, stalled, used), (ended, in_all, used_by) = trainer.marks[WARMUP], trainer.marks[-1]
        parts = {"step": ended - began, "stalled": in_all - stalled, "processor": used_by - used}
        return {**{part: value / self.options.steps for part, value in parts.items()}, "sent": sent, "wrong": wrong}


def joined(gathered: Sequence[Sequence[Row]]) -> Row:
    """The turns of all ranks: the slowest rank's step, the mean stall, all ranks' processor time and bytes."""
    turns = list(zip(*gathered, strict=True))
    found: Row = {"cycles": [max(rank["step"] for rank in turn) for turn in turns]}
    found["stalled"] = [float(np.mean([rank["stalled"] for rank in turn])) for turn in turns]
    found["processor"] = [sum(rank["processor"] for rank in turn) for turn in turns]
    found["sent"] = sum(rank["sent"] for rank in turns[-1])
    return {**found, "wrong": sum(rank["wrong"] for turn in turns for rank in turn)}

"""The ranks of bench.poseidon whose networks compute by timer (Poseidon, figures 5 to 8, and several ranks a host)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import hpcomm
from bench.common.layers import FLOAT, Layer, Network, count
from bench.common.timed import RATE, Trainer, joined
from bench.ops.hosts_bench import Shape, carried
from bench.poseidon.choice import rates_of
from bench.poseidon.networks import NETWORKS
from bench.poseidon.systems import AFTER, FIGURES, LINEAR, PAPER, POSEIDON, WHOLE, Figure
from bench.torch.step import Group
from hpcomm.bench.rows import Row
from hpcomm.codec import Factors, OneBit
from hpcomm.model import Cluster, Rates, best_way
from hpcomm.model import Layer as Exchanged
from hpcomm.topology.automatic import automatic_pairs

CHUNK = 1 << 30  # bytes: each tensor is one chunk, as TensorFlow places it


@dataclass(frozen=True)
class System:
    """The way in which each layer of a network is exchanged."""

    name: str
    ways: Mapping[str, str]
    pairs: int

    def exchange(self, ctx: hpcomm.Context, layers: Sequence[Layer]) -> hpcomm.Exchange:
        topologies: dict[str, Any] = {"hosts": "auto", "factors": automatic_pairs(ctx.hosts)}
        codecs: dict[str, Any] = {"factors": Factors(self.pairs), "adam": Factors(self.pairs), "1bit": OneBit()}
        return hpcomm.Exchange(
            ctx,
            {one.name: np.zeros((one.rows, one.columns), np.float32) for one in layers},
            {name: topologies[way] for name, way in self.ways.items() if way in topologies},
            codec={name: codecs[way] for name, way in self.ways.items() if way in codecs},
            rule=hpcomm.SGD(RATE),
            chunk_bytes=CHUNK if self.name == WHOLE else None,
            progress="thread",  # a GPU would leave the processor to it
        )


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
        """Returns the systems; two systems that make the same choices are one."""
        base = "ps" if hosts == self.size else "hosts"
        found: list[System] = []
        for name in figure.systems:
            ways = {one.name: LINEAR.get(name, base) if one.linear else base for one in layers}
            if name in (POSEIDON, PAPER) and self.size > 1:
                cluster = Cluster(self.size, hosts=hosts)
                for one in layers:
                    own = Exchanged(one.name, (one.rows, one.columns), pairs if one.linear else 0)
                    way = best_way(own, cluster, rates, by="paper" if name == PAPER else "measured").way
                    ways[one.name] = base if name == PAPER and way == "ps" else way
            same = [one for one in found if one.ways == ways and one.name == POSEIDON]
            if self.wanted(name) and not same:
                found.append(System(name, ways, pairs))
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
            row["factors"] = [one for one, way in system.ways.items() if way == "factors"]
            found.append(row | joined(gathered))
        return found

    def turn(self, system: System, layers: Sequence[Layer], seconds: float) -> Row:
        """Takes a few steps by a system, on this rank."""
        with system.exchange(self.ctx, layers) as exchange:
            trainer = Trainer(exchange, layers, seconds, system.name == AFTER)
            trainer.fill(self.rank + 1, system.pairs)
            row = trainer.turn(self.options.steps, self.meet)
            row["sent"] = sum(entry.bytes for entry in exchange.stats().traffic) / trainer.steps
            row["wrong"] = trainer.wrong(system.pairs * (self.size + 1) / 2, self.options.plant)
        return row

"""The ranks of bench.poseidon that get the choice for random layers, and the bytes of each node."""

import itertools
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import hpcomm
from bench.torch.step import Group
from hpcomm import measure
from hpcomm.bench.rows import Row
from hpcomm.codec import Factors
from hpcomm.model import Cluster, Layer, Rates, best_way
from hpcomm.topology import PeerToPeer
from hpcomm.topology.automatic import automatic_pairs

ROUNDS = 5
QUARTER = (1024, 6272), (1024, 1024), (250, 1024)  # fc6, fc7 and fc8 of VGG19 at a quarter of its width
CONVOLUTIONS = (3, 16, 16, 32, 32, *4 * (64,), *8 * (128,))  # channels of VGG19, likewise
SAMPLES = 8  # K: a quarter of the paper's
TRAFFIC = ("TF-WFBP", "Adam", "Poseidon")  # figure 10
METHODS = ("PS", "Adam", "SFB")  # table 1
SIDE, BATCH = 4096, 32  # side of section 3.2's layer, and number of its samples


def rates_of(ctx: hpcomm.Context) -> Rates:
    """Measures the rates of the machine that best_way needs. Collective."""
    return replace(measure.measure_rates(ctx), multiply=measure.multiply_rate(ctx, hpcomm.Exchange, None))


class Choice(Group):
    def rows(self) -> list[Row]:
        """Returns the choice for random layers, beside the time of both ways; [] on ranks other than 0."""
        ctx, random = self.ctx, np.random.default_rng(self.options.seed)
        rates = rates_of(ctx)
        cluster, found = Cluster(self.size, hosts=len(set(ctx.hosts))), []
        for i in range(self.options.layers):
            m, n = (int(2 ** random.uniform(8, 12)) // 16 * 16 for _ in range(2))
            k = int(2 ** random.uniform(0, 9))
            layer = Layer("w", (m, n), k)
            took = {
                "ps": self.seconds((m, n), "auto", "float32"),
                "factors": self.seconds((m, n), automatic_pairs(ctx.hosts), Factors(k)),
            }
            row: Row = {
                "group": "choice",
                "ranks": self.size,
                "hosts": cluster.hosts,
                "rows": m,
                "columns": n,
                "K": k,
                **took,
                "wrong": 0,
            }
            for by in ("measured", "paper"):
                choice = best_way(layer, cluster, rates, by=by)
                row |= {by: choice.name, f"{by} ratio": took[choice.name] / min(took.values())}
            costs = best_way(layer, cluster, rates).costs
            row["predicted"] = {name: cost.seconds for name, cost in costs.items()}
            found.append(row)
            self.tell((i + 1) / self.options.layers)
        return found if self.rank == 0 else []

    def seconds(self, shape: tuple[int, int], topology: Any, codec: Any) -> float:
        """Returns the median seconds of a step of a key, by its slowest rank."""
        random, took = np.random.default_rng(self.rank), list[float]()
        with hpcomm.Exchange(
            self.ctx, {"w": np.zeros(shape, np.float32)}, topology, codec=codec, rule=hpcomm.SGD(0.1)
        ) as ex:
            for step in range(1 + ROUNDS):
                if isinstance(codec, Factors):
                    pairs = ex.factors("w")
                    pairs.u[:], pairs.v[:] = (
                        random.standard_normal(one.shape, np.float32) for one in (pairs.u, pairs.v)
                    )
                    pairs.count = codec.K
                else:
                    ex.gradient("w")[:] = random.standard_normal(shape, np.float32) if step < 2 else 1
                self.meet()
                start = time.perf_counter()
                ex.push_pull("w")
                took.append(max(self.comm.allgather(time.perf_counter() - start)))
        return float(statistics.median(took[1:]))


class Load(Group):
    def rows(self) -> list[Row]:
        """Returns the bytes that each node sends and gets in a step of VGG19 (figure 10) and of one layer (table 1);
        [] on ranks other than 0."""
        kernels = [(b, 9 * a) for a, b in itertools.pairwise(CONVOLUTIONS)]
        shapes = {f"conv{i}": shape for i, shape in enumerate(kernels)}
        linear = {f"fc{6 + i}": shape for i, shape in enumerate(QUARTER)}
        found = []
        for name, nodes in self.counted(shapes | linear, linear, SAMPLES, TRAFFIC):
            found.append({"group": "traffic", "ranks": self.size, "name": name, "nodes": nodes, "wrong": 0})
        side = SIDE // 16 if self.options.quick else SIDE
        shape = {"fc": (side, side)}
        place = {"group": "table 1", "ranks": self.size, "rows": side, "columns": side, "K": BATCH, "wrong": 0}
        for name, nodes in self.counted(shape, shape, BATCH, METHODS):
            found.append({**place, "name": name, "nodes": nodes})
        return found if self.rank == 0 else []

    def counted(
        self, shapes: Mapping[str, tuple[int, int]], linear: Iterable[str], K: int, names: Sequence[str]
    ) -> Iterator[tuple[str, list[int]]]:
        """Returns the bytes of each node in a step of three ways: all layers through servers; linear layers as K
        pairs to one server; linear layers as K pairs to all. names: of these ways. In the second way, Adam's, linear
        layers are dealt to servers separately, and the others evenly to all servers, as in table 1."""
        apart = hpcomm.ParameterServer(servers=range(self.size))
        pairs = {name: Factors(K) for name in linear}
        ways: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = [
            ({}, {}),
            (dict.fromkeys(pairs, apart), pairs),
            (dict.fromkeys(pairs, PeerToPeer()), pairs),
        ]
        for name, (topology, codec) in zip(names, ways, strict=True):
            zeros = {key: np.zeros(shape, np.float32) for key, shape in shapes.items()}
            with hpcomm.Exchange(self.ctx, zeros, topology, codec=codec, rule=hpcomm.SGD(0.1)) as ex:
                for key in shapes:
                    if key in codec:
                        one = ex.factors(key)
                        one.u[:], one.v[:], one.count = 1, 1, K
                    else:
                        ex.gradient(key).fill(1)
                for handle in [ex.push_pull_nb(key) for key in shapes]:
                    handle.wait()
                self.ctx.barrier()  # owners have sent all
                sent = np.zeros(self.size, np.int64)
                for entry in ex.stats().traffic:
                    sent[entry.rank] += entry.bytes
            matrix = np.array(self.comm.allgather(sent))
            yield name, (matrix.sum(axis=0) + matrix.sum(axis=1)).tolist()

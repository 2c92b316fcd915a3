"""The ranks of bench.phub.training: workers and, for PBox, a last rank that only serves."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

import hpcomm
from bench.common.layers import FLOAT, Layer, count
from bench.common.timed import RATE, WARMUP, Trainer, joined
from bench.common.wire import sent
from bench.ops.hosts_bench import carried
from bench.phub.networks import NETWORKS
from bench.phub.systems import DDP, SYSTEMS, Figure, System
from bench.torch.step import Group
from hpcomm.bench.rows import Row

COPIED, COPIES = 32 << 20, 5  # bytes of an array, and how often it is copied, to measure the time of a copy
LINE = 64  # bytes; chunks are multiples of it


class Bucket:
    """The gradients of some layers as one flat array, which torch sums over Gloo."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers, self.missing, self.work = list(layers), len(layers), None
        self.value = np.zeros(1, np.float32)  # of all of its gradients
        self.gradients, self.params = (np.zeros(count(layers), np.float32) for _ in range(2))

    def push(self) -> "Bucket":
        """Adds one more layer; the last one starts the sum."""
        import torch  # noqa: PLC0415
        import torch.distributed as dist  # noqa: PLC0415

        self.missing -= 1
        if self.missing == 0:
            self.gradients.fill(self.value[0])
            self.work = dist.all_reduce(torch.from_numpy(self.gradients), async_op=True)
        return self

    def test(self) -> bool:
        return self.work is None

    def wait(self) -> None:
        """Waits for the sum, and takes a step of SGD."""
        import torch.distributed as dist  # noqa: PLC0415

        self.work.wait()  # type: ignore[attr-defined]
        self.gradients *= RATE / dist.get_world_size()
        self.params -= self.gradients
        self.work, self.missing = None, len(self.layers)


class Buckets(AbstractContextManager["Buckets"]):
    """DDP's exchange: gradients in the order of the backward pass, in buckets of limit bytes, or of one larger
    layer."""

    def __init__(self, layers: Sequence[Layer], limit: float) -> None:
        groups: list[list[Layer]] = [[]]
        for layer in reversed(layers):
            if groups[-1] and FLOAT * count([*groups[-1], layer]) > limit:
                groups.append([])
            groups[-1].append(layer)
        self.of: dict[str, Bucket] = {}
        self.params: dict[str, Any] = {}
        for group in groups:
            bucket, at = Bucket(group), 0
            for layer in group:
                self.of[layer.name] = bucket
                self.params[layer.name] = bucket.params[at : at + layer.count]
                at += layer.count
        self.codecs: dict[str, Any] = dict.fromkeys(self.of)

    def __exit__(self, *error: object) -> None:
        pass

    def gradient(self, name: str) -> Any:
        return self.of[name].value

    def push_pull_nb(self, name: str) -> Bucket:
        return self.of[name].push()


class Timed(Group):
    """The networks of one figure, with the systems that have a rank which only serves, or with the others."""

    def rows(self, figure: Figure) -> list[Row]:
        """[] on all ranks but 0."""
        copy, found = self.comm.bcast(copy_seconds() if self.rank == 0 else None), list[Row]()
        networks = [one for one in figure.networks if one in self.options.networks]
        for i, key in enumerate(networks):
            self.done = i / len(networks)
            for name in figure.systems:
                if self.wanted(name) and (SYSTEMS[name].placement == "NCC") == (self.size > self.options.workers):
                    found += self.cycles(figure, key, name, copy)
            self.tell(1.0)
        return found

    def cycles(self, figure: Figure, key: str, name: str, copy: float) -> list[Row]:
        """copy: seconds of copying one parameter."""
        network, width, system = NETWORKS[key], self.options.width, SYSTEMS[name]
        layers, workers = network.make(width), self.options.workers
        gigabits = carried(self.options.rate) / carried("1gbit")
        compute = network.seconds(width, gigabits, figure.gigabits)
        copying = system.copies * copy * figure.gigabits / gigabits  # the paper's cluster is faster by this factor
        turns = [self.turn(name, layers, compute, copying) for _ in range(self.options.run_cycles)]
        gathered = self.comm.gather(turns)
        if gathered is None:
            return []
        row: Row = {"network": key, "name": name, "hosts": self.size, "workers": workers, "link": self.options.rate}
        row |= {"gigabits": figure.gigabits, "batch": network.batch, "paper": network.batch / network.images}
        row |= {"compute": compute, "copy": copy, "copies": 2 * copying * count(layers), "parameters": count(layers)}
        row |= {"wire": system.wire(layers, workers) / carried(self.options.rate), "after": system.after}
        return [row | joined(gathered[:workers]) | {"sent": max(rank[-1]["sent"] for rank in gathered)}]

    def exchange(self, system: System, layers: Sequence[Layer]) -> Any:
        chunk = None if system.chunk is None else system.chunk * self.options.width**2  # as parameters shrink
        if not system.placement:
            return Buckets(layers, chunk or 0)
        servers = [self.size - 1] if system.placement == "NCC" else None
        return hpcomm.Exchange(
            self.ctx,
            {one.name: np.zeros((one.rows, one.columns), np.float32) for one in layers},
            hpcomm.ParameterServer(system.placement, servers),
            rule=hpcomm.SGD(RATE),
            chunk_bytes=None if chunk is None else max(LINE, int(chunk) // LINE * LINE),
            progress="thread",  # a GPU would leave the processor to it
        )

    def turn(self, name: str, layers: Sequence[Layer], compute: float, copying: float) -> Row:
        """Takes a few steps by a system, on this rank."""
        system, steps, workers = SYSTEMS[name], self.options.steps, self.options.workers
        with self.exchange(system, layers) as exchange:
            if self.rank >= workers:
                self.meet()
                before = sent()
                self.meet()  # its threads serve meanwhile
                return {"sent": (sent() - before) / (WARMUP + steps + 1)}
            trainer = Trainer(exchange, layers, compute, system.after, name == DDP, copying)
            trainer.fill(self.rank + 1)
            before = sent()
            row = trainer.turn(steps, self.meet)
            row["sent"] = (sent() - before) / trainer.steps
            row["wrong"] = trainer.wrong((workers + 1) / 2, self.options.plant)
        return row


def copy_seconds() -> float:
    """Measures the seconds to copy one float32, from memory to memory by one thread."""
    source, took = np.ones(COPIED // FLOAT, np.float32), list[float]()
    target = np.zeros_like(source)
    for _ in range(COPIES):
        start = time.perf_counter()
        np.copyto(target, source)
        took.append(time.perf_counter() - start)
    return min(took) * FLOAT / COPIED

"""stages: the time that each stage of an exchange adds to a training step (PHub, figures 5 and 14).

Stages are switched on one after another, as in section 2.3.2. A stage adds the time that the stages before it could not
hide:

    compute            the layers of a network, by timers
    + data copy        gradients cross to the servers, and parameters come back as they were
    + aggregation      servers fold the gradients
    + optimization     and apply Nesterov momentum
    + synchronization  the next step waits for its parameters: this is the whole exchange

In hpcomm each stage is a rule of the exchange: a rule that does nothing (stages.c), Average, whose parameters are the
mean of the gradients, and Nesterov. A layer's gradient is pushed as soon as it exists. Up to the stage of optimization,
a layer waits for its last push when it is pushed again; in the last stage it waits before its forward pass. With mapped
memory, fold and apply are one pass over memory.

The plain stack runs the same stages after the backward pass, key by key: MPI's Alltoallv and Allgatherv, sums and
Nesterov by NumPy on each rank's part, and a barrier. Hosts are namespaces of this machine (tests/cluster/hosts.py).
"""

import argparse
import ctypes
import gc
import json
import sys
import time
from collections.abc import Sequence
from typing import cast

import numpy as np
from mpi4py import MPI

import hpcomm
from bench.common import by_shapes
from bench.common.harness import Bench
from bench.common.layers import Layer
from bench.common.models import Key
from bench.common.native import build
from bench.common.options import add_output, add_quick, write
from bench.common.steps import meet
from bench.common.timed import Trainer
from bench.ops.hosts_bench import Shape, carried, rate_of, shape_of
from bench.ops.keys_hosts import differing
from bench.phub.stages_table import (
    AGGREGATION,
    COMPUTE,
    COPY,
    OPTIMIZATION,
    OURS,
    PLAIN,
    STACKS,
    STAGES,
    SYNCHRONIZATION,
    draw,
    lines,
)
from bench.poseidon.networks import NETWORKS
from hpcomm.bench.arrays import Floats, aligned, zeros
from hpcomm.bench.composites import Shard, update
from hpcomm.bench.rows import Row
from hpcomm.bench.training import MOMENTUM, RATE, Reference, Task

PAPER = 56.0  # Gb/s of the network of figures 5 and 14
NETWORKS_OF = "GoogLeNet,Inception-V3,VGG19"
WIDTH, QUICK_WIDTH = 0.125, 0.05
UPDATES = (OPTIMIZATION, SYNCHRONIZATION)


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m bench.phub.stages", description=__doc__.partition("\n")[0])
    p.add_argument("--hosts", default="4x1,1x4", help="hosts, or hosts x ranks, comma-separated; default: 4x1,1x4")
    p.add_argument("--networks", default=NETWORKS_OF, help=f"of {', '.join(NETWORKS)}; default: {NETWORKS_OF}")
    p.add_argument("--stacks", default=",".join(STACKS), help=f"of {', '.join(STACKS)}; default: both")
    p.add_argument("--width", type=float, default=WIDTH, help="as a fraction of the networks' widths")
    p.add_argument("--stands-for", type=float, default=PAPER, help="Gb/s of the link for which --rate stands")
    p.add_argument("--rate", type=rate_of, default="1gbit", help="of each host's link, as tc writes it")
    p.add_argument("--burst", default="256k", help="bucket of the links")
    p.add_argument("--steps", type=int, default=3, help="timed steps of a turn")
    p.add_argument("--warmup", type=int, default=2, help="steps of a turn before the timed ones")
    p.add_argument("-N", "--run_cycles", type=int, default=3, help="alternated cycles: stacks and stages take turns")
    p.add_argument("--plant", action="store_true", help="spoil a value of each stage, to see that #wrong counts it")
    p.add_argument("--part", default="", help=argparse.SUPPRESS)  # the shape of these ranks
    p.add_argument("--address", default="", help=argparse.SUPPRESS)  # of rank 0
    add_quick(p, "two ranks on two hosts and on one, a small network, one cycle")
    add_output(p, "stacked bars")
    options = p.parse_args(arguments)
    if options.quick:
        options.hosts, options.networks, options.width = "2x1,1x2", "GoogLeNet", QUICK_WIDTH
        options.run_cycles, options.steps, options.warmup = 1, 1, 1
    for name, known in (("networks", NETWORKS), ("stacks", STACKS)):
        chosen = [word.strip() for word in getattr(options, name).split(",") if word.strip()]
        if not chosen or set(chosen) - set(known):
            unknown = ", ".join(sorted(set(chosen) - set(known))) or "nothing"
            p.error(f"--{name}: must be of {', '.join(known)}, not {unknown}")
        setattr(options, name, chosen)
    try:
        words = [word.strip() for word in options.hosts.split(",") if word.strip()]
        options.shapes = [shape_of(word if "x" in word else f"{word}x1") for word in words]
    except argparse.ArgumentTypeError as wrong:
        p.error(f"--hosts: {wrong}")
    if any(shape.racks > 1 for shape in options.shapes):
        p.error(f"--hosts: {options.hosts}: give hosts x ranks, without racks")
    if min(options.steps, options.run_cycles) < 1 or options.warmup < 0:
        p.error("--steps and --run_cycles must be 1 or more, --warmup 0 or more")
    if options.width <= 0 or options.stands_for <= 0:
        p.error("--width and --stands-for must be above 0")
    return options


# ---- hpcomm ----------------------------------------------------------------------------------------------------------


class Staged(Trainer):
    """Takes steps that push each layer in the backward pass. Before the stage of synchronization, a step waits for
    no parameters: a layer waits for its last push when it is pushed again."""

    def __init__(self, exchange: hpcomm.Exchange, layers: Sequence[Layer], seconds: float, stage: str) -> None:
        super().__init__(exchange, layers, seconds, after=False)
        self.stage = stage

    def arrived(self, layer: Layer) -> None:
        if self.stage == SYNCHRONIZATION:
            super().arrived(layer)

    def push(self, layer: Layer) -> None:
        if self.stage != COMPUTE:
            super().arrived(layer)
            super().push(layer)

    def drain(self) -> None:
        for layer in self.layers:
            super().arrived(layer)


class ByHpcomm:
    """One stage by an exchange."""

    def __init__(self, ranks: "Ranks", job: Task, layers: Sequence[Layer], seconds: float, stage: str) -> None:
        self.ranks, self.job, self.stage = ranks, job, stage
        names = [layer.name for layer in layers]
        moves = hpcomm.optim.Rule(ranks.native.bench_keep, fold=ranks.native.bench_take, name="moves")
        nesterov = hpcomm.Nesterov(lr=RATE, momentum=MOMENTUM)
        rules: dict[str, hpcomm.optim.Rule | hpcomm.Average] = {COPY: moves, AGGREGATION: hpcomm.Average()}
        given = dict(zip(names, job.params(), strict=True))
        # A GPU would leave the processor to these threads.
        self.exchange = hpcomm.Exchange(ranks.ctx, given, rule=rules.get(stage, nesterov), progress="thread")
        for name, gradient in zip(names, job.gradients, strict=True):
            np.copyto(self.exchange.gradient(name), gradient)
        self.params = [self.exchange.params[name] for name in names]
        self.trainer = Staged(self.exchange, layers, seconds, stage)

    def begin(self) -> None:
        self.trainer.at = time.perf_counter()

    def step(self) -> None:
        self.trainer.step()

    def end(self) -> None:
        self.trainer.drain()

    def wrong(self, steps: int) -> int:
        job, start = self.job, self.job.start
        expected = {COMPUTE: start, COPY: start, AGGREGATION: job.total / np.float32(job.bench.size)}
        values = expected[self.stage] if self.stage in expected else updated(job, steps)
        found = sum(differing(*pair, values) for pair in zip(self.params, job.shifts, strict=True))
        if self.stage == COPY:  # each value of every rank has reached an owner
            taken = self.ranks.comm.allreduce(self.ranks.native.bench_taken())
            found += abs(taken - steps * job.bench.size * job.count) if job.bench.rank == 0 else 0
        return found

    def close(self) -> None:
        self.exchange.close()


# ---- the plain stack -------------------------------------------------------------------------------------------------


class ByMpi:
    """One stage by MPI and NumPy, after the backward pass and key by key; nothing overlaps."""

    def __init__(self, ranks: "Ranks", job: Task, layers: Sequence[Layer], seconds: float, stage: str) -> None:
        self.job, self.seconds, self.stage, self.comm = job, seconds, stage, ranks.comm
        size, rank = job.bench.size, job.bench.rank
        self.on = STAGES.index(stage)
        self.params = job.params()
        self.shards = [Shard(key.count, size, rank) for key in job.keys]
        self.received = [aligned(size * shard.count).reshape(size, -1) for shard in self.shards]
        self.sums, velocities = ([zeros(shard.count) for shard in self.shards] for _ in range(2))
        scratch = aligned(max(shard.count for shard in self.shards))
        owned = [p[shard.start :][: shard.count] for p, shard in zip(self.params, self.shards, strict=True)]
        self.updates = [
            update(own, velocity, total, scratch, RATE / size, max(1, own.size))
            for own, velocity, total in zip(owned, velocities, self.sums, strict=True)
        ]

    def begin(self) -> None:
        pass

    def step(self) -> None:
        time.sleep(self.seconds)
        for key in reversed(range(len(self.shards) if self.on >= STAGES.index(COPY) else 0)):
            self.exchange(key)
        if self.stage == SYNCHRONIZATION:
            self.comm.Barrier()

    def exchange(self, key: int) -> None:
        shard, received, total = self.shards[key], self.received[key], self.sums[key]
        size, parts = self.comm.size, (self.shards[key].counts, self.shards[key].starts)
        same = ([shard.count] * size, [shard.count * rank for rank in range(size)])
        self.comm.Alltoallv([self.job.gradients[key], parts, MPI.FLOAT], [received, same, MPI.FLOAT])
        if self.on >= STAGES.index(AGGREGATION):
            np.add(received[0], received[1], total)
            for one in received[2:]:
                np.add(total, one, total)
        if self.stage in UPDATES:
            self.updates[key]()
        self.comm.Allgatherv(MPI.IN_PLACE, [self.params[key], parts, MPI.FLOAT])

    def end(self) -> None:
        pass

    def wrong(self, steps: int) -> int:
        job = self.job
        values = updated(job, steps) if self.stage in UPDATES else job.start
        found = sum(differing(*pair, values) for pair in zip(self.params, job.shifts, strict=True))
        for key, (shard, shift) in enumerate(zip(self.shards, job.shifts, strict=True)):
            total = self.received[key].sum(0) if self.stage == COPY else self.sums[key]
            if self.stage != COMPUTE:
                found += differing(total, shift + shard.start, job.total)
        return found

    def close(self) -> None:
        pass


# ---- a rank ----------------------------------------------------------------------------------------------------------


def updated(job: Task, steps: int) -> Floats:
    """Returns the parameters of each class after this many steps of the rule."""
    expected = Reference(job)
    for _ in range(steps):
        expected.step()
    return expected.values


class Ranks:
    """The ranks of one shape. A Task uses it as its bench."""

    def __init__(self, options: argparse.Namespace, ctx: hpcomm.Context) -> None:
        self.options, self.ctx, self.comm = options, ctx, MPI.COMM_WORLD
        self.rank, self.size = ctx.rank, ctx.size
        path = self.comm.bcast(build(name="libbenchstages.so", sources=("phub/stages.c",)) if self.rank == 0 else None)
        self.native = ctypes.CDLL(str(path))
        self.native.bench_taken.restype = ctypes.c_uint64

    def turn(self, stack: str, job: Task, layers: Sequence[Layer], seconds: float, stage: str) -> tuple[float, int]:
        """Returns the seconds of a step on this rank, and the number of wrong values."""
        given = (self, job, layers, seconds, stage)
        made: ByHpcomm | ByMpi = ByHpcomm(*given) if stack == OURS else ByMpi(*given)
        clock, warmup, steps = time.perf_counter, self.options.warmup, self.options.steps
        meet(self.comm)
        made.begin()
        for _ in range(warmup):
            made.step()
        began = clock()
        for _ in range(steps):
            made.step()
        took = (clock() - began) / steps
        made.end()
        meet(self.comm)
        if self.options.plant and self.rank == 0:
            made.params[0] = made.params[0] + 1
        wrong = made.wrong(warmup + steps)
        made.close()
        return took, wrong

    def rows(self, shape: Shape, transport: str) -> list[Row]:
        """Returns the rows of all networks; [] on ranks other than 0."""
        options, found = self.options, list[Row]()
        link = carried(options.rate) / carried("1gbit")
        for i, name in enumerate(options.networks):
            layers = NETWORKS[name].make(options.width)
            seconds = NETWORKS[name].seconds(options.width, link, options.stands_for)
            job = Task(cast(Bench, self), [Key(layer.name, layer.count) for layer in layers], 1)
            facts = {"shape": shape.key, "ranks": self.size, "network": name, "keys": len(layers)}
            facts |= {"size": 4 * job.count, "compute": seconds}
            by = {OURS: transport, PLAIN: "MPI"}
            own = [
                {**facts, "stack": stack, "transport": by[stack], "stage": stage, "cycles": [], "wrong": 0}
                for stack in options.stacks
                for stage in STAGES
            ]
            for cycle in range(options.run_cycles):
                for row in own:
                    gathered = self.comm.gather(self.turn(row["stack"], job, layers, seconds, row["stage"]))
                    gc.collect()
                    if gathered is not None:
                        row["cycles"].append(max(took for took, _ in gathered))
                        row["wrong"] += sum(wrong for _, wrong in gathered)
                if self.rank == 0 and options.progress is not None:
                    done = (i + (cycle + 1) / options.run_cycles) / len(options.networks)
                    options.progress.write_text(f"{done:.4f}")
            found += own
        return found if self.rank == 0 else []


def job(options: argparse.Namespace) -> int:
    """Runs a rank; returns 0 if no value was wrong."""
    comm = MPI.COMM_WORLD
    with hpcomm.init(comm) as ctx:
        transport = ",".join(sorted({peer.transport for peer in ctx.peers} - {"self"}))
        rows = Ranks(options, ctx).rows(shape_of(options.part), transport)
    wrong = comm.bcast(sum(row["wrong"] for row in rows))
    if comm.rank == 0:
        write(options, json.dumps({"transport": transport, "torch": "not used", "rows": rows}))
    return 1 if wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = options_of(given)
    mpi = MPI.Get_library_version().splitlines()[0].strip("\0 ")
    facts = {"burst": options.burst, "stands_for": options.stands_for, "mpi": mpi}
    return by_shapes.run(
        lambda: by_shapes.start("stages", options, given, facts, lines, draw=draw), lambda: job(options)
    )


if __name__ == "__main__":
    sys.exit(main())

"""The ranks of bench.asap.cnn: a convolutional network trained by averages of models (ASAP, section 6.2)."""

import argparse
import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import hpcomm
from bench.common.launch import ROOT
from bench.common.options import write
from hpcomm.bench.rows import Row
from hpcomm.bench.training import processor

sys.path.insert(0, str(ROOT / "examples"))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from factors.model import Batches
from flow import cnn, data

CONSISTENCIES = {str(one): one for one in (hpcomm.NOTIFY_ACK, hpcomm.BSP, hpcomm.BARRIER, hpcomm.ASYNC)}
ALONE = "one rank"
KEY, LIMIT = "w", 900.0  # seconds of all
FIGURES = (
    "seconds",
    "computed",
    "waited",
    "sent",
    "score",
    "processor",
    "training",
)  # figures of a rank; the last two are seconds
Floats = NDArray[np.float32]


class Vgg(cnn.Convolutional):
    """ASAP's network (section 6.2): eleven layers, eight of them convolutions."""

    kernels, strides = (3,) * 8, (1,) * 8
    pooled = (True, True, False, True, False, True, False, True)


@dataclass(frozen=True)
class Shapes:
    """A model's parameters as one array and one key, so that an input is whole or torn as a whole."""

    start: Mapping[str, Floats]

    @property
    def flat(self) -> Floats:
        return np.concatenate([array.ravel() for array in self.start.values()])

    def views(self, flat: Floats) -> dict[str, Floats]:
        found, at = {}, 0
        for name, array in self.start.items():
            found[name] = flat[at : at + array.size].reshape(array.shape)
            at += array.size
        return found


@dataclass(frozen=True)
class Plan:
    """The length of a rank's training. The learning rate decays every epoch, as in section 6.2.

    Attributes:
        steps: each ends with a reduce.
        points: number of models that are kept, at equal distances; the last model is always kept.
    """

    batches: Batches
    steps: int
    eta: float
    decay: float
    points: int

    @property
    def per_epoch(self) -> int:
        return math.ceil(self.batches.samples / self.batches.total)

    def rate(self, step: int) -> float:
        return self.eta * self.decay ** (step // self.per_epoch)

    @property
    def kept(self) -> set[int]:
        """After which steps."""
        return {math.ceil(self.steps * at / self.points) for at in range(1, self.points + 1)}


def train(ctx: hpcomm.Context, model: cnn.Convolutional, plan: Plan, consistency: hpcomm.Consistency | None) -> Row:
    """Trains, and returns the row of all ranks, in which a rank's figures are lists by rank. Collective. Without a
    consistency each rank trains alone."""
    clock, shapes = time.perf_counter, Shapes(model.start())
    first = shapes.flat
    exchange = None
    if consistency is not None:
        complete = hpcomm.graphs.complete(ctx.size)
        exchange = hpcomm.stochastic_reduce(
            ctx, {KEY: first}, topology=complete, consistency=consistency, in_place=True, timeout=LIMIT
        )
    weights = exchange.params[KEY] if exchange else first.copy()
    gradient = np.zeros_like(first)
    out = shapes.views(gradient)
    share = 1 / plan.batches.pairs
    model.update(shapes.views(first), plan.batches.of(ctx.rank, 0), share, out.__getitem__)  # the first takes longer
    kept, wanted, computed, waited, trained = [(0.0, first)], plan.kept, 0.0, 0.0, 0.0
    ctx.barrier()
    used, begin = processor(), clock()
    for step in range(plan.steps):
        start, ran = clock(), time.thread_time()
        rows = plan.batches.of(ctx.rank, step)
        model.update(shapes.views(weights), rows, plan.rate(step) * share, out.__getitem__)
        weights -= gradient
        pushed, trained = clock(), trained + time.thread_time() - ran
        weights = exchange.push_pull(KEY) if exchange else weights
        end = clock()
        computed, waited = computed + pushed - start, waited + end - pushed
        if step + 1 in wanted:
            kept.append((end - begin, weights.copy()))
    seconds, used = clock() - begin, processor() - used
    ctx.barrier()
    counts, sent = [0] * 4, 0
    if exchange:
        stats = exchange.stats()
        exchange.close(timeout=LIMIT)
        counts, sent = [stats.whole, stats.torn, stats.stale, stats.missing, *stats.by_inputs], stats.bytes_sent
    losses = [model.objective(shapes.views(weights)) for _, weights in kept]
    score, accuracy = model.score(shapes.views(kept[-1][1]))
    mine = [seconds, computed, waited, float(sent), accuracy, used, trained]
    each = _gathered(ctx, [*mine, *counts])
    found = {name: each[:, at].tolist() for at, name in enumerate(FIGURES)}
    inputs = [int(count) for count in each[:, len(FIGURES) :].sum(axis=0)]
    return {
        "name": str(consistency or ALONE),
        **found,
        "what": score,
        "inputs": dict(zip(("whole", "torn", "stale", "missing"), inputs, strict=False)),
        "by_inputs": inputs[4:],
        "times": _gathered(ctx, [at for at, _ in kept]).tolist(),
        "losses": _gathered(ctx, losses).tolist(),
        "wrong": _wrong(ctx, consistency, kept[-1][1], inputs),
    }


def _gathered(ctx: hpcomm.Context, mine: list[float]) -> NDArray[np.float64]:
    """A row of each rank."""
    parts = ctx.allgather(np.array(mine, np.float64).tobytes(), timeout=LIMIT)
    return np.array([np.frombuffer(part) for part in parts])


def _wrong(ctx: hpcomm.Context, consistency: hpcomm.Consistency | None, last: Floats, inputs: list[int]) -> int:
    """Counts, under NOTIFY_ACK and BSP on a complete graph, inputs that were not whole, and ranks whose last model
    is not rank 0's."""
    models = ctx.allgather(hashlib.sha256(last.tobytes()).digest(), timeout=LIMIT)
    exact = consistency in (hpcomm.NOTIFY_ACK, hpcomm.BSP)
    return sum(inputs[1:4]) + sum(one != models[0] for one in models) if exact else 0


def rows(ctx: hpcomm.Context, options: argparse.Namespace) -> Iterator[Row]:
    """Runs the chosen consistencies, one after the other. Collective. A single rank trains alone, on as many images
    as all ranks together."""
    pictures = data.on_every_rank(ctx, lambda: data.pictures(options.seed, options.data))
    kind = Vgg if options.paper_size else cnn.Convolutional
    model = kind(pictures, options.width, options.channels, options.seed)
    batches = Batches(model.samples, ctx.size, options.batch, options.seed)
    steps = options.steps * (options.ranks if ctx.size == 1 else 1)
    plan = Plan(batches, steps, options.eta, options.decay, options.points)
    facts = {"model": model.name, "parameters": Shapes(model.start()).flat.size, "samples": model.samples}
    for name in [ALONE] if ctx.size == 1 else options.consistencies:
        row = train(ctx, model, plan, CONSISTENCIES.get(name))
        yield {"batch": options.batch, "steps": steps, **facts, **row}


def on_this_rank(options: argparse.Namespace) -> int:
    found: list[Row] = []
    with hpcomm.init(MPI.COMM_WORLD, transport=options.transport or None, timeout=300) as ctx:
        for row in rows(ctx, options):
            found.append(row)
            if options.progress is not None and ctx.rank == 0:
                options.progress.write_text(f"{len(found) / len(options.consistencies):.4f}")
        transports = sorted({peer.transport for peer in ctx.peers} - {"self"})
        facts: dict[str, Any] = {"ranks": ctx.size, "transport": ",".join(transports)}
    if ctx.rank == 0:
        mpi = MPI.Get_library_version().splitlines()[0].strip("\0 ")
        write(options, json.dumps({**facts, "mpi": mpi, "rows": found}))
    return 1 if any(row["wrong"] for row in found) else 0

"""The ranks of bench.parameter_flow: they train applications by a list of cases, one after the other.

Computing is a timer, during which a rank computes its real gradient. If eight ranks on two cores take longer than the
timer, the step takes that longer time; a row has both.
"""

import argparse
import json
import math
import os
import time
import zlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

if "OMP_NUM_THREADS" not in os.environ:
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # before NumPy; ranks share the cores

import numpy as np
from mpi4py import MPI

import hpcomm
from bench.common.harness import as_rank
from bench.ops.hosts_bench import carried
from bench.parameter_flow.apps import MAKE
from bench.parameter_flow.cases import APPS, DENSE, FOLLOW, SMOOTH, UP, Case
from hpcomm.bench.rows import Row
from hpcomm.bench.training import processor

from factors.model import Batches, dense_options  # isort: skip - examples is on the path by now
from flow.exchange import RULE  # isort: skip
from flow.model import Model  # isort: skip

CALIBRATION = 9  # steps whose median is used


def open_exchange(ctx: hpcomm.Context, model: Model, case: Case) -> hpcomm.Exchange:
    """Collective."""
    consistency, usual = hpcomm.SSP(case.staleness), model.defaults
    if case.way == DENSE:
        servers = range(ctx.size - case.servers, ctx.size)
        placed: Any = {"placement": "NCS", "servers": servers} if case.servers else {"topology": "flat"}
        placed |= dense_options(case.staleness)
        return hpcomm.parameter_hub(ctx, model.start(), consistency=consistency, rule=RULE, reduce="sum", **placed)
    more: Any = {"progress": "thread"} if case.staleness else {}
    if case.way in (FOLLOW, SMOOTH):
        more |= {"up": usual.up, "at_least": case.at_least, "follow": "probes" if case.way == FOLLOW else "smooth"}
    delta = usual.up if case.way == UP else usual.low
    return hpcomm.parameter_flow(
        ctx, model.start(), delta=delta, consistency=consistency, rule=RULE, reduce="sum", **more
    )


class Trainer:
    """Takes the steps of a case on one rank.

    Attributes:
        marks: for each step: seconds since the first began; seconds of computing, of the gradient alone, and in the
            exchange; bytes sent so far; the threshold of pushes (-1: none); seconds until gradients had room.
        kept: step, seconds, parameters.
    """

    def __init__(self, ctx: hpcomm.Context, model: Model, case: Case, compute: float) -> None:
        self.ctx, self.model, self.case, self.compute = ctx, model, case, compute
        self.batch = min(model.defaults.batch, model.samples // (2 * ctx.size))
        self.batches = Batches(model.samples, ctx.size - case.servers, self.batch, 0)
        self.marks: list[tuple[float, float, float, float, int, float, float]] = []
        self.kept: list[tuple[int, float, dict[str, Any]]] = []
        self.facts: Row = {}

    def run(self) -> None:
        case, clock = self.case, time.perf_counter
        stop = stopper(self.ctx, case) if case.seconds else None
        with open_exchange(self.ctx, self.model, case) as exchange:
            wait_for(case.period)
            self.ctx.barrier()
            began, paused, used = clock(), 0.0, processor()
            self.facts["began"] = time.time()
            if self.ctx.rank >= self.ctx.size - case.servers:
                exchange.serve()
            for step in range(1, case.steps + 1) if self.ctx.rank < self.ctx.size - case.servers else ():
                begin = clock()
                for name in exchange.params:
                    exchange.gradient(name)  # may wait under SSP
                free = clock()
                scale = (case.eta or self.model.defaults.eta) / step**0.5 / self.batches.total
                rows = self.batches.of(self.ctx.rank, step - 1)
                self.model.update(exchange.params, rows, scale, exchange.gradient)
                done = clock()
                time.sleep(max(0.0, free + self.compute - done))
                slept = clock()
                exchange.step()
                ended = clock()
                seconds, (sent, delta) = ended - began - paused, counts(exchange)
                waited = free - begin + ended - slept
                self.marks.append((seconds, slept - free, done - free, waited, sent, delta, free - begin))
                last = stop is not None and stop.ends(step)
                if self.ctx.rank == 0 and (step in case.looks or last):
                    params = {name: array.copy() for name, array in exchange.params.items()}
                    self.kept.append((step, seconds, params))
                    paused += clock() - ended if case.staleness == 0 and not case.period else 0  # the others wait
                if stop is not None and self.ctx.rank == 0 and seconds >= case.seconds:
                    stop.tell(step)
                if last:
                    break
            self.facts |= {"processor": processor() - used, "digest": self._digest(exchange)}
            self._count(exchange)

    def _digest(self, exchange: hpcomm.Exchange) -> int:
        found = 0
        for array in exchange.params.values():
            found = zlib.crc32(array.reshape(-1).view(np.uint8).data, found)
        return found + (self.case.plant and self.ctx.rank == 1)

    def _count(self, exchange: hpcomm.Exchange) -> None:
        if self.case.staleness and self.case.way != DENSE:  # sums of the last steps may still be unsent
            exchange.state_dict()
            self.ctx.barrier()
        stats = exchange.stats()
        to: dict[int, int] = {}
        for entry in stats.traffic:
            to[entry.rank] = to.get(entry.rank, 0) + entry.bytes
        codecs = stats.codecs.values()
        self.facts |= {"to": to, "stages": stats.sent_by_stage, "pace": stats.progress.partition(":")[0]}
        self.facts["threads"] = dict(stats.load.processor)
        self.facts |= {part: sum(getattr(each, part) for each in codecs) for part in ("encode", "decode", "pieces")}
        self.facts["behind"] = stats.by_staleness
        self.facts["kept"] = sum(each.kept for each in codecs) / max(sum(each.elements for each in codecs), 1)


def counts(exchange: hpcomm.Exchange) -> tuple[int, float]:
    """Returns the bytes that this rank has sent so far, and its threshold of pushes (-1: none)."""
    stats = exchange.stats()
    deltas = [each.delta_of_pushes for each in stats.codecs.values() if each.delta_of_pushes is not None]
    return sum(entry.bytes for entry in stats.traffic), max(deltas, default=-1.0)


def stopper(ctx: hpcomm.Context, case: Case) -> Any:
    """Makes the object that ends the training of all ranks after the same step. Collective."""
    from flow.job import Stop  # noqa: PLC0415 - it needs click and rich

    return Stop(ctx, case.staleness)


def wait_for(period: float) -> None:
    """Waits until the clock, which all hosts share, is a multiple of period."""
    if period:
        time.sleep(period - time.time() % period)


# ---- all ranks -------------------------------------------------------------------------------------------------------


def trained(ctx: hpcomm.Context, model: Model, case: Case, compute: float) -> Row | None:
    """Trains a case; returns its row on rank 0. Collective."""
    trainer = Trainer(ctx, model, case, compute)
    trainer.run()
    gathered = MPI.COMM_WORLD.gather({**trainer.facts, "marks": trainer.marks})
    row: Row | None = None
    if gathered is not None:
        row = {**asdict(case), "compute": compute, "batch": trainer.batch, **joined(gathered)}
        row["points"] = [[step, seconds, model.objective(params)] for step, seconds, params in trainer.kept]
        finite = all(math.isfinite(objective) for _, _, objective in row["points"])
        different = sum(rank["digest"] != gathered[0]["digest"] for rank in gathered if rank["marks"])
        row["wrong"] = (different if case.staleness == 0 else 0) + (not finite)
    ctx.barrier()
    return row


def joined(gathered: Sequence[Row]) -> Row:
    """Combines the marks of all ranks: means over ranks and over the steps from the second on, and the busiest link's
    bytes in a step.

    A step is rank 0's; its clock stops while it copies parameters for a look.
    """
    workers = [rank for rank in gathered if rank["marks"]]
    marks = np.array([rank["marks"] for rank in workers], np.float64)  # ranks, steps, parts
    steps, ranks = marks.shape[1], range(len(gathered))
    later = marks[:, 1:] if steps > 1 else marks
    seconds = (marks[0, -1, 0] - marks[0, 0, 0]) / (steps - 1) if steps > 1 else marks[0, -1, 0]
    sent = [sum(rank["to"].values()) for rank in gathered]
    got = [sum(rank["to"].get(at, 0) for rank in gathered) for at in ranks]
    found: Row = {"ranks": len(gathered), "taken": steps, "step": float(seconds), "began": gathered[0]["began"]}
    found |= {
        name: float(later[:, :, part].mean())
        for name, part in (("computing", 1), ("gradient", 2), ("waited", 3), ("blocked", 6))
    }
    threads = list(dict.fromkeys(name for rank in workers for name in rank["threads"]))
    found["threads"] = {name: sum(rank["threads"].get(name, 0) for rank in workers) / steps for name in threads}
    found |= {
        part: sum(rank[part] for rank in gathered) / len(gathered) / steps for part in ("encode", "decode", "pieces")
    }
    found["processor"] = sum(rank["processor"] for rank in gathered) / steps
    found |= {"link": max(*sent, *got) / steps, "sent": sum(sent) / len(workers) / steps}
    stages = dict.fromkeys(name for rank in gathered for name in rank["stages"])
    by_stage = {name: sum(rank["stages"].get(name, 0) for rank in gathered) for name in stages}
    found["stages"] = {name: nbytes / len(workers) / steps for name, nbytes in by_stage.items()}
    found |= {"kept": float(np.mean([rank["kept"] for rank in gathered])), "pace": gathered[0]["pace"]}
    behind = [sum(of) for of in zip(*(rank["behind"] for rank in workers), strict=True)]  # by steps
    found["behind"] = sum(i * n for i, n in enumerate(behind)) / max(sum(behind), 1)
    found["clock"] = marks[0, :, 0].tolist()
    found["waits"] = marks[:, :, 3].mean(axis=0).tolist()
    found["bytes"] = marks[:, :, 4].mean(axis=0).tolist()
    found["least"] = (marks[:, :, 5] <= marks[:, :, 5].min()).sum(axis=0).tolist()  # ranks that have the lowest delta
    found["deltas"] = [sorted(set(marks[:, step, 5].tolist())) for step in range(steps)]
    return found


def compute_of(ctx: hpcomm.Context, model: Model, case: Case) -> float:
    """Returns the seconds of computing for which the dense hub under BSP has the paper's ratio of communicating.
    Collective."""
    count = sum(array.size for array in model.start().values())
    least = 8 * count * (ctx.size - 1) / ctx.size / carried(case.rate or "1gbit") / APPS[case.app].ratio
    if case.rate:
        return float(least)
    row = trained(ctx, model, Case("calibration", case.app, case.size, DENSE, steps=CALIBRATION), least)
    waited = MPI.COMM_WORLD.bcast(None if row is None else np.median(row["waits"]))
    return float(waited / APPS[case.app].ratio)


def around(case: Case, rows: Sequence[Row]) -> Case:
    """Returns the case with looks around the step at which the objective of dense BSP may be reached. That training
    must have ended. Only rank 0 looks."""
    dense = next((row for row in reversed(rows) if row["way"] == DENSE and row["app"] == case.app), None)
    if not case.seconds or dense is None or case.way == DENSE:
        return case
    steps = dense["taken"]
    return replace(case, looks=tuple(range(math.ceil(0.9 * steps), math.ceil(1.3 * steps), max(1, steps // 50))))


def rank(path: Path, output: Path, progress: Path | None) -> int:
    """Runs a rank: trains by the list at path. MPI starts the ranks."""
    cases = [Case(**{**given, "looks": tuple(given["looks"])}) for given in json.loads(path.read_text())]
    rows: list[Row] = []
    models: dict[tuple[str, str], tuple[Model, float]] = {}
    with hpcomm.init(MPI.COMM_WORLD) as ctx:
        for i, case in enumerate(cases):
            key = case.app, case.size
            if key not in models:
                models.clear()
                model = MAKE[case.app](ctx, case.size, case.data)
                models[key] = model, compute_of(ctx, model, case) if case.compute is None else case.compute
            model, compute = models[key]
            row = trained(ctx, model, around(case, rows), compute)
            if row is not None:
                rows.append(row)
                output.write_text(json.dumps(rows), encoding="utf-8")
                if progress is not None:
                    progress.write_text(f"{(i + 1) / len(cases):.4f}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.parameter_flow.training", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("-J", "--output_file", type=Path, required=True)
    parser.add_argument("--progress", type=Path)
    options = parser.parse_args(arguments)
    return as_rank(lambda: rank(options.cases, options.output_file, options.progress))


if __name__ == "__main__":
    raise SystemExit(main())

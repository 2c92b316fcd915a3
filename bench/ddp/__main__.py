"""ddp: a training step of DDP with hpcomm's hook, over Gloo, over the backend hpcomm, and with an empty hook; beside it
DistributedOptimizer, and FSDP2 over Gloo and over hpcomm.

One mpirun for each number of ranks trains each model in all ways, in one process group. The ways have the same first
weights and batches and one torch thread a rank, and take turns in blocks of a few steps.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from mpi4py import MPI

import hpcomm
from bench.common.options import add_output, add_quick
from bench.common.steps import CHECKED, Ranks, add_turns, check_turns, facts, finish, groups, verdict, wanted
from bench.common.steps import main as run
from bench.ddp import table
from bench.ddp.names import EMPTY, GLOO, NAMES
from hpcomm.bench.rows import Row

MODELS = ("mlp19", "gpt145")  # of bench/torch/models.py: few large parameters, and many small ones
LEAST = 0.2  # seconds of a turn


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m bench.ddp", description=__doc__.partition("\n\n")[0])
    p.add_argument("--models", default=",".join(MODELS), help="of bench.torch.models; default: %(default)s")
    p.add_argument("--ranks", default="2", help="numbers of ranks, a group each: 2,4; default: 2")
    add_turns(p, LEAST)
    add_quick(p, "one small model, one turn")
    add_output(p, plot="")
    options = p.parse_args(arguments)
    if options.quick:
        options.models, options.run_cycles, options.steps = "mlp3", 1, 2
    check_turns(p, options)
    options.ways = wanted(options, NAMES)
    return options


# ---- a rank ----------------------------------------------------------------------------------------------------------


class Group(Ranks):
    """The ranks of one mpirun, in a process group of each backend."""

    def __init__(self, options: argparse.Namespace, ctx: hpcomm.Context, groups: dict[str, Any]) -> None:
        super().__init__(options, ctx)
        self.groups = groups

    def model(self, key: str) -> list[Row]:
        """Returns the rows of one model; [] on ranks other than 0."""
        from bench.ddp.ways import maker  # noqa: PLC0415 - it needs torch
        from bench.torch.models import CASES, count  # noqa: PLC0415

        case, options = CASES[key], self.options
        batches = case.batches(self.ctx.rank)
        ways = {name: maker(name, case, batches, self.groups, self.ctx) for name in options.ways}
        wrong = self.check(ways, case)
        each: dict[str, list[list[float]]] = {name: [] for name in ways}
        names, steps = list(ways), options.steps
        for cycle in range(-1, options.run_cycles):
            for k in range(len(names)):
                at = names[(k + max(0, cycle)) % len(names)]  # each cycle begins with another way
                block = self.block(ways[at], steps)
                if cycle >= 0:
                    each[at].append(block)
                elif k == 0:
                    steps = self.comm.bcast(max(steps, round(LEAST / statistics.median(block))))
            self.tell((cycle + 2) / (options.run_cycles + 1))
        gathered = self.comm.gather((each, wrong))
        tensors = len(list(case.model().parameters()))
        parameters = count(case.model())
        for way in ways.values():
            way.close()
        if gathered is None:
            return []
        rows = []
        for name in names:
            cycles = [
                statistics.median(map(statistics.fmean, zip(*of_ranks, strict=True)))
                for of_ranks in zip(*(own[name] for own, _ in gathered), strict=True)
            ]
            row = {"model": key, "title": case.title, "parameters": parameters, "tensors": tensors}
            row |= {"ranks": self.ctx.size, "name": name, "steps": steps, "cycles": cycles}
            rows.append({**row, "wrong": sum(own[name] for _, own in gathered)})
        return [*table.compared(rows)]

    def block(self, way: Any, steps: int) -> list[float]:
        """Returns the seconds of each step of a turn; the first step is left out."""
        self.meet()
        way.step()
        starts = [time.perf_counter()]
        for _ in range(steps):
            way.step()
            starts.append(time.perf_counter())
        return [after - before for before, after in pairwise(starts)]

    def check(self, ways: dict[str, Any], case: Any) -> dict[str, int]:
        """Counts the wrong parameters of each way. After one step each parameter must be that of DDP over Gloo, if what
        codecs hold back is added; after some more it must have the same bits on all ranks, and without a codec it must
        still be that of DDP over Gloo."""
        from bench.ddp.ways import EXACT, alike, differing, maker  # noqa: PLC0415 - it needs torch

        first = [parameter.detach() for parameter in case.model().parameters()]
        if GLOO not in ways:
            ways = {GLOO: maker(GLOO, case, case.batches(self.ctx.rank), self.groups, self.ctx), **ways}
        one: list[Any] = []
        many: list[Any] = []
        wrong = dict.fromkeys(ways, 0)
        for name in sorted(ways, key=lambda name: name != GLOO):
            way = ways[name]
            way.step()
            due = [] if name == EMPTY else way.due()
            for _ in range(CHECKED - 1):
                way.step()
            if name == EMPTY:
                continue
            found = way.parameters()
            if name == GLOO:
                one, many = due, [tensor.clone() for tensor in found]
            if self.options.plant and self.ctx.rank == 0:
                found[0] += 1.0
            wrong[name] = differing(due, one, first, way.tolerance) + alike(found)
            if name in EXACT:
                wrong[name] += differing(found, many, first, case.tolerance)
        return wrong


def group(options: argparse.Namespace) -> int:
    """Runs a rank; returns 0 if no parameter was wrong."""
    import torch  # noqa: PLC0415 - the parent of all groups does without
    import torch.distributed as dist  # noqa: PLC0415

    import hpcomm.torch  # noqa: PLC0415
    from bench.torch.models import CASES  # noqa: PLC0415
    from bench.torch.ways import gloo  # noqa: PLC0415

    unknown = set(options.models) - set(CASES)
    if unknown:
        raise SystemExit(f"--models: there is no {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    torch.set_num_threads(1)
    if options.transport:
        os.environ["HPCOMM_TRANSPORT"] = options.transport
    rows: list[Row] = []
    with hpcomm.init(MPI.COMM_WORLD) as ctx, gloo(MPI.COMM_WORLD):
        here = Group(options, ctx, {"gloo": dist.group.WORLD, "hpcomm": dist.new_group(backend="hpcomm")})
        for i, key in enumerate(options.models):
            here.done = i / len(options.models)
            rows += here.model(key)
            gc.collect()
        document = {**facts("ddp", options, ctx), "left_out": [], "rows": rows}
    return finish(document, options, show)


# ---- all groups ------------------------------------------------------------------------------------------------------


def show(document: Row, options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(document, indent=1))
    else:
        table.show(document)
        print(verdict(document), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = options_of(given)
    return run("ddp", "2.7", lambda: groups("ddp", options, given, show), lambda: group(options))


if __name__ == "__main__":
    sys.exit(main())

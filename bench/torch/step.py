"""torch.step: a training step by hpcomm.torch, beside plain torch without an exchange and DDP over Gloo.

One mpirun for each number of ranks trains each model in all ways. The ways have the same first weights and batches and
one torch thread a rank, and take turns in blocks of a few steps. The ways of --ways are: alone; DDP over Gloo; hpcomm
with apply="step" and overlap=True; hpcomm with apply="backward"; and hpcomm's default, whose step() waits.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from mpi4py import MPI

import hpcomm
from bench.common.launch import memory
from bench.common.options import add_output, add_quick
from bench.common.steps import CHECKED, Ranks, add_turns, check_turns, facts, finish, groups, verdict, wanted
from bench.common.steps import main as run
from bench.torch import table as torch_table
from bench.torch.table import LOADED
from hpcomm.bench.rows import Row
from hpcomm.bench.training import processor

if TYPE_CHECKING:
    from bench.torch.models import Task
    from bench.torch.ways import Way

MODELS = ("mlp3", "mlp38", "resnet18", "transformer", "vgg")  # bench/torch/models.py
LEAST = 0.25  # seconds of a block
WORDS = 20  # bytes that a way needs per parameter: value, gradient, momentum, a copy or two
RANK_BYTES = 0.5e9  # of torch and its activations


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m bench.torch.step", description=__doc__.partition("\n")[0])
    p.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(MODELS)}; comma-separated")
    p.add_argument("--ranks", default="1,2,4", help="numbers of ranks, a group each; under mpirun its own counts")
    add_turns(p, LEAST)
    p.add_argument("--tail", type=int, default=3, help="more steps of a block, in which the tail is timed")
    p.add_argument("--fused", action="store_true", help="plain torch and DDP use torch's fused SGD")
    p.add_argument("--neighbour", action="store_true", help="each block also beside a process that loads one CPU")
    add_quick(p, "two small models, one cycle")
    add_output(p, "table")
    options = p.parse_args(arguments)
    if options.quick:
        options.models, options.run_cycles, options.steps, options.tail = "mlp3,transformer", 1, 2, 1
    check_turns(p, options)
    unknown = set(options.models) - set(MODELS)
    if unknown:
        p.error(f"--models: there is no {', '.join(sorted(unknown))}")
    if options.tail < 0:
        p.error("--tail must be 0 or more")
    return options


# ---- a rank ----------------------------------------------------------------------------------------------------------


class Trainer(Protocol):
    """The interface of a way of bench.torch.ways, or of its replacement."""

    def step(self) -> None: ...

    def wait(self) -> None: ...

    def watch(self) -> AbstractContextManager[list[float]]: ...


@contextmanager
def neighbour() -> Iterator[None]:
    """Runs another process that keeps this rank's first CPU busy."""
    cpu = min(os.sched_getaffinity(0))
    burns = f"import os\nos.sched_setaffinity(0, {{{cpu}}})\nprint(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", burns], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it is at it
            yield
        finally:
            process.kill()


@dataclass
class Block:
    """A rank's measurements of a few steps of one way, in seconds.

    Attributes:
        steps: from the start of each step to the start of the next.
        processor: of all threads of this rank, per step.
        tails: see bench.torch.ways.Way.watch.
    """

    steps: list[float]
    processor: float
    tails: list[float]


class Group(Ranks):
    """The ranks of one mpirun, in one process group of torch and one context of hpcomm."""

    def model(self, key: str) -> list[Row]:
        """Returns the rows of one model; [] on ranks other than 0."""
        from bench.torch import models as torch_models  # noqa: PLC0415 - it needs torch
        from bench.torch import ways as torch_ways  # noqa: PLC0415 - it needs torch

        case = torch_models.CASES[key]
        names = wanted(self.options, torch_ways.NAMES)
        rule = torch_ways.fused if self.options.fused else torch_ways.plain
        ways = [torch_ways.make(name, case, self.ctx, rule) for name in names]
        parameters = torch_models.count(ways[0].model)
        wrong = self.check(ways, case)
        models = [key, key + LOADED] if self.options.neighbour else [key]
        each: dict[str, list[list[Block]]] = {model: [[] for _ in ways] for model in models}
        steps = self.options.steps
        for cycle in range(-1, self.options.run_cycles):
            for model in models:
                with neighbour() if model != key and self.rank == 0 else nullcontext():
                    for k in range(len(ways)):
                        at = (k + max(0, cycle)) % len(ways)  # each cycle begins with another way
                        block = self.block(ways[at], steps, self.options.tail)
                        if cycle >= 0:
                            each[model][at].append(block)
                        elif at == 0 and model == key:
                            steps = self.comm.bcast(max(steps, round(LEAST / statistics.median(block.steps))))
                    self.meet()
            self.tell((cycle + 2) / (self.options.run_cycles + 1))
        gathered = self.comm.gather((each, wrong))
        for way in ways:
            way.close()
        if gathered is None:
            return []
        found = []
        for model in models:
            for k, name in enumerate(names):
                row = {"model": model, "title": case.title, "parameters": parameters, "ranks": self.size, "name": name}
                row |= {"role": torch_ways.ROLES[name], "steps": steps}
                row |= measured([rank[0][model][k] for rank in gathered])
                found.append({**row, "wrong": sum(rank[1][k] for rank in gathered)})
        return found

    def check(self, ways: Sequence["Way"], task: "Task") -> list[int]:
        """Trains each way for one step and then some more; counts the parameters that differ from DDP's. With one
        rank it also compares the way without an exchange."""
        from bench.torch import models as torch_models  # noqa: PLC0415
        from bench.torch import ways as torch_ways  # noqa: PLC0415

        first = [parameter.detach() for parameter in task.model().parameters()]
        order = sorted(range(len(ways)), key=lambda k: ways[k].name != torch_ways.DDP)
        wrong = [0] * len(ways)
        for steps, tolerance in ((1, torch_models.TOLERANCE), (CHECKED - 1, task.tolerance)):
            expected = None
            for k in order:
                self.meet()
                for _ in range(steps):
                    ways[k].step()
                if ways[k].name == torch_ways.ALONE and self.size > 1:
                    continue
                found = ways[k].parameters()
                expected = expected or found
                if self.options.plant and self.rank == 0 and steps > 1 and ways[k].name != torch_ways.DDP:
                    found[0] += 1.0
                wrong[k] += torch_ways.differing(found, expected, first, tolerance)
        return wrong

    def block(self, way: "Trainer", steps: int, tails: int) -> Block:
        """The first step is left out."""
        self.meet()
        clock = time.perf_counter
        way.step()
        used, starts = processor(), [clock()]
        for _ in range(steps):
            way.step()
            starts.append(clock())
        used = processor() - used
        with way.watch() if tails else nullcontext(list[float]()) as tail:
            for _ in range(tails + 1 if tails else 0):
                way.step()
        way.wait()
        return Block([after - before for before, after in pairwise(starts)], used / steps, tail)


def measured(ranks: Sequence[Sequence[Block]]) -> Row:
    """Returns the times of a way as entries of its row. ranks: blocks by rank and cycle."""
    found: Row = torch_table.times([[block.steps for block in rank] for rank in ranks])
    found["processor"] = [statistics.median(block.processor for block in cycle) for cycle in zip(*ranks, strict=True)]
    if ranks[0][0].tails:
        found["tail"] = torch_table.times([[block.tails for block in rank] for rank in ranks])
    return found


def group(options: argparse.Namespace) -> int:
    """Runs a rank; returns 0 if no parameter was wrong."""
    import torch  # noqa: PLC0415 - the parent of all groups does without

    from bench.torch.ways import gloo  # noqa: PLC0415

    torch.set_num_threads(1)
    rows: list[Row] = []
    left_out: list[str] = []
    with hpcomm.init(MPI.COMM_WORLD, transport=options.transport or None) as ctx, gloo(MPI.COMM_WORLD):
        here = Group(options, ctx)
        for i, key in enumerate(options.models):
            here.done = i / len(options.models)
            missing = here.comm.bcast(too_large(key, ctx.size))
            if missing:
                left_out.append(missing)
                continue
            rows += here.model(key)
            gc.collect()
        document = {**facts("torch.step", options, ctx), "left_out": left_out, "rows": rows}
    return finish(document, options, show)


def too_large(key: str, ranks: int) -> str:
    """Returns why a model is left out, or ""."""
    from bench.torch import models as torch_models  # noqa: PLC0415
    from bench.torch import ways as torch_ways  # noqa: PLC0415

    parameters = torch_models.count(torch_models.CASES[key].model())
    needed = ranks * (len(torch_ways.NAMES) * WORDS * parameters + RANK_BYTES) / 2**30
    free = memory()
    return f"{key} with {ranks} ranks left out: it needs {needed:.1f} GiB, {free:.1f} are free" if needed > free else ""


# ---- all groups ------------------------------------------------------------------------------------------------------


def show(document: Row, options: argparse.Namespace, table: bool = True) -> None:
    """Prints the promises. table: also the rows, unless they have been printed."""
    if options.json:
        print(json.dumps(document, indent=1))
        return
    print("\n".join([*(torch_table.rows(document) if table else []), *torch_table.verdicts(document)]))
    print(verdict(document), flush=True)
    if options.plot is not None:
        torch_table.draw(document, options.plot)


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = options_of(given)

    def early(found: Row, is_first: bool) -> None:
        print("\n".join(torch_table.rows(found, head=is_first)), flush=True)

    def begin() -> int:
        return groups("torch.step", options, given, partial(show, table=False), early)

    return run("torch.step", "2.4", begin, lambda: group(options))


if __name__ == "__main__":
    sys.exit(main())

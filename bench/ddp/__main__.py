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
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from mpi4py import MPI

import hpcomm
from bench.common.harness import as_rank, has_torch
from bench.common.launch import attend, cores, launched, launcher
from bench.common.options import add_output, add_quick, write
from bench.ddp import table
from bench.ddp.names import EMPTY, GLOO, NAMES
from hpcomm.bench.rows import Row

MODELS = ("mlp19", "gpt145")  # of bench/torch/models.py: few large parameters, and many small ones
CHECKED = 3  # steps until the ways are compared; rounding errors grow with every step
LEAST = 0.2  # seconds of a turn
UNABLE = 77  # exit status if the machine cannot run it
LIMIT = 3600.0  # seconds of one group of ranks


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m bench.ddp", description=__doc__.partition("\n\n")[0])
    p.add_argument("--models", default=",".join(MODELS), help="of bench.torch.models; default: %(default)s")
    p.add_argument("--ranks", default="2", help="numbers of ranks, a group each: 2,4; default: 2")
    p.add_argument("--ways", default="", help="names that contain one of these, comma-separated; default: all")
    p.add_argument("--steps", type=int, default=5, help=f"timed steps of a turn, more if it takes less than {LEAST} s")
    p.add_argument("-N", "--run_cycles", type=int, default=9, help="turns of each way")
    p.add_argument("--transport", default="", choices=("", "shm", "tcp", "verbs"), help="hpcomm's; default: the best")
    p.add_argument("--plant", action="store_true", help="spoil a value of each way, to see that #wrong counts it")
    add_quick(p, "one small model, one turn")
    add_output(p, plot="")
    options = p.parse_args(arguments)
    if options.quick:
        options.models, options.run_cycles, options.steps = "mlp3", 1, 2
    options.models = [word.strip() for word in options.models.split(",") if word.strip()]
    try:
        options.ranks = [int(word) for word in options.ranks.split(",")]
    except ValueError:
        p.error(f"--ranks: {options.ranks!r} are no numbers")
    if min(options.ranks) < 1 or options.steps < 1 or options.run_cycles < 1:
        p.error("--ranks, --steps and --run_cycles must be 1 or more")
    parts = [part.strip().lower() for part in options.ways.split(",") if part.strip()]
    options.ways = [name for name in NAMES if not parts or any(part in name.lower() for part in parts)]
    return options


# ---- a rank ----------------------------------------------------------------------------------------------------------


class Group:
    """The ranks of one mpirun."""

    def __init__(self, options: argparse.Namespace, ctx: hpcomm.Context, groups: dict[str, Any]) -> None:
        self.options, self.ctx, self.groups, self.comm = options, ctx, groups, MPI.COMM_WORLD
        self.done = 0.0

    def tell(self, part: float) -> None:
        """Reports the finished part of a model."""
        if self.ctx.rank == 0 and self.options.progress is not None:
            self.options.progress.write_text(f"{self.done + part / len(self.options.models):.4f}")

    def meet(self) -> None:
        """Waits for all ranks asleep, and so leaves the cores to ranks that still work."""
        request = self.comm.Ibarrier()
        while not request.Test():
            time.sleep(1e-4)

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
        base = maker(GLOO, case, case.batches(self.ctx.rank), self.groups, self.ctx)
        base.step()
        one = base.parameters()
        for _ in range(CHECKED - 1):
            base.step()
        many = base.parameters()
        wrong = {}
        for name, way in ways.items():
            way.step()
            due = [] if name == EMPTY else way.due()
            for _ in range(CHECKED - 1):
                way.step()
            if name == EMPTY:
                wrong[name] = 0
                continue
            found = way.parameters()
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
        facts: Row = {
            "benchmark": "ddp",
            "cores": cores(),
            "transport": ",".join(sorted({peer.transport for peer in ctx.peers} - {"self"})),
            "hpcomm": hpcomm.__version__,
            "torch": torch.__version__,
            "mpi": MPI.Get_library_version().splitlines()[0].strip("\0 "),
            "options": {
                name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()
            },
        }
    wrong = MPI.COMM_WORLD.bcast(sum(row["wrong"] for row in rows))
    if MPI.COMM_WORLD.rank == 0:
        document = {**facts, "left_out": [], "rows": rows}
        write(options, json.dumps(document, indent=1))
        if options.output_file is None:
            show(document, options)
    return 1 if wrong else 0


# ---- all groups ------------------------------------------------------------------------------------------------------


def show(document: Row, options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(document, indent=1))
    else:
        table.show(document)


def groups(options: argparse.Namespace, given: Sequence[str]) -> int:
    """Starts one group after another, and reports on all together."""
    whole: Row = {}
    with tempfile.TemporaryDirectory() as folder:
        for ranks in options.ranks:
            output = Path(folder, "group.json")
            output.unlink(missing_ok=True)
            command = [*launcher(ranks, transport=options.transport), "bench.ddp", *given, "-J", str(output)]
            status = attend(command, f"ddp, {ranks} ranks", quiet=options.json, limit=LIMIT)
            if not output.exists():
                print(f"ddp: the group of {ranks} ranks ended with status {status}, no figures", file=sys.stderr)
                return status or 2
            found = json.loads(output.read_text(encoding="utf-8"))
            whole = whole or {**found, "rows": [], "left_out": []}
            whole["rows"] += found["rows"]
            whole["left_out"] += found["left_out"]
    whole["options"]["ranks"] = options.ranks
    write(options, json.dumps(whole, indent=1))
    show(whole, options)
    return 1 if any(row["wrong"] for row in whole["rows"]) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = options_of(given)
    if not has_torch():
        print("ddp: torch is missing: pip install 'torch>=2.7'", file=sys.stderr)
        return UNABLE
    if not launched():
        os.environ["OMP_NUM_THREADS"] = "1"
        return groups(options, given)
    return as_rank(lambda: group(options))


if __name__ == "__main__":
    sys.exit(main())

"""keys_hosts: one step of all keys of a model between hosts, without a trainer, beside Gloo's sum of one flat array.

The hosts are namespaces of this machine with links of 1 Gb/s (tests/cluster/hosts.py), one or several ranks on each. A
step starts with this rank's gradients of all keys, and ends with the parameters after a step of Nesterov momentum:

    push_pull              all keys started together, in the order of a backward pass, then all waited for
    fold, apply            in two calls a key, all together, as hpcomm.torch does by default: no wait between folds and
                           applies
    fold, wait, apply      the same, with all folds waited for in between, as clipping by a norm does
    Gloo + torch SGD       an allreduce of one flat array, and torch's fused rule on every rank; if torch is there

All contenders run in one group of processes and take turns. Only one exchange is alive at a time: a turn makes it,
warms it up, times its steps and closes it. Beside each time stands the processor time of a rank, of all its threads,
including system calls. Gradients are random whole numbers, and every parameter is checked after each turn
(training.py).
"""

import argparse
import gc
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from mpi4py import MPI

import hpcomm
from bench.common import by_shapes, models
from bench.common.harness import Bench, has_torch, nbytes
from bench.common.options import add_output, add_quick, write
from bench.common.steps import meet
from bench.ops.hosts_bench import Shape, carried, rate_of, shape_of
from bench.ops.keys_table import lines
from bench.torch.table import times
from hpcomm.bench.arrays import Floats
from hpcomm.bench.rows import Row
from hpcomm.bench.training import MOMENTUM, RATE, Reference, Task, processor

if TYPE_CHECKING:
    from hpcomm.exchange import Handle

SETS = "transformer38,gpt145,lstm11,mlp34,resnet50,1x32M,100x1K,101x1K,200x1K"
QUICK = "transformer38,100x1K"
PUSH_PULL, APART, WAITING, GLOO = "push_pull", "fold, apply", "fold, wait, apply", "Gloo + torch SGD"
WAYS = (PUSH_PULL, APART, WAITING)
MODES = ("auto", "inline", "thread")
WIRE = "wire (bound)"
SMALL = 8 << 20  # bytes below which a model's steps are short, so a turn has more of them
TIMES_MORE = 5
POWERS = 16  # how often sums are summed again; float32 holds that for 8 ranks and more


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m bench.ops.keys_hosts", description=__doc__.partition("\n")[0])
    p.add_argument("--shapes", default="2x1,4x1,4x2", help="hosts x ranks, comma-separated; default: 2x1,4x1,4x2")
    p.add_argument("--sets", default=SETS, help=f"of keys: {', '.join(models.NAMES)}, or 100x1K; default: {SETS}")
    p.add_argument("--ways", default="", help="names that contain one of these, separated by semicolons; default: all")
    p.add_argument("--modes", default="auto", help=f"progress of the exchanges, of {', '.join(MODES)}; default: auto")
    p.add_argument(
        "--steps", type=int, default=5, help=f"timed steps of a turn; {TIMES_MORE} times as many below 8 MiB"
    )
    p.add_argument("--warmup", type=int, default=3, help="steps of a turn before the timed ones")
    p.add_argument("-N", "--run_cycles", type=int, default=5, help="alternated cycles: sets and ways take turns")
    p.add_argument("--rate", type=rate_of, default="1gbit", help="of each host's link, as tc writes it")
    p.add_argument("--burst", default="256k", help="bucket of the links")
    p.add_argument("--plant", action="store_true", help="spoil a parameter of each way, to see that #wrong counts it")
    p.add_argument("--part", default="", help=argparse.SUPPRESS)  # the shape of these ranks
    p.add_argument("--address", default="", help=argparse.SUPPRESS)  # of rank 0
    add_quick(p, "two hosts, small keys, one cycle")
    add_output(p, "")
    options = p.parse_args(arguments)
    if options.quick:
        options.shapes, options.sets, options.run_cycles, options.steps, options.warmup = "2x1", QUICK, 1, 2, 2
    try:
        options.shapes = [shape_of(word.strip()) for word in options.shapes.split(",") if word.strip()]
        options.sets = {word: set_of(word) for word in (part.strip() for part in options.sets.split(",")) if word}
    except argparse.ArgumentTypeError as wrong:
        p.error(str(wrong))
    options.modes = [word.strip() for word in options.modes.split(",") if word.strip()]
    if not options.modes or set(options.modes) - set(MODES):
        p.error(f"--modes: {', '.join(MODES)}, not {', '.join(options.modes) or 'nothing'}")
    if min(options.steps, options.run_cycles) < 1 or options.warmup < 0:
        p.error("--steps and --run_cycles must be 1 or more, --warmup 0 or more")
    if any(shape.racks > 1 or shape.all_hosts == 1 for shape in options.shapes):
        p.error("--shapes: two hosts or more, without racks")
    return options


def set_of(word: str) -> models.Model:
    found = re.fullmatch(r"(\d+)x([\d.]+[KMG]?)", word)
    if found:
        return models.alike(int(found[1]), nbytes(found[2]))
    if word not in models.NAMES:
        raise argparse.ArgumentTypeError(f"--sets: there is no {word}: {', '.join(models.NAMES)}, or 100x1K")
    return models.load(word)


# ---- a rank ----------------------------------------------------------------------------------------------------------


@dataclass
class Turn:
    """One way that is set up for a turn.

    Attributes:
        step: exchanges all keys once.
        params: the parameters of the keys.
        shifts: for each key, the class with which its elements begin (training.Task).
        refill: called before a step, untimed, with the number of steps so far.
        factor: of the gradients in a step, by the step's number.
        load: returns this rank's costs so far, if the way counts them: calls, wake-ups, events, and seconds by thread.
    """

    step: Callable[[], object]
    params: Sequence[Floats]
    shifts: Sequence[int]
    close: Callable[[], object]
    refill: Callable[[int], object] = lambda number: None
    factor: Callable[[int], int] = lambda number: 1
    load: Callable[[], dict[str, float]] = dict


@dataclass
class Found:
    """A rank's figures of each step of a turn, and its wrong parameters after the last step. load: costs per step."""

    seconds: list[float]
    used: list[float]
    load: dict[str, float]
    wrong: int


def by_hpcomm(job: Task, ctx: hpcomm.Context, way: str, mode: Any) -> Turn:
    names = [key.name for key in job.keys]
    given = dict(zip(names, job.params(), strict=True))
    rule = hpcomm.Nesterov(lr=RATE, momentum=MOMENTUM)
    made = hpcomm.parameter_hub(ctx, given, rule=rule, progress=mode, split=way != PUSH_PULL)
    for name, gradient in zip(names, job.gradients, strict=True):
        np.copyto(made.gradient(name).reshape(-1), gradient)
    backward = names[::-1]

    def ended(handles: "list[Handle]") -> None:
        for handle in handles:
            handle.wait()

    def push_pull() -> None:
        start = made.push_pull_nb
        with made.together():
            handles = [start(name) for name in backward]
        ended(handles)

    def apart() -> None:
        fold, apply = made.split.fold_nb, made.split.apply_nb
        with made.together():
            folds = [fold(name) for name in backward]
            applied = [apply(name) for name in names]
        ended(applied)
        ended(folds)

    def waiting() -> None:
        fold, apply = made.split.fold_nb, made.split.apply_nb
        with made.together():
            folds = [fold(name) for name in backward]
        ended(folds)
        with made.together():
            applied = [apply(name) for name in names]
        ended(applied)

    step = {PUSH_PULL: push_pull, APART: apart, WAITING: waiting}[way]
    params = [made.params[name] for name in names]
    return Turn(step, params, job.shifts, made.close, load=lambda: told(made.stats().load))


def told(load: hpcomm.stats.LoadStats) -> dict[str, float]:
    counts = {one.name: getattr(load, one.name) for one in fields(load) if one.name not in {"processor", "steps"}}
    return counts | {"calls": load.calls} | {f"seconds of {thread}": used for thread, used in load.processor.items()}


def by_gloo(job: Task) -> Turn:
    """Makes the way by Gloo. Sums stay in place, and the next step sums them again, because the time for a copy of
    the gradients would count. All ranks then have the same values, which grow by the number of ranks, a power of
    two."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    first = torch.from_numpy(np.concatenate(job.gradients))
    array = torch.from_numpy(np.concatenate(job.params()))
    weights = torch.nn.Parameter(array)
    weights.grad = first.clone()
    rule = torch.optim.SGD([weights], lr=RATE / job.bench.size, momentum=MOMENTUM, nesterov=True, fused=True)

    def step() -> None:
        dist.all_reduce(weights.grad)
        rule.step()

    def refill(number: int) -> None:
        if number % POWERS == 0:
            cast(torch.Tensor, weights.grad).copy_(first)

    starts = np.cumsum([0, *(key.count for key in job.keys)])
    params = [array.numpy()[a:b] for a, b in pairwise(starts)]
    return Turn(step, params, job.shifts, lambda: None, refill, lambda number: job.bench.size ** (number % POWERS))


class Ranks:
    """The ranks of one shape, in one process group of torch and one context of hpcomm. A Task uses it as its bench."""

    def __init__(self, options: argparse.Namespace, ctx: hpcomm.Context) -> None:
        self.options, self.ctx, self.comm = options, ctx, MPI.COMM_WORLD
        self.rank, self.size = ctx.rank, ctx.size
        ways = [(way, mode) for mode in options.modes for way in WAYS] + ([(GLOO, "")] if has_torch() else [])
        parts = [part.strip().lower() for part in options.ways.split(";") if part.strip()]
        self.ways = [pair for pair in ways if not parts or any(part in named(*pair).lower() for part in parts)]
        if not self.ways:
            raise SystemExit(f"--ways {options.ways!r}: none of {'; '.join(named(*pair) for pair in ways)}")

    def turn(self, job: Task, way: str, mode: str, steps: int) -> Found:
        made = by_gloo(job) if way == GLOO else by_hpcomm(job, self.ctx, way, mode)
        clock, warmup, expected = time.perf_counter, self.options.warmup, Reference(job)
        seconds, used, before = list[float](), list[float](), dict[str, float]()
        gradients = job.total.copy()
        meet(self.comm)
        for number in range(warmup + steps):
            made.refill(number)
            if number == warmup:
                before = made.load()
            began, had = clock(), processor()
            made.step()
            used.append(processor() - had)
            seconds.append(clock() - began)
        load = {name: (value - before.get(name, 0)) / steps for name, value in made.load().items()}
        meet(self.comm)
        for number in range(warmup + steps):
            np.multiply(gradients, made.factor(number), job.total)
            expected.step()
        job.total[...] = gradients
        if self.options.plant and self.rank == 0:
            made.params = [array.copy() for array in made.params]
            made.params[0][0] += 1
        wrong = sum(differing(*pair, expected.values) for pair in zip(made.params, made.shifts, strict=True))
        made.close()
        return Found(seconds[warmup:], used[warmup:], load, wrong)

    def rows(self, shape: Shape) -> list[Row]:
        """Returns the rows of all sets of keys; [] on ranks other than 0."""
        options, found = self.options, dict[tuple[str, str], Row]()
        turns = options.run_cycles * len(options.sets)
        for i in range(turns):
            cycle, at = divmod(i, len(options.sets))
            key = list(options.sets)[at]
            model: models.Model = options.sets[key]
            job = Task(cast(Bench, self), model.keys, 1)
            steps = options.steps * (TIMES_MORE if model.nbytes < SMALL else 1)
            first = cycle % len(self.ways)  # each cycle begins with another way
            for way, mode in self.ways[first:] + self.ways[:first]:
                job.touch()
                gathered = self.comm.gather(self.turn(job, way, mode, steps))
                if gathered is None:
                    continue
                row = found.setdefault((key, named(way, mode)), self.row(key, model, shape, way, mode))
                row["each"].append(gathered)
                row["processor"].append(statistics.median(statistics.fmean(rank.used) for rank in gathered))
                row["wrong"] += sum(rank.wrong for rank in gathered)
            gc.collect()
            if self.rank == 0 and options.progress is not None:
                options.progress.write_text(f"{(i + 1) / turns:.4f}")
        if self.rank != 0:
            return []
        for row in found.values():
            cycles: list[list[Found]] = row.pop("each")
            row.update(times([[turn.seconds for turn in rank] for rank in zip(*cycles, strict=True)]))
            loads = [rank.load for cycle in cycles for rank in cycle]
            row["load"] = {name: statistics.median(load.get(name, 0) for load in loads) for name in loads[0]}
        order = [(key, named(*pair)) for key in options.sets for pair in self.ways]
        rows = [found[pair] for pair in order]
        return [row for key in options.sets for row in self.with_bound(key, shape, rows)]

    def row(self, key: str, model: models.Model, shape: Shape, way: str, mode: str) -> Row:
        role = "peer" if way == GLOO else "hpcomm"
        facts = {"set": key, "keys": len(model.keys), "size": model.nbytes, "shape": shape.key, "ranks": self.size}
        return {**facts, "name": named(way, mode), "role": role, "mode": mode, "processor": [], "each": [], "wrong": 0}

    def with_bound(self, key: str, shape: Shape, rows: Sequence[Row]) -> Iterator[Row]:
        """Returns the rows of a set, and the time that the busiest link needs."""
        own = [row for row in rows if row["set"] == key]
        yield from own
        seconds = shape.least(own[0]["size"]) / carried(self.options.rate)
        facts = {name: own[0][name] for name in ("set", "keys", "size", "shape", "ranks")}
        bound = {"name": WIRE, "role": "bound", "mode": "", "processor": [], "wrong": 0}
        yield {**facts, **bound, **times([[[seconds]] * self.options.run_cycles])}


def named(way: str, mode: str) -> str:
    return way if mode in {"", "auto"} else f"{way} ({mode})"


def differing(found: Floats, shift: int, expected: Floats) -> int:
    """Counts the elements of a key that differ from the expected ones."""
    return int(np.count_nonzero(found.reshape(-1) != np.resize(np.roll(expected, -shift), found.size)))


@contextmanager
def process_group(comm: MPI.Intracomm, address: str) -> Iterator[str]:
    """Makes Gloo's process group, and returns torch's version; "missing" without torch."""
    if not has_torch():
        yield "missing"
        return
    import torch  # noqa: PLC0415

    from bench.torch.ways import gloo  # noqa: PLC0415

    torch.set_num_threads(1)
    with gloo(comm, "eth0", address):
        yield torch.__version__


def job(options: argparse.Namespace) -> int:
    """Runs a rank; returns 0 if no parameter was wrong."""
    comm = MPI.COMM_WORLD
    with hpcomm.init(comm) as ctx, process_group(comm, comm.bcast(options.address)) as torch:
        rows = Ranks(options, ctx).rows(shape_of(options.part))
        transport = ",".join(sorted({peer.transport for peer in ctx.peers} - {"self"}))
    wrong = comm.bcast(sum(row["wrong"] for row in rows))
    if comm.rank == 0:
        write(options, json.dumps({"transport": transport, "torch": torch, "rows": rows}))
    return 1 if wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = options_of(given)
    facts = {"burst": options.burst}
    return by_shapes.run(lambda: by_shapes.start("keys_hosts", options, given, facts, lines), lambda: job(options))


if __name__ == "__main__":
    sys.exit(main())

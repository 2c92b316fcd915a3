"""torch.gpu: the costs of parameters on a device, in bytes copied, step time and memory.

It measures the bytes that cross both ways, a training step beside plain torch and DDP over Gloo, how much of the
exchange is hidden, and the device's memory. Each number of ranks is a job of torchrun, whose ranks share one device.
--device cpu only shows that everything runs on a machine without a device; its figures mean nothing.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import hpcomm
import hpcomm.torch
from bench.common.options import add_output, add_quick, write
from bench.torch.models import Batch, Tied, count, images, mlp, sentences
from hpcomm.torch.device import device_of

PIECE = 64 << 20  # bytes of a copy
LIMIT = 600  # seconds of a job
RATE, MOMENTUM = 0.01, 0.9
Row = dict[str, Any]


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m bench.torch.gpu", description=__doc__.partition("\n")[0])
    p.add_argument("--ranks", default="1,2,4", help="numbers of ranks, a job each")
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    p.add_argument("--parameters", type=float, default=100e6, help="of the MLP whose step is timed")
    p.add_argument("--steps", type=int, default=4, help="timed steps of a block")
    p.add_argument("-N", "--run_cycles", type=int, default=7, help="alternated cycles: the ways take turns")
    add_quick(p, "small models, one cycle")
    add_output(p, plot="", progress=False)
    options = p.parse_args(arguments)
    if options.quick:
        options.parameters, options.steps, options.run_cycles = 2e5, 1, 2
    return options


# ---- a rank ----------------------------------------------------------------------------------------------------------


class Bench:
    """A rank of a job."""

    def __init__(self, options: argparse.Namespace, ctx: hpcomm.Context) -> None:
        self.options, self.ctx = options, ctx
        self.where = (
            torch.device("cuda", torch.cuda.current_device()) if options.device == "cuda" else torch.device("cpu")
        )
        self.rows: list[Row] = []

    def add(self, what: str, unit: str, value: float, **more: Any) -> None:
        self.rows.append({"ranks": self.ctx.size, "what": what, "unit": unit, "value": value, **more})

    def add_median(self, what: str, values: Sequence[float], **more: Any) -> None:
        """Adds a figure of 1 that was measured in each cycle, with its smallest and largest value."""
        self.add(what, "of 1", statistics.median(values), low=min(values), high=max(values), **more)

    def settle(self) -> None:
        """Waits until the device has finished all its work."""
        if self.where.type == "cuda":
            torch.cuda.synchronize(self.where)

    def timed(self, call: Callable[[], object], times: int) -> float:
        """Times a call that all ranks start together; returns the slowest rank's seconds."""
        self.settle()
        self.ctx.barrier()
        start = time.perf_counter()
        for _ in range(times):
            call()
        self.settle()
        own = (time.perf_counter() - start) / times
        every: list[float] = np.frombuffer(b"".join(self.ctx.allgather(np.float64(own).tobytes()))).tolist()
        return max(every)

    # ---- bytes ----

    def copies(self) -> float:
        """Measures a rank's bytes a second in both directions at once while all ranks copy, with pinned memory and
        with windows' memory; returns the second rate."""
        if self.where.type != "cuda":
            return 1e9
        n = PIECE // 4
        here = device_of({"": torch.zeros(1, device=self.where)})
        window = self.ctx.window(2 * PIECE)
        release = here.register([window.array])
        halves = torch.from_numpy(window.array.view(np.float32)).split(n)
        pinned = [torch.empty(n, pin_memory=True) for _ in range(2)]
        there = [torch.randn(n, device=self.where) for _ in range(2)]

        def both(out: Any, back: Any) -> Callable[[], None]:
            def run() -> None:
                copies = [here.copy_out(out, there[0]), here.copy_in(there[1], back)]
                while not all(copy is None or copy.reached() for copy in copies):
                    pass

            return run

        found: dict[str, list[float]] = {"pinned": [], "registered": []}
        for _ in range(self.options.run_cycles + 1):
            found["pinned"].append(2 * PIECE / self.timed(both(*pinned), 8))
            found["registered"].append(2 * PIECE / self.timed(both(*halves), 8))
        ratios = [a / b for a, b in zip(found["registered"][1:], found["pinned"][1:], strict=True)]
        self.add("bytes both ways, pinned", "GB/s", statistics.median(found["pinned"][1:]) / 1e9)
        self.add(
            "bytes both ways, the exchange's memory",
            "GB/s",
            statistics.median(found["registered"][1:]) / 1e9,
            of_pinned=statistics.median(ratios),
            low=min(ratios),
            high=max(ratios),
        )
        release()
        return statistics.median(found["registered"][1:])

    def fold(self, parameters: int) -> float:
        """Returns the seconds of an exchange of this many parameters in the host's memory."""
        values = np.random.default_rng(self.ctx.rank).standard_normal(parameters, np.float32)
        rule = hpcomm.Nesterov(lr=RATE, momentum=MOMENTUM)
        with hpcomm.parameter_hub(self.ctx, {"w": values}, rule=rule) as ex:
            ex.push_pull("w", values)
            seconds = [self.timed(lambda: ex.push_pull("w", values), 2) for _ in range(self.options.run_cycles)]
        self.add(
            f"an exchange of {parameters / 1e6:.1f} M in the host's memory", "ms", 1e3 * statistics.median(seconds)
        )
        return statistics.median(seconds)

    # ---- steps ----

    def steps(self, ways: Sequence["Way"]) -> dict[str, list[float]]:
        """Returns, by cycle, the seconds of a step of each way."""
        found: dict[str, list[float]] = {way.name: [] for way in ways}
        for cycle in range(self.options.run_cycles + 1):
            for way in ways:
                seconds = self.timed(way.step, self.options.steps)
                if cycle:  # before, memory is taken
                    found[way.name].append(seconds)
        return found

    def step(self) -> None:
        """Measures an MLP of float32: the cost of an exchange beside DDP over Gloo, and the longer of copies and
        fold."""
        side = max(16, round((self.options.parameters / 8) ** 0.5))
        batch = images(32, side)(torch.Generator().manual_seed(self.ctx.rank))
        make: Callable[[], nn.Module] = lambda: mlp([side] * 9)  # noqa: E731
        self.memory(make, batch)
        ways = [
            Way("alone", self, make, batch),
            Way("hpcomm", self, make, batch),
            Way("DDP over Gloo", self, make, batch),
        ]
        n = count(ways[0].model)
        bound = max(8 * n / self.copies(), self.fold(n))
        found = self.steps(ways)
        self.tell(f"a step of {n / 1e6:.1f} M parameters", found, bound)
        for way in ways:
            way.close()

    def hidden(self) -> None:
        """Measures which part of copies and fold is hidden, by a GPT in bfloat16 whose backward pass takes 1.5 times
        as long."""
        quick = self.options.quick
        make: Callable[[], nn.Module] = lambda: Tied(4000, 32 if quick else 768, 2 if quick else 12, 64, learned=False)  # noqa: E731
        make_half = lambda: make().to(torch.bfloat16)  # noqa: E731
        random, rows = torch.Generator().manual_seed(self.ctx.rank), 1
        n = count(make())
        bound = max(4 * n / self.copies(), self.fold(n))
        while True:
            alone = Way("alone", self, make_half, sentences(rows, 64, 4000)(random))
            alone.step()
            seconds = self.timed(alone.step, 2)
            if quick or 2 / 3 * seconds > 1.5 * bound or rows >= 4096:  # the backward pass is two thirds of a step
                break
            alone.close()
            rows *= 2
        small = Way("hpcomm, 1 text", self, make_half, sentences(1, 64, 4000)(random), overlap=True)
        small_alone = Way("alone, 1 text", self, make_half, sentences(1, 64, 4000)(random))
        ways = [alone, Way("hpcomm", self, make_half, alone.batch, overlap=True), small, small_alone]
        found = self.steps(ways)
        whole = [a - b for a, b in zip(found[small.name], found[small_alone.name], strict=True)]
        seen = [a - b for a, b in zip(found["hpcomm"], found["alone"], strict=True)]
        shares = [1 - a / b for a, b in zip(seen, whole, strict=True)]
        self.add_median(
            f"hidden of the exchange of {n / 1e6:.1f} M in bfloat16, {rows} texts of 64",
            shares,
            exchange=1e3 * statistics.median(whole),
            bound=1e3 * bound,
        )
        for way in ways:
            way.close()

    def tell(self, what: str, found: dict[str, list[float]], bound: float) -> None:
        for name, seconds in found.items():
            cost = [a - b for a, b in zip(seconds, found["alone"], strict=True)]
            more = {} if name == "alone" else {"cost": 1e3 * statistics.median(cost)}
            self.add(f"{what}: {name}", "ms", 1e3 * statistics.median(seconds), **more)
        ours, theirs = (
            [a - b for a, b in zip(found[name], found["alone"], strict=True)] for name in ("hpcomm", "DDP over Gloo")
        )
        of_theirs = [a / b for a, b in zip(ours, theirs, strict=True)]
        more = {"of_bound": statistics.median(ours) / bound, "bound": 1e3 * bound}
        self.add_median(f"{what}: cost of hpcomm over DDP's", of_theirs, **more)

    def memory(self, make: Callable[[], nn.Module], batch: Batch) -> None:
        """Measures the device memory in use between two steps, relative to model and gradients."""
        if self.where.type != "cuda":
            return
        before = torch.cuda.memory_allocated(self.where)
        way = Way("hpcomm", self, make, batch)
        for _ in range(2):
            way.step()
        self.settle()
        gc.collect()
        taken = torch.cuda.memory_allocated(self.where) - before
        own = sum(8 * p.numel() for p in way.model.parameters())
        self.add("device memory with hpcomm, over model and gradients", "of 1", taken / own)
        way.close()


class Way:
    """A model, and the way in which it is trained."""

    def __init__(
        self, name: str, bench: Bench, make: Callable[[], nn.Module], batch: Batch, *, overlap: bool = False
    ) -> None:
        self.name, self._bench = name, bench
        torch.manual_seed(16)
        self.model: Any = make().to(bench.where)
        self.batch = batch
        self._x, self._y = (one.to(bench.where) for one in batch)
        if self._x.is_floating_point():
            self._x = self._x.to(next(self.model.parameters()).dtype)
        self._optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=MOMENTUM)
        self._train = self.model
        if name.startswith("hpcomm"):
            self._optimizer = hpcomm.torch.DistributedOptimizer(self._optimizer, bench.ctx, self.model, overlap=overlap)
        elif name.startswith("DDP"):
            self._train = nn.parallel.DistributedDataParallel(self.model)

    def step(self) -> None:
        self._optimizer.zero_grad()
        found = self._train(self._x)
        F.cross_entropy(found.float(), self._y % found.shape[1]).backward()
        self._optimizer.step()

    def close(self) -> None:
        self._bench.settle()
        if isinstance(self._optimizer, hpcomm.torch.DistributedOptimizer):
            self._optimizer.close()
        del self._optimizer, self._train, self.model
        gc.collect()


def rank(options: argparse.Namespace) -> None:
    """Does the work of each rank of a job."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with hpcomm.init() as ctx:
        bench = Bench(options, ctx)
        bench.step()
        bench.hidden()
        if ctx.rank == 0:
            write(options, json.dumps(bench.rows))
    dist.destroy_process_group()


# ---- all jobs --------------------------------------------------------------------------------------------------------


def job(options: argparse.Namespace, ranks: int) -> list[Row]:
    """The rows of a job."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "rows.json"
        own = ["--device", options.device, "--parameters", str(options.parameters), "--steps", str(options.steps)]
        own += ["-N", str(options.run_cycles), "-J", str(found), *(["--quick"] if options.quick else [])]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command += ["--module", "bench.torch.gpu", *own]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, timeout=LIMIT, env=env, stdout=subprocess.DEVNULL)
        rows: list[Row] = json.loads(found.read_text(encoding="utf-8"))
        return rows


def card(options: argparse.Namespace) -> str:
    return torch.cuda.get_device_name() if options.device == "cuda" else "no device"


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        rank(options)
        return 0
    if options.device == "cuda" and not torch.cuda.is_available():
        print("torch.gpu: this machine has no CUDA device, or its torch has no CUDA: give --device cpu to see it run")
        return 77
    rows = [row for ranks in options.ranks.split(",") for row in job(options, int(ranks))]
    facts = {"card": card(options), "cores": len(os.sched_getaffinity(0)), "torch": torch.__version__, "rows": rows}
    text = json.dumps(facts, indent=1)
    write(options, text)
    print(text if options.json else table(facts))
    return 0


def table(facts: Row) -> str:
    lines = [
        f"{facts['card']}, {facts['cores']} cores, torch {facts['torch']}",
        "",
        f"{'ranks':>5}  {'value':>10}  what",
    ]
    for row in facts["rows"]:
        more = ", ".join(f"{name} {row[name]:.3g}" for name in row if name not in ("ranks", "what", "unit", "value"))
        lines.append(f"{row['ranks']:>5}  {row['value']:>10.3f}  {row['what']}, {row['unit']}{more and f' ({more})'}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

"""The ranks of torch.hosts whose models compute. Needs torch.

Only one way is alive at a time: a turn makes it, warms it up, times its steps and closes it. All take AdamW's steps.
Before the turns, each way trains for a few steps, and its parameters are compared with DDP's.
"""

import gc
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack

import torch

from bench.ops.hosts_bench import Shape, carried
from bench.torch import ways as torch_ways
from bench.torch.models import CASES, Case, count
from bench.torch.step import Block, Group, measured
from bench.torch.table import ALONE, DDP, STEP, WAITS
from bench.torch.ways import Way
from hpcomm.bench.rows import Row

WAYS = (ALONE, DDP, WAITS, STEP)
WARMUP = 3  # steps: DDP rebuilds its buckets in the second
FIRSTS = 3  # steps in which the time to the first gradient is measured


class Real(Group):
    def rows(self, shape: Shape) -> list[Row]:
        """Returns the rows of all models; [] on ranks other than 0."""
        found = []
        for i, key in enumerate(self.options.models):
            self.done = i / len(self.options.models)
            found += self.turns(key, CASES[key], shape)
            gc.collect()
        return found

    def turns(self, key: str, case: Case, shape: Shape) -> list[Row]:
        names = [name for name in WAYS if self.wanted(name)]
        wrong = self.checked(names, case)
        each: dict[str, list[Block]] = {name: [] for name in names}
        firsts: list[float] = []
        for cycle in range(self.options.run_cycles):
            at = cycle % len(names)  # each cycle begins with another way
            for name in names[at:] + names[:at]:
                way = torch_ways.make(name, case, self.ctx, torch_ways.adamw)
                for _ in range(WARMUP):
                    way.step()
                each[name].append(self.block(way, self.options.steps, self.options.tail))
                if name == ALONE:
                    firsts.append(self.first(way))
                self.meet()
                way.close()
                del way
                gc.collect()
            self.tell((cycle + 1) / self.options.run_cycles)
        gathered = self.comm.gather((each, firsts, wrong))
        if gathered is None:
            return []
        parameters = count(case.model())
        facts = {"shape": shape.key, "ranks": self.size, "model": key, "title": case.title, "parameters": parameters}
        facts["wire"] = shape.least(4 * parameters) / carried(self.options.rate)
        found = []
        for k, name in enumerate(names):
            row = {**facts, "name": name, "role": torch_ways.ROLES[name], "wrong": sum(rank[2][k] for rank in gathered)}
            row |= measured([rank[0][name] for rank in gathered])
            if name == ALONE:
                each_rank = zip(*(rank[1] for rank in gathered), strict=True)
                row["first"] = statistics.median(statistics.fmean(cycle) for cycle in each_rank)
            found.append(row)
        return found

    def checked(self, names: Sequence[str], case: Case) -> list[int]:
        """Counts, for each way, the parameters that differ from DDP's."""
        ways = [torch_ways.make(name, case, self.ctx, torch_ways.adamw) for name in names]
        wrong = self.check(ways, case)
        self.meet()
        for way in ways:
            way.close()
        return wrong

    def first(self, way: Way) -> float:
        """Returns the median seconds from the start of a step to its first gradient; nothing can be sent before it."""
        first = 0.0

        def gradient(_: torch.Tensor) -> None:
            nonlocal first
            first = first or time.perf_counter()

        found = []
        with ExitStack() as hooks:
            for parameter in way.model.parameters():
                hooks.callback(parameter.register_post_accumulate_grad_hook(gradient).remove)
            self.meet()
            for _ in range(FIRSTS):
                first, began = 0.0, time.perf_counter()
                way.step()
                found.append(first - began)
        return statistics.median(found)

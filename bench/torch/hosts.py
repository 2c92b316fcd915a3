"""torch.hosts: a training step of torch on hosts that are joined by links of 1 Gb/s.

The hosts are namespaces of this machine (tests/cluster/hosts.py), one or several ranks on each. They would compete for
its cores, so by default timers replace computing: rank 0 measures each layer of a real model while all others sleep,
and afterwards a layer's forward and backward pass sleep for that long on every host. The exchanges are real.

With --computing real the models compute on every rank at once, beside the exchange's own threads, as on hosts without a
spare core; see real.py. Each time has a rank's processor time beside it, of all its threads.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

import hpcomm
from bench.common import by_shapes
from bench.common.harness import has_torch
from bench.common.options import add_output, add_quick, write
from bench.common.steps import UNABLE
from bench.ops.hosts_bench import rate_of, shape_of
from bench.torch import real_table
from bench.torch.hosts_table import ALL_REDUCE, PUSH_PULL, lines
from bench.torch.real_table import REAL
from bench.torch.step import Block, Group, measured
from bench.torch.table import ALONE
from hpcomm.bench.rows import Row

if TYPE_CHECKING:
    from bench.torch.timers import Time, Timers
    from bench.torch.ways import Way

TIMERS = "timers"
REAL_MODELS = ("transformer38", "lstm11", "mlp34", "gpt145")  # bench/torch/models.py
MODELS = {"3": (1024, 1024, 1024, 1024, 10), "20": (1024, *5 * (2112,), 10)}  # millions of parameters: widths


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m bench.torch.hosts", description=__doc__.partition("\n")[0])
    p.add_argument("--computing", choices=(TIMERS, REAL), default=TIMERS, help="how models compute")
    p.add_argument("--shapes", default="", help="hosts x ranks, comma-separated; default: 4x1, real: 2x1,4x1,2x2,4x2")
    p.add_argument(
        "--models",
        default="",
        help=f"of {', '.join(MODELS)} (millions of parameters; with timers) or {', '.join(REAL_MODELS)} (real), "
        "comma-separated; default: all",
    )
    p.add_argument("--batches", default="32,512", help="with timers: examples of a step of one rank")
    p.set_defaults(burst="256k")
    p.add_argument("--rate", type=rate_of, default="1gbit", help="rate of each host's link, as tc writes it")
    p.add_argument("--ways", default="", help="names that contain one of these, comma-separated; default: all")
    p.add_argument("--steps", type=int, default=4, help="timed steps of a block")
    p.add_argument("-N", "--run_cycles", type=int, default=5, help="alternated cycles: the ways take turns")
    p.add_argument("--tail", type=int, default=2, help="more steps of a block, in which the tail is timed")
    p.add_argument("--plant", action="store_true", help="spoil a tensor of each way, to see that #wrong counts it")
    p.add_argument("--part", default="", help=argparse.SUPPRESS)  # the shape of these ranks
    add_quick(p, "the small model, one batch or shape, one cycle")
    p.add_argument("--address", default="", help=argparse.SUPPRESS)  # of rank 0
    add_output(p, "")
    options = p.parse_args(arguments)
    known: Sequence[str] = REAL_MODELS if options.computing == REAL else tuple(MODELS)
    if options.quick:
        options.models, options.batches, options.run_cycles, options.steps, options.tail = known[0], "512", 1, 2, 1
        options.shapes = options.shapes or "2x1"
    options.models = [word.strip() for word in options.models.split(",") if word.strip()] or list(known)
    unknown = set(options.models) - set(known)
    if unknown:
        p.error(f"--models: with {options.computing} there is no {', '.join(sorted(unknown))}: {', '.join(known)}")
    given = options.shapes or ("2x1,4x1,2x2,4x2" if options.computing == REAL else "4x1")
    try:
        options.shapes = [shape_of(word.strip()) for word in given.split(",") if word.strip()]
    except argparse.ArgumentTypeError as wrong:
        p.error(f"--shapes: {wrong}")
    if any(shape.racks > 1 or shape.all_hosts == 1 for shape in options.shapes):
        p.error("--shapes: two hosts or more, without racks")
    try:
        options.batches = [int(word) for word in options.batches.split(",")]
    except ValueError:
        p.error(f"--batches: {options.batches!r} are no numbers")
    if min(options.batches) < 1 or options.steps < 1 or options.run_cycles < 1 or options.tail < 0:
        p.error("--batches, --steps and --run_cycles must be 1 or more, --tail 0 or more")
    return options


# ---- a rank ----------------------------------------------------------------------------------------------------------


class Bare:
    """An exchange of all parameters without a trainer, used like a way."""

    def __init__(self, exchange: Callable[[], None]) -> None:
        self.step = exchange

    def wait(self) -> None:
        pass

    def watch(self) -> AbstractContextManager[list[float]]:
        return nullcontext([])


class Hosts(Group):
    """The ranks of all hosts."""

    def timers(self, sizes: Sequence[int], batch: int) -> tuple[list["Time"], float]:
        """Measures, on rank 0, each layer's time while all other ranks sleep."""
        from bench.torch.timers import calibrate  # noqa: PLC0415

        self.meet()
        found = calibrate(sizes, batch) if self.rank == 0 else None
        self.meet()
        return self.comm.bcast(found)  # type: ignore[no-any-return]

    def bare(self, case: "Timers") -> "dict[str, tuple[Way | Bare, Callable[[], object]]]":
        """Measures push_pull of the whole model with all keys pending at once, and Gloo's sum of one array of the
        same size."""
        import torch  # noqa: PLC0415
        import torch.distributed as dist  # noqa: PLC0415

        arrays = {name: p.detach().numpy() for name, p in case.model().named_parameters()}
        exchange = hpcomm.parameter_hub(self.ctx, arrays, rule=hpcomm.Momentum(0.01, 0.9))
        random = np.random.default_rng(self.rank)
        for name, array in arrays.items():
            exchange.gradient(name)[...] = random.standard_normal(array.shape, np.float32)
        flat = torch.randn(sum(array.size for array in arrays.values()))

        def push_pull() -> None:
            for handle in [exchange.push_pull_nb(name) for name in reversed(arrays)]:
                handle.wait()

        def all_reduce() -> None:
            dist.all_reduce(flat)
            flat.div_(self.size)

        return {PUSH_PULL: (Bare(push_pull), exchange.close), ALL_REDUCE: (Bare(all_reduce), lambda: None)}

    def turns(self, key: str, batch: int) -> list[Row]:
        """Returns the rows of one model and batch; [] on ranks other than 0."""
        from bench.torch import ways as torch_ways  # noqa: PLC0415
        from bench.torch.timers import Timers, loss  # noqa: PLC0415

        layers, whole = self.timers(MODELS[key], batch)
        case = Timers(MODELS[key], layers, self.rank)
        names = [name for name in torch_ways.NAMES if self.wanted(name)]
        ways = [torch_ways.make(name, case, self.ctx, torch_ways.fused, loss) for name in names]
        for way in ways:
            if way.name == ALONE:
                way.update = lambda: None  # type: ignore[method-assign] # computing alone
        wrong = self.check(ways, case)
        ends: dict[str, tuple[Way | Bare, Callable[[], object]]] = {way.name: (way, way.close) for way in ways}
        ends |= self.bare(case)
        each: dict[str, list[Block]] = {name: [] for name in ends}
        for cycle in range(self.options.run_cycles):
            order = list(ends)
            for name in order[cycle % len(order) :] + order[: cycle % len(order)]:
                tailed = self.options.tail if name in names else 0
                each[name].append(self.block(ends[name][0], self.options.steps, tailed))
            self.tell((cycle + 1) / self.options.run_cycles)
        gathered = self.comm.gather((each, dict(zip(names, wrong, strict=True))))
        for _, close in ends.values():
            close()
        if gathered is None:
            return []
        compute, layer = sum(one.both for one in layers), max(one.both for one in layers)
        found = []
        for name in ends:
            row = {"model": key, "batch": batch, "ranks": self.size, "name": name}
            row |= {"role": torch_ways.ROLES.get(name, "bound"), "compute": compute, "whole": whole, "layer": layer}
            row |= {"layers": [vars(one) for one in layers]}
            row |= measured([rank[0][name] for rank in gathered])
            found.append({**row, "wrong": sum(rank[1].get(name, 0) for rank in gathered)})
        return found


def job(options: argparse.Namespace) -> int:
    """Runs a rank; returns 0 if no parameter was wrong."""
    import torch  # noqa: PLC0415

    from bench.torch.ways import gloo  # noqa: PLC0415

    torch.set_num_threads(1)
    rows: list[Row] = []
    comm = MPI.COMM_WORLD
    address = comm.bcast(options.address)
    with hpcomm.init(comm) as ctx, gloo(comm, "eth0", address):
        if options.computing == REAL:
            from bench.torch.real import Real  # noqa: PLC0415

            rows = Real(options, ctx).rows(shape_of(options.part))
        else:
            here = Hosts(options, ctx)
            for i, key in enumerate(options.models):
                for j, batch in enumerate(options.batches):
                    here.done = (i + j / len(options.batches)) / len(options.models)
                    rows += [{"shape": options.part, **row} for row in here.turns(key, batch)]
        facts = {
            "transport": ",".join(sorted({peer.transport for peer in ctx.peers} - {"self"})),
            "torch": torch.__version__,
        }
    wrong = comm.bcast(sum(row["wrong"] for row in rows))
    if comm.rank == 0:
        write(options, json.dumps({**facts, "rows": rows}))
    return 1 if wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = options_of(given)
    if not has_torch():
        print("torch.hosts: torch is missing: pip install 'torch>=2.4'", file=sys.stderr)
        return UNABLE
    table = real_table.lines if options.computing == REAL else lines
    facts = {"computing": options.computing}
    return by_shapes.run(lambda: by_shapes.start("torch.hosts", options, given, facts, table), lambda: job(options))


if __name__ == "__main__":
    sys.exit(main())

"""local_steps: training steps with an exchange once in H steps (DiLoCo), on hosts joined by slow links.

The hosts are namespaces of this machine (tests/cluster/hosts.py), one rank on each, with links of 1 Gb/s and of 100
Mb/s. They would compete for its cores, so timers replace computing. The exchanges are real: the whole model every H
steps; fragments of it that travel while the next steps are computed; and such fragments by TopK in both directions.

The peers are DDP over Gloo, which exchanges in every step, and forty lines of torch that do the work of
hpcomm.torch.DiLoCo (local_steps_by_hand.py).
"""

import argparse
import json
import sys
import time
import zlib
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING

from mpi4py import MPI

import hpcomm
from bench.common import by_shapes
from bench.common.harness import has_torch
from bench.common.options import add_output, add_quick, write
from bench.common.steps import UNABLE
from bench.common.wire import sent
from bench.ops.hosts_bench import Shape, carried, rate_of
from bench.torch.local_steps_table import BY_HAND, NAMES, ROLES, STREAM, TOPK, WHOLE, lines
from bench.torch.step import Block, Group
from bench.torch.table import ALONE, DDP
from hpcomm.bench.rows import Row
from hpcomm.bench.training import processor

if TYPE_CHECKING:
    from torch import Tensor

    from bench.torch.local_steps_ways import Gloo, Local

HOSTS = 4
WIDTHS = (1024, *5 * (2112,), 10)  # of the layers: 20 million parameters
SMALL = (64, 64, 64, 64, 10)
MOVES = 500  # elements of a parameter that change; TopK sends some of them
# By whether the link is fast: the ways left out unless they are named, and the delay as a part of H.
LEFT_OUT = {True: (TOPK,), False: (WHOLE, DDP)}
DELAYS = {True: 0.2, False: 0.5}


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m bench.torch.local_steps", description=__doc__.partition("\n")[0])
    p.add_argument("--rates", default="1gbit,100mbit", help="of each host's link, as tc writes them, comma-separated")
    p.add_argument("--hosts", type=int, default=HOSTS, help=f"with a rank on each; default: {HOSTS}")
    p.add_argument("--ways", default="", help="names that contain one of these, comma-separated; default: by the rate")
    p.add_argument("--every", type=int, default=50, help="H: steps between two exchanges of a fragment")
    p.add_argument("--fragments", type=int, default=4, help="of the streaming ways")
    p.add_argument(
        "--delay", type=int, default=-1, help="steps that a fragment travels; default: H / 5, slow links H / 2"
    )
    p.add_argument("--compute", type=float, default=81, help="milliseconds of a step without its exchange")
    p.add_argument("--steps", type=int, default=2, help="timed steps of a block of DDP; the other ways take H")
    p.add_argument("-N", "--run_cycles", type=int, default=3, help="alternated cycles: the ways take turns")
    p.add_argument("--burst", default="256k", help="bucket of the links")
    p.add_argument("--plant", action="store_true", help="spoil a tensor of each way, to see that #wrong counts it")
    p.add_argument("--part", default="", help=argparse.SUPPRESS)  # the shape of these ranks
    p.add_argument("--rate", default="", help=argparse.SUPPRESS)  # of their links
    p.add_argument("--address", default="", help=argparse.SUPPRESS)  # of rank 0
    add_quick(p, "a small model, a short H, one cycle")
    add_output(p, "")
    options = p.parse_args(arguments)
    if options.quick:
        options.every, options.compute, options.run_cycles = 8, 2.0, 1
    try:
        options.rates = [rate_of(word.strip()) for word in options.rates.split(",") if word.strip()]
    except argparse.ArgumentTypeError as wrong:
        p.error(f"--rates: {wrong}")
    if options.hosts < 2:
        p.error("--hosts must be 2 or more")
    if min(options.every, options.fragments, options.steps, options.run_cycles) < 1 or options.compute <= 0:
        p.error("--every, --fragments, --steps and --run_cycles must be 1 or more, --compute above 0")
    if options.fragments > options.every or options.delay >= options.every:
        p.error("--fragments must be at most --every, and --delay less")
    words = [word.strip().lower() for word in options.ways.split(",") if word.strip()]
    if not all(any(word in name.lower() for name in NAMES) for word in words):
        p.error(f"--ways: of {'; '.join(NAMES)}")
    return options


# ---- a rank ----------------------------------------------------------------------------------------------------------


class Hosts(Group):
    """The ranks of all hosts, with links of one rate."""

    def rows(self) -> list[Row]:
        """[] on all ranks but 0."""
        from bench.torch import local_steps_ways  # noqa: PLC0415 - it needs torch
        from bench.torch.timers import Timers  # noqa: PLC0415

        options, sizes = self.options, SMALL if self.options.quick else WIDTHS
        compute = options.compute / 1e3
        count = sum((a + 1) * b for a, b in pairwise(sizes))
        wire = 8 * count * (self.size - 1) / self.size / carried(options.rate) / options.every
        has_time = wire <= compute
        delay = int(DELAYS[has_time] * options.every) if options.delay < 0 else options.delay
        some = options.ways or options.quick
        names = [name for name in NAMES if (self.wanted(name) if some else name not in LEFT_OUT[has_time])]
        case = Timers(sizes, local_steps_ways.times_of(sizes, compute), self.rank)
        ways = {
            name: local_steps_ways.make(name, case, self.ctx, options.every, options.fragments, delay) for name in names
        }
        checked = self.checked(ways)
        each: dict[str, list[Block]] = {name: [] for name in names}
        for cycle in range(options.run_cycles):
            for name in names[cycle % len(names) :] + names[: cycle % len(names)]:
                before = options.every if name in (STREAM, TOPK) else 1
                each[name].append(self.steps_of(ways[name], before, options.steps if name == DDP else options.every))
            self.tell((cycle + 1) / options.run_cycles)
        gathered = self.comm.gather((each, checked))
        for way in ways.values():
            way.close()
        if gathered is None:
            return []
        facts = {"rate": options.rate, "ranks": self.size, "parameters": count, "compute": compute, "wire": wire}
        facts |= {"every": options.every, "fragments": options.fragments, "delay": delay}
        found = []
        for name in names:
            row = {**facts, "name": name, "role": ROLES[name], **measured([rank[0][name] for rank in gathered])}
            row |= {"bytes": max(rank[1][name][0] for rank in gathered)}
            found.append({**row, "wrong": sum(rank[1][name][1] for rank in gathered)})
        return found

    def checked(self, ways: "dict[str, Local | Gloo]") -> dict[str, tuple[float, int]]:
        """Checks each way's first H steps. Returns the bytes that this host sent in one of them, and the number of
        wrong parameters: all ranks must have equal parameters, and hpcomm's without fragments must match DiLoCo by
        hand up to rounding."""
        import torch  # noqa: PLC0415

        from bench.torch.models import TOLERANCE  # noqa: PLC0415
        from bench.torch.ways import differing  # noqa: PLC0415

        found, expected = {}, None
        for name, way in ways.items():
            first = [parameter.detach().clone() for parameter in way.model.parameters()]
            steps = 1 if name == DDP else self.options.every
            self.meet()
            if name == DDP:
                way.step()  # the first one makes its buckets
                self.meet()
            before = sent()
            for _ in range(steps):
                way.step()
            way.wait()
            nbytes = (sent() - before) / steps
            self.meet()
            own = self.copies(way)
            stayed = [a for a, b in zip(own, first, strict=True) if torch.equal(a, b)]
            wrong = sum(parameter.numel() for parameter in stayed if parameter.numel() >= MOVES)
            if name == BY_HAND:
                expected = own
            if name == WHOLE and expected is not None:
                wrong += differing(own, expected, first, TOLERANCE)
            way.sync()
            bits = [zlib.crc32(array.numpy().reshape(-1).view("u1").data) for array in self.copies(way)]
            same = [len(set(ranks)) == 1 for ranks in zip(*self.comm.allgather(bits), strict=True)]
            if self.rank == 0 and name != ALONE:
                wrong += sum(array.numel() for array, alike in zip(own, same, strict=True) if not alike)
            found[name] = (nbytes, wrong)
        return found

    def copies(self, way: "Local | Gloo") -> "list[Tensor]":
        """Returns a way's parameters; --plant spoils the first one on rank 1."""
        found = [parameter.detach().clone() for parameter in way.model.parameters()]
        if self.options.plant and self.rank == 1 and way.name not in (ALONE, BY_HAND):
            found[0] += 1.0
        return found

    def steps_of(self, way: "Local | Gloo", before: int, steps: int) -> Block:
        """Times steps. before: untimed steps, as many as it takes until fragments travel in their final rhythm."""
        self.meet()
        clock = time.perf_counter
        for _ in range(before):
            way.step()
        used, starts = processor(), [clock()]
        for _ in range(steps):
            way.step()
            starts.append(clock())
        used = processor() - used
        way.wait()
        return Block([after - start for start, after in pairwise(starts)], used / steps, [])


def measured(ranks: Sequence[Sequence[Block]]) -> Row:
    """Makes a row. ranks: blocks by rank and cycle. Step k of a cycle is averaged over the ranks; a cycle's figure
    is the mean of its steps."""
    together = list(zip(*ranks, strict=True))
    cycles = [[fmean(each) for each in zip(*(block.steps for block in of), strict=True)] for of in together]
    found: Row = {"cycles": [fmean(cycle) for cycle in cycles], "steps": cycles}
    found["worst"] = [max(cycle) / median(cycle) for cycle in cycles]
    found["processor"] = [median(block.processor for block in of) for of in together]
    return found


def job(options: argparse.Namespace) -> int:
    """Runs a rank; returns 0 if no parameter was wrong."""
    import torch  # noqa: PLC0415

    from bench.torch.ways import gloo  # noqa: PLC0415

    torch.set_num_threads(1)
    comm = MPI.COMM_WORLD
    options.models = [""]  # Group reports how many of these are done
    with hpcomm.init(comm) as ctx, gloo(comm, "eth0", comm.bcast(options.address)):
        rows = Hosts(options, ctx).rows()
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
        print("local_steps: torch is missing: pip install 'torch>=2.4'", file=sys.stderr)
        return UNABLE
    runs = [(Shape(1, options.hosts, 1), [*given, "--rate", rate], rate) for rate in options.rates]
    return by_shapes.run(lambda: by_shapes.start("local_steps", options, given, {}, lines, runs), lambda: job(options))


if __name__ == "__main__":
    sys.exit(main())

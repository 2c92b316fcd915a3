"""poseidon: training steps whose linear layers go by the cheapest way (Poseidon, section 3.2), beside DDP over Gloo.

The hosts are namespaces of this machine with links of 1 Gb/s, one rank on each. --groups:

    steps     models compute, on all ranks at once. The ways take turns; a turn makes a way, warms it up, times its
              steps and closes it. The parameters of exact ways are compared with DDP's.
    choice    random layers: the choice, and the time of both ways.
    traffic   figure 10: the bytes of each node in a step of VGG19 at a quarter of its width.

The networks of these groups are lists of layers at a quarter of their width, which compute by timer:

    scaling   figures 5, 6 and 9a: the speedup of 2, 4 and 8 hosts.
    stall     figure 7: computing and waiting on eight hosts.
    bandwidth figure 8: the speedup with links of 0.1 to 1 Gb/s.
    methods   section 5.3: Adam's way and 1-bit.
    ranks     several ranks on each host.

These groups train on scikit-learn's digits, or with --data on CIFAR-10:

    accuracy  figure 9b: a small ResNet on 1, 2 and 4 hosts, the error by epoch.
    onebit    figure 11: CIFAR-10 quick on 4 hosts, exact and by 1-bit, the loss by iteration.
"""

import argparse
import gc
import json
import sys
from collections.abc import Sequence

from mpi4py import MPI

import hpcomm
from bench.common import by_shapes
from bench.common.harness import has_torch
from bench.common.options import write
from bench.common.steps import UNABLE
from bench.ops.hosts_bench import Shape, carried
from bench.poseidon import plots, table
from bench.poseidon.choice import Choice, Load
from bench.poseidon.figures import Timed
from bench.poseidon.options import options_of, runs, shape_in
from bench.poseidon.systems import FIGURES
from bench.poseidon.table import HYBRID, LOSSY, NAMES, OF_ONE, ROLES
from bench.torch.step import Block, Group, measured
from hpcomm.bench.rows import Row

WARMUP = 3  # steps: way="auto" sends matrices in the first, DDP rebuilds its buckets in the second


class Poseidon(Group):
    def rows(self, shape: Shape) -> list[Row]:
        """Returns the rows of all models; [] on ranks other than 0."""
        found = []
        for i, key in enumerate(self.options.models):
            self.done = i / len(self.options.models)
            found += self.turns(key, shape)
            gc.collect()
        return found

    def turns(self, key: str, shape: Shape) -> list[Row]:
        from bench.poseidon.ways import Hybrid, make  # noqa: PLC0415 - they need torch
        from bench.torch.models import CASES, count  # noqa: PLC0415

        case = CASES[key]
        names = [name for name in (NAMES if self.size > 1 else OF_ONE) if self.wanted(name)]
        if not names:
            return []
        exact = [name for name in names if name not in LOSSY]
        ways = [make(name, case, self.ctx) for name in exact]
        wrong = dict(zip(exact, self.check(ways, case), strict=True))
        self.meet()
        for way in ways:
            way.close()
        del ways
        gc.collect()
        each: dict[str, list[Block]] = {name: [] for name in names}
        sent, tables = dict.fromkeys(names, 0), dict.fromkeys(names, "")
        for cycle in range(self.options.run_cycles):
            at = cycle % len(names)  # each cycle begins with another way
            for name in names[at:] + names[:at]:
                way = make(name, case, self.ctx)
                for _ in range(WARMUP):
                    way.step()
                way.wait()
                self.meet()  # owners have sent all
                before = _sent(way.wrapped.exchange) if isinstance(way, Hybrid) else 0
                each[name].append(self.block(way, self.options.steps, 0))
                self.meet()
                if isinstance(way, Hybrid):
                    sent[name] = (_sent(way.wrapped.exchange) - before) // (1 + self.options.steps)
                    way.wrapped.zero_grad()
                    tables[name] = str(way.wrapped.measure_ways(1) if cycle == 0 else tables[name])
                self.meet()
                way.close()
                del way
                gc.collect()
            self.tell((cycle + 1) / self.options.run_cycles)
        gathered = self.comm.gather((each, sent, wrong))
        if gathered is None:
            return []
        parameters = count(case.model())
        facts = {"shape": shape.key, "ranks": self.size, "model": key, "title": case.title, "parameters": parameters}
        facts["wire"] = shape.least(4 * parameters) / carried(self.options.rate)
        found = []
        for name in names:
            row = {**facts, "name": name, "role": ROLES[name], "ways": tables[name] if name in HYBRID else ""}
            row |= {"sent": sum(rank[1][name] for rank in gathered), "lossy": name in LOSSY}
            row |= measured([rank[0][name] for rank in gathered])
            found.append({**row, "wrong": sum(rank[2].get(name, 0) for rank in gathered)})
        return found


def _sent(exchange: hpcomm.Exchange) -> int:
    return sum(entry.bytes for entry in exchange.stats().traffic)


def job(options: argparse.Namespace) -> int:
    """Runs a rank; returns 0 if no parameter was wrong."""
    import torch  # noqa: PLC0415

    from bench.torch.ways import gloo  # noqa: PLC0415

    torch.set_num_threads(1)
    comm = MPI.COMM_WORLD
    address = comm.bcast(options.address)
    shape, rows = shape_in(options.part), list[Row]()
    with hpcomm.init(comm) as ctx, gloo(comm, "eth0", address):
        for group in options.groups:
            if group == "steps":
                rows += [{"group": "steps", **row} for row in Poseidon(options, ctx).rows(shape)]
            elif group == "choice":
                rows += Choice(options, ctx).rows()
            elif group == "traffic":
                rows += Load(options, ctx).rows()
            elif group in FIGURES:
                rows += Timed(options, ctx).rows(group, shape)
            else:
                from bench.poseidon.training import Trainings  # noqa: PLC0415

                rows += Trainings(options, ctx).rows(group)
        transports = sorted({peer.transport for peer in ctx.peers} - {"self"})
        facts = {"transport": ",".join(transports), "torch": torch.__version__}
    wrong = comm.bcast(sum(row["wrong"] for row in rows))
    if comm.rank == 0:
        write(options, json.dumps({**facts, "rows": rows}))
    return 1 if wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = options_of(given, __doc__.partition("\n")[0])
    if not has_torch():
        print("poseidon: torch is missing: pip install 'torch>=2.4'", file=sys.stderr)
        return UNABLE
    jobs, lines = runs(options, given), table.lines
    return by_shapes.run(
        lambda: by_shapes.start("poseidon", options, given, {}, lines, jobs, plots.draw), lambda: job(options)
    )


if __name__ == "__main__":
    sys.exit(main())

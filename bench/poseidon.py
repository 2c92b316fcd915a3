"""poseidon: training steps whose linear layers go by what costs least (Poseidon, section 3.2), beside DDP over Gloo.

The hosts are namespaces of this machine with links of 1 Gb/s, one rank on each. --groups:

    steps     models compute, on all ranks at once. The ways take turns; a turn makes a way, warms it up, times its
              steps and closes it. The parameters of exact ways are compared with DDP's.
    choice    random layers: what is chosen, and what both ways take.
    traffic   figure 10: the bytes of each node in a step of VGG19 at a quarter of its width.
"""

import argparse
import gc
import json
import sys
from collections.abc import Sequence

from mpi4py import MPI

import hpcomm
from bench import by_shapes, poseidon_table
from bench.harness import has_torch
from bench.hosts_bench import Shape, carried, rate_of, shape_of
from bench.options import add_output, add_quick, write
from bench.poseidon_choice import Choice, Load
from bench.poseidon_table import HYBRID, LOSSY, NAMES, ROLES
from bench.rows import Row
from bench.torch_step import UNABLE, Block, Group, measured

WARMUP = 3  # steps: the first one of scheme="auto" goes as matrices, DDP makes its buckets anew in the second
GROUPS = {"steps": "4x1", "choice": "4x1", "traffic": "8x1"}  # and the hosts of each
MODELS = ("mlp19",)  # bench/torch_models.py


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m bench.poseidon", description=__doc__.partition("\n")[0])
    p.add_argument("--groups", default=",".join(GROUPS), help=f"of {', '.join(GROUPS)}; default: all")
    p.add_argument("--hosts", default="", help="numbers of hosts, comma-separated; default: 4, traffic: 8")
    p.add_argument("--layers", type=int, default=20, help="random layers of --groups choice")
    p.add_argument("--seed", type=int, default=31, help="of random layers")
    p.add_argument("--ways", default="", help="names that contain one of these, comma-separated; default: all")
    p.add_argument("--rate", type=rate_of, default="1gbit", help="rate of each host's link, as tc writes it")
    p.add_argument("--burst", default="256k", help="bucket of the links")
    p.add_argument("--steps", type=int, default=3, help="timed steps of a turn")
    p.add_argument("-N", "--run_cycles", type=int, default=5, help="alternated cycles: the ways take turns")
    p.add_argument("--plant", action="store_true", help="spoil a tensor of each way, to see that #wrong counts it")
    add_quick(p, "two hosts, a small model, one cycle, two random layers")
    p.add_argument("--part", default="", help=argparse.SUPPRESS)  # the shape of which these are the ranks
    p.add_argument("--address", default="", help=argparse.SUPPRESS)  # of rank 0
    add_output(p, "")
    options = p.parse_args(arguments)
    if options.quick:
        options.hosts, options.run_cycles, options.steps, options.layers = "2", 1, 1, 2
    options.groups = [word.strip() for word in options.groups.split(",") if word.strip()]
    if unknown := set(options.groups) - set(GROUPS):
        p.error(f"--groups: there is no {', '.join(sorted(unknown))}: {', '.join(GROUPS)}")
    try:
        options.shapes = [shape_of(f"{int(word)}x1") for word in options.hosts.split(",") if word]
    except (ValueError, argparse.ArgumentTypeError):
        p.error(f"--hosts: {options.hosts!r} are no numbers of hosts")
    if any(shape.all_hosts == 1 for shape in options.shapes):
        p.error("--hosts must be 2 or more")
    if min(options.steps, options.run_cycles, options.layers) < 1:
        p.error("--steps, --run_cycles and --layers must be 1 or more")
    options.models = ["mlp3"] if options.quick else list(MODELS)
    return options


class Poseidon(Group):
    def rows(self, shape: Shape) -> list[Row]:
        """Of all models; [] on all ranks but 0."""
        found = []
        for i, key in enumerate(self.options.models):
            self.done = i / len(self.options.models)
            found += self.turns(key, shape)
            gc.collect()
        return found

    def turns(self, key: str, shape: Shape) -> list[Row]:
        from bench.poseidon_ways import Hybrid, make  # noqa: PLC0415 - they need torch
        from bench.torch_models import CASES, count  # noqa: PLC0415

        case = CASES[key]
        names = [name for name in NAMES if self.wanted(name)]
        exact = [name for name in names if name not in LOSSY]
        ways = [make(name, case, self.ctx) for name in exact]
        wrong = dict(zip(exact, self.check(ways, case), strict=True))
        self.meet()
        for way in ways:
            way.close()
        del ways
        gc.collect()
        each: dict[str, list[Block]] = {name: [] for name in names}
        sent, schemes = dict.fromkeys(names, 0), dict.fromkeys(names, "")
        for cycle in range(self.options.run_cycles):
            at = cycle % len(names)  # nobody always comes behind the same
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
                    schemes[name] = str(way.wrapped.measure_schemes(1) if cycle == 0 else schemes[name])
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
            row = {**facts, "name": name, "role": ROLES[name], "schemes": schemes[name] if name in HYBRID else ""}
            row |= {"sent": sum(rank[1][name] for rank in gathered), "lossy": name in LOSSY}
            row |= measured([rank[0][name] for rank in gathered])
            found.append({**row, "wrong": sum(rank[2].get(name, 0) for rank in gathered)})
        return found


def _sent(exchange: hpcomm.Exchange) -> int:
    return sum(entry.bytes for entry in exchange.stats().traffic)


def job(options: argparse.Namespace) -> int:
    """The program of a rank; 0 if no parameter was wrong."""
    import torch  # noqa: PLC0415

    from bench.torch_ways import gloo  # noqa: PLC0415

    torch.set_num_threads(1)
    comm = MPI.COMM_WORLD
    address = comm.bcast(options.address)
    with hpcomm.init(comm) as ctx, gloo(comm, "eth0", address):
        rows: list[Row] = []
        if "steps" in options.groups:
            rows += [{"group": "steps", **row} for row in Poseidon(options, ctx).rows(shape_of(options.part))]
        if "choice" in options.groups:
            rows += Choice(options, ctx).rows()
        if "traffic" in options.groups:
            rows += Load(options, ctx).rows()
        transports = sorted({peer.transport for peer in ctx.peers} - {"self"})
        facts = {"transport": ",".join(transports), "torch": torch.__version__}
    wrong = comm.bcast(sum(row["wrong"] for row in rows))
    if comm.rank == 0:
        write(options, json.dumps({**facts, "rows": rows}))
    return 1 if wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = options_of(given)
    if not has_torch():
        print("poseidon: torch is missing: pip install 'torch>=2.4'", file=sys.stderr)
        return UNABLE
    runs = [
        (shape, [*given, "--groups", group])  # the last --groups counts
        for group in options.groups
        for shape in options.shapes or [shape_of(GROUPS[group])]
    ]
    return by_shapes.run(
        lambda: by_shapes.start("poseidon", options, given, {}, poseidon_table.lines, runs), lambda: job(options)
    )


if __name__ == "__main__":
    sys.exit(main())

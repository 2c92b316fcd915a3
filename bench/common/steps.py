"""What benchmarks of training steps share: one mpirun for each number of ranks, whose ranks train each model in several
ways that take turns. The parent of all groups needs no torch."""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mpi4py import MPI

import hpcomm
from bench.common.harness import as_rank, has_torch
from bench.common.launch import attend, cores, launched, launcher
from bench.common.options import write
from hpcomm.bench.rows import Row

CHECKED = 3  # steps until the ways are compared; rounding errors grow with every step
UNABLE = 77  # exit status if the machine cannot run it
LIMIT = 3600.0  # seconds of one group of ranks

Show = Callable[[Row, argparse.Namespace], None]  # prints a whole document


# ---- options ---------------------------------------------------------------------------------------------------------


def add_turns(p: argparse.ArgumentParser, least: float) -> None:
    """Adds the options of turns. least: seconds of a turn."""
    p.add_argument("--ways", default="", help="names that contain one of these, comma-separated; default: all")
    p.add_argument("--steps", type=int, default=5, help=f"timed steps of a turn, more if it takes less than {least} s")
    p.add_argument("-N", "--run_cycles", type=int, default=9, help="turns of each way")
    p.add_argument("--transport", default="", choices=("", "shm", "tcp", "verbs"), help="hpcomm's; default: the best")
    p.add_argument("--plant", action="store_true", help="spoil a tensor of each way, to see that #wrong counts it")


def check_turns(p: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Splits the lists of models and ranks, and checks the numbers."""
    options.models = [word.strip() for word in options.models.split(",") if word.strip()]
    try:
        options.ranks = [int(word) for word in options.ranks.split(",")]
    except ValueError:
        p.error(f"--ranks: {options.ranks!r} are no numbers")
    if min(options.ranks) < 1 or options.steps < 1 or options.run_cycles < 1:
        p.error("--ranks, --steps and --run_cycles must be 1 or more")


def wanted(options: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Returns the names that --ways asks for."""
    parts = [part.strip().lower() for part in options.ways.split(",") if part.strip()]
    return [name for name in names if not parts or any(part in name.lower() for part in parts)]


# ---- a rank ----------------------------------------------------------------------------------------------------------


def meet(comm: MPI.Intracomm) -> None:
    """Waits for all ranks asleep, and so leaves the cores to ranks that still work."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(1e-3)


class Ranks:
    """The ranks of one mpirun, in one context of hpcomm.

    Attributes:
        done: the finished part of all models.
    """

    def __init__(self, options: argparse.Namespace, ctx: hpcomm.Context) -> None:
        self.options, self.ctx, self.comm, self.done = options, ctx, MPI.COMM_WORLD, 0.0
        self.rank, self.size = ctx.rank, ctx.size

    def meet(self) -> None:
        meet(self.comm)

    def wanted(self, name: str) -> bool:
        """Is it one of --ways?"""
        return bool(wanted(self.options, [name]))

    def tell(self, part: float) -> None:
        """Reports the finished part of a model."""
        if self.rank == 0 and self.options.progress is not None:
            self.options.progress.write_text(f"{self.done + part / len(self.options.models):.4f}")


def facts(benchmark: str, options: argparse.Namespace, ctx: hpcomm.Context) -> Row:
    """Returns the entries of a document beside its rows."""
    import torch  # noqa: PLC0415 - the parent of all groups does without

    return {
        "benchmark": benchmark,
        "cores": cores(),
        "transport": ",".join(sorted({peer.transport for peer in ctx.peers} - {"self"})),
        "hpcomm": hpcomm.__version__,
        "torch": torch.__version__,
        "mpi": MPI.Get_library_version().splitlines()[0].strip("\0 "),
        "options": {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()},
    }


def finish(document: Row, options: argparse.Namespace, show: Show) -> int:
    """Reports on a group; rank 0 has its rows. Returns 0 on every rank if no parameter was wrong."""
    wrong = MPI.COMM_WORLD.bcast(sum(row["wrong"] for row in document["rows"]))
    if MPI.COMM_WORLD.rank == 0:
        write(options, json.dumps(document, indent=1))
        if options.output_file is None:
            show(document, options)
    return 1 if wrong else 0


# ---- all groups ------------------------------------------------------------------------------------------------------


def groups(
    name: str,
    options: argparse.Namespace,
    given: Sequence[str],
    show: Show,
    early: Callable[[Row, bool], None] | None = None,
) -> int:
    """Starts one group after another, and reports on all together.

    name: of the benchmark, and of its module in bench. early: prints the rows of a group when it has ended; it is told
    whether this is the first one.
    """
    whole: Row = {}
    with tempfile.TemporaryDirectory() as folder:
        for ranks in options.ranks:
            output = Path(folder, "group.json")
            output.unlink(missing_ok=True)
            # The last -J and --plot count.
            command = [*launcher(ranks, transport=options.transport), f"bench.{name}", *given, "-J", str(output)]
            status = attend(command, f"{name}, {ranks} ranks", quiet=options.json, limit=LIMIT)
            if not output.exists():
                print(f"{name}: the group of {ranks} ranks ended with status {status}, no figures", file=sys.stderr)
                return status or 2
            found = json.loads(output.read_text(encoding="utf-8"))
            if early is not None and not options.json:
                early(found, not whole)
            whole = whole or {**found, "rows": [], "left_out": []}
            whole["rows"] += found["rows"]
            whole["left_out"] += found["left_out"]
    whole["options"]["ranks"] = options.ranks
    write(options, json.dumps(whole, indent=1))
    show(whole, options)
    return 1 if any(row["wrong"] for row in whole["rows"]) else 0


def verdict(document: Row) -> str:
    """Returns the sentences on what was left out, and on the answers."""
    wrong = sum(row["wrong"] for row in document["rows"])
    told = f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    return "\n".join([*(f"# {note}" for note in document["left_out"]), told])


def main(name: str, torch: str, begin: Callable[[], int], group: Callable[[], int]) -> int:
    """Runs the program: `begin` starts the groups, `group` is the work of each rank. torch: the least version."""
    if not has_torch():
        print(f"{name}: torch is missing: pip install 'torch>={torch}'", file=sys.stderr)
        return UNABLE
    if not launched():
        os.environ["OMP_NUM_THREADS"] = "1"
        return begin()
    return as_rank(group)

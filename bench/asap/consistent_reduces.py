"""consistent_reduces: how many of its neighbours' updates a reduce finds whole (ASAP, section 6.2 and figure 8).

Eight ranks that all send to each other reduce under each consistency, with random delays. Every update is a ramp plus a
whole number that identifies its rank and step. So a reduce of whole updates is the ramp plus one number; under
NOTIFY_ACK and BSP this number is known exactly. #wrong counts the other elements.

The last line tests the endurance of NOTIFY_ACK: --endure reduces of all ranks together, short ones, with more ranks
than cores.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import hpcomm
from bench.common.launch import attend, cores, launched, launcher
from bench.common.options import add_output, add_ranks, write
from hpcomm.bench import plots
from hpcomm.bench.rows import Row

RANKS = 8
WEIGHTS = 47236  # of a linear model of RCV1, as in figure 8
SHORT = 256  # elements of an update in the endurance test
RAMP = 1024  # sums of eight ramps and numbers are exact in float32
NUMBERS = 4096
SLEEP = 2e-3  # longest delay, in seconds
LIMIT = 900.0  # seconds of all
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    name: str
    consistency: hpcomm.Consistency
    weights: int
    reduces: int  # of each rank
    delays: float  # share of the steps that are delayed

    @property
    def exact(self) -> bool:
        return self.consistency in (hpcomm.NOTIFY_ACK, hpcomm.BSP)


def number(rank: int, step: int) -> int:
    """Returns the number that a rank adds to the ramp; the numbers of two steps differ by far more than rounding."""
    return (rank * 509 + step * 61) % NUMBERS


def wrong_in(mean: Floats, ramp: Floats, expected: float | None) -> int:
    """Counts elements that no reduce of whole updates can have. expected: the number beside the ramp, if known."""
    rest = mean - ramp
    if expected is not None:
        return int(np.count_nonzero(rest != np.float32(expected)))
    return int(np.count_nonzero(np.abs(rest - np.median(rest[:RAMP])) > 0.1))


def run(ctx: hpcomm.Context, case: Case, plant: bool) -> Row:
    """Reduces under one consistency; returns the row of all ranks. Collective."""
    graph = hpcomm.graphs.complete(ctx.size)
    ramp = (np.arange(case.weights) % RAMP).astype(np.float32)
    random = np.random.default_rng([ctx.rank, case.weights])
    exchange = hpcomm.stochastic_reduce(
        ctx, {"w": np.zeros(case.weights, np.float32)}, topology=graph, consistency=case.consistency
    )
    ctx.barrier()
    wrong, start = 0, time.perf_counter()
    for step in range(case.reduces):
        if random.random() < case.delays:
            time.sleep(SLEEP * random.random())
        update = exchange.gradient("w")
        np.add(ramp, np.float32(number(ctx.rank, step)), out=update)
        if plant and step == 0 and ctx.rank == 0:
            update[case.weights // 2] += 100
        mean = exchange.push_pull("w")
        expected = sum(number(rank, step) for rank in range(ctx.size)) / ctx.size if case.exact else None
        wrong += wrong_in(mean, ramp, expected)
    seconds = time.perf_counter() - start
    stats = exchange.stats()
    exchange.close(timeout=LIMIT)
    mine = [*stats.by_inputs, stats.whole, stats.torn, stats.stale, stats.missing, wrong]
    parts = ctx.allgather(np.array([*mine, seconds]).tobytes(), timeout=LIMIT)
    everyone = np.array([np.frombuffer(part) for part in parts])
    counts = [int(count) for count in everyone[:, :-1].sum(axis=0)]
    inputs = dict(zip(("whole", "torn", "stale", "missing", "wrong"), counts[ctx.size :], strict=True))
    by_inputs = counts[: ctx.size]
    return {
        "name": case.name,
        "weights": case.weights,
        "reduces": sum(by_inputs),
        "by_inputs": by_inputs,
        **inputs,
        "seconds": float(everyone[:, -1].max()),
    }


def shares(row: Row) -> list[float]:
    """Returns the percentage of reduces with 0, 1, 2, ... whole inputs."""
    return [100 * count / row["reduces"] for count in row["by_inputs"]]


def table(document: Row) -> list[str]:
    most = document["ranks"] - 1
    heads = "".join(f"{n:>8}" for n in range(most + 1))
    lines = [
        f"# consistent_reduces: {document['ranks']} ranks on {document['cores']} cores, hpcomm {document['hpcomm']}",
        f"{'% of reduces with whole inputs':34}{heads}{f'{max(0, most - 2)} or more':>12}{'reduces':>9}{'torn':>8}"
        f"{'stale':>8}{'missing':>9}{'#wrong':>8}",
    ]
    for row in document["rows"]:
        found = shares(row)
        cells = "".join(f"{share:8.2f}" for share in found)
        lines.append(
            f"{row['name']:34}{cells}{sum(found[max(0, most - 2) :]):12.2f}{row['reduces']:9}{row['torn']:8}"
            f"{row['stale']:8}{row['missing']:9}{row['wrong']:8}"
        )
    return lines


def bars(axis: Any, rows: Sequence[Row]) -> None:
    """Draws figure 8: for each consistency, how many reduces had how many whole inputs."""
    width = 0.8 / len(rows)
    for i, row in enumerate(rows):
        found = shares(row)
        axis.bar([n + (i - (len(rows) - 1) / 2) * width for n in range(len(found))], found, width, label=row["name"])
    axis.set(title="consistent reduces", xlabel="neighbours whose update was whole", ylabel="% of reduces")
    axis.legend(fontsize="small")


def panels(document: Row) -> list[plots.Draw]:
    return [lambda axis: bars(axis, document["rows"][:-1])]


def cases(options: argparse.Namespace, size: int) -> list[Case]:
    found = [
        Case(str(consistency), consistency, options.weights, options.reduces, 0.5)
        for consistency in (hpcomm.NOTIFY_ACK, hpcomm.BSP, hpcomm.BARRIER, hpcomm.ASYNC)
    ]
    name = "NOTIFY_ACK, short and many"
    return [*found, Case(name, hpcomm.NOTIFY_ACK, SHORT, -(-options.endure // size), 0.05)]


def on_this_rank(options: argparse.Namespace) -> int:
    rows, wrong = [], 0
    with hpcomm.init(MPI.COMM_WORLD, transport=options.transport or None, timeout=300) as ctx:
        planned = cases(options, ctx.size)
        for i, case in enumerate(planned):
            rows.append(run(ctx, case, options.plant))
            wrong += rows[-1]["wrong"]
            if options.progress is not None and ctx.rank == 0:
                options.progress.write_text(f"{(i + 1) / len(planned):.4f}")
        facts = {"benchmark": "consistent_reduces", "ranks": ctx.size, "cores": cores(), "hpcomm": hpcomm.__version__}
    if ctx.rank == 0:
        document = {**facts, "mpi": MPI.Get_library_version().splitlines()[0].strip("\0 "), "rows": rows}
        text = json.dumps(document, indent=1)
        write(options, text)
        if options.plot is not None:
            plots.figure(options.plot, panels(document), plots.title(document))
        print(text if options.json else "\n".join(table(document)), flush=True)
    return 1 if wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m bench.asap.consistent_reduces", description="Whole inputs of reduces.")
    p.add_argument("-n", "--reduces", type=int, default=500, help="reduces of each rank under each consistency")
    p.add_argument("--endure", type=int, default=100_000, help="NOTIFY_ACK reduces at the end, of all ranks together")
    p.add_argument("--weights", type=int, default=WEIGHTS, help="number of float32 in an update")
    add_ranks(p, RANKS)
    p.add_argument("--plant", action="store_true", help="spoil one value, to see that #wrong counts it")
    add_output(p, plot="figure")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = p.parse_args(given)
    if options.ranks < 2 or options.ranks & (options.ranks - 1):
        p.error(f"--ranks is {options.ranks}: must be a power of two, for the averages to be exact")
    if launched():
        return on_this_rank(options)
    command = [*launcher(options.ranks, transport=options.transport), "bench.asap.consistent_reduces", *given]
    return attend(command, f"consistent_reduces, {options.ranks} ranks", limit=LIMIT)


if __name__ == "__main__":
    sys.exit(main())

"""staleness: the gain of SSP(s) with servers where every rank is slow now and then (Parameter Flow, section 2.3.2).

Eight ranks, each both worker and server, learn scikit-learn's digits by softmax regression. A step takes --seconds by a
timer, and --factor times as long with probability --chance. Under BSP all wait for the slowest rank of each step. Under
SSP(s) a rank waits only when it is s steps ahead of the slowest one. Both train from the same seeds, in turns, in the
same processes.

The ideal is an event simulation of the same delays with exchanges that take no time: a rank begins a step when its own
last step has ended, and all ranks have ended the step s + 1 before. *reach* is the ideal time over the measured one.

With --per-host P, each P successive ranks are a host, in a hierarchy: the ranks of a host are in step, and hosts run
apart (hpcomm.Hierarchy). A host's step takes as long as its slowest rank's.

Besides the model there is a key of --weights elements whose gradient is always one, so that its final parameters are
known. #wrong counts its wrong elements, and elements of the model in which ranks differ.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import hpcomm
from bench.common.launch import attend, cores, launched, launcher
from bench.common.options import add_output, add_ranks, write
from hpcomm.bench import plots
from hpcomm.bench.rows import Row

RANKS, LIMIT = 8, 900.0  # seconds of all
KINDS, PIXELS = 10, 64
RATE, BATCH = 0.5, 32
Floats = NDArray[np.float64]


def drawn(ranks: int, steps: int, chance: float, factor: float, seed: int) -> Floats:
    """Returns the factor by which each rank computes longer than usual in each step."""
    slow = np.random.default_rng(seed).random((ranks, steps)) < chance
    return np.where(slow, factor, 1.0)


def ideal(factors: Floats, staleness: int) -> float:
    """Returns the time of all steps if exchanges take no time, in usual steps."""
    ends = np.zeros((factors.shape[0], factors.shape[1] + 1))  # the first: before all steps
    for step in range(1, ends.shape[1]):
        met = ends[:, max(0, step - staleness - 1)].max()
        ends[:, step] = np.maximum(ends[:, step - 1], met) + factors[:, step - 1]
    return float(ends[:, -1].max())


class Digits:
    """The data, of which each rank trains on a part, and the model's gradient."""

    def __init__(self, rank: int, ranks: int, seed: int) -> None:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - takes a second

        images, shown = load_digits(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(shown))
        x, y = (images[order] / 16).astype(np.float32), shown[order]
        train = len(y) * 3 // 4
        self.x, self.y = x[:train][rank::ranks], y[:train][rank::ranks]
        self.test_x, self.test_y = x[train:], y[train:]
        self._random = np.random.default_rng([seed, rank])

    def gradient(self, model: Any, out: Any) -> None:
        """Returns the gradient of one batch; model and out have a row for each pixel, and one for the bias."""
        at = self._random.integers(0, len(self.y), BATCH)
        x, scores = self.x[at], self.x[at] @ model[:PIXELS] + model[PIXELS]
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        odds /= odds.sum(axis=1, keepdims=True)
        odds[np.arange(BATCH), self.y[at]] -= 1
        np.matmul(x.T, odds / BATCH, out=out[:PIXELS])
        np.mean(odds, axis=0, out=out[PIXELS])

    def accuracy(self, model: Any) -> float:
        """Returns the percentage of the digits without training that the model classifies correctly."""
        found = np.argmax(self.test_x @ model[:PIXELS] + model[PIXELS], axis=1)
        return float(100 * np.mean(found == self.test_y))


def in_step(factors: Floats, per_host: int) -> Floats:
    """Returns the factors for hosts: each rank of a host computes for as long as its slowest."""
    hosts = [factors[first : first + per_host].max(axis=0) for first in range(0, len(factors), per_host)]
    return np.array([hosts[rank // per_host] for rank in range(len(factors))])


def settle(ctx: hpcomm.Context, exchange: hpcomm.Exchange, per_host: int) -> None:
    """Waits until all updates of all ranks are in the parameters of each rank."""
    if per_host > 1:  # in a hierarchy a pull without a push brings nothing
        ctx.barrier()
        exchange.load_state_dict(exchange.state_dict())
    for _ in range(2):
        for name in exchange.params:
            exchange.pull(name)
        ctx.barrier()


def run(ctx: hpcomm.Context, staleness: int, seed: int, o: Any) -> Row:
    """Runs one training; returns the figures of all ranks. Collective."""
    factors = drawn(ctx.size, o.steps, o.chance, o.factor, seed)
    data = Digits(ctx.rank, ctx.size, seed)
    params = {"model": np.zeros((PIXELS + 1, KINDS), np.float32), "rest": np.zeros(o.weights, np.float32)}
    consistency = hpcomm.SSP(staleness) if staleness else hpcomm.BSP
    hosts = [range(first, min(first + o.per_host, ctx.size)) for first in range(0, ctx.size, o.per_host)]
    exchange = hpcomm.parameter_hub(
        ctx,
        params,
        topology=hpcomm.Hierarchy(hosts) if o.per_host > 1 else "flat",
        consistency=consistency,
        rule=hpcomm.SGD(lr=RATE),
        progress="thread",
        plan=hpcomm.PlanOptions(cores=1),
        depth=2,
    )
    ctx.barrier()
    start = time.perf_counter()
    for step in range(o.steps):
        end = time.perf_counter() + o.seconds * factors[ctx.rank, step]
        grads = {name: exchange.gradient(name) for name in params}
        data.gradient(exchange.params["model"], grads["model"])
        grads["rest"].fill(-1)
        time.sleep(max(0.0, end - time.perf_counter()))
        exchange.step()
    seconds = time.perf_counter() - start
    by_staleness = exchange.stats().by_staleness
    settle(ctx, exchange, o.per_host)
    model = exchange.params["model"].copy()
    wrong = int(np.count_nonzero(np.abs(exchange.params["rest"] / (RATE * o.steps) - 1) > 1e-3))
    exchange.close(timeout=LIMIT)
    every = [np.frombuffer(part) for part in ctx.allgather(np.array([seconds, wrong, *by_staleness]).tobytes())]
    models = [np.frombuffer(part, np.float32) for part in ctx.allgather(model.tobytes())]
    wrong = int(sum(row[1] for row in every)) + sum(int(np.count_nonzero(one != models[0])) for one in models)
    counts = np.sum([row[2:] for row in every], axis=0)
    return {
        "name": str(consistency),
        "staleness": staleness,
        "seed": seed,
        "seconds": float(max(row[0] for row in every)),
        "ideal": o.seconds * ideal(in_step(factors, o.per_host), staleness),
        "accuracy": data.accuracy(model),
        "by_staleness": [int(count) for count in counts],
        "wrong": wrong,
    }


def summary(rows: Sequence[Row]) -> list[Row]:
    """The contenders: medians of their cycles."""
    found = []
    for name in dict.fromkeys(row["name"] for row in rows):
        mine = [row for row in rows if row["name"] == name]
        median = {key: float(np.median([row[key] for row in mine])) for key in ("seconds", "ideal", "accuracy")}
        reach = float(np.median([row["ideal"] / row["seconds"] for row in mine]))
        counts = [int(n) for n in np.sum([row["by_staleness"] for row in mine], axis=0)]
        wrong = sum(row["wrong"] for row in mine)
        found.append({"name": name, **median, "reach": reach, "by_staleness": counts, "wrong": wrong})
    return found


def table(document: Row) -> list[str]:
    lines = [
        f"# staleness: {document['ranks']} ranks, {document['per_host']} a host, on {document['cores']} cores, "
        f"hpcomm {document['hpcomm']}; "
        f"{document['steps']} steps of {1e3 * document['seconds']:g} ms, {document['factor']:g} x with probability "
        f"{document['chance']:g}; medians of {document['cycles']} cycles",
        f"{'who':12}{'time, s':>9}{'ideal, s':>10}{'reach':>7}{'accuracy, %':>13}{'#wrong':>8}  "
        "steps with the slowest 0, 1, ... behind",
    ]
    for row in document["contenders"]:
        counts = " ".join(map(str, row["by_staleness"]))
        lines.append(
            f"{row['name']:12}{row['seconds']:9.3f}{row['ideal']:10.3f}{row['reach']:7.3f}{row['accuracy']:13.2f}"
            f"{row['wrong']:8}  {counts}"
        )
    return lines


def behind(axis: Any, row: Row) -> None:
    axis.bar(range(len(row["by_staleness"])), row["by_staleness"])
    axis.set(title=row["name"], xlabel="steps that the slowest rank was behind", ylabel="steps begun, of each key")


def panels(document: Row) -> list[plots.Draw]:
    shown = [row for row in document["contenders"] if row["by_staleness"]]
    return [lambda axis, row=row: behind(axis, row) for row in shown]  # type: ignore[misc]


def on_this_rank(options: argparse.Namespace) -> int:
    rows = []
    with hpcomm.init(MPI.COMM_WORLD, transport=options.transport or None, timeout=300) as ctx:
        turns = [(seed, s) for seed in range(options.cycles) for s in (0, options.staleness)]
        for i, (seed, staleness) in enumerate(turns):
            rows.append(run(ctx, staleness, seed, options))
            if options.progress is not None and ctx.rank == 0:
                options.progress.write_text(f"{(i + 1) / len(turns):.4f}")
        facts = {"benchmark": "staleness", "ranks": ctx.size, "cores": cores(), "hpcomm": hpcomm.__version__}
    if ctx.rank == 0:
        names = ("per_host", "staleness", "chance", "factor", "seconds", "steps", "weights", "cycles")
        settings = {name: getattr(options, name) for name in names}
        mpi = MPI.Get_library_version().splitlines()[0].strip("\0 ")
        document = {**facts, **settings, "mpi": mpi, "contenders": summary(rows), "rows": rows}
        text = json.dumps(document, indent=1)
        write(options, text)
        if options.plot is not None:
            plots.figure(options.plot, panels(document), plots.title(document))
        print(text if options.json else "\n".join(table(document)), flush=True)
    return 1 if any(row["wrong"] for row in rows) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(
        prog="python -m bench.parameter_flow.staleness", description="SSP(s) where ranks are slow at random."
    )
    p.add_argument("-s", "--staleness", type=int, default=4, help="s of SSP(s), 1 or more")
    p.add_argument("-t", "--seconds", type=float, default=0.02, help="seconds that a rank computes in a usual step")
    p.add_argument("--chance", type=float, default=1 / 8, help="probability that a step is slow")
    p.add_argument("--factor", type=float, default=10.0, help="how many times longer a slow step takes")
    p.add_argument("-n", "--steps", type=int, default=200, help="steps of each training")
    p.add_argument("--cycles", type=int, default=3, help="trainings under each consistency, each by other seeds")
    p.add_argument("--weights", type=int, default=1 << 16, help="number of float32 beside the model in an update")
    p.add_argument("--per-host", type=int, default=1, help="ranks that are a host, and in step; 1: no hierarchy")
    add_ranks(p, RANKS)
    add_output(p, plot="histogram of the staleness")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = p.parse_args(given)
    if launched():
        return on_this_rank(options)
    command = [*launcher(options.ranks, transport=options.transport), "bench.parameter_flow.staleness", *given]
    return attend(command, f"staleness, {options.ranks} ranks", limit=LIMIT)


if __name__ == "__main__":
    sys.exit(main())

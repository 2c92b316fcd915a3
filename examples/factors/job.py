"""Trains a model by all ranks, with pairs of vectors or dense updates, and prints and draws the results."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import click
import numpy as np
from paper_data import BadData
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

import hpcomm

from . import data
from .model import Batches, Floats, Model, dense_options, matrix
from .sdca import DualRegression

FACTORS, DENSE = "pairs of vectors, peer to peer", "dense updates, through servers"
OVERSHOT = 1e-6  # largest relative rounding error of an objective


@dataclass(frozen=True)
class Plan:
    """How the ranks train.

    Attributes:
        steps: most steps.
        pairs: K, samples of a rank in a step.
        lr: the learning rate; None: the model's.
        staleness: 0 for BSP, s for SSP(s).
        peers: to how many ranks each rank sends; None: to all.
        relay: with peers: ranks forward updates to all other ranks.
        every: steps between two measurements of the objective.
        target: the training ends when the objective is at most this.
        later: measure the objective after the training, from copies of W, so that ranks which do not wait for rank 0
            get no head start while it measures; target then has no effect.
        compute: least seconds for the computing of a step; a rank that is faster sleeps for the rest.
        options: options of Exchange.
    """

    steps: int = 200
    pairs: int = 32
    lr: float | None = None
    staleness: int = 0
    peers: int | None = None
    relay: bool = False
    every: int = 10
    target: float | None = None
    later: bool = False
    compute: float = 0.0
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Run:
    """The results of a training. Rank 0 measures the objective. Under BSP, where the others wait for rank 0, the time
    for measuring is not counted.

    Attributes:
        way: the exchange, in words.
        points: of rank 0: step, seconds, objective, bytes that it has sent, and for SDCA the duality gap.
        ranks: of each rank: seconds, seconds in the exchange, seconds of computing (with sleep), bytes sent, steps.
    """

    way: str
    points: list[tuple[float, ...]]
    ranks: list[list[float]]

    def reached(self, target: float) -> tuple[float, ...] | None:
        """Returns the first point at which the objective is at most target, up to rounding; None if no point is."""
        return next((point for point in self.points if point[2] <= target * (1 + OVERSHOT)), None)


class Measure:
    """Rank 0's measurements of the objective."""

    def __init__(self, ctx: hpcomm.Context, model: Model, plan: Plan, tell: Callable[[int, float], object]) -> None:
        self.ctx, self.model, self.plan, self.tell = ctx, model, plan, tell
        self.points: list[tuple[float, ...]] = []
        self.kept: list[tuple[int, float, Floats, int, float]] = []
        self.paused = 0.0
        self.entropies = Entropies(ctx, model, plan) if isinstance(model, DualRegression) else None
        self.begin = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.begin - self.paused

    def look(self, step: int, mat: Floats, sent: Callable[[], int]) -> bool:
        """Measures the objective every plan.every steps, on rank 0. Returns whether the target is reached."""
        if self.ctx.rank or step % self.plan.every:
            return False
        seconds, before = self.seconds, time.perf_counter()
        conjugate = 0.0 if self.entropies is None else self.entropies.sum(step)
        if self.plan.later:
            self.kept.append((step, seconds, mat.copy(), sent(), conjugate))
            return False
        objective = self._point(step, seconds, mat, sent(), conjugate)
        self.paused += 0 if self.plan.staleness else time.perf_counter() - before
        return self.plan.target is not None and objective <= self.plan.target

    def _point(self, step: int, seconds: float, mat: Floats, sent: int, conjugate: float) -> float:
        objective = self.model.objective(mat)
        gap = (objective - self.model.dual(mat, conjugate),) if isinstance(self.model, DualRegression) else ()
        self.points.append((step, seconds, objective, float(sent), *gap))
        self.tell(step, objective)
        return objective

    def before_commit(self, step: int) -> None:
        """Sends this rank's entropies to rank 0, if it will measure. step: the number of the next commit, from 1."""
        if self.entropies is not None and step % self.plan.every == 0:
            self.entropies.tell(step)

    def run(self, way: str, sent: int, waited: float, computed: float, steps: int) -> Run:
        """Returns the results of the training. All ranks call it."""
        mine = np.array([self.seconds, waited, computed, sent, steps], np.float64)
        for kept in self.kept:
            self._point(*kept)
        everyone = self.ctx.allgather(mine.tobytes())
        return Run(way, self.points, [np.frombuffer(each).tolist() for each in everyone])


class Entropies:
    """The sum of f*(-u) over each rank's samples, for the duality gap.

    Each rank puts its sum into rank 0's window before the commit of a step after which W is measured, so the sum
    arrives before the commit. Under SSP a sum may belong to another step than W, and the gap is then inexact.
    """

    def __init__(self, ctx: hpcomm.Context, model: DualRegression, plan: Plan) -> None:
        self.model, self.rank = model, ctx.rank
        self.kept, self.every = plan.staleness // plan.every + 2, plan.every
        self.window = ctx.window((ctx.size, self.kept, 2), "float64")
        self.window.array[...] = 0
        ctx.barrier()

    def tell(self, step: int) -> None:
        place = (self.rank * self.kept + step // self.every % self.kept) * 16
        self.window.put(0, np.array([step, self.model.conjugate]), place)
        self.window.flush(0)

    def sum(self, step: int) -> float:
        """Returns the sum over all ranks, from each rank's newest sum up to this step."""
        told = self.window.array
        newest = np.where(told[:, :, 0] <= step, told[:, :, 0], -1).argmax(axis=1)
        return float(told[np.arange(len(told)), newest, 1].sum())


# ---- training --------------------------------------------------------------------------------------------------------


def batches(ctx: hpcomm.Context, model: Model, plan: Plan) -> Batches:
    return Batches(model.samples, ctx.size, plan.pairs, plan.seed)


def sent_by(exchange: hpcomm.Exchange) -> int:
    """Returns the bytes that this rank has sent to other ranks, parameters included."""
    return sum(entry.bytes for entry in exchange.stats().traffic)


def by_factors(ctx: hpcomm.Context, model: Model, plan: Plan, tell: Callable[[int, float], object]) -> Run:
    """Trains with pairs of vectors, by hpcomm.sufficient_factors. All ranks call it."""
    chosen, clock, computed = batches(ctx, model, plan), time.perf_counter, 0.0
    with hpcomm.sufficient_factors(
        ctx,
        {"W": model.start()},
        K=plan.pairs,
        rule=model.rule(plan.lr or model.lr),
        staleness=plan.staleness,
        peers=plan.peers,
        relay=plan.relay,
        **plan.options,
    ) as app:
        measure = Measure(ctx, model, plan, tell)
        while app.running:
            step, rows = app.commits, chosen.of(ctx.rank, app.commits)
            mat = app.mat
            if measure.look(step, mat, lambda: sent_by(app.exchange)):
                app.stop()
            if step == plan.steps:
                break
            before = clock()
            u, v = model.factors(mat, rows, chosen.total)
            time.sleep(max(0.0, before + plan.compute - clock()))
            computed += clock() - before
            app.write(u, v)
            measure.before_commit(step + 1)
            app.commit()
        found = measure.run(FACTORS, sent_by(app.exchange), app.waited, computed, app.commits)
    return found


def by_dense(ctx: hpcomm.Context, model: Model, plan: Plan, tell: Callable[[int, float], object]) -> Run:
    """Trains with dense updates: each rank computes the sum of the same products, and servers of an Exchange apply the
    same rule. All ranks call it."""
    chosen, clock, computed, waited = batches(ctx, model, plan), time.perf_counter, 0.0, 0.0
    consistency = hpcomm.SSP(plan.staleness)
    rule = model.rule(plan.lr or model.lr)
    options = {**dense_options(plan.staleness), **plan.options}
    with hpcomm.Exchange(
        ctx, {"W": model.start()}, consistency=consistency, rule=rule, reduce="sum", **options
    ) as exchange:
        measure = Measure(ctx, model, plan, tell)
        mat = exchange.params["W"]
        step = 0
        while True:
            ends = measure.look(step, mat, lambda: sent_by(exchange)) or step == plan.steps
            if plan.target is not None and not plan.later and step % plan.every == 0:
                ends = any(ctx.allgather(bytes([ends]))[0])
            if ends:
                break
            begin = clock()
            u, v = model.factors(mat, chosen.of(ctx.rank, step), chosen.total)
            before = clock()
            gradient = exchange.gradient("W")
            free = clock() - before
            matrix(u, v, out=gradient)
            time.sleep(max(0.0, begin + free + plan.compute - clock()))
            computed, waited = computed + clock() - begin - free, waited + free
            step += 1
            measure.before_commit(step)
            before = clock()
            mat = exchange.push_pull("W")
            waited += clock() - before
        found = measure.run(DENSE, sent_by(exchange), waited, computed, step)
    return found


WAYS = {FACTORS: by_factors, DENSE: by_dense}


# ---- telling ---------------------------------------------------------------------------------------------------------


def console_of(rank: int) -> Console | None:
    """Returns rank 0's console; None on other ranks. A terminal of width 0, as Open MPI gives its ranks, is treated as
    a pipe."""
    if rank > 0:
        return None
    terminal = sys.stdout.isatty() and os.get_terminal_size(sys.stdout.fileno()).columns > 0
    return Console() if terminal else Console(force_terminal=False, width=140)


@contextmanager
def progress(console: Console | None, what: str, steps: int) -> Iterator[Callable[[int, float], object]]:
    """Shows progress: a bar on a terminal, otherwise a line at the beginning."""
    if console is None or not console.is_terminal:
        if console is not None:
            print(f"{what}: {steps} steps", flush=True)
        yield lambda step, objective: None
        return
    figures = TextColumn("step {task.completed} of {task.total}, objective {task.fields[objective]:.4f}")
    with Progress(TextColumn("{task.description:34}"), BarColumn(), figures, console=console) as bar:
        task = bar.add_task(what, total=steps, objective=float("nan"))
        yield lambda step, objective: bar.update(task, completed=step, objective=objective)


def table(runs: list[Run], target: float) -> Table:
    found = Table(title_justify="left")
    found.add_column("", no_wrap=True)
    gaps = len(runs[0].points[-1]) > 4
    for name in ("steps", "time", "in the exchange", "sent by a rank", "objective", *(["duality gap"] if gaps else [])):
        found.add_column(name, justify="right")
    found.add_column(f"{target:.5g} after", justify="right")
    for run in runs:
        last, ranks, reached = run.points[-1], np.array(run.ranks), run.reached(target)
        seconds, waited, _, sent, _ = ranks.mean(axis=0)
        found.add_row(
            run.way,
            f"{last[0]:.0f}",
            f"{last[1]:.2f} s",
            f"{100 * waited / max(seconds, 1e-9):.0f} %",
            f"{sent / 1e6:.1f} MB",
            f"{last[2]:.5f}",
            *([f"{last[4]:.5f}"] if gaps else []),
            f"step {reached[0]:.0f}, {reached[1]:.2f} s" if reached else "never",
        )
    return found


def plot(runs: Sequence[Any], heading: str, path: str) -> None:
    """Draws the objective over time, over steps, and over bytes that rank 0 has sent, if matplotlib is installed. Each
    of runs has a way, and points that begin with step, seconds, objective and bytes."""
    try:
        import matplotlib  # noqa: PLC0415
    except ModuleNotFoundError:
        print("no curves: pip install matplotlib", file=sys.stderr)
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415 - after the choice of Agg

    figure, axes = pyplot.subplots(1, 3, figsize=(14, 4.5), layout="constrained")
    columns = (1, "seconds", 1), (0, "steps", 1), (3, "MB sent by rank 0", 1e6)
    for axis, (column, label, unit) in zip(axes, columns, strict=True):
        for run in runs:
            points = np.array([point[:4] for point in run.points])
            axis.plot(points[:, column] / unit, points[:, 2], marker=".", label=run.way)
        axis.set(xlabel=label, ylabel="objective")
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize="small")
    figure.suptitle(heading)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    print(f"curves: {os.path.abspath(path)}")


# ---- the job ---------------------------------------------------------------------------------------------------------

_OPTIONS = (
    click.option("--steps", type=click.IntRange(1), default=200, help="At most so many."),
    click.option("--target", type=float, help="An objective that ends the training."),
    click.option("--pairs", "-K", type=click.IntRange(1), default=32, help="Samples of a rank in a step."),
    click.option("--lr", type=click.FloatRange(0, min_open=True), help="Learning rate; default: the model's."),
    click.option("--compute", type=click.FloatRange(0), default=0.0, help="Seconds of computing a step, at least."),
    click.option("--staleness", type=click.IntRange(0), default=0, help="0: BSP; s: SSP(s)."),
    click.option("--peers", type=click.IntRange(1), help="To how many ranks each sends; default: to all."),
    click.option("--relay", is_flag=True, help="With --peers: updates go on to all other ranks."),
    click.option("--dense", is_flag=True, help="Dense updates through servers, in place of pairs of vectors."),
    click.option("--compare", is_flag=True, help="One after the other: pairs of vectors, dense updates."),
    click.option("--every", type=click.IntRange(1), default=10, help="Steps between two looks at the objective."),
    click.option("--seed", type=click.IntRange(0), default=0, help="Of the data and the minibatches."),
    click.option("--plot", "plot_path", help="Where the curves go."),
    click.option("--json", "json_path", help="Where the figures go, as JSON."),
)


def options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that all programs train_factors_*.py have."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@contextmanager
def refusing(rank: int, kind: type[ValueError] = ValueError) -> Iterator[None]:
    """Ends the program with status 2 after an error of this kind, which all ranks must raise; rank 0 prints it."""
    try:
        yield
    except kind as wrong:
        if rank == 0:
            print(f"{os.path.basename(sys.argv[0])}: {wrong}", file=sys.stderr)
        sys.exit(2)


Make = Callable[[hpcomm.Context, Any, Plan], Model]


def run(
    read: Callable[[int], Any],
    make: Make,
    *,
    dense: bool,
    compare: bool,
    plot_path: str | None,
    json_path: str | None,
    **given: Any,
) -> None:
    """Runs a program: calls read(seed) on rank 0, makes the model on each rank, trains, and prints the results. The
    exit status is 1 if --target was not reached."""
    plan = Plan(**given)
    ways = [FACTORS, DENSE] if compare else [DENSE if dense else FACTORS]
    with hpcomm.init() as ctx:
        console = console_of(ctx.rank)
        with refusing(ctx.rank, BadData):
            shared = data.share(ctx, lambda: read(plan.seed))
        runs = []
        for way in ways:
            model = make(ctx, shared, plan)  # a new one each time, as a model may have state
            with refusing(ctx.rank):
                batches(ctx, model, plan)
            if console is not None and way is ways[0]:
                print(f"{model.name}: W is {model.shape[0]} x {model.shape[1]}, {ctx.size} ranks", flush=True)
            with progress(console, way, plan.steps) as tell:
                runs.append(WAYS[way](ctx, model, plan, tell))
        size, shape, name = ctx.size, model.shape, model.name
    if console is None:
        return
    aim = plan.target if plan.target is not None else runs[0].points[-1][2]
    console.print(table(runs, aim))
    if plot_path is not None:
        plot(runs, f"{name} ({shape[0]} x {shape[1]}, {size} ranks)", plot_path)
    if json_path is not None:
        facts = {"model": name, "shape": shape, "ranks": size, "plan": asdict(plan), "target": aim}
        with open(json_path, "w", encoding="utf-8") as file:
            json.dump({**facts, "runs": [asdict(each) for each in runs]}, file, indent=1)
    sys.exit(0 if plan.target is None or all(each.reached(plan.target) for each in runs) else 1)

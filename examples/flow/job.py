"""Trains a model by all ranks, with dense parameters or Parameter Flow, and prints and draws the results."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import click
import numpy as np
from factors.job import OVERSHOT, console_of, plot, progress, refusing, sent_by
from factors.model import Batches
from paper_data import BadData
from rich.console import Console
from rich.table import Table

import hpcomm

from .exchange import Flow, open_exchange
from .model import Model, Params

FEW = 16  # samples of a rank in a step, for a small model
_STOP = 0  # index of the signal whose value is the number of the last step


@dataclass(frozen=True)
class Plan:
    """How the ranks train.

    Attributes:
        steps: most steps.
        batch: samples of a rank in a step.
        eta: the learning rate of step t is eta / sqrt(t).
        compute: least seconds for the computing of a step; a rank that is faster sleeps for the rest.
        every: steps between two measurements of the objective.
        until: the training ends when the objective is at most this.
        later: measure the objective after the training, from copies of the parameters, so that measuring takes hardly
            any time during it; until then has no effect.
    """

    steps: int
    batch: int
    eta: float
    compute: float = 0.0
    every: int = 10
    until: float | None = None
    later: bool = False
    seed: int = 0


@dataclass
class Run:
    """The results of a training. Rank 0 measures the objective. Under BSP, where the others wait for rank 0, the time
    for measuring is not counted.

    Attributes:
        way: the exchange, in words.
        points: of rank 0: step, seconds, objective, bytes that it has sent.
        ranks: of each rank: seconds, seconds in the exchange, seconds of computing without sleeping, bytes sent, steps.
        score: name and value of a measure over test samples.
        flow: the fields of Flow.
    """

    way: str
    points: list[tuple[int, float, float, int]]
    ranks: list[list[float]]
    score: tuple[str, float]
    flow: dict[str, Any] = field(default_factory=dict)

    def reached(self, objective: float) -> tuple[int, float, float, int] | None:
        """Returns the first point at which the objective is at most this, up to rounding; None if no point is."""
        return next((point for point in self.points if point[2] <= objective * (1 + OVERSHOT)), None)

    @property
    def sent(self) -> float:
        """Mean bytes that a rank sends in a step."""
        _, _, _, sent, steps = np.array(self.ranks).mean(axis=0)
        return float(sent / max(steps, 1))


class Stop:
    """A signal by which rank 0 ends the training of all ranks after the same step.

    When rank 0 sends the signal, no rank has begun that step: each waits for rank 0 once it is staleness steps ahead,
    and the signal arrives before rank 0 goes on.
    """

    def __init__(self, ctx: hpcomm.Context, staleness: int) -> None:
        self.ctx, self.lead = ctx, staleness + 2
        self.window = ctx.window(1, "uint8", signals=1)
        self.last: int | None = None

    def tell(self, step: int) -> None:
        """Sends the signal, on rank 0, which has made so many steps."""
        if self.last is None:
            self.last = step + self.lead
            for peer in range(1, self.ctx.size):
                self.window.put_signal(peer, None, signal=_STOP, value=self.last)
            self.window.flush()

    def ends(self, step: int) -> bool:
        """Whether the training ends after this many steps."""
        if self.last is None and self.ctx.rank and self.window.test_signal(_STOP, 1):
            self.last = self.window.wait_signal(_STOP, 1)
        return self.last is not None and step >= self.last


class Looks:
    """Rank 0's measurements of the objective."""

    def __init__(self, model: Model, plan: Plan, paused: bool, tell: Callable[[int, float], object]) -> None:
        self.model, self.plan, self.pauses, self.tell = model, plan, paused, tell
        self.points: list[tuple[int, float, float, int]] = []
        self.kept: list[tuple[int, float, Params, int]] = []
        self.paused = 0.0
        self.begin = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.begin - self.paused

    def look(self, step: int, params: Params, sent: int) -> bool:
        """Measures the objective, or keeps a copy to measure it later. Returns whether plan.until is reached."""
        seconds, before = self.seconds, time.perf_counter()
        if self.plan.later:
            self.kept.append((step, seconds, {name: array.copy() for name, array in params.items()}, sent))
            return False
        objective = self._point(step, seconds, params, sent)
        self.paused += time.perf_counter() - before if self.pauses else 0
        return self.plan.until is not None and objective <= self.plan.until

    def _point(self, step: int, seconds: float, params: Params, sent: int) -> float:
        objective = self.model.objective(params)
        self.points.append((step, seconds, objective, sent))
        self.tell(step, objective)
        return objective

    def measure(self) -> None:
        """Measures the objective of all parameters that were kept for later."""
        for kept in self.kept:
            self._point(*kept)


# ---- training --------------------------------------------------------------------------------------------------------


def train(ctx: hpcomm.Context, model: Model, plan: Plan, flow: Flow, tell: Callable[[int, float], object]) -> Run:
    """Trains the model, and returns the results. All ranks call it."""
    clock, batches = time.perf_counter, Batches(model.samples, ctx.size, plan.batch, plan.seed)
    computed = waited = 0.0
    stop, step = Stop(ctx, flow.staleness), 0
    with open_exchange(ctx, model.start(), flow) as exchange:
        ctx.barrier()
        looks = Looks(model, plan, flow.staleness == 0, tell)
        while True:
            last = stop.ends(step) or step == plan.steps
            looking = ctx.rank == 0 and (last or step % plan.every == 0)
            if looking and looks.look(step, exchange.params, sent_by(exchange)):
                stop.tell(step)
            if last:
                break
            begin = clock()
            for name in exchange.params:
                exchange.gradient(name)  # under SSP it may wait for a free slot
            free = clock()
            step += 1
            scale = plan.eta / step**0.5 / batches.total
            model.update(exchange.params, batches.of(ctx.rank, step - 1), scale, exchange.gradient)
            done = clock()
            time.sleep(max(0.0, free + plan.compute - done))
            slept = clock()
            exchange.step()
            computed, waited = computed + done - free, waited + clock() - slept + free - begin
        mine = np.array([looks.seconds, waited, computed, sent_by(exchange), step], np.float64)
        every = [np.frombuffer(each).tolist() for each in ctx.allgather(mine.tobytes())]
        params = exchange.params
    score = ("", 0.0)
    if ctx.rank == 0:
        looks.measure()
        score = model.score(params)
    return Run(way(flow), looks.points, every, score, asdict(flow))


def way(flow: Flow) -> str:
    discipline = f"SSP({flow.staleness})" if flow.staleness else "BSP"
    return f"{'dense' if flow.delta is None else f'delta {flow.delta:g}'}, {discipline}"


# ---- telling ---------------------------------------------------------------------------------------------------------


def points_table(run: Run) -> Table:
    found = Table(title=run.way, title_justify="left")
    for name in ("step", "seconds", "objective", "MB sent by rank 0"):
        found.add_column(name, justify="right")
    for step, seconds, objective, sent in run.points:
        found.add_row(str(step), f"{seconds:.2f}", f"{objective:.5f}", f"{sent / 1e6:.1f}")
    return found


def runs_table(runs: list[Run], aim: float, dense: float) -> Table:
    """Returns the table of all runs. dense: bytes that a rank sends in a step if all parameters travel."""
    found = Table(title_justify="left")
    found.add_column("", no_wrap=True)
    columns = "steps", "time", "computing", "in the exchange", "MB a step", "saved", "objective", runs[0].score[0]
    for name in (*columns, f"{aim:.5g} after"):
        found.add_column(name, justify="right")
    for run in runs:
        step, seconds, objective, _ = run.points[-1]
        reached, (_, waited, computed, _, steps) = run.reached(aim), np.array(run.ranks).mean(axis=0)
        found.add_row(
            run.way,
            str(step),
            f"{seconds:.2f} s",
            f"{1e3 * computed / max(steps, 1):.0f} ms",
            f"{1e3 * waited / max(steps, 1):.0f} ms",
            f"{run.sent / 1e6:.2f}",
            f"{100 * (1 - run.sent / dense):.1f} %" if dense else "-",
            f"{objective:.5f}",
            f"{run.score[1]:.4f}",
            f"step {reached[0]}, {reached[1]:.2f} s" if reached else "never",
        )
    return found


# ---- the job ---------------------------------------------------------------------------------------------------------


class Delta(click.ParamType[float | str]):
    """A click type: low, up, or a number."""

    name = "low|up|FLOAT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        if value in ("low", "up"):
            return str(value)
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            self.fail(f"{value!r} must be low, up, or a number of 0 or more", param, ctx)
        return number


class TreeType(click.ParamType[hpcomm.Tree | str]):
    """A click type: auto, or a number of children of each rank."""

    name = "auto|INTEGER"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> hpcomm.Tree | str:
        if value == "auto":
            return "auto"
        if not str(value).isdigit() or int(value) < 1:
            self.fail(f"{value!r} must be auto, or a number of children, 1 or more", param, ctx)
        return hpcomm.Tree(arity=int(value))


COMPRESSIONS = ("lz4", "snappy", "zstd", "zlib")
_OPTIONS = (
    click.option("--size", type=click.Choice(["full", "small"]), default="full", help="small: to try it out."),
    click.option("--steps", type=click.IntRange(1), help="At most so many; default: the model's."),
    click.option("--until", type=float, help="An objective that ends the training."),
    click.option("--batch", type=click.IntRange(1), help="Samples of a rank in a step; default: the model's."),
    click.option("--eta", type=click.FloatRange(0, min_open=True), help="Rate of step 1; default: the model's."),
    click.option("--compute", type=click.FloatRange(0), default=0.0, help="Seconds of computing a step, at least."),
    click.option("--staleness", type=click.IntRange(0, 30), default=0, help="0: BSP; s: SSP(s)."),
    click.option("--dense", is_flag=True, help="All parameters, through servers, in place of Parameter Flow."),
    click.option("--delta", type=Delta(), default="low", help="Threshold of step 1: one of the model's, or a number."),
    click.option("--at-least", type=click.FloatRange(0, min_open=True), help="Bytes a second; below them delta is up."),
    click.option(
        "--follow", type=click.Choice(["probes", "smooth"]), default="probes", help="How bytes a second are found."
    ),
    click.option("--tree", type=TreeType(), help="auto, or the children of a rank: 1 is a chain; default: none."),
    click.option("--form", type=click.Choice(["bytes", "paper"]), default="bytes", help="How updates are encoded."),
    click.option("--values", type=click.Choice(["float32", "float16", "bfloat16"]), default="float32"),
    click.option("--compress", type=click.Choice(COMPRESSIONS), help="Compresses the sent bytes further."),
    click.option("--compare", is_flag=True, help="One after the other: dense, delta low, delta up."),
    click.option("--every", type=click.IntRange(1), default=10, help="Steps between two looks at the objective."),
    click.option("--later", is_flag=True, help="The objective is measured after the training."),
    click.option("--seed", type=click.IntRange(0), default=0, help="Of the data and the minibatches."),
    click.option("--plot", "plot_path", help="Where the curves go."),
    click.option("--json", "json_path", help="Where the figures go, as JSON."),
)


def options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that all programs train_flow_*.py have."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


Make = Callable[[hpcomm.Context, bool, int], Model]  # (context, small, seed) -> model


def run(
    make: Make,
    *,
    size: str,
    steps: int | None,
    batch: int | None,
    eta: float | None,
    staleness: int,
    dense: bool,
    delta: float | str,
    at_least: float | None,
    follow: str,
    tree: Any,
    form: str,
    values: str,
    compress: str | None,
    compare: bool,
    plot_path: str | None,
    json_path: str | None,
    **given: Any,
) -> None:
    """Runs a program: makes the model on each rank, trains, and prints the results. The exit status is 1 if --until was
    not reached."""
    if given["later"] and given["until"] is not None:
        raise click.UsageError("--later measures after the training, so --until could not end it: give one of them")
    with hpcomm.init() as ctx:
        console = console_of(ctx.rank)
        with refusing(ctx.rank, BadData):
            model = make(ctx, size == "small", given["seed"])
        usual = model.defaults
        samples = batch or (FEW if size == "small" else usual.batch)
        plan = Plan(steps=steps or usual.steps, batch=samples, eta=eta or usual.eta, **given)
        thresholds = {"low": usual.low, "up": usual.up}
        chosen = thresholds[delta] if isinstance(delta, str) else delta
        more = {"progress": "thread"} if staleness else {}
        up = None if at_least is None else max(chosen, usual.up)
        flow = Flow(None if dense else chosen, staleness, form, values, compress, up, at_least, follow, tree, more)
        flows = [replace(flow, delta=each) for each in (None, usual.low, usual.up)] if compare else [flow]
        with refusing(ctx.rank):
            Batches(model.samples, ctx.size, plan.batch, plan.seed)
        count = sum(array.size for array in model.start().values())
        if console is not None:
            print(f"{model.name}: {count} parameters, {4e-6 * count:.1f} MB; {ctx.size} ranks", flush=True)
        runs = []
        for each in flows:
            with progress(console, way(each), plan.steps) as tell:
                runs.append(train(ctx, model, plan, each, tell))
        ranks = ctx.size
    if console is None:
        return
    whole = 8 * count * (ranks - 1) / ranks
    sys.exit(told(console, model.name, runs, plan, whole, plot_path, json_path))


def told(
    console: Console,
    name: str,
    runs: list[Run],
    plan: Plan,
    dense: float,
    plot_path: str | None,
    json_path: str | None,
) -> int:
    """Prints and writes the results. Returns the exit status."""
    for run in runs:
        console.print(points_table(run))
    aim = runs[0].points[-1][2] if plan.until is None else plan.until
    console.print(runs_table(runs, aim, dense))
    if plot_path is not None:
        plot(runs, f"{name}, {len(runs[0].ranks)} ranks", plot_path)
    if json_path is not None:
        facts = {"model": name, "plan": asdict(plan), "objective": aim, "dense bytes": dense}
        with open(json_path, "w", encoding="utf-8") as file:
            json.dump({**facts, "runs": [asdict(each) for each in runs]}, file, indent=1)
    return 0 if plan.until is None or all(each.reached(plan.until) for each in runs) else 1

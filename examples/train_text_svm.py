"""Several ranks train a linear SVM that tells two classes of texts apart, each from a different part of the texts.

    mpirun -n 4 python examples/train_text_svm.py
    mpirun -n 8 python examples/train_text_svm.py --graph root_expander --consistency ASYNC --delay 20
    mpirun -n 8 python examples/train_text_svm.py --compare

This is the application of ASAP (sections 5 and 6): stochastic gradient descent on sparse rows, after Bottou's svmsgd.
After every --period rows a rank averages its model with the models of its in-neighbours. --compare trains on the same
data with several combinations of graph and consistency, and draws accuracy against time and against bytes sent (figures
5 to 10). For the paper's single machine, start one rank without mpirun, with "--compare alone".

The texts are the descriptions of Debian's packages (apt-cache dumpavail), and the task is to find the packages of one
section. Without apt's lists the data are scikit-learn's handwritten digits. --data reads the paper's data, RCV1 or
webspam, from a folder, or any file in svmlight's format. With --hashed the model has --features weights even if the
texts have fewer words: 11000000 is the size of the paper's largest model, splice-site, 44 MB. A rank keeps --points
copies of the model.
"""

import os
import sys

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import json
import math
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

try:
    import click
    import matplotlib
    import numba
    import numpy as np
    import paper_data
    import text_data
    from numpy.typing import NDArray
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Table
    from text_data import Rows
except ImportError as missing:
    sys.exit(f"{missing}; this demo needs: pip install click matplotlib numba numpy rich scikit-learn")

import hpcomm

Array = NDArray[Any]
Floats = NDArray[np.float32]

GRAPHS: dict[str, Callable[[int], hpcomm.graphs.Graph | tuple[hpcomm.graphs.Graph, ...]]] = {
    "complete": hpcomm.graphs.complete,
    "root_expander": hpcomm.graphs.root_expander,
    "exponential": hpcomm.graphs.exponential,
    "one_peer_exponential": hpcomm.graphs.one_peer_exponential,  # one neighbour, which changes with each exchange
    "hypercube": hpcomm.graphs.hypercube,
    "ring": hpcomm.graphs.ring,
    "chain": partial(hpcomm.graphs.chain, directed=False),  # in a directed chain rank 0 would get no other model
}
ALLREDUCE, ALONE = "MPI_Allreduce", "alone"
COMPARED = ",".join(
    (
        "complete/BSP",
        "complete/NOTIFY_ACK",
        "root_expander/NOTIFY_ACK",
        "one_peer_exponential/NOTIFY_ACK",
        "root_expander/BSP",
        "root_expander/BARRIER",
        "root_expander/ASYNC",
        "chain/NOTIFY_ACK",
        ALLREDUCE,
    )
)
SAMPLE = 1000  # rows on which first learning rates are tried
INIT = 300.0  # seconds to start: if ranks outnumber cores, their imports take long
NOISE = 0.001  # noise of an accuracy: about a dozen test rows
MOST = (1 << 31) - 1  # most columns, as column numbers are int32
BIAS_RATE = 0.01  # the learning rate of the bias over that of a weight, as every row changes the bias


# ---- model -----------------------------------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def descend(
    model: Floats,
    order: Array,
    indptr: Array,
    values: Array,
    indices: Array,
    labels: Array,
    decay: float,
    eta0: float,
    t: int,
) -> None:
    """Makes a gradient step for each row in order, on the hinge loss plus decay/2 times the squared weights (svmsgd).

    A step shrinks all weights but adds to the few of its row. So shrinking is kept as one factor, which is multiplied
    in at the end. The last value of the model is the bias, which does not shrink. t: steps done before.
    """
    n, scale = model.size - 1, 1.0
    bias = float(model[n])
    for row in order:
        eta = eta0 / (1.0 + decay * eta0 * t)
        score = 0.0
        for k in range(indptr[row], indptr[row + 1]):
            score += model[indices[k]] * values[k]
        scale *= 1.0 - eta * decay
        if (scale * score + bias) * labels[row] < 1.0:
            push = eta * labels[row] / scale
            for k in range(indptr[row], indptr[row + 1]):
                model[indices[k]] += push * values[k]
            bias += BIAS_RATE * eta * labels[row]
        t += 1
    for i in range(n):
        model[i] *= scale
    model[n] = bias


@numba.njit(cache=True, nogil=True)
def judge(model: Floats, indptr: Array, values: Array, indices: Array, labels: Array) -> tuple[float, float]:
    """Returns the accuracy, and the mean hinge loss."""
    n, right, loss = model.size - 1, 0, 0.0
    for row in range(labels.size):
        score = float(model[n])
        for k in range(indptr[row], indptr[row + 1]):
            score += model[indices[k]] * values[k]
        right += (score > 0.0) == (labels[row] > 0.0)
        loss += max(0.0, 1.0 - score * labels[row])
    return right / labels.size, loss / labels.size


def first_rate(rows: Rows, decay: float) -> float:
    """Returns the first learning rate: the power of two with the least cost after a pass over a few rows, as svmsgd
    chooses it."""
    sample = rows.take(np.arange(min(SAMPLE, len(rows))))

    def cost(eta0: float) -> float:
        model = np.zeros(rows.features + 1, np.float32)
        descend(model, np.arange(len(sample)), *sample.arrays, decay, eta0, 0)
        return float(judge(model, *sample.arrays)[1] + decay / 2 * np.dot(model[:-1], model[:-1]))

    return min((2.0**k for k in range(-10, 11) if decay * 2.0**k < 1), key=cost)


# ---- exchange --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class How:
    """A way to exchange: stochastic_reduce with a graph and a consistency, MPI's allreduce, or no exchange."""

    graph: str
    consistency: str = ""

    @classmethod
    def named(cls, text: str) -> "How":
        """Parses "GRAPH/CONSISTENCY", with values of --graph and --consistency, "MPI_Allreduce" or "alone".

        Raises:
            click.BadParameter: the graph or the consistency is unknown.
        """
        graph, _, consistency = text.strip().partition("/")
        if graph in (ALLREDUCE, ALONE) and not consistency:
            return cls(graph)
        if graph not in GRAPHS:
            raise click.BadParameter(f"{graph!r} is no graph: {', '.join(GRAPHS)}, {ALLREDUCE} or {ALONE}")
        consistency_of(consistency)
        return cls(graph, consistency)

    def __str__(self) -> str:
        return f"{self.graph}/{self.consistency}" if self.consistency else self.graph


def consistency_of(text: str) -> Any:
    """Parses BSP, BARRIER, ASYNC, NOTIFY_ACK, or SSP:n; raises click.BadParameter for other text."""
    name, _, bound = text.partition(":")
    if name == "SSP" and bound.isdigit():
        return hpcomm.SSP(int(bound))
    if text not in ("NOTIFY_ACK", "BSP", "BARRIER", "ASYNC"):
        raise click.BadParameter(f"{text!r} is no consistency: NOTIFY_ACK, BSP, BARRIER, ASYNC or SSP:3")
    return getattr(hpcomm, text)


class Averaging(Protocol):
    """The interface of an exchange. model: the weights that this rank trains. average replaces model by the mean with
    other ranks' models, perhaps in another array."""

    model: Floats

    def average(self) -> None: ...

    @property
    def bytes_sent(self) -> int: ...

    @property
    def inputs(self) -> tuple[int, int, int, int]:
        """Counts of in-neighbours' models that were averaged, were torn (overwritten while read), had been averaged
        before, or were missing. All are 0 if the exchange does not count."""

    def close(self) -> None: ...


class StochasticReduce:
    """An exchange that averages this rank's model with its in-neighbours' in a graph (ASAP, section 3)."""

    def __init__(self, ctx: hpcomm.Context, how: How, size: int) -> None:
        start, graph = {"w": np.zeros(size, np.float32)}, GRAPHS[how.graph](ctx.size)
        consistency = consistency_of(how.consistency)
        self.exchange = hpcomm.stochastic_reduce(ctx, start, topology=graph, consistency=consistency, in_place=True)
        self.model = self.exchange.params["w"]

    def average(self) -> None:
        self.model = self.exchange.push_pull("w")

    @property
    def bytes_sent(self) -> int:
        return int(self.exchange.stats().bytes_sent)

    @property
    def inputs(self) -> tuple[int, int, int, int]:
        found = self.exchange.stats()
        return found.whole, found.torn, found.stale, found.missing

    def close(self) -> None:
        self.exchange.close()


class Allreduce:
    """An exchange that averages the models of all ranks by MPI. MPI does not count bytes, so bytes_sent is the least
    that an allreduce needs: 2(n-1)/n of the model."""

    def __init__(self, ctx: hpcomm.Context, how: How, size: int) -> None:
        from mpi4py import MPI  # noqa: PLC0415 - the ranks may come from another launcher

        self.comm, self.in_place = MPI.COMM_WORLD, MPI.IN_PLACE
        self.model = np.zeros(size, np.float32)
        self.share = np.float32(1 / ctx.size)
        self.least = 2 * (ctx.size - 1) * self.model.nbytes // ctx.size
        self.exchanges = 0

    def average(self) -> None:
        self.comm.Allreduce(self.in_place, self.model)
        self.model *= self.share
        self.exchanges += 1

    @property
    def bytes_sent(self) -> int:
        return self.exchanges * self.least

    @property
    def inputs(self) -> tuple[int, int, int, int]:
        return 0, 0, 0, 0

    def close(self) -> None:
        pass


class Alone:
    """No exchange: each rank trains a separate model."""

    bytes_sent: int = 0
    inputs: tuple[int, int, int, int] = (0, 0, 0, 0)

    def __init__(self, ctx: hpcomm.Context, how: How, size: int) -> None:
        self.model = np.zeros(size, np.float32)

    def average(self) -> None:
        pass

    def close(self) -> None:
        pass


# ---- training --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """How long a rank trains, how often it exchanges, and after which exchanges it keeps a copy of its model."""

    rows: int  # of one rank
    period: int  # rows between two exchanges
    epochs: int
    decay: float
    eta0: float
    points: int  # copies of the model that a rank keeps
    delay: float  # rank SLOW computes this many times as long as other ranks
    seed: int

    @property
    def per_epoch(self) -> int:
        return math.ceil(self.rows / self.period)

    @property
    def exchanges(self) -> int:
        return self.epochs * self.per_epoch

    @property
    def kept(self) -> set[int]:
        """The numbers of the exchanges after which a copy of the model is kept; the last one is included."""
        return {math.ceil(self.exchanges * i / self.points) for i in range(1, self.points + 1)}

    def batches(self, rank: int) -> Iterator[Array]:
        """Yields the rows between two exchanges; each epoch has another order."""
        for epoch in range(self.epochs):
            order = np.random.default_rng([self.seed, rank, epoch]).permutation(self.rows)
            for first in range(0, self.rows, self.period):
                yield order[first : first + self.period]


@dataclass(frozen=True)
class Run:
    """The results of a training. seconds, sent, made and accuracy have a row for each rank, and a column for each kept
    model; the first is the model before training."""

    how: How
    exchanges: int
    seconds: Array
    sent: Array  # bytes
    made: Array  # exchanges
    accuracy: Array
    inputs: Array  # (ranks, 4): whole, torn, stale, missing
    waiting: Array  # (ranks, 1): seconds in exchanges
    processor: Array  # (ranks, 1): processor seconds of all threads

    def curve(self) -> tuple[Array, Array, Array, Array]:
        """Returns seconds, and at each of them the means over the ranks of bytes sent, accuracy, and exchanges made."""
        times = np.unique(self.seconds)
        at = [np.searchsorted(own, times, side="right") - 1 for own in self.seconds]
        sent, accuracy, made = (
            np.mean([own[i] for own, i in zip(all_ranks, at, strict=True)], axis=0)
            for all_ranks in (self.sent, self.accuracy, self.made)
        )
        return times, sent, accuracy, made

    def reached(self, target: float) -> tuple[float, float, float] | None:
        """Returns the seconds, bytes and exchanges until the accuracy first reached target; None if it did not."""
        times, sent, accuracy, made = self.curve()
        found = np.flatnonzero(accuracy >= target)
        if len(found) == 0:
            return None
        first = found[0]
        return float(times[first]), float(sent[first]), float(made[first])

    def as_json(self, target: float) -> dict[str, Any]:
        return {
            "graph": self.how.graph,
            "consistency": self.how.consistency,
            "exchanges": self.exchanges,
            "seconds": self.seconds.tolist(),
            "bytes_sent": self.sent.tolist(),
            "accuracy": self.accuracy.tolist(),
            "inputs": dict(zip(("whole", "torn", "stale", "missing"), self.inputs.sum(axis=0).tolist(), strict=True)),
            "seconds_waiting": self.waiting.tolist(),
            "processor": self.processor.tolist(),
            "curve": [each.tolist() for each in self.curve()],
            "reached": self.reached(target),
        }


HOW: dict[str, Callable[[hpcomm.Context, How, int], Averaging]] = {ALLREDUCE: Allreduce, ALONE: Alone}
SLOW = 1  # the rank that --delay slows down
Tell = Callable[[int], object]


def train(ctx: hpcomm.Context, how: How, task: text_data.Task, plan: Plan, tell: Tell) -> Run:
    """Trains a model from zero on this rank's rows, and returns the results of all ranks. All ranks call it."""
    size = task.train.features + 1
    exchange: Averaging = HOW.get(how.graph, StochasticReduce)(ctx, how, size)
    kept = [(0.0, 0, 0, exchange.model.copy())]
    slower = plan.delay - 1 if ctx.rank == SLOW else 0.0
    wanted, clock, waiting = plan.kept, time.perf_counter, 0.0
    descend(exchange.model, np.arange(0), *task.train.arrays, plan.decay, plan.eta0, 0)  # compiles it, untimed
    ctx.barrier()
    used, begin = processor(), clock()
    for number, batch in enumerate(plan.batches(ctx.rank), 1):
        start = time.thread_time()
        t = (number - 1) // plan.per_epoch * plan.rows + (number - 1) % plan.per_epoch * plan.period
        descend(exchange.model, batch, *task.train.arrays, plan.decay, plan.eta0, t)
        if slower:
            time.sleep(slower * (time.thread_time() - start))
        before = clock()
        exchange.average()
        waiting += clock() - before
        if number in wanted:
            kept.append((clock() - begin, exchange.bytes_sent, number, exchange.model.copy()))
            tell(number)
    used = processor() - used
    ctx.barrier()
    inputs = exchange.inputs
    exchange.close()
    accuracy = [judge(model, *task.test.arrays)[0] for *_, model in kept]
    seconds, sent, made = ([float(each[i]) for each in kept] for i in range(3))
    mine = (seconds, sent, made, accuracy, [float(n) for n in inputs], [waiting], [used])
    return Run(how, plan.exchanges, *(gather(ctx, each) for each in mine))


def processor() -> float:
    """Returns the processor seconds of all threads of this process, in user mode and in the kernel."""
    found = resource.getrusage(resource.RUSAGE_SELF)
    return found.ru_utime + found.ru_stime


def gather(ctx: hpcomm.Context, mine: list[float]) -> Array:
    """Returns the numbers of all ranks, a row for each, gathered over hpcomm's control channel."""
    everyone = b"".join(ctx.allgather(np.array(mine).tobytes()))
    return np.frombuffer(everyone).reshape(ctx.size, len(mine))


# ---- telling ---------------------------------------------------------------------------------------------------------


def console_of(rank: int) -> Console | None:
    """Returns rank 0's console; None on other ranks. A terminal of width 0, as Open MPI gives its ranks, is treated as
    a pipe."""
    if rank > 0:
        return None
    terminal = sys.stdout.isatty() and os.get_terminal_size(sys.stdout.fileno()).columns > 0
    return Console() if terminal else Console(force_terminal=False, width=150)


@contextmanager
def progress(console: Console | None, what: str, exchanges: int) -> Iterator[Tell]:
    """Shows progress: a bar on a terminal, otherwise a line at the beginning."""
    if console is None:
        yield lambda number: None
    elif console.is_terminal:
        figures = TextColumn("exchange {task.completed} of {task.total}")
        with Progress(TextColumn("{task.description:30}"), BarColumn(), figures, console=console) as bar:
            task = bar.add_task(what, total=exchanges)
            yield lambda number: bar.update(task, completed=number)
    else:
        print(f"{what}: {exchanges} exchanges", flush=True)
        yield lambda number: None


def table(runs: list[Run], size: int, target: float) -> Table:
    found = Table(title=f"Test accuracy ({size} ranks)", title_justify="left")
    found.add_column("", no_wrap=True)
    reaching = f"{100 * target:.2f} % after"
    for name in ("time", "exchanges", "sent by a rank", "accuracy", "whole", "torn", "stale", "missing", reaching):
        found.add_column(name, justify="right")
    for run in runs:
        last, inputs = 100 * run.accuracy[:, -1], run.inputs.sum(axis=0)
        shares = [f"{100 * share:.3g} %" for share in inputs / inputs.sum()] if inputs.any() else [""] * 4
        spread = f" ({last.min():.2f} to {last.max():.2f})" if np.ptp(last) >= 0.005 else ""
        reached = run.reached(target)
        found.add_row(
            str(run.how),
            f"{run.seconds[:, -1].mean():.2f} s",
            str(run.exchanges),
            f"{run.sent[:, -1].mean() / 1e6:.1f} MB",
            f"{last.mean():.2f} %{spread}",
            *shares,
            f"{reached[0]:.2f} s, {reached[1] / 1e6:.1f} MB, {reached[2]:.0f}" if reached else "never",
        )
    return found


def plot(runs: list[Run], title: str, target: float, path: str) -> None:
    """Draws accuracy against time, and against bytes."""
    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415  (after the choice of Agg)

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    for run in runs:
        times, sent, accuracy, _ = run.curve()
        dashes = {"BSP": "--", "BARRIER": "-.", "ASYNC": ":"}.get(run.how.consistency, "-")
        for axis, x in ((axes[0], times), (axes[1], sent / 1e6)):
            axis.plot(x, 100 * accuracy, dashes, label=str(run.how))
    for axis, label in ((axes[0], "seconds"), (axes[1], "MB sent by a rank")):
        axis.axhline(100 * target, color="black", linewidth=0.6)
        axis.set(xlabel=label)
        axis.grid(alpha=0.3)
    best = max(float(run.accuracy.max()) for run in runs)
    start = min(float(run.accuracy[:, 0].min()) for run in runs)
    axes[0].set(ylabel="test accuracy (%)", ylim=(100 * (start + (best - start) / 2), 100 * best + 0.2))
    axes[0].legend(fontsize="small")
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


# ---- the job ---------------------------------------------------------------------------------------------------------


@click.command(help=__doc__, context_settings={"show_default": True})
@click.option("--data", "--svmlight", "path", type=click.Path(), help="A file or folder of svmlight rows, two labels.")
@click.option("--section", default="libs", help="Of Debian: which packages are to be found.")
@click.option("--features", type=click.IntRange(1, MOST), default=1 << 17, help="Words and pairs of words, at most.")
@click.option("--hashed", is_flag=True, help="Words and pairs are hashed into exactly --features columns.")
@click.option("--by-class", is_flag=True, help="A rank's rows are of one class, as far as they can be.")
@click.option("--graph", type=click.Choice(list(GRAPHS)), default="root_expander", help="Who sends to whom.")
@click.option("--consistency", default="NOTIFY_ACK", help="NOTIFY_ACK, BSP, BARRIER, ASYNC, or SSP:n.")
@click.option("--allreduce", is_flag=True, help="MPI_Allreduce in place of graph and consistency.")
@click.option("--compare", is_flag=False, flag_value=COMPARED, help=f"GRAPH/CONSISTENCY,..., {ALLREDUCE}, {ALONE}.")
@click.option("--epochs", type=click.IntRange(1), default=10, help="Passes over the training data.")
@click.option("--period", type=click.IntRange(1), default=500, help="A rank's examples between two exchanges.")
@click.option("--target", type=click.FloatRange(0, 1), help=f"To reach; default: the first run's end, less {NOISE}.")
@click.option("--delay", type=click.FloatRange(1), default=1.0, help=f"Rank {SLOW} takes so many times as long.")
@click.option("--decay", type=click.FloatRange(0, 1, min_open=True), default=1e-5, help="Lambda, of the weights.")
@click.option("--eta0", type=click.FloatRange(0, min_open=True), help="First rate of learning; default: tried out.")
@click.option("--points", type=click.IntRange(1), default=40, help="Of a curve: models that each rank keeps.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Of the split and the order.")
@click.option("--plot", "plot_path", default="train_text_svm.png", help="Where the curves go.")
@click.option("--json", "json_path", help="Where the figures go, as JSON.")
def main(
    path: str | None,
    section: str,
    features: int,
    hashed: bool,
    by_class: bool,
    graph: str,
    consistency: str,
    allreduce: bool,
    compare: str | None,
    epochs: int,
    period: int,
    target: float | None,
    delay: float,
    decay: float,
    eta0: float | None,
    points: int,
    seed: int,
    plot_path: str,
    json_path: str | None,
) -> None:
    chosen = compare or (ALLREDUCE if allreduce else f"{graph}/{consistency}")
    hows = [How.named(text) for text in chosen.split(",")]
    if eta0 is not None and decay * eta0 >= 1:
        raise click.BadParameter(f"{eta0:g}: must be less than 1 / decay, {1 / decay:g}", param_hint="--eta0")
    with hpcomm.init(init_timeout=INIT) as ctx:
        console = console_of(ctx.rank)
        try:
            task = text_data.share(ctx, lambda: text_data.read(path, section, features, seed, hashed), by_class)
        except paper_data.BadData as wrong:
            if console is not None:
                print(f"{os.path.basename(sys.argv[0])}: {wrong}", file=sys.stderr)
            sys.exit(2)
        tried = 0.0 if eta0 or ctx.rank > 0 else first_rate(task.train, decay)
        rate = eta0 or gather(ctx, [tried])[0, 0]
        plan = Plan(len(task.train), period, epochs, decay, rate, points, delay, seed)
        told = f"{ctx.size} x {plan.rows} rows, {task.train.features + 1} weights"
        if console is not None:
            print(
                f"{task.name}: {told}, {len(task.test)} tests; all the same: {100 * task.test.majority:.2f} %",
                flush=True,
            )
        runs = []
        for how in hows:
            with progress(console, str(how), plan.exchanges) as tell:
                runs.append(train(ctx, how, task, plan, tell))
    if console is None:
        return
    aim = float(runs[0].accuracy[:, -1].mean()) - NOISE if target is None else target
    console.print(table(runs, ctx.size, aim))
    plot(runs, f"{task.name} ({told})", aim, plot_path)
    print(f"curves: {os.path.abspath(plot_path)}")
    if json_path is not None:
        facts = {"task": task.name, "ranks": ctx.size, "tests": len(task.test), "majority": task.test.majority}
        settings = {**vars(plan), "weights": task.train.features + 1, "target": aim}
        with open(json_path, "w") as file:
            json.dump({**facts, **settings, "runs": [run.as_json(aim) for run in runs]}, file, indent=1)
    sys.exit(0 if target is None or all(run.reached(target) for run in runs) else 1)


if __name__ == "__main__":
    main()

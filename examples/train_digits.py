"""Several ranks learn to read digits, each from a different part of the data.

    mpirun -n 4 python examples/train_digits.py
    mpirun -n 4 python examples/train_digits.py --exchange parameter_hub
    mpirun -n 4 python examples/train_digits.py --exchange parameter_hub --checkpoint saved --resume   # after any end

The ranks average their models with their neighbours' by NOTIFY-ACK, or they push each layer's gradient to a parameter
hub as soon as the backward pass has computed it.

The data are scikit-learn's 1797 handwritten digits: three quarters to train on, the rest to test with. The ranks'
shards differ on purpose: four fifths of a shard show only a few of the ten digits, the rest shows all. So a rank that
trains alone reads most digits badly, and only the exchange can repair that.

Each model is trained three times with the same number of steps: by all ranks with exchange, by all ranks without, and
by rank 0 alone on all data. The step of rank 0 alone takes as many examples as one step of all ranks together. To
compare with a hub it takes exactly their examples, so it reaches the hub's weights, up to rounding. The exit code is 0
if the exchanging ranks have the same weights, and their test accuracy is at most one percentage point below that of
rank 0 alone.
"""

import os
import sys

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

try:
    import click
    import matplotlib
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Table
    from sklearn.datasets import load_digits
except ImportError as missing:
    sys.exit(f"{missing}; this demo needs: pip install click matplotlib numpy rich scikit-learn")

import hpcomm

Array = NDArray[Any]

AGREE = 1e-5  # largest allowed difference of a weight between two ranks at the end
REACH = 0.01  # how much test accuracy the exchange may cost
CONSENSUS = 1e-7  # factor to which the averaging rounds at the end reduce differences between ranks


# ---- data ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Digits:
    """Images of 64 values from 0 to 1, and the digits that they show, in random order."""

    x: Array
    y: Array
    x_test: Array
    y_test: Array

    @classmethod
    def load(cls, seed: int, dtype: str) -> "Digits":
        images, digits = load_digits(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(digits))
        x, y = (images[order] / 16).astype(dtype), digits[order]
        cut = len(y) * 3 // 4
        return cls(x[:cut], y[:cut], x[cut:], y[cut:])

    def shard(self, rank: int, size: int) -> Array:
        """Returns the training examples of a rank. Every fifth example is dealt out in turn; the others are sorted by
        digit and cut into one part for each rank."""
        i = np.arange(len(self.y))
        dealt, others = i[i % 5 == 0], i[i % 5 != 0]
        by_digit = others[np.argsort(self.y[others], kind="stable")]
        first, last = (len(by_digit) * r // size for r in (rank, rank + 1))
        return np.sort(np.concatenate([dealt[rank::size], by_digit[first:last]]))

    def export(self, path: str) -> None:
        """Writes the data for examples/cpp: a line with the numbers of examples, tests, pixels and digits, then a line
        for each image."""
        with open(path, "w") as file:
            file.write(f"{len(self.y)} {len(self.y_test)} {self.x.shape[1]} {self.y.max() + 1}\n")
            for x, y in ((self.x, self.y), (self.x_test, self.y_test)):
                np.savetxt(file, np.column_stack([y, x]), fmt="%.6g")


# ---- model -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Network:
    """A network of ReLU layers and a softmax. Without a hidden layer it is multiclass logistic regression.

    All weights are in one flat vector. The last row of a layer is its bias.
    """

    name: str
    sizes: tuple[int, ...]
    rate: float  # the first learning rate, which falls to 0
    decay: float = 1e-3

    @property
    def shapes(self) -> list[tuple[int, int]]:
        return [(inputs + 1, outputs) for inputs, outputs in zip(self.sizes[:-1], self.sizes[1:], strict=True)]

    @property
    def names(self) -> list[str]:
        return [f"layer {i + 1}" for i in range(len(self.shapes))]

    @property
    def n_weights(self) -> int:
        return sum(rows * columns for rows, columns in self.shapes)

    def layers(self, flat: Array) -> list[Array]:
        ends = np.cumsum([rows * columns for rows, columns in self.shapes])
        return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), self.shapes, strict=True)]

    def start(self, weights: Array, seed: int) -> None:
        """Sets the first weights, the same on every rank: hidden layers small and random, the last layer 0."""
        rng = np.random.default_rng(seed)
        weights[:] = 0
        for layer in self.layers(weights)[:-1]:
            layer[:-1] = rng.normal(0, math.sqrt(2 / len(layer)), layer[:-1].shape)

    def forward(self, layers: list[Array], x: Array) -> tuple[list[Array], Array]:
        """Returns the input of each layer, and the logarithms of the output probabilities."""
        *hidden, last = layers
        inputs = [x]
        for layer in hidden:
            inputs.append(np.maximum(inputs[-1] @ layer[:-1] + layer[-1], 0))
        scores = inputs[-1] @ last[:-1] + last[-1]
        scores -= scores.max(axis=1, keepdims=True)
        return inputs, scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))

    def backward(self, layers: list[Array], x: Array, y: Array, slope: Callable[[int], Array]) -> Iterator[int]:
        """Writes the gradient of layer i into slope(i), last layer first, and yields i. After that it does not read the
        layer's weights any more, so an exchange may change them."""
        inputs, logs = self.forward(layers, x)
        error = np.exp(logs)
        error[np.arange(len(y)), y] -= 1
        error /= len(y)
        for i in reversed(range(len(layers))):
            gradient = slope(i)
            np.matmul(inputs[i].T, error, out=gradient[:-1])
            np.sum(error, axis=0, out=gradient[-1])
            if i > 0:
                error = (error @ layers[i][:-1].T) * (inputs[i] > 0)
            yield i

    def step(self, weights: Array, x: Array, y: Array, rate: float) -> None:
        """Makes one step of gradient descent in place."""
        gradient = np.empty_like(weights)
        slopes = self.layers(gradient)
        for _ in self.backward(self.layers(weights), x, y, slopes.__getitem__):
            pass
        gradient += self.decay * weights
        gradient *= rate
        weights -= gradient

    def loss(self, weights: Array, x: Array, y: Array) -> float:
        return -float(self.forward(self.layers(weights), x)[1][np.arange(len(y)), y].mean())

    def accuracy(self, weights: Array, x: Array, y: Array) -> float:
        return float((self.forward(self.layers(weights), x)[1].argmax(axis=1) == y).mean())


MODELS = (
    Network("logistic regression", (64, 10), rate=0.5),
    Network("network, 48 hidden units", (64, 48, 10), rate=0.3),
)


# ---- who sends to whom -----------------------------------------------------------------------------------------------

GRAPHS: dict[str, Callable[[int], set[int]]] = {
    "ring": lambda size: {1},
    "complete": lambda size: set(range(1, size)),
    "expander": lambda size: {1, round(math.sqrt(size))},  # ASAP's root expander (section 3)
}


@dataclass(frozen=True)
class Graph:
    """A directed graph that looks the same from every rank: rank i sends to i + offset, for each offset."""

    name: str
    size: int
    offsets: tuple[int, ...]

    @classmethod
    def named(cls, name: str, size: int) -> "Graph":
        return cls(name, size, tuple(sorted({offset % size for offset in GRAPHS[name](size)} - {0})))

    @property
    def workers(self) -> list[int]:
        return list(range(self.size))

    def out_peers(self, rank: int) -> list[int]:
        return [(rank + offset) % self.size for offset in self.offsets]

    def in_peers(self, rank: int) -> list[int]:
        return [(rank - offset) % self.size for offset in self.offsets]

    def consensus_rounds(self) -> int:
        """Returns how many averagings reduce differences between ranks to CONSENSUS times the first difference, from
        the second largest eigenvalue of the averaging matrix."""
        row = np.zeros(self.size)
        row[[0, *self.offsets]] = 1 / (1 + len(self.offsets))
        second = sorted([0, *np.abs(np.fft.fft(row))])[-2]
        return math.ceil(math.log(CONSENSUS) / math.log(max(second, CONSENSUS)))

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Hub:
    """The placement of the hub's servers on the ranks (PHub, sections 2.1 and 3.3)."""

    placement: str
    size: int

    @property
    def workers(self) -> list[int]:
        """All ranks, except rank 0 with placement NCC, where it only serves."""
        return list(range(self.placement == "NCC", self.size))

    def __str__(self) -> str:
        return f"parameter hub, {self.placement}"


# ---- training --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """How long to train, and how often to exchange."""

    steps: int
    steps_per_epoch: int
    every: int  # steps between two exchanges
    rounds: int  # averagings after the last step
    seed: int
    hold: int  # steps between two changes of the learning rate

    def rate(self, step: int) -> float:
        """Returns the factor by which the first learning rate is multiplied in a step."""
        return 1 - step // self.hold * self.hold / self.steps


@dataclass(frozen=True)
class Saving:
    """Where a hub's training is saved (None: nowhere), after how many steps, and whether it resumes from there."""

    folder: str | None
    every: int
    resume: bool


@dataclass
class Run:
    """One training of one model by this rank."""

    weights: Array = field(default_factory=lambda: np.empty(0))
    losses: list[float] = field(default_factory=list)  # over all training data, at the start and after each epoch
    accuracy: float = 0.0
    bytes_sent: int = 0
    seconds_waiting: float = 0.0  # both in wall-clock time
    seconds_computing: float = 0.0

    @property
    def numbers(self) -> list[float]:
        return [self.accuracy, self.bytes_sent, self.seconds_waiting, self.seconds_computing]


class Alone:
    """Gradient descent without an exchange."""

    def __init__(self, model: Network, plan: Plan, weights: Array) -> None:
        self.model, self.plan, self.weights = model, plan, weights
        self.exchanging = 0.0  # seconds
        self.first, self.losses = 0, list[float]()  # the next step, and losses so far, of a resumed training
        model.start(weights, plan.seed)

    def step(self, number: int, x: Array, y: Array, rate: float) -> None:
        self.model.step(self.weights, x, y, rate)

    def after(self, steps: int, losses: list[float]) -> None:
        """Does nothing; Pushing saves the training here. steps: how many are done."""

    def flat(self) -> Array:
        """Returns all weights as one vector, which the caller must not change."""
        return self.weights

    def finish(self) -> tuple[int, float]:
        """Ends the training. Returns the bytes sent, and the seconds waited."""
        return 0, 0.0


class Averaging(Alone):
    """Gradient descent that every few steps averages the model with the in-neighbours' models."""

    def __init__(self, model: Network, plan: Plan, queue: hpcomm.Queue) -> None:
        super().__init__(model, plan, queue.acquire())
        self.queue = queue

    def average(self) -> None:
        """Averages once. It sends from, and reduces into, buffers of the queue, which neighbours can read in place."""
        self.queue.send_all(self.weights)
        self.weights = self.queue.reduce(self.weights, out=self.queue.acquire())

    def step(self, number: int, x: Array, y: Array, rate: float) -> None:
        super().step(number, x, y, rate)
        if (number + 1) % self.plan.every == 0:
            start = time.perf_counter()
            self.average()
            self.exchanging += time.perf_counter() - start

    def finish(self) -> tuple[int, float]:
        for _ in range(self.plan.rounds):
            self.average()
        stats = self.queue.stats()
        return stats.bytes_sent, stats.wait_send + stats.wait_recv


class Pushing(Alone):
    """Training that pushes each layer's gradient to a parameter hub as soon as the backward pass has it."""

    def __init__(self, model: Network, plan: Plan, ctx: hpcomm.Context, hub: Hub, saving: Saving) -> None:
        super().__init__(model, plan, np.empty(model.n_weights, np.float32))
        self.exchange = hpcomm.parameter_hub(
            ctx,
            dict(zip(model.names, model.layers(self.weights), strict=True)),
            placement=hub.placement,
            rule=hpcomm.SGD(weight_decay=model.decay),
        )
        self.layers = list(self.exchange.params.values())
        self.checkpointer = None
        if saving.folder is not None:
            folder = os.path.join(saving.folder, model.name)
            found = hpcomm.restore(self.exchange, folder) if saving.resume else None
            self.checkpointer = hpcomm.Checkpointer(self.exchange, folder, saving.every)
            if found is not None and self.layers:
                self.first, self.losses = found.step, found.extra["losses"]

    def serve(self) -> None:
        (self.checkpointer or self.exchange).serve()

    def after(self, steps: int, losses: list[float]) -> None:
        if self.checkpointer is not None:
            self.checkpointer.after(steps, {"losses": losses})

    def step(self, number: int, x: Array, y: Array, rate: float) -> None:
        if number % self.plan.hold == 0:
            self.exchange.set(lr=rate)
        names = self.model.names
        under_way = [
            self.exchange.push_pull_nb(names[i])
            for i in self.model.backward(self.layers, x, y, lambda i: self.exchange.gradient(names[i]))
        ]
        start = time.perf_counter()
        for layer in under_way:
            layer.wait()
        self.exchanging += time.perf_counter() - start

    def flat(self) -> Array:
        return np.concatenate([layer.ravel() for layer in self.layers])

    def finish(self) -> tuple[int, float]:
        waited = self.exchange.stats().wait
        if self.checkpointer is not None:
            self.checkpointer.close()
        self.exchange.close()
        return (self.plan.steps - self.first) * self.weights.nbytes, waited


Tell = Callable[[int, float], None]
Batches = Callable[[int], Array]  # the rows of the data that a step takes


def in_turn(rows: Array, batch: int) -> Batches:
    """Returns batches of these rows, in order, again and again."""
    return lambda step: rows.take(range(step * batch, (step + 1) * batch), mode="wrap")


def at_once(parts: list[Batches]) -> Batches:
    """Returns batches that join the ranks' batches of the same step."""
    return lambda step: np.concatenate([part(step) for part in parts])


def train(trainer: Alone, data: Digits, batches: Batches, tell: Tell) -> Run:
    model, plan = trainer.model, trainer.plan
    run = Run(losses=trainer.losses or [model.loss(trainer.flat(), data.x, data.y)])
    begin = time.perf_counter()
    for step in range(trainer.first, plan.steps):
        taken = batches(step)
        trainer.step(step, data.x[taken], data.y[taken], model.rate * plan.rate(step))
        if (step + 1) % plan.steps_per_epoch == 0:
            run.losses.append(model.loss(trainer.flat(), data.x, data.y))
            tell(len(run.losses) - 1, run.losses[-1])
        trainer.after(step + 1, run.losses)
    run.seconds_computing = time.perf_counter() - begin - trainer.exchanging
    run.bytes_sent, run.seconds_waiting = trainer.finish()
    run.weights = trainer.flat().copy()
    run.accuracy = model.accuracy(run.weights, data.x_test, data.y_test)
    return run


def gather(ctx: hpcomm.Context, values: Any) -> Array:
    """Returns the values of all ranks, a row for each, gathered over hpcomm's control channel."""
    mine = np.asarray(values)
    everyone = b"".join(ctx.allgather(mine.tobytes()))
    return np.frombuffer(everyone, mine.dtype).reshape(ctx.size, *mine.shape)


@dataclass(frozen=True)
class Outcome:
    """The results of a model's three trainings. Every array has a row for each worker."""

    model: Network
    alone: Run  # valid only on rank 0
    weights: Array
    together: Array  # Run.numbers
    apart: Array
    losses_together: Array
    losses_apart: Array

    @property
    def spread(self) -> float:
        """The largest difference of one weight between two ranks."""
        return float(np.ptp(self.weights, axis=0).max())

    @property
    def distance(self) -> float:
        """The largest difference of one weight from the weights of rank 0 alone with all data."""
        return float(np.abs(self.weights - self.alone.weights).max())

    @property
    def agree(self) -> bool:
        return self.spread <= AGREE

    @property
    def reach(self) -> bool:
        return bool(self.together[:, 0].min() >= self.alone.accuracy - REACH - 1e-12)

    def as_json(self) -> dict[str, Any]:
        return {
            "accuracy_alone": self.alone.accuracy,
            "accuracy_exchanging": self.together[:, 0].tolist(),
            "accuracy_not_exchanging": self.apart[:, 0].tolist(),
            "spread": self.spread,
            "distance": self.distance,
            "bytes_sent": self.together[:, 1].tolist(),
            "seconds_waiting": self.together[:, 2].tolist(),
            "seconds_computing": self.together[:, 3].tolist(),
            "losses_alone": self.alone.losses,
            "losses_exchanging": self.losses_together.tolist(),
            "losses_not_exchanging": self.losses_apart.tolist(),
            "agree": self.agree,
            "reach": self.reach,
        }


def compare(
    ctx: hpcomm.Context,
    model: Network,
    data: Digits,
    how: Graph | Hub,
    batch: int,
    plan: Plan,
    saving: Saving,
    console: Console | None,
) -> Outcome:
    """Trains a model in the three ways. All ranks call it."""
    epochs, dtype, workers = (plan.steps // plan.steps_per_epoch, data.x.dtype, how.workers)
    shards = [in_turn(data.shard(i, len(workers)), max(1, batch // len(workers))) for i in range(len(workers))]
    together = apart = alone = Run(np.zeros(model.n_weights, dtype), [0.0] * (epochs + 1))

    def fresh() -> Alone:
        return Alone(model, plan, np.empty(model.n_weights, dtype))

    if isinstance(how, Graph):
        peers = how.in_peers(ctx.rank), how.out_peers(ctx.rank)
        exchanging: Alone = Averaging(model, plan, ctx.receive_queue(*peers, model.n_weights, dtype, buffers=2))
        whole = in_turn(np.arange(len(data.y)), batch)
    else:
        exchanging = pushing = Pushing(model, plan, ctx, how, saving)
        whole = at_once(shards)
    if ctx.rank in workers:
        mine = shards[workers.index(ctx.rank)]
        with progress(console, f"{model.name}: {ranks(len(workers))}, exchanging", epochs) as tell:
            together = train(exchanging, data, mine, tell)
        with progress(console, f"{model.name}: {ranks(len(workers))}, not exchanging", epochs) as tell:
            apart = train(fresh(), data, mine, tell)
    else:
        pushing.serve()
    if ctx.rank == 0:
        with progress(console, f"{model.name}: 1 rank, all data", epochs) as tell:
            alone = train(fresh(), data, whole, tell)
    return Outcome(
        model,
        alone,
        *(gather(ctx, run)[workers] for run in (together.weights, together.numbers, apart.numbers)),
        *(gather(ctx, run)[workers] for run in (together.losses, apart.losses)),
    )


# ---- telling ---------------------------------------------------------------------------------------------------------


def ranks(size: int) -> str:
    return "1 rank" if size == 1 else f"{size} ranks"


def console_of(rank: int) -> Console | None:
    """Returns rank 0's console; None on other ranks. A terminal of width 0, as Open MPI gives its ranks, is treated as
    a pipe."""
    if rank > 0:
        return None
    terminal = sys.stdout.isatty() and os.get_terminal_size(sys.stdout.fileno()).columns > 0
    return Console() if terminal else Console(force_terminal=False, width=120)


@contextmanager
def progress(console: Console | None, what: str, epochs: int) -> Iterator[Tell]:
    """Shows progress: a bar on a terminal, otherwise a line for each tenth of the epochs."""
    if console is None:
        yield lambda epoch, loss: None
    elif console.is_terminal:
        figures = TextColumn("epoch {task.completed} of {task.total}, loss {task.fields[loss]:.4f}")
        with Progress(TextColumn("{task.description:50}"), BarColumn(), figures, console=console) as bar:
            task = bar.add_task(what, total=epochs, loss=math.nan)
            yield lambda epoch, loss: bar.update(task, completed=epoch, loss=loss)
    else:
        tenth = max(1, epochs // 10)

        def line(epoch: int, loss: float) -> None:
            if epoch % tenth == 0:
                print(f"{what:55} epoch {epoch:3} of {epochs}, loss {loss:.4f}", flush=True)

        yield line


def table(outcomes: list[Outcome], how: Graph | Hub) -> Table:
    size = len(how.workers)
    found = Table(title=f"Test accuracy on the digits ({ranks(how.size)}, {how})", title_justify="left")
    found.add_column("")
    for outcome in outcomes:
        found.add_column(outcome.model.name, justify="right")

    def row(name: str, cell: Callable[[Outcome], str]) -> None:
        found.add_row(name, *map(cell, outcomes))

    def percents(values: Array) -> str:
        least, mean, most = 100 * values.min(), 100 * values.mean(), 100 * values.max()
        return f"{mean:.2f} %" if most - least < 0.005 else f"{mean:.2f} % ({least:.2f} to {most:.2f})"

    row("1 rank, all data", lambda outcome: f"{100 * outcome.alone.accuracy:.2f} %")
    row(f"{ranks(size)}, exchanging", lambda outcome: percents(outcome.together[:, 0]))
    row(f"{ranks(size)}, not exchanging", lambda outcome: percents(outcome.apart[:, 0]))
    row("largest difference of a weight between ranks", lambda outcome: f"{outcome.spread:.1e}")
    if isinstance(how, Hub):
        row("largest difference from 1 rank, all data", lambda outcome: f"{outcome.distance:.1e}")
    row("sent by each rank", lambda outcome: f"{outcome.together[:, 1].mean() / 1e6:.2f} MB")
    row("waiting for others, mean of ranks", lambda outcome: f"{outcome.together[:, 2].mean():.3f} s")
    row("computing, mean of ranks", lambda outcome: f"{outcome.together[:, 3].mean():.3f} s")
    return found


def plot(outcomes: list[Outcome], size: int, path: str) -> None:
    """Draws loss curves: a line for the mean of the ranks, and a band from the least to the greatest loss."""
    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415  (after the choice of Agg)

    figure, axes = pyplot.subplots(1, len(outcomes), figsize=(11, 4.2), sharey=True, layout="constrained")
    for axis, outcome in zip(axes, outcomes, strict=True):
        for label, losses, colour, style in (
            (f"{ranks(size)}, not exchanging", outcome.losses_apart, "C3", "-"),
            (f"{ranks(size)}, exchanging", outcome.losses_together, "C0", "-"),
            ("1 rank, all data", np.array([outcome.alone.losses]), "black", "--"),
        ):
            epochs = np.arange(losses.shape[1])
            axis.plot(epochs, losses.mean(axis=0), style, color=colour, label=label)
            axis.fill_between(epochs, losses.min(axis=0), losses.max(axis=0), color=colour, alpha=0.15)
        axis.set(title=outcome.model.name, xlabel="epoch", yscale="log")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("loss over all training data")
    axes[0].legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


# ---- the job ---------------------------------------------------------------------------------------------------------


@click.command(help=__doc__, context_settings={"show_default": True})
@click.option("--epochs", type=click.IntRange(1), default=100, help="Passes over the training data.")
@click.option("--batch", type=click.IntRange(1), default=32, help="Examples of one step, over all ranks.")
@click.option(
    "--exchange",
    type=click.Choice(["notify_ack", "parameter_hub"]),
    default="notify_ack",
    help="Models averaged with neighbours, or gradients pushed to a hub.",
)
@click.option("--every", type=click.IntRange(1), default=4, help="notify_ack: steps between two exchanges.")
@click.option("--graph", type=click.Choice(list(GRAPHS)), default="expander", help="notify_ack: who sends to whom.")
@click.option(
    "--placement",
    type=click.Choice(["CC", "CS", "NCC"]),
    default="CS",
    help="parameter_hub: rank 0 serves, every rank does, or rank 0 does nothing else.",
)
@click.option("--checkpoint", help="parameter_hub: save the training into this directory.")
@click.option("--save-every", type=click.IntRange(1), default=100, help="Steps from one checkpoint to the next.")
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint in that directory.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Of the split and the first weights.")
@click.option("--dtype", type=click.Choice(["float32", "float64"]), default="float32", help="Of weights and data.")
@click.option("--plot", "plot_path", default="train_digits.png", help="Where the loss curves go.")
@click.option("--json", "json_path", help="Where the figures go, as JSON.")
@click.option("--weights", "weights_path", help="Where logistic regression's weights go, as text.")
@click.option("--export", "export_path", help="Write the data for examples/cpp there, and end.")
def main(
    epochs: int,
    batch: int,
    exchange: str,
    every: int,
    graph: str,
    placement: str,
    checkpoint: str | None,
    save_every: int,
    resume: bool,
    seed: int,
    dtype: str,
    plot_path: str,
    json_path: str | None,
    weights_path: str | None,
    export_path: str | None,
) -> None:
    data = Digits.load(seed, dtype)
    if export_path is not None:
        data.export(export_path)
        return
    if exchange == "parameter_hub":
        every = 1
        if dtype != "float32":
            raise click.BadParameter(f"{dtype}: a hub's parameters are float32", param_hint="--dtype")
    elif checkpoint is not None:
        raise click.BadParameter("only a hub saves its training: --exchange parameter_hub", param_hint="--checkpoint")
    if resume and checkpoint is None:
        raise click.BadParameter("from which directory? give --checkpoint too", param_hint="--resume")
    if every > len(data.y) // batch:
        raise click.BadParameter(
            f"{every}: an epoch has {len(data.y) // batch} steps of {batch} examples", param_hint="--every"
        )
    with hpcomm.init() as ctx:
        console = console_of(ctx.rank)
        hub, edges = Hub(placement, ctx.size), Graph.named(graph, ctx.size)
        how = hub if exchange == "parameter_hub" else edges
        if not how.workers:
            raise click.BadParameter(f"{placement}: one rank serves, so it takes two", param_hint="--placement")
        per_epoch = every * math.ceil(len(data.y) / (batch * every))  # a whole pass, and an exchange at its end
        hold = per_epoch if how is hub else 1  # with a hub, a new learning rate must be sent to all owners
        plan = Plan(epochs * per_epoch, per_epoch, every, edges.consensus_rounds(), seed, hold)
        saving = Saving(checkpoint, save_every, resume)
        outcomes = [compare(ctx, model, data, how, batch, plan, saving, console) for model in MODELS]
    if console is None:
        return
    console.print(table(outcomes, how))
    for outcome in outcomes:
        agree = "agree" if outcome.agree else "DISAGREE"
        reach = "reach" if outcome.reach else "DO NOT REACH"
        print(f"{outcome.model.name}: ranks that exchange {agree} and {reach} the accuracy of all the data")
    plot(outcomes, len(how.workers), plot_path)
    print(f"loss curves: {os.path.abspath(plot_path)}")
    held = all(outcome.agree and outcome.reach for outcome in outcomes)
    if json_path is not None:
        settings = {
            "ranks": how.size,
            "epochs": epochs,
            "batch": batch,
            "every": every,
            "exchange": str(how),
            "seed": seed,
        }
        models = {outcome.model.name: outcome.as_json() for outcome in outcomes}
        with open(json_path, "w") as file:
            json.dump({**settings, "dtype": dtype, "held": held, "models": models}, file, indent=1)
    if weights_path is not None:
        np.savetxt(weights_path, outcomes[0].weights[0], fmt="%.17g")
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()

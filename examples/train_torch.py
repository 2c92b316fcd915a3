"""Trains PyTorch models with several ranks, each on a different part of the data.

    mpirun -n 2 python examples/train_torch.py
    mpirun -n 2 python examples/train_torch.py --ddp            # the same by DistributedDataParallel over Gloo
    mpirun -n 2 python examples/train_torch.py --model text --apply backward
    python examples/train_torch.py                              # one rank

A convolutional network learns to read scikit-learn's handwritten digits, and a small transformer learns to predict the
next character of Python's help pages. hpcomm needs three lines in a trainer, which are marked 1, 2 and 3.

A step takes --batch examples of each rank. Rank 0 prints the loss, the time of a step and the test accuracy. It draws
the loss, and a timeline of a few steps, which shows when each rank computes and when it waits for others. The exit code
is 0 if all ranks end with the same weights. HPCOMM_TIMELINE=trace.json shows more (docs/observing.md).
"""

import os
import sys
from typing import Literal

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import hashlib
import json
import pydoc_data.topics
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

try:
    import click
    import torch
    import torch.distributed as dist
    from sklearn.datasets import load_digits
    from torch import Tensor, nn
    from torch.nn.functional import cross_entropy
except ImportError as missing:
    sys.exit(f"{missing}; this demo needs: pip install 'mpi4py>=4' 'torch>=2.4' scikit-learn matplotlib")

import hpcomm.torch  # <------------------------------------------------------------------------------------------ 1

COLOURS = {
    "forward": "tab:green",
    "backward": "tab:blue",
    "step()": "tab:orange",
    "wait": "tab:red",
    "other": "lightgray",
}
SHOWN = 3  # steps in the timeline
TEXT = 48  # characters of a text from which the next one is predicted


# ---- data and models -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """A model, and inputs and targets to train on and to test with."""

    name: str
    model: nn.Module
    rate: float
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(scores.reshape(-1, scores.shape[-1]), y.flatten())

    @torch.no_grad()
    def accuracy(self) -> float:
        """Returns the accuracy on the test data."""
        self.model.eval()
        right = [
            (self.model(x).argmax(-1) == y).flatten()
            for x, y in zip(self.x_test.split(256), self.y_test.split(256), strict=True)
        ]
        self.model.train()
        return float(torch.cat(right).float().mean())


def digits() -> Task:
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(images, dtype=torch.float32)[order].reshape(-1, 1, 8, 8) / 16
    y, cut = torch.tensor(labels)[order], len(labels) * 3 // 4
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)),
    )
    return Task("digits", model, 0.05, x[:cut], y[:cut], x[cut:], y[cut:])


class Characters(nn.Module):
    """A model that predicts, at each place of a text, the next character."""

    def __init__(self, alphabet: int, width: int = 96) -> None:
        super().__init__()
        self.characters = nn.Embedding(alphabet, width)
        self.places = nn.Parameter(torch.randn(TEXT, width) / 10)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, alphabet)
        self.register_buffer("later", nn.Transformer.generate_square_subsequent_mask(TEXT), persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        seen = self.layers(self.characters(text) + self.places, mask=self.later, is_causal=True)
        return self.scores(self.norm(seen))  # type: ignore[no-any-return]


def text() -> Task:
    whole = "".join(pydoc_data.topics.topics.values())[:300_000]
    alphabet = sorted(set(whole))
    numbers = {character: i for i, character in enumerate(alphabet)}
    rows = torch.tensor([numbers[character] for character in whole]).unfold(0, TEXT + 1, TEXT)
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    x, y, cut = rows[:, :-1], rows[:, 1:], len(rows) * 9 // 10
    return Task("text", Characters(len(alphabet)), 0.1, x[:cut], y[:cut], x[cut:], y[cut:])


TASKS: dict[str, Callable[[], Task]] = {"digits": digits, "text": text}


# ---- the timeline ----------------------------------------------------------------------------------------------------


@dataclass
class Timeline:
    """The work of a rank in some steps: rows of (what, from, to), in seconds of the host's monotonic clock."""

    rows: list[tuple[str, float, float]] = field(default_factory=list)
    on: bool = False
    _since: float = 0.0

    def note(self, what: str) -> None:
        """Adds a row: since the last note the rank worked on `what`."""
        now = time.monotonic()
        if self.on:
            self.rows.append((what, self._since, now))
        self._since = now

    def before_layers(self, model: nn.Module, what: str) -> None:
        """Calls note(what) before each layer computes. Hooks run in the order in which they were registered. So if
        this method is called before and after hpcomm registers hooks, the notes enclose the time of hpcomm's hooks."""
        for module in model.modules():
            if next(module.parameters(recurse=False), None) is not None:
                module.register_forward_pre_hook(lambda *_: self.note(what))

    def at_gradients(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _: self.note("backward"))


# ---- training --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """The results of a training on a rank: loss and seconds of each step, a timeline of a few steps, the test accuracy,
    and a digest of the last weights."""

    losses: list[float]
    seconds: list[float]
    timeline: list[tuple[str, float, float]]
    accuracy: float
    weights: str

    @property
    def step(self) -> float:
        """The median seconds of a step, without the first tenth of the steps."""
        return statistics.median(self.seconds[len(self.seconds) // 10 :])


def train(
    task: Task,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    rows: Tensor,
    batch: int,
    steps: int,
    timeline: Timeline,
    tell: Callable[[int, float], None],
) -> Run:
    """Trains by the usual loop of torch, which does not know of hpcomm."""
    losses, seconds = list[float](), list[float]()
    random, order = torch.Generator().manual_seed(1), rows[:0]
    for step in range(steps):
        if len(order) < batch:
            order = rows[torch.randperm(len(rows), generator=random)]
        taken, order = order[:batch], order[batch:]
        timeline.on = steps // 2 <= step < steps // 2 + SHOWN
        began = time.perf_counter()
        timeline.note("other")
        optimizer.zero_grad()
        loss = task.loss(model(task.x[taken]), task.y[taken])
        timeline.note("forward")
        loss.backward()
        timeline.note("wait")
        optimizer.step()
        timeline.note("step()")
        seconds.append(time.perf_counter() - began)
        losses.append(float(loss.detach()))
        tell(step + 1, losses[-1])
    return Run(losses, seconds, timeline.rows, task.accuracy(), digest(task.model))


def digest(model: nn.Module) -> str:
    """Returns a digest of the weights, by which ranks compare them."""
    found = hashlib.sha256()
    for tensor in model.state_dict().values():
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()


def gather(ctx: hpcomm.Context, run: Run) -> list[Run]:
    """Returns the runs of all ranks. All ranks call it."""
    mine = json.dumps(vars(run)).encode()
    longest = max(int(told) for told in ctx.allgather(b"%20d" % len(mine)))
    return [Run(**json.loads(told)) for told in ctx.allgather(mine.ljust(longest))]


# ---- telling ---------------------------------------------------------------------------------------------------------


def teller(ctx: hpcomm.Context, what: str, steps: int) -> Callable[[int, float], None]:
    """Returns a function that on rank 0 prints a line for each tenth of the steps."""

    def tell(step: int, loss: float) -> None:
        if ctx.rank == 0 and step % max(1, steps // 10) == 0:
            print(f"{what:40} step {step:4} of {steps}, loss {loss:.4f}", flush=True)

    return tell


def draw(told: dict[str, list[Run]], how: str, path: str) -> bool:
    """Draws the losses, and below them the timelines. Returns False, and draws nothing, without matplotlib."""
    try:
        import matplotlib  # noqa: PLC0415
    except ModuleNotFoundError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415  (after the choice of Agg)
    from matplotlib.patches import Patch  # noqa: PLC0415

    figure, axes = pyplot.subplots(2, len(told), figsize=(6.5 * len(told), 7), layout="constrained", squeeze=False)
    for (name, runs), (above, below) in zip(told.items(), axes.T, strict=True):
        for rank, run in enumerate(runs):
            above.plot(range(1, len(run.losses) + 1), run.losses, linewidth=0.8, label=f"rank {rank}")
        above.set(title=f"{name}: {how}", xlabel="step", ylabel="loss of a batch")
        above.legend()
        above.grid(alpha=0.3)
        start = min(since for run in runs for _, since, _ in run.timeline[1:])
        for rank, run in enumerate(runs):
            for what, since, until in run.timeline[1:]:
                bar = [(1e3 * (since - start), 1e3 * (until - since))]
                below.broken_barh(bar, (rank - 0.4, 0.8), color=COLOURS[what], edgecolor="white", linewidth=0.3)
        below.set(title=f"{SHOWN} steps of {name}", xlabel="ms", yticks=range(len(runs)))
        below.set_yticklabels([f"rank {rank}" for rank in range(len(runs))])
        below.invert_yaxis()
    kinds = [Patch(color=colour) for colour in COLOURS.values()]
    figure.legend(kinds, list(COLOURS), loc="outside lower center", ncols=len(COLOURS))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True


# ---- the job ---------------------------------------------------------------------------------------------------------


@contextmanager
def gloo(ctx: hpcomm.Context) -> Iterator[None]:
    """Makes torch's process group of all ranks, for --ddp."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    first = int(ctx.allgather(b"%5d" % port)[0])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{first}", rank=ctx.rank, world_size=ctx.size)
    try:
        yield
    finally:
        dist.destroy_process_group()


@click.command(help=__doc__, context_settings={"show_default": True})
@click.option("--model", "names", type=click.Choice(list(TASKS)), multiple=True, help="What to learn; default: both.")
@click.option("--ddp", is_flag=True, help="DistributedDataParallel over Gloo in place of hpcomm, on one host.")
@click.option("--apply", type=click.Choice(["step", "backward"]), default="step", help="When hpcomm changes weights.")
@click.option("--batch", type=click.IntRange(1), default=32, help="Examples of one step of each rank.")
@click.option("--steps", type=click.IntRange(SHOWN + 1), default=300, help="Of each model.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Of the first weights.")
@click.option("--plot", "plot_path", default="train_torch.png", help="Where the drawing goes.")
@click.option("--json", "json_path", help="Where the figures go, as JSON.")
def main(
    names: tuple[str, ...],
    ddp: bool,
    apply: Literal["step", "backward"],
    batch: int,
    steps: int,
    seed: int,
    plot_path: str,
    json_path: str | None,
) -> None:
    torch.set_num_threads(1)
    told: dict[str, list[Run]] = {}
    with ExitStack() as ends:
        ctx = ends.enter_context(hpcomm.init())  # <---------------------------------------------------------- 2
        how = "DDP over Gloo" if ddp else f'hpcomm, apply="{apply}"'
        how += f", {ctx.size} rank{'s' if ctx.size > 1 else ''}"
        if ddp:
            ends.enter_context(gloo(ctx))
        for name in names or tuple(TASKS):
            torch.manual_seed(seed + ctx.rank)  # all ranks start from rank 0's weights nevertheless
            task, timeline = TASKS[name](), Timeline()
            mine = torch.arange(len(task.x))[ctx.rank :: ctx.size]
            if len(mine) < batch:
                raise click.BadParameter(f"{batch}: a rank has {len(mine)} examples of {name}", param_hint="--batch")
            model: nn.Module = task.model
            optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=task.rate, momentum=0.9)
            timeline.before_layers(model, "forward")
            if ddp:
                model = nn.parallel.DistributedDataParallel(model)
            else:
                optimizer = hpcomm.torch.DistributedOptimizer(optimizer, ctx, model, apply=apply)  # <-------- 3
            timeline.before_layers(task.model, "wait")
            timeline.at_gradients(task.model)
            tell = teller(ctx, f"{name}: {how}", steps)
            told[name] = gather(ctx, train(task, model, optimizer, mine, batch, steps, timeline, tell))
    if ctx.rank > 0:
        return
    same = True
    for name, runs in told.items():
        agree = len({run.weights for run in runs}) == 1
        same = same and agree
        milliseconds = 1e3 * statistics.fmean(run.step for run in runs)
        print(
            f"{name}: {how}: a step {milliseconds:.2f} ms, test accuracy {100 * runs[0].accuracy:.2f} %, "
            f"the ranks' weights {'agree' if agree else 'DISAGREE'}"
        )
    if draw(told, how, plot_path):
        print(f"loss and timeline: {os.path.abspath(plot_path)}")
    if json_path is not None:
        figures = {name: [vars(run) for run in runs] for name, runs in told.items()}
        with open(json_path, "w") as file:
            json.dump({"ranks": ctx.size, "how": how, "batch": batch, "models": figures}, file, indent=1)
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()

"""The trainer of docs/tutorial.md, which runs in one process, on one host, and on four hosts.

    python examples/tutorial.py                                        # one process
    mpirun -n 4 python examples/tutorial.py                            # four ranks of this host
    mpirun -H node1,node2,node3,node4 python examples/tutorial.py --ways plain,local
    python examples/tutorial.py --hosts 4 --rate 1gbit --ways all      # hosts are network namespaces; needs root

A network of two wide layers learns scikit-learn's handwritten digits. Each step takes --batch digits, which the ranks
divide. The example trains in each way of --ways, one after the other, from the same weights:

    plain       the three lines: gradients travel while the backward pass runs
    overlap     parameters travel too, while the next forward pass runs
    bfloat16    as overlap, in 16 bits both ways
    topk        as overlap, the largest 1 % of the gradients; the rest is sent later
    local       DiLoCo: ranks exchange their updates once in 48 steps, and train on meanwhile

For each way rank 0 prints the time of a step and the test accuracy; --plot draws the accuracy over seconds. The time in
which rank 0 tests is not counted.
"""

import os
import sys

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

try:
    import click
    import torch
    from sklearn.datasets import load_digits
    from torch import Tensor, nn
except ImportError as missing:
    sys.exit(f"{missing}; this example needs: pip install click matplotlib scikit-learn 'torch>=2.4'")

import hpcomm.torch

TESTS = Path(__file__).resolve().parents[1] / "tests"
POINTS = 12  # points of a curve

# Options of DiLoCo if they have "every", otherwise of DistributedOptimizer.
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "overlap": {"overlap": True},
    "bfloat16": {"overlap": True, "codec": "bfloat16", "codec_out": "bfloat16"},
    "topk": {
        "overlap": True,
        "codec": hpcomm.codec.TopK(0.01),
        "topology": hpcomm.ParameterServer(apply_at="receivers"),
    },
    "local": {"every": 48, "fragments": 3, "delay": 5, "outer": hpcomm.Nesterov(lr=0.7, momentum=0.5)},
}


@dataclass(frozen=True)
class Digits:
    """Images as float32 (n, 64), and the digits that they show."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor

    @classmethod
    def load(cls) -> "Digits":
        images, labels = load_digits(return_X_y=True)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        x, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
        cut = len(y) * 3 // 4
        return cls(x[:cut], y[:cut], x[cut:], y[cut:])

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        return float((model(self.x_test).argmax(-1) == self.y_test).float().mean())


@dataclass(frozen=True)
class Run:
    """The results of training in one way.

    Attributes:
        way: the way's name.
        seconds, accuracy: the curve, at the start and at POINTS later steps.
        step: mean seconds of a step.
        nbytes: mean bytes that this rank sent in a step.
    """

    way: str
    seconds: list[float]
    accuracy: list[float]
    step: float
    nbytes: float


def train(ctx: hpcomm.Context, way: str, digits: Digits, width: int, batch: int, steps: int) -> Run:
    """Trains in one way. All ranks call it."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)),
    )
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    make: Any = hpcomm.torch.DiLoCo if "every" in WAYS[way] else hpcomm.torch.DistributedOptimizer
    optimizer = make(inner, ctx, model, **WAYS[way])
    drawn = torch.Generator().manual_seed(1)
    seconds, accuracy, spent = [0.0], [digits.accuracy(model)], 0.0
    for step in range(1, steps + 1):
        rows = torch.randint(len(digits.x), (batch,), generator=drawn)[ctx.rank :: ctx.size]
        began = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(digits.x[rows]), digits.y[rows]).backward()
        optimizer.step()
        judged = step * POINTS // steps > (step - 1) * POINTS // steps
        if step == steps and "every" in WAYS[way]:
            optimizer.sync()
        elif judged:
            optimizer.wait()
        spent += time.perf_counter() - began
        if judged:
            seconds.append(spent)
            accuracy.append(digits.accuracy(model) if ctx.rank == 0 else 0.0)
            ctx.barrier()
    nbytes = sum(entry.bytes for entry in optimizer.exchange.stats().traffic)
    optimizer.close()
    return Run(way, seconds, accuracy, spent / steps, nbytes / steps)


def draw(runs: list[Run], title: str, path: str) -> None:
    import matplotlib  # noqa: PLC0415

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415  (after the choice of Agg)

    figure, axis = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for run in runs:
        axis.plot(run.seconds, run.accuracy, marker=".", label=f"{run.way}: {1e3 * run.step:.0f} ms a step")
    axis.set(title=title, xlabel="seconds of training", ylabel="test accuracy", ylim=(0.5, 1))
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def on_hosts(hosts: int, rate: str, options: list[str]) -> int:
    """Starts this program with one rank in each of `hosts` network namespaces, and returns the exit status."""
    sys.path.insert(0, str(TESTS))
    from cluster.hosts import HEAD, Cluster, Unavailable  # noqa: PLC0415

    try:
        with Cluster(hosts, rate=rate) as cluster:
            return cluster.popen(HEAD, [*cluster.mpirun(), sys.executable, __file__, *options]).wait()
    except Unavailable as why:
        sys.exit(f"no hosts here: {why}")


@click.command(help=__doc__, context_settings={"show_default": True})
@click.option("--ways", default="plain", help="Comma-separated; all: each of them.")
@click.option("--hosts", type=click.IntRange(0), default=0, help="Network namespaces, with a rank on each.")
@click.option("--rate", default="1gbit", help="With --hosts: of each host's link, as tc writes it.")
@click.option("--width", type=click.IntRange(1), default=2048, help="Of the two wide layers.")
@click.option("--batch", type=click.IntRange(1), default=128, help="Digits of a step, of all ranks together.")
@click.option("--steps", type=click.IntRange(POINTS), default=240)
@click.option("--plot", "plot_path", help="Where the curves go.")
@click.option("--json", "json_path", help="Where the figures go, as JSON.")
def main(
    ways: str,
    hosts: int,
    rate: str,
    width: int,
    batch: int,
    steps: int,
    plot_path: str | None,
    json_path: str | None,
) -> None:
    names = list(WAYS) if ways == "all" else ways.split(",")
    if unknown := set(names) - set(WAYS):
        raise click.BadParameter(f"{unknown.pop()!r} is no way: give some of {', '.join(WAYS)}", param_hint="--ways")
    if hosts:
        options = [f"--ways={ways}", f"--width={width}", f"--batch={batch}", f"--steps={steps}"]
        options += [f"--plot={os.path.abspath(plot_path)}"] if plot_path else []
        options += [f"--json={os.path.abspath(json_path)}"] if json_path else []
        sys.exit(on_hosts(hosts, rate, options))
    torch.set_num_threads(1)
    with hpcomm.init() as ctx:
        if batch < ctx.size:
            raise click.BadParameter(f"{batch} for {ctx.size} ranks: each needs a digit", param_hint="--batch")
        digits, runs = Digits.load(), list[Run]()
        for name in names:
            runs.append(run := train(ctx, name, digits, width, batch, steps))
            if ctx.rank == 0:
                by = f"{runs[0].step / run.step:5.2f} times as fast as {names[0]}"
                print(
                    f"{run.way:9} {1e3 * run.step:7.1f} ms a step, {run.nbytes / 1e6:7.2f} MB, "
                    f"test accuracy {run.accuracy[-1]:.3f} after {run.seconds[-1]:6.1f} s, {by}",
                    flush=True,
                )
        rank, title = ctx.rank, f"{ctx.size} rank{'s' if ctx.size > 1 else ''}, {steps} steps of {batch} digits"
    if rank > 0:
        return
    if plot_path:
        draw(runs, title, plot_path)
    if json_path:
        Path(json_path).write_text(json.dumps([asdict(run) for run in runs], indent=1))


if __name__ == "__main__":
    main()

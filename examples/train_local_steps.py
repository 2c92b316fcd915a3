"""Ranks train a small transformer in several ways: with an exchange in every step, or only after many local steps.

    mpirun -n 4 python examples/train_local_steps.py
    mpirun -n 4 python examples/train_local_steps.py --ways sync,diloco,streaming,sparse,float4,local --bandwidth 1gbit
    mpirun -n 4 python examples/train_local_steps.py --ways sync,diloco@10,diloco@30,diloco@100

The transformer predicts the next byte of a text: the one-line descriptions of Debian's packages (apt-cache dumpavail),
or, without apt's lists, Python's help pages. All ways begin with the same weights, which come from --pretrain
synchronous steps (as in DiLoCo, arXiv 2311.08105), and take the same number of steps with the same batches. So their
losses after the same number of tokens show the cost of local steps. The ways of --ways are as follows; diloco@100 sets
H, the local steps between two exchanges, for one way.

    sync        every step exchanges gradients (hpcomm.torch.DistributedOptimizer)
    diloco      an exchange after --every local steps, outer Nesterov (arXiv 2311.08105)
    streaming   4 fragments, each sent while --delay steps are computed (arXiv 2501.18512), by TopK both ways
    streaming4  the same in 4 bits an element both ways
    sparse      SparseLoCo (arXiv 2508.15706): TopK both ways, no outer momentum
    nesterov    as sparse, with an outer Nesterov of little momentum
    float4      diloco, in 4 bits an element both ways
    local       local SGD: the mean of the ranks' weights after --every steps

Rank 0 prints the loss on held-out text and the bytes sent, and draws the loss over tokens, seconds and bytes. The
seconds are computed, from the counted bytes, for links of --bandwidth; the plot's caption says how.
"""

import os
import sys

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import copy
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

try:
    import click
    import numpy as np
    import torch
    from byte_model import Text, Transformer, share
    from torch import Tensor
    from torch.optim.lr_scheduler import LambdaLR
except ImportError as missing:
    sys.exit(f"{missing}; this demo needs: pip install click matplotlib numpy scikit-learn 'torch>=2.4'")

import hpcomm.torch

LATE = 0.5  # the outer momentum with TopK: residuals delay parts of updates, and 0.9 diverges
LAST_RATE = 0.1  # the last learning rate over the largest
SENT_BY = {"kbit": 125.0, "mbit": 125e3, "gbit": 125e6}  # bytes a second
CAPTION = """Validation loss of the model that all ranks share: after local steps, that of the last exchange of each
fragment. Bytes: sent by a rank, mean over the ranks. Seconds at {bandwidth}: a step computes {ms:.1f} ms (median
processor time of a forward and backward pass, all ways); an exchange takes its bytes by the bandwidth, one after the
other. Exchanges of sync hide behind the backward pass, exchanges of streaming behind the steps of its delay, the others
behind nothing; a step waits for the rest. Latency, encoding and the optimizers count nothing."""


# ---- ways ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """The settings that all ways share."""

    steps: int
    every: int
    delay: int
    fraction: float
    batch: int
    rate: float
    outer_rate: float
    outer_momentum: float
    points: int
    seed: int

    def factor(self, step: int) -> float:
        """Returns the learning rate of a step over the largest one: a warm-up, then half a cosine."""
        warm = max(1, self.steps // 12)
        fallen = 0.5 * (1 + math.cos(math.pi * min(1.0, step / self.steps)))
        return min(1.0, (step + 1) / warm) * (LAST_RATE + (1 - LAST_RATE) * fallen)

    @property
    def judged(self) -> list[int]:
        """The steps after which the curve has a point: multiples of every, and the last step."""
        apart = self.every * max(1, self.steps // (self.points * self.every))
        return [*range(apart, self.steps, apart), self.steps]


class Trainer(Protocol):
    """The interface of the optimizers of all ways."""

    exchange: Any

    def step(self) -> Any: ...

    def zero_grad(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Way:
    """A way of exchange. options: makes the options of hpcomm.torch.DiLoCo; None: every step exchanges gradients.
    every: H, the local steps between two exchanges; 0: the plan's."""

    name: str
    options: Callable[[Plan], dict[str, Any]] | None
    every: int = 0

    @classmethod
    def named(cls, text: str) -> "Way":
        """Returns the way of a name, such as "diloco", or with another H, such as "diloco@100".

        Raises:
            click.BadParameter: WAYS has no such way, or H is not a whole number above 0.
        """
        name, at, every = text.partition("@")
        if name not in WAYS or (at and not (every.isdigit() and int(every) > 0)):
            known = ",".join(WAYS)
            raise click.BadParameter(f"{text!r} is no way: give some of {known}, or diloco@100", param_hint="--ways")
        return replace(WAYS[name], name=text, every=int(every or 0))

    def optimizer(self, inner: torch.optim.Optimizer, ctx: hpcomm.Context, model: Transformer, plan: Plan) -> Any:
        """Returns the optimizer of this way, which wraps inner. All ranks call it."""
        if self.options is None:
            return hpcomm.torch.DistributedOptimizer(inner, ctx, model)
        return hpcomm.torch.DiLoCo(inner, ctx, model, every=self.every or plan.every, **self.options(plan))

    def delay(self, plan: Plan) -> int:
        """Returns how many steps are computed while an exchange is pending."""
        return int(self.options(plan).get("delay", 0)) if self.options else 0


def outer(plan: Plan) -> hpcomm.Nesterov:
    return hpcomm.Nesterov(lr=plan.outer_rate, momentum=plan.outer_momentum)


def late(plan: Plan) -> hpcomm.Nesterov:
    return hpcomm.Nesterov(lr=plan.outer_rate, momentum=LATE)


def both_ways(codec: hpcomm.codec.WireFormat) -> dict[str, Any]:
    """Returns options with which updates travel encoded to the servers, and their mean travels encoded back."""
    return {"codec": codec, "topology": hpcomm.ParameterServer(apply_at="receivers")}


def top(plan: Plan) -> dict[str, Any]:
    return both_ways(hpcomm.codec.TopK(plan.fraction))


def in_parts(plan: Plan) -> dict[str, Any]:
    """Returns the options of Streaming DiLoCo: fragments, whose exchanges overlap with steps."""
    return {"fragments": 4, "delay": plan.delay}


WAYS = {
    way.name: way
    for way in (
        Way("sync", None),
        Way("diloco", lambda plan: {"outer": outer(plan)}),
        Way("streaming", lambda plan: {"outer": late(plan), **in_parts(plan), **top(plan)}),
        Way("streaming4", lambda plan: {"outer": outer(plan), **in_parts(plan), **both_ways(hpcomm.codec.Float4())}),
        Way("sparse", lambda plan: {"outer": hpcomm.SGD(lr=1.0), **top(plan)}),
        Way("nesterov", lambda plan: {"outer": late(plan), **top(plan)}),
        Way("float4", lambda plan: {"outer": outer(plan), **both_ways(hpcomm.codec.Float4())}),
        Way("local", lambda plan: {"outer": hpcomm.SGD(lr=1.0)}),
    )
}


# ---- training --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """The results of a training on a rank.

    Attributes:
        way: the way's name.
        loss: loss of the shared model on this rank's part of the held-out text, at the start and after each step of
            Plan.judged.
        synced: the loss after the last exchange, which sync() made.
        sent: for each step, the bytes that exchanges sent to other ranks.
        forward, backward: median processor seconds of a forward and a backward pass.
        wall: seconds of the whole training.
        weights: the sum of the last weights' bits, by which ranks compare their weights.
    """

    way: str
    loss: list[float]
    synced: float
    sent: list[int]
    forward: float
    backward: float
    wall: float
    weights: int


def sent_by(optimizer: Trainer) -> int:
    """Returns the bytes that this rank has sent to other ranks so far."""
    return sum(entry.bytes for entry in optimizer.exchange.stats().traffic)


@torch.no_grad()
def judge(ctx: hpcomm.Context, model: Transformer, text: Text) -> float:
    """Returns the loss of a model on this rank's part of the held-out text."""
    rows = text.held_out[ctx.rank :: ctx.size]
    return sum(float(model.loss(part)) * len(part) for part in rows.split(64)) / len(rows)


@torch.no_grad()
def shared_of(optimizer: Any, model: Transformer) -> Transformer:
    """Returns the model that all ranks share. With local steps it has, for each fragment, the weights of the last
    exchange."""
    if isinstance(optimizer, hpcomm.torch.DistributedOptimizer):
        return model
    optimizer.wait()
    shared = copy.deepcopy(model)
    for name, parameter in shared.named_parameters():
        parameter.copy_(torch.from_numpy(optimizer.exchange.params[name]))
    return shared


def batches(text: Text, plan: Plan, ctx: hpcomm.Context) -> Callable[[], Tensor]:
    """Returns a function that returns the next batch: rows at random places of this rank's part, the same for each
    way."""
    context = text.held_out.shape[1] - 1
    random = torch.Generator().manual_seed(1000 * plan.seed + ctx.rank)

    def taken() -> Tensor:
        at = torch.randint(0, len(text.train) - context, (plan.batch, 1), generator=random)
        return text.train[at + torch.arange(context + 1)]

    return taken


def train(
    ctx: hpcomm.Context, way: Way, model: Transformer, text: Text, plan: Plan, tell: Callable[[int, float], None]
) -> Run:
    """Makes plan.steps steps of AdamW in one way. Afterwards all ranks have the same weights. All ranks call it."""
    inner = torch.optim.AdamW(model.parameters(), lr=plan.rate, betas=(0.9, 0.99), weight_decay=0.1)
    optimizer = way.optimizer(inner, ctx, model, plan)
    schedule = LambdaLR(optimizer, plan.factor)
    rows, judged = batches(text, plan, ctx), set(plan.judged)
    loss, sent, seconds = [judge(ctx, model, text)], list[int](), list[tuple[float, float]]()
    counted = sent_by(optimizer)
    began = time.perf_counter()
    for step in range(1, plan.steps + 1):
        optimizer.zero_grad()
        start = time.thread_time()
        found = model.loss(rows())
        middle = time.thread_time()
        found.backward()
        seconds.append((middle - start, time.thread_time() - middle))
        optimizer.step()
        schedule.step()
        before, counted = counted, sent_by(optimizer)
        sent.append(counted - before)
        if step in judged:
            loss.append(judge(ctx, shared_of(optimizer, model), text))
            tell(step, loss[-1])
    wall = time.perf_counter() - began
    if way.options is not None:
        optimizer.sync()
    optimizer.close()
    forward, backward = (statistics.median(column) for column in zip(*seconds, strict=True))
    bits = sum(int(p.detach().numpy().view(np.uint32).sum(dtype=np.uint64)) for p in model.parameters())
    return Run(way.name, loss, judge(ctx, model, text), sent, forward, backward, wall, bits)


def everywhere(ctx: hpcomm.Context, run: Run) -> list[Run]:
    """Returns the runs of all ranks. All ranks call it."""
    mine = json.dumps(asdict(run)).encode()
    longest = max(int(told) for told in ctx.allgather(b"%20d" % len(mine)))
    return [Run(**json.loads(told)) for told in ctx.allgather(mine.ljust(longest))]


# ---- figures ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """The results of a way over all ranks. Lists have a value for the start, and one for each step of Plan.judged.

    Attributes:
        way: the way's name.
        loss: loss of the shared model, in nats a byte.
        synced: the loss after sync().
        tokens: tokens of all ranks so far.
        seconds: computed seconds at the bandwidth, as the plot's caption says.
        sent: bytes that a rank has sent so far.
        step_bytes: mean bytes that a rank sends in a step.
        wall: measured seconds of the training.
        same: whether all ranks have the same weights at the end.
    """

    way: str
    loss: list[float]
    synced: float
    tokens: list[int]
    seconds: list[float]
    sent: list[float]
    step_bytes: float
    wall: float
    same: bool


def clock(sent: Sequence[float], compute: float, bandwidth: float, delay: int, behind: float) -> list[float]:
    """Returns the second at which each step ends, with one link on which exchanges follow each other.

    Args:
        sent: for each step, the bytes of the exchanges that it begins.
        compute: seconds of a step's forward and backward pass.
        bandwidth: bytes a second of a rank's link.
        delay: a step waits for the exchanges of the step so many before it.
        behind: an exchange may begin so many seconds before the end of its step's computing.
    """
    now = free = 0.0
    ends, arrivals = list[float](), list[float]()
    for step, count in enumerate(sent):
        now += compute
        free = max(now - behind, free) + count / bandwidth if count else free
        arrivals.append(free if count else 0.0)
        if step >= delay:
            now = max(now, arrivals[step - delay])
        ends.append(now)
    if ends:
        ends[-1] = max(ends[-1], free)
    return ends


def curve(runs: list[Run], plan: Plan, compute: tuple[float, float], bandwidth: float, context: int) -> Curve:
    """Returns the results of a way from the runs of all ranks. compute: seconds of a forward and of a backward pass."""
    way, at = Way.named(runs[0].way), plan.judged
    sent = np.mean([run.sent for run in runs], axis=0)
    behind = compute[1] if way.options is None else 0.0
    seconds = clock(sent.tolist(), sum(compute), bandwidth, way.delay(plan), behind)
    total = np.cumsum(sent)
    return Curve(
        way.name,
        np.mean([run.loss for run in runs], axis=0).tolist(),
        statistics.fmean(run.synced for run in runs),
        [0, *(step * plan.batch * context * len(runs) for step in at)],
        [0.0, *(seconds[step - 1] for step in at)],
        [0.0, *(float(total[step - 1]) for step in at)],
        float(total[-1]) / plan.steps,
        max(run.wall for run in runs),
        len({run.weights for run in runs}) == 1,
    )


def told(curves: list[Curve]) -> str:
    """Returns the table of all ways as text."""
    heads = f"{'loss':>8} {'by first':>9} {'sync()':>8} {'bytes a step':>13} {'seconds':>9} {'here':>8}"
    lines = [f"{'way':12} {heads}  ranks' weights"]
    for each in curves:
        ratio = each.loss[-1] / curves[0].loss[-1]
        losses = f"{each.loss[-1]:8.4f} {ratio:9.4f} {each.synced:8.4f}"
        costs = f"{each.step_bytes:13,.0f} {each.seconds[-1]:9.1f} {each.wall:8.1f}"
        lines.append(f"{each.way:12} {losses} {costs}  {'agree' if each.same else 'DISAGREE'}")
    return "\n".join(lines)


def draw(curves: list[Curve], title: str, caption: str, path: str) -> bool:
    """Draws the loss over tokens, seconds and bytes. Returns False, and draws nothing, without matplotlib."""
    try:
        import matplotlib  # noqa: PLC0415
    except ModuleNotFoundError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415  (after the choice of Agg)

    figure, axes = pyplot.subplots(1, 3, figsize=(14, 5), sharey=True, layout="constrained")
    for each in curves:
        for axis, x in zip(axes, (np.divide(each.tokens, 1e6), each.seconds, np.divide(each.sent, 1e6)), strict=True):
            first = 1 if axis is axes[2] else 0  # at the start 0 bytes are sent, which a logarithmic axis cannot show
            axis.plot(x[first:], each.loss[first:], label=each.way, linewidth=1.2)
    labels = ("million bytes of text, all ranks", "seconds, computed", "MB sent by a rank (logarithmic)")
    for axis, label in zip(axes, labels, strict=True):
        axis.set(xlabel=label)
        axis.grid(alpha=0.3)
    axes[2].set_xscale("log")
    axes[0].set(ylabel="validation loss (nats a byte)")
    axes[0].legend(fontsize="small")
    figure.suptitle(title)
    figure.supxlabel(caption, fontsize="x-small")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


# ---- the job ---------------------------------------------------------------------------------------------------------


def bytes_a_second(text: str) -> float:
    """Converts a bandwidth such as "100mbit" or "1.5gbit" to bytes a second.

    Raises:
        click.BadParameter: text is no bandwidth, or is 0.
    """
    unit = text.lstrip("0123456789.").lower()
    try:
        found = float(text[: len(text) - len(unit)]) * SENT_BY[unit]
    except (KeyError, ValueError):
        found = 0.0
    if found <= 0:
        raise click.BadParameter(f"{text!r} is no bandwidth: give 100mbit, or 1gbit", param_hint="--bandwidth")
    return found


@click.command(help=__doc__, context_settings={"show_default": True})
@click.option("--ways", default="sync,diloco,streaming", help="Ways to compare; the ratio is to the first.")
@click.option("--steps", type=click.IntRange(1), default=1200, help="Of each way.")
@click.option("--pretrain", type=click.IntRange(0), default=600, help="Synchronous steps before, for all ways.")
@click.option("--every", type=click.IntRange(1), default=30, help="H: local steps from one exchange to the next.")
@click.option("--delay", type=click.IntRange(0), default=3, help="Of streaming: steps that hide an exchange.")
@click.option("--fraction", type=click.FloatRange(0, 1, min_open=True), default=0.25, help="Of TopK.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), default=8e-3, help="Largest rate of AdamW.")
@click.option("--outer-rate", type=click.FloatRange(0, min_open=True), default=0.7, help="Of outer Nesterov.")
@click.option("--outer-momentum", type=click.FloatRange(0, 1, max_open=True), default=0.8, help="Of outer Nesterov.")
@click.option("--batch", type=click.IntRange(1), default=16, help="Rows of a rank in a step.")
@click.option("--context", type=click.IntRange(1), default=64, help="Bytes of a row.")
@click.option("--width", type=click.IntRange(4), default=64, help="Of the transformer, a multiple of 4.")
@click.option("--layers", type=click.IntRange(1), default=2, help="Of the transformer.")
@click.option("--held-out", type=click.IntRange(1), default=1024, help="Rows of text that judge.")
@click.option("--points", type=click.IntRange(1), default=20, help="Of a curve, about.")
@click.option("--bandwidth", default="100mbit", help="Of a rank's link, for the seconds.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Of the first weights and the batches.")
@click.option("--plot", "plot_path", default="train_local_steps.png", help="Where the curves go.")
@click.option("--json", "json_path", help="Where the figures go, as JSON.")
def main(
    ways: str,
    steps: int,
    pretrain: int,
    every: int,
    delay: int,
    fraction: float,
    rate: float,
    outer_rate: float,
    outer_momentum: float,
    batch: int,
    context: int,
    width: int,
    layers: int,
    held_out: int,
    points: int,
    bandwidth: str,
    seed: int,
    plot_path: str,
    json_path: str | None,
) -> None:
    torch.set_num_threads(1)
    chosen, link = [Way.named(name) for name in ways.split(",")], bytes_a_second(bandwidth)
    plan = Plan(steps, every, delay, fraction, batch, rate, outer_rate, outer_momentum, points, seed)
    with hpcomm.init() as ctx:
        text = share(ctx, context, held_out)
        torch.manual_seed(seed)
        model = Transformer(text.alphabet, width, layers, context)
        size = sum(p.numel() for p in model.parameters())
        title = (
            f"{text.name}: {size:,} parameters, {ctx.size} ranks, {steps} steps of {batch * context} bytes, H={every}"
        )

        def teller(name: str) -> Callable[[int, float], None]:
            def tell(step: int, loss: float) -> None:
                if ctx.rank == 0:
                    print(f"{name:12} step {step:5}, loss of rank 0 {loss:.4f}", flush=True)

            return tell

        if ctx.rank == 0:
            print(title, flush=True)
        if pretrain:
            before = replace(plan, steps=pretrain, points=1, seed=seed + 1)
            train(ctx, WAYS["sync"], model, text, before, teller("pretrain"))
        start = {name: value.clone() for name, value in model.state_dict().items()}
        found = []
        for way in chosen:
            model = Transformer(text.alphabet, width, layers, context)
            model.load_state_dict(start)
            found.append(everywhere(ctx, train(ctx, way, model, text, plan, teller(way.name))))
    if ctx.rank > 0:
        return
    every_run = [run for runs in found for run in runs]
    compute = (statistics.median(r.forward for r in every_run), statistics.median(r.backward for r in every_run))
    curves = [curve(runs, plan, compute, link, context) for runs in found]
    print(told(curves))
    if draw(curves, title, CAPTION.format(bandwidth=bandwidth, ms=1e3 * sum(compute)), plot_path):
        print(f"curves: {os.path.abspath(plot_path)}")
    if json_path is not None:
        facts = {"task": title, "parameters": size, "compute": compute, "bandwidth": bandwidth, "plan": asdict(plan)}
        with open(json_path, "w") as file:
            json.dump({**facts, "curves": [asdict(each) for each in curves]}, file, indent=1)
    sys.exit(0 if all(each.same for each in curves) else 1)


if __name__ == "__main__":
    main()

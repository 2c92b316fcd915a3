"""Random sequences of trainers' habits: each ends with the weights of one process with all the data, or in one sentence
on every rank. Some seeds a run; `python tests/test_torch_sequences.py 500` runs that many, on each transport."""

import collections
import copy
import math
import os
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import late
import mpi
import pytest
from test_torch_kept import Kept
from torchcases import BATCH, F, asks_without_state, check_bits, check_same, directory, nn, torch

import hpcomm
import hpcomm.torch as ht
from hpcomm.torch import ways

dcp = pytest.importorskip("torch.distributed.checkpoint.state_dict")
pytestmark = pytest.mark.xdist_group("group sequences")

SIZE, SEEDS = 2, 24
FOUND = {661: 0, 292: 1}  # seeds that have shown something wrong, and how many of MORE and LATER they drew from
LAX = dcp.StateDictOptions(strict=False)
TOP = hpcomm.codec.TopK(0.2, kernel="c")
LAYERS = ("conv", "norm", "last")
OF_WAYS = ("codec", "codec_out", "way", "batch", "skip_weight_grad")
RATES = {"SGD": 0.1, "Adam": 0.01, "AdamW": 0.01, "RMSprop": 0.005, "Adagrad": 0.02}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(2, 3, 3, padding=1), nn.LayerNorm(15), nn.Linear(15, 4)

    def forward(self, x: Any) -> Any:
        return self.last(torch.tanh(self.norm(self.conv(x).flatten(1))))


class Trainer:
    """A model with its optimizer: one of a job, or of one process. From a backward pass on its loss, or the gradient of
    the linear layer's weight, may have a part more. wrap: makes a job's optimizer of a model."""

    def __init__(
        self, model: Any, optimizer: Any, ctx: hpcomm.Context | None, way: dict[str, Any], wrap: Any = None
    ) -> None:
        self.model, self.optimizer, self.ctx, self.way, self.size = model, optimizer, ctx, way, SIZE
        self.wrap = wrap
        self.running: list[int] | None = None  # of one process: the ranks that have a batch; None: all
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
        self.backwards, self.masked = 0, False
        self.saved = self.state()
        self.asked: Any = None
        self.average = [p.detach().clone() for p in model.parameters()]

    def state(self) -> Any:
        self.ready()
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))

    def ready(self) -> None:
        """Parameters may be read."""
        if self.ctx is not None and self.way["overlap"]:
            self.optimizer.wait()

    def backward(self, seed: int, scaled: bool = False, factor: float = 1.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(self.size * BATCH, 2, 5, 1, generator=generator)
        y = torch.randint(0, 4, (len(x),), generator=generator)
        self.backwards += 1
        parts, share = [slice(None)], 1.0
        if self.ctx is not None or self.running is not None:
            ranks = (self.running or []) if self.ctx is None else [self.ctx.rank]
            parts = [slice(rank * BATCH, (rank + 1) * BATCH) for rank in ranks]
        if self.ctx is None:
            share = (1 if self.running is None else 1 / self.size) * (self.size if self.way["reduce"] == "sum" else 1)
        for part in parts:
            loss = (F.cross_entropy(self.model(x[part]), y[part]) + self.more(x[part])) * factor * share
            (self.scaler.scale(loss) if scaled else loss).backward()

    def more(self, x: Any) -> Any:
        """What the loss has besides."""
        weight, kind = self.model.last.weight, self.way["more"]
        if kind is None or self.backwards <= self.way["from"] or not weight.requires_grad:
            return 0
        if kind == "hook":
            mask = (torch.arange(weight.numel()) % 3 > 0).view_as(weight)
            if not self.masked:
                weight.register_hook(lambda grad: grad * mask)
            self.masked = True
            return 0
        if kind == "penalty":
            return 0.01 * weight.pow(2).sum()
        return F.linear(x.flatten(1).repeat(1, 2)[:, :15], weight).pow(2).mean()

    def clip(self, norm: float | None) -> None:
        """Clips as clip_norm does in a job."""
        if self.ctx is None and norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), norm)

    def passes(self, seed: int, **how: Any) -> None:
        """The backward passes of a step."""
        for i in range(self.way["passes"]):
            self.backward(seed + i, **how)

    # ---- what trainers do --------------------------------------------------------------------------------------------

    def step(self, seed: int) -> None:
        self.optimizer.zero_grad()
        self.passes(seed)
        self.clip(self.way["clip_norm"])
        self.optimizer.step()

    def keep_zeroed(self, seed: int) -> None:
        self.optimizer.zero_grad(set_to_none=False)
        self.passes(seed)
        self.clip(self.way["clip_norm"])
        self.optimizer.step()

    def accumulate(self, seed: int) -> None:
        self.optimizer.zero_grad()
        for i in range(2):
            if self.ctx is None:
                self.backward(seed + 100 + i)
            else:
                with self.optimizer.no_sync():
                    self.backward(seed + 100 + i)
        self.passes(seed)
        self.clip(self.way["clip_norm"])
        self.optimizer.step()

    def scale(self, seed: int, factor: float = 1.0) -> None:
        self.optimizer.zero_grad()
        self.passes(seed, scaled=True, factor=factor)
        if self.ctx is None and self.way["clip_norm"] is not None:
            self.scaler.unscale_(self.optimizer)
            self.clip(self.way["clip_norm"])
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def overflow(self, seed: int) -> None:
        self.scale(seed, math.inf)

    def clip_by_hand(self, seed: int) -> None:
        self.optimizer.zero_grad()
        self.passes(seed)
        if self.ctx is not None:
            self.optimizer.synchronize()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.clip(self.way["clip_norm"])
        self.optimizer.step()

    def take_back(self, seed: int) -> None:
        self.passes(seed)
        self.optimizer.zero_grad()

    def two_losses(self, seed: int) -> None:
        found = []
        for i in range(2):
            self.optimizer.zero_grad()
            self.passes(seed + 10 * i)
            found.append([p.grad if seed % 2 or p.grad is None else p.grad.detach() for p in self.model.parameters()])
        self.optimizer.zero_grad()
        for p, one, two in zip(self.model.parameters(), *found, strict=True):
            p.grad = None if one is None else (one - 0.5 * two).view_as(p)
        self.clip(self.way["clip_norm"])
        self.optimizer.step()

    def write(self, seed: int) -> None:
        self.ready()
        with torch.no_grad():
            for p in list(self.model.parameters())[seed % 3 :: 2]:
                p.mul_(0.9)

    def average_of(self, seed: int) -> None:
        self.ready()
        for own, p in zip(self.average, self.model.parameters(), strict=True):
            own.lerp_(p.detach(), 0.3)

    def move_data(self, seed: int) -> None:
        self.ready()
        for p in self.model.parameters():
            p.data = p.data * 0.95

    def move_format(self, seed: int) -> None:
        self.ready()
        self.model.to(memory_format=torch.channels_last if seed % 2 else torch.contiguous_format)

    def save(self, seed: int) -> None:
        self.saved = self.state()
        self.asked = None

    def load(self, seed: int) -> None:
        self.ready()
        self.model.load_state_dict(self.saved[0])
        self.optimizer.load_state_dict(copy.deepcopy(self.saved[1]))  # torch's goes on in the tensors that it is given

    def load_model(self, seed: int) -> None:
        self.ready()
        self.model.load_state_dict(self.saved[0])

    def freeze(self, seed: int) -> None:
        self.model.get_submodule(LAYERS[seed % 3]).requires_grad_(False)
        self.optimizer.zero_grad()

    def thaw(self, seed: int) -> None:
        self.model.requires_grad_(True)

    def rate(self, seed: int) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.7

    def evaluate(self, seed: int) -> None:
        self.model.eval()
        with torch.no_grad():
            self.model(torch.ones(2, 2, 5, 1))
        self.model.train()

    def unscale_by_hand(self, seed: int) -> None:
        self.optimizer.zero_grad()
        self.passes(seed, scaled=True)
        if self.ctx is not None:
            self.optimizer.synchronize()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.2)
        self.clip(self.way["clip_norm"])
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def reset(self, seed: int) -> None:
        self.ready()
        if seed % 3 == 0:
            self.optimizer.state = collections.defaultdict(dict)
        elif seed % 3 == 1:
            self.optimizer.state.clear()
        for p in list(self.model.parameters())[seed % 2 :: 2] if seed % 3 == 2 else ():
            self.optimizer.state[p] = {}

    def forget_one(self, seed: int) -> None:
        self.ready()
        self.optimizer.state.pop(list(self.model.parameters())[seed % 6], None)

    def ask(self, seed: int) -> None:
        """As torch's checkpoints do."""
        self.ready()
        if self.optimizer.state or asks_without_state():
            self.asked = copy.deepcopy(dcp.get_optimizer_state_dict(self.model, self.optimizer, options=LAX))

    def give_back(self, seed: int) -> None:
        self.ready()
        if self.asked is not None:
            dcp.set_optimizer_state_dict(self.model, self.optimizer, copy.deepcopy(self.asked), options=LAX)

    def copied(self, seed: int) -> None:
        self.ready()
        copy.deepcopy(self.model)(torch.ones(2, 2, 5, 1))

    def uneven(self, seed: int) -> None:
        """Steps in a join block: ranks have one to three batches."""
        batches = [1 + (seed >> 2 * rank) % 3 for rank in range(self.size)]
        after = self.backwards + max(batches) * self.way["passes"]
        if self.ctx is not None:
            with ht.join(self.optimizer):
                for i in range(batches[self.ctx.rank]):
                    self.step(seed + 10 * i)
        else:
            for i in range(max(batches)):
                self.running = [rank for rank, own in enumerate(batches) if i < own]
                self.step(seed + 10 * i)
            self.running = None
        self.backwards = after

    def resume(self, seed: int) -> None:
        """A checkpoint, and a new job that goes on from it, with another model: compiled or not."""
        self.ready()
        self.optimizer.zero_grad()
        if self.ctx is None:
            return
        with directory(self.ctx) as folder:
            with ht.ModelCheckpointer(self.optimizer, folder, every=1) as saver:
                saver.after(1)
            self.optimizer.close()
            torch.manual_seed(seed)
            model, compiled = Model(), seed % 2 and self.way["way"] is None  # ways refuse compiled layers
            self.optimizer = self.wrap(model, torch.compile(model, backend="eager") if compiled else model)
            assert ht.restore(self.optimizer, folder) is not None
        for own, old in zip(model.parameters(), self.model.parameters(), strict=True):
            own.requires_grad_(old.requires_grad)
        self.model, self.masked = model, False


STEPS = ["step"] * 4 + ["accumulate", "keep_zeroed", "two_losses"]
OF_BSP = ["scale", "scale", "overflow", "clip_by_hand", "take_back"]
BETWEEN = [
    "write",
    "average_of",
    "move_data",
    "move_format",
    "save",
    "load",
    "load_model",
    "freeze",
    "thaw",
    "rate",
    "evaluate",
    "copied",
]

MORE = ["reset", "reset", "forget_one", "ask", "ask", "give_back", "clip_by_hand", "unscale_by_hand"]
LATER = ["resume", "resume", "uneven"]


def way_of(seed: int) -> tuple[dict[str, Any], list[tuple[str, int]]]:
    """The options of a sequence, and what its trainer does."""
    draw = random.Random(seed)
    way: dict[str, Any] = {
        "optimizer": draw.choice(["SGD", "SGD", "Adam", "AdamW", "RMSprop", "Adagrad"]),
        "apply": draw.choice(["step", "step", "backward"]),
        "clip_norm": draw.choice([None, None, 0.3]),
        "passes": draw.choice([1, 1, 2]),
        "overlap": draw.choice([False, True]),
        "consistency": draw.choice([hpcomm.BSP] * 5 + [hpcomm.SSP(1), hpcomm.ASYNC]),
        "codec": draw.choice([None, None, TOP]),
        "codec_out": draw.choice([None, None, None, "bfloat16"]),
        "topology": draw.choice([None, None, "flat", hpcomm.ParameterServer("CC"), hpcomm.Hierarchy([[0], [1]])]),
    }
    does = [
        (draw.choice(STEPS + STEPS + OF_BSP + BETWEEN), draw.randrange(1 << 20)) for _ in range(draw.randint(4, 14))
    ]
    if way["optimizer"] in ("RMSprop", "Adagrad"):  # they step on every rank
        way |= {"codec": None, "apply": "step"}
    if way["apply"] == "backward" or way["consistency"] != hpcomm.BSP:
        way["clip_norm"] = None
    draw = random.Random(~seed)  # another one, by which older seeds keep what they draw
    way |= {"more": draw.choice([None, "penalty", "use", "hook"]), "from": draw.randrange(8)}
    way |= {"way": draw.choice([None, "factors", "factors", "adam", {"last.weight": "factors"}])}
    way |= {"batch": draw.choice([None, 8 * BATCH, 8 * BATCH]), "skip_weight_grad": draw.choice([False, False, True])}
    if way["optimizer"] in ("RMSprop", "Adagrad") or way["apply"] == "backward" or way["consistency"] != hpcomm.BSP:
        way["way"] = None  # it is refused
    if way["way"] is None:
        way |= {"batch": None, "skip_weight_grad": None}
    elif way["skip_weight_grad"]:  # p.grad is None, and a trainer that reads it gets nothing
        does = [("step" if what == "two_losses" else what, number) for what, number in does]
    drawn = FOUND.get(seed, 2)
    way["reduce"] = None
    if drawn > 0:
        draw = random.Random(f"more {seed}")
        way["reduce"] = draw.choice(["mean", "mean", "sum"])
        for _ in range(draw.randint(0, 4)):
            what = draw.choice(MORE)
            if way["optimizer"] == "Adagrad" and what in ("reset", "forget_one"):
                what = "ask"  # torch makes its state in the constructor alone
            does.insert(draw.randint(0, len(does)), (what, draw.randrange(1 << 20)))
    draw = random.Random(f"later {seed}")
    for _ in range(draw.randint(0, 2) if drawn > 1 else 0):
        what = draw.choice(LATER)
        if way["skip_weight_grad"] and way["more"] == "hook" and what == "uneven":
            what = "resume"  # a forward pass refuses the hook, and a rank that has run out makes none
        does.insert(draw.randint(0, len(does)), (what, draw.randrange(1 << 20)))
    return way, does


def exact(way: dict[str, Any]) -> bool:
    return way["consistency"] == hpcomm.BSP and way["codec"] is None and way["codec_out"] is None


def make(name: str, seed: int, model: Any) -> Any:
    more = {"momentum": 0.9, "weight_decay": 1e-3} if name == "SGD" and seed % 2 else {}
    if name != "SGD":
        more = {"eps": 1e-3}  # else rounding decides where a gradient is nearly 0
    return getattr(torch.optim, name)(model.parameters(), lr=RATES[name], **more)


def run(ctx: hpcomm.Context, seed: int) -> str:
    """Nothing, the sentence in which the sequence has ended, or what is wrong, which begins with WRONG."""
    way, does = way_of(seed)
    torch.manual_seed(seed)
    model = Model()
    alone = copy.deepcopy(model)

    options = {k: way[k] for k in ("apply", "clip_norm", "overlap", "consistency", "topology") if way[k] is not None}
    options |= {k: way[k] for k in (*OF_WAYS, "reduce") if way[k] is not None}

    def wrap(model: Any, given: Any) -> Any:
        own = make(way["optimizer"], seed, model)
        return ht.DistributedOptimizer(own, ctx, given, backward_passes_per_step=way["passes"], **options)

    at = "made"
    try:
        ours = Trainer(model, wrap(model, model), ctx, way, wrap)
        one = Trainer(alone, make(way["optimizer"], seed, alone), None, way)
        for what, number in does:
            at = what
            getattr(ours, what)(number)
            getattr(one, what)(number)
            if exact(way) and not way["overlap"]:
                check_same(ours.model, alone, 2e-5)
        at = "closed"
        ours.optimizer.close()
    except (hpcomm.InvalidArgument, hpcomm.NotSupported, hpcomm.ConfigError) as refused:
        return f"{at}: {refused}"
    except Exception:
        return f"WRONG at {at}: {traceback.format_exc()}"
    try:
        if exact(way):
            check_same(ours.model, alone, 2e-5)
            for own, other in zip(ours.average, one.average, strict=True):
                torch.testing.assert_close(own, other, rtol=1e-3, atol=2e-5)
        if way["consistency"] == hpcomm.BSP:
            check_bits(ctx, ours.model)
    except AssertionError as wrong:
        return f"WRONG: {wrong}"
    return ""


def run_all(seeds: list[int]) -> list[str]:
    torch.set_num_threads(1)
    ways._LEAST = 1  # the linear layer may go as pairs
    ends = []
    for seed in seeds:
        with hpcomm.init(mpi.world(), timeout=20) as ctx, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ends.append(run(ctx, seed))
            if ends[-1].startswith("WRONG"):
                return ends
    return ends


def lose_one(seed: int) -> int:
    """The last of three ranks, which owns nothing, dies; the others recover and go on, and arrays of gradients that
    they keep stay as they were. The step at which they do."""
    torch.set_num_threads(1)
    draw = random.Random(seed)
    name, overlap = draw.choice(["SGD", "AdamW", "RMSprop"]), draw.choice([False, True])
    way: dict[str, Any] = {"passes": draw.choice([1, 2]), "clip_norm": draw.choice([None, 0.3]), "overlap": overlap}
    way |= {"more": None, "reduce": None}
    dies_at, in_backward = draw.randrange(1, 5), draw.choice([False, True])
    options: dict[str, Any] = {} if name == "RMSprop" else {"servers": 2}
    torch.manual_seed(seed)
    model = Model()
    alone = copy.deepcopy(model)
    with hpcomm.init(mpi.world(), timeout=20) as ctx, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = ht.DistributedOptimizer(
            make(name, seed, model),
            ctx,
            model,
            clip_norm=way["clip_norm"],
            overlap=overlap,
            backward_passes_per_step=way["passes"],
            **options,
        )
        ours, one = Trainer(model, wrapped, ctx, way), Trainer(alone, make(name, seed, alone), None, way)
        ours.size, step, recovered = ctx.size, 0, 0
        kept = Kept(model)
        dies = ctx.rank == ctx.size - 1
        while step < 6:
            if dies and step == dies_at:
                if in_backward:
                    wrapped.zero_grad()
                    ours.passes(step)
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                ours.step(step)
                kept.keep()
                step += 1
            except hpcomm.PeerFailed:
                found = wrapped.recover()
                ours.ctx, ours.size, step = wrapped.context, wrapped.context.size, found.clock
                recovered = step
        wrapped.wait()
        for step in range(6):
            one.size = 3 if step < recovered else 2
            one.step(step)
        check_same(model, alone, 2e-5)
        check_bits(wrapped.context, model)
        wrapped.context.close()
        kept.check()
        return recovered


def run_late(seeds: list[int]) -> list[str]:
    late.install()
    return run_all(seeds)


def told(seeds: list[int], transport: str, body: Callable[[list[int]], list[str]] = run_all) -> list[str]:
    """The seeds that end wrongly, with their ends."""
    values = mpi.spawn(SIZE, body, seeds, timeout=60 + 2 * len(seeds), env={"HPCOMM_TRANSPORT": transport}).values
    wrong = []
    for seed, *ends in zip(seeds, *values, strict=False):
        if any(end.startswith("WRONG") for end in ends) or len({end.partition(":")[0] for end in ends}) > 1:
            wrong.append(f"seed {seed}, {way_of(seed)}: {ends}")
    return wrong


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_sequences(transport: str) -> None:
    first = {"shm": 0, "tcp": SEEDS}[transport]
    assert not told([*FOUND, *range(first, first + SEEDS)], transport)


@pytest.mark.full
def test_sequences_on_a_late_device() -> None:
    assert not told([*FOUND, *range(2 * SEEDS, 3 * SEEDS)], "shm", run_late)


@pytest.mark.parametrize(("transport", "seed"), [("shm", 1), ("tcp", 2)])
def test_the_others_train_on(transport: str, seed: int) -> None:
    ended = mpi.spawn(3, lose_one, seed, check=False, env={"HPCOMM_TRANSPORT": transport})
    assert ended.codes == [0, 0, -9], ended.err
    assert ended.values[0] == ended.values[1] > 0


if __name__ == "__main__":
    for name in ("shm", "tcp"):
        for found in told(list(range(int(sys.argv[1]))), name):
            print(name, found)
        for seed in range(int(sys.argv[1]) // 10):
            test_the_others_train_on(name, seed)

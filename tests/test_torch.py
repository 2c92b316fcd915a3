"""hpcomm.torch: with equal batches all ranks reach the weights, up to rounding, of one process with all the data.

Each case below is run by all ranks of one job, and each test looks at what became of its case. A case trains with a
DistributedOptimizer on this rank's part of every batch, trains the same model with the plain optimizer on the whole
batch, and compares.
"""

import contextlib
import copy
import hashlib
import json
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpi
import pytest

import hpcomm
from hpcomm import _core

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import hpcomm.torch as ht  # noqa: E402

pytestmark = pytest.mark.xdist_group("torch")  # one job for all tests

SIZE = 2
BATCH = 6  # of each rank
Case = Callable[[hpcomm.Context], None]
CASES: dict[str, Case] = {}
EVERYWHERE: set[str] = set()  # also on three ranks over tcp


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def everywhere(function: Case) -> Case:
    EVERYWHERE.add(function.__name__)
    return case(function)


# ---- the ranks -------------------------------------------------------------------------------------------------------


def run_cases(names: list[str]) -> dict[str, str]:
    """What went wrong in each case, by its name."""
    torch.set_num_threads(1)
    told = {}
    for name in names:
        torch._dynamo.reset() if "compile" in name else None
        try:
            with hpcomm.init(mpi.world(), timeout=20) as ctx, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.manual_seed(17)
                CASES[name](ctx)
            told[name] = ""
        except BaseException:
            told[name] = traceback.format_exc()
    return told


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(10, 16)
        self.second = nn.Linear(16, 16, bias=False)
        self.last = nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


def net() -> nn.Module:
    torch.manual_seed(3)
    return Net()


def momentum(params: Any, **more: Any) -> Any:
    return torch.optim.SGD(params, **{"lr": 0.2, "momentum": 0.9, "weight_decay": 1e-3, **more})


class Data:
    """Batches, of which a rank of a job takes its part."""

    def __init__(self, ctx: hpcomm.Context | None, size: int) -> None:
        self.ctx, self.size = ctx, size
        self.generator = torch.Generator().manual_seed(5)

    def batch(self, width: int = 10) -> tuple[Any, Any]:
        n = self.size * BATCH
        x = torch.randn(n, width, generator=self.generator)
        y = torch.randint(0, 4, (n,), generator=self.generator)
        if self.ctx is None:
            return x, y
        part = slice(self.ctx.rank * BATCH, (self.ctx.rank + 1) * BATCH)
        return x[part], y[part]


def plain_step(model: Any, optimizer: Any, data: Data, step: int) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
    optimizer.step()


def both(
    ctx: hpcomm.Context,
    make: Callable[[Any], Any] = momentum,
    loop: Callable[[Any, Any, Data, int], None] = plain_step,
    model: Callable[[], Any] = net,
    steps: int = 5,
    **options: Any,
) -> tuple[Any, Any, Any, Any]:
    """The model and the optimizer of this job, and those of one process with all the data, after the same steps."""
    ours, alone = model(), model()
    if ctx.rank:
        with torch.no_grad():
            for p in ours.parameters():
                p.add_(1)  # rank 0's count
    optimizer = ht.DistributedOptimizer(make(ours.parameters()), ctx, ours, **options)
    plain = make(alone.parameters())
    data, all_data = Data(ctx, ctx.size), Data(None, ctx.size)
    for step in range(steps):
        loop(ours, optimizer, data, step)
        loop(alone, plain, all_data, step)
    optimizer.wait()
    return ours, optimizer, alone, plain


def check_same(ours: Any, alone: Any, tolerance: float = 2e-6) -> None:
    for (name, p), q in zip(ours.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p.detach(), q.detach(), rtol=1e-4, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


def check_bits(ctx: hpcomm.Context, model: Any) -> None:
    """All ranks have the same bits."""
    found = hashlib.sha256()
    for p in model.parameters():
        found.update(p.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    assert len(set(ctx.allgather(found.digest()))) == 1, "ranks differ"


def check(ctx: hpcomm.Context, *args: Any, **options: Any) -> Any:
    ours, optimizer, alone, _ = both(ctx, *args, **options)
    check_same(ours, alone)
    check_bits(ctx, ours)
    return optimizer


def refuses(match: str) -> Any:
    return pytest.raises(hpcomm.InvalidArgument, match=match)


# ---- rules -----------------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.2, weight_decay=1e-3),
    "momentum": momentum,
    "nesterov": lambda p: momentum(p, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01, betas=(0.8, 0.95)),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, eps=1e-6),
}


@everywhere
def rules_take_the_steps_of_torch(ctx: hpcomm.Context) -> None:
    for make in OPTIMIZERS.values():
        optimizer = check(ctx, make)
        assert optimizer.stats().steps == 5
        assert isinstance(optimizer, torch.optim.Optimizer)


@everywhere
def backward_applies_too(ctx: hpcomm.Context) -> None:
    for make in OPTIMIZERS.values():
        optimizer = check(ctx, make, apply="backward")
        assert optimizer.stats().early == 5 * 5  # all keys in all steps


@case
def groups_have_rules_of_their_own(ctx: hpcomm.Context) -> None:
    def make(params: Any) -> Any:
        first, *rest = list(params)
        groups = [{"params": rest, "momentum": 0.0}, {"params": [first], "lr": 0.05, "nesterov": True}]
        return torch.optim.SGD(groups, lr=0.2, momentum=0.9)

    check(ctx, make)
    check(ctx, make, apply="backward")


@everywhere
def other_optimizers_step_on_every_rank(ctx: hpcomm.Context) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        check(ctx, lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5))
    assert [w for w in told if "RMSprop" in str(w.message)] or ctx.rank
    check(ctx, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5), clip_norm=0.5, loop=clipped)


def clipped(model: Any, optimizer: Any, data: Data, step: int) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
    if data.ctx is None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()


# ---- what trainers do ------------------------------------------------------------------------------------------------


@case
def accumulation_under_no_sync(ctx: hpcomm.Context) -> None:
    def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
        optimizer.zero_grad()
        no_sync = contextlib.nullcontext() if data.ctx is None else optimizer.no_sync()
        with no_sync:
            F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
            F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
        F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
        optimizer.step()

    for apply in ("step", "backward"):
        optimizer = check(ctx, loop=loop, apply=apply)
        assert optimizer.stats().copied == 25, "each gradient is exchanged once a step"
        assert apply == "step" or optimizer.stats().early == 25
    check(ctx, torch.optim.RMSprop, loop=loop)


@case
def backward_passes_are_counted(ctx: hpcomm.Context) -> None:
    def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
        optimizer.zero_grad()
        for _ in range(3 if step < 4 else 2):  # the last step has fewer
            F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
        optimizer.step()

    for apply in ("step", "backward"):
        assert check(ctx, loop=loop, apply=apply, backward_passes_per_step=3).stats().copied == 25


@everywhere
def clipping_by_hand_after_synchronize(ctx: hpcomm.Context) -> None:
    norms = []

    def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
        if data.ctx is not None:
            optimizer.synchronize()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.3))
        optimizer.step()

    for make in (momentum, torch.optim.RMSprop):
        check(ctx, make, loop=loop)
        torch.testing.assert_close(norms[::2], norms[1::2], rtol=1e-4, atol=1e-6)

    def looked_at(model: Any, optimizer: Any, data: Data, step: int) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
        if data.ctx is not None:
            optimizer.synchronize()
        optimizer.step()

    optimizer = check(ctx, loop=looked_at)
    assert optimizer.stats().copied + optimizer.stats().in_place == 25, "means that did not change are folded once"


@everywhere
def clip_norm_is_exact(ctx: hpcomm.Context) -> None:
    check(ctx, loop=clipped, clip_norm=0.5)
    with refuses("clip_norm"):
        ht.DistributedOptimizer(momentum(net().parameters()), ctx, net(), clip_norm=0.0)


@case
def a_scaler_skips_a_step(ctx: hpcomm.Context) -> None:
    for make in (momentum, torch.optim.RMSprop):
        scalers: dict[bool, Any] = {}

        def loop(model: Any, optimizer: Any, data: Data, step: int, scalers: dict[bool, Any] = scalers) -> None:
            scaler = scalers.setdefault(data.ctx is None, torch.amp.GradScaler("cpu", init_scale=1024.0))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data.batch()[0]), data.batch()[1])
            if step == 2 and (data.ctx is None or data.ctx.rank == 1):  # one rank alone overflows
                loss = loss * torch.inf
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        optimizer = check(ctx, make, loop=loop)
        assert optimizer.stats().skipped == 1
        assert optimizer.stats().steps == 4
        assert scalers[False].get_scale() == scalers[True].get_scale() == 512.0

        def unscaled(model: Any, optimizer: Any, data: Data, step: int, scalers: dict[bool, Any] = scalers) -> None:
            scaler = scalers[data.ctx is None]
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(data.batch()[0]), data.batch()[1])).backward()
            if data.ctx is not None:
                optimizer.synchronize()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            scaler.step(optimizer)
            scaler.update()

        check(ctx, make, loop=unscaled)


@case
def schedulers_and_hands_change_rates(ctx: hpcomm.Context) -> None:
    schedulers: dict[bool, Any] = {}

    def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
        if step == 0:
            schedulers[data.ctx is None] = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=10)
        optimizer.zero_grad()
        F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
        if step == 3:
            optimizer.param_groups[0]["weight_decay"] = 0.05
        optimizer.step()
        schedulers[data.ctx is None].step()

    check(ctx, loop=loop)
    check(ctx, lambda p: torch.optim.AdamW(p, lr=0.1), loop=loop)
    with refuses("between backward and step"):
        check(ctx, loop=loop, apply="backward")


@everywhere
def frozen_and_thawed(ctx: hpcomm.Context) -> None:
    def model() -> Any:
        made = net()
        made.first.requires_grad_(False)
        return made

    def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
        if step == 2:
            model.first.requires_grad_(True)
        if step == 4:
            model.last.requires_grad_(False)
        plain_step(model, optimizer, data, step)

    for options in ({}, {"apply": "backward"}):
        check(ctx, model=model, loop=loop, steps=6, **options)
    check(ctx, torch.optim.RMSprop, model=model, loop=loop, steps=6)


@everywhere
def none_on_all_and_none_on_some(ctx: hpcomm.Context) -> None:
    """With None on some, their part is zero: the plain optimizer gets the others' part of the mean."""

    def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
        optimizer.zero_grad()
        (x, _), (_, y) = data.batch(), data.batch()
        if step % 3 == 1:  # no gradient for the last layer, on any rank
            F.cross_entropy(torch.tanh(model.second(torch.tanh(model.first(x)))), y).backward()
        elif step % 3 == 2 and data.ctx is not None and data.ctx.rank:  # only rank 0 has one
            for p in model.parameters():
                p.grad = None
            F.cross_entropy(torch.tanh(model.second(torch.tanh(model.first(x)))), y).backward()
        elif step % 3 == 2 and data.ctx is None:
            n = data.size
            F.cross_entropy(model(x[:BATCH]), y[:BATCH]).div(n).backward()
            for part in range(1, n):
                own = slice(part * BATCH, (part + 1) * BATCH)
                h = torch.tanh(model.second(torch.tanh(model.first(x[own]))))
                F.cross_entropy(h, y[own]).div(n).backward()
        else:
            F.cross_entropy(model(x), y).backward()
        optimizer.step()

    for options in ({}, {"apply": "backward"}, {"clip_norm": 1e6}):
        check(ctx, loop=loop, steps=7, **options)
    check(ctx, lambda p: torch.optim.RMSprop(p, momentum=0.9), loop=loop, steps=7)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(10, 8, bias=False)
        self.middle = nn.Linear(8, 8)
        self.out = nn.Linear(10, 8, bias=False)
        self.out.weight = self.embedding.weight
        self.last = nn.Linear(10, 4)

    def forward(self, x: Any) -> Any:
        return self.last(F.linear(torch.tanh(self.middle(self.embedding(x))), self.out.weight.t()))


def tied() -> Any:
    torch.manual_seed(4)
    return Tied()


@case
def tied_weights(ctx: hpcomm.Context) -> None:
    optimizer = check(ctx, model=tied)
    assert list(optimizer.exchange.params) == [
        "embedding.weight", "middle.weight", "middle.bias", "last.weight", "last.bias",
    ]  # fmt: skip
    assert check(ctx, model=tied, apply="backward").stats().early == 4 * 5  # all but the weight that two layers read


@case
def sixteen_bits_with_masters(ctx: hpcomm.Context) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        ours = net()
        ours.second.to(dtype), ours.last.to(dtype)  # and float32: several dtypes in one model

        def forward(model: Any, x: Any, dtype: Any = dtype) -> Any:
            return model.last(torch.tanh(model.second(torch.tanh(model.first(x)).to(dtype)))).float()

        optimizer = ht.DistributedOptimizer(momentum(ours.parameters()), ctx, ours)
        low = copy.deepcopy(ours)  # the model that computes, and its float32 masters
        masters = [p.detach().float().requires_grad_() for p in low.parameters()]
        plain = momentum(masters)
        for _ in range(5):
            x, y = Data(None, ctx.size).batch()
            own = slice(ctx.rank * BATCH, (ctx.rank + 1) * BATCH)
            optimizer.zero_grad()
            F.cross_entropy(forward(ours, x[own]), y[own]).backward()
            optimizer.step()
            for master in masters:
                master.grad = torch.zeros_like(master)
            for r in range(ctx.size):
                low.zero_grad()
                part = slice(r * BATCH, (r + 1) * BATCH)
                F.cross_entropy(forward(low, x[part]), y[part]).backward()
                for master, p in zip(masters, low.parameters(), strict=True):
                    master.grad += p.grad.float() / ctx.size
            plain.step()
            with torch.no_grad():
                for master, p in zip(masters, low.parameters(), strict=True):
                    p.copy_(master)
        optimizer.wait()
        check_bits(ctx, ours)
        for name, master in zip(dict(ours.named_parameters()), masters, strict=True):
            torch.testing.assert_close(
                torch.from_numpy(optimizer.exchange.params[name]), master.detach(), atol=1e-3, rtol=1e-2
            )
        assert ours.last.weight.dtype == dtype
        assert optimizer.stats().converted == 5 * 3
        state = optimizer.state_dict()
        for p, master in zip(ours.parameters(), masters, strict=True):
            torch.testing.assert_close(p.detach(), master.detach().to(p.dtype), atol=1e-2, rtol=1e-2)
        again = net()
        again.second.to(dtype), again.last.to(dtype)
        second = ht.DistributedOptimizer(momentum(again.parameters()), ctx, again)
        again.load_state_dict(ours.state_dict())
        second.load_state_dict(state)
        for name, values in optimizer.exchange.params.items():
            assert (second.exchange.params[name] == values).all(), "the masters come back bit for bit"
        ours.load_state_dict(again.state_dict())


@everywhere
def gradients_are_zeroed_either_way(ctx: hpcomm.Context) -> None:
    def by(zero: Callable[[Any, Any, int], None]) -> Any:
        def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
            zero(model, optimizer, step)
            F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
            optimizer.step()

        return loop

    zeros: list[Callable[[Any, Any, int], Any]] = [
        lambda m, o, s: o.zero_grad(set_to_none=False),
        lambda m, o, s: m.zero_grad(set_to_none=False),
        lambda m, o, s: o.zero_grad(set_to_none=s % 2 == 0),
        lambda m, o, s: None,  # as if the loss of all steps so far were trained
    ]
    for zero in zeros:
        check(ctx, loop=by(zero))
        check(ctx, loop=by(zero), apply="backward")
        check(ctx, torch.optim.RMSprop, loop=by(zero), steps=3)
    assert check(ctx, loop=by(zeros[1])).stats().in_place == 20, "all but the first step's"


@case
def gradients_are_taken_back(ctx: hpcomm.Context) -> None:
    def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
        if step == 2:  # a bad batch
            return
        optimizer.step()

    check(ctx, loop=loop)
    check(ctx, torch.optim.RMSprop, loop=loop)
    with refuses("zero_grad"):
        check(ctx, loop=loop, apply="backward")


# ---- models ----------------------------------------------------------------------------------------------------------


@case
def compiled_models(ctx: hpcomm.Context) -> None:
    def whole(make: Callable[[], Any]) -> Any:
        return lambda: torch.compile(make(), backend="aot_eager")

    def in_place() -> Any:
        made = net()
        made.compile(backend="aot_eager")
        return made

    def sequential() -> Any:
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 4))

    for model in (whole(net), whole(sequential), in_place):
        assert "first.weight" in check(ctx, model=model).exchange.params or model is not in_place
    assert check(ctx, model=whole(net), apply="backward").stats().early == 0
    torch._dynamo.reset()


@case
def evaluation_waits_for_everything(ctx: hpcomm.Context) -> None:
    found = []

    def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
        model.train()
        plain_step(model, optimizer, data, step)
        model.eval()
        with torch.no_grad():
            found.append(model(torch.ones(1, 10)))

    check(ctx, loop=loop)
    torch.testing.assert_close(found[::2], found[1::2], rtol=1e-4, atol=1e-5)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(10, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(10, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.encoder(x.unsqueeze(1)).squeeze(1))


def attention() -> Any:
    torch.manual_seed(6)
    return Attention()


@case
def attention_reads_its_childs_weights(ctx: hpcomm.Context) -> None:
    """nn.MultiheadAttention never calls out_proj, so no pre-hook of out_proj runs."""
    check(ctx, model=attention)
    check(ctx, model=attention, apply="backward")


@case
def activation_checkpointing_and_kept_graphs(ctx: hpcomm.Context) -> None:
    class Recomputed(Net):
        def forward(self, x: Any) -> Any:
            x = torch.tanh(self.first(x))
            for reentrant in (True, False):
                x = checkpoint(lambda v: torch.tanh(self.second(v)), x, use_reentrant=reentrant)
            return self.last(x)

    def model() -> Any:
        torch.manual_seed(8)
        return Recomputed()

    def kept(model: Any, optimizer: Any, data: Data, step: int) -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.batch()[0]), data.batch()[1])
        if data.ctx is None:
            loss.backward(retain_graph=True)
        else:
            with optimizer.no_sync():
                loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()

    for options in ({}, {"apply": "backward"}):
        if options:  # used twice in a backward pass that hands over its gradient twice
            check(ctx, model=model, **options)
        check(ctx, loop=kept, **options)

    def graph(model: Any, optimizer: Any, data: Data, step: int) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward(create_graph=True)
        optimizer.step()

    for options in ({}, {"apply": "backward"}):
        assert check(ctx, loop=graph, **options).stats().early == 0


@case
def channels_last(ctx: hpcomm.Context) -> None:
    def model() -> Any:
        torch.manual_seed(9)
        made = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(16, 4))
        return made.to(memory_format=torch.channels_last)

    def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
        optimizer.zero_grad()
        (x, _), (_, y) = data.batch(3 * 6 * 6), data.batch()
        F.cross_entropy(model(x.view(-1, 3, 6, 6).to(memory_format=torch.channels_last)), y).backward()
        optimizer.step()

    ours, optimizer, alone, plain = both(ctx, torch.optim.Adam, loop, model)
    check_same(ours, alone, 1e-5)
    assert ours[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert optimizer.stats().copied == 6 * 5, "gradients lie as parameters do"
    check_state(optimizer.state_dict(), plain.state_dict())


@case
def sparse_gradients(ctx: hpcomm.Context) -> None:
    def model() -> Any:
        torch.manual_seed(1)
        return nn.Sequential(nn.Embedding(12, 4, sparse=True), nn.Flatten(), nn.Linear(8, 4))

    def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
        optimizer.zero_grad()
        (x, _), (_, y) = data.batch(2), data.batch()
        F.cross_entropy(model((x.abs() * 4).long().clamp(max=11)), y).backward()
        optimizer.step()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        optimizer = check(ctx, lambda p: torch.optim.SGD(p, lr=0.1), loop=loop, model=model)
    assert optimizer.stats().dense == 5
    assert len([w for w in told if "sparse" in str(w.message)]) == 1
    with refuses("sparse"):
        check(ctx, lambda p: torch.optim.SGD(p, lr=0.1), loop=loop, model=model, sparse="refuse")


@case
def memory_of_the_exchange(ctx: hpcomm.Context) -> None:
    ours, optimizer, *_ = both(ctx)
    plain_step(ours, optimizer, Data(ctx, ctx.size), 0)
    for name, p in ours.named_parameters():
        assert p.data_ptr() == optimizer.exchange.params[name].ctypes.data
    for name, p in ours.named_parameters():
        optimizer.wait()
        assert p.grad.data_ptr() == optimizer.exchange.gradient(name).ctypes.data
    assert optimizer.stats().copied == 6 * 5
    assert optimizer.stats().params_copied == 0
    ours.first.weight.data = ours.first.weight.data.clone()  # as model.to does
    plain_step(ours, optimizer, Data(ctx, ctx.size), 0)
    plain_step(ours, optimizer, Data(ctx, ctx.size), 0)
    optimizer.wait()
    assert optimizer.stats().params_copied == 2
    check_bits(ctx, ours)


@case
def copies_of_a_model_wait_for_nobody(ctx: hpcomm.Context) -> None:
    ours, optimizer, *_ = both(ctx)
    other = copy.deepcopy(ours)
    plain_step(ours, optimizer, Data(ctx, ctx.size), 0)
    other(torch.ones(1, 10))
    other.state_dict()
    optimizer.wait()
    assert not torch.equal(other.first.weight, ours.first.weight)


# ---- state -----------------------------------------------------------------------------------------------------------


def check_state(ours: Any, theirs: Any) -> None:
    assert ours["param_groups"] == theirs["param_groups"]
    assert ours["state"].keys() == theirs["state"].keys()
    for number, own in ours["state"].items():
        assert own.keys() == theirs["state"][number].keys()
        for name, value in own.items():
            torch.testing.assert_close(value, theirs["state"][number][name], rtol=1e-4, atol=1e-6)


@everywhere
def state_goes_both_ways(ctx: hpcomm.Context) -> None:
    for make in (*OPTIMIZERS.values(), torch.optim.RMSprop):
        ours, optimizer, alone, plain = both(ctx, make)
        state = copy.deepcopy(optimizer.state_dict())
        if make is not OPTIMIZERS["sgd"]:
            check_state(state, plain.state_dict())
        # ours into a plain one, and a plain one into ours
        alone_2, ours_2 = net(), net()
        alone_2.load_state_dict(ours.state_dict())
        plain_2 = make(alone_2.parameters())
        plain_2.load_state_dict(state)
        optimizer_2 = ht.DistributedOptimizer(make(ours_2.parameters()), ctx, ours_2)
        ours_2.load_state_dict(alone.state_dict())
        optimizer_2.load_state_dict(copy.deepcopy(plain.state_dict()))
        for one, its, data in (
            (alone_2, plain_2, Data(None, ctx.size)),
            (ours_2, optimizer_2, Data(ctx, ctx.size)),
            (alone, plain, Data(None, ctx.size)),
        ):
            for step in range(3):
                plain_step(one, its, data, step)
        optimizer_2.wait()
        check_same(alone_2, alone)
        check_same(ours_2, alone)


@case
def checkpoints(ctx: hpcomm.Context) -> None:
    def mixed() -> Any:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(10, 6), nn.BatchNorm1d(6), nn.Linear(6, 4).bfloat16())

    def step(model: Any, optimizer: Any, data: Data) -> None:
        optimizer.zero_grad()
        x, y = data.batch()
        F.cross_entropy(model[2](model[1](model[0](x)).bfloat16()).float(), y).backward()
        optimizer.step()

    with tempfile.TemporaryDirectory() as own:
        folders = [ctx.allgather(str(Path(own, str(i))).encode().ljust(200))[0].decode().strip() for i in range(2)]
        for make, folder in zip((momentum, torch.optim.RMSprop), folders, strict=True):
            ours = mixed()
            optimizer = ht.DistributedOptimizer(make(ours.parameters()), ctx, ours)
            data = Data(ctx, ctx.size)
            with ht.Checkpointer(optimizer, folder, every=2) as saver:
                for n in range(4):
                    step(ours, optimizer, data)
                    optimizer.param_groups[0]["lr"] = 0.1 / (n + 2)
                    assert saver.after(n + 1, {"n": n}) == (n % 2 == 1)
            again = mixed()
            second = ht.DistributedOptimizer(make(again.parameters()), ctx, again)
            ctx.barrier()
            found = ht.restore(second, folder)
            assert found is not None
            assert (found.step, found.extra) == (4, {"n": 3})
            assert second.param_groups[0]["lr"] == 0.1 / 5
            state = data.generator.get_state()
            step(ours, optimizer, data)
            data.generator.set_state(state)
            step(again, second, data)
            for (name, p), q in zip(ours.state_dict().items(), again.state_dict().values(), strict=True):
                assert torch.equal(p, q), f"{name}: bit for bit"
        ctx.barrier()


@case
def buffers(ctx: hpcomm.Context) -> None:
    for kind in ("local", "broadcast", "average"):
        ours = nn.Sequential(nn.Linear(10, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))
        ours[1].running_mean += ctx.rank
        ours[1].num_batches_tracked += 7 * ctx.rank
        optimizer = ht.DistributedOptimizer(momentum(ours.parameters()), ctx, ours, buffers=kind)
        assert float(ours[1].running_mean.abs().sum()) == float(ours[1].num_batches_tracked) == 0, "rank 0's"
        mine = torch.zeros(6)
        data = Data(ctx, ctx.size)
        for _ in range(3):
            optimizer.zero_grad()
            x, y = data.batch()
            batch_mean = ours[0](x).detach().mean(0)
            F.cross_entropy(ours(x), y).backward()
            optimizer.step()
            means = [
                torch.frombuffer(bytearray(m), dtype=torch.float32) for m in ctx.allgather(batch_mean.numpy().tobytes())
            ]
            part = {"local": batch_mean, "broadcast": means[0], "average": sum(means) / ctx.size}[kind]
            mine = 0.9 * mine + 0.1 * part
        optimizer.wait()
        torch.testing.assert_close(ours[1].running_mean, mine, rtol=1e-4, atol=1e-5)
        assert int(ours[1].num_batches_tracked) == 3


# ---- dials -----------------------------------------------------------------------------------------------------------


@everywhere
def models_are_averaged_on_a_graph(ctx: hpcomm.Context) -> None:
    """On the complete graph, with SGD, averaged models are those of averaged gradients."""
    for consistency in (hpcomm.BSP, hpcomm.NOTIFY_ACK):
        ours, optimizer, alone, _ = both(
            ctx,
            OPTIMIZERS["sgd"],
            topology=hpcomm.topology.complete(ctx.size),
            consistency=consistency,
        )
        check_same(ours, alone)
        assert optimizer.stats().steps == 5
        optimizer.state_dict()


@case
def other_consistencies_and_codecs(ctx: hpcomm.Context) -> None:
    ours, *_, alone, _ = both(ctx, OPTIMIZERS["sgd"], codec="bfloat16")
    check_same(ours, alone, 3e-3)
    check_bits(ctx, ours)
    ours, *_, alone, _ = both(ctx, OPTIMIZERS["sgd"], apply="backward", codec={"first.weight": "float16"})
    check_same(ours, alone, 3e-3)
    enough = hpcomm.Consistency(quorum=ctx.size, late="drop", grace=10.0)
    for apply in ("step", "backward"):
        ours, *_, alone, _ = both(ctx, OPTIMIZERS["sgd"], apply=apply, consistency=enough)
        check_same(ours, alone)
        ours, *_ = both(ctx, OPTIMIZERS["sgd"], apply=apply, consistency=hpcomm.ASYNC)
        ctx.barrier()
        losses = [F.cross_entropy(ours(x), y) for x, y in [Data(None, ctx.size).batch()]]
        assert torch.isfinite(losses[0])


# ---- uneven batches --------------------------------------------------------------------------------------------------


@everywhere
def ranks_that_run_out(ctx: hpcomm.Context) -> None:
    """A rank that has run out has a part of zero, and everybody's weights stay the same."""

    def steps(rank: int) -> int:
        return 3 + 2 * rank

    for make, options in (
        (momentum, {}),
        (momentum, {"apply": "backward"}),
        (momentum, {"clip_norm": 0.3}),
        (lambda p: torch.optim.RMSprop(p, lr=0.01), {}),
    ):
        ours, alone = net(), net()
        optimizer, plain = (
            ht.DistributedOptimizer(make(ours.parameters()), ctx, ours, **options),
            make(alone.parameters()),
        )
        schedulers = [torch.optim.lr_scheduler.ExponentialLR(one, 0.9) for one in (optimizer, plain)]
        data = Data(ctx, ctx.size)
        with ht.join(optimizer):
            for step in range(steps(ctx.rank)):
                plain_step(ours, optimizer, data, step)
                schedulers[0].step()
        data = Data(None, ctx.size)
        for step in range(steps(ctx.size - 1)):
            plain.zero_grad()
            (x, _), (_, y) = data.batch(), data.batch()
            for rank in range(ctx.size):
                if step < steps(rank):
                    own = slice(rank * BATCH, (rank + 1) * BATCH)
                    F.cross_entropy(alone(x[own]), y[own]).div(ctx.size).backward()
            if "clip_norm" in options:
                nn.utils.clip_grad_norm_(alone.parameters(), 0.3)
            plain.step()
            schedulers[1].step()
        optimizer.wait()
        check_same(ours, alone)
        check_bits(ctx, ours)
        plain_step(ours, optimizer, Data(ctx, ctx.size), 0)  # and on


# ---- refusals --------------------------------------------------------------------------------------------------------


@case
def what_would_train_wrongly_raises(ctx: hpcomm.Context) -> None:
    def loss(model: Any) -> Any:
        return F.cross_entropy(model(torch.ones(2, 10)), torch.tensor([1, 2]))

    def fresh(**options: Any) -> tuple[Any, Any]:
        model = net()
        return model, ht.DistributedOptimizer(momentum(model.parameters()), ctx, model, **options)

    for options in ({}, {"apply": "backward"}):
        model, optimizer = fresh(**options)
        loss(model).backward()
        with refuses("second time.*no_sync"):
            loss(model).backward()
        model, optimizer = fresh(**options)
        loss(model).backward()
        model.second.weight.grad.mul_(2)
        with refuses("'second.weight' was changed.*synchronize"):
            optimizer.step()
        model, optimizer = fresh(**options)
        loss(model).backward()
        model.first.bias.grad = torch.ones(16)
        with refuses("'first.bias' was changed"):
            optimizer.step()
        # a weight that is read where its layer is not called
        model, optimizer = fresh(**options)
        for _ in range(2):
            optimizer.zero_grad()
            loss(model).backward()
            optimizer.step()
        with refuses("used in a forward pass that did not call its layer"):
            F.linear(torch.ones(1, 16), model.second.weight).sum().backward()
        optimizer.wait()
    with pytest.raises(hpcomm.NotSupported, match="apply"):
        optimizer.synchronize()
    model = net().double()
    with refuses("float64"):
        ht.DistributedOptimizer(momentum(model.parameters()), ctx, model)
    model = net().to("meta")
    with refuses("host's memory"):
        ht.DistributedOptimizer(momentum(model.parameters()), ctx, model)
    with refuses("not parameters of the model"):
        ht.DistributedOptimizer(momentum(net().parameters()), ctx, net())
    with pytest.raises(hpcomm.NotSupported, match="add_param_group"):
        optimizer.add_param_group({"params": []})


# ---- tests -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shm() -> list[dict[str, str]]:
    return mpi.spawn(SIZE, run_cases, list(CASES), timeout=120).values


@pytest.fixture(scope="module")
def tcp() -> list[dict[str, str]]:
    return mpi.spawn(3, run_cases, sorted(EVERYWHERE), timeout=120, env={"HPCOMM_TRANSPORT": "tcp"}).values


@pytest.mark.parametrize("name", CASES)
def test_case(shm: list[dict[str, str]], name: str) -> None:
    assert [value[name] for value in shm] == [""] * SIZE


@pytest.mark.parametrize("name", sorted(EVERYWHERE))
def test_case_over_tcp(tcp: list[dict[str, str]], name: str) -> None:
    assert [value[name] for value in tcp] == [""] * 3


# ---- ranks that fail -------------------------------------------------------------------------------------------------


def fail_in_backward() -> list[Any]:
    """Rank 1 raises in the middle of a backward pass; what each rank raises."""

    def train() -> None:
        with hpcomm.init(mpi.world(), timeout=20) as ctx:
            model = net()
            optimizer = ht.DistributedOptimizer(momentum(model.parameters()), ctx, model)
            for step in range(4):
                if (ctx.rank, step) == (1, 2):
                    model.second.weight.register_hook(lambda grad: 1 / 0)
                plain_step(model, optimizer, Data(ctx, ctx.size), step)

    torch.set_num_threads(1)
    with pytest.raises((hpcomm.PeerFailed, ZeroDivisionError)) as raised:
        train()
    return [getattr(raised.value, "ranks", None), str(raised.value)]


def interrupt() -> float:
    """Rank 0 gets Ctrl-C while it waits for rank 1, goes on after it, and reaches the same weights."""
    torch.set_num_threads(1)
    with hpcomm.init(mpi.world(), timeout=20) as ctx:
        model = net()
        optimizer = ht.DistributedOptimizer(momentum(model.parameters()), ctx, model)
        data = Data(ctx, ctx.size)
        for step in range(3):
            plain_step(model, optimizer, data, step)
        optimizer.wait()
        pids = [int(pid) for pid in ctx.allgather(str(os.getpid()).encode().ljust(20))]
        if ctx.rank == 0:
            plain_step(model, optimizer, data, 3)
            with pytest.raises(KeyboardInterrupt):
                optimizer.wait()
        else:
            while not any(
                wait.ranks == (1,) for shown in _core.jobs(5.0).ranks if shown.pid == pids[0] for wait in shown.waits
            ):
                pass
            os.kill(pids[0], signal.SIGINT)
            plain_step(model, optimizer, data, 3)
        optimizer.wait()
        check_bits(ctx, model)
        return float(model.first.weight.detach().sum())


def survive(name: str) -> list[Any]:
    """The last rank is killed after three steps; the others go on."""
    torch.set_num_threads(1)
    with hpcomm.init(mpi.world(), timeout=20) as ctx, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options: dict[str, dict[str, Any]] = {
            "rule": {"servers": 2},
            "backward": {"servers": 2, "apply": "backward"},
            "local": {},
            "graph": {"topology": hpcomm.topology.complete},
        }
        make = torch.optim.RMSprop if name == "local" else momentum
        model = net()
        optimizer = ht.DistributedOptimizer(make(model.parameters()), ctx, model, **options[name])
        told, lost, step, data = "", (), 0, Data(ctx, ctx.size)
        while step < 8:
            if step == 3 and ctx.rank == ctx.size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                plain_step(model, optimizer, data, step)
                step += 1
            except hpcomm.PeerFailed as failed:
                told = str(failed.ranks)
                found = optimizer.recover()
                lost, step = found.lost, found.clock
        optimizer.wait()
        if name != "graph":
            check_bits(optimizer.context, model)
        optimizer.state_dict()
        optimizer.context.close()
        return [told, lost, bool(torch.isfinite(model.first.weight).all())]


def test_a_rank_that_raises_in_backward_is_named() -> None:
    values = mpi.spawn(3, fail_in_backward).values
    for rank in (0, 2):
        assert values[rank][0] == [1]
        assert "ZeroDivisionError: division by zero" in values[rank][1]


def test_ctrl_c_ends_a_wait_and_loses_nothing() -> None:
    assert len(set(mpi.spawn(2, interrupt).values)) == 1


@pytest.mark.parametrize("name", ["rule", "backward", "local", "graph"])
def test_the_others_go_on(name: str) -> None:
    ended = mpi.spawn(3, survive, name, check=False)
    assert ended.codes == [0, 0, -9], ended.err
    assert ended.values[:2] == [["(2,)", [2], True]] * 2


# ---- a timeline ------------------------------------------------------------------------------------------------------


def trace() -> None:
    torch.set_num_threads(1)
    with hpcomm.init(mpi.world()) as ctx:
        both(ctx)


def test_a_timeline_shows_layers(tmp_path: Path) -> None:
    mpi.spawn(2, trace, env={"HPCOMM_TIMELINE": str(tmp_path / "trace.json")})
    for rank in range(2):
        events = json.loads((tmp_path / f"trace.rank{rank}.json").read_text(encoding="utf-8"))
        found = Counter(event["name"] for event in events if event.get("cat") == "trainer")
        for layer in ("first", "second", "last"):
            assert [found[f"{what} {layer}"] for what in ("wait", "forward", "backward")] == [
                5,
                5,
                5 + 5 * (layer != "second"),
            ]
        assert found["optimizer"] == 5


def test_a_missing_torch_is_told() -> None:
    code = "import sys; sys.modules['torch'] = None\nimport hpcomm.torch"
    ended = mpi.command(sys.executable, "-c", code)
    assert "pip install 'hpcomm[torch]'" in ended.stderr

"""hpcomm.torch under consistencies other than BSP, and with codecs: whose gradients count in a step."""

import math
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torchcases as cases
from torchcases import (
    OPTIMIZERS,
    Data,
    F,
    both,
    case,
    check,
    check_bits,
    check_same,
    clipped,
    everywhere,
    momentum,
    net,
    nn,
    refuses,
    torch,
)

import hpcomm
import hpcomm.torch as ht

pytestmark = pytest.mark.xdist_group("group torch")  # one job for all tests

NARROW = (None, "bfloat16")


def waits_for_all(ctx: hpcomm.Context) -> hpcomm.Consistency:
    """A quorum of fewer, whose folds wait for the others too."""
    return hpcomm.Consistency(quorum=max(1, ctx.size - 1), grace=math.inf)


def changed_mean(model: Any, optimizer: Any, data: Data, step: int) -> None:
    optimizer.zero_grad()
    x, y = data.batch()
    F.cross_entropy(model(x.to(model.last.weight.dtype)).float(), y).backward()
    if data.ctx is not None:
        optimizer.synchronize()
    nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    optimizer.step()


def now_and_then(model: Any, optimizer: Any, data: Data, step: int) -> None:
    """Most layers are used in some steps alone: nothing else waits for their updates."""
    optimizer.zero_grad()
    x, y = data.batch()
    F.cross_entropy(model.last(x.repeat(1, 2)[:, :16]) if step % 2 else model(x), y).backward()
    optimizer.step()


@case
def other_consistencies_and_codecs(ctx: hpcomm.Context) -> None:
    ours, *_, alone, _ = both(ctx, OPTIMIZERS["sgd"], codec="bfloat16")
    check_same(ours, alone, 3e-3)
    check_bits(ctx, ours)
    ours, *_, alone, _ = both(ctx, OPTIMIZERS["sgd"], apply="backward", codec={"first.weight": "float16"})
    check_same(ours, alone, 3e-3)
    enough = hpcomm.Consistency(quorum=ctx.size, late="drop", grace=10.0)
    check(ctx, OPTIMIZERS["adamw"], clipped, clip_norm=0.5, overlap=True, consistency=waits_for_all(ctx))
    check(ctx, loop=changed_mean, consistency=waits_for_all(ctx))
    check(ctx, loop=now_and_then, overlap=True, consistency=waits_for_all(ctx))
    ours, *_, alone, _ = both(ctx, loop=changed_mean, model=lambda: net().bfloat16(), consistency=waits_for_all(ctx))
    check_same(ours, alone, 0.02)
    for apply in ("step", "backward"):
        ours, *_, alone, _ = both(ctx, OPTIMIZERS["sgd"], apply=apply, consistency=enough)
        check_same(ours, alone)
        ours, *_ = both(ctx, OPTIMIZERS["sgd"], apply=apply, consistency=hpcomm.ASYNC)
        ctx.barrier()
        losses = [F.cross_entropy(ours(x), y) for x, y in [Data(None, ctx.size).batch()]]
        assert torch.isfinite(losses[0])


@everywhere
def bounded_staleness(ctx: hpcomm.Context) -> None:
    """SSP(s): all updates are in the model in the end; SSP(0) is BSP; some ranks have no gradient for a layer."""
    for apply in ("step", "backward"):
        ours, *_, alone, _ = both(ctx, OPTIMIZERS["sgd"], apply=apply, consistency=hpcomm.SSP(0))
        check_same(ours, alone)
        torch.manual_seed(5)
        model = net()
        optimizer = ht.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.125), ctx, model, apply=apply, consistency=hpcomm.SSP(2)
        )
        before = {name: value.clone() for name, value in model.state_dict().items()}
        steps, moved = 7, 0.125 * sum(range(1, 8))
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            for i, value in enumerate(model.parameters()):
                if i > 0 or ctx.rank == 0:
                    (step * value.sum()).backward()
            optimizer.step()
        optimizer.wait()
        exchange = optimizer.exchange
        assert sum(exchange.stats().by_staleness) == steps * len(before)
        for _ in range(2):
            for name in before:
                exchange.pull(name)
            ctx.barrier()
        for i, (name, value) in enumerate(model.state_dict().items()):
            part = 1 / ctx.size if i == 0 else 1.0
            assert torch.allclose(before[name] - value, torch.full_like(value, moved * part), atol=1e-5)
    model = net()
    local = torch.optim.RMSprop(model.parameters())
    with pytest.raises(hpcomm.NotSupported, match="give BSP"):
        ht.DistributedOptimizer(local, ctx, model, consistency=hpcomm.SSP(2))


class OwnUpdates:
    """A model whose parameters tell how much of all ranks' gradients has been applied, each of norm 1 times a factor.
    Under SSP(1) each update is applied by itself."""

    def __init__(self, ctx: hpcomm.Context, **options: Any) -> None:
        self.ctx, self.model, self.parts = ctx, net(), 1 if options.get("reduce") == "sum" else ctx.size
        sgd = torch.optim.SGD(self.model.parameters(), lr=1.0)
        options = {"consistency": hpcomm.SSP(1), **options}
        self.optimizer = ht.DistributedOptimizer(sgd, ctx, self.model, **options)
        self.before = [p.detach().clone() for p in self.model.parameters()]
        self.unit = sum(p.numel() for p in self.before) ** -0.5

    def loss(self, norm: float) -> Any:
        return norm * self.unit * sum(p.sum() for p in self.model.parameters())

    def check_moved(self, norms: float, rounded: float = 1e-4) -> None:
        """norms: of the updates of all ranks, added up."""
        self.optimizer.wait()
        for _ in range(2):  # each rank's own have come; those of all have
            for name in self.optimizer.exchange.params:
                self.optimizer.exchange.pull(name)
            self.ctx.barrier()
        for p, before in zip(self.model.parameters(), self.before, strict=True):
            moved = torch.full_like(p, self.unit * norms / self.parts)
            torch.testing.assert_close(before - p.detach(), moved, rtol=rounded, atol=1e-5)


@everywhere
def each_rank_clips_its_own_gradient(ctx: hpcomm.Context) -> None:
    own = OwnUpdates(ctx, clip_norm=2.0)
    for _ in range(3):
        own.optimizer.zero_grad()
        own.loss(1.0 + 3 * ctx.rank).backward()
        own.optimizer.step()
    own.check_moved(3 * (1.0 + 2.0 * (ctx.size - 1)))


@everywhere
def a_scaler_skips_on_one_rank_alone(ctx: hpcomm.Context) -> None:
    """No other rank waits for it, or skips."""
    own, is_last = OwnUpdates(ctx), ctx.rank == ctx.size - 1
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(4):
        own.optimizer.zero_grad()
        scaler.scale(own.loss(float("inf") if is_last and step == 1 else 1.0)).backward()
        if step == 2 and ctx.rank == 0:
            own.optimizer.synchronize()
            scaler.unscale_(own.optimizer)
        scaler.step(own.optimizer)
        scaler.update()
    assert scaler.get_scale() == (4.0 if is_last else 8.0)
    own.check_moved(4 * ctx.size - 1)


@everywhere
def one_rank_changes_its_own_gradient(ctx: hpcomm.Context) -> None:
    """synchronize waits for no other rank; nor does zero_grad before step, which takes back what nobody has heard."""
    own = OwnUpdates(ctx, reduce="sum")
    for _ in range(3):
        own.loss(7.0).backward()
        pushes = own.optimizer.exchange.stats().pushes
        own.optimizer.zero_grad()
        assert own.optimizer.exchange.stats().pushes == pushes
        own.loss(1.0).backward()
        if ctx.rank == ctx.size - 1:
            own.optimizer.synchronize()
            for p in own.model.parameters():
                torch.testing.assert_close(p.grad, torch.full_like(p, own.unit))
            nn.utils.clip_grad_norm_(own.model.parameters(), 0.5)
        own.optimizer.step()
        own.optimizer.zero_grad()
    own.check_moved(3 * (ctx.size - 0.5))


class Straggling(OwnUpdates):
    """Under a quorum of all ranks but the last.

    Attributes:
        mean: the norm of theirs.
        seen: that of the gradient which synchronize gives.
    """

    def __init__(self, ctx: hpcomm.Context, how: str, *, over: bool = True, **options: Any) -> None:
        """over: their mean has been applied before the last rank folds."""
        self.how, most = how, max(1, ctx.size - 1)
        self.is_last, self.overflows = ctx.rank == most, how == "overflow" and ctx.rank == ctx.size - 2
        parts = [1.0 + rank for rank in range(most)]
        self.mean = self.seen = sum(parts) / most
        if self.is_last and over:
            self.seen = 1.0 + ctx.rank
        if how == "overflow" and ctx.size > 1:
            self.mean = sum(parts[:-1]) / most
        scales = how in ("scaler", "unscale", "overflow")
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** (4 + ctx.rank), enabled=scales)
        if how in ("clip_norm", "unscale"):
            options["clip_norm"] = 0.5
        super().__init__(ctx, consistency=hpcomm.Consistency(quorum=most, grace=0), **options)
        self.parts = 1

    def fold(self) -> None:
        self.optimizer.zero_grad()
        self.scaler.scale(self.loss(float("inf") if self.overflows else 1.0 + self.ctx.rank)).backward()
        if self.how == "synchronize":
            self.optimizer.synchronize()
            for p in self.model.parameters():
                torch.testing.assert_close(p.grad, torch.full_like(p, self.seen * self.unit), rtol=1e-2, atol=0)
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            self.optimizer.synchronize()
        if self.how == "unscale":
            self.scaler.unscale_(self.optimizer)

    def end(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()


@everywhere
def a_straggler_of_a_quorum(ctx: hpcomm.Context) -> None:
    """It gets what the others have, and its own means count for nobody. A scaler is each rank's own: a gradient that
    overflows is zero in the mean."""
    ways = [(how, codec, True) for how in ("", "clip_norm", "scaler", "unscale", "overflow") for codec in NARROW]
    ways += [("synchronize", codec, over) for codec in NARROW for over in (False, True)]
    for how, codec, over in ways:
        own = Straggling(ctx, how, over=over, codec=codec)
        calls = [(own.fold, False), (own.end, False), (own.fold, True), (own.end, True)]
        for call, turn in (calls if over else calls[::2] + calls[1::2]) * 3:
            if own.is_last == turn:
                call()
            ctx.barrier()
        assert not own.scaler.is_enabled() or own.scaler.get_scale() == 2.0 ** (4 + ctx.rank - 3 * own.overflows)
        clips = how in ("clip_norm", "unscale", "synchronize")
        own.check_moved(3 * (0.5 if clips else own.mean), 1e-4 if codec is None else 4e-3)
        own.optimizer.close()


@everywhere
def changes_that_a_quorum_refuses(ctx: hpcomm.Context) -> None:
    """A mean may be scaled. zero_grad takes it back."""
    own = OwnUpdates(ctx, consistency=waits_for_all(ctx))
    optimizer, first = own.optimizer, own.model.first.bias
    ramp = torch.linspace(0, 1, len(first))
    for change in (lambda: first.grad.add_(ramp), lambda: setattr(first, "grad", None)):
        own.loss(1.0).backward()
        optimizer.synchronize()
        change()
        for call in (optimizer.synchronize, optimizer.step):
            with refuses("'first.bias' was changed by more than a factor: with a quorum"):
                call()
        optimizer.zero_grad()
    own.loss(1.0).backward()
    optimizer.step()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer.zero_grad()
    scaler.scale(own.loss(1.0)).backward()
    with refuses("gradients have been sent"):
        scaler.step(optimizer)
    del optimizer.grad_scale, optimizer.found_inf  # a scaler leaves them behind
    scaler.update(8.0)
    optimizer.zero_grad()
    scaler.scale(own.loss(1.0)).backward()
    scaler.step(optimizer)
    own.parts = 1
    own.check_moved(2.0)
    model = net().half()
    half = ht.DistributedOptimizer(momentum(model.parameters()), ctx, model, consistency=waits_for_all(ctx))
    scaler.scale(model.first.bias.sum()).backward()
    with refuses("unscaled in float16"):
        scaler.step(half)


@everywhere
def exchanges_that_keep_no_mean(ctx: hpcomm.Context) -> None:
    """apply="backward", and where the exchange refuses two calls."""
    refused = hpcomm.NotSupported("on rank 0: exchange: split needs more")
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    with mock.patch("hpcomm.torch.split.made_in_two", side_effect=refused):
        for apply, why in (("step", "as it is folded: split needs more"), ("backward", 'folded: give apply="step"')):
            options: dict[str, Any] = {"apply": apply, "consistency": waits_for_all(ctx)}
            _, optimizer, *_ = both(ctx, OPTIMIZERS["sgd"], **options)
            for call in (optimizer.synchronize, partial(scaler.step, optimizer)):
                with pytest.raises(hpcomm.NotSupported, match=why):
                    call()
            with refuses(f"clip_norm needs .*{why}"):
                both(ctx, OPTIMIZERS["sgd"], clip_norm=1.0, **options)


@pytest.mark.some(5)
@pytest.mark.parametrize("name", cases.names(__name__))
def test_case(shm: list[dict[str, str]], name: str) -> None:
    assert [value[name] for value in shm] == [""] * 2


@pytest.mark.some(1)
@pytest.mark.parametrize("name", cases.names(__name__, cases.EVERYWHERE))
def test_case_over_a_wire(wire: list[dict[str, str]], name: str) -> None:
    assert [value[name] for value in wire] == [""] * 3

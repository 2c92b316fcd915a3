"""Habits of trainers: hpcomm.torch ends with the weights of one process, or says why it cannot."""

import math
from collections.abc import Callable
from typing import Any

import mpi
import pytest
import torchcases as cases
from torchcases import Data, F, case, check, check_bits, check_same, everywhere, momentum, net, nn, refuses, torch

import hpcomm
import hpcomm.torch as ht

pytestmark = pytest.mark.xdist_group("group torch")  # one job for all tests

TOP = hpcomm.codec.TopK(0.05, kernel="c")


def sgd(params: Any, rate: float = 0.5) -> Any:
    return torch.optim.SGD(params, lr=rate)


def rmsprop(params: Any) -> Any:
    """It has no rule in the exchange."""
    return torch.optim.RMSprop(params, lr=0.01)


# ---- steps that are left out -----------------------------------------------------------------------------------------


class Slope(nn.Module):
    """Its gradient is what it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(400))

    def forward(self, x: Any) -> Any:
        return (self.weight * x).sum()


LeavesOut = Callable[[Any, Any, Any], None]


def scaled(slope: Any, optimizer: Any, scaler: Any) -> None:
    """A GradScaler finds Inf on one rank."""
    x = torch.full((400,), 1000.0)
    if optimizer.context.rank == 0:
        x[::3] = math.inf
    optimizer.zero_grad()
    scaler.scale(slope(x)).backward()
    scaler.step(optimizer)
    scaler.update()


def zeroed(slope: Any, optimizer: Any, scaler: Any) -> None:
    """As where the loss of a generator passes its discriminator."""
    scaler.scale(slope(torch.full((400,), 1000.0))).backward()
    optimizer.zero_grad()


def leave_out(ctx: hpcomm.Context, codec: Any, leaves_out: LeavesOut) -> None:
    """All that the steps that count have said arrives, and nothing of the others: be it in units of another scale."""
    slope = Slope()
    optimizer = ht.DistributedOptimizer(sgd(slope.parameters(), 1.0), ctx, slope, codec=codec)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=8)
    expected, generator = torch.zeros(400), torch.Generator().manual_seed(3)
    for step in range(160):
        if step < 40 and step % 4 == 3:
            leaves_out(slope, optimizer, scaler)
        x = torch.randint(-50, 50, (ctx.size, 400), generator=generator).float()
        if step >= 40:
            x.zero_()  # codecs send what they have held back
        expected -= x.mean(0)
        optimizer.zero_grad()
        scaler.scale(slope(x[ctx.rank])).backward()
        scaler.step(optimizer)
        scaler.update(1024.0 if step >= 40 else None)
    assert optimizer.stats().skipped == (10 if leaves_out is scaled else 0)
    torch.testing.assert_close(slope.weight.detach(), expected, rtol=0, atol=1e-3)
    check_bits(ctx, slope)


@everywhere
def a_scaler_leaves_what_is_held_back(ctx: hpcomm.Context) -> None:
    leave_out(ctx, TOP, scaled)
    leave_out(ctx, hpcomm.codec.ErrorFeedback("bfloat16"), scaled)


@everywhere
def zero_grad_leaves_what_is_held_back(ctx: hpcomm.Context) -> None:
    leave_out(ctx, TOP, zeroed)


@case
def a_loaded_state_holds_nothing_back(ctx: hpcomm.Context) -> None:
    """A residual belongs to the training before the load."""
    slope = Slope()
    optimizer = ht.DistributedOptimizer(sgd(slope.parameters()), ctx, slope, codec=TOP)
    fresh = optimizer.state_dict()
    slope(torch.arange(400.0)).backward()
    optimizer.step()
    assert optimizer.exchange.state_dict()["encoders"].any()
    optimizer.load_state_dict(fresh)
    assert not optimizer.exchange.state_dict()["encoders"].any()


@everywhere
def a_norm_of_nan_shows(ctx: hpcomm.Context) -> None:
    """One NaN makes all NaN, as in torch; it does not switch the clipping off."""
    for make in (sgd, rmsprop):
        slope = Slope()
        optimizer = ht.DistributedOptimizer(make(slope.parameters()), ctx, slope, clip_norm=1.0)
        x = torch.full((400,), 1000.0)
        x[7] = math.nan
        slope(x).backward()
        optimizer.step()
        assert slope.weight.isnan().all()


# ---- parameters that are moved or written ----------------------------------------------------------------------------


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(2, 3, 3, padding=1), nn.Linear(15, 4)

    def forward(self, x: Any) -> Any:
        return self.last(self.conv(x.view(-1, 1, 5, 2).permute(0, 3, 2, 1)).flatten(1))


def convolved() -> Any:
    torch.manual_seed(3)
    return Convolved()


def written(move: Callable[[Any], None], skips: bool) -> Callable[[Any, Any, Data, int], None]:
    """Moves the model after a step, and halves it in place after each. skips: a GradScaler leaves step 2 out."""
    scalers: dict[bool, Any] = {}

    def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
        scaler = scalers.setdefault(data.ctx is None, torch.amp.GradScaler("cpu", init_scale=8.0, enabled=skips))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.batch()[0]), data.batch()[1])
        scaler.scale(loss * math.inf if skips and step == 2 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step == 1:
            move(model)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.5)

    return loop


def by_data(model: Any) -> None:
    for p in model.parameters():
        p.data = p.data * 0.5


def to_channels_last(model: Any) -> None:
    model.to(memory_format=torch.channels_last)


@everywhere
def parameters_that_moved_are_written(ctx: hpcomm.Context) -> None:
    for make in (momentum, rmsprop):
        for move in (by_data, to_channels_last):
            for skips in (False, True):
                check(ctx, make, model=convolved, loop=written(move, skips))


@case
def writes_that_would_be_lost_raise(ctx: hpcomm.Context) -> None:
    ways: list[dict[str, Any]] = [
        {"codec_out": "bfloat16"},
        {"consistency": hpcomm.ASYNC, "buffers": "local"},
        {"consistency": hpcomm.SSP(1), "buffers": "local"},
        {"apply": "backward", "codec_out": "bfloat16"},
    ]
    for options in ways:
        for moves in (False, True):
            model, data = net(), Data(ctx, ctx.size)
            optimizer = ht.DistributedOptimizer(sgd(model.parameters()), ctx, model, **options)
            if moves:
                by_data(model)
                with refuses("was written in place"):
                    cases.plain_step(model, optimizer, data, 0)
                continue
            cases.plain_step(model, optimizer, data, 0)
            with torch.no_grad():
                model.second.weight.clamp_(-0.01, 0.01)
            with refuses("'second.weight' was written in place"):
                cases.plain_step(model, optimizer, data, 1)


@case
def updates_are_there_after_step(ctx: hpcomm.Context) -> None:
    """An average of the weights, taken right behind step, is of the new ones; with overlap=True wait comes first, and
    a write before it is found."""
    average: dict[bool, Any] = {}

    def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
        cases.plain_step(model, optimizer, data, step)
        mean = average.setdefault(data.ctx is None, [torch.zeros_like(p) for p in model.parameters()])
        for own, p in zip(mean, model.parameters(), strict=True):
            own.lerp_(p.detach(), 0.1)

    check(ctx, loop=loop, steps=40)
    for ours, alone in zip(average[False], average[True], strict=True):
        torch.testing.assert_close(ours, alone, rtol=1e-4, atol=2e-6)
    model = net()
    optimizer = ht.DistributedOptimizer(sgd(model.parameters()), ctx, model, overlap=True)
    data = Data(ctx, ctx.size)
    for step in range(3):
        cases.plain_step(model, optimizer, data, step)
    with torch.no_grad():
        model.second.weight.mul_(0.5)
    with refuses("'second.weight' was written while its update was on its way: call optimizer.wait"):
        optimizer.wait()
    for wrong in ({"overlap": 1}, {"overlap": "yes"}):
        with refuses("overlap is"):
            ht.DistributedOptimizer(sgd(model.parameters()), ctx, model, **wrong)


def test_a_setting_gives_overlap() -> None:
    for told, overlaps in (("1", True), ("0", False)):
        assert mpi.spawn(1, waits, env={"HPCOMM_OVERLAP": told}).values == [not overlaps]
    with pytest.raises(hpcomm.ConfigError, match="overlap='yes': must be 0 or 1"):
        hpcomm.init(overlap="yes")  # type: ignore[arg-type]


def waits() -> bool:
    """Whether step waits."""
    with hpcomm.init() as ctx:
        model = net()
        optimizer = ht.DistributedOptimizer(sgd(model.parameters()), ctx, model)
        for step in range(3):
            cases.plain_step(model, optimizer, Data(ctx, ctx.size), step)
        return not optimizer._mode.pending


class Looked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(40, 8, max_norm=0.5), nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.last(self.table((x[:, 0].abs() * 17).long() % 40))


@case
def embeddings_with_a_norm_raise(ctx: hpcomm.Context) -> None:
    model = Looked()
    with refuses("table has max_norm=0.5.*clip the weight after step"):
        ht.DistributedOptimizer(sgd(model.parameters()), ctx, model)


@case
def models_that_cannot_be_given_are_refused_everywhere(ctx: hpcomm.Context) -> None:
    """Here rank 1's alone: rank 0 is told the same."""
    ways: list[tuple[str, Callable[[Any], Any]]] = [
        ("buffer 'odd' is expanded.*clone", lambda m: m.register_buffer("odd", torch.ones(3, 1).expand(3, 4))),
        ("buffer 'odd' is torch.sparse_coo", lambda m: m.register_buffer("odd", torch.eye(3).to_sparse())),
        ("buffer 'odd' lies on meta", lambda m: m.register_buffer("odd", torch.ones(3, device="meta"))),
        ("buffer 'odd.running_mean' has no shape yet", lambda m: setattr(m, "odd", nn.LazyBatchNorm1d(affine=False))),
        ("parameter 'odd.weight' has no shape yet", lambda m: setattr(m, "odd", nn.LazyLinear(3))),
    ]
    for match, spoil in ways:
        model = net()
        if ctx.rank == 1:
            spoil(model)
        with refuses(match):
            ht.DistributedOptimizer(sgd(model.parameters()), ctx, model)


def left_out(values: Any) -> Callable[[Any], Any]:
    """A parameter that the optimizer does not have."""
    return lambda model: model.register_parameter("odd", nn.Parameter(values, requires_grad=False))


@case
def parameters_beside_the_optimizer_are_refused_everywhere(ctx: hpcomm.Context) -> None:
    """Here rank 1's alone. Rank 0 gives them to all at the start, as buffers."""
    ways: list[tuple[str, Callable[[Any], Any]]] = [
        ("parameter 'odd' is expanded.*clone", left_out(torch.ones(3, 1).expand(3, 4))),
        ("parameter 'odd' is torch.sparse_coo", left_out(torch.eye(3, 4).to_sparse())),
        ("parameter 'odd' lies on meta", left_out(torch.ones(3, 4, device="meta"))),
        ("parameter 'odd' has no shape yet", lambda m: m.register_parameter("odd", nn.UninitializedParameter())),
    ]
    for match, spoil in ways:
        model = net()
        mine = list(model.parameters())
        (spoil if ctx.rank == 1 else left_out(torch.ones(3, 4)))(model)
        with refuses(match):
            ht.DistributedOptimizer(sgd(mine), ctx, model)


@case
def models_of_other_shapes_are_refused_everywhere(ctx: hpcomm.Context) -> None:
    """Be it that they have as many bytes, or none."""
    for values in (torch.ones(4, 3), torch.ones(3, 4, dtype=torch.int32), torch.ones(0)):
        model = net()
        model.register_buffer("odd", values if ctx.rank == 1 else torch.ones(3, 4))
        with pytest.raises(hpcomm.ConfigError, match=r"on rank 1.*same model"):
            ht.DistributedOptimizer(sgd(model.parameters()), ctx, model)


@case
def sparse_parameters_are_refused_everywhere(ctx: hpcomm.Context) -> None:
    model = net()
    model.odd = nn.Parameter(torch.eye(3, 4).to_sparse() if ctx.rank == 1 else torch.eye(3, 4))
    with refuses("parameter 'odd' is torch.sparse_coo"):
        ht.DistributedOptimizer(sgd(model.parameters()), ctx, model)


# ---- gradients that are kept -----------------------------------------------------------------------------------------


@everywhere
def kept_gradients_stay(ctx: hpcomm.Context) -> None:
    """Two losses, whose gradients are kept by reference or as views, and added: as in torch."""

    def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
        found = []
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
            if hasattr(optimizer, "synchronize") and step == 3:
                optimizer.synchronize()
            found.append([p.grad.flatten() if step % 2 else p.grad for p in model.parameters()])
        optimizer.zero_grad()
        for p, one, two in zip(model.parameters(), *found, strict=True):
            p.grad = (one + 0.5 * two).view_as(p)
        optimizer.step()

    for make in (momentum, lambda p: torch.optim.Rprop(p, lr=0.01)):
        check(ctx, make, loop=loop)


# ---- optimizers on every rank ----------------------------------------------------------------------------------------


@case
def rates_that_differ_raise(ctx: hpcomm.Context) -> None:
    """Each rank's own loss has moved its rate: a number, or a tensor of no dimension."""
    for rate in (0.01, torch.tensor(0.01)):
        model, data = net(), Data(ctx, ctx.size)
        optimizer = ht.DistributedOptimizer(torch.optim.RMSprop(model.parameters(), lr=rate), ctx, model)
        cases.plain_step(model, optimizer, data, 0)
        cases.plain_step(model, optimizer, data, 1)
        if ctx.rank == 1:
            optimizer.param_groups[0]["lr"] = rate * 0.999
        with refuses("numbers of param_groups differ.*RMSprop steps on every rank"):
            cases.plain_step(model, optimizer, data, 2)


@case
def a_rank_that_has_run_out_takes_rates_of_tensors(ctx: hpcomm.Context) -> None:
    model, data = net(), Data(ctx, ctx.size)
    adam = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1), amsgrad=True)
    optimizer = ht.DistributedOptimizer(adam, ctx, model)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with ht.join(optimizer):
        for step in range(6 if ctx.rank == 0 else 2):
            cases.plain_step(model, optimizer, data, step)
            schedule.step()
    check_bits(ctx, model)


@case
def hooks_of_the_wrapped_optimizer_run(ctx: hpcomm.Context) -> None:
    for make in (momentum, rmsprop):
        told: list[str] = []
        model, alone = net(), net()
        wrapped, plain = make(model.parameters()), make(alone.parameters())
        for own in (wrapped, plain):
            own.register_step_pre_hook(lambda *_, to=told: to.append("pre"))
            own.register_step_post_hook(lambda opt, *_: [p.data.mul_(0.5) for p in opt.param_groups[0]["params"]])
            own.register_step_post_hook(lambda *_, to=told: to.append("post"))
        optimizer = ht.DistributedOptimizer(wrapped, ctx, model)
        data, every = Data(ctx, ctx.size), Data(None, ctx.size)
        for step in range(3):
            cases.plain_step(model, optimizer, data, step)
            cases.plain_step(alone, plain, every, step)
        assert told == ["pre", "post"] * 6
        check_same(model, alone)


@pytest.mark.parametrize("name", cases.names(__name__))
def test_case(shm: list[dict[str, str]], name: str) -> None:
    assert [value[name] for value in shm] == [""] * 2


@pytest.mark.some(2)
@pytest.mark.parametrize("name", cases.names(__name__, cases.EVERYWHERE))
def test_case_by_one_rank(one: list[dict[str, str]], name: str) -> None:
    assert [value[name] for value in one] == [""]


@pytest.mark.some(1)
@pytest.mark.parametrize("name", cases.names(__name__, cases.EVERYWHERE))
def test_case_over_a_wire(wire: list[dict[str, str]], name: str) -> None:
    assert [value[name] for value in wire] == [""] * 3

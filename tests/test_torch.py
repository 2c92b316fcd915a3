"""hpcomm.torch beside one process: rules, what trainers do, uneven batches, and what raises."""

import contextlib
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torchcases as cases
from told import logs
from torchcases import (
    BATCH,
    OPTIMIZERS,
    Data,
    F,
    case,
    check,
    check_bits,
    check_same,
    clipped,
    everywhere,
    momentum,
    net,
    nn,
    plain_step,
    refuses,
    torch,
)

import hpcomm
import hpcomm.torch as ht
from hpcomm.torch.start import Options

pytestmark = pytest.mark.xdist_group("group torch")  # one job for all tests


@everywhere
def rules_take_the_steps_of_torch(ctx: hpcomm.Context) -> None:
    for make in OPTIMIZERS.values():
        optimizer = check(ctx, make)
        assert optimizer.stats().steps == 5
        assert isinstance(optimizer, torch.optim.Optimizer)
        by_hosts = 1 < len(set(ctx.hosts)) < ctx.size
        assert by_hosts == any(row.action == "forward" for row in optimizer.exchange.plan.rows)


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
    with logs() as told:
        check(ctx, lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5))
    assert [sentence for sentence in told if "RMSprop" in sentence] or ctx.rank
    check(ctx, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5), clip_norm=0.5, loop=clipped)


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

    def on_some(model: Any, optimizer: Any, data: Data, step: int) -> None:
        """Rank 0 has no gradient of the bias, and no rank one of the last layer."""
        optimizer.zero_grad()
        model.first.bias.requires_grad_(data.ctx is None or data.ctx.rank > 0)
        x, n = data.batch()[0], data.size
        if data.ctx is None:
            (model.second(model.first(x)).square().mean() - 0 * model.first.bias.sum()).backward()
            rest = model.first(x[:BATCH]).detach() - model.first.bias.detach() + model.first.bias
            (gone,) = torch.autograd.grad(model.second(rest).square().mean() / n, model.first.bias)
            model.first.bias.grad -= gone
        else:
            model.second(model.first(x)).square().mean().backward()
            optimizer.synchronize()
            assert model.first.bias.grad is not None
            assert model.last.weight.grad is None
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()

    if ctx.size > 1:
        check(ctx, loop=on_some)
    optimizer = check(ctx, loop=looked_at)
    assert optimizer.stats().copied + optimizer.stats().in_place == 25, "means that did not change are folded once"


@everywhere
def clip_norm_is_exact(ctx: hpcomm.Context) -> None:
    for topology in (None, hpcomm.PeerToPeer()):
        check(ctx, loop=clipped, topology=topology, clip_norm=0.5)
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
            if step == 2 and (data.ctx is None or data.ctx.rank == data.size - 1):  # one rank alone overflows
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

    check(ctx, model=model, loop=loop, steps=6)
    early = check(ctx, model=model, loop=loop, steps=6, apply="backward").stats().early
    assert early == 2 * 3 + 1 * 6 + 2 * 4, "a thawed layer has its hooks from the next step on"
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


# ---- what raises -----------------------------------------------------------------------------------------------------


@case
def what_would_train_wrongly_raises(ctx: hpcomm.Context) -> None:
    def loss(model: Any) -> Any:
        return F.cross_entropy(model(torch.ones(2, 10)), torch.tensor([1, 2]))

    def fresh(**options: Any) -> tuple[Any, Any]:
        model = net()
        return model, ht.DistributedOptimizer(momentum(model.parameters()), ctx, model, overlap=True, **options)

    for options in ({}, {"apply": "backward"}):
        model, optimizer = fresh(**options)
        loss(model).backward()
        with refuses(r"SGD that a DistributedOptimizer wraps was stepped by itself.*call step\(\)"):
            optimizer._wrapped.step()
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
        # a graph from before the step
        optimizer.zero_grad()
        old = loss(model)
        loss(model).backward()
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            old.backward()
        optimizer.wait()
    with pytest.raises(hpcomm.NotSupported, match="apply"):
        optimizer.synchronize()
    # a weight that another node has saved without asking for its gradient
    model, optimizer = fresh(apply="backward")
    hidden = torch.tanh(model.first(torch.ones(2, 10)))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        model.second(F.linear(hidden, model.second.weight.detach())).sum().backward()
    with contextlib.suppress(hpcomm.HpcommError):
        optimizer.wait()
    model = net().double()
    with refuses("float64"):
        ht.DistributedOptimizer(momentum(model.parameters()), ctx, model)
    model = net().to("meta")
    with refuses("lies on meta: hpcomm.torch exchanges tensors of cpu and cuda"):
        ht.DistributedOptimizer(momentum(model.parameters()), ctx, model)
    for wrong, told in (({"lr": 0.1}, "lr of"), ({"lr": 1.0, "betas": (0.5, 0.999)}, r"beta1/betas\[0\] of")):
        model = net()
        adam: dict[str, Any] = dict(wrong) if ctx.rank else {"lr": 1.0}
        with pytest.raises(hpcomm.ConfigError, match=f"{told} rule adam is .* on rank 1 and .* on rank 0, for key"):
            ht.DistributedOptimizer(torch.optim.Adam(model.parameters(), **adam), ctx, model)
    foreign = {"compression": "give codec=", "named_parameters": "leave it out", "overlaps": "did you mean 'overlap'"}
    for word, told in foreign.items():
        model = net()
        given: dict[str, Any] = {word: 1} if ctx.rank else {}
        kinds = TypeError if ctx.rank else hpcomm.InvalidArgument
        with pytest.raises(
            kinds, match=rf"DistributedOptimizer\(\) got an unexpected keyword argument '{word}': {told}"
        ):
            ht.DistributedOptimizer(momentum(model.parameters()), ctx, model, **given)
    values: tuple[tuple[dict[str, Any], str], ...] = (
        ({"engine": hpcomm.EngineOptions(split=True)}, "engine has split: hpcomm.torch decides it"),
        ({"plan": 3}, "plan is a int: must be PlanOptions"),
        ({"topology": "flat", "placement": "CS"}, "topology and placement are given: give the topology alone"),
    )
    for options, told in values:
        model, given = net(), options if ctx.rank else {}
        with pytest.raises(hpcomm.InvalidArgument, match=told):
            ht.DistributedOptimizer(momentum(model.parameters()), ctx, model, **given)
    with refuses("not parameters of the model"):
        ht.DistributedOptimizer(momentum(net().parameters()), ctx, net())
    with pytest.raises(hpcomm.NotSupported, match="add_param_group"):
        optimizer.add_param_group({"params": []})


def test_a_call_has_few_parameters() -> None:
    """self and **options stand for themselves in the signature, and the options are counted one by one."""
    own = len(inspect.signature(ht.DistributedOptimizer.__init__).parameters) - 2
    assert own + len(Options.__optional_keys__) <= 24


# ---- between backward and step ---------------------------------------------------------------------------------------


@case
def means_of_zero(ctx: hpcomm.Context) -> None:
    """A gradient that is zero on one rank and missing on another is the same for all."""
    model = net()
    model.extra = nn.Parameter(torch.ones(5))
    optimizer = ht.DistributedOptimizer(momentum(model.parameters()), ctx, model)
    data = Data(ctx, ctx.size)
    for step in range(4):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.batch()[0]), data.batch()[1])
        if ctx.rank == 0 and step % 2:
            loss = loss + 0 * model.extra.sum()
        loss.backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    optimizer.wait()
    check_bits(ctx, model)


@case
def means_are_changed_twice(ctx: hpcomm.Context) -> None:
    def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
        if step == 3:
            if optimizer_is_ours(optimizer):
                optimizer.synchronize()
            for p in model.parameters():
                p.grad.mul_(0.5)
                p.grad.add_(0.25)
        optimizer.step()

    check(ctx, loop=loop)


@case
def what_is_thrown_away_may_be_changed(ctx: hpcomm.Context) -> None:
    def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
        if step == 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.zero_grad()  # on all ranks
            return
        optimizer.step()

    for make in (momentum, lambda params: torch.optim.RMSprop(params, lr=0.01)):
        check(ctx, make, loop)


@case
def passes_begin_again_after_zero_grad(ctx: hpcomm.Context) -> None:
    def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
        optimizer.zero_grad()
        for again in range(3 if step == 2 else 2):
            if again == 1 and step == 2:
                optimizer.zero_grad()  # the first batch was bad
            F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
            if again == 0 and step == 2:
                optimizer.zero_grad()
        optimizer.step()

    model, alone = net(), net()
    optimizer = ht.DistributedOptimizer(momentum(model.parameters()), ctx, model, backward_passes_per_step=2)
    plain = momentum(alone.parameters())
    data, all_data = Data(ctx, ctx.size), Data(None, ctx.size)
    for step in range(4):
        loop(model, optimizer, data, step)
        loop(alone, plain, all_data, step)
    optimizer.wait()
    check_same(model, alone)


@case
def state_belongs_between_steps(ctx: hpcomm.Context) -> None:
    def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
        model.state_dict()
        model.eval()
        model(torch.zeros(1, 10))
        model.train()
        for call in (
            (optimizer.state_dict, lambda: optimizer.load_state_dict({})) if optimizer_is_ours(optimizer) else ()
        ):
            with refuses("came between backward and step"):
                call()
        optimizer.step()

    check(ctx, loop=loop)


@case
def evaluation_before_step_waits_for_nobody(ctx: hpcomm.Context) -> None:
    """Where each rank has a gradient that the other lacks: neither may wait for the other's fold."""
    model = net()
    model.extra = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(ctx.size)])
    optimizer = ht.DistributedOptimizer(momentum(model.parameters()), ctx, model)
    data = Data(ctx, ctx.size)
    for _ in range(3):
        optimizer.zero_grad()
        (F.cross_entropy(model(data.batch()[0]), data.batch()[1]) + model.extra[ctx.rank].sum()).backward()
        model.eval()
        model(torch.zeros(1, 10))
        model.train()
        optimizer.step()
    optimizer.wait()
    check_bits(ctx, model)
    assert all((own < 1).all() for own in model.extra)


@case
def tensors_are_put_elsewhere(ctx: hpcomm.Context) -> None:
    """By p.grad.data = ..., p.data = ..., share_memory and model.to."""

    def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
        optimizer.zero_grad(set_to_none=False)
        F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
        optimizer.step()
        if optimizer_is_ours(optimizer):
            optimizer.wait()
        for p in model.parameters():
            if step % 2:
                p.grad.data = p.grad.detach().clone()
            if step == 3:
                p.data = p.detach() * 0.5
        if step == 1:
            model.share_memory()
        if step == 4:
            model.to(memory_format=torch.channels_last)

    for make in (momentum, lambda params: torch.optim.RMSprop(params, lr=0.01)):
        check(ctx, make, loop, steps=7)
    check(ctx, loop=loop, steps=7, apply="backward")


@case
def schedulers_of_the_wrapped_optimizer_do_not_warn(ctx: hpcomm.Context) -> None:
    model = net()
    wrapped = momentum(model.parameters())
    optimizer = ht.DistributedOptimizer(wrapped, ctx, model)
    scheduler = torch.optim.lr_scheduler.StepLR(wrapped, 1)
    data = Data(ctx, ctx.size)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        plain_step(model, optimizer, data, 0)
        scheduler.step()
    assert not [one for one in told if "lr_scheduler" in str(one.message)]


@everywhere
def every_codec_gives_the_mean_to_p_grad(ctx: hpcomm.Context) -> None:
    """What synchronize, a scaler and clipping by hand need. Codecs that leave nothing out reach the weights of one
    process; with others p.grad is the mean that was folded, with the norm that the owners tell, on all ranks."""
    scalers: dict[bool, Any] = {}

    def by_hand(model: Any, optimizer: Any, data: Data, step: int) -> None:
        scaler = scalers.setdefault(data.ctx is None, torch.amp.GradScaler("cpu", init_scale=1024.0))
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(data.batch()[0]), data.batch()[1])).backward()
        if data.ctx is not None:
            optimizer.synchronize()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        scaler.step(optimizer)
        scaler.update()

    wholes: list[Any] = [hpcomm.codec.Threshold(0.0), hpcomm.codec.TopK(1.0), "float32"]
    for codec in wholes:
        for topology in (None, hpcomm.ParameterServer(apply_at="receivers"), hpcomm.PeerToPeer()):
            check(ctx, loop=by_hand, codec=codec, topology=topology)
            check(ctx, loop=clipped, codec=codec, topology=topology, clip_norm=0.5)
    parts: list[Any] = ["float16", "bfloat16", hpcomm.codec.TopK(0.05, kernel="c"), hpcomm.codec.OneBit()]
    for codec in parts:
        model = net()
        optimizer = ht.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), ctx, model, codec=codec)
        x, y = Data(ctx, ctx.size).batch()
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.synchronize()
            means = [p.grad.numpy() for p in model.parameters() if p.grad is not None]
            assert len(set(ctx.allgather(b"".join(mean.tobytes() for mean in means)))) == 1
            told = sum(optimizer.exchange.split.squares(name) for name in optimizer.exchange.params)
            torch.testing.assert_close(float(sum(np.square(mean).sum() for mean in means)), told, rtol=1e-5, atol=0)
            optimizer.step()
        optimizer.wait()
        check_bits(ctx, model)
        optimizer.close()


@everywhere
def codecs_that_send_a_part_train(ctx: hpcomm.Context) -> None:
    """What is not sent comes later: the loss falls, and all ranks have the same weights. Between hosts (or ranks that
    share no memory) the parts are what is sent."""
    top = hpcomm.codec.TopK(0.05, kernel="c")
    ways: list[dict[str, Any]] = [
        {"codec": top},
        {"codec": top, "apply": "backward", "clip_norm": None},
        {"codec": {"second.weight": top, "last.weight": hpcomm.codec.OneBit()}, "clip_norm": 5.0},
        {"codec": top, "topology": hpcomm.ParameterServer(apply_at="receivers"), "clip_norm": 5.0},
        {"codec": hpcomm.codec.ErrorFeedback("bfloat16"), "consistency": hpcomm.SSP(1)},
        {"codec": "auto"},
    ]
    for options in ways:
        model = net()
        optimizer = ht.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), ctx, model, **options)
        x, y = Data(ctx, ctx.size).batch()
        losses = []
        for _ in range(60):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        optimizer.wait()
        assert losses[-1] < 0.5 * losses[0], (options, losses[::10])
        ex = optimizer.exchange
        codecs = dict(ex.codecs)
        assert codecs.pop("(roll call)", hpcomm.codec.FLOAT32) == hpcomm.codec.FLOAT32, "it is no gradient"
        if options["codec"] == top:
            assert set(codecs.values()) == {top}
            told = ex.stats().codecs["second.weight"]
            assert told.elements == 0 or 0.02 < told.density < 0.2
        if "consistency" not in options:
            check_bits(ctx, model)
        ex.close()


def optimizer_is_ours(optimizer: Any) -> bool:
    return isinstance(optimizer, ht.DistributedOptimizer)


@pytest.mark.some(6)
@pytest.mark.parametrize("name", cases.names(__name__))
def test_case(shm: list[dict[str, str]], name: str) -> None:
    assert [value[name] for value in shm] == [""] * 2


@pytest.mark.some(4)
@pytest.mark.parametrize("name", cases.names(__name__, cases.EVERYWHERE))
def test_case_by_one_rank(one: list[dict[str, str]], name: str) -> None:
    assert [value[name] for value in one] == [""]


@pytest.mark.some(1)
@pytest.mark.parametrize("name", cases.names(__name__, cases.EVERYWHERE))
def test_case_over_a_wire(wire: list[dict[str, str]], name: str) -> None:
    assert [value[name] for value in wire] == [""] * 3

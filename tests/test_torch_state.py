"""hpcomm.torch beside one process where a trainer touches the optimizer: changed sums, optimizer.state, step()."""

import collections
import copy
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torchcases
from conftest import Left, run_threads
from torchcases import Data, F, asks_without_state, momentum, nn, plain_step, refuses, torch

import hpcomm
import hpcomm.torch as ht

dcp = pytest.importorskip("torch.distributed.checkpoint.state_dict")
pytestmark = [pytest.mark.xdist_group("group torch state"), pytest.mark.filterwarnings("ignore")]

Body = Callable[[hpcomm.Context], Any]


SEED = threading.Lock()  # torch's generator is the process's, as the ranks are here


def net() -> Any:
    with SEED:
        return torchcases.net()


def both(ctx: hpcomm.Context, make: Any, loop: Any, model: Any = net, **more: Any) -> Any:
    return torchcases.both(ctx, make, loop, model, **more)


def check(ctx: hpcomm.Context, make: Any, loop: Any = plain_step, model: Any = net, **more: Any) -> Any:
    return torchcases.check(ctx, make, loop, model, **more)


def adamw(params: Any) -> Any:
    return torch.optim.AdamW(params, lr=0.01, eps=1e-3)


def rmsprop(params: Any) -> Any:
    """It has no rule in the exchange."""
    return torch.optim.RMSprop(params, lr=0.01, momentum=0.5, eps=1e-3)


def alone(ctx: hpcomm.Context) -> Any:
    """An error that leaves the ranks apart."""
    with suppress(hpcomm.HpcommError):
        ctx.close()
    raise Left


# ---- sums ------------------------------------------------------------------------------------------------------------


class Spare(nn.Module):
    """Its parameter has a gradient on the last rank alone, of zero."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.spare, self.frozen = net(), nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
        self.used = True

    def forward(self, x: Any) -> Any:
        return self.net(x) + (0 * self.spare.sum() if self.used else 0)


def clip(model: Any) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.3)


def times(model: Any) -> None:
    for p in model.parameters():
        if p.grad is not None:
            p.grad.mul_(1.0)


def another(model: Any) -> None:
    for p in model.parameters():
        p.grad = None if p.grad is None else p.grad * 0.5


def noise(model: Any) -> None:
    for p in model.parameters():
        if p.grad is not None:
            p.grad.add_(0.01)


def drop(model: Any) -> None:
    model.net.second.weight.grad = None


CHANGES = (clip, times, another, noise, drop)


def changed(change: Callable[[Any], None], sums: bool, scaled: bool = False) -> Callable[[Any, Any, Data, int], None]:
    scalers = [torch.amp.GradScaler("cpu", init_scale=16.0, enabled=scaled) for _ in range(2)]

    def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
        model.used = data.ctx is None or data.ctx.rank == data.size - 1
        scaler = scalers[data.ctx is None]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.batch()[0]), data.batch()[1])
        scaler.scale(loss * data.size if sums and data.ctx is None else loss).backward()
        if data.ctx is not None:
            optimizer.synchronize()
        scaler.unscale_(optimizer)
        change(model)
        scaler.step(optimizer)
        scaler.update()

    return loop


@pytest.mark.parametrize(("reduce", "size"), [("sum", 3), ("mean", 2)])
def test_gradients_that_are_changed_after_synchronize_count_once(size: int, reduce: str) -> None:
    def body(ctx: hpcomm.Context) -> None:
        for make in (momentum, rmsprop):
            for change in CHANGES:
                check(ctx, make, changed(change, reduce == "sum"), Spare, steps=3, reduce=reduce)
        check(ctx, momentum, changed(clip, reduce == "sum", scaled=True), Spare, steps=3, reduce=reduce)
        check(ctx, momentum, changed(clip, reduce == "sum"), Spare, steps=3, reduce=reduce, apply="after")

    run_threads(size, body)


# ---- optimizer.state -------------------------------------------------------------------------------------------------


def new(optimizer: Any) -> None:
    optimizer.state = collections.defaultdict(dict)


def clear(optimizer: Any) -> None:
    optimizer.state.clear()


def empty(optimizer: Any) -> None:
    for p in optimizer.param_groups[0]["params"][:2]:
        optimizer.state[p] = {}


def entry(optimizer: Any) -> None:
    for state in list(optimizer.state.values())[1:]:
        state.clear()


def delete(optimizer: Any) -> None:
    for p in optimizer.param_groups[0]["params"][1:]:
        del optimizer.state[p]


def pop(optimizer: Any) -> None:
    for p in optimizer.param_groups[0]["params"][::2]:
        p.requires_grad_(False)  # it keeps its state
        optimizer.state.pop(p, None)
        p.requires_grad_(True)


def set_state(optimizer: Any) -> None:
    optimizer.__setstate__({"state": collections.defaultdict(dict)})


RESETS = (new, set_state, clear, empty, entry, delete, pop)


def reset_at_two(reset: Callable[[Any], None]) -> Callable[[Any, Any, Data, int], None]:
    def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
        if step == 2:
            if data.ctx is not None:
                optimizer.wait()
            with torch.no_grad():
                model.second.weight.mul_(0.9)
            model.last.weight.data = model.last.weight.data * 0.9
            reset(optimizer)
        plain_step(model, optimizer, data, step)

    return loop


def test_a_reset_of_the_state_counts() -> None:
    def body(ctx: hpcomm.Context) -> None:
        for make, resets in ((momentum, RESETS), (adamw, (new, delete)), (rmsprop, (new, pop))):
            for reset in resets:
                check(ctx, make, reset_at_two(reset), steps=4)
        for options in ({"apply": "backward"}, {"overlap": True}, {"consistency": hpcomm.ASYNC}):
            loop = plain_step if "consistency" in options else reset_at_two(clear)
            _, optimizer, _, _ = both(ctx, adamw, loop, **options)
            optimizer.state.clear()
            assert not optimizer.state
            assert not optimizer.state_dict()["state"]

    run_threads(2, body)


def test_the_state_says_where_it_is() -> None:
    def body(ctx: hpcomm.Context) -> None:
        model = net()
        plain = adamw(model.parameters())
        optimizer = ht.DistributedOptimizer(plain, ctx, model)
        first = model.first.weight
        assert not optimizer.state
        assert optimizer.state.get(first) is None
        assert dict(optimizer.state[first]) == {}
        with pytest.raises(KeyError):
            del optimizer.state[first]
        plain_step(model, optimizer, Data(ctx, ctx.size), 0)
        assert first in optimizer.state
        assert len(optimizer.state) == len(list(model.parameters()))
        assert list(optimizer.state[first]) == ["step", "exp_avg", "exp_avg_sq"]
        assert "exp_avg" in optimizer.state[first]
        with pytest.raises(KeyError):
            optimizer.state[first]["momentum_buffer"]
        saved = optimizer.state_dict()["state"]
        touches: list[Callable[[], Any]] = [
            lambda: optimizer.state[first]["exp_avg"],
            lambda: optimizer.state[first].get("exp_avg"),
            lambda: [v.zero_() for s in optimizer.state.values() for v in s.values()],
            lambda: optimizer.state[first].update(step=0),
            lambda: optimizer.state.update({first: saved[0]}),
            lambda: setattr(optimizer, "state", collections.defaultdict(dict, {first: saved[0]})),
            lambda: copy.deepcopy(optimizer.state),
            optimizer.state.copy,
        ]
        for touch in touches:
            with pytest.raises(hpcomm.NotSupported, match=r"optimizer.state: .*state_dict\(\).* on every rank"):
                touch()
        with refuses("state_dict of the optimizer that was given"):
            plain.state_dict()
        plain.state = collections.defaultdict(dict)
        with pytest.raises(
            hpcomm.NotSupported, match="state of the AdamW that a DistributedOptimizer wraps was replaced"
        ):
            plain_step(model, optimizer, Data(ctx, ctx.size), 1)

    run_threads(1, body)


def test_a_reset_of_one_rank_alone_is_told_to_every_rank() -> None:
    told: dict[int, Exception] = {}

    def one(ctx: hpcomm.Context, make: Any) -> None:
        model, data = net(), Data(ctx, ctx.size)
        optimizer = ht.DistributedOptimizer(make(model.parameters()), ctx, model)

        def goes_on() -> None:
            if ctx.rank == 0:
                optimizer.state.clear()
            plain_step(model, optimizer, data, 1)

        plain_step(model, optimizer, data, 0)
        with pytest.raises(hpcomm.HpcommError) as raised:
            goes_on()
        told[ctx.rank] = raised.value
        alone(ctx)

    for make, kind, words in (
        (momentum, hpcomm.Timeout, "rank 0 is in the reset of optimizer.state, which every rank must call"),
        (rmsprop, hpcomm.InvalidArgument, "optimizer.state was reset or written on some ranks"),
    ):
        run_threads(2, partial(one, make=make), look_after=0.3, timeout=1800)
        for rank in range(2):
            assert isinstance(told[rank], kind)
            assert words in str(told[rank])


def test_resets_of_different_parameters_are_told() -> None:
    def body(ctx: hpcomm.Context) -> None:
        model = net()
        optimizer = ht.DistributedOptimizer(momentum(model.parameters()), ctx, model)
        plain_step(model, optimizer, Data(ctx, ctx.size), 0)
        with pytest.raises(hpcomm.ConfigError, match="reset the state of different parameters"):
            optimizer.state[list(model.parameters())[ctx.rank]] = {}
        with refuses("the reset of optimizer.state came between backward and step"):
            F.cross_entropy(model(torch.ones(2, 10)), torch.zeros(2, dtype=torch.long)).backward()
            optimizer.state.clear()
        optimizer.step()
        with ht.join(optimizer), pytest.raises(hpcomm.NotSupported, match="reset in a join block"):
            optimizer.state.clear()

    run_threads(2, body)


def test_torchs_functions_of_state_dicts_leave_the_training_as_it_is() -> None:
    def asks(flat: bool) -> Callable[[Any, Any, Data, int], None]:
        options = dcp.StateDictOptions(flatten_optimizer_state_dict=flat)
        kept: dict[bool, Any] = {}

        def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
            def own() -> Any:
                return copy.deepcopy(kept[data.ctx is None])

            if step in (2, 3):
                kept[data.ctx is None] = copy.deepcopy(dcp.get_optimizer_state_dict(model, optimizer, options=options))
            if step == 4:
                dcp.set_optimizer_state_dict(model, optimizer, own(), options=options)
            if step == 5 and asks_without_state():
                optimizer.state.clear()
            if step == 5:
                dcp.set_optimizer_state_dict(model, optimizer, own(), options=options)
            plain_step(model, optimizer, data, step)

        return loop

    def body(ctx: hpcomm.Context) -> None:
        without = [lambda p: torch.optim.SGD(p, lr=0.1)] if asks_without_state() else []
        for make in (momentum, adamw, rmsprop, *without):
            for flat in (False, True):
                check(ctx, make, asks(flat), steps=7)

    run_threads(2, body)


# ---- step() ----------------------------------------------------------------------------------------------------------


def halves(optimizer: Any) -> Any:
    """A step() that halves the parameters behind torch's."""
    torchs = optimizer.step

    def step(closure: Any = None) -> Any:
        torchs()
        with torch.no_grad():
            for p in optimizer.param_groups[0]["params"]:
                p.mul_(0.5)

    return step


def replaced(params: Any) -> Any:
    found = momentum(params)
    found.step = halves(found)
    return found


def test_a_step_that_was_replaced_is_called_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def scheduled(params: Any) -> Any:
        found = momentum(params)
        torch.optim.lr_scheduler.StepLR(found, 2)
        return found

    def body(ctx: hpcomm.Context) -> None:
        check(ctx, replaced)
        check(ctx, adamw)
        for make in (momentum, scheduled):
            optimizer = check(ctx, make)
            assert optimizer._rules is not None, "the rule of the exchange"
            torch.optim.lr_scheduler.StepLR(optimizer._wrapped, 2)
            optimizer.step()
            optimizer._wrapped.step = halves(optimizer._wrapped)
            with pytest.raises(hpcomm.NotSupported, match=r"step\(\) of the SGD .* was replaced"):
                optimizer.step()

    run_threads(2, body)
    torchs = torch.optim.Adam.step
    steps = []

    def counted(optimizer: Any, closure: Any = None) -> Any:
        steps.append(0)
        return torchs(optimizer, closure)

    monkeypatch.setattr(torch.optim.Adam, "step", counted)
    run_threads(2, lambda ctx: check(ctx, lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-3), steps=3))
    assert len(steps) == 2 * 2 * 3


# ---- dtypes ----------------------------------------------------------------------------------------------------------


WAYS: list[tuple[Any, dict[str, Any]]] = [
    (momentum, {}),
    (momentum, {"apply": "backward"}),
    (momentum, {"overlap": True}),
    (rmsprop, {}),
]


def test_a_model_of_another_dtype_is_refused_or_right() -> None:
    ways: list[Callable[[Any], Any]] = [
        lambda m: m.bfloat16(),
        lambda m: m.half(),
        lambda m: m.double(),
        lambda m: m.to(torch.bfloat16),
    ]

    def body(ctx: hpcomm.Context) -> None:
        for way in ways:
            for make, options in WAYS:
                model, data = net(), Data(ctx, ctx.size)
                optimizer = ht.DistributedOptimizer(make(model.parameters()), ctx, model, **options)
                plain_step(model, optimizer, data, 0)
                optimizer.wait()
                way(model)
                x, y = data.batch()
                with refuses("make another DistributedOptimizer"):
                    optimizer.zero_grad()
                    F.cross_entropy(model(x.to(model.first.weight.dtype)).float(), y).backward()
                    optimizer.step()

    run_threads(1, body)


def test_a_scripted_model_is_refused() -> None:
    def body(ctx: hpcomm.Context) -> None:
        scripted = torch.jit.script(nn.Linear(3, 2))
        for model, name in ((scripted, "the model"), (nn.Sequential(nn.Linear(3, 3), scripted), "1")):
            with refuses(f"{name} is a ScriptModule, which takes no hooks"):
                ht.DistributedOptimizer(momentum(model.parameters()), ctx, model)

    run_threads(1, body)


@pytest.mark.full
@pytest.mark.skipif(not hasattr(torch._dynamo.compiled_autograd, "_enable"), reason="torch 2.4 has another name for it")
def test_a_compiled_backward_pass_calls_the_hooks() -> None:
    """Compiled autograd traces them."""

    def linear() -> Any:
        with SEED:
            torch.manual_seed(3)
            return nn.Linear(10, 4)

    def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.batch()[0]), data.batch()[1])
        with torch._dynamo.compiled_autograd._enable(lambda graph: torch.compile(graph, backend="eager")):
            loss.backward()
        optimizer.step()

    def body(ctx: hpcomm.Context) -> None:
        optimizer = check(ctx, momentum, loop, linear, steps=2, apply="backward")
        assert optimizer.stats().early == 0

    run_threads(1, body)

"""hpcomm.torch beside one process where a trainer touches the optimizer: changed sums, optimizer.state, step()."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torchcases
from conftest import Left, run_threads
from torchcases import Data, F, momentum, nn, plain_step, torch

import hpcomm

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

"""A DistributedOptimizer whose servers are a hub: workers reach the bits that they reach with a server among them."""

from collections.abc import Callable
from typing import Any

import pytest
from served import TOKENS, Served, join, run, said

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import hpcomm  # noqa: E402
import hpcomm.torch as ht  # noqa: E402

pytest_plugins = ["served"]
pytestmark = pytest.mark.xdist_group("group torch service")  # one hub for all tests
HUB = {"checkpoints": "saved"}

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.5, momentum=0.5),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.125),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=0.125),  # steps on each worker
}


def net() -> Any:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5, bias=False))


def trained(optimizer: Any, model: Any, rank: int) -> Any:
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 6, generator=generator)).square().sum().backward()
        optimizer.step()
    return torch.cat([value.detach().flatten().double() for value in model.state_dict().values()])


def train(handle: str, token: str) -> list[str]:
    with join(handle, token) as ctx:
        for make in OPTIMIZERS.values():
            found = []
            places: tuple[dict[str, Any], ...] = (
                {"servers": "hub"},
                {"servers": "hub", "topology": hpcomm.Hierarchy(racks=[[1, 0]], top="ring")},
                {"placement": "CC"},
            )
            for where in places:
                model = net()
                optimizer = ht.DistributedOptimizer(
                    make(model.parameters()), ctx, model, clip_norm=1.0, buffers="average", **where
                )
                found.append(trained(optimizer, model, ctx.rank))
                told = said(optimizer.state_dict) if "servers" in where and make is not OPTIMIZERS["rmsprop"] else []
                owners = set(optimizer.exchange.plan.rows.column("owner").tolist())
                optimizer.close()
                assert ("topology" in where) == (len(owners) > 1), "the host of a rack folds first"
                assert not told or told[0] == "NotSupported", told
            assert torch.equal(found[0], found[1])
            assert torch.equal(found[0], found[2])
            assert not torch.equal(found[0], torch.cat([v.flatten().double() for v in net().state_dict().values()]))
        model = net()
        wrapped = OPTIMIZERS["sgd"](model.parameters())
        return said(lambda: ht.DistributedOptimizer(wrapped, ctx, model, servers="hub", way="factors"))


def test_a_hub_serves_an_optimizer(hub: Served) -> None:
    told = run(2, train, hub.create(), token=TOKENS["a"])
    assert told == [["NotSupported", "way is 'factors' and servers 'hub': a hub takes matrices: leave way out"]] * 2


def go_on(handle: str, token: str, lr: float, steps: int) -> list[Any]:
    """Trains, and lets the hub save; returns the steps at first, and the weights at first and at last."""
    with join(handle, token) as ctx:
        model = nn.Linear(6, 5)
        optimizer = ht.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=lr), ctx, model, servers="hub")
        found = [optimizer.exchange.clock, model.weight.tolist()]
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(1, 6)).sum().backward()
            optimizer.step()
        optimizer.exchange.save()
        found.append(model.weight.tolist())
        optimizer.close()
        return found


def test_a_model_comes_back_with_the_settings_of_its_optimizer(hub: Served) -> None:
    clock, _, last = run(2, go_on, hub.create("a", "model"), 0.5, 2)[0]
    assert clock == 0
    hub.wait(lambda: hub.jobs()["a/model"] == "saved")
    handle = hpcomm.create_service(hub.where, "a", TOKENS["a"], "model", resume=True)
    (clock, first, after), other = run(2, go_on, handle, 0.25, 1)
    assert (clock, first) == (2, last)
    assert other == [clock, first, after]
    assert torch.equal(torch.tensor(after), torch.tensor(first) - 0.25)  # gradients of ones

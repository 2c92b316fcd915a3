"""hpcomm.torch.DiLoCo: habits of trainers (schedulers, scalers, 16 bits, hosts), its state, and refusals."""

import os
import signal
import tempfile
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import mpi
import pytest
from test_torch_local_by_hand import check_weights, compared
from torchcases import torch

import hpcomm
import hpcomm.torch as ht
from hpcomm import SGD, ConfigError, InvalidArgument
from hpcomm.local import LocalSteps

nn = torch.nn
pytestmark = pytest.mark.xdist_group("group torch")


class Mates:
    """A communicator of so many neighbouring ranks, as Split_type gives one of a host's."""

    def __init__(self, ctx: hpcomm.Context, size: int) -> None:
        self._ctx, self.size, self._first = ctx, size, ctx.rank // size * size
        self.rank = ctx.rank - self._first

    def allgather(self, data: bytes) -> list[bytes]:
        return self._ctx.allgather(data)[self._first :][: self.size]


def net(dtype: Any = torch.float32) -> Any:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))
    model[0].weight.data = model[0].weight.data.T.contiguous().T  # elements lie in another order
    return model.to(dtype)


def loss_of(model: Any, rank: int, step: int) -> Any:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(5, 6, generator=generator).to(next(model.parameters()).dtype)
    y = torch.randint(0, 3, (5,), generator=generator)
    return nn.functional.cross_entropy(model(x).float(), y)


def train(model: Any, optimizer: Any, rank: int, first: int, last: int) -> None:
    for step in range(first, last):
        loss_of(model, rank, step).backward()
        optimizer.step()
        optimizer.zero_grad()


def bits(model: Any) -> bytes:
    return b"".join(p.detach().float().contiguous().numpy().tobytes() for p in model.parameters())


def check_alike(ctx: hpcomm.Context, model: Any) -> None:
    assert set(ctx.allgather(bits(model))) == {bits(model)}


def adam(model: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def local_sgd_takes_the_mean(ctx: hpcomm.Context, steps: int = 4, **options: Any) -> None:
    """outer=SGD(lr=1): after H steps each rank has the mean of the models that ranks trained alone; after a sync too,
    while the exchange of step H is on its way."""
    model = net()
    optimizer = ht.DiLoCo(adam(model), ctx, model, outer=SGD(lr=1.0), every=4, **options)
    train(model, optimizer, ctx.rank, 0, steps)
    if steps > 4:
        optimizer.sync()
    check_alike(ctx, model)
    means = [torch.zeros_like(p, dtype=torch.float64) for p in model.parameters()]
    for rank in range(ctx.size):
        alone = net()
        train(alone, adam(alone), rank, 0, steps)
        for mean, p in zip(means, alone.parameters(), strict=True):
            mean.add_(p.detach().double() / ctx.size)
    for p, mean in zip(model.parameters(), means, strict=True):
        torch.testing.assert_close(p.detach().double(), mean, rtol=1e-5, atol=1e-6)
    optimizer.close()


def schedulers_and_modules(ctx: hpcomm.Context) -> None:
    """A scheduler works on either optimizer; fragments are modules; a timeline's spans need none."""
    model = net()
    inner = adam(model)
    optimizer = ht.DiLoCo(
        inner, ctx, model, every=4, fragments=[model[0], [model[2], "3.bias"], "3.weight"], delay=1, mix=0.5
    )
    assert optimizer.fragments == (("0.weight", "0.bias"), ("2.weight", "2.bias", "3.bias"), ("3.weight",))
    first = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)
    second = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for step in range(5):
        train(model, optimizer, ctx.rank, step, step + 1)
        first.step()
        second.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * 0.25**5)
    assert optimizer.stats().steps == 5
    with pytest.raises(hpcomm.InvalidArgument, match="AdamW that a DiLoCo wraps was stepped by itself"):
        inner.step()
    optimizer.sync()
    check_alike(ctx, model)
    optimizer.close()


def skipped_steps_count(ctx: hpcomm.Context) -> None:
    """A GradScaler skips a step on rank 0 alone: ranks still exchange at the same steps, and nothing else changes."""
    model = net()
    optimizer = ht.DiLoCo(torch.optim.SGD(model.parameters(), lr=0.5), ctx, model, every=3)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(6):
        before = bits(model)
        scaler.scale(loss_of(model, ctx.rank, step)).backward()
        if (ctx.rank, step) == (0, 1):
            model[3].weight.grad[0, 0] = torch.inf
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if (ctx.rank, step) == (0, 1):
            assert bits(model) == before
            assert scaler.get_scale() == 4.0
    assert optimizer.stats().steps == 6
    check_alike(ctx, model)
    plain = net()
    alone = torch.optim.SGD(plain.parameters(), lr=0.5)
    for step in range(2):
        loss_of(plain, 0, step).backward()
        alone.step() if step != 1 else None
        alone.zero_grad()
    other = net()  # the scaler unscales: two steps of rank 0 before the exchange are those of a plain optimizer
    single = ht.DiLoCo(torch.optim.SGD(other.parameters(), lr=0.5), ctx, other, every=3)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(2):
        scaler.scale(loss_of(other, 0, step)).backward()
        if step == 1:
            other[0].bias.grad[0] = torch.nan
        scaler.step(single)
        scaler.update()
        single.zero_grad()
    assert bits(other) == bits(plain)
    for one in (optimizer, single):
        one.close()


def sixteen_bits(ctx: hpcomm.Context) -> None:
    """The shared parameters are float32; a rank's own are rounded."""
    model = net(torch.bfloat16)
    optimizer = ht.DiLoCo(adam(model), ctx, model, every=3, fragments=2, delay=1, mix=0.5, codec="bfloat16")
    train(model, optimizer, ctx.rank, 0, 8)
    optimizer.sync()
    check_alike(ctx, model)
    for name, p in model.named_parameters():
        shared = torch.from_numpy(optimizer.exchange.params[name].copy())
        own = p.detach() if name != "0.weight" else p.detach().T
        assert torch.equal(shared.to(torch.bfloat16), own)
    optimizer.close()


def goes_on_with_the_same_bits(ctx: hpcomm.Context, folder: str) -> None:
    """From a state_dict and from a ModelCheckpointer, between the begin of an exchange and its take."""

    def made() -> tuple[Any, Any]:
        model = net()
        return model, ht.DiLoCo(
            adam(model),
            ctx,
            model,
            every=5,
            fragments=2,
            delay=3,
            codec=hpcomm.codec.TopK(0.3, kernel="c"),
            topology=hpcomm.ParameterServer(apply_at="receivers"),
        )

    model, optimizer = made()
    with ht.ModelCheckpointer(optimizer, folder, every=8) as saver:
        for step in range(8):
            train(model, optimizer, ctx.rank, step, step + 1)
            saver.after(step + 1, {"step": step})
    state, weights = optimizer.state_dict(), {name: p.clone() for name, p in model.state_dict().items()}
    with tempfile.TemporaryFile() as file:
        torch.save(state, file)
        file.seek(0)
        state = torch.load(file, weights_only=True)
    assert max(state["local_steps"]["begun"]) == 7
    fresh, straight = made()
    train(fresh, straight, ctx.rank, 0, 8)
    straight.sync()
    train(model, optimizer, ctx.rank, 8, 20)

    other, second = made()
    for syncs in (True, False):
        other.load_state_dict(weights)
        second.load_state_dict(state)
        if syncs:
            second.sync()
            assert bits(other) == bits(fresh)
    train(other, second, ctx.rank, 8, 20)
    assert bits(other) == bits(model)

    third, restored = made()
    found = ht.restore(restored, folder)
    assert found is not None
    assert (found.step, found.extra) == (8, {"step": 7})
    train(third, restored, ctx.rank, 8, 20)
    assert bits(third) == bits(model)
    with pytest.raises(InvalidArgument, match="an inner optimizer alone"):
        restored.load_state_dict(adam(net()).state_dict())
    for one in (optimizer, second, restored, straight):
        one.close()


def ranks_of_a_host_train_together(ctx: hpcomm.Context) -> None:
    """inner is a DistributedOptimizer over a context of two ranks: they end with the same bits; after sync all do. One
    of them runs out of time in a step, and its mate waits for the rest of that."""

    def cut_short() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LocalSteps, "_work", Mock(side_effect=hpcomm.Timeout("cut short")))
            LocalSteps.step(optimizer._local)

    mates = hpcomm.init(Mates(ctx, 2), timeout=20)
    for dtype in (torch.float32, torch.bfloat16):
        model = net(dtype)
        inner = ht.DistributedOptimizer(adam(model), mates, model, overlap=True)
        optimizer = ht.DiLoCo(inner, ctx, model, every=3, fragments=2, delay=1, topology=hpcomm.Hierarchy())
        train(model, optimizer, ctx.rank, 0, 4)
        with pytest.MonkeyPatch.context() as patch:  # step 5 begins an exchange
            if ctx.rank == 1:
                patch.setattr(optimizer._local, "step", cut_short)
            with pytest.raises(hpcomm.Timeout) if ctx.rank == 1 else nullcontext():
                train(model, optimizer, ctx.rank, 4, 5)
        optimizer.zero_grad()
        train(model, optimizer, ctx.rank, 5, 8)
        inner.wait()
        check_alike(mates, model)
        optimizer.sync()
        inner.wait()
        check_alike(ctx, model)
        optimizer.close()
        inner.close()
    mates.close()


def joins(ctx: hpcomm.Context) -> None:
    model = net()
    optimizer = ht.DiLoCo(adam(model), ctx, model, every=4, fragments=2, delay=2)
    with ht.join(optimizer):
        train(model, optimizer, ctx.rank, 0, 5 + 6 * ctx.rank)
    optimizer.sync()
    check_alike(ctx, model)
    optimizer.close()


def refusals(ctx: hpcomm.Context) -> None:
    model = net()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"every": 0}, "every is 0"),
        ({"every": 2, "delay": 2}, "delay is 2"),
        ({"every": 2, "mix": 2}, "mix is 2"),
        ({"every": 2, "fragments": [model[0]]}, "stands in no fragment"),
        ({"every": 2, "fragments": [model, model[0]]}, "fragments 2 times"),
        ({"every": 2, "topology": hpcomm.graphs.ring}, "no graph"),
        ({"every": 2, "rule": SGD()}, "rule"),
    ]
    for options, sentence in wrong:
        with pytest.raises(InvalidArgument, match=sentence):
            ht.DiLoCo(adam(model), ctx, model, **(options if ctx.rank == ctx.size - 1 else {"every": 2}))
    if ctx.size > 1:
        with pytest.raises(ConfigError, match="give the same"):
            ht.DiLoCo(adam(model), ctx, model, every=2 + ctx.rank)
    with pytest.raises(InvalidArgument, match="Average"):
        ht.DiLoCo(adam(model), ctx, model, every=2, outer=hpcomm.Average())


def cases(folder: str) -> None:
    torch.set_num_threads(1)
    with hpcomm.init(mpi.world(), timeout=30) as ctx:
        local_sgd_takes_the_mean(ctx)
        local_sgd_takes_the_mean(ctx, 5, delay=2)
        schedulers_and_modules(ctx)
        skipped_steps_count(ctx)
        sixteen_bits(ctx)
        goes_on_with_the_same_bits(ctx, folder)
        joins(ctx)
        refusals(ctx)
        check_weights(compared(ctx, f"{folder}/gloo"))  # as those of forty lines of torch


def host_cases() -> None:
    torch.set_num_threads(1)
    hpcomm.Context.hosts = property(lambda ctx: tuple(rank // 2 for rank in ctx.ranks))  # type: ignore[assignment,method-assign]
    with hpcomm.init(mpi.world(), timeout=30) as ctx:
        ranks_of_a_host_train_together(ctx)
        local_sgd_takes_the_mean(ctx, topology=hpcomm.Hierarchy())  # each rank of a host by itself


def survives(host_trains: bool) -> None:
    """Rank 3 dies in the backward pass of a step. With an inner DistributedOptimizer its mate, rank 2, waits for it
    there, while the ranks of the other host find it gone in an exchange."""
    torch.set_num_threads(1)
    hpcomm.Context.hosts = property(lambda ctx: tuple(rank // 2 for rank in ctx.ranks))  # type: ignore[assignment,method-assign]
    with hpcomm.init(mpi.world(), timeout=20) as ctx:
        me, model = ctx.rank, net()
        mates = hpcomm.init(Mates(ctx, 2), timeout=20) if host_trains else None
        inner = adam(model) if mates is None else ht.DistributedOptimizer(adam(model), mates, model)
        optimizer = ht.DiLoCo(inner, ctx, model, every=10, fragments=2, delay=3)
        recovered = 0
        while optimizer.stats().steps < 20:
            step = optimizer.stats().steps
            loss = loss_of(model, me, step)
            if (me, step) == (3, 9):
                model[0].weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
            try:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            except hpcomm.PeerFailed:
                found = optimizer.recover()
                optimizer.zero_grad()
                recovered += 1
                assert (found.lost, optimizer.context.size) == ((3,), 3)
        optimizer.sync()
        check_alike(optimizer.context, model)
        assert recovered == 1
        assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
        optimizer.close()


@pytest.mark.full  # tests/test_local_failures.py has deaths without torch
@pytest.mark.parametrize("host_trains", [False, True], ids=["each alone", "hosts together"])
def test_a_rank_dies(host_trains: bool) -> None:
    ended = mpi.spawn(4, survives, host_trains, timeout=60, check=False)
    assert ended.codes[:3] == [0, 0, 0], ended.err


def test_local_steps_of_a_model() -> None:
    with tempfile.TemporaryDirectory() as folder:
        mpi.spawn(2, cases, folder, timeout=90, env={"GLOO_SOCKET_IFNAME": "lo"})


def test_hosts_with_several_ranks() -> None:
    mpi.spawn(4, host_cases, timeout=60)

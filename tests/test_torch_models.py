"""hpcomm.torch beside one process: models of all kinds, state, checkpoints and dials."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torchcases as cases
from told import logs
from torchcases import (
    BATCH,
    OPTIMIZERS,
    Data,
    F,
    Net,
    both,
    case,
    check,
    check_bits,
    check_same,
    check_state,
    directory,
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

pytestmark = pytest.mark.xdist_group("group torch")  # one job for all tests


class Tied(nn.Module):
    """Two layers have one weight, and the model itself reads that of a third."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(10, 8, bias=False)
        self.one = nn.Linear(8, 8)
        self.other = nn.Linear(8, 8)
        self.other.weight = self.one.weight
        self.last = nn.Linear(10, 4)

    def forward(self, x: Any) -> Any:
        x = torch.tanh(self.other(torch.tanh(self.one(self.embedding(x)))))
        return self.last(F.linear(x, self.embedding.weight.t()))


def tied() -> Any:
    torch.manual_seed(4)
    return Tied()


@case
def tied_weights(ctx: hpcomm.Context) -> None:
    optimizer = check(ctx, model=tied)
    assert len(optimizer.exchange.params) == 6
    early = check(ctx, model=tied, apply="backward").stats().early
    assert early == 5 * 5, "all but the weight that two layers read"


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
                    assert p.grad is not None
                    assert master.grad is not None
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
                x = torch.utils.checkpoint.checkpoint(lambda v: torch.tanh(self.second(v)), x, use_reentrant=reentrant)
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
        F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward(create_graph=True, retain_graph=False)
        optimizer.step()

    for options in ({}, {"apply": "backward"}):
        assert check(ctx, loop=graph, **options).stats().early == 0


@case
def weights_that_are_computed(ctx: hpcomm.Context) -> None:
    """Those of weight_norm, which reads its parameters in a pre-hook of its own."""

    def model() -> Any:
        torch.manual_seed(7)
        first = nn.utils.weight_norm(nn.Linear(10, 8))
        second = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Linear(8, 4))

    check(ctx, model=model)
    check(ctx, model=model, apply="backward")


@case
def channels_last(ctx: hpcomm.Context) -> None:
    def model() -> Any:
        torch.manual_seed(9)
        made: Any = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(16, 4))
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

    with logs() as told:
        optimizer = check(ctx, lambda p: torch.optim.SGD(p, lr=0.1), loop=loop, model=model)
    assert optimizer.stats().dense == 5
    assert len([sentence for sentence in told if "sparse" in sentence]) == 1
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
        slot = optimizer.exchange.gradient(name)
        slot.flat[0] += 1.0  # p.grad is the same memory at another address
        assert p.grad.flatten()[0] == slot.flat[0]
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

    for make in (momentum, torch.optim.RMSprop):
        with directory(ctx) as folder:
            ours = mixed()
            optimizer = ht.DistributedOptimizer(make(ours.parameters()), ctx, ours)
            data = Data(ctx, ctx.size)
            with ht.ModelCheckpointer(optimizer, folder, every=2) as saver:
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


@case
def buffers(ctx: hpcomm.Context) -> None:
    for kind in ("local", "broadcast", "average"):
        ours: Any = nn.Sequential(nn.Linear(10, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))
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
            topology=hpcomm.graphs.complete(ctx.size),
            consistency=consistency,
        )
        check_same(ours, alone)
        assert optimizer.stats().steps == 5
        optimizer.state_dict()


# ---- what ranks might do differently ---------------------------------------------------------------------------------


@everywhere
def a_scaler_in_a_join_block_is_refused_by_all(ctx: hpcomm.Context) -> None:
    def train(model: Any, optimizer: Any, data: Data) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        with ht.join(optimizer):
            for _ in range(0 if ctx.rank == 1 else 2):  # rank 1 has no batch
                scaler.scale(F.cross_entropy(model(data.batch()[0]), data.batch()[1])).backward()
                scaler.step(optimizer)
                scaler.update()

    for make in (momentum, torch.optim.RMSprop):
        model = net()
        optimizer = ht.DistributedOptimizer(make(model.parameters()), ctx, model)
        with pytest.raises(hpcomm.NotSupported, match="GradScaler in a join block"):
            train(model, optimizer, Data(ctx, ctx.size))
    ctx.shrink().close()  # gradients are under way, and nobody waits for them


@everywhere
def state_from_before_the_start(ctx: hpcomm.Context) -> None:
    """A plain optimizer that has state is given to a DistributedOptimizer: rank 0's state counts."""
    ways: list[tuple[Any, Any]] = [
        (momentum, "step"),
        (OPTIMIZERS["adamw"], "backward"),
        (torch.optim.RMSprop, "step"),
        (torch.optim.Adagrad, "step"),  # has state at once
    ]
    for make, apply in ways:
        for everybody in (True, False):
            ours, alone = net(), net()
            before = make(alone.parameters())
            data = Data(None, ctx.size)
            for step in range(3):
                plain_step(alone, before, data, step)
            before.param_groups[0]["lr"] /= 2
            mine = make(ours.parameters())
            if everybody or ctx.rank == 0:
                ours.load_state_dict(alone.state_dict())
                mine.load_state_dict(copy.deepcopy(before.state_dict()))
            optimizer = ht.DistributedOptimizer(mine, ctx, ours, apply=apply)
            check_state(optimizer.state_dict(), before.state_dict())
            for one, its, part in ((ours, optimizer, Data(ctx, ctx.size)), (alone, before, Data(None, ctx.size))):
                for step in range(3):
                    plain_step(one, its, part, step)
            optimizer.wait()
            check_same(ours, alone)
            check_bits(ctx, ours)
            # and the plain one is loaded when it is wrapped already
            if make in (torch.optim.RMSprop, torch.optim.Adagrad):
                mine.load_state_dict(before.state_dict())
                assert optimizer.param_groups is mine.param_groups
                assert optimizer.state is mine.state
            else:
                with refuses("call that of the DistributedOptimizer"):
                    mine.load_state_dict(before.state_dict())
            optimizer.close()
            mine.load_state_dict(before.state_dict())
    # a plain optimizer rounds the masters of 16 bits, and leaves them behind: the parameters count
    low = nn.Linear(10, 4).bfloat16()
    mine = OPTIMIZERS["adamw"](low.parameters())
    low(torch.ones(2, 10).bfloat16()).sum().backward()
    mine.step()
    mine.state[low.weight]["master"] = torch.zeros_like(low.weight)
    optimizer = ht.DistributedOptimizer(mine, ctx, low)
    moments = optimizer.state_dict()["state"][0]
    assert torch.equal(moments["master"], low.weight.float())
    assert moments["master"].any()
    assert moments["exp_avg"].any()
    if ctx.size > 1:
        ours = net()
        mine = momentum(ours.parameters())
        if ctx.rank == 1:
            ours(torch.ones(1, 10)).sum().backward()
            mine.step()
        with pytest.raises(hpcomm.ConfigError, match=r"state on ranks \[1\] and not on rank 0"):
            ht.DistributedOptimizer(mine, ctx, ours)


@everywhere
def state_is_refused_before_it_is_written(ctx: hpcomm.Context) -> None:
    """By every rank, also where another rank owns what is wrong."""
    for name in ("first.bias", "last.bias"):
        for spoil in (lambda own: own.pop("exp_avg"), lambda own: own.update(exp_avg_sq=torch.ones(3))):
            ours, optimizer, *_ = both(ctx, torch.optim.Adam)
            before = copy.deepcopy(optimizer.state_dict())
            wrong = copy.deepcopy(before)
            wrong["param_groups"][0]["lr"] = 7.0
            spoil(wrong["state"][list(dict(ours.named_parameters())).index(name)])
            with refuses(f"'{name}'"):
                optimizer.load_state_dict(wrong)
            check_state(optimizer.state_dict(), before)
            plain_step(ours, optimizer, Data(ctx, ctx.size), 0)  # and on


@case
def a_module_is_loaded(ctx: hpcomm.Context) -> None:
    """load_state_dict of a module in the model, whose updates are on their way, and whose masters lie elsewhere."""
    for dtype in (torch.float32, torch.bfloat16):
        ours: Any = nn.Sequential(nn.Sequential(nn.Linear(10, 8), nn.Linear(8, 8)), nn.Linear(8, 4)).to(dtype)
        optimizer = ht.DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.5), ctx, ours)
        published: list[int] = []
        found, optimizer._layers.on_load = optimizer._layers.on_load, lambda told=published: told.append(1)
        ours[0].load_state_dict(ours[0].state_dict()), ours.load_state_dict(ours.state_dict())
        assert len(published) == 2, "once, however many modules are loaded"
        optimizer._layers.on_load = found
        for part in (ours[0], ours[0][1], ours):
            ours(torch.ones(2, 10, dtype=dtype)).sum().backward()
            optimizer.step()
            part.load_state_dict({name: torch.full_like(p, 0.25) for name, p in part.state_dict().items()})
            optimizer.zero_grad()
            optimizer.step()  # of nothing: it changes nothing
            optimizer.wait()
            for name, p in part.named_parameters():
                assert torch.equal(p, torch.full_like(p, 0.25)), name
            check_bits(ctx, ours)


class Replaced(nn.Module):
    """A module that puts another tensor in the place of its buffer, in each forward pass."""

    seen: Any

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(10, 4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Any) -> Any:
        self.seen = self.seen + x[0, 0].detach()
        return self.linear(x)


@case
def buffers_that_are_replaced(ctx: hpcomm.Context) -> None:
    for kind in ("broadcast", "average"):
        ours = Replaced()
        optimizer = ht.DistributedOptimizer(momentum(ours.parameters()), ctx, ours, buffers=kind)
        for _ in range(3):
            ours(torch.full((2, 10), 1.0 + ctx.rank)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.wait()
        mean = 1.0 if kind == "broadcast" else sum(1.0 + rank for rank in range(ctx.size)) / ctx.size
        torch.testing.assert_close(ours.seen, torch.full((4,), 3 * mean))
        ours.seen = torch.zeros(5)
        ours.linear(torch.ones(2, 10)).sum().backward()
        with refuses("buffers have 5 elements now and had 4"):
            optimizer.step()


@everywhere
def ranks_give_different_arguments(ctx: hpcomm.Context) -> None:
    if ctx.size == 1:
        return
    ours = Replaced()
    kind: Any = "average" if ctx.rank == 1 else "local"
    with pytest.raises(hpcomm.ConfigError, match="'local' on rank 0, 'average' on rank 1"):
        ht.DistributedOptimizer(momentum(ours.parameters()), ctx, ours, buffers=kind)
    clip = -1.0 if ctx.rank == 1 else 1.0
    with refuses("" if ctx.rank == 1 else "rank 1: clip_norm is -1.0"):
        ht.DistributedOptimizer(momentum(ours.parameters()), ctx, ours, clip_norm=clip)


@pytest.mark.some(5)
@pytest.mark.parametrize("name", cases.names(__name__))
def test_case(shm: list[dict[str, str]], name: str) -> None:
    assert [value[name] for value in shm] == [""] * 2


@pytest.mark.some(1)
@pytest.mark.parametrize("name", cases.names(__name__, cases.EVERYWHERE))
def test_case_over_a_wire(wire: list[dict[str, str]], name: str) -> None:
    assert [value[name] for value in wire] == [""] * 3

"""Ranks that only serve a DistributedOptimizer (placements NCC and NCS): workers reach the bits that they reach without
such ranks."""

import hashlib
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mpi
import pytest

import hpcomm
from hpcomm.errors import HpcommError, InvalidArgument, NotSupported, PeerFailed

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torchcases import case, directory, names, run_cases  # noqa: E402

import hpcomm.torch as ht  # noqa: E402

pytestmark = pytest.mark.xdist_group("group torch servers")  # a few jobs for all tests

WORKERS = 3
STEPS = 3


def net() -> Any:
    """Weights of whole numbers, which sums of gradients keep exact."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 5, bias=False))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randint(-3, 4, p.shape))
    return model


def net_of_16_bits() -> Any:
    return net().to(torch.bfloat16)


def net_with_buffers() -> Any:
    return nn.Sequential(nn.BatchNorm1d(6), net())


def sgd(params: Any) -> Any:
    return torch.optim.SGD(params, lr=0.5, momentum=0.5)


def adam(params: Any) -> Any:
    return torch.optim.AdamW(params, lr=0.125)


def rms(params: Any) -> Any:
    return torch.optim.RMSprop(params, lr=0.125)


class Batches:
    """Whole numbers, which mean gradients of three workers keep exact."""

    def __init__(self, worker: int) -> None:
        self.generator = torch.Generator().manual_seed(worker)

    def loss(self, model: Any) -> Any:
        x = torch.randint(-2, 3, (4, 6), generator=self.generator)
        y = 3 * torch.randint(-2, 3, (4, 5), generator=self.generator)
        dtype = next(model.parameters()).dtype
        return (model(x.to(dtype)) * y.to(dtype)).sum()

    def backward(self, model: Any) -> None:
        self.loss(model).backward()


def plain(model: Any, optimizer: Any, batches: Batches, step: int) -> None:
    optimizer.zero_grad()
    batches.backward(model)
    optimizer.step()


def accumulated(model: Any, optimizer: Any, batches: Batches, step: int) -> None:
    optimizer.zero_grad()
    with optimizer.no_sync():
        batches.backward(model)
    batches.backward(model)
    optimizer.step()


def halved(model: Any, optimizer: Any, batches: Batches, step: int) -> None:
    """Looks at means, and changes them on all workers alike."""
    optimizer.zero_grad()
    batches.backward(model)
    optimizer.synchronize()
    for p in model.parameters():
        p.grad.mul_(0.5)
    optimizer.step()


def scaled(model: Any, optimizer: Any, batches: Batches, step: int) -> None:
    """The gradients of the second step are infinite on one worker, and all skip it."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer.zero_grad()
    worker = optimizer.exchange.plan.workers.index(optimizer.context.rank)
    scaler.scale(batches.loss(model) * (math.inf if step == worker == 1 else 1)).backward()
    scaler.step(optimizer)
    scaler.update()


def loaded(model: Any, optimizer: Any, batches: Batches, step: int) -> None:
    """The state goes to the workers and back, and so does the model; then the momentum of a parameter is dropped."""
    plain(model, optimizer, batches, step)
    found = optimizer.state_dict()
    plain(model, optimizer, batches, step)
    values = {name: value.clone() for name, value in model.state_dict().items()}
    plain(model, optimizer, batches, step)
    optimizer.load_state_dict(found)
    model.load_state_dict(values)
    del optimizer.state[next(model.parameters())]
    plain(model, optimizer, batches, step)


def uneven(model: Any, optimizer: Any, batches: Batches, step: int) -> None:
    """Worker number 1 has run out of batches in the second step."""
    worker = optimizer.exchange.plan.workers.index(optimizer.context.rank)
    with ht.join(optimizer):
        for _ in range(1 if worker == 1 else 2):
            plain(model, optimizer, batches, step)


Loop = Callable[[Any, Any, Batches, int], None]
BITS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Loop, dict[str, Any]]] = {
    "step": (net, sgd, plain, {}),
    "overlap, clipped": (net, adam, plain, {"overlap": True, "clip_norm": 2.0}),
    "after": (net, sgd, plain, {"apply": "after"}),
    "backward": (net, adam, plain, {"apply": "backward"}),
    "16 bits": (net_of_16_bits, sgd, plain, {"codec": "bfloat16"}),
    "a codec of pieces": (net, sgd, plain, {"codec": hpcomm.codec.TopK(0.5, kernel="c")}),
    "receivers": (net, sgd, plain, {"topology": hpcomm.ParameterServer(apply_at="both")}),
    "each worker steps": (net, rms, plain, {}),
    "each worker steps by sums": (net, rms, plain, {"reduce": "sum"}),
    "accumulated": (net, sgd, accumulated, {}),
    "synchronized": (net, sgd, halved, {}),
    "synchronized sums": (net, sgd, halved, {"reduce": "sum"}),
    "buffers of the first": (net_with_buffers, sgd, plain, {"buffers": "broadcast"}),
    "mean buffers": (net_with_buffers, sgd, plain, {"buffers": "average"}),
    "loaded": (net, adam, loaded, {}),
    "loaded 16 bits": (net_of_16_bits, sgd, loaded, {}),
    "loaded, narrow parameters": (net, sgd, loaded, {"codec_out": "bfloat16"}),
    "loaded, each worker steps": (net, rms, loaded, {}),
    "scaled": (net, sgd, scaled, {}),
    "uneven": (net, sgd, uneven, {}),
}


def bits(model: Any) -> str:
    values = [*model.parameters(), *model.buffers()]
    return hashlib.sha256(b"".join(v.detach().float().numpy().tobytes() for v in values)).hexdigest()


def trained(
    ctx: hpcomm.Context,
    servers: list[int],
    make_net: Callable[[], Any] = net,
    make: Callable[[Any], Any] = sgd,
    loop: Loop = plain,
    **options: Any,
) -> str:
    """The bits that the steps of a job leave in the model of this rank; "" where it only serves."""
    model = make_net()
    if servers:
        where = {"placement": "NCC" if len(servers) == 1 else "NCS", "servers": servers}
        options |= {"topology": replace(options["topology"], **where)} if "topology" in options else where
    workers = [rank for rank in range(ctx.size) if rank not in servers]
    with_optimizer = ht.DistributedOptimizer(make(model.parameters()), ctx, model, **options)
    if ctx.rank in servers:
        with_optimizer.serve()
    else:
        batches = Batches(workers.index(ctx.rank))
        for step in range(STEPS):
            loop(model, with_optimizer, batches, step)
        with_optimizer.wait()
    with_optimizer.close()
    return "" if ctx.rank in servers else bits(model)


# ---- one job with a server, and one without --------------------------------------------------------------------------


def all_bits(servers: list[int], chosen: list[str]) -> dict[str, str]:
    torch.set_num_threads(1)
    found = {}
    for name in chosen:
        make_net, make, loop, options = BITS[name]
        try:
            with hpcomm.init(mpi.world(), timeout=20) as ctx:
                found[name] = trained(ctx, servers, make_net, make, loop, **options)
        except Exception as wrong:
            found[name] = f"{type(wrong).__name__}: {wrong}"
    return found


@pytest.fixture(scope="module")
def alone() -> list[dict[str, str]]:
    return mpi.spawn(WORKERS, all_bits, [], list(BITS), timeout=120).values


@pytest.fixture(scope="module")
def served() -> list[dict[str, str]]:
    """Rank 0 only serves: the first worker is another."""
    return mpi.spawn(WORKERS + 1, all_bits, [0], list(BITS), timeout=120).values


@pytest.mark.parametrize("name", BITS)
def test_workers_reach_the_bits_of_a_job_without_servers(
    name: str, alone: list[dict[str, str]], served: list[dict[str, str]]
) -> None:
    assert served[0][name] == ""
    assert [own[name] for own in served[1:]] == [own[name] for own in alone]
    assert len(alone[0][name]) == 64, alone[0][name]


# ---- cases of four ranks ---------------------------------------------------------------------------------------------


@case
def two_servers_in_front(ctx: hpcomm.Context) -> None:
    """Rank 0 only serves, and its model is the one that workers begin with."""
    apart = trained(ctx, [0, 1])
    assert (apart == "") == (ctx.rank < 2)
    told = ctx.allgather(apart.ljust(64).encode())
    assert told[2] == told[3]


@case
def gradients_may_be_late(ctx: hpcomm.Context) -> None:
    for late in (hpcomm.SSP(1), hpcomm.ASYNC):
        trained(ctx, [3], consistency=late)


@case
def a_state_is_given_to_the_servers(ctx: hpcomm.Context) -> None:
    """The optimizer has state when it is wrapped, and rank 0 alone has that."""
    model = net()
    optimizer = sgd(model.parameters())
    if ctx.rank == 0:
        Batches(7).backward(model)
        optimizer.step()
        optimizer.zero_grad()
    given = [own["momentum_buffer"] for own in optimizer.state_dict()["state"].values()]
    wrapped = ht.DistributedOptimizer(optimizer, ctx, model, placement="NCC", servers=[3])
    if ctx.rank == 3:
        wrapped.serve()
    else:
        found = [own["momentum_buffer"] for own in wrapped.state_dict()["state"].values()]
        assert len(found) == 3
        assert ctx.rank or all(map(torch.equal, found, given))
    wrapped.close()


def trained_and_saved(ctx: hpcomm.Context, folder: Any, servers: list[int], first: int, last: int) -> str:
    """Steps from one that was saved, or from the start, to the last; the bits."""
    model = net_with_buffers()
    options: dict[str, Any] = {"codec": hpcomm.codec.TopK(0.5, kernel="c")}
    if servers:
        options |= {"placement": "NCS", "servers": servers}
    optimizer = ht.DistributedOptimizer(sgd(model.parameters()), ctx, model, **options)
    found = ht.restore(optimizer, folder)
    assert (found.step if found else 0) == first
    with ht.ModelCheckpointer(optimizer, folder, every=2) as saver:
        if ctx.rank in servers:
            optimizer.serve()
        else:
            batches = Batches(ctx.rank)
            for step in range(last):
                if step < first:
                    torch.randint(-2, 3, (4, 6), generator=batches.generator)
                    torch.randint(-2, 3, (4, 5), generator=batches.generator)
                    continue
                plain(model, optimizer, batches, step)
                saver.after(step + 1)
    optimizer.close()
    return "" if ctx.rank in servers else bits(model)


@case
def a_checkpoint_goes_on(ctx: hpcomm.Context) -> None:
    """By the same ranks, bit for bit."""
    with directory(ctx) as folder:
        whole = trained_and_saved(ctx, folder / "whole", [3], 0, 5)
        trained_and_saved(ctx, folder / "cut", [3], 0, 3)
        ctx.barrier()
        assert trained_and_saved(ctx, folder / "cut", [3], 2, 5) == whole
        trained_and_saved(ctx, folder / "cut", [0], 4, 4)  # a rank that has served has a worker's values


REFUSED: dict[str, tuple[type[HpcommError], str, Callable[[hpcomm.Context, Any], Any]]] = {
    "a way": (
        NotSupported,
        r"way is 'auto', and ranks \[3\] only serve",
        lambda ctx, model: ht.DistributedOptimizer(
            sgd(model.parameters()), ctx, model, placement="NCC", servers=[3], way="auto"
        ),
    ),
    "a DiLoCo": (
        NotSupported,
        r"ranks \[3\] would only serve: with a DiLoCo every rank is a worker",
        lambda ctx, model: ht.DiLoCo(sgd(model.parameters()), ctx, model, every=2, placement="NCC", servers=[3]),
    ),
    "no worker": (
        hpcomm.ConfigError,
        "placement NCS leaves no worker",
        lambda ctx, model: ht.DistributedOptimizer(sgd(model.parameters()), ctx, model, placement="NCS", servers=4),
    ),
    "servers out of range": (
        InvalidArgument,
        "servers has rank 4",
        lambda ctx, model: ht.DistributedOptimizer(sgd(model.parameters()), ctx, model, placement="NCS", servers=[4]),
    ),
}


@case
def refused_on_every_rank(ctx: hpcomm.Context) -> None:
    for error, sentence, make in REFUSED.values():
        with pytest.raises(error, match=sentence):
            make(ctx, net())


@case
def ranks_give_different_servers(ctx: hpcomm.Context) -> None:
    model, servers = net(), [3] if ctx.rank else [2]
    with pytest.raises(hpcomm.ConfigError):
        ht.DistributedOptimizer(sgd(model.parameters()), ctx, model, placement="NCC", servers=servers)


@case
def recovery_of_an_optimizer_that_steps_on_each_worker(ctx: hpcomm.Context) -> None:
    model = net()
    optimizer = ht.DistributedOptimizer(rms(model.parameters()), ctx, model, placement="NCC", servers=[3])
    with pytest.raises(NotSupported, match=r"steps on each worker, and ranks \[3\] only serve"):
        optimizer.recover()


@case
def workers_meet_without_servers(ctx: hpcomm.Context) -> None:
    model = net()
    optimizer = ht.DistributedOptimizer(sgd(model.parameters()), ctx, model, placement="NCC")
    if ctx.rank == 0:
        optimizer.serve()
    else:
        assert optimizer.allgather(bytes([ctx.rank])) == [b"\1", b"\2", b"\3"]
    optimizer.close()


@case
def each_rank_has_its_calls(ctx: hpcomm.Context) -> None:
    model = net()
    optimizer = ht.DistributedOptimizer(sgd(model.parameters()), ctx, model, placement="NCC", servers=[3])
    ctx.barrier()
    if ctx.rank < 3:
        with pytest.raises(InvalidArgument, match=f"rank {ctx.rank} is a worker"):
            optimizer.serve()
        with pytest.raises(NotSupported, match="measure_ways: it needs workers alone"):
            optimizer.measure_ways()
        plain(model, optimizer, Batches(ctx.rank), 0)
    else:
        for call, does in (("step", optimizer.step), ("synchronize", optimizer.synchronize)):
            with pytest.raises(InvalidArgument, match=rf"{call}: rank 3 only serves, .*: call optimizer.serve\(\)"):
                does()
        with pytest.raises(InvalidArgument, match=r"loss.backward\(\): rank 3 only serves"):
            Batches(0).backward(model)
        with optimizer.no_sync(), pytest.raises(InvalidArgument, match=r"loss.backward\(\): rank 3 only serves"):
            Batches(0).backward(model)
        optimizer.serve()
    optimizer.close()


@case
def the_same_calls_on_all_ranks(ctx: hpcomm.Context) -> None:
    """A rank that only serves may make the collective calls itself, before it serves."""
    model, reference = net(), net()
    optimizer = ht.DistributedOptimizer(sgd(model.parameters()), ctx, model, placement="NCC", servers=[3])
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})
    optimizer.load_state_dict(optimizer.state_dict())
    if ctx.rank == 3:
        optimizer.serve()
    else:
        plain(model, optimizer, Batches(ctx.rank), 0)
        with torch.no_grad():
            for p in reference.parameters():
                p.add_(1)
        for worker in range(WORKERS):
            Batches(worker).backward(reference)
        for p in reference.parameters():
            p.grad /= WORKERS
        sgd(reference.parameters()).step()
        assert bits(model) == bits(reference)
    optimizer.close()


@case
def optimizers_that_are_dropped(ctx: hpcomm.Context) -> None:
    """A server learns of the end from workers that do not call close."""
    model = net()
    optimizer = ht.DistributedOptimizer(sgd(model.parameters()), ctx, model, placement="NCC", servers=[3])
    if ctx.rank == 3:
        optimizer.serve(20)
    else:
        plain(model, optimizer, Batches(ctx.rank), 0)
        optimizer.wait()
    del optimizer


@pytest.fixture(scope="module")
def cases() -> list[dict[str, str]]:
    return mpi.spawn(4, run_cases, __name__, names(__name__), timeout=120).values


@pytest.mark.parametrize("name", names(__name__))
def test_four_ranks(name: str, cases: list[dict[str, str]]) -> None:
    assert [own[name] for own in cases] == [""] * 4, "\n".join(own[name] for own in cases)


# ---- waits and deaths ------------------------------------------------------------------------------------------------


def one_computes() -> None:
    """Rank 1 computes; rank 0 waits for the server, and the server for the next call of rank 0."""
    torch.set_num_threads(1)
    with hpcomm.init(mpi.world(), look_after=0.3, timeout=1800) as ctx:
        model = net()
        optimizer = ht.DistributedOptimizer(sgd(model.parameters()), ctx, model, placement="NCC", servers=[2])
        if ctx.rank == 2:
            optimizer.serve()
        for step in range(2) if ctx.rank < 2 else ():
            if ctx.rank == step == 1:
                time.sleep(1.5)
            plain(model, optimizer, Batches(ctx.rank), step)
        optimizer.close()


def test_a_worker_that_computes_for_long_is_no_deadlock() -> None:
    mpi.spawn(3, one_computes)


def loses_a_rank(dies: int) -> tuple[list[int], str]:
    """A worker dies at its third step, or the server at once; those that are left tell who it was, and go on. The ranks
    that this one was told of, and the bits."""
    torch.set_num_threads(1)
    ctx = hpcomm.init(mpi.world(), timeout=20)
    model = net()
    optimizer = ht.DistributedOptimizer(sgd(model.parameters()), ctx, model, placement="NCC", servers=[3])
    told: tuple[int, ...] = ()
    clock = 4
    try:
        if ctx.rank == 3:
            os._exit(9) if dies == 3 else optimizer.serve()
        for step in range(4) if ctx.rank < 3 else ():
            if ctx.rank == dies and step == 2:
                os._exit(9)
            plain(model, optimizer, Batches(ctx.rank), step)
        optimizer.wait()
    except PeerFailed as failed:
        told = failed.ranks
        clock = optimizer.recover(survivors=dies == 3).clock
    if ctx.rank == 3:
        optimizer.serve()
    else:
        for step in range(clock, 4):
            plain(model, optimizer, Batches(ctx.rank), step)
        optimizer.state_dict()
    optimizer.close()
    return [*told], "" if ctx.rank == 3 else bits(model)


@pytest.mark.parametrize("dies", [0, 1, 3])
def test_a_rank_that_died_is_named_and_the_others_go_on(dies: int) -> None:
    ended = mpi.spawn(4, loses_a_rank, dies, timeout=60, check=False)
    left = [rank for rank in range(4) if rank != dies]
    assert [ended.codes[rank] for rank in left] == [0, 0, 0], ended.err
    assert [ended.values[rank][0] for rank in left] == [[dies]] * 3
    assert len({ended.values[rank][1] for rank in left if rank < 3}) == 1

"""Memory that a trainer holds beside an optimizer: arrays of gradients, parameters that others see, two optimizers."""

import gc
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torchcases as cases
from torchcases import Data, F, case, check, everywhere, momentum, net, nn, refuses, torch

import hpcomm
import hpcomm.torch as ht
from hpcomm.torch import tensors

pytestmark = pytest.mark.xdist_group("group torch")  # one job for all tests


def rmsprop(params: Any) -> Any:
    return torch.optim.RMSprop(params, lr=0.01)


# ---- gradients that are kept -----------------------------------------------------------------------------------------

WAYS: list[Callable[[Any], Any]] = [
    lambda grad: grad,
    lambda grad: grad.detach(),
    lambda grad: grad[1:],
    lambda grad: grad.untyped_storage(),
    torch.from_dlpack,
    lambda grad: grad.numpy(),
    lambda grad: memoryview(grad.numpy()),
    lambda grad: np.from_dlpack(grad)[1:],
]
NARROW = 5  # the first ways: NumPy has no bfloat16


def bytes_of(kept: Any) -> bytes:
    if isinstance(kept, torch.UntypedStorage):
        return bytes(kept)
    if torch.is_tensor(kept):
        kept = kept.contiguous().view(torch.uint8).numpy()
    return bytes(kept.tobytes())


class Kept:
    """What a trainer keeps of all gradients, in all ways by turns, and the bytes that it had."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.found: list[Any] = []
        narrow = next(model.parameters()).dtype != torch.float32
        self.ways = WAYS[:NARROW] if narrow else WAYS

    def keep(self) -> None:
        for p in self.model.parameters():
            if p.grad is not None:
                kept = self.ways[len(self.found) % len(self.ways)](p.grad)
                self.found.append((kept, bytes_of(kept)))

    def check(self) -> None:
        for i, (kept, was) in enumerate(self.found):
            assert bytes_of(kept) == was, f"number {i}, kept by way {i % len(self.ways)}, has changed"


def loss_of(model: Any, data: Data, step: int) -> Any:
    """By turns a rank leaves a layer out, whose gradients the others have alone."""
    x, y = data.batch()
    h = torch.tanh(model.first(x.to(model.first.weight.dtype)))
    if data.ctx is None or (step + data.ctx.rank) % 3:
        h = torch.tanh(model.second(h))
    return F.cross_entropy(model.last(h).float(), y)


def narrow() -> Any:
    return net().to(torch.bfloat16)


@everywhere
def kept_gradients_keep_their_values(ctx: hpcomm.Context) -> None:
    """Kept behind backward, synchronize and step, in whatever way; also when the exchange is closed and gone."""
    every: list[Kept] = []
    ways: list[tuple[Any, Any, dict[str, Any]]] = [
        (net, momentum, {}),
        (net, rmsprop, {}),
        (net, momentum, {"apply": "backward"}),
        (narrow, momentum, {}),
        (narrow, rmsprop, {}),
    ]
    for make, optim, options in ways:
        model, data = make(), Data(ctx, ctx.size)
        optimizer = ht.DistributedOptimizer(optim(model.parameters()), ctx, model, **options)
        kept = Kept(model)
        for step in range(5):
            optimizer.zero_grad()
            loss_of(model, data, step).backward()
            kept.keep()
            if step == 2 and not options:
                optimizer.synchronize()
                kept.keep()
            optimizer.step()
            kept.keep()
        kept.check()
        every.append(kept)
        if optim is momentum:
            optimizer.close()
        del model, optimizer, kept.model
        gc.collect()
    ctx.close()
    for kept in every:
        kept.check()


@case
def an_array_outlives_a_gradient_that_is_moved(ctx: hpcomm.Context) -> None:
    model, data = net(), Data(ctx, ctx.size)
    optimizer = ht.DistributedOptimizer(momentum(model.parameters()), ctx, model)
    cases.plain_step(model, optimizer, data, 0)
    kept = model.first.weight.grad.numpy()
    was = kept.copy()
    model.first.weight.grad.data = torch.zeros(16, 10)
    for step in (1, 2):
        cases.plain_step(model, optimizer, data, step)
    np.testing.assert_array_equal(kept, was)


@contextmanager
def parted() -> Iterator[list[int]]:
    """How often pages were copied for an array that was kept."""
    found, part = [0], tensors.MemoryView.part

    def counted(view: Any) -> None:
        found[0] += 1
        part(view)

    tensors.MemoryView.part = counted  # type: ignore[method-assign, assignment]
    try:
        yield found
    finally:
        tensors.MemoryView.part = part  # type: ignore[method-assign]


@case
def nothing_is_copied_where_nothing_is_kept(ctx: hpcomm.Context) -> None:
    for set_to_none in (True, False):

        def loop(model: Any, optimizer: Any, data: Data, step: int, none: bool = set_to_none) -> None:
            optimizer.zero_grad(none)
            F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
            if step == 2 and hasattr(optimizer, "synchronize"):
                optimizer.synchronize()
            optimizer.step()

        with parted() as found:
            for make in (momentum, rmsprop):
                assert check(ctx, make, loop=loop).stats().params_copied == 0
        assert found == [0]


@case
def an_array_of_a_gradient_that_is_zeroed_follows_it(ctx: hpcomm.Context) -> None:
    """set_to_none=False writes the same memory again, as in torch."""
    model, data = net(), Data(ctx, ctx.size)
    optimizer = ht.DistributedOptimizer(momentum(model.parameters()), ctx, model)
    cases.plain_step(model, optimizer, data, 0)
    kept = model.first.weight.grad.numpy()
    was = kept.copy()
    optimizer.zero_grad(set_to_none=False)
    assert not kept.any()
    F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
    assert not np.array_equal(kept, was)
    np.testing.assert_array_equal(kept, model.first.weight.grad.numpy())
    optimizer.step()


# ---- parameters that others see --------------------------------------------------------------------------------------


@case
def others_see_the_updates(ctx: hpcomm.Context) -> None:
    """A state_dict, views, arrays, a flat vector and shared memory follow the training, as in torch."""
    for make in (momentum, rmsprop):
        for shares in (False, True):
            model, data = net(), Data(ctx, ctx.size)
            if shares:
                model.share_memory()
            seen = {
                "first.weight": model.state_dict()["first.weight"],
                "second.weight": model.second.weight.data[:],
                "last.weight": torch.from_numpy(model.last.weight.detach().numpy()),
            }
            flat = torch.zeros(20)
            torch.nn.utils.vector_to_parameters(flat, [model.first.bias, model.last.bias])
            optimizer = ht.DistributedOptimizer(make(model.parameters()), ctx, model)
            for step in range(3):
                cases.plain_step(model, optimizer, data, step)
                params = dict(model.named_parameters())
                for name, view in seen.items():
                    assert torch.equal(view, params[name]), name
                    assert params[name].is_shared() == shares, name
                assert torch.equal(flat, torch.cat([model.first.bias, model.last.bias]))
            optimizer.close()


# ---- two optimizers --------------------------------------------------------------------------------------------------


@case
def two_optimizers_over_a_parameter_are_refused(ctx: hpcomm.Context) -> None:
    model, data = net(), Data(ctx, ctx.size)
    tasks = [[*model.first.parameters(), *part.parameters()] for part in (model.second, model.last)]
    first = ht.DistributedOptimizer(momentum(tasks[0]), ctx, model)
    said = "the DistributedOptimizer of SGD that was made before exchanges 'first.weight', 'first.bias'.*close"
    for make in (rmsprop, momentum):
        with refuses(said):
            ht.DistributedOptimizer(make(tasks[1]), ctx, model)
    with refuses(said):
        ht.DiLoCo(momentum(model.parameters()), ctx, model, every=2)
    with refuses("'first.weight', 'first.bias', 'second.weight'"):
        ht.DistributedOptimizer(first._wrapped, ctx, model)
    first.close()
    second = ht.DistributedOptimizer(momentum(model.parameters()), ctx, model)
    del first
    gc.collect()  # what is left of the first takes nothing off the second
    with refuses("SGD that was made before"):
        ht.DistributedOptimizer(momentum(model.parameters()), ctx, model)
    cases.plain_step(model, second, data, 0)
    outer = ht.DiLoCo(second, ctx, model, every=2)
    with refuses("the DiLoCo of DistributedOptimizer"):
        ht.DiLoCo(second, ctx, model, every=2)
    outer.close()
    del second, outer
    third = ht.DistributedOptimizer(momentum(model.parameters()), ctx, model)
    cases.plain_step(model, third, data, 1)
    cases.check_bits(ctx, model)
    with ctx.shrink() as fresh:  # the exchange of the third is over
        fourth = ht.DistributedOptimizer(momentum(model.parameters()), fresh, model)
        cases.plain_step(model, fourth, Data(fresh, fresh.size), 2)


@case
def one_rank_refuses_for_all(ctx: hpcomm.Context) -> None:
    model = net()
    mine = [net(), model]
    kept = [ht.DistributedOptimizer(momentum(one.parameters()), ctx, one) for one in (mine[1], mine[0])]
    if ctx.rank == 0:
        kept[0]._let_go()
    with refuses("^rank 1: the Distributed" if ctx.rank == 0 else "^the DistributedOptimizer of SGD"):
        ht.DistributedOptimizer(momentum(model.parameters()), ctx, model)


@case
def a_dropped_optimizer_gives_all_back(ctx: hpcomm.Context) -> None:
    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    gc.collect()  # cases before this one have left memory in circles: its files would be closed at some time below
    models, before = [], files()
    every: list[dict[str, Any]] = [
        {},
        {"buffers": "average"},
        {"apply": "backward"},
        {"way": "factors", "batch": 16},
    ]
    for options in every:
        for make in [momentum] if options else [momentum, rmsprop]:
            model, data = nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)), Data(ctx, ctx.size)
            wrapped = make(model.parameters())
            optimizer = ht.DistributedOptimizer(wrapped, ctx, model, **options)
            cases.plain_step(model, optimizer, data, 0)
            optimizer.wait()
            models += [model, wrapped]
            windows = 2  # at most: the exchange's, and that of buffers="average"; peers may still ask for them
            assert files() <= before + windows, "an exchange in use costs more descriptors than its windows"
            gone: list[weakref.ref[Any]] = [weakref.ref(optimizer), weakref.ref(optimizer.exchange)]
            del optimizer
            gc.collect()
            assert [one() for one in gone] == [None, None], options
            assert files() == before, "a dropped exchange costs descriptors"
            assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
            assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
            F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()  # plain torch goes on
            wrapped.step()
            ctx.barrier()


@case
def a_dropped_optimizer_leaves_nobody_alone(ctx: hpcomm.Context) -> None:
    """Rank 0 drops it where rank 1 still needs what it owns; the exchange ends with the context."""

    def train(steps: int, **options: Any) -> None:
        model, data = net(), Data(ctx, ctx.size)
        optimizer = ht.DistributedOptimizer(momentum(model.parameters()), ctx, model, **options)
        for step in range(steps):
            cases.plain_step(model, optimizer, data, step)

    train(3, overlap=True)
    train(3)
    train(3 if ctx.rank else 1, consistency=hpcomm.ASYNC)
    ctx.close()
    assert not ctx._dropped


@case
def a_closed_context_comes_before_its_optimizer(ctx: hpcomm.Context) -> None:
    model, data = net(), Data(ctx, ctx.size)
    optimizer = ht.DistributedOptimizer(momentum(model.parameters()), ctx, model)
    cases.plain_step(model, optimizer, data, 0)
    seen, grad = model.first.weight.detach().numpy(), model.first.weight.grad.numpy()
    was = seen.copy(), grad.copy()
    optimizer.wait()
    ctx.close()
    optimizer.close()
    model_of = momentum(model.parameters())
    del optimizer
    gc.collect()
    np.testing.assert_array_equal(seen, was[0])
    np.testing.assert_array_equal(grad, was[1])
    model_of.zero_grad()
    F.cross_entropy(model(torch.ones(6, 10)), torch.zeros(6, dtype=torch.long)).backward()
    model_of.step()
    assert not np.array_equal(seen, was[0])  # an array of a parameter follows it
    np.testing.assert_array_equal(grad, was[1])


@pytest.mark.parametrize("name", cases.names(__name__))
def test_case(shm: list[dict[str, str]], name: str) -> None:
    assert [value[name] for value in shm] == [""] * 2


@pytest.mark.full
@pytest.mark.parametrize("name", cases.names(__name__, cases.EVERYWHERE))
def test_case_over_a_wire(wire: list[dict[str, str]], name: str) -> None:
    assert [value[name] for value in wire] == [""] * 3

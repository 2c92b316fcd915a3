"""Parameters on a device of their own: the bits of the CPU, by copies that come late (late.py)."""

import importlib
import mmap
import threading
from collections.abc import Callable
from typing import Any

import late
import mpi
import numpy as np
import pytest
import test_torch_failures
import test_torch_local
import torch
import torchcases
from torch import nn
from torch.nn import functional as F
from torchcases import OPTIMIZERS, Data, case, directory, momentum, names, net, refuses

import hpcomm
import hpcomm.torch as ht
from hpcomm.torch import device
from hpcomm.torch.pages import ranges

MODULES = (
    "test_torch",
    "test_torch_consistency",
    "test_torch_failures",
    "test_torch_habits",
    "test_torch_kept",
    "test_torch_local",
    "test_torch_models",
    "test_torch_only_pairs",
    "test_torch_saved",
    "test_torch_ways",
    "test_torch_waits",
)
STATES = {"sgd": 0, "momentum": 1, "nesterov": 1, "adam": 2, "adamw": 2}  # values of an element
# Cases that say what a device does not do, by the reason.
LEFT_OUT = {
    "the parameter or its gradient lies in the exchange": {
        "gradients_are_zeroed_either_way",
        "memory_of_the_exchange",
        "nothing_is_copied_where_nothing_is_kept",
        "bounded_staleness",
        "each_rank_clips_its_own_gradient",
        "a_scaler_skips_on_one_rank_alone",
        "one_rank_changes_its_own_gradient",
    },
    "parameters are written by p.data, which a device does not see": {"hooks_of_the_wrapped_optimizer_run"},
    "gradients are sparse": {"sparse_gradients"},
    "gradients are written while they are copied, and thrown away": {
        "what_is_thrown_away_may_be_changed",
        "what_would_train_wrongly_raises",
    },
}
for _module in MODULES:
    importlib.import_module(_module)
_LEFT_OUT = set().union(*LEFT_OUT.values())
ELSEWHERE = [(module, name) for module in MODULES for name in names(module) if name not in _LEFT_OUT]


def train(
    ctx: hpcomm.Context,
    make: Callable[[Any], Any] = momentum,
    dtype: Any = torch.float32,
    steps: int = 6,
    in_thread: bool = False,
    network: Callable[[], Any] = net,
    **options: Any,
) -> tuple[bytes, Any]:
    """The bits of a model after some steps, and the optimizer's counts."""
    model = network().to(dtype)
    optimizer = ht.DistributedOptimizer(make(model.parameters()), ctx, model, **options)
    data = Data(ctx, ctx.size)
    for _ in range(steps):
        optimizer.zero_grad()
        x, y = data.batch()
        loss = F.cross_entropy(model(x.to(dtype)).float(), y)
        if in_thread:  # as autograd computes for devices
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()
        else:
            loss.backward()
        optimizer.step()
    optimizer.wait()
    found = bits(model)
    counts = optimizer.stats()
    optimizer.close()
    return found, counts


def bits(model: Any) -> bytes:
    parts = [p.detach().contiguous().reshape(-1).view(torch.uint8).numpy() for p in model.parameters()]
    return np.concatenate(parts).tobytes()


def check(ctx: hpcomm.Context, **options: Any) -> Any:
    """The counts of a training on a late device, which has the bits of the CPU's."""
    here, _ = train(ctx, **options)
    with late.installed():
        there, counts = train(ctx, **options)
    assert here == there
    return counts


@case
def every_rule(ctx: hpcomm.Context) -> None:
    for name, make in OPTIMIZERS.items():
        counts = check(ctx, make=make)
        size = 4 * sum(p.numel() for p in net().parameters())
        assert counts.bytes_out == counts.bytes_in == 6 * size, name
        assert counts.seconds_out > 0
        assert counts.seconds_in > 0
        assert 0 <= counts.hidden < 1  # step waits for parameters
        assert counts.state_bytes == size * STATES[name], name


@case
def sixteen_bits_cross_as_sixteen(ctx: hpcomm.Context) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        counts = check(ctx, dtype=dtype)
        size = 2 * sum(p.numel() for p in net().parameters())
        assert counts.bytes_out == counts.bytes_in == 6 * size


@case
def every_way_to_step(ctx: hpcomm.Context) -> None:
    for options in (
        {"overlap": True},
        {"apply": "backward"},
        {"apply": "backward", "overlap": True},
        {"apply": "after"},
        {"clip_norm": 0.1},
        {"make": lambda p: torch.optim.Adagrad(p, lr=0.1)},
        {"topology": hpcomm.graphs.complete(2)},
        {"codec": "bf16"},
        {"codec": hpcomm.codec.TopK(0.1)},
        {"codec_out": "bf16"},
        {"reduce": "sum"},
        {"progress": "thread"},
    ):
        check(ctx, **options)


@case
def pairs_of_vectors(ctx: hpcomm.Context) -> None:
    """Also in another thread, as autograd computes for devices."""
    for way in torchcases.WAYS:
        check(ctx, network=torchcases.wide, **way)
        check(ctx, network=torchcases.wide, in_thread=True, clip_norm=0.1, **way)
    counts = check(ctx, network=torchcases.wide, way="factors", batch=torchcases.BATCH)
    assert counts.bytes_out < counts.bytes_in / 2


@case
def backward_in_another_thread(ctx: hpcomm.Context) -> None:
    check(ctx, in_thread=True)
    check(ctx, in_thread=True, apply="backward", overlap=True)


@case
def local_steps(ctx: hpcomm.Context) -> None:
    def run(dtype: Any, **options: Any) -> bytes:
        model = net().to(dtype)
        optimizer = ht.DiLoCo(momentum(model.parameters()), ctx, model, every=3, **options)
        data = Data(ctx, ctx.size)
        for _ in range(8):
            optimizer.zero_grad()
            x, y = data.batch()
            F.cross_entropy(model(x.to(dtype)).float(), y).backward()
            optimizer.step()
        optimizer.sync()
        optimizer.close()
        return bits(model)

    for dtype, options in ((torch.float32, {"mix": 0.5}), (torch.bfloat16, {"fragments": 2, "delay": 1})):
        here = run(dtype, **options)
        with late.installed():
            assert run(dtype, **options) == here


@case
def saved_here_and_restored_there(ctx: hpcomm.Context) -> None:
    with directory(ctx) as folder, late.installed():
        model = net()
        optimizer = ht.DistributedOptimizer(momentum(model.parameters()), ctx, model)
        data = Data(ctx, ctx.size)

        def step(model: Any, optimizer: Any, data: Data) -> None:
            optimizer.zero_grad()
            F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
            optimizer.step()

        with ht.ModelCheckpointer(optimizer, folder, every=3) as saver:
            for i in range(3):
                step(model, optimizer, data)
                saver.after(i + 1)
        state = optimizer.state_dict()
        step(model, optimizer, data)
        optimizer.close()
        again = net()
        other = ht.DistributedOptimizer(momentum(again.parameters()), ctx, again)
        found = ht.restore(other, folder)
        assert found is not None
        assert found.step == 3
        torchcases.check_state(other.state_dict(), state)
        data = Data(ctx, ctx.size)
        for _ in range(6):
            data.batch()
        step(again, other, data)
        other.close()
        assert bits(again) == bits(model)


@case
def what_a_device_does_not_take(ctx: hpcomm.Context) -> None:
    model = net()
    model.last.to("meta")
    with refuses("lies on meta: hpcomm.torch exchanges tensors of cpu"):
        ht.DistributedOptimizer(momentum(model.parameters()), ctx, model)
    with late.installed():
        words = nn.Embedding(8, 4, sparse=True)
        optimizer = ht.DistributedOptimizer(torch.optim.SGD(words.parameters(), lr=1), ctx, words)
        with refuses("is sparse, and lies on cpu: give its layer sparse=False"):
            words(torch.tensor([1])).sum().backward()
        optimizer.close()


@pytest.mark.parametrize("name", names(__name__))
def test_case(shm: list[dict[str, str]], name: str) -> None:
    for rank, told in enumerate(shm):
        assert not told[name], f"rank {rank}: {told[name]}"


@pytest.fixture(scope="module")
def late_job(request: pytest.FixtureRequest) -> list[dict[str, dict[str, str]]]:
    """By rank and module what went wrong in the cases of this run."""
    chosen: dict[str, list[str]] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and "late_job" in item.fixturenames:
            module, name = (str(item.callspec.params[what]) for what in ("module", "name"))
            chosen.setdefault(module, []).append(name)
    return torchcases.on_a_late_device(chosen)


@pytest.mark.some(12)
@pytest.mark.parametrize(("module", "name"), ELSEWHERE)
def test_case_on_a_late_device(late_job: list[dict[str, dict[str, str]]], module: str, name: str) -> None:
    for rank, told in enumerate(late_job):
        assert not told[module][name], f"rank {rank}: {told[module][name]}"


# ---- when ranks fail -------------------------------------------------------------------------------------------------


def with_late(body: Callable[..., Any], *args: Any) -> Any:
    late.install()
    return body(*args)


@pytest.mark.some(1)
@pytest.mark.parametrize("name", ["rule", "backward", "local", "graph"])
def test_the_others_go_on(name: str) -> None:
    ended = mpi.spawn(3, with_late, test_torch_failures.survive, name, check=False)
    assert ended.codes == [0, 0, -9], ended.err
    assert ended.values[:2] == [["(2,)", [2], True]] * 2


@pytest.mark.full
def test_others_go_on_with_what_they_have_learned() -> None:
    for host_trains in (False, True):
        ended = mpi.spawn(4, with_late, test_torch_local.survives, host_trains, check=False)
        assert ended.codes[:3] == [0, 0, 0], ended.err


@pytest.mark.full
def test_ctrl_c_ends_a_wait_and_loses_nothing() -> None:
    assert len(set(mpi.spawn(2, with_late, test_torch_failures.interrupt).values)) == 1


@pytest.mark.full
def test_a_rank_that_raises_in_backward_is_named() -> None:
    values = mpi.spawn(3, with_late, test_torch_failures.fail_in_backward).values
    assert [values[rank][0] for rank in (0, 2)] == [[1]] * 2


# ---- the device itself -----------------------------------------------------------------------------------------------


def test_a_late_device_finds_a_source_that_changes() -> None:
    one = late.Late(torch.device("cpu"))
    target, source = one.host_like(torch.zeros(8)), torch.ones(8)
    copy = late.Copy(one._wrong, target, source)
    assert target.isnan().all()
    source.add_(1)
    copy.make()
    with pytest.raises(AssertionError, match="changed under it"):
        copy.reached()


def test_a_late_device_takes_registered_memory_alone() -> None:
    one = late.Late(torch.device("cpu"))
    memory = np.zeros(100, np.float32)
    release = one.register([memory])
    copy = one.copy_out(torch.from_numpy(memory), torch.ones(100))
    copy.follow()
    assert (memory == 1).all()
    release()
    with pytest.raises(AssertionError, match="not registered"):
        one.copy_out(torch.from_numpy(memory), torch.ones(100))


def test_pages_side_by_side_are_one_range() -> None:
    memory = np.zeros(5 << 20, np.uint8)
    at, page = memory.ctypes.data, 4096
    found = list(ranges([memory[:10000], memory[10000 : 1 << 20], memory[3 << 20 :], memory[:0]]))
    assert len(found) == 2
    assert all(start % page == 0 and size % page == 0 for start, size in found)
    (low, low_size), (high, high_size) = found
    assert low <= at
    assert at + (1 << 20) <= low + low_size < at + (1 << 20) + page
    assert high <= at + (3 << 20)
    assert at + (5 << 20) <= high + high_size


def test_shared_memory_is_one_range() -> None:
    """However the kernel splits it, and whatever lies beside it."""
    page = mmap.PAGESIZE
    with mmap.mmap(-1, 16 * page) as whole:
        memory = np.frombuffer(whole, np.uint8)
        at = memory.ctypes.data
        assert list(ranges([memory[5 * page : 6 * page]])) == [(at, 16 * page)]
        whole.madvise(mmap.MADV_DONTFORK, 4 * page, 4 * page)  # as mbind does
        found = list(ranges([memory[5 * page + 8 : 6 * page], memory[:1], np.zeros(10)]))
        assert (at, 16 * page) in found
        assert len(found) == 2
        del memory


def test_parameters_of_one_device() -> None:
    params = {"a": torch.zeros(2), "b": torch.zeros(2, device="meta")}
    with pytest.raises(hpcomm.InvalidArgument, match="'b' lies on meta and 'a' on cpu: a rank has one device"):
        device.device_of(params)

"""DDP's communication hook: exact means, what codecs hold back, resuming, refusals, failures, threads."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import mpi
import pytest

torch = pytest.importorskip("torch")

import backend_jobs  # noqa: E402
from backend_jobs import NEEDED, run  # noqa: E402
from torch import nn  # noqa: E402

import hpcomm  # noqa: E402
import hpcomm.torch  # noqa: E402
from hpcomm import ParameterServer, PeerToPeer  # noqa: E402
from hpcomm.codec import ErrorFeedback, Factors, Float4, OneBit, Threshold, TopK  # noqa: E402

Tensor: Any = torch.Tensor
dist = torch.distributed
pytestmark = [pytest.mark.xdist_group("group torch hook"), NEEDED]
TOP = TopK(0.1, kernel="c")  # no rank compiles
SMALL = 0.0005  # of bucket_cap_mb: some buckets
EXACT = {  # codecs that send small whole numbers without rounding
    "none": None,
    "float32": "float32",
    "bfloat16": "bfloat16",
    "threshold": Threshold(0, decays=False, kernel="c"),
    "feedback": ErrorFeedback("bfloat16"),
}
HELD = {"topk": TOP, "onebit": OneBit(), "float4": ErrorFeedback(Float4()), "threshold": Threshold(0.05, kernel="c")}


def job(folder: str, *, backend: str = "gloo") -> Any:
    return backend_jobs.job(folder, name=backend)


class Whole(nn.Module):
    """A model whose gradients are small whole numbers, which differ between ranks and steps."""

    def __init__(self, dtype: Any = torch.float32) -> None:
        super().__init__()
        shapes = [(3, 5), (40,), (7, 9), (1,), (64, 3), (2, 3, 2, 2)]
        self.layers = nn.ParameterList([nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes])
        last = self.layers[-1]
        last.data = last.data.contiguous(memory_format=torch.channels_last)

    def forward(self, rank: int, step: int) -> Any:
        # Backward passes reach parameters in another order than the model has them, so DDP makes other buckets.
        order = [4, 0, 5, 2, 1, 3]
        return sum((self.layers[i] * whole(self.layers[i], i, rank, step)).sum() for i in order)


class OneOfTwo(nn.Module):
    """A model that uses one of its two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ParameterList([nn.Parameter(torch.zeros(2)) for _ in range(2)])

    def forward(self, layer: int) -> Any:
        return self.layers[layer].sum() * 4


def whole(like: Tensor, layer: int, rank: int, step: int) -> Tensor:
    return ((torch.arange(like.numel()) * 7 + 3 * rank + 5 * step + layer) % 8 - 4).reshape(like.shape).to(like.dtype)


def mean(like: Tensor, layer: int, step: int) -> Tensor:
    ranks = dist.get_world_size()
    return torch.stack([whole(like, layer, rank, step) for rank in range(ranks)]).sum(0) / ranks


def net() -> Any:
    torch.manual_seed(3)
    conv: Any = nn.Conv2d(2, 6, 2)
    conv.to(memory_format=torch.channels_last)
    return nn.Sequential(nn.Linear(10, 18), nn.Unflatten(1, (2, 3, 3)), conv, nn.ReLU(), nn.Flatten(), nn.Linear(24, 5))


def hooked(model: Any, codec: Any = None, ctx: Any = None, **options: Any) -> tuple[Any, Any]:
    """A DDP model with the hook, and the hook's state."""
    own = {name: options.pop(name) for name in ("topology", "codec_out", "timeout") if name in options}
    named = options.pop("named", True)
    ddp = nn.parallel.DistributedDataParallel(model, **{"bucket_cap_mb": SMALL, **options})
    state = hpcomm.torch.HookState(ctx, codec, model=ddp if named else None, **own)
    ddp.register_comm_hook(state, hpcomm.torch.allreduce_hook)
    return ddp, state


def trained(ddp: Any, steps: range) -> list[Tensor]:
    """The gradients of steps on random data of this rank."""
    found = []
    for step in steps:
        ddp.zero_grad()
        random = torch.Generator().manual_seed(10 * step + dist.get_rank())
        ddp(torch.randn(4, 10, generator=random)).square().sum().backward()
        found.append([p.grad.clone() for p in ddp.parameters()])
    return found


def same_on_all(tensors: list[Tensor]) -> bool:
    mine = torch.cat([one.detach().reshape(-1).float() for one in tensors])
    every = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return all(torch.equal(one, mine) for one in every)


# ---- means -----------------------------------------------------------------------------------------------------------


def means(folder: str) -> None:
    """The mean is exact, for every codec, option of DDP and dtype."""
    with job(folder):
        rank = dist.get_rank()
        cases: list[Any] = [(codec, torch.float32, {}) for codec in EXACT.values()]
        cases += [(None, torch.float64, {}), (None, torch.bfloat16, {}), ("float32", torch.bfloat16, {})]
        views = {"gradient_as_bucket_view": True}
        cases += [(codec, torch.float32, views) for codec in (None, EXACT["threshold"])]
        cases += [("float32", torch.float32, {"static_graph": True}), (None, torch.float32, {"bucket_cap_mb": 1})]
        cases += [("float32", torch.float32, {"topology": PeerToPeer()}), ("float32", torch.float32, {"named": False})]
        cases += [(EXACT["threshold"], torch.float32, {"topology": ParameterServer(apply_at="receivers")})]
        cases += [(EXACT["threshold"], torch.float32, {"codec_out": "bfloat16"})]
        for codec, dtype, options in cases:
            ddp, state = hooked(Whole(dtype), codec, **options)
            for step in range(4):
                ddp.zero_grad()
                ddp(rank, step).backward()
                for i, p in enumerate(ddp.module.layers):
                    expected = mean(p, i, step)
                    assert torch.equal(p.grad, expected), (codec, dtype, options, step, i, p.grad, expected)
            state.close()


def test_means_are_exact(tmp_path: Path) -> None:
    run(2, means, tmp_path)


def like_gloo(folder: str) -> None:
    """Weights of DDP over Gloo, step by step: each step's gradients depend on the weights."""
    with job(folder):
        rank = dist.get_rank()
        plain = nn.parallel.DistributedDataParallel(Whole(), bucket_cap_mb=SMALL)
        ddp, _ = hooked(Whole())
        for model in (plain, ddp):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            for step in range(5):
                optimizer.zero_grad()
                loss = model(rank, step)
                (loss + sum((p.detach().round() * p).sum() for p in model.parameters())).backward()
                optimizer.step()
        for ours, theirs in zip(ddp.parameters(), plain.parameters(), strict=True):
            assert torch.equal(ours, theirs)
            assert ours.any()


def test_weights_are_those_of_ddp_over_gloo(tmp_path: Path) -> None:
    run(4, like_gloo, tmp_path)


def accumulated(folder: str) -> None:
    """no_sync sends nothing; the next pass sends the sum. A parameter that a step does not use has the others' mean."""
    with job(folder):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        for codec in (None, "float32"):
            ddp, _ = hooked(Whole(), codec)
            for step in (0, 2, 4):
                ddp.zero_grad()
                with ddp.no_sync():
                    ddp(rank, step).backward()
                assert torch.equal(ddp.module.layers[1].grad, whole(ddp.module.layers[1], 1, rank, step))
                ddp(rank, step + 1).backward()
                for i, p in enumerate(ddp.module.layers):
                    assert torch.equal(p.grad, mean(p, i, step) + mean(p, i, step + 1)), (codec, step, i)
            model = OneOfTwo()
            ddp, _ = hooked(model, codec, find_unused_parameters=True)
            for step in range(3):
                ddp.zero_grad()
                ddp((rank + step) % 2).backward()
                assert [p.grad.tolist() for p in model.layers] == [[4 / ranks] * 2] * 2
            with ddp.join():
                for _ in range(2 + rank):
                    ddp.zero_grad()
                    ddp(0).backward()
            assert model.layers[0].grad.tolist() == [4 / ranks if rank else 4.0] * 2


def test_accumulation_unused_parameters_and_uneven_inputs(tmp_path: Path) -> None:
    run(2, accumulated, tmp_path)


# ---- what codecs hold back -------------------------------------------------------------------------------------------


def conserved(folder: str) -> None:
    """What was applied and what is held back are together all gradients, by parameter, over rebuilt buckets."""
    with job(folder):
        ranks = dist.get_world_size()
        for name, codec in HELD.items():
            plain = nn.parallel.DistributedDataParallel(net(), bucket_cap_mb=SMALL)
            ddp, state = hooked(net(), codec)
            buckets: list[list[int]] = []
            reduce = state._reduce

            def watched(bucket: Any, to: Any = buckets, reduce: Any = reduce) -> Any:
                to.append([id(p) for p in bucket.parameters()])
                return reduce(bucket)

            state._reduce = watched
            due = trained(plain, range(6))
            came = trained(ddp, range(6))
            count = len(buckets) // 6
            assert buckets[:count] != buckets[-count:], "DDP has not rebuilt its buckets"
            residuals = state.state_dict()["residuals"]
            assert {*residuals} == {key for key, _ in ddp.module.named_parameters()}
            for i, (key, p) in enumerate(ddp.module.named_parameters()):
                held = residuals[key].clone()
                assert held.shape == p.shape
                dist.all_reduce(held)
                total, sent = (sum(step[i] for step in steps) for steps in (due, came))
                assert torch.allclose(sent + held / ranks, total, atol=1e-5), (name, key)
                if p.dim() > 1:
                    assert not torch.allclose(sent, total, atol=1e-3), (name, key, "nothing was held back")
            assert same_on_all(came[-1])
            state.close()


def test_nothing_is_lost_while_ddp_rebuilds_its_buckets(tmp_path: Path) -> None:
    run(2, conserved, tmp_path)


def resumed(folder: str) -> None:
    """Four steps, and two steps, a save and two more, have the same bits."""
    with job(folder):
        hosts = ParameterServer(apply_at="receivers")
        cases: list[Any] = [(codec, {}) for codec in HELD.values()] + [(TOP, {"topology": hosts}), (None, {})]
        cases.append((OneBit(), {"named": False}))
        for codec, options in cases:
            ddp, state = hooked(net(), codec, **options)
            first, last = trained(ddp, range(3)), trained(ddp, range(3, 6))
            del first
            state.close()
            ddp, state = hooked(net(), codec, **options)
            trained(ddp, range(3))
            path = f"{folder}/{dist.get_rank()}"
            torch.save(state.state_dict(), path)
            state.close()
            ddp, state = hooked(net(), codec, **{**options, "bucket_cap_mb": 1})  # one bucket
            state.load_state_dict(torch.load(path, weights_only=True))
            assert {*state.state_dict()} == {*torch.load(path, weights_only=True)}
            again = trained(ddp, range(3, 6))
            for mine, before in zip(again, last, strict=True):
                assert all(map(torch.equal, mine, before)), (codec, options)
            if codec is not None:  # into a state that has run
                state.load_state_dict(torch.load(path, weights_only=True))
                again = trained(ddp, range(3, 6))
                assert all(map(torch.equal, again[-1], last[-1])), (codec, options)
            state.close()


def test_a_resumed_run_has_the_bits_of_an_unbroken_one(tmp_path: Path) -> None:
    run(2, resumed, tmp_path)


# ---- refusals --------------------------------------------------------------------------------------------------------


def refused(folder: str) -> list[str]:
    told = []
    hook: Any = hpcomm.torch
    with job(folder):
        rank = dist.get_rank()

        def first_pass(model: Any, *args: Any, x: Any = None, **options: Any) -> Callable[[], None]:
            def begin() -> None:
                ddp, _ = hooked(model, *args, **options)
                ddp(torch.ones(2, 10, dtype=next(model.parameters()).dtype) if x is None else x).sum().backward()

            return begin

        other = hpcomm.torch.HookState(None, TOP)
        wrong = {"format": 1, "rank": 1 - rank, "ranks": 2}
        lost = {
            "format": 1,
            "rank": rank,
            "ranks": 2,
            "residuals": {"gone": torch.ones(1)},
            "encoders": {},
            "folds": {},
        }

        def loads() -> None:
            ddp, state = hooked(net(), TOP)
            if rank == 1:
                trained(ddp, range(1))
                state.load_state_dict({**lost, "residuals": {}})
            else:
                trained(ddp, range(1))
                state.load_state_dict(lost)

        calls: list[Callable[[], Any]] = [
            first_pass(net(), "bf17"),
            first_pass(net(), Factors(2)),
            first_pass(net(), {"0.weight": "bfloat16"}, named=False),
            first_pass(net(), {"9.weight": "bfloat16"}),
            first_pass(net(), codec_out="bfloat16"),
            first_pass(net(), TOP, topology=hpcomm.graphs.ring(2)),
            first_pass(net(), TOP, topology=ParameterServer("NCC")),
            first_pass(net().double(), TOP),
            first_pass(net(), None, hpcomm.init()),
            first_pass(net(), None if rank else TOP),
            first_pass(net(), OneBit() if rank else TOP),
            first_pass(nn.Embedding(10, 3, sparse=True), None, x=torch.tensor([1])),
            first_pass(net(), None, 3),
            lambda: hook.HookState(model=3),
            lambda: hook.allreduce_hook(None, None),
            lambda: other.load_state_dict(wrong),
            loads,
        ]
        for call in calls:
            try:
                call()
                told.append("nothing")
            except (hpcomm.HpcommError, TypeError) as error:
                told.append(f"{type(error).__name__}: {error}")
    return told


def test_wrong_arguments_are_refused_on_every_rank(tmp_path: Path) -> None:
    expected = [
        "codec of 'all parameters' is 'bf17'",
        "codec is Factors(2)",
        "give model=ddp, which has the names",
        "'9.weight'",
        "codec_out is given without a codec",
        "no graph",
        "ranks [0] would only serve",
        "'0.weight' is torch.float64",
        "ctx has 1 ranks, and DDP's process group has 2",
        "has a codec or a loaded state where others have none",
        "onebit on rank 1 and topk on rank 0",
        "is sparse: give its layer sparse=False",
        "must be a Context (hpcomm.init()), a process group, or None",
        "model is a int",
        "state is a NoneType",
        "each rank loads its own",
        "'gone', which is no parameter",
    ]
    for told in run(2, refused, tmp_path).values:
        for sentence, one in zip(expected, told, strict=True):
            assert sentence in one, (sentence, one)


# ---- failures --------------------------------------------------------------------------------------------------------


def dies(folder: str, coded: bool) -> Any:
    with job(folder):
        ddp, _ = hooked(net(), TOP if coded else None)
        trained(ddp, range(3))
        backend_jobs.dies(1)
        started = time.monotonic()
        try:
            trained(ddp, range(3, 4))
        except hpcomm.PeerFailed as failed:
            return [list(failed.ranks), str(failed), time.monotonic() - started]
    return None


@pytest.mark.parametrize("coded", [False, True])
def test_a_killed_rank_is_named_by_backward(tmp_path: Path, coded: bool) -> None:
    ended = run(3, dies, tmp_path, coded, check=False)
    for rank in (0, 2):
        ranks, text, waited = ended.values[rank]
        assert ranks == [1]
        assert "allreduce_hook: rank 1 failed" in text
        assert waited < 10


def late(folder: str, coded: bool) -> Any:
    with job(folder):
        ddp, state = hooked(net(), TOP if coded else None, timeout=0.5)
        trained(ddp, range(2))
        store = dist.distributed_c10d._get_default_store()
        if dist.get_rank() == 1:
            store.wait(["told"], timedelta(seconds=30))
            return None
        try:
            trained(ddp, range(2, 3))
        except hpcomm.Timeout as failed:
            return [list(failed.waiting_for), str(failed)]
        finally:
            store.set("told", "")
            state.context.abort("the test is over")
    return None


@pytest.mark.parametrize("coded", [False, True])
def test_a_late_rank_is_named_by_backward(tmp_path: Path, coded: bool) -> None:
    ranks, text = run(2, late, tmp_path, coded).values[0]
    assert ranks == [1]
    assert "allreduce_hook: nothing came from rank 1 in 0.5 s" in text


def cut(folder: str, coded: bool) -> Any:
    """Rank 0's backward pass raises when its first bucket waits for rank 1, which never comes."""
    with job(folder):
        ddp, state = hooked(net(), "float32" if coded else None, timeout=30)
        trained(ddp, range(2))
        if dist.get_rank() == 1:
            dist.barrier()
            state.close()
            return None
        reduce = state._reduce
        sent: list[Any] = []

        def fails(bucket: Any) -> Any:
            if sent:
                raise ZeroDivisionError("the backward pass is cut short")
            sent.append(reduce(bucket))
            return sent[0]

        state._reduce = fails
        with pytest.raises(ZeroDivisionError):
            trained(ddp, range(2, 3))
        started = time.monotonic()
        state.close()
        waited = time.monotonic() - started
        dist.barrier()
        return waited


@pytest.mark.parametrize("coded", [False, True])
def test_close_does_not_wait_for_a_pass_that_was_cut_short(tmp_path: Path, coded: bool) -> None:
    assert run(2, cut, tmp_path, coded).values[0] < 15


# ---- threads, groups and names ---------------------------------------------------------------------------------------


def threads(folder: str) -> None:
    """A hook returns before other ranks send, but for the last bucket's. One thread at most; none for one bucket."""
    with job(folder):
        rank, before = dist.get_rank(), threading.active_count()
        ddp, state = hooked(net(), bucket_cap_mb=25)
        trained(ddp, range(3))
        assert threading.active_count() == before
        for codec in (None, "float32"):
            ddp, state = hooked(net(), codec)
            assert threading.active_count() == before
            trained(ddp, range(2))
            reduce, told = state._reduce, Path(folder, f"returned {codec}")

            def watched(bucket: Any, reduce: Any = reduce, told: Path = told) -> Any:
                until = time.monotonic() + 10
                while rank == 1 and not told.exists():
                    assert time.monotonic() < until, "rank 0's first hook waits for rank 1"
                    time.sleep(0.001)
                future = reduce(bucket)
                if rank == 0:
                    told.touch()
                return future

            state._reduce = watched
            trained(ddp, range(2, 4))
            assert threading.active_count() == before + 1
            state.close()
            assert threading.active_count() == before


def test_hooks_overlap_by_one_thread(tmp_path: Path) -> None:
    run(2, threads, tmp_path)


def groups(folder: str) -> list[Any]:
    """A context of the trainer, a smaller group, and DDP over the backend hpcomm."""
    with job(folder, backend="hpcomm"):
        world: Any = mpi.world()
        pair = dist.new_group([0, 1], backend="gloo")
        with hpcomm.init(world) as ctx:
            ddp, state = hooked(net(), TopK(0.5, kernel="c"), ctx, named=False)
            assert same_on_all(trained(ddp, range(3))[-1])
            state.close()
            assert ctx.allreduce(1) == world.size  # the trainer's context stays open
        names = [*state.state_dict()]
        if world.rank < 2:
            ddp, state = hooked(net(), "float32", pair, process_group=pair)
            assert state.context.size == 2
            grads = trained(ddp, range(2))[-1]
            for p, grad in zip(ddp.parameters(), grads, strict=True):
                other = grad.clone()
                dist.broadcast(other, 0, group=pair)
                assert torch.equal(other, p.grad)
            state.close()
        ddp, state = hooked(net())  # rank 2 has made fewer hooks
        assert same_on_all(trained(ddp, range(2))[-1])
        state.close()
        return names


def test_contexts_and_groups(tmp_path: Path) -> None:
    run(3, groups, tmp_path)


def unnamed(folder: str) -> list[list[str]]:
    """Names of parameters without a model do not depend on buckets."""
    with job(folder):
        found = []
        for cap, unused in ((SMALL, True), (25, True), (SMALL, False)):
            model = net()
            model[2].bfloat16()
            model[2].register_forward_pre_hook(lambda _, x: x[0].bfloat16())
            model[2].register_forward_hook(lambda _, __, y: y.float())
            ddp, state = hooked(model, TOP, named=False, bucket_cap_mb=cap, find_unused_parameters=unused)
            trained(ddp, range(2))
            residuals = state.state_dict()["residuals"]
            found.append([f"{name} {tuple(residuals[name].shape)}" for name in sorted(residuals)])
            state.close()
    return found


def test_names_without_a_model(tmp_path: Path) -> None:
    for small, large, rebuilt in run(2, unnamed, tmp_path).values:
        assert small == large == rebuilt
        assert small[:3] == ["bfloat16.0 (6, 2, 2, 2)", "bfloat16.1 (6,)", "float32.0 (18, 10)"]

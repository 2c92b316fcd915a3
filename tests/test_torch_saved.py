"""What is saved of a training is all of it, of one step, and comes back as it was, or is refused when it is saved."""

import io
import pickletools
import zipfile
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
import torchcases as cases
from test_torch_local import Mates
from torchcases import Data, F, case, check_bits, directory, momentum, net, nn, refuses, torch

import hpcomm
import hpcomm.torch as ht
from hpcomm.torch.uneven import job_step

pytestmark = pytest.mark.xdist_group("group torch")  # one job for all tests

LR = torch.optim.lr_scheduler


def ones() -> Any:
    """Each step by SGD(lr=1) takes 1 from both weights, of which each rank owns one."""
    model = nn.ModuleList([nn.Linear(1, 1, bias=False) for _ in range(2)])
    for p in model.parameters():
        nn.init.zeros_(p)
    return model


def one_step(ctx: hpcomm.Context, model: Any, optimizer: Any, size: int) -> None:
    optimizer.zero_grad()
    (sum(layer(torch.ones(1, 1)).sum() for layer in model) * (size if ctx.rank == 0 else 0)).backward()
    optimizer.step()


# ---- one step of the job ---------------------------------------------------------------------------------------------


@case
def ranks_of_unequal_batches_save_one_step(ctx: hpcomm.Context) -> None:
    """Trainers count their own steps, or the job's, or call after once an epoch."""
    batches = [(3, 1), (3, 2), (3, 3)]  # in which rank 0 has a gradient
    for count, overlap in (("own", False), ("own", True), ("job", False), ("epochs", False)):
        with directory(ctx) as folder:

            def made(overlap: bool = overlap) -> tuple[Any, Any]:
                model = ones()
                sgd = torch.optim.SGD(model.parameters(), lr=1.0)
                return model, ht.DistributedOptimizer(sgd, ctx, model, overlap=overlap)

            model, optimizer = made()
            done = 0
            with ht.ModelCheckpointer(optimizer, folder, every=1 if count == "epochs" else 2, keep=9) as saver:
                for epoch, own in enumerate(batches):
                    with ht.join(optimizer):
                        for _ in range(own[ctx.rank]):
                            one_step(ctx, model, optimizer, 2)
                            done += 1
                            if count != "epochs":
                                step = done if count == "own" else optimizer.stats().steps
                                saver.after(step, lambda done=done: {"done": done})
                    if count == "epochs":
                        saver.after(epoch + 1, {"done": done})
            optimizer.close()
            ctx.barrier()
            for step in (1, 2, 3) if count == "epochs" else (2, 4, 6, 8):
                again, second = made()
                found = ht.restore(second, folder, step)
                assert found is not None
                second.wait()
                weights = [float(p) for p in again.parameters()]
                assert weights == [-3.0 * step if count == "epochs" else -float(step)] * 2, (count, step, weights)
                assert ctx.rank or count == "epochs" or found.extra == {"done": step}
                second.close()


@case
def after_a_join_block_ranks_agree_on_the_step(ctx: hpcomm.Context) -> None:
    model = ones()
    optimizer = ht.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), ctx, model)
    with directory(ctx) as folder, ht.ModelCheckpointer(optimizer, folder, every=1) as saver:
        with ht.join(optimizer):
            for _ in range(2 + ctx.rank):
                one_step(ctx, model, optimizer, 2)
        one_step(ctx, model, optimizer, 2)
        saver.after(3 + ctx.rank)  # of rank 0's own steps, of which it has followed one
        with pytest.raises(hpcomm.InvalidArgument, match="ranks give steps 7, 9 at the same step of the job: count"):
            saver.after(7 + 2 * ctx.rank)
        saver._finish()
        ctx.barrier()
        found = ht.restore(optimizer, folder)
        assert found is not None
        assert found.step == 4
    optimizer.close()
    learned = ht.DiLoCo(torch.optim.SGD(model.parameters(), lr=1.0), ctx, model, every=2)
    with directory(ctx) as folder, ht.ModelCheckpointer(learned, folder, every=5) as saver:
        with ht.join(learned):
            for i in range(4 - ctx.rank):
                one_step(ctx, model, learned, 2)
                if i == 0:
                    with pytest.raises(hpcomm.NotSupported, match="in a join block of a DiLoCo, where ranks"):
                        saver.after(1)
        one_step(ctx, model, learned, 2)
        assert saver.after(5 - ctx.rank)
        saver._finish()
        ctx.barrier()
        found = ht.restore(learned, folder)
        assert found is not None
        assert found.step == 5
    learned.close()


@case
def a_checkpoint_of_no_step_brings_no_state(ctx: hpcomm.Context) -> None:
    """Functions of torch that find none make one."""
    for steps in (0, 1):
        model = ones()
        optimizer, again = (ht.DistributedOptimizer(torch.optim.Adam(m.parameters()), ctx, m) for m in (model, ones()))
        for _ in range(steps):
            one_step(ctx, model, optimizer, 2)
        with directory(ctx) as folder:
            with ht.ModelCheckpointer(optimizer, folder, every=1) as saver:
                saver.after(1)
            ctx.barrier()
            ht.restore(again, folder)
        assert len(again.state) == len(optimizer.state) == 2 * steps
        optimizer.close(), again.close()


@pytest.mark.parametrize(
    ("told", "step"),
    [
        ([(4, 0, 3), (2, 2, 3)], 4),
        ([(2, 2, 3)], 4),
        ([(4, 0, 3), (4, 2, 3)], 4),
        ([(5, 2, 6), (5, 2, 6)], 7),
        ([(1, 0, 5)], 1),
    ],
    ids=["own steps", "own, one runs", "the job's", "own, as many", "what after refuses"],
)
def test_the_step_of_a_job(told: list[tuple[int, int, int]], step: int) -> None:
    assert job_step(told) == step


# ---- values ----------------------------------------------------------------------------------------------------------


class Level(IntEnum):
    HIGH = 1


@case
def schedulers_go_on(ctx: hpcomm.Context) -> None:
    """Some have int keys, Counters, functions' names and infinities in their state."""
    kinds = {
        "multi": lambda o: LR.MultiStepLR(o, [3, 6, 6], gamma=0.5),
        "sequential": lambda o: LR.SequentialLR(
            o, [LR.LinearLR(o, 0.5, total_iters=2), LR.MultiStepLR(o, [4, 5], gamma=0.1)], [2]
        ),
        "one cycle": lambda o: LR.OneCycleLR(o, 0.2, total_steps=12),
        "plateau": lambda o: LR.ReduceLROnPlateau(o, patience=0, factor=0.5),
    }

    def made() -> tuple[Any, dict[str, Any], Any]:
        model = ones()
        groups = [{"params": [p]} for p in model.parameters()]
        optimizer = ht.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1, momentum=0.9), ctx, model)
        plain = {name: torch.optim.SGD([torch.zeros(1)], lr=0.1) for name in kinds}
        return optimizer, {name: kinds[name](own) for name, own in plain.items()}, model

    def rates(schedulers: dict[str, Any], steps: int) -> list[list[float]]:
        found = []
        for _ in range(steps):
            for name, own in schedulers.items():
                own.step(1.0) if name == "plateau" else own.step()
            found.append([own.optimizer.param_groups[0]["lr"] for own in schedulers.values()])
        return found

    with directory(ctx) as folder:
        optimizer, schedulers, model = made()
        with ht.ModelCheckpointer(optimizer, folder, every=1) as saver:
            rates(schedulers, 3)
            one_step(ctx, model, optimizer, 2)
            given = {name: own.state_dict() for name, own in schedulers.items()}
            given["rates"] = {name: own.optimizer.state_dict() for name, own in schedulers.items()}
            saver.after(1, given)
        ctx.barrier()
        want = rates(schedulers, 6)
        second, again, _ = made()
        found = ht.restore(second, folder)
        assert found is not None
        assert found.extra == given
        for name, own in again.items():
            own.optimizer.load_state_dict(found.extra["rates"][name])
            own.load_state_dict(found.extra[name])
        assert rates(again, 6) == want
        optimizer.close(), second.close()


@case
def every_value_of_param_groups_comes_back_or_is_refused(ctx: hpcomm.Context) -> None:
    odd = {"rate": np.float32(0.5), "turns": range(3), "by": {1: (2, 3)}, "kind": torch.float16, "at": np.arange(3)}

    def made(**more: Any) -> tuple[Any, Any]:
        model = net()
        return model, ht.DistributedOptimizer(momentum(model.parameters(), **more), ctx, model)

    with directory(ctx) as folder:
        model, optimizer = made()
        group = optimizer.param_groups[0]
        group.update(odd, lr=np.float64(0.125))
        data = Data(ctx, ctx.size)
        cases.plain_step(model, optimizer, data, 0)
        with ht.ModelCheckpointer(optimizer, folder, every=1) as saver:
            saver.after(1, {"random": torch.get_rng_state(), "by rank": {ctx.rank: 1}})
            group["level"] = Level.HIGH
            with refuses(r"the model\['optimizer'\]\['param_groups'\]\[0\]\['level'\] is a Level"):
                saver.after(2)
            del group["level"]
        ctx.barrier()
        again, second = made()
        found = ht.restore(second, folder)
        assert found is not None
        assert found.extra["by rank"] == {ctx.rank: 1}
        assert torch.equal(found.extra["random"], torch.get_rng_state())
        own = second.param_groups[0]
        assert type(own["lr"]) is np.float64
        assert own["lr"] == 0.125
        for name, value in odd.items():
            assert type(own[name]) is type(value), name
            assert np.array_equal(own[name], value) if name == "at" else own[name] == value, name
        for p, q in zip(model.parameters(), again.parameters(), strict=True):
            assert torch.equal(p, q)
        optimizer.close(), second.close()


@case
def a_trained_optimizer_is_wrapped_with_every_value(ctx: hpcomm.Context) -> None:
    for make in (momentum, torch.optim.RMSprop):
        model = net()
        plain = make(model.parameters())
        for rate in (np.float64(0.25), 0.125):
            plain.param_groups[0].update(lr=rate, turns=range(ctx.rank), seen=np.float32(ctx.rank))
            F.cross_entropy(model(torch.ones(2, 10)), torch.tensor([0, 1])).backward()
            plain.step()
        plain.param_groups[0]["lr"] = np.float64(0.125)
        optimizer = ht.DistributedOptimizer(plain, ctx, model)
        assert type(optimizer.param_groups[0]["lr"]) is np.float64
        assert optimizer.param_groups[0]["turns"] == range(0)
        cases.plain_step(model, optimizer, Data(ctx, ctx.size), 0)
        check_bits(ctx, model)
        optimizer.close()
    plain.param_groups[0]["level"] = Level.HIGH
    with refuses(("rank 0: " if ctx.rank else "^") + r"the state of the optimizer\['param_groups'\]\[0\]\['l"):
        ht.DistributedOptimizer(plain, ctx, model)
    del plain.param_groups[0]["level"]
    groups = [{"params": [p]} for p in model.parameters()]
    with refuses("the optimizer of rank 1 does not take the state of rank 0's: loaded state dict has a different numb"):
        ht.DistributedOptimizer(torch.optim.RMSprop(groups) if ctx.rank else plain, ctx, model)


# ---- the model -------------------------------------------------------------------------------------------------------


class Mixed(nn.Module):
    """Layers that the optimizer has not, and buffers that are saved and that are not."""

    def __init__(self, seed: int, table: int = 4) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.frozen, self.norm, self.last = nn.Linear(10, 6), nn.BatchNorm1d(6), nn.Linear(6, 4)
        self.frozen.requires_grad_(False)
        self.register_buffer("table", torch.arange(table) * float(seed), persistent=False)
        self.seen: Any = {seed: (seed,)}

    def get_extra_state(self) -> Any:
        return self.seen

    def set_extra_state(self, state: Any) -> None:
        self.seen = state

    def forward(self, x: Any) -> Any:
        return self.last(self.norm(self.frozen(x)))


def tensors(model: Any) -> dict[str, Any]:
    return {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}


def wrapped(model: Any, how: str) -> Any:
    if how == "compile":
        return torch.compile(model, backend="eager")
    return nn.DataParallel(model) if how == "parallel" else model


@case
def names_have_no_prefixes_of_wrappers_compile(ctx: hpcomm.Context) -> None:
    """A checkpoint of a compiled model goes on in a plain one, and the other way round."""
    ways = [("compile", ""), ("", "compile"), ("parallel", "compile"), ("", "parallel")]
    for make, (before, after) in zip((momentum, torch.optim.RMSprop, momentum, momentum), ways, strict=True):
        with directory(ctx) as folder:

            def made(seed: int, how: str, table: int = 4, make: Any = make) -> tuple[Any, Any, Any]:
                model = Mixed(seed, table)
                net = wrapped(model, how)
                trained = [p for p in model.parameters() if p.requires_grad]
                return model, net, ht.DistributedOptimizer(make(trained), ctx, net)

            model, run, optimizer = made(1, before)
            data = Data(ctx, ctx.size)
            with ht.ModelCheckpointer(optimizer, folder, every=2) as saver:
                for step in range(2):
                    cases.plain_step(run, optimizer, data, step)
                    saver.after(step + 1)
            optimizer.close()
            ctx.barrier()
            again, _, second = made(2, after, 7)
            found = ht.restore(second, folder)
            assert found is not None
            for name, value in tensors(model).items():  # frozen layers and buffers too
                assert torch.equal(value, tensors(again)[name]), name
            assert again.seen == {1: (1,)}
            assert torch.equal(again.table, torch.arange(7) * 2.0), "the program's own"
            second.close()


@case
def another_model_is_refused_before_anything_changes(ctx: hpcomm.Context) -> None:
    def made(change: Any = None) -> tuple[Any, Any]:
        model = Mixed(1)
        if change is not None:
            change(model)
        return model, ht.DistributedOptimizer(momentum(model.last.parameters()), ctx, model)

    def shorter(model: Any) -> None:
        model.norm.running_mean = torch.zeros(1)

    changes = [
        (lambda m: m.register_buffer("more", torch.ones(2)), "the model has buffer 'more', and the checkpoint has not"),
        (
            lambda m: m.norm.__delattr__("running_var"),
            "has buffer 'norm.running_var', and the model has not",
        ),
        (shorter, r"buffer 'norm.running_mean' is \(1,\) here and \(6,\) in the checkpoint"),
        (lambda m: setattr(m, "frozen", None), "has parameter 'frozen.weight', and the model has not"),
    ]
    with directory(ctx) as folder:
        model, optimizer = made()
        with torch.no_grad():
            model.last.bias += 1
        with ht.ModelCheckpointer(optimizer, folder, every=1) as saver:
            saver.after(1)
        optimizer.close()
        ctx.barrier()
        for change, sentence in changes:
            other, second = made(change)
            before = {name: value.clone() for name, value in tensors(other).items()}
            with refuses(sentence):
                ht.restore(second, folder)
            assert all(torch.equal(value, before[name]) for name, value in tensors(other).items())
            second.close()
        other, second = made()
        with hpcomm.Checkpointer(second.exchange, folder / "exchange", every=1) as plain:
            plain.after(1)
        ctx.barrier()
        with refuses("the checkpoint has no model: hpcomm.Checkpointer saved it"):
            ht.restore(second, folder / "exchange")
        second.close()


@case
def what_is_written_into_16_bits_is_saved(ctx: hpcomm.Context) -> None:
    """Between two steps; and by an exchange of local steps over an inner DistributedOptimizer."""

    def made(dtype: Any, **more: Any) -> tuple[Any, Any]:
        model = net().to(dtype)
        return model, ht.DistributedOptimizer(momentum(model.parameters()), ctx, model, **more)

    def step(model: Any, optimizer: Any) -> None:
        optimizer.zero_grad()
        x, y = Data(ctx, ctx.size).batch()
        F.cross_entropy(model(x.to(next(model.parameters()).dtype)).float(), y).backward()
        optimizer.step()

    for dtype, more in ((torch.bfloat16, {}), (torch.float16, {"overlap": True}), (torch.float32, {})):
        model, optimizer = made(dtype, **more)
        for _ in range(2):
            step(model, optimizer)
            optimizer.wait()
            with torch.no_grad():
                model.first.weight.clamp_(-0.05, 0.05)
        want = [p.detach().clone() for p in model.parameters()]
        with directory(ctx) as folder:
            with ht.ModelCheckpointer(optimizer, folder, every=1) as saver:
                saver.after(1)
            ctx.barrier()
            restored, second = made(dtype)
            ht.restore(second, folder)
        loaded, third = made(dtype)
        loaded.load_state_dict(model.state_dict())
        third.load_state_dict(optimizer.state_dict())
        for other, its in ((restored, second), (loaded, third)):
            assert all(torch.equal(p, q) for p, q in zip(want, other.parameters(), strict=True)), dtype
            step(other, its)
        step(model, optimizer)
        optimizer.wait()
        for other, its in ((restored, second), (loaded, third)):
            assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True)), dtype
            its.close()
        optimizer.close()
    for last in (5, 6):
        models = []
        host = hpcomm.init(Mates(ctx, 1), timeout=20)
        state = weights = None
        for _ in range(2):
            model = net().to(torch.bfloat16)
            inner = ht.DistributedOptimizer(momentum(model.parameters()), host, model)
            outer = ht.DiLoCo(inner, ctx, model, every=3)
            for _ in range(last if state is None else 0):
                step(model, outer)
            if state is None:
                state, weights = outer.state_dict(), {name: p.clone() for name, p in model.state_dict().items()}
            else:
                model.load_state_dict(weights)
                outer.load_state_dict(state)
                inner.wait()
            models.append(model)
            outer.close(), inner.close()
        for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
            assert torch.equal(p, q), last
        host.close()


@case
def counts_of_steps_are_exact_in_any_default_dtype(ctx: hpcomm.Context) -> None:
    model = ones()
    optimizer = ht.DistributedOptimizer(torch.optim.Adam(model.parameters()), ctx, model)
    for _ in range(261):
        one_step(ctx, model, optimizer, 2)
    try:
        for default, counts in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
            torch.set_default_dtype(default)
            steps = [own["step"] for own in optimizer.state_dict()["state"].values()]
            assert [(int(step), step.dtype) for step in steps] == [(261, counts)] * 2
            optimizer.load_state_dict(optimizer.state_dict())
    finally:
        torch.set_default_dtype(torch.float32)
    optimizer.close()


@case
def a_saved_model_is_plain_torch(ctx: hpcomm.Context) -> None:
    """torch.save of the whole model leaves no class of hpcomm in the file, also of one layer of it."""
    options: list[dict[str, Any]] = [{}, {"overlap": True}, {"way": "factors", "batch": cases.BATCH}]
    for more in options:
        model = net()
        own = model.register_forward_hook(min)  # a user's, which stays
        own.remove()
        model.first.register_forward_hook(print_nothing)
        optimizer = ht.DistributedOptimizer(momentum(model.parameters()), ctx, model, **more)
        cases.plain_step(model, optimizer, Data(ctx, ctx.size), 0)
        optimizer.wait()
        for one in (model, model.first):
            file = io.BytesIO()
            torch.save(one, file)
            names = pickled_names(file)
            assert names, "it was read"
            assert not [name for name in names if name.startswith("hpcomm")], names
            file.seek(0)
            again = torch.load(file, weights_only=False)
            layer = again.first if one is model else again
            assert list(layer._forward_hooks.values()) == [print_nothing]
            assert not layer._forward_pre_hooks
            assert "__reduce_ex__" not in layer.__dict__
            for name, value in again.state_dict().items():
                assert torch.equal(value, one.state_dict()[name])
        cases.plain_step(model, optimizer, Data(ctx, ctx.size), 1)  # its own hooks have stayed
        optimizer.wait()
        check_bits(ctx, model)
        optimizer.close()
        assert "__reduce_ex__" not in model.__dict__


def print_nothing(module: Any, args: Any, result: Any) -> None:
    """A hook of a user."""


def pickled_names(file: Any) -> set[str]:
    """The modules of what a file of torch.save names."""
    with zipfile.ZipFile(file) as whole:
        data = whole.read(next(name for name in whole.namelist() if name.endswith("data.pkl")))
    texts = [str(arg) for _, arg, _ in pickletools.genops(data) if isinstance(arg, str)]
    return {text for text in texts if "." in text or text.startswith("hpcomm")}


@pytest.mark.parametrize("name", cases.names(__name__))
def test_case(shm: list[dict[str, str]], name: str) -> None:
    assert [value[name] for value in shm] == [""] * 2

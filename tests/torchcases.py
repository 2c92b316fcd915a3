"""Cases for the tests of hpcomm.torch: with equal batches all ranks reach the weights of one process with all the data,
up to rounding.

All ranks of one job run the cases of a test module, and each test looks at what became of its case. A case trains with
a DistributedOptimizer on this rank's part of every batch, trains the same model with the plain optimizer on the whole
batch, and compares.
"""

import functools
import hashlib
import importlib
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mpi
import pytest

import hpcomm

torch = pytest.importorskip("torch")

import late  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import hpcomm.torch as ht  # noqa: E402

SIZE = 2
BATCH = 6  # of each rank
Case = Callable[[hpcomm.Context], None]
CASES: dict[tuple[str, str], Case] = {}  # by module and name
EVERYWHERE: set[tuple[str, str]] = set()  # also by one rank, and by three over a wire


def case(function: Case) -> Case:
    CASES[function.__module__, function.__name__] = function
    return function


def everywhere(function: Case) -> Case:
    EVERYWHERE.add((function.__module__, function.__name__))
    return case(function)


def names(module: str, among: Any = CASES) -> list[str]:
    return sorted(name for own, name in among if own == module)


def on_shm(module: str, names: list[str]) -> list[dict[str, str]]:
    """By rank what run_cases gave."""
    return mpi.spawn(SIZE, run_cases, module, names, timeout=120).values


def by_one_rank(module: str, names: list[str]) -> list[dict[str, str]]:
    return mpi.spawn(1, run_cases, module, names, timeout=120).values


def on_a_late_device(chosen: dict[str, list[str]]) -> list[dict[str, dict[str, str]]]:
    """By rank and module what run_cases gave. chosen: names by module."""
    return mpi.spawn(SIZE, run_late, chosen, timeout=400).values


def over_wire(module: str, names: list[str]) -> list[dict[str, str]]:
    """Ranks 0 and 1 count as one host, so that updates are folded there first."""
    env = {"HPCOMM_TRANSPORT": os.environ.get("HPC_TEST_TRANSPORTS", "tcp"), "HPC_TEST_HOSTS": "0,0,2"}
    return mpi.spawn(3, run_cases, module, names, timeout=120, env=env).values


# ---- the ranks -------------------------------------------------------------------------------------------------------


def run_cases(module: str, names: list[str]) -> dict[str, str]:
    """What went wrong in each case of a test module, by its name."""
    importlib.import_module(module)
    torch.set_num_threads(1)
    told = {}
    if "HPC_TEST_HOSTS" in os.environ:
        hosts = tuple(map(int, os.environ["HPC_TEST_HOSTS"].split(",")))
        own_hosts = property(lambda ctx: tuple(hosts[rank] for rank in ctx.ranks))  # fewer where ranks are gone
        hpcomm.Context.hosts = own_hosts  # type: ignore[assignment,method-assign]
    for name in names:
        torch._dynamo.reset() if "compile" in name else None
        try:
            with hpcomm.init(mpi.world(), timeout=20) as ctx, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.manual_seed(17)
                CASES[module, name](ctx)
            told[name] = ""
        except BaseException:
            told[name] = traceback.format_exc()
    return told


def run_late(chosen: dict[str, list[str]]) -> dict[str, dict[str, str]]:
    late.install()
    return {module: run_cases(module, names) for module, names in chosen.items()}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(10, 16)
        self.second = nn.Linear(16, 16, bias=False)
        self.last = nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


def net() -> Any:
    torch.manual_seed(3)
    return Net()


def momentum(params: Any, **more: Any) -> Any:
    return torch.optim.SGD(params, **{"lr": 0.2, "momentum": 0.9, "weight_decay": 1e-3, **more})


class Data:
    """Batches, of which a rank of a job takes its part."""

    def __init__(self, ctx: hpcomm.Context | None, size: int) -> None:
        self.ctx, self.size = ctx, size
        self.generator = torch.Generator().manual_seed(5)

    def batch(self, width: int = 10, rows: int = BATCH) -> tuple[Any, Any]:
        n = self.size * rows
        x = torch.randn(n, width, generator=self.generator)
        y = torch.randint(0, 4, (n,), generator=self.generator)
        if self.ctx is None:
            return x, y
        part = slice(self.ctx.rank * rows, (self.ctx.rank + 1) * rows)
        return x[part], y[part]


def plain_step(model: Any, optimizer: Any, data: Data, step: int) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
    optimizer.step()


def both(
    ctx: hpcomm.Context,
    make: Callable[[Any], Any] = momentum,
    loop: Callable[[Any, Any, Data, int], None] = plain_step,
    model: Callable[[], Any] = net,
    steps: int = 5,
    **options: Any,
) -> tuple[Any, Any, Any, Any]:
    """The model and the optimizer of this job, and those of one process with all the data, after the same steps."""
    ours, alone = model(), model()
    if ctx.rank:
        with torch.no_grad():
            for p in ours.parameters():
                p.add_(1)  # rank 0's count
    optimizer = ht.DistributedOptimizer(make(ours.parameters()), ctx, ours, **options)
    plain = make(alone.parameters())
    data, all_data = Data(ctx, ctx.size), Data(None, ctx.size)
    for step in range(steps):
        loop(ours, optimizer, data, step)
        loop(alone, plain, all_data, step)
    optimizer.wait()
    return ours, optimizer, alone, plain


def check_same(ours: Any, alone: Any, tolerance: float = 2e-6) -> None:
    for (name, p), q in zip(ours.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p.detach(), q.detach(), rtol=1e-4, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


def check_bits(ctx: hpcomm.Context, model: Any) -> None:
    """All ranks have the same bits."""
    found = hashlib.sha256()
    for p in model.parameters():
        found.update(p.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    assert len(set(ctx.allgather(found.digest()))) == 1, "ranks differ"


@contextmanager
def directory(ctx: hpcomm.Context) -> Iterator[Path]:
    """One of rank 0's, for all ranks, until all have left the block."""
    with tempfile.TemporaryDirectory() as own:
        yield Path(ctx.allgather(own.encode().ljust(200))[0].decode().strip())
        ctx.barrier()


def check(ctx: hpcomm.Context, *args: Any, **options: Any) -> Any:
    ours, optimizer, alone, _ = both(ctx, *args, **options)
    check_same(ours, alone)
    check_bits(ctx, ours)
    return optimizer


@functools.cache
def asks_without_state() -> bool:
    """Whether torch's checkpoints take an optimizer that has gradients and no state: those of torch 2.4 do not."""
    dcp = importlib.import_module("torch.distributed.checkpoint.state_dict")  # it takes a second

    layer = nn.utils.skip_init(nn.Linear, 1, 1)  # it draws nothing: torch's generator is the process's
    layer(torch.ones(1)).backward()
    try:
        dcp.get_optimizer_state_dict(layer, torch.optim.SGD(layer.parameters(), lr=1))
    except RuntimeError:
        return False
    return True


def refuses(match: str) -> Any:
    return pytest.raises(hpcomm.InvalidArgument, match=match)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.2, weight_decay=1e-3),
    "momentum": momentum,
    "nesterov": lambda p: momentum(p, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01, betas=(0.8, 0.95)),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, eps=1e-6),
}


def clipped(model: Any, optimizer: Any, data: Data, step: int) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
    if data.ctx is None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()


def check_state(ours: Any, theirs: Any) -> None:
    assert ours["param_groups"] == theirs["param_groups"]
    assert ours["state"].keys() == theirs["state"].keys()
    for number, own in ours["state"].items():
        assert own.keys() == theirs["state"][number].keys()
        for name, value in own.items():
            torch.testing.assert_close(value, theirs["state"][number][name], rtol=1e-4, atol=1e-6)


class Wide(nn.Module):
    """Two layers that may go as pairs, the second one without a bias; and a small one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(10, 512)
        self.second = nn.Linear(512, 64, bias=False)
        self.last = nn.Linear(64, 4)

    def forward(self, x: Any) -> Any:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


def wide() -> Any:
    torch.manual_seed(3)
    return Wide()


WAYS: list[dict[str, Any]] = [
    {"way": "factors"},
    {"way": "factors", "batch": BATCH},
    {"way": "factors", "batch": BATCH, "skip_weight_grad": True},
    {"way": {"second.weight": "factors", "first.weight": "adam"}},
    {"way": "adam", "batch": BATCH},
]


def with_more(kind: Any, only: int = -1) -> Any:
    """The loop of a trainer whose loss has one more term. only: on this rank."""

    def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
        optimizer.zero_grad()
        x, y = data.batch()
        loss = F.cross_entropy(model(x), y)
        if only < 0:
            loss = loss + kind(model, x, step)
        elif data.ctx is None or data.ctx.rank == only:
            loss = loss + kind(model, x, step) / (data.size if data.ctx is None else 1)
        loss.backward()
        optimizer.step()

    return loop

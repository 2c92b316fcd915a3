"""hpcomm.torch when ranks fail, and its timeline."""

import json
import os
import signal
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import mpi
import pytest
from torchcases import Data, both, check_bits, momentum, net, plain_step, torch

import hpcomm
import hpcomm.torch as ht
from hpcomm import _core

pytestmark = pytest.mark.xdist_group("group torch")  # one job for all tests


def fail_in_backward() -> list[Any]:
    """Rank 1 raises in the middle of a backward pass; what each rank raises."""

    def train() -> None:
        with hpcomm.init(mpi.world(), timeout=20) as ctx:
            model = net()
            optimizer = ht.DistributedOptimizer(momentum(model.parameters()), ctx, model)
            for step in range(4):
                if (ctx.rank, step) == (1, 2):
                    model.second.weight.register_hook(lambda grad: 1 / 0)
                plain_step(model, optimizer, Data(ctx, ctx.size), step)

    torch.set_num_threads(1)
    with pytest.raises((hpcomm.PeerFailed, ZeroDivisionError)) as raised:
        train()
    return [getattr(raised.value, "ranks", None), str(raised.value)]


def interrupt() -> float:
    """Rank 0 gets Ctrl-C while it waits for rank 1, goes on after it, and reaches the same weights."""
    torch.set_num_threads(1)
    with hpcomm.init(mpi.world(), timeout=20) as ctx:
        model = net()
        optimizer = ht.DistributedOptimizer(momentum(model.parameters()), ctx, model, overlap=True)
        data = Data(ctx, ctx.size)
        for step in range(3):
            plain_step(model, optimizer, data, step)
        optimizer.wait()
        pids = [int(pid) for pid in ctx.allgather(str(os.getpid()).encode().ljust(20))]
        if ctx.rank == 0:
            plain_step(model, optimizer, data, 3)
            with pytest.raises(KeyboardInterrupt):
                optimizer.wait()
        else:
            while not any(
                (wait.op, wait.ranks) == ("optimizer.wait()", (1,))  # not that of the allgather before
                for shown in _core.jobs(5.0).ranks
                if shown.pid == pids[0]
                for wait in shown.waits
            ):
                pass
            os.kill(pids[0], signal.SIGINT)
            plain_step(model, optimizer, data, 3)
        optimizer.wait()
        check_bits(ctx, model)
        return float(model.first.weight.detach().sum())


def survive(name: str) -> list[Any]:
    """The last rank is killed after three steps; the others go on."""
    torch.set_num_threads(1)
    with hpcomm.init(mpi.world(), timeout=20) as ctx, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options: dict[str, dict[str, Any]] = {
            "rule": {"servers": 2},
            "backward": {"servers": 2, "apply": "backward"},
            "local": {},
            "graph": {"topology": hpcomm.graphs.complete},
        }
        make = torch.optim.RMSprop if name == "local" else momentum
        model = net()
        optimizer = ht.DistributedOptimizer(make(model.parameters()), ctx, model, **options[name])
        told, step, data = "", 0, Data(ctx, ctx.size)
        lost: tuple[int, ...] = ()
        while step < 8:
            if step == 3 and ctx.rank == ctx.size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                plain_step(model, optimizer, data, step)
                step += 1
            except hpcomm.PeerFailed as failed:
                told = str(failed.ranks)
                found = optimizer.recover()
                lost, step = found.lost, found.clock
        optimizer.wait()
        if name != "graph":
            check_bits(optimizer.context, model)
        optimizer.state_dict()
        optimizer.context.close()
        return [told, lost, bool(torch.isfinite(model.first.weight).all())]


def test_a_rank_that_raises_in_backward_is_named() -> None:
    values = mpi.spawn(3, fail_in_backward).values
    for rank in (0, 2):
        assert values[rank][0] == [1]
        assert "ZeroDivisionError: division by zero" in values[rank][1]


def test_ctrl_c_ends_a_wait_and_loses_nothing() -> None:
    assert len(set(mpi.spawn(2, interrupt).values)) == 1


@pytest.mark.some(1)
@pytest.mark.parametrize("name", ["rule", "backward", "local", "graph"])
def test_the_others_go_on(name: str) -> None:
    ended = mpi.spawn(3, survive, name, check=False)
    assert ended.codes == [0, 0, -9], ended.err
    assert ended.values[:2] == [["(2,)", [2], True]] * 2


def trace() -> None:
    torch.set_num_threads(1)
    with hpcomm.init(mpi.world()) as ctx:
        both(ctx)


def test_a_timeline_shows_layers(tmp_path: Path) -> None:
    mpi.spawn(2, trace, env={"HPCOMM_TIMELINE": str(tmp_path / "trace.json")})
    for rank in range(2):
        events = json.loads((tmp_path / f"trace.rank{rank}.json").read_text(encoding="utf-8"))
        found = Counter(event["name"] for event in events if event.get("cat") == "trainer")
        for layer in ("first", "second", "last"):
            assert [found[f"{what} {layer}"] for what in ("wait", "forward", "backward")] == [
                5,
                5,
                5 + 5 * (layer != "second"),
            ]
        assert found["optimizer"] == 5


def test_a_missing_torch_is_told() -> None:
    code = "import sys; sys.modules['torch'] = None\nimport hpcomm.torch"
    ended = mpi.command(sys.executable, "-c", code)
    assert "pip install 'torch>=2.4'" in ended.stderr

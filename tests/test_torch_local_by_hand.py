"""hpcomm.torch.DiLoCo takes the steps of the forty lines of torch over Gloo in bench.torch.local_steps."""

import sys
from pathlib import Path
from typing import Any

import mpi
import pytest

import hpcomm

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import hpcomm.torch as ht  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for ranks, which begin in another folder
from bench.torch.local_steps_by_hand import ByHand  # noqa: E402

EVERY, STEPS = 5, 23


def net() -> Any:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))


def trained(model: Any, optimizer: Any, rank: int) -> list[list[float]]:
    """The weights at the end of each cycle, and those of this rank after the last step."""
    random, seen = torch.Generator().manual_seed(rank), []
    for step in range(1, STEPS + 1):
        x, y = torch.randn(8, 6, generator=random), torch.randint(3, (8,), generator=random)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step % EVERY == 0 or step == STEPS:
            seen.append(nn.utils.parameters_to_vector(model.parameters()).tolist())
    return seen


def inner(model: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=0.02, eps=1e-4)  # torch's 1e-8 would make much of rounding errors


Weights = dict[str, list[list[float]]]


def compared(ctx: hpcomm.Context, store: str) -> Weights:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=ctx.rank, world_size=ctx.size)
    by_hand, ours, alone = net(), net(), net()
    found = {"alone": trained(alone, inner(alone), ctx.rank)}
    found["by hand"] = trained(by_hand, ByHand(inner(by_hand), by_hand.parameters(), EVERY), ctx.rank)
    optimizer = ht.DiLoCo(inner(ours), ctx, ours, outer=hpcomm.Nesterov(lr=0.7, momentum=0.9), every=EVERY)
    found["hpcomm"] = trained(ours, optimizer, ctx.rank)
    optimizer.close()
    dist.destroy_process_group()
    return found


def check_weights(found: Weights) -> None:
    ours, by_hand, alone = (torch.tensor(found[way]) for way in ("hpcomm", "by hand", "alone"))
    assert ours.shape == (STEPS // EVERY + 1, 6 * 9 + 9 + 9 * 3 + 3)
    torch.testing.assert_close(ours, by_hand, rtol=0, atol=1e-5)
    assert (by_hand - alone).abs().max() > 0.01


def both_ways(store: str) -> Weights:
    torch.set_num_threads(1)
    with hpcomm.init(mpi.world(), timeout=20) as ctx:
        return compared(ctx, store)


@pytest.mark.full  # two ranks of tests/test_torch_local.py do the same, in a job of theirs
def test_local_steps_are_those_of_a_trainer_that_writes_them_by_hand(tmp_path: Path) -> None:
    ranks = mpi.spawn(3, both_ways, str(tmp_path / "gloo"), timeout=60, env={"GLOO_SOCKET_IFNAME": "lo"}).values
    for found in ranks:
        check_weights(found)
    assert all(found["hpcomm"][:-1] == ranks[0]["hpcomm"][:-1] for found in ranks)
    assert ranks[1]["hpcomm"][-1] != ranks[0]["hpcomm"][-1]  # a cycle that has not ended

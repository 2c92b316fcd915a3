"""hpcomm.torch in its default mode between hosts: codecs, and rules that receivers apply, reach the weights of the
plain exchange."""

from typing import Any

import pytest

import hpcomm
from hpcomm import ParameterServer
from hpcomm.codec import Threshold, TopK

from .hosts import Cluster
from .job import Desk, Job

torch = pytest.importorskip("torch")
DistributedOptimizer = pytest.importorskip("hpcomm.torch").DistributedOptimizer

STEPS = 6
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "receivers": {"topology": ParameterServer(apply_at="receivers")},
    "threshold": {"codec": Threshold(0)},
    "topk": {"codec": TopK(1.0)},
    "threshold, receivers": {"codec": Threshold(0), "topology": ParameterServer(apply_at="receivers")},
    "topk, receivers": {"codec": TopK(1.0), "topology": ParameterServer(apply_at="receivers")},
}


def trained(ctx: hpcomm.Context, options: dict[str, Any]) -> list[bytes]:
    """The weights after a few steps. All values are small whole numbers over powers of two, so no sum is rounded."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 8))
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randint(-2, 3, param.shape))
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=2.0**-6), ctx, model, **options)
    for step in range(STEPS):
        torch.manual_seed(1000 * step + ctx.rank)
        optimizer.zero_grad()
        outputs = model(torch.randint(-1, 2, (4, 64)).float())
        outputs.backward(torch.randint(-1, 2, outputs.shape).float() / 4)
        optimizer.step()
    found = [param.detach().numpy().tobytes() for param in model.parameters()]
    optimizer.close()
    return found


def trains(desk: Desk) -> dict[str, list[bytes]]:
    torch.set_num_threads(1)
    with hpcomm.init(desk.world()) as ctx:
        return {way: trained(ctx, options) for way, options in WAYS.items()}


def test_every_way_reaches_the_weights_of_the_plain_one(cluster: Cluster) -> None:
    with Job(cluster, trains, hosts=["h1", "h2", "h3", "h4"], ranks_per_host=1) as job:
        every = job.values()
    for found in every:
        for way in WAYS:
            assert found[way] == every[0]["plain"], way

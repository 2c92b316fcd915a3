"""Ray Train with hpcomm: each worker is a rank, and trains on its own part of the data.

    pip install hpcomm 'ray[train]' torch
    python examples/launch/ray_train.py                        # two workers on this machine
    RAY_ADDRESS=auto python examples/launch/ray_train.py       # on the cluster that runs already

Ray starts the workers; hpcomm exchanges their gradients.
"""

# Without Ray installed, mypy does not find its types.
# mypy: disable-error-code="import-not-found"

import sys

try:
    import torch
    from ray.train import ScalingConfig

    from hpcomm.ray import DataParallelTrainer, HpcommConfig
except ImportError as missing:
    sys.exit(f"{missing}; this example needs: pip install 'ray[train]' torch")

import hpcomm.torch


def train_func() -> None:
    """Runs on each worker. Fits a line to the points of all workers."""
    with hpcomm.init() as ctx:
        torch.manual_seed(ctx.rank)
        x = torch.randn(1000, 8)
        y = x @ torch.arange(1.0, 9.0)
        model = torch.nn.Linear(8, 1)
        inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        optimizer = hpcomm.torch.DistributedOptimizer(inner, ctx, model)
        for _ in range(100):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x).squeeze(1), y)
            loss.backward()
            optimizer.step()
        optimizer.close()
        if ctx.rank == 0:
            print(f"{ctx.size} ranks: loss {loss.item():.3f}")


if __name__ == "__main__":
    two = ScalingConfig(num_workers=2)
    DataParallelTrainer(train_func, backend_config=HpcommConfig(), scaling_config=two).fit()

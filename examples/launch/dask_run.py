"""Dask with hpcomm: each worker of a cluster is a rank, and trains on its own part of the data.

    pip install hpcomm distributed
    python examples/launch/dask_run.py                          # two workers on this machine
    python examples/launch/dask_run.py tcp://scheduler:8786     # the workers of a running cluster

Dask starts the function on every worker; hpcomm exchanges their gradients.
"""

# Without Dask installed, mypy does not find its types.
# mypy: disable-error-code="import-not-found"

import sys

import numpy as np

import hpcomm.dask

try:
    from distributed import Client, LocalCluster
except ImportError as missing:
    sys.exit(f"{missing}; this example needs: pip install distributed")


def train(steps: int) -> list[float]:
    """Runs on each worker. Fits a line to the points of all workers, and returns its weights."""
    with hpcomm.init() as ctx:
        x = np.random.default_rng(ctx.rank).standard_normal((1000, 8), "float32")
        y = x @ np.arange(1, 9, dtype="float32")
        with hpcomm.parameter_hub(ctx, {"w": np.zeros(8, "float32")}, rule=hpcomm.Nesterov(lr=0.05)) as hub:
            for _ in range(steps):
                hub.gradient("w")[:] = x.T @ (x @ hub.params["w"] - y) / len(x)
                hub.push_pull("w")
            return [float(weight) for weight in hub.params["w"].round(2)]


def main(address: str = "") -> None:
    if address:
        with Client(address) as client:
            print(hpcomm.dask.run(client, train, 100))
        return
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        print(hpcomm.dask.run(client, train, 100))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A hub and its workers on hosts with firewalls: one port comes in at the hub, and nothing at the workers."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import hpcomm

from .hosts import Cluster
from .job import Desk, Job

PORT, LAST = 7700, 65535
TOKEN = "a token of at least sixteen bytes"
STEPS = 3


def train(desk: Desk, handle: str) -> list[str | float]:
    """Steps of a job at the hub, over tcp."""
    with (
        hpcomm.connect_service(handle, TOKEN, desk.rank, desk.size, timeout=20) as ctx,
        hpcomm.parameter_hub(
            ctx, {"w": np.zeros(50_000, np.float32)}, servers="hub", rule=hpcomm.SGD(lr=1.0), reduce="sum"
        ) as ex,
    ):
        for _ in range(STEPS):
            ex.push_pull("w", np.ones(50_000, np.float32))
        ctx.barrier()
        return [
            ex.context.peers[desk.size].path.split(" ")[0],
            float(ex.params["w"].min()),
            float(ex.params["w"].max()),
        ]


@contextmanager
def served(cluster: Cluster, host: str, folder: Path) -> Iterator[str]:
    """A hub on a host, and where it listens."""
    (folder / "a.token").touch(0o600)
    (folder / "a.token").write_text(TOKEN, encoding="utf-8")
    (folder / "hub.toml").write_text('cores = 1\ndrain_seconds = 0\n[namespaces.a]\ntoken_file = "a.token"\n')
    where = f"{cluster.address(host)}:{PORT}"
    line = [sys.executable, "-m", "hpcomm", "hub", "serve", "--listen", f"0.0.0.0:{PORT}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    hub = cluster.popen(host, [*line, "--config", str(folder / "hub.toml")], **pipes)
    try:
        assert hub.stdout is not None
        assert any("listens at" in said for said in hub.stdout)
        yield where
    finally:
        hub.kill()
        hub.communicate(timeout=20)


def test_a_hub_needs_one_port_of_a_firewall(cluster: Cluster, tmp_path: Path) -> None:
    """h1 admits calls at the hub's port alone, and its calls of the others are dropped."""
    workers = ("h2", "h3", "h4")
    with served(cluster, "h1", tmp_path) as where:
        cluster.firewall("h1", 1, PORT - 1)
        cluster.firewall("h1", PORT + 1, LAST)
        for host in workers:
            cluster.firewall(host, 1, LAST, source="h1")
        try:
            create = f"import hpcomm; print(hpcomm.create_service({where!r}, 'a', {TOKEN!r}))"
            handle = cluster.run("h2", [sys.executable, "-c", create]).stdout.strip()
            with Job(cluster, train, handle, hosts=workers, by="desk") as job:
                sum_of_all = float(STEPS * len(workers))
                assert job.values() == [[where, -sum_of_all, -sum_of_all]] * len(workers)
        finally:
            for host in ("h1", *workers):
                cluster.open(host)

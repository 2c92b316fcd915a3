"""hpcomm.ray: the workers of Ray Train are the ranks of a job.

Give Ray's DataParallelTrainer backend_config=HpcommConfig() and a function that calls hpcomm.init(). `python -m
hpcomm.ray -n 4 train.py` runs a program unchanged. Ray starts the processes and passes the job's secret to them.
Gradients do not go through Ray, but directly between the ranks. docs/launching.md has an example.
"""

# mypy finds Ray's types only if Ray is installed.
# mypy: disable-error-code="import-not-found,misc"

import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

try:
    import ray
    from ray.train import ScalingConfig
    from ray.train.backend import Backend, BackendConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
except ImportError as _missing:
    raise ImportError("hpcomm.ray needs Ray Train: pip install 'ray[train]>=2.51'") from _missing

from . import launch

__all__ = ["DataParallelTrainer", "HpcommConfig"]


@dataclass
class HpcommConfig(BackendConfig):
    """The backend_config of a DataParallelTrainer whose workers call hpcomm.init(). port: the TCP port on rank 0's host
    where the ranks meet; 0: a free port from 20000 to 31999."""

    port: int = 0

    @property
    def backend_cls(self) -> type:
        return _RayBackend


class _RayBackend(Backend):
    """Tells each group of workers their ranks, the meeting place and the secret, also after a restart."""

    def on_start(self, worker_group: Any, backend_config: HpcommConfig) -> None:
        """Makes the workers ranks (launch.appoint), numbered as Ray lists them, which is the order of their world
        ranks."""
        host, port = worker_group.execute_single(0, _meeting_place, backend_config.port)
        secret, size = secrets.token_bytes(32), len(worker_group)
        told = [
            worker_group.execute_single_async(rank, launch.appoint, rank, size, host, port, secret)
            for rank in range(size)
        ]
        ray.get(told)


def _meeting_place(port: int) -> tuple[str, int]:
    """Returns the address of this host in Ray's cluster, and a port for the ranks to meet at. Runs on rank 0."""
    ip = str(ray.util.get_node_ip_address())
    return ip, port or launch.free_port(ip)


@click.command()
@click.option("-n", "--ranks", type=click.IntRange(1), default=2, show_default=True, help="Workers of Ray, one a rank.")
@click.argument("program", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("args", nargs=-1)
def main(ranks: int, program: Path, args: tuple[str, ...]) -> None:
    """Run PROGRAM as the ranks of a job: on the cluster of RAY_ADDRESS, or on this machine."""
    code = program.read_text(encoding="utf-8")

    def run() -> None:
        sys.argv = [str(program), *args]
        exec(compile(code, str(program), "exec"), {"__name__": "__main__", "__file__": str(program)})

    DataParallelTrainer(run, backend_config=HpcommConfig(), scaling_config=ScalingConfig(num_workers=ranks)).fit()


if __name__ == "__main__":
    from hpcomm.ray import main as imported  # workers can import classes of hpcomm.ray, but not of __main__

    imported(prog_name="python -m hpcomm.ray")

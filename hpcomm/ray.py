"""hpcomm.ray: the workers of Ray Train are the ranks of a job.

    from hpcomm.ray import DataParallelTrainer, HpcommConfig      # the trainer is Ray's own

    def train_func():
        ctx = hpcomm.init()        # rank ctx.rank of ctx.size, in the order of Ray's world ranks
        ...

    four = ScalingConfig(num_workers=4)
    DataParallelTrainer(train_func, backend_config=HpcommConfig(), scaling_config=four).fit()

`python -m hpcomm.ray -n 4 train.py` runs a program as it is. Ray starts the processes and carries the secret of each
job to them. The gradients travel as between any other ranks: over shared memory, RDMA or TCP, and not by Ray's object
store.
"""

# Ray has types only where it is installed.
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
    """The backend_config of a DataParallelTrainer whose workers call hpcomm.init().

    port: the TCP port of rank 0's host at which the ranks meet; 0 takes a free one from 20000 to 31999.
    """

    port: int = 0

    @property
    def backend_cls(self) -> type:
        return _RayBackend


class _RayBackend(Backend):
    """Gives the workers their ranks. Ray calls it for each group of workers, so a restart after a failure has a new
    meeting place and secret."""

    def on_start(self, worker_group: Any, backend_config: HpcommConfig) -> None:
        """Ray's workers are in the order of their world ranks.

        Raises:
            ConfigError: rank 0's host has no free port.
        """
        host, port = worker_group.execute_single(0, _meeting_place, backend_config.port)
        secret, size = secrets.token_bytes(32), len(worker_group)
        told = [
            worker_group.execute_single_async(rank, launch.appoint, rank, size, host, port, secret)
            for rank in range(size)
        ]
        ray.get(told)


def _meeting_place(port: int) -> tuple[str, int]:
    """This host's address among Ray's nodes, and a port of it; on rank 0."""
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
    from hpcomm.ray import main as imported  # whose classes the workers find by their name

    imported(prog_name="python -m hpcomm.ray")

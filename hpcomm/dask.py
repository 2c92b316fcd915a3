"""hpcomm.dask: the workers of a Dask cluster are the ranks of a job.

    import hpcomm.dask

    def train(lr):
        ctx = hpcomm.init()        # rank ctx.rank of ctx.size: one rank a worker
        ...

    results = hpcomm.dask.run(client, train, 0.1)      # in the order of the ranks

Dask starts the function and carries the secret of each job. The gradients travel as between any other ranks: over
shared memory, RDMA or TCP, and not by Dask's scheduler.
"""

import secrets
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from . import launch
from .errors import InvalidArgument

if TYPE_CHECKING:
    from distributed import Client  # type: ignore[import-not-found, unused-ignore]

__all__ = ["run"]

Result = TypeVar("Result")


def run(
    client: "Client", function: Callable[..., Result], *args: Any, workers: Sequence[str] = (), port: int = 0
) -> list[Result]:
    """Calls function(*args) on one thread of each worker, as the ranks of a job, and returns each rank's result.

    workers: addresses of client.nthreads(), rank 0 first; by default all of them, by address. Each has to be a separate
    process, and free: a worker that computes something else is waited for until init's deadline. A worker is in one job
    at a time. port: the TCP port of rank 0's host at which the ranks meet; 0 takes a free one from 20000 to 31999.

    Raises:
        InvalidArgument: there is no worker, or two of them share a process.
        HpcommError: that of a rank; any other error of function is raised as it is.
    """
    chosen = list(workers) or sorted(client.nthreads())
    if not chosen:
        raise InvalidArgument("the cluster has no worker: start some, and call client.wait_for_workers(n)")
    host = urlsplit(chosen[0]).hostname
    if host is None or any(address.startswith("inproc:") for address in chosen):
        raise InvalidArgument(
            f"worker {chosen[0]} shares the client's process: each rank needs its own (LocalCluster(processes=True))"
        )
    port = port or client.run(launch.free_port, host, workers=[chosen[0]])[chosen[0]]
    secret, job = secrets.token_bytes(32), uuid.uuid4().hex
    ranks = [
        client.submit(
            _rank, rank, len(chosen), host, port, secret, function, args,
            key=f"hpcomm-{job}-{rank}", workers=[address], allow_other_workers=False, pure=False, retries=0,
        )
        for rank, address in enumerate(chosen)
    ]  # fmt: skip
    return list(client.gather(ranks))


def _rank(
    rank: int, size: int, host: str, port: int, secret: bytes, function: Callable[..., Result], args: tuple[Any, ...]
) -> Result:
    launch.appoint(rank, size, host, port, secret)
    try:
        return function(*args)
    finally:
        launch.dismiss()

"""hpcomm.dask: the workers of a Dask cluster are the ranks of a job.

Dask starts a function that calls hpcomm.init(), and passes the job's secret to it. Gradients do not go through Dask,
but directly between the ranks. docs/launching.md has an example.
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
    """Calls function(*args) on one thread of each worker, as the ranks of a job, and returns the ranks' results in
    order.

    Args:
        client: the client of the cluster.
        function, args: the function that each rank calls, and its arguments.
        workers: addresses of workers, as in client.nthreads(); the first becomes rank 0. (): all workers, in the order
            of their addresses. Each worker must be a separate process, and can be in only one job at a time.
            hpcomm.init() on the other ranks waits for a worker that is busy.
        port: the TCP port on rank 0's host where the ranks meet; 0: a free port from 20000 to 31999.

    Raises InvalidArgument if there are no workers, or if a worker shares the client's process. An exception that
    function raises on a worker is raised again, unchanged.
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

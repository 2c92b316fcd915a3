"""Jobs over the backend "hpcomm" of torch.distributed, and what differs between versions of torch."""

import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import mpi
import pytest

torch = pytest.importorskip("torch")
dist = torch.distributed

VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
NEEDED = pytest.mark.skipif(VERSION < (2, 7), reason="needs torch 2.7")
HELD = VERSION >= (2, 14)  # torch gives programs its own groups and works, which hold those of the backend
_kept: list[Any] = []  # groups of Gloo, until the process ends: see job()


@contextmanager
def job(folder: str, *, beside: bool = False, timeout: float = 20, name: str = "hpcomm", **more: Any) -> Iterator[Any]:
    """A job whose default group is hpcomm's. beside: yields a group of Gloo with the same ranks.

    The end of a group of Gloo waits for Gloo's thread, which may need the GIL to drop a tensor. A DDP model that drops
    its group last has the GIL, and both would wait forever. So groups of Gloo outlive the models here.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    world: Any = mpi.world()
    dist.init_process_group(
        name,
        store=dist.FileStore(f"{folder}/store", world.size),
        rank=world.rank,
        world_size=world.size,
        timeout=timedelta(seconds=timeout),
        **more,
    )
    if name == "gloo":
        _kept.append(dist.group.WORLD)
    if beside:
        _kept.append(dist.new_group(backend="gloo"))
    try:
        yield _kept[-1] if beside else dist.group.WORLD
    finally:
        dist.destroy_process_group()


def run(n: int, body: Callable[..., Any], tmp_path: Path, *args: Any, **options: Any) -> Any:
    return mpi.spawn(n, body, str(tmp_path), *args, **options)


def dies(rank: int) -> None:
    """Kills one rank when all others have come here. A collective cannot tell it: one that has ended on a rank may not
    have ended on others, which its death then fails."""
    store, me = dist.distributed_c10d._get_default_store(), dist.get_rank()
    store.set(f"rank {me} has come", "")
    if me == rank:
        store.wait([f"rank {other} has come" for other in range(dist.get_world_size())], timedelta(seconds=20))
        os.kill(os.getpid(), signal.SIGKILL)


def has_ended(work: Any) -> bool:
    """Returns whether a call has ended. A work of torch that holds another one never says so itself."""
    return bool(work.get_future().done()) if HELD else bool(work.is_completed())

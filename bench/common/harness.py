"""Runs the harness of hpcomm bench (hpcomm/bench/harness.py) over MPI, with loops in C beside each rank's Python."""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from bench.common.launch import attend, launched, launcher, module_of
from bench.common.native import Native, build, view
from hpcomm.bench import harness
from hpcomm.bench.harness import Benchmark, Contender, last_cache, nbytes, parser
from hpcomm.bench.peers import has_torch

__all__ = ["Bench", "Benchmark", "Contender", "as_rank", "has_torch", "last_cache", "main", "nbytes", "run"]


class Bench(harness.Bench):
    """A run of one benchmark on this rank.

    Attributes:
        native: the loops in C, and a context of the C API.
    """

    def __init__(self, options: argparse.Namespace, comm: MPI.Intracomm) -> None:
        super().__init__(options, comm)
        self._path = comm.bcast(build() if self.rank == 0 else None)
        self._natives: list[Native] = []
        self.native = self.connected()

    def connected(self, transport: str | None = None, **settings: float) -> Native:
        """Makes a context of the C API with these settings, closed with this run. transport: "" means the best one for
        each peer, None means --transport. Collective."""
        made = Native(self._path, self.rank, self.size)
        chosen = self.options.transport if transport is None else transport
        made.connect(self.comm.allgather(made.create(chosen, self.options.devices, **settings)))
        self._natives.append(made)
        return made

    def meet(self) -> None:
        """Waits for all ranks, and leaves the cores to ranks that still work: the longer a rank waits, the more rarely
        it polls, because a poll on an emulated core is expensive."""
        request, pause = self.comm.Ibarrier(), 1e-4
        while not request.Test():
            time.sleep(pause)
            pause = min(1.5 * pause, 5e-3)

    def own(self, size: int, huge: bool) -> NDArray[np.uint64] | None:
        """Allocates private memory of the same kind as a shared block."""
        fd = os.memfd_create("bench")
        os.ftruncate(fd, size)
        at = self.native.bench_map(fd, size, huge)
        os.close(fd)
        return None if not at else view(at, size // 8, np.uint64)

    def share(self, size: int, owner: int, huge: bool) -> NDArray[np.uint64] | None:
        """Maps one block of shared memory on all ranks, as words; None if memory is short."""
        place = None
        if self.rank == owner:
            fd = os.memfd_create("bench")
            os.ftruncate(fd, size)
            place = (os.getpid(), fd)
        place = self.comm.bcast(place, owner)
        mine = os.open("/proc/{}/fd/{}".format(*place), os.O_RDWR)
        at = self.native.bench_map(mine, size, huge)
        os.close(mine)
        self.meet()
        if self.rank == owner:
            os.close(fd)
        return None if not at else view(at, size // 8, np.uint64)

    def close(self) -> None:
        super().close()
        for native in self._natives:
            native.close()


def command_of(benchmark: Benchmark) -> str:
    return f"python -m {module_of(benchmark.name)}"


def run(benchmark: Benchmark, arguments: Sequence[str] | None = None) -> int:
    """Runs a benchmark on this rank; returns 0 if all answers were right."""
    given = sys.argv[1:] if arguments is None else arguments
    return harness.run(benchmark, given, lambda options: Bench(options, MPI.COMM_WORLD), command_of(benchmark))


def as_rank(job: Callable[[], int]) -> int:
    """Returns the result of a job; an exception on one rank ends all ranks."""
    try:
        return job()
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(2)
        raise


def main(benchmark: Benchmark) -> None:
    """Runs a benchmark's program, which starts its own mpirun unless it is already a rank of one."""
    if not launched():
        given = sys.argv[1:]
        options = parser(benchmark, command_of(benchmark)).parse_args(given)
        command = [*launcher(options.ranks, transport=options.transport), module_of(benchmark.name), *given]
        sys.exit(attend(command, f"{benchmark.name}, {options.ranks} ranks", limit=3600))
    sys.exit(as_rank(lambda: run(benchmark)))

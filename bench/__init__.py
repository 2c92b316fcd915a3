"""Benchmarks of hpcomm: each a program (`python -m bench.ops.push_pull`), all of them `python -m bench.summary`."""

from contextlib import suppress

from bench.common.launch import launched

with suppress(ModuleNotFoundError):
    import mpi4py

    # A program that starts its own mpirun must not be a rank of another MPI; only ranks bring MPI up.
    mpi4py.rc.initialize = launched()

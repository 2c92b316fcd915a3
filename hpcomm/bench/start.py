"""Starts the ranks of a benchmark on this host: by mpirun, or, without MPI, by torchrun's environment variables."""

import os
import subprocess
from collections.abc import Sequence

from .. import launch

HOST = "127.0.0.1"  # where ranks of this host meet

# Options with which each MPI uses TCP over loopback between ranks of one host.
TCP = {
    "Open MPI": ("--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"),
    # MPICH's other transport, UCX, takes twice as long for large messages here and does not find loopback.
    "MPICH": tuple(
        part
        for name, value in (
            ("MPIR_CVAR_NOLOCAL", "1"),
            ("MPIR_CVAR_CH4_NETMOD", "ofi"),
            ("FI_PROVIDER", "tcp"),
            ("FI_TCP_IFACE", "lo"),
        )
        for part in ("-genv", name, value)
    ),
}


def mpirun(path: str, library: str, ranks: int, transport: str = "") -> list[str]:
    """Returns the command line of mpirun, with the options that more ranks than cores, root or transport "tcp" need."""
    command = [path]
    if "Open MPI" in library:
        # If ranks outnumber cores and do not yield, all times of Open MPI are unfairly long.
        crowded = ranks > len(os.sched_getaffinity(0))
        command += ["--oversubscribe", *(["--mca", "mpi_yield_when_idle", "1"] if crowded else [])]
        command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    if transport == "tcp":
        command += next((flags for name, flags in TCP.items() if name in library), ())
    return [*command, "-n", str(ranks)]


def by_environment(ranks: int, command: Sequence[str]) -> int:
    """Runs a command as so many ranks, and returns the largest exit status, or number of a signal."""
    port = launch.free_port(HOST)
    told = [f"WORLD_SIZE={ranks}", f"LOCAL_WORLD_SIZE={ranks}", f"MASTER_ADDR={HOST}", f"MASTER_PORT={port}"]
    started = [subprocess.Popen(["env", *told, f"RANK={rank}", *command]) for rank in range(ranks)]
    try:
        return max(abs(process.wait()) for process in started)  # if one fails, hpcomm ends the others
    except BaseException:
        for process in started:
            process.terminate()
        raise

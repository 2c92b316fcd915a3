"""Starts the ranks of a benchmark on this host: by an mpirun, or by the variables of torchrun, which need no MPI."""

import os
import socket
import subprocess
from collections.abc import Sequence

# Options by which each MPI talks to ranks of the same host by TCP, over loopback.
TCP = {
    "Open MPI": ("--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"),
    # Its other way, UCX, takes twice as long for large messages here and does not find loopback.
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
    """The mpirun of an MPI library, with options for more ranks than cores, for root, and for transport tcp."""
    command = [path]
    if "Open MPI" in library:
        # Without yielding every figure of Open MPI's is unfairly bad when ranks outnumber cores.
        crowded = ranks > len(os.sched_getaffinity(0))
        command += ["--oversubscribe", *(["--mca", "mpi_yield_when_idle", "1"] if crowded else [])]
        command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    if transport == "tcp":
        command += next((flags for name, flags in TCP.items() if name in library), ())
    return [*command, "-n", str(ranks)]


def by_environment(ranks: int, command: Sequence[str]) -> int:
    """Runs so many ranks of a command, and returns the largest exit status."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    told = [f"WORLD_SIZE={ranks}", f"LOCAL_WORLD_SIZE={ranks}", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={port}"]
    started = [subprocess.Popen(["env", *told, f"RANK={rank}", *command]) for rank in range(ranks)]
    try:
        return max(abs(process.wait()) for process in started)  # when one fails hpcomm ends the others
    except BaseException:
        for process in started:
            process.terminate()
        raise

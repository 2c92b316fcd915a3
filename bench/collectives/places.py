"""Where ranks run: on this machine, or on hosts that are namespaces of it (tests/cluster/hosts.py).

A place has a number of ranks, `each` of them on a host, and the interface and rank 0's address over which they meet.
"""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from bench.common.launch import ROOT, library, mpirun
from bench.ops.cluster_bench import OVER_ETHERNET
from bench.ops.hosts_bench import Shape, line_rate
from hpcomm.bench import start

sys.path.insert(0, str(ROOT / "tests"))
from cluster.hosts import HEAD, Cluster


class Here:
    """This machine."""

    key, hosts, rate, interface, address = "", 1, 0.0, "lo", "127.0.0.1"

    def __init__(self, ranks: int) -> None:
        self.ranks = self.each = ranks

    def __enter__(self) -> "Here":
        return self

    def __exit__(self, *reason: object) -> None:
        pass

    def mpirun(self, python: str) -> list[str]:
        """Returns the command line that starts the ranks of python's MPI."""
        return start.mpirun(mpirun(python), library(python), self.ranks)

    def popen(self, rank: int | None, command: Sequence[str], **options: Any) -> "subprocess.Popen[str]":
        """Starts a rank, or for None the command that starts all ranks."""
        return subprocess.Popen(command, **options)


class Hosts:
    """Hosts with links of one rate."""

    interface = "eth0"

    def __init__(self, shape: Shape, rate: str) -> None:
        self.key, self.hosts, self.each, self.ranks = shape.key, shape.hosts, shape.ranks, shape.hosts * shape.ranks
        self.rate = line_rate(rate)
        self.cluster = Cluster(shape.hosts, rate=rate)
        self.address = self.cluster.address(self.cluster.hosts[0])

    def __enter__(self) -> "Hosts":
        self.cluster.__enter__()
        return self

    def __exit__(self, *reason: Any) -> None:
        self.cluster.__exit__(*reason)

    def mpirun(self, python: str) -> list[str]:
        """Returns the command line that starts the ranks of python's MPI."""
        command = self.cluster.mpirun(ranks_per_host=self.each, path=mpirun(python))
        return [*command, *(OVER_ETHERNET if "MPICH" in library(python) else ())]

    def popen(self, rank: int | None, command: Sequence[str], **options: Any) -> "subprocess.Popen[str]":
        """Starts a rank on its host, or for None, on the node without ranks, the command that starts all ranks."""
        return self.cluster.popen(HEAD if rank is None else self.cluster.hosts[rank // self.each], command, **options)

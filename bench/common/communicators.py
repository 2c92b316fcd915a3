"""The communicators that collectives of MPI are measured over: Open MPI's choice, and its choice without han."""

import os

from mpi4py import MPI

from bench.common.harness import Bench


def communicators(bench: Bench) -> dict[str, MPI.Intracomm]:
    """Communicators of all ranks, by suffixes of their contenders' names. Where hosts have several ranks Open MPI takes
    its component han, which sums inside each host first and is not always the faster way."""
    found = {"": bench.comm}
    crowded = len(set(bench.hosts)) < bench.size
    without = "^han" in os.environ.get("OMPI_MCA_coll", "")  # noqa: SIM112 - as mpirun writes it
    if bench.apart and crowded and not without and "Open MPI" in MPI.Get_library_version():
        info = MPI.Info.Create()
        info.Set("ompi_comm_coll_preference", "^han")
        flat = bench.comm.Dup_with_info(info)
        info.Free()
        bench.ends.append(flat.Free)
        found[", no han"] = flat
    return found

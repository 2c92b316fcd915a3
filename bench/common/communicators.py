"""Makes the communicators by which MPI's collectives are measured: with Open MPI's default choice, and without han."""

import os

from mpi4py import MPI

from bench.common.harness import Bench


def communicators(bench: Bench) -> dict[str, MPI.Intracomm]:
    """Returns communicators of all ranks, by a suffix for the contender's name. If hosts have several ranks, Open MPI
    uses its component han, which sums within each host first; that is not always faster."""
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

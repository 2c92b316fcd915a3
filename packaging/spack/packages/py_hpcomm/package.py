# SPDX-License-Identifier: BSD-3-Clause
# ruff: noqa: F403, F405, I001  # as Spack wants its packages
from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyHpcomm(PythonPackage):
    """Exchanges the gradients and parameters of a data-parallel training job between its ranks, over shared memory,
    RDMA and TCP. Takes NumPy arrays and PyTorch tensors."""

    homepage = "https://github.com/hpcomm/hpcomm"
    git = "https://github.com/hpcomm/hpcomm.git"

    license("BSD-3-Clause")

    version("main", branch="main")
    version("0.1.0a1", tag="v0.1.0a1")  # with the commit of the tag, once there is one

    variant("verbs", default=True, description="Use RDMA where a host has it")
    variant("mpi", default=True, description="Start jobs by mpirun")
    variant("kernels", default=False, description="Rules and codecs of one's own, compiled by Numba")
    variant("torch", default=False, description="PyTorch")

    depends_on("c", type="build")

    depends_on("python@3.10:", type=("build", "link", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-cffi@1.16:", type=("build", "run"))
    depends_on("cmake@3.18:", type="build")
    depends_on("ninja", type="build")
    depends_on("rdma-core", when="+verbs")

    depends_on("py-numpy@1.23:", type=("build", "run"))
    depends_on("py-click@8:", type=("build", "run"))
    depends_on("py-rich@13:", type=("build", "run"))
    depends_on("py-mpi4py@4:", when="+mpi", type=("build", "run"))
    depends_on("py-numba", when="+kernels", type=("build", "run"))
    depends_on("py-torch@2.4:", when="+torch", type=("build", "run"))

    conflicts("platform=darwin", msg="hpcomm runs on Linux alone")
    conflicts("platform=windows", msg="hpcomm runs on Linux alone")

    @property
    def import_modules(self):
        return ["hpcomm", "hpcomm.codec", "hpcomm.graphs", "hpcomm.topology"] + (
            ["hpcomm.torch"] if "+torch" in self.spec else []
        )

    def setup_build_environment(self, env: EnvironmentModifications) -> None:
        env.set("CMAKE_ARGS", f"-DHPC_VERBS={'ON' if self.spec.satisfies('+verbs') else 'OFF'}")

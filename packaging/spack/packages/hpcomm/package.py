# SPDX-License-Identifier: BSD-3-Clause
# ruff: noqa: F403, F405, I001  # as Spack wants its packages
from spack_repo.builtin.build_systems.cmake import CMakePackage

from spack.package import *


class Hpcomm(CMakePackage):
    """The C library of hpcomm, with its C and C++ headers: exchanges the gradients and parameters of a data-parallel
    training job over shared memory, RDMA and TCP. Python's package is py-hpcomm, which has the library in it."""

    homepage = "https://github.com/hpcomm/hpcomm"
    git = "https://github.com/hpcomm/hpcomm.git"

    license("BSD-3-Clause")

    version("main", branch="main")
    version("0.1.0a1", tag="v0.1.0a1")  # with the commit of the tag, once there is one

    variant("verbs", default=True, description="Use RDMA where a host has it")

    depends_on("c", type="build")
    depends_on("cxx", type="test")
    depends_on("cmake@3.18:", type="build")
    depends_on("rdma-core", when="+verbs")

    conflicts("platform=darwin", msg="hpcomm runs on Linux alone")
    conflicts("platform=windows", msg="hpcomm runs on Linux alone")

    def cmake_args(self):
        return [self.define("HPC_VERBS", "ON" if self.spec.satisfies("+verbs") else "OFF")]

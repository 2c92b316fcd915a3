"""Builds libhpcomm by CMake into the package, then its two extensions against it. All else is in pyproject.toml."""

import os
import re
import shlex
import shutil
import subprocess
from importlib import import_module
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
BUILD = ROOT / "build" / "cmake"  # kept, so that the next build compiles only what changed; make builds the tests in it


def version() -> str:
    header = (ROOT / "csrc/include/hpcomm/hpcomm.h").read_text(encoding="utf-8")
    return ".".join(re.findall(r"^#define HPC_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", header, re.MULTILINE))


def tool(name: str, folder: str) -> str | None:
    """The program of the PyPI package of that name, in the folder that its attribute names, else the one on PATH."""
    try:
        return str(Path(getattr(import_module(name), folder)) / name)
    except (ImportError, AttributeError):
        return shutil.which(name)


def install_library(prefix: Path) -> None:
    """Configures, builds and installs libhpcomm, its headers, CMake package and .pc file under prefix."""
    cmake, ninja = tool("cmake", "CMAKE_BIN_DIR"), tool("ninja", "BIN_DIR")
    if cmake is None:
        raise SystemExit("hpcomm's build needs cmake: pip install cmake")
    cache = BUILD / "CMakeCache.txt"
    if cache.exists() and f"CMAKE_HOME_DIRECTORY:INTERNAL={ROOT}\n" not in cache.read_text(encoding="utf-8"):
        shutil.rmtree(BUILD)  # the tree was copied or moved, and CMake keeps absolute paths
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else ["-G", "Unix Makefiles"]
    options = ["-DCMAKE_INSTALL_LIBDIR=lib", *shlex.split(os.environ.get("CMAKE_ARGS", ""))]
    subprocess.run([cmake, "-S", str(ROOT), "-B", str(BUILD), *generator, *options], check=True)
    subprocess.run(
        [cmake, "--build", str(BUILD), "--target", "hpcomm", "--parallel", str(os.cpu_count() or 1)], check=True
    )
    subprocess.run([cmake, "--install", str(BUILD), "--prefix", str(prefix), "--component", "hpcomm"], check=True)


class BuildExt(build_ext):
    def run(self) -> None:
        package = ROOT / "hpcomm" if self.inplace else Path(self.build_lib).resolve() / "hpcomm"
        install_library(package)
        self.library_dirs.append(str(package / "lib"))
        super().run()


# Beside the cffi extension (hpcomm/_build.py): the few calls for which cffi is too slow.
fast = Extension(
    "hpcomm._fast",
    ["hpcomm/_fast.c"],
    include_dirs=["csrc/include"],
    extra_link_args=["-l:libhpcomm.so.0", "-Wl,-rpath,$ORIGIN/lib"],
    py_limited_api=True,
)

setup(
    version=version(),
    ext_modules=[fast],
    cffi_modules=["hpcomm/_build.py:ffibuilder"],
    cmdclass={"build_ext": BuildExt},
)

"""Builds libhpcomm by CMake into the package, then its two extensions against it. All else is in pyproject.toml."""

import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from importlib import import_module
from pathlib import Path

from setuptools import Distribution, Extension, setup
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


def check_machine() -> None:
    """Ends with one line where a program or a header that the build needs is missing."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    include = sysconfig.get_path("include")
    if shutil.which(compiler[0]) is None:
        missing = f"a C compiler and finds no {compiler[0]}: set CC to another one, or"
    elif not has_header(compiler, "stdio.h"):
        missing = "the headers of the C library and finds no stdio.h:"
    elif not has_header([*compiler, f"-I{include}"], "Python.h"):
        missing = f"Python's headers and finds no Python.h in {include}:"
    elif tool("cmake", "CMAKE_BIN_DIR") is None:
        raise SystemExit("hpcomm needs cmake: pip install cmake ninja")
    else:
        return
    raise SystemExit(f"hpcomm needs {missing} on Debian or Ubuntu apt-get install -y gcc python3-dev")


def has_header(compiler: list[str], name: str) -> bool:
    program = f"#include <{name}>\n".encode()
    return subprocess.run([*compiler, "-E", "-"], input=program, capture_output=True, check=False).returncode == 0


def run(*words: str) -> None:
    if subprocess.run(words, check=False).returncode != 0:
        raise SystemExit(f"hpcomm's build has failed in {shlex.join(words)}; the lines above say why")


def install_library(prefix: Path) -> None:
    """Configures, builds and installs libhpcomm, its headers, CMake package and .pc file under prefix."""
    cmake, ninja = tool("cmake", "CMAKE_BIN_DIR") or "cmake", tool("ninja", "BIN_DIR")
    cache = BUILD / "CMakeCache.txt"
    if cache.exists() and f"CMAKE_HOME_DIRECTORY:INTERNAL={ROOT}\n" not in cache.read_text(encoding="utf-8"):
        shutil.rmtree(BUILD)  # the tree was copied or moved, and CMake keeps absolute paths
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else ["-G", "Unix Makefiles"]
    options = ["-DCMAKE_INSTALL_LIBDIR=lib", *shlex.split(os.environ.get("CMAKE_ARGS", ""))]
    run(cmake, "-S", str(ROOT), "-B", str(BUILD), *generator, *options)
    run(cmake, "--build", str(BUILD), "--target", "hpcomm", "--parallel", str(os.cpu_count() or 1))
    run(cmake, "--install", str(BUILD), "--prefix", str(prefix), "--component", "hpcomm")


class Checked(Distribution):
    """Looks for the compiler and the headers before the first command that builds, which then prints nothing else."""

    def run_command(self, command: str) -> None:
        if command in ("bdist_wheel", "editable_wheel", "build", "build_ext"):
            check_machine()
        super().run_command(command)


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
    distclass=Checked,
    ext_modules=[fast],
    cffi_modules=["hpcomm/_build.py:ffibuilder"],
    cmdclass={"build_ext": BuildExt},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},  # pyproject.toml's [tool.distutils] warns at each build
)

"""Builds libhpcomm by CMake into the package, then its two extensions against it. All else is in pyproject.toml."""

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from importlib import import_module
from importlib import metadata as installed
from pathlib import Path
from typing import Any

from setuptools import Distribution, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

if sys.platform != "linux":
    raise SystemExit(f"hpcomm runs on Linux alone, and this is {sys.platform}")

ROOT = Path(__file__).resolve().parent
BUILD = ROOT / "build" / "cmake"  # kept, so that the next build compiles only what changed; make builds the tests in it
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))  # 1980, where the times of a zip begin
# The buffer protocol, which _fast.c reads, is in the stable ABI since 3.11; free-threaded Pythons have none until 3.15.
LIMITED = sys.version_info >= (3, 11) and not sysconfig.get_config_var("Py_GIL_DISABLED")


def version() -> str:
    header = (ROOT / "csrc/include/hpcomm/hpcomm.h").read_text(encoding="utf-8")
    numbers = re.findall(r"^#define HPC_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", header, re.MULTILINE)
    return ".".join(numbers) + "".join(re.findall(r'^#define HPC_VERSION_PRE "([^"]*)"', header, re.MULTILINE))


def readme() -> str:
    """README.md as an index shows it, away from the repository: links and pictures have the address of this version."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (address,) = re.findall(r'^Source = "(.*)"$', project, re.MULTILINE)
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("THE-ADDRESS-OF-THIS-REPOSITORY", address)
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{address}/raw/v{version()}/", text)
    return re.sub(r"(\]\()(?!https?:|#)", rf"\1{address}/blob/v{version()}/", text)


def bill_of_materials() -> dict[str, Any]:
    """The CycloneDX document of a wheel (PEP 770): hpcomm, and the code of others that is compiled into it."""
    cache = (BUILD / "CMakeCache.txt").read_text(encoding="utf-8")
    inside = [("cffi", installed.version("cffi"), "MIT-0", "the glue of hpcomm._ffi")]
    if re.search(r"^HPC_VERBS_HEADER:INTERNAL=1$", cache, re.MULTILINE):
        inside.append(("rdma-core", "", "GPL-2.0-only OR Linux-OpenIB", "inline functions of infiniband/verbs.h"))

    def component(name: str, release: str, terms: str, text: str, kind: str = "pypi") -> dict[str, Any]:
        purl = f"pkg:{kind}/{name}" + (f"@{release}" if release else "")
        told = {"type": "library", "bom-ref": purl, "name": name, "description": text, "purl": purl}
        return {**told, **({"version": release} if release else {}), "licenses": [{"expression": terms}]}

    own = component("hpcomm", version(), "BSD-3-Clause", "the package, libhpcomm and its headers")
    parts = [component(*part, kind="pypi" if part[1] else "generic") for part in inside]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": parts,
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]}],
    }


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
    command = [*compiler, "-E", "-x", "c", "-"]
    return subprocess.run(command, input=program, capture_output=True, check=False).returncode == 0


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
        for extension in self.extensions:  # no paths of this machine inside
            extension.extra_compile_args += ["-g0", f"-ffile-prefix-map={ROOT}=."]
        package = ROOT / "hpcomm" if self.inplace else Path(self.build_lib).resolve() / "hpcomm"
        install_library(package)
        self.library_dirs.append(str(package / "lib"))
        super().run()


class BdistWheel(bdist_wheel):
    def write_wheelfile(self, wheelfile_base: str, *args: Any, **options: Any) -> None:
        super().write_wheelfile(wheelfile_base, *args, **options)
        if not (BUILD / "CMakeCache.txt").exists():
            return  # an editable wheel, which is described before it is built
        folder = Path(wheelfile_base) / "sboms"
        folder.mkdir(exist_ok=True)
        text = json.dumps(bill_of_materials(), indent=1)
        (folder / "hpcomm.cdx.json").write_text(f"{text}\n", encoding="utf-8")


class Sdist(sdist):
    """The same bytes from the same files: sorted, of one time and nobody's."""

    def make_archive(self, *words: Any, **options: Any) -> str:
        def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = EPOCH
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            return entry

        archive = f"{words[0]}.tar.gz"
        with gzip.GzipFile(archive, "wb", mtime=EPOCH) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(options["base_dir"], filter=plain)
        return archive


# Beside the cffi extension (hpcomm/_build.py): the few calls for which cffi is too slow.
fast = Extension(
    "hpcomm._fast",
    ["hpcomm/_fast.c", "hpcomm/_fast_calls.c"],
    depends=["hpcomm/_fast.h"],
    include_dirs=["csrc/include"],
    extra_link_args=["-l:libhpcomm.so.0", "-Wl,-rpath,$ORIGIN/lib"],
    define_macros=[("Py_LIMITED_API", "0x030b0000")] if LIMITED else [],
    py_limited_api=LIMITED,
)

setup(
    version=version(),
    long_description=readme(),
    long_description_content_type="text/markdown",
    distclass=Checked,
    ext_modules=[fast],
    cffi_modules=["hpcomm/_build.py:ffibuilder"],
    cmdclass={"build_ext": BuildExt, "bdist_wheel": BdistWheel, "sdist": Sdist},
    # pyproject.toml's [tool.distutils] warns at each build
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if LIMITED else {},
)

"""What is built and shipped: the sdist, the wheel made from it, and programs built against the installed wheel.

Dependencies come from the environment that runs the tests, so nothing is downloaded.
"""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOT_SOURCES = (".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", "*.so", "*.so.0")
HEADERS = sorted(path.name for path in (ROOT / "csrc/include/hpcomm").iterdir())
NOT_SHIPPED = (".github/", ".gitignore", ".gitattributes")  # of the repository's files, in the sdist
MADE = ("PKG-INFO", "setup.cfg", "hpcomm.egg-info/")  # what the sdist has beside them
LIMITED = sys.version_info >= (3, 11) and not sysconfig.get_config_var("Py_GIL_DISABLED")
SECONDS = 300  # of one command; all together take about a minute
UNOPTIMIZED = "-DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG=-O0"

C_PROGRAM = """
#include <hpcomm/hpcomm.h>
#include <stdio.h>
int main(void) { return puts(hpc_version()) < 0 || hpc_core_count() < 1; }
"""
CXX_PROGRAM = """
#include <hpcomm/hpcomm.hpp>
#include <cstdio>
int main() { return std::puts(hpc_version()) < 0 || hpc_core_count() < 1; }
"""
CXX_PROJECT = """
cmake_minimum_required(VERSION 3.18)
project(consumer LANGUAGES CXX)
find_package(hpcomm 0.1 CONFIG REQUIRED)
add_executable(program program.cpp)
target_compile_features(program PRIVATE cxx_std_17)
target_link_libraries(program PRIVATE hpcomm::hpcomm)
"""


def run(*command: str | Path, cwd: Path | None = None, ends: int = 0, **env: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == ends, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout.strip()


@dataclass(frozen=True)
class Installed:
    """The wheel in a venv of its own, far from the sources."""

    python: Path
    hpcomm: Path

    def dir(self, option: str) -> Path:
        return Path(run(self.hpcomm, "info", option, cwd=self.python.parent))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean copy of the tree, with nothing that a build has left in it."""
    copy = tmp_path_factory.mktemp("sources") / "hpcomm"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*NOT_SOURCES))
    for made in ("hpcomm/lib", "hpcomm/include"):
        shutil.rmtree(copy / made, ignore_errors=True)
    return copy


@pytest.fixture(scope="module")
def unpacked(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, unpacked: the only tree in which the library is compiled here. Unoptimized, in a third of the time.
    An sdist needs no compiler."""
    dist, nothing = tmp_path_factory.mktemp("sdist"), tmp_path_factory.mktemp("nothing")
    backend("build_sdist", dist, cwd=sources, PATH=str(nothing))
    (archive,) = dist.glob("*.tar.gz")
    shutil.unpack_archive(archive, dist)
    (folder,) = (path for path in dist.iterdir() if path.is_dir())
    return folder


@pytest.fixture(scope="module")
def wheel(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dist = tmp_path_factory.mktemp("dist")
    backend("build_wheel", dist, cwd=unpacked, CMAKE_ARGS=UNOPTIMIZED)
    (built,) = dist.glob("*.whl")
    return built


def backend(hook: str, dist: Path, cwd: Path, ends: int = 0, **env: str) -> str:
    """What pip asks of the build backend, without its environment: nothing is downloaded."""
    program = f"import sys; from setuptools import build_meta; build_meta.{hook}(sys.argv[1])"
    return run(sys.executable, "-c", program, dist, cwd=cwd, ends=ends, **env)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    home = tmp_path_factory.mktemp("elsewhere") / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"))
    # Only appended to the path: its own .pth files, an editable hpcomm among them, are not read.
    (site / "dependencies.pth").write_text(sysconfig.get_path("platlib") + "\n", encoding="utf-8")
    return Installed(python, home / "bin/hpcomm")


@pytest.mark.xdist_group("group wheel")
def test_a_build_without_a_compiler_says_so_in_one_line(sources: Path, tmp_path: Path) -> None:
    """As what pip prints of a build that has failed is all that the build has printed."""
    said = backend("build_wheel", tmp_path, cwd=sources, ends=1, PATH=str(tmp_path), CC="")
    assert re.fullmatch(
        r"hpcomm needs a C compiler and finds no \S+: set CC to another one, or on Debian or Ubuntu "
        r"apt-get install -y gcc python3-dev",
        said,
    )


@pytest.mark.xdist_group("group wheel")
def test_an_editable_build_without_headers_says_so_in_one_line(sources: Path, tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\n! grep -q Python.h\n", encoding="utf-8")
    compiler.chmod(0o755)
    said = backend("build_editable", tmp_path, cwd=sources, ends=1, CC=str(compiler))
    assert said == (
        f"hpcomm needs Python's headers and finds no Python.h in {sysconfig.get_path('include')}: "
        "on Debian or Ubuntu apt-get install -y gcc python3-dev"
    )


@pytest.mark.xdist_group("group wheel")
def test_wheel_content(wheel: Path) -> None:
    if LIMITED:
        assert wheel.name.split("-")[2:4] == ["cp311", "abi3"]
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        links = [i.filename for i in archive.infolist() if stat.S_ISLNK(i.external_attr >> 16)]
        texts = {n: archive.read(n).decode() for n in names if n.endswith((".cmake", ".pc"))}
    assert links == []
    assert [n for n in names if "libhpcomm" in n] == ["hpcomm/lib/libhpcomm.so.0"]
    suffix = ".abi3.so" if LIMITED else sysconfig.get_config_var("EXT_SUFFIX")
    expected = {
        f"hpcomm/_fast{suffix}",
        f"hpcomm/_ffi{suffix}",
        "hpcomm/py.typed",
        *(f"hpcomm/include/hpcomm/{header}" for header in HEADERS),
        "hpcomm/lib/cmake/hpcomm/hpcommConfig.cmake",
        "hpcomm/lib/cmake/hpcomm/hpcommConfigVersion.cmake",
        "hpcomm/lib/cmake/hpcomm/hpcommTargets.cmake",
        "hpcomm/lib/pkgconfig/hpcomm.pc",
    }
    assert expected <= set(names)
    assert {n.split("/")[0].split("-")[0] for n in names} == {"hpcomm"}
    built_in = [str(wheel.parents[1]), *(f"{ROOT}/{part}" for part in ("build", "csrc", "hpcomm/"))]
    fixed = [n for n, text in texts.items() if any(folder in text for folder in built_in)]
    assert fixed == [], "these files name the folder that they were built in"


@pytest.mark.xdist_group("group wheel")
def test_all_of_the_wheel_says_the_same_version(wheel: Path) -> None:
    header = (ROOT / "csrc/include/hpcomm/hpcomm.h").read_text(encoding="utf-8")
    numbers = re.findall(r'#define HPC_VERSION_(?:MAJOR|MINOR|PATCH|PRE) "?([a-z0-9]*)', header)
    version = ".".join(numbers[:3]) + numbers[3]
    assert wheel.name.split("-")[1] == version
    with zipfile.ZipFile(wheel) as archive:
        pc = archive.read("hpcomm/lib/pkgconfig/hpcomm.pc").decode()
        config = archive.read("hpcomm/lib/cmake/hpcomm/hpcommConfigVersion.cmake").decode()
        about = archive.read(f"hpcomm-{version}.dist-info/METADATA").decode()
        materials = json.loads(archive.read(f"hpcomm-{version}.dist-info/sboms/hpcomm.cdx.json"))
    assert f"\nVersion: {version}\n" in pc
    assert f'set(PACKAGE_VERSION "{version}")' in config
    assert f"\nVersion: {version}\n" in about
    assert materials["metadata"]["component"]["version"] == version
    assert {"cffi"} <= {part["name"] for part in materials["components"]} <= {"cffi", "rdma-core"}


@pytest.mark.xdist_group("group wheel")
def test_the_sdist_has_every_file_of_the_repository(unpacked: Path) -> None:
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("no repository here")
    told = subprocess.check_output(listed, cwd=ROOT, text=True).split("\0")
    kept = {name for name in told if (ROOT / name).is_file() and not name.startswith(NOT_SHIPPED)}
    (archive,) = unpacked.parent.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        packed = {entry.name.partition("/")[2] for entry in files if entry.isfile()}
    assert {name for name in packed if not name.startswith(MADE)} == kept


@pytest.mark.xdist_group("group wheel")
def test_an_sdist_is_the_same_bytes_whenever_it_is_packed(sources: Path, unpacked: Path, tmp_path: Path) -> None:
    (first,) = unpacked.parent.glob("*.tar.gz")
    (sources / "README.md").touch()
    backend("build_sdist", tmp_path, cwd=sources)
    assert (tmp_path / first.name).read_bytes() == first.read_bytes()


@pytest.mark.xdist_group("group wheel")
def test_the_index_gets_links_that_work_there(unpacked: Path) -> None:
    shown = (unpacked / "PKG-INFO").read_text(encoding="utf-8").partition("\n\n")[2]
    links = re.findall(r"\]\(([^)]*)\)", shown)
    assert len(links) > 20
    assert [link for link in links if not link.startswith("https://")] == []
    assert [link for link in links if link.endswith(".png") and "/raw/" not in link] == []


def test_another_system_gets_one_line(tmp_path: Path) -> None:
    elsewhere = "import sys, sysconfig; sysconfig.get_config_vars(); sys.platform = 'plan9'"
    asked = "from setuptools import build_meta; build_meta.get_requires_for_build_wheel()"
    said = run(sys.executable, "-c", f"{elsewhere}; {asked}", cwd=ROOT, ends=1)
    assert said == "hpcomm runs on Linux alone, and this is plan9"
    said = run("cmake", "-S", ROOT, "-B", tmp_path, "-DCMAKE_SYSTEM_NAME=Generic", ends=1)
    assert "hpcomm runs on Linux alone, and this is a build for Generic" in said


@pytest.mark.xdist_group("group wheel")
def test_wheel_holds_every_module(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {n for n in archive.namelist() if n.endswith(".py")}
    assert packed == {str(p.relative_to(ROOT)) for p in (ROOT / "hpcomm").rglob("*.py")}


@pytest.mark.xdist_group("group wheel")
def test_import_elsewhere(installed: Installed) -> None:
    home = installed.python.parents[1]
    where = run(installed.python, "-c", "import hpcomm._ffi as m; print(m.__file__)", cwd=home)
    assert Path(where).is_relative_to(home)
    for option in ("--cmake-dir", "--include-dir"):
        told = installed.dir(option)
        assert told.is_dir()
        assert told.is_relative_to(home)
    assert run(installed.python, "-m", "hpcomm.cmake", cwd=home) == str(installed.dir("--cmake-dir"))
    packages = run(installed.python, "-m", "hpcomm.cmake", "--pkg-config-dir", cwd=home)
    assert (Path(packages) / "hpcomm.pc").is_file()


@pytest.mark.xdist_group("group wheel")
def test_a_checkout_that_hides_the_installed_package_names_the_cures(installed: Installed, sources: Path) -> None:
    said = run(installed.python, "-c", "import hpcomm", cwd=sources, ends=1).splitlines()
    assert said[-1] == (
        f"ModuleNotFoundError: {sources / 'hpcomm'} is a checkout of hpcomm without its compiled part: start Python in "
        f"another folder to import the installed package, or compile this one by pip install -e {sources}"
    )
    assert not [line for line in said if "exception" in line]


@pytest.mark.xdist_group("group wheel")
def test_c_program_by_pkg_config(installed: Installed, tmp_path: Path) -> None:
    if shutil.which("pkg-config") is None:
        pytest.skip("no pkg-config on this machine")
    packages = str(installed.dir("--cmake-dir").parents[1] / "pkgconfig")
    flags = run("pkg-config", "--cflags", "--libs", "hpcomm", PKG_CONFIG_PATH=packages).split()
    libdir = run("pkg-config", "--variable=libdir", "hpcomm", PKG_CONFIG_PATH=packages)
    (tmp_path / "program.c").write_text(C_PROGRAM, encoding="utf-8")
    run("cc", "program.c", "-o", "program", *flags, f"-Wl,-rpath,{libdir}", cwd=tmp_path)
    version = run("pkg-config", "--modversion", "hpcomm", PKG_CONFIG_PATH=packages)
    assert run(tmp_path / "program") == version


@pytest.mark.xdist_group("group wheel")
def test_cxx_program_by_find_package(installed: Installed, tmp_path: Path) -> None:
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler on this machine")
    (tmp_path / "program.cpp").write_text(CXX_PROGRAM, encoding="utf-8")
    (tmp_path / "CMakeLists.txt").write_text(CXX_PROJECT, encoding="utf-8")
    run("cmake", "-S", ".", "-B", "b", "-G", "Ninja", f"-Dhpcomm_DIR={installed.dir('--cmake-dir')}", cwd=tmp_path)
    run("cmake", "--build", "b", cwd=tmp_path)
    version = run(installed.python, "-c", "import hpcomm; print(hpcomm.__version__)", cwd=tmp_path)
    assert run(tmp_path / "b/program") == version


@pytest.mark.xdist_group("group wheel")
def test_cmake_install_for_a_distribution(wheel: Path, unpacked: Path, tmp_path: Path) -> None:
    """With the name link, and a library folder two levels deep, found from the moved .pc file all the same."""
    assert wheel.exists()  # and so the library that is installed again is compiled
    build, prefix = unpacked / "build/cmake", tmp_path / "prefix"
    run("cmake", "-S", unpacked, "-B", build, "-DCMAKE_INSTALL_LIBDIR=lib/triplet")
    run("cmake", "--build", build)
    run("cmake", "--install", build, "--prefix", prefix)
    assert (prefix / "lib/triplet/libhpcomm.so").readlink() == Path("libhpcomm.so.0")
    moved = prefix.rename(tmp_path / "moved")
    pc = (moved / "lib/triplet/pkgconfig/hpcomm.pc").read_text(encoding="utf-8")
    variables = dict(line.split("=", 1) for line in pc.splitlines() if "=" in line)
    root = Path(os.path.normpath(variables["prefix"].replace("${pcfiledir}", str(moved / "lib/triplet/pkgconfig"))))
    assert root == moved
    assert (variables["libdir"], variables["includedir"]) == ("${prefix}/lib/triplet", "${prefix}/include")


@pytest.mark.some(3)
@pytest.mark.parametrize("compiler", ["cc", "clang"])
@pytest.mark.parametrize("standard", ["c99", "c11", "c17"])
def test_header_is_c(compiler: str, standard: str, tmp_path: Path) -> None:
    compiles(compiler, "c", standard, "hpcomm/hpcomm.h", tmp_path)


@pytest.mark.some(2)
@pytest.mark.parametrize("compiler", ["c++", "clang++"])
@pytest.mark.parametrize("header", ["hpcomm/hpcomm.h", "hpcomm/hpcomm.hpp"])
@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_headers_are_cxx(compiler: str, header: str, standard: str, tmp_path: Path) -> None:
    compiles(compiler, "c++", standard, header, tmp_path)


@pytest.mark.some(4)
@pytest.mark.parametrize("header", [header for header in HEADERS if header.endswith(".hpp")])
def test_each_header_stands_alone(header: str, tmp_path: Path) -> None:
    compiles("c++", "c++", "c++17", f"hpcomm/{header}", tmp_path)


def compiles(compiler: str, language: str, standard: str, header: str, folder: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} on this machine")
    source = folder / "header.c"
    source.write_text(f"#include <{header}>\n", encoding="utf-8")
    strict = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"]
    run(compiler, "-x", language, f"-std={standard}", *strict, "-I", ROOT / "csrc/include", source)


def test_rdma_headers_are_looked_for_each_time(tmp_path: Path) -> None:
    """A build that was made before they came has verbs when it is configured again, and none when they have gone."""
    header, build = tmp_path / "infiniband/verbs.h", tmp_path / "build"
    header.parent.mkdir()
    for text, found in (("#error none\n", False), ("struct ibv_device;\n", True), ("#error none\n", False)):
        header.write_text(text)
        run("cmake", "-S", ROOT, "-B", build, f"-DCMAKE_C_FLAGS=-I{tmp_path}")
        assert ("HPC_HAVE_VERBS=1" in (build / "compile_commands.json").read_text()) == found


def test_make_tells_each_long_step_before_it_begins(tmp_path: Path) -> None:
    told = False
    for line in run("make", "-n", f"VENV={tmp_path}/venv", "demo", f"{tmp_path}/venv/.torch", cwd=ROOT).splitlines():
        told = told or re.search(r'echo "(installing|compiling|making) ', line) is not None
        if re.search(r"pip install|-m venv|cmake --build", line):
            assert told, line
            told = False

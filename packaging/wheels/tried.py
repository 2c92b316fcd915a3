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
WORK = ROOT / "build/wheels"
CMAKE = ("cmake", "ninja")  # for find_package, which needs no compiler

sys.path.insert(0, str(ROOT / "tests"))
from bare import run as bare


def execute(*command: str | Path, cwd: Path = Path("/"), **env: str) -> None:
    """A step: its line here, what it prints in build/wheels/build.log, and here where it fails."""
    words = ["..." if "\n" in str(word) else str(word) for word in command]
    line = f"--- {shlex.join(words)}"
    print(line, flush=True)
    WORK.mkdir(parents=True, exist_ok=True)
    with (WORK / "build.log").open("a+b") as log:
        log.write(f"{line}\n".encode())
        log.flush()
        begin = log.tell()
        status = subprocess.run(
            command, cwd=cwd, env={**os.environ, **env}, stdout=log, stderr=subprocess.STDOUT, check=False
        ).returncode
        log.seek(begin)
        said = log.read().decode(errors="replace").splitlines()
    if status:
        raise SystemExit("\n".join([*said[-30:], f"{command[0]} has failed; the lines above say why"]))
    if SMOKE in command:
        print(said[-1])


def in_root(wheel: Path, python: Path) -> None:
    """In a root with no compiler. An abi3 wheel takes Debian's python3; another interpreter is mounted with its folder.

    Raises:
        bare.Unavailable: this machine cannot make such a root.
    """
    prefix = Path("/usr")
    if "-abi3-" not in wheel.name:
        prefix = Path(subprocess.check_output([python, "-c", "import sys; print(sys.base_prefix)"], text=True).strip())
        if prefix == Path("/usr"):
            raise bare.Unavailable("Debian 12 has another Python in /usr")
    root = bare.Bare(WORK / "root", bare.installed(["python3", "python3-venv"]))
    try:
        inside = root.folder / "hpcomm"
        inside.mkdir()
        for path in (wheel, SMOKE):
            shutil.copy(path, inside)
        if prefix != Path("/usr"):
            (root.folder / prefix.relative_to("/")).mkdir(parents=True)
            root.shared.append(prefix)
        command = (
            f"! command -v cc gcc c++ mpirun && {prefix}/bin/python3 -m venv /opt/v && cd / && PATH=/opt/v/bin:$PATH"
            f" && pip install -q /hpcomm/{wheel.name} {' '.join(CMAKE)} && python /hpcomm/smoke.py"
        )
        print(f"--- in a bare root: {command}", flush=True)
        if root.run(command, WORK / f"{wheel.name}.log"):
            raise SystemExit(f"{wheel.name} fails in a bare root; the lines above say why")
    finally:
        shutil.rmtree(root.folder, ignore_errors=True)


def in_environment(wheel: Path, python: Path) -> None:
    home = WORK / "empty"
    execute(python, "-m", "venv", "--clear", home)
    execute(home / "bin/pip", "install", wheel, *CMAKE)
    execute(home / "bin/python", SMOKE, PATH=f"{home}/bin:{os.environ['PATH']}")


def under_qemu(wheel: Path) -> str:
    """What came of it, for a person. The root is unpacked and not installed: nothing of it runs but Python."""
    emulator = shutil.which("qemu-aarch64-static")
    if platform.machine() != "x86_64" or emulator is None or shutil.which("mmdebstrap") is None:
        return "untested: that takes an x86_64 and apt-get install -y qemu-user-static mmdebstrap"
    if "-abi3-" not in wheel.name:
        return "untested: Debian 12 has no such Python"
    root, site = WORK / "debian-arm64", WORK / "site-arm64"
    if not (root / "usr/bin/python3").exists():
        packages = ["--architectures=arm64", "--include=python3,libstdc++6"]
        execute("mmdebstrap", "--quiet", "--variant=extract", *packages, bare.SUITE, root)
    shutil.rmtree(site, ignore_errors=True)
    places = [f"--platform=manylinux_2_{minor}_aarch64" for minor in (17, 27, 28)]
    chosen = [*places, "--platform=manylinux2014_aarch64", "--only-binary=:all:", "--python-version=3.11"]
    execute(sys.executable, "-m", "pip", "install", "--target", site, *chosen, wheel)
    execute(emulator, "-L", root, root / "usr/bin/python3", SMOKE, PYTHONPATH=str(site), PATH="/nonexistent")
    return "works under qemu"


def tried(wheel: Path, python: Path) -> str:
    """Tries a wheel on the best machine there is, and says in words how. Ends where the wheel does not work."""
    if platform.machine() not in wheel.name:
        return under_qemu(wheel)
    try:
        in_root(wheel, python)
    except bare.Unavailable as why:
        print(f"no bare root: {why}")
        in_environment(wheel, python)
        return "works in an empty environment"
    return "works in a bare root"

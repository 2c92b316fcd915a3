"""A machine that has nothing but what README asks for: python tests/bare/run.py [--if-changed]

Makes a root of Debian 12 by mmdebstrap, installs the packages of README's apt-get line, and runs in it, on a clone of
this commit, what README promises: `make demo` and `make test`. Then it takes the compiler away, and looks at what
`pip install .` says. What a developer's machine has beside these packages cannot help here.

Ends with 0 if all of it passes, with 1 if not, and with 77 where the machine cannot make such a root, saying why.
When it has passed it writes .ci/bare, a digest of all that decides which packages are needed; --if-changed does nothing
while that digest is the same.

The network, the clock and the kernel are this machine's, and so is pip's configuration: its files, its variables, and
the folders that they name.
"""

import argparse
import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PASSED = ".ci/bare"
SUITE = "bookworm"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hpcomm/bare"
DAYS = 30  # for which an installed root is used again
INSTALL = re.compile(r"apt-get install -y ((?:[a-z0-9.+-]+ ?)+)")
SECONDS = 1500.0  # for one command in the root
LINES = 12  # that pip may print from the build's beginning until it says what is missing
COMPILERS = ("cc", "gcc*", "c++", "g++*", "c89*", "c99*", "cpp*", "x86_64-linux-gnu-g*", "x86_64-linux-gnu-cpp*")
DECIDE = ("README.md", "Makefile", "pyproject.toml", "setup.py", ".ci/run", "tests/bare/run.py")
VARIABLES = re.compile(r"PIP_\w+|\w+_proxy|\w+_PROXY|SSL_CERT_\w+|REQUESTS_CA_BUNDLE|HPC_TEST_SEED")


class Unavailable(Exception):
    """This machine cannot make the root; the message says why."""


# ---- what decides ---------------------------------------------------------------------------------------------------


def packages(readme: str) -> list[str]:
    """Those that README's apt-get line installs."""
    found = [line.split() for line in INSTALL.findall(readme)]
    return next(words for words in found if "gcc" in words)


def imported(root: Path) -> set[str]:
    """The modules from elsewhere that tests, package and examples import."""
    files = [path for folder in ("tests", "hpcomm", "examples") for path in (root / folder).rglob("*.py")]
    own = {"bench", "hpcomm"}
    for path in (path.relative_to(root) for path in files):
        if path.parts[0] != "hpcomm":
            own |= {path.stem, *path.parts[:-1]}
    every = set[str]()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found = [node.module or ""]
            else:
                continue
            every.update(name for name in found if name.partition(".")[0] not in own)
    return every


def digest(root: Path = ROOT) -> str:
    """Of the files that say what is installed, and of what tests, package and examples import."""
    found = hashlib.sha256()
    for name in DECIDE:
        found.update(f"{name}\n".encode() + (root / name).read_bytes())
    found.update("\n".join(sorted(imported(root))).encode())
    return found.hexdigest()


def has_passed(root: Path = ROOT) -> bool:
    mark = root / PASSED
    return mark.exists() and mark.read_text(encoding="utf-8").strip() == digest(root)


# ---- the root -------------------------------------------------------------------------------------------------------


def installed(wanted: list[str]) -> Path:
    """An archive of the root with these packages, from the cache or new."""
    for program in ("mmdebstrap", "unshare", "chroot"):
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
            raise Unavailable(f"no {program} on this machine: apt-get install -y mmdebstrap")
    if os.geteuid() != 0:
        raise Unavailable("a root is made by root alone")
    CACHE.mkdir(parents=True, exist_ok=True)
    archive = CACHE / f"{SUITE}-{hashlib.sha256(' '.join(wanted).encode()).hexdigest()[:12]}.tar"
    if archive.exists() and time.time() - archive.stat().st_mtime < DAYS * 86400:
        return archive
    new = archive.with_suffix(f".{os.getpid()}.tar")
    # ca-certificates: README's user has cloned the repository over https.
    include = ",".join([*wanted, "ca-certificates"])
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={include}", SUITE, str(new)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        new.unlink(missing_ok=True)
        raise Unavailable(f"mmdebstrap ended with {done.returncode}: {done.stderr.strip()[-400:]}")
    return new.replace(archive)


def folders_of_pip() -> list[Path]:
    """pip's configuration files, and every file and folder that they or its variables name."""
    pip = [sys.executable, "-m", "pip", "config"]
    said = subprocess.run([*pip, "debug"], capture_output=True, text=True, timeout=60, check=False).stdout
    files = re.findall(r"^ *(/\S+), exists: True", said, re.MULTILINE)
    named = re.findall(r"(?:file://|['\" ])(/[^'\"\s]+)", said)
    paths = {Path(path) for path in (*files, *named)}
    paths |= {path.parent for path in paths if path.name == "simple"}  # an index, whose files lie beside it
    return sorted(path for path in paths if path.exists() and path.is_absolute())


class Bare:
    """A root in a folder, for commands in namespaces of their own: nothing runs or is mounted when one has ended."""

    def __init__(self, folder: Path, archive: Path) -> None:
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        # Device files are there by a mount.
        unpack = ["tar", "-xf", str(archive), "-C", str(folder), "--exclude=./dev/*"]
        subprocess.run(unpack, check=True, timeout=300)
        self.shared = folders_of_pip()
        for path in (*self.shared, Path("/etc/resolv.conf"), Path("/etc/hosts")):
            inside = folder / path.relative_to("/")
            inside.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                inside.mkdir(exist_ok=True)
            else:
                inside.unlink(missing_ok=True)
                inside.touch()

    def run(self, command: str, log: Path) -> int:
        """A command of the shell in the clone; what it prints goes here and into log."""
        mounts = ["mount --make-rprivate /", f"mount --bind {self.folder} {self.folder}", f"cd {self.folder}"]
        mounts += ["mount -t proc proc proc", "mount --rbind /sys sys", "mount --rbind /dev dev"]
        mounts += ["mount -t tmpfs tmpfs tmp"]
        for path in (*self.shared, Path("/etc/resolv.conf"), Path("/etc/hosts")):
            mounts.append(f"mount --rbind {path} .{path}")
        script = f"{' && '.join(mounts)} && exec chroot . /bin/bash -c 'cd /hpcomm && {command}'"
        environment = {
            **{name: value for name, value in os.environ.items() if VARIABLES.fullmatch(name)},
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
        }
        alone = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "bash", "-c", script]
        with (
            log.open("wb") as file,
            subprocess.Popen(
                alone, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            ) as running,
        ):
            assert running.stdout is not None
            until = time.monotonic() + SECONDS
            while chunk := os.read(running.stdout.fileno(), 1 << 16):
                for to in (sys.stdout.buffer, file):
                    to.write(chunk)
                    to.flush()
                if time.monotonic() > until:
                    running.kill()
                    return 124
            return running.wait()


# ---- what README promises -------------------------------------------------------------------------------------------


def promises(bare: Bare, logs: Path) -> list[str]:
    """What is wrong."""
    wrong = []
    for command in ("make demo", "make test"):
        start = time.monotonic()
        print(f"--- {command}", flush=True)
        status = bare.run(command, logs / f"{command.replace(' ', '-')}.log")
        print(f"--- {command}: {status}, {(time.monotonic() - start) / 60:.1f} minutes", flush=True)
        if status:
            wrong.append(f"{command} ended with {status}")
    return wrong


def without_compiler(bare: Bare, logs: Path) -> list[str]:
    """What is wrong with the sentence of pip install . on a machine that has no compiler."""
    for pattern in COMPILERS:
        for path in (bare.folder / "usr/bin").glob(pattern):
            path.unlink()
    print("--- pip install . without a compiler", flush=True)
    log = logs / "pip.log"
    status = bare.run("git clean -qfdx && python3 -m venv /opt/v && /opt/v/bin/pip install .", log)
    said = log.read_text(encoding="utf-8", errors="replace").splitlines()
    if status == 0:
        return ["pip install . passed without a compiler"]
    told = [number for number, line in enumerate(said) if "C compiler" in line]
    if not told:
        return ["pip install . does not say that a C compiler is missing"]
    begun = [number for number, line in enumerate(said) if "Building wheel for hpcomm" in line]
    if not begun or told[0] - begun[0] > LINES:
        return [f"pip install . says what is missing in line {told[0] + 1}, more than {LINES} after the build began"]
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description="make demo and make test where README's packages are all there is")
    parser.add_argument("--if-changed", action="store_true", help="only if something that decides has changed")
    options = parser.parse_args()
    if options.if_changed and has_passed():
        print(f"{PASSED} has passed on these files")
        return 0
    start, logs, folder = time.monotonic(), ROOT / "build/bare", ROOT / "build/bare/root"
    logs.mkdir(parents=True, exist_ok=True)
    try:
        bare = Bare(folder, installed(packages((ROOT / "README.md").read_text(encoding="utf-8"))))
    except Unavailable as why:
        print(f"skipped: {why}")
        return 77
    try:
        subprocess.run(["git", "clone", "-q", str(ROOT), str(folder / "hpcomm")], check=True, timeout=120)
        # The clone belongs to another user where this checkout does.
        subprocess.run(["chown", "-R", "0:0", str(folder / "hpcomm")], check=True, timeout=60)
        wrong = [*promises(bare, logs), *without_compiler(bare, logs)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for sentence in wrong:
        print(f"FAILED: {sentence}")
    if wrong:
        return 1
    (ROOT / PASSED).write_text(f"{digest()}\n", encoding="utf-8")
    print(f"passed in {(time.monotonic() - start) / 60:.1f} minutes; please commit {PASSED}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

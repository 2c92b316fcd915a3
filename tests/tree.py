"""The one build of this tree, which the package, the C tests and the guests share: build/cmake."""

import fcntl
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build/cmake"
PATH = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # as if the venv were activated


def command(*words: str | Path, seconds: float = 600) -> str:
    """What a command prints; the program ends if it fails."""
    done = subprocess.run(
        [str(word) for word in words],
        env=os.environ | {"PATH": PATH},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\nFAILED: {' '.join(str(word) for word in words)} ended with {done.returncode}")
    return done.stdout


def build_tests(*targets: str, folder: Path = BUILD, options: tuple[str, ...] = (), seconds: float = 600) -> None:
    """Builds C tests. The headers of rdma-core are looked for anew, so the build has verbs once they have come."""
    configure: list[str | Path] = ["cmake", "-G", "Ninja", "-S", ROOT, "-B", folder, "-DHPC_BUILD_TESTS=ON", *options]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # .ci/run has two guests at once
        command(*configure, seconds=seconds)
        command("cmake", "--build", folder, "--target", *targets, seconds=seconds)


def package_has_verbs() -> bool:
    return "verbs=yes" in command("hpcomm", "info")


def give_verbs_to_package() -> None:
    """Puts the build's library into the editable package, which was installed before the headers came."""
    spec = importlib.util.find_spec("hpcomm")
    editable = spec is not None and spec.origin == str(ROOT / "hpcomm/__init__.py")
    if editable and not package_has_verbs():
        command("cmake", "--build", BUILD, "--target", "hpcomm")
        command("cmake", "--install", BUILD, "--prefix", ROOT / "hpcomm", "--component", "hpcomm")
    if not package_has_verbs():
        raise SystemExit("FAILED: the installed hpcomm was built without rdma-core's headers; install it again")

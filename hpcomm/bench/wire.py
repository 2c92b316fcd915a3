"""Bare TCP between two ranks of a benchmark, by the addresses that hpcomm itself uses: own sockets, and iperf3.

hpcomm is compared with both. All calls that take a Bench are collective, but for path_to and afar.
"""

import json
import socket
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

import numpy as np

from .arrays import Words
from .harness import Bench
from .peers import has_iperf3

IPERF3_SECONDS = 2  # of a sample, beside the second that is left out
SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")


def sent() -> int:
    """Bytes that this host has sent by its link, with the headers of each packet."""
    return int(SENT.read_text())


def path_to(bench: Bench, rank: int) -> tuple[str, str]:
    """The address by which hpcomm reaches a rank, and the interface; loopback's without TCP."""
    place, _, interface = bench.path(rank).partition(" by ")
    return (place.rpartition(":")[0].strip("[]"), interface) if place else ("127.0.0.1", "lo")


def afar(bench: Bench, rank: int) -> int:
    """The first rank on another host than rank's; there are several hosts."""
    return next(other for other in range(bench.size) if bench.hosts[other] != bench.hosts[rank])


def _server(host: str) -> socket.socket:
    return socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1)


def socket_to(bench: Bench, peer: int | None, listens: bool) -> socket.socket | None:
    """A connection with the rank whose peer is this one, of which one listens, at the address that hpcomm would call.
    peer: None on a rank that takes no part."""
    called = bench.comm.allgather("" if peer is None or listens else path_to(bench, peer)[0])
    made, server, limit = None, None, bench.options.timeout
    if peer is not None and listens:
        server = _server(called[peer])
    ports = bench.comm.allgather(server.getsockname()[1] if server else 0)
    if peer is not None and server is None:
        made = socket.create_connection((called[bench.rank], ports[peer]), limit)
    elif server is not None:
        with server:
            server.settimeout(limit)
            made = server.accept()[0]
    if made is not None:
        made.setblocking(True)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            made.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(limit), 0))
    return made


def receive(connection: socket.socket, into: memoryview) -> None:
    """Fills into, blocking in the kernel."""
    while into.nbytes > 0:
        got = connection.recv_into(into)
        if got == 0:
            raise ConnectionError("the other rank closed a socket of the benchmark")
        into = into[got:]


def octets(array: Words) -> memoryview:
    return memoryview(array.view(np.uint8))  # type: ignore[arg-type]


def iperf3(bench: Bench, to: int, seconds: int, sender: int = 0) -> float:
    """Bytes a second of one TCP stream from rank sender to another, after its first second; 0.0 on all others."""
    host = bench.comm.bcast(path_to(bench, to)[0], sender)
    server, port = _serve(host) if bench.rank == to else (None, 0)
    port = bench.comm.bcast(port, to)
    if server is not None:
        with server:
            try:
                server.communicate(timeout=bench.options.timeout)
            finally:
                with suppress(ProcessLookupError):
                    server.kill()
    if bench.rank != sender:
        return 0.0
    command = ["iperf3", "-c", host, "-p", str(port), "-t", str(seconds), "-O", "1", "-J"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=bench.options.timeout, check=False)
    told = json.loads(ended.stdout)
    if "error" in told:
        raise RuntimeError(f"{' '.join(command)}: {told['error']}")
    return float(told["end"]["sum_received"]["bits_per_second"]) / 8


def has_rates(bench: Bench) -> bool:
    """Whether the rates of links between hosts are known."""
    return bench.apart and (bool(bench.options.wire) or has_iperf3())


def rate(bench: Bench, to: int, link: int = 0) -> float:
    """Bytes a second from rank 0 to another by the link of a host (0) or of a rack (1), by --wire or iperf3; 0.0 on all
    other ranks."""
    given: list[float] = bench.options.wire
    if given:
        return given[min(link, len(given) - 1)] if bench.rank == 0 else 0.0
    return iperf3(bench, to, IPERF3_SECONDS)


def _serve(host: str) -> tuple["subprocess.Popen[str]", int]:
    """An iperf3 that serves one client, and the port at which it listens."""
    with _server(host) as free:
        port = free.getsockname()[1]
    command = ["iperf3", "-s", "-1", "-B", host, "-p", str(port), "--forceflush"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    if not any("listening" in line for line in server.stdout):
        raise RuntimeError(f"{' '.join(command)}: it ended before it listened")
    return server, port

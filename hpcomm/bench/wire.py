"""Bounds of TCP between two ranks: bare sockets, and iperf3, over the addresses that hpcomm uses.

All ranks must call each function that takes a Bench, except path_to and afar.
"""

import json
import socket
import struct
import subprocess
from contextlib import suppress

import numpy as np

from .arrays import Words
from .harness import Bench
from .peers import has_iperf3

IPERF3_SECONDS = 2  # seconds of a sample, after a first second that is not counted


def path_to(bench: Bench, rank: int) -> tuple[str, str]:
    """Returns the address at which hpcomm reaches a rank, and the interface; loopback's if it does not use TCP."""
    place, _, interface = bench.path(rank).partition(" by ")
    return (place.rpartition(":")[0].strip("[]"), interface) if place else ("127.0.0.1", "lo")


def afar(bench: Bench, rank: int) -> int:
    """Returns the first rank that is on another host than the given rank. The job must have several hosts."""
    return next(other for other in range(bench.size) if bench.hosts[other] != bench.hosts[rank])


def _server(host: str) -> socket.socket:
    return socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1)


def socket_to(bench: Bench, peer: int | None, listens: bool) -> socket.socket | None:
    """Connects two ranks by TCP, at the address that hpcomm would use, and returns this rank's socket.

    The two ranks name each other as peer; on one of them listens is true. Other ranks pass peer=None, and get None.
    """
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
    """Receives until the buffer into is full. It blocks in the kernel; raises ConnectionError if the peer closes."""
    while into.nbytes > 0:
        got = connection.recv_into(into)
        if got == 0:
            raise ConnectionError("the other rank closed a socket of the benchmark")
        into = into[got:]


def octets(array: Words) -> memoryview:
    return memoryview(array.view(np.uint8))  # type: ignore[arg-type]


def iperf3(bench: Bench, to: int, seconds: int, sender: int = 0) -> float:
    """Measures one TCP stream from rank sender to rank to by iperf3, without its first second. Returns its bytes a
    second on rank sender, 0.0 on all other ranks."""
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
    """Whether rate can tell the rates of links between hosts."""
    return bench.apart and (bool(bench.options.wire) or has_iperf3())


def rate(bench: Bench, to: int, link: int = 0) -> float:
    """Returns the bytes a second from rank 0 to rank to, as --wire gives it or iperf3 measures it; on other ranks 0.0.

    link: which rate of --wire counts: 0 for the link of a host, 1 for that of a rack.
    """
    given: list[float] = bench.options.wire
    if given:
        return given[min(link, len(given) - 1)] if bench.rank == 0 else 0.0
    return iperf3(bench, to, IPERF3_SECONDS)


def _serve(host: str) -> tuple["subprocess.Popen[str]", int]:
    """Starts an iperf3 that serves one client. Returns its process, and the port at which it listens."""
    with _server(host) as free:
        port = free.getsockname()[1]
    command = ["iperf3", "-s", "-1", "-B", host, "-p", str(port), "--forceflush"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    if not any("listening" in line for line in server.stdout):
        raise RuntimeError(f"{' '.join(command)}: it ended before it listened")
    return server, port

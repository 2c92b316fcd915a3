"""Tests addresses of other hosts by plain sockets: which host answers, does data pass, how large may a packet be.

    caller -> called   magic, the caller's token
    called -> caller   magic, the called host's token          a small echo, which proves that it is the right host
    caller -> called   "S", n, then n bytes; the called host answers with the number of bytes that came
    caller -> called   "R", n; the called host answers with n bytes

A host calls an address: it connects to it. A token is 16 random bytes that identify a host; the ranks exchanged them
before, and a caller without one gets no answer. A failure is reported as a Finding, never as an exception.
"""

import errno
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

BLOCK = 1 << 20  # bytes of the large transfer
TOKEN_BYTES = 16
CALLS_AT_ONCE, TRANSFERS_AT_ONCE = 64, 4
STALL = 1.5  # a transfer that makes no progress for so many seconds has stalled
LONGEST = 10.0  # most seconds of one transfer

OK, REFUSED, SILENT, NO_ROUTE, MUTE, WRONG, BROKEN, UNTRIED = (
    "ok",
    "refused",  # no process listens there
    "silent",  # connect got no answer
    "no route",  # the kernel has no route, or a firewall says so
    "mute",  # connected, but no token came
    "wrong",  # another host answered, or a program that is not hpcomm doctor
    "broken",  # the connection broke during a transfer
    "untried",  # connected, but no time was left for a transfer
)

_MAGIC = b"hpcheck\1"
_SEND, _RECEIVE = b"S", b"R"
_PIECE = 1 << 16
_HANDLERS = 1024
_UDP_WAIT, _UDP_TRIES = 0.15, 3
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE = 10, 23, 3  # linux/in.h, in6.h
_NO_ROUTE = {
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.EHOSTDOWN,
    errno.EADDRNOTAVAIL,
    errno.EINVAL,  # a blackhole route
    errno.EACCES,  # a prohibit route, or this host's firewall
    errno.EPERM,
    errno.EAFNOSUPPORT,
}


@dataclass(frozen=True)
class Target:
    """An address at which a host should answer, and the token that it should answer with."""

    host: int
    ip: str
    port: int
    udp_port: int  # 0: none
    token: bytes
    interface: str = ""
    used: bool = True


@dataclass(frozen=True)
class Finding:
    """The result of one host's call to one target."""

    caller: int
    called: int
    ip: str
    port: int
    interface: str
    used: bool
    outcome: str
    why: str = ""
    by: str = ""  # with outcome "wrong": the token of the host that answered, in hex
    seconds: float = 0.0  # time to connect
    local: str = ""  # the caller's address on this connection
    sent: int = -1  # how many of BLOCK bytes the called host got; -1: not tried
    received: int = -1  # how many of BLOCK bytes the caller got back; -1: not tried
    rate: float = 0.0  # bytes a second in the slower direction
    mtu: int = 0  # size of the largest packet that passes; 0: not known

    @property
    def passes(self) -> bool:
        """Whether data passes in both directions."""
        return self.outcome == OK and self.sent in (-1, BLOCK) and self.received in (-1, BLOCK)


# ---- the called side -----------------------------------------------------------------------------------------------


class Responder:
    """Answers callers on an ephemeral TCP port, and UDP probes on a port of each address, as a context manager.

    Args:
        token: this host's token.
        knows: the tokens of all allowed callers.
        ips: addresses that get a UDP port.
        idle: most seconds that a caller may let pass between two transfers.
        bind: the address to listen on; "": all.

    Attributes:
        seen: for each caller's token, the addresses from which it connected.
    """

    def __init__(self, token: bytes, knows: Collection[bytes], ips: Sequence[str], idle: float, bind: str = "") -> None:
        self._token, self._knows, self._idle = token, frozenset(knows), idle
        self.seen: dict[bytes, set[str]] = {token: set() for token in self._knows}
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        with ExitStack() as undo:
            self._listener = undo.enter_context(_listen(bind))
            self._listener.settimeout(0.2)
            self._udp = {ip: undo.enter_context(udp) for ip in ips if (udp := _udp(ip)) is not None}
            self._undo = undo.pop_all()
        self.port: int = self._listener.getsockname()[1]
        self.udp_ports: dict[str, int] = {ip: udp.getsockname()[1] for ip, udp in self._udp.items()}

    def __enter__(self) -> "Responder":
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._accept, self._answer_probes)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(5)
        self._undo.close()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # the caller is gone, or no more files may be opened: wait before the next try
                self._ended.wait(0.05)
                continue
            with self._lock:
                welcome = len(self._open) < _HANDLERS
                if welcome:
                    self._open.add(connection)
            if welcome:
                threading.Thread(target=self._handle, args=(connection,), daemon=True).start()
            else:
                connection.close()

    def _handle(self, connection: socket.socket) -> None:
        try:
            with suppress(OSError, EOFError):
                self._serve(connection)
        finally:
            with self._lock:
                self._open.discard(connection)
            _drop(connection)

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = _read(connection, len(_MAGIC) + TOKEN_BYTES, 2 * STALL)
        if not hello.startswith(_MAGIC) or hello[len(_MAGIC) :] not in self._knows:
            return
        self.seen[hello[len(_MAGIC) :]].add(connection.getpeername()[0].removeprefix("::ffff:"))
        connection.sendall(_MAGIC + self._token)
        while True:
            order, nbytes = struct.unpack("!cQ", _read(connection, 9, self._idle))
            if nbytes > BLOCK:
                return
            if order == _SEND:
                came = _take(connection, nbytes)
                connection.sendall(struct.pack("!Q", came))
                if came < nbytes:
                    _read(connection, nbytes, STALL)  # closing now could lose the number; the caller closes
                    return
            else:
                _give(connection, nbytes)

    def _answer_probes(self) -> None:
        with selectors.DefaultSelector() as selector:
            for udp in self._udp.values():
                selector.register(udp, selectors.EVENT_READ)
            while not self._ended.is_set():
                for key, _ in selector.select(0.2):
                    with suppress(OSError):
                        probe, caller = key.fileobj.recvfrom(1 << 16)  # type: ignore[union-attr]
                        if probe.startswith(_MAGIC) and probe[8:24] in self._knows:
                            key.fileobj.sendto(_MAGIC + self._token + probe[24:28], caller)  # type: ignore[union-attr]


def _listen(bind: str) -> socket.socket:
    if bind:
        return socket.create_server((bind, 0), family=_family(bind), backlog=socket.SOMAXCONN)
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=socket.SOMAXCONN)
    return socket.create_server(("", 0), backlog=socket.SOMAXCONN)


def _udp(ip: str) -> socket.socket | None:
    """Returns a UDP socket bound to this address, or None. Answers to probes leave from the address that was probed."""
    try:
        udp = socket.socket(_family(ip), socket.SOCK_DGRAM)
    except OSError:
        return None
    try:
        udp.bind((ip, 0))
        udp.setblocking(False)
    except OSError:
        udp.close()
        return None
    return udp


def _family(ip: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in ip else socket.AF_INET


def _read(connection: socket.socket, nbytes: int, seconds: float) -> bytes:
    """Reads exactly nbytes bytes; raises EOFError if the peer closes, TimeoutError after so many seconds."""
    parts, end = b"", time.monotonic() + seconds
    while len(parts) < nbytes:
        connection.settimeout(max(1e-3, end - time.monotonic()))
        part = connection.recv(nbytes - len(parts))
        if not part:
            raise EOFError("hung up")
        parts += part
    return parts


def _take(connection: socket.socket, nbytes: int) -> int:
    """Receives up to nbytes bytes, until the transfer stalls. Returns how many came; raises EOFError if the peer
    closes."""
    came, end = 0, time.monotonic() + LONGEST
    while came < nbytes and time.monotonic() < end:
        connection.settimeout(STALL)
        try:
            part = connection.recv(min(_PIECE, nbytes - came))
        except TimeoutError:
            break
        if not part:
            raise EOFError("hung up")
        came += len(part)
    return came


def _give(connection: socket.socket, nbytes: int) -> bool:
    """Sends nbytes bytes. Returns whether the kernel took them all before the transfer stalled."""
    block, end = memoryview(bytes(_PIECE)), time.monotonic() + LONGEST
    while nbytes > 0:
        connection.settimeout(STALL)
        try:
            nbytes -= connection.send(block[: min(_PIECE, nbytes)])
        except TimeoutError:
            return False
        if time.monotonic() > end:
            return False
    return True


def _drop(connection: socket.socket) -> None:
    """Resets the connection: data that was not sent yet is dropped."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


# ---- the caller's side -----------------------------------------------------------------------------------------------


def call(caller: int, token: bytes, target: Target, patience: float) -> tuple[Finding, socket.socket | None]:
    """Connects and exchanges tokens. Returns the finding and, if the right host has answered, the socket, else None."""
    finding = Finding(caller, target.host, target.ip, target.port, target.interface, target.used, OK)
    connection = socket.socket(_family(target.ip), socket.SOCK_STREAM)
    start = time.monotonic()
    try:
        connection.settimeout(patience)
        connection.connect((target.ip, target.port))
        finding = replace(finding, seconds=time.monotonic() - start, local=connection.getsockname()[0])
    except OSError as error:
        connection.close()
        return replace(finding, outcome=_refusal(error), why=str(error), seconds=time.monotonic() - start), None
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(_MAGIC + token)
        answer = _read(connection, len(_MAGIC) + TOKEN_BYTES, patience)
    except TimeoutError:
        outcome, why, by = MUTE, f"no answer in {patience:.3g} s", ""
    except (OSError, EOFError) as error:
        outcome, why, by = WRONG, str(error), ""
    else:
        said = answer[len(_MAGIC) :]
        if answer.startswith(_MAGIC) and said == target.token:
            return finding, connection
        outcome, why, by = WRONG, "another answered", said.hex() if answer.startswith(_MAGIC) else ""
    _drop(connection)
    return replace(finding, outcome=outcome, why=why, by=by), None


def _refusal(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return REFUSED
    if isinstance(error, TimeoutError):
        return SILENT
    return NO_ROUTE if error.errno in _NO_ROUTE else BROKEN


def transfer(finding: Finding, connection: socket.socket) -> Finding:
    """Sends BLOCK bytes, then receives BLOCK bytes. Returns the finding with the results."""
    try:
        start = time.monotonic()
        connection.sendall(struct.pack("!cQ", _SEND, BLOCK))
        _give(connection, BLOCK)
        # The called host answers when all bytes have come, or the transfer has stalled.
        (sent,) = struct.unpack("!Q", _read(connection, 8, LONGEST + 2 * STALL))
        finding = replace(finding, sent=sent, rate=BLOCK / (time.monotonic() - start) if sent == BLOCK else 0.0)
        if sent < BLOCK:
            return finding
        start = time.monotonic()
        connection.sendall(struct.pack("!cQ", _RECEIVE, BLOCK))
        received = _take(connection, BLOCK)
        rate = BLOCK / (time.monotonic() - start) if received == BLOCK else 0.0
        return replace(finding, received=received, rate=min(rate, finding.rate))
    except TimeoutError:
        return replace(finding, sent=max(finding.sent, 0), why="nothing more was heard")
    except (OSError, EOFError) as error:
        return replace(finding, outcome=BROKEN, why=str(error))


def path_mtu(local: str, target: Target, token: bytes, top: int) -> int:
    """Returns the size, IP header included, of the largest packet up to top that reaches the target unfragmented; 0 if
    no UDP passes."""
    v6 = ":" in target.ip
    headers, floor = (48, 1280) if v6 else (28, 576)
    top = min(top, 65535)
    if not target.udp_port or top <= floor:
        return 0
    try:
        with socket.socket(_family(target.ip), socket.SOCK_DGRAM) as udp:
            level, option = (socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER) if v6 else (socket.IPPROTO_IP, _IP_MTU_DISCOVER)
            udp.setsockopt(level, option, _PMTUDISC_PROBE)
            udp.bind((local, 0))
            udp.connect((target.ip, target.udp_port))
            probe = _Probe(udp, token, target.token, headers)
            found = bisect(floor, top, probe.passes)
            while 0 < found < top and probe.passes(found + 1):  # a probe was lost for another reason than its size
                found = bisect(found + 1, top, probe.passes)
            return found
    except OSError:
        return 0


def bisect(floor: int, top: int, passes: Callable[[int], bool]) -> int:
    """Returns the largest size from floor to top that passes; 0 if not even floor does."""
    if passes(top):
        return top
    if not passes(floor):
        return 0
    while top - floor > 1:
        middle = (floor + top) // 2
        if passes(middle):
            floor = middle
        else:
            top = middle
    return floor


class _Probe:
    def __init__(self, udp: socket.socket, token: bytes, expected: bytes, headers: int) -> None:
        self._udp, self._token, self._expected, self._headers = udp, token, expected, headers
        self._number = 0

    def passes(self, size: int) -> bool:
        for _ in range(_UDP_TRIES):
            self._number += 1
            number = struct.pack("!I", self._number)
            try:
                self._udp.send((_MAGIC + self._token + number).ljust(size - self._headers, b"\0"))
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    return False
                continue  # an ICMP error about the previous packet
            if self._answered(_MAGIC + self._expected + number):
                return True
        return False

    def _answered(self, wanted: bytes) -> bool:
        end = time.monotonic() + _UDP_WAIT
        while (left := end - time.monotonic()) > 0:
            self._udp.settimeout(left)
            try:
                if self._udp.recv(64) == wanted:
                    return True
            except OSError:
                return False
        return False


# ---- all of them ---------------------------------------------------------------------------------------------------


def probe(
    caller: int,
    token: bytes,
    targets: Sequence[Target],
    mtus: dict[str, int],
    *,
    patience: float,
    budget: float,
    tell: Callable[[], Any] = lambda: None,
) -> list[Finding]:
    """Calls every target, then transfers data with the targets that answered; returns a finding for each target.

    patience: seconds to wait for each target. budget: no transfer begins later than this many seconds after the calls.
    mtus: the MTU of each local address. tell is called twice for each target, to show progress.
    """

    def first(target: Target) -> tuple[Finding, socket.socket | None]:
        try:
            return call(caller, token, target, patience)
        finally:
            tell()

    def then(target: Target, called: tuple[Finding, socket.socket | None]) -> Finding:
        finding, connection = called
        try:
            if connection is None:
                return finding
            if time.monotonic() > end:
                return replace(finding, outcome=UNTRIED)
            measured = transfer(finding, connection)
            return replace(measured, mtu=path_mtu(finding.local, target, token, mtus.get(finding.local, 0)))
        finally:
            if connection is not None:
                _drop(connection)
            tell()

    with ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
        called = list(pool.map(first, targets))
    end = time.monotonic() + budget
    with ThreadPoolExecutor(TRANSFERS_AT_ONCE) as pool:
        return list(pool.map(then, targets, called))


def longest(targets: int, patience: float, budget: float) -> float:
    """Returns how many seconds probe takes at most."""
    calls = -(-targets // CALLS_AT_ONCE) * 2 * patience
    bisection = 60 * _UDP_TRIES * _UDP_WAIT
    return calls + budget + 3 * LONGEST + 4 * STALL + bisection

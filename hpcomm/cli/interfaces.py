"""Asks the kernel, by netlink, for the addresses of this host, and chooses the addresses that hpcomm uses."""

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass

VARIABLE = "HPCOMM_SOCKET_IFNAME"
_LEFT_OUT = ("lo", "docker", "br-")  # not used unless the user asks for them, or the host has no other
_MOST = 4  # most addresses that a host tells its peers
_GETADDR, _DUMP, _DONE, _ERROR = 22, 0x301, 3, 2  # rtnetlink(7)
_ADDRESS, _LOCAL = 1, 2
_GETFLAGS, _GETMTU = 0x8913, 0x8921  # netdevice(7)
_UP_AND_RUNNING = 0x41


@dataclass(frozen=True)
class Address:
    ip: str
    prefix: int  # length of the network's prefix in bits
    interface: str
    mtu: int
    used: bool  # whether hpcomm uses it

    def __str__(self) -> str:
        return f"{self.ip} by {self.interface}"

    def shares_network(self, ip: str) -> bool:
        return ipaddress.ip_address(ip) in ipaddress.ip_network(f"{self.ip}/{self.prefix}", strict=False)


def picks(asked: str, names: Callable[[str, bool], bool]) -> bool:
    """Whether the setting asked selects an interface, in NCCL's grammar.

    "eth,ib" selects by prefix, "=eth0" by the whole name; "^docker" or "^=eth0" selects all others. names(word,
    exactly) says whether a word matches the interface, as a whole or as a prefix.
    """
    exclude, listed = asked.startswith("^"), asked.removeprefix("^")
    exact, listed = listed.startswith("="), listed.removeprefix("=")
    words = filter(None, (word.strip() for word in listed.split(",")))
    return exclude != any(names(word.removeprefix("="), exact or word.startswith("=")) for word in words)


def allows(asked: str, interface: str) -> bool:
    return picks(asked, lambda name, exactly: interface == name if exactly else interface.startswith(name))


def addresses(asked: str = "") -> tuple[Address, ...]:
    """Returns this host's addresses on interfaces that are up, without IPv6 link-local addresses. Addresses that hpcomm
    uses if HPCOMM_SOCKET_IFNAME=asked come first."""
    return choose([(ip, prefix, name, _mtu(name)) for ip, prefix, name in _dump() if _is_up(name)], asked)


def choose(found: list[tuple[str, int, str, int]], asked: str) -> tuple[Address, ...]:
    """Returns the addresses of found (ip, prefix, interface, MTU), best first, and marks the ones that hpcomm uses."""

    def allowed(ip: str, name: str) -> bool:
        if asked:
            return allows(asked, name)
        return not ipaddress.ip_address(ip).is_loopback and not name.startswith(_LEFT_OUT)

    anything = not asked and not any(allowed(ip, name) for ip, _, name, _ in found)
    best = sorted(found, key=lambda one: (not (anything or allowed(one[0], one[2])), _grade(one[0])))
    return tuple(
        Address(ip, prefix, name, mtu, i < _MOST and (anything or allowed(ip, name)))
        for i, (ip, prefix, name, mtu) in enumerate(best)
    )


def _grade(ip: str) -> int:
    address = ipaddress.ip_address(ip)
    if address.is_loopback:
        return 2 + address.version
    return 2 if address.is_link_local else int(address.version == 6)


def told(found: Iterable[Address]) -> str:
    """Returns text such as "eth0 10.0.0.1/24, MTU 1500; docker0 172.17.0.1/16, MTU 1500"."""
    by_name: dict[str, list[Address]] = {}
    for address in found:
        by_name.setdefault(address.interface, []).append(address)
    return "; ".join(
        f"{name} {', '.join(f'{address.ip}/{address.prefix}' for address in held)}, MTU {held[0].mtu}"
        for name, held in by_name.items()
    )


def _dump() -> Iterator[tuple[str, int, str]]:
    """Yields (ip, prefix, interface) of each address that the kernel lists."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.settimeout(5)
        netlink.send(struct.pack("=IHHIIBBBBI", 24, _GETADDR, _DUMP, 1, 0, socket.AF_UNSPEC, 0, 0, 0, 0))
        while True:
            block = netlink.recv(1 << 18)
            while block:
                size, kind = struct.unpack_from("=IH", block)
                if kind in (_DONE, _ERROR):
                    return
                if kind == _GETADDR - 2:  # RTM_NEWADDR
                    yield from _parse(block[16:size])
                block = block[(size + 3) & ~3 :]


def _parse(message: bytes) -> Iterator[tuple[str, int, str]]:
    family, prefix, _, _, index = struct.unpack_from("=BBBBI", message)
    attributes = {}
    rest = message[8:]
    while len(rest) >= 4:
        size, kind = struct.unpack_from("=HH", rest)
        attributes[kind] = rest[4:size]
        rest = rest[(size + 3) & ~3 :]
    raw = attributes.get(_LOCAL) or attributes.get(_ADDRESS)  # on a point-to-point link ADDRESS is the peer's address
    if raw is None or family not in (socket.AF_INET, socket.AF_INET6):
        return
    ip = socket.inet_ntop(family, raw)
    with suppress(OSError):  # the interface was removed meanwhile
        if family == socket.AF_INET or not ipaddress.IPv6Address(ip).is_link_local:
            yield ip, prefix, socket.if_indextoname(index)


def _ask(request: int, interface: str, form: str) -> int:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as any_socket:
        answer = fcntl.ioctl(any_socket, request, struct.pack("16s24x", interface.encode()))
    return int(struct.unpack_from(form, answer, 16)[0])


def _is_up(interface: str) -> bool:
    try:
        return _ask(_GETFLAGS, interface, "=H") & _UP_AND_RUNNING == _UP_AND_RUNNING
    except OSError:
        return False


def _mtu(interface: str) -> int:
    try:
        return _ask(_GETMTU, interface, "=i")
    except OSError:
        return 0

"""Reads the RDMA devices that the kernel lists in sysfs, below a root folder that tests replace."""

import ipaddress
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..bench.hardware import read
from .interfaces import picks

_WORD = re.compile(r"=?[^\^=/ :]{1,63}(?::([0-9]+))?")  # a word of HPCOMM_DEVICES: a name, and perhaps a port


@dataclass(frozen=True)
class Gid:
    index: int
    kind: str  # "RoCE v2", "IB/RoCE v1"
    ip: str  # the GID as an IP address; RoCE v2 packets have it as their source address
    netdev: str

    @property
    def is_link_local(self) -> bool:
        return ipaddress.ip_address(self.ip).is_link_local


@dataclass(frozen=True)
class Port:
    device: str
    number: int
    state: str  # ACTIVE, DOWN, INIT, ARMED
    physical: str  # LinkUp, Polling, Disabled
    link_layer: str
    rate: str  # "100 Gb/sec (4X EDR)"
    netdev: str  # the network interface of an Ethernet port; "": not known
    gids: tuple[Gid, ...]

    @property
    def name(self) -> str:
        return f"{self.device}:{self.number}"

    @property
    def routable(self) -> list[Gid]:
        """The port's RoCE v2 GIDs, in the order in which hpcomm prefers them."""
        found = (gid for gid in self.gids if gid.kind == "RoCE v2")
        return sorted(found, key=lambda gid: (gid.is_link_local, ":" in gid.ip))


@dataclass(frozen=True)
class Nic:
    name: str
    node: int  # NUMA node; -1: not known
    uverbs: str  # name of its character device; "": the kernel has not made one
    ports: tuple[Port, ...]


def find(root: Path) -> tuple[Nic, ...]:
    made = {read(path / "ibdev"): path.name for path in _entries(root / "sys/class/infiniband_verbs")}
    found = []
    for path in _entries(root / "sys/class/infiniband"):
        ports = tuple(sorted(map(_port, _entries(path / "ports")), key=lambda port: port.number))
        node = number(read(path / "device/numa_node"), -1)
        if node < 0 and ports and ports[0].netdev:  # a software device over a NIC
            node = number(read(root / "sys/class/net" / ports[0].netdev / "device/numa_node"), -1)
        found.append(Nic(path.name, node, made.get(path.name, ""), ports))
    return tuple(found)


def _port(path: Path) -> Port:
    gids = tuple(_gids(path))
    return Port(
        path.parent.parent.name,
        number(path.name, 0),
        read(path / "state").rpartition(" ")[2],  # "4: ACTIVE"
        read(path / "phys_state").rpartition(" ")[2],
        read(path / "link_layer"),
        read(path / "rate"),
        next((gid.netdev for gid in gids if gid.netdev), "") or _netdev(path.parent.parent),
        gids,
    )


def _netdev(device: Path) -> str:
    """Returns the network interface of a port without a GID: the one below a software device, or the only one of the
    same hardware; "" if not known."""
    others = [path.name for path in _entries(device / "device/net")]
    return read(device / "parent") or (others[0] if len(others) == 1 else "")


def _gids(port: Path) -> Iterator[Gid]:
    for path in sorted(_entries(port / "gids"), key=lambda path: number(path.name, 0)):
        with suppress(ValueError):
            address = ipaddress.IPv6Address(read(path))
            if int(address):
                kind, netdev = (read(port / "gid_attrs" / what / path.name) for what in ("types", "ndevs"))
                yield Gid(number(path.name, 0), kind, str(address.ipv4_mapped or address), netdev)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def number(text: str, otherwise: int) -> int:
    try:
        return int(text)
    except ValueError:
        return otherwise


def node_of(root: Path, cpu: int) -> int | None:
    for path in _entries(root / f"sys/devices/system/cpu/cpu{cpu}"):
        if path.name.startswith("node") and path.name[4:].isdigit():
            return int(path.name[4:])
    return None


def is_list(asked: str) -> bool:
    """Whether init accepts this value of HPCOMM_DEVICES."""
    words = [word.strip(" ") for word in asked.removeprefix("^").removeprefix("=").split(",")]
    named = [_WORD.fullmatch(word) for word in words if word]
    return bool(named) and all(match is not None and int(match[1] or 1) in range(1, 256) for match in named)


def allows(asked: str, device: str, port: int) -> bool:
    """Whether HPCOMM_DEVICES=asked allows a port. The grammar is NCCL_IB_HCA's: that of picks, with ports, such as
    "mlx5_0,mlx5_1:1". "" allows all."""

    def names(word: str, exactly: bool) -> bool:
        name, _, number = word.partition(":")
        return number in ("", str(port)) and (device == name if exactly else device.startswith(name))

    return not asked or picks(asked, names)

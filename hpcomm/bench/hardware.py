"""The NICs and RDMA devices of a host as /sys shows them, with the rates of their ports and PCIe slots."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Adapter:
    """A NIC or a port of an RDMA device. A bandwidth is of one direction; 0: not known."""

    name: str  # eth0, or mlx5_0:1
    gbits: float = 0.0  # of its link
    pcie: str = ""  # its slot, "PCIe 16 GT/s x8"; "": it is on no PCIe bus
    slot_gbits: float = 0.0  # of the slot, without the headers of packets
    most_gbits: float = 0.0  # of the device's own PCIe port, with all its lanes


def read(path: Path) -> str:
    """A line of sysfs; "" if it cannot be read."""
    with suppress(OSError):
        return path.read_text(encoding="ascii", errors="replace").strip()
    return ""


def number(text: str) -> float:
    """The positive number that a text begins with, or 0."""
    found = re.match(r"\d+(?:\.\d+)?", text)
    return float(found[0]) if found else 0.0


def pcie_gbits(transfers: float, lanes: float) -> float:
    """Gb/s of lanes at so many GT/s: PCIe 1 and 2 send 10 bits for 8, PCIe 3 and later 130 for 128."""
    return transfers * lanes * (0.8 if transfers <= 5 else 128 / 130)


def _adapter(name: str, gbits: float, device: Path) -> Adapter:
    speed, lanes, most, most_lanes = (
        number(read(device / f"{which}_link_{what}")) for which in ("current", "max") for what in ("speed", "width")
    )
    if not speed or not lanes:
        return Adapter(name, gbits)
    slot = f"PCIe {speed:g} GT/s x{lanes:g}"
    return Adapter(name, gbits, slot, pcie_gbits(speed, lanes), pcie_gbits(most, most_lanes))


def _found(root: Path) -> Iterator[Adapter]:
    for path in sorted((root / "sys/class/net").glob("*")):
        gbits = number(read(path / "speed")) / 1000
        if path.name != "lo" and (gbits or (path / "device").exists()):
            yield _adapter(path.name, gbits, path / "device")
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        device = port.parent.parent
        yield _adapter(f"{device.name}:{port.name}", number(read(port / "rate")), device / "device")


def adapters(root: Path = Path("/")) -> list[Adapter]:
    """The adapters of this host, NICs first. root: replaced in tests."""
    return list(_found(root))


def has_rdma(root: Path = Path("/")) -> bool:
    return any((root / "sys/class/infiniband").glob("*"))

"""Reads from /sys the NICs and RDMA devices of a host, with the rates of their ports and PCIe slots."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Adapter:
    """A NIC or a port of an RDMA device. Rates are Gb/s in one direction; 0: not known."""

    name: str  # eth0, or mlx5_0:1
    gbits: float = 0.0  # rate of its link
    pcie: str = ""  # its PCIe slot, "PCIe 16 GT/s x8"; "": not on a PCIe bus
    slot_gbits: float = 0.0  # rate of the slot as it runs now; packet headers are not subtracted
    most_gbits: float = 0.0  # highest rate of the device's PCIe port, with all lanes


def read(path: Path) -> str:
    """Returns the text of a sysfs file, stripped; "" if it cannot be read."""
    with suppress(OSError):
        return path.read_text(encoding="ascii", errors="replace").strip()
    return ""


def number(text: str) -> float:
    """Returns the positive number with which a text begins, or 0."""
    found = re.match(r"\d+(?:\.\d+)?", text)
    return float(found[0]) if found else 0.0


def pcie_gbits(transfers: float, lanes: float) -> float:
    """Returns the Gb/s of PCIe lanes from their GT/s: PCIe 1 and 2 encode 8 bits in 10, PCIe 3 and later 128 in 130."""
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
    """Returns the adapters of this host, NICs first. root: the folder that has sys; tests replace it."""
    return list(_found(root))


def has_rdma(root: Path = Path("/")) -> bool:
    return any((root / "sys/class/infiniband").glob("*"))

"""The verdict of `hpcomm bench`: sentences that say which part of each bound of memory and links hpcomm reaches.

A share, here, is hpcomm's rate beside the bound of the same place.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .rows import Row

# The name of hpcomm's row in limits: the place, the name of the bound's row, and words for hpcomm and for the bound.
WITHIN = {
    "hpcomm put, shm": ("memory", "memory copy, one rank (bound)", "put over shared memory", "a copy by one rank"),
    "hpcomm fold of 2, all ranks": ("add", "add by NumPy, all ranks (bound)", "the fold", "an add by NumPy"),
    "hpcomm put, loopback": ("loopback", "loopback, socket stream (bound)", "put over TCP", "a bare socket"),
}
PUT = ", hpcomm put"
BOUNDS = {"iperf3 (bound)": "iperf3", "socket stream (bound)": "a bare socket"}


@dataclass(frozen=True)
class Share:
    """hpcomm's rate in one place, and the bound there, in bytes a second."""

    place: str  # "memory of h1", or "h1 -> h2"
    could: float  # the bound
    by: str  # the operation or program that measured the bound
    gives: float  # hpcomm's rate
    what: str  # hpcomm's operation
    nic: float = 0.0  # the rate of the NIC's link according to the kernel; 0: unknown

    @property
    def ratio(self) -> float:
        return self.gives / self.could

    @property
    def told(self) -> str:
        text = f"{self.place}: {self.what} gives {self.ratio:.2f} of the {speed(self.could)} of {self.by}"
        if self.nic:
            text += f", which are {self.could / self.nic:.2f} of the {8e-9 * self.nic:g} Gb/s of the NIC"
        return text


def speed(rate: float) -> str:
    return f"{rate / 1e9:.2f} GB/s" if rate >= 1e9 else f"{rate / 1e6:.3g} MB/s"


def shares(document: Row) -> list[Share]:
    """Returns the shares in a document of limits: first within hosts, then for each direction between two hosts."""
    rates = {row["name"]: row["size"] / statistics.median(row["cycles"]) for row in document["rows"]}
    found = [
        Share(f"{place} of {document['host']}", rates[bound], by, rates[name], what)
        for name, (place, bound, what, by) in WITHIN.items()
        if name in rates and bound in rates
    ]
    for name, rate in rates.items():
        way = name.removesuffix(PUT)
        bounds = {f"{way}, {bound}": by for bound, by in BOUNDS.items() if f"{way}, {bound}" in rates}
        if way in document["ways"] and bounds:
            best = max(bounds, key=lambda bound: rates[bound])
            host, interface = document["ways"][way]
            nic = link(document["adapters"][host], interface)
            found.append(Share(way, rates[best], bounds[best], rate, "put", nic))
    return found


def link(adapters: Sequence[Row], interface: str) -> float:
    """Returns the bytes a second of an interface's link, or with interface "" of the fastest RDMA port; 0: unknown."""
    ports = [one["gbits"] for one in adapters if one["name"] == interface or (not interface and ":" in one["name"])]
    return max(ports, default=0.0) * 1e9 / 8


def pcie(document: Row) -> Iterator[str]:
    """Yields a sentence for each adapter whose PCIe slot is slower than its link or than the device's own port."""
    for host, adapters in document["adapters"].items():
        for one in adapters:
            who, slot, gbits = f"{one['name']} of {host}", one["slot_gbits"], one["gbits"]
            if 0 < slot < gbits:
                yield f"{who}: its slot, {one['pcie']}, carries {slot:.3g} Gb/s of the {gbits:g} Gb/s of its link"
            elif 0 < slot < 0.99 * one["most_gbits"]:
                yield f"{who}: {one['pcie']} carries {slot:.3g} Gb/s, and the device could {one['most_gbits']:.3g}"


def summary(found: Sequence[Share]) -> str:
    links = [share for share in found if " -> " in share.place]
    if not links:
        inside = [share for share in found if share.place.startswith("memory")] or list(found)
        if not inside:
            return "nothing to compare: one rank alone moves no bytes"
        return f"This host: hpcomm gives {inside[0].ratio:.2f} of {inside[0].by} ({speed(inside[0].could)})."
    worst = min(links, key=lambda share: share.ratio)
    nics = [share.could / share.nic for share in links if share.nic]
    told = f"This cluster's links give {min(nics):.2f} of the NIC, and hpcomm" if nics else "Between hosts hpcomm"
    return f"{told} gives {worst.ratio:.2f} of the links (the worst way: {worst.place})."


def verdict(document: Row) -> dict[str, Any]:
    """Returns the verdict on a document of limits: "shares", sentences under "told", and the "least" ratio (1.0 if the
    document has no shares)."""
    found = shares(document)
    return {
        "shares": [{**asdict(share), "ratio": share.ratio} for share in found],
        "told": [*(share.told for share in found), *pcie(document), summary(found)],
        "least": min((share.ratio for share in found), default=1.0),
    }

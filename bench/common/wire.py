"""Counts bytes on a host's link. Ranks of any Python can import it: it needs no package."""

from pathlib import Path

SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")


def sent() -> int:
    """Returns the bytes that this host has sent over eth0, packet headers included."""
    return int(SENT.read_text())

"""Tells systemd about a hub, by the protocol of sd_notify(3): a datagram of assignments to the socket of NOTIFY_SOCKET.

Without that variable nothing is sent.
"""

import socket
import time
from collections.abc import Callable

from .. import launch

_SECONDS = 1.0  # for systemd to take a datagram
_MOST_SECONDS = 10 * 365 * 86400.0


def ready(status: str) -> list[str]:
    """The hub listens, or has read its configuration again. status: a sentence for `systemctl status`."""
    return ["READY=1", f"STATUS={status}"]


def reloading() -> list[str]:
    """The hub begins to read its configuration again."""
    return ["RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}"]


def stopping(status: str, seconds: float) -> list[str]:
    """The hub drains. seconds: after so long it has ended; until then systemd must not kill it."""
    usec = int(min(seconds, _MOST_SECONDS) * 1e6)
    return ["STOPPING=1", f"STATUS={status}", f"EXTEND_TIMEOUT_USEC={usec}"]


def send(assignments: list[str], tell: Callable[[str], None]) -> None:
    """Sends the assignments. tell: is told in a sentence if systemd does not take them."""
    where = launch.notify_socket()
    if not where:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
            one.settimeout(_SECONDS)
            one.connect("\0" + where[1:] if where.startswith("@") else where)
            one.send("\n".join(assignments).encode())
    except OSError as failed:
        tell(f"systemd does not listen at NOTIFY_SOCKET={where}: {failed}")

"""The sockets of processes, as the kernel lists them, and a port that leads to another one."""

import os
import selectors
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECONDS = 20.0


def inodes(pids: list[int]) -> set[int]:
    """The sockets of processes."""
    found = set()
    for pid in pids:
        with suppress(OSError):
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    name = os.readlink(fd)
                    if name.startswith("socket:["):
                        found.add(int(name[8:-1]))
    return found


def listeners(pids: list[int]) -> tuple[set[int], set[str]]:
    """The TCP ports and the abstract Unix names at which processes listen."""
    own = inodes(pids)
    tcp = [line.split() for name in ("tcp", "tcp6") for line in _lines(f"/proc/net/{name}")]
    unix = [line.split() for line in _lines("/proc/net/unix")]
    ports = {int(words[1].rpartition(":")[2], 16) for words in tcp if words[3] == "0A" and int(words[9]) in own}
    listening = (words for words in unix if int(words[3], 16) & 0x10000 and int(words[6]) in own)
    return ports, {words[7] for words in listening if words[7:] and words[7].startswith("@hpcomm-")}


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text(encoding="utf-8").splitlines()[1:] if file.exists() else []


def connections(pids: list[int]) -> list[tuple[int, int]]:
    """The own port and the other port of each TCP connection of processes."""
    own, found = inodes(pids), []
    for words in (line.split() for name in ("tcp", "tcp6") for line in _lines(f"/proc/net/{name}")):
        if words[3] == "01" and int(words[9]) in own:
            mine, its = (int(end.rpartition(":")[2], 16) for end in words[1:3])
            found.append((mine, its))
    return found


@dataclass
class Forwarder:
    """Another port that leads to a hub, as that of a container does. It keeps the bytes of callers."""

    to: tuple[str, int]
    said: list[bytearray] = field(default_factory=list)
    _others: dict[socket.socket, tuple[socket.socket, bytearray]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._selector, (self._stop, self._stopped) = selectors.DefaultSelector(), socket.socketpair()
        for one in (self._listener, self._stopped):
            self._selector.register(one, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._forward)
        self._thread.start()

    def _forward(self) -> None:
        while True:
            for key, _ in self._selector.select():
                one: Any = key.fileobj
                if one is self._stopped:
                    return
                if one is self._listener:
                    self._accept()
                elif one in self._others:
                    self._pass(one)

    def _accept(self) -> None:
        pair = (self._listener.accept()[0], socket.create_connection(self.to, timeout=SECONDS))
        self.said.append(bytearray())
        for one, other, kept in (*zip(pair, pair[::-1], (self.said[-1], bytearray()), strict=True),):
            one.settimeout(SECONDS)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._others[one] = (other, kept)
            self._selector.register(one, selectors.EVENT_READ)

    def _pass(self, one: socket.socket) -> None:
        other, kept = self._others[one]
        try:
            data = one.recv(1 << 16)
            other.sendall(data)
        except OSError:
            data = b""
        if data:
            kept += data[: max(1024 - len(kept), 0)]
            return
        for end in (one, other):
            self._selector.unregister(end)
            del self._others[end]
            end.close()

    def close(self) -> None:
        self._stop.send(b"1")
        self._thread.join()
        for one in (*self._others, self._listener, self._stop, self._stopped):
            one.close()
        self._selector.close()

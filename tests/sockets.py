"""The sockets of processes, as the kernel lists them."""

import os
from contextlib import suppress
from pathlib import Path


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

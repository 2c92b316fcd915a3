"""The books of a hub: the memory and descriptors of each namespace, and counts of events."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import ConfigError
from .config import HubConfig


@dataclass(frozen=True)
class Needs:
    """The needs of a connection, a job or an exchange."""

    nbytes: int = 0
    descriptors: int = 0


NOTHING = Needs()


class Books:
    """The books of a hub. The threads of tenants write them too: a lock keeps them apart.

    Attributes:
        memory, descriptors: the bytes and the descriptors of each namespace.
        counts: how often each event has happened.
    """

    def __init__(self) -> None:
        self.memory: Counter[str] = Counter()
        self.descriptors: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def count(self, what: str, n: int = 1) -> None:
        with self._lock:
            self.counts[what] += n

    def hold(self, config: HubConfig, space: str, who: str, old: Needs, new: Needs) -> None:
        """Lets a namespace hold new needs in place of old ones. Raises ConfigError if a quota has no room for them; who
        is the subject of its sentence."""
        with self._lock:
            own, its = config.namespaces.get(space), f"namespace {space!r}"
            memory, descriptors = (0, 0) if own is None else (own.memory, own.descriptors)
            nbytes, numbers = (old.nbytes, new.nbytes), (old.descriptors, new.descriptors)
            all_bytes, have = sum(self.memory.values()), self.descriptors[space]
            for quota, unit, owner, most, left, (before, after) in (
                ("memory", "bytes", its, memory, memory - self.memory[space], nbytes),
                ("memory", "bytes", "the hub", config.memory, config.memory - all_bytes, nbytes),
                ("descriptor", "descriptors", its, descriptors, descriptors - have, numbers),
            ):
                if after > before and after > left + before:
                    self.counts[f"refused: {quota} quota"] += 1
                    room = max(left + before, 0)
                    raise ConfigError(f"{who} needs {after} {unit}, and {owner} has {room} of {most} left")
            self.memory[space] += new.nbytes - old.nbytes
            self.descriptors[space] += new.descriptors - old.descriptors


class Holding:
    """The holdings of an exchange or a save in the namespace's quotas."""

    def __init__(self, claim: Callable[[Needs, Needs], None]) -> None:
        self.needs, self._claim = NOTHING, claim

    def hold(self, nbytes: int, descriptors: int = 0) -> None:
        """Holds so much, in place of the amount before. Raises ConfigError if a quota has no room for it."""
        new = Needs(nbytes, descriptors)
        self._claim(self.needs, new)
        self.needs = new

    def free(self) -> None:
        self.hold(0)

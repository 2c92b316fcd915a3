"""Facts of a key that C has derived from the key's plan, consistency and codec."""

from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from typing import Any

from .. import _core


@dataclass(frozen=True)
class KeyFacts:
    """C's struct hpc_key_facts; the comments in hpcomm.h explain each fact. The facts of a key never change."""

    scheme: int
    graph: bool
    peers: bool
    own: bool
    copied: bool
    may_differ: bool
    counts_folds: bool
    counts_updates: bool
    counts_versions: bool
    jumps: bool
    in_step: bool
    settles: bool
    one_slot: bool
    keeps_back: bool
    takes_writes: bool

    @property
    def reads_on(self) -> bool:
        """Whether a gradient may still be read after its pull has returned."""
        return self.settles or self.graph


def facts_of(exchange: Any, key: int) -> KeyFacts:
    scheme, *facts = _core.exchange_key_facts(exchange, key)
    return KeyFacts(scheme, *map(bool, facts))


def merged(of: Callable[[Iterable[bool]], bool], facts: Iterable[KeyFacts]) -> KeyFacts:
    """Returns the facts of several keys merged into one: with the function any, facts that hold for some key; with the
    function all, facts that hold for all keys."""
    _, *columns = zip(*map(astuple, facts), strict=True)
    return KeyFacts(-1, *map(of, columns))

"""Counts of local steps on one rank."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FragmentStats:
    """Counts of one fragment on this rank.

    Attributes:
        names: of its keys.
        elements: float32 values of its keys.
        rounds: exchanges that were begun.
        late: with a quorum: those in which an update of this rank missed its fold.
        bytes: that this rank has sent for it: updates to owners, and parameters or sums as an owner, as they are on the
            way.
        hidden: seconds in which exchanges were pending while this rank trained, as it sees them at its steps.
        waited: seconds that training stood still for it: to make and push updates, to wait, and to take parameters.
    """

    names: tuple[str, ...]
    elements: int
    rounds: int
    late: int
    bytes: int
    hidden: float
    waited: float


@dataclass(frozen=True)
class LocalStats:
    """Counts of local steps on this rank.

    Attributes:
        steps: that this rank has made, skipped ones too.
        fragments: by number.
    """

    steps: int
    fragments: tuple[FragmentStats, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all fragments."""
        return sum(one.bytes for one in self.fragments)

    @property
    def hidden(self) -> float:
        """Seconds of all fragments that training hid."""
        return sum(one.hidden for one in self.fragments)

    @property
    def waited(self) -> float:
        """Seconds of all fragments that training stood still for."""
        return sum(one.waited for one in self.fragments)

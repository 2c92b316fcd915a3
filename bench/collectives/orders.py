"""The messages between the benchmark and its ranks."""

from dataclasses import dataclass

from bench.collectives.data import Case


@dataclass(frozen=True)
class Order:
    """A turn of a library. calls: timed ones. seed: of the data. plant: spoil one value of the answer."""

    library: str
    case: Case
    calls: int
    seed: int
    plant: bool


@dataclass(frozen=True)
class Answer:
    """A rank's result.

    Attributes:
        seconds: of one call.
        sent: bytes that this rank's host sent over its link in one run; 0 if all ranks are on one host.
        lacking: why the library has no such call.
        failed: why there is no result.
    """

    seconds: float = 0.0
    wrong: int = 0
    sent: float = 0.0
    lacking: str = ""
    failed: str = ""


@dataclass(frozen=True)
class Ready:
    """A rank's first message: the versions of its libraries, and why others cannot take part."""

    rank: int
    versions: dict[str, str]
    lacking: dict[str, str]

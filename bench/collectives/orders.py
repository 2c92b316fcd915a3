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
    """A rank's result. seconds: of one call. failed: why there is none."""

    seconds: float = 0.0
    wrong: int = 0
    failed: str = ""


@dataclass(frozen=True)
class Ready:
    """A rank's first message: the versions of its libraries, and why others cannot take part."""

    rank: int
    versions: dict[str, str]
    lacking: dict[str, str]

"""The common parts of the benchmark's lines: options, turns, and figures judged by ratios."""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from dataclasses import field as data
from pathlib import Path

from bench.common.judge import Promise, span
from bench.service.field import Field
from hpcomm.bench.rows import Row, ratio


@dataclass(frozen=True)
class Found:
    """Rows of the document, and the lines of the table that they give."""

    rows: list[Row]
    promises: list[Promise] = data(default_factory=list)


class Options(argparse.Namespace):
    """The options, as __main__ reads them, and the fields of a run: all lines of one place use the same hubs."""

    cycles: int
    seconds: float
    mib: int
    large: int
    jobs: int
    strangers: int
    strangers_seconds: float
    tenants: list[int]
    place: str
    cpus: str
    rate: str
    quick: bool
    json: bool
    progress: Path | None
    began: float
    plant: bool

    def places(self, *known: str) -> list[str]:
        """Returns the places of a line that --place chooses."""
        wanted = [word.strip() for word in self.place.split(",") if word.strip()]
        return [place for place in known if not wanted or place in wanted]

    def field(self, place: str) -> Field:
        """Returns the field of a place."""
        fields: dict[str, Field] = self.__dict__.setdefault("fields", {})
        if place not in fields:
            fields[place] = Field(place, self.cpus, self.rate)
        return fields[place]

    def tell(self, what: str) -> None:
        """Shows how far the run is, on a line of its own."""
        if self.progress is None and not self.json:
            print(f"# {time.monotonic() - self.began:.1f} s: {what}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Ends all fields."""
        for field in self.__dict__.pop("fields", {}).values():
            field.close()


def turns(names: Sequence[str], cycles: int) -> Iterator[str]:
    """Yields each name once a cycle; each cycle begins with the next name."""
    for cycle in range(cycles):
        at = cycle % len(names)
        yield from (*names[at:], *names[:at])


def judged(what: str, ours: Row, theirs: Row, target: float | None, at_most: bool = False) -> Promise:
    """Compares the times of two rows: theirs over ours, or ours over theirs with at_most. target: None: none."""
    value, low, high = ratio(ours, theirs) if at_most else ratio(theirs, ours)
    mine, other = (statistics.median(row["cycles"]) for row in (ours, theirs))
    asked = target is not None
    return Promise(
        what, span(mine), f"{span(other)} {theirs['name']}", value, low, high, target or 0.0, at_most, asked=asked
    )


def percentile(samples: Sequence[float], percent: float) -> float:
    ordered = sorted(samples)
    return ordered[round(percent / 100 * (len(ordered) - 1))] if ordered else 0.0

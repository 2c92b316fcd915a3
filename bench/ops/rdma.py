"""Judges hpcomm's promises over RDMA by the figures of one run: beside perftest, plain verbs and the NICs' limits."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

from bench.common.judge import Promise, compare, of_size, sizes
from bench.ops.remote import exactly, unasked
from bench.phub.chunk_plots import chunk_name
from hpcomm.bench.plots import named_size
from hpcomm.bench.rows import Row

LATENCY, SHARE = 1.25, 0.97


def beside(
    what: str, rows: Sequence[Row], ours: str, others: Iterable[str], target: float, **how: bool
) -> list[Promise]:
    """Compares hpcomm's row of exactly this name with each measured row of the others; only the first has a target."""
    found = [row["name"] for row in rows]
    names = [name for name in others if any(name in each for each in found)]
    if ours not in found or not names:
        return []
    made = [compare(what, exactly(rows, ours), ours, name, target, **how) for name in names]
    return [made[0], *map(unasked, made[1:])]


def latency(document: Row) -> Iterator[Promise]:
    """Compares like with like: means of many trips with perftest's mean, medians of single trips with perftest's
    median."""
    rows, what = of_size(document, 8), "8 B put_signal over RDMA"
    means = ("ib_write_lat (bound)", "bare verbs, write (bound)", "with immediate (bound)")
    medians = ("ib_write_lat, median trip", "with immediate, median trip")
    yield from beside(f"{what}, C, means", rows, "hpcomm C", means, LATENCY, at_most=True)
    yield from beside(f"{what}, C, medians", rows, "hpcomm C, median trip", medians, LATENCY, at_most=True)
    for ours, other in (("hpcomm Python", means[0]), ("hpcomm C, sleeping", "immediate, sleeping")):
        name = ours.removeprefix("hpcomm ").removeprefix("C, ")
        yield from map(unasked, beside(f"{what}, {name}, means", rows, ours, (other,), LATENCY, at_most=True))


def bandwidth(document: Row) -> Iterator[Promise]:
    bounds = ("ib_write_bw (bound)", "bare verbs (bound)")
    for size in sizes(document):
        rows, what = of_size(document, size), f"put of {named_size(size)} over RDMA"
        yield from beside(f"{what}, C", rows, "hpcomm C", bounds, SHARE)
        for who in ("hpcomm C, user memory", "hpcomm Python"):
            name = who.removeprefix("hpcomm ").removeprefix("C, ")
            yield from map(unasked, beside(f"{what}, {name}", rows, who, bounds[:1], SHARE))


def exchange(document: Row) -> Iterator[Promise]:
    for size in sizes(document):
        what, rows = f"exchange and average over RDMA, {named_size(size)}", of_size(document, size)
        for who in ("C", "Python"):
            yield from map(unasked, beside(f"{what}, {who}", rows, f"hpcomm {who}", ("wire, both ways",), SHARE))


SENT = "wire, push and pull"
UPDATED = f"{SENT}, then update"


def updated(rows: Sequence[Row]) -> Iterator[Row]:
    """Adds, cycle by cycle, the time of the wire and of the owners' work: the limit if the same cores work and
    emulate the NIC."""
    parts = [[row for row in rows if row["name"] == f"{name} (bound)"] for name in (SENT, "update alone")]
    for sent, worked in zip(*parts, strict=False):  # just one part if plain verbs cannot run
        cycles = [a + b for a, b in zip(sent["cycles"], worked["cycles"], strict=True)]
        yield {**sent, "name": f"{UPDATED} (bound)", "cycles": cycles}


def push_pull(document: Row) -> Iterator[Promise]:
    for size in sizes(document):
        what, rows = f"push_pull of {named_size(size)} over RDMA", of_size(document, size)
        limits = (f"{SENT} (bound)", "wire, both ways", "NIC copies", UPDATED)
        rows = [*rows, *updated(rows)]
        yield from beside(f"{what}, C", rows, "hpcomm C", limits, SHARE)
        yield from map(unasked, beside(f"{what}, Python", rows, "hpcomm Python", limits, SHARE)[:1])


def loopback(document: Row) -> Iterator[Promise]:
    """Compares, at the largest size, the fastest of the NICs' copies, the wire and hpcomm's put."""
    rows = of_size(document, max(sizes(document)))
    for name in ("wire, one way", "copy by", "memory copy"):
        yield from map(unasked, beside("put over RDMA beside its limits", rows, "hpcomm C", (name,), 1.0))


def affinity(document: Row) -> Iterator[Promise]:
    """Compares, by chunk, the time of worker-by-interface with that of key-by-interface/core (PHub, section 4.5:
    1.43)."""
    options, by_name = document["options"], {(row["size"], row["name"]): row for row in document["rows"]}
    for size, cores, chunk in product(sizes(document), options["cores"], options["chunks"]):
        names = [chunk_name(chunk, cores, way) for way in ("key", "worker")]
        rows = [by_name.get((size, name)) for name in names]
        if rows[0] is None or rows[1] is None:
            continue
        two = [
            {**row, "name": way} for row, way in zip(rows, ("key by core", "worker by interface"), strict=True) if row
        ]
        what = f"push_pull of {named_size(size)}, {names[0].partition(', ')[2]}"
        yield unasked(compare(what, two, "key by core", "worker by interface", 1.0))


JUDGES = {
    "put_lat": latency,
    "put_bw": bandwidth,
    "queue_bench": exchange,
    "push_pull": push_pull,
    "loopback": loopback,
    "chunk_sweep": affinity,
}


def judge(runs: Mapping[str, Row]) -> list[Promise]:
    """Returns the promises of all runs, each by its benchmark's own rule."""
    return [promise for document in runs.values() for promise in JUDGES[document["benchmark"]](document)]

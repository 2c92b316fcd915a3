"""Judges hpcomm's promises without shared memory: over TCP on one machine, between hosts, and about memory."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bench.common.judge import Promise, compare, library, of_size, sizes
from hpcomm.bench.plots import MIB, named_size
from hpcomm.bench.rows import Row

FOOTPRINT = 4.0  # MiB of one rank for 64 peers
WIRE_BYTES = 4 * MIB  # below this, a shaped link's burst makes steps look too fast


def exactly(rows: Sequence[Row], *names: str) -> list[Row]:
    """Returns the rows with these names, and all rows of other libraries."""
    return [row for row in rows if row["role"] != "hpcomm" or row["name"] in names]


def unasked(promise: Promise) -> Promise:
    return replace(promise, asked=False)


# ---- over loopback -------------------------------------------------------------------------------------------------


def latency(document: Row) -> Iterator[Promise]:
    rows, what = of_size(document, 8), "8 B put_signal over TCP"
    if any("spinning" in row["name"] for row in rows):
        yield compare(f"{what}, spinning, C", exactly(rows, "hpcomm C"), "hpcomm C", "spinning", 1.3, at_most=True)
    sleeping = "hpcomm C, sleeping"
    yield compare(f"{what}, sleeping, C", exactly(rows, sleeping), sleeping, "blocking", 1.3, at_most=True)
    for peer in ("Send/Recv", "Put+Flush"):
        yield unasked(compare(f"{what}, Python", rows, "hpcomm Python", peer, 1.0))


def bandwidth(document: Row) -> Iterator[Promise]:
    for who in ("hpcomm C", "hpcomm Python"):
        each = [
            compare(
                f"put of {named_size(size)} over TCP, {who.split()[-1]}",
                exactly(of_size(document, size), who),
                who,
                "socket stream",
                0.95,
            )
            for size in sizes(document)
            if size >= MIB
        ]
        yield from each if who == "hpcomm C" else [min(each, key=lambda promise: promise.value)]
    largest = of_size(document, max(sizes(document)))
    yield unasked(
        compare("put over TCP, nobody waits, C", largest, "hpcomm C, nobody waits", "socket stream", 0.95),
    )
    yield unasked(compare("put over TCP, Python", largest, "hpcomm Python", "Put+Flush", 1.0))


def exchange(found: Sequence[Row]) -> Iterator[Promise]:
    for size in sizes(found[0]):
        what = f"exchange and average over TCP, {named_size(size)}, Python"
        each = [compare(what, of_size(document, size), "hpcomm Python", "mpi4py", 1.0) for document in found]
        yield unasked(_worst(each, found))


def push_pull(found: Sequence[Row]) -> Iterator[Promise]:
    for size in sizes(found[0]):
        what = f"push_pull over TCP, {named_size(size)}"
        each = [compare(what, of_size(document, size), "hpcomm Python", "update", 1.0) for document in found]
        yield unasked(_worst(each, found))
        with_gloo = [d for d in found if any("Gloo" in row["name"] for row in of_size(d, size))]
        if with_gloo:
            each = [compare(what, of_size(d, size), "hpcomm Python", "Gloo", 1.0) for d in with_gloo]
            yield unasked(min(each, key=lambda promise: promise.value))


def _worst(each: Sequence[Promise], found: Sequence[Row]) -> Promise:
    """Returns the promise against the fastest peer, with the peer's library."""
    told = [replace(p, other=f"{p.other}, {library(d)}") for p, d in zip(each, found, strict=True)]
    return min(told, key=lambda promise: promise.value)


# ---- between hosts -------------------------------------------------------------------------------------------------


def cluster(document: Row) -> Iterator[Promise]:
    runs = document["runs"]
    if "put" in runs:
        yield from _streams(runs["put"])
    found = [run for key, run in runs.items() if key.partition(" @ ")[0] == "push_pull"]
    for size in sizes(found[0]) if found else []:
        if size < WIRE_BYTES:
            continue
        what = f"push_pull of {named_size(size)}, {found[0]['hosts']} hosts"
        for who in ("hpcomm C", "hpcomm Python"):
            each = [
                compare(f"{what}, {who.split()[-1]}", of_size(run, size), who, "wire (bound)", 0.93) for run in found
            ]
            yield min(each, key=lambda promise: promise.value)
        for run in found:
            for peer in ("Allreduce alone", "Gloo all_reduce alone"):
                rows = of_size(run, size)
                if any(row["name"] == peer for row in rows):
                    promise = unasked(compare(f"{what}, Python", rows, "hpcomm Python", peer, 1.0))
                    yield promise if "Gloo" in peer else replace(promise, other=f"{promise.other}, {library(run)}")


def _streams(document: Row) -> Iterator[Promise]:
    for size in sizes(document):
        if size < WIRE_BYTES:
            continue
        for who in ("hpcomm C", "hpcomm Python"):
            what = f"put of {named_size(size)} between hosts, {who.split()[-1]}"
            yield compare(what, exactly(of_size(document, size), who), who, "iperf3", 0.97)


# ---- limits and memory ---------------------------------------------------------------------------------------------


def limits(document: Row) -> Iterator[Promise]:
    rows = of_size(document, max(sizes(document)))
    names = {row["name"] for row in rows}
    for ours, bound in (
        ("hpcomm put, shm", "memory copy, one rank"),
        ("hpcomm fold of 2, all ranks", "add"),
        ("hpcomm put, loopback", "loopback"),
        ("hpcomm put, wire", "wire"),
    ):
        if ours in names:
            yield unasked(compare(f"limits: {ours}", exactly(rows, ours), ours, f"{bound}", 1.0))


def footprint(document: Row) -> Iterator[Promise]:
    for transport in dict.fromkeys(row["transport"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["transport"] == transport]
        each = [max(row["private_dirty"], row["pss"]) / MIB for row in rows]
        yield Promise(
            f"memory of a rank of {document['ranks']}, {transport}",
            f"{max(each):.2f} MiB",
            f"{rows[0]['kernel'] / MIB:.2f} MiB more in the kernel",
            max(each),
            min(each),
            max(each),
            FOOTPRINT,
            at_most=True,
            unit=" MiB",
            asked=transport == "tcp",
        )

"""Judges hpcomm's promises by the figures of the benchmarks: one row each, met or missed.

Documents are the benchmarks' JSON by name. A benchmark that also ran under another Python, with another MPI or torch,
is "name @ 1", "name @ 2" and so on. Each ratio is taken within one group of processes, and the worst ratio counts.
"""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from bench.asap import promised
from bench.common.judge import Promise, compare, library, of_size, sizes
from bench.ops import keys_table, remote
from hpcomm.bench.plots import MIB, named_size
from hpcomm.bench.rows import Row

Documents = Mapping[str, Row]
AGAIN = " @ "


# ---- signals, puts and queues --------------------------------------------------------------------------------------


def latency(document: Row) -> Iterator[Promise]:
    rows = of_size(document, 8)
    yield compare("8 B put_signal, one way, C", rows, "hpcomm C", "token", 2.0, at_most=True)
    yield compare("8 B put_signal, one way, Python", rows, "hpcomm Python", "Send/Recv", 1.0)
    yield compare("8 B put_signal, one way, Python", rows, "hpcomm Python", "Put+Flush", 2.0)


def bandwidth(document: Row) -> Iterator[Promise]:
    for who in ("C", "Python"):
        each = [
            compare(f"put of {size >> 10} KiB, {who}", of_size(document, size), f"hpcomm {who}", "memcpy", 0.95)
            for size in sizes(document)
        ]
        yield from each if who == "C" else [min(each, key=lambda promise: promise.value)]


def averaging(document: Row, what: str, target: float, chosen: Callable[[int], bool]) -> Iterator[Promise]:
    for size in filter(chosen, sizes(document)):
        # NumPy as most people write it, and divided by hand into blocks that fit into the cache.
        for peer in ("mpi4py + NumPy", "mpi4py + NumPy in blocks"):
            rows = [row for row in of_size(document, size) if row["role"] != "peer" or row["name"] == peer]
            for who in ("C", "Python"):
                yield compare(f"{what}, {size >> 20} MiB, {who}", rows, f"hpcomm {who}", peer, target)


def exchange(document: Row) -> Iterator[Promise]:
    most = document["options"]["maxbytes"]
    yield from averaging(document, "exchange and average", 2.5, lambda size: size in (32 * MIB, 256 * MIB, most))


def crowded_exchange(document: Row) -> Iterator[Promise]:
    yield from averaging(document, "8 ranks, 2 in-neighbours each", 2.0, lambda size: True)


def crowded_latency(document: Row) -> Iterator[Promise]:
    for who in ("C", "Python"):
        yield compare(f"8 ranks, 8 B put_signal, {who}", of_size(document, 8), f"hpcomm {who}", "Put+Flush", 1.0)


def waiting(document: Row) -> Iterator[Promise]:
    for row in document["rows"]:
        if row["role"] == "hpcomm" and "queue" not in row["name"]:
            percents = [100 * share for share in row["cycles"]]
            what = f"waiting {document['options']['seconds']:g} s, {row['name'].split()[-1]}"
            figures = (statistics.median(percents), min(percents), max(percents))
            yield Promise(what, f"{figures[0]:.2f} %", "", *figures, 5.0, True, "% of a core")


# ---- push_pull -----------------------------------------------------------------------------------------------------


def groups(documents: Documents, name: str) -> list[Row]:
    """Returns the figures of a benchmark under each Python that ran it."""
    return [document for key, document in documents.items() if key.split(AGAIN)[0] == name]


def composite(what: str, found: Sequence[Row], size: int, target: float, ours: str = "hpcomm Python") -> Promise:
    """Judges hpcomm against the best composite of all groups."""
    each = []
    for document in found:
        rows = [row for row in of_size(document, size) if row["role"] != "peer" or "update" in row["name"]]
        promise = compare(what, rows, ours, "update", target)
        each.append(replace(promise, other=f"{promise.other}, {library(document)}"))
    return min(each, key=lambda promise: promise.value)


def push_pull(found: Sequence[Row]) -> Iterator[Promise]:
    for size in sizes(found[0]):
        target = 1.0 if size < MIB else 1.5
        yield composite(f"push_pull, {named_size(size)}", found, size, target)


def large_push_pull(found: Sequence[Row]) -> Iterator[Promise]:
    for size in sizes(found[0]):
        what = f"push_pull, {named_size(size)}"
        yield composite(what, found, size, 2.0)
        with_gloo = [document for document in found if any("Gloo" in row["name"] for row in document["rows"])]
        yield (
            min((compare(what, of_size(d, size), "hpcomm Python", "Gloo", 4.0) for d in with_gloo), key=_value)
            if with_gloo
            else Promise(what, "", "Gloo + torch SGD", 0, 0, 0, 4.0, missing="torch not installed: pip install torch")
        )
        bounded = [d for d in found if any("traffic" in row["name"] for row in of_size(d, size))]
        if bounded:
            yield min((compare(what, of_size(d, size), "hpcomm Python", "traffic", 0.8) for d in bounded), key=_value)
        yield beside(f"{what}, shared_params", found, size, "hpcomm shared_params")


def _value(promise: Promise) -> float:
    return promise.value


def beside(what: str, found: Sequence[Row], size: int, ours: str) -> Promise:
    return replace(composite(what, found, size, 0.0, ours), asked=False)


def resnet50(found: Sequence[Row]) -> Iterator[Promise]:
    (size,) = sizes(found[0])
    yield composite("ResNet-50, 161 keys one by one", found, size, 2.0)
    for ours in ("hpcomm step", "hpcomm shared_params"):
        if any(row["name"] == ours for row in found[0]["rows"]):
            what = "one step() beside composites key by key" if ours == "hpcomm step" else "shared_params"
            yield beside(f"ResNet-50, {what}", found, size, ours)


def other_model(title: str) -> Callable[[Sequence[Row]], Iterator[Promise]]:
    def judge(found: Sequence[Row]) -> Iterator[Promise]:
        yield beside(f"{title}, its keys one by one", found, sizes(found[0])[0], "hpcomm Python")

    return judge


def crowded_push_pull(found: Sequence[Row]) -> Iterator[Promise]:
    for size in sizes(found[0]):
        yield composite(f"{found[0]['ranks']} ranks, push_pull, {named_size(size)}", found, size, 2.0)


def fold(document: Row) -> Iterator[Promise]:
    for size in sizes(document):
        for n_in in document["options"]["inputs"]:
            rows = [row for row in of_size(document, size) if f" {n_in} inputs" in row["name"]]
            yield compare(f"fold of {n_in} arrays of {named_size(size)}", rows, "hpcomm C", "add", 0.9)


# ---- all of them ---------------------------------------------------------------------------------------------------

ALONE: tuple[tuple[str, Callable[[Row], Iterable[Promise]]], ...] = (
    ("latency", latency),
    ("bandwidth", bandwidth),
    ("exchange", exchange),
    ("crowded exchange", crowded_exchange),
    ("crowded latency", crowded_latency),
    ("waiting", waiting),
    ("tcp latency", remote.latency),
    ("tcp bandwidth", remote.bandwidth),
    ("footprint", remote.footprint),
    ("limits", remote.limits),
    ("cluster", remote.cluster),
    ("many keys", keys_table.asked),
    ("graph exchange", promised.exchange),
    ("consistent reduces", promised.consistent_reduces),
    ("straggler", promised.straggler),
    ("convergence", promised.convergence),
)
GROUPED: tuple[tuple[str, Callable[[Sequence[Row]], Iterable[Promise]]], ...] = (
    ("push_pull", push_pull),
    ("large push_pull", large_push_pull),
    ("resnet50", resnet50),
    ("vgg19", other_model("VGG-19")),
    ("alexnet", other_model("AlexNet")),
    ("crowded push_pull", crowded_push_pull),
    ("tcp exchange", remote.exchange),
    ("tcp push_pull", remote.push_pull),
)


def promises(documents: Documents) -> list[Promise]:
    """The promises that the documents answer."""
    found: list[Promise] = []
    for name, judge in ALONE:
        if name in documents:
            found += judge(documents[name])
    for name, judge_all in GROUPED:
        if groups(documents, name):
            found += judge_all(groups(documents, name))
    if "fold" in documents:
        found += fold(documents["fold"])
    return found


def notes(documents: Documents) -> list[str]:
    """Facts that the table leaves out."""
    libraries = {library(document) for name, _ in GROUPED for document in groups(documents, name)}
    absent = sorted({"Open MPI", "MPICH"} - libraries)
    if not libraries or not absent:
        return []
    return [f"composites by {', '.join(sorted(libraries))} alone: --python PATH of a Python with {absent[0]} adds it"]

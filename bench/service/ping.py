"""push_pull of 8 bytes beside a large tenant of the same hub; its peer is a futex ping beside copies of memory."""

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from bench.common.judge import Promise, span
from bench.service import work
from bench.service.crew import Rank, results
from bench.service.field import MIB, Field, beside, operations, shared_words
from bench.service.options import Found, Options, judged, percentile, turns
from bench.service.work import Model
from hpcomm.bench.rows import Row

TINY = Model(1, 8)
PAIR = 4096  # bytes that two pinging processes map
SAMPLES = 1 << 20
TICKING = 6  # CLOCK_MONOTONIC_COARSE, which time does not name: a clock of the kernel's ticks
PING, PEER, ALONE, JUDGED = "futex ping", "futex ping beside copies", "push_pull", "push_pull beside a large tenant"


@contextmanager
def copies(field: Field, ranks: Sequence[Rank], nbytes: int) -> Iterator[None]:
    """Lets processes copy memory meanwhile."""
    path = field.crew.folder / "copies.words"
    words = shared_words(path)
    for rank in ranks:
        rank.start(work.copy_memory, nbytes, str(path))
    try:
        yield
    finally:
        words[1] = 1
        results(ranks)


def beside_a_large_tenant(options: Options, field: Field) -> Iterator[Found]:
    """Times of the smallest push_pull, alone and beside a large tenant, and of pings."""
    names = (PING, PEER, ALONE, JUDGED)
    samples: dict[str, list[list[float]]] = {name: [] for name in names}
    large = Model(1, options.large * MIB)
    tiny, other = field.at_hub(TINY), field.at_hub(large)
    pinging, copying = ([*field.fork(1), field.fork_server()] for _ in range(2))  # one where workers are, one at a hub
    pair = field.crew.folder / "pair"
    pair.write_bytes(bytes(PAIR))
    for name in turns(names, options.cycles):
        near: AbstractContextManager[None] = nullcontext()
        if name == PEER:
            near = copies(field, copying, large.size)
        elif name == JUDGED:
            near = beside(other)
        with near:
            if name in (PING, PEER):
                for i, rank in enumerate(pinging):
                    rank.start(work.ping, str(pair), i, options.seconds, SAMPLES)
                samples[name].append(results(pinging)[0])
            else:
                tiny.stream(options.seconds)
                samples[name].append(operations(tiny.results()))
    wrong = tiny.wrong(options.plant) + other.wrong(options.plant)
    field.end(tiny, other)
    for rank in (*pinging, *copying):
        rank.end()
    facts: Row = {
        "line": "c",
        "place": field.place,
        "size": TINY.size,
        "wrong": 0,
        "slice": slice_of_a_thread(),
    }
    rows = {
        part: [{**facts, "name": name, "part": part, "cycles": _percentiles(samples[name], percent)} for name in names]
        for part, percent in (("p50", 50), ("p99", 99))
    }
    rows["p50"][-1]["wrong"] = wrong
    promises = []
    for part, found in rows.items():
        promises.append(judged(f"c: 8 B beside {options.large} MiB, {part}", found[3], found[1], *_asked(part)))
        promises.append(judged(f"c: 8 B alone, {part}", found[2], found[0], None, at_most=True))
    promises.append(_within(rows["p99"], options))
    yield Found([*rows["p50"], *rows["p99"]], promises)


def slice_of_a_thread() -> float:
    """Returns the seconds after which the kernel takes a CPU from a busy thread, if another one waits: it looks at each
    tick."""
    return max(os.sched_rr_get_interval(0), time.clock_getres(TICKING))


def _asked(part: str) -> tuple[float | None, bool]:
    return (2.0 if part == "p50" else None), True


def _within(rows: Sequence[Row], options: Options) -> Promise:
    """Judges p99 against twice the ping's and a slice of the kernel's scheduler, in milliseconds."""
    ours, peer = (1e3 * statistics.median(rows[i]["cycles"]) for i in (3, 1))
    asked = 2 * peer + 1e3 * rows[0]["slice"]
    cycles = [1e3 * each for each in rows[3]["cycles"]]
    figures = (ours, min(cycles), max(cycles), round(asked, 3), True, " ms")
    other = f"2 x {span(peer / 1e3)}, a slice"
    return Promise(f"c: 8 B beside {options.large} MiB, p99", span(ours / 1e3), other, *figures)


def _percentiles(blocks: Sequence[Sequence[float]], percent: float) -> list[float]:
    return [percentile(block, percent) for block in blocks]

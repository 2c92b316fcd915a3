"""Jobs that begin and end one after the other; the hub's descriptors, threads and memory after them."""

import statistics
import time
from collections.abc import Iterator, Sequence

from bench.common.judge import Promise
from bench.service.field import HERE, MIB, Field
from bench.service.hubs import Hub, held, memory
from bench.service.options import Found, Options
from bench.service.work import Model
from hpcomm.bench.rows import Row

SMALL = Model(1, MIB)
WARM = 10  # jobs until the hub's memory counts: the first ones import modules, and fill the heap and its free lists
MEMORY_WITHIN = {"rss": 1.01, "own": 1.01}  # by part of the hub's memory
QUIET_SECONDS = 60.0  # for a hub to free ended jobs
LETS_GO, LOOK = 2.0, 0.01  # seconds for the last descriptors, and between two looks


def settled(hub: Hub, before: Row | None = None) -> Row:
    """Counts descriptors, threads and memory of the hub's process, and what its books hold, once no job is left. Where
    it has more than before, it gets a while to let them go: a connection ends a moment after its last byte."""
    until = time.monotonic() + QUIET_SECONDS
    while (status := hub.status())["jobs"] and time.monotonic() < until:
        time.sleep(LOOK)
    found, least = _counted(hub, status), dict.fromkeys(("descriptors", "threads", "books"), 0)
    least.update(before or {})
    until = time.monotonic() + (LETS_GO if before else 10 * LOOK)
    while any(found[what] > least[what] for what in found) and time.monotonic() < until:
        time.sleep(LOOK)
        found = _counted(hub, hub.status())
    return {**found, **memory(hub.pid), "jobs": hub.status()["jobs"]}


def _counted(hub: Hub, status: Row) -> dict[str, int]:
    """Counts what a hub holds. books: the bytes and the descriptors of all namespaces."""
    spaces = status["namespaces"].values()
    return {**held(hub.pid), "books": sum(space["memory"] + space["descriptors"] for space in spaces)}


def one_job(field: Field, options: Options) -> int:
    """Runs a small job to its end; returns the wrong values."""
    team = field.at_hub(SMALL)
    team.steps(2)
    wrong = team.wrong(options.plant)
    field.end(team)
    return wrong


def jobs_after_jobs(options: Options, field: Field) -> Iterator[Found]:
    """Descriptors, threads and memory of the hub after jobs that began and ended, one after the other."""
    n, place = max(options.jobs // 10, 2), field.place
    hub, after, wrong = field.hubs[HERE], list[Row](), 0
    first = min(WARM, n - 1)
    for _ in range(n):
        wrong += one_job(field, options)
        after.append(settled(hub, after[first - 1] if len(after) >= first else None))
        if len(after) % WARM == 0:
            options.tell(f"d, {place}, job {len(after)} of {n}")
    row: Row = {"line": "d", "place": place, "name": f"{n} jobs", "cycles": [each["own"] for each in after]}
    row |= {"before": after[first - 1], "after": after, "wrong": wrong}
    last, what = after[-max(n // 10, 1) :], f"d: {n} jobs, {place}"
    promises = [more(f"{what}, {name}", after[first - 1], last, name) for name in ("descriptors", "threads", "books")]
    promises += [grown(what, name, after[first - 1], last, after[0], first) for name in MEMORY_WITHIN]
    yield Found([row], promises)


def more(what: str, before: Row, after: Sequence[Row], name: str) -> Promise:
    """Judges whether a process holds no more than before."""
    counts = [one[name] - before[name] for one in after]
    ours, other = str(after[-1][name]), f"{before[name]} before"
    return Promise(f"{what} more", ours, other, counts[-1], min(counts), max(counts), 0, True, unit="")


def grown(what: str, name: str, before: Row, after: Sequence[Row], first: Row | None = None, n: int = 0) -> Promise:
    """Judges whether a part of a process's memory has stayed the same. first: after the first job; n: after how many
    jobs before was."""
    each = [one[name] / before[name] for one in after]
    last, middle = (f"{one[name] / MIB:.2f}" for one in (after[-1], before))
    other = f"{middle} MiB before" if first is None else f"{first[name] / MIB:.2f} after 1, {middle} after {n}"
    figures = (statistics.median(each), min(each), max(each), MEMORY_WITHIN[name], True)
    return Promise(f"{what}, {NAMES[name]}", f"{last} MiB", other, *figures)


NAMES = {"rss": "RSS", "own": "memory of its own"}

"""Tenants that share a hub: their throughput beside one tenant's, and their shares by weight (PHub, figure 18)."""

import statistics
from collections.abc import Iterator, Sequence

from bench.common.judge import Promise
from bench.machine.tenants import jain
from bench.service import work
from bench.service.crew import results
from bench.service.field import HERE, MIB, WEIGHTS, Field, Team, rates
from bench.service.options import Found, Options, judged, turns
from bench.service.work import Model
from hpcomm.bench.rows import Row

KEYS = 8  # of a tenant, all of them in flight
SUM_AT_LEAST = {"shm": 0.9, "tcp": 0.9, "links": 0.95}  # of one tenant's throughput
JAIN_AT_LEAST = 0.98
SHARE = WEIGHTS["heavy"] / WEIGHTS["light"]
SHARE_WITHIN = {"shm": 0.05, "tcp": 0.10, "links": 0.10}
ON_LINKS = 3.0  # times as long are turns on links: a step of 32 MiB takes half a second there
CYCLES_ON_LINKS = 2  # at most: shaped links vary little
JOB_AT_LEAST = 0.95  # of its throughput alone: the paper's AlexNet beside seven others
SMALLER_ON_LINKS, STEPS = 8, 6  # a model that computes, and its steps in a turn


def model_of(options: Options) -> Model:
    return Model(KEYS, options.mib * MIB // KEYS)


def block(teams: Sequence[Team], seconds: float, pause: float = 0.0) -> list[float]:
    """Lets teams stream at once, and returns the bytes a second of each. pause: seconds after each operation."""
    for team in teams:
        team.stream(seconds, pause)
    return rates(teams, [team.results() for team in teams], seconds)


def length(options: Options, place: str) -> float:
    return options.seconds * (ON_LINKS if place == "links" and not options.quick else 1)


def cycles_of(options: Options, place: str) -> int:
    return min(options.cycles, CYCLES_ON_LINKS) if place == "links" else options.cycles


def told(rate: float) -> str:
    return f"{rate / 1e9:.3f} GB/s" if rate >= 1e9 else f"{rate / 1e6:.1f} MB/s"


def tenants(options: Options, field: Field) -> Iterator[Found]:
    """The throughput of several tenants, and how equal their shares are."""
    place = field.place
    most, model = max(options.tenants), model_of(options)
    found: dict[str, list[list[float]]] = {str(n): [] for n in options.tenants}
    teams = [field.at_hub(model) for _ in range(most)]
    for turn, name in enumerate(turns(list(found), cycles_of(options, place))):
        at = turn % most
        chosen = [*teams[at:], *teams[:at]][: int(name)]
        found[name].append(block(chosen, length(options, place) * (1 + int(name)) / 2))
        options.tell(f"b, sharing, {place}, turn {turn + 1} of {cycles_of(options, place) * len(found)}")
    wrong = [team.wrong(options.plant) for team in teams]
    field.end(*teams)
    rows: list[Row] = []
    for name, blocks in found.items():
        sums = [sum(each) for each in blocks]
        more = {"tenants": int(name), "rates": blocks, "jain": [jain(each) for each in blocks]}
        facts = {"line": "b", "place": place, "name": f"{name} tenants", "size": model.size}
        rows.append({**facts, "cycles": [model.size / rate for rate in sums], **more, "wrong": sum(wrong[: int(name)])})
    yield Found(rows, list(_sums(rows, place)))


def _sums(rows: Sequence[Row], place: str) -> Iterator[Promise]:
    one = rows[0]
    alone = model_rate(one)
    for row in rows[1:]:
        each = [sum(a) / sum(b) for a, b in zip(row["rates"], one["rates"], strict=True)]
        rate, what = model_rate(row), f"b: {row['tenants']} tenants, {place}, their sum"
        other = f"{told(alone)} {one['name']}"
        asked = SUM_AT_LEAST[place]
        yield Promise(what, told(rate), other, rate / alone, min(each), max(each), asked)
        index, what = row["jain"], f"b: {row['tenants']} tenants, {place}, Jain's index"
        middle = statistics.median(index)
        yield Promise(what, f"{middle:.4f}", "", middle, min(index), max(index), JAIN_AT_LEAST, unit="")


def model_rate(row: Row) -> float:
    """Returns the median of the tenants' summed bytes a second."""
    return float(statistics.median(map(sum, row["rates"])))


def training(options: Options, field: Field) -> Iterator[Found]:
    """The throughput of a job that computes between its steps, as in figure 18: by the number of jobs at the hub. The
    jobs compute by sleeping, so long that all of them together keep the hub half busy."""
    place, most = field.place, max(options.tenants)
    model = Model(1, options.mib * MIB // (SMALLER_ON_LINKS if place == "links" else 1))
    found: dict[str, list[list[float]]] = {str(n): [] for n in options.tenants}
    teams = [field.at_hub(model) for _ in range(most)]
    alone = model.size / block(teams[:1], options.seconds)[0]
    pause = 2 * most * alone
    for turn, name in enumerate(turns(list(found), cycles_of(options, place))):
        at = turn % most
        chosen = [*teams[at:], *teams[:at]][: int(name)]
        found[name].append(block(chosen, max(length(options, place), STEPS * (alone + pause)), pause))
        options.tell(f"b, training, {place}, turn {turn + 1} of {cycles_of(options, place) * len(found)}")
    wrong = [team.wrong(options.plant) for team in teams]
    field.end(*teams)
    rows: list[Row] = []
    for name, blocks in found.items():
        means = [sum(each) / len(each) for each in blocks]
        more = {"jobs": int(name), "rates": blocks, "computing": pause, "exchange": alone}
        facts = {"line": "b", "place": place, "name": f"{name} jobs that compute", "size": model.size}
        cycles = [model.size / rate for rate in means]
        rows.append({**facts, "cycles": cycles, **more, "wrong": sum(wrong[: int(name)])})
    promises = []
    for row in rows[1:]:
        what = f"b: {row['jobs']} jobs that compute {1e3 * pause:.0f} ms a step, {place}, a job"
        promises.append(judged(what, row, rows[0], JOB_AT_LEAST))
    yield Found(rows, promises)


def weights(options: Options, field: Field) -> Iterator[Found]:
    """The shares of two tenants with unequal weights, where the hub's CPU or its link is always busy."""
    place = field.place
    model, blocks = model_of(options), list[list[float]]()
    teams = [field.at_hub(model, space=space) for space in WEIGHTS]
    pid, seconds = field.hubs[HERE].pid, 2 * length(options, place)
    busy = list[float]()
    # Over loopback the workers' CPU is busy before the hub's. So another process takes half of the hub's CPU, which is
    # then always busy.
    others = [field.fork_server()] if place == "tcp" else []
    for _ in range(cycles_of(options, place)):
        before = work.processor_of(pid)
        for computes in others:
            computes.start(work.compute, seconds)
        blocks.append(block(teams, seconds))
        busy.append((work.processor_of(pid) - before) / seconds)
        results(others)
    for computes in others:
        computes.end()
    wrong = [team.wrong(options.plant) for team in teams]
    field.end(*teams)
    shares = [heavy / light for light, heavy in blocks]
    facts = {"line": "b", "place": place, "name": "weights 1 and 3", "size": model.size, "wrong": sum(wrong)}
    row = {**facts, "cycles": [model.size / sum(each) for each in blocks], "rates": blocks, "hub": busy}
    ratio = statistics.median(shares)
    off = [abs(share / SHARE - 1) for share in shares]
    what = f"b: weights 1 and 3, {place}, off 3x"
    other = f"shares {ratio:.3f}x, hub's CPU {100 * statistics.median(busy):.0f} %"
    value = 100 * abs(ratio / SHARE - 1)
    asked = 100 * SHARE_WITHIN[place]
    figures = (value, 100 * min(off), 100 * max(off), asked, True, " %")
    yield Found([row], [Promise(what, f"{value:.1f} %", other, *figures)])

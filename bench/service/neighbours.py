"""A tenant's steps beside another one that floods the hub, stops, dies again and again, or pushes 100 times as much."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from bench.service.crew import Failed
from bench.service.field import ELSEWHERE, HERE, MIB, Field, Team, operations
from bench.service.field import beside as streaming
from bench.service.options import Found, Options, judged, percentile, turns
from bench.service.work import Model
from hpcomm.bench.rows import Row

ALONE = "alone"
SMALL = Model(1, MIB)
LIFE = 0.3  # seconds of a job that dies


def flood_of(options: Options) -> Model:
    return Model(8, options.mib * MIB // 8)


def floods(field: Field, team: Team) -> AbstractContextManager[None]:
    """Pushes as fast as it can, with eight keys in flight."""
    return streaming(team)


@contextmanager
def stops(field: Field, team: Team) -> Iterator[None]:
    """Floods, and one of its workers is stopped."""
    with streaming(team):
        team.ranks[1].signal(signal.SIGSTOP)
        try:
            yield
        finally:
            team.ranks[1].signal(signal.SIGCONT)


NEIGHBOURS: dict[str, Callable[[Field, Team], AbstractContextManager[None]]] = {
    "floods": floods,
    "stops": stops,
    "pushes 100 times as much": floods,
}
DIES = "dies and restarts"


@contextmanager
def dies(field: Field, hub: str, model: Model) -> Iterator[None]:
    """Floods; one of its workers is killed, and it begins again as another job."""
    over = threading.Event()

    def live() -> None:
        while not over.is_set():
            team = field.at_hub(model, hub=hub)
            team.stream()
            over.wait(LIFE)
            team.ranks[1].signal(signal.SIGKILL)
            with suppress(Failed):
                team.stop()
            field.dismiss(team)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def beside(options: Options, field: Field) -> Iterator[Found]:
    """Steps of a small tenant beside each kind of neighbour, at its hub and at another one."""
    place = field.place
    names = [ALONE, *(f"{one}, {hub}" for one in (*NEIGHBOURS, DIES) for hub in (HERE, ELSEWHERE))]
    samples: dict[str, list[list[float]]] = {name: [] for name in names}
    victim = field.at_hub(SMALL)
    large = Model(1, SMALL.size * (4 if options.quick else 100))
    models = {name: large if "100" in name else flood_of(options) for name in NEIGHBOURS}
    teams: dict[str, Team] = {}
    for hub in (HERE, ELSEWHERE):
        flooding = field.at_hub(flood_of(options), hub=hub)
        for name in NEIGHBOURS:
            teams[f"{name}, {hub}"] = field.at_hub(large, hub=hub) if models[name] == large else flooding
    for name in turns(names, options.cycles):
        kind, _, hub = name.partition(", ")
        if name == ALONE:
            samples[name].append(_block(victim, options))
            continue
        way = dies(field, hub, flood_of(options)) if kind == DIES else NEIGHBOURS[kind](field, teams[name])
        with way:
            samples[name].append(_block(victim, options))
    everybody = [victim, *{team.name: team for team in teams.values()}.values()]
    wrong = sum(team.wrong(options.plant) for team in everybody)
    field.end(*everybody)
    rows: dict[str, Row] = {}
    for name, each in samples.items():
        facts: Row = {"line": "h", "place": place, "name": name, "size": SMALL.size, "wrong": 0}
        facts |= {"cycles": [percentile(one, 50) for one in each], "p99": [percentile(one, 99) for one in each]}
        rows[name] = {**facts, "steps": [len(one) for one in each]}
    rows[ALONE]["wrong"] = wrong
    promises = []
    for name in (*NEIGHBOURS, DIES):
        here, elsewhere = rows[f"{name}, {HERE}"], rows[f"{name}, {ELSEWHERE}"]
        for part in ("p50", "p99"):
            ours, equal, alone = (_part(row, part) for row in (here, elsewhere, rows[ALONE]))
            what = f"h: beside one that {name}, {place}, {part}"
            promises.append(judged(what, ours, equal, None, at_most=True))
            promises.append(judged(what, ours, alone, None, at_most=True))
    yield Found(list(rows.values()), promises)


def _part(row: Row, part: str) -> Row:
    return row if part == "p50" else {**row, "cycles": row["p99"]}


def _block(victim: Team, options: Options) -> list[float]:
    victim.stream(options.seconds)
    return operations(victim.results())

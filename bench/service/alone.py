"""One job at a hub beside the same job with its own server: the time of a step, and the time to begin."""

import statistics
from collections.abc import Iterator
from typing import Any

from bench.common.judge import Promise, span
from bench.service import work
from bench.service.crew import together
from bench.service.field import MIB, Field, Team
from bench.service.options import Found, Options, judged, turns
from bench.service.work import Model
from hpcomm.bench.plots import named_size
from hpcomm.bench.rows import Row

WAYS = ("hub", "own server")
AT_LEAST = 0.97  # of the own server's throughput
SECONDS_TO_BEGIN = {2: 0.030, 8: 0.050}  # by the number of workers


def models(options: Options) -> list[Model]:
    size = options.mib * MIB
    return [Model(256, max(size // 2048, 64)), Model(1, size)]


def one_tenant(options: Options, field: Field) -> Iterator[Found]:
    """Steps of a job at a hub, and of one with its own server."""
    for model in models(options):
        yield _one_tenant(options, field, model)


def _one_tenant(options: Options, field: Field, model: Model) -> Found:
    workers = field.fork()
    teams = dict(zip(WAYS, (field.at_hub(model, workers), field.with_server(model, workers)), strict=True))
    first = max(team.steps(2) for team in teams.values())
    n = max(2, int(options.seconds / first))
    cycles: dict[str, list[float]] = {way: [] for way in WAYS}
    for way in turns(WAYS, options.cycles):
        cycles[way].append(teams[way].steps(n))
    wrong = {way: team.wrong(options.plant) for way, team in teams.items()}
    for team in teams.values():
        team.leave()
    field.dismiss(*teams.values())
    what = f"{field.place}, {model.keys} keys of {named_size(model.nbytes)}"
    facts = {"line": "a", "place": field.place, "keys": model.keys, "size": model.size}
    rows = [{**facts, "name": way, "cycles": cycles[way], "wrong": wrong[way]} for way in WAYS]
    return Found(rows, [judged(f"a: {what}", rows[0], rows[1], AT_LEAST)])


def beginning(options: Options, field: Field) -> Iterator[Found]:
    """The time from connect_service, or init, to the end of the first step."""
    for size in (2,) if options.quick else SECONDS_TO_BEGIN:
        yield _beginning(options, field, size)


def _beginning(options: Options, field: Field, size: int) -> Found:
    model = Model(1, MIB)
    cycles: dict[str, list[float]] = {way: [] for way in WAYS}
    parts: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    wrong = dict.fromkeys(WAYS, 0)

    def turn(way: str) -> Team:
        workers = field.fork(size, is_free=True)
        together(workers, work.own_pages)
        team = field.at_hub(model, workers) if way == WAYS[0] else field.with_server(model, workers)
        wrong[way] += team.wrong(options.plant)
        field.end(team)
        return team

    for way in WAYS:
        turn(way)
    for way in turns(WAYS, options.cycles if options.quick else 4 * options.cycles):
        team = turn(way)
        cycles[way].append(team.connecting())
        parts[way].append(_parts(team))
    what = f"{size} workers, {field.place}, until the first MiB is back"
    facts = {"line": "e", "place": field.place, "workers": size, "size": model.size}
    rows: list[Row] = []
    for way in WAYS:
        connect, exchange, first = (statistics.median(part) for part in zip(*parts[way], strict=True))
        more: dict[str, Any] = {"connect": connect, "exchange": exchange, "first": first}
        rows.append({**facts, "name": way, "cycles": cycles[way], **more, "wrong": wrong[way]})
    milliseconds = [1e3 * seconds for seconds in cycles["hub"]]
    value, most = statistics.median(milliseconds), 1e3 * SECONDS_TO_BEGIN[size]
    own = f"{span(statistics.median(cycles['own server']))} own server"
    figures = (value, min(milliseconds), max(milliseconds), most, True, " ms")
    asked = Promise(f"e: {what}", span(value / 1e3), own, *figures)
    return Found(rows, [asked, judged(f"e: {what}", rows[0], rows[1], None)])


def _parts(team: Team) -> list[float]:
    """Returns the longest connection, creation of the exchange and first step of a rank."""
    return [max(times[i + 1] - times[i] for times in team.began) for i in range(3)]

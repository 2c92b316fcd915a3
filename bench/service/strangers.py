"""Strangers at the hub's port, who know no token: the steps of the hub's jobs, and whether a new job still connects."""

import asyncio
import math
import os
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from bench.common.judge import Promise
from bench.service.field import ELSEWHERE, HERE, MIB, Field
from bench.service.options import Found, Options, judged, turns
from bench.service.work import Model
from hpcomm.bench.rows import Row
from hpcomm.service import address, proof

SMALL = Model(1, MIB)
JOBS = 4
SLOWER_AT_MOST = 1.10
CONNECTED_WITHIN = 1.0  # seconds
KINDS = ("garbage", "replay", "half a handshake")
KEEP = 10.0  # seconds, at most, for which a stranger waits for the hub to hang up
SHORTER = 0.4  # times as long are turns without strangers at the jobs' hub
NEWCOMERS = (0.2, 0.5, 0.8)  # when a new job comes, as a part of a turn
QUIET, BESIDE, EQUAL = "quiet", "beside strangers", "beside strangers at another hub"


# ---- in a process of strangers ---------------------------------------------------------------------------------------


def knock(where: str, space: str, token: str, n: int, seconds: float) -> tuple[float, dict[str, int]]:
    """Connects n times in so many seconds. Returns the seconds in which the strangers came, and counts them by kind.
    The token is used for one handshake, which is recorded and repeated."""
    return asyncio.run(_knock(where, space, token.encode(), n, seconds))


async def _knock(where: str, space: str, token: bytes, n: int, seconds: float) -> tuple[float, dict[str, int]]:
    place = address(where)
    reader, writer = await asyncio.open_connection(place.host, place.port)
    claim = proof.claim(await reader.readexactly(proof.HELLO), space, token)
    writer.write(claim)
    await reader.readexactly(proof.ANSWER)
    writer.close()
    counts: Counter[str] = Counter()
    began, tasks = time.monotonic(), set[asyncio.Task[None]]()
    for i in range(n):
        late = began + i * seconds / n - time.monotonic()
        if late > 0:
            await asyncio.sleep(late)
        kind = KINDS[i % len(KINDS)]
        data = {"garbage": os.urandom(200), "replay": claim, "half a handshake": claim[: proof.CLAIM // 2]}[kind]
        stay = _stranger(place.host, place.port, data, counts, kind)
        task = asyncio.ensure_future(asyncio.wait_for(stay, min(KEEP, 2 * seconds)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    took = time.monotonic() - began
    await asyncio.gather(*tasks, return_exceptions=True)
    return took, dict(counts)


async def _stranger(host: str, port: int, data: bytes, counts: Counter[str], kind: str) -> None:
    with suppress(OSError):
        reader, writer = await asyncio.open_connection(host, port)
        counts[kind] += 1
        try:
            writer.write(data)
            said = await reader.read()  # until the hub hangs up
            counts["admitted"] += said[proof.HELLO :][:1] == b"\1"
        finally:
            writer.close()


# ---- in the benchmark ------------------------------------------------------------------------------------------------


def at_the_door(options: Options, field: Field) -> Iterator[Found]:
    """Steps of jobs, and the connection of a new one, beside strangers."""
    place = field.place
    steps: dict[str, list[list[float]]] = {name: [] for name in (QUIET, BESIDE, EQUAL)}
    connected: dict[str, list[float]] = {name: [] for name in steps}
    wrong, counts, took = 0, Counter[str](), 0.0
    cycles = min(options.cycles, options.strangers)
    shares = [options.strangers * (i + 1) // cycles - options.strangers * i // cycles for i in range(cycles)]
    whole = options.strangers_seconds / cycles
    teams = [field.at_hub(SMALL) for _ in range(JOBS)]
    crowd = field.fork(1)[0]
    for turn, name in enumerate(turns(list(steps), cycles)):
        n, fraction = shares[turn // len(steps)], 1.0 if name == BESIDE else SHORTER
        seconds = whole * fraction
        for team in teams:
            team.stream(seconds)
        if name != QUIET:
            hub = field.hubs[HERE if name == BESIDE else ELSEWHERE]
            crowd.start(knock, hub.where, "light", hub.tokens["light"], math.ceil(n * fraction), seconds)
        began = time.monotonic()
        for part in NEWCOMERS:  # the hub's places fill within seconds
            time.sleep(max(began + part * seconds - time.monotonic(), 0))
            wrong += _newcomer(field, options, connected[name])
        streams = [team.results() for team in teams]
        if name != QUIET:
            came_in, told = crowd.result(seconds + 60)
            if name == BESIDE:
                counts.update(told)
                took += came_in
        steps[name].append([_step(stream[0]) for stream in streams])
        options.tell(f"g, turn {turn + 1} of {cycles * len(steps)}")
    wrong += sum(team.wrong(options.plant) for team in teams)
    refused = field.hubs[HERE].status()["counts"]
    field.end(*teams)
    crowd.end()
    rows: list[Row] = []
    for name, each in steps.items():
        facts: Row = {"line": "g", "place": place, "name": name, "size": SMALL.size, "wrong": 0}
        rows.append({**facts, "cycles": [statistics.fmean(one) for one in each], "jobs": each})
    rows[1] |= {"strangers": dict(counts), "refused": refused, "connected": connected, "wrong": wrong}
    came = sum(counts[kind] for kind in KINDS)
    what = f"g: {came} strangers in {took:.0f} s, {JOBS} jobs, {place}"
    latest = max(connected[BESIDE])
    told = (f"{1e3 * latest:.0f} ms", "", latest, min(connected[BESIDE]), latest, CONNECTED_WITHIN, True)
    admitted = counts["admitted"]
    yield Found(
        rows,
        [
            judged(f"{what}, a step", rows[1], rows[0], SLOWER_AT_MOST, at_most=True),
            judged(f"{what}, a step", rows[1], rows[2], None, at_most=True),
            Promise(f"{what}, a new job's connection", *told, unit=" s"),
            Promise(f"{what}, admitted", str(admitted), "", admitted, admitted, admitted, 0, True, unit=""),
        ],
    )


def _step(stream: Any) -> float:
    """Returns the mean seconds of an operation."""
    began, ends = stream
    return float((ends[-1] - began) / len(ends))


def _newcomer(field: Field, options: Options, connected: list[float]) -> int:
    """Runs a new job beside the strangers, and notes how long it took to connect."""
    team = field.at_hub(SMALL)
    connected.append(max(times[1] for times in team.began) - min(times[0] for times in team.began))
    wrong = team.wrong(options.plant)
    field.end(team)
    return wrong

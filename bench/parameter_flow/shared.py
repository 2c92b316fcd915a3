"""Figure 14 of Parameter Flow: the speed-up where others use the links too, by thresholds that are fixed or follow.

In the first half of every period UDP streams of iperf3 come from outside to every second host. They slow its incoming
link, and so the paths from all hosts to it. A training begins with a period, and lasts for whole periods.
"""

import statistics
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from bench.common.judge import Promise, span
from bench.ops.hosts_bench import carried
from bench.parameter_flow.cases import APPS, DENSE, EIGHT, FOLLOW, LOW, SMOOTH, TINY, UP, Case
from bench.parameter_flow.times import label, reached
from hpcomm.bench.rows import Row

from cluster.hosts import HEAD  # isort: skip - tests is on the path by now

GROUP, SIZE, RATE, BURST = "shared", EIGHT, "200mbit", "16k"
HOSTS, PERIODS, PERIOD = 8, 2, 20.0  # seconds of a period; in its first half the links are shared
OTHERS, OTHERS_RATE = "150M", "150mbit"  # the same rate, as iperf3 and as tc write it
ROOM = "4M"  # of the sender's socket: a full queue then drops packets instead of blocking the sender
AT_LEAST = 12.5e6  # 100 Mb/s
WAYS = ((DENSE, 0), (LOW, 0), (UP, 0), (FOLLOW, 0))
PAPER = {"lr": (4.5, 6.1), "mf": (2.6, 3.5), "cnn": (3.8, 8.2)}  # delta, following
OF_BOUND, SHARED_MOST, FREE_MOST, VERDICT = 0.85, 1.05, 1.02, 5.0
MOST = 4000  # steps of a training
SETTLED = 0.5  # steps are compared after this part of a phase
TINY_PERIOD = 0.6


def period_of(size: str) -> float:
    return TINY_PERIOD if size == TINY else PERIOD


def cases(options: Any) -> Iterator[Case]:
    period = period_of(options.size)
    periods = 1 if options.size == TINY else PERIODS
    for app in options.apps:
        for cycle in range(options.run_cycles or 1):
            for way, staleness in options.ways or WAYS:
                yield Case(
                    GROUP,
                    app,
                    options.size,
                    way,
                    staleness,
                    cycle,
                    MOST,
                    seconds=periods * period,
                    period=period,
                    rate=options.rate or RATE,
                    at_least=AT_LEAST,
                    plant=options.plant,
                )


@contextmanager
def beside(cluster: Any, size: str) -> Iterator[None]:
    """The others' streams, until the end."""
    hit = cluster.hosts[1::2]
    period, over, running = period_of(size), threading.Event(), list[subprocess.Popen[str]]()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

    def send() -> None:
        while not over.wait(period - time.time() % period):
            for to in hit:
                seconds = max(1, round(period / 2))
                command = ["iperf3", "-c", to, "-u", "-b", OTHERS, "-w", ROOM, "-l", "1448", "-t", str(seconds)]
                running.append(cluster.popen(HEAD, command, **quiet))

    servers = [cluster.popen(to, ["iperf3", "-s"], **quiet) for to in hit]
    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(period)
        for process in (*running, *servers):
            with suppress(OSError):
                process.kill()
            process.wait(10)


# ---- results ---------------------------------------------------------------------------------------------------------


def phase(row: Row, which: str) -> Row:
    """Returns the seconds and a rank's bytes of the median step in the second half of a phase. Empty without such
    steps."""
    ends = row["began"] + np.array(row["clock"])
    begins = np.concatenate([[row["began"]], ends[:-1]])
    period = float(row["period"])
    first = (0.0 if which == "shared" else period / 2) + SETTLED * period / 2
    inside = (begins % period >= first) & (ends % period < first + SETTLED * period / 2) & (ends - begins < period)
    if not inside.any():  # steps longer than that: take all that begin in the phase
        first -= SETTLED * period / 2
        inside = (begins % period >= first) & (begins % period < first + period / 2)
    if not inside.any():
        return {}
    each = np.diff(row["bytes"], prepend=0.0)
    return {"step": float(np.median((ends - begins)[inside])), "bytes": float(np.mean(each[inside]))}


def left(rows: Sequence[Row], row: Row, which: str) -> float:
    """Returns the bytes a second that a link leaves to the training. While it is shared, this is the rate that dense
    BSP got, because streams that lose packets do not keep their rate; but at least the rate that the streams should
    leave."""
    whole, dense = carried(row["rate"]), against(rows, row, DENSE)
    found = {} if dense is None or which == "free" else phase(dense, which)
    if dense is None or not found:
        return whole - (carried(OTHERS_RATE) if which == "shared" else 0)
    got = dense["link"] / dense["sent"] * found["bytes"] / max(found["step"] - dense["computing"], 1e-9)
    return float(min(whole, max(got, whole - carried(OTHERS_RATE))))


def bound(rows: Sequence[Row], row: Row, which: str) -> float:
    """Returns the least seconds of a step of a phase with its bytes: computing, wire, encode and decode."""
    found = phase(row, which)
    if not found:
        return float("nan")
    busiest = row["link"] / max(row["sent"], 1.0)  # over the mean link
    return float(row["computing"] + busiest * found["bytes"] / left(rows, row, which) + row["encode"] + row["decode"])


def rate_of(row: Row) -> float:
    """Steps a second, of whole periods."""
    return float(row["taken"] / row["clock"][-1])


def verdicts(row: Row) -> list[float]:
    """Returns the seconds from each change until all ranks use its threshold; inf if that did not happen before the
    next change."""
    ends, period = row["began"] + np.array(row["clock"]), float(row["period"])
    known = sorted({delta for step in row["deltas"] for delta in step})
    if len(known) < 2:
        return [float("inf")]
    first = row["began"] - row["began"] % (period / 2)
    found = []
    for change in np.arange(first, ends[-1] - period / 4, period / 2):
        wanted = known[-1] if change % period < period / 4 or change % period > 3 * period / 4 else known[0]
        inside = [i for i, end in enumerate(ends) if change <= end < change + period / 2]
        at = next((ends[i] for i in inside if row["deltas"][i] == [wanted]), None)
        found.append(float("inf") if at is None else float(at - max(change, row["began"])))
    return found


def against(rows: Sequence[Row], row: Row, way: str) -> Row | None:
    """Returns the row of another way in the same cycle."""
    alike = (one for one in rows if (one["app"], one["cycle"], one["way"]) == (row["app"], row["cycle"], way))
    return next(alike, None)


def speedup(rows: Sequence[Row], row: Row) -> tuple[float, float | None, float | None]:
    """Returns the speed-up over dense in steps a second, the speed-up in time to dense's objective, and the seconds
    to it."""
    dense = against(rows, row, DENSE)
    if dense is None:
        return float("nan"), None, None
    end = reached(row, dense["points"][-1][2])
    faster = rate_of(row) / rate_of(dense)
    return faster, None if end is None else faster * dense["taken"] / end[0], None if end is None else end[1]


def in_bound(rows: Sequence[Row], row: Row) -> float:
    """Returns the steps a second that the bounds of both phases allow, over dense steps a second."""
    dense = against(rows, row, DENSE)
    if dense is None:
        return float("nan")
    return statistics.mean(1 / bound(rows, row, which) for which in ("shared", "free")) / rate_of(dense)


def lines(document: Row) -> Iterator[str]:
    rows = [row for row in document["rows"] if row["group"] == GROUP]
    if not rows:
        return
    where = f"{rows[0]['ranks']} hosts, {rows[0]['rate']}, {rows[0]['size']}"
    yield f"\n# figure 14: {where}, {OTHERS} of UDP in {PERIOD / 2:g} of every {PERIOD:g} s"
    head = f"{'shared':>8}{'bound':>7}{'MB':>7}{'free':>8}{'bound':>7}{'MB':>7}{'encode':>8}{'decode':>8}{'steps':>7}"
    more = f"{'x steps/s':>10}{'bound x':>8}{'time (s)':>9}{'speed-up':>9}{'paper':>6}{'#wrong':>7}"
    yield f"# {'app':4}  {'way':13}{head}{more}  verdicts (s)"
    for row in rows:
        cells = ""
        for which in ("shared", "free"):
            found = phase(row, which)
            cells += (
                f"{1e3 * found['step']:>8.0f}{1e3 * bound(rows, row, which):>7.0f}{found['bytes'] / 1e6:>7.2f}"
                if found
                else f"{'-':>22}"
            )
        cells += f"{1e3 * row['encode']:>8.0f}{1e3 * row['decode']:>8.0f}{row['taken']:>7}"
        faster, speed, seconds = speedup(rows, row)
        cells += f"{faster:>10.2f}{in_bound(rows, row):>8.2f}"
        cells += f"{'never':>9}{'':>9}" if speed is None or seconds is None else f"{seconds:>9.2f}{speed:>9.2f}"
        paper = {LOW: PAPER[row["app"]][0], FOLLOW: PAPER[row["app"]][1]}.get(row["way"], "")
        said = ", ".join(f"{value:.1f}" for value in verdicts(row)) if row["way"] in (FOLLOW, SMOOTH) else ""
        cells += f"{paper:>6}{row['wrong']:>7}  {said}"
        yield f"  {APPS[row['app']].name:4}  {label(row['way'], row['staleness']):13}{cells}"


def promises(document: Row) -> Iterator[Promise]:
    rows = [row for row in document["rows"] if row["group"] == GROUP]
    for row in (one for one in rows if one["way"] == FOLLOW):
        name = APPS[row["app"]].name
        value, _, _ = speedup(rows, row)
        asked = round(OF_BOUND * in_bound(rows, row), 2)
        yield Promise(f"{name}, shared: speed-up of following", "", "dense BSP", value, value, value, asked)
        for which, way, most in (("shared", UP, SHARED_MOST), ("free", LOW, FREE_MOST)):
            other = against(rows, row, way)
            mine, theirs = phase(row, which), {} if other is None else phase(other, which)
            if mine and theirs:
                ratio = mine["step"] / theirs["step"]
                what = f"{name}, while {which}: step of following / fixed {way}'s"
                yield Promise(what, span(mine["step"]), span(theirs["step"]), ratio, ratio, ratio, most, at_most=True)
        each = verdicts(row)
        value = statistics.median(each)
        what = f"{name}: seconds to a verdict"
        yield Promise(what, "", "", value, min(each), max(each), VERDICT, at_most=True, unit=" s")


def panel(rows: Sequence[Row], axis: Any, app: str) -> None:
    """Draws steps over time, by way; shared halves are grey."""
    own = [row for row in rows if row["app"] == app and row["cycle"] == 0]
    period = float(own[0]["period"])
    for at in np.arange(0, max(row["clock"][-1] for row in own), period):
        axis.axvspan(at, at + period / 2, color="lightgray", alpha=0.5)
    for row in own:
        _, speed, _ = speedup(rows, row)
        said = "" if speed is None else f" {speed:.2f}x"
        axis.plot(row["clock"], range(1, row["taken"] + 1), label=f"{label(row['way'], row['staleness'])}{said}")
    low, follow = PAPER[app]
    axis.set(title=f"{APPS[app].name} (paper: delta {low}x, following {follow}x)", xlabel="time (s)", ylabel="steps")
    axis.legend(fontsize="small")
    axis.grid(alpha=0.3)

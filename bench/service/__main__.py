"""bench.service: the hub as a service (docs/service.md), beside servers of a job's own, and jobs beside each other.

    python -m bench.service                                   # all lines
    python -m bench.service --only sharing,neighbours --plot figure18.png
    python -m bench.service --only killed --jobs 100

Each line has one group of processes, in which its arrangements take turns; a ratio is one of medians. With --cpus own
the servers have the last CPU, and the workers the others. bench/README.md describes the lines.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import hpcomm
from bench.common.judge import Promise, table
from bench.common.launch import cores
from bench.common.options import add_output, add_quick, write
from bench.ops.hosts_bench import rate_of
from bench.service import alone, ends, killed, neighbours, ping, sharing, strangers
from bench.service.field import PLACES, Field, Unavailable
from bench.service.options import Found, Options
from hpcomm.bench.rows import Row


@dataclass(frozen=True)
class Line:
    """A part of the benchmark, and the places where it is measured."""

    measure: Callable[[Options, Field], Iterator[Found]]
    places: tuple[str, ...]


LINES = {
    "alone": Line(alone.one_tenant, ("shm", "tcp")),
    "sharing": Line(sharing.tenants, ("shm", "tcp", "links")),
    "training": Line(sharing.training, ("shm", "links")),
    "weights": Line(sharing.weights, ("shm", "tcp", "links")),
    "ping": Line(ping.beside_a_large_tenant, ("shm",)),
    "ends": Line(ends.jobs_after_jobs, ("shm", "tcp")),
    "beginning": Line(alone.beginning, ("shm", "tcp")),
    "killed": Line(killed.killed_jobs, ("shm",)),
    "strangers": Line(strangers.at_the_door, ("shm",)),
    "neighbours": Line(neighbours.beside, ("shm", "tcp")),
}
UNABLE = 77  # exit status if the machine cannot run a line


def numbers(text: str) -> list[int]:
    return sorted({int(word) for word in text.split(",")})


def options_of(given: Sequence[str] | None) -> Options:
    p = argparse.ArgumentParser(prog="python -m bench.service", description="The hub as a service.")
    p.add_argument("--only", default="", help=f"lines, comma-separated: {', '.join(LINES)}")
    p.add_argument("--place", default="", help=f"where, comma-separated: {', '.join(PLACES)}; default: a line's own")
    p.add_argument("-N", "--cycles", type=int, default=7, help="turns of each arrangement")
    p.add_argument("--seconds", type=float, default=1.0, help="of a turn; on links three times as long")
    p.add_argument("--mib", type=int, default=32, help="MiB of a tenant")
    p.add_argument("--large", type=int, default=256, help="MiB of the tenant beside pings")
    p.add_argument("--tenants", type=numbers, default="1,2,4,8", help="numbers of tenants that share the hub")
    p.add_argument("--jobs", type=int, default=1000, help="jobs that end, half of them by a kill; a tenth end in ends")
    p.add_argument("--strangers", type=int, default=10000, help="connections of strangers")
    p.add_argument("--strangers-seconds", type=float, default=100.0, help="in which they come")
    p.add_argument("--cpus", choices=("own", "any"), default="own", help="own: servers and workers share no CPU")
    p.add_argument("--rate", type=rate_of, default="1gbit", help="of the links, as tc writes it")
    p.add_argument("--plant", action="store_true", help="spoil a value of each job, to see that #wrong counts it")
    add_quick(p)
    add_output(p, plot="throughput by tenants, and steps by neighbour,")
    options = p.parse_args(given, Options(began=time.monotonic()))
    if options.quick:
        options.cycles, options.seconds, options.mib, options.large = 1, 0.05, 1, 4
        options.tenants, options.jobs, options.strangers, options.strangers_seconds = [1, 2], 4, 12, 0.1
    for what, known in (("only", LINES), ("place", PLACES)):
        unknown = {word.strip() for word in getattr(options, what).split(",") if word.strip()} - set(known)
        if unknown:
            p.error(f"--{what}: there is no {', '.join(sorted(unknown))}: {', '.join(known)}")
    least = min(options.cycles, options.mib, options.large, options.jobs, options.strangers, *options.tenants)
    if least < 1 or options.seconds <= 0 or options.strangers_seconds <= 0:
        p.error("all numbers must be positive")
    return options


def measure(options: Options) -> tuple[list[Row], list[Promise], list[str]]:
    """Returns the rows, the judged figures, and why lines could not be measured."""
    rows, promises, unable = list[Row](), list[Promise](), list[str]()
    wanted = [word.strip() for word in options.only.split(",") if word.strip()] or list(LINES)
    for i, name in enumerate(wanted):
        began = time.monotonic()
        for place in options.places(*LINES[name].places):
            try:
                field = options.field(place)
            except Unavailable as why:
                unable.append(f"{name}: no hosts here: {why}")
                continue
            for found in LINES[name].measure(options, field):
                rows += found.rows
                promises += found.promises
        if options.progress is not None:
            options.progress.write_text(f"{(i + 1) / len(wanted):.4f}")
        elif not options.json:
            print(f"# {name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    return rows, promises, unable


def main(given: Sequence[str] | None = None) -> int:
    options = options_of(given)
    before = os.getloadavg()[0]
    try:
        rows, promises, unable = measure(options)
    finally:
        options.close()
    wrong = sum(row["wrong"] for row in rows)
    facts = {"benchmark": "service", "hpcomm": hpcomm.__version__, "cores": cores(), "cpus": options.cpus}
    document = {**facts, "load": [before, os.getloadavg()[0]], "rows": rows, "unable": unable}
    document["promises"] = [{**vars(promise), "verdict": promise.verdict} for promise in promises]
    text = json.dumps(document, indent=1)
    write(options, text)
    if options.plot is not None:
        from bench.service import picture  # noqa: PLC0415

        picture.draw(document, options.plot)
    if options.json:
        print(text)
    else:
        print(f"# service: hpcomm {hpcomm.__version__}, {cores()} cores, CPUs: {options.cpus}", end="")
        print(f", load of the machine before {before:.2f}, after {os.getloadavg()[0]:.2f}")
        print(table(promises))
        print(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
    for sentence in unable:
        print(f"service: {sentence}", file=sys.stderr)
    return 1 if wrong else UNABLE if unable and not rows else 0


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _leave)  # ends the hubs and the workers too
    sys.exit(main())

"""Which random job is the K-th of a seed: its kind, its ranks, who falls, how and when.

The choice is a function of the seed, K and what may be chosen from, so a job that failed can be played again. The
moment of the fall is real time all the same: a job that is played again may take another course.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

TRANSPORTS = ("shm", "tcp")
SIZES = (4, 8)
SIGNALS = ("kill", "stop")
KINDS = (
    "hub-cs",
    "hub-cc",
    "hub-ncs",
    "hub-ncc",
    "async",
    "notify-ack",
    "ssp",
    "receivers",
    "graph-bsp",
    "quorum-hub",
    "quorum-graph",
    "queue",
    "window",
    "collective",
    "create",
    "init",
    "close",
)
TIMEOUT = 4.0  # seconds: the deadline of every call of a rank
SHORT, LONG = 2.5, 30.0  # seconds of silence: a stopped rank counts as failed before the others' deadline, or never


@dataclass(frozen=True)
class Job:
    """A job. The victim falls `after` seconds, counted from `moment`: "started" (all ranks were forked), "looping" (all
    have made a step), "step" (one has made `step` steps), or "itself": when it reaches the place `falls_at`."""

    number: int
    seed: str
    kind: str
    transport: str
    size: int
    victim: int
    signal: str
    moment: str
    step: int
    after: float
    falls_at: str
    leaves: str  # what a rank does with its error: "raise" out of its with block, or "exit" after catching it
    work: float  # seconds that a rank computes between two steps, at most
    silence: float
    body: str  # what the ranks do: a name of random_rank.BODIES
    limit: int  # steps after which all close; 0: none
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        when = f"at {self.falls_at}" if self.moment == "itself" else f"{self.after:.3f} s after {self.moment}"
        if self.moment == "step":
            when += f" {self.step}"
        chosen = " ".join(f"{name}={value}" for name, value in self.options.items())
        return (
            f"job {self.number} of seed {self.seed}: {self.kind} over {self.transport}, {self.size} ranks, rank "
            f"{self.victim} gets SIG{self.signal.upper()} {when}; body {self.body}, leaves by {self.leaves}, work "
            f"{self.work * 1e3:.1f} ms, silence {self.silence:g} s{', ' * bool(chosen)}{chosen}"
        )


def plan(
    seed: str,
    number: int,
    kinds: Sequence[str] = KINDS,
    transports: Sequence[str] = TRANSPORTS,
    sizes: Sequence[int] = SIZES,
    signals: Sequence[str] = SIGNALS,
) -> Job:
    """The job of that number. Each combination comes once before one comes again, in an order of the seed's."""
    every = list(itertools.product(kinds, transports, sizes, signals))
    lap, place = divmod(number, len(every))
    random.Random(f"{seed}/{lap}").shuffle(every)
    kind, transport, size, signal = every[place]
    rng = random.Random(f"{seed}:{number}")
    body, options, victims = _body(rng, kind, size, signal)
    job: dict[str, Any] = {
        "number": number,
        "seed": seed,
        "kind": kind,
        "transport": transport,
        "size": size,
        "victim": rng.choice(victims),
        "signal": signal,
        "moment": rng.choice(("looping", "step")),
        "step": round(2 ** rng.uniform(0, 7)),
        "after": rng.uniform(0, 0.3),
        "falls_at": "",
        "leaves": rng.choice(("raise", "exit")),
        "work": rng.choice((0.0, 0.001, 0.005)),
        "silence": rng.choice((SHORT, LONG)) if transport == "tcp" else LONG,
        "body": body,
        "limit": 0,
        "options": options,
    }
    if job["moment"] == "step":
        job["after"] /= 100
    if kind == "init":
        job |= rng.choice(
            ({"moment": "started", "after": rng.uniform(0, 0.1)}, {"moment": "itself", "falls_at": "init"})
        )
    if kind == "close":
        limit = rng.randrange(4, 20)
        job |= {"limit": limit, "moment": "step", "step": rng.randrange(limit - 3, limit + 1)}
        if rng.random() < 0.5:
            job |= {"moment": "itself", "falls_at": rng.choice(("close", "closed"))}
    return Job(**job)


def _body(rng: random.Random, kind: str, size: int, signal: str) -> tuple[str, dict[str, Any], Sequence[int]]:
    """What the ranks do, with which options, and who may fall: somebody whom all the others need."""
    everybody = range(size)
    if kind == "close":
        kinds = [
            "hub-cs",
            "hub-cc",
            "async",
            "quorum-hub",
            "notify-ack",
            "ssp",
            "receivers",
            "queue",
            "window",
            "collective",
        ]
        kind = rng.choice(kinds + ["hub-ncs"] * (signal == "kill"))  # serve waits for ever for one that is stopped
    if kind.startswith("hub-"):
        placement = kind[4:].upper()
        options: dict[str, Any] = {"placement": placement} | _sizes(rng)
        if placement == "NCS":
            options["servers"] = sorted(rng.sample(everybody, rng.randrange(1, size // 2 + 1)))
        return "hub", options, everybody
    if kind == "receivers":  # owners' folds go down trees
        options = {"servers": sorted(rng.sample(everybody, rng.choice((1, 2)))), "arity": rng.choice((1, 2, 3))}
        options |= {"staleness": rng.choice((0, 2)), "delta": rng.choice((0.0, 2.5))} | _sizes(rng)
        return "receivers", options, everybody
    if kind == "async":  # nobody waits for a worker that is stopped and owns nothing
        return _served(rng, size, signal, {"consistency": "async", "depth": rng.choice((1, 3))} | _sizes(rng))
    if kind == "quorum-hub":
        return _served(rng, size, signal, {"consistency": "quorum", "quorum": size - 1} | _sizes(rng))
    if kind == "quorum-graph":  # as many as a rank has in-neighbours: all are needed
        return "graph", {"consistency": "quorum-graph", "quorum": 2, "graph": "ring2"} | _sizes(rng), everybody
    if kind in ("notify-ack", "ssp", "graph-bsp"):
        graph = rng.choice(("ring", "ring2", "chain2", "root_expander", "hypercube", "complete"))
        return "graph", {"consistency": kind, "graph": graph} | _sizes(rng), everybody
    if kind == "queue":
        graph = rng.choice(("ring", "ring2", "root_expander", "complete"))
        options = {"graph": graph, "depth": rng.choice((1, 2)), "buffers": rng.choice((0, 2))}
        return "queue", options | {"elements": rng.choice((100, 20_000))}, everybody
    if kind == "window":
        return "window", {"elements": rng.choice((100, 20_000))}, everybody
    if kind == "collective":
        return "collective", {"calls": rng.choice(("barrier", "allgather", "both"))}, everybody
    return {"init": "collective", "create": "create"}[kind], {"calls": "both"}, everybody


def _served(
    rng: random.Random, size: int, signal: str, options: dict[str, Any]
) -> tuple[str, dict[str, Any], Sequence[int]]:
    placement = rng.choice(("CS", "NCS"))
    options["placement"] = placement
    if placement == "CS":
        return "hub", options, range(size)
    servers = options["servers"] = sorted(rng.sample(range(size), rng.randrange(1, size // 2 + 1)))
    if "quorum" in options:
        options["quorum"] = max(1, size - len(servers) - 1)
    return "hub", options, servers if signal == "stop" else range(size)


def _sizes(rng: random.Random) -> dict[str, Any]:
    return {
        "keys": rng.randrange(1, 4),
        "elements": rng.choice((100, 20_000, 100_000)),
        "call": rng.choice(("step", "push_pull", "push, pull")),
        "progress": rng.choice(("auto", "thread")),
    }

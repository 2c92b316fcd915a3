"""Which random job is the K-th of a seed: its kind, its ranks, the one or two that fall, how and when.

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
WIDE: dict[str, Any] = {  # options of random_jobs.py by --wide
    "kinds": ",".join((*KINDS, "hosts")),
    "transports": "shm,tcp,mixed",
    "ranks": "8,12,16,24,32",
    "signals": "kill,stop,abort,close",
    "victims": 2,
    "timeout": 10.0,
    "look_after": 4.0,
}
LEAVES = ("abort", "close")  # a rank that falls so leaves its context, and its process goes on
LEAST = 100  # elements of a small key: one chunk
TIMEOUT = 4.0  # seconds: the deadline of every call of a rank
LOOK_AFTER = 30.0  # seconds, longer than the deadline: a wait for a stopped rank ends only there
SHORT, LONG = 2.5, 30.0  # seconds of silence: a stopped rank counts as failed before the others' deadline, or never


@dataclass(frozen=True)
class Fall:
    """The victim falls `after` seconds, counted from `moment`: "started" (all ranks were forked), "looping" (all have
    made a step), "step" (one has made `step` steps), "fell" (the first victim has fallen), or "itself": when it reaches
    the place `falls_at`. A thread of it aborts or closes the context, where the signal says so."""

    victim: int
    signal: str
    moment: str
    step: int
    after: float
    falls_at: str
    resumes: bool  # a stopped rank goes on when all others have ended, and must end too; otherwise it is killed

    def __str__(self) -> str:
        when = f"at {self.falls_at}" if self.moment == "itself" else f"{self.after:.3f} s after {self.moment}"
        if self.moment == "step":
            when += f" {self.step}"
        deed = f"does {self.signal}" if self.signal in LEAVES else f"gets SIG{self.signal.upper()}"
        return f"rank {self.victim} {deed} {when}"


@dataclass(frozen=True)
class Job(Fall):
    """A job, and its first fall."""

    number: int
    seed: str
    kind: str
    transport: str
    size: int
    apart: int  # with transport "mixed": so many ranks are on one host, the others on a second one; else 0
    leaves: str  # what a rank does with its error: "raise" out of its with block, or "exit" after catching it
    work: float  # seconds that a rank computes between two steps, at most
    silence: float
    body: str  # what the ranks do: a name of random_rank.BODIES
    limit: int  # steps after which all close; 0: none
    second: Fall | None = None
    timeout: float = TIMEOUT
    look_after: float = LOOK_AFTER
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def falls(self) -> tuple[Fall, ...]:
        return (self,) if self.second is None else (self, self.second)

    def __str__(self) -> str:
        falls = ", ".join(Fall.__str__(fall) for fall in self.falls)
        apart = f" ({self.apart} on the first host)" if self.apart else ""
        chosen = " ".join(f"{name}={value}" for name, value in self.options.items())
        return (
            f"job {self.number} of seed {self.seed}: {self.kind} over {self.transport}, {self.size} ranks{apart}, "
            f"{falls}; body {self.body}, leaves by {self.leaves}, work {self.work * 1e3:.1f} ms, silence "
            f"{self.silence:g} s{', ' * bool(chosen)}{chosen}"
        )


def plan(
    seed: str,
    number: int,
    kinds: Sequence[str] = KINDS,
    transports: Sequence[str] = TRANSPORTS,
    sizes: Sequence[int] = SIZES,
    signals: Sequence[str] = SIGNALS,
    most_victims: int = 1,
    timeout: float = TIMEOUT,
    look_after: float = LOOK_AFTER,
) -> Job:
    """The job of that number. Each combination comes once before one comes again, in an order of the seed's."""
    every = list(itertools.product(kinds, transports, sizes, signals))
    lap, place = divmod(number, len(every))
    random.Random(f"{seed}/{lap}").shuffle(every)
    kind, transport, size, signal = every[place]
    rng = random.Random(f"{seed}:{number}")
    more = random.Random(f"{seed}:{number}:more")  # what seeds of before did not draw
    body, options, victims = _body(rng, kind, size, signal)
    job: dict[str, Any] = {
        "timeout": timeout,
        "look_after": look_after,
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
        "resumes": more.random() < 0.5,
        "apart": more.randrange(1, size) if transport == "mixed" else 0,
        "leaves": rng.choice(("raise", "exit")),
        "work": rng.choice((0.0, 0.001, 0.005)),
        "silence": rng.choice((SHORT, LONG)) if transport != "shm" else LONG,
        "body": body,
        "limit": 0,
        "options": options,
    }
    if job["moment"] == "step":
        job["after"] /= 100
    if kind == "init" and signal not in LEAVES:
        job |= rng.choice(
            ({"moment": "started", "after": rng.uniform(0, 0.1)}, {"moment": "itself", "falls_at": "init"})
        )
    if kind == "close":
        limit = rng.randrange(4, 20)
        job |= {"limit": limit, "moment": "step", "step": rng.randrange(limit - 3, limit + 1)}
        if rng.random() < 0.5:
            job |= {"moment": "itself", "falls_at": rng.choice(("close", "closed"))}
    if kind == "init":
        signals = [one for one in signals if one not in LEAVES]
    others = [rank for rank in victims if rank != job["victim"]]
    if most_victims > 1 and others and signals and more.random() < 0.4:
        after = more.choice((0.0, more.uniform(0, 0.3)))
        job["second"] = Fall(more.choice(others), more.choice(signals), "fell", 0, after, "", more.random() < 0.5)
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
    if kind == "hosts":  # not ASYNC, under which no host waits for another
        options = {"consistency": rng.choice(("bsp", "ssp")), "group": rng.randrange(2, max(3, size // 2))}
        top = rng.choice(("sharded", "ring")) if options["consistency"] == "bsp" else "sharded"
        return "hosts", options | {"racks": rng.random() < 0.4, "top": top} | _sizes(rng), everybody
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
        names = ["ring", "ring2", "chain2", "root_expander", "hypercube", "complete"]
        if size & (size - 1):
            names.remove("hypercube")
        graph = rng.choice(names)
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
        "elements": rng.choice((LEAST, 20_000, 100_000)),
        "call": rng.choice(("step", "push_pull", "push, pull")),
        "progress": rng.choice(("auto", "thread")),
    }

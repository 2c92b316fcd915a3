"""The ranks of bench.sfb: ways to bring all ranks' pairs of vectors into a matrix, in turns.

The pairs are small whole numbers, so every product and sum is exact, and W is checked after each turn. It must be
NumPy's result from the pairs of all ranks or, if the way sends to some ranks only, of the in-neighbours and this rank.
"""

import argparse
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import hpcomm
from bench.common.harness import has_torch
from bench.common.launch import cores
from bench.common.steps import meet
from bench.sfb.table import ALL, AUTO, DENSE, FOLDED, HUB, ONCE, PEER, PRODUCT, REBUILD, RELAYED, SOME
from bench.torch.table import times
from hpcomm import graphs, topology
from hpcomm.bench.rows import Row
from hpcomm.bench.training import processor
from hpcomm.codec import Auto, Factors

Floats = NDArray[np.float32]
Ways = dict[str, tuple[str, Callable[[], "Turn"]]]  # role and set-up, by name
RATE = 0.5  # of learning: a power of two
LONG = 0.6  # roughly, the seconds of the timed steps of a turn
MOST_STEPS = 20
REBUILDS = 5  # of a turn
_SERVERS = topology.ParameterServer()


@dataclass(frozen=True)
class Case:
    """W has rows x columns; each rank has `pairs` pairs a step."""

    rows: int
    columns: int
    pairs: int

    @property
    def values(self) -> int:
        """Returns how many values one rank's update has as pairs."""
        return self.pairs * (self.rows + self.columns)

    def of_rank(self, rank: int) -> tuple[Floats, Floats]:
        random = np.random.default_rng([self.rows, self.columns, self.pairs, rank])
        u, v = (random.integers(-2, 3, (self.pairs, n), np.int8) for n in (self.rows, self.columns))
        return u.astype(np.float32), v.astype(np.float32)

    def update(self, ranks: list[int]) -> Floats:
        """The sum of these ranks' products."""
        u, v = (np.concatenate(parts) for parts in zip(*map(self.of_rank, ranks), strict=True))
        found: Floats = u.T @ v
        return found


@dataclass
class Turn:
    """One way that is set up for a turn.

    Attributes:
        step: brings all pairs of a step into W.
        param: W.
        sources: the ranks whose pairs are added to it.
        sent: bytes that this rank has sent to others so far.
    """

    step: Callable[[], object]
    param: Floats
    sources: list[int]
    close: Callable[[], object]
    sent: Callable[[], int] = lambda: 0


@dataclass
class Found:
    """A rank's figures of a turn. used: seconds of all its threads in a step. memory: bytes that the way used."""

    seconds: list[float]
    used: float
    sent: float
    memory: int
    wrong: int


@dataclass
class Series:
    """All turns of one way in one case, by cycle; each turn has the results of all ranks."""

    facts: Row
    cycles: list[list[Found]] = field(default_factory=list)

    def row(self) -> Row:
        own = times([[turn.seconds for turn in rank] for rank in zip(*self.cycles, strict=True)])
        return {
            **self.facts,
            **own,
            "processor": [statistics.median(rank.used for rank in cycle) for cycle in self.cycles],
            "sent": statistics.median(sum(rank.sent for rank in cycle) for cycle in self.cycles),
            "memory": statistics.median(max(rank.memory for rank in cycle) for cycle in self.cycles),
            "wrong": sum(rank.wrong for cycle in self.cycles for rank in cycle),
        }


# ---- ways ------------------------------------------------------------------------------------------------------------


def by_peers(ctx: hpcomm.Context, case: Case, graph: graphs.Graph | None, relay: bool = False) -> Turn:
    sources = [*range(ctx.size)] if graph is None or relay else sorted([ctx.rank, *graph.in_peers(ctx.rank)])
    return by_pairs(ctx, case, hpcomm.PeerToPeer(graph, relay), sources)


def by_pairs(ctx: hpcomm.Context, case: Case, who: Any, sources: list[int]) -> Turn:
    made = _exchange(ctx, case, who, Factors(case.pairs))
    pairs = made.factors("w")
    pairs.u[...], pairs.v[...] = case.of_rank(ctx.rank)
    pairs.count = case.pairs
    return Turn(lambda: made.push_pull("w"), made.params["w"], sources, made.close, lambda: _sent(made))


def by_auto(ctx: hpcomm.Context, case: Case) -> Turn:
    made = _exchange(ctx, case, hpcomm.PeerToPeer(), Auto(Factors(case.pairs)))
    pairs = case.of_rank(ctx.rank)
    return Turn(lambda: made.push_pull("w", pairs), made.params["w"], [*range(ctx.size)], made.close)


def by_hub(ctx: hpcomm.Context, case: Case, product: bool, who: Any = _SERVERS) -> Turn:
    """Makes the way by servers: the products are given, or sgemm makes them in each step."""
    made = _exchange(ctx, case, who, None)
    gradient, (u, v) = made.gradient("w"), case.of_rank(ctx.rank)
    np.matmul(u.T, v, out=gradient)

    def step() -> None:
        np.matmul(u.T, v, out=made.gradient("w"))
        made.push_pull("w")

    once = step if product else lambda: made.push_pull("w")
    return Turn(once, made.params["w"], [*range(ctx.size)], made.close, lambda: _sent(made))


def by_gloo(ctx: hpcomm.Context, case: Case) -> Turn:
    """Makes the exact peer: it gathers all ranks' vectors by all_gather over Gloo, then calls sgemm for each rank,
    in order."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    own = torch.from_numpy(np.concatenate([part.reshape(-1) for part in case.of_rank(ctx.rank)]))
    every = [torch.empty_like(own) for _ in range(ctx.size)]
    param = torch.zeros(case.rows, case.columns)
    split = case.pairs * case.rows

    def step() -> None:
        dist.all_gather(every, own)
        for flat in every:
            u, v = flat[:split].view(case.pairs, -1), flat[split:].view(case.pairs, -1)
            param.addmm_(u.T, v, alpha=-RATE)

    return Turn(step, param.numpy(), [*range(ctx.size)], lambda: None)


def _exchange(ctx: hpcomm.Context, case: Case, who: Any, codec: Any) -> Any:
    params = {"w": np.zeros((case.rows, case.columns), np.float32)}
    return hpcomm.Exchange(ctx, params, who, codec=codec, rule=hpcomm.SGD(lr=RATE), reduce="sum")


def _sent(made: Any) -> int:
    return sum(entry.bytes for entry in made.stats().traffic)


def memory() -> int:
    """Returns the bytes of this process, with its part of shared memory."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


# ---- turns -----------------------------------------------------------------------------------------------------------


class Ranks:
    """The ranks of one group, whose ways take turns."""

    def __init__(self, options: argparse.Namespace, ctx: hpcomm.Context) -> None:
        self.options, self.ctx, self.comm = options, ctx, MPI.COMM_WORLD
        self.expected: dict[tuple[Case, tuple[int, ...]], Floats] = {}  # updates, by the ranks whose pairs they hold

    def turn(self, made: Callable[[], Turn], case: Case) -> Found:
        gc.collect()
        had = memory()
        way = made()
        number, longest = 0, 0.0
        while number < self.options.warmup:
            meet(self.comm)
            began = time.perf_counter()
            way.step()
            longest = time.perf_counter() - began
            number += 1
        steps = self.comm.bcast(max(2, min(MOST_STEPS, int(LONG / max(longest, 1e-4)))) if self.ctx.rank == 0 else 0)
        meet(self.comm)
        seconds, before, sent = list[float](), processor(), way.sent()
        for _ in range(steps):
            began = time.perf_counter()
            way.step()
            seconds.append(time.perf_counter() - began)
        used, sent, took = (processor() - before) / steps, (way.sent() - sent) / steps, memory() - had
        meet(self.comm)
        if self.options.plant and self.ctx.rank == 0:
            way.param[0, 0] += 1
        wrong = self.wrong(way, case, number + steps)
        way.close()
        meet(self.comm)
        return Found(seconds[:steps], used, sent, took, wrong)

    def wrong(self, way: Turn, case: Case, steps: int) -> int:
        """Counts the elements of W that differ from the result of this many steps from zeros."""
        key = case, tuple(way.sources)
        if key not in self.expected:
            self.expected = {other: update for other, update in self.expected.items() if other[0] == case}
            self.expected[key] = case.update(way.sources)
        update = self.expected[key]
        found = 0
        for low in range(0, case.rows, 256):
            part = slice(low, low + 256)
            found += int(np.count_nonzero(way.param[part] != update[part] * np.float32(-RATE * steps)))
        return found

    def measure(self, case: Case, ways: Ways, part: str, last: Callable[[], object] = lambda: None) -> Iterator[Row]:
        """Measures all ways of a case, given by name as a role and a function that sets the way up; returns their
        rows, nothing on ranks other than 0. last: is called at the end of each cycle."""
        ways = {name: way for name, way in ways.items() if self.wanted(name)}
        found = {name: Series(self.facts(case, name, role, part)) for name, (role, _) in ways.items()}
        names = list(ways)
        for cycle in range(self.options.run_cycles):
            first = cycle % len(names) if names else 0
            for name in names[first:] + names[:first]:
                gathered = self.comm.gather(self.turn(ways[name][1], case))
                if gathered is not None:
                    found[name].cycles.append(gathered)
            last()
        if self.ctx.rank == 0:
            yield from (series.row() for series in found.values())

    def facts(self, case: Case, name: str, role: str, part: str) -> Row:
        facts = {"part": part, "rows": case.rows, "columns": case.columns, "K": case.pairs, "ranks": self.ctx.size}
        return {**facts, "name": name, "role": role, "Q": self.degree if name in (SOME, RELAYED) else self.ctx.size - 1}

    @property
    def degree(self) -> int:
        return min(int(self.options.degree), self.ctx.size - 1)

    def wanted(self, name: str) -> bool:
        parts = [part.strip().lower() for part in self.options.ways.split(";") if part.strip()]
        return not parts or any(part in name.lower() for part in parts)

    def tell(self, done: float) -> None:
        if self.ctx.rank == 0 and self.options.progress is not None:
            self.options.progress.write_text(f"{done:.4f}")

    # ---- the groups --------------------------------------------------------------------------------------------------

    def hosts(self, cases: list[Case]) -> list[Row]:
        """Several hosts, one rank on each."""
        rows: list[Row] = []
        graph = graphs.spread(self.ctx.size, self.degree)
        for i, case in enumerate(cases):
            ways: Ways = {
                ALL: ("hpcomm", partial(by_peers, self.ctx, case, None)),
                SOME: ("hpcomm", partial(by_peers, self.ctx, case, graph)),
                RELAYED: ("hpcomm", partial(by_peers, self.ctx, case, graph, relay=True)),
                HUB: ("peer", partial(by_hub, self.ctx, case, product=False)),
            }
            if has_torch():
                ways[PEER] = ("peer", partial(by_gloo, self.ctx, case))
            rebuilds = Rebuilds(self, case)
            rows += self.measure(case, ways, "hosts", rebuilds.turn)
            rows += rebuilds.rows()
            self.tell((i + 1) / len(cases))
        return rows

    def ranks(self, cases: list[Case]) -> list[Row]:
        """Several hosts, several ranks on each."""
        rows: list[Row] = []
        near = self.ctx.size // len(set(self.ctx.hosts))
        for i, case in enumerate(cases):
            ways: Ways = {
                ONCE: ("hpcomm", partial(by_pairs, self.ctx, case, hpcomm.Hierarchy(), [*range(self.ctx.size)])),
                ALL: ("hpcomm", partial(by_peers, self.ctx, case, None)),
                FOLDED: ("hpcomm", partial(by_hub, self.ctx, case, product=False, who=hpcomm.Hierarchy())),
            }
            rows += [{**row, "near": near} for row in self.measure(case, ways, "ranks")]
            self.tell((i + 1) / len(cases))
        return rows

    def host(self, cases: list[Case]) -> list[Row]:
        """Measures the ranks of one host. A hub that is given the products does not depend on K, so it runs once for
        each shape."""
        rows: list[Row] = []
        for i, case in enumerate(cases):
            first = all((case.rows, case.columns) != (one.rows, one.columns) for one in cases[:i])
            ways: Ways = {
                ALL: ("hpcomm", partial(by_peers, self.ctx, case, None)),
                PRODUCT: ("hpcomm", partial(by_hub, self.ctx, case, product=True)),
                AUTO: ("hpcomm", partial(by_auto, self.ctx, case)),
            }
            if first:
                ways[DENSE] = ("peer", partial(by_hub, self.ctx, case, product=False))
            rows += self.measure(case, ways, "host")
            self.tell((i + 1) / len(cases))
        return rows


class Rebuilds:
    """Rebuilds all ranks' pairs by exchanges of one rank each, without a wire, as many at once as there are cores.
    Its row is part of a bound: see table.py."""

    def __init__(self, ranks: Ranks, case: Case) -> None:
        self.ranks, self.case, self.busy = ranks, case, min(cores(), ranks.ctx.size)
        self.whole = Case(case.rows, case.columns, case.pairs * ranks.ctx.size)
        self.cycles, self.used = list[list[float]](), list[float]()

    def turn(self) -> None:
        meet(self.ranks.comm)
        if self.ranks.ctx.rank < self.busy:
            with hpcomm.init(MPI.COMM_SELF) as alone:
                way = by_peers(alone, self.whole, None)
                way.step()
                seconds, before = list[float](), processor()
                for _ in range(REBUILDS):
                    began = time.perf_counter()
                    way.step()
                    seconds.append(time.perf_counter() - began)
                self.used.append((processor() - before) / REBUILDS)
                self.cycles.append(seconds)
                way.close()
        meet(self.ranks.comm)

    def rows(self) -> list[Row]:
        gathered = self.ranks.comm.gather((self.cycles, self.used))
        if gathered is None:
            return []
        own = gathered[: self.busy]
        row = {**self.ranks.facts(self.case, REBUILD, "bound", "hosts"), **times([cycles for cycles, _ in own])}
        processors = [statistics.median(cycle) for cycle in zip(*(used for _, used in own), strict=True)]
        return [{**row, "busy": self.busy, "processor": processors, "sent": 0, "memory": 0, "wrong": 0}]


def cases_of(options: argparse.Namespace, part: str) -> list[Case]:
    shapes = options.shapes_of_host if part == "host" else options.shapes_of_hosts
    pairs = options.pairs_of_host if part == "host" else options.pairs_of_hosts
    return [Case(rows, columns, K) for (rows, columns), K in itertools.product(shapes, pairs)]

"""Which combinations of a codec, edges, a consistency and a use run, and the sentences that refuse the others.

    python tests/combinations.py                                         # tries all of them, and sums up
    python tests/combinations.py --only "edges=peers*" --only use=apply  # some of them, with a line for each
    python tests/combinations.py --json found.json --write               # and writes docs/combinations.md

Each combination is tried: ranks, which are threads, make the exchange and train a few steps. Updates are whole numbers,
so the parameters that must come out are known to the bit, except where ranks may take what others have not sent yet.
"""

import argparse
import itertools
import json
import math
import re
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from conftest import SEED, ThreadWorld, thread_worlds
from flat import grouped
from numpy.typing import NDArray

import hpcomm
from hpcomm import ASYNC, BARRIER, BSP, NOTIFY_ACK, SGD, SSP, Average, Consistency, Hierarchy, ParameterServer
from hpcomm.codec import ErrorFeedback, Factors, Float4, OneBit, Threshold, TopK
from hpcomm.graphs import complete, from_edges
from hpcomm.topology import HostGraph, PeerToPeer, Tree

PAGE = Path(__file__).resolve().parents[1] / "docs" / "combinations.md"
SHAPE = (16, 32)  # of the key, which has 4 chunks
CHUNK = 512
STEPS = 2  # with updates; those that follow push zeros, by which codecs send what they have kept
FLUSH = 6
TIMEOUT = 5.0

# ---- the axes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Edges:
    """Who sends to whom.

    Attributes:
        topology: what Exchange takes.
        ranks: of the job; the last of them only serves where workers says so.
        kind: by whom updates are folded: "servers", "peers", "graph", or "models": a graph or a tree of models.
        quorum: a quorum of fewer than all inputs of a fold.
        group: workers whose updates are one input of a fold.
        settles: how the last updates come into the parameters where workers do not wait for each other: by "pull",
            "load" (load_state_dict) or "close".
        workers: ranks that push; None: all.
    """

    topology: Any
    ranks: int = 4
    kind: str = "servers"
    quorum: int = 3
    group: int = 1
    settles: str = "pull"
    workers: int | None = None


_HOSTS = ((0, 1), (2, 3))
_RACKS = Hierarchy(hosts=((0, 1), (2,), (3,)), racks=((0, 1), (2, 3)))
_RING = from_edges(4, [(i, (i + 1) % 4) for i in range(4)])
_TWO = from_edges(4, [(i, (i + k) % 4) for i in range(4) for k in (1, 2)])
_THREE = from_edges(5, [(i, (i + k) % 5) for i in range(5) for k in (1, 2, 3)])  # of which a quorum can be two
_BACK = from_edges(5, [(i, (i - k) % 5) for i in range(5) for k in (1, 2, 3)])

EDGES: dict[str, Edges] = {
    "servers, all ranks": Edges(ParameterServer()),
    "servers, some ranks": Edges(ParameterServer("CS", 2)),
    "servers that do not work": Edges(ParameterServer("NCS", [4]), 5, workers=4),
    "hosts": Edges(Hierarchy(hosts=_HOSTS), quorum=1, group=2, settles="load"),
    "hosts and racks": Edges(_RACKS, quorum=1, group=2, settles="load"),
    "hosts, a ring": Edges(Hierarchy(hosts=_HOSTS, top="ring"), quorum=1, group=2, settles="load"),
    "receivers apply": Edges(ParameterServer(apply_at="receivers"), settles="close"),
    "receivers apply, a tree": Edges(ParameterServer(apply_at="receivers", tree=Tree()), settles="close"),
    "receivers and servers apply": Edges(ParameterServer("NCS", [4], apply_at="both"), 5, settles="close", workers=4),
    "hosts, receivers apply": Edges(Hierarchy(hosts=_HOSTS, apply_at="receivers"), quorum=1, group=2, settles="close"),
    "peers": Edges(PeerToPeer(), kind="peers", settles="close"),
    "peers of a graph": Edges(PeerToPeer(_TWO), kind="peers", quorum=2, settles="close"),
    "peers that pass on": Edges(PeerToPeer(_RING, relay=True), kind="peers", settles="close"),
    "a graph": Edges(_THREE, 5, kind="graph", quorum=2),
    "a graph of phases": Edges([_THREE, _BACK], 5, kind="graph", quorum=2),
    "models on a graph": Edges(_THREE, 5, kind="models", quorum=2),
    "models on a graph of hosts": Edges(HostGraph(complete(2), _HOSTS), kind="models", quorum=1),
    "models down a tree": Edges(Tree(), kind="models", quorum=1),
}


@dataclass(frozen=True)
class Sent:
    """What the updates are on the wire.

    Attributes:
        options: of Exchange.
        pattern: "signs" for codecs that would round other updates, else "any".
        keeps: whether encoders keep a part of an update for later.
    """

    options: Mapping[str, Any]
    pattern: str = "any"
    keeps: bool = False


CODECS: dict[str, Sent] = {
    "float32": Sent({}),
    "float16": Sent({"codec": "float16"}),
    "bfloat16": Sent({"codec": "bfloat16"}),
    "bfloat16 back": Sent({"codec_out": "bfloat16"}),
    "Float4": Sent({"codec": Float4(unit=64)}, "signs"),
    "ErrorFeedback": Sent({"codec": ErrorFeedback("bfloat16")}, keeps=True),
    "Threshold": Sent({"codec": Threshold(0.5)}, keeps=True),
    "TopK": Sent({"codec": TopK(0.5)}, keeps=True),
    "OneBit": Sent({"codec": OneBit(unit=32)}, "signs", keeps=True),
    "Factors": Sent({"codec": Factors(2, blocks=4)}),
    "TopK, bfloat16 back": Sent({"codec": TopK(0.5), "codec_out": "bfloat16"}, keeps=True),
}

# A quorum with a grace without an end: a fold goes on without those alone that cannot come.
CONSISTENCIES: dict[str, Consistency] = {
    "BSP": BSP,
    "NOTIFY_ACK": NOTIFY_ACK,
    "SSP(2)": SSP(2),
    "ASYNC": ASYNC,
    "BARRIER": BARRIER,
}
USES = {"apply": False, "fold, apply": True}


@dataclass(frozen=True)
class Combination:
    """A name of each axis."""

    edges: str
    consistency: str
    codec: str
    use: str

    @property
    def value(self) -> Consistency:
        name, _, quorum = self.consistency.partition(", ")
        if not quorum:
            return CONSISTENCIES[name]
        return replace(CONSISTENCIES[name], quorum=EDGES[self.edges].quorum, late=None, grace=math.inf)


NAMES = [name + more for more in ("", ", quorum") for name in CONSISTENCIES]


def product() -> list[Combination]:
    return [Combination(e, c, k, u) for e in EDGES for u in USES for c in NAMES for k in CODECS]


@dataclass(frozen=True)
class Found:
    """What came of a combination: "runs", "refused", or a fault: "wrong" parameters, "failed" on its way, "crash"."""

    what: str
    sentence: str = ""


# ---- what must come out ------------------------------------------------------------------------------------------


def pattern(kind: str) -> NDArray[np.float32]:
    """An update of rank one: of ones and twos, or of ones alone, of both signs."""
    rows, columns = np.ogrid[: SHAPE[0], : SHAPE[1]]
    signs = np.where(rows % 2, -1, 1) * np.where(columns % 3, 1, -1)
    return (signs * np.where(columns % 4, 1, 2) if kind == "any" else signs).astype(np.float32)


def start() -> NDArray[np.float32]:
    return (np.arange(math.prod(SHAPE)) % 7).reshape(SHAPE).astype(np.float32)


def weights(edges: Edges, value: Consistency, step: int) -> NDArray[np.float64]:
    """By rank: what each worker's update of a step weighs in its parameters in the end."""
    n = edges.workers or edges.ranks
    if isinstance(edges.topology, Tree):
        return np.tile(np.eye(n)[0], (n, 1))
    if isinstance(edges.topology, HostGraph):
        return np.full((n, n), 1 / n)
    if edges.kind in ("graph", "models"):
        graphs = edges.topology if isinstance(edges.topology, list) else [edges.topology]
        return graphs[step % len(graphs)].dense()  # type: ignore[no-any-return]
    weight = 1 / edges.group if value.staleness is None else 1 / n  # under ASYNC every update counts in full
    if edges.kind == "peers" and not edges.topology.all_to_all:
        return (edges.topology.graph.dense() + np.eye(n) > 0) * weight  # type: ignore[no-any-return]
    return np.full((n, n), weight)


def is_known(edges: Edges, value: Consistency) -> bool:
    """Whether the parameters are known to the bit: not where ranks of a graph take what is there."""
    return edges.kind in ("servers", "peers") or (value.staleness == 0 and value.whole)


def given(rank: int) -> float:
    """By how much a rank's update is larger than the pattern: a multiple of 4, so that means are whole numbers."""
    return 4.0 * (rank + 1)


def expected(
    edges: Edges, its: Sequence[NDArray[np.float64]], scales: Sequence[float], codec: str
) -> NDArray[np.float64]:
    """By rank: the parameters after steps with these weights, whose updates were scaled so."""
    form, factors = pattern(CODECS[codec].pattern).astype(np.float64), [given(rank) for rank in range(len(its[0]))]
    found = np.array([start().astype(np.float64)] * len(factors))
    for rank, mine in enumerate(found):
        for weight, scale in zip(its, scales, strict=True):
            mean = form * (weight[rank] @ factors)
            if edges.kind != "models":
                mine[:] -= scale * mean
            elif scale:
                mine[:] = scale * mean
    return found


def bounded(rank: int, edges: Edges, params: NDArray[np.float32], steps: int, codec: str) -> Found:
    """Whether parameters may come of the updates that were sent: of some mean of them in each step."""
    form = pattern(CODECS[codec].pattern)
    moved = params / form if edges.kind == "models" else (start() - params) / form
    most = given(edges.ranks - 1) * (1 if edges.kind == "models" else steps)
    if np.isfinite(moved).all() and moved.min() > -1e-3 and moved.max() < most + 1e-3:
        return Found("runs")
    return Found("wrong", f"rank {rank} has moved by {moved.min()} to {moved.max()} times the update")


# ---- a rank ------------------------------------------------------------------------------------------------------


def update(codec: str, factor: float) -> Any:
    """What a worker gives push: an array, or pairs of vectors."""
    if codec != "Factors":
        return pattern(CODECS[codec].pattern) * np.float32(factor)
    whole = pattern(CODECS[codec].pattern)
    u, v = whole[:, :1].T / whole[0, 0], whole[:1] * np.float32(factor)
    return (u.copy(), v.copy()) if factor else (u[:0].copy(), v[:0].copy())


def train(ctx: hpcomm.Context, one: Combination, ex: hpcomm.Exchange) -> list[float]:
    """Trains, and returns the scales that the updates were applied with."""
    sent, edges, value = CODECS[one.codec], EDGES[one.edges], one.value
    scales: list[float] = [1] * STEPS
    if USES[one.use]:
        scales = [1, 1 if sent.keeps else 0.5, 0]
    for scale in scales:
        step(ctx, one, ex, given(ctx.rank), scale)
    flush(ctx, one, ex)
    if value.staleness != 0 and edges.kind in ("servers", "peers"):
        if edges.settles == "pull":  # it asks the owners, and comes behind this rank's own push
            ex.pull("w")
        ctx.barrier()
        if edges.settles == "pull":
            ex.pull("w")
        elif edges.settles == "load":
            ex.load_state_dict(ex.state_dict())
    return scales


def step(ctx: hpcomm.Context, one: Combination, ex: hpcomm.Exchange, factor: float, scale: float = 1) -> None:
    is_root = not isinstance(EDGES[one.edges].topology, Tree) or ctx.rank == 0
    grad = update(one.codec, factor) if is_root else None
    if not USES[one.use]:
        ex.push_pull("w", grad)
        return
    ex.split.fold("w", grad)
    if scale:
        ex.split.apply("w", scale)
    else:
        ex.split.skip("w")


def flush(ctx: hpcomm.Context, one: Combination, ex: hpcomm.Exchange) -> None:
    for _ in range(FLUSH if CODECS[one.codec].keeps else 0):
        step(ctx, one, ex, 0)


def tried(ctx: hpcomm.Context, one: Combination) -> Found:
    """What comes of a combination on this rank."""
    edges = EDGES[one.edges]
    works, scales = edges.workers is None or ctx.rank < edges.workers, []
    try:
        ex = made(ctx, one, one.value)
    except (hpcomm.InvalidArgument, hpcomm.NotSupported, hpcomm.ConfigError) as refused:
        return Found("refused", first_sentence(str(refused)))
    with ex:
        if works:
            scales = train(ctx, one, ex)
        else:
            if one.value.staleness != 0 and edges.kind == "servers":
                ctx.barrier()
            ex.serve()
    if not works:
        found = Found("runs")
    elif is_known(edges, one.value):
        wanted = expected(edges, [weights(edges, one.value, i) for i in range(len(scales))], scales, one.codec)
        found = compared(ctx.rank, ex.params["w"], wanted[ctx.rank])
    else:
        found = bounded(ctx.rank, edges, ex.params["w"], len(scales), one.codec)
    return without_the_last(ctx, one, works) if found.what == "runs" and drops(one) else found


def made(ctx: hpcomm.Context, one: Combination, value: Consistency) -> hpcomm.Exchange:
    edges = EDGES[one.edges]
    options: dict[str, Any] = {
        "chunk_bytes": CHUNK,
        "progress": "inline" if edges.workers is None else "thread",
        "split": USES[one.use],
        **CODECS[one.codec].options,
    }
    rule = Average() if edges.kind == "models" else SGD(lr=1)
    return hpcomm.Exchange(ctx, {"w": start()}, edges.topology, value, rule, **grouped(options))


def drops(one: Combination) -> bool:
    """Whether folds may leave out a rank that has not come, and what they make then is known."""
    return one.value.quorum is not None and one.value.staleness == 0 and one.value.whole


def without_the_last(ctx: hpcomm.Context, one: Combination, works: bool) -> Found:
    """What comes of a quorum when the last group of workers comes late: it is told, and the others go on without it."""
    edges, n = EDGES[one.edges], EDGES[one.edges].workers or ctx.size
    is_late = n - edges.group <= ctx.rank < n
    with made(ctx, one, replace(one.value, grace=0)) as ex:
        if works and not is_late:
            step(ctx, one, ex, given(ctx.rank))
            flush(ctx, one, ex)
        params = ex.params["w"].copy() if works else start()
        ctx.barrier()
        if is_late:
            step(ctx, one, ex, given(ctx.rank))
            if edges.kind in ("servers", "peers") and ex.late != ("w",):
                return Found("wrong", f"rank {ctx.rank} came late, and late is {ex.late}")
        if not works:
            ex.serve()
    if is_late or not works:
        return Found("runs")
    its = weights(edges, one.value, 0) * (np.arange(n) < n - edges.group)
    counts = edges.quorum + (edges.kind in ("graph", "models"))  # there a rank's own update does not count
    if edges.kind != "servers" and np.count_nonzero(its[ctx.rank]) != counts:
        return Found("runs")  # one more has come, which a fold may leave out
    if edges.kind != "peers" or edges.topology.all_to_all:  # else weights are no means
        its /= np.maximum(its.sum(axis=1, keepdims=True), 1e-9)
    return compared(ctx.rank, params, expected(edges, [its], [1], one.codec)[ctx.rank], 1e-5)


def compared(rank: int, params: NDArray[np.float32], wanted: NDArray[np.float64], error: float = 0) -> Found:
    wrong = np.abs(params - wanted) > error * np.abs(wanted).max()
    if not wrong.any():
        return Found("runs")
    i = int(np.argmax(wrong))
    there = f"rank {rank} has {params.flat[i]} at {i}, not {wanted.flat[i]}"
    return Found("wrong", f"{there}; {int(wrong.sum())} elements differ")


# What differs between combinations that one reason refuses, and what stands for it.
DIFFERS = {
    r"^(on rank \d+: |exchange: )*": "",
    r"(is|under|consistency) (Consistency\([^)]*\)|SSP\(\d+\)|[A-Z_]{3,})(?=[ :,]|$)": r"\1 X",
    r"\bcodec (?!(?:is|of|to)\b)\w+": "codec C",
    r"codec(_out|) is [^:]*:": r"codec\1 is C:",
    r"codec_out '\w+'": "codec_out C",
    r"codec of 'w' is [^)]*\)": "codec of 'w' is C",
    r"forwards key w as \w+": "forwards key w as C",
    r"apply_at(=| is )'\w+'": r"apply_at\1A",
    r"\brows \d+ and \d+": "rows I and K",
    r"\brow \d+": "row I",
    r"\brank \d+": "rank R",
    r"quorum is \d+": "quorum is Q",
    r"\d+ phases": "N phases",
}


def first_sentence(text: str) -> str:
    found = text.splitlines()[0]
    for differs, told in DIFFERS.items():
        found = re.sub(differs, told, found)
    return found


# ---- all ranks ---------------------------------------------------------------------------------------------------


def try_all(
    edges: str, ones: Sequence[Combination], told: Callable[[Found], None] = lambda _: None, **config: Any
) -> list[Found]:
    """What comes of combinations of one kind of edges, whose ranks are threads of this process. They have one context
    until a combination fails on its way; then they make another one. told hears of each."""
    found: list[Found] = []
    while len(found) < len(ones):
        job = _Job(ones[len(found) :], EDGES[edges].ranks, told, config)
        before = len(found)
        threads = [threading.Thread(target=job.rank, args=(world,), daemon=True) for world in thread_worlds(job.n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120 + len(ones))
        found += job.found
        if any(thread.is_alive() for thread in threads) or len(found) == before:
            raise AssertionError(f"ranks hang in {ones[len(found)]}")
    return found


class _Job:
    """The ranks of one context."""

    def __init__(
        self, ones: Sequence[Combination], n: int, told: Callable[[Found], None], config: Mapping[str, Any]
    ) -> None:
        self.found: list[Found] = []
        self.n, self._ones, self._told = n, ones, told
        self._config = {"timeout": TIMEOUT, "transport": "shm", **config}
        self._its = [Found("runs")] * n  # by rank, of the present combination
        self._meeting = threading.Barrier(n, timeout=60)

    def rank(self, world: ThreadWorld) -> None:
        with suppress(hpcomm.HpcommError, threading.BrokenBarrierError), hpcomm.init(world, **self._config) as ctx:
            for one in self._ones:
                self._its[ctx.rank] = self._caught(ctx, one)
                if self._meeting.wait() == 0:  # one rank of them
                    self.found.append(_of_all(self._its))
                    self._told(self.found[-1])
                self._meeting.wait()
                if self.found[-1].what == "failed":
                    return

    def _caught(self, ctx: hpcomm.Context, one: Combination) -> Found:
        try:
            return tried(ctx, one)
        except Exception as error:
            return Found("failed", f"{type(error).__name__} on rank {ctx.rank}: {error}")


def _of_all(its: Sequence[Found]) -> Found:
    faults = [one for one in its if one.what not in ("runs", "refused")]
    if faults:
        return min(faults, key=lambda one: "PeerFailed" in one.sentence)
    if len({one.what for one in its}) > 1:
        return Found("failed", f"some ranks refuse: {[one.what for one in its]}")
    return its[0]


def in_a_process(edges: str, ones: Sequence[Combination], transport: str) -> list[Found]:
    """try_all in a process of its own, so that a crash is an outcome."""
    found: list[Found] = []
    while len(found) < len(ones):
        rest = ones[len(found) :]
        command = [sys.executable, __file__, "--child", edges, "--transport", transport]
        given = json.dumps([asdict(one) for one in rest])
        ended = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
        lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
        found += [Found(**line) for line in lines]
        if len(lines) == len(rest):
            return found
        if ended.returncode >= 0:
            raise RuntimeError(ended.stderr)
        found.append(Found("crash", f"signal {-ended.returncode} ended the process: {ended.stderr[-300:]}"))
    return found


def child(edges: str, transport: str) -> None:
    ones = [Combination(**one) for one in json.load(sys.stdin)]
    name, _, late = transport.partition(" ")
    try_all(
        edges,
        ones,
        lambda found: print(json.dumps(asdict(found)), flush=True),
        transport=name,
        loop_seed=SEED if late else 0,
    )


def everything(ones: Iterable[Combination], transport: str) -> dict[Combination, Found]:
    by_edges: dict[str, list[Combination]] = defaultdict(list)
    for one in ones:
        by_edges[one.edges].append(one)
    with ThreadPoolExecutor(2) as pool:
        jobs = {edges: pool.submit(in_a_process, edges, its, transport) for edges, its in by_edges.items()}
        return {
            one: found for edges, its in by_edges.items() for one, found in zip(its, jobs[edges].result(), strict=True)
        }


# ---- the page ----------------------------------------------------------------------------------------------------

COUNTS = "all {all} combinations of the names below: {runs} run, {refused} are refused{faults}."


def page(found: Mapping[Combination, Found], before: str) -> str:
    """The page with its numbers and tables made anew; its prose stays."""
    counts = Counter(one.what for one in found.values())
    sentences = Counter(one.sentence for one in found.values() if one.what == "refused")
    number = {text: i for i, (text, _) in enumerate(sorted(sentences.items(), key=lambda it: (-it[1], it[0])), 1)}

    def cell(one: Found) -> str:
        return {"runs": "yes", "refused": str(number.get(one.sentence))}.get(one.what, one.what)

    columns = _alike(CODECS, lambda codec: [cell(found[one]) for one in found if one.codec == codec])
    faults = {what: n for what, n in counts.items() if what not in ("runs", "refused")}
    told = "".join(f", {n} {what}" for what, n in sorted(faults.items()))
    counted = COUNTS.format(all=len(found), runs=counts["runs"], refused=counts["refused"], faults=told)
    prose = re.sub(
        r"all \d+ combinations of the names below: [^.]*\.", counted, before.partition("## Use: ")[0].rstrip() + "\n"
    )
    lines = [prose]
    for use in USES:
        its = [one for one in found if one.use == use]
        runs = sum(found[one].what == "runs" for one in its)
        lines += [f"## Use: {use}\n", f"{runs} of {len(its)} run.\n"]
        lines.append(f"| edges | consistency | {' | '.join(map('; '.join, columns))} |")
        lines.append("|---" * (len(columns) + 2) + "|")

        def row(edges: str, consistency: str, use: str = use) -> list[str]:
            return [cell(found[Combination(edges, consistency, column[0], use)]) for column in columns]

        for same in _alike(EDGES, lambda edges: [text for name in NAMES for text in row(edges, name)]):
            for names in _alike(NAMES, partial(row, same[0])):
                lines.append(f"| {'; '.join(same)} | {'; '.join(names)} | {' | '.join(row(same[0], names[0]))} |")
        lines.append("")
    lines += ["## Refusals\n", "| | combinations | sentence |", "|---|---|---|"]
    for text, i in number.items():
        lines.append(f"| {i} | {sentences[text]} | {text.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def _alike(names: Iterable[str], outcome: Callable[[str], list[str]]) -> list[list[str]]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        groups.setdefault(tuple(outcome(name)), []).append(name)
    return list(groups.values())


def read(text: str) -> dict[Combination, Found]:
    """What a page says of each combination."""
    sentences, cells, use, columns = {}, {}, "", []
    for line in text.splitlines():
        parts = [part.strip() for part in re.split(r"(?<!\\)\|", line)[1:-1]]
        if line.startswith("## Use: "):
            use = line.removeprefix("## Use: ")
        elif line.startswith("## "):
            use = ""
        elif use and parts[:1] == ["edges"]:
            columns = [part.split("; ") for part in parts[2:]]
        elif use and parts and parts[0].partition("; ")[0] in EDGES:
            for edges, consistency in itertools.product(parts[0].split("; "), parts[1].split("; ")):
                for codecs, cell in zip(columns, parts[2:], strict=True):
                    cells.update({Combination(edges, consistency, codec, use): cell for codec in codecs})
        elif not use and len(parts) == 3 and parts[0].isdigit():
            sentences[parts[0]] = parts[2].replace("\\|", "|")
    return {
        one: Found("runs") if cell == "yes" else Found("refused", sentences[cell]) if cell in sentences else Found(cell)
        for one, cell in cells.items()
    }


# ---- the command -------------------------------------------------------------------------------------------------


def chosen(only: Iterable[str]) -> Iterator[Combination]:
    """Those whose axes have the values of "axis=value"; a value that ends in * is a beginning."""
    wanted = [text.partition("=")[::2] for text in only]
    for one in product():
        if all(_is(asdict(one)[axis], value) for axis, value in wanted):
            yield one


def _is(name: str, value: str) -> bool:
    return name.startswith(value[:-1]) if value.endswith("*") else name == value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", action="append", default=[], metavar="AXIS=NAME", help="edges, consistency, codec, use"
    )
    parser.add_argument("--json", type=Path, help="writes what was found")
    parser.add_argument("--write", action="store_true", help=f"writes docs/{PAGE.name}, of all combinations")
    parser.add_argument("--transport", default="shm", help="shm, tcp, loop or 'loop late'")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.transport)
        return 0
    found = everything(chosen(args.only), args.transport)
    if args.json:
        args.json.write_text(
            json.dumps([{**asdict(one), **asdict(its)} for one, its in found.items()], indent=1) + "\n"
        )
    for one, its in found.items():
        if args.only or its.what not in ("runs", "refused"):
            print(f"{its.what:8} {one.edges} | {one.consistency} | {one.codec} | {one.use}: {its.sentence}")
    print(dict(Counter(its.what for its in found.values())))
    if args.write:
        if args.only:
            parser.error("--write needs all combinations: leave out --only")
        PAGE.write_text(page(found, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return int(any(its.what not in ("runs", "refused") for its in found.values()))


if __name__ == "__main__":
    sys.exit(main())

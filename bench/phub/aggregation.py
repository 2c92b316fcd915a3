"""aggregation: tall aggregation beside wide, and stores past the caches beside cached ones (PHub, section 4.5).

The threads of one server fold the gradients of n workers, apply Nesterov momentum and write the new parameters to every
worker. All arrays lie in the memory of this process (aggregation.c).

    tall   the engine's way, with its kernel and the chunks and cores of its planner: each thread folds, applies and
           writes its own chunks, and meets no other thread
    wide   all threads work on one key: they add the gradients of one worker after another, apply the rule and write the
           copies. They meet after every call, as the threads of a BLAS do, or once a key.

    copies past the caches   the copies of the workers are streamed, as the engine does with large models
    all past the caches      everything is: loads with non-temporal prefetches, and all stores (section 3.2.2)

The ways take turns. The parameters of the server and of every worker are compared with NumPy's, bit by bit.
"""

import argparse
import ctypes
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hpcomm
from bench.common import models
from bench.common.launch import cores
from bench.common.native import BUILD, with_objects
from bench.common.options import add_output, add_quick, write
from hpcomm._core import memory_available
from hpcomm.bench import plots
from hpcomm.bench.arrays import LINE, address, aligned, zeros
from hpcomm.bench.rows import Row, ratio
from hpcomm.plan import Plan

RATE, MOMENTUM = 0.01, 0.9
LANES = LINE // 4
SEED = 11
MOST_WORKERS, MOST_THREADS = 16, 256  # as aggregation.c has them
CACHED, COPIES, PAST = "cached", "copies past the caches", "all past the caches"
TALL, ONCE = "tall, ", "wide, one join a key, "
WIDE = "wide, "
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Way:
    """How the threads work. flags: bench_aggregation.way."""

    name: str
    flags: int
    role: str = "peer"

    @property
    def tall(self) -> bool:
        return self.name.startswith(TALL)

    def moved(self, n: int) -> int:
        """Returns how many values per parameter the loops load and store with n workers."""
        if self.tall:  # loads: n gradients, state, parameter; stores: state, parameter, n copies
            return (n + 2) + (n + 2)
        return (2 + 3 * (n - 1)) + 5 + 2 * n  # the sums; then state and parameter, with the last sum; then the copies


WAYS = (
    Way(TALL + CACHED, 0, "hpcomm"),
    Way(TALL + COPIES, 2, "hpcomm"),
    Way(TALL + PAST, 4),
    Way(WIDE + CACHED, 1 | 8),
    Way(WIDE + PAST, 1 | 4 | 8),
    Way(ONCE + CACHED, 1),
    Way(ONCE + PAST, 1 | 4),
)
BASE = WAYS[0].name


class Aggregation(ctypes.Structure):
    """bench_aggregation of aggregation.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("inputs", "out", "param", "state", "sum", "starts", "counts", "cores")),
        *((name, ctypes.c_int) for name in ("n", "n_spans", "threads", "m", "way")),
        *((name, ctypes.c_double) for name in ("rate", "momentum")),
    ]


def loops(folder: Path = BUILD) -> ctypes.CDLL:
    """Loads bench/phub/aggregation.c with the kernels of the tree's build."""
    library = with_objects(folder, "libbenchaggregation.so", "phub/aggregation.c", "rule_check.c")
    library.bench_aggregate.restype, library.bench_aggregate.argtypes = ctypes.c_double, [ctypes.c_void_p]
    library.bench_last_level.restype = ctypes.c_uint64
    return library


class Server:
    """The memory of one server for the keys of a model, and its right contents after m exchanges.

    Attributes:
        starts, counts: of the keys, in elements; each key begins at a cache line and is padded to a full line.
        gradients, out: by worker, arrays of all keys.
    """

    def __init__(self, native: ctypes.CDLL, model: models.Model, workers: int, m: int) -> None:
        self.native, self.n, self.m = native, workers, m
        self.counts = np.array([-(-key.count // LANES) * LANES for key in model.keys], np.uint64)
        self.starts = np.cumsum(self.counts, dtype=np.uint64) - self.counts
        self.names = [key.name for key in model.keys]
        self.count = int(self.counts.sum())
        random = np.random.default_rng(SEED)
        self.gradients = [self._random(random) for _ in range(workers)]
        self.start, self.start_state = self._random(random), self._random(random)
        self.param, self.state, self.sum = aligned(self.count), aligned(self.count), zeros(self.count)
        self.out = [zeros(self.count) for _ in range(workers)]
        self._expect()

    def _random(self, random: np.random.Generator) -> Floats:
        made = aligned(self.count)
        random.random(out=made, dtype=np.float32)
        made -= np.float32(0.5)
        return made

    def _expect(self) -> None:
        """Computes the right result by the same operations in the same order, which give the same bits."""
        weight, rate, momentum = np.float32(1 / self.n), np.float32(RATE), np.float32(MOMENTUM)
        mean = self.gradients[0] * weight
        for gradient in self.gradients[1:]:
            mean += gradient * weight
        self.expected, state = self.start.copy(), self.start_state.copy()
        for _ in range(self.m):
            state *= momentum
            state += mean
            look = momentum * state
            look += mean
            look *= rate
            self.expected -= look

    def spans(self, way: Way, threads: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]]:
        """Returns starts, counts and cores: of the planner's chunks for tall, of the keys for wide."""
        if not way.tall:
            return self.starts, self.counts, np.zeros_like(self.starts)
        keys = {name: (int(count),) for name, count in zip(self.names, self.counts, strict=True)}
        rows = Plan.hub(keys, range(self.n), [self.n], self.n + 1, cores=threads).rows
        key, offset, count, core = (rows.column(name).astype(np.uint64) for name in ("key", "offset", "count", "core"))
        return self.starts[key] + offset, count, core

    def turn(self, way: Way, threads: int, plant: bool) -> tuple[float, int]:
        """Returns the seconds of one exchange, and the number of wrong parameters of the server and all workers."""
        self.param[:], self.state[:] = self.start, self.start_state
        for copy in self.out:
            copy.fill(np.nan)
        self.gradients[0][self.count // 2] += plant
        spans = [np.ascontiguousarray(column) for column in self.spans(way, threads)]
        pointers = [np.array([address(array) for array in arrays], np.uint64) for arrays in (self.gradients, self.out)]
        arrays: list[NDArray[Any]] = [*pointers, self.param, self.state, self.sum, *spans]
        places = [address(array) for array in arrays]
        given = Aggregation(*places, self.n, spans[0].size, threads, self.m, way.flags, RATE, MOMENTUM)
        seconds = float(self.native.bench_aggregate(ctypes.byref(given)))
        self.gradients[0][self.count // 2] -= plant
        if seconds < 0:
            raise SystemExit(f"aggregation: {way.name} by {threads} threads was refused: status {seconds:g}")
        wrong = sum(int(np.count_nonzero(array != self.expected)) for array in (self.param, *self.out))
        return seconds, wrong

    def past(self) -> bool:
        """Returns whether the engine would write copies past the caches: it does if the arrays of a step (gradients
        and copies of all workers, and the rule's state) do not fit into the last-level cache."""
        return 4 * self.count * (2 * self.n + 1) > int(self.native.bench_last_level())


def needed(count: int, workers: int) -> int:
    """Returns the bytes for this many parameters: gradients and copies, and nine arrays of the server, two of them
    to check."""
    return 4 * count * (2 * workers + 9)


def measure(options: argparse.Namespace) -> list[Row]:
    native, found = loops(), list[Row]()
    ways = [way for way in WAYS if PAST not in way.name or native.bench_stores_past()]
    for model, workers in ((model, workers) for model in options.models for workers in options.workers):
        loaded = models.load(model)
        need, free = needed(loaded.nbytes // 4, workers), memory_available()
        if need > free:
            gib = [f"{nbytes / (1 << 30):.1f} GiB" for nbytes in (need, free)]
            text = f"aggregation: {model} with {workers} workers needs {gib[0]}, and {gib[1]} are free: give fewer"
            raise SystemExit(f"{text} --workers, or a smaller one of --models")
        server = Server(native, loaded, workers, options.exchanges)
        for threads in options.threads:
            facts = {"model": model, "keys": len(loaded.keys), "size": loaded.nbytes, "workers": workers}
            facts |= {"threads": threads}
            rows = [{**facts, "name": way.name, "role": way.role, "cycles": [], "wrong": 0} for way in ways]
            for row, way in zip(rows, ways, strict=True):
                row["moved"] = 4 * server.count * way.moved(workers)
                row["engine"] = way.name == TALL + (COPIES if server.past() else CACHED)
            for cycle in range(-1, options.run_cycles):
                at = max(0, cycle) % len(ways)  # each cycle begins with another way
                for k in (*range(at, len(ways)), *range(at)):
                    seconds, wrong = server.turn(ways[k], threads, options.plant and cycle < 0)
                    rows[k]["wrong"] += wrong
                    rows[k]["cycles"] += [seconds] * (cycle >= 0)
            found += rows
    return found


HEAD = ("model", "workers", "threads", "who", "time", "least", "most", "exchanges/s", "moved", "/ tall", "spread")
UNITS = ("", "", "", "", "(ms)", "(ms)", "(ms)", "", "(GB/s)", "", "")
WIDTHS = (14, 7, 7, 40, 9, 9, 9, 11, 8, 7, 13)


def of_group(rows: Sequence[Row], row: Row) -> list[Row]:
    """Groups the rows by model, workers and threads."""
    return [one for one in rows if all(one[fact] == row[fact] for fact in ("model", "workers", "threads"))]


def cells(rows: Sequence[Row], row: Row) -> list[str]:
    base = next(one for one in of_group(rows, row) if one["name"] == BASE)
    seconds = statistics.median(row["cycles"])
    value, low, high = ratio(row, base)
    times = [f"{1e3 * one:.2f}" for one in (seconds, min(row["cycles"]), max(row["cycles"]))]
    rates = [f"{row['workers'] / seconds:.2f}", f"{row['moved'] / seconds / 1e9:.2f}"]
    name = row["name"] + " *" * row["engine"]
    facts = [row["model"], str(row["workers"]), str(row["threads"]), name]
    return [*facts, *times, *rates, f"{value:.2f}", f"{low:.2f} .. {high:.2f}", str(row["wrong"])]


def lines(document: Row) -> list[str]:
    rows = document["rows"]
    found = [
        f"# aggregation: hpcomm {document['hpcomm']}, {document['cores']} cores, last cache of "
        f"{plots.named_size(document['cache'])}",
        "# " + _line((*HEAD, "#wrong")),
        "# " + _line((*UNITS, "")),
        *("  " + _line(cells(rows, row)) for row in rows),
        "# * the way of the engine for so many bytes",
    ]
    crowded = any(row["threads"] > document["cores"] for row in rows)
    return found + [f"# more threads than the {document['cores']} cores"] * crowded


def _line(words: Sequence[str]) -> str:
    pairs = enumerate(zip(words, (*WIDTHS, 6), strict=True))
    return "  ".join(f"{word:<{w}}" if i in (0, 3) else f"{word:>{w}}" for i, (word, w) in pairs).rstrip()


def draw(document: Row, path: Path) -> bool:
    """Draws bars of all ways: a panel for each model, number of workers and number of threads."""
    rows, panels, drawn = document["rows"], list[Callable[[Any], None]](), list[Row]()
    for row in rows:
        if row in drawn:
            continue
        own = of_group(rows, row)
        drawn += own
        heading = f"{row['model']}, {row['workers']} workers, threads: {row['threads']}"
        panels.append(partial(plots.bars, rows=own, heading=heading))
    return plots.figure(path, panels, f"tall and wide aggregation, hpcomm {document['hpcomm']}")


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def options_of(given: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m bench.phub.aggregation", description=__doc__.partition("\n\n")[0])
    available = sorted({1, cores()})
    p.add_argument("--threads", type=numbers, default=available, help=f"of the server, e.g. 1,2; default: {available}")
    p.add_argument("-W", "--workers", type=numbers, default=[8], help="numbers of workers, e.g. 2,8; default: 8")
    p.add_argument("--models", default="resnet50", help=f"of {', '.join(models.NAMES)}; default: resnet50")
    p.add_argument("--exchanges", type=int, default=3, help="of one turn, timed together; default: 3")
    p.add_argument("-N", "--run_cycles", type=int, default=7, help="alternated cycles: the ways take turns")
    p.add_argument("--plant", action="store_true", help="spoil a gradient of each way, to see that #wrong counts it")
    add_quick(p, "the small transformer38, two workers, two cycles")
    add_output(p, progress=False)
    options = p.parse_args(given)
    if options.quick:
        options.models, options.workers, options.exchanges, options.run_cycles = "transformer38", [2], 2, 2
    options.models = [word.strip() for word in options.models.split(",") if word.strip()]
    if unknown := set(options.models) - set(models.NAMES):
        p.error(f"--models: there is no {', '.join(sorted(unknown))}: {', '.join(models.NAMES)}")
    for name, most in (("threads", MOST_THREADS), ("workers", MOST_WORKERS)):
        if any(not 1 <= one <= most for one in getattr(options, name)):
            p.error(f"--{name}: {getattr(options, name)}: must be 1 to {most}")
    if min(options.exchanges, options.run_cycles) < 1:
        p.error("--exchanges and --run_cycles must be 1 or more")
    return options


def main(given: Sequence[str] | None = None) -> int:
    options = options_of(given)
    rows = measure(options)
    document: Row = {"benchmark": "aggregation", "hpcomm": hpcomm.__version__, "cores": cores(), "rows": rows}
    document["cache"] = int(loops().bench_last_level())
    wrong = sum(row["wrong"] for row in rows)
    text = json.dumps(document, indent=1)
    write(options, text)
    if options.plot is not None:
        draw(document, options.plot)
    closing = f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    print(text if options.json else "\n".join([*lines(document), closing]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

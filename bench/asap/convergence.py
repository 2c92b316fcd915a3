"""convergence: how fast graphs and consistencies reach an accuracy (ASAP, figures 5, 6, 7, 9 and 10).

Starts examples/train_text_svm.py with eight ranks on this machine (shm) and on eight hosts of one rank each, joined by
links of 1 Gb/s (hosts; tests/cluster/hosts.py), all ranks alike or one of them slower (straggler). The trainings that
are compared take turns in one process group; a cycle has a seed of its own. The aim is what the complete graph ends
with under BSP, less a thousandth of the tests.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.common import plots
from bench.common.launch import ROOT, attend, cores, launcher
from bench.common.options import add_output, add_quick, write
from bench.common.rows import Row

sys.path.insert(0, str(ROOT / "tests"))
from cluster.hosts import HEAD, Cluster, Unavailable

RANKS = 8
LIMIT = 600.0  # seconds of one cycle
UNABLE = 77  # the exit status of what the machine cannot run
EXAMPLE = str(ROOT / "examples" / "train_text_svm.py")
REFERENCE = "complete/BSP"
ONE_PEER = "one_peer_exponential/NOTIFY_ACK"
GRAPHS = f"complete/NOTIFY_ACK,root_expander/NOTIFY_ACK,{ONE_PEER},ring/NOTIFY_ACK,chain/NOTIFY_ACK"
WEAKER = "root_expander/BSP,root_expander/BARRIER,root_expander/ASYNC"
DENSE = "complete/BARRIER,complete/ASYNC"
ALLREDUCE = "MPI_Allreduce"


@dataclass(frozen=True)
class Setting:
    """Where the ranks are, and how many times as long one of them computes."""

    key: str
    hosts: bool
    delay: float
    compared: str


SETTINGS = (
    Setting("shm", False, 1, f"{REFERENCE},{GRAPHS},{WEAKER},{DENSE},{ALLREDUCE}"),
    Setting("shm, straggler", False, 100, f"{REFERENCE},root_expander/NOTIFY_ACK,{WEAKER},{ALLREDUCE}"),
    Setting("hosts", True, 1, f"{REFERENCE},{GRAPHS},{WEAKER},{ALLREDUCE}"),
    Setting("hosts, straggler", True, 500, f"{REFERENCE},root_expander/NOTIFY_ACK,{WEAKER},{ALLREDUCE}"),
)


@dataclass(frozen=True)
class Line:
    """One training of a setting over all cycles: medians, and the spread of what is compared.

    Attributes:
        seconds, sent: until the aim was reached, bytes by a rank; None where it was not in some cycle.
        faster, fewer: those of the reference over these, with the least and the greatest of a cycle.
        rate: exchanges a second of a rank.
        whole: the share of inputs that were averaged whole and new.
    """

    name: str
    seconds: float | None
    sent: float | None
    faster: tuple[float, float, float]
    fewer: tuple[float, float, float]
    rate: float
    accuracy: float
    whole: float


def name_of(run: Row) -> str:
    return f"{run['graph']}/{run['consistency']}" if run["consistency"] else str(run["graph"])


def lines(cycles: Sequence[Row]) -> Iterator[Line]:
    """cycles: the example's JSON, each with the same trainings, the reference first."""
    for i, first in enumerate(cycles[0]["runs"]):
        runs = [cycle["runs"][i] for cycle in cycles]
        each: list[list[float]] = [[], []]
        for cycle, run in zip(cycles, runs, strict=True):
            for of, reference, own in zip(each, cycle["runs"][0]["reached"], run["reached"] or (), strict=False):
                of.append(reference / own if own else 0.0)
        everywhere = all(run["reached"] for run in runs)
        faster, fewer = ((statistics.median(of), min(of), max(of)) if everywhere else (0.0, 0.0, 0.0) for of in each)
        seconds, sent = (statistics.median(run["reached"][k] for run in runs) if everywhere else None for k in range(2))
        inputs = [run["inputs"] for run in runs]
        yield Line(
            name_of(first),
            seconds,
            sent,
            faster,
            fewer,
            statistics.median(run["exchanges"] / statistics.fmean(own[-1] for own in run["seconds"]) for run in runs),
            statistics.median(statistics.fmean(own[-1] for own in run["accuracy"]) for run in runs),
            sum(of["whole"] for of in inputs) / max(1, sum(sum(of.values()) for of in inputs)),
        )


def table(document: Row) -> list[str]:
    found = [f"# convergence: {document['ranks']} ranks on {document['cores']} cores"]
    for key, cycles in document["runs"].items():
        first = cycles[0]
        found += [
            f"\n# {key}: {first['task']}, {first['weights']} weights, {first['epochs']} epochs, "
            f"{len(cycles)} cycles; aim {100 * statistics.median(c['target'] for c in cycles):.2f} %",
            f"{'who':32}{'time':>10}{'faster':>9}  {'spread':16}{'MB sent':>9}{'fewer':>8}  {'spread':16}"
            f"{'exchanges/s':>12}{'accuracy':>10}{'whole':>8}",
        ]
        for line in lines(cycles):
            cells = ["never", "", "", "", "", ""]
            if line.seconds is not None and line.sent is not None:
                spreads = [f"{low:.2f} .. {high:.2f}" for _, low, high in (line.faster, line.fewer)]
                cells = [f"{line.seconds:.3f} s", f"{line.faster[0]:.2f}x", spreads[0]]
                cells += [f"{line.sent / 1e6:.1f}", f"{line.fewer[0]:.2f}x", spreads[1]]
            whole = f"{100 * line.whole:.1f} %" if line.whole > 0 else "-"  # an allreduce counts none
            found.append(
                f"{line.name:32}{cells[0]:>10}{cells[1]:>9}  {cells[2]:16}{cells[3]:>9}{cells[4]:>8}  {cells[5]:16}"
                f"{line.rate:>12.1f}{100 * line.accuracy:>8.2f} %{whole:>8}"
            )
    return found


def measure(options: argparse.Namespace, chosen: Sequence[Setting]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    turns = [(setting, cycle) for setting in chosen for cycle in range(options.run_cycles)]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        cluster = stack.enter_context(Cluster(RANKS, rate=options.rate)) if any(s.hosts for s in chosen) else None
        for i, (setting, cycle) in enumerate(turns):
            output = Path(folder, "figures.json")
            output.unlink(missing_ok=True)
            start = {}
            if setting.hosts and cluster is not None:
                command = [*cluster.mpirun(), sys.executable]
                start["popen"] = partial(cluster.popen, HEAD)
            else:
                command = launcher(RANKS)[:-1]
            command += [EXAMPLE, "--compare", setting.compared, "--delay", str(setting.delay), "--seed", str(cycle)]
            command += ["--epochs", str(options.epochs), "--json", str(output), "--plot", str(Path(folder, "plot.png"))]
            command += ["--data", str(options.data)] if options.data else []
            status = attend(command, setting.key, quiet=True, bar=False, limit=LIMIT, tells=False, **start)
            if not output.exists():
                raise SystemExit(f"{setting.key}: train_text_svm.py ended with status {status}, no figures")
            found.setdefault(setting.key, []).append(json.loads(output.read_text(encoding="utf-8")))
            if options.progress is not None:
                options.progress.write_text(f"{(i + 1) / len(turns):.4f}")
    return found


def curves(axis: Any, cycles: Sequence[Row], heading: str, x: int) -> None:
    """Accuracy of the first cycle over seconds (x 0), or megabytes (x 1)."""
    for run in cycles[0]["runs"]:
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
        partial(curves, cycles=cycles, heading=key, x=x) for key, cycles in document["runs"].items() for x in range(2)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.asap.convergence", description="Time and bytes to an accuracy."
    )
    parser.add_argument(
        "--only", default="", help="settings whose names start with one of these: shm, hosts; comma-separated"
    )
    parser.add_argument("--rate", default="1gbit", help="rate of each host's link, as tc writes it")
    parser.add_argument("--epochs", type=int, default=20, help="epochs of each training")
    parser.add_argument(
        "--data",
        "--svmlight",
        type=Path,
        help="a file or folder of svmlight rows of two labels, such as RCV1 or webspam, in place of Debian's packages",
    )
    parser.add_argument(
        "-N", "--run_cycles", type=int, default=3, help="turns of all trainings, each with its own seed"
    )
    add_quick(parser, "one epoch, one cycle")
    add_output(parser, plot="curves")
    options = parser.parse_args(arguments)
    if options.quick:
        options.epochs = options.run_cycles = 1
    wanted = tuple(part.strip() for part in options.only.split(",") if part.strip())
    chosen = [setting for setting in SETTINGS if not wanted or setting.key.startswith(wanted)]
    if not chosen:
        parser.error(f"--only: there is no {options.only}; settings are {'; '.join(s.key for s in SETTINGS)}")
    document: dict[str, Any] = {"benchmark": "convergence", "ranks": RANKS, "cores": cores(), "runs": {}, "rows": []}
    try:
        document["runs"] = measure(options, chosen)
    except Unavailable as why:
        print(f"convergence: no hosts of one's own: {why}; --only shm does without", file=sys.stderr)
        return UNABLE
    text = json.dumps(document, indent=1)
    write(options, text)
    if options.plot is not None:
        plots.figure(options.plot, panels(document), f"{RANKS} ranks, a linear SVM", columns=2)
    print(text if options.json else "\n".join(table(document)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

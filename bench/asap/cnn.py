"""asap.cnn: a convolutional network trained under NOTIFY-ACK, BSP, BARRIER and ASYNC (ASAP, section 6.2 and figure 9).

Eight ranks compute gradients of a smaller examples/train_flow_cnn.py by torch, on a few pictures each, and average
their models over the complete graph after each step. The paper's BSP is a barrier that does not wait for the data,
which is hpcomm's BARRIER. The ranks are on this machine (shm), and on eight hosts of one rank each, joined by links of
1 Gb/s (hosts; tests/cluster/hosts.py). The consistencies take turns in one process group; each cycle has another seed.
The paper's single machine is one rank with all the data, which exchanges nothing (alone).

#wrong counts, under NOTIFY_ACK and BSP, inputs that were not whole, and ranks that end with another model than rank 0.
"""

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import hpcomm
from bench.common.launch import ROOT, attend, cores, launched, launcher, mpirun
from bench.common.options import add_output, add_pictures, add_quick, write
from hpcomm.bench import plots
from hpcomm.bench.rows import Row

sys.path.insert(0, str(ROOT / "tests"))
from cluster.hosts import HEAD, Cluster, Unavailable

RANKS, LIMIT = 8, 900.0  # seconds of one cycle
UNABLE = 77  # exit status if the machine cannot run it
ALONE = "alone"
GROUPS = (ALONE, "shm", "hosts")
NAMES = ("NOTIFY_ACK", "BSP", "BARRIER", "ASYNC")
WIDTH, CHANNELS = 256, (16, 40, 60, 60, 56)  # half the channels of examples/train_flow_cnn.py
PAPER_WIDTH, PAPER_CHANNELS = 128, (64, 128, 256, 256, 448, 448, 448, 448)  # 7.5 million parameters
QUICK_WIDTH, QUICK_CHANNELS = 16, (4, 4, 4, 4, 4)
PAPER = (
    "ASAP, figure 9 (VGG of 7.5 M parameters, CIFAR-10, mini-batches of 1, eight machines): NOTIFY-ACK 229.3, BSP "
    "217.8, ASYNC 246",
    "images a second; to 99 % training accuracy NOTIFY-ACK is fastest, and ASYNC starts slowly and is the slowest.",
)


@dataclass(frozen=True)
class Line:
    """One consistency in a group, over all cycles: medians, and sums of the inputs.

    Attributes:
        seconds: until the mean loss of all ranks reached the target; None if it did not in some cycle.
        rate: images a second of all ranks.
        alone: seconds of one machine over these; None if either missed the target in some cycle.
        exchanging: the part of the time that a rank is in the exchange.
        processor, moving: processor seconds of a rank in a step, and the part not used by its trainer.
        whole, torn, stale, missing: shares of all inputs.
    """

    name: str
    seconds: float | None
    spread: tuple[float, float]
    alone: float | None
    rate: float
    exchanging: float
    processor: float
    moving: float
    loss: float
    accuracy: float
    whole: float
    torn: float
    stale: float
    missing: float
    wrong: int


def curve(row: Row) -> tuple[list[float], list[float]]:
    """Returns seconds, and the mean loss of the ranks' models at that time; each rank's model is the last one kept
    by then."""
    times = np.unique(row["times"])
    at = [np.searchsorted(own, times, side="right") - 1 for own in row["times"]]
    losses = [np.array(own)[i] for own, i in zip(row["losses"], at, strict=True)]
    return times.tolist(), np.mean(losses, axis=0).tolist()


def reached(row: Row, aim: float) -> float | None:
    """Returns the seconds at which the curve first reaches the target, interpolated linearly."""
    times, losses = curve(row)
    for i, loss in enumerate(losses):
        if loss <= aim:
            if i == 0:
                return times[0]
            part = (losses[i - 1] - aim) / (losses[i - 1] - loss)
            return times[i - 1] + part * (times[i] - times[i - 1])
    return None


def lines(rows: Sequence[Row], aim: float, alone: Sequence[Row] = ()) -> Iterator[Line]:
    """Makes the lines. rows: of a group. alone: rows of one rank, one for each cycle."""
    singles = {row["cycle"]: reached(row, aim) for row in alone}
    for name in dict.fromkeys(row["name"] for row in rows):
        own = [row for row in rows if row["name"] == name]
        found = [reached(row, aim) for row in own]
        times = [seconds for seconds in found if seconds is not None]
        all_reached = len(times) == len(own)
        counts = {kind: sum(row["inputs"][kind] for row in own) for kind in ("whole", "torn", "stale", "missing")}
        all_inputs = max(1, sum(counts.values()))
        over = [(singles.get(row["cycle"]) or 0) / seconds for row, seconds in zip(own, found, strict=True) if seconds]
        steps = [row["steps"] * len(row["seconds"]) for row in own]
        yield Line(
            name,
            statistics.median(times) if all_reached else None,
            (min(times), max(times)) if all_reached else (0.0, 0.0),
            statistics.median(over) if all_reached and all(over) else None,
            statistics.median(
                row["batch"] * row["steps"] * len(row["seconds"]) / statistics.fmean(row["seconds"]) for row in own
            ),
            statistics.median(sum(row["waited"]) / sum(row["seconds"]) for row in own),
            statistics.median(sum(row["processor"]) / n for row, n in zip(own, steps, strict=True)),
            statistics.median(
                (sum(row["processor"]) - sum(row["training"])) / n for row, n in zip(own, steps, strict=True)
            ),
            statistics.median(curve(row)[1][-1] for row in own),
            statistics.median(statistics.fmean(row["score"]) for row in own),
            wrong=sum(row["wrong"] for row in own),
            **{kind: count / all_inputs for kind, count in counts.items()},
        )


def table(document: Row) -> list[str]:
    found = [f"# asap.cnn: {document['ranks']} ranks on {document['cores']} cores, hpcomm {document['hpcomm']}"]
    aim, alone = document["aim"], [row for row in document["rows"] if row["group"] == ALONE]
    for group in dict.fromkeys(row["group"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["group"] == group]
        first, cycles = rows[0], len({row["cycle"] for row in rows})
        links = f", links of {document['rate']}" if group == "hosts" else ""
        found += [
            f"\n# {group}{links}: {first['model']}, {first['parameters']:,} parameters; {first['steps']} steps of "
            f"{len(first['seconds'])} x {first['batch']} images, {cycles} cycles",
            f"{'who':12}{f'to loss {aim:g}':>14}  {'spread':18}{'x alone':>9}{'images/s':>9}"
            f"{'in exchange':>13}{'processor':>11}{'of it moving':>14}{'loss':>9}"
            f"{'accuracy':>10}{'whole':>9}{'torn':>8}{'stale':>8}{'missing':>9}{'#wrong':>8}",
        ]
        for line in lines(rows, aim, alone):
            cells = ["never", "", "" if line.alone is None else f"{line.alone:.3g}x"]
            if line.seconds is not None:
                cells[:2] = [f"{line.seconds:.2f} s", f"{line.spread[0]:.2f} .. {line.spread[1]:.2f}"]
            parts = f"{100 * line.whole:>7.2f} %" + "".join(f"{100 * x:>6.2f} %" for x in (line.torn, line.stale))
            found.append(
                f"{line.name:12}{cells[0]:>14}  {cells[1]:18}{cells[2]:>9}{line.rate:>9.1f}"
                f"{100 * line.exchanging:>11.1f} %{1e3 * line.processor:>8.1f} ms{1e3 * line.moving:>11.1f} ms"
                f"{line.loss:>9.4f}{100 * line.accuracy:>8.2f} %{parts}{100 * line.missing:>7.2f} %{line.wrong:>8}"
            )
    return [*found, "", *(f"# {line}" for line in PAPER)]


def curves(axis: Any, rows: Sequence[Row], aim: float, heading: str) -> None:
    """Draws loss over seconds, for the first cycle."""
    for row in rows:
        dashes = {"BSP": "--", "BARRIER": "-.", "ASYNC": ":"}.get(row["name"], "-")
        axis.plot(*curve(row), dashes, label=row["name"])
    axis.axhline(aim, color="black", linewidth=0.6)
    axis.set_yscale("log")
    axis.set(title=heading, xlabel="seconds", ylabel="training loss, mean of the ranks")
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")


def inputs(axis: Any, rows: Sequence[Row], aim: float, heading: str) -> None:
    """Draws the inputs of each consistency's reduces, over all cycles."""
    found = list(lines(rows, aim))
    left = np.zeros(len(found))
    for kind, colour in (("whole", "tab:blue"), ("torn", "tab:red"), ("stale", "tab:orange"), ("missing", "lightgray")):
        parts = np.array([100 * getattr(line, kind) for line in found])
        axis.barh([line.name for line in found], parts, left=left, color=colour, label=kind)
        left += parts
    axis.invert_yaxis()
    axis.set(title=heading, xlabel="% of the inputs of reduces")
    axis.legend(fontsize="small", loc="lower left")


def panels(document: Row) -> list[plots.Draw]:
    found: list[plots.Draw] = []
    alone = [row for row in document["rows"] if row["group"] == ALONE]
    for group in dict.fromkeys(row["group"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["group"] == group]
        first = [row for row in [*rows, *alone] if row["cycle"] == 0]
        if group != ALONE:
            found.append(partial(curves, rows=first, aim=document["aim"], heading=f"{group}: loss"))
            found.append(partial(inputs, rows=rows, aim=document["aim"], heading=f"{group}: inputs"))
    return found


def measure(options: argparse.Namespace, given: Sequence[str]) -> Iterator[Row]:
    """Measures the rows of all groups and cycles."""
    turns = [(group, cycle) for group in options.groups for cycle in range(options.run_cycles)]
    for group, cycle in turns:
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder, "figures.json")
            more = ["bench.asap.cnn", *given, "--seed", str(options.seed + cycle), "-J", str(output)]
            title = f"{group}, cycle {cycle + 1} of {options.run_cycles}"
            if group == "hosts":
                with Cluster(options.ranks, rate=options.rate) as cluster:
                    command = [*cluster.mpirun(path=mpirun(sys.executable)), sys.executable, "-m", *more]
                    there = partial(cluster.popen, HEAD)
                    status = attend(command, title, quiet=options.json, limit=LIMIT, popen=there)
            else:
                ranks = 1 if group == ALONE else options.ranks
                command = [*launcher(ranks, transport=options.transport), *more]
                status = attend(command, title, quiet=options.json, limit=LIMIT)
            if not output.exists():
                raise SystemExit(f"asap.cnn: the ranks of {group} ended with status {status}, no figures")
            for row in json.loads(output.read_text(encoding="utf-8"))["rows"]:
                yield {"group": group, "cycle": cycle, **row}


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m bench.asap.cnn", description="A CNN by averages of models.")
    p.add_argument("--groups", default=",".join(GROUPS), help=f"of {', '.join(GROUPS)}; default: all")
    p.add_argument("--consistencies", default=",".join(NAMES), help=f"of {', '.join(NAMES)}; default: all")
    p.add_argument("-n", "--steps", type=int, default=200, help="steps of each training")
    p.add_argument("-b", "--batch", type=int, default=4, help="images of a rank in a step")
    p.add_argument("--eta", type=float, default=0.04, help="rate of learning in the first epoch")
    p.add_argument("--decay", type=float, default=0.9, help="factor of the rate of learning after each epoch")
    p.add_argument("--aim", type=float, default=0.2, help="training loss to which seconds are counted")
    p.add_argument("--points", type=int, default=25, help="of a curve: models that each rank keeps")
    p.add_argument("--seed", type=int, default=0, help="of the split, the first model and the minibatches")
    p.add_argument("-N", "--run_cycles", type=int, default=3, help="turns of all trainings, each with its own seed")
    p.add_argument("--rate", default="1gbit", help="rate of each host's link, as tc writes it")
    p.add_argument("--ranks", type=int, default=RANKS, help="number of ranks")
    p.add_argument("--transport", default="", choices=("", "shm", "tcp", "verbs"))
    add_pictures(p)
    p.add_argument("--paper-size", action="store_true", help="a VGG of 7.5 M parameters, as the paper's")
    add_quick(p, "a small network, six steps, one cycle, without hosts")
    add_output(p, plot="curves")
    options = p.parse_args(arguments)
    options.width, options.channels = (PAPER_WIDTH, PAPER_CHANNELS) if options.paper_size else (WIDTH, CHANNELS)
    if options.quick:
        if options.paper_size:
            p.error("--paper-size and --quick: give one of them; -n 2 -N 1 --groups shm is a short run")
        options.width, options.channels = QUICK_WIDTH, QUICK_CHANNELS
        options.groups, options.steps, options.points, options.run_cycles = f"{ALONE},shm", 6, 3, 1
    for name, known in (("groups", GROUPS), ("consistencies", NAMES)):
        chosen = [word.strip() for word in getattr(options, name).split(",") if word.strip()]
        if unknown := set(chosen) - set(known):
            p.error(f"--{name}: there is no {', '.join(sorted(unknown))}: {', '.join(known)}")
        setattr(options, name, chosen)
    for name in ("steps", "batch", "points", "run_cycles"):
        if getattr(options, name) < 1:
            p.error(f"--{name} is {getattr(options, name)}: must be 1 or more")
    if options.ranks < 2:
        p.error(f"--ranks is {options.ranks}: must be 2 or more")
    for name in ("eta", "decay", "aim"):
        if not getattr(options, name) > 0:
            p.error(f"--{name} is {getattr(options, name):g}: must be above 0")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parsed(given)
    if importlib.util.find_spec("torch") is None:
        print("asap.cnn: torch is missing: pip install 'torch>=2.4'", file=sys.stderr)
        return UNABLE
    if launched():
        from bench.asap.cnn_ranks import on_this_rank  # noqa: PLC0415

        return on_this_rank(options)
    os.environ |= {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    facts = {"benchmark": "asap.cnn", "hpcomm": hpcomm.__version__, "ranks": options.ranks, "cores": cores()}
    document: Row = {**facts, "rate": options.rate, "aim": options.aim, "rows": []}
    try:
        for row in measure(options, given):
            document["rows"].append(row)
            write(options, json.dumps(document, indent=1))  # kept if this run ends early
    except Unavailable as why:
        print(f"asap.cnn: no hosts here: {why}; --groups shm does without", file=sys.stderr)
        return UNABLE
    if options.plot is not None:
        plots.figure(options.plot, panels(document), f"ASAP, figure 9: {options.ranks} ranks", columns=2)
    print(json.dumps(document, indent=1) if options.json else "\n".join(table(document)))
    return 1 if any(row["wrong"] for row in document["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())

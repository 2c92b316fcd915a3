"""factors_apps: the four applications of SFB (Xie et al., UAI 2016) by pairs of vectors, beside dense updates.

The hosts are namespaces of this machine with links of 1 Gb/s (tests/cluster/hosts.py), of one rank each. The figures
are those of the paper (section 5) and of its supplement, at sizes that take minutes here:

    5, S3   time to an objective over the size of W, under BSP and SSP(20)
    6, S5   MLR: objective over time, samples over time, objective over samples; by K, and under SSP(20)
    7, S4   speed-up by the number of hosts, under BSP and SSP(20)
    8       computing, and time in the exchange, by staleness
    9, S6   time to an objective over Q, under BSP and SSP(20)
    S7      bytes sent to that objective
    target  MLR of 4,000 classes and 5,000 features on 8 hosts, and Q = 4 of 7

All trainings of a figure with the same hosts run in one job, one after the other. A training ends at the objective that
the first one of its group has reached.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

if "OMP_NUM_THREADS" not in os.environ:
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # before NumPy; a host has one of two cores

import numpy as np
from mpi4py import MPI

import hpcomm
from bench import plots
from bench.cluster_bench import UNABLE
from bench.harness import as_rank
from bench.launch import ROOT, attend, launched, mpirun
from bench.options import add_output, add_quick, write
from bench.rows import Row

sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "examples"))
from cluster.hosts import HEAD, Cluster, Unavailable
from factors import data, dml, job, mlr, sc, sdca
from factors.model import Model

LIMIT = 3600.0  # seconds of one job
SAMPLES, STORED = 4096, 30  # of synthetic data; values other than 0 of each
STALE = 20  # the paper's
HOSTS = 4
L2 = 0.01
MODELS = ("mlr", "dml", "sc", "sdca")
NAMES = {"mlr": "MLR", "dml": "DML", "sc": "SC", "sdca": "L2-MLR"}
RATES = {"mlr": 50.0, "dml": 2.0, "sc": 5.0, "sdca": 1.0}  # of learning
WAYS = {"factors": job.FACTORS, "dense": job.DENSE}

PAPER = {
    "5": "SFB reaches the objective sooner than FMS, and the more so the larger W is",
    "S3": "the same under SSP(20)",
    "6": "SFB takes more samples a second; the progress by samples is the same under BSP; K = 10 to 100 is best",
    "S5": "SFB takes far more samples a second; its progress by samples is a little less than that of FMS",
    "7": "nearly linear, a little less at 12 machines; 17.4x and 15.7x for MLR and L2-MLR on 28",
    "S4": "the same under SSP(20)",
    "8": "SFB waits far less at every staleness; it computes a little longer; some staleness is best",
    "9": "each Q reaches the objective of all peers; from Q = 4 of 11 on it takes as long",
    "S6": "the same under SSP(20)",
    "S7": "SFB sends far less than FMS",
    "target": "(asked here: 6x where samples pick rows, 3x where they scatter; Q = 4 of 7 in 1.1 of the steps)",
}


@dataclass(frozen=True)
class Training:
    """One training.

    Attributes:
        size: (J, D) of W, for mlr and sdca features x classes.
        group: trainings of one name end at the objective of the first of them.
        steps: of the first of a group; the others take twice as many at the most.
        stored: values other than 0 of a sample.
    """

    figure: str
    model: str
    size: tuple[int, int]
    group: str
    way: str = "factors"
    hosts: int = HOSTS
    steps: int = 20
    pairs: int = 32
    staleness: int = 0
    peers: int | None = None
    rate: float = 1.0  # a factor of the learning rate
    classes_first: bool = False
    stored: int = STORED
    every: int = 2

    def made(self, ctx: hpcomm.Context) -> Model:
        (rows, columns), seed = self.size, 0
        if self.model in ("mlr", "sdca"):
            x = data.synthetic(SAMPLES, rows, columns, self.stored, seed)
            if self.model == "mlr":
                return mlr.Regression(x, self.classes_first)
            part = (ctx.rank, ctx.size)
            return sdca.DualRegression(x, L2, self.classes_first, part=part, staleness=self.staleness)
        if self.model == "dml":
            x = data.synthetic(SAMPLES, columns, 50, self.stored, seed)
            first, second = np.random.default_rng(seed).integers(SAMPLES, size=(2, 4 * SAMPLES))
            second[::2] = (np.argsort(x.y, kind="stable")[np.searchsorted(np.sort(x.y), x.y)])[first[::2]]
            return dml.Metric(data.Pairs("synthetic", x.x, first, second, x.y[first] == x.y[second]), rows)
        return sc.Coding(data.patches(SAMPLES, seed), rows, "patches")


# ---- the figures -----------------------------------------------------------------------------------------------------

SIZES: dict[str, list[tuple[int, int]]] = {
    "mlr": [(1000, 500), (2000, 1000), (4000, 2000)],
    "dml": [(128, 2500), (256, 5000), (512, 10000)],
    "sc": [(512, 256), (1024, 256), (2048, 256)],
    "sdca": [(1000, 500), (2000, 1000), (4000, 2000)],
}


def by_size(figure: str, staleness: int) -> Iterator[Training]:
    for model in MODELS:
        for size in SIZES[model]:
            one = Training(figure, model, size, f"{model} {size}", staleness=staleness)
            yield from (one, replace(one, way="dense"))


def by_pairs(figure: str, staleness: int, every: Sequence[int]) -> Iterator[Training]:
    for pairs in every:
        one = Training(
            figure, "mlr", SIZES["mlr"][1], "mlr", pairs=pairs, staleness=staleness, steps=3200 // pairs // 2
        )
        yield from (one, replace(one, way="dense"))


def by_hosts(figure: str, staleness: int) -> Iterator[Training]:
    """The samples of a step are the same for any number of hosts: so the steps are, too."""
    for model in MODELS:
        for hosts in (1, 2, 4, 8):
            size, pairs = SIZES[model][1], 256 // hosts
            yield Training(figure, model, size, model, hosts=hosts, pairs=pairs, staleness=staleness)


def by_staleness(figure: str) -> Iterator[Training]:
    for model in MODELS:
        for staleness in (0, 5, STALE):
            one = Training(figure, model, SIZES[model][1], f"{model} {staleness}", staleness=staleness)
            yield from (replace(one, group=model), replace(one, group=model, way="dense"))


def by_degree(figure: str, staleness: int) -> Iterator[Training]:
    for model in ("mlr", "sdca"):
        for peers in (None, 5, 4, 3, 2, 1):
            size = SIZES[model][0]
            yield Training(figure, model, size, model, hosts=8, peers=peers, staleness=staleness, pairs=16, steps=40)


def targets(figure: str) -> Iterator[Training]:
    for classes_first in (False, True):
        one = Training(
            figure,
            "mlr",
            (5000, 4000),
            f"mlr {'scatter' if classes_first else 'rows'}",
            hosts=8,
            steps=10,
            every=1,
            stored=100,
            classes_first=classes_first,
        )
        yield from (one, replace(one, staleness=STALE), replace(one, way="dense"))
    for peers in (None, 4):
        for rate in (0.5, 1.0, 2.0, 4.0):
            yield Training(
                figure, "mlr", SIZES["mlr"][0], "Q", hosts=8, pairs=16, peers=peers, rate=rate, steps=60, every=1
            )


FIGURES: dict[str, Callable[[str], Iterator[Training]]] = {
    "5": partial(by_size, staleness=0),
    "S3": partial(by_size, staleness=STALE),
    "6": partial(by_pairs, staleness=0, every=(10, 32, 100)),
    "S5": partial(by_pairs, staleness=STALE, every=(100,)),
    "7": partial(by_hosts, staleness=0),
    "S4": partial(by_hosts, staleness=STALE),
    "8": by_staleness,
    "9": partial(by_degree, staleness=0),
    "S6": partial(by_degree, staleness=STALE),
    "target": targets,
}


# ---- a rank ----------------------------------------------------------------------------------------------------------


def trained(ctx: hpcomm.Context, one: Training, target: float | None) -> Row:
    """The row of a training. Collective."""
    model = one.made(ctx)
    plan = job.Plan(
        steps=one.steps if target is None else 2 * one.steps,
        pairs=one.pairs,
        lr=RATES[one.model] * one.rate,
        staleness=one.staleness,
        peers=one.peers,
        every=one.every,
        target=target,
        later=one.staleness > 0,
    )
    ctx.barrier()
    run = job.WAYS[WAYS[one.way]](ctx, model, plan, lambda step, objective: None)
    own = np.float64(run.points[-1][2] if ctx.rank == 0 else 0)
    aim = float(np.frombuffer(ctx.allgather(own.tobytes())[0])[0]) if target is None else target
    reached = run.reached(aim)
    seconds, waited, computed, sent, steps = np.array(run.ranks).mean(axis=0).tolist()
    return {
        **asdict(one),
        "target": aim,
        "seconds": None if reached is None else reached[1],
        "steps_to": None if reached is None else reached[0],
        "points": run.points,
        "run": {"seconds": seconds, "waited": waited, "computed": computed, "sent": sent, "steps": steps},
    }


def rank(path: Path, output: Path, progress: Path | None) -> int:
    """Trains by the list at path. MPI brings the ranks up."""
    wanted = json.loads(path.read_text(encoding="utf-8"))
    rows: list[Row] = []
    aims: dict[str, float] = dict(wanted["aims"])
    with hpcomm.init(MPI.COMM_WORLD) as ctx:
        for i, given in enumerate(wanted["trainings"]):
            one = Training(**{**given, "size": tuple(given["size"])})
            target = aims.get(one.group)
            row = trained(ctx, one, target)
            aims[one.group] = row["target"]
            rows.append(row)
            if ctx.rank == 0:
                output.write_text(json.dumps(rows), encoding="utf-8")
                if progress is not None:
                    progress.write_text(f"{(i + 1) / len(wanted['trainings']):.4f}")
    return 0


# ---- the hosts -------------------------------------------------------------------------------------------------------


def jobs(trainings: Sequence[Training]) -> Iterator[tuple[int, list[Training]]]:
    """By number of hosts; the job of most hosts is the first, whose objectives the others reach too."""
    for hosts in sorted({one.hosts for one in trainings}, reverse=True):
        yield hosts, [one for one in trainings if one.hosts == hosts]


def measure(figure: str, options: argparse.Namespace) -> list[Row]:
    wanted = list(FIGURES[figure](figure))
    if options.quick:
        wanted = [replace(one, steps=2, size=(64, 256 if one.model == "sc" else 48), pairs=4) for one in wanted]
    rows: list[Row] = []
    for hosts, chosen in jobs(wanted):
        with tempfile.TemporaryDirectory() as folder, Cluster(hosts, rate=options.rate) as cluster:
            spec, output = Path(folder, "trainings.json"), Path(folder, "rows.json")
            aims = {row["group"]: row["target"] for row in rows}
            spec.write_text(json.dumps({"aims": aims, "trainings": [asdict(one) for one in chosen]}), encoding="utf-8")
            command = [*cluster.mpirun(path=mpirun(sys.executable)), sys.executable, "-m", "bench.factors_apps"]
            command += ["--trainings", str(spec), "-J", str(output)]
            there = partial(cluster.popen, HEAD)
            title = f"figure {figure}, {hosts} hosts"
            status = attend(command, title, quiet=options.json, limit=LIMIT, popen=there)
            if status or not output.exists():
                raise SystemExit(f"factors_apps: {title}: the ranks ended with status {status}")
            rows += json.loads(output.read_text(encoding="utf-8"))
    return rows


def alone(rows: Sequence[Row]) -> Row | None:
    """scikit-learn's LogisticRegression (L-BFGS) on one core of one host: how long it takes to the objective of the
    targets' first training. Iterations double until it is there."""
    first = next((row for row in rows if row["group"] == "mlr rows" and not row["staleness"]), None)
    if first is None:
        return None
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - only here

    features, classes = first["size"]
    made = data.synthetic(SAMPLES, features, classes, first["stored"], 0)
    model = mlr.Regression(made)
    iterations = 1
    while True:
        fit = LogisticRegression(C=1e6, max_iter=iterations, fit_intercept=False)
        before = time.perf_counter()
        fit.fit(made.x, made.y)
        seconds = time.perf_counter() - before
        mat = np.full(model.shape, 0, np.float32)
        mat[:, fit.classes_] = fit.coef_.T
        objective = model.objective(mat)
        if objective <= first["target"] or iterations >= 64:
            return {"iterations": iterations, "seconds": seconds, "objective": objective}
        iterations *= 2


# ---- telling ---------------------------------------------------------------------------------------------------------


def told(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.2f}"


def size_of(row: Row) -> float:
    """MB of W."""
    return float(4e-6 * row["size"][0] * row["size"][1])


def ratio(rows: Sequence[Row], **chosen: Any) -> str:
    """Seconds of the dense way over those of factors."""
    own = [row for row in rows if all(row[name] == value for name, value in chosen.items())]
    found = {row["way"]: row["seconds"] for row in own}
    dense, factors = found.get("dense"), found.get("factors")
    return "" if dense is None or factors is None else f"{dense / factors:.2f}x"


def lines(figure: str, rows: Sequence[Row]) -> Iterator[str]:
    yield f"\n# figure {figure}. The paper: {PAPER[figure]}"
    columns = f"{'hosts':>6}{'K':>5}{'s':>4}{'Q':>4}{'lr':>7}{'steps':>7}{'time s':>9}{'computing':>11}{'exchange':>10}"
    yield f"# {'model':8}{'W':>14}  {'way':14}{columns}{'MB a rank':>11}{'samples/s':>11}{'objective':>11}"
    for row in rows:
        run, size = row["run"], "x".join(map(str, row["size"]))
        way = row["way"] + (", scatter" if row["classes_first"] else "")
        rate = row["hosts"] * row["pairs"] * run["steps"] / max(run["seconds"], 1e-9)
        peers = "all" if row["peers"] is None else str(row["peers"])
        cells = f"{row['hosts']:6}{row['pairs']:5}{row['staleness']:4}{peers:>4}{row['rate']:7.2f}"
        steps = "never" if row["steps_to"] is None else f"{row['steps_to']:.0f}"
        cells += f"{steps:>7}{told(row['seconds']):>9}{run['computed']:11.2f}{run['waited']:10.2f}"
        cells += f"{run['sent'] / 1e6:11.1f}{rate:11.0f}{row['points'][-1][2]:11.4f}"
        yield f"  {NAMES[row['model']]:8}{size:>14}  {way:14}{cells}"
    yield from (f"# ours: {text}" for text in findings(figure, rows))


def findings(figure: str, rows: Sequence[Row]) -> Iterator[str]:
    """What a figure shows, in a line each."""
    if figure == "target":
        yield from target_lines(rows)
    if figure in ("6", "S5"):
        for pairs in sorted({row["pairs"] for row in rows}):
            yield f"K = {pairs}: dense / factors {ratio(rows, pairs=pairs)}"
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        finding = of_model(figure, model, own)
        if finding:
            yield f"{NAMES[model]}: {finding}"


def of_model(figure: str, model: str, rows: Sequence[Row]) -> str:
    if figure in ("5", "S3"):
        ratios = [ratio(rows, size=list(size)) for size in SIZES[model]]
        largest = [row for row in rows if row["size"] == list(SIZES[model][-1])]
        sent = {row["way"]: row["run"]["sent"] / row["run"]["steps"] for row in largest}
        fewer = f"; bytes of a step (figure S7) {sent['dense'] / sent['factors']:.1f}x" if len(sent) == 2 else ""
        return f"dense / factors {', '.join(filter(None, ratios))}, W growing{fewer}"
    if figure in ("7", "S4"):
        times = {row["hosts"]: row["seconds"] for row in rows if row["seconds"]}
        ups = [f"{hosts}: {times[1] / times[hosts]:.2f}x" for hosts in sorted(times) if 1 in times]
        return f"speed-up by hosts {', '.join(ups)} (all hosts share the cores of this machine)"
    if figure == "8":
        ratios = [f"s = {s}: {ratio(rows, staleness=s)}" for s in (0, 5, STALE)]
        return f"dense / factors {', '.join(ratios)}"
    if figure in ("9", "S6"):
        steps = {row["peers"] or row["hosts"] - 1: row["steps_to"] for row in rows}
        each = [f"Q = {q}: {'never' if steps[q] is None else f'{steps[q]:.0f}'}" for q in sorted(steps, reverse=True)]
        return f"steps of rank 0 by {', '.join(each)}"
    return ""


def target_lines(rows: Sequence[Row]) -> Iterator[str]:
    for first, wanted in ((False, 6), (True, 3)):
        own = [row for row in rows if row["classes_first"] == first and row["group"] != "Q"]
        for staleness in (0, STALE):
            dense = [row["seconds"] for row in own if row["way"] == "dense" and row["seconds"]]
            ours = [
                row["seconds"]
                for row in own
                if row["way"] == "factors" and row["staleness"] == staleness and row["seconds"]
            ]
            if dense and ours:
                how = "scatter" if first else "rows"
                asked = "" if staleness else f", asked {wanted}"
                found = statistics.median(dense) / statistics.median(ours)
                yield f"MLR 4,000 x 5,000, {how}, s = {staleness}: {found:.2f}x{asked}"
    by_peers: dict[int | None, list[float]] = {None: [], 4: []}
    for row in rows:
        if row["group"] == "Q" and row["steps_to"]:
            by_peers[row["peers"]].append(row["steps_to"])
    best = {peers: min(steps) for peers, steps in by_peers.items() if steps}
    if len(best) == 2:
        yield f"Q = 4 of 7: {best[4] / best[None]:.2f} of the steps of Q = 7, each at its best rate, asked 1.1"


def panels(document: Row) -> list[plots.Draw]:
    draws: list[plots.Draw] = []
    for figure, rows in document["figures"].items():
        for model in dict.fromkeys(row["model"] for row in rows):
            own = [row for row in rows if row["model"] == model]
            draws.append(partial(draw, figure, model, own))
    return draws


def draw(figure: str, model: str, rows: Sequence[Row], axis: Any) -> None:
    heading = f"figure {figure}: {NAMES[model]}"
    if figure in ("6", "S5"):
        for row in rows:
            points = np.array([point[:3] for point in row["points"]])
            axis.plot(points[:, 1], points[:, 2], marker=".", label=f"{row['way']}, K = {row['pairs']}")
        axis.set(title=heading, xlabel="seconds", ylabel="objective")
    elif figure == "8":
        for i, row in enumerate(rows):
            run = row["run"]
            axis.bar(i, run["computed"], color="tab:blue", label="computing" if i == 0 else None)
            axis.bar(i, run["waited"], bottom=run["computed"], color="tab:red", label="exchange" if i == 0 else None)
        axis.set_xticks(range(len(rows)), [f"{row['way']}\ns = {row['staleness']}" for row in rows], fontsize="x-small")
        axis.set(title=heading, ylabel="seconds")
    else:
        over: dict[str, tuple[str, Callable[[Row], float]]] = {
            "7": ("hosts", lambda row: row["hosts"]),
            "9": ("Q", lambda row: row["peers"] or row["hosts"] - 1),
        }
        over |= {"S4": over["7"], "S6": over["9"], "target": over["9"]}
        label, value = over.get(figure, ("MB of W", size_of))
        for way in dict.fromkeys(row["way"] for row in rows):
            own = sorted((value(row), row["seconds"]) for row in rows if row["way"] == way and row["seconds"])
            if own:
                axis.plot(*zip(*own, strict=True), "-o", label=way)
        axis.set(title=heading, xlabel=label, ylabel="seconds to the objective")
        axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m bench.factors_apps", description=__doc__.partition("\n")[0])
    p.add_argument(
        "--figures",
        type=lambda text: text.split(","),
        default=list(FIGURES),
        help=f"which, of {','.join(FIGURES)}; S7 is a part of 5",
    )
    p.add_argument("--rate", default="1gbit", help="of each host's link, as tc writes it")
    p.add_argument("--trainings", type=Path, help=argparse.SUPPRESS)  # what the ranks of a job train
    add_quick(p, "tiny matrices, two steps")
    add_output(p, "curves")
    options = p.parse_args(arguments)
    for figure in options.figures:
        if figure not in FIGURES:
            p.error(f"--figures: {figure!r} is none of {', '.join(FIGURES)}")
    return options


def begin(options: argparse.Namespace) -> int:
    document: Row = {"benchmark": "factors_apps", "hpcomm": hpcomm.__version__, "rate": options.rate, "figures": {}}
    try:
        for figure in options.figures:
            rows = measure(figure, options)
            document["figures"][figure] = rows
            if figure == "target" and not options.quick:
                document["scikit-learn"] = alone(rows)
            if not options.json:
                print("\n".join(lines(figure, rows)), flush=True)
                if document.get("scikit-learn"):
                    found = document["scikit-learn"]
                    print(f"# scikit-learn, one host: {found['seconds']:.1f} s, {found['iterations']} iterations")
            write(options, json.dumps(document, indent=1))  # what is there if this run is ended
    except Unavailable as why:
        print(f"factors_apps: no hosts of one's own: {why}", file=sys.stderr)
        return UNABLE
    if options.plot is not None:
        heading = f"hpcomm {hpcomm.__version__}, hosts with links of {options.rate}"
        plots.figure(options.plot, panels(document), heading, columns=4)
    if options.json:
        print(json.dumps(document, indent=1))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    if launched():
        return as_rank(lambda: rank(options.trainings, options.output_file, options.progress))
    return begin(options)


if __name__ == "__main__":
    sys.exit(main())

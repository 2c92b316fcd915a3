"""sfb.apps: the four applications of SFB (Xie et al., UAI 2016) by pairs of vectors, beside dense updates.

The hosts are namespaces of this machine with links of 1 Gb/s (tests/cluster/hosts.py), of one rank each. The figures of
the paper (section 5) and its supplement, at sizes that take minutes here:

    5, S3   time to an objective over the size of W, under BSP and SSP(20)
    6, S5   MLR: objective over time, samples over time, objective over samples; by K, and under SSP(20)
    7, S4   speed-up by the number of hosts, under BSP and SSP(20)
    8       computing, and time in the exchange, by staleness
    9, S6   time to an objective over Q, under BSP and SSP(20); r: updates are relayed to all
    S7      bytes sent to that objective
    text    time to an objective by the number of words, of MLR on real text: who maintains a Debian package
    target  MLR of 4,000 classes and 5,000 features on 8 hosts, and Q = 4 of 7

All trainings of a figure with the same hosts run in one job, one after the other. A training ends at the objective that
the first training of its group has reached.

With --compute SECONDS the computing of a step takes one host at least that long. Several hosts, which share the samples
of a step in figures 7 and S4, each take their part of it. A host computes its real gradient, and then sleeps. So hosts
that share the cores of this machine scale like separate machines.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

if "OMP_NUM_THREADS" not in os.environ:
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # before NumPy; a host has one of two cores

import numpy as np
from mpi4py import MPI

import hpcomm
from bench.common.harness import as_rank
from bench.common.launch import ROOT, attend, launched, mpirun
from bench.common.options import add_output, add_quick, held, write
from bench.ops.cluster_bench import UNABLE
from bench.sfb.apps_plots import lines, panels
from hpcomm.bench import plots
from hpcomm.bench.rows import Row

sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "examples"))
from cluster.hosts import HEAD, Cluster, Unavailable
from factors import data, dml, job, mlr, sc, sdca
from factors.model import Model

LIMIT = 3600.0  # seconds of one job
MORE = 3  # times the first training's steps: the limit for the others of its group
SAMPLES, STORED = 4096, 30  # of synthetic data: samples, and nonzero values of each
STALE = 20  # the paper's
HOSTS = 4
L2 = 0.01
MODELS = ("mlr", "dml", "sc", "sdca")
TEXT = "text"
RATES = {"mlr": 50.0, "dml": 2.0, "sc": 5.0, "sdca": 1.0, TEXT: mlr.Regression.lr}  # of learning
WAYS = {"factors": job.FACTORS, "dense": job.DENSE}

try:  # whether updates can be relayed to ranks that no edge leads to
    hpcomm.PeerToPeer(hpcomm.graphs.ring(3), relay=True)
    RELAYS = True
except hpcomm.NotSupported:
    RELAYS = False


@dataclass(frozen=True)
class Training:
    """One training.

    Attributes:
        size: (J, D) of W, for mlr and sdca features x classes; for text the data give the classes.
        group: trainings of one group end at the objective of its first training.
        steps: of the group's first training; it limits the others too.
        stored: nonzero values of a sample.
        samples: the number of samples.
        noise: the share of samples with a random class.
        compute: the least seconds of computing in a step.
        data: a folder with the rows of text, instead of Debian's packages.
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
    relay: bool = False
    rate: float = 1.0  # a factor of the learning rate
    classes_first: bool = False
    stored: int = STORED
    every: int = 4
    samples: int = SAMPLES
    noise: float = 0.0
    compute: float = 0.0
    data: str = ""

    def made(self, ctx: hpcomm.Context) -> Model:
        (rows, columns), seed = self.size, 0
        if self.model in ("mlr", "sdca"):
            x = data.synthetic(self.samples, rows, columns, self.stored, seed)
            rng = np.random.default_rng(seed)
            any_class = rng.random(self.samples) < self.noise
            x.y[any_class] = rng.integers(columns, size=np.count_nonzero(any_class))
            if self.model == "mlr":
                return mlr.Regression(x, self.classes_first)
            part = (ctx.rank, ctx.size)
            return sdca.DualRegression(x, L2, self.classes_first, part=part, staleness=self.staleness)
        if self.model == "dml":
            x = data.synthetic(SAMPLES, columns, 50, self.stored, seed)
            first, second = np.random.default_rng(seed).integers(SAMPLES, size=(2, 4 * SAMPLES))
            second[::2] = (np.argsort(x.y, kind="stable")[np.searchsorted(np.sort(x.y), x.y)])[first[::2]]
            return dml.Metric(data.Pairs("synthetic", x.x, first, second, x.y[first] == x.y[second]), rows)
        if self.model == TEXT:
            return mlr.Regression(texts(ctx, self.data, rows, seed))
        return sc.Coding(data.patches(SAMPLES, seed), rows, "patches")


@cache
def texts(ctx: hpcomm.Context, folder: str, features: int, seed: int) -> data.Labelled:
    """Rank 0 reads. Collective."""
    read: data.Labelled = data.share(ctx, lambda: data.labelled(folder or None, features, None, seed))
    return read


# ---- the figures -----------------------------------------------------------------------------------------------------

SIZES: dict[str, list[tuple[int, int]]] = {
    "mlr": [(1000, 500), (2000, 1000), (4000, 2000)],
    "dml": [(128, 2500), (256, 5000), (512, 10000)],
    "sc": [(512, 256), (1024, 256), (2048, 256)],
    "sdca": [(1000, 500), (2000, 1000), (4000, 2000)],
    TEXT: [(2048, 0), (4096, 0), (8192, 0)],
}


def by_size(figure: str, staleness: int, models: Sequence[str] = MODELS) -> Iterator[Training]:
    for model in models:
        for size in SIZES[model]:
            one = Training(figure, model, size, f"{model} {size}", staleness=staleness)
            yield from (one, replace(one, way="dense"))


def by_pairs(figure: str, staleness: int, every: Sequence[int]) -> Iterator[Training]:
    """Scales steps by K, so that every K trains on as many samples."""
    for pairs in every:
        one = Training(figure, "mlr", SIZES["mlr"][1], f"mlr {pairs}", pairs=pairs, staleness=staleness)
        one = replace(one, steps=1600 // pairs)
        yield from (one, replace(one, way="dense"))


def by_hosts(figure: str, staleness: int) -> Iterator[Training]:
    """Keeps the samples and the number of steps for every number of hosts."""
    for model in MODELS:
        for hosts in (1, 2, 4, 8):
            size, pairs = SIZES[model][1], 256 // hosts
            yield Training(figure, model, size, model, hosts=hosts, pairs=pairs, staleness=staleness, every=1)


def by_staleness(figure: str) -> Iterator[Training]:
    for model in MODELS:
        for staleness in (0, 5, STALE):
            one = Training(figure, model, SIZES[model][1], f"{model} {staleness}", staleness=staleness)
            yield from (replace(one, group=model), replace(one, group=model, way="dense"))


NOISY: dict[str, Any] = {"size": (500, 50), "hosts": 8, "pairs": 16, "samples": 32768, "noise": 0.3, "stored": 20}


def by_degree(figure: str, staleness: int) -> Iterator[Training]:
    for model in ("mlr", "sdca"):
        more = {**NOISY, "samples": 8192} if model == "sdca" else NOISY
        for peers, relay in ((None, False), (4, True), (5, False), (4, False), (3, False), (2, False), (1, False)):
            if relay and (staleness or not RELAYS):
                continue
            one = Training(figure, model, group=model, peers=peers, relay=relay, staleness=staleness, steps=40, **more)
            yield replace(one, every=1 if model == "mlr" else 4)


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
    for peers, relay in ((None, False), (4, False), (4, True)):
        for rate in (3.2, 1.6, 6.4, 12.8):
            if RELAYS or not relay:
                one = Training(
                    figure, "mlr", group="Q", peers=peers, relay=relay, rate=rate, steps=20, every=1, **NOISY
                )
                yield one


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
    TEXT: partial(by_size, staleness=0, models=(TEXT,)),
    "target": targets,
}


# ---- a rank ----------------------------------------------------------------------------------------------------------


def trained(ctx: hpcomm.Context, one: Training, target: float | None) -> Row:
    """The row of a training. Collective."""
    model = one.made(ctx)
    plan = job.Plan(
        steps=one.steps if target is None else MORE * one.steps,
        pairs=one.pairs,
        lr=RATES[one.model] * one.rate,
        staleness=one.staleness,
        peers=one.peers,
        relay=one.relay,
        every=one.every,
        target=target,
        later=one.staleness > 0,
        compute=one.compute,
    )
    ctx.barrier()
    run = job.WAYS[WAYS[one.way]](ctx, model, plan, lambda step, objective: None)
    own = np.float64(run.points[-1][2] if ctx.rank == 0 else 0)
    aim = float(np.frombuffer(ctx.allgather(own.tobytes())[0])[0]) if target is None else target
    reached = run.reached(aim)
    seconds, waited, computed, sent, steps = np.array(run.ranks).mean(axis=0).tolist()
    return {
        **asdict(one),
        "size": model.shape if one.model == TEXT else one.size,
        "data": model.name,
        "target": aim,
        "seconds": None if reached is None else reached[1],
        "steps_to": None if reached is None else reached[0],
        "points": run.points,
        "run": {"seconds": seconds, "waited": waited, "computed": computed, "sent": sent, "steps": steps},
    }


def rank(path: Path, output: Path, progress: Path | None) -> int:
    """Runs a rank: trains by the list at path. MPI starts the ranks."""
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
    """Groups trainings by number of hosts. The job with the most hosts is first; the others train to its objectives."""
    for hosts in sorted({one.hosts for one in trainings}, reverse=True):
        yield hosts, [one for one in trainings if one.hosts == hosts]


def trainings(figure: str, options: argparse.Namespace) -> list[Training]:
    wanted = [
        replace(one, compute=options.compute / one.hosts, data=options.data or "") for one in FIGURES[figure](figure)
    ]
    if options.quick:
        sizes = {"sc": (64, 256)}
        wanted = [replace(one, steps=2, every=1, pairs=4, size=sizes.get(one.model, (64, 48))) for one in wanted]
    return wanted


def measure(figure: str, options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    for hosts, chosen in jobs(trainings(figure, options)):
        with tempfile.TemporaryDirectory() as folder, Cluster(hosts, rate=options.rate) as cluster:
            spec, output = Path(folder, "trainings.json"), Path(folder, "rows.json")
            aims = {row["group"]: row["target"] for row in rows}
            spec.write_text(json.dumps({"aims": aims, "trainings": [asdict(one) for one in chosen]}), encoding="utf-8")
            command = [*cluster.mpirun(path=mpirun(sys.executable)), sys.executable, "-m", "bench.sfb.apps"]
            command += ["--trainings", str(spec), "-J", str(output)]
            there = partial(cluster.popen, HEAD)
            title = f"figure {figure}, {hosts} hosts"
            status = attend(command, title, quiet=options.json, limit=LIMIT, popen=there)
            if status or not output.exists():
                raise SystemExit(f"sfb.apps: {title}: the ranks ended with status {status}")
            rows += json.loads(output.read_text(encoding="utf-8"))
    return rows


def alone(rows: Sequence[Row]) -> Row | None:
    """Times scikit-learn's LogisticRegression (L-BFGS), on one core of one host, to the objective of the targets'
    first training. It doubles the iterations until it gets there."""
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


# ---- the program -----------------------------------------------------------------------------------------------------


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m bench.sfb.apps", description=__doc__.partition("\n")[0])
    p.add_argument(
        "--figures",
        type=lambda text: text.split(","),
        default=list(FIGURES),
        help=f"which, of {','.join(FIGURES)}; S7 is a part of 5",
    )
    by_timer = "seconds of computing a step at least, shared by the hosts: so figures 7 and S4 show how hosts scale"
    p.add_argument("--compute", type=float, default=0.0, help=by_timer)
    of_text = f"figure {TEXT}: folder with 20 Newsgroups or svmlight rows; default: Debian's packages"
    p.add_argument("--data", type=lambda text: held(text, "rows"), help=of_text)
    p.add_argument("--rate", default="1gbit", help="of each host's link, as tc writes it")
    p.add_argument("--trainings", type=Path, help=argparse.SUPPRESS)  # for the ranks of a job
    add_quick(p, "tiny matrices, two steps")
    add_output(p, "curves")
    options = p.parse_args(arguments)
    if options.compute < 0:
        p.error(f"--compute is {options.compute:g}: must be 0 or more seconds")
    for figure in options.figures:
        if figure not in FIGURES:
            p.error(f"--figures is {figure!r}: must be some of {', '.join(FIGURES)}")
    return options


def begin(options: argparse.Namespace) -> int:
    document: Row = {"benchmark": "sfb.apps", "hpcomm": hpcomm.__version__, "rate": options.rate, "figures": {}}
    try:
        for figure in options.figures:
            rows = measure(figure, options)
            document["figures"][figure] = rows
            if figure == "target" and not options.quick:
                document["scikit-learn"] = alone(rows)
            if not options.json:
                print("\n".join(lines(figure, rows)), flush=True)
                if figure == "target" and document.get("scikit-learn"):
                    found = document["scikit-learn"]
                    print(f"# scikit-learn, one host: {found['seconds']:.1f} s, {found['iterations']} iterations")
            write(options, json.dumps(document, indent=1))  # kept if this run ends early
    except Unavailable as why:
        print(f"sfb.apps: no hosts here: {why}", file=sys.stderr)
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

"""Trees of updates (Parameter Flow, section 3.4 and figure 11): seconds in which owners' folds come to all ranks.

Only owners have updates, each of the elements that it owns, so only its fold travels. A step ends when the last rank
has applied all of it. The bound is the busiest link's: the folds that a host sends, over the link's rate.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import hpcomm
from bench.common.judge import Promise
from bench.common.launch import ROOT, attend, mpirun
from bench.ops.hosts_bench import carried
from hpcomm.bench.rows import Row

sys.path.insert(0, str(ROOT / "tests"))
from cluster.hosts import HEAD, Cluster

GROUP, RATE, BURST, HOSTS, CYCLES, STEPS = "trees", "1gbit", "256k", 8, 3, 3
MIB, QUICK_MIB = 32, 1
FLAT, BINARY, CHAIN, OWN = "flat", "degree 2", "chain", "a tree each, degree 2"
FIVE = "degree 5"  # the paper's
WAYS = (  # owners, way, share of the elements that are kept
    (1, FLAT, 1.0),
    (1, BINARY, 1.0),
    (1, FIVE, 1.0),
    (1, CHAIN, 1.0),
    (1, BINARY, 0.2),
    (1, FIVE, 0.2),
    (1, CHAIN, 0.2),
    (2, FLAT, 1.0),
    (2, BINARY, 1.0),
    (2, OWN, 1.0),
)
ASKED = {  # and the bound
    (1, BINARY, 1.0): (3.2, 3.5),
    (1, FIVE, 1.0): (None, 1.4),
    (1, CHAIN, 1.0): (6.0, 7.0),
    (1, BINARY, 0.2): (10.0, None),
    (1, FIVE, 0.2): (None, None),
    (1, CHAIN, 0.2): (None, None),
    (2, BINARY, 1.0): (1.5, 1.75),
    (2, OWN, 1.0): (3.0, 3.5),
}
PAPER = {"TSB": 1.7, "DVF and TSB": 4.8}  # with logistic regression, degree 5, depth 3


# ---- the ranks -----------------------------------------------------------------------------------------------------


def tree_of(way: str, owners: Sequence[int], size: int) -> Any:
    if way == OWN:
        return hpcomm.topology.trees_for(owners, size, degree=2)
    return {FLAT: None, BINARY: hpcomm.Tree(arity=2), FIVE: hpcomm.Tree(arity=5), CHAIN: hpcomm.Tree(arity=1)}[way]


def units(way: str, owners: Sequence[int], size: int) -> float:
    """Returns how many folds of the whole model the busiest host sends."""
    tree, sent = tree_of(way, owners, size), [0.0] * size
    for owner in owners:
        own = tree[owner] if isinstance(tree, dict) else tree
        above = [-1 if rank == owner else owner for rank in range(size)] if own is None else own.turned(owner, size)
        for parent in above:
            if parent >= 0:
                sent[parent] += 1 / len(owners)
    return max(sent)


def owned(ex: hpcomm.Exchange, rank: int, n: int) -> Any:
    """Whether a rank sums an element."""
    found = np.zeros(n, bool)
    for row in ex.plan.rows:
        if row.owner == rank and row.action == "forward" and row.in_edges[0].row < 0:
            found[row.offset : row.offset + row.count] = True
    return found


def steps(ctx: hpcomm.Context, owners: Sequence[int], way: str, kept: float, n: int, plant: bool) -> Row:
    rng = np.random.default_rng(ctx.rank)
    topology = hpcomm.ParameterServer("CS", owners, apply_at="receivers", tree=tree_of(way, owners, ctx.size))
    seconds = []
    with hpcomm.Exchange(
        ctx, {"w": np.zeros(n, np.float32)}, topology, rule=hpcomm.SGD(lr=1.0), reduce="sum",
        codec=hpcomm.codec.Threshold(0.0),
    ) as ex:  # fmt: skip
        mine, wanted = owned(ex, ctx.rank, n), np.zeros(n, np.float32)
        for _ in range(1 + STEPS):
            update = np.zeros(n, np.float32)
            if ctx.rank in owners:
                chosen = mine & (rng.random(n) < kept) if kept < 1 else mine
                update[chosen] = rng.standard_normal(int(chosen.sum()), np.float32)
                wanted -= update
            ctx.barrier()
            before = time.perf_counter()
            ex.push_pull("w", update)
            own = np.array([time.perf_counter() - before])
            seconds.append(float(np.max(np.frombuffer(b"".join(ctx.allgather(own.tobytes()))))))
        if plant:
            ex.params["w"][0] += 1
        same = len(set(ctx.allgather(zlib.crc32(ex.params["w"].tobytes()).to_bytes(4, "little")))) == 1
        right = bool((ex.params["w"][mine] == wanted[mine]).all())
    bad = sum(each[0] for each in ctx.allgather(bytes([not (same and right)])))
    return {"step": statistics.median(seconds[1:]), "wrong": bad}


def job(options: argparse.Namespace) -> None:
    rows = []
    with hpcomm.init(MPI.COMM_WORLD) as ctx:
        for cycle in range(options.cycles):
            for owners, way, kept in WAYS:
                row = steps(ctx, range(owners), way, kept, options.mib << 18, options.plant and ctx.rank == 1)
                row |= {"group": GROUP, "app": GROUP, "owners": owners, "way": way, "kept": kept, "cycle": cycle}
                rows.append(
                    {**row, "mib": options.mib, "units": units(way, range(owners), ctx.size), "ranks": ctx.size}
                )
                if ctx.rank == 0:
                    Path(options.output).write_text(json.dumps(rows), encoding="utf-8")
                    if options.progress is not None:
                        options.progress.write_text(f"{len(rows) / options.cycles / len(WAYS):.4f}")


# ---- the group -----------------------------------------------------------------------------------------------------


def measure(options: Any) -> list[Row]:
    """The rows of all cycles."""
    hosts, rate = options.hosts or HOSTS, options.rate or RATE
    mib = QUICK_MIB if options.quick else MIB
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(hosts, rate=rate, burst=options.burst or BURST) as cluster,
    ):
        output = Path(folder, "rows.json")
        command = [*cluster.mpirun(path=mpirun(sys.executable)), sys.executable, "-m", "bench.parameter_flow.trees"]
        command += ["--mib", str(mib), "--cycles", str(options.run_cycles or CYCLES), "-J", str(output)]
        command += ["--plant"] if options.plant else []
        status = attend(command, GROUP, quiet=options.json, limit=options.limit, popen=partial(cluster.popen, HEAD))
        if status:
            raise SystemExit(f"parameter_flow: {GROUP}: the ranks ended with status {status}")
        rows: list[Row] = json.loads(output.read_text(encoding="utf-8"))
    return [{**row, "rate": rate} for row in rows]


def of(rows: Sequence[Row], owners: int, way: str, kept: float) -> list[Row]:
    return [
        row for row in rows if row["group"] == GROUP and (row["owners"], row["way"], row["kept"]) == (owners, way, kept)
    ]


def ratios(rows: Sequence[Row], owners: int, way: str, kept: float) -> list[float]:
    """Returns, by cycle, the time of flat sends over this way's."""
    flat = {row["cycle"]: row["step"] for row in of(rows, owners, FLAT, 1.0)}
    return [flat[row["cycle"]] / row["step"] for row in of(rows, owners, way, kept) if row["cycle"] in flat]


def label(owners: int, way: str, kept: float) -> str:
    return f"{owners} owner{'s' if owners > 1 else ''}, {way}{f', {kept:.0%} kept' if kept < 1 else ''}"


def lines(document: Row) -> Iterator[str]:
    rows = document["rows"]
    first = next((row for row in rows if row["group"] == GROUP), None)
    if first is None:
        return
    yield f"\n# figure 11: {first['mib']} MiB of folds to all ranks, {first['ranks']} hosts, {first['rate']}"
    head = f"{'step (ms)':>10}{'bound (ms)':>11}{'x bound':>8}{'x flat':>8}"
    yield f"# {'way':34}{head}{'spread':>12}{'bound':>7}{'#wrong':>7}"
    for key in WAYS:
        own = of(rows, *key)
        if not own:
            continue
        step, each = statistics.median(row["step"] for row in own), ratios(rows, *key)
        bound = own[0]["units"] * key[2] * (own[0]["mib"] << 20) / carried(own[0]["rate"])
        most = ASKED.get(key, (None, None))[1]
        said = f"{1e3 * step:>10.0f}{1e3 * bound:>11.0f}{step / bound:>8.2f}{statistics.median(each):>8.2f}"
        spread, wrong = f"{min(each):.2f}..{max(each):.2f}", sum(row["wrong"] for row in own)
        yield f"  {label(*key):34}{said}{spread:>12}{'' if most is None else f'{most:.2f}':>7}{wrong:>7}"
    told = ", ".join(f"{name} {value}x" for name, value in PAPER.items())
    yield f"# the paper, logistic regression, degree 5: {told}"


def promises(document: Row) -> Iterator[Promise]:
    for key, (asked, _) in ASKED.items():
        each = ratios(document["rows"], *key)
        if asked is not None and each:
            flat = label(key[0], FLAT, 1.0)
            yield Promise(label(*key), "", flat, statistics.median(each), min(each), max(each), asked)


def panel(rows: Sequence[Row], axis: Any, app: str) -> None:
    """Draws the speed-ups over flat sends, beside the bounds."""
    keys = [key for key in WAYS if ratios(rows, *key) and key[1:] != (FLAT, 1.0)]
    places = range(len(keys))
    axis.barh([place + 0.2 for place in places], [statistics.median(ratios(rows, *key)) for key in keys], 0.4)
    bounds = [ASKED[key][1] or 0.0 for key in keys]
    axis.barh([place - 0.2 for place in places], bounds, 0.4, color="lightgray", label="bound")
    axis.set_yticks(list(places), [label(*key) for key in keys], fontsize="x-small")
    axis.set(title="Trees (figure 11)", xlabel="times as fast as flat sends")
    axis.legend(fontsize="small")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.parameter_flow.trees", description="A rank.")
    parser.add_argument("--mib", type=int, default=MIB)
    parser.add_argument("--cycles", type=int, default=CYCLES)
    parser.add_argument("--plant", action="store_true")
    parser.add_argument("-J", dest="output", required=True)
    parser.add_argument("--progress", type=Path, help="where the share that is done goes")
    job(parser.parse_args())

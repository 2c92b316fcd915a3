"""straggler: which ranks wait, and from which step on, when one rank is slower than all others (ASAP, sections 3 and
4).

Eight ranks compute for --seconds a step, by sleeping, and reduce over a sparse graph; one of them takes five times as
long. Under NOTIFY_ACK a rank waits only for its neighbours, so the slowness travels one edge a step.
hpcomm.graphs.first_wait predicts when it arrives at a rank, and this benchmark measures it. From then on the rank has
the straggler's rate. Under BARRIER all ranks do from the first step, and with a quorum of one in-neighbour no rank
does.

The straggler pushes its first update after --factor times --seconds. A rank that first waits because of it in step k
has computed at most k times --seconds by then, and waits for the rest: with these graphs and numbers, at least
--seconds. So a wait counts if it is at least half as long; the waits of the exchange itself are far shorter.

Last, all ranks wait for all under patience (section 5: a dynamic timeout), and the straggler stops after some steps.
Its usual slowness is learned, and ends no wait. Its stop does, after about --patience times the usual time of a push.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

import hpcomm
from bench.common.launch import attend, cores, launched, launcher
from bench.common.options import add_output, add_ranks, write
from hpcomm.bench import plots
from hpcomm.bench.rows import Row

RANKS, LIMIT = 8, 900.0  # seconds of all
ENOUGH = 12  # pushes after which their usual time is known
QUORUM = hpcomm.Consistency(quorum=1, late="drop", waits_for="neighbours", grace=0.001)


def run(ctx: hpcomm.Context, graph: hpcomm.graphs.Graph, consistency: hpcomm.Consistency, depth: int, o: Any) -> Row:
    """Takes steps of all ranks under one consistency. Returns their waits, the step in which each first waited (0:
    never), and the rates of the second half. Collective."""
    slow = o.factor if ctx.rank == o.straggler else 1.0
    params = {"w": np.zeros(o.weights, np.float32)}
    exchange = hpcomm.stochastic_reduce(ctx, params, topology=graph, consistency=consistency, depth=depth)
    waits, ends, wrong = np.zeros(o.steps), np.zeros(o.steps), 0
    ctx.barrier()
    for step in range(o.steps):
        time.sleep(o.seconds * slow)
        before = time.perf_counter()
        exchange.gradient("w")[:] = step
        mean = exchange.push_pull("w")
        ends[step] = time.perf_counter()
        waits[step] = ends[step] - before
        if consistency == hpcomm.NOTIFY_ACK:  # all inputs are of this step
            wrong += int(np.count_nonzero(np.abs(mean - step) > 1e-3))
    exchange.close(timeout=LIMIT)
    half = o.steps // 2
    rate = (o.steps - 1 - half) / (ends[-1] - ends[half])
    everyone = [np.frombuffer(part) for part in ctx.allgather(np.array([*waits, wrong, rate]).tobytes(), timeout=LIMIT)]
    waits, rates = np.array([row[:-2] for row in everyone]), [float(row[-1]) for row in everyone]
    wrong = int(sum(row[-2] for row in everyone))
    found = [np.flatnonzero(row > o.seconds / 2) for row in waits]
    predicted = [int(rank != o.straggler) for rank in range(ctx.size)]
    if consistency == hpcomm.NOTIFY_ACK:
        steps = hpcomm.graphs.first_wait(graph, o.straggler, depth)
        predicted = [int(step) if np.isfinite(step) else 0 for step in steps]
    if consistency == QUORUM:
        predicted = [0] * ctx.size
    first = [int(steps[0]) + 1 if len(steps) else 0 for steps in found]
    others = [rank for rank in range(ctx.size) if rank != o.straggler]
    return {
        "name": f"{graph.name}, {'quorum of 1' if consistency == QUORUM else consistency}, depth {depth}",
        "predicted": predicted,
        "first_wait": first,
        "rates": rates,
        "rate": float(np.mean([rates[rank] for rank in others]) / rates[o.straggler]),
        "waits": waits.tolist(),
        "elsewhere": sum(first[rank] != predicted[rank] for rank in others),
        "wrong": wrong,
    }


def stand_still(ctx: hpcomm.Context, o: Any) -> Row:
    """Returns, by rank, the usual time of a push, the waits that ended before the straggler stopped, and the seconds
    until its stop was reported (0 for the straggler). Collective."""
    slow, gradient = ctx.rank == o.straggler, np.ones(o.weights, np.float32)
    others = [rank for rank in range(ctx.size) if rank != o.straggler]
    window = ctx.window(8, signals=ctx.size)
    graph = hpcomm.graphs.complete(ctx.size)
    exchange = hpcomm.stochastic_reduce(
        ctx,
        {"w": gradient},
        topology=graph,
        consistency=hpcomm.NOTIFY_ACK,
        engine=hpcomm.EngineOptions(patience=o.patience),
    )
    early, told, named = 0, 0.0, True
    for _ in range(max(o.steps, ENOUGH)):
        time.sleep(o.seconds * (o.factor if slow else 1))
        try:
            exchange.push_pull("w", gradient)
        except hpcomm.Timeout:
            early += 1
            exchange.pull("w", timeout=LIMIT)
    usual = exchange.stats().usual
    if slow:
        until = time.monotonic() + LIMIT
        while missing := [rank for rank in others if not window.test_signal(rank, 1)]:  # a wait would work for others
            if time.monotonic() > until:
                raise SystemExit(f"straggler: ranks {missing} were not told of the stand in {LIMIT} s")
            time.sleep(0.005)
        exchange.push_pull("w", gradient, timeout=LIMIT)
    else:
        before = time.perf_counter()
        try:
            exchange.push_pull("w", gradient)
        except hpcomm.Timeout as late:
            told, named = time.perf_counter() - before, list(late.waiting_for) == [o.straggler]
        window.put_signal(o.straggler, np.zeros(0, np.uint8), signal=ctx.rank, value=1)
        exchange.pull("w", timeout=LIMIT)
    exchange.close(timeout=LIMIT)
    mine = np.array([usual, told, early, named])
    rows = np.array([np.frombuffer(part) for part in ctx.allgather(mine.tobytes(), timeout=LIMIT)])
    return {
        "patience": o.patience,
        "usual": rows[:, 0].tolist(),
        "told": rows[:, 1].tolist(),
        "early": int(rows[:, 2].sum()),
        "named": bool(rows[:, 3].all()),
    }


def table(document: Row) -> list[str]:
    lines = [
        f"# straggler: {document['ranks']} ranks on {document['cores']} cores, hpcomm {document['hpcomm']}; "
        f"rank {document['straggler']} takes {document['factor']:g} x {1e3 * document['seconds']:g} ms a step",
        f"{'who':40}{'first wait in step, by rank':34}{'predicted':34}{'elsewhere':>9}"
        f"{'rate / straggler':>18}{'#wrong':>8}",
    ]
    for row in document["rows"]:
        steps = [" ".join(f"{step or '-':>3}" for step in row[which]) for which in ("first_wait", "predicted")]
        lines.append(
            f"{row['name']:40}{steps[0]:34}{steps[1]:34}{row['elsewhere']:9}{row['rate']:18.3f}{row['wrong']:8}"
        )
    stand = document["stand"]
    others = [rank for rank in range(document["ranks"]) if rank != document["straggler"]]
    usual, told = (np.array(stand[name])[others] for name in ("usual", "told"))
    lines.append(
        f"patience {stand['patience']:g}: a push usually takes {usual.min():.3f} to {usual.max():.3f} s; "
        f"{stand['early']} waits ended early; a stand was told after {told.min():.2f} to {told.max():.2f} s, "
        f"{'and' if stand['named'] else 'NOT'} by the straggler's rank alone"
    )
    return lines


def steps_of_ranks(axis: Any, row: Row, factor: float, seconds: float) -> None:
    """Draws the wait of each rank in each step, over the straggler's delay in one; rings mark the predicted first
    waits."""
    behind = seconds * (factor - 1)
    waits = np.array(row["waits"]) / behind
    extent = (0.5, waits.shape[1] + 0.5, waits.shape[0] - 0.5, -0.5)  # steps are counted from 1
    shown = axis.imshow(waits, aspect="auto", cmap="Blues", vmin=0, vmax=1, extent=extent)
    for rank, step in enumerate(row["predicted"]):
        if step:
            axis.plot(step, rank, "o", mfc="none", color="tab:red")
    axis.set(title=row["name"], xlabel="step", ylabel="rank")
    axis.figure.colorbar(shown, ax=axis, label="wait over the straggler's delay in a step")


def panels(document: Row) -> list[plots.Draw]:
    factor, seconds = document["factor"], document["seconds"]
    return [partial(steps_of_ranks, row=row, factor=factor, seconds=seconds) for row in document["rows"]]


def on_this_rank(options: argparse.Namespace) -> int:
    rows = []
    with hpcomm.init(MPI.COMM_WORLD, transport=options.transport or None, timeout=300) as ctx:
        expander = hpcomm.graphs.root_expander(ctx.size)
        turns = [
            (expander, hpcomm.NOTIFY_ACK, 1),
            (expander, hpcomm.NOTIFY_ACK, 2),
            (hpcomm.graphs.ring(ctx.size), hpcomm.NOTIFY_ACK, 1),
            (expander, hpcomm.BARRIER, 1),
            (expander, QUORUM, 1),
        ]
        for i, (graph, consistency, depth) in enumerate(turns):
            rows.append(run(ctx, graph, consistency, depth, options))
            if options.progress is not None and ctx.rank == 0:
                options.progress.write_text(f"{(i + 1) / len(turns):.4f}")
        facts = {"benchmark": "straggler", "ranks": ctx.size, "cores": cores(), "hpcomm": hpcomm.__version__}
        stand = stand_still(ctx, options)
    if ctx.rank == 0:
        settings = {name: getattr(options, name) for name in ("straggler", "factor", "seconds", "steps")}
        mpi = MPI.Get_library_version().splitlines()[0].strip("\0 ")
        document = {**facts, **settings, "mpi": mpi, "rows": rows, "stand": stand}
        text = json.dumps(document, indent=1)
        write(options, text)
        if options.plot is not None:
            plots.figure(options.plot, panels(document), plots.title(document))
        print(text if options.json else "\n".join(table(document)), flush=True)
    return 1 if any(row["wrong"] for row in rows) or not stand["named"] else 0


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(
        prog="python -m bench.asap.straggler", description="Who waits for a slow rank, and when."
    )
    p.add_argument("-t", "--seconds", type=float, default=0.1, help="seconds that a rank computes in a step")
    p.add_argument("--factor", type=float, default=5.0, help="how many times longer the straggler computes")
    p.add_argument("--straggler", type=int, default=2, help="rank of the straggler")
    p.add_argument("-n", "--steps", type=int, default=16, help="steps of each run")
    p.add_argument("--weights", type=int, default=1 << 14, help="number of float32 in an update")
    p.add_argument("--patience", type=float, default=3.0, help="hpcomm.EngineOptions.patience of the last run")
    add_ranks(p, RANKS)
    add_output(p, plot="waits")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = p.parse_args(given)
    if launched():
        return on_this_rank(options)
    command = [*launcher(options.ranks, transport=options.transport), "bench.asap.straggler", *given]
    return attend(command, f"straggler, {options.ranks} ranks", limit=LIMIT)


if __name__ == "__main__":
    sys.exit(main())

"""recover: ranks are killed or leave at any step; the others go on over a rebuilt graph or with the living servers."""

import itertools
import math
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mpi
import numpy as np
import pytest

import hpcomm
from hpcomm import (
    SGD,
    Average,
    Checkpointer,
    CheckpointError,
    EngineOptions,
    Hierarchy,
    Momentum,
    ParameterServer,
    PlanOptions,
    graphs,
)
from hpcomm.checkpoint import files
from hpcomm.graphs import spectrum
from hpcomm.recovery import recovery

STEPS = 40
SIZE = 3000
GRAIN = 60  # of models, so that averages of them are whole numbers, and exact


def _kill(rank: int) -> None:
    if rank >= 0:
        os.kill(os.getpid(), signal.SIGKILL)


def _end(kind: str, ctx: hpcomm.Context) -> None:
    if "leave" not in kind:
        _kill(ctx.rank)
    ctx.close()


def _train(kind: str, victims: dict[str, int], folder: str) -> dict[str, Any] | None:
    """Every rank pushes what draws its parameters to its own number; a victim dies or leaves at its step, before, in or
    after its push. victims: rank (as a text) -> 3 * step + place."""
    if kind == "graph, without SciPy":
        spectrum.DENSE = 0
        sys.modules["scipy"] = None  # type: ignore[assignment]
    first = ctx = hpcomm.init(mpi.world())
    me, w0 = ctx.rank, {"w": np.zeros(SIZE, np.float32), "b": np.zeros(3, np.float32)}
    ckpt = None
    if kind.startswith("graph"):
        graph: Any = graphs.root_expander(ctx.size) if kind == "graph by its edges" else graphs.root_expander
        if kind == "graph leaves":
            graph = graphs.ring  # some wait for the leaver, and others for those
        ex = hpcomm.stochastic_reduce(ctx, w0, topology=graph, in_place=kind == "graph by its edges")
    else:
        servers = [0, 1] if kind in ("workers die", "workers leave") else [0, ctx.size - 1]
        ex = hpcomm.Exchange(ctx, w0, ParameterServer(servers=servers), rule=Momentum(lr=0.25, momentum=0.5))
        if kind == "a server dies":
            ckpt = Checkpointer(ex, folder, every=5)
    death = victims.get(str(me), -1)
    step, lost, clocks, gaps = 0, 0, [], []
    while step < STEPS:
        try:
            for place, name in enumerate(("w", "b")):
                if death == 3 * step + place:
                    _end(kind, first)
                    return None
                x = ex.gradient(name)
                if kind.startswith("graph"):
                    x[...] = GRAIN * me
                else:
                    x[...] = 12 * (me + 1) * (step + 1) if kind == "a server dies" else ex.params[name] - me
                ex.push(name)
            if death == 3 * step + 2:
                _end(kind, first)
                return None
            for name in ("w", "b"):
                ex.pull(name)
            step += 1
            if ckpt is not None:
                ckpt.after(step)
        except hpcomm.PeerFailed:
            ckpt = None
            recovered = hpcomm.recover(ex, checkpoint=folder if kind == "a server dies" else None)
            ex, step = recovered.exchange, recovered.clock
            lost += len(recovered.lost)
            clocks.append(step)
            gaps.append(recovered.gap)
    found = {name: [float(value.min()), float(value.max())] for name, value in ex.params.items()}
    ranks, clock = list(ex.context.ranks), ex.clock
    ex.close()
    ex.context.close()
    first.close()
    return {"ranks": ranks, "lost": lost, "found": found, "clocks": clocks, "clock": clock, "gaps": gaps}


def _run(n: int, kind: str, victims: dict[int, int], folder: Path, logged: str = "") -> list[dict[str, Any]]:
    ended = mpi.spawn(n, _train, kind, {str(r): at for r, at in victims.items()}, str(folder), check=False)
    left = [r for r in range(n) if r not in victims]
    for r in range(n):
        assert ended.codes[r] == (-signal.SIGKILL if r in victims and "leave" not in kind else 0), ended.err
    told = [ended.values[r] for r in left]
    for one in told:
        assert one["ranks"] == left
        assert one["lost"] == len(victims)
        assert one["clocks"] == told[0]["clocks"]  # an epoch that all have agreed on
        assert one["clock"] in (0, STEPS)
    assert logged in ended.err
    return told


@pytest.mark.some(3)
@pytest.mark.parametrize("kind", ["graph", "graph by its edges"])
@pytest.mark.parametrize("at", [6, 7, 8, 59, 113])  # all have made the exchange, and make a step after
def test_killed_at_any_step_the_others_go_on_over_the_rebuilt_graph(kind: str, at: int, tmp_path: Path) -> None:
    """The last reduce of a rank has the survivors' numbers alone: none of the dead one's."""
    told = _run(5, kind, {2: at}, tmp_path)
    # Thirds of a rank's own, the last one's and the one's before. By its edges, ranks 3 and 4 share rank 2's third
    # among those whom it took, ranks 1 and 0.
    kinds: dict[str, dict[int, tuple[float, ...]]] = {
        "graph": {0: (0, 4, 3), 1: (1, 0, 4), 3: (3, 1, 0), 4: (4, 3, 1)},
        "graph by its edges": {0: (0, 4, 3), 1: (1, 0, 4), 3: (3, 1, 0.5), 4: (4, 3, 0.5)},
    }
    for taken, one in zip(kinds[kind].values(), told, strict=True):
        assert one["found"] == dict.fromkeys(("w", "b"), [GRAIN / 3 * sum(taken)] * 2)


def test_two_ranks_die_one_after_the_other(tmp_path: Path) -> None:
    told = _run(6, "graph", {1: 20, 4: 70}, tmp_path)
    left = (0, 2, 3, 5)
    for i, one in enumerate(told):
        want = GRAIN / 3 * (left[i] + left[i - 1] + left[i - 2])
        assert one["found"]["w"] == [want, want]


def test_a_spectral_gap_that_cannot_be_computed_is_none(tmp_path: Path) -> None:
    told = _run(3, "graph, without SciPy", {1: 6}, tmp_path, logged="; spectral gap not computed")
    assert [one["gaps"] for one in told] == [[None], [None]]


def _no_graph() -> str:
    """Of the three that are left only rank 0 has no graph."""
    ctx = hpcomm.init(mpi.world())

    def of_four(n: int) -> Any:
        if n != 4 and ctx.rank == 0:
            raise ValueError("four racks only")
        return graphs.ring(n)

    ex = hpcomm.stochastic_reduce(ctx, {"w": np.zeros(8, np.float32)}, topology=of_four)
    try:
        for step in itertools.count():
            ex.push_pull("w", np.ones(8, np.float32))
            if (ctx.rank, step) == (2, 8):  # later than all have made the exchange
                _kill(2)
    except hpcomm.PeerFailed:
        try:
            hpcomm.recover(ex)
        except hpcomm.InvalidArgument as wrong:
            told = str(wrong)
    ctx.close()
    return told


def test_a_function_that_has_no_graph_of_those_left_is_told_everywhere() -> None:
    ended = mpi.spawn(4, _no_graph, check=False)
    why = "topology: of_four(3) cannot make a graph: four racks only"
    assert [ended.values[0] == why, *(why in str(ended.values[rank]) for rank in (1, 3))] == [True] * 3, ended


def _dies_meanwhile() -> list[Any] | None:
    """Rank 3 dies, and rank 1 in the recovery: when the others have a context with it."""
    world = mpi.world()
    assert world is not None
    first = hpcomm.init(world)
    ex = hpcomm.stochastic_reduce(first, {"w": np.full(8, 2.0**first.rank, np.float32)})
    ex.push_pull("w", np.ones(8, np.float32))
    world.allgather(b"made")  # some may still be in the first step of all when one has died
    with suppress(hpcomm.PeerFailed):
        while True:
            if first.rank == 3:
                _kill(3)
            ex.push_pull("w", np.ones(8, np.float32))
    if first.rank == 1:
        patch.object(recovery, "_over", lambda *_: _kill(1)).start()
    recovered = hpcomm.recover(ex)
    told = [recovered.lost, recovered.clock == recovered.exchange.clock, recovered.exchange.context.ranks]
    recovered.exchange.context.close()
    first.close()
    return told


def test_another_rank_dies_meanwhile() -> None:
    ended = mpi.spawn(5, _dies_meanwhile, check=False)
    assert ended.values == [[[1, 3], True, [0, 2, 4]] if rank in (0, 2, 4) else None for rank in range(5)], ended.err


def _dies_at_the_end(kind: str, late: tuple[int, ...], passed: bool, folder: str) -> dict[str, Any] | None:
    """Rank 2 dies, and rank 1 at the end of the recovery: those of late see it there. The others have the exchange
    without rank 2, and if passed have gone on with it; then those of late have it, too, and else not."""
    first, w0, serves = hpcomm.init(mpi.world()), {"w": np.zeros(8, np.float32)}, kind.startswith("servers")
    me = first.rank
    topo: Any = ParameterServer(servers=[2, 5] if kind == "servers, one dies" else [0, 3])
    if not serves:
        edges = [(rank, (rank + to) % 6) for rank in range(6) for to in (1, 2)]
        topo = graphs.from_edges(6, edges, [0.3, 0.1] * 6)  # what is left is rounded in another way if twice rebuilt
        topo = topo if kind == "graph" else [topo, graphs.ring(6)]
    ex = hpcomm.Exchange(first, w0, topo, rule=Momentum(lr=0.25, momentum=0.5))
    ckpt = Checkpointer(ex, folder, every=5) if serves else None
    news: list[hpcomm.recovery.Recovered] = []

    def step(ex: hpcomm.Exchange, n: int) -> None:
        if me == 2 and n == 8:
            _kill(2)
        if n == 6:
            ex.set(momentum=0.25)  # which the checkpoint of step 5 knows nothing of
        ex.push_pull("w", np.full(8, n + 1, np.float32))
        if ckpt is not None and n <= 5:
            ckpt.after(n + 1) if n < 5 else ckpt.close()

    def got() -> None:
        Path(folder, f"has-{me}").touch()
        while me == 1 and len(list(Path(folder).glob("has-*"))) < 5 - len(late):
            os.sched_yield()
        _kill(me if me == 1 else -1)

    def recovered(told: hpcomm.recovery.Recovered) -> None:
        news.append(told)
        if passed:
            got()

    def over(*args: Any) -> hpcomm.recovery.Recovered:
        patch.stopall()
        told = recovery._over(*args)
        if me in late:
            args[2].barrier()  # if passed the one that the others pass: this rank is not at its own yet
        elif not passed:
            got()
        return told

    patch.object(recovery, "_over", over).start()
    ex = hpcomm.run(ex, step, 12, recovered=recovered, checkpoint=folder)
    ended = {
        "told": [[list(one.lost), one.clock] for one in news],
        "ranks": ex.context.ranks,
        "graph": b"".join(phase.dense().tobytes() for phase in ex.graph).hex(),
        "rule": str(ex.rule),
        "w": ex.params["w"].tolist(),
    }
    ex.context.close()
    first.close()
    return ended


@pytest.mark.some(4)
@pytest.mark.parametrize(("late", "passed"), [((0, 4), False), ((3, 5), False), ((0, 4), True)])
@pytest.mark.parametrize("kind", ["graph", "graphs in turn", "servers", "servers, one dies"])
def test_another_rank_dies_when_only_some_have_the_new_exchange(
    kind: str, late: tuple[int, ...], passed: bool, tmp_path: Path
) -> None:
    """All agree, however many of the exchanges between each has had."""
    ended = mpi.spawn(6, _dies_at_the_end, kind, late, passed, str(tmp_path), check=False)
    left = [0, 3, 4, 5]
    assert [rank for rank in range(6) if ended.values[rank]] == left, ended.err
    clock = ended.values[0]["told"][-1][1]
    for rank in left:
        one = ended.values[rank]
        assert one["ranks"] == left
        assert one["graph"] == ended.values[0]["graph"]
        assert one["rule"] == str(Momentum(lr=0.25, momentum=0.25))
        once = rank in late or not passed
        first = [] if once else [[[2], one["told"][0][1]]]
        assert one["told"] == [*first, [[1, 2] if once else [1], clock]]
    if kind == "servers, one dies":
        assert clock == 5
    if kind.startswith("servers"):
        w = m = 0.0
        for n in range(12):
            m = (0.25 if n >= 6 else 0.5) * m + n + 1
            w -= 0.25 * m
        assert [ended.values[rank]["w"] for rank in left] == [pytest.approx([w] * 8)] * 4


@pytest.mark.parametrize("at", [6, 7])
def test_one_leaves_in_the_middle_and_the_others_go_on(at: int, tmp_path: Path) -> None:
    """On a ring only one rank waits for it; the others wait for each other, and are told."""
    told = _run(6, "graph leaves", {2: at}, tmp_path)
    left = [0, 1, 3, 4, 5]
    for i, one in enumerate(told):
        want = GRAIN / 2 * (left[i] + left[i - 1])
        assert one["found"]["w"] == [want, want]


HOSTS = [[0], [1, 2]]
LEFT: dict[str, tuple[Any, Any]] = {
    "receivers": (ParameterServer(apply_at="receivers"), hpcomm.BSP),
    "tree": (ParameterServer(apply_at="receivers", tree=hpcomm.Tree(arity=1)), hpcomm.BSP),
    "receivers on hosts": (Hierarchy(HOSTS, apply_at="receivers"), hpcomm.BSP),
    "hosts": (Hierarchy(HOSTS), hpcomm.BSP),
    "hosts, SSP": (Hierarchy(HOSTS), hpcomm.SSP(2)),
    "hosts, ASYNC": (Hierarchy(HOSTS), hpcomm.ASYNC),
    "hosts, quorum": (Hierarchy(HOSTS), hpcomm.Consistency(quorum=1, late="drop", grace=0.01)),
}


def _closes(folder: str, kinds: list[str]) -> list[Any]:
    """Rank 1 closes its context after three steps, while the others train on: what becomes of it, and of them."""
    told: list[Any] = []
    for kind in kinds:
        how, consistency = LEFT[kind]
        ctx = hpcomm.init(mpi.world(), timeout=20)
        ex = hpcomm.Exchange(
            ctx, {"w": np.zeros(SIZE, np.float32)}, how, consistency, progress="thread", plan=PlanOptions(cores=1)
        )
        ckpt = Checkpointer(ex, Path(folder, kind), every=1)
        try:
            for step in itertools.count():
                if (ctx.rank, step) == (1, 3):
                    ctx.close()
                    told.append("closed")
                    break
                ex.step({"w": np.ones(SIZE, np.float32)})
                ckpt.after(step + 1)
        except hpcomm.PeerFailed:
            with suppress(hpcomm.HpcommError):
                ckpt.close()
            found = hpcomm.recover(ex, checkpoint=Path(folder, kind))
            found.exchange.step({"w": np.ones(SIZE, np.float32)})
            found.exchange.close()
            found.exchange.context.close()
            told.append([found.lost, found.exchange.context.size])
    return told


@pytest.mark.some(1)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_one_closes_and_the_others_recover_at_once(transport: str, tmp_path: Path) -> None:
    """Before, the leaver waited in its close for those who waited in recover for it, until the timeout."""
    kinds = list(LEFT)
    ended = mpi.spawn(3, _closes, str(tmp_path), kinds, env={"HPCOMM_TRANSPORT": transport}, timeout=19)
    assert ended.values == [[[[1], 2]] * len(kinds), ["closed"] * len(kinds), [[[1], 2]] * len(kinds)]


@pytest.mark.parametrize(
    ("kind", "at"), [("workers die", 3), ("workers die", 4), ("workers die", 62), ("workers leave", 4)]
)
def test_a_lost_workers_part_is_dropped(kind: str, at: int, tmp_path: Path) -> None:
    """What all are drawn to is the mean of those that are left, and every rank has the same."""
    told = _run(4, kind, {3: at}, tmp_path)
    assert all(one["found"] == told[0]["found"] for one in told)
    if at < 30:
        assert told[0]["found"]["w"] == pytest.approx([1.0, 1.0], abs=1e-2)  # of 0, 1, 2


def test_a_dead_server_takes_the_job_back_to_the_last_checkpoint(tmp_path: Path) -> None:
    told = _run(4, "a server dies", {3: 3 * 23}, tmp_path)
    clock = told[0]["clocks"][0]
    assert clock in (5, 10, 15, 20)
    w = m = np.float32(0)
    for step in range(STEPS):  # the mean of 12, 24, 36 and, until then, 48
        gradient = np.float32((30 if step < clock else 24) * (step + 1))
        m = np.float32(0.5) * m + gradient
        w = w - np.float32(0.25) * m
    for one in told:
        assert one["found"] == {"w": [float(w)] * 2, "b": [float(w)] * 2}


def _dedicated(victim: int, folder: str) -> list[Any]:
    """One rank only serves; the workers have changed the learning rate before one rank dies."""
    first = ctx = hpcomm.init(mpi.world())
    me = ctx.rank
    ex = hpcomm.Exchange(ctx, {"w": np.zeros(8, np.float32)}, ParameterServer("NCC", servers=[0]), rule=SGD(lr=1.0))
    ckpt: Checkpointer | None = Checkpointer(ex, folder, every=3)
    step, rates = 0, []
    while True:
        try:
            if not ex.params:
                (ex if ckpt is None else ckpt).serve()
                break
            if step == 0:
                ex.set(lr=0.5)
            while step < 20:
                if me == victim and step == 10:
                    _kill(me)
                ex.push_pull("w", np.ones(8, np.float32))
                step += 1
                if ckpt is not None:
                    ckpt.after(step)
            break
        except hpcomm.PeerFailed:
            if ckpt is not None:
                with suppress(hpcomm.HpcommError):
                    ckpt.close()
                if me == victim:
                    _kill(me)
            ckpt = None
            recovered = hpcomm.recover(ex, checkpoint=folder)
            ex, step = recovered.exchange, recovered.clock
            assert isinstance(ex.rule, SGD)
            rates.append(ex.rule.lr)
    ended = [rates, step, [float(x) for x in ex.params["w"]] if ex.params else []]
    ex.close()
    ex.context.close()
    first.close()
    return ended


@pytest.mark.parametrize("victim", [2])
def test_a_rank_that_only_serves_keeps_the_rates_that_the_workers_have_set(victim: int, tmp_path: Path) -> None:
    ended = mpi.spawn(4, _dedicated, victim, str(tmp_path), check=False)
    assert ended.codes == [0, 0, -signal.SIGKILL, 0], ended.err
    assert [value[0] for value in ended.values if value] == [[0.5], [0.5], [0.5]]
    for rank in (1, 3):
        assert ended.values[rank][1:] == [20, [-10.0] * 8]


def _from_a_mixture(folder: str, whole: bool) -> tuple[int, float, str]:
    """Owners 0 and 2 save; rank 0 does not count its second step, so that files of one number are of two steps of the
    job. Rank 2 dies. whole: the checkpoint of the first step is still there."""
    ctx = hpcomm.init(mpi.world())
    w0, ones = ({name: np.full(8, value, np.float32) for name in "vw"} for value in (0, 1))
    ex = hpcomm.Exchange(ctx, w0, ParameterServer(servers=[0, 2]), rule=SGD(lr=1))
    with Checkpointer(ex, folder, every=1, keep=9) as ckpt:
        for step in range(1, 4):
            ex.step(ones)
            if step != 2 or ctx.rank > 0:
                ckpt.after(step - (step > 2 and ctx.rank == 0))
        ckpt._finish()
        ctx.barrier()
        for found in files.listed(Path(folder)) if ctx.rank == 0 and not whole else ():
            if found.step == 1:
                found.path.unlink()
        ctx.barrier()
    with suppress(hpcomm.PeerFailed):
        while True:
            ex.step(ones)
            _kill(2 if ctx.rank == 2 else -1)  # the others have left the barrier
    try:
        recovered = hpcomm.recover(ex, checkpoint=folder)
    except CheckpointError as wrong:
        return -1, math.nan, str(wrong)
    return recovered.clock, float(recovered.exchange.params["w"].sum() + recovered.exchange.params["v"].sum()), ""


@pytest.mark.parametrize("whole", [True, False])
def test_a_checkpoint_of_different_steps_is_not_recovered_from(whole: bool, tmp_path: Path) -> None:
    ended = mpi.spawn(3, _from_a_mixture, str(tmp_path), whole, check=False)
    assert ended.codes == [0, 0, -signal.SIGKILL], ended.err
    for told in ended.values[:2]:
        if whole:
            assert told == [1, -16.0, ""]
        else:
            assert re.search("step 2 mixes different steps of the job.*none before it is whole", told[2])
    assert (": it is left out" in ended.err) == whole


def _runs(goes_on: bool, at: int, least: int) -> list[Any]:
    """On a ring of five rank 2 dies when all have begun a step: in the last one three others have no need of it."""
    world = mpi.world()
    assert world is not None
    first = hpcomm.init(world)
    begun: list[int] = []
    lost: list[list[int]] = []

    def step(ex: hpcomm.Exchange, n: int) -> None:
        begun.append(n)
        if n == at and not lost:
            world.allgather(b"here")
            _kill(2 if first.rank == 2 else -1)
        ex.push_pull("w", ex.params["w"] + 1)

    made = hpcomm.stochastic_reduce(first, {"w": np.zeros(8, np.float32)}, topology=graphs.ring)
    raised: list[str] = []
    ranks: list[int] = []
    try:
        if goes_on:
            ex = hpcomm.run(made, step, 6, recovered=lambda news: lost.append(list(news.lost)), least=least)
        else:
            ex = made
            for n in range(6):
                step(ex, n)
        ranks = list(ex.context.ranks)
        ex.context.close()
    except hpcomm.PeerFailed as failed:
        raised.append(str(failed))
    first.close() if goes_on else first.abort("its test is over")
    return [ranks, lost, begun[-1], raised]


@pytest.mark.parametrize("at", [3, 5])
def test_run_goes_on(at: int) -> None:
    ended = mpi.spawn(5, _runs, True, at, 1, check=False)
    assert ended.codes == [0, 0, -signal.SIGKILL, 0, 0], ended.err
    for rank in (0, 1, 3, 4):
        assert ended.values[rank] == [[0, 1, 3, 4], [[2]], 5, []]


def test_a_loop_raises_and_so_does_run_if_too_few_are_left() -> None:
    for goes_on, least, message in ((False, 1, " failed ("), (True, 5, "4 are left, fewer than least=5")):
        ended = mpi.spawn(5, _runs, goes_on, 3, least, check=False)
        for rank in (0, 1, 3, 4):
            ranks, lost, last, raised = ended.values[rank]
            assert (ranks, lost) == ([], [])
            assert last >= 3  # they may be ahead of each other
            assert message in raised[0]


def _no_checkpoint() -> str:
    ctx = hpcomm.init(mpi.world())
    ex = hpcomm.Exchange(ctx, {"w": np.zeros(30000, np.float32)}, rule=Average())
    try:
        while True:
            ex.push_pull("w", np.ones(30000, np.float32))
            if ctx.rank == 2:
                _kill(2)
    except hpcomm.PeerFailed:
        with pytest.raises(CheckpointError, match="rank 2 owned parameters and is gone: give checkpoint"):
            hpcomm.recover(ex)
    ctx.close()
    return "told"


def test_a_dead_server_without_a_checkpoint_is_told_everywhere() -> None:
    ended = mpi.spawn(3, _no_checkpoint, check=False)
    assert ended.values[:2] == ["told", "told"], ended.err


def _frozen() -> dict[str, Any]:
    """Rank 1 stops for good after some steps; the context's own timeout is longer than the test."""
    ctx = hpcomm.init(mpi.world(), timeout=1000)
    window = ctx.window(8, signals=1)
    pid = ctx.peers[1].pid
    ex = hpcomm.stochastic_reduce(ctx, {"w": np.zeros(64, np.float32)}, engine=EngineOptions(patience=3.0))
    for _ in range(30):
        ex.push_pull("w", np.ones(64, np.float32), timeout=60)
    usual = ex.stats().usual
    if ctx.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    told: list[list[int]] = []
    while len(told) < 2:
        try:
            ex.push_pull("w", np.ones(64, np.float32))
        except hpcomm.Timeout as late:
            told.append(list(late.waiting_for))
    if ctx.rank == 2:
        window.put_signal(0, np.zeros(0, np.uint8), signal=0, value=1)
    else:
        window.wait_signal(0, 1, peer=2)
        os.kill(pid, signal.SIGKILL)
    return {"told": told, "usual": usual}


def test_a_learned_timeout_names_who_stands_still() -> None:
    ended = mpi.spawn(3, _frozen, check=False, timeout=60)
    for rank in (0, 2):
        assert ended.values[rank], ended.err
        assert ended.values[rank]["usual"] > 0
        assert ended.values[rank]["told"] == [[1], [1]]

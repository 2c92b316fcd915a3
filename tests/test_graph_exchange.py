"""Exchanges on node communication graphs, from Python: what comes out, what is counted, checkpoints, errors."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import mpi
import numpy as np
import pytest
from conftest import on_both, run_threads
from flat import grouped

import hpcomm
from hpcomm import (
    ASYNC,
    BARRIER,
    BSP,
    NOTIFY_ACK,
    SSP,
    Consistency,
    Exchange,
    Momentum,
    PeerFailed,
    PlanOptions,
    Timeout,
    stochastic_reduce,
)
from hpcomm.graphs import (
    Graph,
    chain,
    complete,
    from_edges,
    one_peer_exponential,
    random_matchings,
    ring,
    root_expander,
)

F32 = np.float32
SHAPES = {"w": (300, 7), "b": (5,), "scale": ()}
Topology = Graph | Sequence[Graph]
EXACT = (NOTIFY_ACK, BSP)
GRAIN = 60  # of updates, so that averages of up to six of them are whole numbers, and exact


def update(rank: int, step: int) -> dict[str, Any]:
    rng = np.random.default_rng(1000 * rank + step)
    return {name: (GRAIN * rng.integers(-8, 8, shape)).astype(F32) for name, shape in SHAPES.items()}


def zeros() -> dict[str, Any]:
    return {name: np.zeros(shape, F32) for name, shape in SHAPES.items()}


def graph_of(topology: Topology, step: int) -> Graph:
    phases = [topology] if isinstance(topology, Graph) else list(topology)
    return phases[step % len(phases)]


def averaged(topology: Topology, rank: int, step: int) -> dict[str, Any]:
    """What rank has after that step, from 0 on, when all push their updates as models."""
    row = graph_of(topology, step).dense()[rank]
    updates = [update(other, step) for other in range(len(row))]
    return {name: np.round(sum(row[j] * u[name].astype(float) for j, u in enumerate(updates))) for name in SHAPES}


def assert_same(have: Any, want: Any) -> None:
    for name in SHAPES:
        np.testing.assert_array_equal(have[name], want[name], err_msg=name)


def in_turn(ex: Exchange, rank: int, step: int) -> Any:
    """One step by each of the calls, in turn."""
    grads = update(rank, step)
    names = list(SHAPES) if rank % 2 else list(SHAPES)[::-1]
    if step % 3 == 0:
        return ex.step(grads)
    for name in names:
        if step % 3 == 1:
            ex.gradient(name)[...] = grads[name]
            ex.push_nb(name)
        else:
            ex.push_nb(name, grads[name])
    return {name: ex.pull(name) for name in names}


def check_counts(ex: Exchange, topology: Topology, rank: int, steps: int) -> None:
    stats = ex.stats()
    nbytes = sum(4 * value.size for value in zeros().values())
    weights = [graph_of(topology, step).dense() for step in range(steps)]
    degrees = [np.count_nonzero(p[rank]) - 1 for p in weights]
    assert stats.reduces > 0
    assert stats.reduces % (steps * len(SHAPES)) == 0
    each = stats.reduces // steps  # one for each key and core
    assert stats.whole == each * sum(degrees)
    assert (stats.torn, stats.stale, stats.missing) == (0, 0, 0)
    assert list(stats.by_inputs) == [each * degrees.count(n) for n in range(len(stats.by_inputs))]
    assert sum(stats.by_inputs) == stats.reduces
    assert stats.bytes_sent == sum(peer.bytes_sent for peer in stats.peers)
    for other, peer in enumerate(stats.peers):
        apart = other != rank
        assert peer.bytes_sent == apart * nbytes * sum(p[other, rank] != 0 for p in weights)
        assert peer.bytes_received == apart * nbytes * sum(p[rank, other] != 0 for p in weights)
        assert peer.wait >= 0


TOPOLOGIES: dict[str, Callable[[int], Topology]] = {
    "root expander": root_expander,
    "complete": complete,
    "chain": chain,
    "one peer": one_peer_exponential,
    "matchings": lambda n: random_matchings(n, 3),
    "list": lambda n: [ring(n), complete(n)],
}


@pytest.mark.some(8)
@on_both
@pytest.mark.parametrize("consistency", EXACT, ids=str)
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_step_is_the_weighted_average_of_that_step(name: str, consistency: hpcomm.Consistency) -> None:
    topology = TOPOLOGIES[name](5)

    def body(context: hpcomm.Context) -> None:
        with stochastic_reduce(context, zeros(), topology=topology, consistency=consistency, depth=2) as ex:
            assert ex.graph == ((topology,) if isinstance(topology, Graph) else tuple(topology))
            for step in range(7):
                assert_same(in_turn(ex, context.rank, step), averaged(topology, context.rank, step))
            check_counts(ex, topology, context.rank, 7)

    run_threads(5, body)


def trained(topology: Topology, ranks: int, step: int) -> dict[str, Any]:
    """The models of all ranks after so many steps of adding small numbers and averaging, by rank and then element.
    Halves of halves of them are exact, in 11 bits too."""
    models = {name: np.zeros((ranks, *shape)) for name, shape in SHAPES.items()}
    for s in range(step):
        for name, model in models.items():
            model += [update(rank, s)[name] % 2 for rank in range(ranks)]
            models[name] = np.tensordot(graph_of(topology, s).dense(), model, 1)
    return models


def push_in_turn(ex: Exchange, step: int) -> Any:
    """The same by each of the calls, in turn, without a gradient. By some of them the handles come last."""
    names = list(SHAPES)
    if step % 4 == 0:
        return dict(ex.step())
    if step % 4 == 1:
        return {name: ex.push_pull(name, ex.params[name]) for name in names}
    handles = [ex.push_pull_nb(name) if step % 4 == 2 else ex.push_nb(name) for name in names]
    while not handles[0].test():
        pass
    ended = {handle.name: handle.wait() for handle in handles}
    return ended if step % 4 == 2 else {name: ex.gradient(name) for name in names}


@on_both
@pytest.mark.parametrize(
    ("phases", "consistency", "codec"),
    [(1, NOTIFY_ACK, "float32"), (2, NOTIFY_ACK, "float32"), (1, BSP, "float16")],
    ids=str,
)
def test_models_are_trained_in_place(phases: int, consistency: hpcomm.Consistency, codec: str) -> None:
    topology = [ring(4), one_peer_exponential(4)[1]][:phases]

    def body(context: hpcomm.Context) -> None:
        options: Any = {"topology": topology, "consistency": consistency, "codec": codec, "depth": phases}
        with stochastic_reduce(context, zeros(), in_place=True, **grouped(options)) as ex:
            w = dict(ex.params)
            for step in range(7):
                for name, change in update(context.rank, step).items():
                    w[name] += change % 2
                before, w = w, push_in_turn(ex, step)
                want = trained(topology, context.size, step + 1)
                for name in SHAPES:
                    np.testing.assert_array_equal(w[name], want[name][context.rank])
                    assert w[name] is ex.params[name] is ex.gradient(name)
                    assert w[name].flags.writeable
                    assert w[name] is before[name] if codec == "float16" else not before[name].flags.writeable
            check_counts_of_models(ex, context, codec)

    run_threads(4, body)


def check_counts_of_models(ex: Exchange, context: hpcomm.Context, codec: str) -> None:
    """What was sent is the models as the codec has them, and a model may be pushed from an array of the trainer's."""
    nbytes = sum((4 if codec == "float32" else 2) * value.size for value in zeros().values())
    assert ex.stats().bytes_sent == 7 * nbytes
    context.barrier()
    mean = ex.push_pull("b", np.full(5, 4.0 * context.rank, F32))
    assert np.ptp(mean) == 0


@on_both
def test_a_checkpoint_has_what_was_trained_in_place() -> None:
    def body(context: hpcomm.Context) -> None:
        options: Any = {"topology": ring(2), "in_place": True}
        with stochastic_reduce(context, zeros(), **grouped(options)) as ex:
            for step in range(3):
                ex.params["b"][:] = context.rank + step
                ex.push_pull("b")
            ex.params["b"][:] += 10 * context.rank
            shard = ex.state_dict()
        with stochastic_reduce(context, zeros(), **grouped(options)) as again:
            again.step()
            again.load_state_dict(shard)
            np.testing.assert_array_equal(again.params["b"], np.full(5, 2.5 + 10 * context.rank))
            np.testing.assert_array_equal(again.push_pull("b"), np.full(5, 7.5))

    run_threads(2, body)


@on_both
def test_a_model_is_not_lost_in_a_timeout() -> None:
    def body(context: hpcomm.Context) -> None:
        with stochastic_reduce(context, zeros(), topology=ring(2), in_place=True) as ex:
            model = ex.params["b"]
            model += 4.0 * context.rank
            if context.rank == 0:
                with pytest.raises(Timeout, match="rank 1"):
                    ex.push_pull("b", timeout=0.05)
                context.barrier()
                mean = ex.pull("b")
            else:
                context.barrier()
                mean = ex.push_pull("b")
            assert mean is ex.params["b"] is not model
            np.testing.assert_array_equal(mean, np.full(5, 2))

    run_threads(2, body)


@pytest.mark.parametrize(("cores", "chunk"), [(1, 256), (2, 128), (5, 32), (100, 32)])
def test_chunks_are_large_but_enough_for_all_cores(alone: hpcomm.Context, cores: int, chunk: int) -> None:
    keys = {"w": np.zeros(3 << 16, F32), "b": np.zeros(1 << 16, F32)}  # 1 MiB
    with stochastic_reduce(alone, keys, plan=PlanOptions(cores=cores), progress="inline") as ex:
        assert set(ex.plan.rows.column("count").tolist()) == {chunk << 8}


@on_both
def test_gradients_go_into_ones_own_parameters() -> None:
    graph = ring(3)

    def body(context: hpcomm.Context) -> None:
        want, velocity = zeros(), zeros()
        with Exchange(context, zeros(), graph, NOTIFY_ACK, Momentum(lr=0.5, momentum=0.5)) as ex:
            for step in range(5):
                mean = averaged(graph, context.rank, step)
                for name in SHAPES:
                    velocity[name] = 0.5 * velocity[name] + mean[name]
                    want[name] = want[name] - 0.5 * velocity[name]
                assert_same(ex.step(update(context.rank, step)), want)

    run_threads(3, body)


def test_root_expander_under_notify_ack_is_the_default() -> None:
    def body(context: hpcomm.Context) -> None:
        with stochastic_reduce(context, zeros()) as ex:
            assert ex.graph == (root_expander(4),)
            ex.step(update(context.rank, 0))
            check_counts(ex, root_expander(4), context.rank, 1)

    run_threads(4, body)


@on_both
@pytest.mark.parametrize("consistency", EXACT, ids=str)
def test_fair_averages_keep_the_sum(consistency: hpcomm.Consistency) -> None:
    """Models that are averaged again and again, of which every average is whole, by weights that are fair."""
    topology = one_peer_exponential(4)
    first = [64 * (rank + 1) ** 3 for rank in range(4)]
    models: list[list[float]] = [[] for _ in range(4)]

    def body(context: hpcomm.Context) -> None:
        own = {name: np.full(shape, first[context.rank], F32) for name, shape in SHAPES.items()}
        with stochastic_reduce(context, zeros(), topology=topology, consistency=consistency) as ex:
            for _ in range(5):
                own = {name: value.copy() for name, value in ex.step(own).items()}
                assert all(np.ptp(value) == 0 for value in own.values())
                models[context.rank].append(float(own["scale"]))

    run_threads(4, body)
    for step in range(5):
        now = [models[rank][step] for rank in range(4)]
        assert sum(now) == sum(first)
        assert step == 0 or now == [sum(first) / 4] * 4, "the mean after one round, which stays"


# What is folded under the others: a rank's update is its step, as a digit of its own, in all elements. So an average
# tells of which updates it is, and a torn update shows.
DIGIT = 64  # above n * steps: averages of other numbers of updates have other digits


def folded(out: float, n: int, me: int, step: int) -> dict[int, int]:
    """The steps of the others' updates of which, with one's own of this step, this is the plain average, by rank."""
    for size in range(1, n + 1):
        total, rest = divmod(out * size, 6)
        digits = [int(total) // DIGIT**rank % DIGIT for rank in range(n)]
        found = {rank: sent for rank, sent in enumerate(digits) if sent and rank != me}
        if rest == 0 and total < DIGIT**n and digits[me] == step and len(found) == size - 1:
            return found
    raise AssertionError(f"{out} is the average of no updates that were sent")


@on_both
@pytest.mark.parametrize("consistency", [SSP(2), BARRIER, ASYNC], ids=str)
def test_what_is_late_is_whole_or_left_out(consistency: hpcomm.Consistency) -> None:
    """Every average is exactly that of one's own update and of some that the others have really sent, each rank's in
    order, and none of them twice but under SSP; as many as are counted."""
    n, steps = 3, 20
    late = consistency.staleness or 0

    def body(context: hpcomm.Context) -> None:
        me = context.rank
        inputs = {name: [0] * n for name in SHAPES}  # how many averages had so many
        received = [0] * n
        last = {name: [0] * n for name in SHAPES}
        with stochastic_reduce(
            context, zeros(), topology=complete(n), consistency=consistency, plan=PlanOptions(cores=1)
        ) as ex:
            if late:
                assert ex.plan.rows[0].depth == 4
            for step in range(1, steps + 1):
                out = ex.step({name: np.full(shape, 6 * step * DIGIT**me, F32) for name, shape in SHAPES.items()})
                for name, shape in SHAPES.items():
                    assert np.ptp(out[name]) == 0
                    taken = folded(float(out[name].reshape(-1)[0]), n, me, step)
                    new = {rank for rank, sent in taken.items() if sent > last[name][rank]}
                    assert new == set(taken) or late, "an update counts once"
                    assert all(sent >= last[name][rank] for rank, sent in taken.items())
                    if late and step > late:
                        assert len(taken) == n - 1
                        assert min(taken.values()) >= step - late
                    inputs[name][len(new)] += 1
                    for rank, sent in taken.items():
                        last[name][rank] = sent
                        received[rank] += 4 * int(np.prod(shape)) * (rank in new)
            stats = ex.stats()
            assert list(stats.by_inputs) == [sum(inputs[name][k] for name in SHAPES) for k in range(n)]
            assert [peer.bytes_received for peer in stats.peers] == received
            assert stats.reduces == steps * len(SHAPES) == sum(stats.by_inputs)
            assert stats.whole + stats.torn + stats.stale + stats.missing == (n - 1) * stats.reduces
            assert stats.whole == sum(k * count for k, count in enumerate(stats.by_inputs))
            context.barrier()

    run_threads(n, body)


@on_both
@pytest.mark.parametrize("consistency", [BARRIER, ASYNC], ids=str)
def test_models_that_agree_stay_the_same_whatever_is_left_out(consistency: hpcomm.Consistency) -> None:
    """With more neighbours, weights that differ, and phases."""
    graph = from_edges(
        4, [(0, 1), (2, 1), (3, 1), (1, 0), (1, 2), (2, 3), (0, 3)], [0.25, 0.25, 0.25, *[0.5] * 2, 0.25, 0.5]
    )

    def body(context: hpcomm.Context) -> None:
        for topology in (graph, [complete(4), ring(4)]):
            with stochastic_reduce(context, zeros(), topology=topology, consistency=consistency) as ex:
                for _ in range(15):
                    out = ex.step({name: np.full(shape, 96.0, F32) for name, shape in SHAPES.items()})
                    assert all((out[name] == 96).all() for name in SHAPES)

    run_threads(4, body)


def meet(ex: Exchange, met: list[int], rank: int, ranks: int) -> None:
    """As a barrier of threads, in which what a neighbour had no room for is sent."""
    met[rank] += 1
    end = time.monotonic() + 20
    while min(met[:ranks]) < met[rank]:
        assert time.monotonic() < end, f"rank {rank} waits for the others: {met}"
        ex.progress()


@on_both
@pytest.mark.parametrize("waits_for", ["neighbours", "all"])
def test_a_quorum_goes_on_without_a_straggler_and_tells_it(waits_for: Any) -> None:
    """A quorum counts neighbours, also where waits_for is "all"."""
    steps, more = 4, 200
    met, gone, told = [0, 0], threading.Barrier(3), threading.Event()
    consistency = Consistency(quorum=1, late="drop", waits_for=waits_for, grace=0.1)

    def mean(ranks: int, step: int) -> dict[str, Any]:
        updates = [update(rank, step) for rank in range(ranks)]
        return {name: sum(u[name].astype(float) for u in updates) / ranks for name in SHAPES}

    def body(context: hpcomm.Context) -> None:
        rank = context.rank
        with stochastic_reduce(
            context, zeros(), topology=complete(3), consistency=consistency, plan=PlanOptions(cores=1)
        ) as ex:
            for step in range(steps if rank < 2 else 0):
                assert_same(ex.step(update(rank, step)), mean(2, step))
                meet(ex, met, rank, 2)
            gone.wait(20)
            if rank < 2:
                stats = ex.stats()
                assert stats.missing == stats.whole == steps * len(SHAPES)
                assert stats.peers[2].bytes_received == stats.peers[2].late == 0 < stats.peers[2].dropped
                assert not told.is_set()
                while not told.is_set():
                    ex.progress()
                assert ex.stats().peers[2].late == len(SHAPES)
            else:
                assert_same(ex.step(update(2, 0)), mean(3, 0))
                assert ex.clock == 1
                while (stats := ex.stats()).dropped < 2 * len(SHAPES):
                    ex.progress()
                assert stats.dropped_at == steps
                assert [peer.dropped for peer in stats.peers] == [len(SHAPES), len(SHAPES), 0]
                assert (ex.late, ex.version()) == (tuple(SHAPES), 1)
                told.set()
            while ex.clock < steps + more:
                ex.step(update(rank, 0))
            assert rank == 2 or ex.stats().peers[2].bytes_received > 0

    run_threads(3, body)


@on_both
def test_a_checkpoint_goes_on_in_its_phase() -> None:
    topology = one_peer_exponential(5)
    shards: list[Any] = [None] * 5

    def before(context: hpcomm.Context) -> None:
        with stochastic_reduce(context, zeros(), topology=topology, rule=Momentum()) as ex:
            for step in range(4):
                ex.step(update(context.rank, step))
            shards[context.rank] = ex.state_dict()
            context.barrier()
            shards[context.rank] = (
                shards[context.rank],
                {name: value.copy() for name, value in ex.step(update(context.rank, 4)).items()},
            )

    def after(context: hpcomm.Context) -> None:
        shard, want = shards[context.rank]
        with stochastic_reduce(context, zeros(), topology=topology, rule=Momentum()) as ex:
            for _ in range(2):  # the next phase is not that of the checkpoint
                ex.step(update(context.rank, 9))
            ex.load_state_dict(shard)
            assert_same(ex.step(update(context.rank, 4)), want)

    run_threads(5, before)
    run_threads(5, after)


@on_both
def test_a_quorum_goes_on_from_a_checkpoint_where_it_is() -> None:
    met = [0, 0, 0]
    consistency = Consistency(quorum=1, late="drop", waits_for="neighbours", grace=0.1)

    def body(context: hpcomm.Context) -> None:
        rank = context.rank
        with stochastic_reduce(
            context, zeros(), topology=complete(3), rule=Momentum(), consistency=consistency, plan=PlanOptions(cores=1)
        ) as ex:
            for step in range(5 if rank < 2 else 0):
                ex.step(update(rank, step))
                meet(ex, met, rank, 2)
                if step == 2:
                    saved = ex.state_dict()
                    want = {name: value.copy() for name, value in ex.params.items()}
            if rank == 2:
                met[rank] = 5
                saved, want = ex.state_dict(), {name: value.copy() for name, value in ex.params.items()}
            meet(ex, met, rank, 3)
            for _ in range(2):
                ex.load_state_dict(saved)
                assert_same(ex.params, want)
                assert ex.clock == (3 if rank < 2 else 0)
                ex.step(update(rank, 9))
                assert ex.clock == (4 if rank < 2 else 1)
                meet(ex, met, rank, 3)
            assert ex.version() == 7

    run_threads(3, body)


@on_both
def test_waits_name_the_neighbour_that_has_not_pushed() -> None:
    done = threading.Event()

    def body(context: hpcomm.Context) -> None:
        with stochastic_reduce(context, zeros(), topology=ring(3), progress="thread") as ex:
            if context.rank == 2:
                ex.push_nb("w", update(2, 0)["w"])
                with pytest.raises(Timeout, match="rank 1"):
                    ex.pull("w", timeout=0.1)
                done.set()
            elif context.rank == 1:
                assert done.wait(20)
                ex.push_nb("w", update(1, 0)["w"])
            else:
                ex.push_nb("w", update(0, 0)["w"])
            ex.pull("w")

    run_threads(3, body)


@on_both
def test_a_rank_that_closes_early_is_named() -> None:
    def body(context: hpcomm.Context) -> None:
        ex = stochastic_reduce(context, zeros(), topology=chain(3))
        ex.step(update(context.rank, 0))
        if context.rank == 2:
            with pytest.raises(PeerFailed, match="rank 1 has closed the exchange after 1 pushes"):
                ex.step(update(2, 1))
        if context.rank == 0:  # nobody feeds it
            for step in range(1, 50):
                ex.step(update(0, step))
        if context.rank != 2:
            ex.close()
        context.barrier()
        if context.rank == 2:
            with pytest.raises(PeerFailed):
                ex.close()

    run_threads(3, body)


def train(steps: int) -> list[float]:
    with hpcomm.init(mpi.world()) as context:
        topology = root_expander(context.size)
        with stochastic_reduce(context, zeros(), topology=topology) as ex:
            for step in range(steps):
                assert_same(in_turn(ex, context.rank, step), averaged(topology, context.rank, step))
            check_counts(ex, topology, context.rank, steps)
            return [float(value.sum()) for value in ex.params.values()]


@pytest.mark.full
@on_both
def test_processes() -> None:
    values = mpi.run(4, train, 6)
    for rank, value in enumerate(values):
        want = averaged(root_expander(4), rank, 5)
        assert value == [want[name].sum() for name in SHAPES]

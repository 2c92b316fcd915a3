"""Pairs of vectors where hosts have several ranks (Poseidon, section 5.1): they go once to each host, where one rank
adds the products of all."""

import threading
from typing import Any

import numpy as np
import pytest
from conftest import Left, on_both, run_threads
from hypothesis import given, settings
from hypothesis import strategies as st
from test_factors import STEPS, dense, exchange, pairs_of, trained_by

import hpcomm
from hpcomm import ASYNC, SSP, Adam, Consistency, Hierarchy, InvalidArgument, Momentum, PeerToPeer, Plan, model
from hpcomm.codec import Factors
from hpcomm.graphs import from_edges
from hpcomm.topology import ParameterServer, Request

SHAPES = {"fc": (20, 33), "bias": (70,), "out": (9, 20)}
CODEC = {"fc": Factors(4, blocks=2), "out": Factors(3)}
HOSTS = [[0, 3], [1], [2, 4]]


def hosts_of(places: list[int]) -> list[list[int]]:
    return [[rank for rank, place in enumerate(places) if place == host] for host in sorted(set(places))]


def gradients(ctx: hpcomm.Context, step: int, seed: int = 0) -> dict[str, Any]:
    """Small whole numbers; with fewer pairs in some steps, and none."""
    found: dict[str, Any] = {}
    for name, codec in CODEC.items():
        k = int(np.random.default_rng([seed, ctx.rank, step]).integers(0, codec.K + 1))
        found[name] = pairs_of(ctx.rank, step, k, SHAPES[name], seed)
    return found | {"bias": pairs_of(ctx.rank, step, 1, SHAPES["bias"] * 2, seed)[0][0]}


@pytest.mark.some(2)
@on_both
@settings(max_examples=12)
@given(
    places=st.lists(st.integers(0, 2), min_size=2, max_size=5),
    cores=st.integers(1, 2),
    split=st.booleans(),
    rule=st.sampled_from([hpcomm.SGD(lr=0.5), Momentum(lr=0.5, momentum=0.5)]),
    seed=st.integers(0, 1 << 30),
)
def test_hosts_have_the_bits_of_dense_updates(places: list[int], cores: int, split: bool, rule: Any, seed: int) -> None:
    def body(ctx: hpcomm.Context) -> list[bytes]:
        found = []
        for topology, codec in (("flat", None), (Hierarchy(hosts_of(places)), CODEC)):
            with exchange(ctx, SHAPES, topology, codec, cores=cores, rule=rule, split=split) as ex:
                for step in range(STEPS):
                    given = gradients(ctx, step, seed)
                    for name in CODEC if codec is None else ():
                        given[name] = dense(given[name])
                    if not split:
                        ex.step(given)
                        continue
                    for name, value in given.items():
                        ex.split.fold(name, value)
                    found += [ex.split.gather(name).tobytes() for name in given]
                    found += [np.float64(sum(map(ex.split.squares, given))).tobytes()]
                    for name in given:
                        ex.split.apply(name)
                found += [value.tobytes() for value in ex.params.values()]
        return found

    for found in run_threads(len(places), body):
        assert found[: len(found) // 2] == found[len(found) // 2 :]


@given(
    places=st.lists(st.integers(0, 3), min_size=1, max_size=9),
    blocks=st.integers(1, 4),
    cores=st.integers(1, 2),
    data=st.data(),
)
def test_pairs_cross_once_to_each_host(places: list[int], blocks: int, cores: int, data: st.DataObject) -> None:
    hosts, size, shape = hosts_of(places), len(places), (64, 48)
    host_of = {rank: host for host in hosts for rank in host}
    leaders = [data.draw(st.sampled_from(host)) for host in hosts]
    leaders = data.draw(st.sampled_from([leaders, list(range(size))]))
    codec = Factors(2, blocks=blocks)
    topology = Hierarchy(hosts, (), leaders=leaders)
    plan = topology.compile(Request({"w": shape, "b": (64,)}, size, codec={"w": codec}, cores=cores))
    rows = plan.rows_of("w")
    for offset in {row.offset for row in rows}:
        its = [row for row in rows if row.offset == offset]
        assert sorted(places[row.owner] for row in its) == sorted(set(places))
        for row in its:
            assert row.owner in leaders
            assert [edge.rank for edge in row.in_edges] == list(range(size))
            assert sorted(edge.rank for edge in row.out_edges) == host_of[row.owner]
    load = model.load_of(plan, places, codecs=(codec, hpcomm.codec.Codec()))
    counted = [float(side[0].sum()) for side in load.by_host()]
    once = sum(codec.most_bytes(shape, row.count) for row in rows) / len(hosts)
    assert counted == [size * (len(hosts) - 1) * once] * 2


def test_one_rank_of_a_host_works_for_it() -> None:
    def body(ctx: hpcomm.Context) -> Any:
        with exchange(ctx, {"w": (32, 48)}, Hierarchy([[0, 1], [2, 3]]), Factors(2), rule=Adam()) as ex:
            ex.push_pull("w", pairs_of(ctx.rank, 0, 2, (32, 48)))
            stats = ex.stats()
        return stats.bytes_written, {one.rank for one in stats.traffic if one.stage == "push"}

    both = 4 * 32 * 48
    assert run_threads(4, body) == [(both, {2}), (0, {0, 2}), (both, {0}), (0, {0, 2})]


def test_checkpoints_go_from_hosts_to_servers_and_back() -> None:
    """Each way goes on from the state that the one before it has saved."""
    rule = Momentum(lr=0.5, momentum=0.5)
    shards: list[Any] = []

    def body(ctx: hpcomm.Context, topology: Any, start: int, steps: int) -> Any:
        with exchange(ctx, SHAPES, topology, CODEC, rule=rule) as ex:
            if start:
                ex.load_state_dict(shards)
            for step in range(start, start + steps):
                ex.step(gradients(ctx, step))
            return ex.state_dict(), {name: value.copy() for name, value in ex.params.items()}

    ways = (Hierarchy(HOSTS), ParameterServer(), PeerToPeer(), Hierarchy(HOSTS))
    for start, topology in enumerate(ways):
        found = run_threads(5, lambda ctx, t=topology, s=start: body(ctx, t, s, 1))  # type: ignore[misc]
        shards = [state for state, _ in found]
    once = run_threads(5, lambda ctx: body(ctx, "flat", 0, len(ways)))
    for (_, expected), (_, params) in zip(once, found, strict=True):
        assert all(np.array_equal(value, params[name]) for name, value in expected.items())


def test_a_rank_that_is_gone_may_have_reached_some_hosts() -> None:
    def body(ctx: hpcomm.Context) -> None:
        ex = exchange(ctx, SHAPES, Hierarchy(HOSTS), CODEC)
        if ctx.rank == 3:
            ex.step(gradients(ctx, 0))
            ctx.abort("test")
            raise Left

        def go_on() -> None:
            for step in range(100):
                ex.step(gradients(ctx, step))

        with pytest.raises(hpcomm.PeerFailed):
            go_on()
        with pytest.raises(hpcomm.CheckpointError, match="is gone, and copies of the parameters may differ"):
            hpcomm.recover(ex)
        raise Left

    run_threads(5, body, timeout=10)


def given_by(rank: int, step: int, codec: Any) -> dict[str, Any]:
    """Three pairs of each matrix, or their product; no more where step is negative."""
    found: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        pair = pairs_of(rank, step % 100, 3 if step >= 0 else 0, shape if len(shape) == 2 else shape * 2)
        found[name] = dense(pair)[0] if len(shape) == 1 else pair if name in (codec or {}) else dense(pair)
    return found


def params_after(updates: list[tuple[int, int]]) -> dict[str, Any]:
    """The parameters with these updates, each of a rank and a step."""
    given = [given_by(rank, step, None) for rank, step in updates]
    return {name: trained_by([one[name] for one in given]) for name in SHAPES}


@pytest.mark.parametrize("codec", [None, CODEC])
@pytest.mark.parametrize("racks", [(), [[0, 1, 2], [3, 4], [5]]])
def test_a_quorum_of_hosts_goes_on_without_a_late_one(racks: Any, codec: Any, transport: dict[str, Any]) -> None:
    """The rank that owns a chunk decides whose pairs count. Ranks 3 and 4 come two versions late, and then are in time
    with rank 5, so that ranks 0 to 2 are late. Rank 5 is alone: its pairs go straight to the owner."""
    early, last = (threading.Barrier(n, timeout=20) for n in (4, 6))
    passed, caught_up = threading.Event(), threading.Event()
    quorum = Consistency(quorum=2, late="drop", grace=0)
    first = [(rank, step) for step in (0, 1) for rank in (0, 1, 2, 5)]
    then = [(rank, 2) for rank in (3, 4, 5)]

    def same(ex: hpcomm.Exchange, updates: list[tuple[int, int]]) -> None:
        for name, value in params_after(updates).items():
            np.testing.assert_array_equal(ex.params[name], value, err_msg=name)

    def body(ctx: hpcomm.Context) -> None:
        topology = Hierarchy([[0, 1, 2], [3, 4], [5]] if not racks else [[0, 1], [2], [3, 4], [5]], racks)
        with exchange(ctx, SHAPES, topology, codec, consistency=quorum, progress="thread") as ex:
            late = ctx.rank in (3, 4)
            if late:
                assert passed.wait(20)
                ex.step(given_by(ctx.rank, 0, codec))
                assert (ex.version(), set(ex.late)) == (2, set(SHAPES))
                same(ex, first)
            for step in () if late else (0, 1):
                ex.step(given_by(ctx.rank, step, codec))
                assert (ex.version(), ex.late) == (step + 1, ())
                early.wait()
            passed.set()
            last.wait()
            if ctx.rank < 3:
                assert caught_up.wait(20)
            ex.step(given_by(ctx.rank, 2, codec))
            assert (ex.version(), set(ex.late)) == (3, set(SHAPES) if ctx.rank < 3 else set())
            same(ex, first + then)
            caught_up.set()
            last.wait()

    run_threads(6, body, **transport)


@pytest.mark.parametrize("consistency", [SSP(1), ASYNC])
def test_pairs_of_hosts_that_go_on_by_themselves_all_count(consistency: Any, transport: dict[str, Any]) -> None:
    def body(ctx: hpcomm.Context) -> None:
        with exchange(ctx, SHAPES, Hierarchy(HOSTS), CODEC, consistency=consistency) as ex:
            for step in range(STEPS):
                ex.step(given_by(ctx.rank, step, CODEC))
            ctx.barrier()
            ex.step(given_by(ctx.rank, -1, CODEC))  # its answer has the updates of all
            for name, value in params_after([(rank, step) for rank in range(5) for step in range(STEPS)]).items():
                np.testing.assert_array_equal(ex.params[name], value, err_msg=name)

    run_threads(5, body, **transport)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "16 bits": ({"codec_out": {"out": "float16"}}, "codec_out of 'out' is float16: parameters .* stay on"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_hosts_refuse(case: str) -> None:
    options, told = REFUSED[case]

    def body(ctx: hpcomm.Context) -> None:
        with pytest.raises(InvalidArgument, match=told):
            exchange(ctx, SHAPES, Hierarchy([[0, 1], [2]]), CODEC, **options)

    run_threads(3, body)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"sends": from_edges(3, [(0, 1)]).dense() != 0}, "hosts and sends are given"),
        ({"parents": np.arange(9, dtype=np.int32).reshape(3, 3) // 3}, "hosts and parents are given"),
        ({"leaders": [0]}, "the host of rank 2 has no rank that leads; name one"),
        ({"leaders": [0], "hosts": None}, "leads is given, and hosts is not"),
        ({"hosts": [[0, 1]]}, "rank 2 is in none of hosts"),
        ({"hosts": [[0, 1], [1, 2]]}, r"rank 1 is in hosts\[1\] and hosts\[0\]"),
    ],
)
def test_plans_that_cannot_be(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        Plan.peer_to_peer({"w": (4, 4)}, 3, **{"hosts": [[0, 1], [2]], **options})

"""Topologies as an exchange asks them: a stranger's class, and which keys form a scheme."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from conftest import Left, on_both, run_threads
from hypothesis import given

import hpcomm
from hpcomm import (
    ASYNC,
    BARRIER,
    BSP,
    NOTIFY_ACK,
    SSP,
    Consistency,
    Exchange,
    Hierarchy,
    InvalidArgument,
    ParameterServer,
    Tree,
    _core,
)
from hpcomm.consistency import goes_apart, with_servers
from hpcomm.exchange.options import EngineOptions
from hpcomm.exchange.schemes import Scheme, settled
from hpcomm.graphs import complete, ring, star
from hpcomm.plan import Key, Plan
from hpcomm.stage import as_keys
from hpcomm.topology import HostGraph, Job, PeerToPeer, Phases, Request, Topology
from hpcomm.topology.given import as_topology

F32 = np.float32


@dataclass(frozen=True)
class OddServe(Topology):
    """A stranger's topology: all ranks work, and those with odd numbers serve. beyond: ranks that the job has not."""

    beyond: tuple[int, ...] = ()
    renames: bool = False

    def roles(self, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return tuple(range(size)), (*range(1, size, 2), *self.beyond)

    def refuses(self, job: Job) -> str | None:
        return (
            f"consistency is {job.consistency}: odd ranks are never late, give BSP"
            if goes_apart(job.consistency)
            else None
        )

    def compile(self, request: Request) -> Plan:
        keys = request.keys
        if self.renames:
            keys = [Key(f"my {key.name}", key.shape) for key in as_keys(keys)]
        size, reduce, interfaces = request.size, request.reduce, request.interfaces
        return Plan.hub(keys, *self.roles(size), size, reduce=reduce, interfaces=interfaces, **request.cut)


def params() -> dict[str, Any]:
    return {"w": np.zeros((40, 10), F32), "b": np.zeros(7, F32)}


@on_both
@pytest.mark.parametrize("topology", [OddServe(), {"w": OddServe()}, {"b": OddServe(), "w": "flat"}])
def test_a_strangers_topology_trains(topology: Any) -> None:
    def body(ctx: hpcomm.Context) -> None:
        with Exchange(ctx, params(), topology, rule=hpcomm.SGD(lr=1), chunk_bytes=64) as ex:
            assert set(ex.plan.owners("b" if isinstance(topology, dict) and "b" in topology else "w")) == {1}
            for step in range(1, 4):
                ex.step({name: np.full(value.shape, ctx.rank + 1, F32) for name, value in params().items()})
                assert all((value == -2 * step).all() for value in ex.params.values())  # the mean of 1, 2 and 3

    run_threads(3, body)


@on_both
@pytest.mark.parametrize(
    ("topology", "consistency", "sentence"),
    [
        (OddServe(), ASYNC, "consistency is ASYNC: odd ranks are never late, give BSP"),
        (OddServe(), SSP(2), r"consistency is SSP\(2\): odd ranks are never late"),
        ({"b": OddServe()}, ASYNC, "key 'b': consistency is ASYNC: odd ranks are never late"),
        (OddServe(beyond=(7,)), BSP, "roles: a rank is 7: must be 0 to 2"),
        (OddServe(renames=True), BSP, r"key 0 is \('my w', \(40, 10\)\) in the plan and \('w', \(40, 10\)\) in params"),
        (OddServe, BSP, "cannot make a graph|is .*must be"),
    ],
)
def test_every_rank_hears_why_a_strangers_topology_is_refused(topology: Any, consistency: Any, sentence: str) -> None:
    def body(ctx: hpcomm.Context) -> None:
        wrong = ctx.rank == 2
        with pytest.raises(InvalidArgument, match=sentence):
            Exchange(ctx, params(), topology if wrong else OddServe(), consistency if wrong else BSP)
        with Exchange(ctx, params(), OddServe()) as ex:  # they still agree on what comes next
            ex.step(params())

    run_threads(3, body)


def until_lost(ex: Exchange) -> None:
    """Trains until rank 2, which serves nothing, leaves."""
    ex.step({name: value + 1 for name, value in params().items()})
    if ex.context.rank == 2:
        ex.context.barrier()
        ex.context.abort("test")
        raise Left

    def go_on() -> None:
        ex.context.barrier()  # rank 2 may be through, and gone, before the others are
        while True:
            ex.step({name: value + 1 for name, value in params().items()})

    with pytest.raises(hpcomm.PeerFailed):
        go_on()


@on_both
def test_a_strangers_topology_goes_on_when_a_rank_has_left() -> None:
    def body(ctx: hpcomm.Context) -> None:
        ex = Exchange(ctx, params(), OddServe(), rule=hpcomm.SGD(lr=1), progress="inline")
        until_lost(ex)
        fresh = hpcomm.recover(ex).exchange
        assert (fresh.plan.workers, fresh.plan.servers) == ((0, 1), (1,))
        before = {name: value.copy() for name, value in fresh.params.items()}
        fresh.step({name: value + 1 for name, value in params().items()})
        assert all((fresh.params[name] == value - 1).all() for name, value in before.items())
        fresh.context.close()
        raise Left

    run_threads(3, body, timeout=10)


@on_both
def test_a_plan_is_not_rebuilt() -> None:
    """Nobody hangs: all that are left hear the same."""

    def body(ctx: hpcomm.Context) -> None:
        ex = Exchange(
            ctx, params(), plan=OddServe().compile(Request(params(), 3)), rule=hpcomm.SGD(lr=1), progress="inline"
        )
        until_lost(ex)
        with pytest.raises(hpcomm.NotSupported, match="recover: the exchange was made from a Plan"):
            hpcomm.recover(ex)
        raise Left

    run_threads(3, body, timeout=10)


class Placed:
    """Stands in the place of a context whose ranks share hosts, which a test on one host has not."""

    hosts, racks, size = (0, 0, 2, 2), ("",) * 4, 4


def schemes_of(names: Iterable[str], topology: Any, consistency: Any) -> tuple[Scheme, ...]:
    rules = dict.fromkeys(names, hpcomm.Average())
    return settled(Placed(), topology, consistency, EngineOptions(), rules)  # type: ignore[arg-type]


SERVED: list[Any] = ["flat", "auto", Hierarchy(), ParameterServer("CC"), OddServe()]
OTHERS: list[Any] = [ring(4), (ring(4),), ring, complete(4), [ring(4), complete(4)], HostGraph()]


@given(st.data())
def test_keys_form_schemes_by_graph_and_consistency(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from("abcdefg"), min_size=1, unique=True))
    some = st.lists(st.sampled_from(names), unique=True)
    topology = {name: data.draw(st.sampled_from(SERVED + OTHERS)) for name in data.draw(some)}
    consistency = {
        name: data.draw(st.sampled_from([BSP, NOTIFY_ACK, SSP(2)]))
        for name in data.draw(some)
        if not isinstance(topology.get(name), OddServe | HostGraph)
    }
    found = schemes_of(names, topology, consistency)
    assert sorted(name for scheme in found for name in scheme.names) == sorted(names)  # each key is in one
    assert [scheme.names[0] for scheme in found] == sorted((s.names[0] for s in found), key=names.index)
    assert all(list(scheme.names) == sorted(scheme.names, key=names.index) for scheme in found)
    of = {name: scheme for scheme in found for name in scheme.names}

    def kind(name: str) -> tuple[Any, ...]:
        one, its = as_topology(topology.get(name, "flat")), consistency.get(name, BSP)
        if one.updates_of in ("neighbours", "hosts"):
            return one, its if one.updates_of == "neighbours" else with_servers(its)
        return None, with_servers(its)

    for a in names:
        assert of[a].consistency == kind(a)[1]
        for b in names:
            assert (of[a] is of[b]) == (kind(a) == kind(b))


HOSTS = ((0, 1), (2, 3))


@pytest.mark.parametrize(
    "topology",
    [ParameterServer(apply_at="receivers"), Hierarchy(HOSTS), PeerToPeer(), "flat"],
    ids=["receivers", "hosts", "peers", "flat"],
)
def test_an_update_that_was_waited_for_is_whole_but_on_graphs(topology: Any) -> None:
    """So BARRIER and NOTIFY_ACK have the bits of BSP."""

    def body(ctx: hpcomm.Context) -> list[bytes]:
        lot, found = np.random.default_rng(ctx.rank), []
        grads = [
            {name: lot.standard_normal(value.shape).astype(F32) for name, value in params().items()} for _ in range(3)
        ]
        for consistency in (BSP, NOTIFY_ACK, BARRIER):
            with Exchange(ctx, params(), topology, consistency, hpcomm.Adam(), progress="inline") as ex:
                for grad in grads:
                    ex.step(grad)
                found.append(b"".join(value.tobytes() for value in ex.params.values()))
        return found

    for its in run_threads(4, body):
        assert its == its[:1] * 3


def test_schemes_know_their_hosts_and_their_graphs() -> None:
    auto, async_, graph = schemes_of("abcd", {"c": star, "a": "auto", "b": "auto"}, {"b": SSP(2)})
    hosts = Hierarchy([[0, 1], [2, 3]], [])
    plan = auto.topology.compile(Request({"a": 10, "d": 10}, 4))
    assert (auto.names, async_.names, graph.names) == (("a", "d"), ("b",), ("c",))
    assert plan.rows_of("a") == tuple(hosts.compile(Request({"a": 10}, 4)).rows)
    assert async_.topology == ParameterServer()
    assert graph.topology.graphs(4) == (star(4),)
    assert graph.among([1, 2, 3], 4).topology.graphs(3) == (star(3),)  # made anew


def test_equal_graphs_are_one_topology() -> None:
    assert as_topology(ring(4)) == as_topology([ring(4)]) == Phases((ring(4),))
    assert as_topology(ring(4)) != as_topology(complete(4))
    assert as_topology(ring) == as_topology(ring) != as_topology(ring(4))


@pytest.mark.parametrize(("left", "quorum"), [([0, 1, 2], 3), ([1, 3], 2), ([2], 1)])
def test_a_quorum_is_at_most_of_those_that_are_left(left: list[int], quorum: int) -> None:
    found = Scheme(("a",), ParameterServer(), Consistency(quorum=3)).among(left, 4)
    assert found == Scheme(("a",), ParameterServer("CS", range(len(left))), Consistency(quorum=quorum))
    tree = Hierarchy([[0, 1], [2, 3]])
    assert Scheme(("a",), tree, Consistency(quorum=2)).among([2, 3], 4).consistency.quorum == 1  # one host


@pytest.mark.parametrize(
    ("topology", "cores", "codec", "kib"),
    [
        (ParameterServer(), 2, "float32", 32),
        (ParameterServer(), 2, hpcomm.codec.TopK(0.1), 128),  # each of four cores has eight chunks
        (ParameterServer("CC"), 1, hpcomm.codec.TopK(0.1), 512),
        (ParameterServer(), 64, hpcomm.codec.TopK(0.1), 32),
        (Hierarchy([[0], [1]]), 2, "bfloat16", 64),
        (Hierarchy([[0], [1]]), 2, hpcomm.codec.TopK(0.1), 128),
        (Tree(), 2, "float32", 128),
        (Tree(), 2, hpcomm.codec.TopK(0.1), 256),
        (HostGraph(hosts=((0,), (1,))), 1, "float32", 256),
        (HostGraph(hosts=((0,), (1,))), 2, hpcomm.codec.TopK(0.1), 128),
        (Phases((ring(2),)), 1, "float32", 256),
        (Phases((ring(2),)), 16, "float32", 64),  # each has four chunks
        (Phases((ring(2),)), 1, hpcomm.codec.TopK(0.1), 256),
    ],
)
def test_each_topology_has_its_size_of_chunks(topology: Topology, cores: int, codec: Any, kib: int) -> None:
    """Keys of 4 MiB on two ranks."""
    plan = topology.compile(Request({"w": 1 << 20}, 2, cores=cores, codec=codec))
    assert set(plan.rows.column("count").tolist()) == {kib * 256}


MEASURED = Hierarchy([[0, 1], [2]], racks=[[0, 1], [2]], bandwidths="measured")


@pytest.mark.parametrize(
    ("options", "times"),
    [
        ({}, 1),
        ({"codec": {"w": "float16", "b": hpcomm.codec.TopK(0.1)}}, 1),
        ({"topology": MEASURED}, 1),
        ({"topology": {"w": ring, "b": MEASURED}}, 2),  # two schemes
        ({"topology": MEASURED, "codec": "auto"}, 2),  # the choice asks a plan with the codecs that it may take
        ({"topology": {"w": ring, "b": MEASURED}, "codec": {"b": "auto"}}, 3),
    ],
)
def test_a_scheme_has_one_plan_made(options: dict[str, Any], times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although rank 0 alone is inline, so that no rank knows its cores at first."""
    made: list[str] = []
    real = _core.plan_of

    def counted(planner: str, given: Any) -> Any:
        made.append(planner)
        return real(planner, given)

    monkeypatch.setattr(_core, "spare_cores", lambda *_: 2)
    monkeypatch.setattr(_core, "plan_of", counted)

    def body(ctx: hpcomm.Context) -> None:
        progress: Any = "auto" if ctx.rank else "inline"
        with Exchange(ctx, params(), rule=hpcomm.SGD(lr=1), progress=progress, **options):
            pass

    run_threads(3, body)
    assert len(made) == 3 * times


def test_the_engine_tells_the_facts_of_each_key() -> None:
    def rank(ctx: hpcomm.Context) -> dict[str, set[str]]:
        params = {name: np.zeros(8, np.float32) for name in ("flat", "stale", "peers", "some", "graph", "few")}
        topology: dict[str, Any] = {
            "peers": PeerToPeer(),
            "some": PeerToPeer(hpcomm.graphs.from_edges(3, [(0, 1), (1, 2), (2, 0)])),
            "graph": hpcomm.graphs.root_expander,
        }
        consistency = {"stale": SSP(2), "few": hpcomm.Consistency(quorum=2, late="drop")}
        rules = {name: hpcomm.Average() if name == "graph" else hpcomm.SGD(lr=1) for name in params}
        with hpcomm.Exchange(ctx, params, topology, consistency, rules) as ex:
            every = {name: asdict(its) for name, its in ex._state.facts.items()}
            assert len({its["scheme"] for its in every.values()}) == len(params)
            rank_facts = {"one_slot", "takes_writes", "keeps_back", "scheme"}
            return {name: {fact for fact in its.keys() - rank_facts if its[fact]} for name, its in every.items()}

    for found in run_threads(3, rank):
        assert found == {
            "flat": {"counts_folds", "in_step"},
            "stale": {"counts_updates", "settles"},
            "peers": {"peers", "copied", "counts_folds", "in_step"},
            "some": {"peers", "own", "counts_folds", "in_step"},
            "graph": {"graph", "own", "counts_folds", "in_step"},
            "few": {"counts_folds", "counts_versions", "jumps"},
        }

"""Hierarchy: levels by hand and of a context, what is left after a loss, when racks pay, and what "auto" takes."""

from typing import Any

import numpy as np
import pytest
from conftest import on_both, run_threads

import hpcomm
from hpcomm import ConfigError, Hierarchy, InvalidArgument, ParameterServer, launch
from hpcomm.consistency import with_servers
from hpcomm.exchange.options import EngineOptions
from hpcomm.exchange.schemes import settled
from hpcomm.model import Bandwidths, racks_pay
from hpcomm.plan import Plan
from hpcomm.topology import Request
from hpcomm.topology.automatic import automatic
from hpcomm.topology.by_key import ByKey

KEYS = {"w": (300, 11), "b": 7}


# ---- levels --------------------------------------------------------------------------------------------------------


def test_levels_by_hand() -> None:
    hosts, racks = ((0, 1), (2, 3), (4,), (5,)), ((0, 1, 2, 3), (4, 5))
    assert Hierarchy(hosts).levels(6) == [hosts]
    assert Hierarchy(hosts, racks).levels(6) == [hosts, racks]
    assert Hierarchy(racks=[[[0, 1], [2, 3]], [[4], [5]]]).levels(6) == [hosts, racks]
    assert Hierarchy(hosts, [[[0, 1], [2, 3]], [4, 5]]).levels(6) == [hosts, racks]
    assert Hierarchy(hosts, []).levels(6) == [hosts]
    assert Hierarchy(hosts).compile(Request(KEYS, 6, cores=2)) == Plan.hosts(KEYS, [hosts], 6, cores=2)
    ring = Hierarchy(hosts, racks, leaders=[0, 2, 5, 4], top="ring")
    assert ring.roles(6) == (tuple(range(6)), (0, 2, 4, 5))
    assert ring.compile(Request(KEYS, 6)) == Plan.hosts(KEYS, [hosts, racks], 6, leaders=[0, 2, 4, 5], top="ring")


def test_levels_of_a_context() -> None:
    names = ("a", "a", "b", "b", "b")
    assert Hierarchy().settled((0, 0, 2, 2, 4), names).levels(5) == [((0, 1), (2, 3), (4,)), ((0, 1), (2, 3, 4))]
    assert Hierarchy().settled((0, 1, 0, 1), ("",) * 4).levels(4) == [((0, 2), (1, 3))]
    assert Hierarchy().settled((0, 1, 0, 1), ("a", "", "a", "a")).levels(4) == [((0, 2), (1, 3))]  # one does not know
    assert Hierarchy().settled((0, 1), ("a", "a")).levels(2) == [((0,), (1,))]  # one rack is none
    assert Hierarchy(racks=()).settled((0, 0, 2, 2, 4), names).levels(5) == [((0, 1), (2, 3), (4,))]
    assert Hierarchy([[0], [1]]).settled((0, 0), ("", "")).levels(2) == [((0,), (1,))]


def test_racks_by_hand_meet_hosts_of_a_context() -> None:
    with pytest.raises(InvalidArgument, match=r"hosts\[0\], ranks \(0, 2\), is split by racks\[0\] and racks\[1\]"):
        Hierarchy(racks=[[0, 1], [2, 3]]).settled((0, 1, 0, 1), ("",) * 4).levels(4)


hierarchy: Any = Hierarchy  # which takes here what its types forbid
bandwidths: Any = Bandwidths


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: hierarchy(3), "hosts is 3: must be a sequence of ranks"),
        (lambda: hierarchy([[0, "1"]]), r"hosts\[0\] is '1': must be an int"),
        (lambda: hierarchy("01"), "hosts is '01': must be a sequence of ranks"),
        (lambda: hierarchy(racks=[0, 1]), r"racks\[0\] is 0: must be a sequence of ranks"),
        (lambda: hierarchy(top="tree"), "top is 'tree': must be one of 'sharded', 'ring'"),
        (lambda: hierarchy(leaders=2), "leaders is 2: must be a sequence of ranks"),
        (lambda: hierarchy(bandwidths=1e9), "bandwidths is 1000000000.0: must be a Bandwidths"),
        (lambda: bandwidths(0, 1), "bandwidths: host is 0: must be a number above 0"),
        (lambda: bandwidths(1, None), "bandwidths: core is None: must be a number above 0"),
        (lambda: hierarchy().levels(2), "hosts is None"),
        (lambda: hierarchy([]).levels(2), "hosts is empty"),
        (lambda: hierarchy([[0], []]).levels(2), r"hosts\[1\] is empty"),
        (lambda: hierarchy([[0]]).levels(2), "rank 1 is in none of hosts"),
        (lambda: hierarchy([[0, 1]], [[0]]).levels(2), "rank 1 is in none of racks"),
        (lambda: hierarchy([[0], [1]], [[0, 1], [1]]).levels(2), r"rank 1 is in racks\[1\] and racks\[0\]"),
        (lambda: hierarchy([[0, 1], [2]], leaders=[0]).roles(3), r"none of them is on hosts\[1\], \(2,\)"),
    ],
)
def test_refusals(make: Any, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        make()


# ---- when racks pay ------------------------------------------------------------------------------------------------


def test_racks_count_where_they_pay() -> None:
    """Two racks of four hosts: by the model folding first takes max(4/B_PBox, 1/B_Wkr) + 1/(2 min(B_PBox, B_Core)), and
    4/(2 B_Core) without it."""
    hosts = [[rank] for rank in range(8)]
    racks = [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert racks_pay(Bandwidths(host=1, core=1), 4, 2)  # 2 > 1 + 1/2
    assert not racks_pay(Bandwidths(host=1, core=1.5), 4, 2)  # 4/3 < 1 + 1/3
    assert not racks_pay(Bandwidths(host=1, core=1, leader=2), 4, 2)  # 2 < 2 + 1/2
    assert racks_pay(Bandwidths(host=1, core=0.25, leader=1), 4, 2)  # 8 > 4 + 2
    assert Hierarchy(hosts, racks, bandwidths=Bandwidths(1, 1)).levels(8) == [
        tuple(map(tuple, hosts)),
        tuple(map(tuple, racks)),
    ]
    assert Hierarchy(hosts, racks, bandwidths=Bandwidths(1, 1.5)).levels(8) == [tuple(map(tuple, hosts))]


@on_both
def test_bandwidths_are_measured_alike_on_all_ranks() -> None:
    hierarchy = Hierarchy([[0], [1], [2, 3], [4]], [[0, 1], [2, 3, 4]])

    def body(ctx: hpcomm.Context) -> Bandwidths:
        found = hpcomm.measure_rates(ctx, topology=hierarchy).racks
        assert found is not None
        return found

    found = run_threads(5, body)
    assert found == [found[0]] * 5
    assert 1e4 < found[0].host < 1e13
    assert 1e4 < found[0].core < 1e13


def test_every_rank_hears_a_refusal_before_bandwidths_are_measured() -> None:
    hierarchy = Hierarchy([[0], [1], [2], [3]], [[0, 1], [2, 3]], bandwidths="measured")

    def body(ctx: hpcomm.Context) -> None:
        params = {"w": np.zeros(1000, np.float32)}
        wrong: Any = 3 if ctx.rank == 3 else hpcomm.SGD(lr=1)
        with pytest.raises(InvalidArgument, match="rule is 3"):
            hpcomm.Exchange(ctx, params, hierarchy, rule=wrong)
        with hpcomm.Exchange(ctx, params, hierarchy, rule=hpcomm.SGD(lr=1)) as ex:
            ex.push_pull("w", np.ones(1000, np.float32))
            assert (ex.params["w"] == -1).all()
            topology: Any = ex._schemes[0].scheme.topology
            assert topology == hpcomm.measure.measured(ctx, hierarchy)

    run_threads(4, body)


def test_an_exchange_measures_bandwidths_itself() -> None:
    hierarchy = Hierarchy([[0], [1], [2], [3]], [[0, 1], [2, 3]], bandwidths="measured")
    with pytest.raises(InvalidArgument, match="bandwidths is 'measured': an Exchange measures them"):
        hierarchy.levels(4)

    def body(ctx: hpcomm.Context) -> None:
        found = hpcomm.measure.measured(ctx, hierarchy)
        assert isinstance(found.bandwidths, Bandwidths)
        assert hpcomm.measure_rates(ctx, topology=hierarchy).racks == found.bandwidths
        assert hpcomm.measure.measured(ctx, hierarchy) == found  # once for a context
        params = {"w": np.zeros(1000, np.float32)}
        with hpcomm.Exchange(ctx, params, hierarchy, rule=hpcomm.SGD(lr=1), reduce="sum") as ex:
            ex.push_pull("w", np.ones(1000, np.float32))
            assert (ex.params["w"] == -4).all()
        with hpcomm.Exchange(ctx, params, Hierarchy(bandwidths="measured"), rule=hpcomm.SGD(lr=1)) as ex:
            ex.push_pull("w", np.ones(1000, np.float32))  # without racks nothing is measured

    run_threads(4, body)


def test_without_racks_there_is_nothing_to_measure() -> None:
    def body(ctx: hpcomm.Context) -> None:
        for hierarchy in (Hierarchy(), Hierarchy([[0], [1]], [[0], [1]])):  # no racks, and racks of one host
            assert hpcomm.measure_rates(ctx, topology=hierarchy).racks is None

    run_threads(2, body)


# ---- who is left ---------------------------------------------------------------------------------------------------


def test_what_is_left() -> None:
    whole = Hierarchy([[0, 1], [2, 3], [4, 5]], [[0, 1, 2, 3], [4, 5]], leaders=[0, 2, 4], top="ring")
    assert whole.among([0, 1, 3, 5], 6) == Hierarchy(
        [[0, 1], [2], [3]], [[0, 1, 2], [3]], leaders=[0, 2, 3], top="ring"
    )
    assert whole.among([0, 1, 2], 6) == Hierarchy([[0, 1], [2]], [[0, 1, 2]], leaders=[0, 2], top="ring")
    assert Hierarchy([[0, 1], [2, 3]]).among([1, 2, 3], 4) == Hierarchy([[0], [1, 2]])
    assert ParameterServer().among([1, 3], 4) == ParameterServer("CS", [0, 1])
    assert ParameterServer("NCC").among([1, 3], 4) == ParameterServer("CC", [0])


# ---- by key --------------------------------------------------------------------------------------------------------


def test_a_topology_for_each_key() -> None:
    tree, keys = Hierarchy([[0, 1], [2, 3]]), {"w": (300, 11), "b": 7, "v": 5000, "c": (3, 4)}
    options: dict[str, Any] = {"cores": 2, "depth": 2, "codec": {"v": "float16"}, "codec_out": {"w": "bfloat16"}}
    plan = ByKey({"w": tree, "v": tree}).compile(Request(keys, 4, **options))
    for topology, names, codecs in (
        (tree, ("w", "v"), options),
        (ParameterServer(), ("b", "c"), {"cores": 2, "depth": 2}),
    ):
        own = topology.compile(Request({name: keys[name] for name in names}, 4, **codecs))
        for name in names:
            found, alone = plan.rows_of(name), own.rows_of(name)
            first, was = plan.range_of(name).start, own.range_of(name).start

            def at(edges: Any, start: int) -> list[tuple[int, int, float]]:
                return [(edge.rank, edge.row if edge.row < 0 else edge.row - start, edge.weight) for edge in edges]

            for a, b in zip(found, alone, strict=True):
                assert (a.owner, a.core, a.action, a.offset, a.count) == (b.owner, b.core, b.action, b.offset, b.count)
                assert (a.depth, a.quorum, a.codec_in, a.codec_out) == (b.depth, b.quorum, b.codec_in, b.codec_out)
                assert at(a.in_edges, first) == at(b.in_edges, was)
                assert at(a.out_edges, first) == at(b.out_edges, was)
    assert plan.places == tuple((rank, core) for rank in range(4) for core in range(2))
    assert ByKey({}).compile(Request(keys, 4, **options)) == ParameterServer().compile(Request(keys, 4, **options))


def test_keys_that_are_not_named_have_the_topology_of_the_rest() -> None:
    tree, few = Hierarchy([[0, 1], [2, 3]]), ParameterServer("CS", [1])
    assert [ByKey({"w": few}, tree).of(name) for name in ("w", "v")] == [few, tree]
    assert [ByKey({"w": few}, None).of(name) for name in ("w", "v")] == [few, ParameterServer()]


def test_what_topologies_of_keys_cannot_be() -> None:
    with pytest.raises(InvalidArgument, match="topology has an entry for 'u', which is not a key"):
        ByKey({"u": Hierarchy([[0, 1]])}).compile(Request(KEYS, 2))
    with pytest.raises(InvalidArgument, match="codec has an entry for 'u', which is not a key"):
        ByKey({"w": Hierarchy([[0, 1]])}).compile(Request(KEYS, 2, codec={"u": "float16"}))
    with pytest.raises(ConfigError, match=r"ranks \(0, 1\) work for some keys and ranks \(1,\) for others"):
        ByKey({"w": ParameterServer("NCC")}).compile(Request(KEYS, 2))
    with pytest.raises(ConfigError, match="affinity is key and worker: a plan has one"):
        ByKey({"w": ParameterServer(affinity="worker")}).compile(Request(KEYS, 2))


# ---- auto ----------------------------------------------------------------------------------------------------------


def test_auto_takes_hosts_first_where_ranks_share_hosts() -> None:
    none = ("",) * 4
    assert automatic((0, 0, 2, 2), none) == Hierarchy([[0, 1], [2, 3]], [])
    assert automatic((0, 1, 1, 3), none) == Hierarchy([[0], [1, 2], [3]], [])
    assert automatic((0, 0, 0, 0), none) == ParameterServer()
    assert automatic((0, 1, 2, 3), none) == ParameterServer()
    assert automatic((0, 1, 2, 3), ("a", "a", "b", "b")) == Hierarchy([[0], [1], [2], [3]], [[0, 1], [2, 3]])
    assert automatic((0,), ("",)) == ParameterServer()


def rules(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names, hpcomm.SGD())


class Placed:
    """Stands in the place of a context whose ranks share hosts, which a test on one host has not."""

    hosts, racks, size = (0, 0, 2, 2), ("",) * 4, 4


@pytest.mark.parametrize(
    ("consistency", "engine", "hosts_first"),
    [
        (hpcomm.BSP, {}, True),
        (hpcomm.BSP, {"progress": "inline", "check_finite": True}, True),
        (hpcomm.SSP(0), {}, True),
        (hpcomm.SSP(1), {}, False),
        (hpcomm.ASYNC, {}, False),
        (hpcomm.Consistency(quorum=2, late="drop"), {}, False),
        (hpcomm.BSP, {"split": True}, True),
        (hpcomm.BSP, {"shared_params": True}, True),
    ],
)
def test_auto_is_for_plain_bsp(consistency: Any, engine: dict[str, Any], hosts_first: bool) -> None:
    found, flat = (
        settled(Placed(), word, consistency, EngineOptions(**engine), {"w": hpcomm.SGD()})[0]  # type: ignore[arg-type]
        for word in ("auto", "flat")
    )
    assert found.consistency == with_servers(consistency)
    assert found.topology == (Hierarchy([[0, 1], [2, 3]], []) if hosts_first else ParameterServer())
    assert flat.topology == ParameterServer()


def test_keys_that_are_all_named_need_no_flat_one() -> None:
    each = dict.fromkeys(("a", "b"), ParameterServer("NCC"))
    for names in (("a", "b"), ("a",)):
        found = settled(Placed(), dict(list(each.items())[: len(names)]), hpcomm.BSP, EngineOptions(), rules(*names))  # type: ignore[arg-type]
        assert found[0].topology.roles(4) == ((1, 2, 3), (0,))
    more = settled(Placed(), each, hpcomm.BSP, EngineOptions(), rules("a", "b", "c"))[0].topology  # type: ignore[arg-type]
    with pytest.raises(hpcomm.ConfigError, match="work for some keys"):
        more.roles(4)


def test_ranks_of_one_host_are_flat_by_default() -> None:
    def body(ctx: hpcomm.Context) -> None:
        assert ctx.hosts == (0, 0, 0)
        params = {name: np.ones(shape, np.float32) for name, shape in KEYS.items()}
        found = []
        for topology in ("auto", "flat", Hierarchy()):
            with hpcomm.parameter_hub(ctx, params, topology=topology) as ex:
                found.append(ex.plan)
                own = ex._state.made.schemes[0].topology
                assert isinstance(own, Hierarchy if topology == Hierarchy() else ParameterServer)
        assert found[0] == found[1] == found[2]

    run_threads(3, body)


def test_a_topology_and_a_placement_are_refused() -> None:
    def body(ctx: hpcomm.Context) -> None:
        params = {"w": np.ones(4, np.float32)}
        graph: Any = hpcomm.graphs.ring(2)
        with pytest.raises(InvalidArgument, match="topology and placement are given"):
            hpcomm.parameter_hub(ctx, params, topology=Hierarchy(), placement="CC")
        with pytest.raises(InvalidArgument, match="topology is 'hosts': must be 'auto', 'flat'"):
            hpcomm.parameter_hub(ctx, params, topology="hosts")
        with pytest.raises(InvalidArgument, match="for graphs there is stochastic_reduce"):
            hpcomm.parameter_hub(ctx, params, topology=graph)
        hpcomm.parameter_hub(ctx, params, placement="CC").close()

    run_threads(2, body)


# ---- SLURM ---------------------------------------------------------------------------------------------------------


def test_a_rack_is_what_slurm_says_above_the_node() -> None:
    assert launch.rack({"SLURM_TOPOLOGY_ADDR": "core.rack3.node17"}) == "core.rack3"
    assert launch.rack({"SLURM_TOPOLOGY_ADDR": "node17"}) == ""
    assert launch.rack({}) == ""


def test_all_ranks_hear_of_all_racks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_TOPOLOGY_ADDR", "core.rack1.node4")

    def body(ctx: hpcomm.Context) -> None:
        assert ctx.racks == ("core.rack1",) * 3
        with ctx.shrink() as fresh:
            assert (fresh.racks, fresh.hosts) == (ctx.racks, ctx.hosts)
            assert (fresh.local_rank, fresh.local_size) == (ctx.local_rank, ctx.local_size) == (ctx.rank, 3)

    run_threads(3, body)

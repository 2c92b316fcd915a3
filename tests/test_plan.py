"""Plans: balance, cover, what a parameter server compiles to, other topologies by hand, JSON, and every refusal."""

import copy
import itertools
import json
import math
import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcomm import ConfigError, InvalidArgument
from hpcomm.consistency import ASYNC, BARRIER, BSP, NOTIFY_ACK, SSP, Consistency
from hpcomm.plan import Edge, Key, Plan, Row
from hpcomm.topology import ParameterServer, Request

KEYS: dict[str, Any] = {"conv": (3, 5, 7, 11), "bias": (), "fc": (100, 1000), "größe": (17,)}


def compiled(placement: str = "CS", size: int = 4, servers: Any = None, **options: Any) -> Plan:
    return ParameterServer(placement, servers).compile(Request(KEYS, size, **options))


# ---- balance -------------------------------------------------------------------------------------------------------


def least_possible(sizes: list[int], bins: int) -> int:
    """The fullest bin's load in the best of all partitions."""
    return min(
        max(sum(size for size, b in zip(sizes, ways, strict=True) if b == bin_) for bin_ in range(bins))
        for ways in itertools.product(range(bins), repeat=len(sizes))
    )


@settings(max_examples=60)
@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    places=st.sampled_from([(2, 1), (1, 2), (3, 1), (1, 3), (2, 2), (4, 1)]),
)
def test_fullest_core_is_within_four_thirds_of_the_best(counts: list[int], places: tuple[int, int]) -> None:
    servers, cores = places
    keys = {f"k{i}": count for i, count in enumerate(counts)}
    plan = ParameterServer("CS", servers).compile(Request(keys, 4, cores=cores, chunk_bytes=64 * 16))
    best = least_possible([count * 4 for count in counts], servers * cores)
    assert len(plan.rows) == len(counts)
    assert 3 * max(plan.loads().values()) <= 4 * best


@settings(max_examples=60)
@given(
    counts=st.lists(st.integers(1, 5000), min_size=1, max_size=30),
    servers=st.integers(1, 6),
    cores=st.integers(1, 4),
    blocks=st.integers(1, 20),
)
def test_fullest_core_has_at_most_the_mean_and_a_chunk(
    counts: list[int], servers: int, cores: int, blocks: int
) -> None:
    keys = {f"k{i}": count for i, count in enumerate(counts)}
    plan = ParameterServer("CS", servers).compile(Request(keys, 6, cores=cores, chunk_bytes=64 * blocks))
    loads = plan.loads()
    assert list(loads) == [(rank, core) for rank in range(servers) for core in range(cores)]
    assert sum(loads.values()) == 4 * sum(counts)
    mean, largest = 4 * sum(counts) / (servers * cores), max(row.count for row in plan.rows) * 4
    assert max(loads.values()) <= mean + largest
    by_server = [sum(nbytes for (rank, _), nbytes in loads.items() if rank == s) for s in range(servers)]
    assert plan.imbalance.core == pytest.approx(max(loads.values()) / mean)
    assert plan.imbalance.server == pytest.approx(max(by_server) / (mean * cores))


@settings(max_examples=60)
@given(
    # without last chunks that count as full ones, and leave a server a few elements behind the others
    counts=st.lists(st.integers(1, 3000).filter(lambda n: n % 64 < 60), min_size=1, max_size=8),
    servers=st.integers(1, 6),
    cores=st.integers(1, 4),
)
def test_equal_chunks_of_a_key_go_round_the_servers(counts: list[int], servers: int, cores: int) -> None:
    keys = {f"k{i}": count for i, count in enumerate(counts)}
    plan = ParameterServer("CS", servers).compile(Request(keys, 6, cores=cores, chunk_bytes=256))
    for key in keys:
        owners = [row.owner for row in plan.rows_of(key) if row.count == 64]
        shares = [owners.count(rank) for rank in range(servers)]
        assert max(shares) - min(shares) <= 1


@settings(max_examples=60)
@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    servers=st.integers(1, 2),
    interfaces=st.integers(2, 3),
    more=st.integers(0, 4),
)
def test_fullest_interface_is_within_four_thirds_of_the_best(
    counts: list[int], servers: int, interfaces: int, more: int
) -> None:
    keys = {f"k{i}": count for i, count in enumerate(counts)}
    topology = ParameterServer("CS", servers, interfaces=interfaces)
    plan = topology.compile(Request(keys, 4, cores=interfaces + more, chunk_bytes=64 * 16))
    loads = {(rank, interface): 0 for rank in range(servers) for interface in range(interfaces)}
    for (rank, core), nbytes in plan.loads().items():
        loads[rank, core % interfaces] += nbytes
    assert 3 * max(loads.values()) <= 4 * least_possible([count * 4 for count in counts], servers * interfaces)


@settings(max_examples=60)
@given(
    counts=st.lists(st.integers(1, 5000), min_size=1, max_size=30),
    servers=st.integers(1, 4),
    cores=st.integers(1, 6),
    interfaces=st.integers(1, 6),
)
def test_affinity_changes_no_core(counts: list[int], servers: int, cores: int, interfaces: int) -> None:
    keys = {f"k{i}": count for i, count in enumerate(counts)}
    by_key, by_worker = (
        ParameterServer("CS", servers, affinity=affinity).compile(Request(keys, 4, cores=cores, interfaces=interfaces))
        for affinity in ("key", "worker")
    )
    assert (by_key.affinity, by_worker.affinity) == ("key", "worker")
    assert tuple(by_key.rows) == tuple(by_worker.rows)
    assert by_key != by_worker
    again = Plan.from_json(by_worker.to_json())
    assert again == by_worker
    assert again.affinity == "worker"


def test_no_more_interfaces_than_cores_by_default() -> None:
    keys = {"a": 100000}
    few = ParameterServer("CS").compile(Request(keys, 2, cores=2, interfaces=5))
    assert few == ParameterServer("CS", interfaces=2).compile(Request(keys, 2, cores=2))
    own = ParameterServer("CS", interfaces=1).compile(Request(keys, 2, cores=4, interfaces=2))
    assert own == ParameterServer("CS").compile(Request(keys, 2, cores=4))


def test_idle_cores_count() -> None:
    plan = ParameterServer("CS").compile(Request({"a": 16}, 2, cores=2))
    assert plan.loads() == {(0, 0): 64, (0, 1): 0, (1, 0): 0, (1, 1): 0}
    assert plan.imbalance == (4.0, 2.0)


# ---- rows of a hub -------------------------------------------------------------------------------------------------


@settings(max_examples=80)
@given(
    shapes=st.lists(st.lists(st.integers(1, 12), max_size=4).map(tuple), min_size=1, max_size=6),
    placement=st.sampled_from(["CC", "CS", "NCC", "NCS"]),
    size=st.integers(2, 5),
    cores=st.integers(1, 3),
    blocks=st.integers(1, 40),
    depth=st.integers(1, 32),
    codec=st.sampled_from(["float32", "float16", "bfloat16"]),
    reduce=st.sampled_from(["mean", "sum"]),
    consistency=st.sampled_from([BSP, ASYNC]),
    codec_out=st.sampled_from(["float32", "float16", "bfloat16"]),
)
def test_every_element_is_covered_once(
    shapes: list[tuple[int, ...]], placement: str, size: int, cores: int, blocks: int, **options: Any
) -> None:
    server = ParameterServer(placement, size - 1 if placement == "NCS" else None)
    workers, servers = server.roles(size)
    keys = {f"k{i}": shape for i, shape in enumerate(shapes)}
    plan = server.compile(Request(keys, size, cores=cores, chunk_bytes=64 * blocks, **options))
    assert plan.workers == workers
    assert plan.servers == servers
    seen = [np.zeros(key.count, int) for key in plan.keys]
    order = []
    for row in plan.rows:
        seen[row.key][row.offset : row.offset + row.count] += 1
        order.append((row.key, row.offset))
        assert row.offset % 16 == 0
        assert row.count <= 16 * blocks
        assert row.owner in servers
        assert 0 <= row.core < cores
        assert (row.action, row.depth) == ("apply", options["depth"])
        assert (row.codec_in, row.codec_out) == (options["codec"], options["codec_out"])
        each = options["consistency"] == ASYNC
        assert row.quorum == (1 if each else len(workers))
        weight = 1.0 if each or options["reduce"] == "sum" else 1 / len(workers)
        assert row.in_edges == tuple(Edge(rank, -1, weight) for rank in workers)
        assert [edge.rank for edge in row.out_edges] == list(workers)
    assert all((part == 1).all() for part in seen)
    assert order == sorted(order)
    assert Plan.from_json(plan.to_json()) == plan


def test_keys_of_any_shape() -> None:
    plan = compiled()
    assert [key.count for key in plan.keys] == [1155, 1, 100000, 17]
    assert [key.shape for key in plan.keys] == [(3, 5, 7, 11), (), (100, 1000), (17,)]
    arrays = {"a": np.zeros((2, 3), np.float32), "b": np.zeros((), np.float32), "c": 5}
    assert ParameterServer().compile(Request(arrays, 1)).keys == (Key("a", (2, 3)), Key("b", ()), Key("c", (5,)))
    keys = (Key("a", (2, 3), 6), Key("b", (np.int64(4),)))
    assert ParameterServer().compile(Request(iter(keys), 1)).keys == keys


def test_questions() -> None:
    plan = compiled(chunk_bytes=4096, cores=2)
    assert len(plan.rows_of("fc")) == 98
    assert plan.range_of("fc") == range(3, 101)
    assert plan.rows_of(2) == plan.rows[3:101] == tuple(plan.rows)[3:101]
    assert plan.owners("fc") == (0, 1, 2, 3)
    assert plan.owners("bias") == (plan.rows_of("bias")[0].owner,)
    assert plan.rows[-1] == plan.rows[len(plan.rows) - 1]
    assert plan.rows[-1].key == 3
    apart = ParameterServer("NCS", (40, 3)).compile(Request({"a": 1}, 42))
    assert apart.servers == (3, 40)
    assert apart.workers == tuple(rank for rank in range(42) if rank not in (3, 40))
    with pytest.raises(IndexError):
        plan.rows[len(plan.rows)]
    with pytest.raises(InvalidArgument, match="key 'fd' is not in the plan; its keys are conv, bias, fc"):
        plan.rows_of("fd")
    with pytest.raises(InvalidArgument, match="key is 4: must be 0 to 3"):
        plan.owners(4)


def test_many_rows_share_their_edges() -> None:
    plan = ParameterServer().compile(Request({"a": 16 * 20000}, 4, chunk_bytes=64))
    lists, inputs, outputs = plan.rows.lists()
    assert len(lists) == 2
    assert inputs == [0] * 20000
    assert outputs == [1] * 20000
    assert plan.rows[0].in_edges is plan.rows[19999].in_edges


# ---- placements ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("placement", "servers", "workers", "serving"),
    [
        ("CC", None, (0, 1, 2, 3), (0,)),
        ("cc", [2], (0, 1, 2, 3), (2,)),
        ("CS", None, (0, 1, 2, 3), (0, 1, 2, 3)),
        ("cs", 2, (0, 1, 2, 3), (0, 1)),
        ("CS", (3, 1), (0, 1, 2, 3), (1, 3)),
        ("NCC", None, (1, 2, 3), (0,)),
        ("ncc", [3], (0, 1, 2), (3,)),
        ("NCC", 1, (1, 2, 3), (0,)),
        ("NCS", 2, (2, 3), (0, 1)),
        ("Ncs", np.array([3, 0]), (1, 2), (0, 3)),
        ("NCS", range(1, 4), (0,), (1, 2, 3)),
    ],
)
def test_roles(placement: str, servers: Any, workers: tuple[int, ...], serving: tuple[int, ...]) -> None:
    assert ParameterServer(placement, servers).roles(4) == (workers, serving)


def test_placement_is_a_value() -> None:
    assert ParameterServer("cs", [1, 0]) == ParameterServer("CS", (0, 1))
    assert len({ParameterServer("cs", [1, 0]), ParameterServer("CS", (0, 1))}) == 1
    with pytest.raises(FrozenInstanceError):
        ParameterServer().placement = "CC"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("error", "match", "placement", "servers", "size"),
    [
        (InvalidArgument, "placement is 'XS': must be one of \"CC\"", "XS", None, 4),
        (InvalidArgument, "placement is None", None, None, 4),
        (ConfigError, r"placement CC has one server, servers is 2: use CS", "CC", 2, 4),
        (ConfigError, r"placement NCC has one server, servers is \[0, 1\]: use NCS", "NCC", [0, 1], 4),
        (ConfigError, "NCS needs servers", "NCS", None, 4),
        (InvalidArgument, "servers is 0: must be 1 to", "CS", 0, 4),
        (InvalidArgument, "servers is True: must be an int", "CS", True, 4),
        (InvalidArgument, "servers is '0': must be an int", "CS", "0", 4),
        (InvalidArgument, "servers is 1.5: must be an int", "CS", 1.5, 4),
        (InvalidArgument, "servers is empty", "CS", [], 4),
        (InvalidArgument, "servers has rank 1 twice", "CS", [1, 0, 1], 4),
        (InvalidArgument, "servers is -1: must be 0 to", "CS", [-1], 4),
        (InvalidArgument, "servers is 5: a job of 4 ranks has at most 4", "CS", 5, 4),
        (InvalidArgument, "servers has rank 4: the ranks of this job are 0 to 3", "CS", [0, 4], 4),
        (ConfigError, "placement NCS leaves no worker: all 4 ranks would only serve; .* use CS", "NCS", 4, 4),
        (ConfigError, "placement NCC leaves no worker: all 1 ranks", "NCC", None, 1),
        (InvalidArgument, "size is 0", "CS", None, 0),
    ],
)
def test_placement_refusals(error: type[Exception], match: str, placement: Any, servers: Any, size: int) -> None:
    with pytest.raises(error, match=match):
        ParameterServer(placement, servers).roles(size)


@pytest.mark.parametrize(
    ("match", "keys", "options"),
    [
        ("n_keys is 0", {}, {}),
        (r"key 'a' has shape \(0, 3\), which holds no elements", {"a": (0, 3)}, {}),
        ("key 'a' has shape", {"a": np.zeros(0, np.float32)}, {}),
        ("key 'a': shape is 'abc'", {"a": "abc"}, {}),
        ("key 'a': shape is 1.5", {"a": 1.5}, {}),
        (r"key 'a': shape is \(-1,\)", {"a": -1}, {}),
        ("at most 281474976710656 are possible", {"a": (1 << 40, 1 << 40)}, {}),
        ("key 'b' has 1 elements, after 281474976710656", {"a": 1 << 48, "b": 1}, {}),
        ("key 3: a name must be a str", {3: 1}, {}),
        ("without NUL", {"a\0b": 1}, {}),
        ("lone surrogates", {"\ud800": 1}, {}),
        ("keys 0 and 1 are both named 'a'", [Key("a", (1,)), Key("a", (2,))], {}),
        ("keys hold 'a': must be Key values", ["a"], {}),
        ("chunk is 0 bytes; must be a multiple of 64, and not 0", {"a": 1}, {"chunk_bytes": 0}),
        ("chunk is 100 bytes", {"a": 1}, {"chunk_bytes": 100}),
        ("chunk_bytes is -64: must be 0 to", {"a": 1}, {"chunk_bytes": -64}),
        ("chunk_bytes is 64.0: must be an int", {"a": 1}, {"chunk_bytes": 64.0}),
        ("more than the 16777216 rows", {"a": 1 << 40}, {"chunk_bytes": 64}),
        ("cores is 0: must be 1 to", {"a": 1}, {"cores": 0}),
        ("cores is 1025", {"a": 1}, {"cores": 1025}),
        ("depth is 0", {"a": 1}, {"depth": 0}),
        ("depth is 33; 1 to 32", {"a": 1}, {"depth": 33}),
        ("codec is 'float64': must be one of 'float32', 'float16', 'bfloat16'", {"a": 1}, {"codec": "float64"}),
        ("reduce is 'max': must be one of 'mean', 'sum'", {"a": 1}, {"reduce": "max"}),
        ("interfaces is 0: must be 1 to", {"a": 1}, {"interfaces": 0}),
        ("interfaces is 1.5: must be an int", {"a": 1}, {"interfaces": 1.5}),
    ],
)
def test_compile_refusals(match: str, keys: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=match):
        ParameterServer().compile(Request(keys, 2, **options))


def test_affinity_refusals() -> None:
    with pytest.raises(InvalidArgument, match="affinity is 'core': must be one of 'key', 'worker'"):
        ParameterServer(affinity="core")
    with pytest.raises(InvalidArgument, match="affinity is None: must be one of"):
        Plan.hub({"a": 1}, [0], [0], 1, affinity=None)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="affinity is 0: must be one of"):
        Plan(*racks(), 4, affinity=0)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="interfaces is 0: must be 1 to"):
        ParameterServer(interfaces=0)
    with pytest.raises(InvalidArgument, match="interfaces is True: must be an int"):
        ParameterServer(interfaces=True)
    with pytest.raises(InvalidArgument, match=r"interfaces is 3; 0 \(one\) to 2 are possible, since each needs one of"):
        ParameterServer(interfaces=3).compile(Request({"a": 1}, 2, cores=2))


def test_json_without_an_affinity() -> None:
    plan = compiled()
    text = json.loads(plan.to_json())
    del text["affinity"]
    assert Plan.from_json(json.dumps(text)) == plan
    text["affinity"] = "both"
    with pytest.raises(InvalidArgument, match="affinity is 'both'"):
        Plan.from_json(json.dumps(text))


def test_json_with_the_column_fold() -> None:
    """As it was written while Row had a field of that name."""
    plan = compiled()
    text = json.loads(plan.to_json())
    text["columns"].append("fold")
    for row in text["rows"]:
        row.append("sum")
    assert Plan.from_json(json.dumps(text)) == plan
    text["rows"][1][-1] = "max"
    with pytest.raises(InvalidArgument, match="row: fold is 'max': must be one of 'sum'"):
        Plan.from_json(json.dumps(text))


def test_hub_refusals() -> None:
    with pytest.raises(InvalidArgument, match="workers is empty"):
        Plan.hub({"a": 1}, [], [0], 2)
    with pytest.raises(InvalidArgument, match="rank 1 is given twice in servers"):
        Plan.hub({"a": 1}, [0], [1, 1], 2)
    with pytest.raises(InvalidArgument, match="workers is 2: must be 0 to 1"):
        Plan.hub({"a": 1}, [0, 2], [1], 2)
    with pytest.raises(InvalidArgument, match="servers is 1: must be a sequence of ranks"):
        Plan.hub({"a": 1}, [0], 1, 2)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"count is 7, but shape \(2, 3\) holds 6"):
        Key("a", (2, 3), 7)


# ---- other topologies ----------------------------------------------------------------------------------------------


def racks() -> tuple[dict[str, Any], list[Row]]:
    """Ranks 0 and 1 are a rack, 2 and 3 another; the sums of both go to rank 3. Two chunks."""
    rows = []
    for chunk, (offset, count) in enumerate([(0, 32), (32, 3)]):
        up, here = (Edge(3, 3 * chunk + 2),), 3 * chunk
        for rack in (0, 1):
            members = tuple(Edge(rank, weight=0.25) for rank in (2 * rack, 2 * rack + 1))
            rows.append(Row(0, 2 * rack, chunk, offset, count, members, up, action="forward", codec_in="float16"))
        sums = (Edge(0, here), Edge(2, here + 1))
        rows.append(Row(0, 3, chunk, offset, count, sums, tuple(Edge(rank) for rank in range(4))))
    return {"a": (5, 7)}, rows


def test_rack_hierarchy() -> None:
    keys, rows = racks()
    plan = Plan(keys, rows, 4)
    assert tuple(plan.rows) == tuple(rows)
    assert [row.quorum for row in plan.rows] == [2] * 6
    assert plan.places == ((0, 0), (0, 1), (2, 0), (2, 1), (3, 0), (3, 1))
    assert plan.loads() == {(rank, core): (128, 12)[core] for rank in (0, 2, 3) for core in (0, 1)}
    assert plan.workers == (0, 1, 2, 3)
    assert plan.owners("a") == (0, 2, 3)
    assert Plan.from_json(plan.to_json()) == plan
    assert "rack" not in str(plan)
    assert len(Plan(keys, rows, 4, [(3, 2), *plan.places]).loads()) == 7


def test_gossip() -> None:
    """Each rank averages its update with its neighbours': a stage whose owner is oneself."""
    around = [
        tuple(Edge((rank + step) % 4, weight=0.25 + 0.25 * (step == 0)) for step in (-1, 0, 1)) for rank in range(4)
    ]
    plan = Plan({"a": 7}, [Row(0, rank, 0, 0, 7, around[rank], (Edge(rank),), action="emit") for rank in range(4)], 4)
    assert plan.imbalance == (1.0, 1.0)
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("match", "row", "change"),
    [
        ("row 5 has owner 4; ranks are 0 to 3", 5, {"owner": 4}),
        ("row 1 has an edge to row 5, which lacks the other end of that edge", 1, {"out_edges": (Edge(3, 5),)}),
        ("sends to row 2, which is of other elements", 2, {"count": 16}),
        ("row 0 of core 1 sends to row 2 of core 0", 0, {"core": 1}),
        ("row 3 has depth 2, row 0 has 1", 3, {"depth": 2}),
        ("row 2 has quorum 3; must be 1 or all 2", 2, {"quorum": 3}),
        ("row 2 has codec_in float16, but row 0 sends it float32", 2, {"codec_in": "float16"}),
        ("row 2 has codec_in float32, but row 0 sends it bfloat16", 0, {"codec_out": "bfloat16"}),
        ("row 5 sends parameters as bfloat16, rows before it of the same key as float32", 5, {"codec_out": "bfloat16"}),
        ("row: codec_out is 'int8'", 2, {"codec_out": "int8"}),
        ("row 5 is at offset 33", 5, {"offset": 33, "count": 2}),
        ("rank 3 is sent 32 of the 35 elements of key 'a'", 5, {"out_edges": tuple(Edge(rank) for rank in range(3))}),
        ("row 0 has no in-edge", 0, {"in_edges": ()}),
        ("row: action is 'add': must be one of 'apply', 'forward', 'emit', 'relay'", 0, {"action": "add"}),
        ("row: codec_in is 'int8'", 0, {"codec_in": "int8"}),
        ("row: core is -1", 0, {"core": -1}),
        ("row: key is 4294967296", 0, {"key": 1 << 32}),
        ("row: in_edges is", 0, {"in_edges": ((0, -1, 1.0),)}),
    ],
)
def test_plan_refusals(match: str, row: int, change: dict[str, Any]) -> None:
    keys, rows = racks()
    with pytest.raises(InvalidArgument, match=match):
        Plan(keys, [replace(old, **change) if i == row else old for i, old in enumerate(rows)], 4)


@pytest.mark.parametrize(
    ("match", "edge"),
    [
        ("edge: rank is -1", {"rank": -1}),
        ("edge: row is -4294967296", {"rank": 0, "row": -(1 << 32)}),
        ("edge: row is 1.0: must be an int", {"rank": 0, "row": 1.0}),
        ("edge: weight is nan", {"rank": 0, "weight": float("nan")}),
        ("edge: weight is 'x'", {"rank": 0, "weight": "x"}),
    ],
)
def test_edge_refusals(match: str, edge: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=match):
        Edge(**edge)


def test_other_refusals() -> None:
    keys, rows = racks()
    with pytest.raises(InvalidArgument, match="rows hold 1: must be Row values"):
        Plan(keys, [1], 4)  # type: ignore[list-item]
    with pytest.raises(InvalidArgument, match="n_rows is 0"):
        Plan(keys, [], 4)
    with pytest.raises(InvalidArgument, match="size is 0"):
        Plan(keys, rows, 0)
    with pytest.raises(InvalidArgument, match=r"places lack \(rank, core\) \(0, 0\)"):
        Plan(keys, rows, 4, [(3, 0), (3, 1), (2, 0)])
    with pytest.raises(InvalidArgument, match="each may be there once"):
        Plan(keys, rows, 4, [(3, 0), (3, 0)])
    with pytest.raises(InvalidArgument, match="places: rank is 4"):
        Plan(keys, rows, 4, [(4, 0)])


# ---- values --------------------------------------------------------------------------------------------------------


def test_a_plan_never_changes() -> None:
    plan = compiled()
    for name in ("keys", "rows", "size", "places", "affinity", "handle", "other"):
        with pytest.raises(FrozenInstanceError):
            setattr(plan, name, None)
        with pytest.raises(FrozenInstanceError):
            delattr(plan, name)
    with pytest.raises(FrozenInstanceError):
        plan.rows[0].owner = 1  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        plan.keys[0].name = "b"  # type: ignore[misc]
    with pytest.raises(TypeError):
        plan.rows[0] = plan.rows[1]  # type: ignore[index]
    column = plan.rows.column("owner")
    column[:] = 77
    assert plan == compiled()


def test_equal_plans() -> None:
    plan = compiled()
    assert plan == compiled()
    assert hash(plan) == hash(compiled())
    assert copy.deepcopy(plan) == pickle.loads(pickle.dumps(plan)) == plan
    for other in (
        compiled(cores=2),
        compiled(reduce="sum"),
        compiled(size=5),
        compiled("CC"),
        compiled(depth=2),
        ParameterServer(affinity="worker").compile(Request(KEYS, 4)),
        "plan",
    ):
        assert plan != other


def test_a_handle_outlives_its_plan() -> None:
    keys, rows = racks()
    handle = Plan(keys, rows, 4).handle
    for _ in range(100):
        Plan(keys, rows, 4)
    assert handle.rows[5].owner == 3
    assert handle.rows[5].out[3].rank == 3


def test_json() -> None:
    plan = compiled(size=3, cores=2, depth=2, codec="float16")
    text = plan.to_json()
    again = Plan.from_json(text)
    assert again == plan
    assert again.to_json() == text
    assert again.rows[0].in_edges[0].weight == 1 / 3
    assert again.places == plan.places
    assert [key.name for key in again.keys] == list(KEYS)
    found = json.loads(text)
    assert found["columns"][:5] == ["key", "owner", "core", "offset", "count"]


@pytest.mark.parametrize(
    ("match", "change"),
    [
        ("version 2: this hpcomm reads version 1", {"hpcomm_plan": 2}),
        ("not a plan's JSON", {"rows": [[1, 2]]}),
        ("not a plan's JSON", {"columns": ["key"]}),
        ("not a plan's JSON", {"keys": None}),
        ("not a plan's JSON: IndexError", {"edges": []}),
        ("row 0 has owner 0; ranks are 0 to -1|size is 0", {"size": 0}),
        ("key 'a' has shape", {"keys": [["a", [0]]]}),
    ],
)
def test_wrong_json(match: str, change: dict[str, Any]) -> None:
    found = json.loads(compiled().to_json())
    with pytest.raises(InvalidArgument, match=match):
        Plan.from_json(json.dumps({**found, **change}))


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", '"plan"', "null"])
def test_no_json(text: str) -> None:
    with pytest.raises(InvalidArgument, match="not a plan's JSON"):
        Plan.from_json(text)


def test_text() -> None:
    plan = compiled(chunk_bytes=4096, cores=2)
    lines = str(plan).splitlines()
    assert lines[0].startswith("plan of 4 ranks: 4 keys, 102 chunks, 395.21 KiB; fullest over mean: core 1.0")
    assert lines[2].split() == ["key", "shape", "bytes", "chunks", "servers"]
    assert lines[5].split()[-8:] == ["1000)", "390.62", "KiB", "98", "0,", "1,", "2,", "3"]
    assert lines[8].split() == ["server", "core", "bytes", "chunks"]
    assert sum(int(line.split()[-1]) for line in lines[9:]) == len(plan.rows)
    assert len(lines) == 17
    assert str(
        ParameterServer("NCS", [1, 2]).compile(Request({"conv": (16, 33), "b": ()}, 3, chunk_bytes=1024, cores=2))
    ) == (
        "plan of 3 ranks: 2 keys, 4 chunks, 2.07 KiB; fullest over mean: core 1.936, server 1.028; affinity key\n"
        "\n"
        "key   shape        bytes  chunks  servers\n"
        "conv  (16, 33)  2.06 KiB       3  1, 2\n"
        "b     ()             4 B       1  2\n"
        "\n"
        "server  core     bytes  chunks\n"
        "     1     0  1.00 KiB       1\n"
        "     1     1      64 B       1\n"
        "     2     0  1.00 KiB       1\n"
        "     2     1       4 B       1"
    )
    many = ParameterServer().compile(Request({f"k{i}": 5 for i in range(100)}, 50))
    assert "... and 76 more keys" in str(many)
    assert "... and 26 more cores" in str(many)
    assert "more" not in str(ParameterServer().compile(Request({f"k{i}": 5 for i in range(24)}, 8)))
    assert repr(plan) == "<hpcomm.Plan of 4 ranks, 4 keys, 102 rows>"


# ---- consistency ---------------------------------------------------------------------------------------------------


def test_consistency_is_a_value() -> None:
    assert Consistency() == BSP
    assert (BSP.staleness, BSP.quorum, BSP.late) == (0, None, None)
    assert Consistency(staleness=None, quorum=1) == ASYNC
    assert (str(BSP), str(ASYNC)) == ("BSP", "ASYNC")
    assert (
        str(Consistency(3))
        == "Consistency(staleness=3, quorum=None, late=None, waits_for='all', whole=True, grace=None)"
    )
    assert Consistency(waits_for="neighbours") == NOTIFY_ACK == SSP(0)
    assert Consistency(whole=False) == BARRIER
    assert Consistency(staleness=2, waits_for="neighbours") == SSP(2) != SSP(3)
    assert [str(c) for c in (NOTIFY_ACK, BARRIER, SSP(0), SSP(2))] == ["NOTIFY_ACK", "BARRIER", "NOTIFY_ACK", "SSP(2)"]
    with pytest.raises(FrozenInstanceError):
        BSP.staleness = 1  # type: ignore[misc]


def test_what_is_late_is_dropped_wherever_there_is_a_quorum() -> None:
    assert Consistency(quorum=2) == Consistency(quorum=2, late="drop") != BSP
    assert Consistency(quorum=2).late == "drop"
    assert replace(Consistency(quorum=2), quorum=1).late == "drop"
    assert ASYNC.late is None


@pytest.mark.parametrize(
    ("match", "fields"),
    [
        ("staleness is -1: must be an int, 0 or more, or None", {"staleness": -1}),
        ("staleness is 1.0", {"staleness": 1.0}),
        ("quorum is 0: must be an int, 1 or more, or None", {"quorum": 0}),
        ("quorum is 2147483648: must be 2147483647 or less, or None", {"quorum": 1 << 31}),
        ("grace is -1: must be seconds, 0 or more, or None", {"grace": -1}),
        ("grace is nan", {"grace": math.nan}),
        ("quorum is True", {"quorum": True}),
        ("late is 'wait': must be \"drop\", or None$", {"late": "wait"}),
        ('late is "drop": without a quorum, and under ASYNC, no update is late', {"late": "drop"}),
        ('late is "drop": without a quorum', {"staleness": None, "quorum": 1, "late": "drop"}),
        ("late is 'fold': must be \"drop\" or None: with a quorum", {"quorum": 2, "late": "fold"}),
        ('waits_for is \'me\': must be "all" or "neighbours"', {"waits_for": "me"}),
    ],
)
def test_consistency_refusals(match: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=match):
        Consistency(**fields)

"""Hierarchies of hosts: what every plan of one keeps, on random trees of groups, and every refusal."""

import re
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcomm import InvalidArgument
from hpcomm.plan import Edge, Plan, Row

Levels = list[list[list[int]]]


@st.composite
def trees(draw: st.DrawFn) -> Levels:
    """Levels of groups, the innermost first: up to 12 ranks, dealt to hosts in any order, and up to three levels."""
    size = draw(st.integers(1, 12))
    ranks = draw(st.permutations(range(size)))
    hosts = split(draw, list(ranks))
    levels = [hosts]
    for _ in range(draw(st.integers(0, 2))):
        levels.append([[rank for group in part for rank in group] for part in split(draw, levels[-1])])
    return levels


def split(draw: st.DrawFn, items: list[Any]) -> list[list[Any]]:
    cuts = sorted(draw(st.sets(st.integers(1, len(items)), max_size=len(items))) - {len(items)})
    return [items[a:b] for a, b in zip([0, *cuts], [*cuts, len(items)], strict=True)]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Levels, list[int] | None, dict[str, Any]]:
    """A tree, its leaders (one at least of each host), and other arguments."""
    levels = draw(trees())
    leaders = None
    if draw(st.booleans()):
        leaders = [rank for host in levels[0] for rank in draw(st.sets(st.sampled_from(host), min_size=1))]
    options = {
        "top": draw(st.sampled_from(["sharded", "ring"])),
        "cores": draw(st.integers(1, 3)),
        "depth": draw(st.integers(1, 3)),
        "reduce": draw(st.sampled_from(["mean", "sum"])),
        "codec": draw(st.sampled_from(["float32", "float16"])),
        "codec_out": draw(st.sampled_from(["float32", "bfloat16"])),
    }
    return levels, leaders, options


KEYS = st.lists(st.integers(1, 900), min_size=1, max_size=8).map(
    lambda counts: {f"k{i}": count for i, count in enumerate(counts)}
)


def made(keys: dict[str, int], levels: Levels, leaders: list[int] | None = None, **options: Any) -> Plan:
    size = sum(len(host) for host in levels[0])
    return Plan.hosts(keys, levels, size, leaders=leaders, chunk_bytes=256, **options)


def chunks(plan: Plan) -> dict[tuple[int, int], dict[int, Row]]:
    """The rows of each chunk, by their numbers."""
    found: dict[tuple[int, int], dict[int, Row]] = {}
    for i, row in enumerate(plan.rows):
        found.setdefault((row.key, row.offset), {})[i] = row
    return found


def owner_of(rows: dict[int, Row]) -> int:
    (owner,) = [i for i, row in rows.items() if row.action == "apply"]
    return owner


def inputs(rows: dict[int, Row], i: int) -> Counter[tuple[int, float]]:
    """The pushes that a row folds in the end: ranks, with the product of the weights on their way."""
    found: Counter[tuple[int, float]] = Counter()
    for edge in rows[i].in_edges:
        if edge.row < 0:
            found[edge.rank, edge.weight] += 1
        else:
            found.update({(rank, weight * edge.weight): n for (rank, weight), n in inputs(rows, edge.row).items()})
    return found


def outputs(rows: dict[int, Row], i: int) -> Counter[int]:
    """The workers that a row's parameters come to in the end."""
    found: Counter[int] = Counter()
    for edge in rows[i].out_edges:
        found.update({edge.rank: 1} if edge.row < 0 else outputs(rows, edge.row))
    return found


@settings(max_examples=150)
@given(keys=KEYS, case=cases())
def test_each_push_comes_to_the_owner_and_each_worker_gets_all(keys: dict[str, int], case: Any) -> None:
    levels, leaders, options = case
    plan = made(keys, levels, leaders, **options)
    size = plan.size
    weight = 1 / size if options["reduce"] == "mean" else 1.0
    covered = [0] * len(plan.keys)
    for (key, offset), rows in chunks(plan).items():
        top = owner_of(rows)
        assert offset == covered[key]
        covered[key] += rows[top].count
        assert inputs(rows, top) == {(rank, weight): 1 for rank in range(size)}
        assert outputs(rows, top) == dict.fromkeys(range(size), 1)
    assert covered == [key.count for key in plan.keys]
    assert Plan.from_json(plan.to_json()) == plan


@settings(max_examples=100)
@given(keys=KEYS, case=cases())
def test_rows_are_what_the_engine_takes(keys: dict[str, int], case: Any) -> None:
    levels, leaders, options = case
    wire, out = options["codec"], options["codec_out"]
    for rows in chunks(made(keys, levels, leaders, **options)).values():
        apply = rows[owner_of(rows)]
        for i, row in rows.items():
            assert (row.key, row.offset, row.count, row.core) == (apply.key, apply.offset, apply.count, apply.core)
            assert row.depth == options["depth"]
            assert row.owner in (leaders if leaders is not None else range(12))
            assert (row.codec_in, row.codec_out) == {
                "apply": (wire, out), "forward": (wire, wire), "relay": (out, out)
            }[row.action]  # fmt: skip
            below = [edge for edge in row.in_edges if edge.row >= 0]
            assert all(Edge(row.owner, i) in rows[edge.row].out_edges for edge in below)
            assert all(edge.weight == 1 and rows[edge.row].owner == edge.rank for edge in below)
            if row.action == "relay":
                assert (len(row.in_edges), row.quorum, len(below)) == (1, 1, 1)
                assert rows[below[0].row].action != "forward"
            else:
                assert row.quorum == len(row.in_edges)
                assert all(rows[edge.row].action == "forward" for edge in below)
                assert len(row.in_edges) > 1 or row is apply  # a fold of one input is none
            onward = [edge for edge in row.out_edges if edge.row >= 0]
            assert all(any(back.row == i for back in rows[edge.row].in_edges) for edge in onward)
            if row.action == "forward":
                assert len(row.out_edges) == len(onward) == 1
            else:
                assert all(rows[edge.row].action == "relay" for edge in onward)
        for action in ("forward", "relay"):
            owners = [row.owner for row in rows.values() if row.action == action]
            assert len(set(owners)) == len(owners)


@settings(max_examples=100)
@given(keys=KEYS, case=cases())
def test_a_chunk_crosses_the_border_of_a_group_once_each_way(keys: dict[str, int], case: Any) -> None:
    levels, leaders, options = case
    ring = options["top"] == "ring"
    for rows in chunks(made(keys, levels, leaders, **options)).values():
        owner = rows[owner_of(rows)].owner
        up = [(edge.rank, row.owner) for row in rows.values() if row.action != "relay" for edge in row.in_edges]
        down = [(row.owner, edge.rank) for row in rows.values() if row.action != "forward" for edge in row.out_edges]
        for i, level in enumerate(levels):
            number = {rank: g for g, group in enumerate(level) for rank in group}
            outermost = i == len(levels) - 1
            for edges, way in ((up, 0), (down, 1)):
                links = Counter((number[a], number[b]) for a, b in edges if number[a] != number[b])
                assert set(links.values()) <= {1}
                leaves, comes = (Counter(link[end] for link in links) for end in (way, 1 - way))
                others = set(range(len(level))) - {number[owner]}
                assert {leaves[g] for g in others} <= {1}
                if outermost:
                    assert {comes[g] for g in others} <= ({0, 1} if ring and len(level) > 2 else {0})
        if ring and len(levels[-1]) > 2:  # the owner's group has one neighbour on either side
            home = next(group for group in levels[-1] if owner in group)
            assert sum(a not in home and b in home for a, b in up) == 1
            assert sum(a in home and b not in home for a, b in down) == 1


def spread(loads: list[int]) -> int:
    return max(loads) - min(loads)


@settings(max_examples=100)
@given(keys=KEYS, case=cases())
def test_the_leaders_of_a_host_have_as_much_to_do(keys: dict[str, int], case: Any) -> None:
    """What a leader owns, and what it folds for its group, differ by a chunk at most from what another one of its host
    has; more only where what they own alone differs by more, as small chunks do over several cores."""
    levels, leaders, options = case
    plan = made(keys, levels, leaders, **options)
    chosen = set(range(plan.size) if leaders is None else leaders)
    led: Counter[int] = Counter()
    owned: Counter[int] = Counter()
    for rows in chunks(plan).values():
        apply = rows[owner_of(rows)]
        owned[apply.owner] += apply.count
        for host in levels[0]:
            leading = {row.owner for row in rows.values()} & set(host)
            assert len(leading) == (1 if len(host) > 1 else len(leading))
            for rank in leading:
                led[rank] += apply.count
    largest = max(row.count for row in plan.rows)
    for host in levels[0]:
        own = sorted(chosen & set(host))
        assert spread([led[rank] for rank in own]) <= max(largest, spread([owned[rank] for rank in own]))


@settings(max_examples=60)
@given(
    keys=KEYS, size=st.integers(1, 6), flat=st.booleans(), leads=st.data(), cores=st.integers(1, 3),
    reduce=st.sampled_from(["mean", "sum"]),
)  # fmt: skip
def test_without_several_groups_of_several_it_is_a_hub(
    keys: dict[str, int], size: int, flat: bool, leads: st.DataObject, cores: int, reduce: str
) -> None:
    ranks = list(range(size))
    levels = [[[rank] for rank in ranks]] if flat else [[ranks]]
    leaders = ranks if flat else sorted(leads.draw(st.sets(st.sampled_from(ranks), min_size=1)))
    options: dict[str, Any] = {"cores": cores, "chunk_bytes": 512, "reduce": reduce, "codec": "float16"}
    hub = Plan.hub(keys, ranks, leaders, size, **options)
    assert Plan.hosts(keys, levels, size, leaders=leaders, **options) == hub


def test_a_small_plan() -> None:
    plan = Plan.hosts({"w": 32}, [[[0, 1], [2, 3], [4]]], 5, chunk_bytes=128)
    half = 1 / 5
    assert tuple(plan.rows) == (
        Row(0, 0, 0, 0, 32, (Edge(0, -1, half), Edge(1, -1, half), Edge(4, -1, half), Edge(2, 1)),
            (Edge(2, 2), Edge(0), Edge(1), Edge(4))),
        Row(0, 2, 0, 0, 32, (Edge(2, -1, half), Edge(3, -1, half)), (Edge(0, 0),), "forward"),
        Row(0, 2, 0, 0, 32, (Edge(0, 0),), (Edge(2), Edge(3)), "relay"),
    )  # fmt: skip


def test_a_small_ring() -> None:
    plan = Plan.hosts({"w": 32}, [[[0, 1], [2], [3, 4]]], 5, chunk_bytes=128, top="ring", reduce="sum")
    assert tuple(plan.rows) == (
        Row(0, 0, 0, 0, 32, (Edge(0), Edge(1), Edge(3, 2)), (Edge(2, 1), Edge(0), Edge(1))),
        Row(0, 2, 0, 0, 32, (Edge(0, 0),), (Edge(3, 3), Edge(2)), "relay"),
        Row(0, 3, 0, 0, 32, (Edge(2), Edge(3), Edge(4)), (Edge(0, 0),), "forward"),
        Row(0, 3, 0, 0, 32, (Edge(2, 1),), (Edge(3), Edge(4)), "relay"),
    )  # fmt: skip


def test_equal_chunks_of_a_leader_lie_together() -> None:
    """Over memory they then pass in long runs, as those of a hub's server do."""
    plan = made({"w": 64 * 64}, [[[0, 1], [2, 3]]])
    for action, runs in (("apply", 4), ("forward", 4)):
        owners = [row.owner for row in plan.rows if row.action == action]
        assert sum(a != b for a, b in pairwise(owners)) == runs - 1
        assert Counter(owners) == dict.fromkeys(range(4), 16)


def test_the_leaders_of_racks_are_all_their_ranks() -> None:
    racks = [[0, 1, 2, 3], [4, 5, 6, 7]]
    plan = made({"w": 64 * 64}, [[[0, 1], [2, 3], [4, 5], [6, 7]], racks])
    crossing: Counter[int] = Counter()
    for rows in chunks(plan).values():
        home = next(rack for rack in racks if rows[owner_of(rows)].owner in rack)
        crossing.update(row.owner for row in rows.values() if row.action == "forward" and row.owner not in home
                        and rows[row.out_edges[0].row].owner in home)  # fmt: skip
    assert crossing == dict.fromkeys(range(8), 8)


# ---- refusals ------------------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {"levels": [[[0, 1], [2, 3]]], "size": 4}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"levels": []}, "levels is empty"),
        ({"levels": [[]]}, "hosts is empty"),
        ({"levels": [[[0, 1], []]]}, r"hosts\[1\] is empty"),
        ({"levels": [[[0, 1], [2, 3]], []]}, "racks is empty"),
        ({"levels": [[[0, 1], [1, 2, 3]]]}, r"rank 1 is in hosts\[1\] and hosts\[0\]"),
        ({"levels": [[[0, 0], [1]]]}, r"rank 0 is in hosts\[0\] twice"),
        ({"levels": [[[0, 1], [2, 4]]]}, r"hosts\[1\] is 4: must be 0 to 3"),
        ({"levels": [[0, 1]]}, r"hosts\[0\] is 0: must be a sequence of ranks"),
        ({"levels": [[[0, 1], [2, 3]], [[0, 1, 2, 3], [3]]]}, r"rank 3 is in racks\[1\] and racks\[0\]"),
        ({"levels": [[[0, 1], [2, 3]], [[0, 1]]]}, "rank 2 is in none of racks"),
        ({"levels": [[[0, 1], [2]], [[0, 1], [2, 3]]]}, "rank 3 is in racks, but in none of hosts"),
        ({"levels": [[[0, 1], [2, 3]], [[0, 2], [1, 3]]]}, "ranks 0 and 1 share group 0 of level 0"),
        ({"leaders": [0]}, "the host of rank 2 has no rank that leads"),
        ({"leaders": [0, 4]}, "leaders is 4: must be 0 to 3"),
        ({"leaders": [0, 3], "levels": [[[0, 1]]]}, "leaders has rank 3, which is in no group"),
        ({"top": "star"}, "top is 'star': must be one of 'sharded', 'ring'"),
        ({"levels": [[[0, 1, 2, 3]]] * 9}, "n_levels is 9"),
        ({"cores": 0}, "cores is 0"),
        ({"chunk_bytes": 100}, "chunk is 100 bytes"),
        ({"depth": 33}, "depth is 33"),
        ({"codec": "int4"}, "int4"),
    ],
)
def test_refusals(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        Plan.hosts({"w": 100}, **{**GOOD, **wrong})


@pytest.mark.full
def test_no_plan_of_too_many_rows() -> None:
    with pytest.raises(InvalidArgument, match="16777216 rows"):
        Plan.hosts({"w": 16 * (1 << 23)}, GOOD["levels"], 4, chunk_bytes=64)


# ---- as text -------------------------------------------------------------------------------------------------------


def test_the_plan_draws_its_groups_and_the_links_between_them() -> None:
    racks = [[0, 1, 2, 3], [4, 5, 6]]
    plan = Plan.hosts({"w": 1 << 16}, [[[0, 1], [2, 3], [4, 5], [6]], racks], 7, leaders=[0, 2, 4, 6], chunk_bytes=1024)
    told = str(plan)
    assert told.startswith("plan of 7 ranks: 1 keys, 256 chunks, 256.00 KiB; fullest over mean: core 1.143")
    assert "w    (65536,)  256.00 KiB     256  0, 2, 4, 6" in told
    assert told.endswith(
        """
groups of ranks; out and in: bytes of updates and of parameters that leave and enter a group
ranks 0-6
├─ ranks 0-3: 256.00 KiB out, 256.00 KiB in; led by ranks 0, 2
│  ├─ ranks 0-1: 384.00 KiB out, 384.00 KiB in; led by rank 0
│  └─ ranks 2-3: 384.00 KiB out, 384.00 KiB in; led by rank 2
└─ ranks 4-6: 256.00 KiB out, 256.00 KiB in; led by ranks 4, 6
   ├─ ranks 4-5: 384.00 KiB out, 384.00 KiB in; led by rank 4
   └─ rank 6: 384.00 KiB out, 384.00 KiB in

from       to            updates  parameters
ranks 0-1  ranks 2-3  128.00 KiB  128.00 KiB
ranks 2-3  ranks 0-1  128.00 KiB  128.00 KiB
ranks 4-5  rank 6     128.00 KiB  128.00 KiB
rank 6     ranks 4-5  128.00 KiB  128.00 KiB
ranks 0-1  ranks 4-5   64.00 KiB   64.00 KiB
ranks 2-3  rank 6      64.00 KiB   64.00 KiB
ranks 4-5  ranks 0-1   64.00 KiB   64.00 KiB
rank 6     ranks 2-3   64.00 KiB   64.00 KiB"""
    )


def test_a_ring_draws_no_groups_that_are_not_there() -> None:
    told = str(made({"w": 64 * 64}, [[[0, 1], [2, 3], [4]]], top="ring", codec_out="float16"))
    tree, links = told.split("\n\n")[-2:]
    assert [line.partition(":")[0] for line in tree.splitlines()[1:]] == [
        "ranks 0-4", "├─ ranks 0-1", "├─ ranks 2-3", "└─ rank 4"
    ]  # fmt: skip
    assert {tuple(re.split("  +", line)[:2]) for line in links.splitlines()[1:]} == {
        ("ranks 0-1", "ranks 2-3"), ("ranks 2-3", "rank 4"), ("rank 4", "ranks 0-1")
    }  # fmt: skip


def test_a_hub_draws_no_groups() -> None:
    assert "groups" not in str(made({"w": 64 * 64}, [[[0], [1]]]))

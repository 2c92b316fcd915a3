"""The chunks of keys, and the deal of chunks to owners: balanced in bytes over all keys, and small neighbours
together."""

import json
import math
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import run_threads
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcomm
from hpcomm import PlanOptions, _core
from hpcomm.plan import Plan
from hpcomm.topology import Hierarchy, ParameterServer, Request

Keys = dict[str, tuple[int, ...]]

SMALL = 16 << 10  # csrc/plan/cut.c


def transformer(width: int, layers: int, biases: bool) -> Keys:
    """The keys of a stack of layers: four matrices each, and five or eight vectors."""
    shapes: Keys = {"qkv": (3 * width, width), "proj": (width, width), "up": (4 * width, width)}
    shapes |= {"up.bias": (4 * width,), "down": (width, 4 * width), "down.bias": (width,)}
    shapes |= {"norm": (width,), "norm.bias": (width,), "norm2": (width,)}
    if biases:
        shapes |= {"norm2.bias": (width,), "qkv.bias": (3 * width,), "proj.bias": (width,)}
    return {f"{i}.{name}": shape for i in range(layers) for name, shape in shapes.items()}


def of_file(path: Path) -> Keys:
    return {name: tuple(shape) for name, shape in json.loads(path.read_text())["keys"].items()}


MODELS: dict[str, Keys] = {
    path.stem: of_file(path)
    for path in sorted((Path(__file__).parents[1] / "bench" / "common" / "models").glob("*.json"))
}
MODELS["a transformer of 38 keys"] = {"tokens": (128, 192), "places": (64, 192), **transformer(128, 4, biases=False)}
MODELS["a GPT of 145 keys"] = {"tokens": (4096, 256), **transformer(256, 12, biases=True)}
MODELS["100 keys of 1 KB"] = {f"k{i}": (256,) for i in range(100)}
MODELS["one huge key and 100 tiny ones"] = {"huge": (1 << 23,), **{f"k{i}": (64 + i,) for i in range(100)}}


def bytes_of(keys: Keys) -> list[int]:
    return [4 * math.prod(shape) for shape in keys.values()]


def by_owner(plan: Plan) -> list[int]:
    found = dict.fromkeys((rank for rank, _ in plan.places), 0)
    for (rank, _), nbytes in plan.loads().items():
        found[rank] += nbytes
    return list(found.values())


def check_cover(plan: Plan) -> None:
    """Every element of every key is in one row, and rows are in the order of keys, then of elements."""
    key, offset, count = (plan.rows.column(name).astype(np.int64) for name in ("key", "offset", "count"))
    assert np.array_equal(np.unique(key), np.arange(len(plan.keys)))
    assert (np.diff(key) >= 0).all()
    first = np.diff(key, prepend=-1) > 0
    ends = offset + count
    assert not offset[first].any()
    assert np.array_equal(offset[~first], ends[:-1][~first[1:]])
    assert ends[np.append(first[1:], True)].tolist() == [one.count for one in plan.keys]


def owners_of_small(plan: Plan) -> list[int]:
    """The owner of each key that one row of at most 16 KiB has, in the order of keys."""
    key, owner, count = (plan.rows.column(name) for name in ("key", "owner", "count"))
    alone = np.bincount(key)[key] == 1
    return owner[alone & (4 * count <= SMALL)].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("over_sockets", [False, True])
@pytest.mark.parametrize("owners", [2, 4])
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_owners_of_a_model_have_the_same_bytes(name: str, cores: int, owners: int, over_sockets: bool) -> None:
    plan = ParameterServer("CS").compile(Request(MODELS[name], owners, cores=cores, over_sockets=over_sockets))
    check_cover(plan)
    smallest = 4 * min(row.count for row in plan.rows)
    loads, of_cores = by_owner(plan), list(plan.loads().values())
    assert max(loads) <= 1.02 * sum(loads) / len(loads) + smallest
    assert max(of_cores) <= 1.04 * sum(of_cores) / len(of_cores) + smallest


@pytest.mark.parametrize("over_sockets", [False, True])
@pytest.mark.parametrize("owners", [2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_small_neighbours_share_an_owner(name: str, owners: int, over_sockets: bool) -> None:
    """A run of small keys goes to another owner when it has half of 32 KiB, or when its owner has enough."""
    keys = MODELS[name]
    plan = ParameterServer("CS").compile(Request(keys, owners, over_sockets=over_sockets))
    nbytes = sum(n for n in bytes_of(keys) if n <= SMALL)
    assert len(list(groupby(owners_of_small(plan)))) <= nbytes // SMALL + 2 * owners


@settings(max_examples=60)
@given(
    counts=st.lists(st.one_of(st.integers(1, 300), st.integers(1, 200_000)), min_size=1, max_size=60),
    servers=st.integers(1, 5),
    cores=st.integers(1, 3),
    interfaces=st.integers(1, 3),
)
def test_every_deal_is_balanced_and_covers_the_keys(
    counts: list[int], servers: int, cores: int, interfaces: int
) -> None:
    keys = {f"k{i}": count for i, count in enumerate(counts)}
    plan = ParameterServer("CS", servers, interfaces=min(interfaces, cores)).compile(Request(keys, 5, cores=cores))
    check_cover(plan)
    loads, largest = list(plan.loads().values()), 4 * max(row.count for row in plan.rows)
    if cores % min(interfaces, cores) == 0:  # else a core of a NIC with fewer cores has more
        assert max(loads) <= sum(loads) / len(loads) + largest * (2 if interfaces > 1 else 1)
    assert plan == ParameterServer("CS", servers, interfaces=min(interfaces, cores)).compile(
        Request(keys, 5, cores=cores)
    )


def test_a_key_that_could_unbalance_the_owners_is_dealt_by_its_size() -> None:
    keys = {**{f"k{i}": (256,) for i in range(64)}, "last": (4096,)}
    assert by_owner(ParameterServer("CS").compile(Request(keys, 2))) == [40 << 10, 40 << 10]


# ---- over sockets --------------------------------------------------------------------------------------------------

LINE = 16  # elements: a chunk ends on a cache line


@settings(max_examples=100)
@given(
    counts=st.lists(st.one_of(st.integers(1, 20_000), st.integers(1, 5_000_000)), min_size=1, max_size=12),
    servers=st.integers(1, 6),
    cores=st.integers(1, 3),
)
def test_over_sockets_every_core_gets_an_equal_part_of_a_key(counts: list[int], servers: int, cores: int) -> None:
    keys = {f"k{i}": count for i, count in enumerate(counts)}
    plan = ParameterServer("CS", servers).compile(Request(keys, 6, cores=cores, over_sockets=True))
    check_cover(plan)
    for i, n in enumerate(counts):
        sizes = [4 * row.count for row in plan.rows_of(f"k{i}")]
        whole = max(sizes)
        assert all(size == whole for size in sizes[:-1])
        assert whole <= 256 << 10
        if 4 * n < SMALL:
            assert len(sizes) == 1
        if len(sizes) > 1:
            assert whole >= SMALL
        if 4 * n >= SMALL * servers * cores:
            assert len(sizes) % (servers * cores) == 0
            assert whole * servers * cores <= 4 * n + 4 * LINE * len(sizes)


@pytest.mark.parametrize("owners", [2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_over_sockets_every_owner_has_as_many_chunks_of_a_large_key(name: str, owners: int) -> None:
    keys = MODELS[name]
    plan = ParameterServer("CS").compile(Request(keys, owners, over_sockets=True))
    key, owner = plan.rows.column("key"), plan.rows.column("owner")
    for i, nbytes in enumerate(bytes_of(keys)):
        if nbytes >= 2 * SMALL * owners:
            assert len(set(np.bincount(owner[key == i], minlength=owners).tolist())) == 1


def test_a_key_alone_has_several_chunks_for_each_owner_over_sockets() -> None:
    plan = ParameterServer("CS").compile(Request({"w": (1 << 18,)}, 4, over_sockets=True))
    assert [4 * row.count for row in plan.rows] == [64 << 10] * 16
    assert by_owner(plan) == [256 << 10] * 4


def test_a_hierarchy_cuts_keys_for_its_leaders() -> None:
    hosts = Hierarchy([[0, 1], [2, 3]], leaders=[0, 2])
    assert {row.count for row in hosts.compile(Request({"w": (10240,)}, 4, over_sockets=True)).rows} == {5120}
    assert {row.count for row in hosts.compile(Request({"w": (10240,)}, 4)).rows} == {10240}


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_chunks_follow_from_the_transport_and_not_from_progress(transport: str) -> None:
    keys = {"w": (300, 1000), "b": (1000,)}

    def rank(ctx: hpcomm.Context) -> None:
        zeros = {name: np.zeros(shape, np.float32) for name, shape in keys.items()}
        progress: Any = ("inline", "thread", "auto")[ctx.rank]
        with hpcomm.Exchange(ctx, zeros, ParameterServer("CS"), plan=PlanOptions(cores=1), progress=progress) as ex:
            assert ex.plan == ParameterServer("CS").compile(Request(keys, 3, over_sockets=transport == "tcp"))
            ex.step({name: np.ones(shape, np.float32) for name, shape in keys.items()})

    run_threads(3, rank, transport=transport)


# ---- hierarchies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hosts", [2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_a_host_sends_small_neighbours_by_one_leader(name: str, hosts: int) -> None:
    """Small keys that follow each other change their owner or their leader in a host seldom, and leaders have the same
    bytes."""
    keys, last = MODELS[name], (2 * hosts - 2, 2 * hosts - 1)
    topology = Hierarchy([[2 * i, 2 * i + 1] for i in range(hosts)])
    plan = topology.compile(Request(keys, 2 * hosts, over_sockets=True))
    key, owner, count, action = (plan.rows.column(one) for one in ("key", "owner", "count", "action"))
    applies = action == _core.ACTIONS["apply"]
    leads = (action == _core.ACTIONS["forward"]) & np.isin(owner, last)
    above = {
        (k, n): o for k, n, o in zip(key[applies], plan.rows.column("offset")[applies], owner[applies], strict=True)
    }
    small = (4 * count <= SMALL) & (np.bincount(key[applies])[key] == 1) & leads
    pairs = [(above[k, 0], o) for k, o in zip(key[small], owner[small], strict=True)]
    nbytes = 4 * int(count[small].sum())
    assert len(list(groupby(pairs))) <= nbytes // SMALL + 4 * hosts
    loads = [4 * int(count[(leads | applies) & (owner == rank)].sum()) for rank in last]
    assert abs(loads[0] - loads[1]) <= 4 * int(count.max())

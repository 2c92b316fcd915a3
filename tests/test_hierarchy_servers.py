"""Hierarchies with servers that do not work: the hubs of racks (PHub, section 3.4)."""

from typing import Any

import numpy as np
import pytest
from conftest import on_both, run_threads
from flat import grouped
from numpy.typing import NDArray
from test_hierarchy_exchange import F32, RULE, SHAPES, STEPS, gradient, params, steps_of

import hpcomm
from hpcomm import ASYNC, SGD, SSP, Exchange, Hierarchy, InvalidArgument, ParameterServer
from hpcomm.codec import Factors
from hpcomm.plan import Plan
from hpcomm.topology import Request

HOSTS = [[0, 1, 7], [2], [3, 4], [5, 8], [6]]  # 7 and 8 only serve; each shares a host with workers
RACKS = [[0, 1, 2, 7], [3, 4, 5, 6, 8]]
CASES: dict[str, tuple[Hierarchy, dict[str, Any]]] = {
    "no racks": (Hierarchy(HOSTS, (), servers=[7, 8]), {"cores": 2}),
    "racks": (Hierarchy(HOSTS, RACKS, servers=[7, 8]), {}),
    "ring": (Hierarchy(HOSTS, [[0, 1, 7], [2, 3, 4, 9], [5, 6, 8]], servers=[7, 8, 9], top="ring"), {}),
    "two in a rack": (Hierarchy(HOSTS, [[0, 1, 2, 7, 8], [3, 4, 5, 6, 9]], servers=[7, 8, 9]), {}),
    "a rack without": (Hierarchy(HOSTS, [[0, 1, 2, 7, 8], [3, 4, 5, 6]], servers=[7, 8]), {"progress": "thread"}),
    "16 bits": (Hierarchy(HOSTS, RACKS, servers=[8, 7]), {"codec": "float16"}),
    "mean": (Hierarchy(HOSTS, RACKS, servers=[7, 8]), {"reduce": "mean"}),
}


def trained(ctx: hpcomm.Context, topology: Any, options: dict[str, Any]) -> dict[str, NDArray[np.float32]]:
    with Exchange(ctx, params(), topology, rule=RULE, chunk_bytes=1024, **grouped(options)) as ex:
        if ctx.rank >= 7:
            ex.serve()
            return {}
        steps_of(ex, ctx.rank, STEPS)
        return {name: value.copy() for name, value in ex.params.items()}


@pytest.mark.some(4)
@on_both
@pytest.mark.parametrize("case", CASES)
def test_servers_of_racks_have_the_values_of_servers_of_all(case: str) -> None:
    topology, options = CASES[case]
    options = {"progress": "inline", "reduce": "sum", **options}
    tolerance = 1e-5 if options["reduce"] == "mean" else 0  # sevenths depend on the order of their sum

    def body(ctx: hpcomm.Context) -> None:
        flat = ParameterServer("NCS", servers=topology.servers)
        expected, found = (trained(ctx, each, options) for each in (flat, topology))
        for name, value in expected.items():
            assert np.allclose(value, found[name], rtol=0, atol=tolerance), name

    hosts = [*HOSTS, [9]] if 9 in topology.servers else HOSTS
    run_threads(sum(map(len, hosts)), body)


@pytest.mark.some(1)
@on_both
@pytest.mark.parametrize("consistency", [SSP(1), ASYNC], ids=str)
def test_racks_with_servers_that_run_apart_count_every_update_once(consistency: hpcomm.Consistency) -> None:
    def body(ctx: hpcomm.Context) -> None:
        topology = Hierarchy(HOSTS, RACKS, servers=[7, 8])
        options: dict[str, Any] = {"rule": SGD(lr=0.25), "chunk_bytes": 1024, "progress": "thread", "reduce": "sum"}
        with Exchange(ctx, params(), topology, consistency, **grouped(options)) as ex:
            if ctx.rank < 7:
                steps_of(ex, ctx.rank, STEPS)
            ctx.barrier()
            ex.load_state_dict(ex.state_dict())
            for name, start in params().items() if ctx.rank < 7 else ():
                total = sum(gradient(name, rank, step) for rank in range(7) for step in range(STEPS))
                assert np.allclose(ex.params[name], start - F32(0.25) * total, rtol=1e-6, atol=1e-6), name

    run_threads(9, body)


def crossings(plan: Plan, racks: list[list[int]]) -> dict[tuple[int, int], list[int]]:
    """For each chunk, given by its key and offset: how many edges leave each rack."""
    rack = {rank: number for number, ranks in enumerate(racks) for rank in ranks}
    found: dict[tuple[int, int], list[int]] = {}
    for row in plan.rows:
        count = found.setdefault((row.key, row.offset), [0] * len(racks))
        for edge in row.in_edges:  # pushes
            if edge.row < 0 and rack[edge.rank] != rack[row.owner]:
                count[rack[edge.rank]] += 1
        for edge in row.out_edges:
            if rack[edge.rank] != rack[row.owner]:
                count[rack[row.owner]] += 1
    return found


@pytest.mark.parametrize("top", ["sharded", "ring"])
def test_each_chunk_leaves_a_rack_once_and_servers_own_all(top: str) -> None:
    racks = [[0, 1, 2, 9], [3, 4, 5, 10], [6, 7, 8, 11]]
    topology = Hierarchy([[rank] for rank in range(12)], racks, servers=[9, 10, 11], top=top)
    assert topology.roles(12)[0] == tuple(range(9))
    plan = topology.compile(Request(SHAPES, 12, chunk_bytes=1024))
    assert set(plan.rows.column("owner").tolist()) == {9, 10, 11}  # hosts of one rank fold nothing
    assert plan.workers == tuple(range(9))
    for chunk, left in crossings(plan, racks).items():  # two folds on their way to the owner, and two copies from there
        assert sorted(left) == [1, 1, 2], chunk
    flat = ParameterServer("NCS", servers=[9, 10, 11]).compile(Request(SHAPES, 12, chunk_bytes=1024))
    assert all(sum(left) == 12 for left in crossings(flat, racks).values())


def test_servers_stay_when_their_rack_is_gone() -> None:
    topology = Hierarchy(HOSTS, RACKS, servers=[7, 8])
    left = topology.among([0, 2, 7, 8], 9)
    assert (left.racks, left.servers) == (((0, 1, 2, 3),), (2, 3))
    assert topology.among([0, 1, 3], 9).servers == ()
    left.compile(Request(SHAPES, 4))


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: Hierarchy([[0], [1]], servers=[1], apply_at="receivers"), "servers apply: leave one out"),
        (lambda: Hierarchy([[0], [1]], servers=[0, 1]).roles(2), "no rank is left that works"),
        (lambda: Hierarchy([[0], [1]], servers=[2]).roles(2), "servers is 2: must be"),
        (lambda: Hierarchy([[0], [1]], (), servers=[1], top="ring").compile(Request(SHAPES, 2)), "give racks"),
        (lambda: Hierarchy([[0], [1], [2]], [[0, 1], [2]], servers=[2]).compile(Request(SHAPES, 3)), "has no worker"),
        (lambda: Hierarchy([[0], [1], [2]], [[0], [1]], servers=[2]).compile(Request(SHAPES, 3)), "rank 2 is in none"),
        (
            lambda: Hierarchy([[0], [1]], servers=[1]).compile(Request({"w": (4, 4)}, 2, codec=Factors(1))),
            "leave servers out",
        ),
    ],
)
def test_wrong_servers_are_refused(made: Any, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        made()

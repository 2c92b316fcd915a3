"""Jobs whose racks have a hub each (PHub, section 3.4)."""

from collections.abc import Iterator
from typing import Any

import pytest
from conftest import on_both, run_threads
from served import SECONDS, TOKENS, VALUES, Served, join, run, said, trained

import hpcomm
from hpcomm import SSP, Hierarchy

RACKS = [[0, 2], [1, 3]]
RULE = hpcomm.Nesterov(lr=0.5)
CASES: list[dict[str, Any]] = [
    {},
    {"top": "ring"},
    {"rule": hpcomm.Adam(lr=0.125), "plan": hpcomm.PlanOptions(chunk_bytes=4096), "reduce": "sum"},
    {"codec": {"w": "float16", "big": hpcomm.codec.TopK(0.1)}, "plan": hpcomm.PlanOptions(codec_out="bfloat16")},
    {"consistency": {"w": SSP(0)}},
]


@pytest.fixture(scope="module")
def hubs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Served]]:
    served = [Served(tmp_path_factory.mktemp(f"hub{i}"), drain_seconds=0) for i in range(2)]
    yield served
    assert [one.end() for one in served] == [0, 0]


def created(hubs: list[Served], namespace: str = "a") -> str:
    return hpcomm.create_service([one.where for one in hubs], namespace, TOKENS[namespace])


def train_all(handle: str, token: str) -> list[str]:
    """The parameters of each case at hubs of racks."""
    with join(handle, token) as ctx:
        found = []
        for more in CASES:
            case = {"rule": RULE, "racks": RACKS, **more}
            with hpcomm.parameter_hub(ctx, VALUES, servers="hub", **case) as ex:
                assert ex.plan.workers == (0, 1, 2, 3)
                assert {4, 5} <= set(ex.plan.rows.column("owner"))
                found.append(bits(trained(ex, ctx.rank)))
        return found


def bits(values: dict[str, Any]) -> str:
    return "".join(array.tobytes().hex() for array in values.values())


def train_in_job(ctx: hpcomm.Context) -> list[str]:
    """The same in a job that has the hubs as its last ranks."""
    found = []
    for more in CASES:
        case = {"rule": RULE, "progress": "thread", **more}
        racks = [[*rack, 4 + i] for i, rack in enumerate(RACKS)]
        topology = Hierarchy([*RACKS, [4], [5]], racks, servers=[4, 5], top=case.pop("top", "sharded"))
        with hpcomm.Exchange(ctx, VALUES, topology, case.pop("consistency", hpcomm.BSP), **case) as ex:
            if ctx.rank < 4:
                found.append(bits(trained(ex, ctx.rank)))
            else:
                ex.serve()
    return found


@on_both
def test_hubs_of_racks_give_the_bits_of_a_hierarchy(hubs: list[Served], ranks_by: str) -> None:
    alone: list[list[str]] = [[]] * 6

    def body(ctx: hpcomm.Context) -> None:
        alone[ctx.rank] = train_in_job(ctx)

    run_threads(6, body)
    assert alone[0] == alone[3]
    for found in run(4, train_all, created(hubs)):
        assert found == alone[0]
    for one in hubs:
        one.until("has ended")

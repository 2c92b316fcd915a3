"""Jobs whose racks have a hub each (PHub, section 3.4)."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import on_both, run_threads
from served import TOKENS, VALUES, Served, join, run, said, status, trained

import hpcomm
from hpcomm import SSP, Hierarchy

pytestmark = pytest.mark.xdist_group("group service racks")  # its hubs serve all tests

RACKS = [[0, 2], [1, 3]]
RULE = hpcomm.Nesterov(lr=0.5)
TOP_K = hpcomm.codec.TopK(0.1, kernel="c")  # no rank compiles
CASES: list[dict[str, Any]] = [
    {},
    {"top": "ring"},
    {"rule": hpcomm.Adam(lr=0.125), "plan": hpcomm.PlanOptions(chunk_bytes=4096), "reduce": "sum"},
    {
        "codec": {"w": "float16", "big": hpcomm.codec.TopK(0.1, kernel="c")},
        "plan": hpcomm.PlanOptions(codec_out="bfloat16"),
    },
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


def bits(values: Mapping[str, Any]) -> str:
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


@pytest.fixture(scope="module")
def alone() -> list[str]:
    first, *_, last = run_threads(6, train_in_job)[:4]
    assert first == last
    return list(first)


@on_both
def test_hubs_of_racks_give_the_bits_of_a_hierarchy(hubs: list[Served], alone: list[str], ranks_by: str) -> None:
    assert run(4, train_all, created(hubs)) == [alone] * 4
    for one in hubs:
        one.until("has ended")


def go_apart(handle: str, token: str) -> list[float]:
    """SSP and ASYNC: sums of gradients of ones are exact, whatever the order. A quorum needs racks of several hosts."""
    sums = []
    with join(handle, token) as ctx:
        for consistency in (SSP(2), hpcomm.ASYNC):
            case: dict[str, Any] = {"consistency": consistency, "rule": hpcomm.SGD(lr=1.0), "reduce": "sum"}
            values = {"w": np.zeros(5000, np.float32)}
            with hpcomm.parameter_hub(ctx, values, servers="hub", racks=RACKS, **case) as ex:
                for _ in range(3):
                    ex.push_pull("w", np.ones(5000, np.float32))
                ctx.barrier()
                for _ in range(3):  # more steps than a copy may be behind
                    w = ex.push_pull("w", np.zeros(5000, np.float32))
                assert (w == w[0]).all()
                sums.append(float(w[0]))
        case = {"consistency": hpcomm.Consistency(quorum=1), "rule": hpcomm.SGD(lr=1.0)}
        told = said(lambda: hpcomm.parameter_hub(ctx, VALUES, servers="hub", racks=RACKS, **case))
        assert told[0] == "NotSupported", told
    return sums


@on_both
def test_racks_may_go_apart(hubs: list[Served], ranks_by: str) -> None:
    assert run(4, go_apart, created(hubs)) == [[-12.0] * 2] * 4


def step_and_save(handle: str, token: str, top: str) -> list[Any]:
    """The steps with which an exchange begins, and its parameters before and after a step that is saved."""
    with join(handle, token) as ctx:
        case: dict[str, Any] = {"racks": RACKS, "top": top, "rule": hpcomm.Adam(lr=0.125)}
        with hpcomm.parameter_hub(ctx, VALUES, servers="hub", **case) as ex:
            found = [ex.clock, bits(ex.params)]
            trained(ex, ctx.rank, 1)
            ex.save()
            return [*found, bits(ex.params)]


def test_hubs_of_racks_save_and_restore(tmp_path: Path) -> None:
    hubs = []
    for i in range(2):
        (tmp_path / f"{i}").mkdir()
        hubs.append(Served(tmp_path / f"{i}", drain_seconds=0, checkpoints="saved"))
    where = [one.where for one in hubs]
    handle = hpcomm.create_service(where, "a", TOKENS["a"], "racked")
    saved = run(4, step_and_save, handle, "sharded")
    for one in hubs:
        one.wait(lambda one=one: one.jobs()["a/racked"] == "saved")  # type: ignore[misc]
    handle = hpcomm.create_service(where, "a", TOKENS["a"], "racked", resume=True)
    again = run(4, step_and_save, handle, "ring")
    for (begun, _, after), (went_on, before, end) in zip(saved, again, strict=True):
        assert (begun, went_on) == (0, 1)
        assert before == after == saved[0][2]
        assert end == again[0][2] != before
    assert [one.end() for one in hubs] == [0, 0]


# ---- what is refused -----------------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"racks": [[0], [1], []]}, "racks has 3 racks and the job 2 hubs: give the workers of each hub's rack"),
    ({"racks": [[0, 1]]}, "racks has 1 racks and the job 2 hubs: give the workers of each hub's rack"),
    ({"racks": [[0], []]}, "racks[1] is empty: name a worker, or create the job with fewer hubs"),
    ({"racks": [[0], [0]]}, "rank 0 is in racks[0] and racks[1]: name it once"),
    ({"racks": [[0, 0], [1]]}, "rank 0 is in racks[0] and racks[0]: name it once"),
    ({"racks": [[0], [2]]}, "racks[1] is 2: must be 0 to 1"),
    ({"racks": [0, 1]}, "racks[0] is 0: must be a sequence of ranks"),
    ({"racks": [[0], [1]], "top": "star"}, "top is 'star': must be"),
    ({"racks": [[0], [1]], "apply_at": "receivers"}, "apply_at is 'receivers' and racks are given: leave apply_at out"),
    (
        {"racks": [[0], [1]], "top": "ring", "consistency": SSP(1)},
        "ASYNC and SSP(s) apply the update of each host by itself, and a ring folds all into one: give BSP, or "
        "top='sharded'",
    ),
    ({"racks": [[0], [1]], "codec": hpcomm.codec.Factors(1)}, "pairs go from worker to worker: leave servers out"),
    ({"top": "ring"}, "top is 'ring' and racks None: it says how racks exchange their folds: give racks"),
    ({"topology": Hierarchy(racks=[[0], [1]], leaders=[0])}, "there a Hierarchy gives racks and top alone"),
    ({"topology": Hierarchy(racks=[[0]])}, "racks has 1 racks and the job 2 hubs: give the workers of each hub's rack"),
]


def make_wrong(handle: str, token: str) -> list[list[str]]:
    """What each rank is told of racks that are wrong on rank 1 alone; then the job goes on."""
    values = {"w": np.zeros((64, 64), np.float32)}
    right: dict[str, Any] = {"servers": "hub", "racks": [[0], [1]], "rule": RULE}
    with join(handle, token) as ctx:
        told = []
        for wrong, _ in WRONG:
            case = {**right, "racks": None, **wrong} if ctx.rank else right
            told.append(said(lambda case=case: hpcomm.parameter_hub(ctx, values, **case)))  # type: ignore[misc]
        told.append(said(lambda: hpcomm.parameter_hub(ctx, values, racks=[[0], [1]])))
        hpcomm.parameter_hub(ctx, values, **right).close()
        return told


def test_wrong_racks_are_told_on_every_rank(hubs: list[Served]) -> None:
    first, second = run(2, make_wrong, created(hubs))
    for (_, sentence), other, own in zip(WRONG, first, second, strict=False):
        assert own[0] == other[0] == "InvalidArgument", (own, other)
        assert sentence in own[1], own
        assert f"rank 1: {own[1]}" in other[1], other
    for told in (first, second):
        assert told[-1][0] == "InvalidArgument"
        assert "give topology=Hierarchy(racks=[[0], [1]])" in told[-1][1]


# ---- bounds --------------------------------------------------------------------------------------------------------


def count_needs(handle: str, token: str, wheres: list[str]) -> list[list[int]]:
    """By hub: bytes that it has, bytes that it counts, descriptors that it has and descriptors that it counts, while an
    exchange that has pushed to it is open."""
    with join(handle, token, transport="tcp") as ctx:
        values = {"x": np.ones(1 << 20, np.float32), "y": np.ones(1 << 19, np.float32)}
        case: dict[str, Any] = {"racks": RACKS, "rule": hpcomm.Adam(), "consistency": SSP(1)}
        with hpcomm.parameter_hub(ctx, values, servers="hub", **case) as ex:
            for name, value in values.items():
                ex.push_pull(name, value)
            ctx.barrier()
            found = [status(where) for where in wheres]
            ctx.barrier()
        names = ("resident", "memory", "descriptors")
        return [[*(one[name] for name in names), one["namespaces"]["a"]["descriptors"]] for one in found]


def test_a_hub_of_a_rack_holds_no_more_than_it_counts(hubs: list[Served]) -> None:
    for one in hubs:
        one.wait(lambda one=one: not one.jobs())  # type: ignore[misc]
    before = [one.ask(op="status") for one in hubs]
    found = run(4, count_needs, created(hubs), [one.where for one in hubs])[0]
    for old, (resident, memory, descriptors, counted) in zip(before, found, strict=True):
        assert (8 << 20) < resident - old["resident"] < memory + (4 << 20), (resident - old["resident"], memory)
        assert memory < 6 * (resident - old["resident"]), (resident - old["resident"], memory)
        assert 4 < descriptors - old["descriptors"] <= counted

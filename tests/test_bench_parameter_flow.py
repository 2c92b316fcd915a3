"""The benchmark of Parameter Flow: what it finds in its rows, and that a spoilt value is found."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bench.ops.hosts_bench import carried
from bench.parameter_flow import cost as cost_of
from bench.parameter_flow import shared as shared_cluster
from bench.parameter_flow import times, traffic, trees
from bench.parameter_flow.__main__ import GROUPS, main, options_of
from bench.parameter_flow.cases import DENSE, FOLLOW, LOW, UP

ROOT = Path(__file__).resolve().parent.parent
UNABLE = 77
LINK = carried("1gbit")


def row(way: str, staleness: int, points: list[list[float]], group: str = "time", **more: Any) -> dict[str, Any]:
    one = asdict(times.training(group, "lr", "32 MiB", way, staleness, 10, 0))
    one |= {"compute": 0.1, "ranks": 8, "taken": 10, "step": 0.5, "computing": 0.1, "waited": 0.4, "rate": "1gbit"}
    one |= {"encode": 0.02, "decode": 0.03, "processor": 0.6, "cores": 2, "link": 0.25 * LINK, "sent": 0.2 * LINK}
    one |= {"points": points, "began": 0.0, "clock": [0.5 * i for i in range(1, 11)], "deltas": [[-1.0]] * 10}
    one |= {"bytes": [0.2 * LINK * i for i in range(1, 11)], "kept": 1.0, "wrong": 0}
    return one | more


def document(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"groups": list(dict.fromkeys(one["group"] for one in rows)), "rows": rows}


def trainings(group: str) -> list[dict[str, Any]]:
    fewer = [0.05 * LINK * i for i in range(1, 11)]
    return [
        row(DENSE, 0, [[10, 5.0, 1.0]], group),
        row(UP, 0, [[9, 1.8, 1.2], [11, 2.2, 0.8]], group, bytes=fewer, sent=0.05 * LINK),
        row(UP, 16, [[9, 0.9, 1.2], [11, 1.1, 1.1]], group, sent=0.05 * LINK, bytes=fewer),
    ]


def test_the_objective_is_reached_between_two_looks() -> None:
    dense, up, ssp = trainings("time")
    rows = [dense, up, ssp]
    assert times.reached(up, times.aim_of(rows, up)) == pytest.approx((10, 2.0))
    assert times.reached(ssp, 1.0) is None
    assert times.reached(ssp, 1.3) == (9, 0.9)
    assert times.speedups(rows, "lr", UP, 0) == pytest.approx([2.5])
    assert times.speedups(rows, "lr", UP, 16) == []
    assert list(times.findings(rows)) == ["LR, up, BSP: 2.50x, asked 2.4x, the paper 2.4x"]


def test_a_cycle_without_dense_does_not_count() -> None:
    rows = trainings("time")
    assert times.whole([*rows, {**rows[1], "cycle": 1}]) == rows


def test_bounds_add_up_under_bsp_and_overlap_under_ssp() -> None:
    assert times.bound(row(UP, 0, [])) == pytest.approx(0.1 + 0.25 + 0.02 + 0.03)
    assert times.bound(row(UP, 4, [])) == pytest.approx(0.3)  # 0.6 s of two cores
    assert times.bound(row(UP, 4, [], processor=0.1)) == pytest.approx(0.25)
    assert times.bound(row(UP, 4, [], processor=0.1, link=0)) == pytest.approx(0.1)


def test_traffic_is_told_by_clock() -> None:
    rows = trainings("traffic")
    assert traffic.saved(rows, rows[1]) == pytest.approx([0.75] * 10)
    assert traffic.steps_of(rows, rows[1]) == pytest.approx(1.0)
    found = {promise.what: promise for promise in traffic.promises(document(rows))}
    assert found["LR, up, BSP: saved"].value == pytest.approx(75)
    assert not found["LR, up, BSP: saved"].met
    assert found["LR, up, BSP: steps"].met
    assert found["LR, up, SSP(16): steps"].missing


def test_traffic_under_ssp_is_told_against_dense_under_ssp() -> None:
    rows = trainings("traffic")
    rows.append(row(DENSE, 16, [], "traffic", sent=0.1 * LINK, stages={"push": 0.08e6, "parameters": 0.02e6}))
    assert traffic.saved(rows, rows[2]) == pytest.approx([0.5] * 10)
    assert traffic.saved(rows, rows[1]) == pytest.approx([0.75] * 10)
    ssp, dense = (line.split() for line in traffic.lines(document(rows)) if "SSP(16)" in line)
    assert ssp[-6:] == ["50.0", "75.0", "0.000", "0.000", "never", "0"]
    assert dense[-5:] == ["50.0", "0.080", "0.020", "never", "0"]


def shared(way: str, step: float, deltas: list[float], began: float = 40.0) -> dict[str, Any]:
    """Of 20 s; deltas: of each 2 s."""
    steps = round(20 / step)
    each = [[deltas[min(int((i + 1) * step / 2), len(deltas) - 1)]] for i in range(steps)]
    clock, sent = [step * (i + 1) for i in range(steps)], [1e6 * (i + 1) for i in range(steps)]
    more = {"began": began, "period": 20.0, "taken": steps, "clock": clock, "bytes": sent, "deltas": each}
    return row(way, 0, [[steps, 20.0, 1.0]], "shared", rate="200mbit", sent=1e6, link=1e6, **more)


def test_verdicts_are_timed_from_each_change() -> None:
    follow = shared(FOLLOW, 0.5, [1, 1, 2, 2, 2, 2, 1, 1, 1, 1])
    assert shared_cluster.verdicts(follow) == pytest.approx([4.0, 2.0])
    assert shared_cluster.verdicts(shared(FOLLOW, 0.5, [1])) == [float("inf")]


def test_the_phases_of_a_shared_cluster_are_told_apart() -> None:
    follow = shared(FOLLOW, 0.5, [1])
    follow["clock"] = [1.0 * (i + 1) for i in range(10)] + [10 + 0.5 * (i + 1) for i in range(20)]
    follow["bytes"] = [1e6 * (i + 1) for i in range(30)]
    assert [shared_cluster.phase(follow, which)["step"] for which in ("shared", "free")] == [1.0, 0.5]
    free = carried("200mbit")
    assert shared_cluster.bound([], follow, "free") == pytest.approx(0.15 + 1e6 / free)
    assert shared_cluster.bound([], follow, "shared") == pytest.approx(0.15 + 4e6 / free)
    dense = {**follow, "way": DENSE, "bytes": [1e7 * (i + 1) for i in range(30)]}
    assert shared_cluster.bound([dense], follow, "shared") == pytest.approx(0.15 + 1e6 / (1e7 / 0.9))


def tree(owners: int, way: str, kept: float, step: float) -> dict[str, Any]:
    facts = {"group": "trees", "app": "trees", "cycle": 0, "mib": 32, "units": 2.0, "ranks": 8, "rate": "1gbit"}
    return facts | {"owners": owners, "way": way, "kept": kept, "step": step, "wrong": 0}


def test_trees_are_held_against_flat_sends_of_as_many_owners() -> None:
    rows = [tree(*key, step=1 / n) for n, key in enumerate(trees.WAYS, 1)]
    found = {promise.what: promise.value for promise in trees.promises(document(rows))}
    assert found["1 owner, chain"] == pytest.approx(4)
    assert found["2 owners, a tree each, degree 2"] == pytest.approx(10 / 8)
    assert trees.units(trees.OWN, range(2), 8) == 1
    assert trees.units(trees.BINARY, range(2), 8) == 2
    assert trees.units(trees.FIVE, range(1), 8) == 5
    assert trees.units(trees.FLAT, range(1), 8) == 7


def test_each_group_tells_and_draws_its_rows(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cost = [
        row(DENSE, s, [], "cost", servers=4, step=0.8, rate="1gbit", computing=0.2, size="a quarter") for s in (0, 4)
    ]
    rows = [*cost, *trainings("traffic"), *trainings("time")]
    rows += [tree(*key, step=1 / n) for n, key in enumerate(trees.WAYS, 1)]
    rows += [shared(way, 0.5, [1, 2]) for way in (DENSE, LOW, UP, FOLLOW)]
    whole = document(rows)
    for module in GROUPS.values():
        assert any(line.startswith("\n# ") for line in module.lines(whole))
        assert list(module.promises(whole))
    assert cost_of.ratios(cost) == pytest.approx([3.0, 3.0])
    for name, some in (("old", rows[:3]), ("cost", rows[:2]), ("rest", rows[2:])):
        (tmp_path / name).write_text(json.dumps(document(some)))
    read = [
        "--read",
        *(str(tmp_path / name) for name in ("old", "cost", "rest")),
        "--plot",
        str(tmp_path / "figures.png"),
    ]
    assert main([*read, "-J", str(tmp_path / "all")]) == 0
    assert json.loads((tmp_path / "all").read_text())["rows"] == json.loads(json.dumps(rows))
    assert (tmp_path / "figures.png").stat().st_size > 10000


def test_the_ways_take_turns() -> None:
    options = options_of(["--apps", "mf", "--groups", "time", "-N", "2", "--size", "32 MiB"])
    first, second = ([one for one in times.cases(options) if one.cycle == cycle] for cycle in (0, 1))
    assert [(one.way, one.staleness) for one in first] == list(times.WAYS)
    assert [(one.way, one.staleness) for one in second] == [*times.WAYS[1:], times.WAYS[0]]


def test_all_of_alexnet_computes_for_as_long_as_in_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    options = options_of(["--groups", "cost", "--paper-size"])
    assert {(one.size, one.compute) for one in cost_of.cases(options)} == {("the whole", 1.2)}
    options.size = "8 MiB"  # of another group's models
    assert {(one.size, one.compute) for one in cost_of.cases(options)} == {("a quarter", 0.3)}
    with pytest.raises(SystemExit):
        options_of(["--paper-size"])
    assert "--paper-size is for --groups cost alone" in capsys.readouterr().err


def test_a_spoilt_value_is_found() -> None:
    command = [sys.executable, "-m", "bench.parameter_flow", "--quick", "--groups", "cost", "--plant", "--json"]
    command += ["--hosts", "4", "--steps", "2"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if ended.returncode == UNABLE:
        pytest.skip(ended.stderr)
    assert ended.returncode == 1, ended.stderr
    rows = json.loads(ended.stdout)["rows"]
    assert [(one["staleness"], one["wrong"]) for one in rows] == [(0, 1), (4, 0)]


def test_figures_are_made_on_hosts(tmp_path: Path) -> None:
    """All groups with one application, and one group with another."""
    found, printed = set(), ""
    for number, given in enumerate((["--apps", "mf"], ["--apps", "lr", "--groups", "traffic"])):
        path = tmp_path / f"figures{number}.json"
        command = [sys.executable, "-m", "bench.parameter_flow", "--quick", *given, "-J", str(path)]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        if ended.returncode == UNABLE:
            pytest.skip(ended.stderr)
        assert ended.returncode == 0, ended.stderr
        found |= {(one["group"], one["app"]) for one in json.loads(path.read_text())["rows"]}
        printed += ended.stdout
    assert found >= {("traffic", "lr"), *((group, "mf") for group in ("traffic", "time", "shared"))}
    assert "# figures 12 and 13" in printed

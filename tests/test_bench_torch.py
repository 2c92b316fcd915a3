"""The benchmarks and the example of hpcomm.torch: their answers agree with DDP's, and a wrong one is found."""

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mpi
import pytest

from bench.torch import table

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "train_torch.py"
WAYS = [table.ALONE, table.DDP, table.STEP, table.BACKWARD, table.WAITS]

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def row(name: str, *cycles: float) -> dict[str, Any]:
    role = {table.ALONE: "bound", table.DDP: "peer"}.get(name, "hpcomm")
    of = {"model": "mlp3", "title": "", "parameters": 1000, "ranks": 2, "name": name, "role": role, "wrong": 0}
    return {**of, "p90": 1.0, "cycles": list(cycles)}


def test_columns_are_those_of_the_medians() -> None:
    rows = [row(name, *cycles) for name, *cycles in (
        (WAYS[0], 10.0, 10.0, 40.0), (WAYS[1], 30.0, 20.0, 80.0), (WAYS[2], 11.0, 12.0, 44.0), (WAYS[3], 9.0, 9.0, 36.0)
    )]  # fmt: skip
    document = {"rows": rows}
    others = table.beside(document, rows[2])
    assert table.cost(rows[2], others) == (2 / 20, 1 / 20, 2 / 10)
    promised = {promise.what: promise for promise in table.promises(document)}
    cost = promised["mlp3, 2 ranks, hpcomm, step: cost / DDP's"]
    assert (cost.value, cost.met, cost.asked) == (0.1, True, True)
    assert not promised["mlp3, 2 ranks, hpcomm, backward: cost / DDP's"].asked
    assert promised["mlp3, 2 ranks, hpcomm, step: step / DDP's"].value == 12 / 30
    assert [cells[7] for cells in (table.cells(document, own) for own in rows)] == ["", "", "0.100", "-0.050"]


def test_a_neighbour_may_slow_a_step_a_little_more_than_it_slows_ddps() -> None:
    plain = [row(name, *cycles) for name, *cycles in ((WAYS[0], 1.0, 1.0), (WAYS[1], 2.0, 4.0), (WAYS[4], 1.0, 1.0))]
    loaded = [row(name, *cycles) for name, *cycles in ((WAYS[0], 2.0, 2.0), (WAYS[1], 6.0, 6.0), (WAYS[4], 2.1, 2.1))]
    beside = [{**own, "model": "mlp3" + table.LOADED} for own in loaded]
    promised = {promise.what: promise for promise in table.promises({"rows": plain + beside})}
    found = promised["mlp3 +load, 2 ranks, hpcomm, waits: slowdown / DDP's"]
    assert (found.value, found.low, found.high) == pytest.approx((2.1 / (6 / 3), 2.1 / 3, 2.1 / 1.5))
    assert (found.met, found.asked) == (True, True)
    assert not any("+load" in what and "slowdown" not in what for what in promised)


def test_a_step_is_averaged_over_ranks() -> None:
    found = table.times([[[1.0, 3.0], [5.0, 5.0]], [[3.0, 5.0], [7.0, 9.0]]])
    assert found["cycles"] == [3.0, 6.5]
    assert math.isclose(found["time"], (2 + 4 + 6 + 7) / 4)


@needs_torch
def test_a_step_finds_what_ddp_finds_and_a_planted_wrong_value() -> None:
    few = ["--models", "mlp3", "--ranks", "2", "--steps", "1", "-N", "1", "--tail", "1"]
    command = [sys.executable, "-m", "bench.torch.step", *few, "--plant", "--json"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    rows = json.loads(ended.stdout)["rows"]
    assert [own["name"] for own in rows] == WAYS
    assert [own["wrong"] for own in rows] == [0, 0, *[1024 * 1024] * 3]  # the tensor that was spoilt, no other
    assert all(own["tail"]["cycles"][0] > 0 for own in rows)


@needs_torch
def test_hooks_find_what_ddp_finds_and_a_planted_wrong_value() -> None:
    few = ["--quick", "--ways", "ddp over gloo,both ways,onebit", "--json"]
    for plant in ([], ["--plant"]):
        command = [sys.executable, "-m", "bench.ddp", *few, *plant]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        assert ended.returncode == bool(plant), ended.stdout + ended.stderr
        rows = json.loads(ended.stdout)["rows"]
        assert [own["wrong"] > 0 for own in rows] == [bool(plant)] * len(rows)


@needs_torch
def test_the_example_takes_the_steps_of_ddp(tmp_path: Path) -> None:
    losses = {}
    for how in ("--ddp", "--apply=step", "--apply=backward"):
        path = tmp_path / f"{how}.json"
        files = ["--json", str(path), "--plot", str(tmp_path / "loss.png")]
        ended = mpi.program(2, EXAMPLE, how, "--model", "digits", "--steps", "30", *files, timeout=120)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "the ranks' weights agree" in ended.stdout
        losses[how] = [run["losses"] for run in json.loads(path.read_text())["models"]["digits"]]
    for how in ("--apply=step", "--apply=backward"):
        for own, theirs in zip(losses[how], losses["--ddp"], strict=True):
            assert own == pytest.approx(theirs, rel=1e-3)
    assert os.path.getsize(tmp_path / "loss.png") > 0

"""The benchmark of schemes: its columns and promises, and that a wrong value is found."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import poseidon_table
from bench.poseidon_table import ADAM, AUTO, HUB, LOSSY, PEER, POWER, SKIPPED
from bench.torch_table import ALONE, DDP

ROOT = Path(__file__).resolve().parent.parent
UNABLE = 77


def step(name: str, cycles: list[float], **more: Any) -> dict[str, Any]:
    facts = {
        "group": "steps",
        "model": "mlp19",
        "title": "MLP",
        "ranks": 4,
        "parameters": 10,
        "wire": 0.9,
        "name": name,
    }
    return {**facts, "cycles": cycles, "processor": [0.1], "sent": 0, "schemes": "", "wrong": 0, **more}


def chosen(measured: float, paper: float) -> dict[str, Any]:
    row = {"group": "choice", "ranks": 4, "rows": 64, "columns": 32, "K": 2, "ps": 0.1, "factors": 0.1, "wrong": 0}
    return {**row, "measured": "ps", "paper": "factors", "measured ratio": measured, "paper ratio": paper}


def document() -> dict[str, Any]:
    rows = [
        step(ALONE, [0.2, 0.21, 0.19]),
        step(DDP, [1.2, 1.21, 1.2]),
        step(PEER, [0.5, 0.5, 0.5]),
        step(POWER, [0.6, 0.6, 0.6]),
        step(HUB, [1.1, 1.1, 1.1], sent=5e8),
        step(AUTO, [0.4, 0.4, 0.42], sent=16e6, schemes="key  scheme\nfc   factors"),
        step(SKIPPED, [0.28, 0.28, 0.3]),
        step(ADAM, [1.9, 1.9, 1.9]),
        *(chosen(1 + i / 100, 1 + i / 10) for i in range(11)),
        {"group": "traffic", "ranks": 2, "name": "Adam", "nodes": [183.4e6, 6e6], "wrong": 0},
        {"group": "traffic", "ranks": 2, "name": "Poseidon", "nodes": [20e6, 20e6], "wrong": 0},
    ]
    return {"hpcomm": "1", "rate": "1gbit", "transport": "tcp", "torch": "2", "rows": rows}


def test_schemes_are_judged_by_what_exchanges_cost() -> None:
    found = {promise.what: promise for promise in poseidon_table.promises(document())}
    what = "mlp19, 4 hosts: cost of "
    assert found[f"{what}{DDP} / {AUTO}"].value == pytest.approx(1.0 / 0.2)
    assert found[f"{what}{DDP} / {AUTO}"].met
    assert found[f"{what}{DDP} / {SKIPPED}"].value == pytest.approx(1.0 / 0.08)
    assert found[f"{what}{PEER} / {SKIPPED}"].value == pytest.approx(0.3 / 0.08)
    assert found[f"{what}{POWER} / {SKIPPED}"].value == pytest.approx(0.4 / 0.08)
    assert found["chosen, measured: of the best, 9 of 10 layers"].value == pytest.approx(1.09)
    assert found["chosen, measured: of the best, all layers"].value == pytest.approx(1.1)
    assert not found["chosen, paper: of the best, all layers"].met
    (figure,) = (promise for name, promise in found.items() if name.startswith("figure 10"))
    assert figure.value == pytest.approx(1.0)
    assert figure.met


def test_the_table_tells_each_way_once() -> None:
    lines = poseidon_table.lines(document())
    for name in (ALONE, DDP, PEER, POWER, HUB, ADAM):
        assert sum(name in line and line.startswith("     mlp19") for line in lines) == 1
    assert "# fc   factors" in lines
    assert any(line.startswith("  Poseidon") and line.endswith("20.00") for line in lines)


@pytest.mark.bench
def test_every_exact_way_ends_with_the_same_parameters_and_a_spoilt_value_is_found() -> None:
    command = [sys.executable, "-m", "bench.poseidon", "--quick", "--plant", "--json"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    if ended.returncode == UNABLE:
        pytest.skip(ended.stderr)
    assert ended.returncode == 1, ended.stderr
    rows = json.loads(ended.stdout)["rows"]
    assert {own["group"] for own in rows} == {"steps", "choice", "traffic"}
    steps = [own for own in rows if own["group"] == "steps"]
    unspoilt = (*LOSSY, ALONE, DDP)
    assert all((own["wrong"] > 0) == (own["name"] not in unspoilt) for own in steps)

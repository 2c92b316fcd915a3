"""The benchmarks of issue 29: their columns and promises, and the models whose keys they exchange."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.common import models
from bench.ops import keys_table
from bench.torch import real_table

ROOT = Path(__file__).resolve().parent.parent
UNABLE = 77

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def row(keys: str, name: str, role: str, cycles: list[float], used: list[float]) -> dict[str, Any]:
    number, _, each = keys.partition("x")
    size = int(number) * {"1K": 1 << 10, "32M": 32 << 20}[each]
    facts = {"shape": "4x1", "set": keys, "keys": int(number), "size": size, "name": name, "role": role}
    return {**facts, "mode": "auto" if role == "hpcomm" else "", "cycles": cycles, "processor": used, "wrong": 0}


def test_keys_are_judged_by_medians_beside_gloo_and_the_wire() -> None:
    rows = [
        row("1x32M", "push_pull", "hpcomm", [0.44, 0.44, 0.60], [0.06, 0.07, 0.01]),
        row("1x32M", "Gloo + torch SGD", "peer", [0.40, 0.44, 0.60], [0.05, 0.05, 0.05]),
        row("1x32M", "wire (bound)", "bound", [0.40, 0.40, 0.40], []),
        row("100x1K", "push_pull", "hpcomm", [0.0050, 0.0052, 0.0051], [0.001] * 3),
        row("100x1K", "wire (bound)", "bound", [0.0013] * 3, []),
        row("101x1K", "push_pull", "hpcomm", [0.1, 0.1, 0.1], [0.001] * 3),
        row("101x1K", "wire (bound)", "bound", [0.0013] * 3, []),
        row("200x1K", "push_pull", "hpcomm", [0.0071, 0.0072, 0.0070], [0.002] * 3),
        row("200x1K", "wire (bound)", "bound", [0.0026] * 3, []),
    ]
    found = {promise.what: promise for promise in keys_table.asked({"rows": rows})}
    assert set(found) == {
        "4x1, 1x32M, push_pull: / wire",
        "4x1, 1x32M, push_pull: / Gloo",
        "4x1, 1x32M, push_pull: processor",
        "4x1, push_pull: a key of 1 KB more, by 200 keys",
    }
    assert found["4x1, 1x32M, push_pull: / wire"].value == pytest.approx(1.1)
    assert not found["4x1, 1x32M, push_pull: / wire"].met
    assert (found["4x1, 1x32M, push_pull: / Gloo"].value, found["4x1, 1x32M, push_pull: / Gloo"].met) == (1.0, True)
    assert found["4x1, 1x32M, push_pull: processor"].value == pytest.approx(1.2)
    key = found["4x1, push_pull: a key of 1 KB more, by 200 keys"]
    assert key.value == pytest.approx(20e-6 / 28e-6)  # 2 ms more for 100 keys; 13 us of bytes and 15 us are allowed
    assert key.met


def test_a_real_step_may_cost_a_part_of_ddps_or_reach_what_the_wire_allows() -> None:
    facts = {"model": "mlp34", "title": "", "parameters": 1, "p90": 1.0, "processor": [0.1], "wrong": 0}

    def rows(shape: str, wire: float, **steps: float) -> list[dict[str, Any]]:
        names = {"alone": "bound", "DDP over Gloo": "peer", "hpcomm, step": "hpcomm", "hpcomm, waits": "hpcomm"}
        return [
            {**facts, "shape": shape, "wire": wire, "first": 0.01, "name": name, "role": role, "cycles": [step]}
            for (name, role), step in zip(names.items(), steps.values(), strict=True)
        ]

    lone = rows("4x1", 0.1, alone=0.1, ddp=0.2, step=0.18, waits=0.19)
    shared = rows("4x2", 9.0, alone=0.1, ddp=0.2, step=0.155, waits=0.17)
    wide = rows("2x1", 0.2, alone=0.1, ddp=0.2, step=0.21, waits=0.22)
    promised = list(real_table.promises({"rows": lone + shared + wide}))
    found = {p.what: (p.value, p.verdict) for p in promised if p.asked}
    expected = {
        "4x1, mlp34, hpcomm, step: step / allowed": (0.18 / 0.185, "met"),
        "4x1, mlp34, hpcomm, waits: step / allowed": (0.19 / 0.195, "met"),
        "4x2, mlp34, hpcomm, step: step / allowed": (0.155 / 0.16, "met"),
        "4x2, mlp34, hpcomm, waits: step / allowed": (0.17 / 0.16, "MISSED"),
        "2x1, mlp34, hpcomm, step: step / allowed": (0.21 / (1.03 * 0.21), "met"),
        "2x1, mlp34, hpcomm, waits: step / allowed": (0.22 / (1.03 * 0.21), "MISSED"),
    }
    assert {what: verdict for what, (_, verdict) in found.items()} == {what: v for what, (_, v) in expected.items()}
    assert [value for value, _ in found.values()] == pytest.approx([expected[what][0] for what in found])


@needs_torch
@pytest.mark.parametrize("name", ["transformer38", "gpt145", "lstm11", "mlp34"])
def test_the_keys_of_a_model_are_those_that_torch_trains(name: str) -> None:
    from bench.torch.models import CASES  # noqa: PLC0415 - needs torch

    keys = [(key.name, key.count) for key in models.load(name).keys]
    assert keys == [(key, p.numel()) for key, p in CASES[name].model().named_parameters()]
    assert len(keys) == int(name[-3:] if name[-3:].isdigit() else name[-2:])


def test_every_way_to_exchange_keys_ends_with_the_same_and_a_spoilt_value_is_found() -> None:
    few = ["--shapes", "2x1", "--sets", "3x1K,2x64K", "--steps", "1", "--warmup", "1", "-N", "1", "--plant", "--json"]
    command = [sys.executable, "-m", "bench.ops.keys_hosts", *few]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    if ended.returncode == UNABLE:
        pytest.skip(ended.stderr)
    assert ended.returncode == 1, ended.stderr
    rows = json.loads(ended.stdout)["rows"]
    ways = {own["name"] for own in rows if own["role"] != "bound"}
    assert {"push_pull", "fold, apply", "fold, wait, apply"} <= ways
    assert [own["wrong"] for own in rows if own["role"] != "bound"] == [1] * 2 * len(ways)
    assert all(own["processor"][0] > 0 for own in rows if own["role"] != "bound")
    assert all(own["load"]["sends"] >= 1 for own in rows if own["role"] == "hpcomm")  # in each step


@needs_torch
def test_models_that_compute_are_trained_alike_between_hosts() -> None:
    few = ["--computing", "real", "--shapes", "2x1", "--models", "transformer38", "--steps", "1", "--tail", "0"]
    command = [sys.executable, "-m", "bench.torch.hosts", *few, "-N", "1", "--plant", "--json"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    if ended.returncode == UNABLE:
        pytest.skip(ended.stderr)
    assert ended.returncode == 1, ended.stderr
    wrong = {own["name"]: own["wrong"] for own in json.loads(ended.stdout)["rows"]}
    assert wrong == {"alone": 0, "DDP over Gloo": 0, "hpcomm, waits": 64 * 128, "hpcomm, step": 64 * 128}

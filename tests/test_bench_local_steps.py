"""bench.torch.local_steps: a wrong answer is found, and its table says what was asked."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import mpi
import pytest

from bench.ops.cluster_bench import UNABLE
from bench.torch import local_steps, local_steps_table
from bench.torch.local_steps_table import BY_HAND, NAMES, STREAM, TOPK, WHOLE
from bench.torch.step import Block
from bench.torch.table import ALONE, DDP

ROOT = Path(__file__).resolve().parent.parent
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@needs_torch
def test_a_quick_run_finds_what_was_planted_and_no_more() -> None:
    command = [sys.executable, "-m", "bench.torch.local_steps", "--quick", "--hosts", "2", "--rates", "1gbit"]
    ended = mpi.command(*command, "--plant", "--json", timeout=120, cwd=ROOT)
    if ended.returncode == UNABLE:
        pytest.skip(ended.stderr)
    assert ended.returncode == 1, ended.stderr
    rows = {row["name"]: row for row in json.loads(ended.stdout)["rows"]}
    spoilt = 64 * 64  # of rank 1: it differs from rank 0's, and without fragments from what was found by hand
    wrong = {ALONE: 0, BY_HAND: 0, WHOLE: 2 * spoilt, STREAM: spoilt, TOPK: spoilt, DDP: spoilt}
    assert {name: row["wrong"] for name, row in rows.items()} == wrong
    assert all(len(row["steps"][0]) == (2 if name == DDP else 8) for name, row in rows.items())
    assert rows[ALONE]["bytes"] < rows[TOPK]["bytes"] < rows[WHOLE]["bytes"] < rows[DDP]["bytes"] / 4


def row(rate: str, name: str, *cycles: float, wire: float, nbytes: float, worst: float = 1.0) -> dict[str, Any]:
    facts = {"rate": rate, "ranks": 4, "parameters": 20_000_000, "compute": 0.08, "wire": wire, "every": 50}
    facts |= {"fragments": 4, "delay": 10, "name": name, "role": local_steps_table.ROLES[name], "bytes": nbytes}
    return {**facts, "cycles": list(cycles), "worst": [worst], "processor": [0.001], "wrong": 0}


def test_a_step_is_held_against_computing_or_the_wire() -> None:
    fast = {ALONE: (0.08, 0.0), BY_HAND: (0.1, 2e6), WHOLE: (0.1, 2e6), STREAM: (0.084, 2e6), DDP: (1.1, 100e6)}
    slow = {ALONE: (0.08, 0.0), BY_HAND: (0.3, 2e6), STREAM: (0.21, 2e6), TOPK: (0.084, 50e3)}
    rows = [row("1gbit", name, time, time, wire=0.02, nbytes=n, worst=2.0) for name, (time, n) in fast.items()]
    rows += [row("100mbit", name, time, time, wire=0.2, nbytes=n) for name, (time, n) in slow.items()]
    document = {"rows": rows, "hpcomm": "0", "transport": "tcp", "torch": "2"}
    judged = {p.what: (round(p.value, 3), p.verdict) for p in local_steps_table.promises(document)}
    assert judged == {
        f"1gbit, {STREAM}: step / computing": (1.05, "met"),
        f"1gbit, {WHOLE}: step / computing": (1.25, ""),
        f"1gbit, {STREAM}: worst step / median": (2.0, "MISSED"),
        f"1gbit, {WHOLE}: worst step / median": (2.0, ""),
        f"1gbit, {WHOLE}: step / by hand": (1.0, "met"),
        f"1gbit, {STREAM}: step / by hand": (0.84, "met"),
        f"1gbit, {STREAM}: bytes x H / DDP's": (1.0, "met"),
        f"100mbit, {STREAM}: step / the longer of computing and wire": (1.05, "met"),
        f"100mbit, {TOPK}: step / computing": (1.05, "met"),
        f"100mbit, {STREAM}: step / by hand": (0.7, "met"),
        f"100mbit, {STREAM}: bytes x H / DDP's": (1.0, "met"),
        f"100mbit, {TOPK}: bytes x H x 30 / DDP's": (0.75, "met"),
    }
    printed = local_steps_table.lines(document)
    (told,) = [line.split() for line in printed if STREAM in line and line.startswith("    100mbit")]
    assert told[-7:] == ["2.625", "1.050", "1.00", "2.000", "1/50.0", "1.0", "0"]
    assert [line.split()[0] for line in printed if DDP in line and "1/1.0" in line] == ["1gbit"]


def test_the_worst_step_is_that_of_all_ranks() -> None:
    def block(*steps: float) -> Block:
        return Block(list(steps), 0.5, [])

    found = local_steps.measured(
        [[block(1.0, 1.0, 3.0), block(2.0, 2.0, 2.0)], [block(3.0, 3.0, 9.0), block(2.0, 2.0, 2.0)]]
    )
    assert found["steps"] == [[2.0, 2.0, 6.0], [2.0, 2.0, 2.0]]
    assert (found["cycles"], found["worst"], found["processor"]) == ([10 / 3, 2.0], [3.0, 1.0], [0.5, 0.5])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--hosts", "1"], "--hosts must be 2 or more"),
        (["--rates", "fast"], "'fast' is no rate"),
        (["--every", "4", "--fragments", "5"], "--fragments must be at most --every, and --delay less"),
        (["--every", "4", "--delay", "4"], "--fragments must be at most --every, and --delay less"),
        (["--compute", "0"], "--compute above 0"),
        (["--ways", "none"], f"--ways: of {'; '.join(NAMES)}"),
    ],
)
def test_arguments_that_cannot_be_are_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        local_steps.main(arguments)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err

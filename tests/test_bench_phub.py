"""The benchmarks of PHub's aggregation and of its stages: their tables, and that a wrong value is found."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.phub import aggregation, stages_table
from bench.phub.stages_table import OURS, PLAIN, STAGES

ROOT = Path(__file__).resolve().parent.parent
UNABLE = 77


def test_every_way_to_aggregate_ends_with_numpys_bits(capsys: pytest.CaptureFixture[str]) -> None:
    assert aggregation.main(["--quick", "--threads", "2", "--plant", "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["name"] for row in rows] == [way.name for way in aggregation.WAYS]
    assert {row["wrong"] for row in rows} == {3}  # the server's own and two workers', in the one turn that was spoilt


def test_ways_to_aggregate_are_told_beside_tall(tmp_path: Path) -> None:
    facts = {"model": "resnet50", "workers": 8, "threads": 2, "role": "peer", "engine": False, "wrong": 0}
    cycles = {"tall, cached": [0.1, 0.2, 0.2], "wide, cached": [2.0, 4.0, 5.0]}
    rows = [{**facts, "name": name, "moved": 1e9, "cycles": seconds} for name, seconds in cycles.items()]
    rows[0]["engine"] = True
    document = {"hpcomm": "1", "cores": 1, "cache": 32 << 20, "rows": rows}
    lines = aggregation.lines(document)
    tall, wide = (line.split() for line in lines if line.startswith("  resnet50"))
    assert tall[3:6] == ["tall,", "cached", "*"]
    assert wide[-7:] == ["2.00", "0.25", "20.00", "20.00", "..", "25.00", "0"]
    assert lines[-1] == "# more threads than the 1 cores"
    assert [way.moved(2) for way in (aggregation.WAYS[0], aggregation.WAYS[3])] == [8, 14]
    pytest.importorskip("matplotlib")
    assert aggregation.draw(document, tmp_path / "ways.png")


def breakdown(stack: str, steps: list[float]) -> list[dict[str, Any]]:
    facts = {"shape": "4x1", "network": "VGG19", "stack": stack, "transport": "tcp", "keys": 19, "size": 1 << 20}
    return [{**facts, "stage": s, "cycles": [t], "wrong": 0} for s, t in zip(STAGES, steps, strict=True)]


def test_a_stage_adds_what_the_stages_before_it_could_not_hide(tmp_path: Path) -> None:
    rows = [*breakdown(PLAIN, [0.5, 0.8, 0.9, 1.0, 2.0]), *breakdown(OURS, [0.5, 0.6, 0.5, 0.5, 0.6])]
    facts = {"hpcomm": "1", "mpi": "Open MPI v5", "rate": "1gbit", "burst": "256k", "stands_for": 56.0}
    document = {**facts, "rows": rows[::-1]}
    assert [stages_table.added(each) for each in stages_table.breakdowns(document)] == [
        pytest.approx([0.5, 0.1, -0.1, 0, 0.1]),
        pytest.approx([0.5, 0.3, 0.1, 0.1, 1.0]),
    ]
    told = [line.split()[-6:] for line in stages_table.lines(document) if "+ synchronization" in line]
    assert told == [
        ["600.00", "600.00", "600.00", "100.00", "16.7", "0"],
        ["2000.00", "2000.00", "2000.00", "1000.00", "50.0", "0"],
    ]
    pytest.importorskip("matplotlib")
    assert stages_table.draw(document, tmp_path / "stages.png")


def test_every_stage_is_checked_and_a_spoilt_value_is_found() -> None:
    few = ["--hosts", "1x2", "--networks", "VGG19", "--width", "0.03", "--stands-for", "5"]
    command = [sys.executable, "-m", "bench.phub.stages", *few, "--steps", "1", "--warmup", "1", "-N", "1"]
    ended = subprocess.run([*command, "--plant", "--json"], cwd=ROOT, capture_output=True, text=True, check=False)
    if ended.returncode == UNABLE:
        pytest.skip(ended.stderr)
    assert ended.returncode == 1, ended.stderr
    rows = json.loads(ended.stdout)["rows"]
    assert [(row["stack"], row["stage"]) for row in rows] == [(s, stage) for s in (PLAIN, OURS) for stage in STAGES]
    assert all(row["wrong"] == rows[0]["wrong"] > 0 for row in rows)  # the values of one key, and no other

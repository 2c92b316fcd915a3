"""Every benchmark runs, finds no wrong answer, writes JSON that says so, and finds the wrong answer that is planted."""

import contextlib
import importlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import mpi
import pytest

ROOT = Path(__file__).resolve().parent.parent
FEW = ["-n", "2", "-m", "8", "-N", "5"]
TINY = {
    "put_lat": [*FEW, "-b", "8", "-e", "1K"],
    "put_bw": [*FEW, "-b", "64K", "-e", "256K", "-R", "512K"],
    "queue_bench": [*FEW, "-b", "20000", "-e", "160000"],
    "wait_cpu": ["-t", "0.2"],
}
PEERS = {"put_lat": "Put+Flush", "put_bw": "Put+Flush", "queue_bench": "NumPy", "wait_cpu": "Recv"}
PROGRAMS = {
    "put_lat": ["-n", "2", "-m", "8", "-N", "2", "-e", "64"],
    "put_bw": ["-n", "1", "-N", "2", "-e", "256K"],
    "queue": ["-n", "2", "-N", "2", "-b", "20000", "-e", "20000"],
    "wait_cpu": ["-n", "1"],
}


def bench(name: str, arguments: list[str]) -> tuple[int, str]:
    sys.path.insert(0, str(ROOT))
    harness = importlib.import_module("bench.harness")
    module = importlib.import_module(f"bench.{name}")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = harness.run(module.BENCHMARK, arguments)
    return status, printed.getvalue()


def run(name: str, ranks: int, *arguments: str) -> tuple[list[int], dict[str, Any]]:
    ended = mpi.run(ranks, bench, name, [*TINY[name], *arguments, "--json"], timeout=240)
    return [status for status, _ in ended], json.loads(ended[0][1])


@pytest.mark.parametrize("name", TINY)
def test_every_answer_is_right(name: str) -> None:
    codes, document = run(name, 2)
    assert codes == [0, 0]
    assert document["ranks"] == 2
    names = {row["name"] for row in document["rows"]}
    assert {"hpcomm C", "hpcomm Python"} <= names
    assert any(PEERS[name] in other for other in names)
    for row in document["rows"]:
        assert row["wrong"] == 0, row["name"]
        assert 0 <= row["p50"] <= row["p90"] <= row["p99"]
        assert len(row["cycles"]) == document["options"]["run_cycles"]
        assert row["count"] * {"uint64": 8, "float32": 4}[row["type"]] == row["size"]


@pytest.mark.parametrize("name", TINY)
def test_a_planted_wrong_value_is_found(name: str) -> None:
    codes, document = run(name, 2, "--plant", "--only", "hpcomm,mpi4py")
    assert codes == [1, 1]
    wrong = {row["name"]: 0 for row in document["rows"]}
    for row in document["rows"]:
        wrong[row["name"]] += row["wrong"]
    assert len(wrong) >= 3
    assert all(wrong.values()), wrong


@pytest.mark.parametrize(("name", "more"), [("put_lat", []), ("queue_bench", ["-g", "1,2"])])
def test_more_ranks_than_cores(name: str, more: list[str]) -> None:
    codes, document = run(name, 6, *more, "--only", "hpcomm")
    assert codes == [0] * 6
    assert {row["wrong"] for row in document["rows"]} == {0}


def test_the_table_has_the_columns_of_nccl_tests() -> None:
    ended = mpi.run(2, bench, "put_lat", TINY["put_lat"], timeout=240)
    lines = ended[0][1].splitlines()
    assert lines[2].split()[1:5] == ["size", "count", "type", "who"]
    assert lines[2].split()[5:9] == ["time", "algbw", "busbw", "#wrong"]
    assert lines[-1] == "# Out of bounds values : 0 OK"
    assert not ended[1][1]  # rank 0 alone prints


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    sys.path.insert(0, str(ROOT))
    native = importlib.import_module("bench.native")
    return {program.name: program for program in native.programs(tmp_path_factory.mktemp("bench"))}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_c_program_needs_no_python(name: str, programs: dict[str, Path]) -> None:
    command = [str(programs[name]), *PROGRAMS[name], "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    assert "hpcomm C" in {row["name"] for row in rows}
    assert all(row["wrong"] == 0 for row in rows)


# ---- the summary ---------------------------------------------------------------------------------------------------


def row(name: str, size: int, cycles: list[float]) -> dict[str, Any]:
    role = "hpcomm" if name.startswith("hpcomm") else "peer" if "mpi4py" in name else "bound"
    return {"name": name, "size": size, "role": role, "cycles": cycles, "wrong": 0}


def document(rows: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    facts = {"hpcomm": "0", "ranks": 2, "cores": 2, "mpi": "MPI"}
    return {**facts, "rows": rows, "options": {"maxbytes": 8, "seconds": 10.0, **options}}


def test_the_summary_judges_by_medians_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    summary = importlib.import_module("bench.summary")
    names = ["token (bound)", "hpcomm C", "hpcomm Python", "mpi4py Send/Recv", "mpi4py Put+Flush+Send"]
    latency = [row(name, 8, [k * 1e-7] * 5) for k, name in zip((1, 2, 4, 5, 7), names, strict=True)]
    bandwidth = [row(name, 65536, [2e-6, 1e-6, 9e-6]) for name in ("memcpy (bound)", "hpcomm C", "hpcomm Python")]
    exchange = [
        row(name, 32 << 20, [k * 1e-3] * 3)
        for k, name in ((2, "hpcomm C"), (4, "hpcomm Python"), (9, "mpi4py + NumPy"), (8, "mpi4py + NumPy in blocks"))
    ]
    waiting = [row("hpcomm C", 8, [0.01]), row("hpcomm Python", 8, [0.06])]
    documents = {
        "latency": document(latency),
        "bandwidth": document(bandwidth),
        "exchange": document(exchange, maxbytes=32 << 20),
        "crowded exchange": document(exchange),
        "crowded latency": document(latency),
        "waiting": document(waiting),
    }
    found = summary.promises(documents)
    judged = [(promise.what, round(promise.value, 2), promise.met) for promise in found]
    assert judged == [
        ("8 B put_signal, one way, C", 2.0, True),
        ("8 B put_signal, one way, Python", 1.25, True),
        ("8 B put_signal, one way, Python", 1.75, False),
        ("put of 64 KiB, C", 1.0, True),
        ("put of 64 KiB, Python", 1.0, True),
        ("exchange and average, 32 MiB, C", 4.5, True),
        ("exchange and average, 32 MiB, Python", 2.25, False),
        ("exchange and average, 32 MiB, C", 4.0, True),
        ("exchange and average, 32 MiB, Python", 2.0, False),
        ("8 ranks, 2 in-neighbours each, 32 MiB, C", 4.5, True),
        ("8 ranks, 2 in-neighbours each, 32 MiB, Python", 2.25, True),
        ("8 ranks, 2 in-neighbours each, 32 MiB, C", 4.0, True),
        ("8 ranks, 2 in-neighbours each, 32 MiB, Python", 2.0, True),
        ("8 ranks, 8 B put_signal, C", 3.5, True),
        ("8 ranks, 8 B put_signal, Python", 1.75, True),
        ("waiting 10 s, C", 1.0, True),
        ("waiting 10 s, Python", 6.0, False),
    ]
    assert summary.table(found).count("MISSED") == 4
    assert summary.plot(documents, tmp_path / "summary.png")
    assert (tmp_path / "summary.png").read_bytes().startswith(b"\x89PNG")

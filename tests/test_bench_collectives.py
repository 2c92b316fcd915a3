"""bench.collectives: its data find wrong answers, and its libraries take turns and are all checked."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.collectives import data, groups, table
from bench.collectives.__main__ import main, options_of
from bench.collectives.libraries import GLOO, HPCOMM, MOONCAKE, MPICH, OPENMPI, WINDOW, apart
from bench.common.launch import library
from hpcomm.bench.peers import has_torch
from hpcomm.bench.rows import short_library

ROOT = Path(__file__).resolve().parent.parent
RANKS, SEED = 3, 7


def answers(case: data.Case) -> list[data.Array]:
    """Returns the answers of all ranks, by NumPy."""
    arrays = [[np.zeros(count, case.dtype) for count in case.counts()] for _ in range(case.ranks)]
    for rank, (send, recv) in enumerate(arrays):
        data.fill(case, rank, SEED, send, recv)
    sends = [send for send, _ in arrays]
    blocks = [np.split(send, case.ranks) if case.shape.send else [send] for send in sends]
    found: dict[str, Callable[[int], Any]] = {
        "allreduce": lambda rank: sum(sends),
        "reduce_scatter": lambda rank: sum(each[rank] for each in blocks),
        "all_gather": lambda rank: np.concatenate(sends),
        "broadcast": lambda rank: arrays[case.root][1],
        "alltoall": lambda rank: np.concatenate([each[rank] for each in blocks]),
    }
    return [np.array(found[case.call](rank)) for rank in range(case.ranks)]


@pytest.mark.parametrize("call", data.SHAPES)
@pytest.mark.parametrize("size", [4, 2 << 20])
def test_answers_are_judged_by_each_element(call: str, size: int) -> None:
    case = data.case(call, RANKS, size, "float32", "sum")
    for rank, answer in enumerate(answers(case)):
        assert data.wrong(case, rank, SEED, answer) == 0
        assert data.wrong(case, rank, SEED + 1, answer) > 0.9 * answer.size - 1, "an answer of another turn"
        answer[-1] += 1
        assert data.wrong(case, rank, SEED, answer) == 1
        data.spoil(answer)
        assert data.wrong(case, rank, SEED, answer) == answer.size


def test_a_chunk_in_another_place_is_found() -> None:
    case = data.case("allreduce", RANKS, 1 << 20, "int32", "max")
    answer = np.max([data.period(rank, SEED, "int32") for rank in range(RANKS)], axis=0)
    moved = np.resize(answer, case.count)
    assert data.wrong(case, 0, SEED, moved) == 0
    moved[: 1 << 15] = moved[1 << 15 : 1 << 16].copy()
    assert data.wrong(case, 0, SEED, moved) > 1 << 14


def test_columns_are_those_of_nccl_tests() -> None:
    cases = [data.case(call, 4, 4096, "float32", "sum") for call in data.SHAPES]
    assert [(case.size, case.count, case.op, case.root, case.bus) for case in cases] == [
        (4096, 1024, "sum", -1, 1.5),
        (4096, 256, "sum", -1, 0.75),
        (4096, 256, "none", -1, 0.75),
        (4096, 1024, "none", 0, 1.0),
        (4096, 256, "none", -1, 0.75),
    ]
    assert data.case("alltoall", 8, 8, "float32", "sum").size == 32, "a block has one element at least"


def test_ratios_are_those_of_medians_with_the_spread_of_cycles() -> None:
    case = data.case("allreduce", 2, 4096, "float32", "sum")
    times = {HPCOMM: [1e-6, 2e-6, 4e-6], WINDOW: [1e-6] * 3, GLOO: [4e-6, 6e-6, 8e-6]}
    rows = {each["library"]: each for each in table.compared([table.row(case, *each) for each in shaped(times)])}
    assert rows[GLOO]["x"] == {HPCOMM: pytest.approx((3, 2, 4)), WINDOW: pytest.approx((6, 4, 8))}
    assert [*rows[HPCOMM]["x"]] == [WINDOW]
    assert table.text(rows[GLOO]).split()[8:] == [
        "6.00",
        "0.68",
        "0.68",
        "0",
        "3.00",
        "(2.00-4.00)",
        "6.00",
        "(4.00-8.00)",
    ]


def shaped(times: dict[str, list[float]]) -> list[tuple[str, int, list[float], int]]:
    return [(name, 1, cycles, 0) for name, cycles in times.items()]


def test_hpcomm_and_gloo_share_processes() -> None:
    names = [HPCOMM, WINDOW, GLOO, OPENMPI, MPICH, MOONCAKE]
    assert apart(names) == [[HPCOMM, WINDOW, GLOO], [OPENMPI], [MPICH], [MOONCAKE]]
    assert apart([MPICH, GLOO]) == [[GLOO], [MPICH]]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--libs", "gloo,nccl"], "mooncake-cpu, not 'gloo,nccl'"),
        (["--what", "allreduce,scan"], "alltoall, not 'allreduce,scan'"),
        (["--ranks", "0"], "1 or more, not 0"),
        (["-N", "0"], "--run_cycles must be 1 or more"),
    ],
)
def test_arguments_that_cannot_be_are_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        options_of(arguments)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_library_that_was_asked_for_and_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_tries", lambda python, code: False)
    with pytest.raises(SystemExit, match=r"mooncake-cpu: no Python here has mooncake\.pg: install"):
        main(["--libs", "mooncake-cpu"])


def test_a_group_that_cannot_start_says_so() -> None:
    with pytest.raises(groups.Lost, match=r"gloo, 2 ranks: a process ended with status 1"):
        groups.Group([GLOO], "/bin/false", 2, 60)


def test_libraries_take_turns_and_spoilt_values_are_found() -> None:
    """Each library has one spoilt value for each case, and no other wrong element."""
    mpi = {"Open MPI": OPENMPI, "MPICH": MPICH}[short_library(library(sys.executable))]
    names = [GLOO, mpi] if has_torch() else [mpi]
    few = ["--quick", "--plant", "--json", "--sizes", "8,300000", "--ranks", "2", "--libs", ",".join(names)]
    command = [sys.executable, "-m", "bench.collectives", *few]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 1, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout)
    rows = document["rows"]
    order = [(each["call"], each["size"], each["library"]) for each in rows]
    assert order == [(call, size, name) for call in data.SHAPES for size in (8, 300000) for name in names]
    assert {each["wrong"] for each in rows} == {1}
    assert all(len(each["cycles"]) == 2 and min(each["cycles"]) > 0 for each in rows)
    assert document["wrong"] == len(rows)
    assert [*document["versions"]] == names

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
from bench.collectives.libraries import (
    BACKEND,
    C_WINDOW,
    GLOO,
    HPCOMM,
    MOONCAKE,
    MPICH,
    OPENMPI,
    WINDOW,
    WORDS,
    C,
    apart,
)
from bench.collectives.places import Here, Hosts
from bench.common.launch import library
from bench.ops.cluster_bench import UNABLE
from bench.ops.hosts_bench import shape_of
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
        "sendrecv": lambda rank: sends[0],
    }
    return [np.array(found[case.call](rank)) for rank in range(case.ranks)]


@pytest.mark.parametrize("call", data.SHAPES)
@pytest.mark.parametrize("size", [4, 2 << 20])
def test_answers_are_judged_by_each_element(call: str, size: int) -> None:
    case = data.case(call, RANKS, size, "float32", "sum")
    judged = answers(case)[:2] if case.shape.paired else answers(case)
    for rank, answer in enumerate(judged):
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
        (4096, 1024, "none", -1, 1.0),
    ]
    assert data.case("alltoall", 8, 8, "float32", "sum").size == 32, "a block has one element at least"


def test_ratios_are_those_of_medians_with_the_spread_of_cycles() -> None:
    case = data.case("allreduce", 2, 4096, "float32", "sum")
    times = {HPCOMM: [1e-6, 2e-6, 4e-6], WINDOW: [1e-6] * 3, GLOO: [4e-6, 6e-6, 8e-6]}
    made = [table.row(case, name, 1, cycles, 0, Here(2), [0.0] * 3) for name, cycles in times.items()]
    rows = {each["library"]: each for each in table.compared(made)}
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


def test_a_host_sends_at_least_what_its_ranks_cannot_combine() -> None:
    """With two ranks on each of four hosts, in 4 KiB."""
    least = {call: data.case(call, 8, 4096, "float32", "sum").least(4) for call in data.SHAPES}
    assert least == {
        "allreduce": 6144,
        "reduce_scatter": 3072,
        "all_gather": 3072,
        "broadcast": 4096,
        "alltoall": 6144,
        "sendrecv": 0,
    }
    assert data.case("sendrecv", 4, 4096, "float32", "sum").least(4) == 4096
    assert data.case("allreduce", 4, 4096, "float32", "sum").least(1) == 0


def test_a_row_of_several_hosts_has_the_share_of_the_link() -> None:
    case = data.case("allreduce", 8, 4 << 20, "float32", "sum")
    row = table.row(case, HPCOMM, 1, [0.1, 0.2, 0.4], 0, Hosts(shape_of("4x2"), "1gbit"), [12.5e6, 10e6, 13e6])
    (row,) = table.compared([row])
    cells = table.text(row).split()
    assert (cells[0], cells[-3:]) == ("4x2", ["12.500", "1.99", "50.0%"])
    names, _ = table.header(True)
    assert len(table.text(row)) == len(names), "each figure stands below its name"


def test_hpcomm_and_gloo_share_processes() -> None:
    names = [HPCOMM, WINDOW, C, C_WINDOW, BACKEND, GLOO, OPENMPI, MPICH, MOONCAKE]
    assert apart(names) == [[HPCOMM, WINDOW, C, C_WINDOW, BACKEND, GLOO], [OPENMPI], [MPICH], [MOONCAKE]]
    assert apart([MPICH, GLOO]) == [[GLOO], [MPICH]]


@pytest.mark.parametrize("text", ["c,cwindow,window", "hpcomm, C, window,hpcomm, window,hpcomm, C"])
def test_names_with_commas_have_a_word_each(text: str) -> None:
    assert options_of(["--libs", text]).libs == [WINDOW, C, C_WINDOW]
    assert options_of(["--libs", "hpcomm"]).libs == [HPCOMM]
    assert options_of(["--backend"]).libs == [BACKEND, GLOO]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--libs", "gloo,nccl"], "mooncake-cpu, not 'gloo,nccl'"),
        (["--what", "allreduce,scan"], "sendrecv, not 'allreduce,scan'"),
        (["--ranks", "0"], "1 or more, not 0"),
        (["--hosts", "4x1,1x4"], "two hosts or more, without racks, not 4x1,1x4"),
        (["--hosts", "4x1", "--ranks", "2"], "--ranks: not allowed with argument --hosts"),
        (["--backend", "--libs", "hpcomm"], "leave --libs out"),
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
        groups.Group([GLOO], "/bin/false", Here(2), 60)


def measured(*arguments: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "bench.collectives", "--quick", "--json", *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    if ended.returncode == UNABLE:
        pytest.skip(ended.stderr)
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


def test_libraries_take_turns_and_spoilt_values_are_found() -> None:
    """Each library has one spoilt value for each case, and no other wrong element."""
    mpi = {"Open MPI": OPENMPI, "MPICH": MPICH}[short_library(library(sys.executable))]
    names = [C, C_WINDOW, *([BACKEND, GLOO] if has_torch() else []), mpi]
    words = ",".join(WORDS.get(name, name) for name in names)
    status, document = measured("--plant", "--sizes", "8,300000", "--ranks", "2", "--libs", words)
    assert status == 1
    rows = document["rows"]
    order = [(each["call"], each["size"], each["library"]) for each in rows]
    cases = [(call, size, name) for call in data.SHAPES for size in (8, 300000) for name in names]
    missing = {f"sendrecv of {name}" for name in (C, C_WINDOW)}
    assert order == [case for case in cases if f"{case[0]} of {case[2]}" not in missing]
    assert document["lacking"].keys() == missing
    assert {each["wrong"] for each in rows} == {1}
    assert all(len(each["cycles"]) == 2 and min(each["cycles"]) > 0 for each in rows)
    assert document["wrong"] == len(rows)
    assert [*document["versions"]] == names


def test_ranks_on_hosts_send_what_they_must() -> None:
    """Two hosts, one rank on each: each sends at least the array, in an allreduce and in one round trip."""
    peer = GLOO if has_torch() else "c"
    calls = ("--what", "allreduce,sendrecv", "--sizes", "1M")
    status, document = measured("--hosts", "2x1", "--libs", f"hpcomm,{peer}", *calls, "-N", "1")
    assert status == 0
    assert {each["library"] for each in document["rows"]} == {HPCOMM, peer if has_torch() else C}
    for each in document["rows"]:
        assert (each["shape"], each["ranks"], each["least"]) == ("2x1", 2, 1 << 20)
        assert 1 <= each["sent"] / each["least"] < 1.5, each
        assert each["wire"] == pytest.approx(each["sent"] / each["time"] / 125e6)

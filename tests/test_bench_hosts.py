"""bench.ops.hosts_bench: its ways agree on hosts and racks, and its table says what was asked."""

import json
import sys
from pathlib import Path
from typing import Any

import mpi
import pytest

from bench.ops import hosts_bench, hosts_table
from bench.ops.cluster_bench import UNABLE

ROOT = Path(__file__).resolve().parent.parent


def test_hosts_of_two_racks_find_the_same() -> None:
    """Two racks of one host with two ranks each: every level that there is, in one job."""
    command = [sys.executable, "-m", "bench.ops.hosts_bench", "--quick", "--shapes", "2x1x2", "--wire", "100,25"]
    ended = mpi.command(*command, "--settings", "defaults", "--json", timeout=120, cwd=ROOT)
    if ended.returncode == UNABLE:
        pytest.skip(ended.stderr)
    assert ended.returncode == 0, ended.stderr
    (run,) = json.loads(ended.stdout)["runs"]
    assert (run["shape"], run["racks"], run["hosts"], run["ranks"]) == ("2x1x2", 2, 2, 4)
    assert (run["transport"], run["burst"]) == ("shm,tcp", "256k")
    rows = {row["name"]: row for row in run["rows"]}
    assert {"hpcomm C", "hpcomm Python", "Allreduce alone"} <= set(rows)
    assert {row["wrong"] for row in rows.values()} == {0}
    assert rows["wire (bound)"]["cycles"] == [
        pytest.approx(4 * hosts_bench.MIB / 25e6)
    ]  # the racks' link, once each way
    assert {"hpcomm auto", "hpcomm racks", "hpcomm C auto", "hpcomm C racks"} <= set(rows)
    if "Open MPI" in run["mpi"]:
        assert "Allreduce + update, blocks, no han" in rows


def test_shapes_are_hosts_and_ranks_or_racks_before_them() -> None:
    shape = hosts_bench.shape_of("4x2")
    assert (shape.racks, shape.all_hosts, shape.ranks, shape.key) == (1, 4, 2, "4x2")
    racks = hosts_bench.shape_of("2x2x1")
    assert (racks.all_hosts, racks.key, racks.racks_of_ranks()) == (4, "2x2x1", [[0, 1], [2, 3]])
    assert (shape.least(8), racks.least(8), hosts_bench.shape_of("1x2").least(8)) == (12, 8, 8)
    assert hosts_bench.carried("1gbit") == pytest.approx(119.55e6, rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--shapes", "4"], "'4' is no shape"),
        (["--shapes", "4x2,3x1"], "3x1 are 3 ranks: answers are exact for 2, 4, 8"),
        (["--rate", "fast"], "'fast' is no rate"),
        (["--settings", "best"], "--settings: defaults, rings, not best"),
        (["--rounds", "0"], "--rounds must be 1 or more"),
    ],
)
def test_arguments_that_cannot_be_are_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        hosts_bench.main(arguments)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def row(name: str, *cycles: float) -> dict[str, Any]:
    role = "hpcomm" if name.startswith("hpcomm") else "bound" if "bound" in name else "peer"
    return {"name": name, "role": role, "cycles": list(cycles), "wrong": 0}


def run(shape: str, mpi: str, *rows: dict[str, Any], settings: str = "defaults") -> dict[str, Any]:
    found = hosts_bench.shape_of(shape)
    sizes = {"racks": found.racks, "hosts": found.all_hosts, "ranks": found.all_hosts * found.ranks}
    return {
        "shape": shape,
        "benchmark": "push_pull",
        "mpi": mpi,
        "burst": "256k",
        "rows": list(rows),
        **sizes,
        "settings": settings,
    }


def test_what_is_asked_is_judged_by_medians() -> None:
    bound = row("wire (bound)", 0.4, 0.4, 0.4)
    cycles = (0.5, 0.5, 0.5, 0.5)  # one more than the other shape had time for
    one = run("4x1", "Open MPI v5", row("hpcomm Python", 0.5, 0.4, 0.6, 0.5), row("hpcomm auto", *cycles))
    one["rows"] += [row("hpcomm C", *cycles), row("hpcomm C auto", 0.6, 0.6, 0.6, 0.6), row("wire (bound)", *4 * [0.4])]
    composites = [
        row("Allreduce + update, blocks", 1.0, 1.2, 1.1),
        row("Reduce + update + Bcast, blocks", 3.0, 3.0, 3.0),
    ]
    peers = [*composites, row("Allreduce alone", 0.9, 0.9, 0.9), row("Gloo all_reduce alone", 0.5, 0.6, 0.4)]
    two = run(
        "4x2", "Open MPI v5", row("hpcomm Python", 0.9, 0.9, 0.9), row("hpcomm auto", 0.52, 0.6, 0.5), *peers, bound
    )
    rings = run("4x2", "Open MPI v5", row("hpcomm auto", 0.5), row("Allreduce + update", 0.6), settings="rings")
    racks = run("2x2x1", "MPICH", row("hpcomm auto", 2.0), row("hpcomm racks", 1.2), row("wire (bound)", 1.0))
    document = {
        "size": 32 << 20,
        "hpcomm": "0",
        "rate": "1gbit",
        "uplink": "250mbit",
        "wire": "iperf3",
        "runs": [one, two, rings, racks],
    }
    found = {p.what: (round(p.value, 3), p.verdict) for p in hosts_table.promises(document)}
    auto = "4x2, hpcomm auto, Open MPI"
    assert found["4x1, hpcomm auto, Open MPI: / hpcomm Python"] == (1.0, "met")
    assert found["4x1, hpcomm auto, Open MPI: / bound"] == (1.25, "")
    assert found["4x1, hpcomm C auto, Open MPI: / hpcomm C"] == (1.2, "MISSED")
    assert found[f"{auto}: / 4x1"] == (1.04, "met")
    assert found[f"{auto}: best composite /"] == (2.115, "met")
    assert found[f"{auto} by rings: best composite /"] == (1.2, "met")  # what is asked is asked of its defaults
    assert found[f"{auto}: Allreduce alone /"] == (1.731, "")
    assert found[f"{auto}: Gloo all_reduce alone /"] == (0.962, "MISSED")
    assert found["4x2, hpcomm Python, Open MPI: best composite /"] == (1.222, "")  # the flat way stands beside
    assert found["2x2x1, hpcomm racks, MPICH: / bound"] == (1.2, "MISSED")
    assert found["2x2x1, hpcomm auto, MPICH: / bound"] == (2.0, "")
    printed = hosts_table.lines(document)
    assert next(line.split() for line in printed if line.startswith("  4x2") and "auto" in line) == [
        *("4x2", "hpcomm", "auto", "520.0", "504.0", "584.0"),
        *("1.300", "0.578", "1.000", "0"),
    ]  # fmt: skip


def test_cycles_of_rounds_stand_in_one_row() -> None:
    runs: list[dict[str, Any]] = []
    shape = hosts_bench.shape_of("2x2")
    facts = {"ranks": 4, "hosts": 2, "transport": "shm,tcp"}
    turns = (("Open MPI", "defaults"), ("Open MPI", "rings"), ("MPICH", "defaults"), ("Open MPI", "defaults"))
    for second, (library, settings) in enumerate(turns):
        found = {"mpi": library, **facts, "rows": [row("hpcomm C", second)]}
        hosts_bench.add(runs, shape, "256k", settings, found)
    assert [(hosts_table.mpi_of(found), found["rows"][0]["cycles"]) for found in runs] == [
        ("Open MPI", [0, 3]),
        ("Open MPI by rings", [1]),
        ("MPICH", [2]),
    ]

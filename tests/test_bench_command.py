"""hpcomm bench: its benchmarks run without MPI, find what is planted, and their verdict says what the rows say."""

import argparse
import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import mpi
import pytest
from click.testing import CliRunner

import hpcomm
from hpcomm import bench
from hpcomm.bench import hardware, harness, peers, ranks, start, together, verdict
from hpcomm.cli import main

FEW = ["-n", "1", "-N", "1", "-w", "0"]
TINY = {
    "limits": [*FEW, "-b", "64K", "-e", "64K", "-R", "128K"],
    "loopback": [*FEW, "-b", "4K", "-e", "4K", "-R", "64K"],
    "put_lat": [*FEW, "-m", "2"],
    "put_bw": [*FEW, "-b", "4K", "-e", "64K", "-R", "128K"],
    "push_pull": [*FEW, "-m", "2", "-b", "20000", "-e", "20000", "--only", "hpcomm"],
    "queue": [*FEW, "-b", "20000", "-e", "20000"],
    "sparse": [*FEW, "-b", "20000", "-e", "20000", "-k", "1"],
}
OURS = {
    "limits": {"hpcomm put, shm", "hpcomm put, loopback", "hpcomm fold of 2, all ranks"},
    "loopback": {"hpcomm put, shm", "hpcomm put, tcp"},
    "put_lat": {"hpcomm Python", "hpcomm Python, many sources"},
    "put_bw": {"hpcomm Python"},
    "push_pull": {"hpcomm Python", "hpcomm shared_params"},
    "queue": {"hpcomm Python"},
    "sparse": {"hpcomm Python, dense", "hpcomm Threshold, 1 % kept"},
}


def benches(runs: list[tuple[str, list[str]]]) -> list[tuple[int, str]]:
    """The status and the output of benchmarks one after another, without MPI."""
    comm, ended = ranks.Channel(hpcomm.init(mpi.world())), []
    for name, arguments in runs:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            status = harness.run(bench.find(name), arguments, lambda options: harness.Bench(options, comm))
        ended.append((status, printed.getvalue()))
    return ended


@pytest.mark.parametrize("planted", [False, True])
def test_answers_are_right_and_planted_wrong_ones_are_found(planted: bool) -> None:
    more = ["--json", *(["--plant"] if planted else [])]
    both = mpi.spawn(2, benches, [(name, [*words, *more]) for name, words in TINY.items()]).values
    for name, (status, printed), (other, nothing) in zip(TINY, *both, strict=True):
        document = json.loads(printed)
        wrong = {row["name"]: row["wrong"] for row in document["rows"] if row["role"] == "hpcomm"}
        assert set(wrong) == OURS[name]
        assert (status, other, nothing) == (planted, planted, "")
        assert all(wrong.values()) if planted else document["wrong"] == 0, (name, wrong)
        assert "mpi4py" in document["lacks"] or "mpi4py" not in bench.find(name).peers


def every(at_least: float) -> tuple[int, str]:
    """All benchmarks, of which one must do here."""
    for name in set(bench.TABLE) - {"limits"}:
        del bench.TABLE[name]
    comm = ranks.Channel(hpcomm.init(mpi.world()))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = together.run(comm, quick=True, as_json=True, at_least=at_least)
    return status, printed.getvalue()


def test_a_verdict_ends_all_of_them() -> None:
    (status, printed), (other, _) = mpi.spawn(2, every, 1e9).values
    assert (status, other) == (together.BELOW, together.BELOW)
    found = json.loads(printed)
    assert found["wrong"] == 0
    assert [share["what"] for share in found["verdict"]["shares"]] == [words[2] for words in verdict.WITHIN.values()]
    assert found["verdict"]["told"][-1].startswith("This host: hpcomm gives ")


def test_the_command_starts_its_own_ranks() -> None:
    ended = mpi.command(sys.executable, "-m", "hpcomm.cli", "bench", "put_bw", *TINY["put_bw"], "--json")
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert (document["ranks"], document["wrong"]) == (2, 0)


def test_ranks_do_not_meet_at_a_port_of_outgoing_connections() -> None:
    """A rank that called such a port before rank 0 listens there could be connected to itself."""
    low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
    outside = f"[ $MASTER_PORT -lt {low} -o $MASTER_PORT -gt {high} ]"
    assert start.by_environment(2, ["sh", "-c", outside]) == 0


def test_bad_options_are_usage_errors() -> None:
    for words in (["--quick", "put_lat"], ["put_lat", "--no-such"], ["no-such"], ["--at-least", "2"]):
        assert CliRunner().invoke(main, ["bench", *words]).exit_code == 2
    listed = CliRunner().invoke(main, ["bench", "--help"]).output
    assert all(name in listed for name in bench.TABLE)


def test_a_peer_that_is_asked_for_by_name_and_missing_is_an_error() -> None:
    lacks = {"mpi4py": "pip install", "Gloo": "pip install"}
    assert peers.asked("hpcomm,gloo all_reduce", lacks) == ["Gloo"]
    assert peers.asked("hpcomm", lacks) == peers.asked("", lacks) == []


def test_sizes_rise_by_a_factor_or_by_bytes() -> None:
    put_bw = bench.find("put_bw")
    for more, expected in ((["-f", "4"], [8, 32, 128]), (["-i", "60"], [8, 64, 120])):
        assert harness.sizes(put_bw, harness.options_of(put_bw, ["-b", "8", "-e", "130", *more])) == expected


def test_neither_the_checkout_nor_a_peer_is_imported() -> None:
    code = "import sys; from hpcomm import bench; list(map(bench.find, bench.TABLE)); print(list(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'hpcomm.bench.sparse'" in found
    assert not [name for name in ("bench", "mpi4py", "matplotlib", "rich") if f"'{name}'" in found]


# ---- the verdict ---------------------------------------------------------------------------------------------------


def document(rates: dict[str, float], adapters: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Of limits: the rows of these MB/s, between h1 and h2."""
    rows = [{"name": name, "size": 1e6, "cycles": [1 / rate] * 3, "wrong": 0} for name, rate in rates.items()]
    ways = {"h1 -> h2": ["h2", "eth0"], "h2 -> h1": ["h1", ""]}
    return {"rows": rows, "host": "h1", "adapters": {"h1": [], "h2": adapters or []}, "ways": ways}


MEMORY = {"memory copy, one rank (bound)": 8000.0, "hpcomm put, shm": 7200.0}
ETH0 = {"name": "eth0", "gbits": 1.0, "pcie": "", "slot_gbits": 0.0, "most_gbits": 0.0}
LINK = {"h1 -> h2, socket stream (bound)": 110.0, "h1 -> h2, iperf3 (bound)": 117.5, "h1 -> h2, hpcomm put": 115.15}


@pytest.mark.parametrize(
    ("rates", "adapters", "least", "told"),
    [
        ({}, [], 1.0, ["nothing to compare: one rank alone moves no bytes"]),
        (
            MEMORY,
            [],
            0.9,
            [
                "memory of h1: put over shared memory gives 0.90 of the 8.00 GB/s of a copy by one rank",
                "This host: hpcomm gives 0.90 of a copy by one rank (8.00 GB/s).",
            ],
        ),
        (
            LINK,
            [ETH0],
            0.98,
            [
                "h1 -> h2: put gives 0.98 of the 118 MB/s of iperf3, which are 0.94 of the 1 Gb/s of the NIC",
                "This cluster's links give 0.94 of the NIC, and hpcomm gives 0.98 of the links "
                "(the worst way: h1 -> h2).",
            ],
        ),
        (
            {**LINK, "h2 -> h1, socket stream (bound)": 100.0, "h2 -> h1, hpcomm put": 50.0},
            [],
            0.5,
            [
                "h1 -> h2: put gives 0.98 of the 118 MB/s of iperf3",
                "h2 -> h1: put gives 0.50 of the 100 MB/s of a bare socket",
                "Between hosts hpcomm gives 0.50 of the links (the worst way: h2 -> h1).",
            ],
        ),
        (
            MEMORY,
            [{"name": "mlx5_0:1", "gbits": 100.0, "pcie": "PCIe 8 GT/s x8", "slot_gbits": 63.0, "most_gbits": 126.0}],
            0.9,
            ["mlx5_0:1 of h2: its slot, PCIe 8 GT/s x8, carries 63 Gb/s of the 100 Gb/s of its link"],
        ),
    ],
)
def test_the_verdict_says_what_the_rows_say(
    rates: dict[str, float], adapters: list[dict[str, Any]], least: float, told: list[str]
) -> None:
    found = verdict.verdict(document(rates, adapters))
    assert found["least"] == pytest.approx(least)
    assert set(told) <= set(found["told"])
    assert found["told"][-1] == told[-1] or adapters != [ETH0]


def test_adapters_are_read_from_sys(tmp_path: Path) -> None:
    files = {
        "sys/class/net/eth0/speed": "100000",
        "sys/class/net/eth0/device/current_link_speed": "8.0 GT/s PCIe",
        "sys/class/net/eth0/device/current_link_width": "8",
        "sys/class/net/eth0/device/max_link_speed": "16.0 GT/s PCIe",
        "sys/class/net/eth0/device/max_link_width": "16",
        "sys/class/net/down0/speed": "-1",
        "sys/class/net/lo/speed": "1",
        "sys/class/infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)",
        "sys/class/infiniband/mlx5_0/device/current_link_speed": "5.0 GT/s PCIe",
        "sys/class/infiniband/mlx5_0/device/current_link_width": "4",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n", encoding="ascii")
    eth0, port = hardware.adapters(tmp_path)
    assert (eth0.name, eth0.gbits, eth0.pcie) == ("eth0", 100.0, "PCIe 8 GT/s x8")
    assert (round(eth0.slot_gbits), round(eth0.most_gbits)) == (63, 252)
    assert (port.name, port.gbits, port.slot_gbits) == ("mlx5_0:1", 200.0, 16.0)
    assert hardware.has_rdma(tmp_path)


def test_a_long_run_says_so_before_it_begins(capsys: pytest.CaptureFixture[str]) -> None:
    for iters, limit in ((0, None), (100, 5.0), (100, None)):  # short, bounded, long
        harness.tell_length(argparse.Namespace(iters=iters, run_cycles=10, limit=limit), 8, each=0.5, usual=2)
    said = "# 8 B: about 500 s for 100 samples of each contender in 10 cycles; --iters, --run_cycles or --limit"
    assert [line[: len(said)] for line in capsys.readouterr().err.splitlines()] == [said]

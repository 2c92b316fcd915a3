"""The benchmarks over RDMA, as far as a machine without an RDMA device has them: what they read, judge and refuse."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mpi
import pytest

from bench.common.launch import module_of

ROOT = Path(__file__).resolve().parent.parent
WRITE_BW = """
---------------------------------------------------------------------------------------
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:77:00:01
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 32768      5000             0.70               0.67   \t\t   0.002573
---------------------------------------------------------------------------------------
"""
WRITE_LAT = """
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    99% percentile[usec]
 8       1000          8.29           189.44       8.49     \t       9.57        \t20.58
"""
DEVICES = Path("/sys/class/infiniband")
HAS_DEVICE = DEVICES.is_dir() and any(DEVICES.iterdir())


@pytest.fixture(autouse=True)
def _root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.syspath_prepend(ROOT / "tests")


def test_the_columns_of_perftest_have_its_names() -> None:
    perftest = importlib.import_module("bench.machine.perftest")
    assert perftest.rate(perftest.columns(WRITE_BW)) == pytest.approx(0.67e9 / 8)
    assert perftest.rate(perftest.columns(WRITE_BW.replace("Gb/", "MB/"))) == pytest.approx(0.67 * 2**20)
    found = perftest.columns(WRITE_LAT)
    assert (found["#bytes"], found["t_typical[usec]"], found["t_avg[usec]"]) == (8, 8.49, 9.57)
    assert perftest.columns("Couldn't connect to 10.77.0.1:18515") == {}


def row(name: str, size: int, *cycles: float) -> dict[str, Any]:
    role = "hpcomm" if name.startswith("hpcomm") else "bound"
    return {"name": name, "size": size, "role": role, "cycles": list(cycles), "wrong": 0}


def document(benchmark: str, rows: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    return {"benchmark": benchmark, "rows": rows, "options": options}


def test_latency_is_judged_like_with_like() -> None:
    rdma = importlib.import_module("bench.ops.rdma")
    rows = [
        row("ib_write_lat (bound)", 8, 10.0, 10.0),
        row("ib_write_lat, median trip (bound)", 8, 8.0, 8.0),
        row("bare verbs, write with immediate (bound)", 8, 11.0, 11.0),
        row("bare verbs, write with immediate, sleeping (bound)", 8, 40.0, 40.0),
        row("bare verbs, write with immediate, median trip (bound)", 8, 9.0, 9.0),
        row("hpcomm C", 8, 12.0, 13.0),
        row("hpcomm C, median trip", 8, 12.0, 12.0),
        row("hpcomm C, sleeping", 8, 44.0, 44.0),
        row("hpcomm Python", 8, 15.0, 15.0),
    ]
    found = rdma.judge({"latency": document("put_lat", rows)})
    asked = [promise for promise in found if promise.asked]
    assert [(promise.what, promise.value, promise.met) for promise in asked] == [
        ("8 B put_signal over RDMA, C, means", 1.25, True),
        ("8 B put_signal over RDMA, C, medians", 1.5, False),
    ]
    assert (asked[0].low, asked[0].high) == (1.2, 1.3)
    values = {(promise.what, promise.other.split(maxsplit=2)[2]): promise.value for promise in found}
    what, sleeping = "8 B put_signal over RDMA", "bare verbs, write with immediate, sleeping (bound)"
    assert values[f"{what}, sleeping, means", sleeping] == 1.1
    assert values[f"{what}, C, medians", "bare verbs, write with immediate, median trip (bound)"] == 12 / 9


def test_without_perftest_bare_verbs_are_the_measure() -> None:
    rdma = importlib.import_module("bench.ops.rdma")
    rows = [row("bare verbs (bound)", 1 << 15, 97.0), row("hpcomm C", 1 << 15, 100.0)]
    rows.append(row("hpcomm C, user memory", 1 << 15, 200.0))
    found = rdma.judge({"bandwidth": document("put_bw", rows)})
    assert [(promise.what, promise.value) for promise in found] == [("put of 32 KiB over RDMA, C", 0.97)]
    assert found[0].met


def test_the_exchange_is_judged_by_the_wire() -> None:
    rdma = importlib.import_module("bench.ops.rdma")
    rows = [row("wire, both ways (bound)", 1 << 20, 9.0), row("NIC copies (bound)", 1 << 20, 5.0)]
    rows += [row("hpcomm C", 1 << 20, 10.0), row("hpcomm Python", 1 << 20, 12.0)]
    found = rdma.judge({"push_pull": document("push_pull", rows)})
    assert [(promise.value, promise.asked) for promise in found] == [(0.9, True), (0.5, False), (0.75, False)]
    assert [promise.verdict for promise in found] == ["MISSED", "", ""]
    rows += [row("wire, push and pull (bound)", 1 << 20, 9.5), row("update alone (bound)", 1 << 20, 1.0)]
    found = rdma.judge({"push_pull": document("push_pull", rows)})
    asked = [(promise.value, promise.asked) for promise in found]
    assert asked == [(0.95, True), (0.9, False), (0.5, False), (1.05, False), (9.5 / 12, False)]
    assert "then update" in found[3].other


def test_affinities_are_compared_like_with_like() -> None:
    rdma, plots = (importlib.import_module(f"bench.{name}") for name in ("ops.rdma", "phub.chunk_plots"))
    rows = [
        row(plots.chunk_name(chunk, cores, way), 1 << 20, seconds)
        for chunk, cores, way, seconds in (
            (4096, 2, "key", 10.0),
            (4096, 2, "worker", 14.0),
            (32768, 1, "key", 5.0),  # the other way was not asked for
        )
    ]
    sweep = document("chunk_sweep", rows, chunks=[4096, 32768], cores=[1, 2], affinity=["key", "worker"])
    (promise,) = rdma.judge({"sweep": sweep})
    assert (promise.what, promise.value) == ("push_pull of 1 MiB, chunks of 4 KiB, 2 QPs", 1.4)
    assert not promise.asked


def test_sweeps_are_drawn_with_a_line_for_each_way(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plots = importlib.import_module("hpcomm.bench.plots")
    chunk_plots = importlib.import_module("bench.phub.chunk_plots")
    rows = [
        row(chunk_plots.chunk_name(chunk, cores, way), 1 << 20, 0.01 * cores)
        for chunk in (4096, 32768)
        for cores in (1, 2)
        for way in ("key", "worker")
    ]
    lines: list[str] = []

    def draw(axis: Any) -> None:
        chunk_plots.sweep(
            axis, document("chunk_sweep", rows, chunks=[32768, 4096], cores=[1, 2], affinity=["key", "worker"])
        )
        lines.extend(text.get_text() for text in axis.get_legend().get_texts())

    assert plots.figure(tmp_path / "plot.png", [draw], "sweep")
    ways = ("", ", by worker")
    assert sorted(lines) == sorted(f"{pairs}{way}" for pairs in ("1 QP", "2 QPs") for way in ways)


@pytest.mark.skipif(HAS_DEVICE, reason="this machine has an RDMA device")
def test_loopback_without_a_device_says_so() -> None:
    mpi.mpirun()
    command = [sys.executable, "-m", "bench.machine.loopback", "-b", "64K", "-e", "64K", "-N", "1", "-T", "20"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert ended.returncode not in (0, 2)
    said = [line for line in ended.stderr.splitlines() if line.startswith("loopback: ")]
    assert len(said) == 1, ended.stderr
    assert "no RDMA device here" in said[0] or "headers are missing" in said[0]


@pytest.mark.skipif(not HAS_DEVICE, reason="this machine has no RDMA device; bench.ops.softroce has one in a guest")
@pytest.mark.parametrize(
    ("name", "arguments", "names"),
    [
        ("put_lat", ["-m", "8"], {"bare verbs, write with immediate (bound)", "hpcomm C", "hpcomm Python"}),
        ("put_bw", ["-b", "64K", "-e", "64K", "-R", "512K"], {"bare verbs (bound)", "hpcomm C", "hpcomm Python"}),
        (
            "push_pull",
            ["-s", "160000"],
            {"wire, push and pull (bound)", "update alone (bound)", "hpcomm C", "hpcomm Python"},
        ),
    ],
)
def test_every_answer_over_rdma_is_right(name: str, arguments: list[str], names: set[str]) -> None:
    mpi.mpirun()
    few = ["--transport", "verbs", "-n", "1", "-N", "2", "--json"]
    command = [sys.executable, "-m", module_of(name), *arguments, *few]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=ROOT, env=os.environ)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["transport"] == "verbs"
    assert {row["name"] for row in found["rows"]} >= names
    assert {row["wrong"] for row in found["rows"]} == {0}


def test_a_run_without_its_figures_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    softroce = importlib.import_module("bench.ops.softroce")
    run, saved = softroce.RUNS[0], {"benchmark": "put_lat", "rows": []}
    assert softroce.figures_of(run, tmp_path, "no modules here") is None
    assert "no figures: the guest did not get there\n#   no modules here" in capsys.readouterr().err
    (tmp_path / "latency.txt").write_text("rank 1: broken\n")
    (tmp_path / "latency.json").write_text(json.dumps(saved))
    (tmp_path / "latency.status").write_text("124\n")
    assert softroce.figures_of(run, tmp_path, "") == saved
    said = capsys.readouterr().err
    assert "figures of some sizes only: ended after" in said
    assert "rank 1: broken" in said
    (tmp_path / "latency.status").write_text("0\n")
    assert softroce.figures_of(run, tmp_path, "") == saved
    assert capsys.readouterr().err == ""


def test_a_benchmark_keeps_to_its_time_and_leaves_its_figures(tmp_path: Path) -> None:
    mpi.mpirun()
    figures = tmp_path / "figures.json"
    command = [
        sys.executable,
        "-m",
        "bench.ops.put_lat",
        "-N",
        "900",
        "-n",
        "1",
        "-m",
        "8",
        "-L",
        "0.5",
        "-J",
        str(figures),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    cycles = {len(row["cycles"]) for row in json.loads(figures.read_text())["rows"]}
    assert len(cycles) == 1
    assert 1 <= cycles.pop() < 900
    assert " cycles of 900 in the time for 8 B" in ended.stderr


def test_perftest_is_asked_again_until_it_has_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    perftest = importlib.import_module("bench.machine.perftest")
    told = [{"t_avg[usec]": float("inf")}, {"t_avg[usec]": float("nan")}, {"t_avg[usec]": 9.5}]

    class Alone:
        rank = 0
        comm = property(lambda self: self)

        def meet(self) -> None:
            pass

        def bcast(self, value: Any) -> Any:
            return value

    monkeypatch.setattr(perftest, "_once", lambda *given: told.pop(0))
    assert perftest.measure(Alone(), None, "ib_write_lat", 1) == {"t_avg[usec]": 9.5}
    told[:] = [{"t_avg[usec]": float("inf")}] * perftest.ATTEMPTS
    with pytest.raises(RuntimeError, match="no finite figures"):
        perftest.measure(Alone(), None, "ib_write_lat", 1)

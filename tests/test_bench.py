"""Every benchmark runs, finds no wrong answer, writes JSON that says so, and finds the wrong answer that is planted."""

import contextlib
import ctypes
import importlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import mpi
import numpy as np
import pytest
from conftest import is_gone_soon, names_of
from hpcomm._ffi import ffi

ROOT = Path(__file__).resolve().parent.parent
FEW = ["-n", "2", "-m", "8", "-N", "2"]
TINY = {
    "put_lat": ["-n", "1", "-m", "2", "-N", "2", "-b", "8", "-e", "64"],
    "put_bw": [*FEW, "-b", "64K", "-e", "256K", "-R", "512K"],
    "queue_bench": [*FEW, "-b", "20000", "-e", "160000"],
    "wait_cpu": ["-t", "0.2"],
    "push_pull": ["-n", "1", "-m", "2", "-N", "2", "-s", "4,20000,160000"],
    "fold_bench": [*FEW, "-b", "20000", "-e", "20000"],
    "sparse_bench": [*FEW, "-b", "20000", "-e", "20000"],
    "chunk_sweep": ["-n", "1", "-N", "2", "-b", "200000", "-e", "200000", "--chunks", "4K,32K,4M"],
    "limits": [*FEW, "-b", "64K", "-e", "64K", "-R", "512K"],
    "graph_exchange": [*FEW, "-b", "20000", "-e", "160000", "-f", "8", "-g", "1"],
    "broadcast": ["-n", "2", "-N", "2", "-b", "64K", "-e", "64K"],
    "placements": ["-N", "2", "-s", "20000", "--placement", "CS,NCC,NCS"],
}
BOTH = {"hpcomm C", "hpcomm Python"}
IN_C = ("hpcomm C", "scalar C", "NumPy")
EXPECTED = {
    "put_lat": {*BOTH, "mpi4py Put+Flush+Send"},
    "put_bw": {*BOTH, "mpi4py Put+Flush"},
    "queue_bench": {*BOTH, "mpi4py + NumPy", "mpi4py + NumPy in blocks"},
    "wait_cpu": {*BOTH, "mpi4py Recv"},
    "push_pull": {
        *BOTH,
        "hpcomm shared_params",
        "Allreduce + update",
        "Reduce + update + Bcast, blocks",
        "Reduce_scatter + update + Allgather, blocks",
        "Reduce_scatter_block + update + Allgather, blocks",
    },
    "fold_bench": {f"hpcomm C, {n} inputs" for n in (2, 4, 8)},
    "sparse_bench": {
        *(f"encode, {kept} % kept: {who}" for kept in ("0.1", "1", "10") for who in (*IN_C, "hpcomm Numba")),
        *(f"decode_add, {kept} % kept: {who}" for kept in ("0.1", "1", "10") for who in IN_C),
    },
    "chunk_sweep": {f"hpcomm Python, chunks of {n}" for n in ("4 KiB", "32 KiB", "4 MiB")},
    "limits": {
        "memory copy, all ranks (bound)",
        "hpcomm fold of 2, all ranks",
        "hpcomm put, shm",
        "loopback, socket stream (bound)",
        "hpcomm put, loopback",
    },
    "graph_exchange": {
        "hpcomm Python, a copy first",
        "hpcomm Python",
        "Neighbor_allgather + NumPy",
        "Neighbor_allgather + NumPy in blocks",
    },
    "broadcast": {"hpcomm chain", "hpcomm binary tree", "hpcomm flat", "MPI Bcast"},
    "placements": {"hpcomm CS", "hpcomm NCC", "hpcomm NCS", "Allreduce + update"},
}
OVER_TCP = {
    "put_lat": {*BOTH, "hpcomm C, sleeping", "socket pair, spinning (bound)", "socket pair, blocking (bound)"},
    "put_bw": {*BOTH, "hpcomm C, nobody waits", "socket stream, huge pages (bound)", "mpi4py Put+Flush"},
    "queue_bench": BOTH,
    "push_pull": {*BOTH, "Allreduce + update"},
}
TCP = ["--transport", "tcp"]
PROGRAMS = {
    "put_lat": ["-n", "2", "-m", "8", "-N", "2", "-e", "64"],
    "put_bw": ["-n", "1", "-N", "2", "-e", "256K"],
    "queue": ["-n", "2", "-N", "2", "-b", "20000", "-e", "20000"],
    "wait_cpu": ["-n", "1"],
    "push_pull": ["-n", "1", "-N", "2", "-b", "20000", "-e", "20000"],
    "fold": ["-n", "1", "-N", "2", "-b", "20000", "-e", "20000"],
}


def module_of(name: str) -> str:
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    return importlib.import_module("bench.common.launch").module_of(name)  # type: ignore[no-any-return]


def bench(name: str, arguments: list[str]) -> tuple[int, str]:
    module = importlib.import_module(module_of(name))
    harness = importlib.import_module("bench.common.harness")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = harness.run(module.BENCHMARK, arguments)
    return status, printed.getvalue()


def benches(runs: list[tuple[str, list[str]]]) -> list[tuple[int, str]]:
    """Benchmarks one after another, in the ranks of one mpirun."""
    return [bench(name, arguments) for name, arguments in runs]


class Run(NamedTuple):
    codes: list[int]
    printed: list[str]

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.printed[0])
        return found


def run(ranks: int, runs: dict[str, list[str]]) -> dict[str, Run]:
    """Several benchmarks in one job, by their names: most of the time of a short one is the start of its ranks."""
    ended = mpi.run(ranks, benches, [(name, [*TINY[name], *more]) for name, more in runs.items()], timeout=240)
    return {
        name: Run([codes[i][0] for codes in ended], [codes[i][1] for codes in ended]) for i, name in enumerate(runs)
    }


@pytest.fixture(scope="module")
def right(request: pytest.FixtureRequest) -> dict[str, Run]:
    return run(2, {name: ["--json"] for name in names_of(request)})


@pytest.mark.some(1)
@pytest.mark.parametrize("name", TINY)
@pytest.mark.xdist_group("group right")
def test_every_answer_is_right(name: str, right: dict[str, Run]) -> None:
    document = right[name].document()
    assert right[name].codes == [0, 0]
    assert document["ranks"] == 2
    names = {row["name"] for row in document["rows"]}
    assert names >= EXPECTED[name]
    for row in document["rows"]:
        assert row["wrong"] == 0, row["name"]
        assert 0 <= row["p50"] <= row["p90"] <= row["p99"]
        assert len(row["cycles"]) == document["options"]["run_cycles"]
        assert row["count"] * {"uint64": 8, "float32": 4}[row["type"]] == row["size"]


@pytest.fixture(scope="module")
def planted(request: pytest.FixtureRequest) -> dict[str, Run]:
    options = ["--json", "--plant", "-N", "1", "--only", "hpcomm,mpi4py,update,Neighbor,Bcast"]
    return run(2, dict.fromkeys(names_of(request), options))


@pytest.mark.some(1)
@pytest.mark.parametrize("name", TINY)
@pytest.mark.xdist_group("group planted")
def test_a_planted_wrong_value_is_found(name: str, planted: dict[str, Run]) -> None:
    assert planted[name].codes == [1, 1]
    wrong = {row["name"]: 0 for row in planted[name].document()["rows"]}
    for row in planted[name].document()["rows"]:
        wrong[row["name"]] += row["wrong"]
    assert len(wrong) >= min(3, len(EXPECTED[name]))
    assert all(wrong.values()), wrong


@pytest.fixture(scope="module")
def over_tcp(request: pytest.FixtureRequest) -> dict[str, Run]:
    options, fewer = [*TCP, "-N", "2", "--json"], {"put_lat": ["-e", "8"], "push_pull": ["-s", "20000"]}
    return run(2, {name: [*options, *fewer.get(name, [])] for name in names_of(request)})


@pytest.mark.parametrize("name", OVER_TCP)
@pytest.mark.xdist_group("group tcp")
def test_every_answer_over_tcp_is_right(name: str, over_tcp: dict[str, Run]) -> None:
    document = over_tcp[name].document()
    assert over_tcp[name].codes == [0, 0]
    assert document["transport"] == document["options"]["transport"] == "tcp"
    assert {row["name"] for row in document["rows"]} >= OVER_TCP[name]
    assert {row["wrong"] for row in document["rows"]} == {0}


def test_a_planted_wrong_value_over_tcp_is_found() -> None:
    ended = run(2, {"put_bw": [*TCP, "-N", "1", "--plant", "--only", "hpcomm,socket", "--json"]})["put_bw"]
    assert ended.codes == [1, 1]
    wrong = {row["name"]: row["wrong"] for row in ended.document()["rows"] if row["size"] == 64 << 10}
    assert len(wrong) == 5
    assert all(wrong.values()), wrong


@pytest.mark.parametrize(
    ("ranks", "runs"),
    [
        (
            6,
            {
                "put_lat": ["--only", "hpcomm"],
                "queue_bench": ["-g", "1,2", "--only", "hpcomm"],
                "graph_exchange": ["-g", "1,3"],
            },
        ),
        (4, {"push_pull": ["-s", "20000"]}),
        (
            3,
            {
                "chunk_sweep": ["--servers", "1", "--affinity", "key,worker", "--chunks", "32K"],
                "placements": ["--placement", "CS,NCC"],
            },
        ),
    ],
)
def test_more_ranks_than_cores(ranks: int, runs: dict[str, list[str]]) -> None:
    for ended in run(ranks, {name: [*more, "-N", "2", "--json"] for name, more in runs.items()}).values():
        assert ended.codes == [0] * ranks
        assert {row["wrong"] for row in ended.document()["rows"]} == {0}


def test_the_table_has_the_columns_of_nccl_tests() -> None:
    printed = run(2, {"put_lat": ["-N", "1"]})["put_lat"].printed
    lines = printed[0].splitlines()
    assert lines[2].split()[1:5] == ["size", "count", "type", "who"]
    assert lines[2].split()[5:9] == ["time", "algbw", "busbw", "#wrong"]
    assert lines[-1] == "# Out of bounds values : 0 OK"
    assert not printed[1]  # rank 0 alone prints


def own_mpirun(module: str, *arguments: str) -> Any:
    """The JSON of a benchmark that nobody started by mpirun."""
    mpi.mpirun()  # skips where there is none
    command = [sys.executable, "-m", module_of(module), *arguments, "--json"]
    ended = mpi.command(*command, timeout=240, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_a_model_goes_key_by_key_and_whole(tmp_path: Path) -> None:
    only = "hpcomm Python,hpcomm step,Reduce_scatter"
    arguments = ["-M", "transformer38", "-N", "1", "-w", "0", "--only", only, "--plot", str(tmp_path / "plot.png")]
    document = own_mpirun("push_pull", *arguments)
    assert document["ranks"] == 2
    assert {row["count"] for row in document["rows"]} == {859_008}
    assert {row["wrong"] for row in document["rows"]} == {0}
    assert len(document["rows"]) == 6
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_zero_compute_counts_exchanges_of_all_workers(tmp_path: Path) -> None:
    arguments = [
        "-W",
        "1,2",
        "--models",
        "4K",
        "-N",
        "1",
        "--python",
        sys.executable,
        "--plot",
        str(tmp_path / "plot.png"),
    ]
    document = own_mpirun("zero_compute", *arguments)
    points = [(point["workers"], point["who"]) for point in document["points"]]
    assert points == [(1, "hpcomm"), (1, "composite"), (2, "hpcomm"), (2, "composite")]
    row = next(row for row in document["runs"][1]["rows"] if row["name"] == "hpcomm Python")
    assert document["points"][2]["rate"] == pytest.approx(2 / row["cycles"][0])
    assert {row["wrong"] for row in document["rows"]} == {0}
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_reduces_are_counted_by_their_whole_inputs(tmp_path: Path) -> None:
    plot = tmp_path / "plot.png"
    arguments = ["-n", "30", "--endure", "400", "--weights", "6000", "--ranks", "4"]
    document = own_mpirun("consistent_reduces", *arguments, "--plot", str(plot))
    rows = {row["name"]: row for row in document["rows"]}
    assert list(rows) == ["NOTIFY_ACK", "BSP", "BARRIER", "ASYNC", "NOTIFY_ACK, short and many"]
    for name, row in rows.items():
        reduces = 400 if "many" in name else 4 * 30
        assert row["reduces"] == sum(row["by_inputs"]) == reduces
        assert sum(n * count for n, count in enumerate(row["by_inputs"])) == row["whole"]
        assert row["whole"] + row["torn"] + row["stale"] + row["missing"] == 3 * reduces
        assert row["wrong"] == 0
        if name.startswith(("NOTIFY_ACK", "BSP")):
            assert row["by_inputs"] == [0, 0, 0, reduces]
    assert plot.read_bytes().startswith(b"\x89PNG")
    command = [sys.executable, "-m", "bench.asap.consistent_reduces", *arguments, "--plant"]
    ended = mpi.command(*command, timeout=240, cwd=ROOT)
    assert ended.returncode == 1, ended.stderr


def test_a_straggler_is_waited_for_by_its_neighbours_first(tmp_path: Path) -> None:
    plot = tmp_path / "plot.png"
    document = own_mpirun("straggler", "--ranks", "4", "-t", "0.005", "-n", "6", "--plot", str(plot))
    rows = document["rows"]
    assert [row["name"].split(",")[0] for row in rows] == [
        "root_expander(4)",
        "root_expander(4)",
        "ring(4)",
        "root_expander(4)",
        "root_expander(4)",
    ]
    assert [row["predicted"] for row in rows[2:]] == [[2, 2, 0, 1], [1, 1, 0, 1], [0] * 4]
    for row in rows:
        assert row["wrong"] == 0
        assert [len(waits) for waits in row["waits"]] == [6] * 4
    stand = document["stand"]
    assert stand["named"]
    assert [seconds >= 1 for seconds in stand["told"]] == [rank != 2 for rank in range(4)]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_staleness_is_compared_with_the_ideal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    staleness = importlib.import_module("bench.parameter_flow.staleness")
    factors = staleness.drawn(5, 40, 0.125, 10.0, 3)
    assert set(np.unique(factors)) == {1.0, 10.0}
    assert staleness.ideal(factors, 0) == factors.max(axis=0).sum()  # BSP: each step takes as long as its slowest rank
    assert staleness.ideal(factors, 40) == factors.sum(axis=1).max()  # no rank waits
    two = np.array([[4.0, 1, 1, 1], [1, 1, 1, 4]])
    assert [staleness.ideal(two, s) for s in (0, 1, 2, 3)] == [10, 9, 8, 7]
    plot = tmp_path / "plot.png"
    arguments = ["--ranks", "3", "-t", "0.002", "-n", "12", "--cycles", "1", "-s", "2", "--weights", "500"]
    document = own_mpirun("staleness", *arguments, "--plot", str(plot))
    bsp, ssp = document["contenders"]
    assert (bsp["name"], ssp["name"]) == ("BSP", "SSP(2)")
    assert (bsp["wrong"], ssp["wrong"]) == (0, 0)
    assert bsp["by_staleness"] == []
    assert len(ssp["by_staleness"]) == 3
    assert sum(ssp["by_staleness"]) == 2 * 3 * 12  # keys, ranks, steps
    for row in document["rows"]:
        assert row["seconds"] >= row["ideal"] * 0.99
    assert staleness.in_step(two.repeat(2, axis=0)[[0, 2, 1, 3]], 2).tolist() == [[4, 1, 1, 4]] * 4
    document = own_mpirun("staleness", *arguments, "--per-host", "2")
    assert [row["wrong"] for row in document["rows"]] == [0, 0]
    for row in document["rows"]:
        assert row["seconds"] >= row["ideal"] * 0.99
        assert row["accuracy"] > 20
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_trainings_are_compared_by_the_accuracy_that_they_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    convergence = importlib.import_module("bench.asap.convergence")
    asap = importlib.import_module("bench.asap.promised")

    def run(graph: str, consistency: str, reached: list[float] | None) -> dict[str, Any]:
        inputs = {"whole": 3, "torn": 1, "stale": 0, "missing": 0}
        found = {"graph": graph, "consistency": consistency, "reached": reached, "inputs": inputs, "exchanges": 100}
        ended = {"seconds": [[0, 5.0], [0, 15.0]], "accuracy": [[0, 0.8], [0, 0.9]], "processor": [[4.0], [8.0]]}
        return {**found, **ended}

    dense = [8.0, 8e6, 8]
    cycles = [
        {
            "target": 0.8,
            "runs": [run("complete", "BSP", dense), run("root_expander", "NOTIFY_ACK", sparse), run("chain", "", no)],
        }
        for sparse, no in (([2.0, 4e6, 4], [1.0, 1e6, 1]), ([4.0, 2e6, 2], None), ([1.0, 1e6, 1], [1.0, 1e6, 1]))
    ]
    single = {"curve": [[0, 12, 16.0], [0, 0, 0], [0.5, 0.7, 0.8], [0, 1, 2]]}
    alone = [{"runs": [single]}] * 3
    complete, sparse, chain = convergence.lines(cycles, alone)
    assert (complete.alone, sparse.alone, chain.alone) == (2.0, 8.0, None)
    assert (sparse.steps, sparse.busy) == (2, 1.2)
    assert convergence.reached(single, 0.81) is None
    assert (complete.faster, complete.rate, complete.whole) == ((1.0, 1.0, 1.0), 10.0, 0.75)
    assert (sparse.seconds, sparse.sent) == (2.0, 2e6)
    assert (sparse.faster, sparse.fewer) == ((4.0, 2.0, 8.0), (4.0, 2.0, 8.0))
    assert chain.seconds is None  # it was missed once
    judged = list(asap.convergence({"runs": {"hosts": cycles}}))
    assert [(promise.value, promise.verdict) for promise in judged] == [(4.0, "met"), (4.0, "met")]


def test_the_memory_of_ranks_is_told_by_transport() -> None:
    document = own_mpirun("footprint", "--ranks", "4")
    assert [row["transport"] for row in document["rows"]] == ["tcp"] * 3 + ["shm"] * 3
    for row in document["rows"]:
        assert 0 < row["private_dirty"] < 4 << 20
        assert 0 < row["pss"] < 4 << 20


def test_links_of_ranks_are_measured_beside_another_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build whose ranks fail is a row with the error."""
    monkeypatch.syspath_prepend(ROOT)
    links = importlib.import_module("bench.machine.links")
    document = own_mpirun("links", "--quick", "--transports", "tcp", "--against", str(links.package()))
    rows = {row["name"]: row for row in document["rows"]}
    assert {row["wrong"] for row in rows.values()} == {0}
    for name in ("init", "hub", "first step", "step", "RSS after steps", "threads of rank 0", "death", "a context"):
        assert min(rows[name]["here"], rows[name]["against"], *rows[name]["ratio"]) > 0, name
    for kind in ("descriptors", "threads"):
        assert rows[f"{kind} left over"]["here"] == 0, kind
    case = links.Case("job", "pigeon", 2, ("16", "0", "0"))
    (failed,) = links.rows_of(case, {"against": [links.run(links.BUILD / "links", case)]})
    assert failed["name"] == "failed"
    assert "pigeon" in failed["error"]


def test_exchanges_of_one_process_are_measured_beside_each_other() -> None:
    document = own_mpirun("tenants", "--seconds", "0.02", "--rounds", "1", "--mib", "1")
    assert {row["wrong"] for row in document["rows"]} == {0}
    for mode in ("inline", "thread"):
        rows = {(row["row"], row["name"]): row for row in document["rows"] if row["mode"] == mode}
        assert len(rows) == 4 + 4 + 4
        assert rows["idle", "alone"]["ratio"] == [1, 1, 1]
        assert min(rows["busy", "two, weights 1 and 3"]["bytes"]) > 0
        assert rows["ping", "push_pull beside another"]["beside"] > 0


def test_jains_index_is_one_for_equal_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    tenants = importlib.import_module("bench.machine.tenants")
    assert (tenants.jain([3, 3]), tenants.jain([5, 0]), tenants.jain([1, 3])) == (1, 0.5, 0.8)


def test_operations_whose_instructions_are_counted_run() -> None:
    """Without valgrind too; with it a count is the same in each run, and a library is no slower than itself."""
    instructions = importlib.import_module("bench.machine.instructions")
    program = instructions.compiled(instructions.package(), "instructions")
    names = instructions.operations(program)
    assert len(names) == 5
    for name in names:
        ended = subprocess.run([program, name, "20"], capture_output=True, text=True, timeout=60, check=False)
        assert (ended.returncode, ended.stderr) == (0, ""), name
    if shutil.which("valgrind") is not None:
        document = own_mpirun("instructions", "--against", str(instructions.package()), "--only", names[0])
        assert [row["ratio"] for row in document["rows"]] == pytest.approx([1.0], abs=1e-3)


def test_spectral_gaps_are_right_however_slowly_updates_spread() -> None:
    document = own_mpirun("spectral_gap", "--ranks", "1024")
    assert [row["name"].partition("(")[0] for row in document["rows"]] == [
        "random_regular",
        "root_expander",
        "torus",
        "ring",
        "ring",
        "chain",
    ]
    for row in document["rows"]:
        assert row["wrong"] == 0
        assert row["peak_bytes"] > 1 << 20


def test_hosts_of_a_cluster_are_measured_beside_iperf3() -> None:
    command = [sys.executable, "-m", "bench.ops.cluster_bench", "--quick", "--only", "put", "--json"]
    ended = mpi.command(*command, timeout=240, cwd=ROOT)
    if ended.returncode == 77:
        pytest.skip(ended.stderr)
    assert ended.returncode == 0, ended.stderr
    run = json.loads(ended.stdout)["runs"]["put"]
    assert (run["hosts"], run["transport"]) == (2, "tcp")
    rates = {row["name"]: row["algbw"] for row in run["rows"]}
    assert {"iperf3 (bound)", "hpcomm C", "hpcomm Python"} <= set(rates)
    assert max(rates.values()) < 0.14  # GB/s: the links hold 1 Gb/s, and their buckets a little more


def test_the_summary_runs_under_other_pythons_too(tmp_path: Path) -> None:
    arguments = ["--quick", "--only", "push_pull", "--python", sys.executable, "-o", str(tmp_path)]
    judged = own_mpirun("summary", *arguments)
    assert [promise["what"] for promise in judged] == ["push_pull, 8 B", "push_pull, 64 KiB", "push_pull, 2 MiB"]
    written = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert set(written["runs"]) == {"push_pull", "push_pull @ 1"}
    assert written["wrong"] == 0
    assert (tmp_path / "summary.png").read_bytes().startswith(b"\x89PNG")


def test_what_has_no_other_peers_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    summary = importlib.import_module("bench.summary")
    libraries = {sys.executable: "Open MPI v5", "same": "Open MPI v5", "mpich": "MPICH", "mpich again": "MPICH"}
    monkeypatch.setattr(summary, "library", libraries.__getitem__)
    pythons = ["same", "mpich", "mpich again"]
    again = {run.key: summary.others(run, pythons) for run in summary.RUNS}
    assert again["push_pull"] == again["large push_pull"] == pythons  # torch may be anywhere
    assert again["resnet50"] == again["zero_compute"] == ["mpich"]
    assert again["latency"] == again["cluster"] == []


def test_who_ends_a_benchmark_ends_its_ranks(tmp_path: Path) -> None:
    mpi.mpirun()
    mark = tmp_path / "ranks.json"
    command = [sys.executable, "-m", "bench.ops.push_pull", "-s", "8", "-N", "100000", "-J", str(mark)]
    started = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert started.stdout is not None
        assert started.stdout.readline().startswith("# push_pull: 2 ranks")  # rank 0 is at work
        assert len(processes_with(str(mark))) > 2
        started.terminate()
        started.communicate(timeout=60)  # mpirun has closed it too
        assert started.returncode == 128 + signal.SIGTERM
        assert all(map(is_gone_soon, processes_with(str(mark))))  # a killed rank may be on its way out
    finally:
        for pid in processes_with(str(mark)):
            os.kill(pid, signal.SIGKILL)


def processes_with(argument: str) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if argument in (process / "cmdline").read_text(encoding="utf-8").split("\0"):
                found.append(int(process.name))
    return found


@pytest.mark.parametrize(
    ("name", "keys", "parameters"),
    [
        ("alexnet", 16, 61_100_840),
        ("vgg19", 38, 143_667_240),
        ("resnet50", 161, 25_557_032),
        ("resnet18", 62, 11_689_512),
    ],
)
def test_models_have_the_layers_of_their_definitions(
    name: str, keys: int, parameters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    model = importlib.import_module("bench.common.models").load(name)
    assert len(model.keys) == keys
    assert model.nbytes == 4 * parameters
    assert len({key.name for key in model.keys}) == keys


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    sys.path.insert(0, str(ROOT))
    native = importlib.import_module("bench.common.native")
    return {program.name: program for program in native.programs(tmp_path_factory.mktemp("bench"))}


@pytest.mark.xdist_group("group programs")
def test_the_c_program_refuses_ranks_whose_answers_round(programs: dict[str, Path]) -> None:
    command = [str(programs["push_pull"]), *PROGRAMS["push_pull"], "-t", "6"]
    ended = mpi.command(*command)
    assert ended.returncode == 2
    assert "6 ranks: answers are exact for 2, 4, 8" in ended.stderr


@pytest.mark.some(1)
@pytest.mark.xdist_group("group programs")
@pytest.mark.parametrize(
    ("name", "more"), [*((name, []) for name in PROGRAMS), ("put_lat", TCP), ("put_bw", TCP), ("queue", TCP)]
)
def test_the_c_program_needs_no_python(name: str, more: list[str], programs: dict[str, Path]) -> None:
    command = [str(programs[name]), *PROGRAMS[name], *more, "--json"]
    ended = mpi.command(*command)
    assert ended.returncode == 0, ended.stderr
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    assert any(row["name"].startswith("hpcomm C") for row in rows)
    assert all(row["wrong"] == 0 for row in rows)


# ---- the summary ---------------------------------------------------------------------------------------------------


def row(name: str, size: int, cycles: list[float]) -> dict[str, Any]:
    role = "hpcomm" if name.startswith("hpcomm") else "bound" if "bound" in name else "peer"
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
    assert summary.notes(documents) == []
    assert summary.plot(documents, tmp_path / "summary.png")
    assert (tmp_path / "summary.png").read_bytes().startswith(b"\x89PNG")


def exchanges(size: int, ours: float, mpi: str, peers: dict[str, float], **options: Any) -> dict[str, Any]:
    """Figures of push_pull, the same in three cycles."""
    times = {"hpcomm Python": ours, "hpcomm shared_params": ours / 2, **peers}
    rows = [row(name, size, [seconds * 1e-3] * 3) for name, seconds in times.items()]
    return {**document(rows, **options), "mpi": mpi}


def test_the_best_composite_of_all_groups_is_the_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    summary = importlib.import_module("bench.summary")
    whole, blocks, small = "Allreduce + update", "Reduce + update + Bcast, blocks", 64 << 10
    large = {whole: 120.0, blocks: 90.0, "momentum traffic (bound)": 36.0}
    chunks = [row(f"hpcomm Python, chunks of {n} KiB", 8, [1e-3]) for n in (32, 4)]
    names = ["hpcomm C, 2 inputs", "streaming add for 2 inputs (bound)", "plain add for 2 inputs (bound)"]
    point = {"model": "8M", "workers": 1, "who": "hpcomm", "name": "hpcomm Python", "rate": 9.0, "low": 8.0, "high": 10}
    documents = {
        "push_pull": exchanges(small, 2.0, "Open MPI v5", {whole: 3.0, blocks: 4.0}),
        "push_pull @ 1": exchanges(small, 4.0, "MPICH Version: 5", {whole: 3.0, "Gloo + torch SGD": 1.0}),
        "large push_pull": exchanges(256 << 20, 40.0, "Open MPI v5", large),
        "resnet50": exchanges(8, 2.0, "Open MPI v5", {whole: 3.0}),
        "crowded push_pull": exchanges(32 << 20, 2.0, "Open MPI v5", {whole: 6.0}),
        "fold": document(
            [row(name, 64 << 20, [k]) for k, name in zip((5.0, 4.0, 9.0), names, strict=True)], inputs=[2]
        ),
        "zero_compute": {"points": [point], "rows": [], "mpi": "Open MPI v5"},
        "chunk_sweep": document(chunks, chunks=[4096, 32768]),
    }
    found = summary.promises(documents)
    judged = [(promise.what, promise.other, round(promise.value, 2), promise.verdict) for promise in found]
    assert judged == [
        ("push_pull, 64 KiB", "3.00 ms Allreduce + update, MPICH", 0.75, "MISSED"),  # Gloo is no peer of this row
        ("push_pull, 256 MiB", "90.00 ms Reduce + update + Bcast, blocks, Open MPI", 2.25, "met"),
        ("push_pull, 256 MiB", "Gloo + torch SGD", 0.0, "not measured"),
        ("push_pull, 256 MiB", "36.00 ms momentum traffic (bound)", 0.9, "met"),
        ("push_pull, 256 MiB, shared_params", "90.00 ms Reduce + update + Bcast, blocks, Open MPI", 4.5, ""),
        ("ResNet-50, 161 keys one by one", "3.00 ms Allreduce + update, Open MPI", 1.5, "MISSED"),
        ("ResNet-50, shared_params", "3.00 ms Allreduce + update, Open MPI", 3.0, ""),
        ("2 ranks, push_pull, 32 MiB", "6.00 ms Allreduce + update, Open MPI", 3.0, "met"),
        ("fold of 2 arrays of 64 MiB", "4000.00 ms streaming add for 2 inputs (bound)", 0.8, "MISSED"),
    ]
    assert "pip install torch" in summary.table(found)
    assert summary.notes({"push_pull": documents["push_pull"]})[0].endswith("a Python with MPICH adds it")
    assert summary.notes(documents) == []
    assert summary.plot(documents, tmp_path / "summary.png")


def test_what_is_promised_without_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    summary = importlib.import_module("bench.summary")

    def figures(size: int, seconds: dict[str, float], **facts: Any) -> dict[str, Any]:
        rows = [row(name, size, [time] * 3) for name, time in seconds.items()]
        return {**document(rows), "transport": "tcp", "benchmark": "x", **facts}

    mine = {"hpcomm C": 4.0, "hpcomm Python": 5.0}
    latency = {**mine, "hpcomm C, sleeping": 30.0, "mpi4py Send/Recv": 6.0, "mpi4py Put+Flush+Send": 7.0}
    pairs = {"socket pair, spinning (bound)": 3.5, "socket pair, blocking (bound)": 20.0}
    stream = {**mine, "hpcomm C, nobody waits": 3.0, "mpi4py Put+Flush": 10.0}
    streams = {"socket stream, huge pages (bound)": 3.9, "socket stream, plain pages (bound)": 4.5}
    sums = {**mine, "wire (bound)": 3.9, "Allreduce alone": 6.0}
    hosts = {
        "put": figures(64 << 20, {**mine, "hpcomm C, nobody waits": 3.0, "iperf3 (bound)": 3.95}, hosts=2),
        "push_pull": figures(32 << 20, {**sums, "Gloo all_reduce alone": 4.1}, hosts=4, mpi="Open MPI v5"),
        "push_pull @ 1": figures(32 << 20, {**sums, "wire (bound)": 3.5}, hosts=4, mpi="MPICH Version: 5"),
    }
    memory = [
        {"transport": name, "private_dirty": most << 20, "pss": 1 << 20, "kernel": 0, "wrong": 0}
        for name, most in (("tcp", 3), ("shm", 5))
    ]
    documents = {
        "tcp latency": figures(8, {**latency, **pairs}),
        "tcp bandwidth": figures(1 << 20, {**stream, **streams}),
        "limits": figures(64 << 20, {"memory copy, one rank (bound)": 1.0, "hpcomm put, shm": 2.0}),
        "footprint": {"ranks": 64, "rows": memory},
        "cluster": {"runs": hosts, "rows": [], "rate": "1gbit"},
    }
    found = summary.promises(documents)
    assert [(promise.what, round(promise.value, 2), promise.verdict) for promise in found] == [
        ("8 B put_signal over TCP, spinning, C", 1.14, "met"),
        ("8 B put_signal over TCP, sleeping, C", 1.5, "MISSED"),
        ("8 B put_signal over TCP, Python", 1.2, ""),
        ("8 B put_signal over TCP, Python", 1.4, ""),
        ("put of 1 MiB over TCP, C", 0.97, "met"),  # by who is waited for
        ("put of 1 MiB over TCP, Python", 0.78, "MISSED"),
        ("put over TCP, nobody waits, C", 1.3, ""),
        ("put over TCP, Python", 2.0, ""),
        ("memory of a rank of 64, tcp", 3.0, "met"),
        ("memory of a rank of 64, shm", 5.0, ""),
        ("limits: hpcomm put, shm", 0.5, ""),
        ("put of 64 MiB between hosts, C", 0.99, "met"),
        ("put of 64 MiB between hosts, Python", 0.79, "MISSED"),
        ("push_pull of 32 MiB, 4 hosts, C", 0.88, "MISSED"),  # the worst of both MPIs' groups
        ("push_pull of 32 MiB, 4 hosts, Python", 0.7, "MISSED"),
        ("push_pull of 32 MiB, 4 hosts, Python", 1.2, ""),
        ("push_pull of 32 MiB, 4 hosts, Python", 0.82, ""),
        ("push_pull of 32 MiB, 4 hosts, Python", 1.2, ""),
    ]
    assert "<= 4 MiB" in summary.table(found)
    assert summary.plot(documents, tmp_path / "summary.png")
    assert (tmp_path / "summary.png").read_bytes().startswith(b"\x89PNG")


def test_structs_are_those_of_the_header() -> None:
    native = importlib.import_module("bench.common.native")
    of = {"hpc_config": native.Config, "hpc_peer": native.Peer, "hpc_queue_config": native.QueueConfig}
    for name, struct in of.items():
        assert ctypes.sizeof(struct) == ffi.sizeof(name), f"bench/common/native.py: {name} has other members now"

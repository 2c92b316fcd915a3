"""bench.ops.graph_hosts: its graphs send what its bounds say, its answers are right, its table says what was asked."""

import contextlib
import io
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import mpi
import numpy as np
import pytest

from bench.common import harness
from bench.ops import graph_hosts, hosts_bench
from bench.ops.cluster_bench import UNABLE
from hpcomm.graphs import root_expander

ROOT = Path(__file__).resolve().parent.parent
WAYS = {
    *("hpcomm flat, by host", "hpcomm flat, by host, in place"),
    *("hpcomm flat, round robin", "hpcomm flat, round robin, in place"),
    "hpcomm hosts_first",
}


def test_a_quick_run_finds_no_wrong_answer() -> None:
    command = [sys.executable, "-m", "bench.ops.graph_hosts", "--quick", "--hosts", "2", "--json"]
    ended = mpi.command(*command, timeout=120, cwd=ROOT)
    if ended.returncode == UNABLE:
        pytest.skip(ended.stderr)
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert (document["ranks"], document["transport"], document["burst"]) == (4, "shm,tcp", "16k")
    assert {row["name"]: row["wrong"] for row in document["rows"]} == dict.fromkeys(WAYS, 0)
    first = next(row for row in document["graphs"] if row["name"] == "hosts_first")
    assert (first["bytes_between_hosts"], first["bytes_of_busiest_link"]) == (2 << 20, 1 << 20)


def planted() -> tuple[int, str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        arguments = ["-b", "64K", "-e", "64K", "-N", "1", "-w", "0", "--plant", "--json"]
        status = harness.run(graph_hosts.BENCHMARK, arguments)
    return status, printed.getvalue()


def test_a_planted_wrong_value_is_found() -> None:
    found = mpi.run(2, planted, timeout=60, env={"PYTHONPATH": str(ROOT)})
    assert [status for status, _ in found] == [1, 1]
    wrong = {row["name"]: row["wrong"] for row in json.loads(found[0][1])["rows"]}
    assert wrong == dict.fromkeys(WAYS, 2)  # both ranks average with rank 0


def test_ways_send_what_their_graphs_say() -> None:
    """Four hosts of two ranks: root_expander(8) has the strides 1 and 2, and so has root_expander(4)."""
    by_host, round_robin, first = graph_hosts.ways([0, 0, 1, 1, 2, 2, 3, 3])
    assert [way.crossing for way in (by_host, round_robin, first)] == [12, 16, 8]
    assert [way.busiest for way in (by_host, round_robin, first)] == [3, 4, 2]
    assert by_host.graph == root_expander(8)
    assert round_robin.graph.in_peers(1) == (4, 6)  # node 4, which takes the models of nodes 2 and 3
    assert set(first.averages.in_edges(1)) == {(rank, 1 / 6) for rank in (0, 1, 4, 5, 6, 7)}
    rows = [graph_hosts.graph_row(way, 32 << 20, hosts_bench.carried("1gbit")) for way in (by_host, round_robin, first)]
    gaps = [(row["gap"], row["gap_of_ranks"]) for row in rows]
    assert gaps == [pytest.approx(2 * [2 / 3 - 2**0.5 / 3])] * 2 + [pytest.approx(2 * [2 / 3])]
    assert [1e3 * row["bound"] for row in rows] == pytest.approx([842.0, 1122.7, 561.3], abs=0.1)


@pytest.mark.parametrize("hosts", [[0, 1, 0, 1, 0, 1], [0, 0, 1, 1, 2, 2], [0, 1, 2], [0, 0]])
def test_averages_are_uniform(hosts: list[int]) -> None:
    """The answers are checked by means of whole models."""
    for way in graph_hosts.ways(hosts):
        for rank in range(len(hosts)):
            weights = [weight for _, weight in way.averages.in_edges(rank)]
            assert np.allclose(weights, 1 / len(weights))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--hosts", "1"], "--hosts must be 2 or more"),
        (["--ranks_per_host", "3"], "--ranks_per_host is 3: answers are exact for 1, 2, 4, 8"),
        (["-N", "0"], "-s and -N 1 or more"),
        (["--rate", "fast"], "'fast' is no rate"),
    ],
)
def test_arguments_that_cannot_be_are_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        graph_hosts.main(arguments)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_the_faster_row_of_a_flat_graph_is_judged() -> None:
    times = (0.9, 0.85, 1.2, 1.1, 0.6)
    names = sorted(WAYS)
    assert names[-1] == "hpcomm hosts_first"
    rows: list[dict[str, Any]] = [
        {"name": name, "role": "hpcomm", "cycles": [time, time], "wrong": 0}
        for name, time in zip(names, times, strict=True)
    ]
    known = graph_hosts.ways([0, 0, 1, 1, 2, 2, 3, 3])
    document = {"size": 32 << 20, "hosts": 4, "ranks_per_host": 2, "rate": "1gbit", "burst": "256k", "hpcomm": "0"}
    document |= {"mpi": "Open MPI v5", "rows": rows}
    document["graphs"] = [graph_hosts.graph_row(way, 32 << 20, hosts_bench.carried("1gbit")) for way in known]
    judged = {p.what.partition(": ")[2]: (round(p.value, 3), p.verdict) for p in graph_hosts.promises(document)}
    assert judged == {
        "flat, by host / hosts_first": (1.417, "met"),
        "flat, round robin / hosts_first": (1.833, "met"),
    }
    printed = "\n".join(graph_hosts.lines(document)).split("\n")
    place = next(line for line in printed if "round robin, in place" in line)
    assert place.split()[-6:] == ["1100.0", "1100.0", "1100.0", "0.980", "1.833", "0"]
    document["size"] = 1 << 20
    assert {p.verdict for p in graph_hosts.promises(document)} == {""}  # asked of 32 MiB
    document["rows"] = rows[:-1]
    assert graph_hosts.promises(document) == []


def test_links_carry_models_in_both_directions() -> None:
    way = graph_hosts.Way("", root_expander(3), root_expander(3), Counter({(0, 1): 2, (2, 1): 3}))
    assert (way.crossing, way.busiest) == (5, 5)  # all of them come to host 1

"""bench.ops.codec_hosts: its answers are right, a planted wrong value is found, and its table says what was asked."""

import contextlib
import io
import json
import sys
from pathlib import Path

import mpi
import pytest

from bench.common import harness
from bench.ops import codec_hosts
from bench.ops.cluster_bench import UNABLE

ROOT = Path(__file__).resolve().parent.parent
WAYS = {codec_hosts.DENSE, *(f"hpcomm UCC, {percent} % kept" for percent in codec_hosts.TARGETS)}


def test_a_quick_run_finds_no_wrong_answer() -> None:
    command = [sys.executable, "-m", "bench.ops.codec_hosts", "--quick", "--hosts", "2", "--wire", "100", "--json"]
    ended = mpi.command(*command, timeout=120, cwd=ROOT)
    if ended.returncode == UNABLE:
        pytest.skip(ended.stderr)
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert (document["ranks"], document["transport"], document["burst"]) == (2, "tcp", "16k")
    wrong = {row["name"]: row["wrong"] for row in document["rows"]}
    bounds = {f"{codec_hosts.BOUND}{percent} %" for percent in codec_hosts.TARGETS}
    assert wrong == dict.fromkeys(WAYS | bounds, 0)
    assert len(codec_hosts.promises(document)) == len(codec_hosts.TARGETS) + 1


def planted() -> tuple[int, str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        arguments = ["-b", "512K", "-e", "512K", "-N", "1", "-w", "0", "--plant", "--json"]
        status = harness.run(codec_hosts.BENCHMARK, arguments)
    return status, printed.getvalue()


def test_a_planted_wrong_value_is_found() -> None:
    found = mpi.run(2, planted, timeout=60, env={"PYTHONPATH": str(ROOT)})
    assert [status for status, _ in found] == [1, 1]
    wrong = {row["name"]: row["wrong"] for row in json.loads(found[0][1])["rows"]}
    assert wrong == dict.fromkeys(WAYS, 2)  # of one value, at both ranks

"""The benchmark of pairs of vectors: its columns and promises, and that a wrong value is found."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.sfb import plots, table
from bench.sfb.table import ALL, AUTO, DENSE, HUB, ONCE, PEER, PRODUCT, REBUILD, RELAYED, SOME

ROOT = Path(__file__).resolve().parent.parent
UNABLE = 77


def row(part: str, name: str, cycles: list[float], **more: Any) -> dict[str, Any]:
    facts = {"part": part, "rows": 4096, "columns": 4096, "K": 32, "ranks": 4, "Q": 3, "role": "hpcomm", "name": name}
    return {**facts, "cycles": cycles, "processor": [0.1], "sent": 0, "memory": 0, "wrong": 0, **more}


def document() -> dict[str, Any]:
    pairs = 4 * 32 * 8192
    rows = [
        row("hosts", ALL, [0.13, 0.12, 0.14], sent=12 * pairs + 192, memory=70e6),
        row("hosts", SOME, [0.1, 0.1, 0.1], sent=8.2 * pairs, memory=69e6, Q=2),
        row("hosts", HUB, [0.9, 0.91, 0.92], sent=6 * 4 * 4096**2, memory=140e6),
        row("hosts", PEER, [0.12, 0.13, 0.13]),
        row("hosts", REBUILD, [0.05, 0.05, 0.06], role="bound", busy=2, processor=[]),
        row("ranks", ONCE, [0.4], ranks=8, near=2),
        row("ranks", ALL, [0.6], ranks=8, near=2),
        row("host", ALL, [0.02], ranks=2, Q=1),
        row("host", PRODUCT, [0.03], ranks=2, Q=1),
        row("host", AUTO, [0.0208], ranks=2, Q=1),
        row("host", DENSE, [0.01], ranks=2, Q=1),
    ]
    facts = {"hpcomm": "1", "rate": "1gbit", "burst": "16k", "transport": "tcp", "torch": "2", "cores": 2}
    return {**facts, "carried": 120e6, "rows": rows}


def test_factors_are_judged_beside_hub_peer_and_bound() -> None:
    found = {promise.what: promise for promise in table.promises(document())}
    what = "4 hosts, 4096x4096, K = 32: "
    assert found[f"{what}dense hub / factors"].value == pytest.approx(7)
    assert found[f"{what}{PEER} / factors"].value == 1
    bound = found[f"{what}factors / bound"]
    wire = 3 * 4 * 32 * 8192 / 120e6
    assert bound.value == pytest.approx(0.13 / (wire + 2 * 0.05))  # four rebuilds on two cores
    assert bound.met
    assert found[f"{what}bytes, Q = 3"].met
    assert found[f"{what}bytes, Q = 2"].value == pytest.approx(1.025)
    assert not found[f"{what}bytes, Q = 2"].met
    once = found["8 ranks, 2 a host, 4096x4096, K = 32: factors to all / once to a host"]
    assert once.value == pytest.approx(1.5)
    chosen = found["one host, 4096x4096, K = 32: Auto / factors to all"]
    assert chosen.value == pytest.approx(1.04)
    assert chosen.met


def test_figure_4_has_the_formulas_of_the_paper() -> None:
    pairs = 4 * 32 * 8192
    by_name = {one["name"]: table.formulas(one) for one in document()["rows"] if one["part"] == "hosts"}
    W = 4096**2
    assert by_name[ALL] == (4 * 3 * pairs, W, 4 * 4 * 32 * W)  # P (P - 1) K (J + D), J D, P^2 K J D
    assert by_name[SOME] == (4 * 2 * pairs, W, 4 * 3 * 32 * W)
    assert by_name[HUB][0] == 2 * 3 * W * 4
    lines = table.lines(document())
    told = {line.split("  ")[1].strip(): line.split() for line in lines if line.startswith(("  SFB", "  FMS"))}
    assert set(told) == {"SFB, full", "SFB, partial", "FMS"}
    assert "1.000" in told["SFB, full"]
    assert "1.025" in told["SFB, partial"]
    assert any(line.startswith("# derived for 4 machines") for line in lines)


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert plots.draw(document(), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_every_way_ends_with_the_same_matrix_and_a_spoilt_value_is_found() -> None:
    few = ["--shapes-of-hosts", "64x48", "--pairs-of-hosts", "3", "--shapes-of-host", "64x48", "--pairs-of-host", "1"]
    rows = []
    for chosen in (["--groups", "hosts,host"], ["--groups", "ranks", "--hosts", "2"]):
        command = [sys.executable, "-m", "bench.sfb", *few, *chosen, "-N", "1", "--warmup", "1", "--plant", "--json"]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        if ended.returncode == UNABLE:
            pytest.skip(ended.stderr)
        assert ended.returncode == 1, ended.stderr
        rows += json.loads(ended.stdout)["rows"]
    assert {own["part"] for own in rows} == {"hosts", "ranks", "host"}
    assert {ALL, SOME, RELAYED, HUB, REBUILD, PRODUCT, AUTO, DENSE} <= {own["name"] for own in rows}
    assert {own["wrong"] for own in rows if own["name"] != REBUILD} == {1}

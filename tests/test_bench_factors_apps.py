"""The benchmark of the applications of SFB: what it trains, what it finds in its rows, and that it runs."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bench.sfb import apps_plots
from bench.sfb.apps import FIGURES, Training, jobs, options_of, trainings

ROOT = Path(__file__).resolve().parent.parent
UNABLE = 77


def row(one: Training, seconds: float | None, steps: float | None = 20, sent: float = 1e6) -> dict[str, Any]:
    run = {"seconds": 1.0, "waited": 0.5, "computed": 0.25, "sent": sent, "steps": 20}
    given = {**asdict(one), "size": list(one.size), "target": 1.0, "seconds": seconds, "steps_to": steps}
    return {**given, "points": [[0, 0, 2.0, 0], [20, 1, 1.0, 1e6]], "run": run}


def test_the_first_training_of_a_group_has_all_peers_and_most_hosts() -> None:
    for figure, make in FIGURES.items():
        seen: set[str] = set()
        for hosts, chosen in jobs(list(make(figure))):
            for one in chosen:
                assert one.hosts == hosts
                if one.group not in seen:
                    assert (one.way, one.peers) == ("factors", None)
                seen.add(one.group)


def test_hosts_share_the_computing_of_a_step() -> None:
    made = trainings("7", options_of(["--compute", "2"]))
    assert {one.hosts: (one.compute, one.pairs) for one in made} == {n: (2 / n, 256 // n) for n in (1, 2, 4, 8)}
    rows = [row(one, 8 / one.hosts) for one in made if one.model == "mlr"]
    (found,) = apps_plots.findings("7", rows)
    assert found.startswith("MLR: speed-up by hosts 1: 1.00x, 2: 2.00x, 4: 4.00x, 8: 8.00x")
    assert "a timer of 2 s, shared by the hosts" in found


def test_findings_are_ratios_of_the_two_ways() -> None:
    small, large = (Training("5", "mlr", size, str(size)) for size in ((10, 10), (20, 20)))
    dense = [Training("5", "mlr", size, str(size), way="dense") for size in ((10, 10), (20, 20))]
    rows = [row(small, 2.0), row(dense[0], 5.0), row(large, 1.0), row(dense[1], 8.0, sent=3e6)]
    (found,) = apps_plots.findings("5", rows)
    assert found == "MLR: dense / factors 2.50x, 8.00x, W growing; bytes of a step (figure S7) 3.0x"


def test_partial_broadcast_is_judged_at_its_best_rate() -> None:
    ways = ((None, False, 20), (None, False, 16), (4, False, 24), (4, False, None), (4, True, 16))
    rows = [row(Training("target", "mlr", (9, 9), "Q", hosts=8, peers=q, relay=r), 1.0, s) for q, r, s in ways]
    assert list(apps_plots.target_lines(rows)) == [
        "Q = 4 of 7: 1.50 of the steps of Q = 7, at best rates, asked 1.1",
        "Q = 4 of 7, relayed: 1.00 of the steps of Q = 7, at best rates, asked 1.1",
    ]


def test_curves_alone_need_matplotlib() -> None:
    code = "import sys; sys.modules['matplotlib'] = None; from bench.sfb import apps; apps.job.plot([], '', 'none.png')"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "pip install matplotlib" in ended.stderr


def test_figures_are_made_on_hosts(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    command = [sys.executable, "-m", "bench.sfb.apps", "--quick", "--figures", "8", "-J", str(path)]
    ended = subprocess.run(
        [*command, "--plot", str(tmp_path / "figures.png")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if ended.returncode == UNABLE:
        pytest.skip(ended.stderr)
    assert ended.returncode == 0, ended.stderr
    rows = json.loads(path.read_text())["figures"]["8"]
    assert len(rows) == len(list(FIGURES["8"]("8")))
    assert "# figure 8. The paper: SFB waits far less" in ended.stdout
    assert (tmp_path / "figures.png").stat().st_size > 10000

"""examples/train_digits.py, started as its users start it: what it claims, what it counts, and when it fails."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mpi
import pytest

DEMO = Path(__file__).resolve().parents[1] / "examples" / "train_digits.py"
WEIGHTS = {"logistic regression": 65 * 10, "network, 48 hidden units": 65 * 48 + 49 * 10}
STEPS_PER_EPOCH = 44  # 1347 examples in batches of 32, an exchange after every 4th and at the end


def demo(folder: Path, ranks: int, *options: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """The ended demo and its --json."""
    launcher = [*mpi.mpirun(), "-n", str(ranks)] if ranks > 1 else []
    files = ["--json", str(folder / "digits.json"), "--plot", str(folder / "digits.png")]
    ended = subprocess.run(
        [*launcher, sys.executable, str(DEMO), *files, *options],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    return ended, json.loads((folder / "digits.json").read_text())


@pytest.mark.parametrize(("ranks", "graph", "out_peers"), [(4, "expander", 2), (3, "ring", 1)])
def test_ranks_that_exchange_agree_and_lose_nothing(tmp_path: Path, ranks: int, graph: str, out_peers: int) -> None:
    ended, said = demo(tmp_path, ranks, "--epochs", "20", "--graph", graph)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert said["held"]
    assert said["ranks"] == ranks
    assert said["models"].keys() == WEIGHTS.keys()
    for name, model in said["models"].items():
        assert model["spread"] <= 1e-5
        assert len(model["accuracy_exchanging"]) == ranks
        assert min(model["accuracy_exchanging"]) >= model["accuracy_alone"] - 0.01 - 1e-12
        assert max(model["accuracy_not_exchanging"]) < min(model["accuracy_exchanging"]) - 0.03
        assert [len(losses) for losses in model["losses_exchanging"]] == [21] * ranks
        for sent in model["bytes_sent"]:
            updates, rest = divmod(sent, WEIGHTS[name] * 4 * out_peers)
            assert rest == 0
            assert updates > 20 * STEPS_PER_EPOCH / 4  # the exchanges of the training, then those for consensus


def test_what_rank_0_shows(tmp_path: Path) -> None:
    ended, _ = demo(tmp_path, 2, "--epochs", "10")
    for shown in ("2 ranks, exchanging  ", "epoch  10 of 10", "1 rank, all data", "2 ranks, not exchanging", "MB", "%"):
        assert shown in ended.stdout
    assert ended.stdout.count("Test accuracy") == 1
    assert "\x1b" not in ended.stdout
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")


def test_one_rank_needs_no_launcher(tmp_path: Path) -> None:
    ended, said = demo(tmp_path, 1, "--epochs", "3", "--graph", "complete")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for model in said["models"].values():
        assert model["accuracy_exchanging"] == [model["accuracy_alone"]]
        assert model["bytes_sent"] == [0]


def test_a_claim_that_fails_is_said_and_returned(tmp_path: Path) -> None:
    ended, said = demo(tmp_path, 4, "--epochs", "1", "--every", "42", "--seed", "1")
    assert ended.returncode == 1
    assert not said["held"]
    assert "DO NOT REACH" in ended.stdout
    assert all(model["agree"] for model in said["models"].values())


def test_a_missing_package_is_named_with_the_line_that_brings_it(tmp_path: Path) -> None:
    (tmp_path / "sklearn.py").write_text("raise ImportError(\"No module named 'sklearn'\")\n")
    ended = subprocess.run(
        [sys.executable, str(DEMO)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "No module named 'sklearn'; this demo needs: pip install" in ended.stderr

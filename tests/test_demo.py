"""examples/train_digits.py, started as its users start it: what it claims, what it counts, and when it fails."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import mpi
import numpy as np
import pytest

import hpcomm

DEMO = Path(__file__).resolve().parents[1] / "examples" / "train_digits.py"
README = DEMO.parents[1] / "README.md"
WEIGHTS = {"logistic regression": 65 * 10, "network, 48 hidden units": 65 * 48 + 49 * 10}
STEPS_PER_EPOCH = 44  # 1347 examples in batches of 32, an exchange after every 4th and at the end
STEPS_OF_HUB = 43  # one exchange a step


def demo(
    folder: Path, ranks: int, *options: str, **env: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """The ended demo and its --json. Its ranks start as torchrun's do, which takes no time to import."""
    files = ["--json", str(folder / "digits.json"), "--plot", str(folder / "digits.png")]
    ended = mpi.program(ranks, DEMO, *files, *options, env=env, timeout=240)
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    return ended, json.loads((folder / "digits.json").read_text())


@pytest.mark.some(1)
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


@pytest.mark.some(1)
@pytest.mark.parametrize(("ranks", "placement", "workers"), [(4, "CS", 4), (3, "CC", 3), (4, "NCC", 3)])
def test_a_hub_finds_what_one_rank_finds(tmp_path: Path, ranks: int, placement: str, workers: int) -> None:
    how = ["--exchange", "parameter_hub", "--placement", placement]
    ended, said = demo(tmp_path, ranks, "--epochs", "20", *how)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert said["held"]
    assert said["exchange"] == f"parameter hub, {placement}"
    assert f"{workers} ranks, exchanging" in ended.stdout
    for name, model in said["models"].items():
        assert model["spread"] == 0
        assert model["distance"] <= 1e-5
        assert model["accuracy_exchanging"] == [pytest.approx(model["accuracy_alone"], abs=0.01)] * workers
        assert max(model["accuracy_not_exchanging"]) < min(model["accuracy_exchanging"]) - 0.03
        assert model["bytes_sent"] == [WEIGHTS[name] * 4 * 20 * STEPS_OF_HUB] * workers


@pytest.mark.full
@pytest.mark.parametrize("ranks", [3, 4])
def test_a_hub_computes_bit_for_bit_what_numpy_does(tmp_path: Path, ranks: int) -> None:
    ended, _ = demo(
        tmp_path, ranks, "--epochs", "3", "--exchange", "parameter_hub", "--weights", str(tmp_path / "weights")
    )
    assert ended.returncode in (0, 1), ended.stderr  # 3 epochs are few
    found = np.loadtxt(tmp_path / "weights", np.float32)

    digits = loaded()
    data, model = digits.Digits.load(0, "float32"), digits.MODELS[0]
    plan = digits.Plan(3 * STEPS_OF_HUB, STEPS_OF_HUB, 1, 0, 0, STEPS_OF_HUB)
    batches = [digits.in_turn(data.shard(rank, ranks), 32 // ranks) for rank in range(ranks)]
    weights = np.zeros(650, np.float32)
    gradient, share, decay = np.empty((65, 10), np.float32), np.float32(1 / ranks), np.float32(model.decay)
    for step in range(plan.steps):
        fold = np.zeros(650, np.float32)
        for batch in batches:
            rows = batch(step)
            for _ in model.backward(model.layers(weights), data.x[rows], data.y[rows], lambda i: gradient):
                fold += share * gradient.ravel()
        weights -= np.float32(model.rate * plan.rate(step)) * (fold + decay * weights)
    np.testing.assert_array_equal(found, weights)


@pytest.mark.full
def test_a_training_that_goes_on_ends_like_one_that_was_never_cut_short(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    options = f"--epochs 3 --exchange parameter_hub --placement NCC --save-every 20 --weights {weights}".split()
    saved = ["--checkpoint", str(tmp_path / "saved")]
    whole, want = demo(tmp_path, 3, *options, *saved)[1], weights.read_bytes()
    for name in WEIGHTS:
        assert hpcomm.latest(tmp_path / "saved" / name) == 120  # of 129 steps
    for path in (tmp_path / "saved").glob("*/step-000120.*"):
        path.unlink()
    rest, have = demo(tmp_path, 3, *options, *saved, "--resume")[1], weights.read_bytes()
    assert have == want
    for name, model in rest["models"].items():
        assert model["losses_exchanging"] == whole["models"][name]["losses_exchanging"]
        assert model["bytes_sent"] == [WEIGHTS[name] * 4 * (129 - 100)] * len(model["bytes_sent"])


@pytest.mark.full
@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (4, "--graph expander"),
        (3, "--graph ring --every 2 --batch 20 --dtype float64 --seed 3"),
        (4, "--exchange parameter_hub --placement CS"),
        (3, "--exchange parameter_hub --placement NCC --batch 48 --seed 1"),
    ],
)
def test_ranks_find_over_tcp_what_they_find_over_shm(tmp_path: Path, ranks: int, options: str) -> None:
    """Bit for bit: every loss on the way, the accuracies, the bytes sent and the last weights."""
    found = []
    for transport in ("shm", "tcp"):
        weights = tmp_path / transport
        told = ["--epochs", "3", "--weights", str(weights), *options.split()]
        said = demo(tmp_path, ranks, *told, HPCOMM_TRANSPORT=transport)[1]
        for model in said["models"].values():
            for name in [name for name in model if name.startswith("seconds")]:
                del model[name]
        found.append((said, weights.read_bytes()))
    assert found[0] == found[1]
    assert len(found[0][1].split()) == 65 * 10


def loaded() -> Any:
    """The demo as a module."""
    spec = importlib.util.spec_from_file_location("train_digits", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_first_lines_of_the_readme_run_under_mpirun(tmp_path: Path) -> None:
    """tests/test_docs.py runs the others."""
    script = tmp_path / "train.py"
    shown = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    script.write_text(next(code for code in shown if "torch" not in code))
    ended = mpi.command(*mpi.mpirun(), "-n", "2", sys.executable, script)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 ranks have found" in ended.stdout


def test_what_rank_0_shows_under_mpirun(tmp_path: Path) -> None:
    ranks = [*mpi.mpirun(), "-n", "2", sys.executable]
    ended = mpi.command(*ranks, DEMO, "--epochs", "10", "--plot", tmp_path / "digits.png")
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    for shown in ("2 ranks, exchanging  ", "epoch  10 of 10", "1 rank, all data", "2 ranks, not exchanging", "MB", "%"):
        assert shown in ended.stdout
    assert ended.stdout.count("Test accuracy") == 1
    assert "\x1b" not in ended.stdout
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")


def test_one_rank_needs_no_launcher(tmp_path: Path) -> None:
    files = ["--json", str(tmp_path / "digits.json"), "--plot", str(tmp_path / "digits.png")]
    ended = mpi.command(sys.executable, DEMO, *files, "--epochs", "3", "--graph", "complete")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said = json.loads((tmp_path / "digits.json").read_text())
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
    ended = mpi.command(sys.executable, DEMO, env={"PYTHONPATH": str(tmp_path)})
    assert ended.returncode == 1
    assert "No module named 'sklearn'; this demo needs: pip install" in ended.stderr

"""examples/train_text_svm.py: its data come whole to every rank, its steps are svmsgd's, its figures what they say."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mpi
import numpy as np
import pytest
from click.testing import CliRunner
from conftest import run_threads
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcomm

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
EXAMPLE = EXAMPLES / "train_text_svm.py"
sys.path.insert(0, str(EXAMPLES))
data: Any = importlib.import_module("text_data")
svm: Any = importlib.import_module("train_text_svm")


def rows_of(n: int, features: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    matrix = rng.random((n, features)) * (rng.random((n, features)) < 0.3)
    return data.Rows.of_dense(matrix, rng.random(n) < 0.4)


def dense(rows: Any) -> Any:
    matrix = np.zeros((len(rows), rows.features), np.float32)
    matrix[np.repeat(np.arange(len(rows)), np.diff(rows.indptr)), rows.indices] = rows.values
    return matrix


# ---- data ------------------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 2**32), st.data())
def test_rows_that_are_taken_and_packed_are_the_same_rows(n: int, features: int, seed: int, draw: Any) -> None:
    rows = rows_of(n, features, seed)
    which = np.array(draw.draw(st.lists(st.integers(0, n - 1))), np.int64)
    taken = rows.take(which)
    np.testing.assert_array_equal(dense(taken), dense(rows)[which])
    np.testing.assert_array_equal(taken.labels, rows.labels[which])
    behind = np.concatenate([taken.pack(), np.full(5, 9, np.uint8)])  # what follows in a window is another's
    again = data.Rows.unpack(behind, taken.sizes)
    np.testing.assert_array_equal(dense(again), dense(taken))
    np.testing.assert_array_equal(again.labels, taken.labels)
    assert [array.dtype for array in again.arrays] == [array.dtype for array in rows.arrays]


@given(st.integers(2, 1000), st.integers(0, 9))
def test_a_row_is_trained_on_or_tests(n: int, seed: int) -> None:
    train, test = data.split(n, seed)
    assert sorted([*train, *test]) == list(range(n))
    assert len(train) == int(0.8 * n)
    np.testing.assert_array_equal(train, data.split(n, seed)[0])


def test_rows_are_dealt_out_once() -> None:
    labels = rows_of(50, 7, seed=1).labels
    for by_class in (False, True):
        parts = data.deal(labels, 4, by_class)
        assert [len(part) for part in parts] == [12] * 4
        assert len(set(np.concatenate(parts).tolist())) == 48
    assert [len(set(labels[part].tolist())) for part in parts].count(2) <= 1  # the last parts are by class


def test_every_rank_has_rows_of_its_own_and_the_same_tests() -> None:
    train, test = rows_of(50, 7, seed=1), rows_of(9, 7, seed=2)

    def body(ctx: hpcomm.Context) -> Any:
        return data.share(ctx, lambda: data.Task("rows", train, test))

    tasks = run_threads(4, body)
    for rank, task in enumerate(tasks):
        assert task.name == "rows"
        np.testing.assert_array_equal(dense(task.test), dense(test))
        np.testing.assert_array_equal(task.test.labels, test.labels)
        np.testing.assert_array_equal(dense(task.train), dense(train)[rank:48:4])  # as many on each, two on none
        np.testing.assert_array_equal(task.train.labels, train.labels[rank:48:4])


def test_what_rank_0_cannot_read_is_told_to_all() -> None:
    def body(ctx: hpcomm.Context) -> str:
        few = data.Task("few", rows_of(2, 3, seed=1), rows_of(2, 3, seed=1))
        with pytest.raises(data.BadData) as raised:
            data.share(ctx, lambda: few)
        return str(raised.value)

    assert run_threads(3, body) == ["few: 2 rows to train on, and 3 ranks: start fewer"] * 3


APT = """Package: libfoo
Section: libs
Description: foo for {0}
 A line that says more of it.

Package: foo-nonfree
Section: non-free/{1}
Description-en: {0} by foo

Package: of-no-section
Description: nothing

"""


def apt(folder: Path, text: str) -> None:
    """An apt-cache that says this."""
    (folder / "text").write_text(text)
    (folder / "apt-cache").write_text(f'#!/bin/sh\n[ "$*" = dumpavail ] && cat {folder}/text\n')
    (folder / "apt-cache").chmod(0o755)


def test_packages_have_sections_and_are_taken_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    apt(tmp_path, APT.format("bars", "net") * 2)
    assert data.descriptions() == [("foo for bars", "libs"), ("bars by foo", "net")]
    assert data.packages("libs", 9, 0) is None  # two are no lists
    apt(tmp_path, "".join(APT.format(f"bar{i} baz{i % 50}", "net") for i in range(1000)))
    task = data.packages("net", 300, 0)
    assert task.train.features == task.test.features == 300
    assert (len(task.train), len(task.test)) == (1600, 400)
    assert (task.train.labels > 0).sum() + (task.test.labels > 0).sum() == 1000
    hashed = data.packages("net", 10**6, 0, hashed=True)
    assert (hashed.train.features, len(hashed.test)) == (10**6, 400)
    each = [len(set(rows.indices.tolist())) for rows in (hashed.train, task.train)]
    assert each[0] > each[1] == 300  # no word is left out
    with pytest.raises(data.BadData, match=r"section 'admin' has 0 packages here: .* such as libs, net"):
        data.packages("admin", 300, 0)


@pytest.mark.parametrize(
    ("text", "told"),
    [("no numbers", "no svmlight file"), ("1 1:2\n2 1:3\n3 2:1\n", r"3 labels \(1, 2, 3\)"), ("1 1:2\n", "1 labels")],
)
def test_files_that_are_no_task(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(data.BadData, match=told):
        data.svmlight(str(path), 9, 0)


# ---- training --------------------------------------------------------------------------------------------------------


def test_steps_are_those_of_svmsgd() -> None:
    """The lazy factor is no other arithmetic than shrinking all weights at every row."""
    rows, decay, eta0 = rows_of(200, 20, seed=3), 1e-2, 2.0
    model = np.zeros(21, np.float32)
    svm.descend(model, np.arange(120), *rows.arrays, decay, eta0, 0)
    svm.descend(model, np.arange(120, 200), *rows.arrays, decay, eta0, 120)
    weights, bias = np.zeros(20), 0.0
    for t, (x, label) in enumerate(zip(dense(rows).astype(float), rows.labels, strict=True)):
        eta = eta0 / (1 + decay * eta0 * t)
        margin = label * (weights @ x + bias)
        weights *= 1 - eta * decay
        if (1 - eta * decay) * (margin - label * bias) + label * bias < 1:
            weights += eta * label * x
            bias += 0.01 * eta * label
    np.testing.assert_allclose(model, [*weights, bias], rtol=1e-3, atol=1e-4)
    scores = dense(rows) @ model[:-1] + model[-1]
    accuracy, loss = svm.judge(model, *rows.arrays)
    assert accuracy == pytest.approx(((scores > 0) == (rows.labels > 0)).mean())
    assert loss == pytest.approx(np.maximum(0, 1 - scores * rows.labels).mean(), rel=1e-4)


def test_an_epoch_takes_every_row_once() -> None:
    plan = svm.Plan(rows=23, period=5, epochs=3, decay=1e-4, eta0=1.0, points=4, delay=1.0, seed=0)
    batches = list(plan.batches(2))
    assert [len(batch) for batch in batches] == [5, 5, 5, 5, 3] * 3
    assert len(batches) == plan.exchanges == 15
    for epoch in range(3):
        assert sorted(np.concatenate(batches[5 * epoch : 5 * epoch + 5])) == list(range(23))
    assert sorted(plan.kept) == [4, 8, 12, 15]


def test_a_curve_is_of_all_ranks_as_they_are_at_a_moment() -> None:
    seconds, sent = np.array([[0.0, 1, 2], [0, 3, 4]]), np.array([[0.0, 10, 20], [0, 10, 20]])
    accuracy = np.array([[0.5, 0.9, 0.8], [0.5, 0.7, 0.9]])
    made, none = np.array([[0.0, 4, 8], [0, 4, 8]]), np.zeros((2, 1))
    run = svm.Run(svm.How("ring", "BSP"), 2, seconds, sent, made, accuracy, np.zeros((2, 4)), none, none)
    times, sent, mean, made = run.curve()
    np.testing.assert_allclose(times, [0, 1, 2, 3, 4])
    np.testing.assert_allclose(sent, [0, 5, 10, 15, 20])
    np.testing.assert_allclose(mean, [0.5, 0.7, 0.65, 0.75, 0.85])
    np.testing.assert_allclose(made, [0, 2, 4, 6, 8])
    assert run.reached(0.7) == (1, 5, 2)
    assert run.reached(0.9) is None


# ---- the example itself ----------------------------------------------------------------------------------------------


def demo(folder: Path, ranks: int, *options: str, **env: str) -> tuple[subprocess.CompletedProcess[str], Any]:
    """The ended example and its --json, None where it wrote none."""
    files = ["--json", str(folder / "svm.json"), "--plot", str(folder / "svm.png")]
    if any("MPI" in option for option in options):
        started = [*mpi.mpirun(), "-n", str(ranks), sys.executable]
        ended = mpi.command(*started, EXAMPLE, *files, *options, env=env, timeout=240)
    else:
        ended = mpi.program(ranks, EXAMPLE, *files, *options, env=env)
    found = folder / "svm.json"
    return ended, json.loads(found.read_text()) if found.exists() else None


@pytest.fixture(scope="module")
def cancer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """scikit-learn's breast cancer data in svmlight's format, scaled."""
    path = tmp_path_factory.mktemp("svmlight") / "cancer"
    from sklearn.datasets import dump_svmlight_file, load_breast_cancer  # noqa: PLC0415 - takes a second

    x, y = load_breast_cancer(return_X_y=True)
    dump_svmlight_file((x - x.mean(axis=0)) / x.std(axis=0), 2 * y - 1, str(path))
    return path


SETTINGS = ("--epochs", "20", "--period", "10", "--decay", "1e-3")


@pytest.mark.full
def test_ranks_find_what_one_finds(cancer: Path, tmp_path: Path) -> None:
    alone = demo(tmp_path, 1, "--svmlight", str(cancer), *SETTINGS)[1]
    compared = "root_expander/NOTIFY_ACK,complete/BSP,one_peer_exponential/NOTIFY_ACK,MPI_Allreduce"
    ended, found = demo(tmp_path, 4, "--svmlight", str(cancer), "--compare", compared, *SETTINGS)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (found["ranks"], found["weights"], found["rows"]) == (4, 31, 113)
    best = alone["runs"][0]["accuracy"][0][-1]
    assert best > 0.93
    assert found["majority"] < 0.75
    for run, out_peers in zip(found["runs"], (2, 3, 1, 1.5), strict=True):
        last = [rank[-1] for rank in run["accuracy"]]
        assert min(last) > best - 0.03, run["graph"]
        assert run["exchanges"] == 20 * 12
        for rank in run["bytes_sent"]:
            assert rank[-1] == run["exchanges"] * out_peers * 31 * 4
        whole = 4 * out_peers * 240 if run["consistency"] else 0  # MPI does not count
        assert run["inputs"] == {"whole": whole, "torn": 0, "stale": 0, "missing": 0}
    complete = found["runs"][1]
    assert len({rank[-1] for rank in complete["accuracy"]}) == 1  # all ranks hold one model
    assert (tmp_path / "svm.png").read_bytes().startswith(b"\x89PNG")


def test_weaker_consistency_learns_too(cancer: Path, tmp_path: Path) -> None:
    compared = "complete/ASYNC,complete/BARRIER,root_expander/SSP:3"
    ended, found = demo(tmp_path, 3, "--svmlight", str(cancer), "--compare", compared, "--delay", "3", *SETTINGS)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert [run["consistency"] for run in found["runs"]] == ["ASYNC", "BARRIER", "SSP:3"]
    for run, in_peers in zip(found["runs"], (2, 2, 1), strict=True):
        assert np.mean([rank[-1] for rank in run["accuracy"]]) > 0.9
        assert sum(run["inputs"].values()) == 3 * in_peers * run["exchanges"]


def test_without_apt_digits_take_the_place_of_text(tmp_path: Path) -> None:
    ended, found = demo(tmp_path, 1, "--epochs", "2", PATH=str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("no apt lists here: handwritten eights against other digits")
    assert found["runs"][0]["accuracy"][0][-1] > 0.85


def test_a_target_that_is_missed_fails(cancer: Path, tmp_path: Path) -> None:
    ended, found = demo(tmp_path, 1, "--svmlight", str(cancer), "--epochs", "1", "--target", "1.0")
    assert ended.returncode == 1
    assert "never" in ended.stdout
    assert found["runs"][0]["reached"] is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--consistency SOON", "'SOON' is no consistency: NOTIFY_ACK, BSP, BARRIER, ASYNC or SSP:3"),
        ("--consistency SSP:x", "'SSP:x' is no consistency"),
        ("--compare star/BSP", "'star' is no graph"),
        ("--compare ring", "'' is no consistency"),
        ("--eta0 1e6", "must be less than 1 / decay, 100000"),
        ("--svmlight {}", "no svmlight file"),
        ("--svmlight {} --hashed", "has its own columns: --hashed is for the packages"),
    ],
)
def test_bad_arguments_end_it_at_once(tmp_path: Path, options: str, told: str) -> None:
    (tmp_path / "bad").write_text("nothing")
    ended = CliRunner().invoke(svm.main, options.format(tmp_path / "bad").split())
    assert ended.exit_code == 2, ended.output
    assert told in " ".join(ended.output.split())

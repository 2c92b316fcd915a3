"""Who works for a rank's cores, and why: as stats().progress tells it."""

import sys
import threading
from typing import Any

import numpy as np
import pytest
from conftest import run_threads

import hpcomm
from hpcomm import SGD, Exchange, ParameterServer, PlanOptions, _core, launch

KEYS = {"w": np.zeros(100, np.float32), "b": np.zeros(3, np.float32)}


def told(n: int, **options: Any) -> list[hpcomm.stats.ExchangeStats]:
    def rank(context: hpcomm.Context) -> hpcomm.stats.ExchangeStats:
        with Exchange(context, KEYS, rule=SGD(lr=1), plan=PlanOptions(cores=1), **options) as ex:
            ex.step(KEYS)
            return ex.stats()

    return run_threads(n, rank)


def test_threads_that_ranks_compute_with_count(monkeypatch: pytest.MonkeyPatch) -> None:
    have = _core.core_count()
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", str(have))
    for stats in told(2):
        assert stats.progress == (
            f"inline: 2 ranks with {have} thread{'s'[: have - 1]} each and 2 cores need {2 * have + 2} CPUs; "
            f"this kernel has {have} for them"
        )
        assert stats.threads == 0


def test_threads_are_those_of_each_rank_when_it_makes_the_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    computes = threading.local()
    monkeypatch.setattr(launch, "threads", lambda: getattr(computes, "threads", 1))

    def rank(context: hpcomm.Context) -> str:
        computes.threads = 1000 * (1 + context.rank)
        with Exchange(context, KEYS, rule=SGD(lr=1), plan=PlanOptions(cores=1)) as ex:
            return ex.stats().progress

    for words in run_threads(2, rank):
        assert words.startswith("inline: 2 ranks with 3000 threads and 2 cores need 3002 CPUs; this kernel has ")


def test_threads_where_they_have_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    enough = _core.core_count() >= 4
    for stats in told(2):
        assert stats.progress.startswith("thread: core 0 on CPU " if enough else "inline: 2 ranks with 1 thread each")
        assert stats.threads == enough


@pytest.mark.parametrize(
    ("n", "progress", "words"),
    [
        (2, "inline", "inline: asked for"),
        (1, "auto", "inline: a single rank waits for nobody but its own cores"),
        (2, "thread", "thread: core 0 on "),
    ],
)
def test_reasons(n: int, progress: Any, words: str) -> None:
    for stats in told(n, progress=progress):
        assert stats.progress.startswith(words)
        assert stats.threads == (progress == "thread")


def test_rank_that_owns_nothing() -> None:
    first, second = told(2, topology=ParameterServer("CC", servers=[0]), progress="inline")
    assert (first.progress, second.progress) == ("inline: asked for", "none: this rank owns no rows")


def test_ranks_of_different_progress_agree_on_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "spare_cores", lambda *_: 2)

    def rank(context: hpcomm.Context) -> None:
        for inline, cores in ((None, 2), (0, 1), (1, 1)):
            progress: Any = "inline" if context.rank == inline else "auto"
            with Exchange(context, KEYS, ParameterServer("CS"), rule=SGD(lr=1), progress=progress) as ex:
                assert ex.plan.places == tuple((r, core) for r in range(2) for core in range(cores))
                ex.step(KEYS)
            with Exchange(context, KEYS, ParameterServer("CS"), progress=progress, plan=PlanOptions(cores=3)) as ex:
                assert len(ex.plan.places) == 6

    run_threads(2, rank)

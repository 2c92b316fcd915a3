"""sync of local steps at any moment: while exchanges are on their way, twice, and cut short. Ranks end as the algorithm
in NumPy does."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import mpi
import numpy as np
import pytest
from conftest import run_threads
from flat import grouped
from hypothesis import example, given
from hypothesis import strategies as st

import hpcomm
from hpcomm import SGD, Exchange, Nesterov
from hpcomm.local.fragment import Fragment
from hpcomm.window import Window

SHAPES = {"a": (3,), "b": (2, 2), "c": (5,)}
STEP, SYNC = "step", "sync"

Arrays = dict[str, np.ndarray]


def learn(own: Any, rank: int, step: int) -> None:
    """A step of training that does not depend on the parameters."""
    for i, value in enumerate(own.values()):
        value[...] += 1 + (3 * rank + 2 * step + i) % 5


class Model:
    """Streaming DiLoCo, algorithm 2, for all ranks together, and sync: what a rank has learned since the begin of an
    exchange is the update of another one."""

    def __init__(self, size: int, options: dict[str, Any], rule: Any, groups: Sequence[Sequence[str]]) -> None:
        self.size, self.options, self.rule, self.groups = size, options, rule, groups
        self.own = [{name: np.zeros(shape) for name, shape in SHAPES.items()} for _ in range(size)]
        self.shared: Arrays = {name: np.zeros(shape) for name, shape in SHAPES.items()}
        self.moments: Arrays = {name: np.zeros(shape) for name, shape in SHAPES.items()}
        self.sent: dict[int, tuple[int, Arrays, list[Arrays]]] = {}  # by fragment: step, mean update, own
        self.learned, self.rounds, self.steps = [False] * len(groups), [0] * len(groups), 0

    def begin(self, p: int) -> None:
        names, own = self.groups[p], self.own
        mean = {n: self.shared[n] - sum(own[r][n] for r in range(self.size)) / self.size for n in names}
        self.sent[p] = self.steps, mean, [{n: own[r][n].copy() for n in names} for r in range(self.size)]
        self.learned[p] = False
        self.rounds[p] += 1

    def come(self, p: int) -> list[Arrays]:
        _, mean, own = self.sent.pop(p)
        momentum = getattr(self.rule, "momentum", 0.0)
        for n, update in mean.items():
            self.moments[n] = momentum * self.moments[n] + update
            self.shared[n] = self.shared[n] - self.rule.lr * (update + momentum * self.moments[n])
        return own

    def step(self) -> None:
        every, delay, mix = (self.options[name] for name in ("every", "delay", "mix"))
        for rank, own in enumerate(self.own):
            learn(own, rank, self.steps)
        self.steps += 1
        self.learned = [True] * len(self.groups)
        for p, names in enumerate(self.groups):
            if self.steps % every == (p + 1) * every // len(self.groups) % every:
                self.begin(p)
            if p in self.sent and self.steps == self.sent[p][0] + delay:
                self.come(p)
                for own in self.own:
                    own.update({n: (1 - mix) * own[n] + mix * self.shared[n] for n in names})
                self.learned[p] = self.learned[p] and mix < 1

    def sync(self) -> None:
        for p, names in enumerate(self.groups):
            if p in self.sent:
                for own, before in zip(self.own, self.come(p), strict=True):
                    own.update({n: self.shared[n] + own[n] - before[n] for n in names})
            if self.learned[p]:
                self.begin(p)
                self.come(p)
            for own in self.own:
                own.update({n: self.shared[n].copy() for n in names})


# ---- calls that are cut short ----------------------------------------------------------------------------------------


class Cuts:
    """Ends calls of this process's threads at the waits and starts that are chosen for each."""

    def __init__(self) -> None:
        self.of = threading.local()

    def tick(self) -> None:
        self.of.at = getattr(self.of, "at", 0) + 1
        if self.of.at in getattr(self.of, "chosen", ()):
            raise KeyboardInterrupt if self.of.at % 2 else hpcomm.Timeout("cut short")

    def wrapped(self, call: Callable[..., Any], *, behind: bool) -> Callable[..., Any]:
        def inside(*args: Any, **kwargs: Any) -> Any:
            self.tick()
            value = call(*args, **kwargs)
            if behind:
                self.tick()
            return value

        return inside

    def until_it_ends(self, call: Callable[[], Any]) -> None:
        while True:
            with suppress(KeyboardInterrupt, hpcomm.Timeout):
                call()
                return


@contextmanager
def cutting() -> Iterator[Cuts]:
    cuts = Cuts()
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (Window, "put_signal"),
            (Window, "wait_signal"),
            (Fragment, "come"),
            (Exchange, "push_pull_nb"),
        ):
            patch.setattr(owner, name, cuts.wrapped(getattr(owner, name), behind=owner is Exchange))
        yield cuts


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    every = draw(st.integers(1, 6))
    return {
        "options": {
            "every": every,
            "fragments": draw(st.integers(1, 3)),
            "delay": draw(st.integers(0, every - 1)),
            "mix": draw(st.sampled_from([1.0, 1.0, 0.5])),
        },
        "rule": draw(st.sampled_from([SGD(lr=1.0), SGD(lr=0.5), Nesterov(lr=0.5, momentum=0.5)])),
        "calls": [*draw(st.lists(st.sampled_from([STEP, STEP, STEP, SYNC]), max_size=25)), STEP, SYNC],
        "cuts": draw(st.lists(st.lists(st.integers(1, 60), max_size=6), min_size=2, max_size=2)),
        "trains_on": draw(st.booleans()),
    }


TWICE = {  # a begin is cut short, and again where the next step completes it
    "options": {"every": 1, "fragments": 1, "delay": 0, "mix": 1.0},
    "rule": SGD(lr=1.0),
    "calls": [*[STEP] * 7, SYNC],
    "cuts": [[], [29, 31]],
    "trains_on": True,
}


@given(jobs())
@example(TWICE)
def test_random_jobs_end_as_the_algorithm_says(job: dict[str, Any]) -> None:
    options, rule = job["options"], job["rule"]
    # Then the step that is completed later has the same effect on the sum of all that was learned.
    trains_on = job["trains_on"] and options["delay"] == 0 and rule == SGD(lr=1.0) and options["mix"] == 1

    def body(ctx: hpcomm.Context) -> Any:
        ex = Exchange(ctx, {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}, rule=rule)
        local = hpcomm.local_steps(ex, **options)
        cuts.of.at, cuts.of.chosen = 0, job["cuts"][ctx.rank]
        for call in job["calls"]:
            if call == SYNC:
                cuts.until_it_ends(local.sync)
                continue
            learn(local.params, ctx.rank, local.steps)
            try:
                local.step()
            except (KeyboardInterrupt, hpcomm.Timeout):
                if not trains_on:
                    cuts.until_it_ends(local.wait)
        cuts.of.chosen = ()
        found = dict(local.params), [one.rounds for one in local.stats().fragments], local.fragments
        ex.close()
        return found

    with cutting() as cuts:
        found = run_threads(2, body)
    model = Model(2, options, rule, found[0][2])
    for call in job["calls"]:
        model.step() if call == STEP else model.sync()
    for params, rounds, _ in found:
        assert rounds == model.rounds
        for name, value in params.items():
            np.testing.assert_allclose(value, model.shared[name], rtol=1e-5, atol=1e-4, err_msg=name)


def interrupted() -> list[float]:
    """Rank 1 is interrupted by a signal while it waits for rank 0 in a step, and in a sync, which it calls again."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    found = []
    with hpcomm.init(mpi.world(), timeout=20) as ctx:
        window, number = ctx.window(8, signals=1), 0

        def cut(call: Callable[[], Any], again: Callable[[], Any]) -> None:
            nonlocal number
            number += 1
            if ctx.rank == 0:
                window.wait_signal(0, number)
                call()
                return
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                call()
                signal.setitimer(signal.ITIMER_REAL, 0)  # under SSP a step waits for nobody
            except KeyboardInterrupt:
                cuts.append(call)
            window.put_signal(0, None, signal=0, value=number)
            again()

        ways: list[dict[str, Any]] = [{}, {"consistency": hpcomm.SSP(1), "topology": hpcomm.PeerToPeer()}]
        for more in ways:
            cuts: list[Any] = []
            ex = Exchange(ctx, {"w": np.zeros(1, np.float32)}, rule=SGD(lr=1.0), **grouped(more))
            local = hpcomm.local_steps(ex, every=2)
            for step in range(1, 6):
                local.params["w"] += 1
                cut(local.step, local.wait) if step == 2 else local.step()
            cut(local.sync, local.sync)
            found.append(float(local.params["w"][0]))
            assert ctx.rank == 0 or local.sync in cuts
            ctx.barrier()
            ex.close()
    return found


def test_ctrl_c_ends_a_wait_and_nothing_is_lost() -> None:
    assert mpi.spawn(2, interrupted, timeout=60).values == [[5.0, 5.0]] * 2


def test_a_sync_that_ran_out_of_time_is_called_again() -> None:
    over = threading.Event()

    def body(ctx: hpcomm.Context) -> float:
        ex = Exchange(ctx, {"w": np.zeros(1, np.float32)}, rule=SGD(lr=1.0))
        local = hpcomm.local_steps(ex, every=10)
        for _ in range(3):
            local.params["w"] += 1
            local.step()
        if ctx.rank == 1:
            local._roll_call._window._default = 0.05
            with pytest.raises(hpcomm.Timeout, match=r"rank 1: local.sync\(\): nothing came from rank 0"):
                local.sync()
            with pytest.raises(hpcomm.InvalidArgument, match="the last sync was cut short: call sync or recover"):
                local.step()
            local._roll_call._window._default = 20
            over.set()
        assert over.wait(20)
        local.sync()
        ex.close()
        return float(local.params["w"][0])

    assert run_threads(2, body) == [3.0, 3.0]


def test_ranks_that_meet_in_different_calls_are_told() -> None:
    def body(ctx: hpcomm.Context) -> str:
        ex = Exchange(ctx, {"w": np.zeros(1, np.float32)}, rule=SGD(lr=1.0))
        local = hpcomm.local_steps(ex, every=1)
        with local.join(), pytest.raises(hpcomm.ConfigError) as told:
            local.sync() if ctx.rank == 0 else local.step()
        return str(told.value)

    for told in run_threads(2, body):
        assert "rank 0 calls local.sync() while rank 1 calls local.step() in a join block" in told

"""The task of push_pull's contenders: all get the same gradients, and must compute the same parameters.

Elements fall into PERIOD classes. All elements of a class have the same gradient and the same parameter, so a reference
in NumPy with PERIOD elements gives each parameter's expected value after any number of steps. Gradients are whole
numbers; the learning rate, the momentum and the number of ranks are powers of two. So products are exact, and in a step

    velocity = momentum * velocity + gradient        parameter -= rate * (gradient + momentum * velocity)

only the three sums round, however the step is written. All correct results have the same bits.
"""

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arrays import Floats, aligned, repeat, wrong_classes

PERIOD = 4093  # as in queue.c; a prime, so data that arrives at a place a power of two off is found wrong
RATE, MOMENTUM = 2.0**-6, 0.5
Step = Callable[[], object]


@dataclass(frozen=True)
class FlatKey:
    name: str
    count: int  # float32 elements


def rounds(bench: Any) -> str:
    """Returns why means over the ranks would not be exact, or ""."""
    return f"{bench.size} ranks: answers are exact for 1, 2, 4, 8 ... ranks only" if bench.size & bench.size - 1 else ""


class Task:
    """The keys, this rank's gradients, and the sum of all ranks' gradients by class. One sample is m operations, all
    with the same gradients."""

    def __init__(self, bench: Any, keys: Sequence[FlatKey], m: int) -> None:
        if refused := rounds(bench):
            raise SystemExit(refused)
        self.bench, self.keys, self.m = bench, keys, m
        self.count = sum(key.count for key in keys)
        self.shifts = [61 * k % PERIOD for k in range(len(keys))]
        self.classes = min(PERIOD, keys[0].count) if len(keys) == 1 else PERIOD
        random = np.random.default_rng(bench.size)
        self.start = random.integers(-4096, 4096, PERIOD).astype(np.float32)
        self._tiles = random.integers(-2048, 2048, (bench.size, PERIOD)).astype(np.float32)
        self.total: Floats = self._tiles.sum(0, dtype=np.float32)
        self.gradients = self.arrays(self._tiles[bench.rank])
        self._samples = 0

    def arrays(self, tile: Floats) -> list[Floats]:
        """Returns new arrays for all keys, in which each element has its class's value in tile."""
        made = [aligned(key.count) for key in self.keys]
        for array, shift in zip(made, self.shifts, strict=True):
            repeat(array, np.roll(tile, -shift))
        return made

    def params(self) -> list[Floats]:
        return self.arrays(self.start)

    def touch(self) -> None:
        """Changes the gradients of one class on every rank, for the next sample."""
        self._samples += 1
        at = self._samples * 61 % self.classes
        by = [1 + (self._samples * 64 + rank * 7) % 255 for rank in range(self.bench.size)]
        for array, shift in zip(self.gradients, self.shifts, strict=True):
            array[(at - shift) % PERIOD :: PERIOD] += np.float32(by[self.bench.rank])
        self.total[at] += np.float32(sum(by))

    def turn(
        self,
        step: Step,
        params: Sequence[Floats],
        places: Callable[[], Sequence[Floats]],
        timed: Callable[[], float] | None = None,
        reference: "Reference | None" = None,
    ) -> "Measure":
        """Returns the measure of a contender whose step exchanges all keys once.

        Before every step it reads all parameters and writes all gradients, as a trainer does; otherwise their cache
        lines would stay in the cache of the core that used them last. This is not timed.

        Args:
            step: makes one step.
            params: the arrays in which the parameters are.
            places: returns the arrays to which the gradients are written.
            timed: if given, it is called instead of step, makes m steps, and returns the seconds of one.
            reference: the expected parameters, if other contenders change the same parameters; None: a new one.
        """
        expected, spoil = reference or Reference(self), self.bench.options.plant
        spoilt, used = False, list[float]()

        def train() -> None:
            for array in params:
                array.max()
            at = places()
            for place, gradient in zip(at, self.gradients, strict=True):
                np.copyto(place, gradient)
            if spoilt:
                at[0][0] += 1

        def several() -> float:
            clock, seconds, worked = time.perf_counter, 0.0, 0.0
            train()
            self.bench.comm.Barrier()
            if timed is not None:
                began = processor()
                seconds = timed()
                used.append((processor() - began) / self.m)
                return seconds
            for i in range(self.m):
                if i > 0:
                    train()
                began, before = processor(), clock()
                step()
                seconds += clock() - before
                worked += processor() - began
            used.append(worked / self.m)
            return seconds / self.m

        def measure(n: int) -> tuple[list[float], int]:
            nonlocal spoil, spoilt
            seconds = []
            for _ in range(n):
                self.touch()
                spoilt, spoil = spoil and self.bench.rank == 0, False
                seconds.append(several())
                for _ in range(self.m):
                    expected.step()
            return seconds, expected.wrong(params) if self.bench.options.check else 0

        return Measure(measure, used)


@dataclass(frozen=True)
class Measure:
    """A contender's measure that also keeps processor time: a harness.WithProcessor."""

    sample: Callable[[int], tuple[list[float], int]]
    used: list[float]  # by sample, processor seconds of all threads of this rank for one operation

    def __call__(self, n: int) -> tuple[list[float], int]:
        return self.sample(n)


def processor() -> float:
    """Returns the processor seconds of all threads of this process, in user mode and in the kernel."""
    found = resource.getrusage(resource.RUSAGE_SELF)
    return found.ru_utime + found.ru_stime


class Reference:
    """The expected values of one contender's parameters, one for each class, computed by NumPy."""

    def __init__(self, job: Task) -> None:
        self.job = job
        self._params = job.start.copy()
        self._velocity, self._scratch = np.zeros((2, job.classes), np.float32)
        self._rate, self._momentum = np.float32(RATE / job.bench.size), np.float32(MOMENTUM)

    def step(self) -> None:
        gradient, velocity, scratch = self.job.total[: self.job.classes], self._velocity, self._scratch
        np.multiply(velocity, self._momentum, velocity)
        np.add(velocity, gradient, velocity)
        np.multiply(velocity, self._momentum, scratch)
        np.add(scratch, gradient, scratch)
        np.multiply(scratch, self._rate, scratch)
        np.subtract(self._params[: self.job.classes], scratch, self._params[: self.job.classes])

    @property
    def values(self) -> Floats:
        values: Floats = self._params
        return values

    def wrong(self, params: Sequence[Floats]) -> int:
        return sum(
            wrong_classes(array, np.roll(self._params, -shift))
            for array, shift in zip(params, self.job.shifts, strict=True)
        )

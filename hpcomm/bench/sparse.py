"""sparse: measures push_pull of an update from which a threshold keeps a part, beside a dense update, NumPy and mpi4py.

Kept elements are whole numbers and all others are 0, so sums, means over 1, 2, 4, 8 ... ranks, and parameters are
exact. Updates travel encoded to the owners, and the sums travel encoded back (apply_at="receivers"). To measure only
the encoders, run `python -m bench.ops.sparse_bench`.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import hpcomm

from ..codec import Threshold
from . import arrays
from .arrays import Floats
from .composites import mpi
from .harness import Bench, Benchmark, Contender
from .training import rounds

RATE = 2.0**-6  # the learning rate
DELTA = 0.5  # the threshold
MIB = 1 << 20


class SparseUpdate:
    """This rank's update, and the sum of all ranks' updates, from which the expected parameters are computed."""

    def __init__(self, bench: Any, size: int, percent: float) -> None:
        self.bench, self.count, self.percent = bench, size // 4, percent
        self.total = np.zeros(self.count, np.float32)
        for rank in range(bench.size):
            update = self._of(rank)
            self.total += update
            if rank == bench.rank:
                self.own = update

    def _of(self, rank: int) -> Floats:
        random, update = np.random.default_rng([rank, self.count]), arrays.zeros(self.count)
        kept = max(1, int(self.count * self.percent / 100))
        update[random.choice(self.count, kept, replace=False)] = random.choice([-4.0, 4.0], kept)
        return update

    def contender(
        self,
        name: str,
        role: str,
        params: Callable[[], Floats],
        place: Callable[[], Floats],
        step: Callable[[], object],
        close: Callable[[], object],
    ) -> Contender:
        """Returns a contender. place returns the array to write an update to, and is not timed; step exchanges the
        update; params returns the parameters, which are checked."""
        done, spoil = 0.0, self.bench.options.plant
        samples = 0

        def measure(n: int) -> tuple[list[float], int]:
            nonlocal done, samples, spoil
            seconds = []
            for _ in range(n):
                scale = np.float32(1 + samples % 4)  # each update differs from the one before
                into = place()
                np.multiply(self.own, scale, out=into)
                if spoil and self.bench.rank == 0:
                    into[self.count // 2] += 8
                spoil = False
                self.bench.comm.Barrier()
                start = time.perf_counter()
                step()
                seconds.append(time.perf_counter() - start)
                samples, done = samples + 1, done + float(scale)
            if not self.bench.options.check:
                return seconds, 0
            return seconds, arrays.wrong(params(), self.total * np.float32(-RATE * done / self.bench.size))

        return Contender(name, role, measure, close)

    def by_hpcomm(self, name: str, **codec: Any) -> Contender:
        made = hpcomm.parameter_hub(
            self.bench.context,
            {"w": np.zeros(self.count, np.float32)},
            rule=hpcomm.SGD(lr=RATE),
            timeout=self.bench.options.timeout,
            **codec,
        )

        def step() -> None:
            made.push_pull("w")

        return self.contender(name, "hpcomm", lambda: made.params["w"], lambda: made.gradient("w"), step, made.close)

    def by_mpi(self, name: str) -> Contender:
        """Returns a peer: Allgatherv of all ranks' kept elements, which NumPy then adds to the parameters."""
        comm, update, params = self.bench.comm, arrays.zeros(self.count), arrays.zeros(self.count)
        rate, real, integer = np.float32(RATE / self.bench.size), mpi().FLOAT, mpi().INT32_T

        def step() -> None:
            indices = np.flatnonzero(np.abs(update) > DELTA).astype(np.int32)
            values = update[indices]
            counts = comm.allgather(indices.size)
            starts = [sum(counts[:rank]) for rank in range(len(counts))]
            places, parts = np.empty(sum(counts), np.int32), np.empty(sum(counts), np.float32)
            comm.Allgatherv([indices, integer], [places, counts, starts, integer])
            comm.Allgatherv([values, real], [parts, counts, starts, real])
            for start, length in zip(starts, counts, strict=True):
                params[places[start : start + length]] -= rate * parts[start : start + length]

        return self.contender(name, "peer", lambda: params, lambda: update, step, lambda: None)


def wanted(bench: Bench, size: int) -> Iterator[Contender]:
    if bench.wanted("hpcomm Python, dense"):
        yield SparseUpdate(bench, size, max(bench.options.kept)).by_hpcomm("hpcomm Python, dense")
    for percent in bench.options.kept:
        update, name = SparseUpdate(bench, size, percent), f"{percent:g} % kept"
        if bench.wanted(f"hpcomm Threshold, {name}"):
            codec = {"codec": Threshold(DELTA), "apply_at": "receivers"}
            yield update.by_hpcomm(f"hpcomm Threshold, {name}", **codec)
        if bench.mpi and bench.wanted(f"mpi4py + NumPy, {name}"):
            yield update.by_mpi(f"mpi4py + NumPy, {name}")


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    if refused := rounds(bench):
        raise SystemExit(f"sparse: {refused}")
    return list(wanted(bench, size))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-k", "--kept", type=lambda text: [float(part) for part in text.split(",")], default=[0.1, 1.0, 10.0],
        help="percents of the elements that are kept, e.g. 0.1,1,10",
    )  # fmt: skip


BENCHMARK = Benchmark(
    name="sparse",
    about="push_pull of an update of which a threshold keeps a part, beside the dense one and mpi4py with NumPy.",
    dtype="float32",
    contenders=contenders,
    defaults={"minbytes": 16 * MIB, "maxbytes": 16 * MIB, "iters": 3},
    options=options,
    peers=("mpi4py",),
    refuses=rounds,
    quick=("-b", "2M", "-e", "2M", "-k", "1,10", "-n", "2", "-N", "3"),
)

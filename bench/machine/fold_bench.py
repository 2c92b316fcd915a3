"""fold: the weighted sum of several arrays into one, beside the machine's add bandwidth.

All ranks work at once, each on private arrays that no cache holds. A fold of n arrays reads n and writes one. The bound
is the time for the same number of bytes at the rate of c = a + b, which reads two arrays and writes one.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from bench.common.harness import Bench, Benchmark, Contender, last_cache, main
from hpcomm.bench.arrays import address, aligned, zeros

MIB = 1 << 20
SIZE = max(64 * MIB, 2 * last_cache() // MIB * MIB)  # no cache holds one array


class Folds:
    """The arrays of one size. Inputs are whole numbers, so that sums are exact in any order."""

    def __init__(self, bench: Bench, size: int) -> None:
        self.bench, self.count, self.m = bench, size // 4, bench.options.agg_iters
        most = max(bench.options.inputs)
        random = np.random.default_rng(bench.rank)
        self.inputs = [aligned(self.count) for _ in range(most)]
        self.pointers = np.array([address(array) for array in self.inputs], np.uint64)
        for array in self.inputs:
            array[:] = random.integers(-2048, 2048, self.count, np.int16)
        self.out = zeros(self.count)

    def contender(self, n_in: int) -> Contender:
        name, spoil, checked = f"hpcomm C, {n_in} inputs", self.bench.options.plant, not self.bench.options.check

        def measure(n: int) -> tuple[list[float], int]:
            nonlocal spoil, checked
            seconds, wrong, spoilt = [], 0, spoil and self.bench.rank == 0
            self.inputs[0][self.count // 2] += spoilt
            for _ in range(n):
                self.bench.comm.Barrier()
                one = self.bench.native.bench_fold_of(
                    address(self.out), address(self.pointers), n_in, self.count, self.m
                )
                if one < 0:
                    self.bench.native.check(int(one))
                seconds.append(one)
            self.inputs[0][self.count // 2] -= spoilt
            spoil = False
            if not checked:
                expected = np.add(self.inputs[0], self.inputs[1])
                for array in self.inputs[2:n_in]:
                    expected += array
                expected *= np.float32(1 / n_in)
                wrong, checked = int(np.count_nonzero(self.out != expected)), True
            return seconds, wrong

        return Contender(name, "hpcomm", measure)

    def bound(self, n_in: int, stream: bool) -> Contender:
        name = f"{'streaming' if stream else 'plain'} add for {n_in} inputs (bound)"

        def measure(n: int) -> tuple[list[float], int]:
            seconds = []
            for _ in range(n):
                self.bench.comm.Barrier()
                two = self.bench.native.bench_two(
                    address(self.out), *(address(array) for array in self.inputs[:2]), self.count, stream, self.m
                )
                seconds.append(two * (n_in + 1) / 3)
            return seconds, 0

        return Contender(name, "bound", measure)


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    if min(bench.options.inputs) < 2 or any(n & (n - 1) for n in bench.options.inputs):
        raise SystemExit(f"fold_bench: --inputs {bench.options.inputs}: answers are exact for 2, 4, 8 ... only")
    folds = Folds(bench, size)
    made = []
    for n_in in bench.options.inputs:
        made += [folds.contender(n_in), folds.bound(n_in, True), folds.bound(n_in, False)]
    return made


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-i", "--inputs", type=lambda text: [int(part) for part in text.split(",")], default=[2, 4, 8],
        help="arrays of one fold, e.g. 2,4,8",
    )  # fmt: skip


BENCHMARK = Benchmark(
    name="fold_bench",
    about="Fold of several arrays into one, beside the add bandwidth of the machine.",
    dtype="float32",
    contenders=contenders,
    defaults={"minbytes": SIZE, "maxbytes": SIZE, "iters": 2},
    options=options,
)

if __name__ == "__main__":
    main(BENCHMARK)

"""broadcast: one array from rank 0 to all other ranks, by trees, MPI and Gloo, beside the least time of each tree."""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import hpcomm
from bench.common.communicators import communicators
from bench.common.harness import Bench, Benchmark, Contender, has_torch, main, nbytes
from bench.common.options import add_links
from hpcomm.bench.composites import gloo_group
from hpcomm.bench.wire import afar, has_rates, rate

MIB = 1 << 20
PAGE_WORDS, SHIFTS = 512, 512  # as in bench.h
FINITE = np.uint64(0xBFFFFFFF_BFFFFFFF)  # a mask: neither float32 of a word is Inf or NaN


Words = NDArray[np.uint64]


class Payload:
    """The data that rank 0 sends: another page of the source each time, so that data of an earlier send are wrong."""

    def __init__(self, bench: Bench, size: int) -> None:
        self.bench = bench
        self.source = bench.native.words(size // 8 + SHIFTS * PAGE_WORDS) & FINITE
        self.data = np.zeros(size // 8, np.uint64)
        self.sent = 0

    def contender(
        self,
        name: str,
        send: Callable[[], object],
        close: Callable[[], object] = lambda: None,
        *,
        role: str = "peer",
        data: Words | None = None,
        received: Words | None = None,
    ) -> Contender:
        """Makes a contender. data: the array that the root fills. received: the array that the others get. Both
        default to self.data."""
        own, theirs = self.data if data is None else data, self.data if received is None else received
        spoil, clock = self.bench.options.plant, time.perf_counter

        def measure(n: int) -> tuple[list[float], int]:
            nonlocal spoil
            seconds, wrong = [], 0
            for _ in range(n):
                self.sent += 1
                at = self.sent % SHIFTS * PAGE_WORDS
                expected = self.source[at : at + self.data.size]
                if self.bench.rank == 0:
                    np.copyto(own, expected)
                    own[0] ^= np.uint64(spoil)
                spoil = False
                self.bench.comm.Barrier()
                before = clock()
                send()
                seconds.append(clock() - before)
                if self.bench.options.check and self.bench.rank > 0:
                    wrong += self.bench.native.wrong(theirs, expected)
            return seconds, wrong

        return Contender(name, role, measure, close)

    def by_tree(self, ctx: hpcomm.Context, name: str, arity: int) -> Contender:
        ex = hpcomm.broadcast(ctx, {"w": np.zeros(2 * self.data.size, np.float32)}, hpcomm.Tree(arity))
        filled = ex.gradient("w").view(np.uint64) if ctx.rank == 0 else None
        got = ex.params["w"].view(np.uint64)
        return self.contender(name, lambda: ex.push_pull("w"), ex.close, role="hpcomm", data=filled, received=got)


def trees(ranks: int) -> dict[str, tuple[int, int]]:
    """Returns the largest out-degree and the depth of each tree."""
    return {
        "chain": (1, ranks - 1),
        "binary tree": (min(2, ranks - 1), ranks.bit_length() - 1),
        "flat": (ranks - 1, 1),
    }


def bound(bench: Bench, name: str, size: int, degree: int, depth: int) -> Contender:
    """Makes the bound of a tree: a rank sends the array to each of its children, and the last rank waits for one
    block from each rank above it."""

    def measure(n: int) -> tuple[list[float], int]:
        rates = [rate(bench, afar(bench, 0)) for _ in range(n)]
        nbytes = degree * size + depth * bench.options.block
        return [nbytes / carried for carried in rates if carried], 0

    return Contender(f"{name} (bound)", "bound", measure)


def wanted(bench: Bench, size: int) -> Iterator[Contender]:
    payload = Payload(bench, size)
    for name, (degree, _) in trees(bench.size).items():
        if bench.wanted(f"hpcomm {name}"):
            yield payload.by_tree(bench.context, f"hpcomm {name}", degree)
    for suffix, comm in communicators(bench).items():
        message = (MPI.buffer.frombuffer(payload.data), MPI.UINT64_T)
        if bench.wanted(f"MPI Bcast{suffix}"):
            yield payload.contender(f"MPI Bcast{suffix}", partial(comm.Bcast, message))
    if has_torch() and bench.wanted("Gloo broadcast"):
        torch, dist, close = gloo_group(bench)
        tensor = torch.from_numpy(payload.data.view(np.int64))
        yield payload.contender("Gloo broadcast", lambda: dist.broadcast(tensor, 0), close)
    if has_rates(bench):
        for name, (degree, depth) in trees(bench.size).items():
            if bench.wanted(f"{name} (bound)"):
                yield bound(bench, name, size, degree, depth)


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    return list(wanted(bench, size))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--block", type=nbytes, default=32 << 10, help="bytes that a rank of a tree passes on at once")
    add_links(parser)


BENCHMARK = Benchmark(
    name="broadcast",
    about="One array of rank 0 to all other ranks, beside the bounds of trees.",
    dtype="uint64",
    contenders=contenders,
    defaults={"minbytes": 32 * MIB, "maxbytes": 32 * MIB, "iters": 1, "average": 3},
    options=options,
)

if __name__ == "__main__":
    main(BENCHMARK)

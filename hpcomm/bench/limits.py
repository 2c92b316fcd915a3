"""limits: measures the bounds of a machine (memory copy, add, loopback and links), and hpcomm beside each bound.

It measures memory on rank 0's host, loopback between rank 0 and the next rank of its host, and links between the first
ranks of every two hosts, one direction at a time. A way is one direction between two hosts.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import permutations
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

import hpcomm

from .. import _core
from . import arrays, hardware, plots
from .arrays import PAGE_WORDS, SHIFTS, Floats, Words
from .harness import Bench, Benchmark, Contender, last_cache
from .peers import has_iperf3
from .put_bw import Stream, hpcomm_python, iperf3_stream, options, sockets
from .verdict import verdict
from .wire import path_to

MIB = 1 << 20
HUGE_PAGE = 2 * MIB
SIZE = max(64 * MIB, 2 * last_cache() // MIB * MIB)  # larger than the cache


class Blocks:
    """This rank's memory for a size: a source, a target, and two arrays of floats to add."""

    def __init__(self, bench: Any, size: int) -> None:
        room = (max(size, bench.options.ring) + HUGE_PAGE - 1) // HUGE_PAGE * HUGE_PAGE
        self.bench, self.size, self.room = bench, size, room
        self.source, self.target = self.block(room + SHIFTS * PAGE_WORDS * 8), self.block(room)
        self.source[:] = arrays.words(self.source.size)
        self.floats = [self.block(room).view(np.float32)[: size // 4] for _ in range(2)]
        for k, array in enumerate(self.floats):
            array[:] = np.random.default_rng(k).integers(-2048, 2048, array.size, np.int16)

    def block(self, nbytes: int) -> Words:
        return arrays.zeros(nbytes // 4).view(np.uint64)

    def copied(self, slots: int) -> float:
        """Copies so many blocks one after another, and returns the seconds of one copy."""
        n = self.size // 8
        start = perf_counter()
        for at in range(0, slots * n, n):
            np.copyto(self.target[at : at + n], self.source[at : at + n])
        return (perf_counter() - start) / slots

    def copy(self, name: str, everybody: bool) -> Contender:
        slots, words = self.room // self.size, self.room // self.size * self.size // 8

        def wrong() -> int:
            found = arrays.wrong(self.target[:words], self.source[:words])
            self.target[:words] = 0
            return found

        return self._contender(name, "bound", lambda: self.copied(slots), wrong, everybody, 2)

    def add(self, name: str, role: str, once: Callable[[Floats, Sequence[Floats]], float]) -> Contender:
        """Returns a contender that adds two arrays. once(out, arrays) does it and returns its seconds; with role
        "hpcomm" it computes the mean instead, as hpcomm's folds have weights."""
        out = self.target.view(np.float32)[: self.size // 4]

        def wrong() -> int:
            total = self.floats[0] + self.floats[1]
            if role == "hpcomm":  # the mean, which is the sum of halves
                total *= np.float32(0.5)
            found = arrays.wrong(out, total)
            out[:] = 0
            return found

        return self._contender(name, role, lambda: once(out, self.floats), wrong, True, 3)

    def _contender(
        self, name: str, role: str, once: Callable[[], float], wrong: Callable[[], int], everybody: bool, moves: int
    ) -> Contender:
        bench, spoil = self.bench, self.bench.options.plant
        works = bench.rank == 0 or (everybody and bench.hosts[bench.rank] == bench.hosts[0])
        ranks = bench.hosts.count(bench.hosts[0]) if everybody else 1

        def measure(n: int) -> tuple[list[float], int]:
            nonlocal spoil
            seconds = []
            for _ in range(n):
                if everybody:
                    bench.comm.Barrier()
                if works:
                    seconds.append(once())
            if not works or not bench.options.check:
                return seconds, 0
            if spoil and bench.rank == 0:
                self.target[0] ^= 1
            spoil = False
            return seconds, wrong()

        return Contender(name, role, measure, bus=float(moves * ranks))


def timed(work: Callable[[Floats, Sequence[Floats]], object]) -> Callable[[Floats, Sequence[Floats]], float]:
    """Makes an argument once of Blocks.add from a function that adds."""

    def once(out: Floats, inputs: Sequence[Floats]) -> float:
        start = perf_counter()
        work(out, inputs)
        return perf_counter() - start

    return once


def memory(blocks: Blocks) -> list[Contender]:
    def add(out: Floats, inputs: Sequence[Floats]) -> None:
        np.add(inputs[0], inputs[1], out=out)

    def fold(out: Floats, inputs: Sequence[Floats]) -> None:
        _core.fold(out, list(inputs), [0.5, 0.5])

    return [
        blocks.copy("memory copy, one rank (bound)", everybody=False),
        blocks.copy("memory copy, all ranks (bound)", everybody=True),
        blocks.add("add by NumPy, all ranks (bound)", "bound", timed(add)),
        blocks.add("hpcomm fold of 2, all ranks", "hpcomm", timed(fold)),
    ]


# ---- between ranks -------------------------------------------------------------------------------------------------

_windows: WeakKeyDictionary[Bench, dict[str, hpcomm.Window]] = WeakKeyDictionary()  # by transport; all sizes share them


def window_of(bench: Bench, transport: str, nbytes: int) -> hpcomm.Window:
    """Returns the window of a separate context, which it makes at the first call for a transport. All ranks call it.
    transport: "" means the best for each peer."""
    made = _windows.setdefault(bench, {})
    if transport not in made:
        context = bench.another(transport)
        bench.ends.append(context.close)
        made[transport] = context.window((nbytes // 8,), np.uint64, signals=1)
    return made[transport]


def mate(bench: Bench) -> int | None:
    """Returns the next rank on rank 0's host, or None."""
    return next((rank for rank in range(1, bench.size) if bench.hosts[rank] == bench.hosts[0]), None)


def names_of(bench: Bench) -> dict[int, str]:
    """Returns, for the first rank of each host, the host's name in the table."""
    first = {bench.hosts.index(host): host[0] for host in dict.fromkeys(bench.hosts)}
    names = list(first.values())
    return {rank: name if names.count(name) == 1 else f"{name} ({rank})" for rank, name in first.items()}


def between(bench: Bench, blocks: Blocks) -> list[Contender]:
    found, source = list[Contender](), blocks.source
    near, hosts = mate(bench), names_of(bench)
    if near is not None:
        stream = Stream(bench, blocks.size, near)
        found += [
            hpcomm_python(stream, source, window_of(bench, "", blocks.room), False, "hpcomm put, shm"),
            sockets(stream, source, blocks.target, "loopback, socket stream (bound)"),
            hpcomm_python(stream, source, window_of(bench, "tcp", blocks.room), True, "hpcomm put, loopback"),
        ]
    for (sender, here), (to, there) in permutations(hosts.items(), 2):
        stream, way = Stream(bench, blocks.size, to, sender), f"{here} -> {there}"
        if len(hosts) == 2 and has_iperf3() and bench.wanted(f"{way}, iperf3 (bound)"):
            found.append(iperf3_stream(stream, f"{way}, iperf3 (bound)", 1, most=1))
        window = window_of(bench, "", blocks.room)
        found += [
            sockets(stream, source, blocks.target, f"{way}, socket stream (bound)"),
            hpcomm_python(stream, source, window, True, f"{way}, hpcomm put"),
        ]
    return found


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    blocks = Blocks(bench, size)
    return [*memory(blocks), *between(bench, blocks)]


def facts(bench: Bench) -> dict[str, Any]:
    """Returns the adapters of each host and, for each way, the interface to which hpcomm connects at the far host. All
    ranks call it."""
    hosts = names_of(bench)
    found = bench.comm.allgather([asdict(one) for one in hardware.adapters()])
    called = bench.comm.allgather({to: path_to(bench, to)[1] for to in hosts if bench.path(to)})
    ways = permutations(hosts.items(), 2)
    return {
        "host": hosts[0],
        "adapters": {name: found[rank] for rank, name in hosts.items()},
        "ways": {f"{here} -> {there}": [there, called[sender].get(to, "")] for (sender, here), (to, there) in ways},
    }


BENCHMARK = Benchmark(
    name="limits",
    about="What bounds this machine: memory copy, add, loopback and links, with hpcomm beside each.",
    dtype="float32",
    contenders=contenders,
    defaults={"minbytes": SIZE, "maxbytes": SIZE, "iters": 2, "run_cycles": 7},
    options=options,
    draw=plots.limits,
    peers=("iperf3",),
    facts=facts,
    verdict=verdict,
    quick=("-b", "16M", "-e", "16M", "-R", "32M", "-n", "1", "-N", "3"),
)

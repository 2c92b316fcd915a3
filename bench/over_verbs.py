"""What stands beside hpcomm where it goes over RDMA, in the turns of each benchmark: plain verbs (nic.py), perftest."""

import sys
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from bench import perftest
from bench.harness import Bench, Contender
from bench.nic import WAYS, Loop, Missing, Raw

if TYPE_CHECKING:
    from bench.put_bw import Stream
    from bench.put_lat import Pair

PAGE_WORDS, SHIFTS = 512, 512  # as in bench.h
RING = 4 << 20  # bytes that the streams of a bound go through
Words = NDArray[np.uint64]


def goes(bench: Bench) -> bool:
    """Does hpcomm take verbs to any peer?"""
    return "verbs" in bench.transports


def note(bench: Bench, why: object) -> None:
    if bench.rank == 0:
        print(f"# {why}", file=sys.stderr, flush=True)


_raws: WeakKeyDictionary[Bench, Raw | None] = WeakKeyDictionary()


def raw(bench: Bench, room: int) -> Raw | None:
    """One for all sizes, closed with the benchmark; None, which is noted, where plain verbs are not to be had."""
    if bench not in _raws:
        try:
            if bench.size % 2:
                raise Missing(f"no bare verbs: {bench.size} ranks make no pairs")
            made = Raw(bench, room)
            bench.ends.append(made.close)
            _raws[bench] = made
        except Missing as why:
            _raws[bench] = None
            note(bench, why)
    return _raws[bench]


def has(bench: Bench, program: str) -> bool:
    found = all(bench.comm.allgather(perftest.available(program)))
    if not found:
        note(bench, perftest.MISSING)
    return found


# ---- put_lat -------------------------------------------------------------------------------------------------------


def trips(pair: "Pair", room: int) -> list[Contender]:
    """Bare signals behind the same bytes, and ib_write_lat. Where ranks outnumber cores only what sleeps."""
    bench, plain = pair.bench, raw(pair.bench, room)
    if plain is None:
        return []

    def bare(name: str, way: int, sleeps: bool = False) -> Contender:
        def measure(n: int) -> tuple[list[float], int]:
            return plain.trips(way, sleeps, pair.words, pair.count, pair.m, n)

        return Contender(name, "bound", measure)

    immediate = WAYS.index("write with immediate")
    asleep = bare("bare verbs, write with immediate, sleeping (bound)", immediate, sleeps=True)
    if bench.crowded:
        return [asleep]
    found = [bare(f"bare verbs, {name} (bound)", way) for way, name in enumerate(WAYS)]
    if bench.size == 2 and bench.wanted("ib_write_lat (bound)") and has(bench, "ib_write_lat"):
        found = [*_write_lat(pair, plain), *found]
    return [*found, asleep]


def _write_lat(pair: "Pair", plain: Raw) -> list[Contender]:
    """Two figures of one run: its mean, and its median of single trips."""
    median = [0.0]

    def mean(n: int) -> tuple[list[float], int]:
        seconds, median[0] = perftest.trip_seconds(pair.bench, plain.port, pair.size, n * pair.m)
        return ([seconds] if pair.first else []), 0

    return [
        Contender("ib_write_lat (bound)", "bound", mean),
        Contender("ib_write_lat, median trip (bound)", "bound", lambda n: (median[:] if pair.first else [], 0)),
    ]


# ---- put_bw --------------------------------------------------------------------------------------------------------


def streams(stream: "Stream", source: Words, depth: int) -> list[Contender]:
    """Bare writes from registered memory to the same ring, and ib_write_bw, with as many under way."""
    bench, plain = stream.bench, raw(stream.bench, max(bench_ring(stream.bench), stream.size))
    if plain is None:
        return []

    def copy(words: Words) -> float:
        plain.sources[: words.size] = words
        return plain.stream(stream.size, stream.slots, stream.m, depth)

    def write_bw(n: int) -> tuple[list[float], int]:
        seconds = [perftest.stream_seconds(bench, plain.port, stream.size, stream.m, depth) for _ in range(n)]
        return (seconds if stream.sender else []), 0

    found = [stream.contender("bare verbs (bound)", "bound", source, plain.arrived[: stream.words], copy)]
    if bench.wanted("ib_write_bw (bound)") and has(bench, "ib_write_bw"):
        found.insert(0, Contender("ib_write_bw (bound)", "bound", write_bw))
    return found


def bench_ring(bench: Bench) -> int:
    return int(max(bench.options.ring, bench.options.maxbytes))


# ---- limits of an exchange -----------------------------------------------------------------------------------------


def _numbered(bench: Bench, plain: Raw, size: int) -> Callable[[int, bool, bool], tuple[float, int]]:
    """One sample of a stream of m writes from the ranks that send, of words that move with each sample."""
    words = bench.native.words(plain.room // 8 + SHIFTS * PAGE_WORDS)
    slots, turn = plain.room // size, count()

    def sample(m: int, sends: bool, receives: bool) -> tuple[float, int]:
        at = 2 * next(turn) % SHIFTS * PAGE_WORDS
        part = words[at : at + min(slots, m) * size // 8]
        if sends:
            plain.sources[: part.size] = part
        bench.comm.Barrier()
        seconds = plain.stream(size, slots, m) if sends else 0.0
        bench.meet()
        wrong = bench.native.wrong(plain.arrived[: part.size], part) if receives and bench.options.check else 0
        return seconds, wrong

    return sample


def wire(bench: Bench, plain: Raw, name: str, size: int, both: bool, m: int) -> Contender:
    """m bare writes of size on one queue pair, from even ranks to odd ones, or both ways at once."""
    sample = _numbered(bench, plain, size)
    sends = both or plain.first

    def measure(n: int) -> tuple[list[float], int]:
        found = [sample(m, sends, both or not plain.first) for _ in range(n)]
        return ([seconds for seconds, _ in found] if sends else []), sum(wrong for _, wrong in found)

    return Contender(name, "bound", measure, bus=2.0 if both else 1.0)


def copies(loop: Loop, name: str, nics: int, qps: int, size: int, m: int) -> Contender:
    """NICs of rank 0's host copy within its memory."""

    def measure(n: int) -> tuple[list[float], int]:
        if loop.bench.rank != 0:
            return [], 0
        found = [loop.copy(nics, qps, size, m) for _ in range(n)]
        return [seconds for seconds, _ in found], sum(wrong for _, wrong in found)

    return Contender(name, "bound", measure)


def both_ways(bench: Bench, nbytes: float, piece: int) -> list[Contender]:
    """The time that bare writes take for nbytes from every rank to its neighbour at once; none where ranks outnumber
    cores, as they spin."""
    name = "wire, both ways (bound)"
    plain = None if bench.crowded or not bench.wanted(name) else raw(bench, RING)
    if plain is None:
        return []
    return [_scaled(wire(bench, plain, name, piece, True, several(nbytes, piece)), nbytes / piece)]


def several(nbytes: float, piece: int) -> int:
    """Writes of a sample: as many as it takes, but a stream in any case."""
    return max(1, RING // piece, min(1024, round(nbytes / piece)))


def exchange_limits(bench: Bench, nbytes: int, chunk: int) -> Sequence[Contender]:
    """The least time of a sum over n ranks, each of which sends and receives 2(n-1)/n of all bytes: by bare writes of a
    chunk, and by the NICs' own copies, which both directions share (PHub, figure 17)."""
    each = 2 * (bench.size - 1) / bench.size * nbytes
    found = both_ways(bench, each, chunk)
    if bench.wanted("NIC copies (bound)"):
        try:
            loop = Loop(bench, max(RING, chunk), 1)
        except Missing as why:
            note(bench, why)
            return found
        here = bench.hosts.count(bench.hosts[0])
        made = _scaled(
            copies(loop, "NIC copies (bound)", max(1, loop.nics), 1, chunk, several(each, chunk)), here * each / chunk
        )
        made.close = loop.close
        found.append(made)
    return found


def _scaled(contender: Contender, by: float) -> Contender:
    of_one = contender.measure

    def measure(n: int) -> tuple[list[float], int]:
        seconds, wrong = of_one(n)
        return [by * second for second in seconds], wrong

    contender.measure, contender.bus = measure, None
    return contender
